//! Waits that another thread ends. Nothing is judged by the clock; that no wake is lost between the look and the sleep, in
//! `wake.rs`, where nothing else ends a sleep.

use crate::common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::{LIMIT, Pair, Side, socket_addr, wr};
use remanence_rnic::{SendOp, Wc};
use remanence_verbs::{ConnectAttr, Connection, Cq, Listener, Phase, Progress};

const PORT: u16 = 7472;

fn wait(cq: &Cq) -> Vec<Wc> {
    let mut wcs = Vec::new();
    let n = cq.wait(&mut wcs, 16, None).unwrap();
    assert_eq!(n, wcs.len());
    wcs
}

#[test]
fn a_wake_ends_the_next_wait_and_only_that_one() {
    let pair = Pair::new();
    let waker = pair.a.cq.waker();
    waker.wake();
    waker.clone().wake();
    assert!(wait(&pair.a.cq).is_empty(), "it was woken before it waited");
    // Of this wait nobody knows when the completion comes; but something does.
    pair.qa.post_send(&wr(7, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 8)])).unwrap();
    let wcs = wait(&pair.a.cq);
    assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [7], "two wakes in a row are one");
}

#[test]
fn a_wake_comes_before_completions_and_leaves_them_where_they_are() {
    let pair = Pair::new();
    pair.qa.post_send(&wr(8, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 8)])).unwrap();
    pair.a.cq.waker().wake();
    assert!(wait(&pair.a.cq).is_empty());
    assert_eq!(wait(&pair.a.cq).len(), 1);
}

#[test]
fn a_wake_is_of_one_queue_and_not_of_another() {
    let pair = Pair::new();
    let other = pair.a.context.create_cq(16, None, 0).unwrap();
    other.waker().wake();
    pair.qa.post_send(&wr(9, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 8)])).unwrap();
    assert_eq!(wait(&pair.a.cq).len(), 1);
    assert!(wait(&other).is_empty());
}

/// Rounds of a question, a wake, and an answer: the waiter goes to sleep in each of them, at a moment that drifts against that
/// of the wake. The asker waits on a device of its own, so that nothing wakes either of them by chance where nobody else uses
/// the device: two waiters of one device call each other to the seat.
fn ask_and_wake(side: &Side, rounds: u32) {
    let (asked, answered) = (AtomicU32::new(0), AtomicU32::new(0));
    let asker = Side::with(common::open(Progress::ByConsumer));
    let back = asker.cq.clone();
    let (there, here) = (side.cq.waker(), back.waker());
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                while asked.load(Ordering::Relaxed) < round {
                    assert!(wait(&side.cq).is_empty());
                }
                answered.store(round, Ordering::Relaxed);
                here.wake();
            }
        });
        for round in 1..=rounds {
            for _ in 0..round % 61 * (round % 7) {
                std::hint::spin_loop();
            }
            if round % 16 == 0 {
                thread::sleep(Duration::from_micros(u64::from(round % 300)));
            }
            asked.store(round, Ordering::Relaxed);
            there.wake();
            while answered.load(Ordering::Relaxed) < round {
                assert!(wait(&back).is_empty());
            }
        }
    });
}

#[test]
fn no_wake_is_lost_to_a_waiter_that_goes_to_sleep() {
    for progress in [Progress::Adaptive, Progress::Sleep, Progress::ByConsumer] {
        ask_and_wake(&Side::with(common::open(progress)), 4_000);
    }
}

#[test]
fn no_wake_is_lost_while_others_drive_the_device() {
    let pair = Pair::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (pair, done) = (&pair, &done);
        scope.spawn(move || {
            let cq = pair.a.context.create_cq(64, None, 0).unwrap();
            let (qa, qb) = (pair.a.pd.create_qp(&remanence_verbs::QpOptions::rc(&cq)).unwrap(), pair.b.qp());
            common::connect(&qa, &qb);
            let mut wcs = Vec::new();
            for i in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                qa.post_send(&wr(i, SendOp::Write(pair.b.mr.remote(64)), &[pair.a.mr.sge(64, 8)])).unwrap();
                wcs.clear();
                if i % 3 == 0 {
                    assert_eq!(cq.wait(&mut wcs, 1, LIMIT), Ok(1));
                } else {
                    while cq.poll(&mut wcs, 1).unwrap() == 0 {}
                }
            }
        });
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(done);
        ask_and_wake(&pair.a, 4_000);
    });
}

/// As many wakes as threads that wait, each after the one before it was seen: all of them come home.
#[test]
fn each_wake_ends_one_wait_of_several() {
    const THREADS: u32 = 4;
    let side = Side::new();
    let home = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                assert!(wait(&side.cq).is_empty());
                home.fetch_add(1, Ordering::Relaxed);
            });
        }
        for n in 0..THREADS {
            side.cq.waker().wake();
            while home.load(Ordering::Relaxed) <= n {
                thread::yield_now();
            }
            assert_eq!(home.load(Ordering::Relaxed), n + 1);
        }
    });
}

#[test]
fn a_waker_outlives_its_device() {
    let side = Side::new();
    let waker = side.cq.waker();
    drop(side);
    waker.wake();
}

#[test]
fn who_waits_for_a_request_can_be_stopped() {
    let server = Side::new();
    let listener = Listener::bind(&server.context, PORT, 16).unwrap();
    let (stop, waker) = (AtomicBool::new(false), listener.waker());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(listener.get_request(None).is_none());
            }
        });
        stop.store(true, Ordering::Relaxed);
        waker.wake();
    });
}

#[test]
fn requests_and_ends_of_connections_wake_who_waits_for_completions() {
    let (client, server) = (Side::new(), Side::new());
    let listener = Listener::bind(&server.context, PORT, 16).unwrap();
    let peer = socket_addr(&server.context, PORT);
    let waker = server.cq.waker();
    assert!(listener.wake_with(&waker));
    assert!(!listener.wake_with(&waker), "one waker");
    thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let incoming = loop {
                assert!(wait(&server.cq).is_empty());
                if let Some(incoming) = listener.try_get_request() {
                    break incoming;
                }
            };
            let connection = incoming.accept(&server.qp(), &ConnectAttr::default(), b"").unwrap();
            // What has happened until now, and what happens from now on.
            assert!(connection.wake_with(&waker));
            while !matches!(connection.advance().unwrap(), Phase::Ended(_)) {
                assert!(wait(&server.cq).is_empty());
            }
        });
        let ours = Connection::connect(&client.qp(), peer, &ConnectAttr::default(), b"", LIMIT).unwrap();
        ours.disconnect().unwrap();
        theirs.join().unwrap();
    });
}
