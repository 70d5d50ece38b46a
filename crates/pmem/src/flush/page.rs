//! The page cache: durable by msync and fdatasync, in pages.
//!
//! `pwb` notes pages, `psync` has the kernel write them and flush the device. `sync_file_range` is not used: it
//! leaves the file's metadata and the device's cache alone, and so makes nothing durable.
//!
//! One psync runs at a time. Who comes meanwhile waits for it (its pages may be among those under way) and then
//! has the rest written, for itself and for all others who wait: flushes of many threads share one device flush.
//!
//! A failed write-back is final. The kernel reports it once and marks the pages clean, so a second fdatasync would
//! succeed without having written them: after a failure every psync of the region fails.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// More ranges than this are written by one fdatasync of the whole file: each msync costs a device flush, of which
/// one suffices (measured: three msyncs 490 us, one fdatasync of sixteen pages 300 us; two pages of a store's PUT 840 us
/// by two and 580 us by one), while fdatasync also writes pages that nobody asked for yet.
const MSYNC_RANGES_MAX: usize = 1;

/// More ranges than this are merged into one.
const PENDING_MAX: usize = 64;

/// The pages of one region that wait for psync.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pending: Mutex<Vec<Range<u64>>>,
    /// Held while the kernel writes; says whether it ever failed.
    syncing: Mutex<Option<Failure>>,
}

/// A write-back error, kept to be told again.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: io::ErrorKind,
    text: String,
}

impl Failure {
    pub(crate) fn of(e: &io::Error) -> Self {
        Self { kind: e.kind(), text: e.to_string() }
    }

    pub(crate) fn to_error(&self) -> io::Error {
        io::Error::new(self.kind, format!("an earlier psync failed and its data is lost: {}", self.text))
    }
}

/// What to have written: some byte ranges, page aligned, or everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Ranges(Vec<Range<u64>>),
    Everything,
}

impl Pages {
    /// Notes the pages that hold a byte of the range.
    pub(crate) fn pwb(&self, range: Range<u64>, page: u64) {
        if range.is_empty() {
            return;
        }
        let range = range.start & !(page - 1)..(range.end - 1) / page * page + page;
        insert(&mut lock(&self.pending), range);
    }

    /// Has `sync` write what is pending, once nobody else's psync is under way.
    pub(crate) fn psync(&self, sync: impl FnOnce(Work) -> io::Result<()>) -> io::Result<()> {
        let mut failed = lock(&self.syncing);
        if let Some(failure) = failed.as_ref() {
            return Err(failure.to_error());
        }
        let ranges = std::mem::take(&mut *lock(&self.pending));
        if ranges.is_empty() {
            return Ok(());
        }
        let work = if ranges.len() > MSYNC_RANGES_MAX { Work::Everything } else { Work::Ranges(ranges) };
        sync(work).inspect_err(|e| *failed = Some(Failure::of(e)))
    }
}

/// A panic while a lock was held left no half-made state: both hold plain values that are replaced whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the ranges sorted and apart.
fn insert(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    let first = ranges.partition_point(|r| r.end < new.start);
    let end = ranges.partition_point(|r| r.start <= new.end);
    if first < end {
        new = new.start.min(ranges[first].start)..new.end.max(ranges[end - 1].end);
    }
    ranges.splice(first..end, [new]);
    if ranges.len() > PENDING_MAX {
        let whole = ranges[0].start..ranges[ranges.len() - 1].end;
        ranges.splice(.., [whole]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pages: &Pages) -> Vec<Range<u64>> {
        lock(&pages.pending).clone()
    }

    #[test]
    fn pages_are_noted_whole_and_merged() {
        let pages = Pages::default();
        pages.pwb(5000..5000, 4096);
        assert_eq!(ranges(&pages), []);
        pages.pwb(4095..4097, 4096);
        pages.pwb(60000..60001, 4096);
        assert_eq!(ranges(&pages), [0..8192, 57344..61440], "every page that a range touches");
        pages.pwb(20000..20001, 4096);
        pages.pwb(40960..45056, 4096);
        assert_eq!(ranges(&pages), [0..8192, 16384..20480, 40960..45056, 57344..61440]);
        pages.pwb(8192..16384, 4096);
        assert_eq!(ranges(&pages), [0..20480, 40960..45056, 57344..61440], "neighbours become one");
    }

    #[test]
    fn a_failure_is_final() {
        let pages = Pages::default();
        pages.pwb(0..1, 4096);
        let first = pages.psync(|_| Err(io::Error::from(io::ErrorKind::StorageFull)));
        assert_eq!(first.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let second = pages.psync(|_| unreachable!("the kernel would say yes now")).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::StorageFull);
        assert!(second.to_string().contains("data is lost"), "{second}");
    }

    #[test]
    fn one_range_is_written_alone_and_several_at_once() {
        let pages = Pages::default();
        let note = |n: u64| (0..n).for_each(|i| pages.pwb(i * 16384..i * 16384 + 1, 4096));
        note(1);
        pages
            .psync(|work| {
                assert!(matches!(work, Work::Ranges(ranges) if ranges.len() == 1));
                Ok(())
            })
            .unwrap();
        note(2);
        pages
            .psync(|work| {
                assert_eq!(work, Work::Everything);
                Ok(())
            })
            .unwrap();
        pages.psync(|_| unreachable!("nothing is pending")).unwrap();
    }

    #[test]
    fn random_ranges_cover_what_was_asked() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut list, mut wanted) = (Vec::new(), vec![false; 256]);
            for _ in 0..40 {
                let start = next(250);
                let end = start + 1 + next(5);
                wanted[start as usize..end as usize].fill(true);
                insert(&mut list, start..end);
            }
            assert!(list.windows(2).all(|w| w[0].end < w[1].start), "{list:?}");
            let mut covered = vec![false; 256];
            list.iter().for_each(|r| covered[r.start as usize..r.end as usize].fill(true));
            assert_eq!(covered, wanted);
        }
    }
}
