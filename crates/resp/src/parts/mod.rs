//! Hashes in parts: one whose fields take more than [`Config::hash_whole`](crate::engine::Config) bytes does not lie in one value.
//!
//! ```text
//! the key's value   head; then id 16 B, batch u64, before u32, buckets u32, fields u64, bytes u64, length of the batch u64,
//!                   the changes of the batch, the changes since: each a field's name, and 1 and its value, or 0 if it went
//! a bucket          byte 4; batch u64, the key's name, the fields (as in a whole hash, see `value`)
//! ```
//! Integers are little-endian, names and values are bytes behind their length in LEB128.
//!
//! A bucket is a value of its own, by the hash's id and the bucket's number, in a [space](bucket_space) that no database has. A field lies in the
//! bucket that linear hashing gives it (Litwin, 1980): buckets are added one by one, and each takes its fields from one that was there. The
//! hash of a field's name is SipHash with the hash's id as its key, so that nobody can choose names that meet in one bucket.
//!
//! **A command changes the key's value and nothing else.** It adds the fields that it sets or removes to the changes, in one
//! conditional write. So every hash command is atomic, against other gateways and crashes too, and waits for the store with all others.
//! Changes hide what buckets have.
//!
//! **Changes are brought into the buckets by folding**, when there are many. They are *sealed* first: the key's value
//! says that they are batch *n*, and how many buckets there will be. Then each bucket that they concern is written with the
//! number of the batch, on the condition that it is still the one that was read: those that are new first, then those they take their fields
//! from. At last the batch is taken out of the key's value. What a bucket is to have follows from the batch and from what it had; so whoever
//! finds a sealed batch can finish it, any number can at once, and one who was held up for an hour spoils nothing. Each of these steps
//! is a wait for the medium. The command whose change is one too many seals with its own write, and the next one after the buckets takes the
//! batch out with its own; so all that is left is the wait for the buckets, one for a batch.
//!
//! **Who reads** takes the key's value, and then buckets. A bucket of that batch or an older one has what it had
//! when the key's value was read, but for what the changes hide; one of a newer batch says that the key's value is another by now, and
//! the reader begins again. So what is read of many buckets is one state of the hash.
//!
//! A hash that is deleted, or replaced, leaves its buckets behind. Whoever deletes it notes them, and they are deleted soon; what nobody
//! has noted, as it died before, a [sweep] finds in its time: it deletes buckets whose key has no such
//! id; an id is never used again, and stands in the key's value before the first bucket is written.

mod collect;
mod fold;
mod read;
mod sweep;

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::store::{Key, StoreError};
use crate::value::{Fields, Head, Kind, put, take};

pub use collect::{Collected, collect, has_part, id_in, is_in_parts, owner_of};
pub(crate) use fold::{Applied, Folded, fold};
pub(crate) use read::{Missed, buckets};
pub(crate) use sweep::Leaving;
pub use sweep::sweep;

/// Spaces of databases are below; those of their hashes' buckets are as far above.
pub const DATABASES_MAX: u16 = 128;

const BUCKET: u8 = 4;
const FIXED: usize = 56;
/// A bucket's fields take about one part in so many of what a whole hash may. Changes that are not folded take as much as that: to fold
/// them takes one to three waits for the medium, so it should not come with every wait of many clients.
const BUCKET_SHARE: u64 = 32;

/// A hash that has many buckets gets new ones when it wants for more than these.
const NEW_AT_ONCE: u32 = 64;

/// So many buckets a hash has at most, and fewer fields than these.
const BUCKETS_MAX: u32 = 1 << 30;
const FIELDS_MAX: u64 = 1 << 48;

/// Names a hash in parts; never used again.
pub(crate) type Id = [u8; 16];

/// Where the buckets of a database's hashes are.
pub(crate) const fn bucket_space(space: u8) -> u8 {
    space | DATABASES_MAX as u8
}

/// A bucket's name.
pub(crate) type BucketName = [u8; 20];

