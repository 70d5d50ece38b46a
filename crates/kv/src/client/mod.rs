//! The client's core: operations emit work requests and take completions.
//!
//! An [`Operation`] is a small state machine. [`Operation::step`] says what to post next ([`Verb`]s, in order, under one
//! doorbell), and is called again with the completions; [`Many`] runs several together, so that they share doorbells,
//! messages and flushes. The host owns QPs and threads. [`run`] is such a host for those that may block.
//!
//! A GET is two one-sided READs, entry and object, or one, where the location is cached; the server's CPU sees nothing. What
//! it returns was the key's value at one moment between its begin and its end, whatever writes, cleaning, displacement or
//! resizing went on.

mod cache;
mod get;
mod many;
mod mux;
mod peek;
mod put;

use std::collections::{BTreeMap, BTreeSet};

use remanence_pmem::Medium;

pub use get::{Found, Get};
pub use many::Many;
pub use mux::{AnyOperation, Ended, Mux, Output, Step};
pub use peek::{Peek, peek, peek_front};
pub use put::{Call, Change, Put, put_all};

use crate::format::object::object_len;
use crate::format::{KEY_MAX, UNIT, hash};
use crate::proto::{Changed, Inline, Refusal, Reply, Request, Reserved};
use crate::view::{Link, View};
use cache::{Cache, Location};

/// A work request. Places are bytes from the start of the server's medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verb {
    /// RDMA READ, which brings bytes of the medium.
    Read {
        /// The first byte to read.
        at: u64,
        /// How many bytes to read.
        len: u64,
    },
    /// RDMA WRITE. Complete means visible.
    Write {
        /// The byte at which to begin writing.
        at: u64,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
    /// The persistence recipe of the server's configuration, for all of these, in any order: each a place and the bytes
    /// that go there. Complete means durable.
    Persist(Vec<(u64, Vec<u8>)>),
    /// A message to the server, and its reply.
    Call(Request),
}

impl Verb {
    /// Carries it out on memory that is at hand. `call` brings a message to the server.
    ///
    /// # Panics
    /// The medium fails.
    pub fn carry_out(self, medium: &impl Medium, call: impl FnOnce(&Request) -> Reply) -> Completion {
        match self {
            Self::Read { at, len } => {
                let mut bytes = vec![0; len as usize];
                medium.read(at, &mut bytes);
                Completion::Read(bytes)
            }
            Self::Write { at, bytes } => {
                medium.write(at, &bytes);
                Completion::Written
            }
            Self::Persist(updates) => {
                updates.iter().for_each(|(at, bytes)| medium.write_nt(*at, bytes));
                medium.psync().expect("memory does not fail");
                Completion::Persistent
            }
            Self::Call(request) => Completion::Reply(call(&request)),
        }
    }
}

/// What became of a [`Verb`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Completion {
    /// The bytes that were read.
    Read(Vec<u8>),
    /// A WRITE is complete: its bytes are visible.
    Written,
    /// A recipe is complete: its bytes are durable.
    Persistent,
    /// The reply to a message.
    Reply(Reply),
}

/// What an operation wants next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress<T> {
    /// Post these, in this order, on one QP; then step with one completion for each.
    Post(Vec<Verb>),
    /// Somebody else must finish first. Step again, without completions, a little later.
    Again,
    /// The operation is over, with this.
    Done(T),
}

/// Something that a client does.
pub trait Operation {
    /// What the operation ends with.
    type Output;

    /// Goes on. `now` is the server's clock, milliseconds. The first time, and after [`Progress::Again`], there are no
    /// completions.
    fn step(&mut self, client: &mut Client, now: u64, completions: Vec<Completion>)
    -> Progress<Self::Output>;

    /// It will not go on: the connection is gone, or nobody wants the result. Nothing that it posted may be under way.
    /// Returns what to tell the server, if it can be told.
    fn cancel(&mut self, client: &mut Client) -> Option<Request>;
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The server refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server said something that makes no sense.
    #[error("the server's answer means nothing: {0}")]
    Protocol(&'static str),
}

impl Error {
    /// Whether a change that was refused so has left no trace: it was refused before there was room for it.
    #[must_use]
    pub const fn came_to_nothing(&self) -> bool {
        use Refusal::{BadKey, Full, TooLarge, TooMany, WrongVersion};
        let Self::Refused(refusal) = self else { return false };
        matches!(refusal, WrongVersion { .. } | Full | TooLarge { .. } | TooMany | BadKey)
    }

