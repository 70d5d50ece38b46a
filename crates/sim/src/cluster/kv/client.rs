//! A client: `kv`'s machines on connections of the cluster, what it believes of what a primary says, and a user who wants something now
//! and then. The last one comes when everything has healed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::history::{Kind, State};
use remanence_coord::log::Epoch;
use remanence_coord::takeover::Role;
use remanence_kv::client::{Call, Client as Core, Completion, Error, Get, Operation, Progress, Put, Verb};
use remanence_kv::replica::guard::PROMISE_LEN;
use remanence_kv::replica::{Claim, Promise, is_current, likely_primary};
use remanence_kv::{Expect, Refusal, Reply, Request};

use super::member::{MEMORY, PROMISE};
use super::message::{ASK, HELLO, LEAD, NOTICE, REQUEST, Said, message, number};
use super::oracle::{Oracle, key_of, state_of, value_of};
use super::scan::Scan;
use crate::cluster::Input;
use crate::cluster::core::{ConnectionId, Host};
use crate::cluster::link::Link;
use crate::cluster::wire::NOT_LET;
use crate::rng::Rng;

/// Between two attempts to reach a member, or a primary.
const RETRY: Duration = Duration::from_millis(50);
/// A primary that is silent for so long may have been replaced, and the members are asked; and again after this.
const DOUBT: Duration = Duration::from_millis(50);
/// Between two questions who serves.
const AGAIN: Duration = Duration::from_millis(20);
/// A member that says nothing of its promise for so long counts as one that does not vouch.
const LATE: Duration = Duration::from_millis(250);
/// How long a client waits before it tries again what somebody else must finish first.
const PAUSE: Duration = Duration::from_millis(2);
/// How long an operation is waited for while the primary says nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the last client looks whether it is its turn.
const LOOK: Duration = Duration::from_millis(5);

/// What a member is asked, and has said.
#[derive(Debug)]
struct Scout {
    /// For whatever a client asks of one that need not be the primary.
    line: Link,
    claim: Option<Claim>,
    is_asked: bool,
    /// For which operations its promise is being read, the oldest first.
    reading: VecDeque<u64>,
}

/// The connection to a primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Session {
    None,
    Connecting(ConnectionId),
    Begun(ConnectionId),
    Up(ConnectionId),
}

impl Session {
    const fn connection(self) -> Option<ConnectionId> {
        match self {
            Self::None => None,
            Self::Connecting(connection) | Self::Begun(connection) | Self::Up(connection) => Some(connection),
        }
    }
}

enum Machine {
    Get(Get),
    Put(Box<Put>),
    Call(Call),
    Scan(Scan),
}

/// What became of an operation, before anybody has vouched for it.
type Outcome = Result<Option<(u64, Vec<u8>)>, Error>;

/// What a verb is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum For {
    /// What the operation itself has asked for.
    Step,
    /// What the server may wait for.
    Attend,
}

enum Phase {
    /// Verbs are carried out, one after the other.
    Posted,
    /// Somebody else must finish first.
    Waits(Duration),
    /// It is over, and members are asked whether that may be believed.
    Vouch { outcome: Outcome, round: u8, until: Duration },
}

struct Running {
    machine: Machine,
    key: Vec<u8>,
    /// What it does to the history if it succeeds; `None` for a GET.
    kind: Option<Kind>,
    invoked: u64,
    number: u64,
    since: Duration,
    promises: BTreeMap<usize, Promise>,
    todo: VecDeque<(For, Verb)>,
    under_way: Option<For>,
    done: Vec<Completion>,
    phase: Phase,
    /// The server was asked to change something.
    was_sent: bool,
}

pub(super) struct Client {
    rng: Rng,
    number: usize,
    /// How far the last client has come: it reads all keys, writes them, and reads them again. `None`: it is a usual one.
    last: Option<u64>,
    scouts: Vec<Scout>,
    session: Session,
    /// The member that it is connected to.
    at: usize,
    /// It looks for a primary again then; or, if it is connected to one and waits for it, for a later one.
    looks_at: Duration,
    epoch: Epoch,
    acks: usize,
    clock: u64,
    core: Option<Core>,
    is_noticed: bool,
    running: Option<Running>,
    operations: u64,
    next_turn: Duration,
    /// What it has seen of a key last: a version, and of which write.
    seen: BTreeMap<Vec<u8>, (u64, State)>,
    is_over: bool,
}

