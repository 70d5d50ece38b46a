//! A connection to a server: what the client's operations want, carried out over it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remanence_persist::Config;
use remanence_persist::plan::Request as PlanRequest;
use remanence_persist::recipe::Op;
use remanence_pmem::Survives;
use std::task::{Context as Task, Poll};

use remanence_remote::{
    CostSource, Done, Face, Options, Plan, Reactor, RemoteRegion, Role, Token, Work, at_once,
};
use remanence_verbs::Context;

use super::wire::{Answer, CALL_HEADER, Call, Hello, Key, VERSION, What, parse_keyed};
use super::{Error, SERVICE};
use remanence_kv::client::{Completion, RemoteMemory, Verb};
use remanence_kv::proto::{Reply, Request};
use remanence_kv::view::{Mode, View};

/// Updates of a recipe at most.
const UPDATES_MAX: usize = 64;
/// Bytes of a recipe's updates, unless one alone has more: they lie in staging together.
const RUN_MAX: usize = 4 << 20;
/// The first waits for others only offer the processor; after them each is longer, up to [`NAP_MAX`].
const YIELDS: u32 = 16;
const NAP_MAX: Duration = Duration::from_millis(5);

/// A wait for others that was preceded by so many less one.
pub(super) fn nap(tries: u32) {
    if tries <= YIELDS {
        std::thread::yield_now();
    } else {
        std::thread::sleep(nap_of(tries));
    }
}

/// How long such a wait is, for who does not only offer the processor.
pub(super) fn nap_of(tries: u32) -> Duration {
    NAP_MAX.min(Duration::from_micros(50) * tries.saturating_sub(YIELDS).max(1))
}

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    remote: Options,
    tokens: Vec<Token>,
    patience: Duration,
    pub(super) locations: usize,
    pub(super) reconnect: bool,
    descriptor: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let patience = Duration::from_secs(30);
        let remote = Options::default().patience(patience);
        Self { remote, tokens: Vec::new(), patience, locations: 1 << 16, reconnect: true, descriptor: false }
    }
}

impl ConnectOptions {
    /// How long the server may go without a sign, others may be in the way, and a server that is gone may take to come back;
    /// 30 s if nothing is said.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.remote = self.remote.patience(limit);
        self.patience = limit;
        self
    }

    /// How many locations the client keeps, so that a GET of one takes one READ; 65536 if nothing is said.
    #[must_use]
    pub const fn locations(mut self, count: usize) -> Self {
        self.locations = count;
        self
    }

    /// Whether a [`Store`](super::Store) connects again when the connection is lost; yes if nothing is said.
    #[must_use]
    pub const fn reconnect(mut self, yes: bool) -> Self {
        self.reconnect = yes;
        self
    }

    /// Whether the connection has a [descriptor](super::Store::arm) for a thread that waits for other things as well; no if nothing is said.
    #[must_use]
    pub const fn descriptor(mut self, yes: bool) -> Self {
        self.descriptor = yes;
        self
    }

    /// What this side knows of the server, or wants to be assumed of it: see
    /// [`Options::declare`](remanence_remote::Options::declare).
    #[must_use]
    pub fn declare(mut self, config: Config) -> Self {
        self.remote = self.remote.declare(config);
        self
    }

    /// The token of the server, or several of which one is its own.
    #[must_use]
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.tokens = tokens.into_iter().collect();
        self.remote = self.remote.tokens(self.tokens.clone());
        self
    }

    /// What persistence recipes are compared by; measured once for each server if nothing is said.
    #[must_use]
    pub fn costs(mut self, source: CostSource) -> Self {
        self.remote = self.remote.costs(source);
        self
    }

    /// The same, with somebody who looks whether to go on waiting for a server that is silent.
    pub(super) fn watched(
        &self,
        every: Duration,
        is_over: impl Fn(Duration) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { remote: self.remote.clone().give_up(every, is_over), ..self.clone() }
    }

    /// These options of a connection to where a member answers clients, with the tokens of this.
    pub(super) fn to_member(&self, plain: Options) -> Options {
        plain.tokens(self.tokens.clone())
    }

    /// How long it waits: see [`patience`](Self::patience).
    #[must_use]
    pub const fn waits(&self) -> Duration {
        self.patience
    }
}

