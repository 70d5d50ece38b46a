//! rdma-core's own Python tests on the drop-in libraries, against the list of what is known of them.
//!
//! `docs/compliance/pyverbs.toml` says of each case whether it passes, fails or is skipped, and why. A case that ends worse
//! than listed fails this test; one that ends better asks for the list to be written anew, by this test with
//! `REMANENCE_BLESS=1` in its environment, which keeps the reasons of what stays as it was.
//!
//! The cases are Debian's (rdma-core's documentation carries them, python3-pyverbs runs them), unpacked for the run and not
//! part of this repository. They run in a network of their own, one process per file; a case that crashes or does not end
//! has failed, and the rest of its file runs in another process.

use crate::common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::world::{INTERFACE, namespace, quiet};

const PACKAGED: &str = "/usr/share/doc/rdma-core/tests";
/// Debian's own: pyverbs is installed for no other.
const PYTHON: &str = "/usr/bin/python3";
/// What the kernel's own tests allow a case, four times; most take less than a second.
const LIMIT: Duration = Duration::from_secs(240);
/// How a case ended, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    Failed,
    Skipped,
    Passed,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Passed, Self::Failed, Self::Skipped];

    const fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Passed => "passed",
        }
    }

    fn parse(word: &str) -> Self {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word).unwrap_or_else(|| panic!("{word:?}"))
    }
}

/// How a case ended, and why not well.
#[derive(Clone, PartialEq, Eq, Debug)]
struct End {
    outcome: Outcome,
    reason: String,
}

/// By name: `tests.FILE.CLASS.METHOD`.
type Ends = BTreeMap<String, End>;

#[test]
fn rdma_cores_python_tests_end_as_listed() {
    if let Some(missing) = missing() {
        return println!("skipped: {missing}");
    }
    let suite = Suite::unpack();
    let ends = suite.run(&suite.cases());
    println!("{}", counts(&ends));
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compliance/pyverbs.toml");
    let listed = parse(&fs::read_to_string(&list).unwrap_or_default());
    if std::env::var_os("REMANENCE_BLESS").is_some() {
        return fs::write(&list, write(&ends, &listed)).expect("the list can be written");
    }
    let mut worse = String::new();
    for (case, known) in &listed {
        let Some(now) = ends.get(case) else {
            let _ = writeln!(worse, "{case} is listed, and the suite has no such case");
            continue;
        };
        let line = format!("{case}: {} was {}; {}", now.outcome.word(), known.outcome.word(), now.reason);
        if now.outcome < known.outcome {
            let _ = writeln!(worse, "{line}");
        } else if now.outcome > known.outcome {
            println!("better than listed: {line}");
        }
    }
    for case in ends.keys().filter(|case| !listed.contains_key(*case)) {
        println!("not listed: {case}");
    }
    assert!(worse.is_empty(), "what the programs said is in {}\n{worse}", suite.0.display());
    fs::remove_dir_all(&suite.0).expect("removed");
}

/// Why the suite cannot run here.
fn missing() -> Option<String> {
    if !Path::new(PACKAGED).join("run_tests.py").exists() {
        return Some(format!("{PACKAGED} has no tests: apt install rdma-core"));
    }
    let pyverbs = quiet(Command::new(PYTHON).args(["-c", "import pyverbs.device"]));
    if !pyverbs {
        return Some("there is no pyverbs: apt install python3-pyverbs".into());
    }
    let mut network = namespace();
    network.args(["sh", "-c", INTERFACE]);
    (!quiet(&mut network))
        .then(|| "no network of its own can be made here: ip and unshare, and their rights".into())
}

/// The suite, unpacked into a directory.
struct Suite(PathBuf);

