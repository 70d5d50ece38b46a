//! `rem run --mode deferred` and `--mode pages`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::time::Duration;

use crate::cache::CacheDirectory;

#[test]
fn a_program_has_its_files_for_itself_and_a_report() {
    let Some(place) = CacheDirectory::new("deferred") else { return };
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(place.0.join("in"), &bytes).expect("room");
    for (mode, log) in [("deferred", "own.log"), ("pages", "own.pages"), ("deferred", "shm")] {
        let out = format!("out-{mode}-{log}");
        // To write only it would be the kernel's, where there are pages.
        let script = format!(
            "import os; f = os.open('{out}', os.O_RDWR | os.O_CREAT); b = open('in', 'rb').read()
for n in range(0, len(b), 4000): os.pwrite(f, b[n:n + 4000], n)
os.fsync(f); assert os.fstat(f).st_size == len(b) and os.pread(f, 9, 12345) == b[12345:12354]"
        );
        let command =
            ["run", "--mode", mode, "--log", log, "--report", "--", "/usr/bin/python3", "-c", &script];
        let said = place.said(&command);
        assert_eq!(said.status, Some(0), "{}", said.stderr);
        for line in ["deferred: 1\n", "closed: 1\n", "reads: 1\n", "writes: 100\n", "syncs: 1\n"] {
            assert!(said.stderr.contains(line), "{mode}: {line} {}", said.stderr);
        }
        assert!(std::fs::read(place.0.join(&out)).expect("it is there") == bytes, "{mode}");
    }
    let said = place.said(&[
        "run",
        "--mode",
        "deferred",
        "--report",
        "--",
        "sh",
        "-c",
        "exec 3> f; echo x >&3; true & wait; exit 7",
    ]);
    assert_eq!(said.status, Some(7), "{}", said.stderr);
    assert!(said.stderr.contains("handed back: a child was made"), "{}", said.stderr);
}

#[test]
fn what_a_killed_program_has_left_is_recovered_before_the_next() {
    let Some(place) = CacheDirectory::new("deferred-killed") else { return };
    let script = "import os, sys; f = os.open('f', os.O_RDWR | os.O_CREAT)
for line in sys.stdin: os.write(f, line.encode()); os.fsync(f); print(line.strip(), flush=True)";
    for how in ["run", "recover"] {
        let _ = std::fs::remove_file(place.0.join("f"));
        let mut command = place.rem(&[
            "run",
            "--mode",
            "deferred",
            "--log",
            "own.log",
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ]);
        let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut to = program.stdin.take().expect("piped");
        let mut from = BufReader::new(program.stdout.take().expect("piped"));
        for line in ["one\n", "two\n", "three\n"] {
            to.write_all(line.as_bytes()).expect("it reads");
            let mut said = String::new();
            from.read_line(&mut said).expect("text");
            assert_eq!(said, line);
        }
        // It has taken the place of the command.
        program.kill().expect("it runs");
        program.wait().expect("it was");
        assert_eq!(std::fs::read(place.0.join("f")).expect("it is there"), b"", "the log has it");
        if how == "run" {
            let said = place.said(&["run", "--mode", "deferred", "--log", "own.log", "--", "cat", "f"]);
            assert!(said.stderr.contains("was not closed, and is recovered"), "{}", said.stderr);
            assert_eq!(said.good(), b"one\ntwo\nthree\n");
        } else {
            place.said(&["cache", "recover", "own.log"]).good();
            assert_eq!(std::fs::read(place.0.join("f")).expect("it is there"), b"one\ntwo\nthree\n");
        }
    }
}

#[test]
fn what_is_not_for_these_modes_is_refused() {
    let Some(place) = CacheDirectory::new("deferred-refused") else { return };
    let run = |more: &[&str]| place.said(&[&["run", "--mode", "deferred"], more, &["--", "true"]].concat());
    run(&["--supervise"]).bad("--supervise is not for --mode deferred");
    run(&["--images", "--log", "a,b,c"]).bad("--images is not for --mode deferred");
    run(&["--log", "127.0.0.1"]).bad("a log with copies on servers is not for --mode deferred");
    run(&["--log", "nowhere/log"]).bad("nowhere is not there");
    std::fs::write(place.0.join("text"), "no log").expect("room");
    run(&["--log", "text"]).bad("text");
    // One that another program has.
    let mut command = place.rem(&[
        "run",
        "--mode",
        "deferred",
        "--log",
        "own.log",
        "--",
        "sh",
        "-c",
        "echo > f; echo > g; read x",
    ]);
    let mut first = command.stdin(Stdio::piped()).spawn().expect("it runs");
    // Its first file is there a moment before it has the log, for which nobody else may ask in that moment.
    while !place.0.join("g").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    run(&["--log", "own.log"]).bad("own.log");
    drop(first.stdin.take());
    first.wait().expect("it ends");
}

#[test]
fn doctor_says_whether_a_program_can_be_run_so() {
    let Some(place) = CacheDirectory::new("deferred-doctor") else { return };
    let said = place.said(&["doctor", "/bin/dd", "--json"]).json();
    assert!(said.to_string().contains("\"deferred\":true"), "{said}");
    let text = String::from_utf8(place.said(&["doctor", "/bin/dd"]).good()).expect("text");
    assert!(text.contains("in each of its modes"), "{text}");
}
