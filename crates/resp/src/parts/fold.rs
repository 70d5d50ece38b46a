//! Brings the changes of a hash into its buckets.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Bucket, BucketName, Changes, Id, Root, bucket_key, bucket_name, due, hash, place, put_change, source,
    split, wanted, weight,
};
use crate::engine::Moment;
use crate::store::{Change, Condition, Fetched, Key, Store, StoreError, Version};
use crate::value::{Fields, Head, Kind, put};

/// Buckets that are read at once, and bytes that are written at once, about.
const TOGETHER: usize = 32;
const BYTES: usize = 1 << 20;
/// How often the batch's end is tried to be written; each failure means that somebody has changed the hash.
const ATTEMPTS: usize = 1000;

/// A bucket that was lost.
fn lost() -> StoreError {
    StoreError::Unavailable("a part of this hash is lost".to_owned())
}

/// What came of a [step](fold).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Folded {
    /// Nothing is left to do.
    Done,
    /// A further step is to be taken.
    More,
    /// The batch is in all buckets. Who changes the hash next may take it out of the key's value, or the next step does.
    Applied(Applied),
    /// Somebody else has changed the hash meanwhile: it is to be tried again.
    Late,
}

/// A batch that is in all buckets, of the hash with this id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Applied {
    pub(crate) id: Id,
    pub(crate) batch: u64,
}

/// Takes one step of bringing the changes of a hash into its buckets, if there are many, as told by how many bytes a hash may
/// [have](super) in one value. `applied` is what an earlier step has said.
///
/// # Errors
/// The store's. What was not done is done the next time.
pub(crate) fn fold<S: Store + ?Sized>(
    store: &mut S,
    key: Key<'_>,
    whole: usize,
    moment: Moment,
    applied: Option<Applied>,
) -> Result<Folded, StoreError> {
    let mut value = Vec::new();
    let Some(version) = store.get(key, &mut value)? else { return Ok(Folded::Done) };
    let (head, payload) = split(&value)?;
    if head.expired(moment.now()) {
        return Ok(Folded::Done);
    }
    let done = match head.kind {
        Kind::Parts if Root::parse(payload)?.sealing() => {
            let root = Root::parse(payload)?;
            let this = Applied { id: root.id, batch: root.batch };
            if applied != Some(this) {
                return Ok(if apply(store, key, &root)? { Folded::Applied(this) } else { Folded::Late });
            }
            finish(store, key, this)?
        }
        _ if !due(&value, whole) => return Ok(Folded::Done),
        Kind::Parts => seal(store, key, version, head, &Root::parse(payload)?, whole)?,
        Kind::Hash => divide(store, key, version, head, Fields::parse(payload)?, whole, moment)?,
        Kind::String => return Ok(Folded::Done),
    };
    Ok(if done { Folded::More } else { Folded::Late })
}

/// Makes one value the first batch of a hash in parts; whether it did.
fn divide<S: Store + ?Sized>(
    store: &mut S,
    key: Key<'_>,
    version: Version,
    head: Head,
    fields: Fields<'_>,
    whole: usize,
    moment: Moment,
) -> Result<bool, StoreError> {
    let (mut sealed, mut count, mut bytes) = (Vec::new(), 0, 0);
    for (name, value) in fields {
        put_change(name, Some(value), &mut sealed);
        count += 1;
        bytes += weight(name.len(), value.len());
    }
    let mut id = Id::default();
    id[..8].copy_from_slice(&moment.random.to_le_bytes());
    id[8..].copy_from_slice(&moment.unix_us.to_le_bytes());
    let root = Root {
        id,
        batch: 1,
        before: 0,
        buckets: wanted(count, bytes, whole),
        fields: count,
        bytes,
        sealed: Changes { rest: &sealed },
        log: Changes::default(),
    };
    let mut value = Vec::new();
    Head { kind: Kind::Parts, ..head }.emit(&mut value);
    root.emit(&mut value);
    store.put(key, &value, Condition::Moving(Some(version)))
}

/// Makes the changes a batch; whether it did.
fn seal<S: Store + ?Sized>(
    store: &mut S,
    key: Key<'_>,
    version: Version,
    head: Head,
    root: &Root<'_>,
    whole: usize,
) -> Result<bool, StoreError> {
    let sealed = Root { sealed: root.log, log: Changes::default(), ..root.next_batch(root.log, whole) };
    let mut value = Vec::new();
    head.emit(&mut value);
    sealed.emit(&mut value);
    store.put(key, &value, Condition::Moving(Some(version)))
}

