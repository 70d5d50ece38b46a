//! A writer: the group's machine on connections of the cluster, and a user who opens the log, appends, trims, and goes away.

use std::time::Duration;

use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::{Action, Event, Machine, NotTaken, Options};
use remanence_coord::log::proto::{Request, parse_reply};
use remanence_coord::log::{AppendError, GroupError, Refused};

use super::follower::Follower;
use super::oracle::Oracle;
use super::server::Rot;
use super::tracker::Tracker;
use crate::cluster::core::Host;
use crate::cluster::link::{self, Link};
use crate::cluster::{Input, Moment};
use crate::rng::{Rng, fill};

/// How long after a session a writer comes again, on average, in nanoseconds.
const AGAIN: u64 = 400_000;
/// How often the last writer looks whether it can go on.
const LOOK: Duration = Duration::from_millis(1);
/// Records that the last writer appends when everything has healed.
const LAST_RECORDS: u64 = 6;
/// How long an open log is kept while too few servers are there, before its user gives up.
const ENDURANCE: Duration = Duration::from_millis(20);

pub(super) struct Writer {
    rng: Rng,
    /// Its place among the writers; the last one is behind all of them.
    number: usize,
    /// The one that comes when everything has healed.
    is_last: bool,
    /// Numbers that a session draws, of which no other session has the same.
    nonce: u32,
    state: State,
    follower: Option<Follower>,
}

enum State {
    /// The log is opened at this time.
    Away(Duration),
    Working(Box<Session>),
    /// It does not come again.
    Gone,
}

/// A record on its way: its number, its bytes, and when it was appended in the time of the run.
struct Sent {
    sequence: u64,
    bytes: Vec<u8>,
    at: u64,
}

struct Session {
    machine: Machine,
    tracker: Tracker,
    links: Vec<Link>,
    /// How long a connection that was lost is left alone.
    reconnect: Duration,
    sent: std::collections::VecDeque<Sent>,
    /// Records that it still appends.
    records: u32,
    next_turn: Duration,
    is_open: bool,
    /// The records below this number are given up.
    trimmed: u64,
    /// Since when too few servers are there.
    short_since: Option<Duration>,
    closing: Option<Closing>,
    /// All faults are over: what is not acknowledged yet is waited for no longer than it takes.
    is_due: bool,
    /// When to look whether they are.
    due: Duration,
    step: LastStep,
    /// The last writer still loses its connections in the middle of an append.
    is_cut: bool,
}

/// How far the end of a session has come.
#[derive(Clone, Copy)]
enum Closing {
    Waiting,
    Noting(Duration),
}

/// What the last writer does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastStep {
    /// All that were there when it came are to have all that was acknowledged.
    Settle,
    /// What is there is looked at, and then trimmed, perhaps.
    Verify,
    Append,
    /// All servers are to have everything.
    CatchUp,
    VerifyAgain,
}

impl Writer {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Self {
        let (node, life) = (host.node(), host.life());
        let oracle = host.oracle();
        let number = node - usize::from(oracle.plan.servers);
        let is_last = number == usize::from(oracle.plan.writers);
        let mut rng = Rng::new(oracle.seed, ((1000 + number as u64) << 32) ^ u64::from(life));
        let heals = oracle.plan.heals;
        oracle.working.remove(&number);
        // In the time of the run: it began at zero.
        let after = if is_last { heals } else { rng.below(heals / 2) / (1 + u64::from(life)) };
        let begin = host.now() + Duration::from_nanos(after);
        let follower = Follower::boot(host).filter(|_| !is_last);
        Self { rng, number, is_last, nonce: life << 8, state: State::Away(begin), follower }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let own = match &self.state {
            State::Away(until) => Some(*until),
            State::Gone => None,
            State::Working(session) => session.deadline(self.is_last),
        };
        own.into_iter().chain(self.follower.as_ref().and_then(Follower::deadline)).min()
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let now = host.now();
        if let Some(follower) = &mut self.follower {
            let connection = input.connection();
            if connection.is_some() && connection == follower.connection() {
                return follower.on(Some(input), host);
            }
            follower.on(None, host);
            if host.core().now() >= host.known().plan.heals {
                self.follower = None;
            }
        }
        if let State::Away(until) = self.state {
            if now >= until {
                self.begin(now, host);
            }
            return;
        }
        let State::Working(session) = &mut self.state else { return };
        session.take(now, input, host);
        session.go_on(now, host);
        session.check(host);
        let goes_on = session.turn(now, &mut self.rng, self.is_last, host);
        session.go_on(now, host);
        session.check(host);
        session.lose_all_within(now, host);
        session.is_due = host.core().now() >= host.known().plan.heals;
        if session.due <= now {
            session.due = now + LOOK;
        }
        if !goes_on {
            let (number, is_due) = (self.number, session.is_due);
            if host.oracle().working.remove(&number) && is_due {
                host.oracle().work.ended += 1;
            }
            session.links.iter().filter_map(Link::connection).for_each(|connection| host.cut(connection));
            self.state = State::Away(now + Duration::from_nanos(1 + self.rng.exponential(AGAIN)));
            let heals = host.oracle().plan.heals;
            if self.is_last && host.oracle().finished || !self.is_last && host.core().now() >= heals {
                self.state = State::Gone;
            }
        }
    }

