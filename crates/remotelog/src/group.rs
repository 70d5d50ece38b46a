//! One log on several servers: the machine of [`remanence_coord::log::group`], which decides, a connection to each server, and their clock.
//!
//! This is the one driver of that machine. [`Group::poll`] goes on with whatever can be done now, and waits for nothing; who has futures
//! ([`AsyncLog`](crate::AsyncLog)), or a thread that sleeps for other things as well, has it woken and calls that. The methods that wait do the
//! same in a loop, in the thread that calls them ([`Log`](crate::Log)): [`ReplicaConnection`] and [`Connector`] wait, where connections are real.
//!
//! A server that is lost is connected to again, if there is a [`Connector`]. What was under way there is of unknown fate meanwhile, and is never
//! sent again as something new: the machine knows each record by its number, and learns from the server what that has of them.

use std::time::Duration;

use remanence_coord::replicated;
use remanence_persist::plan::Request as PlanRequest;

pub use remanence_coord::log::group::{
    Action, ConnectionLost, Event, GroupError, Machine, NotTaken, Opened, Opening, Options, Replay, Replayed,
    machine, replay,
};

use crate::error::AppendError;
use crate::format::Epoch;
use crate::format::superblock::Uuid;
use crate::proto::Request;
use crate::writer::Updates;

/// What is taken from one connection before the others are looked at: whoever copies a whole log holds up nobody.
const TAKEN: usize = 32;
/// Looks at a single connection before the thread waits there: of one server the answer is often there by then, and as long as nobody
/// else is to be looked at, to look costs less than to wait.
const LOOKS: u32 = 100;
/// After so many turns that do not wait the clock is read, as something may be due.
const CLOCK: u32 = 16;
/// Said of a connection that cannot be waited for together with those that there are.
const APART: &str = "its connection is on another reactor than those to the other servers of its log";

/// The connection to one server. Nothing here waits but [`wait`](Self::wait), which one connection does for all of its group; what was
/// begun ends in the order in which it was begun, calls, READs and updates each for themselves.
pub trait ReplicaConnection {
    /// The time since any beginning, by the clock that all connections of a group have.
    fn now() -> Duration;

    /// Begins to ask for something; the answer is the log's status afterwards. There is one call at a time.
    ///
    /// # Errors
    /// The server is gone.
    fn begin_call(&mut self, request: &Request) -> Result<(), ConnectionLost>;

    /// Begins to read from the server's region.
    ///
    /// # Errors
    /// The server is gone.
    fn begin_read(&mut self, offset: u64, len: u32) -> Result<(), ConnectionLost>;

    /// Begins to make updates durable, behind all that were begun before. `plan` is what a planner is asked.
    ///
    /// # Errors
    /// The server is gone, or there is no proven way for it.
    fn begin_append(&mut self, updates: Updates, plan: &PlanRequest) -> Result<(), ConnectionLost>;

    /// What has come, if anything has.
    ///
    /// # Errors
    /// The server is gone: of what was under way nothing is known.
    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost>;

    /// There is no connection to wait at: offers the processor to others, if that makes sense where this runs.
    fn yield_now() {}

    /// Waits until something may have come since it waited last, here or on any connection that it [waits for](Self::waits_for), for
    /// no longer than this; or not at all.
    fn wait(&mut self, limit: Duration) {
        let _ = limit;
    }

    /// Whether what comes on another connection ends a [`wait`](Self::wait) here. Those of one group must all be such: the group
    /// takes no others.
    fn waits_for(&self, other: &Self) -> bool {
        let _ = other;
        true
    }
}

/// What makes the connections of a group, beside whatever the group does: at first, and again where one was lost.
pub trait Connector<C>: std::fmt::Debug + Send {
    /// What has come of connecting to a server that there is no connection to, if an attempt has ended. If none is under way and one is due,
    /// it begins, if it `may`.
    fn poll(&mut self, server: usize, may: bool) -> Option<Result<C, ConnectionLost>>;

