//! A host of a replicated service, step by step: what it answers, and what a later host knows of it.

use std::time::Duration;

use remanence_codec::{Malformed, Reader};
use remanence_coord::log::GroupError;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::{Action, Event, Machine, Options};
use remanence_coord::replicated::{Limits, Refusal, Replica, Reply, Request, StateMachine};

use crate::machine::{Server, server};

const UNTIL: Duration = Duration::from_secs(10);
/// At which the service panics.
const POISON: u8 = 0xEE;

/// Adds the bytes of commands up; its snapshots are long, so that they have several parts.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Sum(u64);

impl StateMachine for Sum {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        assert!(!command.contains(&POISON), "it has no answer to that");
        self.0 += command.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        self.0.to_le_bytes().to_vec()
    }

    fn snapshot(&self) -> Vec<u8> {
        [&self.0.to_le_bytes()[..], &[7; 900]].concat()
    }

    fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(snapshot);
        let sum = reader.u64_le()?;
        if reader.rest() == [7; 900] { Ok(Self(sum)) } else { reader.fail() }
    }
}

/// Three servers, of which some are silent, and the host that has the log.
struct World {
    servers: Vec<Server>,
    silent: Vec<usize>,
    /// Records that servers still get.
    appends: usize,
    machine: Machine,
    replica: Replica<Sum>,
    waiting: Vec<Action>,
    now: Duration,
    hosts: u32,
    token: u64,
}

fn machine(writer: u32) -> Machine {
    let options = Options::new(writer, Uuid([9; 16])).acks(Some(2)).grace(Duration::ZERO);
    Machine::new((0..3).map(|n| format!("s{n}")), options)
}

fn limits() -> Limits {
    Limits { waiting: 4, sessions: 2, patience: Duration::from_millis(10) }
}

impl World {
    fn new(segments: u64) -> Self {
        let mut world = Self {
            servers: (1..=3).map(|n| server(n, segments)).collect(),
            silent: Vec::new(),
            appends: usize::MAX,
            machine: machine(1),
            replica: Replica::new(limits()),
            waiting: Vec::new(),
            now: Duration::ZERO,
            hosts: 0,
            token: 0,
        };
        world.take_over(&[0, 1, 2]);
        world
    }

    /// Another host comes, and reaches these servers. What the one before had under way is lost.
    fn take_over(&mut self, reached: &[usize]) {
        self.hosts += 1;
        (self.machine, self.replica) = (machine(self.hosts), Replica::new(limits()));
        self.waiting.clear();
        for n in 0..3 {
            if reached.contains(&n) {
                self.machine.connected(self.now, n);
            } else {
                self.machine.unreachable(self.now, n, "it is down");
            }
        }
        self.run();
    }

    fn is_silent(&self, action: &Action) -> bool {
        let (Action::Call { server, .. }
        | Action::Read { server, .. }
        | Action::Append { server, .. }
        | Action::Disconnect { server }) = action;
        let is_append = matches!(action, Action::Append { .. });
        self.silent.contains(server) || is_append && self.appends == 0
    }

    /// Everything that can happen happens, but for what is asked of silent servers.
    fn run(&mut self) {
        loop {
            self.replica.advance(self.now, &mut self.machine);
            if let Some(read) = self.replica.poll_read()
                && !self.silent.contains(&read.server)
            {
                let action = Action::Read { server: read.server, offset: read.offset, len: read.len };
                let Event::Data(bytes) = self.servers[read.server].does(action) else { panic!("bytes") };
                self.replica.came(read.number, Some(bytes));
                continue;
            }
            while let Some(action) = self.machine.poll_action() {
                if !matches!(action, Action::Disconnect { .. }) {
                    self.waiting.push(action);
                }
            }
            let Some(at) = self.waiting.iter().position(|action| !self.is_silent(action)) else { return };
            let action = self.waiting.remove(at);
            let (Action::Call { server, .. } | Action::Read { server, .. } | Action::Append { server, .. }) =
                action
            else {
                unreachable!("they were left out")
            };
            self.appends -= usize::from(matches!(action, Action::Append { .. }));
            let event = self.servers[server].does(action);
            self.machine.handle(self.now, server, event);
        }
    }

    fn begin(&mut self, request: Request) -> u64 {
        self.token += 1;
        self.replica.submit(self.token, self.now + UNTIL, request);
        self.run();
        self.token
    }

