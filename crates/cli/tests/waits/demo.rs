//! The demo itself, on small input: it tells the truth, and leaves nothing behind.

use crate::common;

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{bytes, rem, run, signal, write};

fn input() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("deep")).expect("made");
    for n in 0..40 {
        write(dir.path(), &format!("deep/{n}.bin"), &bytes(n, 20_000 + 977 * n as usize));
    }
    write(dir.path(), "large.bin", &bytes(99, 3_000_000));
    write(dir.path(), "empty", b"");
    dir
}

fn demo(input: &Path, pools: &Path) -> Command {
    let mut command = rem();
    command.arg("demo").arg(input).arg("--dir").arg(pools);
    command
}

#[test]
fn the_demo_kills_recovers_and_verifies_and_leaves_nothing() {
    let (input, pools) = (input(), tempfile::tempdir().expect("a directory"));
    let said = run(demo(input.path(), pools.path()).arg("--json")).json();
    let total: u64 = (0..40).map(|n| 20_000 + 977 * n).sum::<u64>() + 3_000_000;
    assert_eq!((&said["files"], &said["bytes"]), (&42.into(), &total.into()));
    assert_eq!((&said["verified_bytes"], &said["wrong"]), (&(3 * total).into(), &0.into()));
    assert!(said["killed"]["after_bytes"].as_u64().is_some_and(|at| at >= total / 2));
    assert!(said["survives"].as_str().is_some_and(|s| s.contains("data survives")));
    assert_eq!(fs::read_dir(pools.path()).expect("readable").count(), 0);
}

#[test]
fn there_must_be_something_to_write() {
    let (nothing, pools) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    run(&mut demo(nothing.path(), pools.path())).bad("there is nothing in");
    run(&mut demo(Path::new("/does/not/exist"), pools.path())).bad("/does/not/exist cannot be read");
    run(&mut demo(nothing.path(), Path::new("/does/not/exist"))).bad("there is nothing in");
    assert_eq!(fs::read_dir(pools.path()).expect("readable").count(), 0);
}

#[test]
fn an_interrupted_demo_takes_its_servers_and_files_with_it() {
    let (input, pools) = (input(), tempfile::tempdir().expect("a directory"));
    let mut command = demo(input.path(), pools.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("rem starts");
    // Once it says that it has started, there are processes and files to clear away.
    let (mut said, mut byte) = (String::new(), [0]);
    let mut stdout = child.stdout.take().expect("piped");
    while !said.contains("in a file\n") {
        assert_eq!(stdout.read(&mut byte).expect("readable"), 1, "it ended: {said}");
        said.push(char::from(byte[0]));
    }
    signal(&child, "-INT");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert_eq!(fs::read_dir(pools.path()).expect("readable").count(), 0);
    let list =
        said.split("processes ").nth(1).and_then(|rest| rest.split(", each").next()).expect("process ids");
    for pid in list.split(", ") {
        let command_line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!command_line.contains(&*pools.path().to_string_lossy()), "{pid} is still there");
    }
}