    /// When the next attempt at a server is due that waits for its time, by the clock of the connections.
    fn deadline(&self, server: usize) -> Option<Duration>;

    /// As [`ReplicaConnection::wait`], and until an attempt has ended.
    fn wait(&mut self, limit: Duration);
}

/// Records that are being given up: see [`Group::is_trimmed`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trimming {
    below: u64,
    pub(crate) since: Duration,
}

/// A log that is being closed, all of whose records are acknowledged: see [`Group::closes`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    pub(crate) since: Duration,
    /// Servers were told what to remember.
    told: bool,
}

impl Closing {
    pub(crate) const fn new(now: Duration) -> Self {
        Self { since: now, told: false }
    }
}

/// A log on several servers, open for its one writer.
#[derive(Debug)]
pub struct Group<C> {
    machine: Machine,
    connections: Vec<Option<C>>,
    /// How many connections there were to each server.
    lives: Vec<u64>,
    connector: Option<Box<dyn Connector<C>>>,
    grace: Duration,
    /// Turns of waits, of which each has looked at all connections.
    turns: u32,
    /// Those since something has come.
    looks: u32,
    /// Something was done, or had come, since all connections were last looked at in vain: there may be more.
    went_on: bool,
}

impl<C: ReplicaConnection> Group<C> {
    /// Begins to open the log on these servers, to all of which somebody is connecting: [`reconnect_to`](Self::reconnect_to) says what came
    /// of that. Nothing waits. The log is open when the [machine](Machine::is_open) says so, for which the group is polled; and it will not be if
    /// that [has failed](Machine::failed), or [has too few](Machine::shortage) of them.
    ///
    /// # Panics
    /// With no server.
    #[must_use]
    pub fn begin(names: Vec<String>, options: &Options) -> Self {
        Self {
            connections: names.iter().map(|_| None).collect(),
            lives: vec![0; names.len()],
            connector: None,
            machine: Machine::new(names, *options),
            grace: options.grace,
            turns: 0,
            looks: 0,
            went_on: false,
        }
    }

    /// The same, with somebody who connects to them, and again to those that are lost.
    ///
    /// # Panics
    /// With no server.
    #[must_use]
    pub fn begin_by(connector: Box<dyn Connector<C>>, names: Vec<String>, options: &Options) -> Self {
        let mut group = Self { connector: Some(connector), ..Self::begin(names, options) };
        group.connect(true);
        group
    }

    /// Opens the log on these servers, of which some may be lost already; makes it if all of them are new.
    ///
    /// Returns when enough servers take part. Others that are there are waited for until they take part as well, but no longer than
    /// [`Options::grace`]; after that they go on by themselves whenever the group is polled.
    ///
    /// # Errors
    /// Too few servers, servers that do not belong together, or a writer that was faster.
    ///
    /// # Panics
    /// With no server.
    pub fn open(
        connections: Vec<(String, Result<C, ConnectionLost>)>,
        options: &Options,
    ) -> Result<(Self, Opened), GroupError> {
        let (names, connections): (Vec<String>, Vec<_>) = connections.into_iter().unzip();
        let mut group = Self::begin(names, options);
        for (n, connection) in connections.into_iter().enumerate() {
            group.take(n, connection);
        }
        let opened = group.wait_until_open()?;
        Ok((group, opened))
    }

    /// Waits until it is open: see [`open`](Self::open).
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn wait_until_open(&mut self) -> Result<Opened, GroupError> {
        let mut opening = Opening::new(self.grace);
        loop {
            let any = self.turn();
            if opening.is_over(C::now(), &self.machine)? {
                return Ok(self.machine.opened());
            }
            self.idle(any, opening.deadline());
        }
    }

    /// There is a connection again to a server that was lost, or there is none still: it is taken in while the group goes on.
    pub fn reconnect(&mut self, name: &str, connection: Result<C, ConnectionLost>) {
        let found = (0..self.connections.len()).find(|n| self.machine.name(*n) == name);
        if let Some(n) = found {
            self.take(n, connection);
        }
    }

