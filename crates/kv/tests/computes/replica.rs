//! Stores on several servers under one seed: members crash in the middle of everything and lose what was not durable, lose
//! their disks and are rebuilt while others serve, primaries are cut off and do not know it, two of them serve at once.
//! What clients saw is checked for linearizability, per key, over all of that.
//!
//! `REMANENCE_SEEDS=from..to` runs others than the few of every test run; a failure names its seed.

use crate::common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::{Action as LogAction, ConnectionLost, Event as LogEvent};
use remanence_coord::log::proto::{Request as LogRequest, emit_reply, parse_reply};
use remanence_coord::log::{
    Epoch, Geometry as LogGeometry, Make, Mode, Refused, Status, Store as Log, Updates,
};
use remanence_kv::client::{Call, Client, Completion, Error, Found, Get, Operation, Progress, Put, Verb};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::replica::keeper::{LEDGER_LEN, emit_order, emit_told, parse_order, parse_told};
use remanence_kv::replica::primary::{Action, Event as MemberEvent, Options as GroupOptions};
use remanence_kv::replica::{
    Driver, ImageReply, Keeper, LeadError, Member, Mirror, Order, Promise, Sizes, is_current,
};
use remanence_kv::server::{ClientId, Event as ServerEvent, Server, format};
use remanence_kv::{Geometry, Options, Refusal};
use remanence_pmem::crash_image::{Choices, CrashImage, EveryWay, Failure, Seeded};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_sim::history::{Event, History, Kind, NEVER, State};

const STORE: Geometry =
    Geometry { size: 96 << 10, region_len: 4096, segment_len: 1024, heads: 2, grown_from: 0 };
const OPTIONS: Options = common::DURABLE;
/// Bytes of records that a member applies for one order: fewer than there usually are.
const PORTION: usize = 3000;

type Image = Arc<CrashImage>;
type Shared = Rc<RefCell<World>>;
type Core = Server<Mirror<Image, Driver<SimMember>>>;

fn image(len: u64) -> Image {
    Arc::new(CrashImage::new(len, PersistenceDomain::Adr))
}

/// A member's process and its disks.
struct Host {
    log: Log<Image>,
    ledger: Image,
    keeper: Keeper<Image>,
    up: bool,
    /// Connections of before this are cut.
    connection: u64,
    /// How often it died.
    life: u64,
    blank: bool,
    /// It has lost its disks, and has no image that counts since.
    lost: bool,
    /// Its image takes nothing more: that disk fails, and the log's does not.
    fails: bool,
}

impl Host {
    fn new(name: u64) -> Self {
        let geometry = LogGeometry::new(DATA_AT + 12 * 4096, 4096).expect("fair");
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&name.to_le_bytes());
        let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid(uuid), salt: name };
        let log = Log::create(image(geometry.size), &make).expect("fair");
        let ledger = image(LEDGER_LEN);
        let keeper = Keeper::create(image(STORE.size), ledger.clone()).expect("fair").portion(PORTION);
        Self { log, ledger, keeper, up: true, connection: 0, life: 0, blank: true, lost: false, fails: false }
    }
}

struct World {
    hosts: Vec<Host>,
    choices: Seeded,
    faults: bool,
    /// Between a primary's host and a member nothing goes through.
    cut: BTreeSet<(usize, usize)>,
    fresh: u64,
    losses: usize,
    crashes: usize,
    disks: usize,
    rebuilt: usize,
    /// Whether the guard is asked, and images are waited for: without, something is to be found.
    guarded: bool,
}

impl World {
    fn one_in(&mut self, n: usize) -> bool {
        self.choices.pick(n) == 0
    }

    /// What may go wrong at any step.
    fn misfortune(&mut self) {
        if !self.faults {
            return;
        }
        let n = self.choices.pick(self.hosts.len());
        if self.hosts[n].up && self.one_in(400) {
            self.hosts[n].up = false;
            self.hosts[n].connection += 1;
            self.hosts[n].life += 1;
            self.crashes += 1;
        } else if !self.hosts[n].up && self.one_in(60) {
            self.restart(n);
        }
    }

    /// A member was sent an image.
    fn has_image(&mut self, name: &str) {
        self.rebuilt += 1;
        let at = name[1..].parse::<usize>().expect("a number");
        let Host { keeper, log, up, .. } = &self.hosts[at];
        // The log has all that the image lacks, or it was sent for nothing.
        let (ledger, head) = (keeper.ledger(), log.state().head.sequence);
        assert!(!up || ledger.applied >= head, "{name} has an image at {ledger:?}, the log begins at {head}");
    }

    fn restart(&mut self, n: usize) {
        // A member counts as lost until its image has all that the logs have no more. One that only lags does not: that enough
        // others have what it lacks is for the primary to see to.
        let head = self.hosts.iter().map(|host| host.log.state().head.sequence).max().unwrap_or(0);
        for host in &mut self.hosts {
            let ledger = host.keeper.ledger();
            host.lost &= host.blank || !ledger.complete || ledger.applied < head;
        }
        let losable = self.hosts.iter().filter(|host| host.lost).count() < self.losses;
        if losable && self.one_in(3) {
            self.fresh += 1;
            let Host { connection, life, .. } = self.hosts[n];
            self.hosts[n] = Host { connection, life, lost: true, ..Host::new(self.fresh) };
            self.disks += 1;
            return;
        }
        let mut choices = self.choices.clone();
        let mut crash = |image: &Image| Arc::new(image.crash(Failure::PowerLoss, &mut choices));
        let host = &mut self.hosts[n];
        host.log = Log::open(crash(host.log.medium())).expect("a crash is no damage");
        assert_eq!(host.log.damage(), None, "a crash is taken for damage");
        host.ledger = crash(&host.ledger);
        host.keeper =
            Keeper::open(crash(host.keeper.image()), host.ledger.clone()).expect("a ledger").portion(PORTION);
        host.up = true;
        self.choices = choices;
    }

