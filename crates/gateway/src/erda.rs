//! Erda as a store for Redis' commands.
//!
//! What Redis' commands need is what Erda's clients do: a GET is one or two one-sided READs, a conditional write is a PUT
//! with the version that was read. The rest is translation: the number of the database goes in front of the key, and
//! times to live stay in the value, where [`remanence_resp::value`] has them, so that KEEPTTL and PERSIST are writes like
//! any other. The store is told of them as well: what expired takes room until it knows.
//!
//! The store counts keys by their first byte, which is the database. FLUSHDB has it clear many at a time.

use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use remanence_kv::client::{
    Call, Change, Client, Error, Found, Get, Many, Operation, Peek, Progress, RemoteMemory, attend, peek,
    peek_front, put_all, run,
};
use remanence_kv::format::KEY_MAX;
use remanence_kv::format::slot::FINGERPRINT_BITS;
use remanence_kv::proto::{Expect, Inline, Refusal, Reply, Request};
use remanence_resp::store::{
    self, Condition, Fetched, HEAD_LEN, Key, Store, StoreError, StoreLimits, Version,
};
use remanence_resp::value::{Head, UnixMs};

/// Keys asked for at a time where all are wanted.
const PAGE: usize = 256;
/// Pages of other databases' keys that one SCAN goes over: nobody else of the worker is served meanwhile.
const PAGES: usize = 8;
/// The store keeps a value so much longer than it lasts, milliseconds: its clock is not ours, and which millisecond is the last
/// one is decided by the head.
const LATER: u64 = 100;

/// What comes of a change: its version.
type Outcome = Result<u64, Error>;

/// Who reaches an Erda store for one worker. Names are the store's own keys.
pub trait Handle {
    /// Reads the value of a name; `None` if it has none.
    ///
    /// # Errors
    /// [`StoreError`]
    fn get(&mut self, name: &[u8]) -> Result<Option<Found>, StoreError>;

    /// A value, if a look at memory that is at hand tells: appended to `buffer`, with what is around it. [`Peek::Unknown`]: it
    /// does not, and [`get`](Self::get) will.
    ///
    /// # Errors
    /// [`StoreError`]
    fn peek(&mut self, name: &[u8], buffer: &mut Vec<u8>) -> Result<Peek, StoreError> {
        let _ = (name, buffer);
        Ok(Peek::Unknown)
    }

    /// The same of so many bytes of the value's front: of a long value no more is read than that, and it is not verified.
    ///
    /// # Errors
    /// [`StoreError`]
    fn peek_front(&mut self, name: &[u8], max: usize, buffer: &mut Vec<u8>) -> Result<Peek, StoreError> {
        let _ = max;
        self.peek(name, buffer)
    }

    /// The same, where a look does not tell.
    ///
    /// # Errors
    /// [`StoreError`]
    fn front(&mut self, name: &[u8], max: usize) -> Result<Option<Found>, StoreError> {
        let _ = max;
        self.get(name)
    }

    /// Several values, under one doorbell.
    fn get_many(&mut self, names: &[Vec<u8>]) -> Vec<Result<Option<Found>, StoreError>>;

