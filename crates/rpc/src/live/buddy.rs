//! Memory for messages: a buddy allocator over offsets. Blocks are powers of two, and aligned to their size, so that a
//! message never shares a cache line with another.

use std::collections::BTreeSet;

/// The smallest block, in bytes.
const BLOCK_MIN: u64 = 256;

/// Which parts of a range are free.
#[derive(Debug)]
pub(super) struct Buddy {
    /// By order: offsets of free blocks of `BLOCK_MIN << order`.
    free: Vec<BTreeSet<u64>>,
}

impl Buddy {
    /// All of `len` bytes, rounded down to a power of two.
    pub(super) fn new(len: u64) -> Self {
        let orders = (len / BLOCK_MIN).checked_ilog2().map_or(0, |top| top as usize + 1);
        let mut free = vec![BTreeSet::new(); orders];
        if let Some(top) = free.last_mut() {
            top.insert(0);
        }
        Self { free }
    }

    fn order(len: u64) -> usize {
        len.max(1).div_ceil(BLOCK_MIN).next_power_of_two().ilog2() as usize
    }

    /// The offset of a block of at least `len` bytes.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let order = Self::order(len);
        let found = (order..self.free.len()).find(|&order| !self.free[order].is_empty())?;
        let offset = self.free[found].pop_first()?;
        // The upper halves of what is cut stay free.
        for order in order..found {
            self.free[order].insert(offset + (BLOCK_MIN << order));
        }
        Some(offset)
    }

    /// Gives back what [`take`](Self::take) gave for `len`.
    pub(super) fn give(&mut self, mut offset: u64, len: u64) {
        let mut order = Self::order(len);
        while order + 1 < self.free.len() && self.free[order].remove(&(offset ^ (BLOCK_MIN << order))) {
            offset &= !(BLOCK_MIN << order);
            order += 1;
        }
        let fresh = self.free[order].insert(offset);
        assert!(fresh, "the block at {offset} is given back twice");
    }

    /// Whether everything was given back.
    #[cfg(test)]
    fn is_whole(&self) -> bool {
        self.free.iter().map(BTreeSet::len).sum::<usize>() == 1
            && self.free.last().is_some_and(|top| top.len() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_never_overlap_and_come_back_as_one() {
        let mut buddy = Buddy::new(1 << 16);
        let mut held: Vec<(u64, u64)> = Vec::new();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = (state >> 40) % 9000;
            if (state >> 20).is_multiple_of(2) {
                if let Some(offset) = buddy.take(len) {
                    assert!(offset + len <= 1 << 16 && offset.is_multiple_of(BLOCK_MIN));
                    assert!(held.iter().all(|&(o, l)| offset + len.max(1) <= o || o + l.max(1) <= offset));
                    held.push((offset, len));
                }
            } else if !held.is_empty() {
                let (offset, len) = held.swap_remove((state >> 33) as usize % held.len());
                buddy.give(offset, len);
            }
        }
        held.into_iter().for_each(|(offset, len)| buddy.give(offset, len));
        assert!(buddy.is_whole());
        assert_eq!(buddy.take((1 << 16) + 1), None);
        assert_eq!(buddy.take(1 << 16), Some(0));
    }
}
