//! The table of QPs: one index from a QP number in a packet to its QP.

use std::ops::Range;

use remanence_wire::Qpn;

use super::Qp;

/// QP 0 and QP 1 are special; 0xffffff is the multicast destination.
const NUMBERS: Range<u32> = 2..0xff_ffff;

/// A block of QP numbers and the slots that they lead to.
#[derive(Debug)]
struct Block {
    qpns: Range<u32>,
    /// Slot + 1 for each number, 0 for none; grows to the highest number ever used.
    slots: Vec<u32>,
    /// The number to try next: numbers come back as late as possible, so that stray packets of an old connection
    /// find nobody.
    next: u32,
}

#[derive(Debug)]
pub(crate) struct QpTable {
    slots: Vec<Option<Box<Qp>>>,
    free: Vec<u32>,
    blocks: Vec<Block>,
    live: u32,
    max: u32,
}

impl QpTable {
    pub(crate) fn new(qpns: Range<u32>, max: u32) -> Self {
        let mut table = Self { slots: Vec::new(), free: Vec::new(), blocks: Vec::new(), live: 0, max };
        table.add_range(qpns);
        table
    }

    pub(crate) fn add_range(&mut self, qpns: Range<u32>) {
        let qpns = qpns.start.max(NUMBERS.start)..qpns.end.min(NUMBERS.end);
        if !qpns.is_empty() {
            self.blocks.push(Block { next: qpns.start, qpns, slots: Vec::new() });
        }
    }

    #[inline]
    pub(crate) fn slot(&self, qpn: Qpn) -> Option<u32> {
        // One block is the rule; a host that hands out numbers in blocks makes it a few.
        for block in &self.blocks {
            let index = qpn.value().wrapping_sub(block.qpns.start) as usize;
            if let Some(&slot) = block.slots.get(index) {
                return slot.checked_sub(1);
            }
        }
        None
    }

    #[inline]
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.slots.iter_mut().flatten().map(Box::as_mut)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        self.slots[self.slot(qpn)? as usize].as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let slot = self.slot(qpn)?;
        self.slots[slot as usize].as_deref_mut()
    }

    /// Adds the QP that `make` builds for a number and a slot; `None` when either has run out.
    pub(crate) fn insert(&mut self, make: impl FnOnce(Qpn, u32) -> Qp) -> Option<Qpn> {
        if self.live >= self.max {
            return None;
        }
        let (block, qpn) =
            self.blocks.iter_mut().find_map(|block| block.free_number().map(|qpn| (block, qpn)))?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let index = (qpn - block.qpns.start) as usize;
        if block.slots.len() <= index {
            block.slots.resize(index + 1, 0);
        }
        block.slots[index] = slot + 1;
        let qpn = Qpn::new(qpn);
        self.slots[slot as usize] = Some(Box::new(make(qpn, slot)));
        self.live += 1;
        Some(qpn)
    }

    pub(crate) fn remove(&mut self, qpn: Qpn) -> Option<Box<Qp>> {
        let slot = self.slot(qpn)?;
        for block in &mut self.blocks {
            let index = qpn.value().wrapping_sub(block.qpns.start) as usize;
            if let Some(entry) = block.slots.get_mut(index) {
                *entry = 0;
            }
        }
        self.free.push(slot);
        self.live -= 1;
        self.slots[slot as usize].take()
    }
}

impl Block {
    fn free_number(&mut self) -> Option<u32> {
        for _ in 0..self.qpns.len() {
            let qpn = self.next;
            self.next = if qpn + 1 == self.qpns.end { self.qpns.start } else { qpn + 1 };
            let index = (qpn - self.qpns.start) as usize;
            if self.slots.get(index).is_none_or(|&slot| slot == 0) {
                return Some(qpn);
            }
        }
        None
    }
}