impl Client {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Self {
        let (node, life) = (host.node(), host.life());
        let plan = &host.known().plan;
        let members = usize::from(plan.servers);
        let number = node - members;
        let is_last = number == usize::from(plan.clients);
        let mut rng = Rng::new(host.known().seed, (3000 + number as u64) << 32 ^ u64::from(life));
        let heals = plan.heals;
        let after = if is_last { heals } else { rng.below(heals / 4) / (1 + u64::from(life)) };
        let now = host.now();
        host.oracle().has_died(number as u32);
        let scout =
            || Scout { line: Link::Down(now), claim: None, is_asked: false, reading: VecDeque::new() };
        Self {
            rng,
            number,
            last: is_last.then_some(0),
            scouts: (0..members).map(|_| scout()).collect(),
            session: Session::None,
            at: 0,
            looks_at: now,
            epoch: Epoch::NONE,
            acks: 1,
            clock: 0,
            core: None,
            is_noticed: false,
            running: None,
            operations: u64::from(life) << 32,
            next_turn: now + Duration::from_nanos(after),
            seen: BTreeMap::new(),
            is_over: false,
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        if self.is_over {
            return None;
        }
        let Some(running) = &self.running else {
            return Some(self.next_turn);
        };
        let lines = self.scouts.iter().filter_map(|scout| scout.line.deadline());
        let phase = match &running.phase {
            Phase::Posted => running.since + PATIENCE,
            Phase::Waits(at) => *at,
            Phase::Vouch { until, .. } => *until,
        };
        let looks = Some(self.looks_at);
        lines.chain([phase, running.since + PATIENCE]).chain(looks).min()
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        if self.is_over {
            return;
        }
        let now = host.now();
        self.take(now, input, host);
        self.go_on(now, host);
    }

    fn take(&mut self, now: Duration, input: Input, host: &mut Host<'_, Oracle>) {
        let Some(connection) = input.connection() else { return };
        if self.session.connection() == Some(connection) {
            return self.take_of_session(now, connection, input, host);
        }
        let Some(at) = self.scouts.iter().position(|scout| scout.line.connection() == Some(connection))
        else {
            return;
        };
        let scout = &mut self.scouts[at];
        match input {
            Input::Connected { .. } => scout.line = Link::Up(connection),
            Input::Lost { .. } => {
                scout.line = Link::Down(now + RETRY);
                (scout.claim, scout.is_asked) = (None, false);
                scout.reading.clear();
            }
            Input::Message { bytes, .. } => {
                let said = Said::parse(&bytes[1..]);
                scout.is_asked = false;
                scout.claim = Some(Claim {
                    serves: said.statement.role == Role::Primary && said.serves,
                    epoch: said.statement.epoch,
                    acks: said.acks as usize,
                });
            }
            Input::Read { bytes, .. } => {
                let of = scout.reading.pop_front();
                let bytes: &[u8; PROMISE_LEN] = bytes[..].try_into().expect("as many were asked for");
                if let Some(running) = self.running.as_mut().filter(|running| Some(running.number) == of) {
                    running.promises.insert(at, Promise::parse(bytes));
                }
            }
            _ => {}
        }
    }

