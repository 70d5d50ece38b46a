//! How a pool lies in its file. All integers are little-endian, all structures checksummed.
//!
//! ```text
//! block 0          superblock: written once, when the pool is made
//! block 1, 2       root, twice: which half of the catalogue counts, and how far it reached at least;
//!                  behind it the ceiling of promised version numbers, twice
//! block 3          zero, kept for later
//! CATALOGUE        catalogue half 0: frames, one after the other
//!   + half_len     catalogue half 1
//!   + 2 half_len   data area: blocks of BLOCK bytes, owned as the catalogue says
//! ```
//!
//! **Why a crash at any point is harmless.** The frames are [records](remanence_pmem::image::Records), the root and the ceiling are
//! [root records](remanence_pmem::image::RootFormat), and what a crash or damage can leave of these is argued there. Data goes to blocks that no committed blob names, and is durable before
//! the frame that names it is written. A frame counts only when its checksum, generation and sequence number fit,
//! and the next one is written only after the last one is durable. When a half is
//! full, the whole catalogue goes to the other half under the next generation, and counts only once the root says
//! so. Blocks that a commit sets
//! free are reused only after its frame is durable.

pub mod ceiling;
pub mod frame;
pub mod root;
pub mod superblock;

/// Bytes of a block: the unit of allocation, and what a page-cache domain writes back at least.
pub const BLOCK: u64 = 4096;

/// Where catalogue half 0 begins.
pub const CATALOGUE: u64 = 4 * BLOCK;

/// The version of this format. Another version is another format: nothing is guessed.
pub const VERSION: u32 = 1;

/// The most extents that one blob may have; keeps one record below [`frame::MAX_PAYLOAD`].
pub const MAX_EXTENTS: usize = 4096;

/// The parts of a pool of a given size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of the whole pool.
    pub size: u64,
    /// Bytes of each catalogue half.
    pub half_len: u64,
    /// Blocks in the data area.
    pub data_blocks: u64,
}

impl Geometry {
    /// The smallest pool: ten blocks of data.
    pub const MIN_SIZE: u64 = 64 << 10;
    /// The largest pool: 16 TiB, far below where any sum here could overflow.
    pub const MAX_SIZE: u64 = 1 << 44;

    /// Divides `size` bytes: 1/16 for the two halves of the catalogue (at most 256 MiB each), room for a record of
    /// 128 bytes for every block of data, so that a pool of small blobs runs out of data first; and up to an eighth
    /// in small pools; the rest for data.
    #[must_use]
    pub fn for_size(size: u64) -> Option<Self> {
        let size = size / BLOCK * BLOCK;
        if !(Self::MIN_SIZE..=Self::MAX_SIZE).contains(&size) {
            return None;
        }
        let least = (size / 16).min(128 << 10);
        let half_len = (size / 32).clamp(least, 256 << 20) / BLOCK * BLOCK;
        Self::check(size, half_len)
    }

    /// The geometry of a pool whose superblock says `size` and `half_len`, if they make sense.
    #[must_use]
    pub fn check(size: u64, half_len: u64) -> Option<Self> {
        let sane = size.is_multiple_of(BLOCK)
            && (Self::MIN_SIZE..=Self::MAX_SIZE).contains(&size)
            && half_len.is_multiple_of(BLOCK)
            && (BLOCK..=size / 4).contains(&half_len);
        sane.then(|| Self { size, half_len, data_blocks: (size - CATALOGUE - 2 * half_len) / BLOCK })
    }

    /// Where a half begins.
    #[must_use]
    pub const fn half(&self, half: Half) -> u64 {
        match half {
            Half::First => CATALOGUE,
            Half::Second => CATALOGUE + self.half_len,
        }
    }

    /// Where the data area begins.
    #[must_use]
    pub const fn data(&self) -> u64 {
        CATALOGUE + 2 * self.half_len
    }

    /// The byte offset of a data block.
    #[must_use]
    pub const fn block(&self, block: u64) -> u64 {
        self.data() + block * BLOCK
    }
}

/// One of the two places of the catalogue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Half {
    /// Half 0, which begins at [`CATALOGUE`] and is used first.
    First,
    /// Half 1, which lies behind half 0.
    Second,
}

impl Half {
    /// The half that this one is not.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// Reads a little-endian `u64` at a constant place of a fixed block.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fill_the_pool_and_do_not_overlap() {
        for size in [64 << 10, 1 << 20, (1 << 20) + 5000, 64 << 20, 1 << 30, 1 << 40, 1 << 44] {
            let g = Geometry::for_size(size).expect("a fair size");
            assert_eq!(g.block(g.data_blocks), g.size, "{g:?}");
            assert_eq!(g.half(Half::Second) + g.half_len, g.data());
            assert_eq!(Geometry::check(g.size, g.half_len), Some(g));
        }
        assert_eq!(Geometry::for_size(Geometry::MIN_SIZE - 1), None);
        assert_eq!(Geometry::for_size(u64::MAX), None);
        assert_eq!(Geometry::check(1 << 20, 1 << 19), None);
        assert_eq!(Geometry::check(1 << 20, 4097), None);
    }
}
