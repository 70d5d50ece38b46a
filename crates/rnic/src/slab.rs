//! Storage with stable small numbers, whose handles go stale when their object is destroyed.
//!
//! A handle is a slot (low bits) and the generation of that slot (high bits): a handle kept after its object was
//! destroyed finds nothing, until the generation wraps. Slots are reused oldest first to put that off.

use std::collections::VecDeque;

const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    max: u32,
}

impl<T> Slab<T> {
    /// An empty slab of at most `max` objects.
    pub(crate) fn new(max: u32) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), max: max.min(SLOT_MASK) }
    }

    /// The handle that the next insertion will return, if there is room.
    pub(crate) fn next_handle(&self) -> Option<u32> {
        if let Some(&slot) = self.free.front() {
            return Some(self.slots[slot as usize].generation << SLOT_BITS | slot);
        }
        let slot = u32::try_from(self.slots.len()).ok()?;
        (slot < self.max).then_some(slot)
    }

    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        let handle = self.next_handle()?;
        let slot = handle & SLOT_MASK;
        if self.free.pop_front().is_some() {
            self.slots[slot as usize].value = Some(value);
        } else {
            self.slots.push(Slot { generation: 0, value: Some(value) });
        }
        Some(handle)
    }

    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let slot = self.slots.get((handle & SLOT_MASK) as usize)?;
        if slot.generation != handle >> SLOT_BITS { None } else { slot.value.as_ref() }
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((handle & SLOT_MASK) as usize)?;
        if slot.generation != handle >> SLOT_BITS { None } else { slot.value.as_mut() }
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        self.get(handle)?;
        let index = handle & SLOT_MASK;
        let slot = &mut self.slots[index as usize];
        slot.generation = (slot.generation + 1) & (u32::MAX >> SLOT_BITS);
        self.free.push_back(index);
        slot.value.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut slab = Slab::new(2);
        let a = slab.insert('a').unwrap();
        let b = slab.insert('b').unwrap();
        assert_eq!(slab.insert('c'), None);
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let c = slab.insert('c').unwrap();
        assert_ne!(a, c);
        assert_eq!((slab.get(a), slab.get(b), slab.get(c)), (None, Some(&'b'), Some(&'c')));
    }
}
