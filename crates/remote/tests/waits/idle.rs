//! What silent sessions cost a server: memory, and CPU time.

use crate::common;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use common::{Host, context, fixed};
use remanence_effort::{Process, again};
use remanence_remote::Session;

const SERVICE: u16 = 7;
/// Bytes that a session may cost.
const EACH: u64 = 16 << 10;

/// The process with the clients: only what a test here starts.
#[test]
fn clients() {
    let Ok(to) = std::env::var("REMANENCE_TEST_IDLE") else { return };
    let (to, count) = to.split_once(' ').expect("an address, and a number");
    let to: SocketAddr = to.parse().expect("an address");
    let device = context();
    let sessions: Vec<Session> = (0..count.parse().expect("a number"))
        .map(|n| {
            let mut session = Session::connect(&device, to, fixed()).expect("connected");
            // Half of them have said something once.
            if n % 2 == 0 {
                session.call(SERVICE, b"hello").expect("an answer");
            }
            session
        })
        .collect();
    println!("there {}", sessions.len());
    // Until our parent has seen enough.
    let _ = std::io::stdin().lines().next();
}

/// Bytes of this process that are in memory, without what lies in files: its program is no session's.
fn resident() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("it is there");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// CPU time of this process.
fn used() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("it is there");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(ticks * 10)
}

/// Serves so many sessions, silent for so long, and then measures as long: bytes of memory for each, and the part of a core for all.
fn cost(sessions: u16, silent: Duration, time: Duration) -> (u64, f64) {
    let host = Host::with(
        1 << 20,
        None,
        |options| options.sessions(sessions),
        |server| server.on_call(SERVICE, |call| Ok(call.request.to_vec())),
    );
    // What the first one costs is not the sessions'.
    Session::connect(&context(), host.addr, fixed())
        .expect("connected")
        .call(SERVICE, b"a")
        .expect("an answer");
    std::thread::sleep(Duration::from_millis(500));
    let before = resident();
    let mut clients = Process::start(
        again("idle::clients")
            .env("REMANENCE_TEST_IDLE", format!("{} {sessions}", host.addr))
            .stdin(Stdio::piped()),
    );
    clients.after(&format!("there {sessions}")).expect("it gets so far");
    let each = resident().saturating_sub(before) / u64::from(sessions);
    std::thread::sleep(silent);
    let begin = used();
    std::thread::sleep(time);
    let share = (used() - begin).as_secs_f64() / time.as_secs_f64();
    drop(clients.child().stdin.take());
    assert!(clients.child().wait().expect("it ends").success());
    println!("{sessions} silent sessions: {each} bytes each, {:.2} % of a core in all", share * 100.0);
    (each, share)
}

#[test]
fn a_silent_session_costs_little_memory() {
    let (each, _) = cost(1500, Duration::from_secs(1), Duration::from_millis(100));
    assert!(each <= EACH, "{each} bytes a session");
}

#[test]
#[ignore = "four minutes: `cargo test -p remanence-remote --test waits -- --ignored --exact idle::ten_thousand --nocapture`"]
fn ten_thousand() {
    // After two minutes of silence the keepalive of the transport asks each of them every 30 s.
    let (each, share) = cost(10_000, Duration::from_secs(130), Duration::from_secs(60));
    assert!(each <= EACH, "{each} bytes a session");
    assert!(share < 0.01, "{share} of a core");
}
