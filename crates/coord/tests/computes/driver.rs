//! A group whose servers answer at once, as a member's own log does: what came of what was begun lies there and wakes nobody.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use remanence_coord::log::Updates;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::{
    Action, ConnectionLost, Event, Group, NotTaken, Options, ReplicaConnection,
};
use remanence_coord::log::proto::Request;
use remanence_coord::replicated::sessions::Known;
use remanence_coord::replicated::{Limits, Replica, Reply, Request as Asked};
use remanence_persist::plan::Request as PlanRequest;

use crate::machine::{Server, server};
use crate::replicated::Sum;

/// A server, and what it has answered.
struct AtOnce {
    server: Server,
    came: VecDeque<Event>,
    /// Answers that lie at any server, and how often the group would have slept nevertheless.
    there: Rc<Cell<usize>>,
    slept: Rc<Cell<usize>>,
    /// It is found to be gone when something is sent next.
    is_gone: Rc<Cell<bool>>,
}

impl AtOnce {
    fn does(&mut self, action: Action) -> Result<(), ConnectionLost> {
        let event = self.server.does(action);
        self.came.push_back(event);
        self.there.set(self.there.get() + 1);
        Ok(())
    }
}

impl ReplicaConnection for AtOnce {
    fn now() -> Duration {
        Duration::ZERO
    }

    fn begin_call(&mut self, request: &Request) -> Result<(), ConnectionLost> {
        self.does(Action::Call { server: 0, request: *request })
    }

    fn begin_read(&mut self, offset: u64, len: u32) -> Result<(), ConnectionLost> {
        self.does(Action::Read { server: 0, offset, len })
    }

    fn begin_append(&mut self, updates: Updates, plan: &PlanRequest) -> Result<(), ConnectionLost> {
        if self.is_gone.get() {
            return Err(ConnectionLost("it is gone".into()));
        }
        self.does(Action::Append { server: 0, updates: updates.into(), plan: plan.clone().into() })
    }

    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost> {
        let event = self.came.pop_front();
        self.there.set(self.there.get() - usize::from(event.is_some()));
        Ok(event)
    }

    fn wait(&mut self, _: Duration) {
        self.slept.set(self.slept.get() + usize::from(self.there.get() > 0));
    }
}

#[test]
fn a_pause_does_not_sleep_on_what_a_turn_began_or_left() {
    let (there, slept) = (Rc::default(), Rc::default());
    let connections = (1..=2).map(|n| {
        let (there, slept) = (Rc::clone(&there), Rc::clone(&slept));
        let is_gone = Rc::default();
        let connection = AtOnce { server: server(n, 256), came: VecDeque::new(), there, slept, is_gone };
        (format!("s{n}"), Ok(connection))
    });
    // More than is taken of one server in a turn, and more than is under way at a time.
    let options = Options::new(1, Uuid([9; 16])).acks(Some(2)).depth(50);
    let (mut group, _) = Group::open(connections.collect(), &options).expect("both are there");
    for _ in 0..3 {
        for n in 0..80_u8 {
            group.begin_append(&[n; 40]).expect("room");
        }
        for _ in 0..100 {
            group.pause().expect("both are there");
        }
        assert_eq!(group.acknowledged(), group.next());
        assert_eq!((there.get(), slept.get()), (0, 0), "it slept while something was there");
        // A turn of another caller, who looks for something else.
        group.begin_append(b"one").expect("room");
        group.poll().expect("both are there");
    }
}

/// Else the client is told that nothing was changed, and a later host finds the record; and this one, if its servers come back, goes on
/// without it.
#[test]
fn a_command_that_was_taken_when_its_servers_were_found_to_be_gone_counts() {
    let is_gone = Rc::new(Cell::new(false));
    let connections = (1..=2).map(|n| {
        let (there, slept, is_gone) = (Rc::default(), Rc::default(), Rc::clone(&is_gone));
        let connection = AtOnce { server: server(n, 256), came: VecDeque::new(), there, slept, is_gone };
        (format!("s{n}"), Ok(connection))
    });
    let options = Options::new(1, Uuid([9; 16])).acks(Some(2));
    let (mut group, _) = Group::open(connections.collect(), &options).expect("both are there");
    let mut replica = Replica::<Sum>::new(Limits::default());
    let until = Duration::from_secs(1);
    replica.submit(1, until, Asked::Open);
    let session = loop {
        replica.advance(Duration::ZERO, &mut group);
        match replica.poll_answer() {
            Some((1, Reply::Opened(session))) => break session,
            Some(other) => panic!("{other:?}"),
            None => group.pause().expect("both are there"),
        }
    };
    is_gone.set(true);
    replica.submit(2, until, Asked::Command { session, number: 1, command: vec![5] });
    replica.advance(Duration::ZERO, &mut group);
    assert!(matches!(replica.poll_answer(), Some((2, Reply::Unknown(_)))), "nobody waits for who is gone");
    assert_eq!(group.next(), session + 2);
    assert!(matches!(replica.state().look(session, 1), Known::Done(record, _) if record == session + 1));
}

/// The servers of a log come one after the other, and nobody waits.
#[test]
fn a_group_that_is_begun_opens_when_enough_have_come_and_takes_no_record_before() {
    let names = ["s1", "s2", "s3"].map(ToOwned::to_owned);
    let connect = |n: u8| {
        let (there, slept, is_gone) = (Rc::default(), Rc::default(), Rc::default());
        AtOnce { server: server(n, 256), came: VecDeque::new(), there, slept, is_gone }
    };
    let options = Options::new(1, Uuid([9; 16])).acks(Some(2));
    let mut group = Group::begin(names.to_vec(), &options);
    let go_on = |group: &mut Group<AtOnce>| {
        while group.poll().is_ok() && group.goes_on() {}
        (group.machine().is_open(), group.machine().shortage().is_some())
    };
    assert_eq!(go_on(&mut group), (false, false), "it is not known yet whether they are there");
    assert_eq!(group.try_append(b"early"), Err(NotTaken::NotYet));
    group.reconnect_to(0, Ok(connect(1)));
    group.reconnect_to(1, Err(ConnectionLost("it is away".into())));
    assert_eq!(go_on(&mut group), (false, false));
    group.reconnect_to(2, Err(ConnectionLost("it is away".into())));
    assert_eq!(go_on(&mut group), (false, true), "a new log needs all of them");
    group.reconnect_to(1, Ok(connect(2)));
    group.reconnect_to(2, Ok(connect(3)));
    assert_eq!(go_on(&mut group), (true, false));
    assert_eq!(group.try_append(b"one"), Ok(0));
    go_on(&mut group);
    assert_eq!((group.acknowledged(), group.next()), (1, 1));
}
