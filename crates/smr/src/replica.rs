//! A replica: its memory in a file, the server that its peers join, the one that clients ask, and the thread that drives its machine.
//!
//! The *driving* thread has the machine ([`mu::Replica`](remanence_coord::mu::Replica)) and the [service](remanence_coord::mu::service), and the connections to all others on
//! one reactor. It waits in one place: until something comes on a connection, the machine's deadline is due, or other threads have something
//! for it ([`mailbox`](crate::mailbox)): clients' questions, rights that were changed, connections that were made. Nobody waits for a peer: each connection
//! is made by a thread of its own, which ends with that. What peers read and write one-sidedly the device serves.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remanence_coord::mu::memory::{OpenError, file_options};
use remanence_coord::mu::service::{Ask, NOBODY, Query, Service, Status, Step, Told};
use remanence_coord::mu::{Action, Geometry, Input, Memory, Options, Plane, Replica as Machine};
use remanence_coord::replicated::sessions::NotApplied;
use remanence_persist::Config;
use remanence_persist::taxonomy::Domain;
use remanence_pmem::image::Fault;
use remanence_pmem::layout::Uuid;
use remanence_pmem::{PersistenceDomain, Region};
use remanence_remote::{
    Malformed, Reactor, Server, ServerOptions, Session, SessionControl, Stop, Token, Unanswered, Waiter,
};
use remanence_verbs::Context;

use crate::SERVICE;
use crate::link::{Link, Op};
use crate::mailbox::{Mail, Mailbox};
use crate::rights::{Change, Group, JOIN, Join, Rights, lock};

/// How long a peer may take to let a connection be made.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long one is left alone to which there was no connection to be had, and one that was lost. A peer that comes back says so by joining this one.
const PAUSE: Duration = Duration::from_millis(200);
const AGAIN: Duration = Duration::from_millis(5);
/// Bytes of a message of a client, or to it, and how many it may have under way.
const MESSAGE: u32 = 8192;
const MESSAGES: u16 = 8;
/// Sessions of peers: two each, and some that are over and not known to be.
const PEERS: u16 = 128;

/// How a replica is made.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    file: PathBuf,
    me: usize,
    members: Vec<SocketAddr>,
    port: u16,
    geometry: Geometry,
    machine: Options,
    sessions: u32,
    clients: u16,
    declared: Option<PersistenceDomain>,
    tokens: Option<(Token, Token)>,
    insecure: bool,
}

impl ReplicaOptions {
    /// The replica `me` of these, which are named by where they listen for each other, in the same order everywhere. Its memory is that file: on a disk, on a DAX
    /// file system, or in shared memory. It is made if it is not there.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>, me: usize, members: Vec<SocketAddr>) -> Self {
        let geometry = Geometry {
            replicas: members.len() as u16,
            slots: 4096,
            slot: 4096,
            window: 64,
            snapshot: 2 << 20,
        };
        Self {
            file: file.into(),
            me,
            members,
            port: 0,
            geometry,
            machine: Options::new(Duration::from_millis(5)),
            sessions: 1024,
            clients: 64,
            declared: None,
            tokens: None,
            insecure: false,
        }
    }

    /// The port of clients; 0, or nothing said: one that is free.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// How a new log is divided: the same everywhere. The number of replicas is that of the members, whatever this says. If nothing is said: 4,096 entries of 4 KiB, of
    /// which 64 are not decided, and snapshots of 2 MiB.
    #[must_use]
    pub fn geometry(mut self, geometry: Geometry) -> Self {
        self.geometry = Geometry { replicas: self.members.len() as u16, ..geometry };
        self
    }

    /// The time between two beats; 5 ms if nothing is said. A replica that is silent for some twenty of them is taken for dead, and replaced if it led.
    #[must_use]
    pub const fn beat(mut self, period: Duration) -> Self {
        self.machine = Options::new(period);
        self
    }

    /// Clients at a time from one address, and a quarter more from others; 64 if nothing is said.
    #[must_use]
    pub const fn clients(mut self, count: u16) -> Self {
        self.clients = count;
        self
    }

    /// Sessions of clients that the state has at most; a new one takes the place of the one that has been silent for longest. The same everywhere; 1,024 if nothing is said.
    #[must_use]
    pub const fn sessions(mut self, count: u32) -> Self {
        self.sessions = count;
        self
    }

    /// Takes the operator's word for the persistence domain of the file, where the machine does not tell.
    #[must_use]
    pub const fn declare(mut self, domain: PersistenceDomain) -> Self {
        self.declared = Some(domain);
        self
    }

    /// Admits only clients that prove to have the first token, and only replicas that prove to have the second one, which no client has: who joins as a replica
    /// may write the log. Without them only this machine may reach the replica.
    #[must_use]
    pub fn tokens(mut self, clients: Token, members: Token) -> Self {
        self.tokens = Some((clients, members));
        self
    }

    /// Lets others than this machine reach it without a token.
    #[must_use]
    pub const fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// What goes into the checksum of each entry: the same at all members, and another one for others.
    fn salt(&self) -> u64 {
        let names: Vec<String> = self.members.iter().map(ToString::to_string).collect();
        // FNV-1a.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        names.join(",").bytes().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    fn region(&self) -> Result<Region, remanence_pmem::Error> {
        let mut file = file_options().only_durable(true).create(self.geometry.size());
        if let Some(domain) = self.declared {
            file = file.declare(domain);
        }
        file.open(&self.file)
    }
}

