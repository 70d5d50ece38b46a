//! Memory that a crash may cut short, as recovery code sees it.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::region::Region;

/// Bytes with the three verbs of persistence. [`Region`](crate::Region) is one, and so is
/// [`CrashImage`](crate::crash_image::CrashImage), so code written against this trait can be crashed at every step.
///
/// Offsets are bytes from the start. A range that does not lie inside is a broken promise of the caller, and panics.
/// All methods take `&self`: several parts of one program hold the same medium.
pub trait Medium {
    /// Bytes in it.
    fn len(&self) -> u64;

    /// Whether it holds no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out. This does not fail: of what the medium has lost zeros are read, as an access to mapped memory has no other way
    /// to say so, and bytes may lie there that no recovery would find. Whoever acts upon what was read without making anything durable
    /// behind it asks for the [`failure`](Self::failure) first.
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies bytes in, in ascending order: visible when it returns, not durable. A crash may leave any part of
    /// them, except that 1, 2, 4 or 8 bytes at a multiple of their length are never torn.
    fn write(&self, offset: u64, bytes: &[u8]);

    /// As [`write`](Self::write) followed by [`pwb`](Self::pwb), and cheaper for more than a few lines.
    fn write_nt(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes);
        self.pwb(offset..offset + bytes.len() as u64);
    }

    /// As [`write`](Self::write), of `len` bytes that lie in a region.
    fn write_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        in_pieces(from, at, len, |done, piece| self.write(offset + done, piece));
    }

    /// As [`write_nt`](Self::write_nt), of `len` bytes that lie in a region.
    fn write_nt_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        in_pieces(from, at, len, |done, piece| self.write_nt(offset + done, piece));
    }

    /// Loads the native-endian word at a multiple of 8 (acquire).
    fn load_u64(&self, offset: u64) -> u64;

    /// Stores the native-endian word at a multiple of 8 (release), never torn. Visible, not durable.
    fn store_u64(&self, offset: u64, value: u64);

    /// Atomically replaces the word at a multiple of 8 by `swap` if it equals `compare`; returns what was there.
    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64;

    /// Atomically adds to the word at a multiple of 8, wrapping; returns what was there.
    fn fetch_add(&self, offset: u64, add: u64) -> u64;

    /// Persistent write-back: asks that these bytes go to the persistence domain. Does not wait.
    fn pwb(&self, range: Range<u64>);

    /// Persistent fence: no later store reaches the domain before every earlier write-back has.
    ///
    /// # Errors
    /// The medium failed; see [`psync`](Self::psync). (Where the only order is to wait, this waits.)
    fn pfence(&self) -> io::Result<()>;

    /// Persistent sync: waits until every earlier write-back is in the persistence domain.
    ///
    /// # Errors
    /// The medium failed: what was not durable before may never be. Every later call fails as well.
    fn psync(&self) -> io::Result<()>;

    /// Whether the medium stands: nothing that was read until now was lost, and no psync has failed.
    ///
    /// # Errors
    /// The medium failed.
    fn failure(&self) -> io::Result<()> {
        Ok(())
    }

    /// Stands for everything that was written back until now, by any thread: when [`is_covered`](Self::is_covered) says so, a
    /// psync of somebody's has made it durable, and nobody need wait for another one. `None` where syncs are not counted: they
    /// cost less than to share them.
    fn ticket(&self) -> Option<Ticket> {
        None
    }

    /// Whether everything that a ticket of this medium stands for is in the persistence domain.
    fn is_covered(&self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// [`pwb`](Self::pwb) and [`psync`](Self::psync), for one-off use.
    ///
    /// # Errors
    /// As for [`psync`](Self::psync).
    fn persist(&self, range: Range<u64>) -> io::Result<()> {
        self.pwb(range);
        self.psync()
    }
}

/// What was written back by some moment: [`Medium::ticket`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// The psyncs of a medium, counted.
#[derive(Debug, Default)]
pub(crate) struct Psyncs {
    /// They are numbered from 1 as they begin.
    begun: AtomicU64,
    /// The highest number of those that succeeded.
    done: AtomicU64,
}

impl Psyncs {
    /// Carries one out.
    pub(crate) fn run(&self, psync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        // Before it looks at what is pending: whoever wrote back and then saw a lower number is served by it.
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        psync()?;
        self.done.fetch_max(number, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.begun.load(Ordering::SeqCst))
    }

    /// One that began after the ticket was taken has succeeded.
    pub(crate) fn cover(&self, ticket: Ticket) -> bool {
        self.done.load(Ordering::SeqCst) > ticket.0
    }
}

/// Hands bytes of a region on through a buffer, for media that cannot be copied to from there.
fn in_pieces(from: &Region, at: u64, len: u64, mut write: impl FnMut(u64, &[u8])) {
    let mut buffer = [0; 4096];
    let mut done = 0;
    while done < len {
        let piece = &mut buffer[..(len - done).min(4096) as usize];
        from.read(at + done, piece);
        write(done, piece);
        done += piece.len() as u64;
    }
}

macro_rules! forward {
    ($holder:ty) => {
        impl<M: Medium + ?Sized> Medium for $holder {
            fn len(&self) -> u64 {
                (**self).len()
            }
            fn read(&self, offset: u64, into: &mut [u8]) {
                (**self).read(offset, into);
            }
            fn write(&self, offset: u64, bytes: &[u8]) {
                (**self).write(offset, bytes);
            }
            fn write_nt(&self, offset: u64, bytes: &[u8]) {
                (**self).write_nt(offset, bytes);
            }
            fn write_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
                (**self).write_from(offset, from, at, len);
            }
            fn write_nt_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
                (**self).write_nt_from(offset, from, at, len);
            }
            fn load_u64(&self, offset: u64) -> u64 {
                (**self).load_u64(offset)
            }
            fn store_u64(&self, offset: u64, value: u64) {
                (**self).store_u64(offset, value);
            }
            fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
                (**self).compare_and_swap(offset, compare, swap)
            }
            fn fetch_add(&self, offset: u64, add: u64) -> u64 {
                (**self).fetch_add(offset, add)
            }
            fn pwb(&self, range: Range<u64>) {
                (**self).pwb(range);
            }
            fn pfence(&self) -> io::Result<()> {
                (**self).pfence()
            }
            fn psync(&self) -> io::Result<()> {
                (**self).psync()
            }
            fn failure(&self) -> io::Result<()> {
                (**self).failure()
            }
            fn ticket(&self) -> Option<Ticket> {
                (**self).ticket()
            }
            fn is_covered(&self, ticket: Ticket) -> bool {
                (**self).is_covered(ticket)
            }
        }
    };
}

forward!(&M);
forward!(Arc<M>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_covered_by_a_psync_that_began_after_it_and_succeeded() {
        let psyncs = Psyncs::default();
        let before = psyncs.ticket();
        assert!(!psyncs.cover(before));
        let mut during = None;
        psyncs
            .run(|| {
                during = Some(psyncs.ticket());
                assert!(!psyncs.cover(before), "it is not over");
                Ok(())
            })
            .unwrap();
        let during = during.unwrap();
        assert!(psyncs.cover(before) && !psyncs.cover(during));
        psyncs.run(|| Err(io::Error::other("the medium failed"))).unwrap_err();
        assert!(!psyncs.cover(during));
        // Who began first may end last.
        let mut between = None;
        psyncs
            .run(|| {
                between = Some(psyncs.ticket());
                psyncs.run(|| Ok(()))
            })
            .unwrap();
        assert!(psyncs.cover(during) && psyncs.cover(between.unwrap()));
        assert!(!psyncs.cover(psyncs.ticket()));
    }
}