    fn answers(&mut self) -> Vec<(u64, Reply)> {
        std::iter::from_fn(|| self.replica.poll_answer()).collect()
    }

    fn ask(&mut self, request: Request) -> Reply {
        let token = self.begin(request);
        let mut answers = self.answers();
        assert_eq!(answers.len(), 1, "{answers:?}");
        let (of, reply) = answers.remove(0);
        assert_eq!(of, token);
        reply
    }

    fn open(&mut self) -> u64 {
        let Reply::Opened(session) = self.ask(Request::Open) else { panic!("it is refused") };
        session
    }

    fn add(&mut self, session: u64, number: u64, byte: u8) -> Reply {
        self.ask(command(session, number, byte))
    }
}

fn command(session: u64, number: u64, byte: u8) -> Request {
    Request::Command { session, number, command: vec![byte] }
}

fn sum(sum: u64) -> Reply {
    Reply::Done(sum.to_le_bytes().to_vec())
}

#[test]
fn a_command_that_is_sent_again_to_a_later_host_is_applied_once() {
    let mut world = World::new(64);
    let session = world.open();
    assert_eq!(world.add(session, 1, 5), sum(5));
    assert_eq!(world.add(session, 1, 5), sum(5), "to the same host");
    assert_eq!(world.machine.next(), 2, "it is no record");
    world.take_over(&[1, 2]);
    assert_eq!(world.add(session, 1, 5), sum(5));
    assert_eq!(world.add(session, 2, 6), sum(11));
    assert_eq!(world.add(session, 1, 5), Reply::Refused(Refusal::Stale));
    assert_eq!(world.add(77, 1, 5), Reply::Refused(Refusal::Expired));
}

#[test]
fn nothing_is_answered_before_it_is_acknowledged() {
    let mut world = World::new(64);
    let session = world.open();
    world.silent = vec![1, 2];
    let first = world.begin(command(session, 1, 5));
    let again = world.begin(command(session, 1, 5));
    assert_eq!((world.answers(), world.replica.state().machine()), (vec![], &Sum(5)));
    world.silent.clear();
    world.run();
    assert_eq!(world.answers(), [(first, sum(5)), (again, sum(5))]);
    world.silent = vec![1, 2];
    let late = world.begin(command(session, 2, 5));
    world.now += UNTIL;
    world.run();
    assert!(matches!(&world.answers()[..], [(of, Reply::Unknown(_))] if *of == late));
}

#[test]
fn a_command_at_which_the_service_panics_ends_each_host_with_a_sentence_that_names_it() {
    let mut world = World::new(64);
    let session = world.open();
    assert_eq!(world.add(session, 1, 5), sum(5));
    let Reply::Unknown(why) = world.add(session, 2, POISON) else { panic!("it is in the log by then") };
    let named = format!(
        "record 2 of the log cannot be carried out: the service panicked at command 2 of session {session}"
    );
    assert!(why.starts_with(&named) && why.contains("(it has no answer to that)"), "{why}");
    let ended = |world: &World| world.replica.ended().map(ToString::to_string);
    assert_eq!(ended(&world).as_ref(), Some(&why));
    assert_eq!(world.add(session, 3, 5), Reply::Refused(Refusal::TooFew(why.clone())));
    world.take_over(&[0, 1, 2]);
    assert_eq!(ended(&world), Some(why), "a host of the same release has the same log");
}

#[test]
fn who_waits_is_told_as_soon_as_too_few_servers_are_there() {
    let mut world = World::new(64);
    let session = world.open();
    world.silent = vec![1, 2];
    let begun = world.begin(command(session, 1, 5));
    assert_eq!(world.answers(), []);
    for server in [1, 2] {
        world.machine.handle(world.now, server, Event::Lost("it is down".into()));
    }
    world.run();
    assert!(matches!(&world.answers()[..], [(of, Reply::Unknown(_))] if *of == begun));
    assert!(matches!(world.add(session, 2, 5), Reply::Refused(Refusal::TooFew(_))), "nor is anything begun");
    world.silent.clear();
    world.waiting.clear();
    [1, 2].into_iter().for_each(|server| world.machine.connected(world.now, server));
    world.run();
    assert_eq!(world.add(session, 1, 5), sum(5), "nothing is lost, and it is applied once");
}

