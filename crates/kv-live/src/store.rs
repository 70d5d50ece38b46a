//! The client whose calls return when what they do is done.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use remanence_pmem::Survives;
use remanence_remote::{Face, Reactor, Timer, at_once};
use remanence_verbs::Context;

use super::connector::{Connector, Path, delays};
use super::members::Members;
use super::session::{nap_of, reactor};
use super::wire::{What, emit_words, parse_words};
use super::{Asked, ConnectOptions, Error, Held, MemberStats, Said, Session, StoreStats};
use remanence_kv::client::{
    self, Call, Client, Found, Get, Many, Operation, Progress, RemoteMemory as _, Verb,
};
use remanence_kv::proto::{Expect, Inline, Refusal, Reply, Request};
use remanence_kv::server::Scrubbed;
use remanence_kv::view::View;

/// Operations that are carried out together at most, and about how many bytes they may bring: these take one time over a link,
/// and the lease of each goes on all the while.
const TOGETHER: usize = 256;
const TOGETHER_BYTES: usize = 4 << 20;
/// Who has been idle for so long looks first whether the connection is still there.
const IDLE: Duration = Duration::from_millis(20);
/// While a task waits for what blocks, nobody else can have the store.
const HERE: &str = "it is only away while its task waits for that";

/// Versions count over the whole store and over restarts; none is used twice.
pub type Version = u64;

/// What a PUT may depend on, and when its value ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutOptions {
    /// The condition of the change: [`Expect::Version`] is compare and swap.
    pub expect: Expect,
    /// How long the value lasts; `None`: until it is replaced. Milliseconds count.
    pub ttl: Option<Duration>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { expect: Expect::Any, ttl: None }
    }
}

/// A value that is to be written, or deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// The key that is to be changed.
    pub key: &'a [u8],
    /// The value that the key is to have; `None`: it is to have none.
    pub value: Option<&'a [u8]>,
    /// The condition of the change.
    pub expect: Expect,
    /// How long the value lasts; `None`: until it is replaced.
    pub ttl: Option<Duration>,
}

/// Some keys, in the order of their fingerprints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The keys that were found; those of damaged values are among them.
    pub keys: Vec<Vec<u8>>,
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
    /// Values beside those of the keys, which are damaged so much that nobody can tell whose they are.
    pub nameless: u32,
}

/// A store at a server, for one thread.
///
/// A GET is one or two one-sided READs. A change that returns has happened, and in a store of mode `durable` it survives what
/// the server's medium survives. When the connection breaks, it connects again, and repeats what can be repeated: GETs, and
/// PUTs whose value was not on its way. For other changes it says [`Error::Unknown`], and does not guess.
///
/// What a call waits for it waits for as a thread does. Some are there for a task as well, under a name that ends in `_as`, which is
/// told to wait as [`Face::Task`]: for a thread that serves others meanwhile. A store that [connects again](ConnectOptions::reconnect)
/// by itself blocks in these as long as that takes.
#[derive(Debug)]
pub struct Store {
    client: Client,
    /// What is reached, but while something that blocks is done with it for a task.
    path: Option<Box<Path>>,
    /// For whatever a task waits for if nothing comes.
    timer: Timer,
    options: ConnectOptions,
    /// Whether the session is over.
    broken: bool,
    used: Instant,
    reconnected: u64,
}

impl Store {
    /// Connects to a [`Server`](super::Server).
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect(context: &Context, to: SocketAddr, options: ConnectOptions) -> Result<Self, Error> {
        let (connector, session, view) = Connector::server(context, to, &options)?;
        Ok(Self::over(connector, session, view, options))
    }

    /// Connects by a device of its own, at the local address from which the server is reached: see [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to the server.
    pub fn connect_to(to: SocketAddr, options: ConnectOptions) -> Result<Self, Error> {
        let context = Context::towards(to.ip()).map_err(remanence_remote::Error::from)?;
        Self::connect(&context, to, options)
    }

