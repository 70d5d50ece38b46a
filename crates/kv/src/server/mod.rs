//! The server's core: requests in, replies out, and work that is done a bit at a time.
//!
//! Single-threaded and sans-IO: [`Server::handle`] carries one request out, [`Server::step`] does some of what can wait
//! (settling, cleaning, growing, giving up on clients), [`Server::poll_event`] says what the host must do. Time is an
//! argument, in milliseconds of any clock that goes on over restarts if values are to expire.
//!
//! The rules that everything else follows from:
//!
//! 1. A key has at most one unfinished write. The next one is handed out after that was seen whole and made durable, or
//!    given up; so the *old* version that an entry names is always whole and durable.
//! 2. A write is given up only when its client can write no more: [`Event::Fence`] asks the host to cut the client off, and
//!    [`Server::disconnected`] says that it is done. Then the checksum is looked at once more.
//! 3. Memory is used again only when every client has said that it has nothing under way which could touch it.

mod clean;
mod grow;
mod index;
mod log;
mod lost;
mod mend;
mod open;
mod room;
mod round;
mod scan;
mod settle;
mod together;
mod turns;
mod upgrade;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use remanence_pmem::Medium;
use remanence_pmem::image::Root;

pub use mend::{DamageLocation, Fate, Finding, Known, object_at};
pub use open::{OpenError, Recovered, extend, format};
pub use room::Room;
pub use scan::Scrubbed;
pub use together::Named;
pub use turns::Turns;

use crate::format::object::{Content, Object};
use crate::format::slot::fingerprint;
use crate::format::{Chunk, Flaw, KEY_MAX, ObjectAddress, Offset, Superblock, hash};
use crate::proto::{BATCH_MAX, Expect, Refusal, Reply, Request};
use crate::view::{Mode, View};
use clean::Cleaning;
use grow::Growth;
use index::{Entry, Index};
use log::Log;
use round::Round;
use settle::Written;

/// A connected client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);

/// How the server behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// What the acknowledgement of a write means.
    pub mode: Mode,
    /// How long a client may take to finish a write, or to [say](Request::Renew) that it goes on, or to acknowledge a view,
    /// before the server asks for it to be cut off, milliseconds.
    pub lease: u64,
    /// The most unfinished writes of one client.
    pub unfinished_max: usize,
    /// Whether cleaning starts by itself when free regions run low.
    pub clean_by_itself: bool,
    /// Whether the answer to a reservation may leave before the entry that it names is durable. It may where whatever makes
    /// the client's value durable waits for every write-back before it, by whomever: page caches do, and a wait for the
    /// disk is saved. Cache lines that another core wrote back have no such promise.
    pub defer: bool,
    /// Values of at most so many bytes are written by the server for its clients: [`View::inline_max`].
    pub inline_max: u32,
}

impl Options {
    /// What most stores do.
    pub const DEFAULT: Self = Self {
        mode: Mode::Durable,
        lease: 2000,
        unfinished_max: 1024,
        clean_by_itself: true,
        defer: false,
        inline_max: 0,
    };
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Bytes that are copied, verified or cleared for one thing of a step's budget.
const PER_THING: u64 = 16 << 10;

/// Takes a client's right to write rooms away: bytes of the medium, by where they begin. On return nothing that it sends
/// reaches them.
pub type Revoke = Box<dyn FnMut(&[u64]) + Send>;

/// What others have at the same bytes of their media: each of them that answers, its own. `None`: they are being asked, and whoever
/// wants to know asks again later.
pub type Copies = Box<dyn FnMut(u64, u32) -> Option<Vec<Vec<u8>>> + Send>;

/// What the host must do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Tell the client that there is a new view. It asks for it, and acknowledges it when nothing that it has under way
    /// is older.
    Notice {
        /// The client that is to be told.
        client: ClientId,
        /// The number of the new view.
        view: u64,
    },
    /// Cut the client off, so that nothing it has sent can reach the memory any more: destroy the QP, or invalidate its
    /// keys. Then call [`Server::disconnected`].
    Fence {
        /// The client that is to be cut off.
        client: ClientId,
    },
}

