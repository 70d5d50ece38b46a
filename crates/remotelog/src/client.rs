//! What a user of a log has: one that is open for writing, and one that is read. Both connect by themselves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use remanence_pmem::Survives;
use remanence_remote::{Face, Reactor, Token, at_once};
use remanence_verbs::Context;

use super::connection::{self, CallError, Method, SessionConnection};
use super::server::drawn;
use crate::error::{Damage, Refused};
use crate::format::Epoch;
use crate::format::superblock::Uuid;
use crate::group::{self, ConnectionLost, Event, Group, GroupError, ReplicaConnection as _};
use crate::proto::Request;
use crate::store::{Reader, Status};
use crate::walk::{Missing, Source, Window};

/// Bytes that a reader asks for at a time.
const WINDOW: u64 = 64 << 10;
/// How often a record is looked for that is not whole, though the server has it: a trim may have overtaken each look.
const LOOKS: usize = 16;

/// How a log is connected to.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    pub(crate) remote: remanence_remote::Options,
    pub(crate) patience: Duration,
    acks: Option<u16>,
    pub(crate) method: Method,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        let patience = Duration::from_secs(30);
        let remote = remanence_remote::Options::default().patience(patience);
        Self { remote, patience, acks: None, method: Method::Cheapest }
    }
}

impl ConnectOptions {
    /// The tokens of the servers; each of them is asked which one is its own.
    #[must_use]
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.remote = self.remote.tokens(tokens);
        self
    }

    /// How long a server may go without a sign before it is taken for lost; 30 s if nothing is said.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.remote = self.remote.patience(limit);
        self.patience = limit;
        self
    }

    /// On how many of the servers a record must be durable before it is acknowledged. That is settled when the log is made on them,
    /// where it is all of them if nothing is said.
    #[must_use]
    pub const fn acks(mut self, servers: u16) -> Self {
        self.acks = Some(servers);
        self
    }

    /// How records are made durable; by the cheapest method that is proven for the server if nothing is said.
    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    /// How the group of the servers is opened, by a writer that is drawn anew.
    pub(crate) fn group(&self) -> group::Options {
        let group = group::Options::new(u32::from_le_bytes(drawn()), Uuid(drawn()));
        group.acks(self.acks).patience(self.patience)
    }
}

/// A log that is open for its one writer, on one server or on several: a [`Group`] of connections over verbs.
///
/// [`append`](Self::append) returns when the record is durable; who has many of them begins them by
/// [`begin_append`](Self::begin_append), and waits once.
///
/// A server that is lost is connected to again while the log goes on, which is in its calls: the attempt is made beside, and no call waits for it.
/// **Nothing is appended a second time for that.** An append that has failed because too few servers were left
/// ([`GroupError::TooFew`]) is of unknown fate, and is not to be repeated: if it was given a number, that is, if [`next`](Self::next) is above where it
/// was before, the record has its place in the log and is sent again under that number to a server that comes back without it. So
/// [`acknowledged`](Self::acknowledged) says what became of it: once it is above the number, the record is durable, for which [`wait`](Self::wait)
/// can be asked again. Until then, and if this log is given up before, a later writer may find it or not.
#[derive(Debug)]
pub struct Log(pub(crate) Group<SessionConnection>);

impl Log {
    /// Opens the log on these servers for writing, by a device of its own; makes it if all of them are new. Earlier writers are shut
    /// out. All servers of the log are to be named, lost ones too.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to any of the servers.
    pub fn connect_to(servers: &[SocketAddr], options: &ConnectOptions) -> Result<Self, GroupError> {
        servers.first().ok_or_else(no_server)?;
        let context = Context::towards_any(servers.iter().map(SocketAddr::ip)).map_err(|e| said(&e))?;
        Self::connect(&context, servers, options)
    }

    /// The same by a device that is open.
    ///
    /// # Errors
    /// Too few of the servers are there, they do not belong together, or another writer was faster.
    pub fn connect(
        context: &Context,
        servers: &[SocketAddr],
        options: &ConnectOptions,
    ) -> Result<Self, GroupError> {
        if servers.is_empty() {
            return Err(no_server());
        }
        let reactor = Reactor::new(context).map_err(|e| said(&e))?;
        let mut group = connection::begin(&reactor, servers, options, Arc::new(reactor.waker()).into());
        group.wait_until_open()?;
        Ok(Self(group))
    }

    /// Appends a record; its number. When this returns the record is acknowledged: it is durable on as many servers as the log was
    /// made with.
    ///
    /// # Errors
    /// It does not fit: nothing was appended. Or too few servers are left: it may be found later or not.
    pub fn append(&mut self, payload: &[u8]) -> Result<u64, GroupError> {
        self.0.append(payload)
    }

