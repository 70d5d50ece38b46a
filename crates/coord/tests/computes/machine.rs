//! The writer of a log on several servers, step by step: what it does while one of them says nothing, is too small, or comes late.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::{Action, Event, Machine, NotTaken, Options};
use remanence_coord::log::proto::{Request, emit_reply, parse_reply};
use remanence_coord::log::walk::Local;
use remanence_coord::log::{
    AppendError, Epoch, Geometry, GroupError, Make, Mode, OpenError, Reader, Refused, Status, Store, Writer,
};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::watched::{Watch, Watched};
use remanence_pmem::{Medium, PersistenceDomain};

const GRACE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(3);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) struct Server {
    store: Store<Arc<CrashImage>>,
    /// It does nothing with what is asked of it.
    silent: bool,
    waiting: Vec<Action>,
}

/// Servers, and the writer's side of them.
struct World {
    servers: Vec<Server>,
    machine: Machine,
    now: Duration,
}

pub(crate) fn server(n: u8, segments: u64) -> Server {
    let geometry = Geometry::new(DATA_AT + segments * 512, 512).expect("fair");
    let image = Arc::new(CrashImage::new(geometry.size, PersistenceDomain::Adr));
    let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([n; 16]), salt: n.into() };
    Server { store: Store::create(image, &make).expect("fair"), silent: false, waiting: Vec::new() }
}

impl World {
    fn new(segments: [u64; 3]) -> Self {
        let servers = (1..).zip(segments).map(|(n, segments)| server(n, segments)).collect();
        let mut world = Self { servers, machine: machine(1), now: ms(0) };
        world.connect_all();
        world
    }

    fn connect_all(&mut self) {
        for n in 0..self.servers.len() {
            self.machine.connected(self.now, n);
        }
        self.run();
    }

    /// All that is to be done, and all that comes of it, but for what is silent.
    fn run(&mut self) {
        loop {
            while let Some(action) = self.machine.poll_action() {
                let n = match action {
                    Action::Call { server, .. }
                    | Action::Read { server, .. }
                    | Action::Append { server, .. }
                    | Action::Disconnect { server } => server,
                };
                match action {
                    Action::Disconnect { .. } => self.servers[n].waiting.clear(),
                    action => self.servers[n].waiting.push(action),
                }
            }
            let is_ready = |server: &Server| !server.silent && !server.waiting.is_empty();
            let Some(n) = self.servers.iter().position(is_ready) else { return };
            let action = self.servers[n].waiting.remove(0);
            let event = self.servers[n].does(action);
            self.machine.handle(self.now, n, event);
        }
    }

    /// The next thing that is asked of a silent server after all.
    fn step(&mut self, n: usize) {
        let action = self.servers[n].waiting.remove(0);
        let event = self.servers[n].does(action);
        self.machine.handle(self.now, n, event);
        self.run();
    }

    /// What is asked of a silent server.
    fn asked(&self, n: usize) -> Vec<Request> {
        let request = |action: &Action| match action {
            Action::Call { request, .. } => *request,
            _ => panic!("{action:?}"),
        };
        self.servers[n].waiting.iter().map(request).collect()
    }

    fn lose(&mut self, n: usize) {
        self.machine.handle(self.now, n, Event::Lost("the cable was pulled".into()));
        self.run();
    }

    fn connect(&mut self, n: usize) {
        self.machine.connected(self.now, n);
        self.run();
    }

    fn status(&mut self, n: usize) -> Status {
        self.servers[n].store.status().expect("memory")
    }

    /// Somebody opens the log anew, and reaches these only.
    fn open(&mut self, machine: Machine, reached: &[usize]) {
        self.machine = machine;
        for n in 0..self.machine.quorum().1 {
            if reached.contains(&n) {
                self.machine.connected(self.now, n);
            } else {
                self.machine.unreachable(self.now, n, "it is down");
            }
        }
        self.run();
    }

    /// Why it is not open.
    fn why(&self) -> GroupError {
        assert!(!self.machine.is_open());
        self.machine.failed().cloned().or_else(|| self.machine.shortage()).expect("it cannot be opened")
    }

    fn append(&mut self, payload: &[u8]) -> Result<u64, NotTaken> {
        let taken = self.machine.append_batch(self.now, &[payload]).map(|(sequence, _)| sequence);
        self.run();
        taken
    }

    fn later(&mut self, time: Duration) {
        self.now += time;
        if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.machine.timeout(self.now);
        }
        self.run();
    }
}

impl Server {
    pub(crate) fn does(&mut self, action: Action) -> Event {
        let medium = Arc::clone(self.store.medium());
        match action {
            Action::Append { updates, .. } => {
                for (at, bytes) in updates.list() {
                    medium.write(at, bytes);
                    medium.persist(at..at + bytes.len() as u64).expect("memory");
                }
                Event::Durable
            }
            Action::Read { offset, len, .. } => {
                let mut bytes = vec![0; len as usize];
                medium.read(offset, &mut bytes);
                Event::Data(bytes)
            }
            Action::Call { request, .. } => {
                let reply = match request {
                    Request::Status => self.store.status(),
                    Request::Grant { epoch } => self.store.grant(epoch),
                    Request::Truncate { epoch, sequence } => self.store.truncate(epoch, sequence),
                    Request::Reset { epoch, sequence, after } => self.store.reset(epoch, sequence, after),
                    Request::Adopt { epoch, sequence, group, members, acks } => {
                        self.store.adopt(epoch, sequence, group, members, acks)
                    }
                    Request::Trim { below } => self.store.trim(below),
                    Request::Known { epoch, below } => self.store.note_known(epoch, below),
                };
                Event::Reply(reply.map(Box::new))
            }
            Action::Disconnect { .. } => unreachable!("it was seen to"),
        }
    }
}