/// What the server has counted since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Places that were handed out for values.
    pub reserved: u64,
    /// Writes that were seen whole and settled.
    pub settled: u64,
    /// Writes that were given up, their keys going back to the version before.
    pub given_up: u64,
    /// Values and tombstones that the server wrote itself.
    pub written: u64,
    /// Requests that came while a write of the key was under way.
    pub unfinished: u64,
    /// Regions that cleaning set free.
    pub regions_freed: u64,
    /// Objects that cleaning moved.
    pub objects_moved: u64,
    /// Entries that were displaced in their table, or moved to a larger one.
    pub entries_moved: u64,
    /// Tables that were replaced by larger ones.
    pub grown: u64,
    /// Objects that were found damaged, though they had been whole.
    pub damaged: u64,
    /// Of those, that were put right: from the copy that cleaning had made, or another member's; in mode `erda` by the
    /// version before.
    pub repaired: u64,
    /// Keys that expired, and whose entries were taken away.
    pub expired: u64,
    /// Clients that the host was asked to cut off.
    pub fenced: u64,
}

/// How full the store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// How many regions there are.
    pub regions: u32,
    /// How many regions are free.
    pub regions_free: u32,
    /// Entries that are in use, those of deleted keys included that cleaning has not taken away yet.
    pub entries: u64,
    /// How many entries there are, free or not.
    pub entries_max: u64,
    /// What keys take, and what they leave.
    pub room: Room,
    /// How many writes are under way.
    pub unfinished: usize,
    /// Whether a head is being cleaned.
    pub cleaning: bool,
    /// Whether the table is being resized.
    pub growing: bool,
}

/// A write that was handed out and not seen whole yet.
#[derive(Clone, Debug)]
struct Unfinished {
    client: ClientId,
    key: Vec<u8>,
    fingerprint: u64,
    head: u8,
    expires: u64,
    offset: Offset,
    /// Bytes that were handed out for the object.
    room: u64,
    extents: Vec<(Offset, u32)>,
    /// When its lease is over: a key of [`Server::leases`].
    until: u64,
    /// Bytes that its client says it has written.
    progress: u64,
}

#[derive(Clone, Debug, Default)]
struct Client {
    view: u64,
    /// When a write of it was said to have made progress last.
    renewed: u64,
    unfinished: BTreeSet<u64>,
    fencing: bool,
    reads_only: bool,
}

/// A store that is open.
pub struct Server<M> {
    medium: M,
    superblock: Superblock,
    root: Root<M>,
    options: Options,
    boot: u32,
    index: Index<M>,
    log: Log<M>,
    /// How many versions this run has given out.
    counter: u64,
    unfinished: BTreeMap<u64, Unfinished>,
    /// When the lease of each is over, and its version: the next one is the first.
    leases: BTreeSet<(u64, u64)>,
    /// Unfinished writes that are done and wait for the medium, by their version.
    written: BTreeMap<u64, Written>,
    places: BTreeMap<(u8, Offset), u64>,
    /// Places of what the server has written for a client that has not waited for the medium yet.
    begun: BTreeMap<(u8, Offset), ClientId>,
    confirmed: BTreeSet<u64>,
    clients: BTreeMap<ClientId, Client>,
    next_client: u64,
    view: u64,
    /// Since when the server has been waiting for a view to be acknowledged.
    view_since: u64,
    /// The time of the last step.
    last_step: u64,
    /// Entries that are kept for keys of requests that are at hand, by fingerprint.
    prepared: BTreeMap<u64, Entry>,
    /// The same for clients that wait themselves. Nobody else uses these.
    ahead: BTreeMap<ClientId, together::Ahead>,
    growth: Growth,
    /// What new keys have pushed the growth along by, that it has not done yet.
    pushed: usize,
    /// When garbage was looked for last.
    cleaned_at: u64,
    cleaning: Option<Cleaning>,
    /// So many free regions are wanted by a write that found too few of them, or by a larger table.
    wants_room: usize,
    /// The same of the request at hand, as far as it has got.
    lacks: usize,
    /// A new key found no place in the table.
    wants_entries: bool,
    /// There was no room for a larger table when one was wanted last: how many regions had been freed.
    cannot_grow: Option<u64>,
    events: VecDeque<Event>,
    /// What counts keys, and takes expired ones away.
    round: Round,
    /// What steps have cost so far.
    spent: u64,
    /// Whether something was written back that no sync covers yet.
    dirty: bool,
    stats: Stats,
    /// What was found damaged, when the store was opened or later.
    findings: Vec<Finding>,
    replicated: bool,
    revoke: Option<Revoke>,
    copies: Option<Copies>,
    /// Values that were repaired by a [`scrub`](Self::scrub) which could not end: from which cursor on, and their fingerprints.
    scrubbing: (u64, BTreeSet<u64>),
}

