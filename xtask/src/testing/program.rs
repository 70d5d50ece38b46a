//! A test program: found among what cargo made, run, and what its output says.
//!
//! To link costs more than to compile, so the files of a crate's `tests` are modules of one executable to a lane ([`LANES`]), where nothing
//! forbids it. Each of these modules is a program as it would be by itself: it has its own name, process, log, budget and verdict.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{COMPUTES, LANES};
use crate::root;

/// After so long a program is ended: it hangs.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// A test program: an executable that cargo made, or a module of one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Program {
    /// Whether nothing in it depends on time, other processes or threads.
    pub(super) lane: Lane,
    /// The package's directory and the module's or the target's name: `kv-live/live`; `kv-live/lib` is that of the library.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// Where cargo runs it.
    directory: PathBuf,
    /// Its tests, if it is a module: the executable has those of others too.
    module: Option<Vec<String>>,
}

/// What a verdict depends on. What computes runs first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Lane {
    /// The sources: who fails fails again.
    Computes,
    /// Time, sockets, disks and processes, too.
    Waits,
}

impl Program {
    /// The programs among what cargo says of its artifacts, a JSON object in each line; `list` asks an executable for its tests.
    ///
    /// # Errors
    /// Cargo says something else, or two programs have one name, or a test belongs to none.
    pub(super) fn all(
        messages: &str,
        list: impl Fn(&Self) -> Result<String, String>,
    ) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        for line in messages.lines().filter(|line| line.contains("compiler-artifact")) {
            let message: Value = serde_json::from_str(line).map_err(|e| format!("cargo says {line}: {e}"))?;
            let Some(program) = Self::of(&message) else { continue };
            let is_lane = message["target"]["kind"][0] == "test"
                && LANES.iter().any(|(name, _)| message["target"]["name"] == *name);
            match is_lane {
                true => all.extend(program.modules(&list(&program)?)?),
                false => all.push(program),
            }
        }
        all.sort();
        let mut names: Vec<&String> = all.iter().map(|program| &program.name).collect();
        names.sort();
        match names.windows(2).find(|two| two[0] == two[1]) {
            Some(two) => Err(format!("there are two test programs {}", two[0])),
            None => Ok(all),
        }
    }

    /// Those of a lane's executable, from the list of its tests.
    fn modules(&self, list: &str) -> Result<Vec<Self>, String> {
        let mut modules = BTreeMap::<&str, Vec<String>>::new();
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            let (module, _) = test.split_once("::").ok_or_else(|| {
                format!("{} has the test {test} in no module: it belongs to no program", self.name)
            })?;
            modules.entry(module).or_default().push(test.to_owned());
        }
        let (package, _) = self.name.split_once('/').unwrap_or((&self.name, ""));
        let module = |(module, tests)| Self {
            name: format!("{package}/{module}"),
            module: Some(tests),
            ..self.clone()
        };
        Ok(modules.into_iter().map(module).collect())
    }

    /// What its executable says of its tests: `NAME: test` in each line.
    pub(super) fn list(&self) -> Result<String, String> {
        let mut list = Command::new(&self.executable);
        let output = list
            .args(["--list", "--format", "terse"])
            .current_dir(&self.directory)
            .output()
            .map_err(|e| format!("{list:?}: {e}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{list:?}: {}", output.status)),
        }
    }

    /// The name of one of its tests among those of all: `kv-live/live::a`, where a module's executable says `live::a`.
    pub(super) fn test(&self, name: &str) -> String {
        match (&self.module, self.name.split_once('/')) {
            (Some(_), Some((package, _))) => format!("{package}/{name}"),
            _ => format!("{}::{name}", self.name),
        }
    }

    fn of(message: &Value) -> Option<Self> {
        let executable = message["executable"].as_str()?.into();
        if message["profile"]["test"] != true {
            return None;
        }
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        let package = directory.file_name()?.to_str()?;
        let target = match message["target"]["kind"][0].as_str()? {
            "test" | "bench" | "example" => message["target"]["name"].as_str()?,
            "bin" => "bin",
            _ => "lib",
        };
        Some(Self::at(&format!("{package}/{target}"), executable, directory))
    }

    /// An executable by itself, or one whose modules are not known yet.
    pub(super) fn at(name: &str, executable: PathBuf, directory: PathBuf) -> Self {
        let target = name.rsplit('/').next().unwrap_or_default();
        let lane = LANES.iter().find(|(of, _)| *of == target).map(|(_, lane)| *lane);
        let alone = if COMPUTES.contains(&name) { Lane::Computes } else { Lane::Waits };
        let lane = lane.unwrap_or(alone);
        Self { lane, name: name.to_owned(), executable, directory, module: None }
    }

    /// Runs all of it, or what the arguments name.
    pub(super) fn run(&self, arguments: &[&str], env: &BTreeMap<&str, PathBuf>) -> Result<Outcome, String> {
        let log = root().join("target/tests").join(self.name.replace('/', "-")).with_extension("log");
        std::fs::create_dir_all(log.parent().unwrap_or(Path::new(".")))
            .map_err(|e| format!("{}: {e}", log.display()))?;
        let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let errors = file.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
        let mut command = Command::new(&self.executable);
        if let (Some(tests), []) = (&self.module, arguments) {
            // A module's name by itself is part of others' names, perhaps.
            command.arg("--exact").args(tests);
        }
        let start = Instant::now();
        let mut child = command
            .args(arguments)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .envs(env)
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(|e| format!("{}: {e}", self.executable.display()))?;
        let pid = child.id();
        let (ended, wait) = mpsc::channel::<()>();
        let guard = std::thread::spawn(move || {
            let late = wait.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                // What it has started hangs as well, perhaps.
                let all: Vec<String> = with_descendants(pid).iter().map(u32::to_string).collect();
                let _ = Command::new("kill").arg("-KILL").args(all).status();
            }
            late
        });
        let status = child.wait().map_err(|e| format!("{}: {e}", self.name))?;
        drop(ended);
        let late = guard.join().unwrap_or(false);
        let mut output = Vec::new();
        File::open(&log)
            .and_then(|mut file| file.read_to_end(&mut output))
            .map_err(|e| format!("{}: {e}", log.display()))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        let outcome = Outcome { passed: true, how: status.to_string(), took: start.elapsed(), output };
        // Whoever calls `exit` in a test ends the program with success, and the tests behind it were never run.
        let listed = self.module.as_ref().filter(|_| arguments.is_empty()).map(|tests| tests.len() as u64);
        let asked = listed.unwrap_or_else(|| outcome.begun());
        let ended = outcome.ended() >= asked;
        Ok(match (late, status.success()) {
            (true, _) => {
                let how = format!("it did not end within {} minutes", LIMIT.as_secs() / 60);
                Outcome { passed: false, how, ..outcome }
            }
            (false, true) if !ended => {
                let how = format!("it ended well, and said so of {} tests of {asked}", outcome.ended());
                Outcome { passed: false, how, ..outcome }
            }
            (false, passed) => Outcome { passed, ..outcome },
        })
    }
}

