//! **A model** of persistent DIMMs: what their media do when lines of 64 bytes are written to them. Nothing here is
//! measured on a real one, as there is none; it is the least that has the properties which paper 001 found with
//! hardware counters.
//!
//! Read first: paper 001, 2.1.1 (the DIMM), 5.2 (DDIO) and 6.1 (the counter). The rules, all of them:
//!
//! 1. The medium is read and written in blocks of 256 bytes. The memory bus brings lines of 64.
//! 2. A write goes to the write-combining buffer, which holds so many blocks, each with a mask of the lines that are
//!    new. It is inside the persistence domain, so there is no waiting for the medium.
//! 3. A block leaves the buffer when a block that is not in it needs room, and then it is the one that was not
//!    written to for longest. With all four lines new it is written to the medium; else it is read first, and
//!    written.
//! 4. A read of a line that is new in the buffer is answered from there, any other reads a block of the medium.
//! 5. Several DIMMs are interleaved by stripes, each with a buffer of its own.
//!
//! *Write amplification* is bytes written to the medium per byte received ([`Counters::write_amplification`]): 1 for
//! whole blocks in sequence, 4 for lone lines. [`arrival`] has who brings the lines in which order, which decides
//! that; [`trace`] records what real code writes back, so that the model (and [`delay`], what it would cost in time)
//! can be run on it.
//!
//! ```
//! use remanence_pmem::dimm::{Config, Dimms};
//! let mut dimms = Dimms::new(Config::OPTANE_SET);
//! (0..4096).for_each(|line| dimms.write_line(line)); // in sequence
//! dimms.drain();
//! assert_eq!(dimms.counters().media_writes, 1024);
//! assert_eq!(dimms.counters().media_reads, 0);
//! ```

pub mod arrival;
pub mod delay;
pub mod trace;

use std::collections::{BTreeMap, VecDeque};
use std::ops::AddAssign;

use crate::flush::LINE;

/// Bytes of a block of the medium.
pub const BLOCK: u64 = 256;

/// Lines of a block.
const LINES: u64 = BLOCK / LINE as u64;

const WHOLE: u8 = (1 << LINES) - 1;

/// A set of interleaved DIMMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How many DIMMs share the addresses, stripe by stripe; at least 1.
    pub dimms: u64,
    /// Bytes of a stripe, a multiple of [`BLOCK`].
    pub stripe: u64,
    /// Blocks that the write-combining buffer of one DIMM holds.
    pub buffer: usize,
}

impl Config {
    /// One DIMM of the paper's machine. The buffer of 16 KiB is what Yang et al. (FAST '20, 3.3) measured.
    pub const OPTANE: Self = Self { dimms: 1, stripe: 4096, buffer: 64 };

    /// Six of them, interleaved by pages, as in the paper's machine (section 3).
    pub const OPTANE_SET: Self = Self { dimms: 6, ..Self::OPTANE };
}

/// What the firmware of such a DIMM counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Lines of 64 bytes that the bus asked for.
    pub line_reads: u64,
    /// Lines of 64 bytes that the bus brought.
    pub line_writes: u64,
    /// Blocks of 256 bytes that were read from the medium, those that a partial write needs among them.
    pub media_reads: u64,
    /// Blocks of 256 bytes that were written to the medium.
    pub media_writes: u64,
}

impl Counters {
    /// Bytes that the bus brought.
    #[must_use]
    pub const fn bytes_received(self) -> u64 {
        self.line_writes * LINE as u64
    }

    /// Bytes that were written to the medium.
    #[must_use]
    pub const fn bytes_written(self) -> u64 {
        self.media_writes * BLOCK
    }

    /// Bytes that were read from the medium.
    #[must_use]
    pub const fn bytes_read(self) -> u64 {
        self.media_reads * BLOCK
    }

    /// Bytes written to the medium per byte received; 0 where nothing was received.
    #[must_use]
    pub fn write_amplification(self) -> f64 {
        if self.line_writes == 0 { 0.0 } else { self.bytes_written() as f64 / self.bytes_received() as f64 }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.line_reads += other.line_reads;
        self.line_writes += other.line_writes;
        self.media_reads += other.media_reads;
        self.media_writes += other.media_writes;
    }
}