    /// The same of the server in this place among those that were named.
    ///
    /// # Panics
    /// There is no such server.
    pub fn reconnect_to(&mut self, server: usize, connection: Result<C, ConnectionLost>) {
        self.take(server, connection);
    }

    /// Somebody else has found the connection to a server to be gone.
    ///
    /// # Panics
    /// There is no such server.
    pub fn lose(&mut self, server: usize, why: ConnectionLost) {
        self.has_lost(server, why);
        self.carry_out();
    }

    fn take(&mut self, n: usize, connection: Result<C, ConnectionLost>) {
        let now = C::now();
        let others = self.connections.iter().enumerate().filter(|(other, _)| *other != n);
        let apart = |connection: &C| {
            others.filter_map(|(_, other)| other.as_ref()).any(|other| !other.waits_for(connection))
        };
        match connection {
            Ok(connection) if apart(&connection) => {
                self.connections[n] = None;
                self.machine.unreachable(now, n, APART);
            }
            Ok(connection) => {
                self.connections[n] = Some(connection);
                self.lives[n] += 1;
                self.machine.connected(now, n);
            }
            Err(why) => {
                self.connections[n] = None;
                self.machine.unreachable(now, n, &why.0);
            }
        }
    }

    /// Takes what has come of connecting to servers that there is no connection to, and has the next attempts begin, if they may. Whether
    /// anything has.
    fn connect(&mut self, may: bool) -> bool {
        let mut any = false;
        for n in 0..self.connections.len() {
            if self.connections[n].is_none()
                && let Some(connector) = &mut self.connector
                && let Some(made) = connector.poll(n, may)
            {
                self.take(n, made);
                any = true;
            }
        }
        any
    }

