//! The client whose calls return when what they do is done.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use remanence_pmem::Survives;
use remanence_verbs::Context;

use super::connector::{Connector, delays};
use super::members::Members;
use super::session::reactor;
use super::wire::{What, emit_words, parse_words};
use super::{Asked, ConnectOptions, Error, Held, MemberStats, Said, Session, StoreStats};
use remanence_kv::client::{
    self, Call, Client, Found, Get, Many, Operation, Progress, RemoteMemory as _, attend,
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
#[derive(Debug)]
pub struct Store {
    client: Client,
    session: Session,
    connector: Connector,
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
            session,
            connector,
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
        self.connector.stats()
    }

    /// What the primary said of itself when it was connected to; `None` if the store lies on one server.
    #[must_use]
    pub fn primary(&self) -> Option<&MemberStats> {
        self.connector.primary()
    }

    /// How often members were asked whether the primary may be believed; zeros if the store lies on one server.
    #[must_use]
    pub fn asked(&self) -> Asked {
        self.connector.asked()
    }

    /// The client and its connection, for a host of one's own. Of a store on several members, nobody vouches any more for what
    /// such a host reads: it may come from a primary that was replaced.
    #[must_use]
    pub fn into_parts(self) -> (Client, Session) {
        (self.client, self.session)
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
        self.connector.survives(&self.session)
    }

    /// The connection to the server that is used now.
    pub const fn session(&mut self) -> &mut Session {
        &mut self.session
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
        self.repeat(|store| Ok(store.look(Get::new(key))??))
    }

    /// The first bytes of a key's value, so many or all if it has fewer, and perhaps more: of a long value no more is read than that, and it
    /// is not verified.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_front(&mut self, key: &[u8], max: usize) -> Result<Option<Found>, Error> {
        self.repeat(|store| Ok(store.look(Get::front(key, max))??))
    }

    /// The values of several keys, their READs under one doorbell.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Found>>, Error> {
        let mut all = Vec::with_capacity(keys.len());
        for some in keys.chunks(TOGETHER) {
            let found = self.repeat(|store| {
                let gets = some.iter().map(|key| Get::new(key.as_ref())).collect();
                let found = store.look(Many::new(gets))?;
                found.into_iter().map(|found| Ok(found?)).collect::<Result<Vec<_>, Error>>()
            })?;
            all.extend(found);
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
        let outcomes = self.change_all(changes, false)?;
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
        self.change_all(changes, true)
    }

    fn change_all(
        &mut self,
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
                self.change_lot(changes, std::mem::take(&mut lot), at_once, &mut outcomes)?;
                bytes = 0;
                keys = BTreeSet::from([change.key]);
            }
            lot.push(n);
            bytes += len;
        }
        self.change_lot(changes, lot, at_once, &mut outcomes)?;
        Ok(outcomes)
    }

    fn change_lot(
        &mut self,
        changes: &[Change<'_>],
        mut lot: Vec<usize>,
        at_once: bool,
        outcomes: &mut [Option<Result<Version, Error>>],
    ) -> Result<(), Error> {
        let since = Instant::now();
        while !lot.is_empty() {
            if let Err(error) = self.ready(since) {
                return self.not_begun(&lot, outcomes, error);
            }
            let now = self.session.now();
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
            match self.carry_on(&mut many, |many| at_once && many.is_stopped()) {
                Ok(done) => {
                    let done: Vec<_> = match done {
                        Some(done) => done.into_iter().map(Some).collect(),
                        None => many.outcomes().map(|(_, done)| done.cloned()).collect(),
                    };
                    many.cancel(&mut self.client);
                    fenced = self.vouched().err();
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
            self.ready(since)?;
            let mut delete = Call::delete(key, expect);
            match self.carry(&mut delete) {
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
        self.repeat(|store| match store.look(Call::new(Request::Scan { cursor, limit }))?? {
            Reply::Page { next, keys, nameless } => {
                Ok(Page { keys, next: next.filter(|next| *next > cursor), nameless })
            }
            _ => Err(Error::Protocol("no answer to a scan")),
        })
    }

    /// How many keys begin with each byte, of those bytes that any key begins with; and whether all have been counted: a store
    /// that was opened a moment ago counts a part at each call.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn counts(&mut self) -> Result<(bool, Vec<(u8, u64)>), Error> {
        self.repeat(|store| match store.look(Call::new(Request::Count))?? {
            Reply::Counts { whole, counts } => Ok((whole, counts)),
            _ => Err(Error::Protocol("no answer to a count")),
        })
    }

    /// Takes away what some keys have, from a cursor on (0 at first), those that begin with a byte or all; returns where to go on.
    /// Keys of which a write is under way stay.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses; then this may be repeated.
    pub fn clear(&mut self, first: Option<u8>, cursor: u64) -> Result<Option<u64>, Error> {
        self.repeat(|store| match store.look(Call::new(Request::Clear { first, cursor }))?? {
            Reply::Page { next, .. } => Ok(next.filter(|next| *next > cursor)),
            _ => Err(Error::Protocol("no answer to a clear")),
        })
    }

    /// What the server did, and how full it is.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn stats(&mut self) -> Result<StoreStats, Error> {
        self.repeat(|store| {
            let said = store.session.ask(What::Stats, &[])?;
            StoreStats::parse(&said).ok_or(Error::Protocol("its figures are none"))
        })
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
        self.repeat(|store| {
            let mut tries = 0;
            let (said, [verified, repaired, lost, next]) = loop {
                // The third word: this client asks again while members are being asked.
                let said = store.session.ask(What::Scrub, &emit_words(&[cursor, limit.into(), 1]))?;
                let words: [u64; 4] = parse_words(&said).ok_or(Error::Protocol("no answer to a scrub"))?;
                if words[3] != cursor {
                    break (said, words);
                }
                tries += 1;
                store.session.again(tries)?;
            };
            let next = (next != u64::MAX && next > cursor).then_some(next);
            // Members of an earlier release say nothing of others.
            let behind = said.get(5 * 8..).unwrap_or_default().chunks_exact(16);
            let held = behind.filter_map(|words| {
                let [damaged, repaired] = parse_words(words)?;
                Some(Held { damaged, repaired })
            });
            let names = store.connector.primary().map_or(&[][..], |said| &said.members);
            let held = names.iter().cloned().zip(held).collect();
            Ok((Scrubbed { verified, repaired, lost, next }, held))
        })
    }

    /// Has the server clean all logs, one after the other. Returns at once; [`stats`](Self::stats) shows how far it is.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn compact(&mut self) -> Result<(), Error> {
        self.repeat(|store| store.session.ask(What::Compact, &[]).map(drop))
    }

    /// The connection's descriptor, if it was connected with [one](ConnectOptions::descriptor): it becomes readable when something comes, until
    /// this is called again. What came before does not count: who is to sleep has it [rest](Self::rest) behind this call.
    #[must_use]
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        self.session.reactor().arm()
    }

    /// Does what the server may wait for: to be called now and then while idle, at least once per
    /// [lease](Session::lease). Who does not is cut off when the server changes its view, and connects again.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn rest(&mut self) -> Result<(), Error> {
        self.repeat(|store| attend(&mut store.client, &mut store.session))
    }

    const fn is_replicated(&self) -> bool {
        self.connector.is_replicated()
    }

    /// Something that may be carried out any number of times.
    fn repeat<T>(&mut self, mut once: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        let since = Instant::now();
        loop {
            self.ready(since)?;
            match once(self) {
                Err(error) if error.is_end() => self.lost(error, since)?,
                Err(Error::Refused(Refusal::Medium)) if self.is_replicated() => {
                    self.lost(Error::Deposed, since)?
                }
                // Somebody writes, and the server had to be asked.
                Err(Error::Refused(Refusal::Unfinished)) if since.elapsed() < self.options.waits() => {
                    self.session.again(2)?;
                }
                outcome => return outcome,
            }
        }
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
    fn ready(&mut self, since: Instant) -> Result<(), Error> {
        if !self.broken && self.used.elapsed() >= IDLE {
            // It may have been cut off meanwhile. If that is found before a change is sent, there is no doubt of what
            // became of it.
            match self.session.noticed() {
                Ok(view) if view.is_none_or(|view| view <= self.client.view().number) => {}
                Ok(_) => self.broken = attend(&mut self.client, &mut self.session).is_err(),
                Err(_) => self.broken = true,
            }
        }
        if self.broken && !self.options.reconnect {
            return Err(remanence_remote::Error::Over.into());
        }
        let mut delays = delays();
        while self.broken {
            match self.connector.dial(&self.options) {
                Ok((session, view)) => {
                    self.session = session;
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
    fn look<O: Operation>(&mut self, mut operation: O) -> Result<O::Output, Error> {
        let outcome = self.carry(&mut operation);
        if outcome.is_err() {
            operation.cancel(&mut self.client);
        }
        outcome
    }

    /// Carries an operation out, and asks whether what came of it may be believed. If the connection breaks, it is left as it
    /// is, to be looked at, and then cancelled.
    fn carry<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, Error> {
        let output = self.carry_out(operation)?;
        self.vouched()?;
        Ok(output)
    }

    /// Whether what was read, and what was said, is that of the primary.
    fn vouched(&mut self) -> Result<(), Error> {
        self.connector.vouched(&mut self.session)
    }

    fn carry_out<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, Error> {
        let output = self.carry_on(operation, |_| false)?;
        Ok(output.expect("it waits for as long as it takes"))
    }

    /// The same, until it would have to wait for others and `stops`; it is to be cancelled then.
    fn carry_on<O: Operation>(
        &mut self,
        operation: &mut O,
        stops: impl Fn(&O) -> bool,
    ) -> Result<Option<O::Output>, Error> {
        self.connector.look_ahead();
        let mut completions = Vec::new();
        let mut tries = 0;
        let output = loop {
            match operation.step(&mut self.client, self.session.now(), std::mem::take(&mut completions)) {
                Progress::Post(verbs) => completions = self.session.post(verbs)?,
                Progress::Again if stops(operation) => break None,
                Progress::Again => {
                    tries += 1;
                    self.session.again(tries)?;
                    attend(&mut self.client, &mut self.session)?;
                }
                Progress::Done(output) => break Some(output),
            }
        };
        // What it brought stands, whatever becomes of the connection now.
        self.broken |= self.tidy().is_err();
        self.used = Instant::now();
        Ok(output)
    }

    /// Says what there is to say when nothing is under way.
    fn tidy(&mut self) -> Result<(), Error> {
        if self.session.take_notice().is_some_and(|view| view > self.client.view().number) {
            attend(&mut self.client, &mut self.session)?;
        }
        while let Some(report) = self.client.poll_report() {
            self.session.post(vec![client::Verb::Call(report)])?;
        }
        if let Some(acknowledge) = self.client.poll_acknowledgement() {
            self.session.post(vec![client::Verb::Call(acknowledge)])?;
        }
        Ok(())
    }
}
