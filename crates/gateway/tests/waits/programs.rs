//! Unmodified Redis programs and client libraries on the gateway. Each says so and is skipped where it is not installed;
//! `make test` installs them.

use crate::common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{options, start, tcp};
use remanence_gateway::{Gateway, Options};
use remanence_resp::engine::Config;

/// Runs a program to its end; `None`, and a reason, if it is not there.
fn run(command: &mut Command, input: &str) -> Option<Output> {
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: {:?} does not start ({error}); make test installs it", command.get_program());
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

fn stdout(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

fn cli(gateway: &Gateway) -> Command {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &tcp(gateway).port().to_string()]);
    command
}

#[test]
fn redis_cli_works() {
    let gateway = start(options());
    let script = "SET greeting \"hello world\"\nGET greeting\nINCR n\nHSET h a 1 b 2\nHGETALL h\nLPUSH l x\nEXPIRE n 100\nTTL none\n";
    let Some(output) = run(&mut cli(&gateway), script) else { return };
    assert_eq!(
        stdout(&output),
        "OK\nhello world\n1\n2\na\n1\nb\n2\nERR unknown command 'LPUSH', with args beginning with: 'l' 'x' \n\n1\n-2\n"
    );
    // In the newer protocol, maps are maps.
    let output = run(cli(&gateway).args(["-3", "--json", "HGETALL", "h"]), "").unwrap();
    assert_eq!(stdout(&output).trim(), r#"{"a":"1","b":"2"}"#);
    let output = run(cli(&gateway).args(["-3", "INFO", "server"]), "").unwrap();
    assert!(stdout(&output).contains("redis_version:7.0.15"));
    // Its scanner, and its mass insertion of raw protocol.
    let mut raw = String::new();
    for i in 0..5000 {
        raw.push_str(&format!("*3\r\n$3\r\nSET\r\n$8\r\nmass{i:04}\r\n$1\r\nx\r\n"));
    }
    let output = run(cli(&gateway).arg("--pipe"), &raw).unwrap();
    assert!(stdout(&output).contains("errors: 0, replies: 5000"), "{}", stdout(&output));
    let output = run(cli(&gateway).args(["--scan", "--pattern", "mass*"]), "").unwrap();
    assert_eq!(stdout(&output).lines().count(), 5000);
    gateway.stop();
}

#[test]
fn redis_cli_authenticates() {
    let config = Config { password: Some("secret".to_owned()), ..Config::default() };
    let gateway = start(Options { config, ..options() });
    let Some(output) = run(cli(&gateway).args(["-a", "secret", "--no-auth-warning", "SET", "a", "b"]), "")
    else {
        return;
    };
    assert_eq!(stdout(&output), "OK\n");
    let output = run(cli(&gateway).args(["GET", "a"]), "").unwrap();
    assert_eq!(stdout(&output).trim(), "NOAUTH Authentication required.");
    gateway.stop();
}

#[test]
fn redis_benchmark_works() {
    let gateway = start(options());
    let port = tcp(&gateway).port().to_string();
    for (clients, pipeline) in [("1", "1"), ("50", "1"), ("50", "16")] {
        let mut command = Command::new("redis-benchmark");
        command.args([
            "-p",
            &port,
            "-t",
            "set,get,incr,hset,mset,ping",
            "-n",
            "2000",
            "-r",
            "1000",
            "-d",
            "100",
        ]);
        command.args(["-c", clients, "-P", pipeline, "--csv"]);
        let Some(output) = run(&mut command, "") else { return };
        let text = stdout(&output);
        for test in ["SET", "GET", "INCR", "HSET", "PING_MBULK", "MSET (10 keys)"] {
            assert!(text.contains(&format!("\"{test}\",\"")), "{test} is not in\n{text}");
        }
        assert!(!String::from_utf8_lossy(&output.stderr).contains("rror"), "{output:?}");
    }
    // With the newer protocol, and its own threads.
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &port, "-t", "set,get", "-n", "2000", "-3", "--threads", "2", "-q"]);
    stdout(&run(&mut command, "").unwrap());
    assert_eq!(gateway.shared().stats.errors.get(), 0, "{:?}", gateway.shared().stats.errors_by_code());
    gateway.stop();
}

#[test]
fn redis_py_works() {
    // Debian's Python has Debian's modules.
    let present = run(Command::new("/usr/bin/python3").args(["-c", "import redis"]), "");
    if !present.is_some_and(|output| output.status.success()) {
        println!("skipped: no redis module for /usr/bin/python3; install the package python3-redis");
        return;
    }
    let gateway = start(options());
    let output =
        run(Command::new("/usr/bin/python3").arg(source("redis_py.py")).arg(tcp(&gateway).to_string()), "");
    assert_eq!(stdout(&output.unwrap()), "fine\n");
    gateway.stop();
}

#[test]
fn hiredis_works() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("hiredis");
    let compiled = run(
        Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(source("hiredis.c")).arg("-lhiredis"),
        "",
    );
    let Some(compiled) = compiled else { return };
    if !compiled.status.success() {
        let reason = String::from_utf8_lossy(&compiled.stderr).into_owned();
        assert!(reason.contains("hiredis/hiredis.h") || reason.contains("-lhiredis"), "{reason}");
        println!("skipped: hiredis cannot be compiled against; install the package libhiredis-dev");
        return;
    }
    let gateway = start(options());
    let address = tcp(&gateway);
    let output =
        run(Command::new(&program).args([address.ip().to_string(), address.port().to_string()]), "").unwrap();
    assert_eq!(stdout(&output), "fine\n");
    gateway.stop();
    fs::remove_file(program).unwrap();
}
