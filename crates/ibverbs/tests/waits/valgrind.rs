//! Valgrind over real programs on the drop-in libraries: no invalid access, nothing uninitialized, no definite leak.
//!
//! It makes a program slow, so each run is short; one at a time, as most of these programs spin.

use crate::common;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::listening::Sign;
use common::world::{ADDRESS, LIMIT, Net, Program, compile, quiet};

const OPTIONS: [&str; 7] = [
    concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/perftest.supp"),
    "-q",
    "--fair-sched=try",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--error-exitcode=99",
];

/// The network for one test, and what Valgrind is to say in it.
struct Ground {
    net: Net,
    /// Whether a use of what was never written is an error: `yes` or `no`.
    undefined: &'static str,
}

/// For one test, or the reason why it is skipped is printed.
fn net() -> Option<(Ground, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !quiet(Command::new("valgrind").arg("--version")) {
        println!("skipped: apt install valgrind");
        return None;
    }
    match Net::new() {
        Ok(net) => Some((Ground { net, undefined: "yes" }, turn)),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// A program under Valgrind, whose exit status says whether it found anything.
fn command(ground: &Ground, program: &Path, args: &[&str]) -> Command {
    let mut command = ground.net.command(&common::dropin(), "valgrind");
    let undefined = format!("--undef-value-errors={}", ground.undefined);
    command.args(OPTIONS).arg(undefined).arg(program).args(args);
    command
}

/// Waits until a program listens: for connections, as its sign says, or on the pingpongs' TCP port.
fn listens(ground: &Ground, server: &mut Program, sign: &Sign) {
    let until = Instant::now() + LIMIT;
    while !sign.is_given() && !ground.net.tcp_listens(18515) {
        if Instant::now() > until {
            server.fail("does not listen");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a server and a client, which are command lines.
fn pair(ground: &Ground, server: &str, client: &str) {
    let start = |line: &str, listens: bool| {
        let mut words = line.split_whitespace();
        let program = Path::new(words.next().expect("a program"));
        let mut command = command(ground, program, &words.collect::<Vec<_>>());
        let sign = listens.then(|| Sign::of(&mut command));
        (Program::start(command), sign)
    };
    let (mut serving, sign) = start(server, true);
    listens(ground, &mut serving, &sign.expect("a server has one"));
    start(client, false).0.ends_well();
    serving.ends_well();
}

/// The same command on both sides; the client names the server.
fn both(ground: &Ground, command: &str) {
    pair(ground, command, &format!("{command} {ADDRESS}"));
}

#[test]
fn making_and_destroying_everything_is_clean() {
    let Some((net, _turn)) = net() else { return };
    let dir = common::scratch("valgrind");
    let cycle = compile("faults", "cycle", &["-libverbs", "-lrdmacm"], &dir);
    let said = Program::start(command(&net, &cycle, &[ADDRESS, "7471", "4"])).ends_well();
    assert_eq!(said.last().map(String::as_str), Some("verified"), "{said:?}");
    std::fs::remove_dir_all(&dir).expect("removed");
}

#[test]
fn pingpongs_are_clean() {
    let Some((net, _turn)) = net() else { return };
    for command in [
        "ibv_rc_pingpong -g 0 -n 100 -c",
        "ibv_rc_pingpong -g 0 -n 100 -e -N",
        "ibv_uc_pingpong -g 0 -n 100",
        "ibv_ud_pingpong -g 0 -n 100 -s 1000",
        "ibv_srq_pingpong -g 0 -n 100 -q 4",
    ] {
        both(&net, command);
    }
}

#[test]
fn perftest_is_clean() {
    let Some((net, _turn)) = net() else { return };
    for command in [
        "ib_write_lat -n 100 -s 8192",
        "ib_write_bw -n 200 -q 2 -b",
        "ib_send_bw -n 200 -c UD -s 1000 -b",
        "ib_send_lat -n 100 -e -I 64",
        "ib_atomic_lat -n 100",
    ] {
        both(&net, &format!("{command} -F"));
    }
}

/// Without rping: when its end is slow, its thread goes on with a channel that `main` has destroyed. What these send is
/// memory as malloc gave it.
#[test]
fn connections_are_clean() {
    let Some((mut net, _turn)) = net() else { return };
    net.undefined = "no";
    pair(&net, "ucmatose -c 3 -C 5", &format!("ucmatose -c 3 -C 5 -s {ADDRESS}"));
    pair(&net, "udaddy -c 2 -C 5", &format!("udaddy -c 2 -C 5 -s {ADDRESS}"));
    both(&net, "ib_read_bw -n 200 -R -F");
    pair(&net, "rdma_server", &format!("rdma_client -s {ADDRESS}"));
}
