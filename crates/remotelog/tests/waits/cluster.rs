//! Simulated clusters: servers that crash and come back, lose their disks, writers that die and writers that do not know
//! that they were replaced. One seed replays everything.
//!
//! Servers also stop for a while without anybody being told, and writers connect again to those that they have lost.
//!
//! Each writer is a thread, but only one moves at a time, and the seed says which: every call, read, submission and look
//! for a completion is one turn, and between turns servers may crash. An update goes to the medium in the steps of a
//! compound recipe, one a turn, so a crash or a change of writers finds it half done.
//!
//! The oracle: a number is acknowledged with one content only, and whatever was acknowledged is in the log that the last
//! writer opens, byte for byte, on every server.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remanence_persist::plan::Request as PlanRequest;
use remanence_pmem::crash_image::{Choices, CrashImage, Failure, Seeded};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_remotelog::format::DATA_AT;
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::group::{ConnectionLost, Event, Options};
use remanence_remotelog::proto::{Request, emit_reply, parse_reply};
use remanence_remotelog::walk::Local;
use remanence_remotelog::{
    AppendError, Epoch, Geometry, Group, GroupError, Make, Mode, Reader, Refused, ReplicaConnection, Status,
    Store, Updates,
};

type Image = std::sync::Arc<CrashImage>;

struct Server {
    store: Store<Image>,
    up: bool,
    /// It does nothing for now, and its connections stay.
    stopped: bool,
    /// Connections of before this are cut.
    connection: u64,
    /// Lost its disk; it may only be lost as often as the group can stand.
    blank: bool,
}

struct World {
    servers: Vec<Server>,
    choices: Seeded,
    /// Whose turn it is; the writers that are there.
    turn: usize,
    alive: Vec<bool>,
    acknowledged: BTreeMap<u64, Vec<u8>>,
    /// Whether servers cut the connections of older writers: without, records are lost.
    fencing: bool,
    faults: bool,
    mode: Mode,
    fresh: u64,
    clash: Option<String>,
    stats: [u64; 6],
}

struct Sim {
    world: Mutex<World>,
    moved: Condvar,
}

fn new_store(world_mode: Mode, uuid: u64) -> Store<Image> {
    let geometry = Geometry::new(DATA_AT + 8 * 512, 512).expect("fair");
    let image = std::sync::Arc::new(CrashImage::new(geometry.size, PersistenceDomain::Adr));
    let mut name = [0; 16];
    name[..8].copy_from_slice(&uuid.to_le_bytes());
    Store::create(image, &Make { mode: world_mode, geometry, uuid: Uuid(name), salt: uuid }).expect("fair")
}