/// Takes a batch out of the key's value, as it is in all buckets; whether it is out.
fn finish<S: Store + ?Sized>(store: &mut S, key: Key<'_>, applied: Applied) -> Result<bool, StoreError> {
    let (mut value, mut next) = (Vec::new(), Vec::new());
    for _ in 0..ATTEMPTS {
        value.clear();
        next.clear();
        let Some(version) = store.get(key, &mut value)? else { return Ok(false) };
        let (head, payload) = split(&value)?;
        if head.kind != Kind::Parts {
            return Ok(false);
        }
        let root = Root::parse(payload)?;
        let Some(without) = root.without(applied) else { return Ok(!root.sealing()) };
        head.emit(&mut next);
        without.emit(&mut next);
        next.extend_from_slice(root.log.rest);
        if store.put(key, &next, Condition::Moving(Some(version)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Brings a batch into the buckets; whether it is in all of them.
fn apply<S: Store + ?Sized>(store: &mut S, key: Key<'_>, root: &Root<'_>) -> Result<bool, StoreError> {
    let mut groups: BTreeMap<u32, Group<'_>> = BTreeMap::new();
    for (name, value) in root.sealed {
        let from = place(hash(&root.id, name), root.before.max(1));
        groups.entry(from).or_default().changes.push((name, value));
    }
    for new in root.before..root.buckets {
        groups.entry(source(new, root.before)).or_default().new.insert(new);
    }
    let mut groups = groups.into_iter().peekable();
    let (mut bytes, mut found): (Vec<u8>, Vec<Fetched>) = (Vec::new(), Vec::new());
    let (mut moves, mut waiting) = (Vec::new(), 0);
    while groups.peek().is_some() {
        let group: Vec<(u32, Group<'_>)> = groups.by_ref().take(TOGETHER).collect();
        let names: Vec<BucketName> = group.iter().map(|(from, _)| bucket_name(&root.id, *from)).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|name| bucket_key(key.space, name)).collect();
        bytes.clear();
        found.clear();
        if root.before > 0 {
            store.beneath(&keys, &mut bytes, &mut found);
        }
        for (n, (from, group)) in group.iter().enumerate() {
            let before = match found.get(n) {
                None => None,
                Some(Err(error)) => return Err(error.clone()),
                Some(Ok(None)) => return Err(lost()),
                Some(Ok(Some((version, range)))) => Some((*version, Bucket::parse(&bytes[range.clone()])?)),
            };
            if before.is_some_and(|(_, bucket)| bucket.batch >= root.batch) {
                // Somebody has done it; those that are new came first.
                continue;
            }
            let mut step = Move::default();
            for (at, value) in group.divide(key, root, *from, before.map(|(_, bucket)| bucket.fields)) {
                waiting += value.len();
                match before {
                    Some((version, _)) if at == *from => {
                        step.old.push((at, value, Condition::Moving(Some(version))));
                    }
                    _ => step.new.push((at, value, Condition::Moving(None))),
                }
            }
            moves.push(step);
        }
        // Each of these is a wait for the medium: as many buckets as may be share it.
        if waiting >= BYTES || groups.peek().is_none() {
            if !write_all(store, key.space, &root.id, &moves)? {
                return Ok(false);
            }
            moves.clear();
            waiting = 0;
        }
    }
    Ok(true)
}

type Written = (u32, Vec<u8>, Condition);

/// Buckets that are written: those that are new before the one that their fields come from.
#[derive(Default)]
struct Move {
    new: Vec<Written>,
    old: Vec<Written>,
}

/// Writes buckets; whether all are as they are to be.
fn write_all<S: Store + ?Sized>(
    store: &mut S,
    space: u8,
    id: &Id,
    moves: &[Move],
) -> Result<bool, StoreError> {
    let new: Vec<&Written> = moves.iter().flat_map(|step| &step.new).collect();
    let old: Vec<&Written> = moves.iter().flat_map(|step| &step.old).collect();
    match write(store, space, id, &new).and_then(|_| write(store, space, id, &old)) {
        Err(StoreError::Full) => {}
        written => return written,
    }
    // Where there is no room for all of them beside what they replace there may be some for one after the other: those first by which others
    // become shorter.
    let mut all = true;
    let (dividing, others): (Vec<&Move>, Vec<&Move>) = moves.iter().partition(|step| !step.new.is_empty());
    for step in dividing.into_iter().chain(others) {
        write(store, space, id, &step.new.iter().collect::<Vec<_>>())?;
        all &= write(store, space, id, &step.old.iter().collect::<Vec<_>>())?;
    }
    Ok(all)
}

/// What a batch does to a bucket.
#[derive(Default)]
struct Group<'a> {
    changes: Vec<(&'a [u8], Option<&'a [u8]>)>,
    /// Buckets that take their fields from it.
    new: BTreeSet<u32>,
}

impl Group<'_> {
    /// What the bucket and those that are new are to have.
    fn divide(
        &self,
        key: Key<'_>,
        root: &Root<'_>,
        from: u32,
        had: Option<Fields<'_>>,
    ) -> BTreeMap<u32, Vec<u8>> {
        let changes: BTreeMap<&[u8], Option<&[u8]>> = self.changes.iter().copied().collect();
        let empty = || Bucket::begin(root.batch, key.name);
        let mut buckets: BTreeMap<u32, Vec<u8>> = self.new.iter().map(|at| (*at, empty())).collect();
        buckets.entry(from).or_insert_with(empty);
        let kept = had.into_iter().flatten().filter(|(name, _)| !changes.contains_key(name));
        let set = self.changes.iter().filter_map(|(name, value)| value.map(|value| (*name, value)));
        for (name, value) in kept.chain(set) {
            // One that a rotten value shows elsewhere is kept where it is.
            let bucket = match buckets.get_mut(&root.place(name)) {
                Some(bucket) => bucket,
                None => buckets.entry(from).or_insert_with(empty),
            };
            put(name, bucket);
            put(value, bucket);
        }
        buckets
    }
}

/// Writes buckets; whether all are as they are to be. One that is new and there already was written by somebody who does the same.
fn write<S: Store + ?Sized>(
    store: &mut S,
    space: u8,
    id: &Id,
    buckets: &[&Written],
) -> Result<bool, StoreError> {
    let mut all = true;
    let mut rest = buckets;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, value, _): &&&Written| {
            bytes += value.len();
            bytes <= BYTES
        };
        let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        rest = later;
        let names: Vec<BucketName> = now.iter().map(|(at, ..)| bucket_name(id, *at)).collect();
        let changes: Vec<Change<'_>> = names
            .iter()
            .zip(now)
            .map(|(name, (_, value, condition))| Change {
                key: bucket_key(space, name),
                value: Some(value),
                condition: *condition,
            })
            .collect();
        let mut done = Vec::new();
        store.change_many(&changes, &mut done);
        for (done, change) in done.into_iter().zip(&changes) {
            all &= done? || change.condition == Condition::Moving(None);
        }
    }
    Ok(all)
}