    /// Whether it is the end of a session with a primary: that one serves no more, or not this client.
    #[must_use]
    pub const fn ends_session(&self) -> bool {
        matches!(self, Self::Refused(Refusal::Medium | Refusal::Fenced))
    }
}

/// What the operations of a client have counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Values that were found with one READ.
    pub cached: u64,
    /// Cached locations that turned out to be stale.
    pub stale: u64,
    /// READs that were posted, and loads in their place where the memory is at hand.
    pub reads: u64,
    /// Objects whose checksum failed while their entry was pending: the version before was returned.
    pub fell_back: u64,
    /// GETs that had to begin again.
    pub again: u64,
    /// GETs that the server had to answer.
    pub asked: u64,
}

/// What a client knows of a server's memory, and of its own operations.
#[derive(Debug)]
pub struct Client {
    view: View,
    cache: Cache,
    /// Operations under way, and the view that they began with.
    under_way: BTreeMap<u64, u64>,
    next: u64,
    acknowledged: u64,
    confirm: Vec<u64>,
    suspects: BTreeSet<Vec<u8>>,
    stats: Stats,
}

impl Client {
    /// A client that caches at most so many locations, at a server with this view.
    #[must_use]
    pub fn new(view: View, locations: usize) -> Self {
        Self {
            acknowledged: view.number,
            view,
            cache: Cache::new(locations),
            under_way: BTreeMap::new(),
            next: 0,
            confirm: Vec::new(),
            suspects: BTreeSet::new(),
            stats: Stats::default(),
        }
    }

    /// The view of the server that the client goes by.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// Takes a new view: after a notice, or a reconnection.
    pub fn adopt(&mut self, view: View) {
        let same_run = view.boot == self.view.boot && view.salt == self.view.salt;
        if !same_run {
            // Marks are volatile, and versions in the cache may have been taken back by the crash.
            self.cache.clear();
            self.confirm.clear();
            self.suspects.clear();
            self.acknowledged = view.number;
            self.view = view;
        } else if view.number >= self.view.number {
            self.cache.retain(|location| view.links.contains_key(&(location.head, location.link)));
            self.view = view;
        }
    }

    /// The acknowledgement of a view, once nothing that is under way began with an older one.
    pub fn poll_acknowledgement(&mut self) -> Option<Request> {
        let oldest = self.under_way.values().min().copied().unwrap_or(u64::MAX);
        let view = oldest.min(self.view.number);
        if view <= self.acknowledged {
            return None;
        }
        self.acknowledged = view;
        Some(Request::Acknowledge { view })
    }

    /// Writes that are done, for the server to settle when it has time. PUTs carry them along; an idle client should send
    /// them now and then.
    pub fn poll_confirm(&mut self) -> Option<Request> {
        let versions = std::mem::take(&mut self.confirm);
        (!versions.is_empty()).then_some(Request::Confirm { versions })
    }

    /// Whether there are writes to tell of: [`poll_confirm`](Self::poll_confirm).
    #[must_use]
    pub const fn has_confirm(&self) -> bool {
        !self.confirm.is_empty()
    }

    /// What [`attend`] posts first: it asks for the newest view, and says what there is to say.
    pub fn attention(&mut self) -> Vec<Verb> {
        let mut verbs = vec![Verb::Call(Request::View)];
        verbs.extend(self.poll_confirm().map(Verb::Call));
        verbs.extend(self.poll_report().map(Verb::Call));
        verbs
    }

    /// Takes what came of [`attention`](Self::attention), and says what is to be posted then.
    pub fn attended(&mut self, completions: Vec<Completion>) -> Option<Verb> {
        for completion in completions {
            if let Completion::Reply(Reply::View(view)) = completion {
                self.adopt(view);
            }
        }
        self.poll_acknowledgement().map(Verb::Call)
    }

    /// A key whose newest object was found incomplete: the server is to look at it (4.2). Nobody has to wait for that.
    pub fn poll_report(&mut self) -> Option<Request> {
        self.suspects.pop_first().map(|key| Request::Settle { key })
    }

