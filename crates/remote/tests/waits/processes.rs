//! Real processes: servers and clients that are killed with SIGKILL under load, restarted and looked at. Every acknowledged
//! update is there, and of ordered ones none without the one before.
//!
//! They are killed 3 times in each setting, and 50 times with `REMANENCE_EFFORT=night`.

use crate::common;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use common::{address, context, fixed};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_effort::{Process, again};
use remanence_persist::plan::Request;
use remanence_persist::recipe::Op;
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::FileOptions;
use remanence_remote::ring::Layout;
use remanence_remote::{Error, Plan, Server, ServerOptions, Session, Stop};
use remanence_verbs::Context;

const RECORD: u64 = 256;
const RECORDS: u64 = 1500;
const TAIL: u64 = 0;
const FIRST: u64 = 4096;
const LEN: u64 = 4 << 20;

fn rounds() -> u64 {
    remanence_effort::rounds(3, 50)
}

/// Record `n`, of which no part is a part of another one.
fn record(n: u64) -> Vec<u8> {
    (0..RECORD / 8).flat_map(|k| (((n + 1) << 32) + (k + 1) * 0x0101).to_be_bytes()).collect()
}

/// The server process: only what `serve` starts.
#[test]
fn serve() {
    let Ok(path) = std::env::var("REMANENCE_TEST_SERVE") else { return };
    let address = std::env::var("REMANENCE_TEST_ADDRESS").expect("set").parse().expect("an address");
    let pm = std::env::var("REMANENCE_TEST_BUFFERS").is_ok_and(|b| b == "pm");
    let region = FileOptions::new().create(LEN).open(path).expect("a file");
    let device = Context::open(remanence_verbs::Options::udp(address)).expect("a device");
    let options = ServerOptions::new(&device, region, 0).sessions(64).messages(16, 2048);
    let mut server =
        Server::bind(options.buffers(if pm { Buffers::Pm } else { Buffers::Dram })).expect("a server");
    // An application that does other things meanwhile: for a moment, and for as long as somebody wants.
    let busy = std::env::var("REMANENCE_TEST_BUSY").ok();
    if let Some(busy) = busy {
        server.on_round(move || {
            std::thread::sleep(Duration::from_millis(1));
            let busy = Path::new(&busy);
            if busy.exists() {
                std::fs::write(busy.with_extension("in"), b"").expect("a file");
            }
            while busy.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
    println!("ready {} {}", server.addr(), server.recovered().applied);
    std::io::stdout().flush().expect("a pipe");
    server.run(&Stop::new()).expect("it serves");
}

/// A client process that appends, and says what was acknowledged: only what `append` starts.
#[test]
fn append() {
    let Ok(to) = std::env::var("REMANENCE_TEST_APPEND") else { return };
    let to: SocketAddr = to.parse().expect("an address");
    let mut session = Session::connect(&context(), to, fixed().depth(8)).expect("connected");
    let plan = session.plan_by(Op::Send, &Request::append(RECORD as u32)).expect("a plan");
    let mut tail = tail_of(&mut session);
    let mut acknowledged = tail;
    while tail < RECORDS {
        submit(&mut session, &plan, tail).expect("it is there");
        tail += 1;
        while session.poll().expect("it is there").is_some() {
            acknowledged += 1;
            println!("acknowledged {acknowledged}");
        }
    }
}

struct Served {
    process: Process,
    addr: SocketAddr,
    recovered: u64,
}

/// The file that keeps the server's application busy.
fn busy(path: &Path) -> PathBuf {
    path.with_extension("busy")
}

fn start(path: &Path, buffers: &str) -> Served {
    let mut variables = vec![
        ("REMANENCE_TEST_SERVE", path.display().to_string()),
        ("REMANENCE_TEST_ADDRESS", address().to_string()),
        ("REMANENCE_TEST_BUFFERS", buffers.to_owned()),
    ];
    if buffers == "pm" {
        variables.push(("REMANENCE_TEST_BUSY", busy(path).display().to_string()));
    }
    let mut process = Process::start(again("processes::serve").envs(variables).stdin(Stdio::null()));
    let ready = process.after("ready ").expect("the server starts");
    let (addr, recovered) = ready.split_once(' ').expect("two words");
    Served {
        addr: addr.parse().expect("an address"),
        recovered: recovered.parse().expect("a number"),
        process,
    }
}

fn tail_of(session: &mut Session) -> u64 {
    let mut word = [0; 8];
    session.read(TAIL, &mut word).expect("it is there");
    u64::from_le_bytes(word)
}

/// Appends record `n`: the record, and then the word that says that there are `n + 1`.
fn submit(session: &mut Session, plan: &Plan, n: u64) -> Result<(), Error> {
    let tail = (n + 1).to_le_bytes();
    session.submit(plan, &[(FIRST + n * RECORD, &record(n)), (TAIL, &tail)]).map(drop)
}

/// Every record that the tail covers is whole; returns how many there are.
fn verify(session: &mut Session, acknowledged: u64, what: &str) -> u64 {
    let tail = tail_of(session);
    assert!(tail >= acknowledged, "{what}: {acknowledged} records were acknowledged, and {tail} are there");
    let mut all = vec![0; (tail * RECORD) as usize];
    session.read(FIRST, &mut all).expect("it is there");
    for n in 0..tail {
        let found = &all[(n * RECORD) as usize..][..RECORD as usize];
        assert_eq!(found, record(n), "{what}: record {n} of {tail}, {acknowledged} of them acknowledged");
    }
    tail
}

fn kill_under_load(place: PathBuf, buffers: &str, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut acknowledged, mut recovered, mut most) = (0, 0, 0);
    for round in 0..rounds() {
        let mut served = start(&place, buffers);
        recovered += served.recovered;
        let mut session = Session::connect(&context(), served.addr, fixed().depth(8)).expect("connected");
        let what = format!("seed {seed}, round {round}, {buffers} buffers in {}", place.display());
        let mut tail = verify(&mut session, acknowledged, &what);
        acknowledged = tail;
        let op = Op::ALL[(rng.next_u32() % 3) as usize];
        let plan = session.plan_by(op, &Request::append(RECORD as u32)).expect("a plan");
        let until = acknowledged + 1 + rng.next_u64() % 60;
        while acknowledged < until && tail < RECORDS {
            submit(&mut session, &plan, tail).expect("the server lives");
            tail += 1;
            while session.poll().expect("the server lives").is_some() {
                acknowledged += 1;
            }
        }
        // In the middle of what is under way.
        served.process.kill();
        most = most.max(tail - acknowledged);
    }
    let served = start(&place, buffers);
    let mut session = Session::connect(&context(), served.addr, fixed()).expect("connected");
    let tail = verify(&mut session, acknowledged, "at the end");
    println!(
        "{buffers}: {tail} records, {acknowledged} acknowledged, {recovered} messages recovered, up to {most} under way"
    );
}

#[test]
fn a_server_of_a_file_is_killed_and_every_acknowledged_update_is_there() {
    let dir = tempfile::tempdir().expect("a directory");
    kill_under_load(dir.path().join("dram"), "dram", 1);
    kill_under_load(dir.path().join("pm"), "pm", 2);
}

#[test]
fn a_server_of_shared_memory_is_killed_and_every_acknowledged_update_is_there() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    kill_under_load(dir.path().join("dram"), "dram", 3);
    kill_under_load(dir.path().join("pm"), "pm", 4);
}

/// A server that nobody looks at its messages on, with twelve of them, killed.
fn twelve_messages_in(place: &Path) {
    let mut served = start(place, "pm");
    let mut session = Session::connect(&context(), served.addr, fixed()).expect("connected");
    let plan = session.plan_by(Op::Send, &Request::append(RECORD as u32)).expect("a plan");
    assert!(!plan.recipe.is_two_sided() && plan.recipe.replay, "{}", plan.recipe);
    std::fs::write(busy(place), b"").expect("a file");
    while !busy(place).with_extension("in").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    for n in 0..12 {
        submit(&mut session, &plan, n).expect("there are 16 buffers");
    }
    assert_eq!(session.finish().expect("nobody is needed at the server").len(), 12);
    served.process.kill();
    std::fs::remove_file(busy(place)).expect("it is there");
}

#[test]
fn messages_that_nobody_looked_at_are_durable_and_applied_by_the_next_server() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let place = dir.path().join("pm");
    twelve_messages_in(&place);
    let served = start(&place, "pm");
    assert_eq!(served.recovered, 12, "messages that recovery applied");
    let mut session = Session::connect(&context(), served.addr, fixed()).expect("connected");
    assert_eq!(verify(&mut session, 12, "from the receive buffers"), 12);
}