/// Why a replica does not serve.
#[derive(thiserror::Error)]
pub enum ReplicaError {
    /// Peers or clients cannot be served.
    #[error(transparent)]
    Serve(#[from] remanence_remote::Error),
    /// Its file cannot be mapped.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
    /// What is in the file is no replica's memory.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is another replica's.
    #[error("{0}")]
    Other(String),
    /// An entry cannot be applied.
    #[error("entry {0} of the log {1}")]
    NotApplied(u64, #[source] NotApplied),
    /// A snapshot is none of this service.
    #[error("the snapshot at entry {0} is none of this service: {1}")]
    NotRestored(u64, #[source] Malformed),
    /// The service has outgrown its replicas.
    #[error("the state has {0} bytes, and a snapshot has room for {1}; nothing that was answered is lost")]
    Outgrown(usize, usize),
    /// The medium of the file failed.
    #[error("the medium of the log failed ({0}); check the disk, and start the replica again")]
    Medium(#[source] std::io::Error),
    /// Its device is gone.
    #[error("the device of the replica is gone: {0}")]
    Device(String),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for ReplicaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Told by the thread that drives a replica how it is, when another one leads.
type Watch = Box<dyn FnMut(&Status) + Send>;
/// Told why another replica is not connected to, when that is another reason than before.
type Trouble = Box<dyn FnMut(usize, &str) + Send>;

/// A replica of a service. It has its ports from [`bind`](Self::bind) on, and takes part while it [runs](Self::run).
pub struct Replica<S> {
    members: Server,
    clients: Server,
    rights: Arc<Mutex<Rights>>,
    mailbox: Arc<Mailbox>,
    driver: Driver<S>,
    is_new: bool,
}

impl<S> std::fmt::Debug for Replica<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("clients", &self.clients).finish_non_exhaustive()
    }
}

impl<S: Query + Send> Replica<S> {
    /// Opens its memory, or makes it, and takes both ports. The device is at its own address among the members.
    ///
    /// # Errors
    /// One sentence that says what to do: a port is taken, the file is another replica's or none's, or others could reach it without a token.
    pub fn bind(context: &Context, options: &ReplicaOptions) -> Result<Self, ReplicaError> {
        let (geometry, me) = (options.geometry, options.me);
        if !geometry.is_fair() || me >= options.members.len() {
            return Err(ReplicaError::Other(format!(
                "there is no replica {me} of {}; a group has 1 to 16 of them, numbered from 0, and a log with room for four windows",
                options.members.len()
            )));
        }
        let group = Group { geometry, salt: options.salt() };
        let (region, is_new) = open(options, &group)?;
        let base = since_the_epoch();
        let machine = Machine::open(base, region.clone(), options.machine)?;
        let reactor = Reactor::new(context).map_err(remanence_remote::Error::from)?;
        let mailbox = Arc::new(Mailbox::new(reactor.waker()));
        let mut served = ServerOptions::new(context, region.clone(), options.members[me].port())
            .serves("a replica, for other replicas")
            .sessions(PEERS)
            .messages(MESSAGES, 512)
            .without_buffers()
            .guarded();
        // Clients have nothing to read or write here: they ask.
        let mut asked = ServerOptions::new(context, Region::anonymous(4096)?, options.port)
            .declare(Config::software(Domain::Process))
            .serves("a replicated service")
            .sessions(options.clients)
            .messages(MESSAGES, MESSAGE)
            .without_buffers()
            .guarded();
        if let Some((clients, members)) = &options.tokens {
            (served, asked) = (served.token(members.clone()), asked.token(clients.clone()));
        }
        if options.insecure {
            (served, asked) = (served.insecure(), asked.insecure());
        }
        let (mut members, mut clients) = (Server::bind(served)?, Server::bind(asked)?);
        let of_members = (members.grants(), members.cutter());
        let rights = Arc::new(Mutex::new(Rights::new(me as u16, group, of_members, Arc::clone(&mailbox))));
        let joins = Arc::clone(&rights);
        members.on_call(JOIN, move |call| lock(&joins).joins(call));
        let turns = Arc::clone(&rights);
        members.on_turn(move |_| {
            lock(&turns).turn();
            Some(Duration::MAX)
        });
        let (asks, control) = (Arc::clone(&mailbox), clients.cutter());
        clients.on_call_later(SERVICE, move |call, unanswered| match Ask::parse(call.request) {
            Ok(ask) => asks.put(Mail::Asked { ask, unanswered }),
            Err(malformed) => control.answer(unanswered, Err(malformed.to_string())),
        });
        let now = Instant::now();
        let driver = Driver {
            group,
            region,
            machine,
            service: Service::new(options.sessions),
            begin: now,
            base,
            peers: options.members.clone(),
            token: options.tokens.as_ref().map(|(_, members)| members.clone()),
            links: options.members.iter().map(|_| [State::Down(now), State::Down(now)]).collect(),
            waiter: reactor.waiter(),
            reactor,
            asked: BTreeMap::new(),
            tokens: 0,
            control: clients.cutter(),
            told: Vec::new(),
            said: None,
            watch: None,
            troubles: vec![String::new(); options.members.len()],
            trouble: None,
        };
        Ok(Self { members, clients, rights, mailbox, driver, is_new })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.clients.addr()
    }

    /// Whether its memory was made just now: it has nothing, and votes as one that has nothing.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }

    /// Which failures acknowledged commands survive as far as this replica is concerned, in few words.
    #[must_use]
    pub fn summary(&self) -> String {
        self.members.summary()
    }

    /// Has somebody told when it takes another one for the leader, or leads itself, or does so no more.
    pub fn on_change(&mut self, watch: impl FnMut(&Status) + Send + 'static) {
        self.driver.watch = Some(Box::new(watch));
    }

    /// Has somebody told why another replica is not connected to, by its number, when that is another reason than before.
    pub fn on_trouble(&mut self, trouble: impl FnMut(usize, &str) + Send + 'static) {
        self.driver.trouble = Some(Box::new(trouble));
    }

    /// Takes part until it is stopped, which it hears of at once.
    ///
    /// # Errors
    /// Its medium failed, its device is gone, or the service cannot go on: nothing that was answered is lost.
    pub fn run(&mut self, stop: &Stop) -> Result<(), ReplicaError> {
        let Self { members, clients, rights, mailbox, driver, .. } = self;
        let (serving, mailbox, rights) = (Stop::new(), &*mailbox, &**rights);
        std::thread::scope(|scope| {
            // However this ends, they do.
            let ends = Ends(&serving);
            let mut served = Vec::new();
            for server in [members, clients] {
                let serving = &serving;
                served.push(scope.spawn(move || {
                    let result = server.run(serving);
                    mailbox.put(Mail::Over);
                    result
                }));
            }
            let driven = driver.run(stop, mailbox, rights);
            driver.leaves();
            drop(ends);
            let served = served.into_iter().map(|server| match server.join() {
                Ok(result) => result.map(drop).map_err(ReplicaError::from),
                Err(panic) => std::panic::resume_unwind(panic),
            });
            served.fold(driven, Result::and)
        })
    }
}

/// The machine's time goes on from one life of a replica to the next, as far as that of its host does.
fn since_the_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

struct Ends<'a>(&'a Stop);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.ask();
    }
}

