//! The sequence of inserted records, which threads of a run share.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers handed out, and the last one up to which all have been acknowledged: what may be read.
///
/// A record may be asked for once every record before it is there, and not before its own insert has been answered:
/// without this, readers of `latest` would ask for records that are still under way.
#[derive(Debug)]
pub struct Acknowledged {
    next: AtomicU64,
    /// One more than the last of the unbroken run of acknowledged numbers.
    limit: AtomicU64,
    early: Mutex<BTreeSet<u64>>,
}

impl Acknowledged {
    /// Counts from `start`; everything before it is there.
    #[must_use]
    pub const fn new(start: u64) -> Self {
        Self { next: AtomicU64::new(start), limit: AtomicU64::new(start), early: Mutex::new(BTreeSet::new()) }
    }

    /// A fresh number, which must be given to [`Self::acknowledge`] later, whether its insert succeeded or not.
    pub fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The number's insert has been answered.
    pub fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        early.insert(number);
        let mut limit = self.limit.load(Ordering::Relaxed);
        while early.remove(&limit) {
            limit += 1;
        }
        // Release: who sees the limit sees what the store's handle of this thread has done before.
        self.limit.store(limit, Ordering::Release);
    }

    /// How many records from 0 may be asked for: the last one is this less one.
    pub fn count(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::Acknowledged;

    #[test]
    fn a_record_may_be_read_once_all_before_it_are_there() {
        let inserts = Acknowledged::new(100);
        assert_eq!(inserts.count(), 100);
        assert_eq!([inserts.next(), inserts.next(), inserts.next()], [100, 101, 102]);
        inserts.acknowledge(101);
        assert_eq!(inserts.count(), 100, "100 is under way");
        inserts.acknowledge(100);
        assert_eq!(inserts.count(), 102);
        inserts.acknowledge(102);
        assert_eq!(inserts.count(), 103);
    }
}
