//! What the tests of the C ABI share: a C compiler, and directories of their own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory for what this test process builds, below cargo's own.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", std::process::id()));
    fs::create_dir_all(&dir).expect("cargo's directory for tests can be written");
    dir
}

/// Compiles a C program and gives what it prints.
pub(crate) fn run_c(name: &str, source: &str, include: Option<&PathBuf>) -> String {
    let dir = scratch(name);
    let (file, program) = (dir.join("main.c"), dir.join("main"));
    fs::write(&file, source).expect("written");
    let mut cc = Command::new("cc");
    if let Some(include) = include {
        cc.arg("-I").arg(include);
    }
    let status =
        cc.args(["-w", "-o"]).arg(&program).arg(&file).status().expect("a C compiler: apt install gcc");
    assert!(status.success(), "{name} does not compile: apt install libibverbs-dev");
    let output = Command::new(&program).output().expect("it runs");
    assert!(output.status.success(), "{name}: {output:?}");
    fs::remove_dir_all(&dir).expect("removed");
    String::from_utf8(output.stdout).expect("text")
}
