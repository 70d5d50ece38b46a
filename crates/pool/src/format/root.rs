//! Blocks 1 and 2: which half of the catalogue counts.
//!
//! Both copies are written whenever the root changes, the second only after the first is durable. So one of them is
//! whole after any crash, and neither a torn copy nor one that rots later can bring an old catalogue back: the
//! larger generation wins.

use super::{BLOCK, Half, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"REMROOT\0";

mod field {
    pub(super) const GENERATION: usize = 8;
    pub(super) const REACHED: usize = 16;
    pub(super) const HALF: usize = 24;
    pub(super) const CRC: usize = 28;
    pub(super) const END: usize = 32;
}

/// Bytes of a root copy that mean something.
pub const LEN: usize = field::END;

/// Where the two copies lie.
pub const COPIES: [u64; 2] = [BLOCK, 2 * BLOCK];

/// The root of a pool: which half of the catalogue counts, and how far it reached at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Counts the catalogue's moves from half to half, from 1; frames of another generation are leftovers and do not
    /// count.
    pub generation: u64,
    /// The sequence number of a frame that was durable when the root was written: a catalogue that ends before
    /// it is damaged, not torn.
    pub reached: u64,
    /// The half that counts.
    pub half: Half,
}

impl Root {
    /// One copy. `salt` is the superblock's: a root of another pool is none.
    #[must_use]
    pub fn emit(&self, salt: u64) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[field::GENERATION..][..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[field::REACHED..][..8].copy_from_slice(&self.reached.to_le_bytes());
        bytes[field::HALF] = u8::from(self.half == Half::Second);
        let crc = checksum(&bytes, salt);
        bytes[field::CRC..][..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads one copy, if it is whole.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN], salt: u64) -> Option<Self> {
        let whole = &bytes[..8] == MAGIC
            && checksum(bytes, salt) == u32_at(bytes, field::CRC)
            && bytes[field::HALF] <= 1;
        whole.then(|| Self {
            generation: u64_at(bytes, field::GENERATION),
            reached: u64_at(bytes, field::REACHED),
            half: if bytes[field::HALF] == 0 { Half::First } else { Half::Second },
        })
    }

    /// The copy that counts: the one of the later root, if any is whole.
    #[must_use]
    pub fn choose(copies: [Option<Self>; 2]) -> Option<Self> {
        copies.into_iter().flatten().max_by_key(|root| (root.generation, root.reached))
    }
}

fn checksum(bytes: &[u8; LEN], salt: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&bytes[..field::CRC]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_makes_it_none() {
        let root = Root { generation: 3, reached: 77, half: Half::Second };
        let bytes = root.emit(9);
        assert_eq!(Root::parse(&bytes, 9), Some(root));
        assert_eq!(Root::parse(&bytes, 8), None);
        for bit in 0..LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Root::parse(&bad, 9), None, "bit {bit}");
        }
    }

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let bytes = Root { generation: 3, reached: 77, half: Half::Second }.emit(9);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "52454d524f4f540003000000000000004d00000000000000010000003ad5a748");
    }

    #[test]
    fn the_later_copy_counts() {
        let old = Root { generation: 3, reached: 77, half: Half::Second };
        let new = Root { generation: 4, reached: 78, half: Half::First };
        assert_eq!(Root::choose([Some(new), Some(old)]), Some(new));
        assert_eq!(Root::choose([Some(old), Some(new)]), Some(new));
        assert_eq!(Root::choose([None, Some(old)]), Some(old));
        assert_eq!(Root::choose([None, None]), None);
    }
}
