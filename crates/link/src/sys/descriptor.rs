//! Descriptors that a forked child can give back.
//!
//! A child that forks without executing inherits every descriptor of its parent, and with them the shared port, the
//! seat at it, and the queues of sockets: it would keep the port from others after its parent has ended, and take
//! datagrams that nobody reads. It cannot just drop what it inherited either: a thread of the parent may have been in
//! the middle of changing it, and held its lock. So all descriptors of ours stand in a table of plain atomics, from
//! which [`abandon_inherited`] closes those of the parent without looking at what they belonged to.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The process that opened a descriptor, and its number plus one; 0 where there is none.
static TABLE: [AtomicU64; 16_384] = [const { AtomicU64::new(0) }; 16_384];

/// Where to look for a free place first.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Counts the forks after which something was abandoned, in this process and those before it.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Not in the table, as it was full. Such a descriptor is closed when it is dropped.
const NOWHERE: usize = usize::MAX;

/// A descriptor of ours. Closed when dropped, unless [`abandon_inherited`] has closed it.
pub struct Descriptor {
    fd: Option<OwnedFd>,
    place: usize,
    entry: u64,
}

fn entry(fd: &OwnedFd) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(fd.as_raw_fd().cast_unsigned() + 1)
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        let entry = entry(&fd);
        let first = NEXT.load(Ordering::Relaxed);
        let place = (0..TABLE.len()).map(|i| (first + i) % TABLE.len()).find(|&place| {
            TABLE[place].compare_exchange(0, entry, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if let Some(place) = place {
            NEXT.store(place + 1, Ordering::Relaxed);
        }
        Self { fd: Some(fd), place: place.unwrap_or(NOWHERE), entry }
    }
}

impl Descriptor {
    /// It is open, and this process opened it.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_open() && self.entry >> 32 == u64::from(std::process::id())
    }

    /// It was not closed by [`abandon_inherited`].
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.place == NOWHERE || TABLE[self.place].load(Ordering::Acquire) == self.entry
    }
}

impl Deref for Descriptor {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        self.fd.as_ref().expect("taken by drop only")
    }
}

impl std::os::fd::AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&**self)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({})", self.as_raw_fd())
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let ours = self.place == NOWHERE
            || TABLE[self.place].compare_exchange(self.entry, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let fd = self.fd.take();
        if !ours {
            // Its number may be somebody else's by now.
            let _ = fd.map(IntoRawFd::into_raw_fd);
        }
    }
}

/// In a child that was forked: closes all descriptors of ours that it inherited, whatever state they and their owners
/// are in. It takes no lock and allocates nothing, so it may be called where only a signal handler's calls are
/// allowed: right after the fork, which is best, as objects made between the two are not to be used afterwards.
///
/// Elsewhere it does nothing.
pub fn abandon_inherited() {
    let mut inherited = false;
    let me = u64::from(std::process::id());
    for place in &TABLE {
        let entry = place.load(Ordering::Acquire);
        if entry == 0 || entry >> 32 == me {
            continue;
        }
        if place.compare_exchange(entry, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            inherited = true;
            // SAFETY: the entry says that this descriptor is of ours and still open; its owner will not use it any
            // more, as it finds its entry gone.
            unsafe { libc::close((entry as u32 - 1).cast_signed()) };
        }
    }
    if inherited {
        GENERATION.fetch_add(1, Ordering::AcqRel);
    }
}

/// A number that is another one after [`abandon_inherited`] closed something: whoever remembers it from earlier was
/// abandoned.
#[must_use]
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn null() -> Descriptor {
        OwnedFd::from(std::fs::File::open("/dev/null").expect("always there")).into()
    }

    #[test]
    fn a_descriptor_is_in_the_table_as_long_as_it_lives() {
        let (one, other) = (null(), null());
        assert!(one.is_open() && other.is_open() && one.place != other.place);
        let (place, entry) = (one.place, one.entry);
        assert_eq!(one.as_fd().as_raw_fd(), one.as_raw_fd());
        drop(one);
        assert_ne!(TABLE[place].load(Ordering::Relaxed), entry);
        assert!(other.is_open());
    }

    #[test]
    fn nothing_is_abandoned_by_the_process_that_opened_it() {
        let (kept, before) = (null(), generation());
        abandon_inherited();
        assert!(kept.is_open());
        assert_eq!(generation(), before);
        kept.try_clone().expect("still open");
    }

    /// As in a child: the entries name another process.
    #[test]
    fn what_another_process_opened_is_closed_once_and_only_once() {
        let mut inherited = null();
        inherited.entry += 1 << 32;
        TABLE[inherited.place].store(inherited.entry, Ordering::Release);
        let before = generation();
        abandon_inherited();
        assert!(!inherited.is_open());
        assert_ne!(generation(), before);
        // Dropping it must not close what has its number by now.
        let next = null();
        drop(inherited);
        next.try_clone().expect("still open");
    }
}