#[test]
fn what_no_host_has_acknowledged_a_later_one_may_not_know() {
    let mut world = World::new(64);
    let session = world.open();
    world.silent = vec![1, 2];
    world.begin(command(session, 1, 5));
    world.silent.clear();
    world.take_over(&[1, 2]);
    assert_eq!(world.replica.state().machine(), &Sum(0));
    assert_eq!(world.add(session, 1, 5), sum(5));
}

#[test]
fn a_log_is_trimmed_to_a_whole_snapshot_that_has_the_sessions() {
    let mut world = World::new(40);
    let session = world.open();
    let (mut number, mut total) = (0, 0);
    for round in 0..6 {
        for _ in 0..100 {
            number += 1;
            total += 3;
            assert_eq!(world.add(session, number, 3), sum(total), "{number}");
        }
        world.take_over(if round % 2 == 0 { &[0, 1] } else { &[1, 2] });
        let first = world.machine.status(1).expect("it takes part").state.head.sequence;
        assert!(first > 0, "nothing was trimmed");
        assert_eq!(world.add(session, number, 3), sum(total), "its last answer is in the snapshot");
    }
}

#[test]
fn a_snapshot_whose_host_has_ended_before_it_was_trimmed_is_trimmed_by_the_next_one() {
    let mut world = World::new(40);
    let session = world.open();
    let (mut number, mut total) = (0, 0);
    // The host dies in each state that it can be in while it appends a snapshot.
    for _ in 0..300 {
        (number, total) = (number + 1, total + 2);
        world.silent = vec![0, 1, 2];
        let token = world.begin(command(session, number, 2));
        for _ in 0..number % 7 {
            world.silent = vec![(number % 3) as usize];
            let Some(at) = world.waiting.iter().position(|action| !world.is_silent(action)) else { break };
            let (Action::Call { server, .. } | Action::Append { server, .. }) = world.waiting[at] else {
                break;
            };
            let action = world.waiting.remove(at);
            world.silent = vec![0, 1, 2];
            let event = world.servers[server].does(action);
            world.machine.handle(world.now, server, event);
            world.run();
        }
        world.answers();
        world.silent.clear();
        world.take_over(&[[0, 1, 2], [0, 1, 1], [1, 2, 2]][(number % 3) as usize]);
        assert_eq!(world.add(session, number, 2), sum(total), "{token}");
    }
    assert!(world.machine.status(1).expect("it takes part").state.head.sequence > 100);
}

#[test]
fn hosts_that_end_within_their_snapshots_do_not_fill_the_log() {
    let mut world = World::new(40);
    let session = world.open();
    let number = 400;
    for number in 1..number {
        // Each host has all servers append one record: a command, or a part of a snapshot.
        world.appends = 3;
        world.take_over(&[0, 1, 2]);
        world.begin(command(session, number, 1));
        world.answers();
    }
    world.appends = usize::MAX;
    world.take_over(&[0, 1, 2]);
    let reply = world.add(session, number, 0);
    assert!(matches!(reply, Reply::Done(_)), "{reply:?}");
    assert!(world.machine.status(1).expect("it takes part").state.head.sequence > 100);
}

#[test]
fn a_host_that_was_replaced_says_so_and_answers_nothing_more() {
    let mut world = World::new(64);
    let session = world.open();
    world.silent = vec![1, 2];
    let under_way = world.begin(command(session, 1, 5));
    let later = world.machine.epoch().counter() + 1;
    world.silent.clear();
    world.waiting.clear();
    // Another one has promises of two of the servers, and has cut this one off.
    for n in [1, 2] {
        world.machine.handle(world.now, n, Event::Lost("it was cut off".into()));
        let epoch = remanence_coord::log::Epoch::new(later, 8);
        let request = remanence_coord::log::proto::Request::Grant { epoch };
        world.servers[n].does(Action::Call { server: n, request });
    }
    world.run();
    assert!(matches!(&world.answers()[..], [(of, Reply::Unknown(_))] if *of == under_way));
    assert!(world.replica.ended().is_none(), "they may come back");
    let short = world.add(session, 2, 5);
    assert!(matches!(short, Reply::Refused(Refusal::TooFew(_))), "{short:?}");
    world.machine.connected(world.now, 1);
    world.run();
    assert_eq!(world.answers(), []);
    assert!(
        matches!(world.replica.ended(), Some(GroupError::Fenced { promised }) if promised.counter() == later)
    );
    assert!(
        matches!(world.add(session, 3, 5), Reply::Refused(Refusal::Replaced(epoch)) if epoch.counter() == later)
    );
}

