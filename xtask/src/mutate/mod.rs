//! `cargo xtask mutate`: each rule is broken on purpose, and a test must notice.
//!
//! The sources are copied to a scratch tree under the target directory, each mutation ([`table`]) is applied there, and
//! the tests that it names are built and run. A mutation is *killed* if each of them fails, and *lived* if one passes. First
//! the same tests run on the sources as they are, where all must pass: a test that fails anyway has noticed nothing.
//!
//! Those of crates that the simulator has as they are share one optimized build ([`switch`]), as simulations that are to find them may need 10,000 seeds each.

mod switch;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{deps, root, tidy};
use table::{Mutation, SIMULATOR, Test};

/// Test programs that take longer have stopped for good. They take seconds, and simulations with many seeds minutes.
const LIMIT: Duration = Duration::from_secs(900);

/// So many seeds of a simulation are run at a time, so that many of them are not taken for one that has stopped.
const AT_ONCE: u64 = 500;

const USAGE: &str = "usage: cargo xtask mutate [--list | --simulated] [NAME...]: breaks the rules that begin with these names, or all; \
                     with --simulated those that a simulation finds, which must do so";

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
        ["--simulated"] => {
            let simulated: Vec<Mutation> = chosen.iter().filter_map(|m| m.simulated()).collect();
            round(&simulated.iter().collect::<Vec<_>>())
        }
        ["--list"] => {
            chosen.iter().for_each(|m| println!("{:44} {}", m.name, m.does));
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn round(chosen: &[&Mutation]) -> Result<(), String> {
    let tree = Tree::lay_out()?;
    let (together, others): (Vec<&Mutation>, Vec<&Mutation>) =
        chosen.iter().partition(|m| m.computes() && switch::all(&[m], source).is_ok());
    let mut unlike = tree.together(&together)?;
    unlike.extend(tree.one_by_one(&others)?);
    println!("{} mutations, {} not as they should be", chosen.len(), unlike.len());
    if unlike.is_empty() { Ok(()) } else { Err(format!("\n  {}", unlike.join("\n  "))) }
}

/// A file of the sources.
fn source(name: &str) -> Result<String, String> {
    fs::read_to_string(root().join(name)).map_err(|e| format!("{name}: {e}"))
}

/// Says what tests said of a mutation: what is not as it should be.
fn judge(mutation: &Mutation, outcome: &[(&Test, Verdict)], took: Duration) -> Option<String> {
    let killed = !outcome.iter().any(|(_, verdict)| matches!(verdict, Verdict::Passed));
    let mut said = format!(
        "{:7} {:52} {:6.1} s",
        if killed { "killed" } else { "lived" },
        mutation.name,
        took.as_secs_f64()
    );
    for (test, verdict) in outcome {
        said += &match verdict {
            Verdict::Passed => format!("\n        {test} passed"),
            Verdict::Failed(why) => format!("\n        {test}: {why}"),
        };
    }
    if let (Some(why), false) = (&mutation.lives, killed) {
        said += &format!("\n        as it should: {why}");
    }
    println!("{said}");
    match (&mutation.lives, killed) {
        (None, false) => Some(format!("{} lived: {}", mutation.name, mutation.does)),
        (Some(_), true) => Some(format!("{} is said to live, and was killed", mutation.name)),
        _ => None,
    }
}

/// None of these may fail on the sources as they are.
fn all_pass(verdicts: &[(&Test, Verdict)]) -> Result<(), String> {
    match verdicts.iter().find(|(_, verdict)| !matches!(verdict, Verdict::Passed)) {
        Some((test, verdict)) => Err(format!("{test} does not pass without any mutation: {verdict:?}")),
        None => Ok(()),
    }
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
        self.holding(files, act).map_err(|why| format!("{}: {why}", mutation.name))
    }

    /// Does something while files say something else.
    fn holding<T>(
        &self,
        files: impl IntoIterator<Item = (String, String)>,
        act: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let mut names = Vec::new();
        for (name, text) in files {
            self.store(Path::new(&name), text.as_bytes())?;
            names.push(name);
        }
        let outcome = act();
        for name in names {
            self.store(Path::new(&name), source(&name)?.as_bytes())?;
        }
        outcome
    }

    /// Builds and runs the tests of each mutation: what is not as it should be.
    fn one_by_one(&self, chosen: &[&Mutation]) -> Result<Vec<String>, String> {
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        let tests: BTreeSet<&Test> = chosen.iter().flat_map(|m| &m.tests).collect();
        println!("as it is: {} tests", tests.len());
        all_pass(&self.built(&tests, false)?.try_out(&tests, 0, None)?)?;
        let mut unlike = Vec::new();
        for mutation in chosen {
            let start = Instant::now();
            let tests = mutation.tests.iter().collect();
            match self.with(mutation, || self.built(&tests, false)?.try_out(&tests, 0, mutation.seeds)) {
                Ok(outcome) => unlike.extend(judge(mutation, &outcome, start.elapsed())),
                Err(why) => {
                    println!("fails   {why}");
                    unlike.push(why);
                }
            }
        }
        Ok(unlike)
    }

    /// The same of mutations that are all in one build, and run as many at a time as there are cores.
    fn together(&self, chosen: &[&Mutation]) -> Result<Vec<String>, String> {
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        let tests: BTreeSet<&Test> = chosen.iter().flat_map(|m| &m.tests).collect();
        println!("as it is, {} mutations in one build: {} tests", chosen.len(), tests.len());
        let files = switch::all(chosen, source)?;
        let programs = self.holding(files, || self.built(&tests, true))?;
        all_pass(&programs.try_out(&tests, 0, None)?)?;
        let (next, unlike) = (Mutex::new(chosen.iter().enumerate()), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let Some((n, mutation)) = next.lock().expect("nobody panics").next() else {
                    return Ok::<(), String>(());
                };
                let start = Instant::now();
                let outcome = programs.try_out(&mutation.tests.iter().collect(), n + 1, mutation.seeds)?;
                unlike.lock().expect("nobody panics").extend(judge(mutation, &outcome, start.elapsed()));
            }
        };
        std::thread::scope(|scope| {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("it reports"))
        })?;
        Ok(unlike.into_inner().expect("nobody panics"))
    }

    /// Builds these tests, so that they are fast if that is said.
    fn built(&self, tests: &BTreeSet<&Test>, fast: bool) -> Result<Programs<'_>, String> {
        let mut made = BTreeMap::new();
        let packages: BTreeSet<&str> = tests.iter().map(|test| &test.package[..]).collect();
        for package in packages {
            let of_it = tests.iter().filter(|test| test.package == package);
            let targets: BTreeSet<String> = of_it.map(|test| test.built(&self.at).0).collect();
            let programs = self.build(package, &targets, fast)?;
            if let Some(target) = targets.iter().find(|target| !programs.contains_key(*target)) {
                return Err(format!("{package} has no tests {target}"));
            }
            made.insert(package.to_owned(), programs);
        }
        Ok(Programs { tree: self, made })
    }

    fn build(
        &self,
        package: &str,
        targets: &BTreeSet<String>,
        fast: bool,
    ) -> Result<BTreeMap<String, PathBuf>, String> {
        let mut build = Command::new(env!("CARGO"));
        build.args(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics", "-p"]);
        let name = deps::name(package);
        build.arg(&name);
        // What is built again for each mutation needs no debugger, and is built longer than it runs. What has them all runs longer.
        let settings: Vec<String> = if fast {
            ["opt-level=3", "debug=0", "incremental=false"]
                .map(|setting| format!("profile.dev.{setting}"))
                .into()
        } else {
            ["debug=0", "opt-level=0"].map(|setting| format!("profile.dev.package.{name}.{setting}")).into()
        };
        settings.iter().for_each(|setting| _ = build.arg("--config").arg(setting));
        for target in targets {
            match &target[..] {
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

    fn run(
        &self,
        package: &str,
        program: &Path,
        names: &[&str],
        which: usize,
        seeds: Option<Range<u64>>,
    ) -> Result<Said, String> {
        let mut command = Command::new(program);
        command.arg("--exact").args(names).current_dir(self.at.join("crates").join(package));
        command.env(switch::WHICH, which.to_string());
        if let Some(seeds) = seeds {
            command.env("REMANENCE_SEEDS", format!("{}..{}", seeds.start, seeds.end));
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

/// Test programs that were built, by their packages and targets.
struct Programs<'t> {
    tree: &'t Tree,
    made: BTreeMap<String, BTreeMap<String, PathBuf>>,
}

impl Programs<'_> {
    /// Runs these tests, with this one of the mutations that are in them, and simulations with so many seeds if that is said.
    fn try_out<'t>(
        &self,
        tests: &BTreeSet<&'t Test>,
        which: usize,
        seeds: Option<u64>,
    ) -> Result<Vec<(&'t Test, Verdict)>, String> {
        // Modules of one executable are run one by one, as `cargo xtask test` does; a simulation with many seeds ends with the first that
        // fails.
        let mut runs: BTreeMap<_, Vec<(&'t Test, String)>> = BTreeMap::new();
        for (n, test) in tests.iter().enumerate() {
            let (target, name) = test.built(&self.tree.at);
            let own = seeds.filter(|_| test.package == SIMULATOR).map(|_| n);
            runs.entry((&test.package, target, &test.program, own)).or_default().push((test, name));
        }
        let mut verdicts = Vec::new();
        for ((package, target, _, own), tests) in &runs {
            let program = &self.made[&package[..]][target];
            let names: Vec<&str> = tests.iter().map(|(_, name)| &name[..]).collect();
            let parts: Vec<Option<Range<u64>>> = match (seeds, own) {
                (Some(seeds), Some(_)) => {
                    let from = (0..seeds).step_by(AT_ONCE as usize);
                    from.map(|from| Some(from..seeds.min(from + AT_ONCE))).collect()
                }
                (seeds, _) => vec![seeds.map(|seeds| 0..seeds)],
            };
            let mut said = Vec::new();
            for seeds in parts {
                let part = self.tree.run(package, program, &names, which, seeds)?;
                said = tests.iter().map(|(test, name)| (*test, part.of(name))).collect();
                if said.iter().any(|(_, verdict)| !matches!(verdict, Verdict::Passed)) {
                    break;
                }
            }
            verdicts.extend(said);
        }
        Ok(verdicts)
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
