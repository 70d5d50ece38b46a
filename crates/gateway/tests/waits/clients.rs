//! Client libraries that come from a registry of their language, in the versions that `tests/redis-clients` pins: go-redis,
//! ioredis, node-redis, Lettuce and Jedis, as applications use them. Each test says so and is skipped where its tools are not
//! installed or the registry cannot be reached.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{options, start, tcp};

/// What a tool says that is there; else the test is skipped, and why is printed.
fn run(command: &mut Command, what: &str) -> Option<()> {
    let output = command.stdin(Stdio::null()).output();
    let why = match output {
        Err(error) => error.to_string(),
        Ok(output) if !output.status.success() => {
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        }
        Ok(_) => return Some(()),
    };
    println!("skipped: {what} cannot be had here: {}", why.trim());
    None
}

/// A copy of the sources, in which tools may leave what they like.
fn copy(language: &str, to: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/redis-clients").join(language);
    for entry in std::fs::read_dir(&from).expect("sources") {
        let entry = entry.expect("a source");
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
    }
    to.to_owned()
}

/// Runs the program, which takes the address of a gateway.
fn is_fine(command: &mut Command) {
    let gateway = start(options());
    let output = command.arg(tcp(&gateway).to_string()).stdin(Stdio::null()).output().expect("it was there");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert_eq!(out, "fine\n");
    gateway.stop();
}

#[test]
fn go_redis_works() {
    let directory = tempfile::tempdir().expect("a directory");
    let sources = copy("go", directory.path());
    let go = || {
        let mut command = Command::new("go");
        command.current_dir(&sources).env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=mod");
        command
    };
    let Some(()) = run(go().args(["mod", "download"]), "go-redis") else { return };
    let Some(()) = run(go().args(["build", "-o", "client", "."]), "a client of go-redis") else { return };
    is_fine(&mut Command::new(sources.join("client")));
}

#[test]
fn ioredis_and_node_redis_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let sources = copy("js", directory.path());
    let mut npm = Command::new("npm");
    npm.current_dir(&sources).args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
    let Some(()) = run(&mut npm, "ioredis") else { return };
    is_fine(Command::new("node").current_dir(&sources).arg("main.js"));
}

#[test]
fn lettuce_and_jedis_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let sources = copy("java", directory.path());
    let mut maven = Command::new("mvn");
    maven.current_dir(&sources).args(["-q", "-B", "-ntp", "-DoutputDirectory=jars"]);
    maven.arg("org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies");
    let Some(()) = run(&mut maven, "Lettuce") else { return };
    let mut compiler = Command::new("javac");
    compiler.current_dir(&sources).args(["-cp", "jars/*", "-d", ".", "Main.java"]);
    let Some(()) = run(&mut compiler, "a client of Lettuce") else { return };
    is_fine(Command::new("java").current_dir(&sources).args(["-cp", ".:jars/*", "Main"]));
}
