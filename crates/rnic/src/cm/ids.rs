//! Allocation of local communication IDs.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::types::CommIdSpace;

/// Walks the IDs of a space in an order that the seed chooses and that comes back to an ID only after all others.
///
/// An ID that is used again soon after its connection ended could meet a delayed message of the old one, so the
/// walk goes round the whole space; and it starts anywhere, with any odd stride, so that a restarted process does
/// not use the IDs again that its predecessor's peers still know.
#[derive(Debug)]
pub(super) struct CommIds {
    space: CommIdSpace,
    next: u32,
    stride: u32,
}

impl CommIds {
    pub(super) fn new(space: CommIdSpace, seed: u64) -> Self {
        assert!(space.prefix_bits <= 24, "a prefix of {} bits leaves no IDs", space.prefix_bits);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // An odd stride is coprime to the power of two that the space's size is.
        Self { space, next: rng.next_u32(), stride: rng.next_u32() | 1 }
    }

    /// The next ID that is not `taken`. The space must have one.
    pub(super) fn allocate(&mut self, taken: impl Fn(u32) -> bool) -> u32 {
        let bits = 32 - u32::from(self.space.prefix_bits);
        loop {
            self.next = self.next.wrapping_add(self.stride);
            let low = if bits == 32 { self.next } else { self.next & ((1 << bits) - 1) };
            let id = if bits == 32 { low } else { self.space.prefix << bits | low };
            // Zero means "none yet" in REJ and in the rdma_cm of Linux.
            if id != 0 && !taken(id) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_keep_their_prefix_and_do_not_come_back_early() {
        let space = CommIdSpace { prefix: 0xab_cdef, prefix_bits: 24 };
        let mut ids = CommIds::new(space, 7);
        let round: BTreeSet<u32> = (0..256).map(|_| ids.allocate(|_| false)).collect();
        assert_eq!(round.len(), 256);
        assert!(round.iter().all(|&id| space.contains(id)));
        assert!(!space.contains(0x1234_5678));
    }

    #[test]
    fn seeds_begin_elsewhere() {
        let first = |seed| CommIds::new(CommIdSpace::ALL, seed).allocate(|_| false);
        assert_ne!(first(1), first(2));
        assert_eq!(first(1), first(1));
    }
}