#[test]
fn half_a_message_in_the_file_of_a_killed_server_is_not_applied_and_nothing_behind_it() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let place = dir.path().join("pm");
    twelve_messages_in(&place);
    let region = FileOptions::new().open(&place).expect("its server is dead");
    let ring = Layout::find(&region).expect("sound").expect("it has buffers").ring(0);
    // As if the end of the message that brings record 8 had still been on its way.
    let at = (1..=16).find_map(|number| {
        let mut buffer = vec![0; 2048];
        region.read(ring.buffer(number), &mut buffer);
        let at = buffer.windows(RECORD as usize).position(|bytes| bytes == record(8))?;
        Some(ring.buffer(number) + at as u64)
    });
    region.write(at.expect("it is there") + RECORD / 2, &[0; RECORD as usize / 2]);
    drop(region);
    let served = start(&place, "pm");
    assert_eq!(served.recovered, 8, "messages that recovery applied");
    let mut session = Session::connect(&context(), served.addr, fixed()).expect("connected");
    assert_eq!(verify(&mut session, 8, "from the receive buffers"), 8);
    for n in 8..12 {
        let mut bytes = vec![0xff; RECORD as usize];
        session.read(FIRST + n * RECORD, &mut bytes).expect("it is there");
        assert_eq!(bytes, vec![0; RECORD as usize], "record {n}: no part of it is there");
    }
    // The next run begins where the last whole one ended.
    let plan = session.plan_by(Op::Send, &Request::append(RECORD as u32)).expect("a plan");
    submit(&mut session, &plan, 8).expect("it is there");
    session.finish().expect("it is there");
    session.settle().expect("it is there");
    assert_eq!(verify(&mut session, 9, "afterwards"), 9);
}