pub(crate) fn bucket_name(id: &Id, number: u32) -> BucketName {
    let mut name = [0; 20];
    name[..16].copy_from_slice(id);
    name[16..].copy_from_slice(&number.to_be_bytes());
    name
}

/// The key's value of a hash in parts, behind its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root<'a> {
    pub(crate) id: Id,
    /// The last batch that was sealed.
    pub(crate) batch: u64,
    /// Buckets before it.
    pub(crate) before: u32,
    /// Buckets when it is done.
    pub(crate) buckets: u32,
    /// Fields that there are.
    pub(crate) fields: u64,
    /// Bytes of their names and values.
    pub(crate) bytes: u64,
    /// The batch, until all of it is in the buckets.
    pub(crate) sealed: Changes<'a>,
    /// What was changed since, each name once.
    pub(crate) log: Changes<'a>,
}

impl<'a> Root<'a> {
    /// Reads what stands behind the head. Every length is checked here.
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, StoreError> {
        let (fixed, rest) = payload.split_at_checked(FIXED).ok_or(StoreError::Foreign)?;
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("four bytes"));
        let sealed = usize::try_from(u64_at(48)).map_err(|_| StoreError::Foreign)?;
        let (sealed, log) = rest.split_at_checked(sealed).ok_or(StoreError::Foreign)?;
        let root = Self {
            id: fixed[..16].try_into().expect("sixteen bytes"),
            batch: u64_at(16),
            before: u32_at(24),
            buckets: u32_at(28),
            fields: u64_at(32),
            bytes: u64_at(40),
            sealed: Changes::parse(sealed)?,
            log: Changes::parse(log)?,
        };
        // Who writes to the store beside us may write anything: no loop goes further than what is here allows.
        let new = root.buckets.checked_sub(root.before).ok_or(StoreError::Foreign)?;
        let fair = (1..=BUCKETS_MAX).contains(&root.buckets)
            && (new == 0 || new as usize <= root.sealed.count())
            && root.batch < u64::MAX
            && root.fields < FIELDS_MAX;
        if fair { Ok(root) } else { Err(StoreError::Foreign) }
    }

    /// Whether the last batch may not be in all buckets yet.
    pub(crate) const fn sealing(&self) -> bool {
        !self.sealed.rest.is_empty()
    }

    /// Appends it, but for the changes since.
    pub(crate) fn emit(&self, value: &mut Vec<u8>) {
        value.extend_from_slice(&self.front(self.sealed.rest.len()));
        value.extend_from_slice(self.sealed.rest);
    }

    /// What stands before a batch of so many bytes.
    fn front(&self, sealed: usize) -> [u8; FIXED] {
        let mut front = [0; FIXED];
        front[..16].copy_from_slice(&self.id);
        front[16..24].copy_from_slice(&self.batch.to_le_bytes());
        front[24..28].copy_from_slice(&self.before.to_le_bytes());
        front[28..32].copy_from_slice(&self.buckets.to_le_bytes());
        front[32..40].copy_from_slice(&self.fields.to_le_bytes());
        front[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        front[48..].copy_from_slice(&(sealed as u64).to_le_bytes());
        front
    }

    /// The same with these changes since, which become the next batch at once if they are many and no other is under way.
    pub(crate) fn emit_changed(&self, value: &mut Vec<u8>, whole: usize, changes: impl FnOnce(&mut Vec<u8>)) {
        let start = value.len();
        self.emit(value);
        let behind = value.len();
        changes(value);
        let log = value.len() - behind;
        if !self.sealing() && log > whole {
            let sealed = self.next_batch(Changes { rest: &value[behind..] }, whole).front(log);
            value[start..behind].copy_from_slice(&sealed);
        }
    }

    /// With the number of the batch that these changes are to be, and as many buckets as there are to be then.
    fn next_batch(&self, changes: Changes<'_>, whole: usize) -> Self {
        // One more for each change at most: a batch is no longer than what brings it about.
        let most = self.buckets.saturating_add(u32::try_from(changes.count()).unwrap_or(u32::MAX));
        let wanted = wanted(self.fields, self.bytes, whole);
        // New buckets take two waits more than those that are there: several come at a time, and meanwhile all are a little larger.
        let enough = self.buckets.saturating_add((self.buckets / 16).min(NEW_AT_ONCE));
        let buckets = if wanted > enough { self.buckets.max(wanted.min(most)) } else { self.buckets };
        Self { batch: self.batch + 1, buckets, ..*self }
    }

    /// Without its batch, if this is the one that is in all buckets.
    pub(crate) fn without(&self, applied: Applied) -> Option<Self> {
        let is = self.sealing() && applied == Applied { id: self.id, batch: self.batch };
        is.then_some(Self { before: self.buckets, sealed: Changes::default(), ..*self })
    }

    /// What the changes make of a field: nothing if they leave it as it is, `None` in it if it is gone. Notes in `logged` if it is one of
    /// those since the batch.
    pub(crate) fn changed(&self, name: &[u8], logged: &mut bool) -> Option<Option<&'a [u8]>> {
        let log = self.log.find(name);
        *logged |= log.is_some();
        log.or_else(|| self.sealed.find(name))
    }

    /// The bucket that a field is in once the batch is done.
    pub(crate) fn place(&self, name: &[u8]) -> u32 {
        place(hash(&self.id, name), self.buckets)
    }
}