fn machine(writer: u32) -> Machine {
    Machine::new((0..3).map(|n| format!("s{n}")), options(writer))
}

fn options(writer: u32) -> Options {
    Options::new(writer, Uuid([9; 16])).acks(Some(2)).grace(GRACE).patience(PATIENCE)
}

#[test]
fn a_silent_server_costs_its_vote_and_catches_up_when_it_speaks() {
    let mut world = World::new([64; 3]);
    assert!(world.machine.is_open() && world.machine.lost().is_empty());
    world.servers[2].silent = true;
    for n in 0..40_u64 {
        assert_eq!(world.append(&[n as u8; 100]), Ok(n));
        assert_eq!(world.machine.acknowledged(), n + 1, "record {n} waits for who is silent");
    }
    assert!(world.machine.lost().is_empty() && world.machine.behind() == ["s2"]);
    world.servers[2].silent = false;
    world.run();
    assert!(world.machine.behind().is_empty());
    assert_eq!(world.servers[2].store.status().expect("memory").tail.sequence, 40);
    // One that stays silent is lost in the end, and only when something is asked of it.
    world.later(2 * PATIENCE);
    assert!(world.machine.lost().is_empty());
    world.servers[2].silent = true;
    world.append(b"one more").expect("two are enough");
    world.later(PATIENCE - ms(1));
    assert!(world.machine.lost().is_empty());
    world.later(ms(1));
    assert_eq!(world.machine.lost(), [("s2".to_owned(), "it has not answered for 3 s".to_owned())]);
}

#[test]
fn a_group_is_opened_without_who_says_nothing_when_the_others_have_waited_for_it() {
    let mut world = World::new([64; 3]);
    world.append(b"one").expect("all are there");
    world.machine = machine(2);
    world.servers[0].silent = true;
    world.connect_all();
    assert!(!world.machine.is_open());
    world.later(GRACE - ms(1));
    assert!(!world.machine.is_open(), "it was given no time to answer");
    world.later(ms(1));
    assert!(world.machine.is_open());
    assert_eq!(world.append(b"two"), Ok(1));
    assert_eq!(world.machine.acknowledged(), 2);
    world.servers[0].silent = false;
    world.run();
    assert!(world.machine.takes_part(0) && world.machine.behind().is_empty(), "who comes late is taken in");
    assert_eq!(world.servers[0].store.status().expect("memory").tail.sequence, 2);
}

#[test]
fn who_comes_back_in_the_same_epoch_is_given_what_others_have_only() {
    let mut world = World::new([16384; 3]);
    let epoch = world.machine.epoch();
    world.append(b"all have this").expect("all are there");
    world.machine.handle(world.now, 1, Event::Lost("the cable was pulled".into()));
    world.run();
    // More than is kept for servers that are behind.
    for _ in 0..12_000 {
        world.append(&[7; 400]).expect("two are enough");
    }
    assert_eq!(world.machine.acknowledged(), 12_001);
    world.machine.connected(world.now, 1);
    world.run();
    assert_eq!(world.machine.epoch(), epoch, "nobody else was shut out");
    assert!(world.machine.takes_part(1) && world.machine.behind().is_empty());
    let status = world.servers[1].store.status().expect("memory");
    assert_eq!((status.tail.sequence, status.runs.len(), status.damage), (12_001, 1, None));
}

#[test]
fn a_full_log_costs_its_server_s_vote_until_it_is_trimmed() {
    let mut world = World::new([64, 64, 4]);
    for n in 0..30_u64 {
        assert_eq!(world.append(&[n as u8; 200]), Ok(n));
        assert_eq!(world.machine.acknowledged(), n + 1);
    }
    assert_eq!(world.machine.behind(), ["s2"]);
    world.machine.trim(world.now, 30).expect("they are acknowledged");
    world.run();
    assert!(world.machine.behind().is_empty(), "{:?}", world.machine.lost());
    assert_eq!(world.machine.trimmed(30), 3);
    // Where the logs of too many are full nothing more is taken.
    let mut last = Ok(0);
    for _ in 0..400 {
        last = world.append(&[1; 200]);
        if !matches!(last, Ok(_) | Err(NotTaken::NotYet)) {
            break;
        }
    }
    assert!(
        matches!(&last, Err(NotTaken::Refused(GroupError::Append(AppendError::Full { .. })))),
        "{last:?}"
    );
    let next = world.machine.next();
    assert_eq!(world.machine.acknowledged(), next, "and what was taken is acknowledged");
    // Somebody else has trimmed two of them.
    for n in 0..2 {
        world.servers[n].store.trim(next).expect("they are there");
    }
    let again = (0..3).map(|_| world.append(&[1; 200])).find(Result::is_ok);
    assert_eq!(again, Some(Ok(next)));
}

