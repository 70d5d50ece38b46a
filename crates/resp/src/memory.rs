//! A store in this process' memory: for tests, and to tell what the gateway costs without one.
//!
//! Keys are kept in the order of their hashes. A scan goes through the hashes, so that its cursor stays good whatever is
//! written meanwhile: a key never changes its place.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::store::{Change, Condition, HEAD_LEN, Key, Store, StoreError, StoreLimits, Version};

/// A handle of the store. Its clones are handles of the same one.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<[Mutex<Shard>]>,
    limits: StoreLimits,
}

#[derive(Default, Debug)]
struct Shard {
    keys: BTreeMap<FullKey, Entry>,
    counts: BTreeMap<u8, u64>,
    /// The last version given; never taken back.
    version: u64,
}

/// Space, hash, name.
type FullKey = (u8, u64, Box<[u8]>);

#[derive(Debug)]
struct Entry {
    version: u64,
    value: Box<[u8]>,
}

/// By the top bits of the hash, so that shards in order are hashes in order.
const SHARD_BITS: u32 = 4;

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(StoreLimits { key: 512 << 20, value: 513 << 20 })
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(limits: StoreLimits) -> Self {
        Self { shared: (0..1 << SHARD_BITS).map(|_| Mutex::default()).collect(), limits }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let index = (hash >> (64 - SHARD_BITS)) as usize;
        // A poisoned shard is whole: nothing is changed before the last step that can fail.
        self.shared[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(key: Key<'_>) -> FullKey {
        (key.space, hash(key.name), key.name.into())
    }
}

/// FNV-1a, then a mix that brings its good bits to the top.
fn hash(name: &[u8]) -> u64 {
    let hash = name.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ (hash >> 29)
}

impl Condition {
    fn holds(self, present: Option<&Entry>) -> bool {
        match (self, present) {
            (Self::Always, _) => true,
            (Self::Absent | Self::Freeing(None) | Self::Moving(None), present) => present.is_none(),
            (Self::Is(version) | Self::Freeing(Some(version)) | Self::Moving(Some(version)), present) => {
                present.is_some_and(|entry| entry.version == version.0)
            }
        }
    }
}

impl Store for MemoryStore {
    fn limits(&self) -> StoreLimits {
        self.limits
    }

    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        let place = Self::place(key);
        let shard = self.shard(place.1);
        Ok(shard.keys.get(&place).map(|entry| {
            value.extend_from_slice(&entry.value);
            Version(entry.version)
        }))
    }

    fn head(&mut self, key: Key<'_>, head: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        let place = Self::place(key);
        let shard = self.shard(place.1);
        Ok(shard.keys.get(&place).map(|entry| {
            head.extend_from_slice(&entry.value[..entry.value.len().min(HEAD_LEN)]);
            Version(entry.version)
        }))
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.limits.check(key, value)?;
        let place = Self::place(key);
        let value = value.into();
        let mut shard = self.shard(place.1);
        if !condition.holds(shard.keys.get(&place)) {
            return Ok(false);
        }
        shard.version += 1;
        let entry = Entry { version: shard.version, value };
        if shard.keys.insert(place, entry).is_none() {
            *shard.counts.entry(key.space).or_default() += 1;
        }
        Ok(true)
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        let place = Self::place(key);
        let mut shard = self.shard(place.1);
        if !condition.holds(shard.keys.get(&place)) || shard.keys.remove(&place).is_none() {
            return Ok(false);
        }
        *shard.counts.entry(key.space).or_default() -= 1;
        Ok(true)
    }

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        let (mut shown, mut last) = (0, None);
        for index in cursor >> (64 - SHARD_BITS)..1 << SHARD_BITS {
            let shard = self.shard(index << (64 - SHARD_BITS));
            let from = Bound::Included((space, cursor, Box::default()));
            for ((at, hash, name), entry) in shard.keys.range((from, Bound::Unbounded)) {
                if *at != space {
                    break;
                }
                // Keys of one hash are shown together: a cursor cannot tell them apart.
                if shown >= count && last != Some(*hash) {
                    return Ok(*hash);
                }
                each(name, &entry.value[..entry.value.len().min(HEAD_LEN)]);
                shown += 1;
                last = Some(*hash);
            }
        }
        Ok(0)
    }

    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.counts.get(&space).copied().unwrap_or(0)
        };
        Ok(Some(self.shared.iter().map(count).sum()))
    }

    fn clear(&mut self, space: Option<u8>, _: u64) -> Result<u64, StoreError> {
        for shard in &*self.shared {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.keys.retain(|(at, ..), _| space.is_some_and(|space| space != *at));
            shard.counts.retain(|at, _| space.is_some_and(|space| space != *at));
        }
        Ok(0)
    }
}

