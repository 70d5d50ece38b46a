//! The words that all who append share. They need survive no crash: recovery finds anew what they say.

use std::sync::atomic::{AtomicU64, Ordering};

use remanence_pmem::Medium;

/// What a shared word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// The next index that nobody has; it may be behind, and whoever finds it so moves it on.
    Head,
    /// Entries below are free. It is never above the persistent tail.
    Tail,
    /// A sync has gone past entries below without waiting for those in progress: who commits one of them waits itself. Or a copier has: who commits one
    /// appends it again.
    Passed,
    /// Entries below are durable, but for those that a mark in the log names.
    Durable,
    /// What is committed below is durable in the log's copies, if it has any.
    Copied,
}

/// Words in memory that threads, and processes, have in common. A load acquires, a store releases, and a swap does both; where more is
/// needed, who uses them puts a fence between.
pub trait Words {
    /// Reads a word.
    fn load(&self, word: Word) -> u64;

    /// Sets a word, before there is anybody else.
    fn store(&self, word: Word, value: u64);

    /// Replaces a word if it equals `compare`; returns what was there.
    fn compare_and_swap(&self, word: Word, compare: u64, swap: u64) -> u64;

    /// Moves a word on, and never back.
    fn raise(&self, word: Word, to: u64) {
        let mut was = self.load(word);
        while was < to {
            match self.compare_and_swap(word, was, to) {
                found if found == was => return,
                found => was = found,
            }
        }
    }
}

impl<W: Words> Words for &W {
    fn load(&self, word: Word) -> u64 {
        (**self).load(word)
    }

    fn store(&self, word: Word, value: u64) {
        (**self).store(word, value);
    }

    fn compare_and_swap(&self, word: Word, compare: u64, swap: u64) -> u64 {
        (**self).compare_and_swap(word, compare, swap)
    }
}

/// The words of one process.
#[derive(Debug, Default)]
pub struct LocalWords([AtomicU64; 5]);

impl Words for LocalWords {
    fn load(&self, word: Word) -> u64 {
        self.0[word as usize].load(Ordering::SeqCst)
    }

    fn store(&self, word: Word, value: u64) {
        self.0[word as usize].store(value, Ordering::SeqCst);
    }

    fn compare_and_swap(&self, word: Word, compare: u64, swap: u64) -> u64 {
        let swapped =
            self.0[word as usize].compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        swapped.unwrap_or_else(|was| was)
    }
}

/// The words in a mapping that processes share, each on a cache line of its own.
#[derive(Debug)]
pub struct MappedWords<M> {
    mapping: M,
    at: u64,
}

/// Bytes that mapped words take.
pub const WORDS_LEN: u64 = 5 * 64;

impl<M: Medium> MappedWords<M> {
    /// Those that begin there, at a multiple of 64.
    ///
    /// # Panics
    /// They do not lie in the mapping.
    #[must_use]
    pub fn new(mapping: M, at: u64) -> Self {
        let fits = mapping.len().checked_sub(at).is_some_and(|left| left >= WORDS_LEN);
        assert!(fits && at.is_multiple_of(64), "no words at {at} of {} bytes", mapping.len());
        Self { mapping, at }
    }

    fn at(&self, word: Word) -> u64 {
        self.at + word as u64 * 64
    }
}

impl<M: Medium> Words for MappedWords<M> {
    fn load(&self, word: Word) -> u64 {
        self.mapping.load_u64(self.at(word))
    }

    fn store(&self, word: Word, value: u64) {
        self.mapping.store_u64(self.at(word), value);
    }

    fn compare_and_swap(&self, word: Word, compare: u64, swap: u64) -> u64 {
        self.mapping.compare_and_swap(self.at(word), compare, swap)
    }
}