    /// What the operations of this client have counted so far.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    fn begin(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        self.under_way.insert(id, self.view.number);
        id
    }

    fn end(&mut self, id: Option<u64>) {
        id.and_then(|id| self.under_way.remove(&id));
    }

    /// Knows the link of what was handed out, which may be newer than the view: who knows it need not ask. `false`: there is no
    /// such place.
    fn learn(&mut self, reserved: &Reserved) -> bool {
        let (link, unit) = self.view.geometry.split(reserved.offset);
        let start = reserved.at.checked_sub(u64::from(unit) * UNIT);
        let Some(at) =
            start.filter(|at| at.saturating_add(self.view.geometry.region_len) <= self.view.geometry.size)
        else {
            return false;
        };
        self.view.links.insert((reserved.head, link), Link { at, epoch: reserved.epoch });
        true
    }

    /// Caches where a value was written, which is not in chunks.
    fn remember(&mut self, hash: u64, reserved: &Reserved, key: usize, value: usize) {
        let (link, _) = self.view.geometry.split(reserved.offset);
        let len = object_len(key, value as u64);
        let (version, head, offset) = (reserved.version, reserved.head, reserved.offset);
        self.cache.insert(hash, Location { version, head, link, offset, len });
    }

    /// What stands for a key in the cache, and, in part, in the table.
    fn hash(&self, key: &[u8]) -> Result<u64, Refusal> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(Refusal::BadKey);
        }
        Ok(hash(self.view.salt, key))
    }
}

/// Memory and a server that can be reached by somebody who waits.
pub trait RemoteMemory {
    /// Why it cannot be reached any more.
    type Error;

    /// Posts these in order, waits, and returns a completion for each.
    ///
    /// # Errors
    /// The connection is gone: whether writes took place is not known.
    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error>;

    /// Does what a READ does, at once, if the memory is at hand; whether it is. If not, READs are [posted](Self::post).
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    fn load(&mut self, at: u64, into: &mut [u8]) -> Result<bool, Self::Error> {
        let _ = (at, into);
        Ok(false)
    }

    /// Has the server write values, if it is at hand, and appends to `done` what became of each: [`Server::put_all`]. If it is
    /// not, nothing happens, and PUTs are to be made.
    ///
    /// [`Server::put_all`]: crate::server::Server::put_all
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    fn put_all(
        &mut self,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Result<bool, Self::Error> {
        let _ = (puts, done);
        Ok(false)
    }

    /// The server's clock, milliseconds.
    fn now(&self) -> u64;

    /// Lets somebody else go on, the longer the more often it was tried.
    ///
    /// # Errors
    /// As for [`post`](Self::post), or it was tried for too long.
    fn again(&mut self, tries: u32) -> Result<(), Self::Error>;

    /// The newest view that the server has told of; 0 if whoever has this sees to it.
    fn noticed(&mut self) -> u64 {
        0
    }
}

/// Takes the newest view, acknowledges it, and says what there is to say: what a host does after a notice, and an idle
/// client now and then.
///
/// # Errors
/// The remote memory cannot be reached any more.
pub fn attend<R: RemoteMemory>(client: &mut Client, remote: &mut R) -> Result<(), R::Error> {
    let done = remote.post(client.attention())?;
    if let Some(acknowledge) = client.attended(done) {
        remote.post(vec![acknowledge])?;
    }
    Ok(())
}

/// Carries an operation out. While it waits for others, the client attends to what the server may wait for; a view that it took
/// meanwhile, and that the operation itself kept it from acknowledging, is acknowledged at its end.
///
/// # Errors
/// The remote memory cannot be reached any more.
pub fn run<O: Operation, R: RemoteMemory>(
    client: &mut Client,
    remote: &mut R,
    operation: &mut O,
) -> Result<O::Output, R::Error> {
    let mut completions = Vec::new();
    let mut tries = 0;
    loop {
        let waited = match operation.step(client, remote.now(), std::mem::take(&mut completions)) {
            Progress::Post(verbs) => remote.post(verbs).map(|done| completions = done),
            Progress::Again => {
                tries += 1;
                remote.again(tries).and_then(|()| attend(client, remote))
            }
            Progress::Done(output) => {
                // What the operation brought stands, whether this arrives or not: the next one finds out.
                if let Some(acknowledge) = client.poll_acknowledgement() {
                    let _ = remote.post(vec![Verb::Call(acknowledge)]);
                }
                return Ok(output);
            }
        };
        if let Err(error) = waited {
            operation.cancel(client);
            return Err(error);
        }
    }
}