    fn take_of_session(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        input: Input,
        host: &mut Host<'_, Oracle>,
    ) {
        let completion = match input {
            Input::Connected { .. } => {
                self.session = Session::Begun(connection);
                return host.send(connection, message(HELLO, &[]));
            }
            Input::Lost { why: NOT_LET, .. } => {
                return host.core().wrong("a client was not let write what was handed out to it".into());
            }
            Input::Lost { .. } => return self.lose(now, host),
            Input::Read { bytes, .. } => Completion::Read(bytes),
            Input::Written { .. } => Completion::Written,
            Input::Message { bytes, .. } => match (bytes[0], &bytes[1..]) {
                (HELLO, rest) => {
                    let (epoch, rest) = number(rest);
                    let (clock, view) = number(rest);
                    let Some(Reply::View(view)) = Reply::parse(view) else { return };
                    (self.epoch, self.clock) = (Epoch(epoch), clock);
                    self.session = Session::Up(connection);
                    self.is_noticed = false;
                    host.oracle().work.connected += 1;
                    match &mut self.core {
                        Some(core) => core.adopt(view),
                        None => {
                            let locations = if self.number.is_multiple_of(2) { 8 } else { 0 };
                            self.core = Some(Core::new(view, locations));
                        }
                    }
                    return;
                }
                (LEAD, rest) => {
                    self.epoch = Epoch(number(rest).0);
                    if let Some(Running { phase: Phase::Vouch { round, until, .. }, .. }) = &mut self.running
                    {
                        (*round, *until) = (2, now + LATE);
                        self.ask_promises(host);
                    }
                    return;
                }
                (NOTICE, _) => return self.is_noticed = true,
                (_, rest) => {
                    let (clock, reply) = number(rest);
                    self.clock = clock;
                    let Some(reply) = Reply::parse(reply) else {
                        return host.core().wrong("a reply means nothing".into());
                    };
                    Completion::Reply(reply)
                }
            },
            Input::Timer | Input::Durable { .. } | Input::Datagram { .. } => return,
        };
        let Some(running) = &mut self.running else { return };
        let Some(what) = running.under_way.take() else { return };
        if what == For::Step {
            running.done.push(completion);
        } else if let (Completion::Reply(Reply::View(view)), Some(core)) = (completion, &mut self.core) {
            core.adopt(view);
        }
    }

    /// The connection to the primary is gone. What is under way has been carried out, or not.
    fn lose(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        if let Some(connection) = self.session.connection() {
            host.cut(connection);
        }
        let was_up = matches!(self.session, Session::Up(_));
        self.session = Session::None;
        self.looks_at = now;
        if was_up {
            self.give_up(now, host);
        } else {
            self.looks_at = now + RETRY;
        }
    }

    /// Of what it does nothing more will be known.
    fn give_up(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let Some(mut running) = self.running.take() else { return };
        let is_open = match &mut running.machine {
            Machine::Get(get) => {
                self.core.as_mut().and_then(|core| get.cancel(core));
                false
            }
            // The value was not on its way before that: it has not been written, and will not be.
            Machine::Put(put) => {
                let is_open = put.is_writing();
                self.core.as_mut().and_then(|core| put.cancel(core));
                is_open
            }
            Machine::Call(call) => {
                self.core.as_mut().and_then(|core| call.cancel(core));
                running.was_sent
            }
            Machine::Scan(scan) => {
                self.core.as_mut().into_iter().for_each(|core| scan.cancel(core));
                false
            }
        };
        let ended = matches!(running.phase, Phase::Vouch { .. });
        let what =
            if running.kind.is_some() && (is_open || ended) { "may happen" } else { "does not happen" };
        host.tell(format_args!("gives up {}, which {what}", described(running.kind)));
        if let (Some(kind), true) = (running.kind, is_open || ended) {
            host.oracle().record(&running.key, self.number as u32, kind, running.invoked, false);
        }
        self.over(now, host);
    }

    /// An operation is over.
    fn over(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        self.running = None;
        host.oracle().forgets(self.number as u32);
        let pause = host.known().plan.pause;
        self.next_turn = now + Duration::from_nanos(1 + self.rng.exponential(pause));
    }

    fn go_on(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        if self.running.is_none() {
            if now < self.next_turn {
                return;
            }
            self.begin(now, host);
            if self.running.is_none() {
                return;
            }
        }
        self.scouts.iter_mut().enumerate().for_each(|(at, scout)| scout.line.go_on(now, at, host));
        if self.running.as_ref().is_some_and(|running| now >= running.since + PATIENCE) {
            // The primary says nothing: another one is looked for.
            if self.session.connection().is_some() {
                self.lose(now, host);
            } else {
                self.give_up(now, host);
            }
            return;
        }
        match self.session {
            Session::None if now >= self.looks_at => self.look(now, host),
            Session::Up(_) if now >= self.looks_at => self.doubt(now, host),
            Session::Up(_) => self.carry_on(now, host),
            Session::Connecting(_) | Session::Begun(_) if now >= self.looks_at => self.doubt(now, host),
            Session::None | Session::Connecting(_) | Session::Begun(_) => {}
        }
    }

