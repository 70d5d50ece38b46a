//! The store on its medium. All integers are little-endian.
//!
//! ```text
//!      0  superblock                   what the store is made of
//!   4096  root record (two pages)      which tables there are, how often the store was opened
//!  11776  superblock, the second copy  in the last sector of the root record's pages, which that leaves alone
//!  12288  head words, 256 x 8 bytes    how far each head's log has handed out addresses
//!  14336  directory, 8 bytes/region    what each region is: free, log of a head, table
//!    ...  regions                      from the next multiple of 4096
//! ```
//! A region is the unit of allocation (1 GiB unless the pool is small); it is divided into segments (8 MiB), and no object
//! spans two of them. A region is free, or a link of one head's log, or part of a hash table.
//!
//! A head's log has 2^31 units of 64 bytes, 128 GiB, and an offset into it ([`Offset`]) is what the 8-byte word of an entry
//! holds twice. Link `offset / units per region` of the head is found in the directory. Links are numbered on a circle, and
//! a number is not used again before every client has said that it forgot the region which had it. So an offset names one
//! place as long as anybody may hold it, and log cleaning moves an object by one atomic store.

pub mod code;
pub mod directory;
pub mod object;
pub mod slot;
pub mod superblock;
pub mod v1;
pub mod word;

pub use directory::{HeadWord, RegionKind, RegionWord};
pub use object::{Chunk, Flaw, Header, Object, Place};
pub use slot::{Hint, Meta, Slot};
pub use superblock::{Superblock, SuperblockError};
pub use word::{Offset, Word};

/// Bytes in a unit, the grain of an [`Offset`]: a cache line, so that no two objects share one.
pub const UNIT: u64 = 64;
/// Offsets have so many bits.
pub const OFFSET_BITS: u32 = 31;
/// The most heads, since a head ID is one byte.
pub const HEADS_MAX: u16 = 256;
/// Where the root record lies.
pub const ROOT: u64 = 4096;
/// Where the head words lie.
pub const HEAD_WORDS: u64 = ROOT + remanence_pmem::layout::ROOT_LEN;
/// Where the directory lies.
pub const DIRECTORY: u64 = HEAD_WORDS + 8 * HEADS_MAX as u64;
/// The longest key, bytes.
pub const KEY_MAX: usize = 1024;

const _: () = assert!(HEAD_WORDS == 12288 && DIRECTORY == 14336);

/// How a medium is divided. Chosen at format, then fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of the medium that are used.
    pub size: u64,
    /// Bytes in a region.
    pub region_len: u64,
    /// Bytes in a segment.
    pub segment_len: u64,
    /// Heads, 1 to 256.
    pub heads: u16,
}

/// Why a geometry will not do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadGeometry(pub &'static str);

impl Geometry {
    /// The paper's: 1 GiB regions of 8 MiB segments, as far as `size` has room for at least 64 of them; smaller ones
    /// otherwise.
    #[must_use]
    pub fn for_size(size: u64) -> Self {
        let region_len =
            (size / 80).next_power_of_two().clamp(16 << 10, 1 << 30) >> u32::from(size < 80 << 30);
        let region_len = region_len.max(16 << 10);
        let segment_len = (region_len / 4).min(8 << 20);
        let heads = (size / region_len / 16).clamp(1, 16) as u16;
        Self { size, region_len, segment_len, heads }
    }

    /// Whether it can be used.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn check(&self) -> Result<(), BadGeometry> {
        let fault = if self.heads == 0 || self.heads > HEADS_MAX {
            "a store has 1 to 256 heads"
        } else if self.segment_len < 4 * UNIT || !self.segment_len.is_multiple_of(UNIT) {
            "a segment is a multiple of 64 bytes, 256 at least"
        } else if self.segment_len > 1 << 31 {
            "a segment has 2 GiB at most"
        } else if self.region_len == 0 || !self.region_len.is_multiple_of(self.segment_len) {
            "a region is a multiple of its segments"
        } else if self.region_len > UNIT << OFFSET_BITS >> 2 {
            "a region has 32 GiB at most, so that a head's log has four links at least"
        } else if self.size > 1 << 56 || self.regions_fitting() < 4 {
            "the medium has no room for four regions"
        } else {
            return Ok(());
        };
        Err(BadGeometry(fault))
    }

    fn regions_fitting(&self) -> u64 {
        let mut count = self.size.saturating_sub(DIRECTORY) / (self.region_len + 8);
        while count > 0 && data_start(count) + count * self.region_len > self.size {
            count -= 1;
        }
        count
    }

    /// How many regions there are.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.regions_fitting().min(u64::from(u32::MAX)) as u32
    }

    /// Where a region starts.
    #[must_use]
    pub fn region(&self, index: u32) -> u64 {
        data_start(self.regions().into()) + u64::from(index) * self.region_len
    }

    /// Units in a region.
    #[must_use]
    pub const fn region_units(&self) -> u32 {
        (self.region_len / UNIT) as u32
    }

    /// Units in a segment.
    #[must_use]
    pub const fn segment_units(&self) -> u32 {
        (self.segment_len / UNIT) as u32
    }

    /// How many links a head's log can have.
    #[must_use]
    pub const fn links(&self) -> u32 {
        let links = (1 << OFFSET_BITS) / self.region_units();
        if links > 1 << 16 { 1 << 16 } else { links }
    }

    /// The most bytes of one object. The first unit of a region is never handed out: offset 0 means *none*.
    #[must_use]
    pub const fn object_max(&self) -> u64 {
        self.segment_len - UNIT
    }

    /// Which head keeps the objects of a key with this fingerprint.
    #[must_use]
    pub const fn head_of(&self, fingerprint: u64) -> u8 {
        // The low bits: the high ones choose the bucket.
        (fingerprint % self.heads as u64) as u8
    }

    /// The link and the unit in it that an offset names.
    #[must_use]
    pub const fn split(&self, offset: Offset) -> (u16, u32) {
        ((offset.0 / self.region_units()) as u16, offset.0 % self.region_units())
    }

    /// The offset of a unit of a link.
    #[must_use]
    pub const fn join(&self, link: u16, unit: u32) -> Offset {
        Offset(link as u32 * self.region_units() + unit)
    }
}

const fn data_start(regions: u64) -> u64 {
    (DIRECTORY + 8 * regions).next_multiple_of(4096)
}

/// The 64-bit hash of a key. Part of the format: it never changes. The salt is the store's, drawn at format, so that nobody
/// can prepare keys that collide in every store.
#[must_use]
pub fn hash(salt: u64, key: &[u8]) -> u64 {
    let mut state = mix(salt ^ key.len() as u64);
    for part in key.chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// The finaliser of SplitMix64: every bit of the input changes every bit of the output with probability one half.
const fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
