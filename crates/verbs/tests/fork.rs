//! Children that fork without executing, while threads of the parent are in the middle of everything. Alone in its program, as it forks.
#![expect(unsafe_code, reason = "forks")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Pair, Side, address, open, open_at, pattern, wr};
use remanence_effort::{Process, again};
use remanence_rnic::{CqError, PostError, RecvWr, SendOp, VerbError};
use remanence_verbs::{Context, Error, Listener, Progress};

const PART: &str = "REMANENCE_TEST_FORKER_AT";

/// Runs `child` in a forked child, and ends it. What panics there may hang in the panic handler, whose locks another
/// thread may have held: the alarm ends it.
fn fork(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child touches only what it may: see `abandon`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // SAFETY: no pointers. What deadlocks is killed.
        unsafe { libc::alarm(120) };
        let code = catch_unwind(AssertUnwindSafe(child)).map_or(1, |()| 0);
        // SAFETY: ends the child, without what the harness would do at an exit.
        unsafe { libc::_exit(code) };
    }
    pid
}

/// How the child ended: its code, or the signal that killed it.
fn ended(pid: libc::pid_t) -> Result<i32, i32> {
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { Ok(libc::WEXITSTATUS(status)) } else { Err(libc::WTERMSIG(status)) }
}

fn write_and_check(pair: &Pair, wr_id: u64) {
    let data = pattern(5000, wr_id as u8);
    pair.a.fill(0, &data);
    pair.qa.post_send(&wr(wr_id, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 5000)])).unwrap();
    assert_eq!(pair.a.success().wr_id, wr_id);
    assert!(pair.b.bytes(0, 5000) == data);
}

/// All that can be asked of a device that is gone says so, at once.
fn everything_fails(pair: &Pair) {
    let (side, qp) = (&pair.a, &pair.qa);
    let mut wcs = Vec::new();
    assert_eq!(side.cq.poll(&mut wcs, 1), Err(CqError::NoSuchCq));
    assert_eq!(side.cq.wait(&mut wcs, 1, None), Err(CqError::NoSuchCq));
    assert_eq!(qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }), Err(PostError::NoSuchQueue));
    let sges = [side.mr.sge(0, 8)];
    let write = wr(1, SendOp::Write(pair.b.mr.remote(0)), &sges);
    assert_eq!(qp.post_send(&write), Err(PostError::NoSuchQueue));
    assert!(matches!(qp.query(), Err(VerbError::NoSuchObject(_))));
    assert!(matches!(qp.destroy(), Err(VerbError::NoSuchObject(_))));
    assert!(matches!(side.cq.req_notify(false), Err(VerbError::NoSuchObject(_))));
    assert!(matches!(side.context.alloc_pd(), Err(Error::Verb(VerbError::NoRoom(_)))));
    assert!(side.context.create_cq(1, None, 0).is_err());
    assert!(side.context.get_async_event(None).is_none());
    assert!(Listener::bind(&side.context, 7799, 1).is_err());
    let qpn = qp.qpn();
    let _ = side.context.stats();
    assert_eq!(qpn, qp.qpn(), "what it was is still known");
}