/// A reactor for the sessions of a client.
pub(super) fn reactor(context: &Context, options: &ConnectOptions) -> Result<Reactor, Error> {
    let make = if options.descriptor { Reactor::with_descriptor } else { Reactor::new };
    Ok(make(context).map_err(remanence_remote::Error::from)?)
}

/// One connection to one server: the memory and the server that the client's operations reach. Dropped, it disconnects.
#[derive(Debug)]
pub struct Session {
    remote: remanence_remote::Session,
    patience: Duration,
    lease: Duration,
    /// What the server's clock showed at least, and when.
    clock: (u64, Instant),
    tag: u32,
    plans: BTreeMap<(usize, u32), Plan>,
    method: Option<Op>,
    survives: Option<Survives>,
    /// What data survives for which the server has waited.
    synced: Survives,
    noticed: Option<u64>,
    by_immediate: bool,
    /// Since when others are in the way.
    waiting: Instant,
}

/// What a call waits for, and which of the works is its last part.
struct Asked {
    verb: usize,
    tag: u32,
    work: usize,
}

impl Session {
    /// Connects to a [`Server`](super::Server) and asks it for the view, with which a [`Client`](remanence_kv::Client) begins.
    ///
    /// # Errors
    /// One sentence that says what to do: nobody or something else listens there, it is of another version, it refuses.
    pub fn connect(
        context: &Context,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<(Self, View), Error> {
        Self::connect_on(&reactor(context, options)?, to, options)
    }

    /// As [`connect`](Self::connect), on a reactor that other sessions may share.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_on(
        reactor: &Reactor,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<(Self, View), Error> {
        let remote = remanence_remote::Session::connect_on(reactor, to, options.remote.clone())?;
        let mut this = Self {
            synced: remote.region().guarantee.after_psync,
            remote,
            patience: options.patience,
            lease: Duration::ZERO,
            clock: (0, Instant::now()),
            tag: 0,
            plans: BTreeMap::new(),
            method: None,
            survives: None,
            noticed: None,
            by_immediate: false,
            waiting: Instant::now(),
        };
        let said = match this.ask(What::Hello, &VERSION.to_le_bytes()) {
            Err(Error::Remote(remanence_remote::Error::Application(_))) => return Err(Error::Stranger(to)),
            said => said?,
        };
        let (hello, view) = Hello::parse(&said).ok_or(Error::Stranger(to))?;
        if hello.version != VERSION {
            return Err(Error::OtherVersion { peer: to, theirs: hello.version });
        }
        this.lease = Duration::from_millis(hello.lease);
        match Reply::parse(view) {
            Some(Reply::View(view)) if fits(&view, this.remote.region().len) => {
                this.by_immediate = view.mode == Mode::Erda && this.remote.call_by_immediate()?;
                Ok((this, view))
            }
            _ => Err(Error::Protocol("its view is none")),
        }
    }

    /// What both sides rely on.
    #[must_use]
    pub const fn config(&self) -> &Config {
        self.remote.config()
    }

    /// What the server lets this client do, by the token that it has.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.remote.role()
    }

    /// Whether requests go by WRITE with immediate, which has this client's number in it: the paper's flow. They do at a server of mode
    /// [`Mode::Erda`], unless it is an older one, and for a client that may write.
    #[must_use]
    pub const fn calls_by_immediate(&self) -> bool {
        self.by_immediate
    }

    /// The server's memory, and what it promises.
    #[must_use]
    pub fn region(&self) -> RemoteRegion {
        self.remote.region()
    }