/// The model: interleaved DIMMs, their counters, and the wear of each block.
#[derive(Clone, Debug)]
pub struct Dimms {
    config: Config,
    dimms: Vec<Dimm>,
}

impl Dimms {
    /// DIMMs with empty buffers, all counters at 0 and no block worn.
    ///
    /// # Panics
    /// A configuration without DIMMs or buffer, or with a stripe that tears blocks.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let Config { dimms, stripe, buffer } = config;
        assert!(dimms > 0 && buffer > 0, "{config:?} has nothing to write to");
        assert!(stripe > 0 && stripe.is_multiple_of(BLOCK), "{config:?} tears blocks");
        Self { config, dimms: (0..dimms).map(|_| Dimm::new(buffer)).collect() }
    }

    /// A line, by its number (address / 64), arrives to be written.
    pub fn write_line(&mut self, line: u64) {
        self.of(line).write(line);
    }

    /// A line is asked for.
    pub fn read_line(&mut self, line: u64) {
        self.of(line).read(line);
    }

    /// Empties the buffers, as a shutdown or the loss of power does.
    pub fn drain(&mut self) {
        self.dimms.iter_mut().for_each(Dimm::drain);
    }

    /// The counters of all DIMMs, summed up.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.dimms.iter().for_each(|dimm| sum += dimm.counters);
        sum
    }

    /// The counters of one DIMM.
    ///
    /// # Panics
    /// There is no such DIMM.
    #[must_use]
    pub fn counters_of(&self, dimm: usize) -> Counters {
        self.dimms[dimm].counters
    }

    /// How often a block, by its number (address / 256), was written on the medium.
    #[must_use]
    pub fn wear(&self, block: u64) -> u64 {
        self.dimms[self.index(block * LINES)].wear.get(&block).copied().unwrap_or(0)
    }

    /// The block that was written most often, and how often; `None` if none was.
    #[must_use]
    pub fn most_worn(&self) -> Option<(u64, u64)> {
        let blocks = self.dimms.iter().flat_map(|dimm| dimm.wear.iter());
        blocks.map(|(block, times)| (*block, *times)).max_by_key(|(block, times)| (*times, u64::MAX - block))
    }

    fn index(&self, line: u64) -> usize {
        (line * LINE as u64 / self.config.stripe % self.config.dimms) as usize
    }

    fn of(&mut self, line: u64) -> &mut Dimm {
        let index = self.index(line);
        &mut self.dimms[index]
    }
}

/// One DIMM. Blocks keep their numbers of the whole set, which no other DIMM has.
#[derive(Clone, Debug)]
struct Dimm {
    capacity: usize,
    /// Blocks with the lines that are new, the one that was written to last at the back.
    buffer: VecDeque<(u64, u8)>,
    counters: Counters,
    wear: BTreeMap<u64, u64>,
}

impl Dimm {
    fn new(capacity: usize) -> Self {
        Self { capacity, buffer: VecDeque::new(), counters: Counters::default(), wear: BTreeMap::new() }
    }

    fn write(&mut self, line: u64) {
        let (block, bit) = (line / LINES, 1 << (line % LINES));
        self.counters.line_writes += 1;
        let found = self.buffer.iter().rposition(|(b, _)| *b == block);
        let lines = match found.and_then(|at| self.buffer.remove(at)) {
            Some((_, lines)) => lines,
            None => {
                if self.buffer.len() == self.capacity
                    && let Some((block, lines)) = self.buffer.pop_front()
                {
                    self.write_block(block, lines);
                }
                0
            }
        };
        self.buffer.push_back((block, lines | bit));
    }

    fn read(&mut self, line: u64) {
        let (block, bit) = (line / LINES, 1 << (line % LINES));
        self.counters.line_reads += 1;
        let new = self.buffer.iter().any(|(b, lines)| *b == block && lines & bit != 0);
        self.counters.media_reads += u64::from(!new);
    }

    fn drain(&mut self) {
        while let Some((block, lines)) = self.buffer.pop_front() {
            self.write_block(block, lines);
        }
    }

    fn write_block(&mut self, block: u64, lines: u8) {
        self.counters.media_reads += u64::from(lines != WHOLE);
        self.counters.media_writes += 1;
        *self.wear.entry(block).or_insert(0) += 1;
    }
}

#[cfg(test)]
mod tests;