    fn begin(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let true_time = host.core().now();
        let oracle = host.oracle();
        let plan = &oracle.plan;
        // Its clock is fast; or others are to come to their ends first.
        if self.is_last && (true_time < plan.heals || plan.lets_end && !oracle.working.is_empty()) {
            self.state = State::Away(now + LOOK / 2);
            return;
        }
        if !self.is_last {
            if oracle.sessions[self.number] == 0 || true_time >= plan.heals {
                self.state = State::Gone;
                return;
            }
            oracle.sessions[self.number] -= 1;
            oracle.working.insert(self.number);
        }
        self.nonce += 1;
        let (servers, nonce) = (plan.servers, (self.number as u32 + 1) << 16 | self.nonce);
        let options = Options::new(nonce, Uuid([self.number as u8 + 1; 16]))
            .acks(Some(plan.acks))
            .depth(plan.depth)
            .grace(Duration::from_nanos(plan.grace[self.number]))
            .patience(Duration::from_nanos(plan.patience));
        let (heals, reconnect) = (plan.heals, Duration::from_nanos(plan.reconnect));
        let records = self.rng.below(u64::from(plan.records) + 1) as u32;
        let is_cut = self.is_last && oracle.work.cut_within == 0 && self.rng.one_in(2);
        let names = plan.names();
        let machine = Machine::new(names.into_iter().take(servers.into()), options);
        let links = (0..servers.into()).map(|n| Link::to(n, host)).collect();
        host.tell(format_args!("opens the log"));
        self.state = State::Working(Box::new(Session {
            machine,
            tracker: Tracker::new(servers.into()),
            links,
            reconnect,
            sent: std::collections::VecDeque::new(),
            records,
            next_turn: now,
            is_open: false,
            trimmed: 0,
            short_since: None,
            closing: None,
            is_due: false,
            due: now + Duration::from_nanos(heals.saturating_sub(true_time)),
            is_cut,
            step: LastStep::Settle,
        }));
    }
}

impl Session {
    fn deadline(&self, is_last: bool) -> Option<Duration> {
        let reconnects = self.links.iter().filter(|_| self.is_open).filter_map(Link::deadline);
        let appends = self.is_open && self.records > 0 && self.short_since.is_none();
        let waits =
            self.is_due && self.short_since.is_none() && matches!(self.closing, Some(Closing::Waiting));
        let turn = (appends || is_last || waits).then_some(self.next_turn);
        let due = (!is_last && !self.is_due).then_some(self.due);
        let short = self.short_since.filter(|_| !is_last).map(|since| since + ENDURANCE);
        let closing = match self.closing {
            Some(Closing::Noting(until)) => Some(until),
            _ => None,
        };
        self.machine
            .deadline()
            .into_iter()
            .chain(reconnects)
            .chain(turn)
            .chain(due)
            .chain(short)
            .chain(closing)
            .min()
    }

