//! The 8-byte atomic word of an entry (paper 002, 3.2.3 and figure 6).
//!
//! ```text
//!  bit 63      parity: a word has an even number of ones
//!  bits 62-32  offset of the new version, in units of 64 bytes
//!  bits 31-1   offset of the one before
//!  bit 0       pending (the paper's reserved bit)
//! ```
//! The paper has a tag in bit 63 that says which of the two offsets is the new one. A word is stored as a whole, so the new one
//! can always be the first, and the bit is free to tell a flipped one: a word whose parity is wrong names nothing, and who
//! meets it does not take another version, or none, for the key's. What it was is found by looking at the objects that the
//! words of one bit less or more name ([`Word::neighbours`]), which have checksums.
//!
//! *Pending* says that the new offset was handed out, and that the server has not yet seen a whole object there and made
//! it durable. The one bit answers four questions that the paper leaves open: whether the new version may be shifted into
//! the place of the old one, which objects recovery must check, whether what a reader has found can still vanish, and what
//! log cleaning may move.

use std::fmt;

/// A place in a head's log, in units of 64 bytes. 0 names nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Offset(pub u32);

/// The word. 0 means that the entry is free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(pub u64);

const PARITY: u64 = 1 << 63;
const PENDING: u64 = 1;
const MASK: u64 = (1 << super::OFFSET_BITS) - 1;
const NEW: u32 = 32;
const OLD: u32 = 1;

impl Word {
    /// The word of an entry that names nothing: no key is in it.
    pub const FREE: Self = Self(0);

    /// An entry that is about to be free: readers must not believe so yet, recovery may.
    pub const GOING: Self = Self::of(0, 0, PENDING);

    const fn of(new: u64, old: u64, pending: u64) -> Self {
        let word = new << NEW | old << OLD | pending;
        Self(word | if word.count_ones().is_multiple_of(2) { 0 } else { PARITY })
    }

    /// Whether there is no entry.
    #[must_use]
    pub const fn is_free(self) -> bool {
        self.0 == 0
    }

    /// Whether its parity is right. Otherwise it names nothing.
    #[must_use]
    pub const fn is_sound(self) -> bool {
        self.0.count_ones().is_multiple_of(2)
    }

    /// What it may have been before one bit was flipped: every word that differs in one bit.
    pub fn neighbours(self) -> impl Iterator<Item = Self> {
        (0..64).map(move |bit| Self(self.0 ^ 1 << bit))
    }

    const fn bits(self, shift: u32) -> u64 {
        if self.is_sound() { self.0 >> shift & MASK } else { 0 }
    }

    const fn at(self, shift: u32) -> Option<Offset> {
        match self.bits(shift) as u32 {
            0 => None,
            offset => Some(Offset(offset)),
        }
    }

    /// The latest version's place.
    #[must_use]
    pub const fn new_offset(self) -> Option<Offset> {
        self.at(NEW)
    }

    /// The previous version's place.
    #[must_use]
    pub const fn old_offset(self) -> Option<Offset> {
        self.at(OLD)
    }

    /// Whether the new version may be incomplete, or not durable.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        self.is_sound() && self.0 & PENDING != 0
    }

    const fn pending(self) -> u64 {
        if self.is_pending() { PENDING } else { 0 }
    }

    /// An update: the new version becomes the old one, and the handed-out place is new and pending.
    #[must_use]
    pub const fn update(self, offset: Offset) -> Self {
        Self::of(offset.0 as u64 & MASK, self.bits(NEW), PENDING)
    }

    /// The same word, once the new version is whole and durable.
    #[must_use]
    pub const fn settled(self) -> Self {
        Self::of(self.bits(NEW), self.bits(OLD), 0)
    }

    /// The old place becomes the new one, settled, and nothing is old: what repair does with an object that never became
    /// whole, and what the end of log cleaning does with the place in the region that goes away.
    #[must_use]
    pub const fn flipped(self) -> Self {
        Self::of(self.bits(OLD), 0, 0)
    }

    /// The same new version, with another place (or none) as the old one.
    #[must_use]
    pub const fn with_old(self, offset: Option<Offset>) -> Self {
        let offset = match offset {
            Some(offset) => offset.0 as u64 & MASK,
            None => 0,
        };
        Self::of(self.bits(NEW), offset, self.pending())
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_sound() {
            return write!(f, "Word({:#x}, parity wrong)", self.0);
        }
        let show = |offset: Option<Offset>| offset.map_or_else(|| "-".to_owned(), |o| o.0.to_string());
        let pending = if self.is_pending() { " pending" } else { "" };
        write!(f, "Word(new {}, old {}{pending})", show(self.new_offset()), show(self.old_offset()))
    }
}