#[test]
fn a_server_without_room_gives_up_what_others_were_told_to_give_up() {
    let mut world = World::new([64, 64, 4]);
    for n in 0..8 {
        assert_eq!(world.append(&[1; 200]), Ok(n), "two fill a segment");
    }
    world.lose(2);
    // The writer had them trimmed, and one server heard of it.
    world.servers[1].store.trim(8).expect("they are there");
    for n in 8..14 {
        assert_eq!(world.append(&[1; 200]), Ok(n));
    }
    // The log that is chosen is that of the server that was not told, as it has one more.
    world.servers[1].silent = true;
    assert_eq!(world.append(&[1; 200]), Ok(14));
    world.servers[1].silent = false;
    world.servers[1].waiting.clear();
    world.open(machine(2), &[0, 1, 2]);
    assert!(world.machine.is_open() && world.machine.takes_part(2), "{:?}", world.machine.lost());
    assert_eq!(world.status(0).state.head.sequence, 0, "nobody else is to give up anything");
    assert_eq!((world.status(2).state.head.sequence, world.status(2).tail.sequence), (8, 15));
}

#[test]
fn who_was_asked_for_a_confirmation_was_not_asked_for_room() {
    let mut world = World::new([4, 4, 64]);
    for n in 0..8 {
        assert_eq!(world.append(&[1; 200]), Ok(n), "two fill a segment");
    }
    // Its disk is lost: the others confirm the epoch, and say how their logs are with that.
    world.servers[2] = server(77, 64);
    world.lose(2);
    world.connect(2);
    assert!(world.machine.takes_part(2), "{:?}", world.machine.lost());
    for n in 0..2 {
        world.servers[n].store.trim(8).expect("they are there");
    }
    assert_eq!(world.append(&[1; 200]), Err(NotTaken::NotYet), "they have room, and are asked");
    assert_eq!(world.append(&[1; 200]), Ok(8));
}

#[test]
fn a_writer_that_was_replaced_shuts_nobody_out() {
    let mut world = World::new([64; 3]);
    world.append(b"one").expect("all are there");
    let mut later = machine(2);
    std::mem::swap(&mut world.machine, &mut later);
    world.connect_all();
    assert!(world.machine.is_open());
    // The earlier one comes again: its epoch is too old for all of them.
    std::mem::swap(&mut world.machine, &mut later);
    for n in 0..3 {
        world.machine.connected(world.now, n);
    }
    world.run();
    let lost = world.machine.lost();
    let fenced = Refused::Fenced { promised: later.epoch() }.to_string();
    assert!(lost.len() == 3 && lost.iter().all(|(_, why)| *why == fenced), "{lost:?}");
    assert!(matches!(world.append(b"never"), Err(NotTaken::Refused(GroupError::TooFew { .. }))));
}

/// A record that one server has is not acknowledged: the writer has it in memory until enough have it.
/// Whoever drives it has connected again before it was told to end the connection before, and would end the new one.
#[test]
fn what_was_to_be_done_on_a_connection_is_not_done_on_the_next_one() {
    let mut world = World::new([64; 3]);
    world.machine.append_batch(world.now, &[b"under way"]).expect("it is open");
    world.machine.connected(world.now, 2);
    let of_others = |action: &Action| {
        matches!(action, Action::Call { server: 0 | 1, .. } | Action::Append { server: 0 | 1, .. })
    };
    let all = std::iter::from_fn(|| world.machine.poll_action());
    let of_it: Vec<Action> = all.filter(|action| !of_others(action)).collect();
    assert!(matches!(of_it[..], [Action::Call { server: 2, request: Request::Status }]), "{of_it:?}");
}

#[test]
fn what_was_sent_to_servers_that_are_lost_is_sent_again() {
    let mut world = World::new([64; 3]);
    world.append(b"one").expect("all are there");
    world.servers.iter_mut().for_each(|server| server.silent = true);
    world.append(b"two").expect("all are there");
    let lose = |world: &mut World, n| {
        world.machine.handle(world.now, n, Event::Lost("the cable was pulled".into()));
        world.run();
    };
    (0..2).for_each(|n| lose(&mut world, n));
    world.servers.iter_mut().for_each(|server| server.silent = false);
    world.run();
    assert_eq!(world.servers[2].store.status().expect("memory").tail.sequence, 2);
    assert_eq!(world.machine.acknowledged(), 1, "one of them is not enough");
    lose(&mut world, 2);
    for n in 0..2 {
        world.machine.connected(world.now, n);
        world.run();
    }
    assert_eq!(world.machine.acknowledged(), 2, "two of them have it: {:?}", world.machine.lost());
    for n in 0..2 {
        assert_eq!(world.servers[n].store.status().expect("memory").tail.sequence, 2);
    }
}

/// It has promised this epoch on its new disk, and others count on its having what it had acknowledged.
#[test]
fn who_has_lost_its_disk_adopts_when_it_has_what_was_acknowledged() {
    let mut world = World::new([64; 3]);
    world.servers[2].silent = true;
    for n in 0..5 {
        assert_eq!(world.append(b"0 and 1 have it"), Ok(n));
    }
    assert_eq!(world.machine.acknowledged(), 5);
    world.machine.handle(world.now, 0, Event::Lost("the disk is gone".into()));
    world.run();
    world.servers[0] = server(77, 64);
    // Long ago: nothing of it is in memory any more that 1 would not be asked for.
    world.servers[1].silent = true;
    world.machine.connected(world.now, 0);
    world.run();
    // Both others confirm the epoch, and are silent again.
    world.servers[2].silent = false;
    world.run();
    world.servers[2].silent = true;
    assert_eq!(world.asked(1), [Request::Status]);
    world.step(1);
    let held = |world: &mut World| world.servers[0].store.status().expect("memory");
    let status = held(&mut world);
    assert!(status.state.adopted == Epoch::NONE || status.tail.sequence >= 5, "{status:?}");
    world.servers.iter_mut().for_each(|server| server.silent = false);
    world.run();
    let status = held(&mut world);
    assert_eq!((status.state.adopted, status.tail.sequence), (world.machine.epoch(), 5));
}