    /// How long the server waits for a client that holds others up.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// Which failures the last value that was made durable survives: by the recipe's token, or by the server's word if it wrote
    /// the value.
    #[must_use]
    pub const fn survives(&self) -> Option<Survives> {
        self.survives
    }

    /// Uses the paper's recipe for this operation from now on, not the cheapest that is proven.
    pub fn use_method(&mut self, op: Option<Op>) {
        self.method = op;
        self.plans.clear();
    }

    /// The recipe for so many values of so many bytes, as text; and whether the server's CPU takes part in it.
    ///
    /// # Errors
    /// There is none.
    pub fn explain(&mut self, count: usize, len: u32) -> Result<(String, bool), Error> {
        let plan = at_once(self.plan(Face::Thread, count, len))?;
        Ok((plan.recipe.to_string(), plan.recipe.is_two_sided()))
    }

    /// The newest view that the server has told of since this was asked last. What has arrived is looked at, and nothing
    /// waited for.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn noticed(&mut self) -> Result<Option<u64>, Error> {
        self.remote.poll()?;
        self.collect_notices();
        Ok(self.noticed.take())
    }

    /// The same, of what arrived while something was waited for.
    pub(super) const fn take_notice(&mut self) -> Option<u64> {
        self.noticed.take()
    }

    fn collect_notices(&mut self) {
        while let Some(notice) = self.remote.notice() {
            if let Ok(view) = notice.try_into().map(u64::from_le_bytes) {
                self.noticed = self.noticed.max(Some(view));
            }
        }
    }

    /// One call of the host's own.
    pub(super) fn ask(&mut self, what: What, body: &[u8]) -> Result<Vec<u8>, Error> {
        at_once(self.ask_as(Face::Thread, what, body))
    }

    /// The same, of a task too.
    pub(super) async fn ask_as(&mut self, face: Face, what: What, body: &[u8]) -> Result<Vec<u8>, Error> {
        let mut calls = Vec::new();
        let tag = self.emit(what, body, &mut calls);
        let works: Vec<Work<'_>> =
            calls.iter().map(|request| Work::Call { service: SERVICE, request }).collect();
        let last = self.remote.together_as(face, &works).await?.pop();
        let Some(Done::Reply(answer)) = last else { return Err(Error::Protocol("no answer")) };
        self.answered(face, tag, answer).await
    }

    /// Whether others may be waited for again, after so many waits less one.
    pub(super) fn may_wait(&mut self, tries: u32) -> Result<(), Error> {
        if tries <= 1 {
            self.waiting = Instant::now();
        }
        if self.waiting.elapsed() >= self.patience {
            return Err(Error::Waited(
                self.patience.as_secs(),
                "writers of the key, or the cleaning of its log",
            ));
        }
        Ok(())
    }

    /// The reactor that the session is on.
    pub(super) fn reactor(&self) -> &Reactor {
        self.remote.reactor()
    }

    /// For a task: ready when something has come.
    pub(super) fn poll_ready(&mut self, task: &Task<'_>) -> Poll<()> {
        self.remote.poll_ready(task)
    }

    /// A call, in as many messages as it takes.
    fn emit(&mut self, what: What, body: &[u8], calls: &mut Vec<Vec<u8>>) -> u32 {
        self.tag = self.tag.wrapping_add(1);
        let tag = self.tag;
        let room = self.remote.call_max() - CALL_HEADER;
        let mut rest = body;
        while rest.len() > room {
            let (part, behind) = rest.split_at(room);
            calls.push(Call { what: What::Part, tag, body: part }.emit());
            rest = behind;
        }
        calls.push(Call { what, tag, body: rest }.emit());
        tag
    }

    /// The whole answer, of which this is the first part.
    async fn answered(
        &mut self,
        face: Face,
        tag: u32,
        first: Result<Vec<u8>, String>,
    ) -> Result<Vec<u8>, Error> {
        let mut next = first;
        let mut all = Vec::new();
        loop {
            let bytes = next.map_err(remanence_remote::Error::Application)?;
            let answer = Answer::parse(&bytes).ok_or(Error::Protocol("an answer is none"))?;
            // It was shown when this was sent, so that it shows as much at least.
            if answer.clock > self.clock_now() {
                self.clock = (answer.clock, Instant::now());
            }
            all.extend_from_slice(answer.body);
            if answer.left == 0 {
                return Ok(all);
            }
            if answer.body.is_empty() {
                return Err(Error::Protocol("an answer has no end"));
            }
            let rest = Call { what: What::Rest, tag, body: &[] }.emit();
            next = Ok(self.remote.call_as(face, SERVICE, &rest).await?);
        }
    }

    /// Why a post failed: of a write that took longer than the lease, who broke the connection is known.
    fn ended(&self, error: Error, verbs: &[Verb], begin: Instant) -> Error {
        let writes = verbs.iter().any(|verb| matches!(verb, Verb::Write { .. } | Verb::Persist(_)));
        if error.is_end() && writes && begin.elapsed() >= self.lease {
            return Error::Outlasted { lease: self.lease, why: error.reason() };
        }
        error
    }

    fn clock_now(&self) -> u64 {
        self.clock.0 + self.clock.1.elapsed().as_millis() as u64
    }

    /// The plan for so many updates, of which the largest has so many bytes.
    async fn plan(&mut self, face: Face, count: usize, largest: u32) -> Result<Plan, Error> {
        // Not one for each size: they differ in what they cost, and where a message becomes too large.
        let size = largest.next_power_of_two().max(64);
        if let Some(plan) = self.plans.get(&(count, size)) {
            return Ok(plan.clone());
        }
        let request = PlanRequest {
            sizes: vec![size; count],
            ordered: false,
            // A reader must find it in its place when it is acknowledged.
            replay: false,
            message_max: u32::MAX,
            ..PlanRequest::record(size)
        };
        let plan = match self.method {
            Some(op) => self.remote.plan_by_as(face, op, &request).await,
            None => self.remote.plan_as(face, &request).await,
        };
        let plan = plan.map_err(remanence_remote::Error::from)?;
        if plan.recipe.replay {
            return Err(Error::Argument(
                "with receive buffers in persistent memory a value would be durable before readers find it; have the server \
                 keep them in DRAM"
                    .to_owned(),
            ));
        }
        self.plans.insert((count, size), plan.clone());
        Ok(plan)
    }
}

