//! Many clients and a server under one seed. READs and WRITEs happen piece by piece, in any order of the pieces; messages
//! come between; clients die, are slow and are cut off; the server loses its power.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use remanence_kv::client::{Call, Client, Completion, Error, Found, Get, Operation, Progress, Put, Verb};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{ClientId, Event as ServerEvent, Server, format};
use remanence_kv::{Geometry, Mode, Options, Refusal};
use remanence_pmem::crash_image::{Choices, CrashImage, Failure, Seeded};
use remanence_pmem::{Medium, PersistenceDomain};
use remanence_sim::history::{Event, History, Kind, State};

/// How wild it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    pub(crate) operations: usize,
    /// One in so many ticks; 0: never.
    pub(crate) crash: usize,
    pub(crate) kill: usize,
    pub(crate) clean: usize,
    pub(crate) resize: usize,
    /// Of one in so many operations the client is as slow as to be cut off.
    pub(crate) slow: usize,
}

pub(crate) const CALM: Weather =
    Weather { clients: 4, keys: 40, operations: 300, crash: 0, kill: 0, clean: 150, resize: 500, slow: 0 };
pub(crate) const STORM: Weather = Weather { crash: 700, kill: 250, slow: 40, ..CALM };

enum Machine {
    Get(Get),
    Put(Put),
    Call(Call),
}

enum Outcome {
    Got(Option<Found>),
    Done,
    WrongVersion,
    Failed(Error),
}

impl Machine {
    fn step(&mut self, client: &mut Client, now: u64, done: Vec<Completion>) -> Progress<Outcome> {
        fn map<T>(progress: Progress<Result<T, Error>>, ok: impl FnOnce(T) -> Outcome) -> Progress<Outcome> {
            match progress {
                Progress::Post(verbs) => Progress::Post(verbs),
                Progress::Again => Progress::Again,
                Progress::Done(Ok(value)) => Progress::Done(ok(value)),
                Progress::Done(Err(Error::Refused(Refusal::WrongVersion { .. }))) => {
                    Progress::Done(Outcome::WrongVersion)
                }
                Progress::Done(Err(error)) => Progress::Done(Outcome::Failed(error)),
            }
        }
        match self {
            Self::Get(get) => map(get.step(client, now, done), Outcome::Got),
            Self::Put(put) => map(put.step(client, now, done), |_| Outcome::Done),
            Self::Call(call) => map(call.step(client, now, done), |_| Outcome::Done),
        }
    }

    fn cancel(&mut self, client: &mut Client) {
        match self {
            Self::Get(get) => drop(get.cancel(client)),
            Self::Put(put) => drop(put.cancel(client)),
            Self::Call(call) => drop(call.cancel(client)),
        }
    }
}

/// A work request on its way.
enum Flying {
    Read { at: u64, bytes: Vec<u8>, pieces: Vec<(usize, usize)> },
    Write { pieces: Vec<(u64, Vec<u8>)>, persist: Option<Vec<(u64, u64)>> },
    Call(Request),
}

struct Running {
    machine: Machine,
    flying: VecDeque<Flying>,
    done: Vec<Completion>,
    key: Vec<u8>,
    /// What it does to the history if it succeeds; `None` for a GET.
    kind: Option<Kind>,
    invoked: u64,
    slow: bool,
}

struct Actor {
    id: ClientId,
    client: Client,
    running: Option<Running>,
    noticed: bool,
}

pub(crate) struct World {
    weather: Weather,
    options: Options,
    choices: Seeded,
    image: Arc<CrashImage>,
    server: Server<Arc<CrashImage>>,
    actors: Vec<Actor>,
    tick: u64,
    now: u64,
    next_write: u64,
    begun: usize,
    /// What was seen of each key since the last start.
    histories: BTreeMap<Vec<u8>, History>,
    /// Histories that are over, and are checked.
    pub(crate) checked: Vec<(Vec<u8>, History)>,
    ever: BTreeMap<Vec<u8>, Vec<State>>,
    pub(crate) crashes: usize,
    pub(crate) kills: usize,
    pub(crate) stats: remanence_kv::server::Stats,
    pub(crate) client_stats: remanence_kv::client::Stats,
}

const WORLD: Geometry =
    Geometry { size: 512 << 10, region_len: 4096, segment_len: 1024, heads: 3, grown_from: 0 };

/// The value of a write: its number, then bytes that follow from it.
fn value_of(write: u64) -> Vec<u8> {
    let len = match write % 11 {
        0 => 900 + write as usize % 1700,
        1 => 0,
        n => (write as usize * 7) % (20 * n as usize),
    };
    let mut value = write.to_le_bytes().to_vec();
    value.extend(super::value(write, len));
    value
}