impl Sim {
    fn new(seed: u64, servers: usize, writers: usize, mode: Mode, fencing: bool) -> Self {
        let servers = (0..servers as u64)
            .map(|n| Server {
                store: new_store(mode, n + 1),
                up: true,
                stopped: false,
                connection: 0,
                blank: true,
            })
            .collect();
        let world = World {
            servers,
            choices: Seeded::new(seed),
            turn: 0,
            alive: vec![true; writers],
            acknowledged: BTreeMap::new(),
            fencing,
            faults: true,
            mode,
            fresh: 100,
            clash: None,
            stats: [0; 6],
        };
        Self { world: Mutex::new(world), moved: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One turn of a writer: waits for it, lets the world go wrong, does `act`, and hands on.
    fn turn<T>(&self, who: usize, act: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.lock();
        while world.turn != who {
            world = self.moved.wait(world).unwrap_or_else(PoisonError::into_inner);
        }
        world.misfortune();
        let done = act(&mut world);
        world.hand_on();
        drop(world);
        self.moved.notify_all();
        done
    }

    fn leave(&self, who: usize) {
        let mut world = self.lock();
        world.alive[who] = false;
        if world.turn == who {
            world.hand_on();
        }
        drop(world);
        self.moved.notify_all();
    }
}

/// Hands on for good, in a panic too.
struct Leaves<'a>(&'a Sim, usize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

impl World {
    fn hand_on(&mut self) {
        let alive: Vec<usize> = (0..self.alive.len()).filter(|n| self.alive[*n]).collect();
        if !alive.is_empty() {
            // Mostly the same one goes on, or nobody would ever get anywhere.
            if !self.alive[self.turn] || self.choices.pick(4) == 0 {
                self.turn = alive[self.choices.pick(alive.len())];
            }
        }
    }

    fn misfortune(&mut self) {
        if !self.faults {
            return;
        }
        let n = self.choices.pick(self.servers.len());
        if self.servers[n].up {
            if self.choices.pick(150) == 0 {
                self.crash(n);
            } else if self.servers[n].stopped {
                self.servers[n].stopped = self.choices.pick(40) != 0;
            } else if self.choices.pick(200) == 0 {
                self.servers[n].stopped = true;
                self.stats[4] += 1;
            }
        } else if self.choices.pick(25) == 0 {
            self.restart(n);
        }
    }

    fn crash(&mut self, n: usize) {
        self.stats[0] += 1;
        let server = &mut self.servers[n];
        (server.up, server.stopped) = (false, false);
        server.connection += 1;
    }

    fn restart(&mut self, n: usize) {
        let mut choices = self.choices.clone();
        let mode = self.mode;
        let can_lose = self.servers.len() > 1 && self.servers.iter().all(|server| !server.blank);
        let server = &mut self.servers[n];
        if can_lose && choices.pick(6) == 0 {
            self.fresh += 1;
            server.store = new_store(mode, self.fresh);
            server.blank = true;
            self.stats[1] += 1;
        } else {
            let image = std::sync::Arc::new(server.store.medium().crash(Failure::PowerLoss, &mut choices));
            server.store = Store::open(image).expect("a crash is no damage of the whole");
            assert_eq!(server.store.damage(), None, "a crash is taken for damage");
        }
        server.up = true;
        self.choices = choices;
    }

    /// What the server does with a request.
    fn serve(&mut self, n: usize, request: &Request) -> Result<Status, Refused> {
        let fencing = self.fencing;
        let server = &mut self.servers[n];
        if let Request::Grant { epoch } = request
            && server.store.state().promised.may_become(*epoch)
            && fencing
        {
            server.connection += 1;
        }
        let reply = match *request {
            Request::Status => server.store.status(),
            Request::Grant { epoch } => server.store.grant(epoch),
            Request::Truncate { epoch, sequence } => server.store.truncate(epoch, sequence),
            Request::Reset { epoch, sequence, after } => server.store.reset(epoch, sequence, after),
            Request::Adopt { epoch, sequence, group, members, acks } => {
                let reply = server.store.adopt(epoch, sequence, group, members, acks);
                if reply.is_ok() {
                    server.blank = false;
                }
                reply
            }
            Request::Trim { below } => server.store.trim(below),
            Request::Known { epoch, below } => server.store.note_known(epoch, below),
        };
        parse_reply(&emit_reply(&reply))
    }
}

impl std::fmt::Debug for SimConnection<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection of {} to {}", self.who, self.server)
    }
}

/// A connection of a writer to a server.
struct SimConnection<'a> {
    sim: &'a Sim,
    who: usize,
    server: usize,
    connection: u64,
    /// Updates under way and how far the first one has got.
    under_way: VecDeque<Updates>,
    step: usize,
    /// What was asked, and what is read.
    calls: VecDeque<Request>,
    reads: VecDeque<(u64, u32)>,
}

impl<'a> SimConnection<'a> {
    fn connect(sim: &'a Sim, who: usize, server: usize) -> Result<Self, ConnectionLost> {
        sim.turn(who, |world| {
            let there = &world.servers[server];
            if !there.up {
                return Err(ConnectionLost("it is down".into()));
            }
            let connection = there.connection;
            Ok(Self {
                sim,
                who,
                server,
                connection,
                under_way: VecDeque::new(),
                step: 0,
                calls: VecDeque::new(),
                reads: VecDeque::new(),
            })
        })
    }

