//! What the commands need of a store. Erda plugs in here; [`crate::memory`] is one for tests.
//!
//! A store has keys, values and a version of each value, and can replace a value on the condition that its version is
//! still the one that was read. That is all that a command on one key needs to be atomic, among any number of gateways.
//! Commands on several keys are atomic among the connections of one gateway, which runs them alone (see
//! [`crate::engine`]); for a crash, or another gateway, they are a sequence of writes.
//!
//! A handle belongs to one thread; threads have handles of their own on one store.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes from the start of a value that [`Store::head`] and [`Store::scan`] give: enough to tell what it is and when it
/// expires.
pub const HEAD_LEN: usize = 9;

/// A key. Redis has numbered databases; a store without such a thing can put the number in front of the name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key<'a> {
    /// The number of the database.
    pub space: u8,
    /// The key's name, which may be any bytes.
    pub name: &'a [u8],
}

/// A version of a key's value: differs between any two values that the key has had, also across its deletion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u64);

/// What may be written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Condition {
    /// Whatever is there.
    Always,
    /// Only if there is no value.
    Absent,
    /// Only if the value is still this one.
    Is(Version),
    /// The same, or only if there is none: what is written makes it possible to remove something. A store that is full may have kept some
    /// room for that.
    Freeing(Option<Version>),
    /// The same of what lies somewhere else as well, and is removed there next.
    Moving(Option<Version>),
}

/// What a store can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreLimits {
    /// Bytes of the longest key.
    pub key: usize,
    /// Bytes of the longest value, head included.
    pub value: usize,
}

impl StoreLimits {
    /// Whether it can hold this.
    ///
    /// # Errors
    /// [`StoreError::KeyTooLong`], [`StoreError::ValueTooLong`]
    pub const fn check(&self, key: Key<'_>, value: &[u8]) -> Result<(), StoreError> {
        if key.name.len() > self.key {
            return Err(StoreError::KeyTooLong { len: key.name.len(), limit: self.key });
        }
        if value.len() > self.value {
            return Err(StoreError::ValueTooLong { len: value.len(), limit: self.value });
        }
        Ok(())
    }
}

/// Why a store did not do what it was asked. Nothing has been changed, but by [`StoreError::Unavailable`], after which
/// nobody knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no room.
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    Full,
    /// The key is longer than the store's limit.
    #[error("ERR the key has {len} bytes and the store takes {limit}: shorten it")]
    KeyTooLong {
        /// Bytes of it.
        len: usize,
        /// Bytes it may have.
        limit: usize,
    },
    /// The value is longer than the store's limit.
    #[error("ERR the value has {len} bytes and the store takes {limit}: split it over several keys")]
    ValueTooLong {
        /// Bytes of it, head included.
        len: usize,
        /// Bytes it may have.
        limit: usize,
    },
    /// The store may only be read.
    #[error("READONLY You can't write against a read only replica.")]
    ReadOnly,
    /// The store cannot be reached, or failed: the reason, as a sentence.
    #[error("ERR the store did not answer: {0}")]
    Unavailable(String),
    /// Others are in the way of a change: writers of the key, or a store that cleans its log and has no room before that is done. Or the
    /// store's server is [away](Store::away), and is waited for. Nothing has been done, and it may be tried again.
    #[error(
        "ERR the store did not answer: others have been in the way for too long: writers of the key, the cleaning of its log, or a \
         connection to it that does not last"
    )]
    InTheWay,
    /// The store's server has not answered for a change yet. Whoever asks for [the same](Store::recall) again is told what came of it.
    #[error(
        "ERR the store did not answer: its server has been silent for too long, and the change was made or it was not"
    )]
    UnderWay,
    /// A stored value that this crate did not write.
    #[error("ERR the value of this key was not written by a Redis client: use the store's own")]
    Foreign,
}

impl StoreError {
    /// Whether it is to be tried again: others are in the way, or the server has not answered yet.
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self, Self::InTheWay | Self::UnderWay)
    }
}

/// A value that is to be written, or deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change<'a> {
    /// The key whose value is to change.
    pub key: Key<'a>,
    /// Its value; `None`: it is to have none.
    pub value: Option<&'a [u8]>,
    /// On what it depends.
    pub condition: Condition,
}