    /// Begins to append a record; its number. It is acknowledged when [`acknowledged`](Self::acknowledged) is above that, for which
    /// [`wait`](Self::wait) waits, and not before: if the log fails first, the record may be found later or not.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn begin_append(&mut self, payload: &[u8]) -> Result<u64, GroupError> {
        self.0.begin_append(payload)
    }

    /// Begins to append the first of these records, as many as fit: the number of the first, and how many.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn begin_append_batch(&mut self, payloads: &[&[u8]]) -> Result<(u64, usize), GroupError> {
        self.0.begin_append_batch(payloads)
    }

    /// Looks what has become durable; [`acknowledged`](Self::acknowledged) is up to date on return. Does not wait.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn poll(&mut self) -> Result<u64, GroupError> {
        self.0.poll()
    }

    /// Waits until all records below that number are acknowledged.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn wait(&mut self, below: u64) -> Result<(), GroupError> {
        self.0.wait(below)
    }

    /// Gives up the records below that number: they were applied. Returns when as many servers as acknowledge have done so.
    ///
    /// # Errors
    /// They are not acknowledged, or too few servers are left.
    pub fn trim(&mut self, below: u64) -> Result<(), GroupError> {
        self.0.trim(below)
    }

    /// The number of the next record.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.0.next()
    }

    /// All records below this number are acknowledged.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.0.acknowledged()
    }

    /// The epoch of this writer.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.0.epoch()
    }

    /// How many servers acknowledge, of how many.
    #[must_use]
    pub fn quorum(&self) -> (usize, usize) {
        self.0.quorum()
    }

    /// The servers that do without, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        self.0.lost()
    }

    /// The group that this is: its connections, its servers, and what else it can.
    pub const fn group(&mut self) -> &mut Group<SessionConnection> {
        &mut self.0
    }

    /// Waits for everything under way, and has the servers remember what was acknowledged, so that they would notice the
    /// loss of the last record too.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn close(self) -> Result<(), GroupError> {
        self.0.close()
    }

    /// Which failures acknowledged records survive, by the tokens of the servers that take part: what all of them survive. `None`
    /// if this writer has appended nothing yet.
    pub fn survives(&mut self) -> Option<Survives> {
        self.0.survives()
    }
}

impl Group<SessionConnection> {
    /// Which failures acknowledged records survive: see [`Log::survives`].
    pub fn survives(&mut self) -> Option<Survives> {
        self.connections().filter_map(|(_, connection)| connection.survives()).reduce(Survives::and)
    }
}

pub(crate) fn no_server() -> GroupError {
    Refused::Said("no server was named; name all servers of the log".to_owned()).into()
}

pub(crate) fn said(error: &dyn std::fmt::Display) -> GroupError {
    Refused::Said(error.to_string()).into()
}

/// A record that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The record's number in the log.
    pub sequence: u64,
    /// The writer that appended it.
    pub epoch: Epoch,
    /// What was appended.
    pub payload: Vec<u8>,
}

/// Why a record is not read.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The server is gone, or refuses.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It was given up by whoever had applied it.
    #[error("records {from} to {} were trimmed before they were read; begin again with {below}", below - 1)]
    Trimmed {
        /// The record that was to be read.
        from: u64,
        /// The first one that is there.
        below: u64,
    },
    /// Records that were read are in the log no more: a later writer did not find them, and nobody had been told that they were safe.
    #[error(
        "the log was cut, and what was read of it before record {from} is not what is there now; forget what was read, and begin again"
    )]
    CutOff {
        /// The record that was to be read.
        from: u64,
    },
    /// It is damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The server has it, and what is read in its place is not it.
    #[error(
        "record {0} changes while it is read; try again, and check the server's medium if that does not help"
    )]
    Unsteady(u64),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<ConnectionLost> for ReadError {
    fn from(lost: ConnectionLost) -> Self {
        Self::Call(lost.into())
    }
}

/// Reads the records of a server's log from afar, one after the other: an iterator. The server's CPU says how far its log goes, and
/// takes no part otherwise.
///
/// What is read is durable on that server. In a log on several servers the last records may not have been acknowledged yet, and a
/// later writer may then cut them off: who has read them is told so by [`ReadError::CutOff`]. The iterator ends where the log ends now; asked again later, it goes on.
#[derive(Debug)]
pub struct LogReader {
    connection: SessionConnection,
    window: Window,
    reader: Reader,
    status: Status,
    /// What is being read; nothing: the status is asked for, if anything is under way.
    missing: Option<Missing>,
    /// A record that was read, and may have been cut off since; and whether the status is newer.
    kept: Option<Record>,
    is_newer: bool,
    over: bool,
}

impl LogReader {
    /// Begins with the first record that is there, by a device of its own.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to the server.
    pub fn connect_to(server: SocketAddr, options: &ConnectOptions) -> Result<Self, CallError> {
        let context = Context::towards(server.ip()).map_err(|e| ConnectionLost(e.to_string()))?;
        Self::connect(&context, server, options)
    }