    /// When something is due, if nothing comes: to the machine, or an attempt to connect to a server.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let away = |n: &usize| self.machine.is_open() && self.connections[*n].is_none();
        let attempts = self.connector.iter().flat_map(|connector| {
            (0..self.connections.len()).filter(away).filter_map(move |n| connector.deadline(n))
        });
        attempts.chain(self.machine.deadline()).min()
    }

    /// What it decides by.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The name of the group, which is drawn when it is made.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.machine.uuid()
    }

    /// The epoch of this writer.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.machine.epoch()
    }

    /// The number of the next record.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.machine.next()
    }

    /// All records below this number are acknowledged.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.machine.acknowledged()
    }

    /// How many servers acknowledge, of how many.
    #[must_use]
    pub fn quorum(&self) -> (usize, usize) {
        self.machine.quorum()
    }

    /// The servers that do without, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        self.machine.lost()
    }

    /// Whether the log of some server is more than half full: see [`Machine::is_half_full`].
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.machine.is_half_full()
    }

    /// How many servers there is a connection to, and how many take part.
    #[must_use]
    pub fn present(&self) -> (usize, usize) {
        self.machine.present()
    }

    /// How long nothing is due, if nothing comes: see [`deadline`](Self::deadline).
    #[must_use]
    pub fn rests(&self) -> Duration {
        self.deadline().map_or(Duration::MAX, |deadline| deadline.saturating_sub(C::now()))
    }

    /// The connections to servers that take part.
    pub fn connections(&mut self) -> impl Iterator<Item = (&str, &mut C)> {
        let machine = &self.machine;
        let there = self.connections.iter_mut().enumerate();
        there
            .filter(|(n, _)| machine.takes_part(*n))
            .filter_map(|(n, c)| Some((machine.name(n), c.as_mut()?)))
    }

    /// The connection to a server, if that takes part. Servers are counted as they were named when the group was opened.
    pub fn connection(&mut self, server: usize) -> Option<&mut C> {
        self.connections.get_mut(server).filter(|_| self.machine.takes_part(server))?.as_mut()
    }

    /// How many connections to a server there have been: what was begun on one does not end on the next.
    ///
    /// # Panics
    /// There is no such server.
    #[must_use]
    pub fn life(&self, server: usize) -> u64 {
        self.lives[server]
    }

    /// All connections that there are.
    pub(crate) fn all_connections(&mut self) -> impl Iterator<Item = &mut C> {
        self.connections.iter_mut().flatten()
    }

    /// Appends a record; its number. When this returns the record is acknowledged: it is durable on as many servers as the group
    /// was made with.
    ///
    /// # Errors
    /// It does not fit: nothing was appended. Or too few servers are left: it may be found later or not.
    pub fn append(&mut self, payload: &[u8]) -> Result<u64, GroupError> {
        let sequence = self.begin_append(payload)?;
        self.wait(sequence + 1)?;
        Ok(sequence)
    }

    /// Begins to append a record; its number. It is acknowledged when [`acknowledged`](Self::acknowledged) is above that, for which
    /// [`wait`](Self::wait) waits, and not before: if the group fails first, the record may be found later or not.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn begin_append(&mut self, payload: &[u8]) -> Result<u64, GroupError> {
        self.begin_append_batch(&[payload]).map(|(sequence, _)| sequence)
    }

    /// Begins to append the first of these records, as many as fit: the number of the first, and how many.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn begin_append_batch(&mut self, payloads: &[&[u8]]) -> Result<(u64, usize), GroupError> {
        loop {
            match self.machine.append_batch(C::now(), payloads) {
                Ok(taken) => {
                    self.carry_out();
                    self.machine.enough()?;
                    return Ok(taken);
                }
                Err(NotTaken::Refused(error)) => {
                    // What has come says perhaps that a log was trimmed.
                    if matches!(error, GroupError::Append(AppendError::Full { .. })) {
                        self.turn();
                    }
                    return Err(error);
                }
                Err(NotTaken::NotYet) => self.step()?,
            }
        }
    }

    /// Appends a record, if that need not wait; its number. It counts once it was taken, though servers may be found to be gone when it is sent.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn try_append(&mut self, payload: &[u8]) -> Result<u64, NotTaken> {
        self.try_append_batch(&[payload]).map(|(sequence, _)| sequence)
    }

    /// The same of the first of these records, as many as fit: the number of the first, and how many.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn try_append_batch(&mut self, payloads: &[&[u8]]) -> Result<(u64, usize), NotTaken> {
        let taken = self.machine.append_batch(C::now(), payloads);
        if matches!(taken, Err(NotTaken::Refused(GroupError::Append(AppendError::Full { .. })))) {
            // What has come says perhaps that a log was trimmed.
            self.turn();
        }
        self.carry_out();
        taken
    }

    /// Whether there may be more than the last look took, or something to be looked at that it began: who would sleep looks again first.
    #[must_use]
    pub const fn goes_on(&self) -> bool {
        self.went_on
    }

    /// Looks what has become durable; [`acknowledged`](Self::acknowledged) is up to date on return. Does not wait.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn poll(&mut self) -> Result<u64, GroupError> {
        self.turn();
        self.time_out();
        self.is_alive()?;
        Ok(self.acknowledged())
    }

    fn is_alive(&self) -> Result<(), GroupError> {
        if let Some(error) = self.machine.failed() {
            return Err(error.clone());
        }
        if self.acknowledged() < self.next() { self.machine.enough() } else { Ok(()) }
    }

    /// Goes on, and waits a little if nothing has come.
    fn step(&mut self) -> Result<(), GroupError> {
        let any = self.turn();
        self.is_alive()?;
        self.machine.enough()?;
        self.idle(any, None);
        Ok(())
    }

    /// Waits until all records below that number are acknowledged.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn wait(&mut self, below: u64) -> Result<(), GroupError> {
        loop {
            let any = self.turn();
            if self.acknowledged() >= below {
                return Ok(());
            }
            self.is_alive()?;
            self.idle(any, None);
        }
    }

    /// Gives up the records below that number: they were applied. Returns when as many servers as acknowledge have done so; others
    /// are waited for no longer than [`Options::grace`], and do so when they have got there.
    ///
    /// # Errors
    /// They are not acknowledged, or too few servers are left.
    pub fn trim(&mut self, below: u64) -> Result<(), GroupError> {
        let trimming = self.begin_trimming(below)?;
        loop {
            let any = self.turn();
            let now = C::now();
            if self.is_trimmed(now, trimming) {
                return Ok(());
            }
            self.machine.enough()?;
            self.is_alive()?;
            self.idle(any, self.grace_of(now, trimming.since));
        }
    }

    /// Begins to give up the records below that number.
    pub(crate) fn begin_trimming(&mut self, below: u64) -> Result<Trimming, GroupError> {
        self.begin_trim(below)?;
        Ok(Trimming { below, since: C::now() })
    }

    /// Whether as many servers as acknowledge have given them up, and the others too or had their time.
    pub(crate) fn is_trimmed(&self, now: Duration, Trimming { below, since }: Trimming) -> bool {
        let trimmed = self.machine.trimmed(below);
        let all = (0..self.connections.len()).filter(|n| self.machine.takes_part(*n)).count();
        trimmed >= self.quorum().0 && (now.saturating_sub(since) >= self.grace || trimmed == all)
    }

    /// Goes on with closing; whether that is over: the servers remember what is acknowledged, or had their time.
    pub(crate) fn closes(&mut self, now: Duration, closing: &mut Closing) -> bool {
        let late = now.saturating_sub(closing.since) >= self.grace;
        if !closing.told && (late || self.machine.behind().is_empty()) {
            closing.told = true;
            self.machine.note_known(now);
            self.carry_out();
        }
        closing.told && (late || !self.machine.is_calling())
    }

    /// Until when slower servers are waited for, if that was not over when it was looked whether they are.
    pub(crate) fn grace_of(&self, looked: Duration, since: Duration) -> Option<Duration> {
        since.checked_add(self.grace).filter(|end| *end > looked)
    }

    /// How long slower servers are waited for.
    pub(crate) const fn grace(&self) -> Duration {
        self.grace
    }

    /// As [`trim`](Self::trim), but does not wait: the servers do so while the group is polled.
    ///
    /// # Errors
    /// They are not acknowledged.
    pub fn begin_trim(&mut self, below: u64) -> Result<(), GroupError> {
        self.machine.trim(C::now(), below)?;
        self.carry_out();
        Ok(())
    }

    /// Has a server keep the records from this number on: see [`Machine::keep`].
    ///
    /// # Panics
    /// There is no such server.
    pub fn keep(&mut self, server: usize, from: u64) {
        self.machine.keep(C::now(), server, from);
        self.carry_out();
    }

    /// Waits until something may have come, and goes on: for whoever waits for something else that the same connections bring, and has
    /// looked for it since the group last went on.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn pause(&mut self) -> Result<(), GroupError> {
        self.carry_out();
        // What the last turn began, and what it left, ends no wait.
        self.idle(self.went_on, None);
        self.turn();
        self.is_alive()?;
        self.machine.enough()
    }

    /// Waits for everything under way, and has the servers remember what was acknowledged, so that they would notice the
    /// loss of the last record too.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn close(mut self) -> Result<(), GroupError> {
        self.wait(self.next())?;
        let mut closing = Closing::new(C::now());
        loop {
            let any = self.turn();
            let now = C::now();
            if self.closes(now, &mut closing) {
                return Ok(());
            }
            self.idle(any, self.grace_of(now, closing.since));
        }
    }

    /// Carries out what is to be done. Whether anything was.
    fn carry_out(&mut self) -> bool {
        let mut any = false;
        while let Some(action) = self.machine.poll_action() {
            any = true;
            let (n, done) = match action {
                Action::Disconnect { server } => {
                    self.connections[server] = None;
                    continue;
                }
                Action::Call { server, request } => {
                    (server, self.on(server, |connection| connection.begin_call(&request)))
                }
                Action::Read { server, offset, len } => {
                    (server, self.on(server, |connection| connection.begin_read(offset, len)))
                }
                Action::Append { server, updates, plan } => {
                    (server, self.on(server, |connection| connection.begin_append(*updates, &plan)))
                }
            };
            if let Err(why) = done {
                self.has_lost(n, why);
            }
        }
        self.went_on |= any;
        any
    }

    fn on(
        &mut self,
        n: usize,
        act: impl FnOnce(&mut C) -> Result<(), ConnectionLost>,
    ) -> Result<(), ConnectionLost> {
        self.connections[n].as_mut().map_or(Ok(()), act)
    }

    fn has_lost(&mut self, n: usize, why: ConnectionLost) {
        self.connections[n] = None;
        self.machine.handle(C::now(), n, Event::Lost(why.0));
    }

    /// Does what is to be done, and takes what has come. Whether anything was, or had.
    fn turn(&mut self) -> bool {
        let mut any = self.carry_out();
        for n in 0..self.connections.len() {
            for _ in 0..TAKEN {
                let Some(connection) = &mut self.connections[n] else { break };
                match connection.poll() {
                    Ok(None) => break,
                    Ok(Some(event)) => {
                        any = true;
                        self.machine.handle(C::now(), n, event);
                        if self.machine.has_actions() {
                            self.carry_out();
                        }
                    }
                    Err(why) => {
                        any = true;
                        self.has_lost(n, why);
                    }
                }
            }
        }
        any |= self.connect(self.machine.is_open());
        self.went_on = self.carry_out() || any;
        self.went_on
    }

    /// Does what is due. Whether anything was.
    fn time_out(&mut self) -> bool {
        let now = C::now();
        let due = self.machine.deadline().is_some_and(|deadline| now >= deadline);
        if due {
            self.machine.timeout(now);
            self.carry_out();
        }
        due
    }

    /// Does what is due. If nothing was, and nothing has come, waits for the first of: something that comes, something that is due,
    /// and that time. Of a single server, only once it was looked at for a while in vain.
    fn idle(&mut self, any: bool, until: Option<Duration>) {
        self.turns = self.turns.wrapping_add(1);
        self.looks = if any { 0 } else { self.looks.wrapping_add(1) };
        let several = self.connections.iter().flatten().nth(1).is_some();
        if any || !(several || self.looks.is_multiple_of(LOOKS)) {
            if self.turns.is_multiple_of(CLOCK) {
                self.time_out();
            }
            return;
        }
        if self.time_out() {
            return;
        }
        let first = [self.deadline(), until].into_iter().flatten().min();
        let limit = first.map_or(Duration::MAX, |first| first.saturating_sub(C::now()));
        match (&mut self.connector, self.connections.iter_mut().flatten().next()) {
            (Some(connector), _) => connector.wait(limit),
            (None, Some(one)) => one.wait(limit),
            (None, None) => C::yield_now(),
        }
    }
}