/// Fields that were set or removed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Changes<'a> {
    rest: &'a [u8],
}

impl<'a> Changes<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, StoreError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            change(&mut rest).ok_or(StoreError::Foreign)?;
        }
        Ok(Self { rest: bytes })
    }

    /// Appends those that are not `replaced`.
    pub(crate) fn emit_others(self, replaced: impl Fn(&[u8]) -> bool, value: &mut Vec<u8>) {
        let (mut rest, mut kept) = (self.rest, self.rest);
        loop {
            let from = rest;
            let Some((name, _)) = change(&mut rest) else { break };
            if replaced(name) {
                value.extend_from_slice(&kept[..kept.len() - from.len()]);
                kept = rest;
            }
        }
        value.extend_from_slice(kept);
    }

    /// Appends all of them.
    pub(crate) fn emit(self, value: &mut Vec<u8>) {
        value.extend_from_slice(self.rest);
    }

    fn find(self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        let mut changes = self;
        changes.find_map(|(changed, value)| (changed == name).then_some(value))
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        change(&mut self.rest)
    }
}

fn change<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    let name = take(rest)?;
    let (&there, after) = rest.split_first()?;
    *rest = after;
    match there {
        0 => Some((name, None)),
        1 => Some((name, Some(take(rest)?))),
        _ => None,
    }
}

/// Appends a change.
pub(crate) fn put_change(name: &[u8], value: Option<&[u8]>, bytes: &mut Vec<u8>) {
    put(name, bytes);
    bytes.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(value, bytes);
    }
}

/// What lies in a bucket: fields, as of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket<'a> {
    /// The last batch that is in it.
    pub(crate) batch: u64,
    /// The name of the key.
    pub(crate) owner: &'a [u8],
    pub(crate) fields: Fields<'a>,
}

impl<'a> Bucket<'a> {
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, StoreError> {
        let rest = value.strip_prefix(&[BUCKET]).ok_or(StoreError::Foreign)?;
        let (batch, mut rest) = rest.split_first_chunk().ok_or(StoreError::Foreign)?;
        let owner = take(&mut rest).ok_or(StoreError::Foreign)?;
        Ok(Self { batch: u64::from_le_bytes(*batch), owner, fields: Fields::parse(rest)? })
    }

    /// The front of one; its fields are [put](crate::value::put) behind.
    fn begin(batch: u64, owner: &[u8]) -> Vec<u8> {
        let mut value = vec![BUCKET];
        value.extend_from_slice(&batch.to_le_bytes());
        put(owner, &mut value);
        value
    }
}