#[test]
fn a_client_is_killed_and_what_it_was_told_is_there() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let served = start(&dir.path().join("pm"), "pm");
    let mut acknowledged = 0;
    for round in 0..rounds() {
        let mut client =
            Process::start(again("processes::append").env("REMANENCE_TEST_APPEND", served.addr.to_string()));
        for _ in 0..20 + 7 * round {
            let said = client.after("acknowledged ").expect("the server lives");
            acknowledged = said.parse().expect("a number");
        }
        client.kill();
        // Its session may not have ended yet; what it was told is in its place or in a message all the same.
        let mut session = Session::connect(&context(), served.addr, fixed()).expect("the server goes on");
        let seen = (0..600).any(|_| {
            let enough = tail_of(&mut session) >= acknowledged;
            if !enough {
                session.settle().expect("the server goes on");
                std::thread::sleep(Duration::from_millis(10));
            }
            enough
        });
        assert!(seen, "{acknowledged} were acknowledged");
        acknowledged = verify(&mut session, acknowledged, "after the client");
    }
}

#[test]
fn a_server_that_dies_between_steps_is_noticed_with_a_sentence() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let mut served = start(&dir.path().join("memory"), "dram");
    let mut session = Session::connect(&context(), served.addr, fixed()).expect("connected");
    let plan = session.plan(&Request::append(RECORD as u32)).expect("a plan");
    submit(&mut session, &plan, 0).expect("the server lives");
    session.finish().expect("the server lives");
    served.process.kill();
    let died = (1..).find_map(|n| submit(&mut session, &plan, n).and_then(|()| session.finish()).err());
    let said = died.expect("it is dead").to_string();
    assert!(said.contains("may be durable or not"), "{said}");
    assert!(matches!(submit(&mut session, &plan, 0), Err(Error::Over)));
    assert!(matches!(session.read(0, &mut [0; 8]), Err(Error::Over)));
}
