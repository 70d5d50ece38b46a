//! Reads a hash in parts for a copy of the store, as one value.
//!
//! Whoever copies a store that is served cannot have a hash stand still, and one that is changed all the time is in one state
//! for less long than it takes to read. So this reads no state of the hash, but every field that is there all the while, with
//! a value that it had meanwhile. A field that moves does so to a bucket with a higher number; so who reads buckets in their
//! order comes by it, or it was among the changes of the key's value, which is read first and last.

use std::collections::BTreeMap;

use super::{Bucket, Root, bucket_name, bucket_space, split};
use crate::value::{Head, Kind, put};

/// Buckets that are read together.
const TOGETHER: u32 = 64;

/// How often one begins again where the hash was replaced by another.
const ATTEMPTS: usize = 100;

/// What a key has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Collected {
    /// This value, which is whole.
    Value(Vec<u8>),
    /// None any more.
    Gone,
    /// A hash of which a part is lost, or cannot be understood.
    Lost,
}

/// The whole value of a key, from a store's own keys, whose first byte is the database: a hash in parts becomes one value,
/// what is whole stays as it is. `read` reads keys, in any order.
///
/// # Errors
/// Those of `read`.
pub fn collect<E>(
    key: &[u8],
    mut read: impl FnMut(&[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, E>,
) -> Result<Collected, E> {
    let Some(space) = key.first() else { return Ok(Collected::Gone) };
    let key = [key.to_vec()];
    'again: for _ in 0..ATTEMPTS {
        let Some(first) = read(&key)?.pop().flatten() else { return Ok(Collected::Gone) };
        let Some((head, root)) = of(&first) else { return Ok(Collected::Value(first)) };
        let changes: BTreeMap<&[u8], Option<&[u8]>> = root.sealed.chain(root.log).collect();
        let mut fields: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (name, value) in &changes {
            if let Some(value) = value {
                fields.insert(name.to_vec(), value.to_vec());
            }
        }
        let (mut before, mut buckets) = (root.before, if root.before == 0 { 0 } else { root.buckets });
        let (mut at, mut lost) = (0, false);
        loop {
            while at < buckets && !lost {
                // No field moves to a bucket that was there before: those may be read together.
                let until = if at < before { before.min(at + TOGETHER) } else { at + 1 };
                let name = |at| [&[bucket_space(*space)][..], &bucket_name(&root.id, at)].concat();
                let names: Vec<Vec<u8>> = (at..until).map(name).collect();
                for (at, value) in (at..until).zip(read(&names)?) {
                    match value.as_deref().map(Bucket::parse) {
                        Some(Ok(bucket)) => {
                            // What the first look has changed is newer than what is older than its batch.
                            let older = bucket.batch <= root.batch;
                            for (name, value) in bucket.fields {
                                if !(older && changes.contains_key(name)) {
                                    fields.insert(name.to_vec(), value.to_vec());
                                }
                            }
                        }
                        // One that is new and not there yet: its fields have been where they came from.
                        None if at >= before => {}
                        _ => lost = true,
                    }
                }
                at = until;
            }
            let Some(last) = read(&key)?.pop().flatten() else { return Ok(Collected::Gone) };
            let Some((_, now)) = of(&last) else { continue 'again };
            if now.id != root.id {
                continue 'again;
            }
            if lost {
                return Ok(Collected::Lost);
            }
            if now.before > 0 && now.buckets > buckets {
                (before, buckets) = (now.before, now.buckets);
                continue;
            }
            for (name, value) in now.sealed.chain(now.log) {
                match value {
                    Some(value) => drop(fields.insert(name.to_vec(), value.to_vec())),
                    None => drop(fields.remove(name)),
                }
            }
            let mut value = Vec::new();
            Head { kind: Kind::Hash, ..head }.emit(&mut value);
            for (name, bytes) in &fields {
                put(name, &mut value);
                put(bytes, &mut value);
            }
            return Ok(Collected::Value(value));
        }
    }
    Ok(Collected::Lost)
}

/// What a hash in parts says. Values of others may begin as it does.
fn of(value: &[u8]) -> Option<(Head, Root<'_>)> {
    let (head, payload) = split(value).ok().filter(|(head, _)| head.kind == Kind::Parts)?;
    Some((head, Root::parse(payload).ok()?))
}

/// Whether a value of a store is a hash in parts, which [`collect`] makes one value.
#[must_use]
pub fn is_in_parts(value: &[u8]) -> bool {
    of(value).is_some()
}

/// The id of the hash whose part a key would be: what it is once, it is for ever.
#[must_use]
pub fn id_in(key: &[u8]) -> Option<[u8; 16]> {
    let name = key.strip_prefix(&[*key.first().filter(|space| **space >= bucket_space(0))?])?;
    name.first_chunk().filter(|_| name.len() == size_of::<super::BucketName>()).copied()
}

/// The key of the hash that a value of a store is a part of, if it looks like one.
#[must_use]
pub fn owner_of(key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    id_in(key)?;
    let owner = Bucket::parse(value).ok()?.owner;
    Some([&[key[0] - bucket_space(0)][..], owner].concat())
}

/// Whether the value of a hash says that a key is a part of it.
#[must_use]
pub fn has_part(value: &[u8], key: &[u8]) -> bool {
    of(value).is_some_and(|(_, root)| id_in(key) == Some(root.id))
}
