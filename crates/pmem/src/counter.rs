//! Words of eight bytes that are durable when they are set: a plain one, and two that rotate.
//!
//! Read first: paper 001, section 6. A log, a clock or a sequencer sets one durable word again and again. Where a
//! write-back drops the line from the cache (Cascade Lake's `clwb`), each store to the word first fetches it from
//! memory, which made 770 ns of what takes 120 elsewhere. Spreading the updates over ten blocks, in turn, brings it
//! to 100.
//!
//! | type | takes | recovery | bytes |
//! |---|---|---|---|
//! | [`PlainWord`] | any value | the word | 8 |
//! | [`RotatingCounter`] | values that only grow | the greatest of the chunks | chunks x stride |
//! | [`RotatingRegister`] | any value | the XOR of the chunks | chunks x stride |
//!
//! ```text
//! counter after 11 updates by 1, four chunks:   9  10  11   8      greatest: 11; the next goes to the last chunk
//! register = x, chunk j next:    R[j] := R[j] ^ old ^ x            so that R[0] ^ … ^ R[n-1] = x, whatever j was
//! ```
//!
//! **The crash argument**, for all three. An update is one store of eight aligned bytes, which is never torn, and
//! `set` returns after it is in the persistence domain, before the next can begin. So a crash finds the word of the
//! last finished `set`, or that of the one that was under way, and nothing else: with all chunks but one unchanged,
//! the greatest and the XOR are those two values. Recovery does not need to know which chunk it was. It makes all
//! chunks durable before it hands the value out, so what was once recovered is not lost to a second failure.
//! `tests.rs` crashes each at every store, and `check.rs` explores every state of a small one, recoveries that crash
//! included.
//!
//! **Who may use one at a time.** One writer: `set` takes `&mut self`, and no word can be cloned. Two updates at
//! once would not only lose one of them: with XOR, a crash could then leave a value that nobody ever set.
//!
//! ```compile_fail
//! use remanence_pmem::{Region, counter::{DurableWord, RotatingRegister}};
//! let region = Region::anonymous(4096).unwrap();
//! let mut register = RotatingRegister::<_>::format(region, 0).unwrap();
//! std::thread::scope(|scope| {
//!     scope.spawn(|| register.set(1)); // two writers: refused by the compiler
//!     scope.spawn(|| register.set(2));
//! });
//! ```
//!
//! Any number of readers: a [`Reader`] sees the last value that is durable, never one that a crash could take back,
//! and cannot set anything. To let several threads write, put the word in a mutex: it is `Send`. What types cannot
//! see is a second word over the same bytes of a cloned region: whoever lays out the medium gives each word a place
//! of its own.
//!
//! ```
//! use remanence_pmem::{Region, counter::{DurableWord, RotatingCounter}};
//! let region = Region::anonymous(4096)?;
//! let mut written = RotatingCounter::<_>::format(region.clone(), 0)?;
//! let reader = written.reader();
//! let other = std::thread::spawn(move || reader.get());
//! written.set(4096)?;
//! assert!([0, 4096].contains(&other.join().unwrap()));
//! drop(written);
//! assert_eq!(RotatingCounter::<_>::open(region, 0)?.get(), 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`CountedLog`] is the paper's log: entries, and a word that says how many bytes of them there are.

mod log;
mod plain;
mod register;
mod rotating;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use log::{CountedLog, Entry, LogFault, Position};
pub use plain::PlainWord;
pub use register::RotatingRegister;
pub use rotating::RotatingCounter;

use crate::medium::Medium;

/// Chunks of the paper's counter.
pub const CHUNKS: usize = 10;

/// Bytes from one chunk of the paper's counter to the next: a block of the medium.
pub const STRIDE: u64 = 256;

/// Why a word could not be formatted, opened or set.
#[derive(Debug, thiserror::Error)]
pub enum WordError {
    /// A counter does not go backwards.
    #[error(
        "a counter that stands at {now} cannot be set to {asked}: use a register for values that may shrink"
    )]
    Backwards {
        /// What it is.
        now: u64,
        /// What it should become.
        asked: u64,
    },
    /// The place is not aligned, or not on the medium.
    #[error(
        "{len} bytes at offset {offset} are no place for a durable word: it starts at a multiple of 8, on the medium"
    )]
    Misplaced {
        /// Where it should be.
        offset: u64,
        /// Bytes that it takes.
        len: u64,
    },
    /// The chunks are none that this counter could have written.
    #[error(
        "the counter at offset {offset} is damaged, or none was ever formatted there: chunk {chunk} \
         holds {found}, which is not what came before the next; restore it from what it counts"
    )]
    Damaged {
        /// Where it is.
        offset: u64,
        /// The first chunk that does not fit in.
        chunk: usize,
        /// What it holds.
        found: u64,
    },
    /// The medium failed: of the last value set, it is open whether it is durable.
    #[error("the medium failed: {0}")]
    Medium(#[from] io::Error),
    /// It failed before.
    #[error(
        "the medium failed earlier, so that nothing more is set: open the word again once the medium is repaired"
    )]
    Failed,
}

