//! What real code writes back: a medium that takes notes, line by line and fence by fence.
//!
//! The notes drive the models of [`dimm`](super) and [`delay`](super::delay), so that those judge the code that runs
//! and not a description of it.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Dimms;
use crate::flush::LINE;
use crate::medium::Medium;

/// What the code has done that a DIMM or a clock would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A line (offset / 64) that had been stored to was written back, or stored past the caches.
    WriteBack(u64),
    /// The code waited for all earlier write-backs.
    Fence,
}

/// A medium that notes what is written back. A write-back of a line that is clean goes nowhere, and is not noted.
#[derive(Debug)]
pub struct Traced<M> {
    medium: M,
    notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
struct Notes {
    dirty: BTreeSet<u64>,
    events: Vec<Event>,
}

impl<M: Medium> Traced<M> {
    /// Takes notes of what is done to a medium from here on.
    pub fn new(medium: M) -> Self {
        Self { medium, notes: Mutex::default() }
    }

    /// The notes since the last call.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.lock().events)
    }

    /// The lines that were stored to and not written back, in the order of their addresses: what only the cache has.
    pub fn dirty(&self) -> Vec<u64> {
        self.lock().dirty.iter().copied().collect()
    }

    /// The medium, and the notes that nobody has taken.
    pub fn into_parts(self) -> (M, Vec<Event>) {
        let notes = self.notes.into_inner().unwrap_or_else(PoisonError::into_inner);
        (self.medium, notes.events)
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self, offset: u64, len: u64) {
        self.lock().dirty.extend(lines(offset..offset + len));
    }
}

fn lines(range: Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start / LINE as u64..range.end.div_ceil(LINE as u64) }
}

/// Lets a set of DIMMs see what was written back.
pub fn replay(events: &[Event], dimms: &mut Dimms) {
    for event in events {
        if let Event::WriteBack(line) = event {
            dimms.write_line(*line);
        }
    }
}

impl<M: Medium> Medium for Traced<M> {
    fn len(&self) -> u64 {
        self.medium.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        self.medium.read(offset, into);
    }
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.medium.write(offset, bytes);
        self.stored(offset, bytes.len() as u64);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.medium.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.medium.store_u64(offset, value);
        self.stored(offset, 8);
    }
    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        let was = self.medium.compare_and_swap(offset, compare, swap);
        if was == compare {
            self.stored(offset, 8);
        }
        was
    }
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let was = self.medium.fetch_add(offset, add);
        self.stored(offset, 8);
        was
    }
    fn pwb(&self, range: Range<u64>) {
        self.medium.pwb(range.clone());
        let mut notes = self.lock();
        for line in lines(range) {
            if notes.dirty.remove(&line) {
                notes.events.push(Event::WriteBack(line));
            }
        }
    }
    fn pfence(&self) -> io::Result<()> {
        self.medium.pfence()?;
        self.lock().events.push(Event::Fence);
        Ok(())
    }
    fn psync(&self) -> io::Result<()> {
        self.medium.psync()?;
        self.lock().events.push(Event::Fence);
        Ok(())
    }
}