    /// The same by a device that is open.
    ///
    /// # Errors
    /// The server is not there, or refuses.
    pub fn connect(
        context: &Context,
        server: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Self, CallError> {
        let reactor = Reactor::new(context).map_err(|e| ConnectionLost(e.to_string()))?;
        Self::connect_on(&reactor, server, options)
    }

    pub(crate) fn connect_on(
        reactor: &Reactor,
        server: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Self, CallError> {
        let mut connection =
            connection::connect(reactor, server, options.remote.clone(), options.method.clone())?;
        let status = connection.call(&Request::Status)?;
        let window = Window::new(status.superblock.geometry.size, WINDOW);
        let reader = Reader::new(&status);
        let (missing, kept) = (None, None);
        Ok(Self { connection, window, reader, status, missing, kept, is_newer: false, over: false })
    }

    /// What the server has said of its log last.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// The number of the record that comes next.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        match &self.kept {
            Some(record) => record.sequence,
            None => self.reader.next_sequence(),
        }
    }

    /// Waits for what was asked for, be it by a future that was dropped since.
    async fn asked(&mut self, face: Face) -> Result<(), ReadError> {
        match (self.connection.came(face).await?, self.missing.take()) {
            (Event::Data(bytes), Some(missing)) => self.window.came(missing.offset, bytes),
            (Event::Reply(status), None) => {
                self.status = *status.map_err(CallError::from)?;
                self.is_newer = true;
                self.window.forget();
                self.reader.refresh(&self.status);
            }
            _ => {
                let why = "the server answers what it was not asked; use the same release on both sides";
                return Err(ConnectionLost(why.to_owned()).into());
            }
        }
        Ok(())
    }

    /// Asks how the log is by now.
    async fn look(&mut self, face: Face) -> Result<(), ReadError> {
        self.connection.begin_call(&Request::Status)?;
        self.asked(face).await
    }

    /// Whether the log, as it was said to be last, is still the one that was read up to a record.
    fn judge(&self, next: u64) -> Result<(), ReadError> {
        let first = self.status.state.head.sequence;
        if first > next.max(self.reader.next_sequence()) {
            return Err(ReadError::Trimmed { from: next, below: first });
        }
        if let Some(damage) = self.status.damage.filter(|damage| damage.sequence <= next) {
            return Err(damage.into());
        }
        if self.reader.can_go_on(&self.status) { Ok(()) } else { Err(ReadError::CutOff { from: next }) }
    }

    /// The next record, if it is whole where it is looked for.
    async fn record(&mut self, face: Face) -> Result<Option<Record>, ReadError> {
        loop {
            let missing = match self.reader.read(&mut &self.window) {
                Ok(read) => {
                    self.is_newer = false;
                    return Ok(read.ok().map(|(found, payload)| {
                        let (sequence, epoch) = (found.header.sequence, found.header.epoch);
                        Record { sequence, epoch, payload: payload.to_vec() }
                    }));
                }
                Err(missing) => missing,
            };
            self.connection.begin_read(missing.offset, missing.len)?;
            self.missing = Some(missing);
            self.asked(face).await?;
        }
    }

    /// Where it waits it may be given up: what it has found is kept, and what it has begun is taken by the next one.
    async fn read(&mut self, face: Face) -> Result<Option<Record>, ReadError> {
        while !self.connection.is_idle() {
            self.asked(face).await?;
        }
        let next = self.next_sequence();
        for _ in 0..LOOKS {
            if self.kept.is_none() && next < self.status.tail.sequence {
                self.kept = self.record(face).await?;
            }
            if self.kept.is_some() {
                // Its writer may have cut off what was read before it.
                if self.reader.changed_writer() {
                    if !self.is_newer {
                        self.look(face).await?;
                    }
                    self.judge(next)?;
                }
                return Ok(self.kept.take());
            }
            // It is not there yet, or no more, or was overwritten while it was read.
            self.look(face).await?;
            self.judge(next)?;
            if self.status.tail.sequence <= next {
                return Ok(None);
            }
        }
        Err(ReadError::Unsteady(next))
    }

    /// The next record, for whoever waits as it says.
    pub(crate) async fn next_as(&mut self, face: Face) -> Option<Result<Record, ReadError>> {
        if self.over {
            return None;
        }
        let next = self.read(face).await;
        self.over = next.is_err();
        next.transpose()
    }
}

impl Iterator for LogReader {
    type Item = Result<Record, ReadError>;

    /// The next record; `None` at the end of the log, and after an error.
    fn next(&mut self) -> Option<Self::Item> {
        at_once(self.next_as(Face::Thread))
    }
}

impl Source for SessionConnection {
    type Error = ConnectionLost;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), ConnectionLost> {
        Self::read(self, offset, into)
    }
}
