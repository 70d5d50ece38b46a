//! Deletes buckets that no hash has any more.

use std::collections::BTreeMap;

use super::{Bucket, BucketName, Id, Root, bucket_key, bucket_name, bucket_space, split};
use crate::store::{Change, Condition, Key, Store, StoreError};
use crate::sweep::Swept;
use crate::value::Kind;

/// Buckets that are deleted at once.
const TOGETHER: u32 = 128;

/// Looks at about `count` buckets of a database's hashes, and deletes those whose key is not the hash that they are of; the
/// cursor to go on from, or 0 at the end, and how many.
///
/// # Errors
/// The error that the store gives.
pub fn sweep<S: Store>(
    store: &mut S,
    space: u8,
    cursor: u64,
    count: usize,
) -> Result<(u64, Swept), StoreError> {
    let mut names = Vec::new();
    let next = store.scan(bucket_space(space), cursor, count, &mut |name, _| names.push(name.to_vec()))?;
    let keys: Vec<Key<'_>> = names.iter().map(|name| Key { space: bucket_space(space), name }).collect();
    let (mut bytes, mut found) = (Vec::new(), Vec::new());
    store.get_many(&keys, &mut bytes, &mut found);
    // What the keys of these buckets are: many have one.
    let mut hashes: BTreeMap<Vec<u8>, Owner> = BTreeMap::new();
    let mut deletions = Vec::new();
    for (key, found) in keys.iter().zip(found) {
        // One that is damaged does not say whose it is.
        let Ok(Some((version, range))) = found else { continue };
        // What somebody else has put there is not ours to judge.
        if key.name.len() != size_of::<BucketName>() {
            continue;
        }
        let Ok(bucket) = Bucket::parse(&bytes[range]) else { continue };
        let of = match hashes.get(bucket.owner) {
            Some(of) => *of,
            None => {
                let of = what_is(store, Key { space, name: bucket.owner })?;
                hashes.insert(bucket.owner.to_vec(), of);
                of
            }
        };
        let gone = match of {
            Owner::Other => true,
            Owner::Hash(id) => !key.name.starts_with(&id),
            Owner::Unknown => false,
        };
        if gone {
            deletions.push(Change { key: *key, value: None, condition: Condition::Is(version) });
        }
    }
    let mut done = Vec::new();
    if !deletions.is_empty() {
        store.change_many(&deletions, &mut done);
    }
    let mut swept = Swept { looked: names.len() as u64, deleted: 0 };
    for done in done {
        swept.deleted += u64::from(done?);
    }
    Ok((next, swept))
}

/// Buckets of a hash that was deleted, or will be in a moment.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    space: u8,
    /// The name of the key.
    owner: Vec<u8>,
    id: Id,
    next: u32,
    buckets: u32,
}

impl Leaving {
    /// Of a key whose value this is, behind its head.
    pub(crate) fn of(key: Key<'_>, payload: &[u8]) -> Option<Self> {
        let root = Root::parse(payload).ok()?;
        Some(Self { space: key.space, owner: key.name.to_vec(), id: root.id, next: 0, buckets: root.buckets })
    }

    /// Deletes some, if the hash has gone; whether none is left to delete.
    pub(crate) fn step<S: Store>(&mut self, store: &mut S) -> Result<bool, StoreError> {
        let gone = match what_is(store, Key { space: self.space, name: &self.owner })? {
            Owner::Other => true,
            Owner::Hash(id) => id != self.id,
            Owner::Unknown => false,
        };
        if !gone {
            return Ok(true);
        }
        let until = self.buckets.min(self.next.saturating_add(TOGETHER));
        let names: Vec<BucketName> = (self.next..until).map(|place| bucket_name(&self.id, place)).collect();
        let delete =
            |name| Change { key: bucket_key(self.space, name), value: None, condition: Condition::Always };
        let (deletions, mut done) = (names.iter().map(delete).collect::<Vec<_>>(), Vec::new());
        store.change_many(&deletions, &mut done);
        let mut any = false;
        for done in done {
            any |= done?;
        }
        self.next = until;
        // Where there is nothing a sweep was faster, or there never was anything.
        Ok(!any || self.next >= self.buckets)
    }
}

/// What the key of a bucket has.
#[derive(Clone, Copy)]
enum Owner {
    Hash(Id),
    /// Something else, or nothing.
    Other,
    /// What nobody understands may be of a later version.
    Unknown,
}

fn what_is<S: Store>(store: &mut S, key: Key<'_>) -> Result<Owner, StoreError> {
    let mut value = Vec::new();
    if store.get(key, &mut value)?.is_none() {
        return Ok(Owner::Other);
    }
    Ok(match split(&value) {
        Ok((head, payload)) if head.kind == Kind::Parts => {
            Root::parse(payload).map_or(Owner::Unknown, |root| Owner::Hash(root.id))
        }
        Ok(_) => Owner::Other,
        Err(_) => Owner::Unknown,
    })
}