    /// The primary is silent. If another member serves in a later epoch, it is waited for no more.
    fn doubt(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let (at, epoch) = (self.at, self.epoch);
        let is_later = |claim: &Claim| claim.serves && claim.epoch.counter() > epoch.counter();
        let mut others = self.scouts.iter().enumerate().filter(|(other, _)| *other != at);
        if others.any(|(_, scout)| scout.claim.as_ref().is_some_and(is_later)) {
            host.tell(format_args!("leaves the primary of epoch {epoch}"));
            return self.lose(now, host);
        }
        self.ask(host);
        self.looks_at = now + DOUBT;
        if let Session::Up(_) = self.session {
            self.carry_on(now, host);
        }
    }

    /// Asks all members what they are.
    fn ask(&mut self, host: &mut Host<'_, Oracle>) {
        for scout in &mut self.scouts {
            scout.claim = None;
            if let Link::Up(connection) = scout.line
                && !scout.is_asked
            {
                scout.is_asked = true;
                host.send(connection, message(ASK, &[]));
            }
        }
    }

    /// Looks for a primary.
    fn look(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let claims: Vec<Option<Claim>> = self.scouts.iter().map(|scout| scout.claim).collect();
        self.looks_at = now + AGAIN;
        if let Some(at) = likely_primary(&claims) {
            (self.at, self.acks) = (at, claims[at].map_or(1, |claim| claim.acks.max(1)));
            self.epoch = claims[at].map_or(Epoch::NONE, |claim| claim.epoch);
            self.session = Session::Connecting(host.connect(at));
            self.looks_at = now + DOUBT;
        }
        self.ask(host);
    }

    /// Begins to read the promises of all members that have not said theirs.
    fn ask_promises(&mut self, host: &mut Host<'_, Oracle>) {
        let Some(running) = &self.running else { return };
        for (at, scout) in self.scouts.iter_mut().enumerate() {
            let is_read = scout.reading.contains(&running.number);
            if let (Link::Up(connection), false, false) =
                (scout.line, is_read, running.promises.contains_key(&at))
            {
                scout.reading.push_back(running.number);
                host.read(connection, PROMISE, 0, PROMISE_LEN as u32);
            }
        }
    }

    fn begin(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let what = if self.last.is_some() { self.last_turn(now, host) } else { self.usual_turn(host) };
        let Some((machine, key, kind)) = what else { return };
        self.operations += 1;
        let invoked = host.oracle().begins(&key, self.number as u32, kind);
        let name = String::from_utf8_lossy(&key).into_owned();
        host.tell(format_args!("begins at {invoked}: {} of {name}", described(kind)));
        self.running = Some(Running {
            machine,
            key,
            kind,
            invoked,
            number: self.operations,
            since: now,
            promises: BTreeMap::new(),
            todo: VecDeque::new(),
            under_way: None,
            done: Vec::new(),
            phase: Phase::Posted,
            was_sent: false,
        });
        if self.session != Session::None {
            self.looks_at = now + DOUBT;
        }
        self.ask_promises(host);
    }

    fn usual_turn(&mut self, host: &mut Host<'_, Oracle>) -> Option<(Machine, Vec<u8>, Option<Kind>)> {
        let true_time = host.core().now();
        let oracle = host.oracle();
        let left = &mut oracle.operations[self.number];
        if *left == 0 || true_time >= oracle.plan.heals {
            self.is_over = true;
            return None;
        }
        *left -= 1;
        let key = key_of(self.rng.below(oracle.plan.keys));
        if oracle.plan.scans && self.rng.one_in(8) {
            return Some((Machine::Scan(Scan::new(1 + self.rng.below(4) as u32)), key, None));
        }
        let seen = self.seen.get(&key).copied();
        let what = self.rng.below(12);
        if what < 5 || self.number < usize::from(oracle.plan.readers) {
            return Some((Machine::Get(Get::new(&key)), key, None));
        }
        if what == 5 {
            let delete = Call::delete(&key, Expect::Any);
            return Some((Machine::Call(delete), key, Some(Kind::Write(0))));
        }
        let write = oracle.next_write();
        let value = value_of(write);
        let (expect, kind) = match seen {
            Some((version, state)) if what < 8 => (Expect::Version(version), Kind::Swap(state, write)),
            _ => (Expect::Any, Kind::Write(write)),
        };
        if what == 11 {
            let put = Request::PutInline { key: key.clone(), value, expires: 0, expect };
            return Some((Machine::Call(Call::new(put)), key, Some(kind)));
        }
        Some((Machine::Put(Box::new(Put::new(&key, &value, 0, expect))), key, Some(kind)))
    }