/// The memory of a replica, and whether it was made just now.
fn open(options: &ReplicaOptions, group: &Group) -> Result<(Region, bool), ReplicaError> {
    let region = options.region()?;
    let is_blank =
        matches!(Memory::open(region.clone()), Err(OpenError::Superblock(Fault::Blank | Fault::Making)));
    if is_blank {
        let mut name = [0; 16];
        getrandom::fill(&mut name).expect("the kernel gives random bytes");
        Memory::create(&region, group.geometry, options.me as u16, Uuid(name), group.salt)
            .map_err(ReplicaError::Medium)?;
    }
    let memory = Memory::open(region.clone())?;
    let is_other = memory.me() != options.me || memory.salt() != group.salt;
    if is_other || *memory.geometry() != group.geometry {
        return Err(ReplicaError::Other(format!(
            "{} is the memory of replica {} of {} members, and was made for others, or in another order, or divided otherwise; start it as it was, \
             or name another file",
            options.file.display(),
            memory.me(),
            memory.geometry().replicas
        )));
    }
    Ok((region, is_blank))
}

/// A connection to a peer.
#[derive(Debug)]
enum State {
    /// There is none, and none is made before that.
    Down(Instant),
    /// A thread makes one.
    Dialing,
    Up(Box<Link>),
}

