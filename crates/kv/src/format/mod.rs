//! The store on its medium. All integers are little-endian.
//!
//! ```text
//!      0  superblock                   what the store is made of
//!   1024  note of the journal          whether the store's file has one: the file's own, and no part of the store
//!   4096  root record (two pages)      which tables there are, how often the store was opened
//!  11776  superblock, the second copy  in the last sector of the root record's pages, which that leaves alone
//!  12288  head words, 256 x 8 bytes    how far each head's log has handed out addresses
//!  14336  directory, 8 bytes/region    what each region is: free, log of a head, table
//!    ...  regions                      from the next multiple of 4096
//! ```
//! Behind the regions that a store was made with, those that it has grown by since lie in *runs*: a region's length of directory words,
//! and the regions that these are of. So nothing moves when a store grows.
//!
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
pub use object::{Chunk, Flaw, Header, Object, ObjectAddress};
pub use slot::{Hint, Meta, Slot};
pub use superblock::{Superblock, SuperblockError};
pub use word::{Offset, Word};

use std::ops::Range;

/// Bytes in a unit, the grain of an [`Offset`]: a cache line, so that no two objects share one.
pub const UNIT: u64 = 64;
/// Offsets have so many bits.
pub const OFFSET_BITS: u32 = 31;
/// The most heads, since a head ID is one byte.
pub const HEADS_MAX: u16 = 256;
/// Where the root record lies.
pub const ROOT: u64 = 4096;
/// Where the head words lie.
pub const HEAD_WORDS: u64 = ROOT + remanence_pmem::image::ROOT_LEN;
/// Where the directory lies.
pub const DIRECTORY: u64 = HEAD_WORDS + 8 * HEADS_MAX as u64;
/// The longest key, bytes.
pub const KEY_MAX: usize = 1024;

const _: () = assert!(HEAD_WORDS == 12288 && DIRECTORY == 14336);

/// How a medium is divided. Chosen at format, then fixed, but for the size, which may [grow](Self::grown_to).
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
    /// Bytes of the medium that were used when the store was made, if it has grown since; else 0.
    pub grown_from: u64,
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
        Self { size, region_len, segment_len, heads, grown_from: 0 }
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
        } else if self.grown_from > self.size {
            "a store does not shrink"
        } else if self.size > 1 << 56 || self.made_with().regions_fitting() < 4 {
            "the medium has no room for four regions"
        } else if self.grown_from > 0 && self.regions_in_all() > self.regions_max() {
            "the heads have no links for so many regions"
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

    /// As it was when the store was made.
    const fn made_with(&self) -> Self {
        let size = if self.grown_from == 0 { self.size } else { self.grown_from };
        Self { size, grown_from: 0, ..*self }
    }

    fn regions_in_all(&self) -> u64 {
        let base = self.made_with().regions_fitting();
        if self.grown_from == 0 {
            return base;
        }
        let more = (self.size.saturating_sub(data_start(base)) / self.region_len).saturating_sub(base);
        let (runs, rest) = (more / (self.run() + 1), more % (self.run() + 1));
        base + runs * self.run() + rest.saturating_sub(1)
    }

    /// The most regions that a store may grow to: half of what its heads have links for, so that the heads find a link that is
    /// free when all regions are used and some heads have more of them than others.
    fn regions_max(&self) -> u64 {
        u64::from(self.heads) * u64::from(self.links()) / 2
    }

    /// Regions of a run: as many as a region has room for words of the directory.
    const fn run(&self) -> u64 {
        self.region_len / 8
    }

    /// The run of a region that came when the store grew, and its number in that; `None`: the store was made with it.
    fn in_run(&self, region: u32) -> (u64, Option<(u64, u64)>) {
        let base = self.made_with().regions_fitting();
        let behind = u64::from(region).checked_sub(base).filter(|_| self.grown_from > 0);
        (base, behind.map(|nth| (nth / self.run(), nth % self.run())))
    }

    /// How many regions there are.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.regions_in_all().min(u64::from(u32::MAX)) as u32
    }

    /// Where a region starts.
    #[must_use]
    pub fn region(&self, index: u32) -> u64 {
        let (base, run) = self.in_run(index);
        // Each run begins with its words.
        let places = u64::from(index) + run.map_or(0, |(run, _)| run + 1);
        data_start(base) + places * self.region_len
    }

    /// Where the directory has the word of a region.
    #[must_use]
    pub fn directory(&self, region: u32) -> u64 {
        match self.in_run(region) {
            (_, None) => DIRECTORY + 8 * u64::from(region),
            (base, Some((run, nth))) => {
                data_start(base) + (base + run * (self.run() + 1)) * self.region_len + 8 * nth
            }
        }
    }

    /// The region that starts at a byte of the medium.
    #[must_use]
    pub fn region_at(&self, at: u64) -> Option<u32> {
        let base = self.made_with().regions_fitting();
        let within =
            at.checked_sub(data_start(base)).filter(|within| within.is_multiple_of(self.region_len))?;
        let place = within / self.region_len;
        let region = match place.checked_sub(base).filter(|_| self.grown_from > 0) {
            None => place,
            Some(behind) => {
                let (run, nth) = (behind / (self.run() + 1), behind % (self.run() + 1));
                base + run * self.run() + nth.checked_sub(1)?
            }
        };
        u32::try_from(region).ok().filter(|region| *region < self.regions())
    }

    /// The regions of so many bytes from there on, which begin with a region, and with no directory between them.
    #[must_use]
    pub fn regions_at(&self, at: u64, len: u64) -> Option<Range<u32>> {
        let count = u32::try_from(len.div_ceil(self.region_len)).ok().filter(|count| *count > 0)?;
        let first = self.region_at(at)?;
        let last = first.checked_add(count - 1).filter(|last| *last < self.regions())?;
        let far = u64::from(count - 1) * self.region_len;
        (self.region(last) == at + far).then_some(first..last + 1)
    }

    /// The most regions that lie in a row, which is what a table can have.
    #[must_use]
    pub fn in_a_row(&self) -> u64 {
        let base = self.made_with().regions_fitting();
        base.max(self.run().min(self.regions_in_all() - base))
    }

    /// Whether the next region lies right behind this one.
    #[must_use]
    pub fn goes_on(&self, region: u32) -> bool {
        self.region(region) + self.region_len == self.region(region.saturating_add(1))
    }

    /// The same store on so many bytes: all that it has stays where it is.
    ///
    /// # Errors
    /// It does not grow by a region.
    pub fn grown_to(&self, size: u64) -> Result<Self, BadGeometry> {
        let grown = Self { size, grown_from: self.made_with().size, ..*self };
        grown.check()?;
        if size <= self.size || grown.regions() <= self.regions() {
            return Err(BadGeometry("there is no room for a region more"));
        }
        Ok(grown)
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