    /// Writes and deletes several values of different names: one message, one doorbell, one flush. Of each, whether its condition held, and, of
    /// a deletion, whether there was a value. It does not wait for others: [`StoreError::InTheWay`] of what they are in the way of.
    fn change_many(&mut self, changes: &[NamedChange<'_>]) -> Vec<Result<bool, StoreError>>;

    /// Some names from a cursor on, and where to go on.
    ///
    /// # Errors
    /// [`StoreError`]
    fn page(&mut self, cursor: u64, limit: u32) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError>;

    /// How many keys begin with each byte, of those bytes that any key begins with; and whether all have been counted.
    ///
    /// # Errors
    /// [`StoreError`]
    fn counts(&mut self) -> Result<(bool, Vec<(u8, u64)>), StoreError>;

    /// Deletes some keys from a cursor on, those that begin with this byte or all, and where to go on.
    ///
    /// # Errors
    /// [`StoreError`]
    fn clear(&mut self, first: Option<u8>, cursor: u64) -> Result<Option<u64>, StoreError>;

    /// Does what the server may wait for: see [`Store::rest`].
    fn rest(&mut self) -> Option<Duration>;

    /// Whether the server tells when others are out of the way: see [`Store::tells`].
    fn tells(&self) -> bool {
        false
    }

    /// For how long a server that is away is still waited for: see [`Store::away`].
    fn away(&mut self) -> Option<Duration> {
        None
    }

    /// How much the server has been asked so far: see [`Store::mark`].
    fn mark(&self) -> u64 {
        0
    }

    /// What is asked from here on is asked by who began there: see [`Store::recall`].
    fn recall(&mut self, mark: Option<u64>) -> Option<u64> {
        mark.and(None)
    }

    /// What becomes readable when the server waits for that: see [`Store::descriptor`].
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whom the server wakes when it waits for that: see [`Store::wake_by`].
    fn wake_by(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        drop(wake);
    }

    /// What there is to say of the store, for INFO.
    fn facts(&mut self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A value that is to be written, or deleted, by the store's own name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedChange<'a> {
    /// The key as the store names it.
    pub name: &'a [u8],
    /// The value; `None`: there is to be none.
    pub value: Option<&'a [u8]>,
    /// On what it depends.
    pub expect: Expect,
}

/// An Erda store as Redis' commands see it.
#[derive(Debug)]
pub struct Erda<H> {
    handle: H,
    /// The name that is looked at: the buffer is kept.
    name: Vec<u8>,
}

/// One client of an Erda store, and the memory and server that it reaches.
#[derive(Debug)]
pub struct Parts<R> {
    client: Client,
    remote: R,
    /// Unix time, if the store's clock is another.
    wall: Option<fn() -> UnixMs>,
}

impl<R> Erda<Parts<R>>
where
    R: RemoteMemory,
    R::Error: Display,
{
    /// A handle for one thread, over anything that reaches the memory.
    #[must_use]
    pub const fn new(client: Client, remote: R) -> Self {
        Self { handle: Parts { client, remote, wall: None }, name: Vec::new() }
    }

    /// Erda's side of it: whoever receives the server's notices gives it new views here.
    pub const fn client(&mut self) -> &mut Client {
        &mut self.handle.client
    }
}

impl<R> Parts<R> {
    pub(crate) const fn new(client: Client, remote: R) -> Self {
        Self { client, remote, wall: Some(crate::process::unix_ms) }
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) const fn remote(&self) -> &R {
        &self.remote
    }
}

impl<R> Parts<R>
where
    R: RemoteMemory,
    R::Error: Display,
{
    fn carry_out<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, StoreError> {
        let output = self.reach(operation)?;
        self.say()?;
        Ok(output)
    }

    /// Says what the server may wait for, after an operation.
    fn say(&mut self) -> Result<(), StoreError> {
        self.attend()?;
        // Nothing of ours is under way now: the server may take back what older views show.
        if let Some(acknowledge) = self.client.poll_acknowledgement() {
            let _ = self.reach(&mut Call::new(acknowledge))?;
        }
        while let Some(report) = self.client.poll_report() {
            // The server looks at it when it can; its answer is for nobody.
            let _ = self.reach(&mut Call::new(report))?;
        }
        Ok(())
    }

    /// Carries changes out, as far as nobody is in the way: what is left then has left no trace.
    fn carry_out_at_once(&mut self, changes: Vec<Change>) -> Result<Vec<Option<Outcome>>, StoreError> {
        let mut many = Many::new(changes);
        let (mut completions, mut tries) = (Vec::new(), 0);
        let outcomes: Vec<Option<Outcome>> = loop {
            let waited =
                match many.step(&mut self.client, self.remote.now(), std::mem::take(&mut completions)) {
                    Progress::Done(outcomes) => break outcomes.into_iter().map(Some).collect(),
                    Progress::Post(verbs) => self.remote.post(verbs).map(|done| completions = done),
                    Progress::Again if many.is_stopped() => {
                        let outcomes = many.outcomes().map(|(_, done)| done.cloned()).collect();
                        many.cancel(&mut self.client);
                        break outcomes;
                    }
                    Progress::Again => {
                        tries += 1;
                        self.remote.again(tries).and_then(|()| attend(&mut self.client, &mut self.remote))
                    }
                };
            if let Err(error) = waited {
                many.cancel(&mut self.client);
                return Err(StoreError::Unavailable(error.to_string()));
            }
        };
        self.say()?;
        Ok(outcomes)
    }

    /// Has values written and deleted by the server, as far as it is at hand and nobody is in the way.
    fn put_at_once(&mut self, puts: &[Inline<'_>]) -> Result<Vec<Option<Result<u64, Error>>>, StoreError> {
        self.attend()?;
        let mut done = Vec::with_capacity(puts.len());
        put_all(&mut self.client, &mut self.remote, puts, &mut done)
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(done)
    }

    /// Takes the newest view if the server has told of one: it may wait for everybody to have it.
    fn attend(&mut self) -> Result<(), StoreError> {
        if self.remote.noticed() <= self.client.view().number {
            return Ok(());
        }
        attend(&mut self.client, &mut self.remote).map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    /// When the store is to drop a value, by its clock; 0: never.
    fn ends(&self, value: &[u8]) -> u64 {
        let now = self.remote.now();
        let wall = self.wall.map_or(now as UnixMs, |wall| wall());
        remaining(value, wall).map_or(0, |left| now.saturating_add(left))
    }

    fn reach<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, StoreError> {
        run(&mut self.client, &mut self.remote, operation)
            .map_err(|error| StoreError::Unavailable(error.to_string()))
    }
}

impl<R> Handle for Parts<R>
where
    R: RemoteMemory,
    R::Error: Display,
{
    fn get(&mut self, name: &[u8]) -> Result<Option<Found>, StoreError> {
        self.carry_out(&mut Get::new(name))?.map_err(|error| refused(&error))
    }

    fn peek(&mut self, name: &[u8], buffer: &mut Vec<u8>) -> Result<Peek, StoreError> {
        self.attend()?;
        peek(&mut self.client, &mut self.remote, name, buffer)
            .map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    fn peek_front(&mut self, name: &[u8], max: usize, buffer: &mut Vec<u8>) -> Result<Peek, StoreError> {
        self.attend()?;
        peek_front(&mut self.client, &mut self.remote, name, max, buffer)
            .map_err(|error| StoreError::Unavailable(error.to_string()))
    }

    fn front(&mut self, name: &[u8], max: usize) -> Result<Option<Found>, StoreError> {
        self.carry_out(&mut Get::front(name, max))?.map_err(|error| refused(&error))
    }

    fn get_many(&mut self, names: &[Vec<u8>]) -> Vec<Result<Option<Found>, StoreError>> {
        let gets = names.iter().map(|name| Get::new(name)).collect();
        match self.carry_out(&mut Many::new(gets)) {
            Err(error) => names.iter().map(|_| Err(error.clone())).collect(),
            Ok(outputs) => {
                outputs.into_iter().map(|output| output.map_err(|error| refused(&error))).collect()
            }
        }
    }

    fn change_many(&mut self, changes: &[NamedChange<'_>]) -> Vec<Result<bool, StoreError>> {
        let mut inlines = Vec::with_capacity(changes.len());
        for &NamedChange { name: key, value, expect } in changes {
            let expires = value.map_or(0, |value| self.ends(value));
            inlines.push(Inline { key, value, expires, expect });
        }
        let made = self.put_at_once(&inlines).and_then(|done| {
            let left = inlines.iter().zip(&done).filter(|(_, done)| done.is_none());
            let left: Vec<Change> = left.map(|(inline, _)| Change::new(inline)).collect();
            let rest = if left.is_empty() { Vec::new() } else { self.carry_out_at_once(left)? };
            Ok((done, rest))
        });
        let (done, rest) = match made {
            Err(error) => return changes.iter().map(|_| Err(error.clone())).collect(),
            Ok(made) => made,
        };
        let mut rest = rest.into_iter();
        let one = |(done, change): (Option<_>, &NamedChange<'_>)| {
            let outcome = done.or_else(|| rest.next().expect("one for each that was left"));
            changed(change, outcome.ok_or(StoreError::InTheWay)?)
        };
        done.into_iter().zip(changes).map(one).collect()
    }

    fn page(&mut self, cursor: u64, limit: u32) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
        match self.carry_out(&mut Call::new(Request::Scan { cursor, limit }))? {
            Ok(Reply::Page { next, keys, .. }) => Ok((keys, next.filter(|next| *next > cursor))),
            Ok(_) => Err(StoreError::Unavailable("the server answers a scan with something else".to_owned())),
            Err(error) => Err(refused(&error)),
        }
    }

    fn counts(&mut self) -> Result<(bool, Vec<(u8, u64)>), StoreError> {
        match self.carry_out(&mut Call::new(Request::Count))? {
            Ok(Reply::Counts { whole, counts }) => Ok((whole, counts)),
            Ok(_) => {
                Err(StoreError::Unavailable("the server answers a count with something else".to_owned()))
            }
            Err(error) => Err(refused(&error)),
        }
    }

    fn clear(&mut self, first: Option<u8>, cursor: u64) -> Result<Option<u64>, StoreError> {
        match self.carry_out(&mut Call::new(Request::Clear { first, cursor }))? {
            Ok(Reply::Page { next, .. }) => Ok(next.filter(|next| *next > cursor)),
            Ok(_) => {
                Err(StoreError::Unavailable("the server answers a clear with something else".to_owned()))
            }
            Err(error) => Err(refused(&error)),
        }
    }

    fn rest(&mut self) -> Option<Duration> {
        // What a busy client's writes carry along. A server that cannot be told is noticed by whoever needs it.
        if let Some(confirm) = self.client.poll_confirm() {
            let _ = self.carry_out(&mut Call::new(confirm));
        }
        let _ = self.attend();
        None
    }
}

impl<H: Handle> Erda<H> {
    /// As one sees it through a handle.
    #[must_use]
    pub const fn over(handle: H) -> Self {
        Self { handle, name: Vec::new() }
    }

    fn page(&mut self, cursor: u64, limit: usize) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
        self.handle.page(cursor, limit.clamp(1, PAGE) as u32)
    }

    fn change(
        &mut self,
        name: &[u8],
        value: Option<&[u8]>,
        condition: Condition,
    ) -> Result<bool, StoreError> {
        let change = NamedChange { name, value, expect: expect(condition) };
        self.handle.change_many(&[change]).pop().expect("one for one")
    }
}

/// How long the store is to keep a value of ours that expires, milliseconds.
pub(crate) fn remaining(value: &[u8], now: UnixMs) -> Option<u64> {
    let (head, _) = Head::parse(value).ok()?;
    Some(head.expires?.saturating_sub(now).max(0) as u64 + LATER)
}

/// Whether the front of a value of ours says that its time has not come.
fn stays(front: &[u8]) -> bool {
    Head::parse(front).is_ok_and(|(head, _)| !head.expired(crate::process::unix_ms()))
}

/// The database's number, then the name.
fn named(key: Key<'_>) -> Result<Vec<u8>, StoreError> {
    let mut name = Vec::with_capacity(1 + key.name.len());
    name_in(&mut name, key).map(|()| name)
}

/// The same, in a buffer.
fn name_in(name: &mut Vec<u8>, key: Key<'_>) -> Result<(), StoreError> {
    if key.name.len() >= KEY_MAX {
        return Err(StoreError::KeyTooLong { len: key.name.len(), limit: KEY_MAX - 1 });
    }
    name.clear();
    name.push(key.space);
    name.extend_from_slice(key.name);
    Ok(())
}

/// What came of a change: whether it was made.
fn changed(change: &NamedChange<'_>, outcome: Result<u64, Error>) -> Result<bool, StoreError> {
    match outcome {
        // A deletion without a version found nothing.
        Ok(version) => Ok(change.value.is_some() || version > 0),
        Err(Error::Refused(Refusal::WrongVersion { .. })) => Ok(false),
        Err(error) => Err(refused(&error)),
    }
}

fn expect(condition: Condition) -> Expect {
    match condition {
        Condition::Always => Expect::Any,
        Condition::Absent => Expect::Absent,
        Condition::Is(Version(version)) => Expect::Version(version),
        Condition::Freeing(found) => Expect::Freeing(found.map_or(0, |found| found.0)),
        Condition::Moving(found) => Expect::Moving(found.map_or(0, |found| found.0)),
    }
}

fn refused(error: &Error) -> StoreError {
    match error {
        Error::Refused(refusal) => told(refusal),
        other @ Error::Protocol(_) => StoreError::Unavailable(other.to_string()),
    }
}

/// What Redis' clients are told of a refusal.
pub(crate) fn told(refusal: &Refusal) -> StoreError {
    match refusal {
        Refusal::Full => StoreError::Full,
        Refusal::ReadOnly => StoreError::ReadOnly,
        Refusal::TooLarge { len, pool } => {
            StoreError::ValueTooLong { len: *len as usize, limit: *pool as usize }
        }
        other => StoreError::Unavailable(other.to_string()),
    }
}

impl<H: Handle> Store for Erda<H> {
    fn limits(&self) -> StoreLimits {
        // How large a value can be depends on the pool's room at the moment: the server says so when it is too large.
        StoreLimits { key: KEY_MAX - 1, value: usize::MAX }
    }

    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        // No key that long can have been written.
        if name_in(&mut self.name, key).is_err() {
            return Ok(None);
        }
        let start = value.len();
        match self.handle.peek(&self.name, value)? {
            Peek::Absent => Ok(None),
            Peek::Found { version, value: range } => {
                value.truncate(range.end);
                value.drain(start..range.start);
                Ok(Some(Version(version)))
            }
            Peek::Unknown => Ok(self.handle.get(&self.name)?.map(|found| {
                value.extend_from_slice(&found.value);
                Version(found.version)
            })),
        }
    }

    fn head(&mut self, key: Key<'_>, head: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        if name_in(&mut self.name, key).is_err() {
            return Ok(None);
        }
        let start = head.len();
        match self.handle.peek_front(&self.name, HEAD_LEN, head)? {
            Peek::Absent => return Ok(None),
            // What is over will be deleted, and is verified before.
            Peek::Found { version, value } if stays(&head[value.clone()]) => {
                head.truncate(value.end);
                head.drain(start..value.start);
                head.truncate(start + HEAD_LEN);
                return Ok(Some(Version(version)));
            }
            Peek::Found { .. } => head.truncate(start),
            Peek::Unknown => match self.handle.front(&self.name, HEAD_LEN)? {
                None => return Ok(None),
                Some(found) if stays(&found.value) => {
                    head.extend_from_slice(&found.value[..found.value.len().min(HEAD_LEN)]);
                    return Ok(Some(Version(found.version)));
                }
                Some(_) => {}
            },
        }
        let version = self.get(key, head)?;
        head.truncate(start + HEAD_LEN);
        Ok(version)
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.change(&named(key)?, Some(value), condition)
    }

    fn get_many(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        let first = found.len();
        let mut left = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            // No key that is too long can have been written.
            let peeked = match name_in(&mut self.name, *key) {
                Ok(()) => self.handle.peek(&self.name, values),
                Err(_) => Ok(Peek::Absent),
            };
            found.push(peeked.map(|peeked| match peeked {
                Peek::Found { version, value } => Some((Version(version), value)),
                Peek::Absent => None,
                Peek::Unknown => {
                    left.push(n);
                    None
                }
            }));
        }
        if left.is_empty() {
            return;
        }
        let names: Vec<Vec<u8>> = left.iter().map(|n| named(keys[*n]).expect("it was looked at")).collect();
        for (n, output) in left.into_iter().zip(self.handle.get_many(&names)) {
            found[first + n] = output.map(|output| {
                output.map(|output| {
                    let start = values.len();
                    values.extend_from_slice(&output.value);
                    (Version(output.version), start..values.len())
                })
            });
        }
    }

    fn change_many(&mut self, changes: &[store::Change<'_>], done: &mut Vec<Result<bool, StoreError>>) {
        let first = done.len();
        let (mut names, mut ends) = (Vec::new(), Vec::new());
        for (n, change) in changes.iter().enumerate() {
            let named = name_in(&mut self.name, change.key);
            if named.is_ok() {
                names.extend_from_slice(&self.name);
                ends.push((n, names.len()));
            }
            done.push(match (named, change.value) {
                // No key that long can have been written.
                (Err(_), None) => Ok(false),
                (named, _) => named.map(|()| false),
            });
        }
        let starts = std::iter::once(0).chain(ends.iter().map(|(_, end)| *end));
        let named: Vec<NamedChange<'_>> = starts
            .zip(&ends)
            .map(|(start, (n, end))| {
                let store::Change { value, condition, .. } = changes[*n];
                NamedChange { name: &names[start..*end], value, expect: expect(condition) }
            })
            .collect();
        for ((n, _), output) in ends.iter().zip(self.handle.change_many(&named)) {
            done[first + n] = output;
        }
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        // No key that long can have been written.
        named(key).map_or(Ok(false), |name| self.change(&name, None, condition))
    }

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        let (mut cursor, mut count) = (cursor, count);
        for page in 1.. {
            let (mut keys, next) = self.page(cursor, count)?;
            keys.retain(|key| key.first() == Some(&space));
            // All values of a page under one doorbell.
            let values = self.handle.get_many(&keys);
            let mut shown = 0;
            for (key, value) in keys.iter().zip(values) {
                if let Some(found) = value? {
                    each(&key[1..], &found.value[..found.value.len().min(HEAD_LEN)]);
                    shown += 1;
                }
            }
            match next {
                None => return Ok(0),
                Some(next) if shown > 0 || page == PAGES => return Ok(next),
                // A page of other databases' keys: perhaps there are no others.
                Some(_) if page == 1 && self.count(space)? == Some(0) => return Ok(0),
                Some(next) => (cursor, count) = (next, PAGE),
            }
        }
        unreachable!("it has returned after so many pages")
    }

    fn rest(&mut self) -> Option<Duration> {
        self.handle.rest()
    }

    fn tells(&self) -> bool {
        self.handle.tells()
    }

    fn away(&mut self) -> Option<Duration> {
        self.handle.away()
    }

    fn mark(&self) -> u64 {
        self.handle.mark()
    }

    fn recall(&mut self, mark: Option<u64>) -> Option<u64> {
        self.handle.recall(mark)
    }

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.handle.descriptor()
    }

    fn wake_by(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.handle.wake_by(wake);
    }

    fn facts(&mut self) -> Vec<(&'static str, String)> {
        self.handle.facts()
    }

    fn anywhere(&self, random: u64) -> u64 {
        // A cursor is a fingerprint.
        random >> (u64::BITS - FINGERPRINT_BITS)
    }

    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        // A store that was opened a moment ago goes through its keys once, a part at each call.
        let (whole, counts) = self.handle.counts()?;
        let count = counts.iter().find(|(first, _)| *first == space).map_or(0, |(_, count)| *count);
        Ok(whole.then_some(count))
    }

    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError> {
        Ok(self.handle.clear(space, cursor)?.unwrap_or(0))
    }
}