fn state_of(value: Option<&[u8]>) -> State {
    let Some(value) = value else { return 0 };
    let number = u64::from_le_bytes(value[..8].try_into().expect("a value has its number"));
    assert!(value == value_of(number), "a torn value was served: {number}");
    number
}

impl World {
    pub(crate) fn new(seed: u64, weather: Weather, options: Options) -> Self {
        let image = Arc::new(CrashImage::new(WORLD.size, PersistenceDomain::Adr));
        format(&image, &WORLD, 24, seed ^ 0xA5A5, [1; 16]).expect("fair");
        let (mut server, _) = Server::open(image.clone(), options).expect("a store");
        let view = server.view();
        let actors = (0..weather.clients)
            .map(|n| Actor {
                id: server.connect(),
                client: Client::new(view.clone(), if n % 2 == 0 { 8 } else { 0 }),
                running: None,
                noticed: false,
            })
            .collect();
        Self {
            weather,
            options,
            choices: Seeded::new(seed),
            image,
            server,
            actors,
            tick: 0,
            now: 1,
            next_write: 1,
            begun: 0,
            histories: BTreeMap::new(),
            checked: Vec::new(),
            ever: BTreeMap::new(),
            crashes: 0,
            kills: 0,
            stats: Default::default(),
            client_stats: Default::default(),
        }
    }

    fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.choices.pick(n) == 0
    }

    pub(crate) fn run(&mut self) {
        while self.begun < self.weather.operations || self.actors.iter().any(|a| a.running.is_some()) {
            self.tick += 1;
            assert!(self.tick < 4_000_000, "it never ends");
            let winding_down = self.begun >= self.weather.operations;
            if self.one_in(12) {
                self.now += 1;
                let budget = 1 + self.choices.pick(4);
                self.server.step(self.now, budget).expect("memory does not fail");
            }
            if !winding_down {
                if self.one_in(self.weather.crash) {
                    self.crash();
                }
                if self.one_in(self.weather.kill) {
                    let victim = self.choices.pick(self.actors.len());
                    self.cut_off(victim);
                    self.kills += 1;
                }
                if self.one_in(self.weather.clean) {
                    let head = self.choices.pick(WORLD.heads.into()) as u8;
                    let _ = self.server.clean(head);
                }
                if self.one_in(self.weather.resize) {
                    let buckets = 24 + self.choices.pick(100) as u64;
                    let _ = self.server.resize(buckets);
                }
            }
            self.events();
            let actor = self.choices.pick(self.actors.len());
            self.act(actor);
        }
        self.check();
        self.server.sum(&mut self.stats);
    }

    fn events(&mut self) {
        while let Some(event) = self.server.poll_event() {
            match event {
                ServerEvent::Notice { client, .. } => {
                    if let Some(actor) = self.actors.iter_mut().find(|actor| actor.id == client) {
                        actor.noticed = true;
                    }
                }
                ServerEvent::Fence { client } => {
                    if let Some(actor) = self.actors.iter().position(|actor| actor.id == client) {
                        self.cut_off(actor);
                    }
                }
            }
        }
    }

    /// The connection is cut: what was on its way arrives in part, then nothing more; then the server knows.
    fn cut_off(&mut self, actor: usize) {
        let parts = self.choices.pick(6);
        for _ in 0..parts {
            let writing = self.actors[actor].running.as_ref().and_then(|running| running.flying.front());
            if matches!(writing, Some(Flying::Write { pieces, .. }) if !pieces.is_empty()) {
                self.fly(actor);
            }
        }
        self.tick += 1;
        let (id, tick) = (self.actors[actor].id, self.tick);
        self.server.disconnected(id).expect("memory does not fail");
        self.lost(actor, tick);
        let view = self.server.view();
        let actor = &mut self.actors[actor];
        actor.id = self.server.connect();
        actor.client.adopt(view);
        actor.noticed = true;
    }

    /// The client will never know what became of its operation.
    fn lost(&mut self, actor: usize, tick: u64) {
        let number = actor as u32;
        let actor = &mut self.actors[actor];
        let Some(mut running) = actor.running.take() else { return };
        running.machine.cancel(&mut actor.client);
        if let Some(kind) = running.kind {
            let (client, invoked) = (number, running.invoked);
            self.record(running.key, Event { kind, client, invoked, returned: tick, maybe: true });
        }
    }

    fn record(&mut self, key: Vec<u8>, event: Event) {
        if let Kind::Write(state) | Kind::Swap(_, state) = event.kind {
            self.ever.entry(key.clone()).or_default().push(state);
        }
        self.histories.entry(key).or_default().events.push(event);
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.tick += 1;
        self.server.sum(&mut self.stats);
        let seed = self.choices.pick(1 << 30) as u64;
        let crashed = self.image.crash_seeded(Failure::PowerLoss, seed);
        for actor in 0..self.actors.len() {
            self.lost(actor, self.tick);
        }
        self.image = Arc::new(crashed);
        self.server = Server::open(self.image.clone(), self.options).expect("a crash is no damage").0;
        self.tick += 1;
        if self.options.mode == Mode::Erda {
            // What was acknowledged may be gone. What is there was there once, and a new history begins.
            self.check();
            let keys: Vec<Vec<u8>> = self.ever.keys().cloned().collect();
            for key in keys {
                let id = self.server.connect();
                let reply = self.server.handle(self.now, id, &Request::Get { key: key.clone() });
                self.server.disconnected(id).expect("memory does not fail");
                let start = match reply {
                    Reply::Value { value, .. } => state_of(Some(&value)),
                    Reply::Absent => 0,
                    other => panic!("{other:?}"),
                };
                assert!(start == 0 || self.ever[&key].contains(&start), "a value from nowhere");
                self.histories.insert(key, History { start, events: Vec::new() });
            }
        }
        let view = self.server.view();
        for actor in &mut self.actors {
            actor.id = self.server.connect();
            actor.client.adopt(view.clone());
            actor.noticed = false;
        }
    }

    fn act(&mut self, actor: usize) {
        if self.actors[actor].noticed && self.one_in(4) {
            let view = self.server.view();
            let actor = &mut self.actors[actor];
            actor.client.adopt(view);
            if let Some(acknowledge) = actor.client.poll_acknowledgement() {
                self.server.handle(self.now, actor.id, &acknowledge);
            }
            actor.noticed = actor.client.view().number < self.server.view().number || actor.running.is_some();
        }
        let dawdles = self.one_in(3);
        match &self.actors[actor].running {
            None if self.begun < self.weather.operations => self.begin(actor),
            None => {}
            Some(running) if running.slow && dawdles => {
                // Long enough to be cut off.
                self.now += self.options.lease / 4;
            }
            Some(running) if running.flying.is_empty() => self.go_on(actor),
            Some(_) => self.fly(actor),
        }
    }

    fn begin(&mut self, actor: usize) {
        self.begun += 1;
        let hot = self.choices.pick(3) > 0;
        let key = self.choices.pick(if hot { 3 } else { self.weather.keys });
        let key = format!("key{key}").into_bytes();
        let write = self.next_write;
        self.next_write += 1;
        let value = value_of(write);
        let (machine, kind) = match self.choices.pick(20) {
            0..9 => (Machine::Get(Get::new(&key)), None),
            9..15 => (Machine::Put(Put::new(&key, &value, 0, Expect::Any)), Some(Kind::Write(write))),
            15 => (Machine::Call(Call::delete(&key, Expect::Any)), Some(Kind::Write(0))),
            16 => {
                let put = Request::PutInline { key: key.clone(), value, expires: 0, expect: Expect::Any };
                (Machine::Call(Call::new(put)), Some(Kind::Write(write)))
            }
            _ => {
                // Swaps what was seen when it began: read it, then try.
                let id = self.actors[actor].id;
                let reply = self.server.handle(self.now, id, &Request::Get { key: key.clone() });
                let (seen, expect) = match reply {
                    Reply::Value { version, value, .. } => (state_of(Some(&value)), Expect::Version(version)),
                    _ => (0, Expect::Absent),
                };
                (Machine::Put(Put::new(&key, &value, 0, expect)), Some(Kind::Swap(seen, write)))
            }
        };
        let slow = self.one_in(self.weather.slow);
        self.tick += 1;
        let (invoked, done) = (self.tick, Vec::new());
        let flying = VecDeque::new();
        self.actors[actor].running = Some(Running { machine, flying, done, key, kind, invoked, slow });
        self.go_on(actor);
    }

    fn go_on(&mut self, actor: usize) {
        self.tick += 1;
        let state = &mut self.actors[actor];
        let running = state.running.as_mut().expect("it runs");
        let done = std::mem::take(&mut running.done);
        let outcome = match running.machine.step(&mut state.client, self.now, done) {
            Progress::Post(verbs) => {
                let flying = verbs.into_iter().map(|verb| self.launch(verb)).collect();
                self.actors[actor].running.as_mut().expect("it runs").flying = flying;
                return;
            }
            Progress::Again => return,
            Progress::Done(outcome) => outcome,
        };
        let running = self.actors[actor].running.take().expect("it runs");
        let (client, invoked, returned) = (actor as u32, running.invoked, self.tick);
        let kind = match (outcome, running.kind) {
            (Outcome::Got(found), _) => Kind::Read(state_of(found.as_ref().map(|f| &f.value[..]))),
            (Outcome::Done, Some(kind)) => kind,
            (Outcome::WrongVersion, Some(Kind::Swap(old, _))) => Kind::NoSwap(old),
            // Full or too slow: nothing happened, or nobody knows.
            (Outcome::Failed(Error::Refused(Refusal::Full)), _) => return,
            (Outcome::Failed(Error::Refused(Refusal::Fenced)), kind) => {
                if let Some(kind) = kind {
                    let returned = self.tick + 1_000;
                    self.record(running.key, Event { kind, client, invoked, returned, maybe: true });
                }
                return;
            }
            (Outcome::Failed(error), _) => panic!("{error}"),
            (Outcome::Done | Outcome::WrongVersion, kind) => panic!("no such outcome of {kind:?}"),
        };
        self.record(running.key, Event { kind, client, invoked, returned, maybe: false });
    }

    fn launch(&mut self, verb: Verb) -> Flying {
        match verb {
            Verb::Read { at, len } => {
                let mut pieces: Vec<(usize, usize)> = Vec::new();
                let whole = self.choices.pick(2) == 0;
                let step = if whole { len as usize } else { 16 << self.choices.pick(4) };
                let mut from = 0;
                while from < len as usize {
                    let to = (from + step).min(len as usize);
                    pieces.insert(self.choices.pick(pieces.len() + 1), (from, to));
                    from = to;
                }
                Flying::Read { at, bytes: vec![0; len as usize], pieces }
            }
            Verb::Write { at, bytes } => {
                let pieces = self.pieces(at, &bytes);
                Flying::Write { pieces, persist: None }
            }
            Verb::Persist(updates) => {
                let ranges = updates.iter().map(|(at, bytes)| (*at, at + bytes.len() as u64)).collect();
                let pieces = updates.iter().flat_map(|(at, bytes)| self.pieces(*at, bytes)).collect();
                Flying::Write { pieces, persist: Some(ranges) }
            }
            Verb::Call(request) => Flying::Call(request),
        }
    }

    fn pieces(&mut self, at: u64, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let step = 32 << self.choices.pick(6);
        let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
        for (n, piece) in bytes.chunks(step).enumerate() {
            let place = self.choices.pick(pieces.len() + 1);
            pieces.insert(place, (at + (n * step) as u64, piece.to_vec()));
        }
        pieces
    }

    /// A work request makes one more step.
    fn fly(&mut self, actor: usize) {
        self.tick += 1;
        let id = self.actors[actor].id;
        let running = self.actors[actor].running.as_mut().expect("it runs");
        let completion = match running.flying.front_mut().expect("it flies") {
            Flying::Read { at, bytes, pieces } => {
                if let Some((from, to)) = pieces.pop() {
                    self.image.read(*at + from as u64, &mut bytes[from..to]);
                }
                pieces.is_empty().then(|| Completion::Read(std::mem::take(bytes)))
            }
            Flying::Write { pieces, persist } => match (pieces.pop(), persist) {
                (Some((at, piece)), _) => {
                    self.image.write(at, &piece);
                    None
                }
                (None, None) => Some(Completion::Written),
                (None, Some(ranges)) => {
                    ranges.iter().for_each(|(from, to)| self.image.pwb(*from..*to));
                    self.image.psync().expect("memory does not fail");
                    Some(Completion::Persistent)
                }
            },
            Flying::Call(request) => {
                Some(Completion::Reply(self.server.handle(self.now, id, &request.clone())))
            }
        };
        if let Some(completion) = completion {
            running.flying.pop_front();
            running.done.push(completion);
        }
    }

    /// Every history could have been.
    fn check(&mut self) {
        for (key, history) in std::mem::take(&mut self.histories) {
            if !history.is_linearizable() {
                eprint!("{}", history.json_lines("", &key));
                panic!("no register could have had this history of {:?}", String::from_utf8_lossy(&key));
            }
            self.checked.push((key, history));
        }
    }
}

/// Sums of what several runs of a server did.
trait Sum {
    fn sum(&self, into: &mut remanence_kv::server::Stats);
}

impl Sum for Server<Arc<CrashImage>> {
    fn sum(&self, into: &mut remanence_kv::server::Stats) {
        let stats = self.stats();
        into.reserved += stats.reserved;
        into.settled += stats.settled;
        into.given_up += stats.given_up;
        into.written += stats.written;
        into.unfinished += stats.unfinished;
        into.regions_freed += stats.regions_freed;
        into.objects_moved += stats.objects_moved;
        into.entries_moved += stats.entries_moved;
        into.grown += stats.grown;
        into.damaged += stats.damaged;
        into.repaired += stats.repaired;
        into.fenced += stats.fenced;
    }
}