impl Suite {
    fn unpack() -> Self {
        let root = common::scratch("pyverbs");
        let to = root.join("tests");
        fs::create_dir_all(&to).expect("a directory of our own");
        for entry in fs::read_dir(PACKAGED).expect("checked").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if let Some(name) = name.strip_suffix(".gz") {
                let text = Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip is essential");
                fs::write(to.join(name), text.stdout).expect("written");
            } else {
                fs::copy(&path, to.join(&*name)).expect("written");
            }
        }
        Self(root)
    }

    /// All cases but those of vendors' devices, file by file.
    fn cases(&self) -> Vec<String> {
        let mut files: Vec<String> = fs::read_dir(self.0.join("tests"))
            .expect("unpacked")
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".py")?.to_owned()))
            .filter(|file| file.starts_with("test_"))
            .filter(|file| !["mlx5", "efa", "cuda"].iter().any(|vendor| file.contains(vendor)))
            .collect();
        files.sort();
        let report = self.0.join("list");
        let mut python = self.python("list", &report);
        python.args(files.iter().map(|file| format!("tests.{file}")));
        assert!(python.status().expect("checked").success(), "the suite cannot be listed");
        let wanted = std::env::var("REMANENCE_PYVERBS").unwrap_or_default();
        let cases = fs::read_to_string(report).expect("written");
        cases.lines().filter(|case| case.contains(&wanted)).map(str::to_owned).collect()
    }

    fn python(&self, what: &str, report: &Path) -> Command {
        let mut python = Command::new(PYTHON);
        let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyverbs/run.py");
        python.arg("-B").arg(runner).arg(&self.0).arg(report).arg(what);
        python
    }

    fn run(&self, cases: &[String]) -> Ends {
        let mut ends = Ends::new();
        for file in cases.chunk_by(|a, b| file_of(a) == file_of(b)) {
            let began = Instant::now();
            let mut left = file.to_vec();
            while !left.is_empty() {
                let done = self.run_some(&left);
                assert!(!done.is_empty(), "{} does not start; see {}", left[0], self.0.display());
                left.retain(|case| !done.contains_key(case));
                ends.extend(done);
            }
            println!("{:6.2} s  {}", began.elapsed().as_secs_f64(), file_of(&file[0]));
        }
        ends
    }

    /// Runs cases in one process until it ends, by itself or as one of them took too long.
    fn run_some(&self, cases: &[String]) -> Ends {
        let file = file_of(&cases[0]);
        let report = self.0.join(format!("{file}.report"));
        let _ = fs::remove_file(&report);
        let said = File::options().create(true).append(true).open(self.0.join(format!("{file}.log")));
        let said = said.expect("a directory of our own");
        let python = self.python("run", &report);
        let mut command = namespace();
        command.args(["sh", "-c", &format!("{INTERFACE} && exec \"$@\""), "sh"]);
        command.arg(common::rem()).args(["verbs", "--device", "rem_rv0", "--"]);
        command.arg(python.get_program()).args(python.get_args()).args(cases);
        command.env("REMANENCE_LIB", common::dropin()).env_remove("LD_LIBRARY_PATH");
        command.stdin(Stdio::null()).stdout(said.try_clone().expect("a descriptor")).stderr(said);
        let mut child = command.process_group(0).spawn().expect("checked");
        let (status, stuck) = wait(&mut child, &report);
        let mut ends = Ends::new();
        let text = fs::read_to_string(&report).unwrap_or_default();
        let mut open = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            match words[..] {
                ["start", case] => open = Some(case.to_owned()),
                ["end", case, outcome, reason] => {
                    ends.insert(case.into(), End { outcome: Outcome::parse(outcome), reason: reason.into() });
                    open = None;
                }
                _ => {}
            }
        }
        if let Some(case) = open {
            let reason = match (stuck, status.signal()) {
                (true, _) => format!("does not end within {} s", LIMIT.as_secs()),
                (false, Some(signal)) => format!("ends by signal {signal}"),
                (false, None) => format!("ends the process, {status}"),
            };
            ends.insert(case, End { outcome: Outcome::Failed, reason });
        }
        ends
    }
}

/// Waits for the process, and kills it with its children when a case takes too long.
fn wait(child: &mut Child, report: &Path) -> (ExitStatus, bool) {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait().expect("our child") {
            return (status, false);
        }
        let length = fs::metadata(report).map_or(0, |file| file.len());
        if length != seen {
            (seen, since) = (length, Instant::now());
        }
        if since.elapsed() > LIMIT {
            let _ = Command::new("kill").arg("-KILL").arg(format!("-{}", child.id())).status();
            return (child.wait().expect("our child"), true);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// `tests.FILE.CLASS.METHOD`: FILE.
fn file_of(case: &str) -> &str {
    case.split('.').nth(1).unwrap_or(case)
}

fn counts(ends: &Ends) -> String {
    let count = |outcome: Outcome| ends.values().filter(|end| end.outcome == outcome).count();
    Outcome::ALL.map(|outcome| format!("{} {}", count(outcome), outcome.word())).join(", ")
}

/// The list: a table per file, `CLASS.METHOD = "OUTCOME"` or `"OUTCOME: REASON"`.
fn parse(text: &str) -> Ends {
    let mut ends = Ends::new();
    let mut file = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            file = name;
        } else if let Some((case, end)) = line.split_once("\" = \"") {
            let (case, end) = (case.trim_start_matches('"'), end.trim_end_matches('"'));
            let (outcome, reason) = end.split_once(": ").unwrap_or((end, ""));
            let end = End { outcome: Outcome::parse(outcome), reason: reason.into() };
            ends.insert(format!("tests.{file}.{case}"), end);
        }
    }
    ends
}

fn write(ends: &Ends, known: &Ends) -> String {
    let mut text = format!(
        "# rdma-core 44's Python tests on the drop-in libraries, without those of vendors' devices: {}.\n\
         # Written by crates/ibverbs/tests/waits/pyverbs.rs, which fails when a case ends worse than it says here.\n",
        counts(ends)
    );
    let mut file = "";
    for (case, end) in ends {
        if file != file_of(case) {
            file = file_of(case);
            let _ = writeln!(text, "\n[{file}]");
        }
        let name = case.splitn(3, '.').nth(2).unwrap_or(case);
        let kept = known.get(case).filter(|known| known.outcome == end.outcome);
        let reason = kept.map_or(&end.reason, |known| &known.reason);
        let reason: String = reason.chars().filter(|c| !matches!(c, '"' | '\\')).take(200).collect();
        let colon = if reason.is_empty() { "" } else { ": " };
        let _ = writeln!(text, "\"{name}\" = \"{}{colon}{reason}\"", end.outcome.word());
    }
    text
}

#[test]
fn the_list_is_read_as_it_is_written() {
    let end = |outcome, reason: &str| End { outcome, reason: reason.into() };
    let ends: Ends = [
        ("tests.test_a.X.test_1".to_owned(), end(Outcome::Passed, "")),
        ("tests.test_a.X.test_2".to_owned(), end(Outcome::Skipped, "no such thing: here")),
        ("tests.test_b.Y.test_3".to_owned(), end(Outcome::Failed, "ends by signal 11")),
    ]
    .into();
    let text = write(&ends, &Ends::new());
    assert_eq!(parse(&text), ends);
    assert!(text.starts_with("# ") && text.contains("1 passed, 1 failed, 1 skipped"), "{text}");
}
