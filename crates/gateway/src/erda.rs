//! Erda as a store for Redis' commands.
//!
//! What Redis' commands need is what Erda's clients do: a GET is one or two one-sided READs, a conditional write is a PUT
//! with the version that was read. The rest is translation: the number of the database goes in front of the key, and
//! times to live stay in the value, where [`remanence_resp::value`] has them, so that KEEPTTL and PERSIST are writes like
//! any other.
//!
//! DBSIZE, FLUSHDB and the like walk through the store's keys: Erda keeps no count by database.

use std::collections::BTreeSet;
use std::fmt::Display;

use remanence_kv::client::{
    Call, Client, Error, Found, Get, Many, Operation, Put, RemoteMemory, attend, run,
};
use remanence_kv::format::KEY_MAX;
use remanence_kv::proto::{Expect, Refusal, Reply, Request};
use remanence_resp::store::{Condition, Fetched, HEAD_LEN, Key, Store, StoreError, StoreLimits, Version};

/// Keys asked for at a time where all are wanted.
const PAGE: usize = 256;

/// Who reaches an Erda store for one worker. Names are the store's own keys.
pub trait Handle {
    /// A value.
    ///
    /// # Errors
    /// [`StoreError`]
    fn get(&mut self, name: &[u8]) -> Result<Option<Found>, StoreError>;

    /// Several values, under one doorbell.
    fn get_many(&mut self, names: &[Vec<u8>]) -> Vec<Result<Option<Found>, StoreError>>;

    /// Writes a value if the condition holds; whether it did.
    ///
    /// # Errors
    /// [`StoreError`]
    fn put(&mut self, name: &[u8], value: &[u8], expect: Expect) -> Result<bool, StoreError>;

    /// Writes several values of different names: one message, one doorbell, one flush.
    fn put_many(&mut self, pairs: &[(Vec<u8>, &[u8])]) -> Vec<Result<(), StoreError>>;

    /// Deletes a value if there is one and the condition holds; whether it did.
    ///
    /// # Errors
    /// [`StoreError`]
    fn delete(&mut self, name: &[u8], expect: Expect) -> Result<bool, StoreError>;

    /// Some names from a cursor on, and where to go on.
    ///
    /// # Errors
    /// [`StoreError`]
    fn page(&mut self, cursor: u64, limit: u32) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError>;

    /// Does what the server may wait for: called some ten times a second.
    fn rest(&mut self);