    /// What the last client does: each key is read, written and read again, and then the images are looked at.
    fn last_turn(
        &mut self,
        now: Duration,
        host: &mut Host<'_, Oracle>,
    ) -> Option<(Machine, Vec<u8>, Option<Kind>)> {
        self.next_turn = now + LOOK;
        if host.core().now() < host.known().plan.heals {
            return None;
        }
        let oracle = host.oracle();
        let keys = oracle.plan.keys;
        let step = self.last?;
        let key = key_of(step % keys);
        match step / keys {
            0 | 2 => {
                oracle.waits = format!("it reads key {}", step % keys);
                Some((Machine::Get(Get::new(&key)), key, None))
            }
            1 => {
                oracle.waits = format!("it writes key {}", step % keys);
                let write = oracle.next_write();
                let put = Put::new(&key, &value_of(write), 0, Expect::Any);
                Some((Machine::Put(Box::new(put)), key, Some(Kind::Write(write))))
            }
            _ => {
                oracle.verify = true;
                None
            }
        }
    }

    /// The operation goes on, as far as it can now.
    fn carry_on(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let Session::Up(connection) = self.session else { return };
        let (Some(core), Some(running)) = (&mut self.core, &mut self.running) else { return };
        if let Phase::Vouch { .. } = running.phase {
            return self.vouch(now, host);
        }
        if running.under_way.is_some() {
            return;
        }
        if let Phase::Waits(until) = running.phase {
            if now < until {
                return;
            }
            running.phase = Phase::Posted;
            self.is_noticed = true;
        }
        if self.is_noticed && running.todo.is_empty() && running.done.is_empty() {
            self.is_noticed = false;
            running.todo.push_back((For::Attend, Verb::Call(Request::View)));
            let told = core.poll_confirm().into_iter().chain(core.poll_report());
            running.todo.extend(told.map(|request| (For::Attend, Verb::Call(request))));
        }
        if running.todo.is_empty()
            && let Some(acknowledge) = core.poll_acknowledgement()
        {
            running.todo.push_back((For::Attend, Verb::Call(acknowledge)));
        }
        let Some((what, verb)) = running.todo.pop_front() else { return self.step(now, host) };
        running.under_way = Some(what);
        match verb {
            Verb::Read { at, len } => host.read(connection, MEMORY, at, len as u32),
            Verb::Write { at, bytes } => host.write(connection, MEMORY, at, bytes),
            Verb::Persist(_) => host.core().wrong("the memory of a primary is not what lasts".into()),
            Verb::Call(request) => {
                running.was_sent |= what == For::Step;
                host.send(connection, message(REQUEST, &[&request.emit()]));
            }
        }
    }

    fn step(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let (Some(core), Some(running)) = (&mut self.core, &mut self.running) else { return };
        let done = std::mem::take(&mut running.done);
        let outcome: Progress<Outcome> = match &mut running.machine {
            Machine::Get(get) => {
                map(get.step(core, self.clock, done), |found| found.map(|found| (found.version, found.value)))
            }
            Machine::Put(put) => map(put.step(core, self.clock, done), |_| None),
            Machine::Call(call) => map(call.step(core, self.clock, done), |_| None),
            Machine::Scan(scan) => scan.step(core, self.clock, done),
        };
        match outcome {
            Progress::Post(verbs) => {
                running.todo = verbs.into_iter().map(|verb| (For::Step, verb)).collect();
            }
            Progress::Again => running.phase = Phase::Waits(now + PAUSE),
            Progress::Done(outcome) => {
                running.phase = Phase::Vouch { outcome, round: 0, until: now + LATE };
            }
        }
        self.carry_on(now, host);
    }

