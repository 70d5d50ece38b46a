//! What happened, as a hash of everything and, on request, as text.

use std::collections::VecDeque;
use std::fmt;

use remanence_rnic::time::Instant;

/// The trace of a run. Hashing is always on; text is only made by a second run of a seed that failed.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    lines_max: usize,
}

impl Trace {
    /// Keeps the last `lines_max` lines; with zero, none is ever made.
    pub(crate) fn new(lines_max: usize) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: VecDeque::new(), lines_max }
    }

    /// Mixes a fact into the hash.
    pub(crate) fn hash(&mut self, fact: u64) {
        // One round of a multiply-xorshift: the hash tells runs apart, nobody attacks it.
        self.hash = (self.hash ^ fact).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash ^= self.hash >> 29;
    }

    pub(crate) fn value(&self) -> u64 {
        self.hash
    }

    pub(crate) fn is_on(&self) -> bool {
        self.lines_max > 0
    }

    /// Adds a line; callers check `is_on` first where making the text costs something.
    pub(crate) fn line(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        if self.lines_max == 0 {
            return;
        }
        if self.lines.len() == self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{:>12.3} us  {what}", now.as_nanos() as f64 / 1e3));
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