/// One that does not know that it was replaced has not heard of what was begun since.
#[test]
fn nobody_is_told_that_a_session_has_ended_before_that_is_acknowledged() {
    let mut world = World::new(64);
    let (first, other) = (world.open(), world.open());
    assert_eq!(world.add(first, 2, 5), sum(5));
    world.silent = vec![1, 2];
    let unheard = world.begin(command(77, 1, 5));
    let stale = world.begin(command(first, 1, 5));
    world.begin(Request::Open);
    let evicted = world.begin(command(other, 1, 5));
    assert_eq!(world.answers(), [], "it may have been replaced, and what it has applied may be void");
    world.silent.clear();
    world.run();
    let answers = world.answers();
    for (token, refusal) in
        [(unheard, Refusal::Expired), (stale, Refusal::Stale), (evicted, Refusal::Expired)]
    {
        assert!(answers.contains(&(token, Reply::Refused(refusal))), "{answers:?}");
    }
    assert_eq!(world.replica.state().machine(), &Sum(5));
    world.take_over(&[0, 1]);
    assert_eq!(world.replica.state().machine(), &Sum(5), "it is a record of no effect");
    assert_eq!(world.add(first, 3, 1), sum(6));
}

#[test]
fn what_waits_is_bounded_and_what_does_not_fit_is_refused() {
    let mut world = World::new(12);
    let session = world.open();
    let long = Request::Command { session, number: 1, command: vec![0; 600] };
    assert!(matches!(world.ask(long), Reply::Refused(Refusal::TooLong(max)) if (100..512).contains(&max)));
    world.silent = vec![0, 1, 2];
    let begun: Vec<u64> = (1..=5).map(|number| world.begin(command(session, number, 1))).collect();
    assert_eq!(world.answers(), [(begun[4], Reply::Refused(Refusal::Busy))]);
    world.silent.clear();
    world.run();
    assert_eq!(world.answers().len(), 4);
    // A snapshot of this service has two records, which such a log takes; this one does not take it beside what there is.
    let mut small = World::new(4);
    let session = small.open();
    let full =
        (1..40).map(|number| small.add(session, number, 1)).find(|reply| !matches!(reply, Reply::Done(_)));
    assert_eq!(full, Some(Reply::Refused(Refusal::Full)));
}

#[test]
fn another_server_is_read_from_where_one_says_nothing() {
    let mut world = World::new(64);
    let session = world.open();
    assert_eq!(world.add(session, 1, 5), sum(5));
    (world.machine, world.replica) = (machine(7), Replica::new(limits()));
    (0..3).for_each(|n| world.machine.connected(world.now, n));
    while !world.machine.is_open() {
        let action = world.machine.poll_action().expect("it opens");
        let (Action::Call { server, .. } | Action::Append { server, .. } | Action::Read { server, .. }) =
            action
        else {
            continue;
        };
        let event = world.servers[server].does(action);
        world.machine.handle(world.now, server, event);
    }
    world.replica.advance(world.now, &mut world.machine);
    let read = world.replica.poll_read().expect("it reads the log");
    assert!(!world.replica.is_serving());
    world.now += Duration::from_millis(10);
    assert_eq!(world.replica.deadline(), Some(world.now));
    world.silent = vec![read.server];
    world.run();
    assert!(world.replica.is_serving());
    world.replica.came(read.number, Some(vec![1; read.len as usize]));
    assert_eq!(world.add(session, 1, 5), sum(5));
}

#[test]
fn a_log_of_something_else_is_not_served() {
    let mut world = World::new(64);
    world.machine.append_batch(world.now, &[b"a record"]).expect("it is open");
    world.run();
    world.take_over(&[0, 1]);
    assert!(!world.replica.is_serving());
    let why = world.replica.ended().expect("it cannot be served").to_string();
    assert!(why.contains("record 0 of the log is not one of this service"), "{why}");
    assert!(matches!(world.ask(Request::Open), Reply::Refused(Refusal::TooFew(_))));
}
