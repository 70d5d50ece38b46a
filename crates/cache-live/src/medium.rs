//! The log's medium as a program has it: a mapping, and no descriptor.
//!
//! A [`Region`] of its own process waits for locks when it syncs, which a forked child would find taken for ever. Here a sync is one system call
//! on the mapping, whoever else makes one. The first that fails is the last: each one that uses the log is told by the segment.
//!
//! **A store can fail too**, where the disk beneath a mapping takes nothing any more, and the kernel then ends the program. So the pages are asked for first, which is a call that
//! can say no; from then on stores go nowhere, and nobody is told that they are durable.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use remanence_pmem::{Medium, PersistenceDomain, Region};

use crate::segment::Segment;
use crate::sys;

/// A log that is mapped.
#[derive(Debug)]
pub(crate) struct LogMedium {
    /// Its bytes; of a page cache as if it were no medium, as the sync is here.
    region: Region,
    cached: bool,
    segment: Segment,
    /// The page that was asked for last.
    last: AtomicU64,
}

impl LogMedium {
    /// Over memory that was mapped for as long as the process lives, and whose data lives in that domain.
    pub(crate) fn new(region: Region, domain: PersistenceDomain, segment: Segment) -> Self {
        Self { region, cached: domain == PersistenceDomain::PageCache, segment, last: AtomicU64::new(0) }
    }

    /// What the region of such a medium is declared to be.
    pub(crate) const fn declared(domain: PersistenceDomain) -> PersistenceDomain {
        match domain {
            PersistenceDomain::PageCache => PersistenceDomain::Process,
            other => other,
        }
    }
}

impl LogMedium {
    /// Whether the disk beneath takes what is stored there.
    fn takes(&self, offset: u64, len: u64) -> bool {
        const PAGE: u64 = 4096;
        if !self.cached {
            return true;
        }
        if self.segment.has_failed() {
            return false;
        }
        let at = self.region.base() as u64 + offset;
        let (from, to) = (at - at % PAGE, (at + len).next_multiple_of(PAGE));
        if to - from == PAGE && self.last.swap(from, Ordering::Relaxed) == from {
            // A moment ago, for another part of the same header.
            return true;
        }
        match sys::populate(from, to - from) {
            // The kernel is older than 5.14.
            Ok(()) | Err(libc::EINVAL) => true,
            Err(_) => {
                self.segment.fail();
                false
            }
        }
    }
}

impl Medium for LogMedium {
    fn len(&self) -> u64 {
        self.region.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.region.read(offset, into);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        /// As long as this are only the data of entries, each on a page that this process may not have seen yet.
        const LONG: usize = 1024;
        if !self.cached && bytes.len() >= LONG {
            // A page of memory that is read first comes with those behind it, by one fault of all of them; one that is written first comes alone.
            self.region.read(offset, &mut [0]);
        }
        if self.takes(offset, bytes.len() as u64) {
            self.region.write(offset, bytes);
        }
    }

    fn load_u64(&self, offset: u64) -> u64 {
        Medium::load_u64(&self.region, offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        if self.takes(offset, 8) {
            Medium::store_u64(&self.region, offset, value);
        }
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        // What comes first of an entry.
        self.last.store(0, Ordering::Relaxed);
        if self.takes(offset, 8) {
            Medium::compare_and_swap(&self.region, offset, compare, swap)
        } else {
            // As if it were done: nobody tries for ever, and nothing of it is believed.
            compare
        }
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        if self.takes(offset, 8) { Medium::fetch_add(&self.region, offset, add) } else { 0 }
    }

    fn pwb(&self, range: Range<u64>) {
        if !self.cached {
            Medium::pwb(&self.region, range);
        }
    }

    fn pfence(&self) -> io::Result<()> {
        if self.cached { self.psync() } else { Medium::pfence(&self.region) }
    }

    fn psync(&self) -> io::Result<()> {
        self.failure()?;
        if !self.cached {
            return Medium::psync(&self.region);
        }
        sys::msync(self.region.base() as u64, self.region.len()).map_err(|errno| {
            self.segment.fail();
            io::Error::from_raw_os_error(errno)
        })
    }

    fn failure(&self) -> io::Result<()> {
        if self.segment.has_failed() { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }
}