#[test]
fn a_group_is_refused_where_its_servers_do_not_belong_together() {
    let mut world = World::new([64; 3]);
    world.servers = (1..).zip([64; 3]).map(|(n, segments)| server(n, segments)).collect();
    world.open(machine(1), &[0, 1]);
    assert!(matches!(world.why(), GroupError::TooFew { reached: 2, needed: 3, .. }), "a new group needs all");
    world.open(machine(1), &[0, 1, 2]);
    assert_eq!((world.machine.quorum(), world.machine.next(), world.machine.lost().len()), ((2, 3), 0, 0));
    world.append(b"one").expect("all are there");

    world.open(Machine::new(["s0".to_owned(), "s1".to_owned()], options(2)), &[0, 1]);
    assert!(matches!(world.why(), GroupError::Members { .. }), "{}", world.why());
    let names = || (0..3).map(|n| format!("s{n}"));
    world.open(Machine::new(names(), options(2).acks(Some(3))), &[0, 1, 2]);
    assert!(matches!(world.why(), GroupError::Members { .. }), "{}", world.why());
    let alone = std::mem::replace(&mut world.servers[1], server(1, 64));
    world.open(machine(2), &[0, 1, 2]);
    assert!(matches!(world.why(), GroupError::Twice { .. }), "{}", world.why());
    world.servers[1] = alone;

    // With one lost the two others go on, from the record that is there.
    world.open(machine(2), &[0, 1]);
    assert!(world.machine.is_open());
    assert_eq!((world.machine.lost().len(), world.machine.next()), (1, 1));
    world.append(b"two").expect("two are enough");
    assert_eq!(world.machine.acknowledged(), 2);
    // One that missed it gets it from whoever opens the log next.
    world.open(machine(3), &[0, 1, 2]);
    assert_eq!((world.machine.opened().copied, world.machine.next()), (vec![("s2".to_owned(), 1)], 2));
}

#[test]
fn an_empty_server_does_not_stand_in_for_one_that_knows() {
    let mut world = World::new([64; 3]);
    world.open(machine(2), &[0, 1]);
    world.append(b"on 0 and 1").expect("both are there");
    assert_eq!(world.machine.acknowledged(), 1);
    world.servers[0] = server(77, 64);
    // 0 has lost its disk, 1 is away, 2 has never seen the record.
    world.open(machine(3), &[0, 2]);
    assert!(matches!(world.why(), GroupError::TooFew { reached: 1, needed: 2, .. }), "{}", world.why());
    world.open(machine(4), &[0, 1, 2]);
    assert!(world.machine.is_open(), "1 knows");
    assert_eq!(world.machine.next(), 1);
}

#[test]
fn a_server_that_returns_empty_is_rebuilt_behind_what_was_trimmed() {
    let mut world = World::new([64; 3]);
    let epoch = world.machine.epoch();
    for n in 0..30_u64 {
        assert_eq!(world.append(&[n as u8; 20]), Ok(n));
    }
    world.machine.trim(world.now, 4).expect("they are acknowledged");
    world.run();
    world.servers[0] = server(77, 64);
    // Nothing there says that there was a group: a new one would need all of its servers.
    world.open(machine(2), &[0]);
    assert!(matches!(world.why(), GroupError::TooFew { .. }), "{}", world.why());
    world.open(machine(3), &[0, 1, 2]);
    assert_eq!(world.machine.opened().copied, [("s0".to_owned(), 26)]);
    let status = world.servers[0].store.status().expect("memory");
    assert_eq!((status.state.head.sequence, status.tail.sequence, status.damage), (4, 30, None));
    assert_eq!(status.tail.epoch, epoch, "copies keep the name of their writer");
}

/// What it had promised to a later writer went with its disk.
#[test]
fn who_has_lost_its_disk_does_not_count_for_a_writer_that_was_replaced() {
    let mut world = World::new([64; 3]);
    assert_eq!(world.append(b"all have this"), Ok(0));
    let mut earlier = std::mem::replace(&mut world.machine, machine(2));
    world.open(machine(2), &[1, 2]);
    assert!(world.machine.is_open());
    assert_eq!(world.append(b"1 and 2 have this"), Ok(1));
    assert_eq!(world.machine.acknowledged(), 2);
    // The one before hears 0 and, some time after that, the disk that 1 has now.
    world.servers[1] = server(77, 64);
    std::mem::swap(&mut world.machine, &mut earlier);
    world.lose(1);
    world.lose(2);
    world.connect(1);
    let status = world.status(1);
    assert_eq!((status.state.promised, status.state.adopted), (world.machine.epoch(), Epoch::NONE));
    assert!(matches!(world.append(b"never"), Err(NotTaken::Refused(GroupError::TooFew { .. }))));
    assert_eq!(
        (world.machine.acknowledged(), world.status(1).tail.sequence),
        (1, 0),
        "nothing is written there"
    );
    // 2 knows.
    world.connect(2);
    assert_eq!(world.machine.failed(), Some(&GroupError::Fenced { promised: earlier.epoch() }));
    // For the later one 1 is made anew.
    std::mem::swap(&mut world.machine, &mut earlier);
    world.lose(1);
    world.connect(1);
    assert!(!world.machine.takes_part(1), "0 is not there to confirm it");
    world.connect(0);
    assert!((0..3).all(|n| world.machine.takes_part(n)), "{:?}", world.machine.lost());
}

