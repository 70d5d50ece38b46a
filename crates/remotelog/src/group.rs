//! One log on several servers, for a thread that waits: the machine of [`remanence_coord::log::group`], which decides, a connection to each
//! server, and their clock. Nothing here waits by itself: [`ReplicaConnection`] does, where a connection is real.

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
        let mut opening = Opening::new(options.grace);
        loop {
            let any = group.turn();
            if opening.is_over(C::now(), &group.machine)? {
                let opened = group.machine.opened();
                return Ok((group, opened));
            }
            group.idle(any, opening.deadline());
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
        self.machine.present()
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
    use std::sync::Arc;

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
        let connect = |n: u8| {
            let (there, slept, is_gone) = (Rc::default(), Rc::default(), Rc::default());
            AtOnce { store: store(n), came: VecDeque::new(), there, slept, is_gone }
        };
        let options = Options::new(1, Uuid([9; 16])).acks(Some(2));
        let mut group = Group::begin(names.to_vec(), &options);
        let go_on = |group: &mut Group<AtOnce>| {
            while group.poll().is_ok() && group.goes_on() {}
            (group.machine().is_open(), group.machine().shortage().is_some())
        };
        assert_eq!(go_on(&mut group), (false, false), "it is not known yet whether they are there");
        assert_eq!(group.try_append(b"early"), Err(NotTaken::NotYet));
        group.reconnect_to(0, Ok(connect(1)));
        group.reconnect_to(1, Err(ConnectionLost("it is away".into())));
        assert_eq!(go_on(&mut group), (false, false));
        group.reconnect_to(2, Err(ConnectionLost("it is away".into())));
        assert_eq!(go_on(&mut group), (false, true), "a new log needs all of them");
        group.reconnect_to(1, Ok(connect(2)));
        group.reconnect_to(2, Ok(connect(3)));
        assert_eq!(go_on(&mut group), (true, false));
        assert_eq!(group.try_append(b"one"), Ok(0));
        go_on(&mut group);
        assert_eq!((group.acknowledged(), group.next()), (1, 1));
    }
}