/// A value of [`Store::get_many`]: its version, and which bytes of the buffer it is.
pub type Fetched = Result<Option<(Version, Range<usize>)>, StoreError>;

/// A store of keys and values.
///
/// What a returned write survives is the store's affair; the gateway answers after the store has.
pub trait Store {
    /// What it can hold.
    fn limits(&self) -> StoreLimits;

    /// Appends the value to `value`; its version, or `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError`]
    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError>;

    /// Appends the first [`HEAD_LEN`] bytes of the value, or all if it has fewer.
    ///
    /// # Errors
    /// [`StoreError`]
    fn head(&mut self, key: Key<'_>, head: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        let start = head.len();
        let version = self.get(key, head)?;
        head.truncate(start + HEAD_LEN);
        Ok(version)
    }

    /// Writes a value if the condition holds; whether it did. As no change does, it does not wait for others who are in the way for longer
    /// than an answer takes.
    ///
    /// # Errors
    /// [`StoreError`]; among them [`StoreError::InTheWay`].
    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError>;

    /// Reads several values at once: appends each to `values`, and to `found`, in the order of the keys, where it is (anything may
    /// lie in between). Each is what [`get`](Self::get) would find some time meanwhile.
    fn get_many(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        for key in keys {
            let start = values.len();
            let version = self.get(*key, values);
            found.push(version.map(|version| version.map(|version| (version, start..values.len()))));
        }
    }

    /// Reads several values at once that lie beneath a key, as the [buckets](crate::parts) of a hash do: as [`get_many`](Self::get_many), in
    /// the store itself where something has been changed in front of it.
    fn beneath(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        self.get_many(keys, values, found);
    }

    /// What was found of a key does not hold any more. Whether the next look finds what there is: `false` where it is hidden by what has
    /// been changed in front of the store, and the command will be carried out again.
    fn is_outdated(&mut self, key: Key<'_>) -> bool {
        let _ = key;
        true
    }

    /// Writes and deletes several values at once, of keys that differ, in no order: appends to `done`, in the order of the
    /// changes, what [`put`](Self::put) or [`delete`](Self::delete) would have returned.
    fn change_many(&mut self, changes: &[Change<'_>], done: &mut Vec<Result<bool, StoreError>>) {
        for Change { key, value, condition } in changes {
            done.push(match value {
                Some(value) => self.put(*key, value, *condition),
                None => self.delete(*key, *condition),
            });
        }
    }

    /// Deletes a value if there is one and the condition holds; whether it did.
    ///
    /// # Errors
    /// [`StoreError`]
    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError>;

    /// Shows `each` the names of about `count` keys, or of none after looking for some at length, each with the head of its value;
    /// the cursor to go on from, or 0 at the end. Going from 0 until 0 shows every key that is there all the while, and
    /// may show one twice; any cursor is taken.
    ///
    /// # Errors
    /// [`StoreError`]
    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError>;

    /// A cursor of [`scan`](Self::scan) somewhere among the keys, chosen by `random`.
    fn anywhere(&self, random: u64) -> u64 {
        random
    }

    /// Does what can wait, if anything does: called a tenth of a second or so after something was done, and when the store [wants](Self::wake_by)
    /// it; and in so much time, if a time comes back, though nothing is done. What fails here fails the next operation.
    fn rest(&mut self) -> Option<Duration> {
        None
    }

    /// From here on the store calls this, from whatever thread, when it wants to be [given a rest](Self::rest) though nobody does anything.
    fn wake_by(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        drop(wake);
    }

    /// Whether the store [wakes](Self::wake_by) whom it serves when others may be out of the way of a change that they were
    /// [in the way of](StoreError::InTheWay): it is tried again then, and else seldom.
    fn tells(&self) -> bool {
        false
    }

    /// For how long the store is still waited for, if its server is away. Until then whatever is asked of it is
    /// [in the way](StoreError::InTheWay), and when the server is there again the store [wakes](Self::wake_by). `None`: it is there, or is not
    /// waited for.
    fn away(&mut self) -> Option<Duration> {
        None
    }

    /// How much has been asked of the store so far; 0 if it answers whatever it is asked at once. Whoever has to wait keeps what this was
    /// when it began: see [`recall`](Self::recall).
    fn mark(&self) -> u64 {
        0
    }

    /// What is asked from here on is asked by who began at this [mark](Self::mark), and had to wait; `None`: by somebody who begins. The
    /// answer to what a server was asked since that mark, and did not answer at once, is then that of whoever asks for the same first: it
    /// came while that one waited, whoever had asked. So what is read is no older than whoever reads it, and no change is made twice. Returns
    /// who has asked before this.
    fn recall(&mut self, mark: Option<u64>) -> Option<u64> {
        mark.and(None)
    }

    /// A descriptor that becomes readable when the store wants to be [given a rest](Self::rest), if it has one: to be asked for before each
    /// rest.
    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What there is to say of the store in INFO: names, as Redis would write them, and values. The section is left out if there
    /// is nothing.
    fn facts(&mut self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// How many keys there are, those that expired and that nobody has noticed included. `None`: some have been counted, and the
    /// next call counts more.
    ///
    /// # Errors
    /// [`StoreError`]
    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError>;

    /// Deletes some keys of one database, or of all; the cursor to go on from, or 0 at the end. Going from 0 until 0 deletes every key
    /// that was there at the start and that nobody has written since.
    ///
    /// # Errors
    /// [`StoreError`]
    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError>;
}

/// What an operation of a store counts for beside the bytes that it moves: as many as could be copied in about that time.
pub const OPERATION: usize = 512;

/// A store, and how much work it has been asked for.
#[derive(Debug)]
pub struct Metered<'a, S: ?Sized> {
    store: &'a mut S,
    work: usize,
}

impl<'a, S: Store + ?Sized> Metered<'a, S> {
    /// In front of this store.
    pub const fn new(store: &'a mut S) -> Self {
        Self { store, work: 0 }
    }