    fn serve(&mut self, n: usize, request: &LogRequest) -> Result<Status, Refused> {
        let host = &mut self.hosts[n];
        let log = &mut host.log;
        if let LogRequest::Grant { epoch } = request
            && log.state().promised.may_become(*epoch)
        {
            host.connection += 1;
        }
        let reply = match *request {
            LogRequest::Status => log.status(),
            LogRequest::Grant { epoch } => log.grant(epoch),
            LogRequest::Truncate { epoch, sequence } => log.truncate(epoch, sequence),
            LogRequest::Reset { epoch, sequence, after } => log.reset(epoch, sequence, after),
            LogRequest::Adopt { epoch, sequence, group, members, acks } => {
                let reply = log.adopt(epoch, sequence, group, members, acks);
                host.blank &= reply.is_err();
                reply
            }
            LogRequest::Trim { below } => log.trim(below),
            LogRequest::Known { epoch, below } => log.note_known(epoch, below),
        };
        parse_reply(&emit_reply(&reply))
    }
}

/// The connection of a primary to a member.
#[derive(Debug)]
struct SimMember {
    world: WorldRef,
    host: usize,
    host_life: u64,
    member: usize,
    connection: u64,
    under_way: VecDeque<Updates>,
    step: usize,
    calls: VecDeque<LogRequest>,
    reads: VecDeque<(u64, u32)>,
    order: Option<(Epoch, Order)>,
}

#[derive(Clone)]
struct WorldRef(Shared);

impl std::fmt::Debug for WorldRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("world")
    }
}

impl SimMember {
    fn connect(world: &Shared, host: usize, member: usize) -> Result<Self, ConnectionLost> {
        let w = world.borrow();
        let reached = w.hosts[member].up && !w.cut.contains(&(host, member));
        let (connection, host_life) = (w.hosts[member].connection, life(&w, host));
        drop(w);
        let world = WorldRef(world.clone());
        let this = Self {
            world,
            host,
            host_life,
            member,
            connection,
            under_way: VecDeque::new(),
            step: 0,
            calls: VecDeque::new(),
            reads: VecDeque::new(),
            order: None,
        };
        if reached { Ok(this) } else { Err(ConnectionLost("it is down".into())) }
    }

    fn connected<T>(
        &mut self,
        act: impl FnOnce(&mut Self, &mut World) -> Result<T, ConnectionLost>,
    ) -> Result<T, ConnectionLost> {
        let world = self.world.clone();
        let world = &mut *world.0.borrow_mut();
        world.misfortune();
        let member = &world.hosts[self.member];
        let dead = !world.hosts[self.host].up || life(world, self.host) != self.host_life;
        let parted = world.cut.contains(&(self.host, self.member));
        if dead || parted || !member.up || member.connection != self.connection {
            self.under_way.clear();
            return Err(ConnectionLost("the connection was cut".into()));
        }
        act(self, world)
    }
}

/// A process that was started again is another one.
fn life(world: &World, host: usize) -> u64 {
    world.hosts[host].life
}