/// What the driving thread has.
struct Driver<S> {
    group: Group,
    region: Region,
    machine: Machine<Region>,
    service: Service<S>,
    begin: Instant,
    base: Duration,
    peers: Vec<SocketAddr>,
    token: Option<Token>,
    links: Vec<[State; 2]>,
    reactor: Reactor,
    waiter: Waiter,
    /// Who is to be answered.
    asked: BTreeMap<u64, Unanswered>,
    tokens: u64,
    control: SessionControl,
    told: Vec<Input>,
    said: Option<Status>,
    watch: Option<Watch>,
    /// Why each peer is not connected to, as it was told last.
    troubles: Vec<String>,
    trouble: Option<Trouble>,
}

impl<S: Query> Driver<S> {
    fn now(&self) -> Duration {
        self.base + self.begin.elapsed()
    }

    fn run(
        &mut self,
        stop: &Stop,
        mailbox: &Arc<Mailbox>,
        rights: &Mutex<Rights>,
    ) -> Result<(), ReplicaError> {
        let waker = self.reactor.waker();
        let _wakes = stop.wakes(move || waker.wake());
        let mut is_over = false;
        while !stop.is_asked() && !is_over {
            let mut any = false;
            for mail in mailbox.take() {
                any = true;
                is_over |= matches!(mail, Mail::Over);
                self.takes(mail);
            }
            any |= self.polls();
            if self.machine.deadline().is_some_and(|due| due <= self.now()) {
                let now = self.now();
                self.machine.handle(now, Input::Timeout);
            }
            any |= self.acts(rights)?;
            self.dials(mailbox);
            self.tells();
            // What was to be done may have let something begin, and something may have come of that at once.
            if !any {
                let end = self.next();
                self.waiter.wait(Some(end)).map_err(|e| ReplicaError::Device(e.to_string()))?;
            }
        }
        Ok(())
    }

    /// Nothing more is asked of others.
    fn leaves(&mut self) {
        let now = Instant::now();
        self.links.iter_mut().flatten().for_each(|link| *link = State::Down(now));
    }

    /// When something is due though nothing comes.
    fn next(&self) -> Instant {
        let of_machine = self.machine.deadline().map(|due| Instant::now() + due.saturating_sub(self.now()));
        let down = self.others().flat_map(|peer| &self.links[peer]).filter_map(|link| match link {
            State::Down(until) => Some(*until),
            State::Dialing | State::Up(_) => None,
        });
        of_machine.into_iter().chain(down).min().unwrap_or_else(|| Instant::now() + PATIENCE)
    }

