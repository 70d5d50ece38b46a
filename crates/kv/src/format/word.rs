//! The 8-byte atomic word of an entry (paper 002, 3.2.3 and figure 6).
//!
//! ```text
//!  bit 63      new tag: 1, the first offset is the new one; 0, the second
//!  bits 62-32  first offset, in units of 64 bytes
//!  bits 31-1   second offset
//!  bit 0       pending (the paper's reserved bit)
//! ```
//! *Pending* says that the new offset was handed out, and that the server has not yet seen a whole object there and made
//! it durable. The one bit answers four questions that the paper leaves open: whether the new version may be shifted into
//! the place of the old one, which objects recovery must check, whether what a reader has found can still vanish, and what
//! log cleaning may move.

use std::fmt;

/// A place in a head's log, in units of 64 bytes. 0 names nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Offset(pub u32);

impl Offset {
    /// The place after `units` more.
    #[must_use]
    pub const fn plus(self, units: u32) -> Self {
        Self(self.0 + units)
    }
}

/// The word. 0 means that the entry is free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(pub u64);

const TAG: u64 = 1 << 63;
const PENDING: u64 = 1;
const MASK: u64 = (1 << super::OFFSET_BITS) - 1;
const FIRST: u32 = 32;
const SECOND: u32 = 1;

impl Word {
    /// No entry.
    pub const FREE: Self = Self(0);

    /// An entry that is about to be free: readers must not believe so yet, recovery may.
    pub const GOING: Self = Self(PENDING);

    /// Whether there is no entry.
    #[must_use]
    pub const fn is_free(self) -> bool {
        self.0 == 0
    }

    const fn shifts(self) -> (u32, u32) {
        if self.0 & TAG != 0 { (FIRST, SECOND) } else { (SECOND, FIRST) }
    }

    const fn at(self, shift: u32) -> Option<Offset> {
        match (self.0 >> shift & MASK) as u32 {
            0 => None,
            offset => Some(Offset(offset)),
        }
    }

    /// The latest version's place.
    #[must_use]
    pub const fn new_offset(self) -> Option<Offset> {
        self.at(self.shifts().0)
    }

    /// The previous version's place.
    #[must_use]
    pub const fn old_offset(self) -> Option<Offset> {
        self.at(self.shifts().1)
    }

    /// Whether the new version may be incomplete, or not durable.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// An update: the tag flips, the new version becomes the old one, and the handed-out place is new and pending.
    #[must_use]
    pub const fn update(self, offset: Offset) -> Self {
        let (_, old) = self.shifts();
        let kept = self.0 & !(MASK << old) & !PENDING;
        Self((kept ^ TAG) | (offset.0 as u64 & MASK) << old | PENDING)
    }

    /// The new version is whole and durable.
    #[must_use]
    pub const fn settled(self) -> Self {
        Self(self.0 & !PENDING)
    }

    /// The old place becomes the new one, settled, and nothing is old: what repair does with an object that never became
    /// whole, and what the end of log cleaning does with the place in the region that goes away.
    #[must_use]
    pub const fn flipped(self) -> Self {
        let (new, old) = self.shifts();
        if self.at(old).is_none() {
            return Self::FREE;
        }
        Self((self.0 & !(MASK << new) & !PENDING) ^ TAG)
    }

    /// The same new version, with another place (or none) as the old one.
    #[must_use]
    pub const fn with_old(self, offset: Option<Offset>) -> Self {
        let (_, old) = self.shifts();
        let offset = match offset {
            Some(offset) => offset.0 as u64 & MASK,
            None => 0,
        };
        Self(self.0 & !(MASK << old) | offset << old)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |offset: Option<Offset>| offset.map_or_else(|| "-".to_owned(), |o| o.0.to_string());
        let pending = if self.is_pending() { " pending" } else { "" };
        write!(f, "Word(new {}, old {}{pending})", show(self.new_offset()), show(self.old_offset()))
    }
}
