//! Every test, from one build.
//!
//! Some tests run what this workspace makes: `rem`, and the drop-in libraries. Alone, they have cargo build it, which for
//! one package picks other features of shared dependencies than for the workspace, and so builds all of them once more.
//! Here the build of the tests has made both already, and the tests are told where.
//!
//! A program that [only computes](Lane) has the same verdict however often it is asked: a test of it that fails is a failure. The others
//! take real time, real sockets and real disks, on machines that others share: a test of theirs that fails is run again, twice, by itself.
//! It is a failure if it fails again. If it does not it is told last, as [flaky], with what it printed.

mod flaky;
mod program;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use self::flaky::Flake;
use self::program::{Lane, Outcome, Program};
use crate::{dropin, root, run as run_command};

const TESTS: [&str; 3] = ["test", "--workspace", "--locked"];

/// The executables whose modules are programs, `tests/LANE/main.rs`, each with what its programs do.
const LANES: [(&str, Lane); 2] = [("computes", Lane::Computes), ("waits", Lane::Waits)];

/// Programs with an executable of their own in which nothing depends on time, other processes or threads.
const COMPUTES: &[&str] = &["coord/lib", "kv/lib", "resp/lib", "rnic/lib", "switch/lib", "wire/lib"];

/// Where the source of a test program lies, and in which lane: `tests/PROGRAM.rs` if it is an executable by itself, which is in none.
pub(crate) fn source(package: &Path, program: &str) -> (Option<&'static str>, PathBuf) {
    let file = format!("{program}.rs");
    let lanes = LANES.iter().map(|(lane, _)| (Some(*lane), package.join("tests").join(lane).join(&file)));
    let found = lanes.into_iter().find(|(_, path)| path.is_file());
    found.unwrap_or_else(|| (None, package.join("tests").join(file)))
}

fn entries(at: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Files of lanes that the file of the module above them does not name, so that no one runs their tests.
pub(crate) fn strays(root: &Path) -> Vec<String> {
    let mut strays = Vec::new();
    for lane in entries(&root.join("crates"))
        .flat_map(|package| LANES.map(|(lane, _)| package.join("tests").join(lane)))
    {
        strays_below(&lane, &lane.join("main.rs"), &mut strays);
    }
    strays
}

/// Those in a directory, whose module is `above`, and in the directories of its modules.
fn strays_below(directory: &Path, above: &Path, strays: &mut Vec<String>) {
    let text = std::fs::read_to_string(above).unwrap_or_default();
    let is_named =
        |module: &str| text.lines().any(|line| line.trim_start().ends_with(&format!("mod {module};")));
    for path in entries(directory) {
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            let inside = path.join("mod.rs");
            let beside = path.with_extension("rs");
            strays_below(&path, if inside.is_file() { &inside } else { &beside }, strays);
        } else if path.extension().is_some_and(|end| end == "rs") && path != above && !is_named(&module) {
            strays.push(format!("{}: {} has no `mod {module};`", path.display(), above.display()));
        }
    }
}

/// Runs of a program under `stress`, unless something else is said.
const STRESS_RUNS: u32 = 50;
/// A program that takes longer than this is named: the whole is to pass on two processors in 45 minutes.
const BUDGET_S: f64 = 90.0;

