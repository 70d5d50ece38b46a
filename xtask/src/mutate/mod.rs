//! `cargo xtask mutate`: each rule is broken on purpose, and a test must notice.
//!
//! The sources are copied to a scratch tree under the target directory, each mutation ([`table`]) is applied there, and
//! the tests that it names are built and run. A mutation is *killed* if each of them fails, and *lived* if one passes. First
//! the same tests run on the sources as they are, where all must pass: a test that fails anyway has noticed nothing.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{deps, root, tidy};
use table::{Mutation, Test};

/// Test programs that take longer have stopped for good. They take seconds, and simulations with many seeds minutes.
const LIMIT: Duration = Duration::from_secs(900);

const USAGE: &str =
    "usage: cargo xtask mutate [--list] [NAME...]: breaks the rules that begin with these names, or all";

/// The cheap check: they all apply, and their tests are there.
pub(crate) fn check() -> Result<(), String> {
    let all = table::load(&root())?;
    let faults = table::faults(&all, &root());
    if faults.is_empty() { Ok(()) } else { Err(format!("\n  {}", faults.join("\n  "))) }
}

/// What they are called.
pub(crate) fn names() -> Result<Vec<String>, String> {
    Ok(table::load(&root())?.into_iter().map(|mutation| mutation.name).collect())
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    check()?;
    let all = table::load(&root())?;
    let (flags, names): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| arg.starts_with('-'));
    let mut chosen = Vec::new();
    for mutation in &all {
        if names.is_empty() || names.iter().any(|name| mutation.name.starts_with(&name[..])) {
            chosen.push(mutation);
        }
    }
    if let Some(name) = names.iter().find(|name| !all.iter().any(|m| m.name.starts_with(&name[..]))) {
        return Err(format!("no mutation begins with {name}; --list has them all"));
    }
    match flags.iter().map(|flag| &flag[..]).collect::<Vec<_>>()[..] {
        [] => round(&chosen),
        ["--list"] => {
            chosen.iter().for_each(|m| println!("{:44} {}", m.name, m.does));
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn round(chosen: &[&Mutation]) -> Result<(), String> {
    let tree = Tree::lay_out()?;
    let tests: BTreeSet<&Test> = chosen.iter().flat_map(|m| &m.tests).collect();
    println!("as it is: {} tests", tests.len());
    let verdicts = tree.try_out(&tests, None)?;
    if let Some((test, verdict)) = verdicts.iter().find(|(_, verdict)| !matches!(verdict, Verdict::Passed)) {
        return Err(format!("{test} does not pass without any mutation: {verdict:?}"));
    }
    let mut unlike = Vec::new();
    for mutation in chosen {
        let start = Instant::now();
        let outcome =
            match tree.with(mutation, || tree.try_out(&mutation.tests.iter().collect(), mutation.seeds)) {
                Ok(outcome) => outcome,
                Err(why) => {
                    println!("fails   {why}");
                    unlike.push(why);
                    continue;
                }
            };
        let took = start.elapsed().as_secs_f64();
        let passed: Vec<&Test> =
            outcome.iter().filter(|(_, v)| matches!(v, Verdict::Passed)).map(|(test, _)| *test).collect();
        let killed = passed.is_empty();
        println!("{:7} {:44} {took:5.1} s", if killed { "killed" } else { "lived" }, mutation.name);
        for (test, verdict) in &outcome {
            match verdict {
                Verdict::Passed => println!("        {test} passed"),
                Verdict::Failed(why) => println!("        {test}: {why}"),
            }
        }
        match (&mutation.lives, killed) {
            (None, false) => unlike.push(format!("{} lived: {}", mutation.name, mutation.does)),
            (Some(_), true) => unlike.push(format!("{} is said to live, and was killed", mutation.name)),
            (Some(why), false) => println!("        as it should: {why}"),
            (None, true) => {}
        }
    }
    println!("{} mutations, {} not as they should be", chosen.len(), unlike.len());
    if unlike.is_empty() { Ok(()) } else { Err(format!("\n  {}", unlike.join("\n  "))) }
}

/// What a test said.
#[derive(Clone, Debug)]
enum Verdict {
    Passed,
    /// In its own words.
    Failed(String),
}

/// A copy of the workspace's sources.
struct Tree {
    at: PathBuf,
    target: PathBuf,
}

impl Tree {
    /// Makes the copy equal to the sources. Files that are equal keep their times, so that little is built again.
    fn lay_out() -> Result<Self, String> {
        let base = deps::target()?.join("mutate");
        let tree = Self { at: base.join("tree"), target: base.join("target") };
        let listing = tidy::listing()?;
        let names: BTreeSet<PathBuf> =
            listing.split('\0').filter(|n| !n.is_empty()).map(PathBuf::from).collect();
        for name in &names {
            let Ok(bytes) = fs::read(root().join(name)) else { continue };
            tree.store(name, &bytes)?;
        }
        tree.clear(Path::new(""), &names)?;
        Ok(tree)
    }

    fn store(&self, name: &Path, bytes: &[u8]) -> Result<(), String> {
        let to = self.at.join(name);
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        let failed = |e: std::io::Error| format!("{}: {e}", to.display());
        fs::create_dir_all(to.parent().expect("under the tree")).map_err(failed)?;
        fs::write(&to, bytes).map_err(failed)?;
        let mode = fs::metadata(root().join(name)).map_err(failed)?.permissions();
        fs::set_permissions(&to, mode).map_err(failed)
    }

    /// Takes away what is no source any more.
    fn clear(&self, under: &Path, names: &BTreeSet<PathBuf>) -> Result<(), String> {
        for entry in fs::read_dir(self.at.join(under)).into_iter().flatten().flatten() {
            let name = under.join(entry.file_name());
            if entry.path().is_dir() {
                self.clear(&name, names)?;
            } else if !names.contains(&name) {
                fs::remove_file(entry.path()).map_err(|e| format!("{}: {e}", name.display()))?;
            }
        }
        Ok(())
    }

    /// Does something while a mutation is applied.
    fn with<T>(&self, mutation: &Mutation, act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let files = mutation.apply(&root())?;
        for (name, text) in &files {
            self.store(Path::new(name), text.as_bytes())?;
        }
        let outcome = act().map_err(|why| format!("{}: {why}", mutation.name));
        for (name, _) in &files {
            let bytes = fs::read(root().join(name)).map_err(|e| format!("{name}: {e}"))?;
            self.store(Path::new(name), &bytes)?;
        }
        outcome
    }

    /// Builds these tests and runs them, with so many seeds if that is said.
    fn try_out<'t>(
        &self,
        tests: &BTreeSet<&'t Test>,
        seeds: Option<u64>,
    ) -> Result<Vec<(&'t Test, Verdict)>, String> {
        let mut verdicts = Vec::new();
        let packages: BTreeSet<&str> = tests.iter().map(|test| &test.package[..]).collect();
        for package in packages {
            let of_it = tests.iter().copied().filter(|test| test.package == package);
            // Modules of one executable are run one by one, as `cargo xtask test` does.
            let mut runs: BTreeMap<(String, &str), Vec<(&'t Test, String)>> = BTreeMap::new();
            for test in of_it {
                let (target, name) = test.built(&self.at);
                runs.entry((target, &test.program)).or_default().push((test, name));
            }
            let programs = self.build(package, &runs.keys().map(|(target, _)| &target[..]).collect())?;
            for ((target, _), tests) in &runs {
                let program =
                    programs.get(target).ok_or_else(|| format!("{package} has no tests {target}"))?;
                let names: Vec<&str> = tests.iter().map(|(_, name)| &name[..]).collect();
                let said = self.run(package, program, &names, seeds)?;
                verdicts.extend(tests.iter().map(|(test, name)| (*test, said.of(name))));
            }
        }
        Ok(verdicts)
    }

    fn build(&self, package: &str, targets: &BTreeSet<&str>) -> Result<BTreeMap<String, PathBuf>, String> {
        let mut build = Command::new(env!("CARGO"));
        build.args(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics", "-p"]);
        let name = deps::name(package);
        build.arg(&name);
        // What is built again for each mutation needs no debugger, and is built longer than it runs.
        for setting in ["debug=0", "opt-level=0"] {
            build.arg("--config").arg(format!("profile.dev.package.{name}.{setting}"));
        }
        for target in targets {
            match *target {
                "lib" => build.arg("--lib"),
                name => build.args(["--test", name]),
            };
        }
        let output = build
            .env("CARGO_TARGET_DIR", &self.target)
            .current_dir(&self.at)
            .output()
            .map_err(|e| format!("{build:?}: {e}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let errors: Vec<&str> =
                said.lines().skip_while(|line| !line.starts_with("error")).take(30).collect();
            return Err(format!("it does not build, which proves nothing:\n{}", errors.join("\n")));
        }
        Ok(programs(&String::from_utf8_lossy(&output.stdout)))
    }

    fn run(&self, package: &str, program: &Path, names: &[&str], seeds: Option<u64>) -> Result<Said, String> {
        let mut command = Command::new(program);
        command.arg("--exact").args(names).current_dir(self.at.join("crates").join(package));
        if let Some(seeds) = seeds {
            command.env("REMANENCE_SEEDS", format!("0..{seeds}"));
        }
        // A group of its own, so that whatever it starts can be ended with it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |e: std::io::Error| format!("{}: {e}", program.display());
        let mut child = command.spawn().map_err(failed)?;
        let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let read = |from: &mut dyn Read| {
            let mut bytes = Vec::new();
            let _ = from.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        std::thread::scope(|scope| {
            let err = scope.spawn(move || read(&mut err));
            let out = scope.spawn(move || read(&mut out));
            let start = Instant::now();
            let mut stopped = false;
            while child.try_wait().map_err(failed)?.is_none() {
                if start.elapsed() >= LIMIT && !stopped {
                    stopped = true;
                    let group = format!("-{}", child.id());
                    Command::new("kill").args(["-KILL", "--", &group]).status().map_err(failed)?;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let text = out.join().expect("it reads") + &err.join().expect("it reads");
            Ok(Said { text, stopped })
        })
    }
}

/// What a test program said.
struct Said {
    text: String,
    /// It was ended since it did not end by itself.
    stopped: bool,
}

impl Said {
    fn of(&self, path: &str) -> Verdict {
        if self.text.lines().any(|line| line == format!("test {path} ... ok")) {
            return Verdict::Passed;
        }
        if self.stopped {
            return Verdict::Failed(format!("it did not end within {} s", LIMIT.as_secs()));
        }
        // `thread 'PATH' (ID) panicked at PLACE:`, and then what it says; it may have been another thread of the test.
        let own =
            self.text.lines().position(|l| l.contains(&format!("'{path}'")) && l.contains("panicked at"));
        let any = || self.text.lines().position(|line| line.contains("panicked at"));
        let why = own.or_else(any).and_then(|n| self.text.lines().nth(n + 1)).unwrap_or("it did not pass");
        Verdict::Failed(why.chars().take(200).collect())
    }
}

/// The test programs among what cargo made, by the name of their target; that of a library is `lib`.
fn programs(messages: &str) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for line in messages.lines().filter(|line| line.contains("compiler-artifact")) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let (Some(program), true) = (message["executable"].as_str(), message["profile"]["test"] == true)
        else {
            continue;
        };
        let is_test =
            message["target"]["kind"].as_array().is_some_and(|kind| kind.iter().any(|k| k == "test"));
        let name = if is_test { message["target"]["name"].as_str().unwrap_or_default() } else { "lib" };
        found.insert(name.to_owned(), PathBuf::from(program));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_of_a_build_are_told_apart() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"remanence_kv","kind":["lib"]},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","target":{"name":"remanence_kv","kind":["lib"]},"profile":{"test":true},"executable":"/t/kv-1"}
{"reason":"compiler-artifact","target":{"name":"holes","kind":["test"]},"profile":{"test":true},"executable":"/t/holes-1"}"#;
        let found = programs(messages);
        assert_eq!(found.len(), 2);
        assert_eq!((&found["lib"], &found["holes"]), (&"/t/kv-1".into(), &"/t/holes-1".into()));
    }

    #[test]
    fn a_test_that_says_nothing_has_not_passed() {
        let text =
            "test a::b ... ok\ntest c ... FAILED\nthread 'c' (7) panicked at x.rs:1:1:\nlost 10\n".to_owned();
        let said = Said { text, stopped: false };
        assert!(matches!(said.of("a::b"), Verdict::Passed));
        assert!(matches!(said.of("c"), Verdict::Failed(why) if why == "lost 10"));
        assert!(matches!(said.of("b"), Verdict::Failed(_)), "a part of a name is no name");
        let aborted = Said { text: "test a ... ".into(), stopped: true };
        assert!(matches!(aborted.of("a"), Verdict::Failed(why) if why.contains("did not end")));
    }
}