impl<M> fmt::Debug for Server<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("boot", &self.boot).field("stats", &self.stats).finish_non_exhaustive()
    }
}

/// What a key's entry stands for.
enum Current {
    /// No value; the entry, if there is one, names a tombstone or something that expired.
    Absent(Option<Entry>),
    /// The key has a value, of this version.
    Live(Entry, u64),
    /// It had a value or none, and nobody can tell: another may take its place, if nothing is expected of this one.
    Damaged(Entry),
}

impl Current {
    const fn version(&self) -> u64 {
        match self {
            Self::Absent(_) | Self::Damaged(_) => 0,
            Self::Live(_, version) => *version,
        }
    }

    const fn entry(&self) -> Option<Entry> {
        match self {
            Self::Absent(entry) => *entry,
            Self::Live(entry, _) | Self::Damaged(entry) => Some(*entry),
        }
    }

    fn check(&self, expect: Expect) -> Result<(), Refusal> {
        if matches!(self, Self::Damaged(_)) && expect != Expect::Any {
            return Err(Refusal::Damaged);
        }
        let holds = match expect {
            Expect::Any => true,
            Expect::Absent => self.version() == 0,
            Expect::Present => self.version() != 0,
            Expect::Version(version) | Expect::Freeing(version) | Expect::Moving(version) => {
                self.version() == version
            }
        };
        if holds { Ok(()) } else { Err(Refusal::WrongVersion { found: self.version() }) }
    }
}

impl<M: Medium + Clone> Server<M> {
    /// The medium is that of a primary ([`crate::replica`]): clients are told to have their writes settled. Before the first
    /// of them connects.
    pub const fn set_replicated(&mut self) {
        self.replicated = true;
    }

    /// Clients may write only rooms that were handed out to them. `revoke` is called for each before it is decided what became
    /// of the write.
    pub fn set_revoke(&mut self, revoke: Revoke) {
        self.revoke = Some(revoke);
    }

    /// Others have what this medium has: a damaged value is put right from one of them.
    pub fn set_copies(&mut self, copies: Copies) {
        self.copies = Some(copies);
    }

    /// The rooms of an unfinished write: where on the medium its client may write, and how many bytes. The object's mark is
    /// the server's.
    #[must_use]
    pub fn rooms(&self, version: u64) -> Vec<(u64, u64)> {
        let Some(unfinished) = self.unfinished.get(&version) else { return Vec::new() };
        let at = |offset| self.log.locate(unfinished.head, offset).map(|room| room.at);
        let mark = crate::format::object::WRITTEN_FROM as u64;
        let object = at(unfinished.offset).map(|at| (at + mark, unfinished.room - mark));
        let extents =
            unfinished.extents.iter().filter_map(|(offset, len)| Some((at(*offset)?, (*len).into())));
        object.into_iter().chain(extents).collect()
    }

    fn revoke(&mut self, version: u64) -> bool {
        let Some(mut revoke) = self.revoke.take() else { return false };
        let rooms: Vec<u64> = self.rooms(version).into_iter().map(|(at, _)| at).collect();
        revoke(&rooms);
        self.revoke = Some(revoke);
        true
    }

    /// A client has connected. It asks for the view first.
    pub fn connect(&mut self) -> ClientId {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        self.clients.insert(id, Client { view: self.view, ..Client::default() });
        id
    }