    /// Connects to a store on several [`Member`](super::Member)s: to the one that is the primary. Each of them knows all
    /// others, so one that is there is enough. When the primary is lost, the next operation waits for the next one, for as
    /// long as the [patience](ConnectOptions::patience).
    ///
    /// A change that returns is durable on as many members as the store was made with, and a GET returns what no other
    /// primary has replaced: that is asked with it.
    ///
    /// # Errors
    /// As [`Session::connect`]; no member serves within the patience, or they are of different stores.
    pub fn connect_members(
        context: &Context,
        members: &[SocketAddr],
        options: ConnectOptions,
    ) -> Result<Self, Error> {
        let (connector, session, view) = Connector::members(context, members, &options)?;
        Ok(Self::over(connector, session, view, options))
    }

    fn over(connector: Connector, session: Session, view: View, options: ConnectOptions) -> Self {
        Self {
            client: Client::new(view, options.locations),
            timer: session.reactor().timer(),
            path: Some(Box::new(Path { connector, session })),
            options,
            broken: false,
            used: Instant::now(),
            reconnected: 0,
        }
    }

    /// What each member of a store says of itself, in their order, or why it does not: also when none of them serves it. Some of
    /// the members are enough, as each knows the others. Takes as long as the slowest member that is given up, a second or two.
    ///
    /// # Errors
    /// None of them answers, or they are none of one store.
    pub fn ask_members(
        context: &Context,
        members: &[SocketAddr],
        options: &ConnectOptions,
    ) -> Result<Vec<(String, Said)>, Error> {
        Members::find(&reactor(context, options)?, members, options)?.stats()
    }

    /// What each member of the store says of itself, in their order, or why it does not; empty if the store lies on one
    /// server.
    ///
    /// # Errors
    /// Something else listens in a member's place.
    pub fn members(&mut self) -> Result<Vec<(String, Said)>, Error> {
        self.path_mut().connector.stats()
    }

    /// What the primary said of itself when it was connected to; `None` if the store lies on one server.
    #[must_use]
    pub fn primary(&self) -> Option<&MemberStats> {
        self.path().connector.primary()
    }

    /// How often members were asked whether the primary may be believed; zeros if the store lies on one server.
    #[must_use]
    pub fn asked(&self) -> Asked {
        self.path().connector.asked()
    }

    /// The client and its connection, for a host of one's own. Of a store on several members, nobody vouches any more for what
    /// such a host reads: it may come from a primary that was replaced.
    #[must_use]
    pub fn into_parts(self) -> (Client, Session) {
        (self.client, self.path.expect(HERE).session)
    }

    /// The client: its view, and what it has counted.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Which failures changes survive that were acknowledged: on one server, by the recipe's token or the server's word for the last one,
    /// and `None` before there was one; on several members, what a record does in the primary's log, by its word.
    #[must_use]
    pub fn survives(&self) -> Option<Survives> {
        let path = self.path();
        path.connector.survives(&path.session)
    }

    /// The connection to the server that is used now.
    pub fn session(&mut self) -> &mut Session {
        &mut self.path_mut().session
    }

    fn path(&self) -> &Path {
        self.path.as_ref().expect(HERE)
    }

    fn path_mut(&mut self) -> &mut Path {
        self.path.as_mut().expect(HERE)
    }