    /// Hands what has come to the machine.
    fn take(&mut self, now: Duration, input: Input, host: &mut Host<'_, Oracle>) {
        let Some(connection) = input.connection() else { return };
        // What comes on a connection that the machine has given up is dropped.
        let Some(n) = link::find(&self.links, connection) else { return };
        let was_up = self.links[n].up().is_some();
        match input {
            Input::Connected { .. } => {
                self.links[n] = Link::Up(connection);
                self.tracker.connected(n);
                if self.is_open {
                    host.oracle().work.connected_again += 1;
                }
                self.machine.connected(now, n);
            }
            Input::Lost { why, .. } => {
                self.links[n] = Link::Down(now + self.reconnect);
                self.tracker.lost(n);
                if was_up {
                    self.machine.handle(now, n, Event::Lost(why.into()));
                } else {
                    self.machine.unreachable(now, n, why);
                }
            }
            Input::Message { bytes, .. } => {
                let reply = parse_reply(&bytes);
                let epoch = self.machine.epoch();
                match &reply {
                    Ok(status) => {
                        self.tracker.says(n, status, epoch);
                        self.tracker.is_promised(status.state.promised, epoch);
                    }
                    Err(Refused::Fenced { promised }) => self.tracker.is_promised(*promised, epoch),
                    Err(_) => {}
                }
                self.machine.handle(now, n, Event::Reply(reply.map(Box::new)));
            }
            Input::Read { bytes, .. } => {
                host.tell(format_args!("has read {} bytes of server {n}", bytes.len()));
                self.tracker.has_read(n);
                self.machine.handle(now, n, Event::Data(bytes));
            }
            Input::Durable { .. } => {
                self.tracker.durable(n);
                self.machine.handle(now, n, Event::Durable);
            }
            Input::Written { .. } | Input::Datagram { .. } | Input::Timer => {}
        }
    }

    /// Does what the machine says, and what is due.
    fn go_on(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        for _ in 0..100 {
            while let Some(action) = self.machine.poll_action() {
                self.carry_out(now, action, host);
            }
            if self.machine.deadline().is_none_or(|deadline| deadline > now) {
                return;
            }
            self.machine.timeout(now);
        }
        host.core().wrong("the group's machine is due for ever, and does nothing".into());
    }

    fn carry_out(&mut self, now: Duration, action: Action, host: &mut Host<'_, Oracle>) {
        match action {
            Action::Call { server, request } => {
                let checked = self.tracker.asks(server, &request);
                self.report(checked, host);
                if let Some(connection) = self.links[server].up() {
                    let bytes = request.emit();
                    assert_eq!(Request::parse(&bytes), Ok(request), "what was written is read");
                    host.send(connection, bytes);
                }
            }
            Action::Read { server, offset, len } => {
                host.tell(format_args!("reads {len} bytes at {offset} of server {server}"));
                if let Some(connection) = self.links[server].up() {
                    self.tracker.reads(server);
                    host.read(connection, 0, offset, len);
                }
            }
            Action::Append { server, updates, plan } => {
                let list = updates.list();
                assert_eq!(plan.sizes.len(), list.len(), "the planner is asked for other updates");
                if let Some(connection) = self.links[server].up() {
                    let checked = self.tracker.sends(server, updates.sequences.1);
                    self.report(checked, host);
                    let list = list.into_iter().map(|(at, bytes)| (at, bytes.to_vec())).collect();
                    host.update(connection, 0, list);
                }
            }
            Action::Disconnect { server } => {
                if let Some(connection) = self.links[server].connection() {
                    host.cut(connection);
                }
                self.tracker.lost(server);
                self.links[server] = Link::Down(now + self.reconnect);
            }
        }
    }