    /// A turn in which the connection is still there.
    fn connected<T>(
        &mut self,
        act: impl FnOnce(&mut Self, &mut World) -> Result<T, ConnectionLost>,
    ) -> Result<T, ConnectionLost> {
        let (sim, who) = (self.sim, self.who);
        sim.turn(who, |world| {
            let server = &world.servers[self.server];
            if !server.up || server.connection != self.connection {
                self.under_way.clear();
                return Err(ConnectionLost("the connection was cut".into()));
            }
            act(self, world)
        })
    }

    /// One more step of what is under way; whether the first update is done.
    fn progress(&mut self, world: &World) -> bool {
        let Some(updates) = self.under_way.front() else { return false };
        let image = world.servers[self.server].store.medium();
        let list = updates.list();
        let (offset, bytes) = list[self.step / 2];
        if self.step.is_multiple_of(2) {
            image.write(offset, bytes);
        } else {
            image.persist(offset..offset + bytes.len() as u64).expect("memory");
        }
        self.step += 1;
        let done = self.step == 2 * list.len();
        if done {
            self.under_way.pop_front();
            self.step = 0;
        }
        done
    }
}

impl ReplicaConnection for SimConnection<'_> {
    /// Nobody is given up here because of the time that passes.
    fn now() -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn begin_call(&mut self, request: &Request) -> Result<(), ConnectionLost> {
        assert!(self.calls.is_empty(), "there is one call at a time");
        self.calls.push_back(Request::parse(&request.emit()).expect("what was written is read"));
        Ok(())
    }

    fn begin_read(&mut self, offset: u64, len: u32) -> Result<(), ConnectionLost> {
        self.reads.push_back((offset, len));
        Ok(())
    }

    fn begin_append(&mut self, updates: Updates, plan: &PlanRequest) -> Result<(), ConnectionLost> {
        assert_eq!(plan.sizes.len(), updates.list().len());
        self.connected(|connection, _| {
            connection.under_way.push_back(updates);
            Ok(())
        })
    }

    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost> {
        self.connected(|connection, world| {
            let server = connection.server;
            if world.servers[server].stopped {
                return Ok(None);
            }
            // A call sees what was written before it, or a part of that: the order between them is the seed's.
            let called = !connection.calls.is_empty()
                && (connection.under_way.is_empty() || world.choices.pick(2) == 0);
            if called && let Some(request) = connection.calls.pop_front() {
                let reply = world.serve(server, &request);
                if matches!(request, Request::Grant { .. }) && reply.is_ok() {
                    // Its own connection is the one that is kept.
                    connection.connection = world.servers[server].connection;
                }
                return Ok(Some(Event::Reply(reply.map(Box::new))));
            }
            if let Some((offset, len)) = connection.reads.pop_front() {
                let mut bytes = vec![0; len as usize];
                world.servers[server].store.medium().read(offset, &mut bytes);
                return Ok(Some(Event::Data(bytes)));
            }
            Ok(connection.progress(world).then_some(Event::Durable))
        })
    }
}

fn payload(seed: u64, who: usize, sequence: u64, attempt: u64) -> Vec<u8> {
    let mut choices = Seeded::new(seed ^ (who as u64) << 40 ^ sequence << 8 ^ attempt << 20);
    let len = choices.pick(90);
    (0..len).map(|_| choices.pick(256) as u8).collect()
}

/// Nobody is given up because of the time that a machine takes.
fn options(acks: Option<u16>, writer: u32, group: u8) -> Options {
    Options::new(writer, Uuid([group; 16])).acks(acks).grace(Duration::MAX).patience(Duration::MAX)
}

fn open<'a>(sim: &'a Sim, who: usize, nonce: u32, acks: u16) -> Result<Group<SimConnection<'a>>, GroupError> {
    let servers = sim.lock().servers.len();
    let connections =
        (0..servers).map(|n| (format!("server {n}"), SimConnection::connect(sim, who, n))).collect();
    // Every other one waits for all that are there, and not only for enough.
    let grace = if nonce.is_multiple_of(2) { Duration::MAX } else { Duration::ZERO };
    let options = options(Some(acks), nonce, who as u8 + 1).grace(grace);
    Group::open(connections, &options).map(|(group, _)| group)
}