/// Of five servers that three acknowledge two may lose their disks, and with them what they had promised.
#[test]
fn who_has_lost_its_disk_confirms_nothing_for_another_one() {
    let five = |writer| Machine::new((0..5).map(|n| format!("s{n}")), options(writer).acks(Some(3)));
    let servers = (1..=5).map(|n| server(n, 64)).collect();
    let mut world = World { servers, machine: five(1), now: ms(0) };
    world.connect_all();
    assert_eq!(world.append(b"all have this"), Ok(0));
    let mut earlier = std::mem::replace(&mut world.machine, five(2));
    world.open(five(2), &[2, 3, 4]);
    assert_eq!(world.append(b"2, 3 and 4 have this"), Ok(1));
    assert_eq!(world.machine.acknowledged(), 2);
    // The one before hears all but 2, which has promised its log to the later one and has not forgotten it.
    (world.servers[3], world.servers[4]) = (server(77, 64), server(78, 64));
    std::mem::swap(&mut world.machine, &mut earlier);
    (2..5).for_each(|n| world.lose(n));
    (3..5).for_each(|n| world.connect(n));
    assert!(!world.machine.takes_part(3) && !world.machine.takes_part(4));
    assert!(matches!(world.append(b"never"), Err(NotTaken::Refused(GroupError::TooFew { .. }))));
    assert_eq!((world.machine.acknowledged(), world.status(3).tail.sequence), (1, 0));
}

/// What it has below the place where the others begin was never chosen, and its own image would take that.
#[test]
fn a_log_with_other_records_below_the_place_where_the_others_begin_is_begun_anew() {
    let mut world = World::new([64; 3]);
    (0..2).for_each(|n| world.servers[n].silent = true);
    for n in 0..10 {
        assert_eq!(world.append(b"2 has this"), Ok(n));
    }
    for server in &mut world.servers[..2] {
        server.silent = false;
        server.waiting.clear();
    }
    world.open(machine(2), &[0, 1]);
    for n in 0..10 {
        assert_eq!(world.append(b"0 and 1 have this"), Ok(n));
    }
    world.machine.trim(world.now, 10).expect("they are acknowledged");
    world.run();
    assert_eq!((world.status(0).state.head.sequence, world.status(2).tail.sequence), (10, 10));
    world.machine.keep(world.now, 2, 0);
    world.connect(2);
    assert!(world.machine.takes_part(2), "{:?}", world.machine.lost());
    assert_eq!(world.status(2).state.head.sequence, 10);
}

#[test]
fn a_server_keeps_what_its_image_needs_whatever_is_trimmed_elsewhere() {
    let mut world = World::new([64; 3]);
    for n in 0..10 {
        assert_eq!(world.append(b"all have this"), Ok(n));
    }
    world.machine.keep(world.now, 2, 4);
    world.machine.trim(world.now, 10).expect("they are acknowledged");
    world.run();
    let first = |world: &mut World, n| world.status(n).state.head.sequence;
    assert_eq!([0, 1, 2].map(|n| first(&mut world, n)), [10, 10, 4]);
    assert_eq!(world.machine.trimmed(10), 3, "it has given up what it may");
    world.machine.keep(world.now, 2, u64::MAX);
    world.run();
    assert_eq!(first(&mut world, 2), 10);
}

/// Two others have a say, and confirm the epoch: it goes on as before.
#[test]
fn who_has_lost_its_disk_is_taken_in_when_the_others_confirm_the_epoch() {
    let mut world = World::new([64; 3]);
    assert_eq!(world.append(b"all have this"), Ok(0));
    world.servers[1] = server(77, 64);
    world.lose(1);
    world.servers[2].silent = true;
    world.connect(1);
    assert!(!world.machine.takes_part(1) && world.asked(2) == [Request::Status]);
    assert_eq!(world.status(1).tail.sequence, 0);
    world.servers[2].silent = false;
    world.run();
    assert!(world.machine.takes_part(1), "{:?}", world.machine.lost());
    // Who keeps its disk keeps its promise, and is taken in by itself.
    world.lose(2);
    world.lose(0);
    world.connect(0);
    assert!(world.machine.takes_part(0) && world.machine.takes_part(1));
}