pub(crate) fn run() -> Result<(), String> {
    let (programs, env) = build()?;
    let (mut failed, mut flakes, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for program in &programs {
        let outcome = program.run(&[], &env)?;
        let took = outcome.took.as_secs_f64();
        times.push((took, program.name.clone(), outcome.tests()));
        if outcome.passed {
            println!("    {:28} {:4} tests {took:6.1} s", program.name, outcome.tests());
            continue;
        }
        println!("    {:28} FAILED, {} after {took:.1} s", program.name, outcome.how);
        let verdict = judge(program, &outcome, &env)?;
        if !verdict.failed.is_empty() {
            println!("{}", outcome.output);
        }
        failed.extend(verdict.failed);
        flakes.extend(verdict.flakes);
    }
    // Examples in the documentation.
    let documented = run_command(Command::new(env!("CARGO")).args(TESTS).args(["--doc", "--quiet"]));
    failed.extend(documented.err());
    let told = tell_times(times);
    flaky::report(&flakes)?;
    told?;
    if failed.is_empty() { Ok(()) } else { Err(format!("these failed: {}", failed.join(", "))) }
}

/// What became of the tests of a program that failed.
#[derive(Default)]
struct Verdict {
    failed: Vec<String>,
    flakes: Vec<Flake>,
}

/// Asks the tests that failed again, each twice by itself, if they may: all of the program where it does not say which.
fn judge(program: &Program, first: &Outcome, env: &BTreeMap<&str, PathBuf>) -> Result<Verdict, String> {
    let load = flaky::load();
    let tests = first.failed();
    let names: Vec<Option<&str>> =
        if tests.is_empty() { vec![None] } else { tests.into_iter().map(Some).collect() };
    let full = |name: Option<&str>| name.map_or_else(|| program.name.clone(), |test| program.test(test));
    if program.lane == Lane::Computes {
        return Ok(Verdict { failed: names.into_iter().map(full).collect(), flakes: Vec::new() });
    }
    let mut verdict = Verdict::default();
    for name in names {
        let arguments: Vec<&str> = name.map_or_else(Vec::new, |name| vec!["--exact", name]);
        let mut again = (0..2).map(|_| program.run(&arguments, env));
        let passes = again.try_fold(true, |all, outcome| {
            let outcome = outcome?;
            // One that is asked for by a name that is none's passes as well; one that runs itself in a namespace passes twice.
            let ran = name.is_none() || outcome.tests() > 0;
            Ok::<bool, String>(all && outcome.passed && ran)
        })?;
        let test = full(name);
        println!("        {test}: {} by itself", if passes { "passes twice" } else { "fails again" });
        if passes {
            let (how, output, load) = (first.how.clone(), first.tail(8 << 10).to_owned(), load.clone());
            verdict.flakes.push(Flake { test, how, output, load });
        } else {
            verdict.failed.push(test);
        }
    }
    Ok(verdict)
}

/// Says what took longest, and keeps all of it in `target/test-times.json`.
fn tell_times(mut times: Vec<(f64, String, u64)>) -> Result<(), String> {
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    let sum: f64 = times.iter().map(|(took, ..)| took).sum();
    println!("    {} programs took {sum:.0} s; the longest:", times.len());
    for (took, name, _) in times.iter().take(8) {
        let over =
            if *took > BUDGET_S { format!(", over its budget of {BUDGET_S} s") } else { String::new() };
        println!("    {name:28} {took:6.1} s{over}");
    }
    let all: Vec<Value> = times
        .into_iter()
        .map(|(seconds, program, tests)| json!({ "program": program, "seconds": seconds, "tests": tests }))
        .collect();
    let path = root().join("target/test-times.json");
    std::fs::write(&path, format!("{:#}\n", json!(all))).map_err(|e| format!("{}: {e}", path.display()))
}

/// Runs the tests that do not only compute beside as many busy loops as there are processors, and says how often each fails:
/// `[RUNS] [PROGRAM...]`.
pub(crate) fn stress(arguments: &[String]) -> Result<(), String> {
    let (programs, env) = build()?;
    let (runs, names) = match arguments.split_first() {
        Some((first, rest)) if first.parse::<u32>().is_ok() => (first.parse().unwrap_or(STRESS_RUNS), rest),
        _ => (STRESS_RUNS, arguments),
    };
    if let Some(name) = names.iter().find(|name| !programs.iter().any(|program| program.name == **name)) {
        return Err(format!(
            "there is no test program {name}: they are named as `cargo xtask test` prints them"
        ));
    }
    let _busy = Busy::begin()?;
    let mut any = false;
    for program in programs.iter().filter(|program| match names.is_empty() {
        true => program.lane != Lane::Computes,
        false => names.contains(&program.name),
    }) {
        let mut failures: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..runs {
            let outcome = program.run(&[], &env)?;
            if outcome.passed {
                continue;
            }
            let failed = outcome.failed();
            let ended = [&outcome.how[..]];
            for test in if failed.is_empty() { &ended[..] } else { &failed[..] } {
                let count = failures.entry((*test).to_owned()).or_default();
                *count += 1;
                if *count == 1 {
                    println!("{}", outcome.output);
                }
            }
        }
        println!("    {:28} {runs} runs", program.name);
        for (test, count) in &failures {
            println!("        {test}: failed {count} of {runs} times");
        }
        any |= !failures.is_empty();
    }
    if any { Err("some tests fail beside a busy machine".to_owned()) } else { Ok(()) }
}

/// Processes that are always busy.
struct Busy(Vec<Child>);

impl Busy {
    fn begin() -> Result<Self, String> {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let mut busy = Self(Vec::new());
        for _ in 0..processors {
            let one = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
            busy.0.push(one.map_err(|e| format!("a busy loop: {e}"))?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Builds every test program, and what they run.
fn build() -> Result<(Vec<Program>, BTreeMap<&'static str, PathBuf>), String> {
    let mut build = Command::new(env!("CARGO"));
    build.args(TESTS).args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = build.current_dir(root()).output().map_err(|e| format!("{build:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{build:?}: {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let made = Made::of(&messages)?;
    let programs = Program::all(&messages, Program::list)?;
    if let Some(name) = COMPUTES.iter().find(|name| !programs.iter().any(|program| program.name == **name)) {
        return Err(format!("{name} is said to compute only, and there is no such test program"));
    }
    let libraries = made.libraries()?;
    Ok((programs, BTreeMap::from([("REMANENCE_TEST_REM", made.rem), ("REMANENCE_TEST_LIB", libraries)])))
}

/// What the tests run.
#[derive(PartialEq, Eq, Debug)]
struct Made {
    rem: PathBuf,
    /// `libremanence_ibverbs-….a`
    archive: PathBuf,
}

impl Made {
    /// From what cargo says of its artifacts, a JSON object in each line.
    fn of(messages: &str) -> Result<Self, String> {
        let (mut rem, mut archive) = (None, None);
        for line in messages.lines().filter(|line| line.contains("compiler-artifact")) {
            let message: Value = serde_json::from_str(line).map_err(|e| format!("cargo says {line}: {e}"))?;
            if message["profile"]["test"] == true {
                continue;
            }
            match message["target"]["name"].as_str() {
                Some("rem") => rem = message["executable"].as_str().map(PathBuf::from).or(rem),
                Some("remanence_ibverbs") => {
                    let files = message["filenames"].as_array().into_iter().flatten();
                    let mut files = files.filter_map(Value::as_str).map(PathBuf::from);
                    archive = files.find(|file| file.extension().is_some_and(|e| e == "a")).or(archive);
                }
                _ => {}
            }
        }
        Ok(Self {
            rem: rem.ok_or("the build of the tests made no rem")?,
            archive: archive.ok_or("the build of the tests made no libremanence_ibverbs.a")?,
        })
    }

    /// Links the drop-in libraries beside `rem`, where it looks for them too.
    fn libraries(&self) -> Result<PathBuf, String> {
        let out = self.rem.parent().unwrap_or(Path::new(".")).join("dropin");
        dropin::link(&self.archive, &out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of that name which says what a test program does: its run without arguments fails in the test `b`; asked for that one, it
    /// fails the next so many times.
    fn script(name: &str, fails: u32) -> (Program, PathBuf) {
        use std::os::unix::fs::PermissionsExt as _;
        let directory =
            std::env::temp_dir().join(format!("xtask-{}-{}", std::process::id(), name.replace('/', "-")));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("program");
        let text = format!(
            "#!/bin/sh\nif [ \"$1\" != --exact ]; then\n  printf 'test b ... FAILED\\n\\nfailures:\\n    b\\n\\n'; exit 101\nfi\n\
             echo x >> runs\nif [ $(wc -l < runs) -le {fails} ]; then printf '\\nfailures:\\n    b\\n\\n'; exit 101; fi\n\
             echo 'test result: ok. 1 passed; 0 failed'\n"
        );
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        (Program::at(name, path, directory.clone()), directory)
    }

    /// The tests that failed for good, and those that did not.
    fn verdict(name: &str, fails: u32) -> [Vec<String>; 2] {
        let (program, directory) = script(name, fails);
        let env = BTreeMap::new();
        let first = program.run(&[], &env).expect("it is run");
        assert!(!first.passed && first.failed() == ["b"], "{first:?}");
        let verdict = judge(&program, &first, &env).expect("it is run");
        std::fs::remove_dir_all(directory).expect("removed");
        [verdict.failed, verdict.flakes.into_iter().map(|flake| flake.test).collect()]
    }

    #[test]
    fn who_fails_is_asked_again_if_chance_may_have_been_in_it() {
        assert_eq!(verdict("none/live", 0), [vec![], vec!["none/live::b".to_owned()]]);
        for fails in [1, 2] {
            assert_eq!(verdict("none/again", fails), [vec!["none/again::b".to_owned()], vec![]]);
        }
        let [failed, flakes] = verdict(COMPUTES[0], 0);
        assert!(failed.len() == 1 && flakes.is_empty(), "what computes fails at once");
    }

    #[test]
    fn a_test_that_passes_by_itself_is_told_beside_one_that_does_not() {
        let (program, directory) = script("none/both", 2);
        // The first of the two is asked for twice, and fails both times.
        let output = "\nfailures:\n    b\n    c\n\n".to_owned();
        let first = Outcome { passed: false, how: String::new(), took: std::time::Duration::ZERO, output };
        let verdict = judge(&program, &first, &BTreeMap::new()).expect("it is run");
        std::fs::remove_dir_all(directory).expect("removed");
        assert_eq!(verdict.failed, ["none/both::b"]);
        assert_eq!(verdict.flakes.len(), 1, "and c is not forgotten");
    }

    #[test]
    fn the_source_of_a_program_is_in_a_lane_or_by_itself_and_no_file_of_a_lane_is_forgotten() {
        let root = std::env::temp_dir().join(format!("xtask-{}-lanes", std::process::id()));
        let (package, lane) = (root.join("crates/a"), root.join("crates/a/tests/waits"));
        std::fs::create_dir_all(&lane).expect("a directory");
        std::fs::create_dir_all(lane.join("live")).expect("a directory");
        for (name, text) in [
            ("main.rs", "mod live;\n"),
            ("live.rs", "    pub(crate) mod named;\n"),
            ("forgotten.rs", ""),
            ("live/named.rs", ""),
            ("live/nameless.rs", ""),
        ] {
            std::fs::write(lane.join(name), text).expect("written");
        }
        let (found, mut strays) = ([source(&package, "live"), source(&package, "alone")], strays(&root));
        std::fs::remove_dir_all(&root).expect("removed");
        strays.sort();
        assert_eq!(found, [(Some("waits"), lane.join("live.rs")), (None, package.join("tests/alone.rs"))]);
        assert_eq!(strays.len(), 2, "{strays:?}");
        assert!(strays[0].contains("no `mod forgotten;`"), "{strays:?}");
        assert!(strays[1].contains("no `mod nameless;`"), "{strays:?}");
    }

    #[test]
    fn what_the_tests_run_is_found_among_what_cargo_made() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"remanence_ibverbs"},"profile":{"test":true},"filenames":["/t/no.a"],"executable":"/t/no"}
{"reason":"compiler-artifact","target":{"name":"remanence_ibverbs"},"profile":{"test":false},"filenames":["/t/x.rlib","/t/x.a","/t/x.rmeta"],"executable":null}
{"reason":"compiler-artifact","target":{"name":"rem"},"profile":{"test":true},"filenames":["/t/deps/rem-1"],"executable":"/t/deps/rem-1"}
{"reason":"compiler-artifact","target":{"name":"rem"},"profile":{"test":false},"filenames":["/t/rem"],"executable":"/t/rem"}
{"reason":"build-finished","success":true}"#;
        let made = Made::of(messages).expect("both are there");
        assert_eq!(made, Made { rem: "/t/rem".into(), archive: "/t/x.a".into() });
        let without = messages.lines().filter(|line| !line.contains("/t/x.a")).collect::<Vec<_>>().join("\n");
        assert!(Made::of(&without).expect_err("no archive").contains("libremanence_ibverbs.a"));
    }
}
