//! Format 1, as far as it was different: what the upgrade reads ([`crate::server`] has the order of its steps).
//!
//! ```text
//! atomic word  bit 63 tag: 1, the first offset (bits 62-32) is the new one; 0, the second (bits 31-1)
//! meta word    bits 15-8 head ID
//! directory    bits 7-0 0 free, 1 log, 2 table; the rest as now, a head ID of 0 where there is none
//! head word    bits 62-48 zero; 0 for a log that has nothing
//! ```
//! Every step of the upgrade can be done again where it was cut short: words are first brought to a form that format 1 has as
//! well (the new offset first), and then given check bits that depend only on what they have beside them.

use super::word::Word;
use super::{HeadWord, Meta, Offset, RegionKind, RegionWord};

const TAG: u64 = 1 << 63;
const MASK: u64 = (1 << super::OFFSET_BITS) - 1;

/// An atomic word with its new offset first, still in format 1. 0 if it names nothing new: it was being made, or going.
#[must_use]
pub const fn new_first(word: u64) -> u64 {
    let (first, second) = (word >> 32 & MASK, word >> 1 & MASK);
    let (new, old) = if word & TAG != 0 { (first, second) } else { (second, first) };
    if new == 0 { 0 } else { TAG | new << 32 | old << 1 | word & 1 }
}

/// Such a word, or one that is converted already, as it is now.
#[must_use]
pub const fn word(new_first: u64) -> Word {
    let rest = new_first & !TAG;
    Word(if rest.count_ones().is_multiple_of(2) { rest } else { rest | TAG })
}

/// The new offset of a word of format 1, and the old one.
#[must_use]
pub const fn offsets(word: u64) -> [Option<Offset>; 2] {
    let word = self::word(new_first(word));
    [word.new_offset(), word.old_offset()]
}

/// The head ID of a meta word of format 1.
#[must_use]
pub const fn head(meta: u64) -> u8 {
    (meta >> 8) as u8
}

/// A meta word, of either format, as it is now.
#[must_use]
pub const fn meta(meta: u64) -> u64 {
    Meta(meta).seal()
}

/// A directory word, of either format, as it is now, where it is known whether the region is part of a table.
#[must_use]
pub const fn region(word: u64, in_table: bool) -> u64 {
    let epoch = (word >> 32) as u32;
    let kind = match (in_table, word & 1) {
        (true, _) => RegionKind::Table,
        (false, 1) => RegionKind::Log,
        (false, _) => RegionKind::Free,
    };
    let (head, link) = match kind {
        RegionKind::Log => ((word >> 8) as u8, (word >> 16) as u16),
        RegionKind::Free | RegionKind::Table => (0, 0),
    };
    RegionWord { kind, head, link, epoch }.emit()
}

/// A head word, of either format, as it is now.
#[must_use]
pub const fn head_word(word: u64) -> u64 {
    let here = HeadWord { link: (word >> 32) as u16, segment: word as u32 };
    HeadWord::emit(if word & TAG != 0 { Some(here) } else { None })
}