    /// Whether the connection stands, as far as the last operation could see.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        !self.broken
    }

    /// How often it connected again.
    #[must_use]
    pub const fn reconnected(&self) -> u64 {
        self.reconnected
    }

    /// The key's value; `None` if it has none.
    ///
    /// # Errors
    /// The server cannot be reached, the key is none, the value is damaged.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Found>, Error> {
        at_once(self.get_as(Face::Thread, key))
    }

    /// As [`get`](Self::get), of a task too.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_as(&mut self, face: Face, key: &[u8]) -> Result<Option<Found>, Error> {
        self.repeat(face, || Get::new(key), |found| Ok(found?)).await
    }

    /// The first bytes of a key's value, so many or all if it has fewer, and perhaps more: of a long value no more is read than that, and it
    /// is not verified.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_front(&mut self, key: &[u8], max: usize) -> Result<Option<Found>, Error> {
        at_once(self.get_front_as(Face::Thread, key, max))
    }

    /// As [`get_front`](Self::get_front), of a task too.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_front_as(&mut self, face: Face, key: &[u8], max: usize) -> Result<Option<Found>, Error> {
        self.repeat(face, || Get::front(key, max), |found| Ok(found?)).await
    }

    /// The values of several keys, their READs under one doorbell.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Found>>, Error> {
        at_once(self.get_many_as(Face::Thread, keys))
    }

    /// As [`get_many`](Self::get_many), of a task too.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_many_as<K: AsRef<[u8]>>(
        &mut self,
        face: Face,
        keys: &[K],
    ) -> Result<Vec<Option<Found>>, Error> {
        let mut all = Vec::with_capacity(keys.len());
        for some in keys.chunks(TOGETHER) {
            let gets = || Many::new(some.iter().map(|key| Get::new(key.as_ref())).collect());
            let found = self.repeat(face, gets, |found| {
                found.into_iter().map(|found| Ok(found?)).collect::<Result<Vec<_>, Error>>()
            });
            all.extend(found.await?);
        }
        Ok(all)
    }

    /// Writes a key's value; its version comes back.
    ///
    /// # Errors
    /// [`Error::Refused`]: the condition does not hold, there is no room, the key is none. [`Error::Unknown`]: the connection
    /// broke when the value was on its way. Else it has not been written.
    pub fn put(&mut self, key: &[u8], value: &[u8], options: PutOptions) -> Result<Version, Error> {
        let outcome = self.put_many(&[(key, value)], options)?.pop();
        outcome.expect("one was asked for")
    }

    /// Writes several keys' values: one message, one doorbell and one flush for each lot. Each has its own outcome. Of a key
    /// that comes twice the later value is written later.
    ///
    /// # Errors
    /// The server cannot be reached, and nothing of this was begun. Otherwise as [`put`](Self::put), for each.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        pairs: &[(K, V)],
        options: PutOptions,
    ) -> Result<Vec<Result<Version, Error>>, Error> {
        let PutOptions { expect, ttl } = options;
        let mut changes = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            changes.push(Change { key: key.as_ref(), value: Some(value.as_ref()), expect, ttl });
        }
        self.change_many(&changes)
    }

    /// The same, of values and deletions, each on a condition of its own. A deletion's version is 0 where there was nothing.
    ///
    /// # Errors
    /// As [`put_many`](Self::put_many).
    pub fn change_many(&mut self, changes: &[Change<'_>]) -> Result<Vec<Result<Version, Error>>, Error> {
        let outcomes = at_once(self.change_all(Face::Thread, changes, false))?;
        Ok(outcomes.into_iter().map(|outcome| outcome.expect("who waits has an answer")).collect())
    }

    /// The same, without waiting for others who are in the way, as writers of a key are, and the cleaning of its log: `None` of what they are
    /// in the way of, which has not been made.
    ///
    /// # Errors
    /// As [`change_many`](Self::change_many).
    pub fn change_at_once(
        &mut self,
        changes: &[Change<'_>],
    ) -> Result<Vec<Option<Result<Version, Error>>>, Error> {
        at_once(self.change_at_once_as(Face::Thread, changes))
    }

    /// As [`change_at_once`](Self::change_at_once), of a task too.
    ///
    /// # Errors
    /// As [`change_many`](Self::change_many).
    pub async fn change_at_once_as(
        &mut self,
        face: Face,
        changes: &[Change<'_>],
    ) -> Result<Vec<Option<Result<Version, Error>>>, Error> {
        self.change_all(face, changes, true).await
    }

    async fn change_all(
        &mut self,
        face: Face,
        changes: &[Change<'_>],
        at_once: bool,
    ) -> Result<Vec<Option<Result<Version, Error>>>, Error> {
        let mut outcomes: Vec<Option<Result<Version, Error>>> = changes.iter().map(|_| None).collect();
        let mut lot: Vec<usize> = Vec::new();
        let mut bytes = 0;
        // Two writes of one key in a lot could change places: one waits for room, say, and the other needs less.
        let mut keys = BTreeSet::new();
        for (n, change) in changes.iter().enumerate() {
            let len = change.value.map_or(0, <[u8]>::len);
            let again = !keys.insert(change.key);
            if !lot.is_empty() && (again || lot.len() == TOGETHER || bytes + len > TOGETHER_BYTES) {
                self.change_lot(face, changes, std::mem::take(&mut lot), at_once, &mut outcomes).await?;
                bytes = 0;
                keys = BTreeSet::from([change.key]);
            }
            lot.push(n);
            bytes += len;
        }
        self.change_lot(face, changes, lot, at_once, &mut outcomes).await?;
        Ok(outcomes)
    }

    async fn change_lot(
        &mut self,
        face: Face,
        changes: &[Change<'_>],
        mut lot: Vec<usize>,
        at_once: bool,
        outcomes: &mut [Option<Result<Version, Error>>],
    ) -> Result<(), Error> {
        let since = Instant::now();
        while !lot.is_empty() {
            if let Err(error) = self.ready(face, since).await {
                return self.not_begun(&lot, outcomes, error);
            }
            let now = self.path().session.now();
            let expires = |ttl: Duration| {
                let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                now.saturating_add(milliseconds.max(1))
            };
            let one = |n: &usize| {
                let Change { key, value, expect, ttl } = changes[*n];
                client::Change::new(&Inline { key, value, expires: ttl.map_or(0, expires), expect })
            };
            let mut many = Many::new(lot.iter().map(one).collect());
            let mut next = Vec::new();
            let mut fenced;
            match self.carry_on(face, &mut many, |many| at_once && many.is_stopped()).await {
                Ok(done) => {
                    let done: Vec<_> = match done {
                        Some(done) => done.into_iter().map(Some).collect(),
                        None => many.outcomes().map(|(_, done)| done.cloned()).collect(),
                    };
                    many.cancel(&mut self.client);
                    fenced = self.vouched(face).await.err();
                    let vouched = fenced.is_none();
                    for (n, outcome) in lot.iter().zip(done) {
                        let Some(outcome) = outcome else { continue };
                        match outcome {
                            // Who was replaced cannot know what a key has now; what it has shipped stands.
                            Err(error) if !vouched && error.came_to_nothing() => next.push(*n),
                            // It is the primary no more, or has cut this client off when the value may have been written
                            // already. Whoever is the primary may have it, or not.
                            Err(error) if self.is_replicated() && (!vouched || error.ends_session()) => {
                                fenced.get_or_insert(Error::Deposed);
                                let error = Box::new(Error::Deposed);
                                outcomes[*n] = Some(Err(Error::Unknown(error)));
                            }
                            // It refused this one, and will all that follow: nothing of it was begun.
                            Err(client::Error::Refused(Refusal::Fenced)) => {
                                fenced = Some(Error::Refused(Refusal::Fenced));
                                next.push(*n);
                            }
                            outcome => outcomes[*n] = Some(outcome.map_err(Error::from)),
                        }
                    }
                }
                Err(error) => {
                    let why = error.reason();
                    for ((change, done), n) in many.outcomes().zip(&lot) {
                        match done {
                            Some(Err(error)) if self.is_replicated() && error.came_to_nothing() => {
                                next.push(*n)
                            }
                            Some(Err(_)) if self.is_replicated() => {
                                let broke = Error::Lost(why.clone());
                                outcomes[*n] = Some(Err(Error::Unknown(Box::new(broke))));
                            }
                            Some(outcome) => outcomes[*n] = Some(outcome.clone().map_err(Error::from)),
                            None if change.is_writing() => {
                                let broke = Error::Lost(why.clone());
                                outcomes[*n] = Some(Err(Error::Unknown(Box::new(broke))));
                            }
                            None => next.push(*n),
                        }
                    }
                    many.cancel(&mut self.client);
                    fenced = Some(error);
                }
            }
            lot = next;
            if let Some(error) = fenced
                && let Err(error) = self.lost(error, since)
            {
                return self.not_begun(&lot, outcomes, error);
            }
        }
        Ok(())
    }

    /// These were not written. If that is all there is to say, it is said at once.
    fn not_begun(
        &self,
        lot: &[usize],
        outcomes: &mut [Option<Result<Version, Error>>],
        error: Error,
    ) -> Result<(), Error> {
        if outcomes.iter().all(Option::is_none) {
            return Err(error);
        }
        let why = error.to_string();
        for n in lot {
            outcomes[*n] = Some(Err(Error::Lost(why.clone())));
        }
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
            *outcome = Some(Err(Error::Lost(why.clone())));
        }
        Ok(())
    }

    /// Takes a key's value away. Returns the version of the deletion; `None` if there was no value.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&mut self, key: &[u8], expect: Expect) -> Result<Option<Version>, Error> {
        let since = Instant::now();
        loop {
            at_once(self.ready(Face::Thread, since))?;
            let mut delete = Call::delete(key, expect);
            match at_once(self.carry(Face::Thread, &mut delete)) {
                Ok(Ok(Reply::Done { version })) => return Ok((version > 0).then_some(version)),
                Ok(Ok(_)) => return Err(Error::Protocol("no answer to a DELETE")),
                Ok(Err(client::Error::Refused(Refusal::Fenced))) => {
                    self.lost(Refusal::Fenced.into(), since)?
                }
                Ok(Err(client::Error::Refused(Refusal::Medium))) if self.is_replicated() => {
                    self.broken = true;
                    return Err(Error::Unknown(Box::new(Error::Deposed)));
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(error) => {
                    delete.cancel(&mut self.client);
                    let end = error.is_end();
                    self.broken |= end;
                    return Err(if end { Error::Unknown(Box::new(error)) } else { error });
                }
            }
        }
    }

    /// Some keys from a cursor on: 0, or what the last page said. A key that is there all the time is seen once. A page has about
    /// `limit` keys, or far fewer: it ends where the server has looked long enough, and an empty one is not the end.
    /// [`keys`](Self::keys) and [`entries`](Self::entries) are iterators over all of them.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn scan(&mut self, cursor: u64, limit: u32) -> Result<Page, Error> {
        at_once(self.scan_as(Face::Thread, cursor, limit))
    }

    /// As [`scan`](Self::scan), of a task too.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn scan_as(&mut self, face: Face, cursor: u64, limit: u32) -> Result<Page, Error> {
        let scan = || Call::new(Request::Scan { cursor, limit });
        let read = |reply: Result<Reply, client::Error>| match reply? {
            Reply::Page { next, keys, nameless } => {
                Ok(Page { keys, next: next.filter(|next| *next > cursor), nameless })
            }
            _ => Err(Error::Protocol("no answer to a scan")),
        };
        self.repeat(face, scan, read).await
    }

    /// How many keys begin with each byte, of those bytes that any key begins with; and whether all have been counted: a store
    /// that was opened a moment ago counts a part at each call.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn counts(&mut self) -> Result<(bool, Vec<(u8, u64)>), Error> {
        at_once(self.counts_as(Face::Thread))
    }

    /// As [`counts`](Self::counts), of a task too.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn counts_as(&mut self, face: Face) -> Result<(bool, Vec<(u8, u64)>), Error> {
        let read = |reply: Result<Reply, client::Error>| match reply? {
            Reply::Counts { whole, counts } => Ok((whole, counts)),
            _ => Err(Error::Protocol("no answer to a count")),
        };
        self.repeat(face, || Call::new(Request::Count), read).await
    }

    /// Takes away what some keys have, from a cursor on (0 at first), those that begin with a byte or all; returns where to go on.
    /// Keys of which a write is under way stay.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses; then this may be repeated.
    pub fn clear(&mut self, first: Option<u8>, cursor: u64) -> Result<Option<u64>, Error> {
        at_once(self.clear_as(Face::Thread, first, cursor))
    }

    /// As [`clear`](Self::clear), of a task too.
    ///
    /// # Errors
    /// As [`clear`](Self::clear).
    pub async fn clear_as(
        &mut self,
        face: Face,
        first: Option<u8>,
        cursor: u64,
    ) -> Result<Option<u64>, Error> {
        let read = |reply: Result<Reply, client::Error>| match reply? {
            Reply::Page { next, .. } => Ok(next.filter(|next| *next > cursor)),
            _ => Err(Error::Protocol("no answer to a clear")),
        };
        self.repeat(face, || Call::new(Request::Clear { first, cursor }), read).await
    }

    /// What the server did, and how full it is.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn stats(&mut self) -> Result<StoreStats, Error> {
        at_once(self.stats_as(Face::Thread))
    }

    /// As [`stats`](Self::stats), of a task too.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn stats_as(&mut self, face: Face) -> Result<StoreStats, Error> {
        let said = self.ask(face, What::Stats, &[]).await?;
        StoreStats::parse(&said).ok_or(Error::Protocol("its figures are none"))
    }

    /// Has the server read and verify some values from a cursor on (0 at first), and repair what can be repaired.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn scrub(&mut self, cursor: u64, limit: u32) -> Result<Scrubbed, Error> {
        self.scrub_all(cursor, limit).map(|(scrubbed, _)| scrubbed)
    }

    /// The same, with what it found of the image of each member, in their order, which it compares with what is served and puts right;
    /// nothing, if the store lies on one server.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn scrub_all(&mut self, cursor: u64, limit: u32) -> Result<(Scrubbed, Vec<(String, Held)>), Error> {
        let mut tries = 0;
        let (said, [verified, repaired, lost, next]) = loop {
            // The third word: this client asks again while members are being asked.
            let words = emit_words(&[cursor, limit.into(), 1]);
            let said = at_once(self.ask(Face::Thread, What::Scrub, &words))?;
            let words: [u64; 4] = parse_words(&said).ok_or(Error::Protocol("no answer to a scrub"))?;
            if words[3] != cursor {
                break (said, words);
            }
            tries += 1;
            self.session().again(tries)?;
        };
        let next = (next != u64::MAX && next > cursor).then_some(next);
        // Members of an earlier release say nothing of others.
        let behind = said.get(5 * 8..).unwrap_or_default().chunks_exact(16);
        let held = behind.filter_map(|words| {
            let [damaged, repaired] = parse_words(words)?;
            Some(Held { damaged, repaired })
        });
        let names = self.primary().map_or(&[][..], |said| &said.members);
        let held = names.iter().cloned().zip(held).collect();
        Ok((Scrubbed { verified, repaired, lost, next }, held))
    }

    /// Has the server clean all logs, one after the other. Returns at once; [`stats`](Self::stats) shows how far it is.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn compact(&mut self) -> Result<(), Error> {
        at_once(self.ask(Face::Thread, What::Compact, &[])).map(drop)
    }

    /// The connection's descriptor, if it was connected with [one](ConnectOptions::descriptor): it becomes readable when something comes, until
    /// this is called again. What came before does not count: who is to sleep has it [rest](Self::rest) behind this call.
    #[must_use]
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        self.path().session.reactor().arm()
    }

    /// What all of the store's sessions wait by: for a thread that carries out what waits as a task.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        self.path().session.reactor()
    }

    /// Does what the server may wait for: to be called now and then while idle, at least once per
    /// [lease](Session::lease). Who does not is cut off when the server changes its view, and connects again.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn rest(&mut self) -> Result<(), Error> {
        at_once(self.rest_as(Face::Thread))
    }

    /// As [`rest`](Self::rest), of a task too.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn rest_as(&mut self, face: Face) -> Result<(), Error> {
        let since = Instant::now();
        loop {
            self.ready(face, since).await?;
            let rested = self.attend(face).await;
            if let Some(()) = self.judged(face, rested, since).await? {
                return Ok(());
            }
        }
    }

    fn is_replicated(&self) -> bool {
        self.path().connector.is_replicated()
    }

    /// Carries out something that may be carried out any number of times, and reads what came of it.
    async fn repeat<O: Operation, T>(
        &mut self,
        face: Face,
        new: impl Fn() -> O,
        read: impl Fn(O::Output) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let since = Instant::now();
        loop {
            self.ready(face, since).await?;
            let once = self.look(face, new()).await.and_then(&read);
            if let Some(done) = self.judged(face, once, since).await? {
                return Ok(done);
            }
        }
    }

    /// The same of a call of the host's own.
    async fn ask(&mut self, face: Face, what: What, body: &[u8]) -> Result<Vec<u8>, Error> {
        let since = Instant::now();
        loop {
            self.ready(face, since).await?;
            let said = self.path_mut().session.ask_as(face, what, body).await;
            if let Some(said) = self.judged(face, said, since).await? {
                return Ok(said);
            }
        }
    }

    /// What came of something that may be carried out any number of times; `None`: it is to be carried out again.
    async fn judged<T>(
        &mut self,
        face: Face,
        once: Result<T, Error>,
        since: Instant,
    ) -> Result<Option<T>, Error> {
        match once {
            Err(error) if error.is_end() => self.lost(error, since)?,
            Err(Error::Refused(Refusal::Medium)) if self.is_replicated() => {
                self.lost(Error::Deposed, since)?
            }
            // Somebody writes, and the server had to be asked.
            Err(Error::Refused(Refusal::Unfinished)) if since.elapsed() < self.options.waits() => {
                self.again(face, 2).await?;
            }
            outcome => return outcome.map(Some),
        }
        Ok(None)
    }

    /// Waits for others, as [`RemoteMemory::again`](client::RemoteMemory::again).
    async fn again(&mut self, face: Face, tries: u32) -> Result<(), Error> {
        let session = &mut self.path.as_mut().expect(HERE).session;
        match face {
            Face::Thread => session.again(tries),
            Face::Task => {
                session.may_wait(tries)?;
                let timer = &mut self.timer;
                timer.set(Some(Instant::now() + nap_of(tries)));
                std::future::poll_fn(|task| timer.poll_over(task)).await;
                Ok(())
            }
        }
    }

    async fn post(&mut self, face: Face, verbs: Vec<Verb>) -> Result<Vec<client::Completion>, Error> {
        self.path_mut().session.post_as(face, verbs).await
    }

    /// Takes the newest view, and says what there is to say.
    async fn attend(&mut self, face: Face) -> Result<(), Error> {
        let attention = self.client.attention();
        let done = self.post(face, attention).await?;
        if let Some(acknowledge) = self.client.attended(done) {
            self.post(face, vec![acknowledge]).await?;
        }
        Ok(())
    }

    /// The session is over. Whether to go on.
    fn lost(&mut self, error: Error, since: Instant) -> Result<(), Error> {
        if !error.is_end() {
            return Err(error);
        }
        self.broken = true;
        if !self.options.reconnect || since.elapsed() >= self.options.waits() { Err(error) } else { Ok(()) }
    }

    /// There is a session, and this client is up to date with what it was told.
    async fn ready(&mut self, face: Face, since: Instant) -> Result<(), Error> {
        if !self.broken && self.used.elapsed() >= IDLE {
            // It may have been cut off meanwhile. If that is found before a change is sent, there is no doubt of what
            // became of it.
            match self.session().noticed() {
                Ok(view) if view.is_none_or(|view| view <= self.client.view().number) => {}
                Ok(_) => self.broken = self.attend(face).await.is_err(),
                Err(_) => self.broken = true,
            }
        }
        if self.broken && !self.options.reconnect {
            return Err(remanence_remote::Error::Over.into());
        }
        let mut delays = delays();
        while self.broken {
            let path = self.path.as_mut().expect(HERE);
            match path.connector.dial(&self.options) {
                Ok((session, view)) => {
                    path.session = session;
                    self.client.adopt(view);
                    self.broken = false;
                    self.reconnected += 1;
                }
                Err(error) => {
                    // Something else listens there now.
                    let other = matches!(error, Error::Stranger(_) | Error::OtherVersion { .. });
                    if other || !self.options.reconnect || since.elapsed() >= self.options.waits() {
                        return Err(error);
                    }
                    std::thread::sleep(delays.next_delay());
                }
            }
        }
        self.used = Instant::now();
        Ok(())
    }

    /// Carries out what changes nothing. If the connection breaks it is over: an operation that counted as being under way
    /// for ever would keep this client from acknowledging any later view.
    async fn look<O: Operation>(&mut self, face: Face, mut operation: O) -> Result<O::Output, Error> {
        let outcome = self.carry(face, &mut operation).await;
        if outcome.is_err() {
            operation.cancel(&mut self.client);
        }
        outcome
    }

    /// Carries an operation out, and asks whether what came of it may be believed. If the connection breaks, it is left as it
    /// is, to be looked at, and then cancelled.
    async fn carry<O: Operation>(&mut self, face: Face, operation: &mut O) -> Result<O::Output, Error> {
        let output = self.carry_on(face, operation, |_| false).await?;
        self.vouched(face).await?;
        Ok(output.expect("it waits for as long as it takes"))
    }

    /// Whether what was read, and what was said, is that of the primary.
    async fn vouched(&mut self, face: Face) -> Result<(), Error> {
        match face {
            Face::Thread => {
                let path = self.path_mut();
                path.connector.vouched(&mut path.session)
            }
            Face::Task => Path::vouched(&mut self.path, &mut self.timer).await,
        }
    }

    /// Carries an operation out, until it would have to wait for others and `stops`; it is to be cancelled then.
    async fn carry_on<O: Operation>(
        &mut self,
        face: Face,
        operation: &mut O,
        stops: impl Fn(&O) -> bool,
    ) -> Result<Option<O::Output>, Error> {
        self.path_mut().connector.look_ahead();
        let mut completions = Vec::new();
        let mut tries = 0;
        let output = loop {
            let now = self.path().session.now();
            match operation.step(&mut self.client, now, std::mem::take(&mut completions)) {
                Progress::Post(verbs) => completions = self.post(face, verbs).await?,
                Progress::Again if stops(operation) => break None,
                Progress::Again => {
                    tries += 1;
                    self.again(face, tries).await?;
                    self.attend(face).await?;
                }
                Progress::Done(output) => break Some(output),
            }
        };
        // What it brought stands, whatever becomes of the connection now.
        self.broken |= self.tidy(face).await.is_err();
        self.used = Instant::now();
        Ok(output)
    }

    /// Says what there is to say when nothing is under way.
    async fn tidy(&mut self, face: Face) -> Result<(), Error> {
        if self.session().take_notice().is_some_and(|view| view > self.client.view().number) {
            self.attend(face).await?;
        }
        while let Some(report) = self.client.poll_report() {
            self.post(face, vec![Verb::Call(report)]).await?;
        }
        if let Some(acknowledge) = self.client.poll_acknowledgement() {
            self.post(face, vec![Verb::Call(acknowledge)]).await?;
        }
        Ok(())
    }
}