    /// Tells the oracle what the machine says, and compares it with what has come.
    fn check(&mut self, host: &mut Host<'_, Oracle>) {
        let epoch = self.machine.epoch();
        if !self.is_open && self.machine.is_open() {
            self.is_open = true;
            let start = self.machine.next();
            host.moment(Moment::Open, None);
            host.tell(format_args!("has opened the log: epoch {epoch}, it goes on with record {start}"));
            let opened = self.machine.opened();
            let sum = |counted: &[(String, u64)]| counted.iter().map(|(_, n)| n).sum::<u64>();
            let work = &mut host.oracle().work;
            work.copied += sum(&opened.copied);
            work.cut += sum(&opened.cut);
            let checked = host.oracle().opens(epoch, start);
            self.report(checked, host);
        }
        let below = self.machine.acknowledged();
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.sequence < below) {
            let now = host.core().now();
            host.tell(format_args!("record {} is acknowledged", sent.sequence));
            host.moment(Moment::Acknowledge, None);
            let oracle = host.oracle();
            oracle.latencies.push((sent.at, now - sent.at));
            let checked = oracle.acknowledges(epoch, sent.sequence, sent.bytes);
            self.report(checked, host);
        }
        if self.is_open {
            let checked = self.tracker.check(&self.machine);
            self.report(checked, host);
        }
    }

    /// Loses all connections when the first append of the last writer is on its way, to no server yet.
    fn lose_all_within(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        if !self.is_cut || self.step != LastStep::Append || self.sent.is_empty() {
            return;
        }
        self.is_cut = false;
        host.oracle().work.cut_within += 1;
        host.tell(format_args!("loses all connections"));
        for n in 0..self.links.len() {
            let Some(connection) = self.links[n].up() else { continue };
            host.cut(connection);
            self.links[n] = Link::Down(now + self.reconnect);
            self.tracker.lost(n);
            self.machine.handle(now, n, Event::Lost("all connections are lost".into()));
        }
        self.go_on(now, host);
        self.check(host);
    }

    fn report(&self, checked: Result<(), String>, host: &mut Host<'_, Oracle>) {
        if let Err(what) = checked {
            host.core().wrong(what);
        }
    }

    /// What the user does. False: no more.
    fn turn(&mut self, now: Duration, rng: &mut Rng, is_last: bool, host: &mut Host<'_, Oracle>) -> bool {
        if self.machine.failed().is_some() || !self.is_open && self.machine.shortage().is_some() {
            let why = self.machine.failed().cloned().or_else(|| self.machine.shortage());
            host.tell(format_args!("gives up: {}", why.map_or_else(String::new, |why| why.to_string())));
            host.oracle().work.not_opened += 1;
            return false;
        }
        if !self.is_open {
            if is_last {
                host.oracle().waits = "it is opening the log";
                self.next_turn = now + LOOK;
            }
            return true;
        }
        // A server has promised a later epoch, perhaps of a writer that has never got so far as to open the log: only whoever opens it
        // anew gets all of them. Some do not draw that conclusion at once.
        let lost = self.machine.lost();
        let is_fenced = lost.iter().any(|(_, why)| why.contains("has taken the log over"));
        if let Some((server, why)) = lost.iter().find(|(_, why)| why.contains("cannot be copied"))
            && host.known().rotten.iter().all(|rot| *rot == Rot::None)
        {
            host.core().wrong(format!("{server} is given up though nothing has rotted: {why}"));
        }
        if is_fenced && (is_last || rng.one_in(3)) {
            return false;
        }
        self.links.iter_mut().enumerate().for_each(|(n, link)| link.go_on(now, n, host));
        if self.machine.enough().is_err() {
            let since = *self.short_since.get_or_insert(now);
            if is_last && now >= self.next_turn {
                self.next_turn = now + LOOK;
            }
            return is_last || self.closing.is_none() && now.saturating_sub(since) < ENDURANCE;
        }
        self.short_since = None;
        if is_last { self.last_turn(now, rng, host) } else { self.usual_turn(now, rng, host) }
    }

    fn usual_turn(&mut self, now: Duration, rng: &mut Rng, host: &mut Host<'_, Oracle>) -> bool {
        match self.closing {
            Some(Closing::Waiting) if self.sent.is_empty() => {
                self.machine.note_known(now);
                self.closing = Some(Closing::Noting(now + Duration::from_millis(1)));
                return true;
            }
            Some(Closing::Waiting) => {
                if self.is_due && now >= self.next_turn {
                    // Where there is no room for it somewhere, it would wait for ever.
                    self.next_turn = now + LOOK;
                    self.trim(now, self.machine.acknowledged(), host);
                }
                return true;
            }
            Some(Closing::Noting(until)) => {
                if self.machine.is_calling() && now < until {
                    return true;
                }
                host.oracle().work.closed += 1;
                return false;
            }
            None => {}
        }
        if self.records == 0 {
            // It dies with appends under way, or ends well.
            if rng.one_in(2) {
                return false;
            }
            self.closing = Some(Closing::Waiting);
            return self.usual_turn(now, rng, host);
        }
        if now < self.next_turn {
            return true;
        }
        self.next_turn = now + Duration::from_nanos(1 + rng.exponential(host.oracle().plan.pause));
        if self.machine.is_half_full() && rng.one_in(2) || rng.one_in(40) {
            let keep = if rng.one_in(2) { 0 } else { rng.below(6) };
            self.trim(now, self.machine.acknowledged().saturating_sub(keep), host);
        }
        let window = host.oracle().plan.window;
        if self.machine.next() - self.machine.acknowledged() < window {
            let count = if rng.one_in(4) { rng.between(2, 5) } else { 1 };
            let taken = self.append(now, count.min(self.records.into()), rng, host);
            self.records -= taken as u32;
            if taken > 0 {
                return true;
            }
        }
        // Something that comes is what it waits for.
        self.next_turn = now + Duration::from_micros(50);
        true
    }

    fn trim(&mut self, now: Duration, below: u64, host: &mut Host<'_, Oracle>) {
        if below > self.trimmed && self.machine.trim(now, below).is_ok() {
            self.trimmed = below;
            let oracle = host.oracle();
            oracle.trimmed = oracle.trimmed.max(below);
            oracle.work.trims += 1;
        }
    }

    /// Appends so many records; how many were taken.
    fn append(&mut self, now: Duration, count: u64, rng: &mut Rng, host: &mut Host<'_, Oracle>) -> u64 {
        let longest = host.oracle().plan.payload;
        let payloads: Vec<Vec<u8>> = (0..count)
            .map(|n| {
                let mut bytes = vec![0; rng.below(longest + 1) as usize];
                fill(self.machine.epoch().0 ^ (self.machine.next() + n) << 40 ^ rng.u64() << 52, &mut bytes);
                bytes
            })
            .collect();
        let slices: Vec<&[u8]> = payloads.iter().map(|bytes| &bytes[..]).collect();
        match self.machine.append_batch(now, &slices) {
            Ok((first, taken)) => {
                let at = host.core().now();
                host.oracle().work.appended += taken as u64;
                let numbered = (first..).zip(payloads).take(taken);
                self.sent.extend(numbered.map(|(sequence, bytes)| Sent { sequence, bytes, at }));
                taken as u64
            }
            Err(NotTaken::Refused(GroupError::Append(AppendError::Full { .. }))) => {
                host.oracle().work.full += 1;
                self.trim(now, self.machine.acknowledged(), host);
                0
            }
            Err(_) => 0,
        }
    }

    /// What the last writer does: everything is there, on all servers; more is taken, and is there as well.
    fn last_turn(&mut self, now: Duration, rng: &mut Rng, host: &mut Host<'_, Oracle>) -> bool {
        let servers = 0..self.links.len();
        let has_all =
            |machine: &Machine| machine.behind().is_empty() && machine.acknowledged() == machine.next();
        let all = servers.clone().all(|n| self.machine.takes_part(n)) && has_all(&self.machine);
        let is_due = now >= self.next_turn;
        if is_due {
            self.next_turn = now + LOOK;
        }
        match self.step {
            LastStep::Settle => {
                host.oracle().waits = "the servers of its quorum are to have everything";
                if !self.machine.is_settling() && has_all(&self.machine) {
                    let there = servers.filter(|n| self.machine.takes_part(*n)).collect();
                    host.oracle().verify = Some(there);
                    self.step = LastStep::Verify;
                    self.next_turn = now;
                }
            }
            LastStep::Verify if host.oracle().verify.is_some() => {}
            LastStep::Verify => {
                // What is not trimmed is looked at on all servers at the end.
                if self.machine.is_half_full() || rng.one_in(2) {
                    self.trim(now, self.machine.acknowledged(), host);
                }
                self.records = LAST_RECORDS as u32;
                self.step = LastStep::Append;
                self.next_turn = now;
            }
            LastStep::Append => {
                host.oracle().waits = "what it appends is to be acknowledged";
                if self.records > 0 && is_due {
                    // There may be no room yet.
                    if self.machine.is_half_full() {
                        self.trim(now, self.machine.acknowledged(), host);
                    }
                    let taken = self.append(now, self.records.into(), rng, host);
                    self.records -= taken as u32;
                }
                if self.records == 0 && self.sent.is_empty() {
                    self.step = LastStep::CatchUp;
                    self.next_turn = now;
                }
            }
            LastStep::CatchUp => {
                host.oracle().waits = "all servers are to take part and to have everything";
                if !all && is_due && self.machine.is_half_full() {
                    // What others have room for, as it lies at other places there, may be too much for one of them.
                    self.trim(now, self.machine.acknowledged(), host);
                }
                if all {
                    host.oracle().verify = Some(servers.collect());
                    self.step = LastStep::VerifyAgain;
                    self.next_turn = now;
                }
            }
            LastStep::VerifyAgain if host.oracle().verify.is_some() => {}
            LastStep::VerifyAgain => {
                host.oracle().finished = true;
                return false;
            }
        }
        true
    }
}