    fn me(&self) -> usize {
        self.machine.memory().me()
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<S> {
        let me = self.me();
        (0..self.peers.len()).filter(move |peer| *peer != me)
    }

    fn takes(&mut self, mail: Mail) {
        let now = self.now();
        match mail {
            Mail::Asked { ask: Ask::Status, unanswered } => {
                self.control.answer(unanswered, Ok(Told::Status(self.status()).emit()));
            }
            Mail::Asked { ask, unanswered } => {
                self.tokens += 1;
                let token = self.tokens;
                match self.service.ask(token, ask) {
                    Step::Tell(told) => self.answer(unanswered, &told),
                    Step::Propose(value) => {
                        self.asked.insert(token, unanswered);
                        self.machine.handle(now, Input::Propose { token, value });
                    }
                    Step::Confirm => {
                        self.asked.insert(token, unanswered);
                        self.machine.handle(now, Input::Confirm { token });
                    }
                }
            }
            Mail::Happened(input) => self.machine.handle(now, input),
            Mail::Dialed { peer, plane, link } => {
                let state = &mut self.links[peer][plane as usize];
                match link {
                    Ok(link) => {
                        *state = State::Up(link);
                        self.troubles[peer].clear();
                        self.machine.handle(now, Input::Connected { peer, plane });
                    }
                    Err(why) => {
                        *state = State::Down(Instant::now() + PAUSE);
                        if self.troubles[peer] != why
                            && let Some(trouble) = &mut self.trouble
                        {
                            trouble(peer, &why);
                        }
                        self.troubles[peer] = why;
                    }
                }
            }
            Mail::Joined { peer } => {
                for link in &mut self.links[peer] {
                    if let State::Down(until) = link {
                        *until = Instant::now();
                    }
                }
            }
            Mail::Over => {}
        }
    }

    /// Looks at the connections. Whether anything has come.
    fn polls(&mut self) -> bool {
        let mut any = false;
        for (peer, plane) in self.others().flat_map(|peer| Plane::ALL.map(|plane| (peer, plane))) {
            let State::Up(link) = &mut self.links[peer][plane as usize] else { continue };
            let mut told = std::mem::take(&mut self.told);
            let polled = link.poll(&mut told);
            let now = self.now();
            any |= !told.is_empty() || polled.is_err();
            told.drain(..).for_each(|input| self.machine.handle(now, input));
            self.told = told;
            if polled.is_err() {
                self.links[peer][plane as usize] = State::Down(Instant::now() + AGAIN);
                self.machine.handle(now, Input::Lost { peer, plane });
            }
        }
        any
    }

    /// Does what the machine says. Whether that was anything.
    fn acts(&mut self, rights: &Mutex<Rights>) -> Result<bool, ReplicaError> {
        let mut any = false;
        while let Some(action) = self.machine.poll_action() {
            any = true;
            match action {
                Action::Read { peer, plane, offset, len } => self.push(peer, plane, Op::Read { offset, len }),
                Action::Write { peer, plane, offset, bytes } => {
                    self.push(peer, plane, Op::Write { offset, bytes });
                }
                Action::Update { peer, updates } => self.push(peer, Plane::Replication, Op::update(updates)),
                Action::Reconnect { peer, plane } => {
                    self.links[peer][plane as usize] = State::Down(Instant::now());
                }
                Action::Revoke => lock(rights).wants(Change::Revoke),
                Action::Allow { peer } => lock(rights).wants(Change::Allow { peer }),
                Action::Apply { index, value, token, .. } => {
                    let told = self.service.applied(index, value.as_deref(), token);
                    let told = told.map_err(|why| ReplicaError::NotApplied(index, why))?;
                    self.answers(token, told);
                }
                Action::Restore { index, state } => {
                    let restored = self.service.restore(&state);
                    restored.map_err(|why| ReplicaError::NotRestored(index, why))?;
                }
                Action::Snapshot { index } => {
                    let (state, most) = (self.service.snapshot(), self.group.geometry.state_max());
                    if state.len() > most {
                        return Err(ReplicaError::Outgrown(state.len(), most));
                    }
                    let now = self.now();
                    self.machine.handle(now, Input::Snapshot { index, state });
                }
                Action::Confirmed { token } => {
                    let told = self.service.confirmed(token);
                    self.answers(Some(token), told);
                }
                Action::Refuse { token, why } => {
                    let told = self.service.refused(token, why, self.group.geometry.value_max());
                    self.answers(Some(token), told);
                }
                Action::Forget { token } => {
                    let told = self.service.forgotten(token);
                    self.answers(Some(token), told);
                }
                Action::Stop => {
                    let failed = self.region.failure().err();
                    let failed = failed.unwrap_or_else(|| std::io::Error::other("a sync failed"));
                    return Err(ReplicaError::Medium(failed));
                }
            }
        }
        Ok(any)
    }

    fn push(&mut self, peer: usize, plane: Plane, op: Op) {
        if let State::Up(link) = &mut self.links[peer][plane as usize] {
            link.push(op);
        }
    }

    fn answers(&mut self, token: Option<u64>, told: Option<Told>) {
        if let Some(told) = told
            && let Some(unanswered) = token.and_then(|token| self.asked.remove(&token))
        {
            self.answer(unanswered, &told);
        }
    }

    fn answer(&self, unanswered: Unanswered, told: &Told) {
        let (bytes, max) = (told.emit(), unanswered.answer_max());
        let answer = if bytes.len() <= max {
            Ok(bytes)
        } else {
            let len = bytes.len();
            Err(format!("it was carried out, and its answer has {len} bytes where {max} fit into a message"))
        };
        self.control.answer(unanswered, answer);
    }

    /// Has connections made that are not there.
    fn dials(&mut self, mailbox: &Arc<Mailbox>) {
        for (peer, plane) in self.others().flat_map(|peer| Plane::ALL.map(|plane| (peer, plane))) {
            let now = Instant::now();
            if !matches!(self.links[peer][plane as usize], State::Down(until) if until <= now) {
                continue;
            }
            let dial = Dial {
                reactor: self.reactor.clone(),
                to: self.peers[peer],
                token: self.token.clone(),
                ends: (self.me(), peer, plane),
                group: self.group,
            };
            let mailbox = Arc::clone(mailbox);
            let dialing = move || {
                let link = dial.dial();
                mailbox.put(Mail::Dialed { peer, plane, link });
            };
            // Where the system gives no thread, it is tried again.
            let spawned = std::thread::Builder::new().name("smr-dial".into()).spawn(dialing);
            self.links[peer][plane as usize] = match spawned {
                Ok(_) => State::Dialing,
                Err(_) => State::Down(now + PAUSE),
            };
        }
    }

    fn status(&self) -> Status {
        let is_there = |peer: &usize| self.links[*peer].iter().all(|link| matches!(link, State::Up(_)));
        Status {
            me: self.me() as u16,
            replicas: self.peers.len() as u16,
            leader: self.machine.leader().map_or(NOBODY, |leader| leader as u16),
            term: self.machine.leads().unwrap_or(0),
            applied: self.machine.applied(),
            snapshot: self.machine.head(),
            sessions: self.service.state().sessions() as u32,
            connected: self.others().filter(is_there).count() as u16,
        }
    }

    /// Tells whoever wants to know when the leader is another one.
    fn tells(&mut self) {
        let leads = |status: &Status| (status.leader, status.term);
        let now =
            (self.machine.leader().map_or(NOBODY, |leader| leader as u16), self.machine.leads().unwrap_or(0));
        if self.watch.is_some() && self.said.as_ref().map(leads) != Some(now) {
            let status = self.status();
            if let Some(watch) = &mut self.watch {
                watch(&status);
            }
            self.said = Some(status);
        }
    }
}

/// How a connection is made.
struct Dial {
    reactor: Reactor,
    to: SocketAddr,
    token: Option<Token>,
    ends: (usize, usize, Plane),
    group: Group,
}

impl Dial {
    fn dial(self) -> Result<Box<Link>, String> {
        let (me, _, plane) = self.ends;
        let geometry = self.group.geometry;
        // What is read and written at a time lies there.
        let whole =
            u64::from(geometry.snapshot).max(u64::from(geometry.window.max(64)) * u64::from(geometry.slot));
        let options = remanence_remote::Options::default()
            .tokens(self.token)
            .patience(PATIENCE)
            .depth(64)
            .staging(if plane == Plane::Replication { 4 * whole } else { 4096 })
            .costs(remanence_remote::CostSource::Fixed(remanence_persist::plan::Costs::PAPERS));
        let said = |error: remanence_remote::Error| error.to_string();
        let mut session = Session::connect_on(&self.reactor, self.to, options).map_err(said)?;
        let join = Join { from: me as u16, plane, group: self.group };
        let keys = session.call(JOIN, &join.emit()).map_err(said)?;
        Link::new(self.ends, geometry, session, &keys).map(Box::new)
    }
}
