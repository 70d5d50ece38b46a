//! Reads buckets of one state of a hash.

use super::{Bucket, BucketName, Root, bucket_key, bucket_name, source};
use crate::store::{Fetched, Key, Store, StoreError};
use crate::value::Fields;

/// Buckets that are read at once.
const TOGETHER: usize = 32;

/// Why the buckets of a hash could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Missed {
    /// Somebody was just at it.
    Under,
    /// One is of a batch that the key's value does not know.
    Newer,
    /// One is not there.
    Lost,
    Store(StoreError),
}

impl From<StoreError> for Missed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Shows `each` the fields of buckets, by the numbers that they have once the batch is done. Other fields may be among them, and what the
/// changes hide. With `newer`, a bucket that is newer than the key's value is taken as it is.
pub(crate) fn buckets<S: Store>(
    store: &mut S,
    space: u8,
    root: &Root<'_>,
    wanted: &[u32],
    newer: bool,
    each: &mut dyn FnMut(u32, Fields<'_>),
) -> Result<(), Missed> {
    if root.before == 0 {
        // All that there is, is in the batch.
        return Ok(());
    }
    let (mut bytes, mut found): (Vec<u8>, Vec<Fetched>) = (Vec::new(), Vec::new());
    for wanted in wanted.chunks(TOGETHER) {
        // A bucket, and where its fields are as long as the batch is not in it.
        let both = |place: &u32| [*place, if root.sealing() { source(*place, root.before) } else { *place }];
        let names: Vec<BucketName> =
            wanted.iter().flat_map(both).map(|place| bucket_name(&root.id, place)).collect();
        let mut keys: Vec<Key<'_>> = names.iter().map(|name| bucket_key(space, name)).collect();
        keys.dedup();
        bytes.clear();
        found.clear();
        store.beneath(&keys, &mut bytes, &mut found);
        let mut next = found.drain(..);
        let mut take = || -> Result<Option<Bucket<'_>>, Missed> {
            match next.next().expect("an answer for each")? {
                None => Ok(None),
                Some((_, range)) => {
                    let bucket = Bucket::parse(&bytes[range])?;
                    if bucket.batch > root.batch && !newer { Err(Missed::Newer) } else { Ok(Some(bucket)) }
                }
            }
        };
        let mut last: Option<(u32, Option<Bucket<'_>>)> = None;
        for place in wanted {
            // What follows itself was asked for once.
            let mut one = |place: u32| match last {
                Some((before, bucket)) if before == place => Ok(bucket),
                _ => {
                    let bucket = take()?;
                    last = Some((place, bucket));
                    Ok::<_, Missed>(bucket)
                }
            };
            let own = one(*place)?;
            let from = source(*place, root.before);
            let old = if root.sealing() && from != *place { one(from)? } else { own };
            let bucket = match own {
                Some(own) => own,
                None if *place < root.before || !root.sealing() => return Err(Missed::Lost),
                // Written between the two looks: those that are new come first.
                None => match old {
                    Some(old) if old.batch < root.batch => old,
                    Some(_) => return Err(Missed::Under),
                    None => return Err(Missed::Lost),
                },
            };
            each(*place, bucket.fields);
        }
    }
    Ok(())
}