/// A word of eight bytes that is durable when [`set`](Self::set) returns. See the module's head for what a crash
/// leaves, and for who may use it.
pub trait DurableWord: Sized {
    /// What it is kept on.
    type Medium: Medium;

    /// Bytes that it takes on the medium.
    const LEN: u64;

    /// Makes a new one at a multiple of 8, with value 0, over whatever was there. Until this returns, a crash may
    /// leave any mixture of the two: name the place (in a [`Root`](crate::image::Root), say) afterwards.
    ///
    /// # Errors
    /// [`WordError::Misplaced`]; the medium failed.
    fn format(medium: Self::Medium, offset: u64) -> Result<Self, WordError>;

    /// Finds the value again, and makes sure that it is durable.
    ///
    /// # Errors
    /// [`WordError::Misplaced`], [`WordError::Damaged`]; the medium failed.
    fn open(medium: Self::Medium, offset: u64) -> Result<Self, WordError>;

    /// The last value that is durable.
    fn get(&self) -> u64;

    /// Replaces the value; durable on return. Setting what it is already does nothing.
    ///
    /// # Errors
    /// [`WordError::Backwards`], which changes nothing. The medium failed: the value is the old or the new one after
    /// a crash, and no other can be set any more.
    fn set(&mut self, value: u64) -> Result<(), WordError>;

    /// A view for other threads.
    fn reader(&self) -> Reader;
}

/// Sees the last durable value of a word, from any thread.
#[derive(Clone, Debug)]
pub struct Reader(Arc<AtomicU64>);

impl Reader {
    /// The last value that is durable.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Words of eight bytes on a medium, some way apart, and the last value that they stand for.
#[derive(Debug)]
struct Chunks<M> {
    medium: M,
    offset: u64,
    stride: u64,
    value: Arc<AtomicU64>,
    failed: bool,
}

impl<M: Medium> Chunks<M> {
    /// A place for so many of them.
    fn place(medium: M, offset: u64, chunks: usize, stride: u64) -> Result<Self, WordError> {
        assert!(
            chunks > 0 && stride.is_multiple_of(8) && stride > 0,
            "{chunks} chunks at every {stride} bytes"
        );
        let len = len(chunks, stride);
        let fits = offset.checked_add(len).is_some_and(|end| end <= medium.len());
        if !offset.is_multiple_of(8) || !fits {
            return Err(WordError::Misplaced { offset, len });
        }
        Ok(Self { medium, offset, stride, value: Arc::new(AtomicU64::new(0)), failed: false })
    }

    /// Makes all of them zero, durably.
    fn clear(&self, chunks: usize) -> io::Result<()> {
        for chunk in 0..chunks {
            self.store(chunk, 0);
        }
        self.medium.psync()
    }

    /// Reads all of them, and makes what was read durable: after the death of a process the last store may be visible
    /// only.
    fn load(&self, chunks: usize) -> io::Result<Vec<u64>> {
        let words = (0..chunks).map(|chunk| u64::from_le(self.medium.load_u64(self.at(chunk)))).collect();
        for chunk in 0..chunks {
            self.medium.pwb(self.at(chunk)..self.at(chunk) + 8);
        }
        self.medium.psync()?;
        Ok(words)
    }

    fn at(&self, chunk: usize) -> u64 {
        self.offset + chunk as u64 * self.stride
    }

    fn store(&self, chunk: usize, word: u64) {
        let at = self.at(chunk);
        self.medium.store_u64(at, word.to_le());
        self.medium.pwb(at..at + 8);
    }

    /// Sets one of them, durably, upon which all of them stand for `value`.
    fn update(&mut self, chunk: usize, word: u64, value: u64) -> Result<(), WordError> {
        if self.failed {
            return Err(WordError::Failed);
        }
        self.store(chunk, word);
        if let Err(e) = self.medium.psync() {
            self.failed = true;
            return Err(e.into());
        }
        self.publish(value);
        Ok(())
    }

    fn publish(&self, value: u64) {
        self.value.store(value, Ordering::Release);
    }

    fn get(&self) -> u64 {
        // Only `&mut self` stores.
        self.value.load(Ordering::Relaxed)
    }

    fn reader(&self) -> Reader {
        Reader(Arc::clone(&self.value))
    }
}

/// Bytes that chunks take: the last one's rest belongs to it, so that no neighbour shares a block.
const fn len(chunks: usize, stride: u64) -> u64 {
    chunks as u64 * stride
}

#[cfg(test)]
mod check;
#[cfg(test)]
mod tests;
