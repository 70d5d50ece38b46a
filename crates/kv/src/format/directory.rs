//! What each region is, and how far each head's log has come: words that are stored atomically.

/// What a region is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Nothing.
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
/// bits 31-16  which link of the head's log
/// bits 15-8   head ID
/// bits 7-0    0 free, 1 log, 2 table
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionWord {
    /// Its use.
    pub kind: RegionKind,
    /// Whose log.
    pub head: u8,
    /// Which link of it.
    pub link: u16,
    /// When it was put to use. Every object is bound to it by its checksum.
    pub epoch: u32,
}

impl RegionWord {
    /// Never used.
    pub const FREE: Self = Self { kind: RegionKind::Free, head: 0, link: 0, epoch: 0 };

    /// As it is stored.
    #[must_use]
    pub const fn emit(self) -> u64 {
        let kind = match self.kind {
            RegionKind::Free => 0,
            RegionKind::Log => 1,
            RegionKind::Table => 2,
        };
        (self.epoch as u64) << 32 | (self.link as u64) << 16 | (self.head as u64) << 8 | kind
    }

    /// From a stored word; `None` if it means nothing.
    #[must_use]
    pub const fn parse(word: u64) -> Option<Self> {
        let kind = match word as u8 {
            0 => RegionKind::Free,
            1 => RegionKind::Log,
            2 => RegionKind::Table,
            _ => return None,
        };
        Some(Self { kind, head: (word >> 8) as u8, link: (word >> 16) as u16, epoch: (word >> 32) as u32 })
    }
}

/// How far a head's log has handed out addresses: nowhere behind this segment. Durable before the first address in the
/// segment is handed out, so that recovery goes on behind everything that a slow client may have written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadWord {
    /// The link.
    pub link: u16,
    /// The segment of it.
    pub segment: u32,
}

impl HeadWord {
    /// As it is stored; 0 stands for a log that has nothing.
    #[must_use]
    pub const fn emit(this: Option<Self>) -> u64 {
        match this {
            Some(Self { link, segment }) => 1 << 63 | (link as u64) << 32 | segment as u64,
            None => 0,
        }
    }

    /// From a stored word.
    #[must_use]
    pub const fn parse(word: u64) -> Option<Self> {
        if word >> 63 == 0 {
            return None;
        }
        Some(Self { link: (word >> 32) as u16, segment: word as u32 })
    }
}
