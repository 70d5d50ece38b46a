//! Memory of this library's own. The program's allocator is not touched: its lock may be held by the very thread that a hook runs in, or, in a
//! forked child, by one that is not there any more.
//!
//! *The promise of this room*: no lock. Small pieces come in sizes that are powers of two from chunks that are never given back; a free one is on a
//! list of its size, whose head is one word: an address, and a count above it that tells a head from one that has been there before. Large
//! ones are mappings.
#![expect(unsafe_code, reason = "an allocator")]

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use remanence_intercept::raw;

const PAGE: usize = 4096;
/// The smallest size.
const SMALL: usize = 16;
/// The largest that is not a mapping.
const LARGE: usize = 16 << SIZES >> 1;
/// How many sizes there are.
const SIZES: usize = 9;
/// Bytes of a chunk.
const CHUNK: usize = 256 << 10;
/// Bits of an address.
const ADDRESS: u64 = (1 << 48) - 1;

/// The allocator of this library.
pub(crate) struct Own {
    free: [AtomicU64; SIZES],
    /// Where the chunk's unused part begins. A chunk begins at a multiple of its size, and its end is a whole one's.
    next: AtomicU64,
}

fn map(len: usize) -> Option<u64> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    // SAFETY: new memory.
    let at = unsafe { raw(libc::SYS_mmap as u64, [0, len as u64, rights, kind, u64::MAX, 0]) };
    u64::try_from(at).ok()
}

fn unmap(at: u64, len: usize) {
    // SAFETY: a mapping of ours, or a part, that nobody uses any more.
    unsafe { raw(libc::SYS_munmap as u64, [at, len as u64, 0, 0, 0, 0]) };
}

/// The size of a piece, as a number; `None` if it is a mapping.
fn size(layout: &Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(SMALL).next_power_of_two();
    (bytes <= LARGE).then(|| (bytes / SMALL).trailing_zeros() as usize)
}

impl Own {
    pub(crate) const fn new() -> Self {
        Self { free: [const { AtomicU64::new(0) }; SIZES], next: AtomicU64::new(0) }
    }

    /// Takes the first of a list.
    fn pop(&self, size: usize) -> Option<u64> {
        let list = &self.free[size];
        let mut head = list.load(Ordering::Acquire);
        loop {
            let at = head & ADDRESS;
            if at == 0 {
                return None;
            }
            // SAFETY: it was on the list, and is memory of ours for ever. If another one has it by now, what is read is garbage, and the
            // count has changed.
            let next = unsafe { (*(at as *const AtomicU64)).load(Ordering::Relaxed) } & ADDRESS;
            let new = (head & !ADDRESS).wrapping_add(1 << 48) | next;
            match list.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(at),
                Err(found) => head = found,
            }
        }
    }

    /// Puts one on a list.
    fn push(&self, size: usize, at: u64) {
        let list = &self.free[size];
        let mut head = list.load(Ordering::Relaxed);
        loop {
            // SAFETY: nobody else has it, and its size and alignment are a word's at least.
            unsafe { (*(at as *const AtomicU64)).store(head & ADDRESS, Ordering::Relaxed) };
            let new = (head & !ADDRESS).wrapping_add(1 << 48) | at;
            match list.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Cuts one off the chunk, or off a new one.
    fn cut(&self, size: usize) -> Option<u64> {
        let bytes = (SMALL << size) as u64;
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let at = next.next_multiple_of(bytes);
            // At its very end there is nothing left of a chunk, and 0 is none.
            let fits = !next.is_multiple_of(CHUNK as u64) && at / CHUNK as u64 == next / CHUNK as u64;
            if fits {
                match self.next.compare_exchange_weak(next, at + bytes, Ordering::Relaxed, Ordering::Relaxed)
                {
                    Ok(_) => return Some(at),
                    Err(found) => next = found,
                }
                continue;
            }
            let whole = map(2 * CHUNK)?;
            let chunk = whole.next_multiple_of(CHUNK as u64);
            unmap(whole, (chunk - whole) as usize);
            unmap(chunk + CHUNK as u64, (whole + CHUNK as u64 - chunk) as usize);
            // What was left of the one before is given up; and of two who made one, the slower gives his up.
            match self.next.compare_exchange(next, chunk + bytes, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(chunk),
                Err(found) => {
                    unmap(chunk, CHUNK);
                    next = found;
                }
            }
        }
    }
}

// SAFETY: each piece is its owner's alone until it is given back, as long and as aligned as was asked, and nothing here panics.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let at = match size(&layout) {
            Some(size) => self.pop(size).or_else(|| self.cut(size)),
            None if layout.align() > PAGE => None,
            None => map(layout.size()),
        };
        at.map_or(null_mut(), |at| at as *mut u8)
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match size(&layout) {
            Some(size) => self.push(size, piece as u64),
            None => unmap(piece as u64, layout.size()),
        }
    }
}
