//! The log's medium as a program has it: a mapping.
//!
//! A [`Region`] of its own process waits for locks when it syncs, which a forked child would find taken for ever. Here a sync is one system call
//! on the mapping, whoever else makes one. The first that fails is the last: each one that uses the log is told by the segment.
//!
//! **A store can fail too**, where the disk beneath a mapping takes nothing any more, and the kernel then ends the program. So the pages are asked for first, which is a call that
//! can say no; from then on stores go nowhere, and nobody is told that they are durable.
//!
//! **A sync is one write and one flush**: what was appended since the last one lies in one place ([`format`](remanence_cache::format)), and its blocks are those that the log had when it was made. On ext4 without
//! a journal `msync` writes the file's inode as well and waits for that, as its time is new with each change; so there the two are asked for by themselves, where the daemon has found that nothing else is needed ([`Short`]).

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use remanence_pmem::{Medium, PersistenceDomain, Region};

use crate::segment::Segment;
use crate::sys::{self, Errno};

/// The short way of a sync: the pages of the log are written, and then its device's cache, by a sync of a file in which nothing ever is to be written, the root of the file system.
///
/// It takes two descriptors, which have numbers that a program does not come to by itself, and on which nothing rests: who closes them, or puts something else in their place, has syncs of the mapping from then on. What
/// they are is asked before the two calls, so that these are made on no file of the program's, and behind them. Nobody but us ever makes a descriptor of the log here, so one that is it was it all the time; and what is written to another
/// file that came between is what its program has put there.
#[derive(Debug)]
pub(crate) struct Short {
    /// The log's, and the root's; of each, which file it is.
    fds: [(i32, (u64, u64)); 2],
    is_gone: AtomicBool,
}

impl Short {
    /// With descriptors that came from the daemon, which stay the caller's. A log that is joined again has those that it had.
    pub(crate) fn of(fds: [i32; 2]) -> Option<Self> {
        static LAST: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
        let is = fds.map(sys::which);
        let (log, root) = (is[0]?, is[1]?);
        let mut own = LAST.each_ref().map(|fd| fd.load(Ordering::SeqCst));
        if own.map(sys::which) != is {
            own = match fds.map(sys::out_of_the_way) {
                [Some(log), Some(root)] => [log, root],
                [one, other] => {
                    one.into_iter().chain(other).for_each(sys::close);
                    return None;
                }
            };
            LAST.iter().zip(own).for_each(|(last, fd)| last.store(fd, Ordering::SeqCst));
        }
        Some(Self { fds: [(own[0], log), (own[1], root)], is_gone: AtomicBool::new(false) })
    }

    fn is_there(&self) -> bool {
        !self.is_gone.load(Ordering::SeqCst) && self.fds.iter().all(|(fd, is)| sys::which(*fd) == Some(*is))
    }

    /// Makes durable what was stored in the mapping. `None`: it was not done, and is not to be tried again.
    fn sync(&self) -> Option<Result<(), Errno>> {
        const REFUSED: [Errno; 5] = [libc::EBADF, libc::EINVAL, libc::ESPIPE, libc::ENOSYS, libc::EPERM];
        let [(log, _), (root, _)] = self.fds;
        if self.is_there() {
            let done = sys::write_pages(log).and_then(|()| sys::sync_data(root));
            // The kernel tells an error of a disk once, whoever asks by that descriptor or the mapping.
            let is_told = done.is_err_and(|errno| !REFUSED.contains(&errno));
            if is_told || done.is_ok() && self.is_there() {
                return Some(done);
            }
        }
        self.is_gone.store(true, Ordering::SeqCst);
        None
    }
}

/// A log that is mapped.
#[derive(Debug)]
pub(crate) struct LogMedium {
    /// Its bytes; of a page cache as if it were no medium, as the sync is here.
    region: Region,
    cached: bool,
    segment: Segment,
    /// The page that was asked for last.
    last: AtomicU64,
    short: Option<Short>,
}

impl LogMedium {
    /// Over memory that was mapped for as long as the process lives, and whose data lives in that domain.
    pub(crate) fn new(
        region: Region,
        domain: PersistenceDomain,
        segment: Segment,
        short: Option<Short>,
    ) -> Self {
        let cached = domain == PersistenceDomain::PageCache;
        Self { region, cached, segment, last: AtomicU64::new(0), short: short.filter(|_| cached) }
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
        let synced = self.short.as_ref().and_then(Short::sync);
        let synced = synced.unwrap_or_else(|| sys::msync(self.region.base() as u64, self.region.len()));
        synced.map_err(|errno| {
            self.segment.fail();
            io::Error::from_raw_os_error(errno)
        })
    }

    fn failure(&self) -> io::Result<()> {
        if self.segment.has_failed() { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::{AsRawFd as _, OwnedFd};

    use super::*;

    #[test]
    fn a_descriptor_that_is_another_files_by_now_is_gone_by_no_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let make = |name: &str| {
            let path = directory.path().join(name);
            fs::write(&path, name)
                .and_then(|()| File::options().read(true).write(true).open(path))
                .expect("room")
        };
        let [log, root, other] = ["log", "root", "other"].map(make);
        let of = || Short::of([&log, &root].map(|file| file.as_raw_fd())).expect("there are more numbers");
        // Whoever has the number has what is given to it.
        let becomes = |(number, _): (i32, (u64, u64)), file: &File| -> OwnedFd {
            sys::close(number);
            let fd = rustix::io::fcntl_dupfd_cloexec(file, number).expect("it is free");
            assert_eq!(fd.as_raw_fd(), number);
            fd
        };
        for which in 0..2 {
            let short = of();
            assert!(short.fds.iter().all(|(fd, _)| *fd > 100), "{short:?}");
            assert_eq!(of().fds, short.fds, "who joins again has them already");
            assert_eq!(short.sync(), Some(Ok(())));
            let theirs = becomes(short.fds[which], &other);
            assert_eq!(short.sync(), None);
            assert_ne!(of().fds, short.fds, "it is theirs");
            drop(theirs);
            let again = becomes(short.fds[which], [&log, &root][which]);
            assert_eq!(short.sync(), None, "what was in between is not known");
            drop(again);
        }
        let short = of();
        sys::close(short.fds[1].0);
        assert_eq!(short.sync(), None);
        assert_eq!(fs::read(directory.path().join("other")).expect("it is there"), b"other");
    }
}
