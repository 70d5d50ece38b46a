//! A group for one thread that waits: the machine, a connection to each server, and their clock. Nothing here waits by itself:
//! [`ReplicaConnection`] does, where a connection is real.

use std::time::Duration;

use remanence_persist::plan::Request as PlanRequest;
use thiserror::Error;

use super::machine::{Action, Event, Machine, NotTaken};
use super::{GroupError, Opened, Options};
use crate::log::error::AppendError;
use crate::log::format::Epoch;
use crate::log::format::superblock::Uuid;
use crate::log::proto::Request;
use crate::log::writer::Updates;

/// What is taken from one connection before the others are looked at: whoever copies a whole log holds up nobody.
const TAKEN: usize = 32;
/// Looks at a single connection before the thread waits there: of one server the answer is often there by then, and as long as nobody
/// else is to be looked at, to look costs less than to wait.
const LOOKS: u32 = 100;
/// After so many turns that do not wait the clock is read, as something may be due.
const CLOCK: u32 = 16;
/// Said of a connection that cannot be waited for together with those that there are.
const APART: &str = "its connection is on another reactor than those to the other servers of its log";

/// A server's connection is gone, or never was there. A sentence that says why.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ConnectionLost(pub String);

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for ConnectionLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

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

fn elapsed<C: ReplicaConnection>(since: Duration) -> Duration {
    C::now().saturating_sub(since)
}

/// A log on several servers, open for its one writer.
#[derive(Debug)]
pub struct Group<C> {
    machine: Machine,
    connections: Vec<Option<C>>,
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
            machine: Machine::new(names, *options),
            grace: options.grace,
            turns: 0,
            looks: 0,
            went_on: false,
        }
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
        let mut open_since = None;
        loop {
            let any = group.turn();
            if let Some(error) = group.machine.failed() {
                return Err(error.clone());
            }
            if let Some(short) = group.machine.shortage() {
                return Err(short);
            }
            if group.machine.is_open() {
                let since = *open_since.get_or_insert_with(C::now);
                if !group.machine.is_settling() || elapsed::<C>(since) >= group.grace {
                    let opened = group.machine.opened();
                    return Ok((group, opened));
                }
            }
            group.idle(any, open_since.map(|since| since + group.grace));
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
                self.machine.connected(now, n);
            }
            Err(why) => {
                self.connections[n] = None;
                self.machine.unreachable(now, n, &why.0);
            }
        }
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
        let part = (0..self.connections.len()).filter(|n| self.machine.takes_part(*n)).count();
        (self.connections.iter().flatten().count(), part)
    }

    /// How long nothing is due, if nothing comes: see [`Machine::deadline`].
    #[must_use]
    pub fn rests(&self) -> Duration {
        self.machine.deadline().map_or(Duration::MAX, |deadline| deadline.saturating_sub(C::now()))
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
        let taken = self.machine.append_batch(C::now(), &[payload]);
        if matches!(taken, Err(NotTaken::Refused(GroupError::Append(AppendError::Full { .. })))) {
            // What has come says perhaps that a log was trimmed.
            self.turn();
        }
        self.carry_out();
        taken.map(|(sequence, _)| sequence)
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
        self.machine.trim(C::now(), below)?;
        let acks = self.quorum().0;
        let begin = C::now();
        loop {
            let any = self.turn();
            let trimmed = self.machine.trimmed(below);
            let late = elapsed::<C>(begin) >= self.grace;
            let all = (0..self.connections.len()).filter(|n| self.machine.takes_part(*n)).count();
            if trimmed >= acks && (late || trimmed == all) {
                return Ok(());
            }
            self.machine.enough()?;
            self.is_alive()?;
            self.idle(any, (!late).then_some(begin + self.grace));
        }
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

    /// The same for all servers, those included that are not there.
    pub fn keep_all(&mut self, from: u64) {
        for n in 0..self.connections.len() {
            self.machine.keep(C::now(), n, from);
        }
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
        let begin = C::now();
        while self.machine.behind().iter().any(|_| elapsed::<C>(begin) < self.grace) {
            let any = self.turn();
            self.idle(any, Some(begin + self.grace));
        }
        self.machine.note_known(C::now());
        while {
            let any = self.turn();
            let going = self.machine.is_calling() && elapsed::<C>(begin) < self.grace;
            if going {
                self.idle(any, Some(begin + self.grace));
            }
            going
        } {}
        Ok(())
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
        let first = [self.machine.deadline(), until].into_iter().flatten().min();
        let limit = first.map_or(Duration::MAX, |first| first.saturating_sub(C::now()));
        match self.connections.iter_mut().flatten().next() {
            Some(one) => one.wait(limit),
            None => C::yield_now(),
        }
    }
}
