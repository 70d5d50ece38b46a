//! A bench that is ended, at whatever moment and in whatever way, leaves nothing: no process, no file, and no half of a report.

use crate::common;

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Said, rem, run};
use serde_json::Value;

/// What every process of a bench inherits, so that it is found whoever started it.
const MARK: &str = "REM_TEST_MARK";
/// Processes that were killed with another one take a moment; if they take longer, they stay.
const PATIENCE: Duration = Duration::from_secs(30);

fn marked(mark: &str) -> Vec<String> {
    let entry = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").expect("proc").filter_map(Result::ok).filter_map(|process| {
        let environment = fs::read(process.path().join("environ")).ok()?;
        environment.split(|byte| *byte == 0).any(|word| word == entry.as_bytes()).then(|| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        })
    });
    processes.collect()
}

/// A bench that ignores no signal from the start: a shell has the programs that it runs in the background ignore SIGINT, a runner of tests for one, and what
/// is ignored stays so.
fn bench() -> Command {
    let rem = rem();
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM,HUP").arg(rem.get_program());
    command.envs(rem.get_envs().filter_map(|(name, value)| Some((name, value?)))).arg("bench");
    command
}

/// What is there of this bench in memory.
fn in_memory(bench: u32) -> Vec<String> {
    let begin = format!("rem-bench-{bench}-");
    let names = fs::read_dir("/dev/shm").expect("memory").filter_map(Result::ok);
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&begin))
        .collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory").filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Ends a bench at a random moment of its first one and a half seconds; its processes, and where it is not killed, its files go with it.