impl<C: ReplicaConnection> replicated::Log for Group<C> {
    fn machine(&self) -> &Machine {
        self.machine()
    }

    fn append(&mut self, _: Duration, record: &[u8]) -> Result<u64, NotTaken> {
        // What was taken counts, though servers may have been found to be gone when it was sent: a later host may find it.
        self.try_append(record)
    }

    fn trim(&mut self, _: Duration, below: u64) -> Result<(), GroupError> {
        self.begin_trim(below)
    }
}

#[cfg(test)]
mod tests {
    //! A group whose servers answer at once, as a member's own log does: what came of what was begun lies there and wakes nobody.

    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::rc::Rc;
    use std::sync::{Arc, Mutex};

    use remanence_codec::{Malformed, Reader};
    use remanence_coord::replicated::sessions::Known;
    use remanence_coord::replicated::{Limits, Replica, Reply, Request as Asked, StateMachine};
    use remanence_pmem::crash_image::CrashImage;
    use remanence_pmem::{Medium, PersistenceDomain};

    use super::*;
    use crate::format::{DATA_AT, Geometry, Mode};
    use crate::store::{Make, Store};

    /// A server, and what it has answered.
    struct AtOnce {
        store: Store<Arc<CrashImage>>,
        came: VecDeque<Event>,
        /// Answers that lie at any server, and how often the group would have slept nevertheless.
        there: Rc<Cell<usize>>,
        slept: Rc<Cell<usize>>,
        /// It is found to be gone when something is sent next.
        is_gone: Rc<Cell<bool>>,
    }