/// Opens the group again and again, appends, trims, dies in the middle.
fn write(sim: &Sim, who: usize, seed: u64, acks: u16) {
    for attempt in 0..6 {
        let nonce = (who as u32 + 1) << 16 | attempt as u32;
        let Ok(mut group) = open(sim, who, nonce, acks) else { continue };
        let mut sent: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
        let records = sim.turn(who, |world| world.choices.pick(20));
        for _ in 0..records {
            let bytes = payload(seed, who, group.next(), attempt);
            match group.append(&bytes) {
                Ok(sequence) => sent.push_back((sequence, bytes)),
                Err(GroupError::Append(AppendError::Full { .. })) => {
                    let below = group.acknowledged();
                    if group.trim(below).is_err() {
                        break;
                    }
                }
                Err(_) => break,
            }
            let (window, again) = sim.turn(who, |world| (world.choices.pick(4), world.choices.pick(6) == 0));
            if again {
                reconnect(sim, who, &mut group);
            }
            let mut failed = false;
            while sent.len() > window && !failed {
                failed = group.poll().is_err();
                note(sim, who, &group, &mut sent);
            }
            if failed {
                break;
            }
        }
        // It dies here, with appends under way, or ends well.
        if sim.turn(who, |world| world.choices.pick(2)) == 0 && group.wait(group.next()).is_ok() {
            note(sim, who, &group, &mut sent);
            let _ = group.close();
        }
    }
}

/// Connects again to what was lost.
fn reconnect<'a>(sim: &'a Sim, who: usize, group: &mut Group<SimConnection<'a>>) {
    for (name, _) in group.lost() {
        let server = name.trim_start_matches("server ").parse().expect("a number");
        let connection = SimConnection::connect(sim, who, server);
        if connection.is_ok() {
            sim.turn(who, |world| world.stats[5] += 1);
            group.reconnect(&name, connection);
        }
    }
}

/// Tells the user what is acknowledged.
fn note(sim: &Sim, who: usize, group: &Group<SimConnection<'_>>, sent: &mut VecDeque<(u64, Vec<u8>)>) {
    let below = group.acknowledged();
    sim.turn(who, |world| {
        while sent.front().is_some_and(|(sequence, _)| *sequence < below) {
            let (sequence, bytes) = sent.pop_front().expect("just seen");
            world.stats[2] += 1;
            if let Some(other) = world.acknowledged.insert(sequence, bytes.clone())
                && other != bytes
            {
                world.clash = Some(format!("record {sequence} was acknowledged with two contents"));
            }
        }
    });
}

/// Runs a cluster; how many crashes, lost disks, acknowledgements and cut connections there were, or what went wrong.
fn run(seed: u64, servers: usize, acks: u16, mode: Mode, fencing: bool) -> Result<[u64; 6], String> {
    let writers = 3;
    let sim = Sim::new(seed, servers, writers, mode, fencing);
    std::thread::scope(|scope| {
        for who in 0..writers {
            let sim = &sim;
            scope.spawn(move || {
                let _leaves = Leaves(sim, who);
                write(sim, who, seed, acks);
            });
        }
    });
    // Everything heals; whoever comes now finds all that was acknowledged, everywhere.
    {
        let mut world = sim.lock();
        world.faults = false;
        world.servers.iter_mut().for_each(|server| server.stopped = false);
        world.alive = vec![true];
        world.turn = 0;
        for n in 0..servers {
            if !world.servers[n].up {
                world.restart(n);
            }
        }
    }
    let group = (0..3).find_map(|n| open(&sim, 0, 0xffff_0000 + 2 * n, acks).ok());
    let Some(group) = group else {
        return Err(open(&sim, 0, 0xffff_ff00, acks).expect_err("it has failed three times").to_string());
    };
    drop(group);
    let mut world = sim.lock();
    if let Some(clash) = world.clash.take() {
        return Err(clash);
    }
    for n in 0..servers {
        let status = world.servers[n].store.status().map_err(|e| e.to_string())?;
        let first = status.state.head.sequence;
        let expected = world.acknowledged.range(first..);
        let mut reader = Reader::new(&status);
        let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        while reader.next_sequence() < status.tail.sequence {
            let Ok(record) = reader.read(&mut Local(world.servers[n].store.medium()));
            let (record, bytes) = record.map_err(|fault| format!("server {n}: {fault}"))?;
            found.insert(record.header.sequence, bytes.to_vec());
        }
        for (sequence, bytes) in expected {
            if found.get(sequence) != Some(bytes) {
                return Err(format!(
                    "seed {seed}: server {n} lacks record {sequence}, which was acknowledged"
                ));
            }
        }
    }
    Ok(world.stats)
}

