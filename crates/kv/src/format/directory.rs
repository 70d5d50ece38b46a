//! What each region is, and how far each head's log has come: words that are stored atomically, with check bits in them, which
//! put one flipped bit right.

use super::code::{Checked, Code};

const REGION: Code<7> = Code::new(1, !0xFE);
const HEAD: Code<7> = Code::new(56, 1 << 63 | 0xFFFF_FFFF_FFFF);

/// What a region is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Nothing: the next log or table that needs a region may have it.
    Free,
    /// A link of a head's log.
    Log,
    /// Part of a hash table.
    Table,
}

/// The directory's word of a region.
///
/// ```text
/// bits 63-32  epoch: counts over all regions, a new one each time that a region is put to use; kept when it is freed
/// bits 31-16  which link of the head's log; of a table: 1, if entries that were never used have a meta word
/// bits 15-8   head ID; of no log: 0 free, 1 table
/// bits 7-1    check bits
/// bit 0       1 log
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionWord {
    /// What the region is used for.
    pub kind: RegionKind,
    /// The head whose log it is a link of; 0 where it is no log's.
    pub head: u8,
    /// The number of the link in that log; of a table, whether it is [`MARKED`](Self::MARKED).
    pub link: u16,
    /// The number of its present use, which no other use of any region has; every object is bound to it by its
    /// checksum. It stays when the region is freed.
    pub epoch: u32,
}

impl RegionWord {
    /// The word of a region that was never used.
    pub const FREE: Self = Self { kind: RegionKind::Free, head: 0, link: 0, epoch: 0 };

    /// In place of the link, of the first region of a table: no entry of it is zeros, not even one that was
    /// [never](super::slot::NEVER) used. Programs that made tables of zeros ignore it.
    pub const MARKED: u16 = 1;

    /// The word of the first region of a table that is marked.
    #[must_use]
    pub const fn table(epoch: u32) -> Self {
        Self { kind: RegionKind::Table, head: 0, link: Self::MARKED, epoch }
    }

    /// The word as it is stored, with its check bits.
    #[must_use]
    pub const fn emit(self) -> u64 {
        let (head, log) = match self.kind {
            RegionKind::Free => (0, 0),
            RegionKind::Log => (self.head, 1),
            RegionKind::Table => (1, 0),
        };
        REGION.seal((self.epoch as u64) << 32 | (self.link as u64) << 16 | (head as u64) << 8 | log)
    }

    /// Reads a stored word; `None` if it is not as it was stored.
    #[must_use]
    pub const fn parse(word: u64) -> Option<Self> {
        match Self::check(word) {
            Some((word, false)) => Some(word),
            _ => None,
        }
    }

    /// Reads a stored word, and says whether a bit of it was wrong. `None`: more than one is.
    #[must_use]
    pub const fn check(word: u64) -> Option<(Self, bool)> {
        let (word, mended) = match REGION.check(word) {
            Checked::Sound => (word, false),
            Checked::Mended(word) => (word, true),
            Checked::Unsound => return None,
        };
        let (kind, head) = match (word & 1, (word >> 8) as u8) {
            (1, head) => (RegionKind::Log, head),
            (_, 0) => (RegionKind::Free, 0),
            (_, 1) => (RegionKind::Table, 0),
            _ => return None,
        };
        Some((Self { kind, head, link: (word >> 16) as u16, epoch: (word >> 32) as u32 }, mended))
    }
}

/// How far a head's log has handed out addresses: nowhere behind this segment. Bits 62-56 check it. Durable before the first address in the
/// segment is handed out, so that recovery goes on behind everything that a slow client may have written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadWord {
    /// The number of the link in the head's log.
    pub link: u16,
    /// The number of the segment in that link, counted from 0.
    pub segment: u32,
}

impl HeadWord {
    /// The word as it is stored; without bit 63 it stands for a log that has nothing.
    #[must_use]
    pub const fn emit(this: Option<Self>) -> u64 {
        HEAD.seal(match this {
            Some(Self { link, segment }) => 1 << 63 | (link as u64) << 32 | segment as u64,
            None => 0,
        })
    }

    /// Reads a stored word, and says whether a bit of it was wrong. `None`: more than one is.
    #[must_use]
    pub const fn check(word: u64) -> Option<(Option<Self>, bool)> {
        let (word, mended) = match HEAD.check(word) {
            Checked::Sound => (word, false),
            Checked::Mended(word) => (word, true),
            Checked::Unsound => return None,
        };
        let here = Self { link: (word >> 32) as u16, segment: word as u32 };
        Some((if word >> 63 == 1 { Some(here) } else { None }, mended))
    }
}