/// The one that confirms was asked for its promise before that and gives it last, and nothing more is to be heard of anybody then.
#[test]
fn who_has_lost_its_disk_is_taken_in_though_its_confirmer_promises_after_it() {
    let names = (0..2).map(|n| format!("s{n}"));
    let servers = (1..3).map(|n| server(n, 64)).collect();
    let mut world = World { servers, machine: Machine::new(names, options(1)), now: ms(0) };
    world.connect_all();
    assert_eq!(world.append(b"both have this"), Ok(0));
    (0..2).for_each(|n| world.lose(n));
    world.servers[0] = server(77, 64);
    world.servers.iter_mut().for_each(|server| server.silent = true);
    (0..2).for_each(|n| world.connect(n));
    for n in [0, 1, 0, 1] {
        world.step(n);
    }
    assert_eq!(world.asked(1), [Request::Status], "it has promised, and is asked to confirm");
    world.servers.iter_mut().for_each(|server| server.silent = false);
    world.run();
    assert!(world.machine.takes_part(0) && world.machine.takes_part(1));
    assert_eq!(world.append(b"and this"), Ok(1));
}

/// It would be chosen for the longest log of the highest epoch.
#[test]
fn a_damaged_log_that_was_cut_has_no_say_before_it_adopts_again() {
    let damaged = || {
        let mut world = World::new([64; 3]);
        for n in 0..3 {
            assert_eq!(world.append(b"all have this record"), Ok(n));
        }
        let medium = Arc::clone(world.servers[0].store.medium());
        let mut bytes = vec![0; medium.len() as usize];
        medium.read(0, &mut bytes);
        let first =
            bytes.windows(20).position(|there| there == b"all have this record").expect("it is there");
        medium.write(first as u64, b"it");
        let store = Store::open(medium).expect("all else is whole");
        world.servers[0].store = store;
        world
    };
    let mut world = damaged();
    let epoch = Epoch::new(9, 9);
    let store = &mut world.servers[0].store;
    let granted = store.grant(epoch).expect("it is higher");
    assert_eq!(granted.damage.map(|damage| damage.sequence), Some(0));
    assert_ne!(granted.state.adopted, Epoch::NONE);
    let cut = store.truncate(epoch, 0).expect("it is promised");
    assert_eq!((cut.damage, cut.state.adopted, cut.state.members), (None, Epoch::NONE, 3));
    let mut world = damaged();
    let store = &mut world.servers[0].store;
    store.grant(epoch).expect("it is higher");
    let reset = store.reset(epoch, 2, Epoch::new(1, 1)).expect("it is promised");
    assert_eq!((reset.damage, reset.state.adopted), (None, Epoch::NONE));
    // Who was cut by a writer that went no further is not believed.
    let mut world = damaged();
    let store = &mut world.servers[0].store;
    store.grant(epoch).and_then(|_| store.truncate(epoch, 0)).expect("it is promised");
    world.open(machine(3), &[0, 2]);
    assert!(matches!(world.why(), GroupError::TooFew { reached: 1, needed: 2, .. }), "{}", world.why());
    world.open(machine(4), &[0, 1, 2]);
    assert_eq!((world.machine.next(), world.status(0).tail.sequence), (3, 3));
}

/// Nothing that is under way would bring an acknowledgement: whoever waits for one must hear that, or nobody connects to the third.
#[test]
fn a_server_without_its_disk_and_nobody_who_could_confirm_are_too_few() {
    let mut world = World::new([64; 3]);
    assert_eq!(world.append(b"all have this"), Ok(0));
    (1..3).for_each(|n| world.machine.handle(world.now, n, Event::Lost("the cable was pulled".into())));
    world.run();
    world.servers[2] = server(77, 64);
    world.machine.connected(world.now, 2);
    world.run();
    let too_few = world.machine.enough();
    assert!(matches!(too_few, Err(GroupError::TooFew { reached: 1, needed: 2, .. })), "{too_few:?}");
    world.machine.connected(world.now, 1);
    world.run();
    assert!(world.machine.enough().is_ok() && world.machine.takes_part(2));
    assert_eq!(world.append(b"and this"), Ok(1));
}

/// One acknowledgement of two: the other one has what is acknowledged alone, until it is copied.
#[test]
fn a_server_that_lacks_what_nobody_there_has_is_not_enough() {
    let mut world = World::new([64; 3]);
    world.servers = vec![server(1, 64), server(2, 64)];
    let two = |writer| Machine::new((0..2).map(|n| format!("s{n}")), options(writer).acks(Some(1)));
    world.open(two(1), &[0, 1]);
    assert!(world.machine.is_open());
    world.lose(1);
    assert_eq!(world.append(b"only one has this"), Ok(0));
    // Whoever opens the log next finds it in one log, and has nothing of it itself.
    world.machine = two(2);
    world.servers.iter_mut().for_each(|server| server.silent = true);
    world.connect_all();
    while !world.machine.is_open() {
        let next = (0..2).find(|n| !world.servers[*n].waiting.is_empty());
        world.step(next.expect("it is asked for more until the log is open"));
    }
    assert!(world.machine.takes_part(0) && !world.machine.takes_part(1));
    assert!(world.machine.enough().is_ok(), "who has it is there");
    world.lose(0);
    while !world.servers[1].waiting.is_empty() {
        world.step(1);
    }
    assert!(!world.machine.takes_part(1), "it lacks what was acknowledged");
    let too_few = world.machine.enough();
    assert!(matches!(too_few, Err(GroupError::TooFew { reached: 0, needed: 1, .. })), "{too_few:?}");
    world.servers.iter_mut().for_each(|server| server.silent = false);
    world.machine.connected(world.now, 0);
    assert!(world.machine.enough().is_ok(), "it may have it still");
    world.run();
    assert!(world.machine.takes_part(1) && world.machine.enough().is_ok());
    assert_eq!(world.append(b"both have this"), Ok(1));
}