#[test]
fn a_child_gives_its_parents_devices_up_and_opens_its_own() {
    let (busy, quiet) = (Pair::new(), Pair::new());
    let channel = quiet.a.context.create_comp_channel().unwrap();
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // One thread posts and polls without a pause, one sleeps in a call; two progress threads serve.
        scope.spawn(|| {
            let mut id = 0;
            while !stop.load(Ordering::Relaxed) {
                id += 1;
                write_and_check(&busy, id);
                writes.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(channel.get_event(Some(Duration::from_millis(20))).is_none());
            }
        });
        let result = catch_unwind(AssertUnwindSafe(|| {
            for round in 0..24 {
                let before = writes.load(Ordering::Relaxed);
                let pid = fork(|| {
                    quiet.a.context.abandon();
                    everything_fails(&busy);
                    everything_fails(&quiet);
                    assert!(channel.get_event(None).is_none());
                    // A device of its own, at an address of the parent's: the port is shared.
                    let own = Side::with(open_at(common::address_of(&quiet.a.context), Progress::default()));
                    let own = Pair::of(own, Side::with(open(Progress::default())));
                    write_and_check(&own, 1);
                    drop(own);
                });
                if round % 2 == 0 {
                    assert_eq!(ended(pid), Ok(0), "round {round}");
                    write_and_check(&quiet, round);
                } else {
                    // Both at once.
                    write_and_check(&quiet, round);
                    assert_eq!(ended(pid), Ok(0), "round {round}");
                }
                let limit = Instant::now() + Duration::from_secs(120);
                while writes.load(Ordering::Relaxed) == before {
                    assert!(Instant::now() < limit, "the parent does not get on");
                    std::thread::yield_now();
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    // In the parent it does nothing.
    quiet.a.context.abandon();
    write_and_check(&quiet, 99);
}

#[test]
fn dropping_what_was_abandoned_does_no_harm() {
    let (pair, peer) = (Pair::new(), Pair::new());
    let listener = Listener::bind(&pair.a.context, 7788, 4).unwrap();
    let mut objects = Some((pair, listener));
    let pid = fork(|| {
        let (pair, listener) = objects.take().unwrap();
        pair.a.context.abandon();
        // These may get the numbers of descriptors that the dropped ones had.
        let own = Pair::new();
        let Pair { a, b, qa, qb } = pair;
        drop(listener);
        drop((qa, a));
        drop(b);
        drop(qb);
        write_and_check(&own, 1);
    });
    assert_eq!(ended(pid), Ok(0));
    let (pair, listener) = objects.as_ref().unwrap();
    write_and_check(pair, 5);
    write_and_check(&peer, 5);
    // The parent's service was not taken off the book.
    let client = Side::with(open_at(common::address_of(&pair.a.context), Progress::default()));
    let taken = Listener::bind(&client.context, 7788, 1).unwrap_err();
    assert!(taken.to_string().contains("taken"), "{taken}");
    assert_eq!(listener.port(), 7788);
}

/// Opens a device, forks a child that gives it up and stays, and ends.
#[test]
#[ignore = "a child process of `cargo test -p remanence-verbs --test fork the_port_is_free`"]
fn the_part_of_the_forker() {
    let Ok(at) = std::env::var(PART) else { return };
    let side = Side::with(open_at(at.parse().unwrap(), Progress::default()));
    let _listener = Listener::bind(&side.context, 7787, 4).unwrap();
    let (mut told, mut tells) = std::io::pipe().unwrap();
    let pid = fork(|| {
        side.context.abandon();
        tells.write_all(b".").unwrap();
        // SAFETY: no pointers. The alarm ends it, if nobody else does.
        unsafe { libc::pause() };
    });
    told.read_exact(&mut [0]).unwrap();
    println!("forked {pid}");
    std::process::exit(0);
}

fn bound_alone(address: IpAddr) -> bool {
    UdpSocket::bind((address, 4791)).is_ok()
}

#[test]
fn the_port_is_free_when_the_parent_ends_before_the_child() {
    let at = address();
    let mut forker = Process::start(again("the_part_of_the_forker").env(PART, at.to_string()));
    let child: i32 = forker.after("forked ").expect("it forked").parse().unwrap();
    assert!(forker.child().wait().unwrap().success());
    // SAFETY: no pointers; asks whether the process is there.
    assert_eq!(unsafe { libc::kill(child, 0) }, 0, "the child lives on");
    assert!(bound_alone(at), "the child kept its parent's socket");
    // A device there receives all that is its own, and can listen where the parent did.
    let one = Side::with(open_at(at, Progress::default()));
    let _listener = Listener::bind(&one.context, 7787, 4).unwrap();
    let pair = Pair::of(one, Side::new());
    for id in 0..50 {
        write_and_check(&pair, id);
    }
    // SAFETY: no pointers; a process of ours, found just now.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

#[test]
fn shared_memory_is_given_up_too() {
    let pair = Pair::of(
        Side::with(Context::open(remanence_verbs::Options::shm(None)).unwrap()),
        Side::with(Context::open(remanence_verbs::Options::shm(None)).unwrap()),
    );
    write_and_check(&pair, 1);
    let pid = fork(|| {
        pair.b.context.abandon();
        everything_fails(&pair);
        let own = Pair::new();
        write_and_check(&own, 1);
    });
    assert_eq!(ended(pid), Ok(0));
    write_and_check(&pair, 2);
    let mut wcs = Vec::new();
    let more = pair.a.cq.wait(&mut wcs, 1, Some(Duration::from_millis(10)));
    assert_eq!(more, Ok(0), "{wcs:?}");
}
