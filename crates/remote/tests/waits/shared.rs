//! Sessions with several servers on one reactor: one wait for all of them, and no server's silence is anybody else's.

use crate::common;

use std::thread;
use std::time::Duration;

use common::{Host, context, fixed};
use remanence_persist::plan::Request;
use remanence_remote::{Reactor, Session};

const RUNS: u64 = 200;

/// Each server gets records one after the other, and all of them at the same time, by one thread that sleeps in one place.
#[test]
fn one_thread_waits_for_all_servers_at_once() {
    let hosts = [(); 3].map(|()| Host::file(1 << 20, |o| o));
    let silent = Host::file(1 << 20, |o| o);
    let reactor = Reactor::new(&context()).expect("a reactor");
    let connect = |host: &Host| Session::connect_on(&reactor, host.addr, fixed()).expect("connected");
    let _silent = connect(&silent);
    let mut sessions: Vec<(Session, u64)> = hosts.iter().map(|host| (connect(host), 0)).collect();
    assert_eq!(reactor.sessions(), 4);
    let plans: Vec<_> =
        sessions.iter_mut().map(|(session, _)| session.plan(&Request::record(8)).expect("a plan")).collect();
    let mut waiter = reactor.waiter();
    let begin = |session: &mut Session, plan, n: u64| {
        let begun = session.try_submit(plan, &[(4096 + 64 * n, &n.to_le_bytes())]).expect("it is there");
        assert!(begun.is_some(), "nothing else is under way");
    };
    for ((session, _), plan) in sessions.iter_mut().zip(&plans) {
        begin(session, plan, 0);
    }
    while sessions.iter().any(|(_, done)| *done < RUNS) {
        for ((session, done), plan) in sessions.iter_mut().zip(&plans) {
            while session.poll().expect("it is there").is_some() {
                *done += 1;
                if *done < RUNS {
                    begin(session, plan, *done);
                }
            }
        }
        if sessions.iter().any(|(_, done)| *done < RUNS) {
            waiter.wait(None).expect("the device is there");
        }
    }
    for host in &hosts {
        for n in 0..RUNS {
            let mut back = [0; 8];
            host.region.read(4096 + 64 * n, &mut back);
            assert_eq!(u64::from_le_bytes(back), n);
        }
    }
}

/// A server that ends takes its own session along, and nothing else; its place on the reactor is another one's then.
#[test]
fn a_server_that_ends_concerns_its_own_session() {
    let (host, mut ending) = (Host::file(1 << 20, |o| o), Host::file(1 << 20, |o| o));
    let reactor = Reactor::new(&context()).expect("a reactor");
    let connect = |host: &Host| Session::connect_on(&reactor, host.addr, fixed()).expect("connected");
    let (mut stays, mut ends) = (connect(&host), connect(&ending));
    let plan = stays.plan(&Request::record(8)).expect("a plan");
    ending.stop();
    assert!((0..).any(|n| {
        drop(stays.persist(&plan, &[(4096, &u64::to_le_bytes(n))]).expect("its server is there"));
        ends.read(0, &mut [0; 8]).is_err()
    }));
    drop(ends);
    let mut next = connect(&host);
    assert_eq!(reactor.sessions(), 2);
    next.read(4096, &mut [0; 8]).expect("it is there");
    drop(stays.persist(&plan, &[(4096, &[1; 8])]).expect("it is there"));
}

/// Sessions of one reactor in threads of their own: whoever leads hands on what is for the others.
#[test]
fn threads_may_share_a_reactor() {
    let host = Host::file(1 << 20, |o| o.sessions(8));
    let reactor = Reactor::new(&context()).expect("a reactor");
    thread::scope(|scope| {
        for t in 0..4_u64 {
            let (reactor, host) = (&reactor, &host);
            scope.spawn(move || {
                let mut session = Session::connect_on(reactor, host.addr, fixed()).expect("connected");
                let plan = session.plan(&Request::record(8)).expect("a plan");
                for n in 0..100_u64 {
                    drop(session.persist(&plan, &[(4096 + t * 64, &n.to_le_bytes())]).expect("it is there"));
                    let mut back = [0; 8];
                    session.read(4096 + t * 64, &mut back).expect("it is there");
                    assert_eq!(u64::from_le_bytes(back), n);
                }
            });
        }
    });
}

/// What is too long for staging begins at once where nothing is under way, as nothing would come after which to try again; but not while
/// something lies there that a READ has brought.
#[test]
fn staging_is_exchanged_at_once_and_not_under_what_a_read_has_brought() {
    let host = Host::file(4 << 20, |o| o);
    host.region.write(4096, &[9; 64]);
    let options = fixed().staging(1 << 16);
    let mut session = Session::connect(&context(), host.addr, options).expect("connected");
    let long = vec![5; 1 << 20];
    let plan = session.plan(&Request::record(long.len() as u32)).expect("a plan");
    let reading = session.post_read(4096, 64).expect("room");
    // The answer comes behind what was read.
    session.settle().expect("it is there");
    for _ in 0..20 {
        assert_eq!(session.try_submit(&plan, &[(1 << 20, &long)]).expect("it is there"), None);
        session.turn_within(Duration::from_millis(1)).expect("it is there");
    }
    let mut back = [0; 64];
    session.finish_read(reading, &mut back).expect("it is there");
    assert_eq!(back, [9; 64]);
    let ticket = session.try_submit(&plan, &[(1 << 20, &long)]).expect("it is there");
    assert!(ticket.is_some(), "nobody else would say that it can begin");
    assert_eq!(session.next_ended().expect("it is there").map(|(ended, _)| ended), ticket);
}
