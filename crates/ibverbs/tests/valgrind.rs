//! Valgrind over real programs on the drop-in libraries: no invalid access, nothing uninitialized, no definite leak.
//!
//! It makes a program slow, so each run is short; one at a time, as most of these programs spin.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::listening::Sign;
use common::world::{ADDRESS, LIMIT, Net, Program, compile, quiet};

const OPTIONS: [&str; 6] = [
    "-q",
    "--fair-sched=try",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--error-exitcode=99",
];

/// The network for one test, or the reason why it is skipped is printed.
fn net() -> Option<(Net, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !quiet(Command::new("valgrind").arg("--version")) {
        println!("skipped: apt install valgrind");
        return None;
    }
    match Net::new() {
        Ok(net) => Some((net, turn)),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// A program under Valgrind, whose exit status says whether it found anything.
fn command(net: &Net, program: &Path, args: &[&str]) -> Command {
    let mut command = net.command(&common::dropin(), "valgrind");
    command.args(OPTIONS).arg(program).args(args);
    command
}

/// Waits until a program listens: for connections, as its sign says, or on the pingpongs' TCP port.
fn listens(net: &Net, server: &mut Program, sign: &Sign) {
    let until = Instant::now() + LIMIT;
    while !sign.is_given() && !net.tcp_listens(18515) {
        if Instant::now() > until {
            server.fail("does not listen");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs both ends of a program.
fn pair(net: &Net, program: &str, server: &[&str], client: &[&str]) {
    let program = Path::new(program);
    let mut server = command(net, program, server);
    let sign = Sign::of(&mut server);
    let mut server = Program::start(server);
    listens(net, &mut server, &sign);
    Program::start(command(net, program, client)).ends_well();
    server.ends_well();
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
    let rows: [(&str, &[&str]); 5] = [
        ("ibv_rc_pingpong", &["-c"]),
        ("ibv_rc_pingpong", &["-e", "-N"]),
        ("ibv_uc_pingpong", &[]),
        ("ibv_ud_pingpong", &["-s", "1000"]),
        ("ibv_srq_pingpong", &["-q", "4"]),
    ];
    for (program, more) in rows {
        let args = [&["-g", "0", "-n", "100"], more].concat();
        pair(&net, program, &args, &[&args[..], &[ADDRESS]].concat());
    }
}

#[test]
fn rping_is_clean() {
    let Some((net, _turn)) = net() else { return };
    pair(&net, "rping", &["-s", "-a", ADDRESS, "-C", "20"], &["-c", "-V", "-a", ADDRESS, "-C", "20"]);
}