/// Whether a view speaks of memory that the server exports.
fn fits(view: &View, len: u64) -> bool {
    view.geometry.check().is_ok() && view.geometry.size <= len
}

/// Updates in runs that a recipe can take.
fn runs(updates: &[(u64, Vec<u8>)]) -> Vec<&[(u64, Vec<u8>)]> {
    let mut runs = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (n, (_, update)) in updates.iter().enumerate() {
        if n > from && (n - from == UPDATES_MAX || bytes + update.len() > RUN_MAX) {
            runs.push(&updates[from..n]);
            (from, bytes) = (n, 0);
        }
        bytes += update.len();
    }
    if from < updates.len() {
        runs.push(&updates[from..]);
    }
    runs
}

/// The works of a post: which of them are whose.
enum Whose {
    /// Of the verb of that number, and its bytes are the completion.
    Verb(usize),
    /// A part of one.
    Part,
}

impl Session {
    /// Posts these, and waits for them as it says: see [`RemoteMemory::post`].
    pub(super) async fn post_as(&mut self, face: Face, verbs: Vec<Verb>) -> Result<Vec<Completion>, Error> {
        // What the works borrow from.
        let mut calls = Vec::new();
        let mut asked = Vec::new();
        let mut plans = Vec::new();
        for (n, verb) in verbs.iter().enumerate() {
            match verb {
                Verb::Call(request) => {
                    let tag = self.emit(What::Request, &Request::emit(request), &mut calls);
                    asked.push((n, tag, calls.len()));
                }
                Verb::Persist(updates) => {
                    for run in runs(updates) {
                        let largest = run.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(1);
                        let plan = self.plan(face, run.len(), largest as u32).await?;
                        let list: Vec<(u64, &[u8])> =
                            run.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
                        plans.push((n, plan, list));
                    }
                }
                Verb::Read { .. } | Verb::Write { .. } => {}
            }
        }
        let mut works = Vec::new();
        let mut whose = Vec::new();
        let mut waits = Vec::new();
        let (mut call, mut run) = (0, 0);
        for (n, verb) in verbs.iter().enumerate() {
            match verb {
                Verb::Read { at, len } => {
                    works.push(Work::Read { at: *at, len: *len });
                    whose.push(Whose::Verb(n));
                }
                Verb::Write { at, bytes } => {
                    works.push(Work::Write { at: *at, bytes });
                    whose.push(Whose::Verb(n));
                }
                Verb::Call(_) => {
                    let (_, tag, end) = *asked.iter().find(|(verb, ..)| *verb == n).expect("asked above");
                    for request in &calls[call..end] {
                        works.push(Work::Call { service: SERVICE, request });
                        whose.push(Whose::Part);
                    }
                    call = end;
                    waits.push(Asked { verb: n, tag, work: works.len() - 1 });
                }
                Verb::Persist(_) => {
                    while let Some((verb, plan, updates)) = plans.get(run)
                        && *verb == n
                    {
                        works.push(Work::Persist { plan, updates });
                        whose.push(Whose::Part);
                        run += 1;
                    }
                }
            }
        }
        let begin = Instant::now();
        let done = self.remote.together_as(face, &works).await;
        let done = done.map_err(|error| self.ended(error.into(), &verbs, begin))?;
        let mut done: Vec<Option<Done>> = done.into_iter().map(Some).collect();
        drop(works);
        // They were for one write.
        for verb in &verbs {
            match verb {
                Verb::Write { at, .. } => self.remote.forget_grant(*at),
                Verb::Persist(updates) => updates.iter().for_each(|(at, _)| self.remote.forget_grant(*at)),
                Verb::Read { .. } | Verb::Call(_) => {}
            }
        }
        let mut completions: Vec<Completion> = verbs
            .iter()
            .map(|verb| match verb {
                Verb::Persist(_) => Completion::Persistent,
                _ => Completion::Written,
            })
            .collect();
        for asked in waits {
            let Some(Done::Reply(answer)) = done[asked.work].take() else {
                return Err(Error::Protocol("no answer"));
            };
            let bytes = self.answered(face, asked.tag, answer).await?;
            let (keys, reply) = parse_keyed(&bytes).ok_or(Error::Protocol("a reply is none"))?;
            for Key { at, len, rkey } in keys {
                self.remote.grant(at, len.into(), rkey);
            }
            let reply = Reply::parse(reply).ok_or(Error::Protocol("a reply is none"))?;
            if reply.tells_of_a_value() {
                self.survives = Some(self.synced);
            }
            completions[asked.verb] = Completion::Reply(reply);
        }
        for (done, whose) in done.into_iter().zip(whose) {
            match (done, whose) {
                (Some(Done::Read(bytes)), Whose::Verb(n)) => completions[n] = Completion::Read(bytes),
                (Some(Done::Persistent(token)), Whose::Part) => self.survives = Some(token.survives()),
                // A part of a request that was refused: what the last part was told says so as well.
                (Some(_) | None, Whose::Verb(_) | Whose::Part) => {}
            }
        }
        self.collect_notices();
        Ok(completions)
    }
}

impl RemoteMemory for Session {
    type Error = Error;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Error> {
        at_once(self.post_as(Face::Thread, verbs))
    }

    fn now(&self) -> u64 {
        self.clock_now()
    }

    fn again(&mut self, tries: u32) -> Result<(), Error> {
        self.may_wait(tries)?;
        nap(tries);
        Ok(())
    }
}
