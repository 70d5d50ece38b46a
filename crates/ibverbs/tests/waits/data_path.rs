//! The data path as C programs see it: each file of `c/` is compiled against the installed headers and runs on the
//! drop-in library, with both ends of its connections on the loopback interface. The checks are in C.

use crate::common;

use std::path::Path;
use std::process::Command;

/// Compiles `c/NAME.c`, runs it, and expects it to be silent and content.
fn run(name: &str) {
    let dir = common::scratch(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let program = dir.join(name);
    let compiled = Command::new("cc")
        .args(["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-O1", "-o"])
        .args([&program, &source])
        .arg("-L")
        .arg(common::dropin())
        .args(["-libverbs", "-lpthread"])
        .status()
        .expect("a C compiler: apt install gcc");
    assert!(compiled.success(), "{name}.c does not compile: apt install libibverbs-dev");
    let output = common::program_alone(&program).output().expect("coreutils");
    assert!(output.status.success(), "{name}: {output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{name} has nothing to say: {output:?}");
    std::fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn connections() {
    run("reliable");
}

#[test]
fn datagrams() {
    run("datagrams");
}

#[test]
fn completions_field_by_field() {
    run("cq_ex");
}

#[test]
fn posting_by_function_calls() {
    run("qp_ex");
}

#[test]
fn shared_queues_windows_and_events() {
    run("shared");
}

#[test]
fn signals_end_what_waits() {
    run("signals");
}

#[test]
fn a_thread_that_is_cancelled_holds_nobody_up() {
    run("cancel");
}

#[test]
fn what_newer_headers_declare() {
    run("newer");
}

#[test]
fn no_allocation_to_post_or_to_poll() {
    run("allocations");
}