fn hash(id: &Id, name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(id);
    hasher.write(name);
    hasher.finish()
}

/// Of so many buckets, the one of a hash: by as many low bits as there are buckets for, or one less.
fn place(hash: u64, buckets: u32) -> u32 {
    let mask = u64::from(buckets).next_power_of_two() - 1;
    let place = hash & mask;
    (if place < u64::from(buckets) { place } else { hash & (mask >> 1) }) as u32
}

/// Where the fields of a bucket are while there are only so many.
fn source(mut place: u32, before: u32) -> u32 {
    while place >= before.max(1) {
        place &= !(1 << place.ilog2());
    }
    place
}

/// How many buckets so many fields in so many bytes are to have.
fn wanted(fields: u64, bytes: u64, whole: usize) -> u32 {
    let each = (whole as u64 / BUCKET_SHARE).max(1);
    (bytes / each + 1).min(fields).clamp(1, BUCKETS_MAX.into()) as u32
}

/// Bytes that a field adds to [`Root::bytes`].
pub(crate) const fn weight(name: usize, value: usize) -> u64 {
    name as u64 + value as u64
}

/// Whether the value of a hash is to be [folded](fold): it has become too large to be one, it has a batch, or many changes wait.
pub(crate) fn due(value: &[u8], whole: usize) -> bool {
    let Ok((head, start)) = Head::parse(value) else { return false };
    let payload = &value[start..];
    match head.kind {
        Kind::String => false,
        // One field gains nothing by a bucket of its own.
        Kind::Hash => {
            let mut rest = payload;
            payload.len() > whole
                && take(&mut rest).is_some()
                && take(&mut rest).is_some()
                && !rest.is_empty()
        }
        Kind::Parts => {
            let log = payload.len().saturating_sub(FIXED);
            let sealed = payload
                .get(48..FIXED)
                .map_or(0, |len| u64::from_le_bytes(len.try_into().expect("eight bytes")) as usize);
            sealed > 0 || log > whole
        }
    }
}

/// A value's head and what is behind it.
fn split(value: &[u8]) -> Result<(Head, &[u8]), StoreError> {
    let (head, start) = Head::parse(value)?;
    Ok((head, &value[start..]))
}

/// The key of a bucket.
pub(crate) const fn bucket_key(space: u8, name: &BucketName) -> Key<'_> {
    Key { space: bucket_space(space), name }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_field_moves_from_where_it_was_to_a_bucket_that_is_new(hash: u64, before in 1_u32..5000, more in 0_u32..5000) {
            let (old, new) = (place(hash, before), place(hash, before + more));
            prop_assert!(old < before && new < before + more);
            prop_assert_eq!(source(new, before), old);
            prop_assert!(new == old || new >= before);
        }

        #[test]
        fn any_bytes_are_a_root_and_a_bucket_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let root = |bytes: &[u8]| if let Ok(root) = Root::parse(bytes) {
                root.sealed.chain(root.log).count();
            };
            root(&bytes);
            // With a fair front, so that changes are reached.
            if bytes.len() > FIXED {
                bytes[24..32].copy_from_slice(&[1, 0, 0, 0, 1, 0, 0, 0]);
                let sealed = u64::from(bytes[48]) % 64;
                bytes[48..56].copy_from_slice(&sealed.to_le_bytes());
                root(&bytes);
            }
            bytes.insert(0, BUCKET);
            if let Ok(bucket) = Bucket::parse(&bytes) {
                bucket.fields.count();
            }
        }
    }

    #[test]
    fn buckets_have_their_share_and_a_field_at_least() {
        assert_eq!(wanted(0, 0, 1 << 14), 1);
        assert_eq!(wanted(100_000, 4_000_000, 1 << 14), 7813);
        assert_eq!(wanted(3, 3 << 20, 1 << 14), 3, "a field is not divided");
    }
}
