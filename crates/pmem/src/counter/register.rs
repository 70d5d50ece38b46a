//! The rotating register (paper 001, 6.3): updates go to the chunks in turn, each such that the XOR of all is the
//! value.

use super::{CHUNKS, Chunks, DurableWord, Reader, STRIDE, WordError, len};
use crate::medium::Medium;

/// A durable register in `N` chunks, `STEP` bytes apart; the defaults are the paper's. Both belong to the format:
/// open it with those that it was formatted with. Damage cannot be told from a value: whoever needs that adds a
/// checksum to what the register points at.
#[derive(Debug)]
pub struct RotatingRegister<M, const N: usize = CHUNKS, const STEP: u64 = STRIDE> {
    chunks: Chunks<M>,
    words: [u64; N],
    next: usize,
}

impl<M: Medium, const N: usize, const STEP: u64> DurableWord for RotatingRegister<M, N, STEP> {
    type Medium = M;
    const LEN: u64 = len(N, STEP);

    fn format(medium: M, offset: u64) -> Result<Self, WordError> {
        let chunks = Chunks::place(medium, offset, N, STEP)?;
        chunks.clear(N)?;
        Ok(Self { chunks, words: [0; N], next: 0 })
    }

    fn open(medium: M, offset: u64) -> Result<Self, WordError> {
        let chunks = Chunks::place(medium, offset, N, STEP)?;
        let mut words = [0; N];
        words.copy_from_slice(&chunks.load(N)?);
        chunks.publish(recover(&words));
        // Which chunk was the last is not known, and does not matter.
        Ok(Self { chunks, words, next: 0 })
    }

    fn get(&self) -> u64 {
        self.chunks.get()
    }

    fn set(&mut self, value: u64) -> Result<(), WordError> {
        let now = self.get();
        if value == now && !self.chunks.failed {
            return Ok(());
        }
        let word = update(self.words[self.next], now, value);
        self.chunks.update(self.next, word, value)?;
        self.words[self.next] = word;
        self.next = (self.next + 1) % N;
        Ok(())
    }

    fn reader(&self) -> Reader {
        self.chunks.reader()
    }
}

/// The value that chunks stand for.
pub(super) fn recover(words: &[u64]) -> u64 {
    words.iter().fold(0, |xor, word| xor ^ word)
}

/// What a chunk must become so that the value does: the XOR of all the others, which is `now` without this one, and of
/// what is to be.
pub(super) const fn update(word: u64, now: u64, value: u64) -> u64 {
    word ^ now ^ value
}