/// A process, and those that it has started, and so on.
fn with_descendants(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses, and may have any characters.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let parents: BTreeMap<u32, u32> = processes.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&one) = all.get(next) {
        all.extend(parents.iter().filter(|(_, parent)| **parent == one).map(|(pid, _)| *pid));
        next += 1;
    }
    all
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) passed: bool,
    /// How the run ended, in words for the report.
    pub(super) how: String,
    pub(super) took: Duration,
    pub(super) output: String,
}

impl Outcome {
    /// The tests that failed, as the program says; none if it ended otherwise.
    pub(super) fn failed(&self) -> Vec<&str> {
        // The last list of names under this heading: before it stands what the tests have printed.
        let Some((_, list)) = self.output.rsplit_once("\nfailures:\n") else { return Vec::new() };
        list.lines().map_while(|line| line.strip_prefix("    ")).filter(|name| !name.is_empty()).collect()
    }

    /// How many tests passed.
    pub(super) fn tests(&self) -> u64 {
        self.count(" passed")
    }

    /// How many tests passed, or were to be left out.
    fn ended(&self) -> u64 {
        self.count(" passed") + self.count(" ignored")
    }

    /// How many it said it would run. What it started may have said so as well, but later.
    fn begun(&self) -> u64 {
        let numbers =
            self.output.lines().filter_map(|line| line.strip_prefix("running ")?.split_once(" test"));
        numbers.filter_map(|(number, _)| number.parse().ok()).next().unwrap_or(0)
    }

