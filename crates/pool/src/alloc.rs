//! The extent allocator: which blocks of the data area are free.
//!
//! It keeps no state on the medium. Recovery rebuilds it from the extents that the catalogue names, so a block can
//! neither leak nor be owned twice after a crash: what no committed blob names is free.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A run of blocks of the data area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// First block, counted from the start of the data area.
    pub start: u64,
    /// Number of blocks, never zero.
    pub blocks: u64,
}

impl Extent {
    /// The block after the last one.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start + self.blocks
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start, self.blocks)
    }
}

/// Two owners for one block: only a damaged catalogue can ask for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overlap(pub Extent);

/// Free runs, by place and by size.
#[derive(Debug)]
pub struct Allocator {
    blocks: u64,
    free_blocks: u64,
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Allocator {
    /// An allocator of `blocks` blocks, all free.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let mut this = Self { blocks, free_blocks: 0, by_start: BTreeMap::new(), by_size: BTreeSet::new() };
        if blocks > 0 {
            this.insert(0, blocks);
        }
        this
    }

    /// Blocks in the data area.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that nobody owns.
    #[must_use]
    pub const fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Takes exactly `extent` out of the free blocks; recovery does this for each extent of the catalogue.
    ///
    /// # Errors
    /// A part of it is outside the data area or already owned. Nothing has changed then.
    pub fn claim(&mut self, extent: Extent) -> Result<(), Overlap> {
        let end = extent.start.checked_add(extent.blocks).ok_or(Overlap(extent))?;
        if extent.blocks == 0 {
            return Err(Overlap(extent));
        }
        let Some((&start, &len)) = self.by_start.range(..=extent.start).next_back() else {
            return Err(Overlap(extent));
        };
        if start + len < end {
            return Err(Overlap(extent));
        }
        self.remove(start, len);
        if start < extent.start {
            self.insert(start, extent.start - start);
        }
        if end < start + len {
            self.insert(end, start + len - end);
        }
        Ok(())
    }

    /// Hands out `blocks` blocks, or as many of them as fit into `max_extents` runs; fewer if fewer are free.
    ///
    /// `after` is the block behind the caller's last extent: continuing there keeps a blob that grows in one
    /// piece. Otherwise the smallest run that fits is taken, and only when none does, the largest ones.
    pub fn allocate(&mut self, blocks: u64, after: Option<u64>, max_extents: usize) -> Vec<Extent> {
        let mut taken: Vec<Extent> = Vec::new();
        let mut missing = blocks;
        if let Some((start, len)) = after.and_then(|at| self.by_start.get_key_value(&at))
            && missing > 0
            && max_extents > 0
        {
            let run = Extent { start: *start, blocks: missing.min(*len) };
            missing -= self.take(run, &mut taken);
        }
        while missing > 0 && taken.len() < max_extents {
            let fit = self.by_size.range((missing, 0)..).next().or_else(|| self.by_size.last()).copied();
            let Some((len, start)) = fit else { break };
            let run = Extent { start, blocks: missing.min(len) };
            missing -= self.take(run, &mut taken);
        }
        taken
    }

    /// Gives an owned extent back.
    ///
    /// # Panics
    /// If a part of it is free already: two owners would have been possible.
    pub fn release(&mut self, extent: Extent) {
        assert!(
            extent.blocks > 0 && extent.end() <= self.blocks,
            "{extent:?} is outside the data area of {} blocks",
            self.blocks
        );
        let (mut start, mut len) = (extent.start, extent.blocks);
        if let Some((&before, &before_len)) = self.by_start.range(..extent.end()).next_back() {
            assert!(before + before_len <= extent.start, "{extent:?} was free already, in part");
            if before + before_len == extent.start {
                self.remove(before, before_len);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some(&behind_len) = self.by_start.get(&extent.end()) {
            self.remove(extent.end(), behind_len);
            len += behind_len;
        }
        self.insert(start, len);
    }

    fn take(&mut self, run: Extent, taken: &mut Vec<Extent>) -> u64 {
        self.claim(run).expect("the run was found among the free ones");
        taken.push(run);
        run.blocks
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.free_blocks += len;
        self.by_start.insert(start, len);
        self.by_size.insert((len, start));
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.free_blocks -= len;
        self.by_start.remove(&start);
        self.by_size.remove(&(len, start));
    }
}

/// Appends `new` to a blob's extents, joining it to the last one where they touch.
pub fn push_joined(extents: &mut Vec<Extent>, new: Extent) {
    match extents.last_mut() {
        Some(last) if last.end() == new.start => last.blocks += new.blocks,
        _ => extents.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_growing_blob_stays_in_one_piece() {
        let mut alloc = Allocator::new(100);
        let mut extents = Vec::new();
        for _ in 0..5 {
            let after = extents.last().map(|e: &Extent| e.end());
            for extent in alloc.allocate(7, after, 8) {
                push_joined(&mut extents, extent);
            }
        }
        assert_eq!(extents, [Extent { start: 0, blocks: 35 }]);
        assert_eq!(alloc.free_blocks(), 65);
    }

    #[test]
    fn fragments_are_gathered_up_to_the_limit() {
        let mut alloc = Allocator::new(10);
        for start in [1, 3, 5, 7, 9] {
            alloc.claim(Extent { start, blocks: 1 }).expect("free");
        }
        assert_eq!(alloc.allocate(4, None, 3).len(), 3);
        assert_eq!(alloc.allocate(4, None, 4).len(), 2);
        assert_eq!((alloc.free_blocks(), alloc.allocate(1, None, 4)), (0, vec![]));
    }

    #[test]
    fn a_block_has_one_owner() {
        let mut alloc = Allocator::new(10);
        alloc.claim(Extent { start: 2, blocks: 3 }).expect("free");
        for (start, blocks) in [(4, 1), (0, 3), (2, 3), (9, 2), (10, 1), (u64::MAX, 2), (5, 0)] {
            let extent = Extent { start, blocks };
            assert_eq!(alloc.claim(extent), Err(Overlap(extent)));
        }
        assert_eq!(alloc.free_blocks(), 7);
    }

    proptest! {
        /// Against a bitmap: owned blocks never overlap, sums agree, and all comes back as one run.
        #[test]
        fn agrees_with_a_bitmap(steps in prop::collection::vec((0_u64..24, any::<bool>()), 1..200)) {
            let mut alloc = Allocator::new(128);
            let mut owned: Vec<Vec<Extent>> = Vec::new();
            let mut map = [false; 128];
            for (n, release) in steps {
                if release && !owned.is_empty() {
                    for extent in owned.swap_remove(n as usize % owned.len()) {
                        (extent.start..extent.end()).for_each(|b| map[b as usize] = false);
                        alloc.release(extent);
                    }
                } else {
                    let free = alloc.free_blocks();
                    let extents = alloc.allocate(n + 1, owned.last().and_then(|e| e.first()).map(|e| e.end()), 128);
                    prop_assert_eq!(extents.iter().map(|e| e.blocks).sum::<u64>(), free.min(n + 1));
                    for b in extents.iter().flat_map(|e| e.start..e.end()) {
                        prop_assert!(!std::mem::replace(&mut map[b as usize], true));
                    }
                    owned.push(extents);
                }
                prop_assert_eq!(alloc.free_blocks(), map.iter().filter(|b| !**b).count() as u64);
            }
            owned.drain(..).flatten().for_each(|e| alloc.release(e));
            prop_assert_eq!(&alloc.by_start, &BTreeMap::from([(0, 128)]));
        }
    }
}