/// What is asked of a [`Hooked`] store.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A value, or the front of one.
    Get(Key<'a>),
    /// That a value is written.
    Put(Key<'a>, Condition),
    /// That a value is deleted.
    Delete(Key<'a>),
    /// Several changes that are made [together](Hook::TOGETHER).
    Changes,
    /// What goes over all keys: to show some, to count them, or to delete some.
    All,
}

/// What happens before each step of a store.
pub trait Hook {
    /// Whether changes that are made at once are one step, and not one each.
    const TOGETHER: bool = false;

    /// Is called before a step, which fails if this does.
    ///
    /// # Errors
    /// The error that the step is to have.
    fn before(&mut self, step: Step<'_>, store: &mut MemoryStore) -> Result<(), StoreError>;

    /// See [`Store::away`].
    fn away(&self) -> Option<Duration> {
        None
    }

    /// See [`Store::tells`].
    fn tells(&self) -> bool {
        false
    }
}

/// A store in memory to which something happens, for tests.
#[derive(Default, Debug)]
pub struct Hooked<H> {
    /// The store that is asked, if the hook lets that pass.
    pub store: MemoryStore,
    /// What happens before each question.
    pub hook: H,
}

impl<H: Hook> Hooked<H> {
    fn reach(&mut self, step: Step<'_>) -> Result<&mut MemoryStore, StoreError> {
        self.hook.before(step, &mut self.store)?;
        Ok(&mut self.store)
    }
}

impl<H: Hook> Store for Hooked<H> {
    fn limits(&self) -> StoreLimits {
        self.store.limits()
    }

    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.reach(Step::Get(key))?.get(key, value)
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.reach(Step::Put(key, condition))?.put(key, value, condition)
    }

    fn change_many(&mut self, changes: &[Change<'_>], done: &mut Vec<Result<bool, StoreError>>) {
        if H::TOGETHER {
            match self.reach(Step::Changes) {
                Ok(store) => return store.change_many(changes, done),
                Err(error) => return done.extend(changes.iter().map(|_| Err(error.clone()))),
            }
        }
        for Change { key, value, condition } in changes {
            done.push(match value {
                Some(value) => self.put(*key, value, *condition),
                None => self.delete(*key, *condition),
            });
        }
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        self.reach(Step::Delete(key))?.delete(key, condition)
    }

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        self.reach(Step::All)?.scan(space, cursor, count, each)
    }

    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        self.reach(Step::All)?.count(space)
    }

    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError> {
        self.reach(Step::All)?.clear(space, cursor)
    }

    fn away(&mut self) -> Option<Duration> {
        self.hook.away()
    }

    fn tells(&self) -> bool {
        self.hook.tells()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::MemoryStore;
    use crate::store::{Condition, Key, Store, StoreError, StoreLimits};

    fn key(name: &[u8]) -> Key<'_> {
        Key { space: 0, name }
    }

    #[test]
    fn a_write_holds_to_its_condition_across_deletion() {
        let mut store = MemoryStore::default();
        assert!(!store.put(key(b"a"), b"0", Condition::Is(crate::store::Version(1))).unwrap());
        assert!(store.put(key(b"a"), b"1", Condition::Absent).unwrap());
        assert!(!store.put(key(b"a"), b"2", Condition::Absent).unwrap());
        let first = store.get(key(b"a"), &mut Vec::new()).unwrap().unwrap();
        assert!(store.delete(key(b"a"), Condition::Is(first)).unwrap());
        assert!(store.put(key(b"a"), b"1", Condition::Always).unwrap());
        assert!(!store.put(key(b"a"), b"3", Condition::Is(first)).unwrap(), "the same bytes, another value");
        let mut value = Vec::new();
        store.get(key(b"a"), &mut value).unwrap();
        assert_eq!(value, b"1");
        assert_eq!(store.count(0), Ok(Some(1)));
        assert_eq!(store.count(1), Ok(Some(0)));
    }

    #[test]
    fn a_scan_shows_every_key_that_stays_while_others_come_and_go() {
        let mut store = MemoryStore::default();
        let stay: BTreeSet<Vec<u8>> = (0..500).map(|i| format!("stay{i}").into_bytes()).collect();
        for name in &stay {
            store.put(key(name), b"", Condition::Always).unwrap();
        }
        store.put(Key { space: 1, name: b"elsewhere" }, b"", Condition::Always).unwrap();
        let (mut seen, mut cursor, mut round) = (BTreeSet::new(), 0, 0);
        loop {
            cursor = store.scan(0, cursor, 7, &mut |name, _| _ = seen.insert(name.to_vec())).unwrap();
            for i in 0..5 {
                let name = format!("come{}", round * 5 + i);
                store.put(key(name.as_bytes()), b"", Condition::Always).unwrap();
            }
            store.delete(key(format!("come{round}").as_bytes()), Condition::Always).unwrap();
            round += 1;
            if cursor == 0 {
                break;
            }
        }
        assert!(seen.is_superset(&stay), "missed {:?}", stay.difference(&seen).next());
        assert!(!seen.contains(&b"elsewhere"[..]));
    }

    #[test]
    fn what_is_too_large_is_refused_and_changes_nothing() {
        let mut store = MemoryStore::new(StoreLimits { key: 4, value: 4 });
        let put = |store: &mut MemoryStore, name: &[u8], value: &[u8]| {
            store.put(key(name), value, Condition::Always)
        };
        assert_eq!(put(&mut store, b"12345", b""), Err(StoreError::KeyTooLong { len: 5, limit: 4 }));
        assert_eq!(put(&mut store, b"1", b"12345"), Err(StoreError::ValueTooLong { len: 5, limit: 4 }));
        assert_eq!(store.count(0), Ok(Some(0)));
        assert_eq!(put(&mut store, b"1234", b"1234"), Ok(true));
    }
}