    /// A number of the last lines of test programs: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn count(&self, what: &str) -> u64 {
        let results = self.output.lines().filter_map(|line| line.strip_prefix("test result: "));
        let number = |line: &str| {
            line.split_once(". ")?.1.split("; ").find_map(|part| part.strip_suffix(what))?.parse::<u64>().ok()
        };
        results.filter_map(number).sum()
    }

    /// The end of what it has printed.
    pub(super) fn tail(&self, bytes: usize) -> &str {
        let mut start = self.output.len().saturating_sub(bytes);
        while !self.output.is_char_boundary(start) {
            start += 1;
        }
        &self.output[start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_by_their_packages_and_targets() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/kv/Cargo.toml","target":{"name":"live","kind":["test"]},"profile":{"test":true},"executable":"/t/live-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/kv/Cargo.toml","target":{"name":"remanence_kv","kind":["lib"]},"profile":{"test":true},"executable":"/t/kv-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/kv/Cargo.toml","target":{"name":"remanence_kv","kind":["lib"]},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/cli/Cargo.toml","target":{"name":"rem","kind":["bin"]},"profile":{"test":false},"executable":"/t/rem"}
{"reason":"build-finished","success":true}"#;
        let all = Program::all(messages, |_| Err("none of them is a lane".to_owned())).expect("it is JSON");
        let names: Vec<&str> = all.iter().map(|program| &program.name[..]).collect();
        assert_eq!(names, ["kv/lib", "kv/live"]);
        assert_eq!(all[1].directory, Path::new("/w/crates/kv"));
    }

    #[test]
    fn the_modules_of_a_lane_are_programs_and_what_computes_is_first() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/kv/Cargo.toml","target":{"name":"waits","kind":["test"]},"profile":{"test":true},"executable":"/t/waits-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/kv/Cargo.toml","target":{"name":"alone","kind":["test"]},"profile":{"test":true},"executable":"/t/alone-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/kv/Cargo.toml","target":{"name":"computes","kind":["test"]},"profile":{"test":true},"executable":"/t/computes-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/kv/Cargo.toml","target":{"name":"remanence_kv","kind":["lib"]},"profile":{"test":true},"executable":"/t/kv-1"}"#;
        let list = |program: &Program| {
            Ok(match &program.name[..] {
                "kv/waits" => "torture::a: test\ncluster_torture::m::b: test\n\n2 tests, 0 benchmarks\n",
                "kv/computes" => "sim::a: test\nsim::b: test\n",
                name => return Err(format!("{name} is no lane")),
            }
            .to_owned())
        };
        let all = Program::all(messages, list).expect("fair");
        let names: Vec<(Lane, &str)> = all.iter().map(|program| (program.lane, &program.name[..])).collect();
        let (computes, waits) = (Lane::Computes, Lane::Waits);
        let expected = [
            (computes, "kv/lib"),
            (computes, "kv/sim"),
            (waits, "kv/alone"),
            (waits, "kv/cluster_torture"),
            (waits, "kv/torture"),
        ];
        assert_eq!(names, expected);
        assert_eq!(all[1].module, Some(vec!["sim::a".to_owned(), "sim::b".to_owned()]));
        assert_eq!((all[0].module.as_ref(), all[2].module.as_ref()), (None, None));
        assert_eq!(all[3].executable, Path::new("/t/waits-1"));
        assert_eq!(all[3].test("cluster_torture::m::b"), "kv/cluster_torture::m::b");
        assert_eq!(all[2].test("m::b"), "kv/alone::m::b");

        let stray = Program::all(messages, |_| Ok("a: test\n".to_owned()));
        assert!(stray.expect_err("it would not be run").contains("in no module"));
        let twice = Program::all(messages, |_| Ok("alone::a: test\n".to_owned()));
        assert!(twice.expect_err("which one?").contains("two test programs kv/alone"));
    }

    #[test]
    fn an_executable_says_what_its_tests_are() {
        let this = std::env::current_exe().expect("this program");
        let list = Program::at("xtask/waits", this, "/".into()).list().expect("it runs");
        let own = "testing::program::tests::an_executable_says_what_its_tests_are: test";
        assert!(list.lines().any(|line| line == own), "{list}");
    }

    #[test]
    fn a_module_runs_its_own_tests_and_one_that_is_asked_for() {
        let program = Program::at("none/waits", "/bin/echo".into(), "/".into());
        let all =
            program.modules("torture::a: test\ntorture::b: test\ncluster_torture::c: test\n").expect("fair");
        let run = |arguments: &[&str]| all[1].run(arguments, &BTreeMap::new()).expect("echo");
        assert_eq!(run(&[]).output, "--exact torture::a torture::b\n");
        assert_eq!(run(&["--exact", "torture::b"]).output, "--exact torture::b\n");
    }

    #[test]
    fn a_module_that_ends_well_before_its_tests_have_has_not_passed() {
        let all = |executable: &str| {
            let program = Program::at("ended/waits", executable.into(), "/".into());
            program.modules("torture::a: test\n").expect("fair").remove(0)
        };
        let silent = all("/bin/echo").run(&[], &BTreeMap::new()).expect("echo");
        assert!(!silent.passed && silent.how.contains("of 0 tests of 1"), "{}", silent.how);
        assert!(!all("/bin/false").run(&[], &BTreeMap::new()).expect("false").passed);
        let said = outcome("test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out\n");
        assert_eq!((said.tests(), said.ended()), (2, 3));
    }

    #[test]
    fn an_executable_that_ends_well_within_its_tests_has_not_passed() {
        let run = |says: &str| {
            let program = Program::at("alone/waits", "/bin/echo".into(), "/".into());
            program.run(&[says], &BTreeMap::new()).expect("echo")
        };
        let left = run("\nrunning 2 tests\ntest a ... ok");
        assert!(!left.passed && left.how.contains("of 0 tests of 2"), "{}", left.how);
        assert!(run("\nrunning 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured").passed);
        assert!(run("no test has said a word").passed, "it has no harness");
    }

    #[test]
    fn who_hangs_is_ended_with_what_it_has_started() {
        let mut shell = Command::new("sh").args(["-c", "sleep 100; true"]).spawn().expect("a shell");
        let mut all = with_descendants(shell.id());
        while all.len() < 2 {
            std::thread::yield_now();
            all = with_descendants(shell.id());
        }
        assert_eq!(all[0], shell.id());
        let words: Vec<String> = all.iter().map(u32::to_string).collect();
        assert!(Command::new("kill").arg("-KILL").args(words).status().expect("kill").success());
        assert!(!shell.wait().expect("it ends").success());
    }

    fn outcome(output: &str) -> Outcome {
        Outcome { passed: false, how: String::new(), took: Duration::ZERO, output: output.to_owned() }
    }

    #[test]
    fn what_failed_is_the_last_list_of_names() {
        let output = "\nrunning 3 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\nfailures:\n    no test\n\n\n\
                      failures:\n    b\n    m::c\n\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(outcome(output).failed(), ["b", "m::c"]);
        assert_eq!(outcome(output).tests(), 1);
        assert!(outcome("test a ... ok\nit was killed").failed().is_empty());
        assert_eq!(outcome("äb").tail(2), "b");
    }
}