/// What was read before the cut and what comes after it are not one log.
/// It has said how its log was before it was given anything, and not who had appended that.
#[test]
fn who_is_being_fed_does_not_say_what_the_log_of_the_group_is() {
    let four = |writer| Machine::new((0..4).map(|n| format!("s{n}")), options(writer).acks(Some(2)));
    let servers = (1..=4).map(|n| server(n, 64)).collect();
    let mut world = World { servers, machine: four(1), now: ms(0) };
    world.connect_all();
    assert_eq!(world.append(b"all have this"), Ok(0));
    [0, 2, 3].into_iter().for_each(|n| world.servers[n].silent = true);
    assert_eq!(world.append(b"only 1 has this"), Ok(1));
    let begin = |world: &mut World, is_silent: &dyn Fn(usize) -> bool| {
        for (n, server) in world.servers.iter_mut().enumerate() {
            server.waiting.clear();
            server.silent = is_silent(n);
        }
    };
    begin(&mut world, &|_| false);
    world.open(four(2), &[0, 2, 3]);
    world.servers[3].silent = true;
    assert_eq!(world.append(b"0 and 2 have this"), Ok(1));
    assert_eq!(world.machine.acknowledged(), 2);
    // The next writer gives it to 3, which is asked to adopt the log, and does not answer yet.
    begin(&mut world, &|n| n == 3);
    world.open(four(3), &[0, 2, 3]);
    while !matches!(world.servers[3].waiting[..], [Action::Call { request: Request::Adopt { .. }, .. }]) {
        world.step(3);
    }
    assert!(world.machine.is_open() && !world.machine.takes_part(3));
    world.connect(1);
    world.servers[3].silent = false;
    world.run();
    assert_eq!(world.status(1).runs, world.status(0).runs);
}

#[test]
fn a_reader_notices_that_what_it_has_read_was_cut_off() {
    let mut store = server(1, 64).store;
    let medium = Arc::clone(store.medium());
    let append = |store: &mut Store<Arc<CrashImage>>, epoch: Epoch, count: u64| {
        let mut writer = Writer::new(store.grant(epoch).expect("it is the next").writer_grant(), epoch);
        for _ in 0..count {
            store.update(&writer.append(&[epoch.counter() as u8; 20]).expect("room")).expect("memory");
        }
        store.status().expect("memory")
    };
    let (first, second) = (Epoch::new(1, 1), Epoch::new(2, 2));
    let status = append(&mut store, first, 5);
    let mut reader = Reader::new(&status);
    let read = |reader: &mut Reader| {
        let Ok(read) = reader.read(&mut Local(&medium));
        read.map(|(found, _)| (found.header.sequence, found.header.epoch))
    };
    for n in 0..4 {
        assert_eq!(read(&mut reader), Ok((n, first)));
    }
    let mut beside = reader.clone();
    store.grant(second).and_then(|_| store.truncate(second, 4)).expect("it is promised");
    let status = append(&mut store, second, 4);
    // One that has read nothing of what was cut off goes on.
    assert!(beside.can_go_on(&status));
    beside.refresh(&status);
    assert_eq!(read(&mut beside), Ok((4, second)));
    assert!(beside.changed_writer() && beside.can_go_on(&status));
    assert_eq!(read(&mut beside), Ok((5, second)));
    assert!(!beside.changed_writer());
    // The records are as long as those that were there: what comes next fits behind what was read.
    let third = Epoch::new(3, 3);
    store.grant(third).and_then(|_| store.truncate(third, 5)).expect("it is promised");
    let status = append(&mut store, third, 4);
    let mut late = beside.clone();
    late.refresh(&status);
    assert_eq!(read(&mut late), Ok((6, third)));
    assert!(late.changed_writer() && !late.can_go_on(&status), "record 5 is another one now");
    assert!(!beside.can_go_on(&status));
    // And where it has become shorter.
    let fourth = Epoch::new(4, 4);
    store.grant(fourth).and_then(|_| store.truncate(fourth, 2)).expect("it is promised");
    assert!(
        !beside.can_go_on(&store.status().expect("memory"))
            && !reader.can_go_on(&store.status().expect("memory"))
    );
}

/// A status that comes from afar has the last runs only. What is older than those is unknown, and not another log.
#[test]
fn a_reader_far_behind_many_writers_goes_on() {
    let mut store = server(1, 64).store;
    let medium = Arc::clone(store.medium());
    let writers = 40;
    for counter in 1..=writers {
        let epoch = Epoch::new(counter, 1);
        let mut writer = Writer::new(store.grant(epoch).expect("it is the next").writer_grant(), epoch);
        store.update(&writer.append(b"one record each").expect("room")).expect("memory");
    }
    let far = |store: &mut Store<Arc<CrashImage>>| {
        parse_reply(&emit_reply(&Ok(store.status().expect("memory")))).expect("what was written is read")
    };
    let status = far(&mut store);
    assert!(status.runs.len() < writers as usize, "not all are told");
    let mut reader = Reader::new(&status);
    for n in 0..u64::from(writers) {
        let read = reader.read(&mut Local(&medium)).expect("memory").expect("it is there");
        assert_eq!(read.0.header.sequence, n);
        assert!(reader.can_go_on(&status), "record {n}");
    }
    // Of the last writers it is known.
    let epoch = Epoch::new(writers + 1, 1);
    store.grant(epoch).and_then(|_| store.truncate(epoch, u64::from(writers) - 1)).expect("it is promised");
    assert!(!reader.can_go_on(&far(&mut store)));
}