    /// The same, of a client that may only look: whatever of its requests [changes](Request::changes) something is refused.
    pub fn connect_reader(&mut self) -> ClientId {
        let id = self.connect();
        self.clients.get_mut(&id).expect("connected just now").reads_only = true;
        id
    }

    /// Nothing that this client has sent can reach the memory any more.
    ///
    /// # Errors
    /// The medium failed.
    pub fn disconnected(&mut self, client: ClientId) -> Result<(), Refusal> {
        let Some(gone) = self.clients.remove(&client) else { return Ok(()) };
        // Whether it waited nobody knows: who meets one of these looks at the object, and waits.
        self.begun.retain(|_, by| *by != client);
        self.release_ahead(client);
        for version in gone.unfinished {
            self.give_up(version)?;
        }
        self.sync()
    }

    /// Carries out a request.
    pub fn handle(&mut self, now: u64, client: ClientId, request: &Request) -> Reply {
        let Some(state) = self.clients.get(&client) else { return Reply::Refused(Refusal::Fenced) };
        // The host may be about to cut it off: what it is told now, it could not finish.
        if state.fencing {
            return Reply::Refused(Refusal::Fenced);
        }
        let reads_only = state.reads_only;
        let was_dirty = self.dirty;
        let mut kept = Vec::new();
        if let Request::Batch(requests) = request
            && !reads_only
            && requests.len() <= BATCH_MAX
        {
            let prepared = self.finish_before(requests).and_then(|()| self.prepare_before(now, requests));
            let Ok(prepared) = prepared else { return Reply::Refused(Refusal::Medium) };
            kept = prepared;
        }
        let mut written = match request {
            Request::Batch(requests) if requests.len() <= BATCH_MAX => self.put_batch(now, client, requests),
            _ => Vec::new(),
        }
        .into_iter();
        let together = matches!(request, Request::Batch(_));
        let mut one = |request: &Request| match (reads_only && request.changes(), request) {
            (true, _) => Reply::Refused(Refusal::ReadOnly),
            // Each is as much work as may be done at a time.
            (false, Request::Count | Request::Clear { .. }) if together => Reply::Refused(Refusal::Malformed),
            (false, Request::PutInline { .. } | Request::Delete { .. }) if written.len() > 0 => {
                written.next().expect("one for each")
            }
            (false, request) => self.one(now, client, request),
        };
        let reply = match request {
            Request::Batch(requests) if requests.len() <= BATCH_MAX => {
                Reply::Batch(requests.iter().map(one).collect())
            }
            request => one(request),
        };
        self.release(&kept);
        // In durable mode no reply leaves before everything that it speaks of is durable, or will be by what it asks for: on a page
        // cache by the client's flush, on several members by the settling that its client asks for.
        if self.options.mode == Mode::Durable && asks_for_values(request, &reply) {
            if self.replicated {
                return reply;
            }
            if self.options.defer {
                // And nobody else waits for it either.
                self.dirty = was_dirty;
                return reply;
            }
        }
        if self.options.mode == Mode::Durable && self.sync().is_err() {
            return Reply::Refused(Refusal::Medium);
        }
        reply
    }

    /// Requests are at hand that [`handle`](Self::handle) is about to be given one by one, of any clients: their new keys share a
    /// wait for the medium, where one is a system call. What is kept for those that do not come goes with the next
    /// [`step`](Self::step), or is [released](Self::release_prepared).
    ///
    /// # Errors
    /// The medium failed.
    pub fn prepare(&mut self, now: u64, requests: &[Request]) -> Result<(), Refusal> {
        self.prepare_before(now, requests).map(drop)
    }

    /// Those that were at hand have been given, as far as they come.
    pub fn release_prepared(&mut self) {
        let kept: Vec<u64> = self.prepared.keys().copied().collect();
        self.release(&kept);
    }