    /// What there is to say of the store, for INFO.
    fn facts(&mut self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// An Erda store as Redis' commands see it.
#[derive(Debug)]
pub struct Erda<H> {
    handle: H,
}

/// One client of an Erda store, and the memory and server that it reaches.
#[derive(Debug)]
pub struct Parts<R> {
    client: Client,
    remote: R,
}

impl<R> Erda<Parts<R>>
where
    R: RemoteMemory,
    R::Error: Display,
{
    /// A handle for one thread, over anything that reaches the memory.
    #[must_use]
    pub const fn new(client: Client, remote: R) -> Self {
        Self { handle: Parts { client, remote } }
    }

    /// Erda's side of it: whoever receives the server's notices gives it new views here.
    pub const fn client(&mut self) -> &mut Client {
        &mut self.handle.client
    }
}

impl<R> Parts<R>
where
    R: RemoteMemory,
    R::Error: Display,
{
    fn carry_out<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, StoreError> {
        let output = self.reach(operation)?;
        self.attend()?;
        // Nothing of ours is under way now: the server may take back what older views show.
        if let Some(acknowledge) = self.client.poll_acknowledgement() {
            let _ = self.reach(&mut Call::new(acknowledge))?;
        }
        while let Some(report) = self.client.poll_report() {
            // The server looks at it when it can; its answer is for nobody.
            let _ = self.reach(&mut Call::new(report))?;
        }
        Ok(output)
    }

    /// Takes the newest view if the server has told of one: it may wait for everybody to have it.
    fn attend(&mut self) -> Result<(), StoreError> {
        if self.remote.noticed() <= self.client.view().number {
            return Ok(());
        }
        attend(&mut self.client, &mut self.remote).map_err(|error| StoreError::Unavailable(error.to_string()))
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

    fn get_many(&mut self, names: &[Vec<u8>]) -> Vec<Result<Option<Found>, StoreError>> {
        let gets = names.iter().map(|name| Get::new(name)).collect();
        match self.carry_out(&mut Many::new(gets)) {
            Err(error) => names.iter().map(|_| Err(error.clone())).collect(),
            Ok(outputs) => {
                outputs.into_iter().map(|output| output.map_err(|error| refused(&error))).collect()
            }
        }
    }

    fn put(&mut self, name: &[u8], value: &[u8], expect: Expect) -> Result<bool, StoreError> {
        match self.carry_out(&mut Put::new(name, value, 0, expect))? {
            Ok(_) => Ok(true),
            Err(Error::Refused(Refusal::WrongVersion { .. })) => Ok(false),
            Err(error) => Err(refused(&error)),
        }
    }

    fn put_many(&mut self, pairs: &[(Vec<u8>, &[u8])]) -> Vec<Result<(), StoreError>> {
        let puts = pairs.iter().map(|(name, value)| Put::new(name, value, 0, Expect::Any)).collect();
        match self.carry_out(&mut Many::new(puts)) {
            Err(error) => pairs.iter().map(|_| Err(error.clone())).collect(),
            Ok(outputs) => {
                outputs.into_iter().map(|output| output.map(drop).map_err(|error| refused(&error))).collect()
            }
        }
    }

    fn delete(&mut self, name: &[u8], expect: Expect) -> Result<bool, StoreError> {
        match self.carry_out(&mut Call::delete(name, expect))? {
            Ok(Reply::Done { version }) => Ok(version > 0),
            Ok(_) => {
                Err(StoreError::Unavailable("the server answers a delete with something else".to_owned()))
            }
            Err(Error::Refused(Refusal::WrongVersion { .. })) => Ok(false),
            Err(error) => Err(refused(&error)),
        }
    }

    fn page(&mut self, cursor: u64, limit: u32) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
        match self.carry_out(&mut Call::new(Request::Scan { cursor, limit }))? {
            Ok(Reply::Page { next, keys }) => Ok((keys, next.filter(|next| *next > cursor))),
            Ok(_) => Err(StoreError::Unavailable("the server answers a scan with something else".to_owned())),
            Err(error) => Err(refused(&error)),
        }
    }

    fn rest(&mut self) {
        // What a busy client's writes carry along. A server that cannot be told is noticed by whoever needs it.
        if let Some(confirm) = self.client.poll_confirm() {
            let _ = self.carry_out(&mut Call::new(confirm));
        }
        let _ = self.attend();
    }
}

impl<H: Handle> Erda<H> {
    /// As one sees it through a handle.
    #[must_use]
    pub const fn over(handle: H) -> Self {
        Self { handle }
    }

    fn page(&mut self, cursor: u64, limit: usize) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
        self.handle.page(cursor, limit.clamp(1, PAGE) as u32)
    }

    /// Shows `each` every key from a cursor on, its database first, until it says that it has enough.
    fn walk(
        &mut self,
        from: u64,
        mut each: impl FnMut(&mut Self, &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut cursor = Some(from);
        while let Some(at) = cursor {
            let (keys, next) = self.page(at, PAGE)?;
            for key in &keys {
                if each(self, key)? {
                    return Ok(());
                }
            }
            cursor = next;
        }
        Ok(())
    }
}

/// The database's number, then the name.
fn named(key: Key<'_>) -> Result<Vec<u8>, StoreError> {
    if key.name.len() >= KEY_MAX {
        return Err(StoreError::KeyTooLong { len: key.name.len(), limit: KEY_MAX - 1 });
    }
    let mut name = Vec::with_capacity(1 + key.name.len());
    name.push(key.space);
    name.extend_from_slice(key.name);
    Ok(name)
}

const fn expect(condition: Condition) -> Expect {
    match condition {
        Condition::Always => Expect::Any,
        Condition::Absent => Expect::Absent,
        Condition::Is(Version(version)) => Expect::Version(version),
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
        let Ok(name) = named(key) else { return Ok(None) };
        let found = self.handle.get(&name)?;
        Ok(found.map(|found| {
            value.extend_from_slice(&found.value);
            Version(found.version)
        }))
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        let name = named(key)?;
        self.handle.put(&name, value, expect(condition))
    }

    fn get_many(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        // No key that is too long can have been written.
        let mut names = Vec::with_capacity(keys.len());
        let short: Vec<bool> =
            keys.iter().map(|key| named(*key).map(|name| names.push(name)).is_ok()).collect();
        let mut outputs = self.handle.get_many(&names).into_iter();
        found.extend(short.into_iter().map(|short| {
            let output = if short { outputs.next().expect("one for each name")? } else { None };
            Ok(output.map(|output| {
                let start = values.len();
                values.extend_from_slice(&output.value);
                (Version(output.version), start..values.len())
            }))
        }));
    }

    fn put_many(&mut self, puts: &[(Key<'_>, &[u8])], done: &mut Vec<Result<(), StoreError>>) {
        let mut rest = puts;
        while !rest.is_empty() {
            // A key has one unfinished write at a time: up to where one comes again, they go together.
            let mut seen = BTreeSet::new();
            let distinct = rest.iter().take_while(|(key, _)| seen.insert(*key)).count();
            let (now, later) = rest.split_at(distinct);
            rest = later;
            let mut pairs = Vec::with_capacity(now.len());
            let named: Vec<Result<(), StoreError>> =
                now.iter().map(|(key, value)| named(*key).map(|name| pairs.push((name, *value)))).collect();
            let mut outputs = self.handle.put_many(&pairs).into_iter();
            done.extend(
                named
                    .into_iter()
                    .map(|named| named.and_then(|()| outputs.next().expect("one for each name"))),
            );
        }
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        let Ok(name) = named(key) else { return Ok(false) };
        self.handle.delete(&name, expect(condition))
    }

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        let mut cursor = cursor;
        loop {
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
                Some(next) if shown > 0 => return Ok(next),
                // A page of other databases' keys.
                Some(next) => cursor = next,
            }
        }
    }

    fn rest(&mut self) {
        self.handle.rest();
    }

    fn facts(&mut self) -> Vec<(&'static str, String)> {
        self.handle.facts()
    }

    fn sample(&mut self, space: u8, random: u64, name: &mut Vec<u8>) -> Result<bool, StoreError> {
        let mut found = false;
        for from in [random, 0] {
            self.walk(from, |_, key| {
                found = key.first() == Some(&space);
                if found {
                    key[1..].clone_into(name);
                }
                Ok(found)
            })?;
            if found {
                break;
            }
        }
        Ok(found)
    }

    fn count(&mut self, space: u8) -> Result<u64, StoreError> {
        let mut count = 0;
        self.walk(0, |_, key| {
            count += u64::from(key.first() == Some(&space));
            Ok(false)
        })?;
        Ok(count)
    }

    fn clear(&mut self, space: Option<u8>) -> Result<(), StoreError> {
        self.walk(0, |store, key| {
            if let [own, name @ ..] = key
                && space.is_none_or(|space| space == *own)
            {
                store.delete(Key { space: *own, name }, Condition::Always)?;
            }
            Ok(false)
        })
    }
}