fn seeds() -> u64 {
    std::env::var("REM_LONG_TESTS").map_or(256, |_| 4000)
}

#[test]
fn nothing_acknowledged_is_lost_whoever_crashes_when() {
    let mut total = [0; 6];
    for seed in 0..seeds() {
        for (servers, acks) in [(1, 1), (2, 2), (3, 2), (3, 3)] {
            let mode = if seed % 3 == 0 { Mode::Compound } else { Mode::Singleton };
            let stats = std::panic::catch_unwind(|| run(seed, servers, acks, mode, true));
            let stats = stats.unwrap_or_else(|_| Err("it panicked".into()));
            let stats =
                stats.unwrap_or_else(|what| panic!("seed {seed}, {acks} of {servers}, {mode:?}: {what}"));
            total.iter_mut().zip(stats).for_each(|(sum, n)| *sum += n);
        }
    }
    let [crashes, lost, acknowledged, _, stopped, again] = total;
    println!(
        "{crashes} crashes, {lost} lost disks, {acknowledged} acknowledgements, {stopped} servers stopped, {again} connected again"
    );
    assert!(crashes > 100 && lost > 5 && acknowledged > 1000 && stopped > 100 && again > 100, "{total:?}");
}

#[test]
fn one_seed_is_one_run() {
    let once = run(11, 3, 2, Mode::Singleton, true);
    assert_eq!(once, run(11, 3, 2, Mode::Singleton, true));
}

#[test]
fn the_simulation_finds_servers_that_do_not_shut_older_writers_out() {
    let seen =
        |seed| std::panic::catch_unwind(|| run(seed, 3, 2, Mode::Singleton, false).is_err()).unwrap_or(true);
    assert!((0..200).any(seen), "older writers wrote on and nothing was noticed");
}

#[test]
fn a_group_is_refused_where_its_servers_do_not_belong_together() {
    let sim = Sim::new(1, 3, 1, Mode::Singleton, true);
    sim.lock().faults = false;
    let connect = |n| (format!("server {n}"), SimConnection::connect(&sim, 0, n));
    let options = options(Some(2), 1, 1);
    let lost = || ("server 2".to_owned(), Err(ConnectionLost("it is down".into())));

    let made = Group::open(vec![connect(0), connect(1), lost()], &options).map(drop);
    assert!(
        matches!(made, Err(GroupError::TooFew { reached: 2, needed: 3, .. })),
        "a new group needs all: {made:?}"
    );
    let twice = Group::open(vec![connect(0), connect(0)], &options).map(drop);
    assert!(matches!(twice, Err(GroupError::Twice { .. })), "{twice:?}");
    let (mut group, opened) =
        Group::open(vec![connect(0), connect(1), connect(2)], &options).expect("all are there");
    assert_eq!((opened.lost.len(), group.quorum(), group.next()), (0, (2, 3), 0));
    group.append(b"one").expect("room");
    group.wait(1).expect("all are there");
    group.close().expect("all are there");

    let two = Group::open(vec![connect(0), connect(1)], &options).map(drop);
    assert!(matches!(two, Err(GroupError::Members { .. })), "{two:?}");
    let three = Options { acks: Some(3), ..options };
    let other = Group::open(vec![connect(0), connect(1), connect(2)], &three).map(drop);
    assert!(matches!(other, Err(GroupError::Members { .. })), "{other:?}");

    // With one lost the two others go on, from the record that is there.
    let (mut group, opened) =
        Group::open(vec![connect(0), connect(1), lost()], &options).expect("two are enough");
    assert_eq!((opened.lost.len(), group.next()), (1, 1));
    group.append(b"two").expect("two are enough");
    group.wait(2).expect("two are enough");
    // A writer that comes later shuts this one out.
    let (later, opened) =
        Group::open(vec![connect(0), connect(1), connect(2)], &options).expect("all are back");
    assert_eq!((opened.copied, later.next()), (vec![("server 2".to_owned(), 1)], 2));
    let late = group.append(b"never").and_then(|_| group.wait(3));
    assert!(matches!(late, Err(GroupError::TooFew { .. })), "{late:?}");
    assert_eq!(group.acknowledged(), 2);
}