    impl AtOnce {
        fn has_come(&mut self, event: Event) -> Result<(), ConnectionLost> {
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
            let reply = match *request {
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
            self.has_come(Event::Reply(reply.map(Box::new)))
        }

        fn begin_read(&mut self, offset: u64, len: u32) -> Result<(), ConnectionLost> {
            let mut bytes = vec![0; len as usize];
            self.store.medium().read(offset, &mut bytes);
            self.has_come(Event::Data(bytes))
        }

        fn begin_append(&mut self, updates: Updates, _: &PlanRequest) -> Result<(), ConnectionLost> {
            if self.is_gone.get() {
                return Err(ConnectionLost("it is gone".into()));
            }
            let medium = self.store.medium();
            for (at, bytes) in updates.list() {
                medium.write(at, bytes);
                medium.persist(at..at + bytes.len() as u64).expect("memory");
            }
            self.has_come(Event::Durable)
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

    fn store(n: u8) -> Store<Arc<CrashImage>> {
        let geometry = Geometry::new(DATA_AT + 256 * 512, 512).expect("fair");
        let image = Arc::new(CrashImage::new(geometry.size, PersistenceDomain::Adr));
        let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([n; 16]), salt: n.into() };
        Store::create(image, &make).expect("fair")
    }

    /// A server that is new.
    fn new_server(n: u8) -> AtOnce {
        let (there, slept, is_gone) = (Rc::default(), Rc::default(), Rc::default());
        AtOnce { store: store(n), came: VecDeque::new(), there, slept, is_gone }
    }

    /// Goes on as long as there is something to do.
    fn go_on(group: &mut Group<AtOnce>) {
        while group.poll().is_ok() && group.goes_on() {}
    }

    /// What is told of attempts at each server: `None`, it has not ended; a new server, or none.
    #[derive(Clone, Debug, Default)]
    struct Scripted(Arc<Mutex<Script>>);

    #[derive(Debug, Default)]
    struct Script {
        told: [VecDeque<Option<Result<u8, ()>>>; 3],
        /// Which servers were asked for, and whether an attempt might begin.
        asked: Vec<(usize, bool)>,
    }

    impl Connector<AtOnce> for Scripted {
        fn poll(&mut self, server: usize, may: bool) -> Option<Result<AtOnce, ConnectionLost>> {
            let mut script = self.0.lock().expect("whole");
            script.asked.push((server, may));
            let made = script.told[server].pop_front().flatten()?;
            Some(made.map(new_server).map_err(|()| ConnectionLost("it is away".into())))
        }

        fn deadline(&self, server: usize) -> Option<Duration> {
            Some(Duration::from_secs(server as u64))
        }

        fn wait(&mut self, _: Duration) {}
    }

    #[test]
    fn a_server_is_connected_to_when_the_log_begins_and_again_while_it_is_open_and_the_server_away() {
        let scripted = Scripted::default();
        let tell = |server: usize, told| scripted.0.lock().expect("whole").told[server].push_back(told);
        let asked = || std::mem::take(&mut scripted.0.lock().expect("whole").asked);
        tell(0, Some(Ok(1)));
        tell(1, Some(Ok(2)));
        let names = ["s1", "s2", "s3"].map(ToOwned::to_owned);
        let options = Options::new(1, Uuid([9; 16])).acks(Some(2));
        let mut group = Group::begin_by(Box::new(scripted.clone()), names.to_vec(), &options);
        assert_eq!(asked(), [(0, true), (1, true), (2, true)], "to all at once");
        go_on(&mut group);
        assert!(!group.machine().is_open() && asked().iter().all(|asked| *asked == (2, false)));
        tell(2, Some(Ok(3)));
        go_on(&mut group);
        assert!(group.machine().is_open());
        asked();
        assert_eq!(group.try_append(b"one"), Ok(0));
        go_on(&mut group);
        assert_eq!((asked(), group.deadline()), (vec![], None), "all are there");
        group.lose(2, ConnectionLost("the cable was pulled".into()));
        assert_eq!(group.deadline(), Some(Duration::from_secs(2)), "it is tried again then");
        go_on(&mut group);
        assert!(asked().iter().all(|asked| *asked == (2, true)));
        tell(2, Some(Err(())));
        go_on(&mut group);
        assert_eq!(group.lost(), [("s3".to_owned(), "it is away".to_owned())]);
        assert_eq!((group.life(1), group.life(2)), (1, 1));
        // It comes back with nothing, and gets what it lacks.
        tell(2, Some(Ok(4)));
        go_on(&mut group);
        assert_eq!((group.life(1), group.life(2), group.deadline()), (1, 2, None));
        assert!(group.lost().is_empty() && group.machine().takes_part(2) && !group.machine().is_behind(2));
    }

    /// What it is told, and how often.
    #[derive(Default)]
    struct Sum(u64);

    impl StateMachine for Sum {
        fn apply(&mut self, command: &[u8]) -> Vec<u8> {
            self.0 += u64::from(command[0]);
            self.0.to_le_bytes().to_vec()
        }

        fn snapshot(&self) -> Vec<u8> {
            self.0.to_le_bytes().to_vec()
        }

        fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
            Reader::new(snapshot).u64_le().map(Self)
        }
    }