    fn one(&mut self, now: u64, client: ClientId, request: &Request) -> Reply {
        let outcome = match request {
            Request::Put { key, len, expires, expect } => {
                // The client writes it itself.
                self.round.note(*expires);
                self.reserve(now, client, key, *len, *expires, *expect).map(Reply::Reserved)
            }
            Request::PutInline { .. } | Request::Delete { .. } => {
                let change = request.inline().expect("it is one");
                match self.options.inline_max {
                    0 => self.write_one(now, &change),
                    _ => return self.put_together(now, &[(client, change)]).pop().expect("one for one"),
                }
            }
            Request::Get { key } => self.get(now, key),
            Request::Settle { key } => self.settle_key(now, key),
            Request::Confirm { versions } => {
                let own = |version: &&u64| self.unfinished.get(version).is_some_and(|u| u.client == client);
                let versions: Vec<u64> = versions.iter().filter(own).copied().collect();
                self.confirmed.extend(versions);
                Ok(Reply::Ok)
            }
            Request::Abandon { version } => match self.unfinished.get(version) {
                Some(unfinished) if unfinished.client == client => self.give_up(*version).map(|()| Reply::Ok),
                _ => Err(Refusal::NotYours),
            },
            Request::Renew { version, written } => {
                self.renew(now, client, *version, *written).map(|()| Reply::Ok)
            }
            Request::Scan { cursor, limit } => self.scan(now, *cursor, *limit),
            Request::Count => Ok(self.count(now)),
            Request::Clear { first, cursor } => self.clear_keys(*first, *cursor),
            Request::View => Ok(Reply::View(self.view())),
            Request::Acknowledge { view } => {
                let view = (*view).min(self.view);
                let state = self.clients.get_mut(&client).expect("it is connected");
                state.view = state.view.max(view);
                Ok(Reply::Ok)
            }
            Request::Batch(_) => Err(Refusal::Malformed),
        };
        outcome.unwrap_or_else(|refusal| {
            self.stats.unfinished += u64::from(refusal == Refusal::Unfinished);
            Reply::Refused(self.wait_for_room(now, refusal))
        })
    }

    /// The view that clients are to have now.
    #[must_use]
    pub fn view(&self) -> View {
        View {
            number: self.view,
            boot: self.boot,
            mode: self.options.mode,
            replicated: self.replicated,
            inline_max: self.options.inline_max,
            geometry: self.superblock.geometry,
            salt: self.superblock.salt,
            tables: self.growth.view(&self.index.tables),
            links: self.log.view(),
        }
    }

    /// What the host must do next.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Does some of what can wait: about `budget` small things, whatever the store's size. Returns whether there is more to do at
    /// once.
    ///
    /// # Errors
    /// The medium failed.
    pub fn step(&mut self, now: u64, budget: usize) -> Result<bool, Refusal> {
        self.release_prepared();
        let confirmed: Vec<u64> = std::iter::from_fn(|| self.confirmed.pop_first()).take(budget).collect();
        self.finish_in_time(now, &confirmed)?;
        self.expire(now)?;
        let growing = self.grow(now, budget)?;
        let cleaning = self.clean_step(now, budget)?;
        let going_round = self.go_round(now, budget);
        self.sync()?;
        Ok(growing || cleaning || going_round || !self.confirmed.is_empty())
    }