/// What an earlier writer appended and nobody had acknowledged is longer.
#[test]
fn the_log_of_the_highest_epoch_is_chosen_however_short_it_is() {
    let mut world = World::new([64; 3]);
    assert_eq!(world.append(b"all have this"), Ok(0));
    (1..3).for_each(|n| world.servers[n].silent = true);
    for n in 1..5 {
        assert_eq!(world.append(b"0 has this, and nobody else"), Ok(n));
    }
    assert_eq!((world.machine.acknowledged(), world.status(0).tail.sequence), (1, 5));
    world.servers.iter_mut().for_each(|server| (server.silent, server.waiting) = (false, Vec::new()));
    world.open(machine(2), &[1, 2]);
    assert_eq!(world.append(b"1 and 2 have this"), Ok(1));
    assert_eq!(world.machine.acknowledged(), 2);
    world.open(machine(3), &[0, 1]);
    assert_eq!((world.machine.next(), world.status(0).tail.sequence), (2, 2));
    assert_eq!(world.machine.opened().cut, [("s0".to_owned(), 4)]);
}

/// A sync of a medium that has failed says nothing of what was written before.
#[test]
fn an_update_that_did_not_become_durable_is_the_last_one() {
    let (medium, mut store) = failing();
    let epoch = Epoch::new(1, 1);
    let mut writer = Writer::new(store.grant(epoch).expect("it is the first").writer_grant(), epoch);
    let mut update = |store: &mut Store<Failing>| store.update(&writer.append(b"more").expect("room"));
    assert_eq!(update(&mut store), Ok(()));
    medium.watch.syncs.store(true, Ordering::Relaxed);
    assert!(matches!(update(&mut store), Err(Refused::Medium(_))));
    medium.watch.syncs.store(false, Ordering::Relaxed);
    assert!(matches!(update(&mut store), Err(Refused::Medium(_))));
    assert!(matches!(store.status(), Err(Refused::Medium(_))));
}

/// A server that says too little would have others leave out what was acknowledged.
#[test]
fn zeros_in_place_of_what_the_medium_has_lost_are_not_the_end_of_the_log() {
    let (medium, mut store) = failing();
    assert_eq!(store.status().expect("it is empty").tail.sequence, 0);
    medium.watch.has_lost.store(true, Ordering::Relaxed);
    assert!(matches!(store.status(), Err(Refused::Medium(_))));
    let again = Store::open(medium);
    assert!(matches!(again, Err(OpenError::Medium(_))), "{again:?}");
}

/// Has syncs of a memory fail when that is asked for, and something be lost when that is said.
#[derive(Clone, Default, Debug)]
struct Fails {
    syncs: Arc<AtomicBool>,
    has_lost: Arc<AtomicBool>,
}

type Failing = Watched<Arc<CrashImage>, Fails>;

fn failing() -> (Failing, Store<Failing>) {
    let geometry = Geometry::new(DATA_AT + 8 * 512, 512).expect("fair");
    let image = Arc::new(CrashImage::new(geometry.size, PersistenceDomain::Adr));
    let medium = Watched { medium: image, watch: Fails::default() };
    let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([1; 16]), salt: 1 };
    let store = Store::create(medium.clone(), &make).expect("fair");
    (medium, store)
}

impl Watch for Fails {
    fn psync(&self) -> io::Result<()> {
        if self.syncs.load(Ordering::Relaxed) { Err(io::Error::other("no sync")) } else { Ok(()) }
    }

    fn failure(&self) -> io::Result<()> {
        if self.has_lost.load(Ordering::Relaxed) { Err(io::Error::other("a page was lost")) } else { Ok(()) }
    }
}

#[test]
fn promises_are_confirmed_before_anything_is_cut_for_them() {
    let mut world = World::new([64; 3]);
    world.open(machine(2), &[0, 1]);
    assert_eq!(world.append(b"on 0 and 1"), Ok(0));
    world.servers.iter_mut().for_each(|server| server.silent = true);
    world.open(machine(3), &[0, 2]);
    for request in ["Status", "Grant"] {
        for n in [0, 2] {
            let asked = world.asked(n);
            assert!(asked.len() == 1 && format!("{asked:?}").contains(request), "{asked:?}");
            world.step(n);
        }
    }
    // All have promised, and are asked again.
    assert_eq!((world.asked(0), world.asked(2)), (vec![Request::Status], vec![Request::Status]));
    world.step(2);
    assert_eq!((world.asked(0), world.asked(2)), (vec![Request::Status], Vec::new()));
    // One has lost its disk in between: who has the say of 2 only has not been promised enough.
    world.lose(0);
    world.servers[0] = server(77, 64);
    world.connect(0);
    assert_eq!(world.status(2).state.adopted, Epoch::new(1, 1), "nothing was chosen");
    assert!(matches!(world.why(), GroupError::TooFew { reached: 1, needed: 2, .. }), "{}", world.why());
    // Another one stands in for it.
    world.servers.iter_mut().for_each(|server| server.silent = false);
    world.connect(1);
    assert!(world.machine.is_open(), "{:?}", world.machine.lost());
    assert_eq!((world.machine.next(), world.status(0).tail.sequence), (1, 1));
}