    #[test]
    fn a_pause_does_not_sleep_on_what_a_turn_began_or_left() {
        let (there, slept) = (Rc::default(), Rc::default());
        let connections = (1..=2).map(|n| {
            let (there, slept) = (Rc::clone(&there), Rc::clone(&slept));
            let is_gone = Rc::default();
            let connection = AtOnce { store: store(n), came: VecDeque::new(), there, slept, is_gone };
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
            let connection = AtOnce { store: store(n), came: VecDeque::new(), there, slept, is_gone };
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
        assert!(
            matches!(replica.poll_answer(), Some((2, Reply::Unknown(_)))),
            "nobody waits for who is gone"
        );
        assert_eq!(group.next(), session + 2);
        assert!(matches!(replica.state().look(session, 1), Known::Done(record, _) if record == session + 1));
    }

    /// The servers of a log come one after the other, and nobody waits.
    #[test]
    fn a_group_that_is_begun_opens_when_enough_have_come_and_takes_no_record_before() {
        let names = ["s1", "s2", "s3"].map(ToOwned::to_owned);
        let options = Options::new(1, Uuid([9; 16])).acks(Some(2));
        let mut group = Group::begin(names.to_vec(), &options);
        let go_on = |group: &mut Group<AtOnce>| {
            go_on(group);
            (group.machine().is_open(), group.machine().shortage().is_some())
        };
        assert_eq!(go_on(&mut group), (false, false), "it is not known yet whether they are there");
        assert_eq!(group.try_append(b"early"), Err(NotTaken::NotYet));
        group.reconnect_to(0, Ok(new_server(1)));
        group.reconnect_to(1, Err(ConnectionLost("it is away".into())));
        assert_eq!(go_on(&mut group), (false, false));
        group.reconnect_to(2, Err(ConnectionLost("it is away".into())));
        assert_eq!(go_on(&mut group), (false, true), "a new log needs all of them");
        group.reconnect_to(1, Ok(new_server(2)));
        group.reconnect_to(2, Ok(new_server(3)));
        assert_eq!(go_on(&mut group), (true, false));
        assert_eq!(group.try_append(b"one"), Ok(0));
        go_on(&mut group);
        assert_eq!((group.acknowledged(), group.next()), (1, 1));
    }
}