fn ends(words: &[&str], has_directory: bool, signal: (&str, i32)) {
    let (dir, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let json = other.path().join("report.json");
    let random = RandomState::new().hash_one(words);
    let mark = format!("{random:x}");
    let mut command = bench();
    command.args(words).arg("--json").arg(&json);
    if has_directory {
        command.arg(if words[0] == "erda" { "--dir" } else { "--directory" }).arg(dir.path());
    }
    if words[0] == "nvcache" {
        command.env("REMANENCE_PRELOAD", crate::cache::library());
    }
    command.env(MARK, &mark).env("TMPDIR", dir.path()).process_group(0);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("rem starts");
    let pid = child.id();
    // It does not matter what it is doing.
    std::thread::sleep(Duration::from_millis(random % 1500));
    let is_early = child.try_wait().expect("a child").is_some();
    // As a terminal does it, or one who knows the process.
    let to = if signal.0 == "-INT" { format!("-{pid}") } else { pid.to_string() };
    let send = || Command::new("kill").args([signal.0, "--", &to]).status().expect("kill runs");
    let sent = send();
    // Who presses Ctrl-C again, and again, ends no clean-up.
    while signal.0 == "-INT" && child.try_wait().expect("a child").is_none() {
        send();
    }
    let said = Said::of(child.wait_with_output().expect("it ends"));
    let what = format!("{words:?}, {signal:?} after {} ms: {}", random % 1500, said.stderr);
    assert!(sent.success() && !is_early, "it had ended before: {what}");
    if signal.0 == "-KILL" {
        let begin = Instant::now();
        while !marked(&mark).is_empty() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
    } else if said.status != Some(128 + signal.1) {
        // It may not have been listening yet: then it has done nothing yet.
        assert_eq!((said.status, said.stderr.as_str()), (None, ""), "{what}");
    } else {
        assert!(said.stderr.contains("interrupted by SIG"), "{what}");
    }
    assert_eq!(marked(&mark), [""; 0], "processes that are left: {what}");
    if signal.0 == "-KILL" {
        in_memory(pid).iter().for_each(|name| drop(fs::remove_dir_all(Path::new("/dev/shm").join(name))));
    } else {
        assert_eq!(in_memory(pid), [""; 0], "{what}");
        assert_eq!(names(dir.path()), [""; 0], "{what}");
    }
    assert_eq!(names(other.path()), [""; 0], "{what}");
}

fn ends_by_each_signal(words: &[&str], has_directory: bool) {
    for signal in [("-INT", 2), ("-TERM", 15), ("-HUP", 1), ("-KILL", 9)] {
        ends(words, has_directory, signal);
    }
}

#[test]
fn a_bench_that_is_one_process_ends() {
    // A quick one may have ended by itself within that time.
    ends_by_each_signal(&["counter"], false);
    ends_by_each_signal(&["kv-size", "--quick"], true);
}

#[test]
fn a_bench_of_servers_ends_with_them() {
    ends_by_each_signal(&["quorum", "--quick"], true);
    ends_by_each_signal(&["failover", "--quick"], true);
}

#[test]
fn a_bench_of_roles_ends_with_them() {
    for name in ["remotelog", "bulk"] {
        ends_by_each_signal(&[name, "--quick"], false);
    }
    ends_by_each_signal(&["erda", "--quick"], true);
}

/// Its programs are under `rem run`.
#[test]
fn a_bench_of_programs_under_a_write_cache_ends_with_them() {
    for signal in [("-INT", 2), ("-TERM", 15)] {
        ends(&["nvcache", "--quick"], true, signal);
    }
}

/// Redis does not look whether anybody is left who needs it: so it is the kernel that ends it.
#[test]
fn a_bench_that_is_killed_takes_its_peers_with_it() {
    if Command::new("redis-benchmark").arg("--version").output().is_err() {
        println!("SKIPPED: redis-benchmark is not installed; `apt-get install redis-tools` brings it");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mark = format!("{:x}", RandomState::new().hash_one(dir.path()));
    let mut command = rem();
    command.args(["bench", "gateway", "--quick", "--directory"]).arg(dir.path()).env(MARK, &mark);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("rem starts");
    let until = |done: &dyn Fn(&[String]) -> bool| {
        let begin = Instant::now();
        while !done(&marked(&mark)) {
            assert!(begin.elapsed() < PATIENCE, "{:?}", marked(&mark));
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    until(&|lines| lines.iter().any(|line| line.contains("redis-server")));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    until(&<[String]>::is_empty);
    in_memory(child.id()).iter().for_each(|name| drop(fs::remove_dir_all(Path::new("/dev/shm").join(name))));
}

/// UCX and libfabric, and Redis, where they are installed.
#[test]
fn a_bench_of_peers_ends_with_them() {
    ends_by_each_signal(&["transport", "--path", "shm"], false);
    if Command::new("redis-benchmark").arg("--version").output().is_err() {
        println!("SKIPPED: redis-benchmark is not installed; `apt-get install redis-tools` brings it");
        return;
    }
    ends_by_each_signal(&["gateway"], true);
}

/// What takes a namespace away is a program, which a terminal would interrupt as well: here the first one for each namespace is. Network namespaces
/// take root.
#[test]
fn a_bench_of_namespaces_takes_them_away_though_ctrl_c_comes_again_and_again() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces take root");
        return;
    }
    let programs = tempfile::tempdir().expect("a directory");
    let path = std::env::var("PATH").expect("a search path");
    let ip = Command::new("sh").args(["-c", "command -v ip"]).output().expect("a shell").stdout;
    let interrupted = format!(
        "#!/bin/sh\nif [ \"$1 $2\" = \"netns del\" ] && mkdir \"$0.$3\" 2>&-; then kill -INT $$; fi\nexec {} \"$@\"\n",
        String::from_utf8_lossy(&ip).trim()
    );
    fs::write(programs.path().join("ip"), interrupted).expect("written");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(programs.path().join("ip"), executable).expect("executable");
    let mark = format!("{:x}", RandomState::new().hash_one(&path));
    let mut command = bench();
    command.args(["transport", "--path", "udp-veth"]).process_group(0).env(MARK, &mark);
    command.env("PATH", format!("{}:{path}", programs.path().display()));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("rem starts");
    let group = format!("-{}", child.id());
    // The process that measures, which has it in their names.
    let workers = format!("/proc/{0}/task/{0}/children", child.id());
    let begin = Instant::now();
    let (mut begins, mut there) = (String::new(), Vec::new());
    while there.is_empty() {
        assert!(begin.elapsed() < PATIENCE, "it makes no namespace");
        let worker = fs::read_to_string(&workers).unwrap_or_default();
        begins = format!("rem-{}-", worker.split(' ').next().unwrap_or_default());
        there = namespaces(&begins);
        std::thread::sleep(Duration::from_millis(2));
    }
    while child.try_wait().expect("a child").is_none() {
        Command::new("kill").args(["-INT", "--", &group]).status().expect("kill runs");
    }
    assert_eq!(child.wait().expect("it has ended").code(), Some(130));
    assert_eq!(namespaces(&begins), [""; 0], "of {there:?}");
    assert_eq!(marked(&mark), [""; 0], "processes that are left");
    let deleted = names(programs.path()).into_iter().filter(|name| name.starts_with("ip.")).count();
    assert!(deleted >= there.len(), "{deleted} were interrupted");
}

fn namespaces(begin: &str) -> Vec<String> {
    let all = if Path::new("/run/netns").is_dir() { names(Path::new("/run/netns")) } else { Vec::new() };
    all.into_iter().filter(|name| name.starts_with(begin)).collect()
}

#[test]
fn what_would_fail_at_the_end_is_refused_before_anything_is_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let none = dir.path().join("none/file").display().to_string();
    let place = dir.path().display().to_string();
    for words in [
        &["counter", "--json", &none][..],
        &["counter", "--plot", &none],
        &["counter", "--json", &place],
        &["counter", "--compare", &none],
    ] {
        run(rem().arg("bench").args(words)).bad(words[2]);
    }
    let earlier = tempfile::NamedTempFile::new().expect("a file");
    for (text, why) in
        [("garbage", "no report of a bench"), (r#"{"bench":"bulk","rows":[]}"#, "of `rem bench bulk`")]
    {
        std::fs::write(earlier.path(), text).expect("written");
        let said = run(rem().args(["bench", "counter", "--compare"]).arg(earlier.path()));
        assert!(said.stdout.is_empty(), "it has measured");
        said.bad(why);
    }
    let one = dir.path().join("one");
    let beside = dir.path().join("../").join(dir.path().file_name().expect("it has a name")).join("one");
    let mut both = rem();
    run(both.args(["bench", "counter", "--json"]).arg(&one).arg("--plot").arg(beside))
        .bad("--json and --plot are both");
    assert!(names(dir.path()).is_empty());
}

/// An old report stays where the new one is not whole.
#[test]
fn an_old_report_is_there_until_the_new_one_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let json = dir.path().join("report.json");
    fs::write(&json, "old").expect("room");
    let mut command = rem();
    command.args(["bench", "counter", "--json"]).arg(&json).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().expect("rem starts");
    common::signal(&child, "-TERM");
    child.wait_with_output().expect("it ends");
    assert_eq!(fs::read_to_string(&json).expect("there"), "old");
    run(rem().args(["bench", "counter", "--tiny", "--json"]).arg(&json)).good();
    assert!(fs::read_to_string(&json).expect("there").starts_with('{'));
    assert_eq!(names(dir.path()), ["report.json"]);
}

#[test]
fn a_result_that_nobody_can_see_is_refused() {
    for words in ["bench counter --tiny", "report docs"] {
        let line = format!("exec \"$0\" {words} >&-");
        let mut shell = Command::new("sh");
        run(shell.args(["-c", &line, env!("CARGO_BIN_EXE_rem")])).bad("standard output is closed");
    }
}

#[test]
fn a_bench_that_is_repeated_has_the_verdicts_of_each_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let (json, plot) = (dir.path().join("report.json"), dir.path().join("figure.svg"));
    let mut command = rem();
    command
        .args(["bench", "counter", "--tiny", "--repeat", "2", "--json"])
        .arg(&json)
        .arg("--plot")
        .arg(&plot);
    let said = run(&mut command);
    let text = String::from_utf8(said.good()).expect("UTF-8");
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
    assert_eq!(report["bench"], "counter");
    assert_eq!(report["repetitions"].as_array().map(Vec::len), Some(2));
    let bars = report["bars"].as_array().map(Vec::len);
    assert_eq!(report["verdicts"].as_array().map(Vec::len), bars);
    assert_eq!(report["bars"], report["repetitions"][1]["bars"], "the last one is the one that was drawn");
    assert!(text.contains("verdict"), "{text}");
    assert!(fs::read_to_string(&plot).expect("drawn").contains("<svg"));
}
