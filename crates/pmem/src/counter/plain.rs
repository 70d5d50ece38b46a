//! One word, set in place: the baseline.

use super::{Chunks, DurableWord, Reader, WordError};
use crate::medium::Medium;

/// A durable word that is set where it is. Any value may follow any other.
#[derive(Debug)]
pub struct PlainWord<M>(Chunks<M>);

impl<M: Medium> DurableWord for PlainWord<M> {
    type Medium = M;
    const LEN: u64 = 8;

    fn format(medium: M, offset: u64) -> Result<Self, WordError> {
        let word = Chunks::place(medium, offset, 1, 8)?;
        word.clear(1)?;
        Ok(Self(word))
    }

    fn open(medium: M, offset: u64) -> Result<Self, WordError> {
        let word = Chunks::place(medium, offset, 1, 8)?;
        word.publish(word.load(1)?[0]);
        Ok(Self(word))
    }

    fn get(&self) -> u64 {
        self.0.get()
    }

    fn set(&mut self, value: u64) -> Result<(), WordError> {
        if value == self.get() && !self.0.failed {
            return Ok(());
        }
        self.0.update(0, value, value)
    }

    fn reader(&self) -> Reader {
        self.0.reader()
    }
}