    /// Bytes of the values that were read and written, where each operation on a key counts [`OPERATION`] more.
    #[must_use]
    pub const fn work(&self) -> usize {
        self.work
    }

    const fn did(&mut self, operations: usize, bytes: usize) {
        let work = operations.saturating_mul(OPERATION).saturating_add(bytes);
        self.work = self.work.saturating_add(work);
    }
}

impl<S: Store + ?Sized> Store for Metered<'_, S> {
    fn limits(&self) -> StoreLimits {
        self.store.limits()
    }

    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        let start = value.len();
        let found = self.store.get(key, value);
        self.did(1, value.len() - start);
        found
    }

    fn head(&mut self, key: Key<'_>, head: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.did(1, 0);
        self.store.head(key, head)
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.did(1, value.len());
        self.store.put(key, value, condition)
    }

    fn get_many(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        let start = values.len();
        self.store.get_many(keys, values, found);
        self.did(keys.len(), values.len() - start);
    }

    fn beneath(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        let start = values.len();
        self.store.beneath(keys, values, found);
        self.did(keys.len(), values.len() - start);
    }

    fn is_outdated(&mut self, key: Key<'_>) -> bool {
        self.store.is_outdated(key)
    }

    fn change_many(&mut self, changes: &[Change<'_>], done: &mut Vec<Result<bool, StoreError>>) {
        let bytes = changes.iter().map(|change| change.value.map_or(0, <[u8]>::len)).sum();
        self.did(changes.len(), bytes);
        self.store.change_many(changes, done);
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        self.did(1, 0);
        self.store.delete(key, condition)
    }

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        let mut shown = 0;
        let next = self.store.scan(space, cursor, count, &mut |name, head| {
            shown += 1;
            each(name, head);
        });
        self.did(1 + shown, 0);
        next
    }

    fn anywhere(&self, random: u64) -> u64 {
        self.store.anywhere(random)
    }

    fn rest(&mut self) -> Option<Duration> {
        self.store.rest()
    }

    fn mark(&self) -> u64 {
        self.store.mark()
    }

    fn recall(&mut self, mark: Option<u64>) -> Option<u64> {
        self.store.recall(mark)
    }

    fn facts(&mut self) -> Vec<(&'static str, String)> {
        self.store.facts()
    }

    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        self.store.count(space)
    }

    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError> {
        self.store.clear(space, cursor)
    }
}
