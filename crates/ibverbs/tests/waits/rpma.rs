//! librpma's API, by small programs of ours against Debian's librpma, which knows nothing of us: `tests/rpma/*.c`.

use crate::common;

use std::path::PathBuf;

use common::world::{ADDRESS, Net, Program, compile};

/// Runs a program as server and as client; both say in the end that they found what they should.
fn run(program: &str) {
    if !PathBuf::from("/usr/include/librpma.h").exists() {
        return println!("skipped: apt install librpma-dev");
    }
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => return println!("skipped: {why}"),
    };
    let dir = common::scratch(program);
    let binary = compile("rpma", program, &["-lrpma", "-libverbs"], &dir);
    let libraries = common::dropin();
    let start = |role: &str| {
        let mut command = net.command(&libraries, &binary);
        Program::start({
            command.args([role, ADDRESS, "7471"]);
            command
        })
    };
    let mut server = start("server");
    server.until("ready");
    let client = start("client");
    for end in [client, server] {
        let said = end.ends_well();
        assert_eq!(said.last().map(String::as_str), Some("verified"), "{said:?}");
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn written_flushed_written_atomically_and_read_back() {
    run("write");
}

#[test]
fn messages_wake_who_waits_on_private_shared_and_srq_channels() {
    run("messages");
}

#[test]
fn connections_that_nobody_wants_are_rejected() {
    run("refused");
}
