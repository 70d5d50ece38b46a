//! **A model** of who brings lines to the DIMMs, and in which order: the difference that DDIO makes (paper 001, 5.2).
//!
//! A NIC (or a DMA engine) with direct cache access *off*, and a CPU with non-temporal stores, write in sequence, so
//! the four lines of a block meet in the write-combining buffer. With it *on*, lines go to the cache, and leave it
//! one by one when others need room, in an order of the cache's own.
//!
//! [`Cache`] is the simplest order that is near-random: it holds so many lines, and when one more comes, any of them
//! leaves, each as likely as the other. Its one parameter is therefore not a cache's size but *how far apart*
//! neighbours leave it. A real L3 is far bigger, and its order far from uniform (sets, slices, ages): neighbours
//! that came together still tend to leave together. [`Cache::AS_MEASURED`] is the value at which six DIMMs show the
//! amplification that the paper's hardware counters showed (84.8 Gbit/s written for 45.6 received, 1.86); `rem bench
//! copy-engine` sweeps it, from 1 (as if there were no cache) to 4 (no two lines of a block ever meet).

use std::collections::BTreeMap;

use super::Dimms;
use crate::crash_image::{Choices, Seeded};

/// Where lines go before they reach the DIMMs, and what makes them go on.
#[derive(Clone, Debug)]
pub struct Cache {
    capacity: usize,
    lines: Vec<u64>,
    /// Where each line is in `lines`.
    at: BTreeMap<u64, usize>,
    choices: Seeded,
}

impl Cache {
    /// The number of lines with which [`Config::OPTANE_SET`](super::Config::OPTANE_SET) writes about twice what it
    /// receives. Calibrated, not measured: see the module's head.
    pub const AS_MEASURED: usize = 816;

    /// A cache of so many lines, whose choices come from a seed.
    ///
    /// # Panics
    /// No line at all.
    #[must_use]
    pub fn new(lines: usize, seed: u64) -> Self {
        assert!(lines > 0, "a cache without lines");
        Self { capacity: lines, lines: Vec::new(), at: BTreeMap::new(), choices: Seeded::new(seed) }
    }

    /// A line is written by the device. If it is not here yet, and there is no room, another one goes to the DIMMs.
    pub fn write_line(&mut self, line: u64, to: &mut Dimms) {
        if self.at.contains_key(&line) {
            return;
        }
        if self.lines.len() == self.capacity {
            let victim = self.choices.pick(self.lines.len());
            to.write_line(self.remove(victim));
        }
        self.at.insert(line, self.lines.len());
        self.lines.push(line);
    }

    /// A line is written back by the CPU (`clwb`), if it is here.
    pub fn write_back(&mut self, line: u64, to: &mut Dimms) {
        if let Some(at) = self.at.get(&line).copied() {
            to.write_line(self.remove(at));
        }
    }

    /// Everything that is left goes to the DIMMs, in any order.
    pub fn drain(&mut self, to: &mut Dimms) {
        while !self.lines.is_empty() {
            let victim = self.choices.pick(self.lines.len());
            to.write_line(self.remove(victim));
        }
    }

    fn remove(&mut self, at: usize) -> u64 {
        let line = self.lines.swap_remove(at);
        self.at.remove(&line);
        if let Some(moved) = self.lines.get(at) {
            self.at.insert(*moved, at);
        }
        line
    }
}