    /// When [`step`](Self::step) has something to do at the latest, if nobody asks for anything before; `None`: never. The time is past
    /// only if no step has been taken since.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let (lease, goes) = (self.options.lease, |client: &Client| !client.fencing);
        let mut leases = self.leases.iter().filter(|(_, version)| {
            let client =
                self.unfinished.get(version).and_then(|unfinished| self.clients.get(&unfinished.client));
            client.is_some_and(goes)
        });
        let leases = leases.next().map(|(until, _)| *until);
        let late = self.clients.values().filter(|client| goes(client) && client.view < self.view);
        let views = late.map(|client| self.view_since.max(client.renewed).saturating_add(lease)).min();
        // These wait for clients, whose leases are over by then, and for entries that may find a place now.
        let waits = self.cleaning.is_some() || !self.growth.is_idle();
        let waits = waits.then(|| self.last_step.saturating_add((lease / 8).max(1)));
        let cleans = self.cleaning.is_none() && self.options.clean_by_itself && self.needs_cleaning();
        let cleans = cleans.then(|| self.cleaned_at.saturating_add(lease));
        [leases, views, self.settles_at(), waits, cleans, self.round.next()].into_iter().flatten().min()
    }

    /// How many small things steps have done so far: objects that they looked at, and for each 16 KiB that they copied or cleared
    /// one more. Each stands for microseconds, and nobody is served during a step.
    #[must_use]
    pub const fn spent(&self) -> u64 {
        self.spent
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { entries_moved: self.index.moves, ..self.stats }
    }

    /// How full the store is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            regions: self.superblock.geometry.regions(),
            regions_free: self.log.free.len() as u32,
            entries: self.index.used,
            entries_max: self.index.tables.iter().map(|table| table.slots()).sum(),
            room: self.log.room(self.round.keys(), self.round.is_whole()),
            unfinished: self.unfinished.len(),
            cleaning: self.cleaning.is_some(),
            growing: !self.growth.is_idle(),
        }
    }

    // What all parts use.

    fn fingerprint(&self, key: &[u8]) -> Result<u64, Refusal> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(Refusal::BadKey);
        }
        Ok(fingerprint(hash(self.superblock.salt, key)))
    }

    fn next_version(&mut self) -> u64 {
        self.counter += 1;
        // Versions of a later run are higher: 2^40 per run, 2^24 runs.
        u64::from(self.boot) << 40 | self.counter
    }

    fn place(&self, head: u8, offset: Offset) -> Option<(u64, ObjectAddress)> {
        let room = self.log.locate(head, offset)?;
        Some((room.at, ObjectAddress { salt: self.superblock.salt, head, offset, epoch: room.epoch }))
    }

    /// The bytes of the whole object at a place.
    fn object(&self, head: u8, offset: Offset) -> Result<Vec<u8>, Flaw> {
        let (at, place) = self.place(head, offset).ok_or(Flaw::Torn)?;
        let room = self.log.left_in_segment(offset);
        let mut bytes = vec![0; 256.min(room) as usize];
        self.medium.read(at, &mut bytes);
        match Object::parse(&bytes, &place) {
            Ok(object) => {
                let len = object.header.len();
                bytes.truncate(len as usize);
                Ok(bytes)
            }
            Err(Flaw::Short(len)) if len <= room => {
                bytes.resize(len as usize, 0);
                self.medium.read(at, &mut bytes);
                Object::parse(&bytes, &place)?;
                Ok(bytes)
            }
            Err(_) => Err(Flaw::Torn),
        }
    }

    /// The same, with its chunks verified; the value is put together if it is asked for.
    fn whole(&self, head: u8, offset: Offset) -> Result<(Vec<u8>, Vec<Chunk>), Flaw> {
        let bytes = self.object(head, offset)?;
        let object = self.parsed(&bytes, head, offset);
        if !object.header.chained {
            return Ok((bytes, Vec::new()));
        }
        let (_, chunks) = object.chunks().ok_or(Flaw::Torn)?;
        for chunk in &chunks {
            self.chunk(head, chunk)?;
        }
        Ok((bytes, chunks))
    }

    fn chunk(&self, head: u8, chunk: &Chunk) -> Result<Vec<u8>, Flaw> {
        let room = self.log.locate(head, chunk.offset).ok_or(Flaw::Torn)?;
        if u64::from(chunk.len) > self.log.left_in_segment(chunk.offset) {
            return Err(Flaw::Torn);
        }
        let mut bytes = vec![0; chunk.len as usize];
        self.medium.read(room.at, &mut bytes);
        let whole = crate::format::object::crc64(&[&bytes]) == chunk.crc;
        if whole { Ok(bytes) } else { Err(Flaw::Torn) }
    }

    /// Bytes that [`Self::object`] has verified.
    fn parsed<'a>(&self, bytes: &'a [u8], head: u8, offset: Offset) -> Object<'a> {
        debug_assert!(
            self.place(head, offset).is_some_and(|(_, place)| Object::parse(bytes, &place).is_ok())
        );
        Object::split(bytes).expect("it was verified")
    }

    /// The entry of a key.
    fn lookup(&self, key: &[u8], fingerprint: u64) -> Option<Entry> {
        self.index.candidates(fingerprint).into_iter().find(|entry| self.is_of(entry, key))
    }

    fn is_of(&self, entry: &Entry, key: &[u8]) -> bool {
        let head = entry.slot.meta.head();
        let word = entry.slot.word;
        let unfinished = word.new_offset().and_then(|new| self.places.get(&(head, new)));
        if let Some(unfinished) = unfinished.and_then(|version| self.unfinished.get(version)) {
            return unfinished.key == key;
        }
        for offset in [word.new_offset(), word.old_offset()].into_iter().flatten() {
            if let Ok(bytes) = self.object(head, offset) {
                let found = self.parsed(&bytes, head, offset).key;
                // Of another fingerprint it is not what the entry named: the entry is damaged, and its key has not gone.
                return found == key || self.fingerprint(found) != Ok(entry.slot.meta.fingerprint());
            }
        }
        // Both are damaged. 48 bits of hash are all that is left of the key, and hardly ever another's.
        true
    }

    /// What a settled entry stands for.
    fn current(&self, now: u64, entry: Option<Entry>) -> Result<Current, Refusal> {
        let Some(entry) = entry else { return Ok(Current::Absent(None)) };
        let head = entry.slot.meta.head();
        let offset = entry.slot.word.new_offset().ok_or(Refusal::Damaged)?;
        let bytes = self.object(head, offset).map_err(|_| Refusal::Damaged)?;
        if !self.is_named_by(&entry, &bytes, offset) {
            return Err(Refusal::Damaged);
        }
        let header = self.parsed(&bytes, head, offset).header;
        if header.deleted || header.is_expired(now) {
            return Ok(Current::Absent(Some(entry)));
        }
        Ok(Current::Live(entry, header.version))
    }

    /// Says on the medium that an object has or may have a successor, for clients that cached its place.
    fn mark(&self, head: u8, offset: Option<Offset>, superseded: bool) {
        let Some(room) = offset.and_then(|offset| self.log.locate(head, offset)) else { return };
        let version = index::load(&self.medium, room.at + 16);
        index::store(&self.medium, room.at, if superseded { version } else { 0 });
    }

    /// Everything that was written back is in the domain before anything that is stored from here on.
    fn order(&mut self) -> Result<(), Refusal> {
        match self.options.mode {
            Mode::Erda => self.medium.pfence().map_err(|e| log::io(&e)),
            Mode::Durable => self.sync_now(),
        }
    }

    fn sync(&mut self) -> Result<(), Refusal> {
        if self.dirty { self.sync_now() } else { Ok(()) }
    }

    fn sync_now(&mut self) -> Result<(), Refusal> {
        self.medium.psync().map_err(|e| log::io(&e))?;
        self.dirty = false;
        Ok(())
    }

    /// A new view: everybody is told.
    fn new_view(&mut self, now: u64) -> u64 {
        self.view += 1;
        self.view_since = now;
        let view = self.view;
        self.events.extend(self.clients.keys().map(|client| Event::Notice { client: *client, view }));
        view
    }

    /// Whether every client has said that nothing it has under way is older than this view.
    fn all_have(&self, view: u64) -> bool {
        self.clients.values().all(|client| client.view >= view)
    }

    fn content<'a>(object: &Object<'a>, chunks: &'a [Chunk]) -> Content<'a> {
        match object.header {
            header if header.deleted => Content::Deleted,
            header if header.chained => Content::Chained(chunks),
            _ => Content::Value(object.value),
        }
    }
}

/// Whether a reply promises nothing but what depends on values that the client has yet to make durable.
fn asks_for_values(request: &Request, reply: &Reply) -> bool {
    match (request, reply) {
        (Request::Put { .. }, Reply::Reserved(_))
        | (Request::Confirm { .. } | Request::Renew { .. } | Request::Acknowledge { .. }, Reply::Ok) => true,
        (Request::Batch(requests), Reply::Batch(replies)) => {
            requests.iter().zip(replies).all(|(request, reply)| asks_for_values(request, reply))
        }
        _ => false,
    }
}