impl Member for SimMember {
    /// Nobody is given up here because of the time that passes.
    fn now() -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn begin(&mut self, action: Action) -> Result<(), ConnectionLost> {
        match action {
            Action::Log(LogAction::Call { request, .. }) => {
                self.calls.push_back(LogRequest::parse(&request.emit()).expect("what was written is read"));
            }
            Action::Log(LogAction::Read { offset, len, .. }) => self.reads.push_back((offset, len)),
            Action::Log(LogAction::Append { updates, .. }) => {
                return self.connected(|member, _| {
                    member.under_way.push_back(*updates);
                    Ok(())
                });
            }
            Action::Log(LogAction::Disconnect { .. }) => panic!("its connection is dropped"),
            Action::Order { epoch, order, .. } => {
                assert!(self.order.is_none(), "there is one order at a time");
                self.order = Some((epoch, order));
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<MemberEvent>, ConnectionLost> {
        self.connected(|member, world| {
            if let Some(event) = member.poll_log(world) {
                return Ok(Some(MemberEvent::Log(event)));
            }
            // It takes its time.
            if member.order.is_none() || world.one_in(2) {
                return Ok(None);
            }
            let (epoch, order) = member.order.take().expect("there is one");
            let (epoch, order) = parse_order(&emit_order(epoch, &order)).expect("what was written is read");
            let Host { keeper, log, fails, .. } = &mut world.hosts[member.member];
            let told = match fails {
                true => ImageReply::Refused("the medium failed".into()),
                false => keeper.obey(log, epoch, &order),
            };
            Ok(Some(MemberEvent::Image(parse_told(&emit_told(&told)).expect("what was written is read"))))
        })
    }
}

impl SimMember {
    fn poll_log(&mut self, world: &mut World) -> Option<LogEvent> {
        if let Some(request) = self.calls.pop_front() {
            let reply = world.serve(self.member, &request);
            if matches!(request, LogRequest::Grant { .. }) && reply.is_ok() {
                self.connection = world.hosts[self.member].connection;
            }
            return Some(LogEvent::Reply(reply.map(Box::new)));
        }
        let image = world.hosts[self.member].log.medium();
        if let Some((offset, len)) = self.reads.pop_front() {
            let mut bytes = vec![0; len as usize];
            image.read(offset, &mut bytes);
            return Some(LogEvent::Data(bytes));
        }
        let list = self.under_way.front()?.list();
        let (offset, bytes) = list[self.step / 2];
        if self.step.is_multiple_of(2) {
            image.write(offset, bytes);
        } else {
            image.persist(offset..offset + bytes.len() as u64).expect("memory");
        }
        self.step += 1;
        if self.step < 2 * list.len() {
            return None;
        }
        self.under_way.pop_front();
        self.step = 0;
        Some(LogEvent::Durable)
    }
}

/// Nobody is given up because of the time that a machine takes.
fn options(acks: usize, writer: u32) -> GroupOptions {
    let forever = std::time::Duration::MAX;
    GroupOptions::new(writer, Uuid([9; 16])).acks(Some(acks as u16)).grace(forever).patience(forever)
}

/// A process that serves, or thinks that it does.
struct Serving {
    host: usize,
    life: u64,
    epoch: Epoch,
    server: Core,
    mirror: Mirror<Image, Driver<SimMember>>,
    memory: Image,
}

enum Machine {
    Get(Get),
    Put(Put),
    Call(Call),
}

struct Running {
    machine: Machine,
    key: Vec<u8>,
    kind: Option<Kind>,
    invoked: u64,
    /// What each member has promised, as it was read at some moment since this began.
    promises: BTreeMap<usize, Promise>,
    todo: VecDeque<Verb>,
    done: Vec<Completion>,
}

struct Actor {
    /// Which primary it is connected to.
    at: Option<u64>,
    /// That one's epoch, by its own word when it was asked last.
    epoch: Epoch,
    id: ClientId,
    client: Option<Client>,
    running: Option<Running>,
    seen: BTreeMap<Vec<u8>, (u64, State)>,
}

struct Sim {
    world: Shared,
    acks: usize,
    serving: BTreeMap<u64, Serving>,
    next_serving: u64,
    actors: Vec<Actor>,
    tick: u64,
    now: u64,
    next_write: u64,
    begun: usize,
    histories: BTreeMap<Vec<u8>, History>,
    /// Why nobody took over, and how often.
    refused: BTreeMap<String, usize>,
    stats: Stats,
}

#[derive(Clone, Copy, Default, Debug)]
struct Stats {
    crashes: usize,
    disks: usize,
    rebuilt: usize,
    led: usize,
    stood_down: usize,
    disbelieved: usize,
    /// Operations that were believed by promises read meanwhile.
    along: usize,
    reopened: usize,
    /// Members that were taken in again in the same epoch.
    reconnected: usize,
    done: usize,
    trimmed: u64,
}

fn value_of(write: u64) -> Vec<u8> {
    let len = match write % 9 {
        0 => 900 + write as usize % 900,
        n => (write as usize * 7) % (30 * n as usize),
    };
    let mut value = write.to_le_bytes().to_vec();
    value.extend(common::value(write, len));
    value
}

fn state_of(value: &[u8]) -> State {
    let number = u64::from_le_bytes(value[..8].try_into().expect("a value has its number"));
    assert!(value == value_of(number), "a torn value was served: {number}");
    number
}

impl Sim {
    fn new(seed: u64, members: usize, acks: usize) -> Self {
        let hosts = (0..members as u64).map(|n| Host::new(n + 1)).collect();
        let world = World {
            hosts,
            choices: Seeded::new(seed),
            faults: false,
            cut: BTreeSet::new(),
            fresh: 100,
            losses: acks - 1,
            crashes: 0,
            disks: 0,
            rebuilt: 0,
            guarded: true,
        };
        let actor = || Actor {
            at: None,
            epoch: Epoch::NONE,
            id: ClientId(0),
            client: None,
            running: None,
            seen: BTreeMap::new(),
        };
        Self {
            world: Rc::new(RefCell::new(world)),
            acks,
            serving: BTreeMap::new(),
            next_serving: 1,
            actors: (0..4).map(|_| actor()).collect(),
            tick: 0,
            now: 1,
            next_write: 1,
            begun: 0,
            histories: BTreeMap::new(),
            refused: BTreeMap::new(),
            stats: Stats::default(),
        }
    }

    fn connections(&self, host: usize) -> Vec<(String, Result<SimMember, ConnectionLost>)> {
        let members = self.world.borrow().hosts.len();
        (0..members).map(|n| (format!("m{n}"), SimMember::connect(&self.world, host, n))).collect()
    }

    /// A member tries to take over.
    fn lead(&mut self, host: usize) -> Result<(), String> {
        let outcome = self.try_lead(host);
        if let Err(why) = &outcome {
            *self
                .refused
                .entry(format!("m{host}: {}", why.chars().take(110).collect::<String>()))
                .or_default() += 1;
        }
        outcome
    }

    fn try_lead(&mut self, host: usize) -> Result<(), String> {
        let number = self.next_serving;
        self.next_serving += 1;
        let options = options(self.acks, number as u32);
        let own = format!("m{host}");
        let sizes = Sizes { image_len: STORE.size, record_max: 2000, trim_after: 9000 };
        let primary =
            Driver::lead(self.connections(host), &own, &options, sizes).map_err(|e| e.to_string())?;
        let epoch = primary.epoch();
        let mut world = self.world.borrow_mut();
        if !world.hosts[host].up {
            return Err("it died".into());
        }
        let life = life(&world, host);
        let memory = Arc::new(CrashImage::from_bytes(
            world.hosts[host].keeper.image().bytes(),
            PersistenceDomain::Volatile,
        ));
        world.hosts[host].up = true;
        drop(world);
        let mirror = Mirror::new(memory.clone(), primary);
        let mut superblock = [0; 8];
        memory.read(0, &mut superblock);
        if superblock == [0; 8] {
            format(&mirror, &STORE, 24, 7, [3; 16]).map_err(|e| e.to_string())?;
        }
        let (mut server, _) = Server::open(mirror.clone(), Options { clean_by_itself: true, ..OPTIONS })
            .map_err(|e| e.to_string())?;
        server.set_replicated();
        self.stats.led += 1;
        // Nothing that an earlier primary was asked for can take effect any more, unless it has by now.
        self.tick += 1;
        let tick = self.tick;
        let open = |event: &&mut Event| event.returned == NEVER;
        let events = self.histories.values_mut().flat_map(|history| &mut history.events);
        events.filter(open).for_each(|event| event.returned = tick);
        self.tick += 1;
        self.serving.insert(number, Serving { host, life, epoch, server, mirror, memory });
        Ok(())
    }

    /// Whether this primary's process is there.
    fn lives(&self, number: u64) -> bool {
        let Some(serving) = self.serving.get(&number) else { return false };
        let world = self.world.borrow();
        world.hosts[serving.host].up && life(&world, serving.host) == serving.life
    }

    /// Whether this primary may be believed, by what all members that are there have promised just now.
    fn is_current(&self, number: u64) -> bool {
        let promises: Vec<Promise> =
            (0..self.world.borrow().hosts.len()).filter_map(|host| self.promise(host)).collect();
        !self.world.borrow().guarded || is_current(self.serving[&number].epoch, &promises, self.acks)
    }

    /// What a member has promised, as a client reads it.
    fn promise(&self, host: usize) -> Option<Promise> {
        let world = self.world.borrow();
        let host = &world.hosts[host];
        host.up.then(|| Promise::parse(&Promise::of(host.log.state()).emit()))
    }

    /// Whether what an operation has brought may be believed, by the promises that were read while it was under way. If they
    /// are of another epoch than the primary's when it was asked last, it is asked again, and then the members are.
    fn vouched(&mut self, actor: usize, number: u64) -> bool {
        let running = self.actors[actor].running.as_ref().expect("it runs");
        let promises: Vec<Promise> = running.promises.values().copied().collect();
        if !self.world.borrow().guarded || is_current(self.actors[actor].epoch, &promises, self.acks) {
            self.stats.along += 1;
            return true;
        }
        let serving = &self.serving[&number];
        if serving.mirror.failed().is_some() {
            return false;
        }
        self.actors[actor].epoch = serving.epoch;
        self.is_current(number)
    }

    fn run(&mut self, operations: usize) {
        self.lead(0).expect("all are there");
        self.world.borrow_mut().faults = true;
        while self.begun < operations {
            self.turn();
            if self.tick >= 100_000 {
                let world = self.world.borrow();
                for host in &world.hosts {
                    let state = host.log.state();
                    eprintln!("{} {:?} {:?} {:?}", host.up, host.blank, host.keeper.ledger(), state);
                }
                panic!("it gets nowhere: {:?}, {:?}", self.stats, self.refused);
            }
        }
        // Everything heals; what was acknowledged is there, on every member in turn.
        let members = {
            let mut world = self.world.borrow_mut();
            world.faults = false;
            world.cut.clear();
            let members = world.hosts.len();
            for n in 0..members {
                if !world.hosts[n].up {
                    world.losses = 0;
                    world.restart(n);
                }
            }
            members
        };
        for actor in 0..self.actors.len() {
            self.lost(actor);
        }
        let mut led = 0;
        for host in (0..members).chain(0..members) {
            let outcome = self.lead(host);
            if let Err(why) = &outcome {
                assert!(why.contains("image"), "m{host} cannot take over: {why}");
                continue;
            }
            led += 1;
            let number = self.next_serving - 1;
            self.rebuild_all(number);
            for key in self.histories.keys().cloned().collect::<Vec<_>>() {
                self.tick += 2;
                let serving = self.serving.get_mut(&number).expect("it serves");
                let id = serving.server.connect();
                let seen = match serving.server.handle(self.now, id, &Request::Get { key: key.clone() }) {
                    Reply::Value { value, .. } => state_of(&value),
                    Reply::Absent => 0,
                    other => panic!("{other:?}"),
                };
                serving.server.disconnected(id).expect("it serves");
                let (invoked, returned) = (self.tick - 1, self.tick);
                self.record(
                    key,
                    Event { kind: Kind::Read(seen), client: 99, invoked, returned, maybe: false },
                );
            }
            self.serving.clear();
        }
        assert!(led > members, "who was rebuilt can take over: {led} of {}", 2 * members);
        self.check();
        let world = self.world.borrow();
        self.stats.crashes = world.crashes;
        self.stats.disks = world.disks;
        self.stats.rebuilt = world.rebuilt;
    }

    /// Has every member that is there rebuilt, and its image follow.
    fn rebuild_all(&mut self, number: u64) {
        let mirror = self.serving[&number].mirror.clone();
        trim(&mirror);
        while mirror.with_ship(|primary| primary.needs_image().is_some()) {
            mirror.with_ship(Driver::begin_rebuild).expect("it serves");
            settle(&mirror);
        }
        trim(&mirror);
    }

    fn turn(&mut self) {
        self.tick += 1;
        let (act, members) = {
            let mut world = self.world.borrow_mut();
            world.misfortune();
            (world.choices.pick(400), world.hosts.len())
        };
        let pick = |n: usize| self.world.borrow_mut().choices.pick(n);
        match act {
            // Somebody thinks that nobody serves.
            0..3 => {
                let host = pick(members);
                if self.world.borrow().hosts[host].up {
                    let _ = self.lead(host);
                }
            }
            3 => {
                let pair = (pick(members), pick(members));
                if pair.0 != pair.1 {
                    self.world.borrow_mut().cut.insert(pair);
                }
            }
            4..7 => self.world.borrow_mut().cut.clear(),
            7..30 => self.housekeeping(),
            _ => {
                let actor = pick(self.actors.len());
                self.act(actor);
            }
        }
        let dead: Vec<u64> = self.serving.keys().copied().filter(|n| !self.lives(*n)).collect();
        for number in dead {
            self.serving.remove(&number);
        }
        let serves = |n: &u64| self.serving[n].mirror.failed().is_none();
        if !self.serving.keys().any(serves) && self.world.borrow_mut().one_in(10) {
            let host = self.world.borrow_mut().choices.pick(members);
            if self.world.borrow().hosts[host].up {
                let _ = self.lead(host);
            }
        }
    }

    /// What a host does while it has time.
    fn housekeeping(&mut self) {
        self.now += 1;
        let numbers: Vec<u64> = self.serving.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = numbers[self.world.borrow_mut().choices.pick(numbers.len())];
        let host = self.serving[&number].host;
        let connections = self.connections(host);
        let serving = self.serving.get_mut(&number).expect("it is there");
        if serving.mirror.failed().is_some() {
            // Its clients go on reading for a while.
            if self.world.borrow_mut().one_in(20) {
                self.serving.remove(&number);
                self.stats.stood_down += 1;
            }
            return;
        }
        let mut now_failed = serving.server.step(self.now, 4).is_err();
        let world = &self.world;
        let (lost, trimmed) = serving.mirror.with_ship(|p| (p.lost(), p.trimmed()));
        self.stats.trimmed = self.stats.trimmed.max(trimmed);
        let back = lost
            .iter()
            .any(|(name, _)| connections.iter().any(|(other, member)| name == other && member.is_ok()));
        // In the same epoch, as whoever does without few members does, or in a new one.
        let same = world.borrow_mut().one_in(2);
        if back && !now_failed && world.borrow_mut().one_in(4) {
            let lost: BTreeSet<&String> = lost.iter().map(|(name, _)| name).collect();
            let reopened = serving.mirror.with_ship(|primary| {
                if same {
                    let lost = connections.into_iter().filter(|(name, _)| lost.contains(name));
                    return lost.into_iter().try_for_each(|(name, member)| primary.reconnect(&name, member));
                }
                primary.reopen(connections)
            });
            now_failed |= reopened.is_err();
            serving.epoch = serving.mirror.with_ship(|primary| primary.epoch());
            *if same { &mut self.stats.reconnected } else { &mut self.stats.reopened } += 1;
        }
        if !now_failed {
            let turns = 1 + world.borrow_mut().choices.pick(5);
            let turned = serving.mirror.with_ship(|primary| {
                if primary.is_idle() && world.borrow_mut().one_in(8) {
                    primary.follow()?;
                }
                primary.begin_rebuild()?;
                (0..turns).try_for_each(|_| primary.poll())?;
                Ok(primary.take_rebuilt().map(ToOwned::to_owned))
            });
            match turned {
                Ok(Some(name)) => world.borrow_mut().has_image(&name),
                Ok(None) | Err(LeadError::NoImage(_)) => {}
                Err(_) => now_failed = true,
            }
        }
        while let Some(event) = serving.server.poll_event() {
            match event {
                ServerEvent::Notice { .. } => {
                    for actor in self.actors.iter_mut().filter(|actor| actor.at == Some(number)) {
                        let (Some(client), view) = (&mut actor.client, serving.server.view()) else {
                            continue;
                        };
                        client.adopt(view);
                    }
                }
                ServerEvent::Fence { client } => {
                    now_failed |= serving.server.disconnected(client).is_err();
                    let of = |a: &Actor| a.at == Some(number) && a.id == client;
                    if let Some(actor) = self.actors.iter().position(of) {
                        forget_running(&mut self.actors[actor], &mut self.histories);
                        self.actors[actor].at = None;
                    }
                }
            }
        }
        for actor in self.actors.iter_mut().filter(|actor| actor.at == Some(number)) {
            if let Some(acknowledge) = actor.client.as_mut().and_then(Client::poll_acknowledgement) {
                serving.server.handle(self.now, actor.id, &acknowledge);
            }
        }
        if now_failed && !self.lives(number) {
            self.serving.remove(&number);
        }
    }

    fn lost(&mut self, actor: usize) {
        forget_running(&mut self.actors[actor], &mut self.histories);
        self.actors[actor].at = None;
    }

    fn record(&mut self, key: Vec<u8>, event: Event) {
        self.histories.entry(key).or_default().events.push(event);
    }

    /// A client does the next thing, at whatever primary it knows.
    fn act(&mut self, actor: usize) {
        let Some(number) = self.actors[actor].at.filter(|n| self.lives(*n)) else {
            self.lost(actor);
            let living: Vec<u64> = self.serving.keys().copied().filter(|n| self.lives(*n)).collect();
            if living.is_empty() {
                return;
            }
            let number = living[self.world.borrow_mut().choices.pick(living.len())];
            let serving = self.serving.get_mut(&number).expect("it lives");
            if serving.mirror.failed().is_some() {
                return;
            }
            let (id, view) = (serving.server.connect(), serving.server.view());
            if !self.is_current(number) {
                return;
            }
            let epoch = self.serving[&number].epoch;
            let state = &mut self.actors[actor];
            (state.at, state.id, state.epoch) = (Some(number), id, epoch);
            match &mut state.client {
                Some(client) => client.adopt(view),
                None => state.client = Some(Client::new(view, if actor.is_multiple_of(2) { 8 } else { 0 })),
            }
            return;
        };
        if self.actors[actor].running.is_none() {
            return self.begin(actor);
        }
        // A member's promise comes at any moment while the operation is under way.
        let host = {
            let world = &mut *self.world.borrow_mut();
            let hosts = world.hosts.len();
            world.one_in(2).then(|| world.choices.pick(hosts))
        };
        if let Some(host) = host
            && let Some(promise) = self.promise(host)
        {
            let running = self.actors[actor].running.as_mut().expect("it runs");
            running.promises.entry(host).or_insert(promise);
        }
        let running = self.actors[actor].running.as_mut().expect("it runs");
        let Some(verb) = running.todo.pop_front() else { return self.go_on(actor) };
        let id = self.actors[actor].id;
        let serving = self.serving.get_mut(&number).expect("it lives");
        let completion = match verb {
            Verb::Read { at, len } => {
                let mut bytes = vec![0; len as usize];
                serving.memory.read(at, &mut bytes);
                Completion::Read(bytes)
            }
            Verb::Write { at, bytes } => {
                serving.memory.write(at, &bytes);
                Completion::Written
            }
            Verb::Persist(_) => panic!("the memory of a primary is not what lasts"),
            // A server whose medium has failed answers nobody; its memory is read for a while.
            Verb::Call(_) if serving.mirror.failed().is_some() => return self.lost(actor),
            Verb::Call(request) => match serving.server.handle(self.now, id, &request) {
                Reply::Refused(Refusal::Medium) => {
                    // It is the primary no more. Nobody knows what becomes of it.
                    return self.lost(actor);
                }
                reply => Completion::Reply(reply),
            },
        };
        if !self.lives(number) {
            // It died before it could answer.
            return self.lost(actor);
        }
        let running = self.actors[actor].running.as_mut().expect("it runs");
        running.done.push(completion);
    }

    fn begin(&mut self, actor: usize) {
        self.begun += 1;
        self.tick += 1;
        let mut world = self.world.borrow_mut();
        let hot = world.choices.pick(3) > 0;
        let key = format!("key{}", world.choices.pick(if hot { 3 } else { 16 })).into_bytes();
        let what = world.choices.pick(12);
        drop(world);
        let write = self.next_write;
        self.next_write += 1;
        let value = value_of(write);
        let seen = self.actors[actor].seen.get(&key).copied();
        let (machine, kind) = match (what, seen) {
            (0..5, _) => (Machine::Get(Get::new(&key)), None),
            (5, _) => (Machine::Call(Call::delete(&key, Expect::Any)), Some(Kind::Write(0))),
            (6, _) => {
                let put = Request::PutInline { key: key.clone(), value, expires: 0, expect: Expect::Any };
                (Machine::Call(Call::new(put)), Some(Kind::Write(write)))
            }
            (7..9, Some((version, state))) => {
                let put = Put::new(&key, &value, 0, Expect::Version(version));
                (Machine::Put(put), Some(Kind::Swap(state, write)))
            }
            _ => (Machine::Put(Put::new(&key, &value, 0, Expect::Any)), Some(Kind::Write(write))),
        };
        let invoked = self.tick;
        let (promises, todo, done) = (BTreeMap::new(), VecDeque::new(), Vec::new());
        self.actors[actor].running = Some(Running { machine, key, kind, invoked, promises, todo, done });
        self.go_on(actor);
    }

    fn go_on(&mut self, actor: usize) {
        self.tick += 1;
        let number = self.actors[actor].at.expect("it is connected");
        let state = &mut self.actors[actor];
        let (client, running) =
            (state.client.as_mut().expect("it is connected"), state.running.as_mut().expect("it runs"));
        let done = std::mem::take(&mut running.done);
        let outcome: Progress<Result<Option<Found>, Error>> = match &mut running.machine {
            Machine::Get(get) => get.step(client, self.now, done),
            Machine::Put(put) => nothing(put.step(client, self.now, done)),
            Machine::Call(call) => nothing(call.step(client, self.now, done)),
        };
        let outcome = match outcome {
            Progress::Post(verbs) => {
                running.todo = verbs.into();
                return;
            }
            Progress::Again => return,
            Progress::Done(outcome) => outcome,
        };
        // What was not read by now is.
        for host in 0..self.world.borrow().hosts.len() {
            let promise = self.promise(host);
            let running = self.actors[actor].running.as_mut().expect("it runs");
            if let Some(promise) = promise {
                running.promises.entry(host).or_insert(promise);
            }
        }
        let running = self.actors[actor].running.as_ref().expect("it runs");
        // What a primary has shipped stands, whoever is the primary now.
        let stands = matches!(running.machine, Machine::Put(_)) && outcome.is_ok();
        if !stands && !self.vouched(actor, number) {
            // What was read meanwhile may be old, and what was said the word of one who was replaced.
            self.stats.disbelieved += 1;
            return self.lost(actor);
        }
        let state = &mut self.actors[actor];
        let running = state.running.take().expect("it runs");
        let kind = match (outcome, running.kind) {
            (Ok(found), None) => {
                let seen = found.as_ref().map_or(0, |found| state_of(&found.value));
                if let Some(found) = &found {
                    state.seen.insert(running.key.clone(), (found.version, seen));
                }
                Kind::Read(seen)
            }
            (Ok(_), Some(kind)) => kind,
            (Err(Error::Refused(Refusal::WrongVersion { .. })), Some(Kind::Swap(old, _))) => {
                Kind::NoSwap(old)
            }
            (Err(Error::Refused(Refusal::Full)), _) => return,
            (Err(Error::Refused(Refusal::Fenced)), kind) => {
                state.at = None;
                if let Some(kind) = kind {
                    let event =
                        Event { kind, client: 0, invoked: running.invoked, returned: NEVER, maybe: true };
                    self.record(running.key, event);
                }
                return;
            }
            (Err(error), kind) => panic!("{error} of {kind:?}"),
        };
        self.stats.done += 1;
        let client = actor as u32;
        let event = Event { kind, client, invoked: running.invoked, returned: self.tick, maybe: false };
        self.record(running.key, event);
    }

    fn check(&self) {
        for (key, history) in &self.histories {
            if !history.is_linearizable() {
                history.events.iter().for_each(|event| eprintln!("{event:?}"));
                panic!("no register could have had this history of {:?}", String::from_utf8_lossy(key));
            }
        }
    }
}

fn nothing<T>(progress: Progress<Result<T, Error>>) -> Progress<Result<Option<Found>, Error>> {
    match progress {
        Progress::Post(verbs) => Progress::Post(verbs),
        Progress::Again => Progress::Again,
        Progress::Done(outcome) => Progress::Done(outcome.map(|_| None)),
    }
}

/// Nobody knows what becomes of what a client had under way: a later primary may find it, or not.
fn forget_running(actor: &mut Actor, histories: &mut BTreeMap<Vec<u8>, History>) {
    let Some(mut running) = actor.running.take() else { return };
    if let Some(client) = &mut actor.client {
        match &mut running.machine {
            Machine::Get(get) => drop(get.cancel(client)),
            Machine::Put(put) => drop(put.cancel(client)),
            Machine::Call(call) => drop(call.cancel(client)),
        }
    }
    if let Some(kind) = running.kind {
        let event = Event { kind, client: 0, invoked: running.invoked, returned: NEVER, maybe: true };
        histories.entry(running.key).or_default().events.push(event);
    }
}

/// Until nothing is under way with any image.
fn settle(mirror: &Mirror<Image, Driver<SimMember>>) {
    for _ in 0..10_000 {
        mirror.with_ship(Driver::poll).expect("it serves");
        if mirror.with_ship(|primary| primary.is_idle()) {
            return;
        }
    }
    panic!("the images get nowhere");
}

/// Has the images follow, and the log trimmed behind them.
fn trim(mirror: &Mirror<Image, Driver<SimMember>>) {
    mirror.with_ship(Driver::trim).expect("it serves");
    settle(mirror);
    // What the logs were asked to give up then.
    mirror.with_ship(Driver::poll).expect("it serves");
}

fn simulate(seed: u64, members: usize, acks: usize, guarded: bool) -> Stats {
    let mut sim = Sim::new(seed, members, acks);
    sim.world.borrow_mut().guarded = guarded;
    sim.run(250);
    sim.stats
}

fn sum(few: u64, members: usize, acks: usize) -> Stats {
    let mut sum = Stats::default();
    for seed in remanence_effort::seeds(few) {
        let stats = std::panic::catch_unwind(|| simulate(seed, members, acks, true));
        let stats = stats.unwrap_or_else(|panic| {
            eprintln!("seed {seed}, {acks} of {members}: {} repeats it", remanence_effort::replay(seed));
            std::panic::resume_unwind(panic)
        });
        sum.crashes += stats.crashes;
        sum.disks += stats.disks;
        sum.rebuilt += stats.rebuilt;
        sum.led += stats.led;
        sum.stood_down += stats.stood_down;
        sum.disbelieved += stats.disbelieved;
        sum.along += stats.along;
        sum.reopened += stats.reopened;
        sum.reconnected += stats.reconnected;
        sum.done += stats.done;
        sum.trimmed += stats.trimmed;
    }
    println!("{acks} of {members}: {sum:?}");
    sum
}

#[test]
fn of_three_members_one_at_a_time_may_lose_everything() {
    let stats = sum(20, 3, 2);
    if !remanence_effort::are_all() {
        return;
    }
    assert!(stats.crashes > 50 && stats.disks > 5 && stats.rebuilt > 3, "{stats:?}");
    assert!(stats.led > 60 && stats.disbelieved > 20 && stats.reopened > 10, "{stats:?}");
    assert!(stats.done > 2000 && stats.trimmed > 100, "{stats:?}");
}

#[test]
fn two_members_that_both_acknowledge() {
    let stats = sum(10, 2, 2);
    if !remanence_effort::are_all() {
        return;
    }
    assert!(stats.crashes > 10 && stats.led > 20 && stats.done > 500, "{stats:?}");
}

#[test]
fn one_member_is_a_store_with_a_log() {
    let stats = sum(5, 1, 1);
    if !remanence_effort::are_all() {
        return;
    }
    assert!(stats.led > 10 && stats.done > 500, "{stats:?}");
}

#[test]
fn the_simulation_finds_clients_that_believe_a_primary_which_was_replaced() {
    let seen = |seed| std::panic::catch_unwind(|| simulate(seed, 3, 2, false)).is_err();
    assert!((0..60).any(seen), "nobody read anything old, and nothing guards against it");
}

#[test]
fn a_member_whose_image_fails_is_named_until_it_follows_again() {
    let mut sim = Sim::new(1, 3, 2);
    sim.lead(0).expect("all are there");
    let number = sim.next_serving - 1;
    let mirror = sim.serving[&number].mirror.clone();
    let follow = || {
        trim(&mirror);
        mirror.with_ship(|primary| primary.behind())
    };
    assert_eq!(follow(), []);
    sim.world.borrow_mut().hosts[2].fails = true;
    for n in 0..3000 {
        sim.tick += 1;
        sim.act(n % 4);
    }
    assert_eq!(follow(), [("m2".to_owned(), "the medium failed".to_owned())]);
    assert_eq!(mirror.with_ship(|primary| primary.lost()), [], "its log takes part");
    assert!(mirror.with_ship(|primary| primary.trimmed()) > 0, "the images of the others are enough");
    sim.world.borrow_mut().hosts[2].fails = false;
    assert_eq!(follow(), []);
}

#[test]
fn who_died_within_its_rebuilding_is_sent_all_of_it_again() {
    let mut sim = Sim::new(1, 3, 2);
    sim.lead(0).expect("all are there");
    let number = sim.next_serving - 1;
    for n in 0..3000 {
        sim.tick += 1;
        sim.act(n % 4);
    }
    let mirror = sim.serving[&number].mirror.clone();
    let reopen = |sim: &Sim| {
        mirror.with_ship(|primary| primary.reopen(sim.connections(0))).expect("nobody else was the primary");
        trim(&mirror);
    };
    reopen(&sim);
    assert!(mirror.with_ship(|primary| primary.trimmed()) > 0, "the log has not all of it any more");
    // Its disk is lost, and an empty one in its place; then, in the middle of the copy, the power.
    {
        let host = &mut sim.world.borrow_mut().hosts[2];
        *host = Host { connection: host.connection + 1, life: host.life + 1, ..Host::new(77) };
    }
    reopen(&sim);
    mirror.with_ship(Driver::begin_rebuild).expect("it serves");
    let sent = || {
        mirror.with_ship(Driver::poll).expect("it serves");
        mirror
            .with_ship(|primary| primary.rebuilding())
            .filter(|now| now.name == "m2")
            .expect("under way")
            .sent
    };
    while sent() < STORE.size / 2 {}
    {
        let host = &mut sim.world.borrow_mut().hosts[2];
        let crash = |image: &Image| Arc::new(image.crash(Failure::PowerLoss, &mut EveryWay::new()));
        host.log = Log::open(crash(host.log.medium())).expect("a crash is no damage");
        host.ledger = crash(&host.ledger);
        host.keeper = Keeper::open(crash(host.keeper.image()), host.ledger.clone()).expect("a ledger");
        (host.connection, host.life) = (host.connection + 1, host.life + 1);
    }
    reopen(&sim);
    sim.rebuild_all(number);
    let world = sim.world.borrow();
    let [first, .., last] = &world.hosts[..] else { panic!("three") };
    assert_eq!(first.keeper.ledger(), last.keeper.ledger());
    assert!(first.keeper.image().bytes() == last.keeper.image().bytes(), "the images differ");
}

/// The images are too few for the log to be trimmed, and nobody has checked anything before it has no room any more.
#[test]
fn an_image_that_has_to_be_sent_at_once_is_put_right_first() {
    const UNUSED: u64 = STORE.size - 8;
    let mut sim = Sim::new(1, 2, 2);
    sim.lead(0).expect("all are there");
    let number = sim.next_serving - 1;
    let mirror = sim.serving[&number].mirror.clone();
    let mut n = 0;
    let mut act = |sim: &mut Sim| {
        n += 1;
        sim.tick += 1;
        sim.act(n % 4);
        assert!(n < 100_000, "nothing has come of that");
    };
    while mirror.with_ship(|primary| primary.trimmed()) == 0 {
        act(&mut sim);
    }
    let put_right = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&put_right);
    mirror.with_ship(|primary| {
        primary.set_put_right(Box::new(move |fetch| {
            // Whoever is to get another image still has its own.
            assert_eq!(fetch(UNUSED, 8), [[0; 8], [0x77; 8]]);
            called.fetch_add(1, Ordering::Relaxed);
        }));
    });
    // It has its log still, and another disk for its image.
    {
        let host = &mut sim.world.borrow_mut().hosts[1];
        let Host { keeper, ledger, .. } = Host::new(77);
        keeper.image().write(UNUSED, &[0x77; 8]);
        (host.keeper, host.ledger) = (keeper, ledger);
    }
    trim(&mirror);
    assert_eq!(
        mirror.with_ship(|primary| primary.needs_image().map(ToOwned::to_owned)),
        Some("m1".to_owned())
    );
    while mirror.with_ship(|primary| primary.needs_image().is_some()) {
        assert_eq!(put_right.load(Ordering::Relaxed), 0, "it can wait");
        act(&mut sim);
    }
    assert_eq!(put_right.load(Ordering::Relaxed), 1);
    trim(&mirror);
    let world = sim.world.borrow();
    assert!(world.hosts[0].keeper.image().bytes() == world.hosts[1].keeper.image().bytes());
}
