//! An entry of the hash table: 16 bytes, two words that are each stored atomically.
//!
//! ```text
//!  0  meta  u64   bits 63-16 fingerprint, 15-8 check bits, 7-0 hint
//!  8  word  u64   the atomic word; 0: the entry is free, whatever meta says
//! ```
//! An entry that was never used has a meta word all the same ([`NEVER`]), if its table is [marked](super::RegionWord::MARKED): so
//! where both words are 0, a sector was lost.
//!
//! Fingerprints stand for keys, which may be of any length: the object that the word names has the key itself, and who
//! finds another key there goes on looking. The top bits of the fingerprint choose the bucket, so a table can be resized
//! from its entries alone.
//!
//! The fingerprint says in which head's log the objects are ([`Geometry::head_of`](super::Geometry::head_of)), so the byte that
//! had the head ID has check bits instead, which put one flipped bit right. In memory it is the head ID ([`Meta::new`]).

use super::code::{Checked, Code};
use super::{UNIT, Word, get_u64};

const CODE: Code<8> = Code::new(8, !0xFF00);

/// Bytes in an entry.
pub const SLOT_LEN: u64 = 16;
/// Entries of a neighbourhood: an entry lies at most this many minus one behind its home bucket.
pub const NEIGHBOURHOOD: u64 = 16;
/// Bits of a fingerprint.
pub const FINGERPRINT_BITS: u32 = 48;

/// The meta word of an entry that was never used, as it is stored.
pub const NEVER: u64 = Meta::new(0, 0, Hint(1)).seal();
const _: () = assert!(NEVER.count_ones() > 2);

/// What tells an entry from the others, and how to read it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Meta(pub u64);

impl Meta {
    /// Of an entry.
    #[must_use]
    pub const fn new(fingerprint: u64, head: u8, hint: Hint) -> Self {
        Self(fingerprint << 16 | (head as u64) << 8 | hint.0 as u64)
    }

    /// The fingerprint of the key, 48 bits.
    #[must_use]
    pub const fn fingerprint(self) -> u64 {
        self.0 >> 16
    }

    /// The head in whose log the objects are.
    #[must_use]
    pub const fn head(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// How much to read.
    #[must_use]
    pub const fn hint(self) -> Hint {
        Hint(self.0 as u8)
    }

    /// With another hint.
    #[must_use]
    pub const fn with_hint(self, hint: Hint) -> Self {
        Self(self.0 & !0xFF | hint.0 as u64)
    }
}

impl Meta {
    const fn head_of(word: u64, heads: u16) -> u8 {
        ((word >> 16) % heads as u64) as u8
    }

    /// As it is stored: with check bits in place of the head ID.
    #[must_use]
    pub const fn seal(self) -> u64 {
        CODE.seal(self.0)
    }

    /// From a stored word, of which nothing is checked: recovery has done that.
    #[must_use]
    pub const fn loaded(word: u64, heads: u16) -> Self {
        Self(word & !0xFF00 | (Self::head_of(word, heads) as u64) << 8)
    }

    /// From a stored word, and whether a bit of it was wrong. `None`: more than one.
    #[must_use]
    pub const fn check(word: u64, heads: u16) -> Option<(Self, bool)> {
        match CODE.check(word) {
            Checked::Sound => Some((Self::loaded(word, heads), false)),
            Checked::Mended(word) => Some((Self::loaded(word, heads), true)),
            Checked::Unsound => None,
        }
    }
}

/// What fingerprint a hash of a key gives.
#[must_use]
pub const fn fingerprint(hash: u64) -> u64 {
    hash >> (64 - FINGERPRINT_BITS)
}

/// How long the object is, so that one READ fetches it. Only a hint: it is not stored together with the word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Hint(pub u8);

impl Hint {
    /// The value lies in chunks; the object lists them. Set durably before the word names such an object, as recovery
    /// finds chunks by it.
    pub const CHAINED: Self = Self(255);

    /// Of an object with so many bytes: 5 bits of exponent and 3 of mantissa, rounded up, so at most an eighth too much.
    #[must_use]
    pub fn of(len: u64) -> Self {
        let units = len.div_ceil(UNIT);
        (0..Self::CHAINED.0).map(Self).find(|hint| hint.units() >= units).unwrap_or(Self(Self::CHAINED.0 - 1))
    }

    const fn units(self) -> u64 {
        let (exponent, mantissa) = (self.0 as u32 >> 3, self.0 as u64 & 7);
        if exponent == 0 { mantissa + 1 } else { (mantissa + 9) << (exponent - 1) }
    }

    /// Bytes to read.
    #[must_use]
    pub const fn len(self) -> u64 {
        if self.0 == Self::CHAINED.0 { 16 * UNIT } else { self.units() * UNIT }
    }

    /// Never: every object has bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// An entry as it was read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// What tells it from others.
    pub meta: Meta,
    /// Where the versions are.
    pub word: Word,
}

impl Slot {
    /// With the head ID of its fingerprint, in a store of so many heads.
    #[must_use]
    pub const fn of(self, heads: u16) -> Self {
        Self { meta: Meta::loaded(self.meta.0, heads), word: self.word }
    }

    /// The entries in these bytes, their meta words as they are stored: see [`of`](Self::of).
    pub fn parse_all(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        bytes
            .chunks_exact(SLOT_LEN as usize)
            .map(|slot| Self { meta: Meta(get_u64(slot, 0)), word: Word(get_u64(slot, 8)) })
    }
}

/// A hash table: a header of 64 bytes whose first word counts moves, then the entries, no wrapping at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableAt {
    /// Where the header lies on the medium.
    pub at: u64,
    /// How many home buckets.
    pub buckets: u64,
}

impl TableAt {
    /// Bytes of a table with so many buckets.
    #[must_use]
    pub const fn bytes(buckets: u64) -> u64 {
        UNIT + (buckets + NEIGHBOURHOOD - 1) * SLOT_LEN
    }

    /// How many entries it has.
    #[must_use]
    pub const fn slots(&self) -> u64 {
        self.buckets + NEIGHBOURHOOD - 1
    }

    /// The home bucket of a fingerprint. Monotone, so that buckets of tables of any size are in one order.
    #[must_use]
    pub const fn home(&self, fingerprint: u64) -> u64 {
        ((fingerprint as u128 * self.buckets as u128) >> FINGERPRINT_BITS) as u64
    }

    /// Where an entry lies.
    #[must_use]
    pub const fn slot(&self, index: u64) -> u64 {
        self.at + UNIT + index * SLOT_LEN
    }

    /// Where the neighbourhood of a fingerprint starts; [`NEIGHBOURHOOD`] entries are it.
    #[must_use]
    pub const fn neighbourhood(&self, fingerprint: u64) -> u64 {
        self.slot(self.home(fingerprint))
    }
}