#[test]
fn an_empty_server_does_not_stand_in_for_one_that_knows() {
    let sim = Sim::new(1, 3, 1, Mode::Singleton, true);
    sim.lock().faults = false;
    let connect = |n| (format!("server {n}"), SimConnection::connect(&sim, 0, n));
    let lost = |n: usize| (format!("server {n}"), Err(ConnectionLost("it is down".into())));
    let options = options(Some(2), 1, 1);
    Group::open(vec![connect(0), connect(1), connect(2)], &options).map(drop).expect("it is made");
    let (mut group, _) =
        Group::open(vec![connect(0), connect(1), lost(2)], &options).expect("two are enough");
    group.append(b"on 0 and 1").expect("room");
    group.wait(1).expect("both are there");
    drop(group);
    sim.lock().servers[0].store = new_store(Mode::Singleton, 77);
    // 0 has lost its disk, 1 is away, 2 has never seen the record.
    let opened = Group::open(vec![connect(0), lost(1), connect(2)], &options).map(drop);
    assert!(matches!(opened, Err(GroupError::TooFew { reached: 1, needed: 2, .. })), "{opened:?}");
    let (group, _) = Group::open(vec![connect(0), connect(1), connect(2)], &options).expect("1 knows");
    assert_eq!(group.next(), 1);
}

#[test]
fn a_server_that_returns_empty_is_rebuilt_and_has_no_say() {
    let sim = Sim::new(1, 2, 1, Mode::Compound, true);
    sim.lock().faults = false;
    let options = options(None, 1, 1);
    let legs = || (0..2).map(|n| (format!("server {n}"), SimConnection::connect(&sim, 0, n))).collect();
    let (mut group, _) = Group::open(legs(), &options).expect("both are there");
    for n in 0..30_u8 {
        group.append(&[n; 20]).expect("room");
        group.wait(u64::from(n) + 1).expect("both are there");
    }
    group.trim(4).expect("they are acknowledged");
    group.close().expect("both are there");
    sim.lock().servers[0].store = new_store(Mode::Compound, 77);
    let alone = Group::open(
        vec![
            ("server 0".into(), SimConnection::connect(&sim, 0, 0)),
            ("server 1".into(), Err(ConnectionLost("down".into()))),
        ],
        &options,
    );
    // Nothing here says that there was a group: a new one would need all of its servers.
    assert!(matches!(alone.map(drop), Err(GroupError::TooFew { .. })));
    let (group, opened) = Group::open(legs(), &options).expect("one of them knows");
    assert_eq!(opened.copied, vec![("server 0".to_owned(), 26)]);
    assert_eq!(group.next(), 30);
    drop(group);
    let status = sim.lock().servers[0].store.status().expect("memory");
    assert_eq!((status.state.head.sequence, status.tail.sequence, status.damage), (4, 30, None));
    assert_eq!(status.tail.epoch, Epoch::new(1, 1), "copies keep the name of their writer");
}