    /// Whether what has come of an operation may be believed; what follows from it, if that is known.
    fn vouch(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let Session::Up(connection) = self.session else { return };
        let guarded = host.known().plan.guarded;
        let Some(running) = &mut self.running else { return };
        let promises: Vec<Promise> = running.promises.values().copied().collect();
        let number = running.number;
        let is_read = self.scouts.iter().any(|scout| scout.reading.contains(&number));
        let Phase::Vouch { round, until, .. } = &mut running.phase else { return };
        let vouched = !guarded || is_current(self.epoch, &promises, self.acks);
        if !vouched {
            match *round {
                _ if is_read && now < *until => return,
                // Those that were not asked, or whose promise was changing.
                0 => {
                    (*round, *until) = (1, now + LATE);
                    let epoch = self.epoch;
                    running.promises.retain(|_, promise| promise.lets(epoch));
                    return self.ask_promises(host);
                }
                // It has taken a member in that came back, by which its epoch is a new one.
                1 => {
                    (*round, *until) = (10, running.since + PATIENCE);
                    running.promises.clear();
                    return host.send(connection, message(LEAD, &[]));
                }
                10 => return,
                // A member is there again that was not.
                2..4 => {
                    (*round, *until) = (*round + 1, now + LATE);
                    running.promises.clear();
                    return self.ask_promises(host);
                }
                _ => {}
            }
        }
        let Some(running) = self.running.take() else { return };
        let Phase::Vouch { outcome, .. } = running.phase else { return };
        let stands = vouched || matches!(running.machine, Machine::Put(_)) && outcome.is_ok();
        if !stands {
            host.tell(format_args!("does not believe the primary of epoch {}", self.epoch));
            host.oracle().work.disbelieved += 1;
        }
        let client = self.number as u32;
        let mut record = |kind: Kind, is_known: bool| {
            host.oracle().record(&running.key, client, kind, running.invoked, is_known);
        };
        let mut ends = !stands;
        match (outcome, running.kind) {
            (Ok(_), None) if stands && matches!(running.machine, Machine::Scan(_)) => {
                let Machine::Scan(scan) = &running.machine else { return };
                match scan.seen(host.known().plan.keys) {
                    Ok(seen) => host.oracle().scanned(client, running.invoked, seen),
                    Err(what) => return host.core().wrong(what),
                }
            }
            (Ok(found), None) if stands => {
                let state = match found.as_ref().map_or(Ok(0), |(_, value)| state_of(value)) {
                    Ok(state) => state,
                    Err(what) => return host.core().wrong(what),
                };
                record(Kind::Read(state), true);
                match found {
                    Some((version, _)) => drop(self.seen.insert(running.key.clone(), (version, state))),
                    None => drop(self.seen.remove(&running.key)),
                }
                self.last = self.last.map(|step| step + 1);
            }
            (Ok(_), Some(kind)) => {
                record(kind, stands);
                if stands {
                    self.last = self.last.map(|step| step + 1);
                }
            }
            (Ok(_), None) => {}
            (Err(Error::Refused(Refusal::WrongVersion { .. })), Some(Kind::Swap(old, _))) if stands => {
                record(Kind::NoSwap(old), true);
                self.seen.remove(&running.key);
            }
            (Err(error), kind) => {
                host.tell(format_args!("is refused {}: {error}", described(kind)));
                let (trace, over) = (!error.came_to_nothing(), error.ends_session());
                if let (Some(kind), true) = (kind, trace) {
                    host.oracle().record(&running.key, client, kind, running.invoked, false);
                }
                // Whoever has it whole may be away, and comes back.
                let rots = !host.known().rotted.is_empty();
                let waits = match error {
                    Error::Refused(Refusal::Unfinished) => true,
                    Error::Refused(Refusal::Damaged) => rots,
                    _ => false,
                };
                if stands && trace && !over && !waits {
                    return host.core().wrong(format!("{error} of {kind:?}"));
                }
                ends |= over;
            }
        }
        self.over(now, host);
        if ends {
            self.lose(now, host);
        }
    }
}

fn described(kind: Option<Kind>) -> String {
    kind.map_or_else(|| "a GET".to_owned(), |kind| format!("{kind:?}"))
}

fn map<T>(
    progress: Progress<Result<T, Error>>,
    found: impl FnOnce(T) -> Option<(u64, Vec<u8>)>,
) -> Progress<Outcome> {
    match progress {
        Progress::Post(verbs) => Progress::Post(verbs),
        Progress::Again => Progress::Again,
        Progress::Done(outcome) => Progress::Done(outcome.map(found)),
    }
}
