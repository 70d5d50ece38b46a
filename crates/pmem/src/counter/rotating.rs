//! The rotating counter (paper 001, 6.2): updates go to the chunks in turn, and the greatest is the value.

use super::{CHUNKS, Chunks, DurableWord, Reader, STRIDE, WordError, len};
use crate::medium::Medium;

/// A durable counter in `N` chunks, `STEP` bytes apart; the defaults are the paper's. Both belong to the format: open
/// it with those that it was formatted with.
#[derive(Debug)]
pub struct RotatingCounter<M, const N: usize = CHUNKS, const STEP: u64 = STRIDE> {
    chunks: Chunks<M>,
    next: usize,
}

impl<M: Medium, const N: usize, const STEP: u64> DurableWord for RotatingCounter<M, N, STEP> {
    type Medium = M;
    const LEN: u64 = len(N, STEP);

    fn format(medium: M, offset: u64) -> Result<Self, WordError> {
        let chunks = Chunks::place(medium, offset, N, STEP)?;
        chunks.clear(N)?;
        Ok(Self { chunks, next: 0 })
    }

    fn open(medium: M, offset: u64) -> Result<Self, WordError> {
        let chunks = Chunks::place(medium, offset, N, STEP)?;
        let words = chunks.load(N)?;
        let (value, next) =
            recover(&words).map_err(|chunk| WordError::Damaged { offset, chunk, found: words[chunk] })?;
        chunks.publish(value);
        Ok(Self { chunks, next })
    }

    fn get(&self) -> u64 {
        self.chunks.get()
    }

    fn set(&mut self, value: u64) -> Result<(), WordError> {
        let now = self.get();
        if value < now {
            return Err(WordError::Backwards { now, asked: value });
        }
        if value == now && !self.chunks.failed {
            return Ok(());
        }
        self.chunks.update(self.next, value, value)?;
        self.next = (self.next + 1) % N;
        Ok(())
    }

    fn reader(&self) -> Reader {
        self.chunks.reader()
    }
}

/// The value that chunks stand for, and which of them comes next; or a chunk that does not fit in.
pub(super) fn recover(words: &[u64]) -> Result<(u64, usize), usize> {
    let chunks = words.len();
    let newest = (0..chunks).max_by_key(|chunk| words[*chunk]).unwrap_or(0);
    // Nothing was ever set: begin where a fresh one does.
    let next = if words[newest] == 0 { 0 } else { (newest + 1) % chunks };
    // Around the ring from the oldest chunk, each holds more than the one before it, but those that the first lap has
    // not reached.
    for step in 1..chunks {
        let (older, newer) = ((next + step - 1) % chunks, (next + step) % chunks);
        if words[older] >= words[newer] && words[older] != 0 {
            return Err(older);
        }
    }
    Ok((words[newest], next))
}
