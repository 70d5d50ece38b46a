//! How a log lies in its region. All integers are little-endian.
//!
//! ```text
//!      0  superblock   what this is; written once                             (superblock.rs)
//!   4096  root         two slots: promises, fence, head; written by the server (root.rs)
//!  12288  tails        512 words, of which the root names one: compound mode only
//!  16384  segments     records, each within one segment                       (record.rs)
//! ```
//! *Positions* count the bytes that the log has ever had and never wrap; a position modulo the capacity says where its
//! byte lies. A record that does not fit into the rest of its segment goes to the start of the next one, and nothing marks
//! that: who reads looks there when it finds nothing here. So an append is one update, at the end of a segment too.
//!
//! What a crash, an earlier life or damage leaves of records is argued once, for all logs, at [`remanence_pmem::image::Records`]. What
//! is this log's own: where its numbers and its stamps come from, that is
//!
//! ARGUMENT of why a stale record is never taken for one of the log, after wrap-around, truncation or a crash: a record
//! counts if it is whole (a checksum that covers the salt of this log), carries the *sequence number* that is due at that
//! place, and a *stamp* that is not lower than the one of the record before it, nor lower than the fence's if the fence lies
//! before it. Sequence numbers are never reused but for records that were cut off by a crash or by a truncation. After
//! either, before anybody appends, the root durably has a fence at the first number that may be reused with a stamp higher
//! than any before, and whoever appends does so with that stamp. So what was cut off does not count while that fence is the
//! newest. When it is not any more, the record that was appended first behind it is durable. What was cut off behind that
//! has a lower stamp than it. What was cut off in its own place is overwritten by it, or lies in the other of the two
//! places where it could have gone, and both were emptied when the fence was set ([`crate::log::store::Store::grant`]).

pub mod record;
pub mod root;
pub mod superblock;

use std::fmt;

/// The version that this program reads and writes.
pub const VERSION: u32 = 1;
/// Where the root record is.
pub const ROOT_AT: u64 = 4096;
/// Where the tail words are.
pub const TAILS_AT: u64 = 12288;
/// How many tail words there are.
pub const TAILS: u16 = 512;
/// Where the segments begin.
pub const DATA_AT: u64 = 16384;
/// The least bytes that a segment has.
pub const SEGMENT_MIN: u64 = 256;
/// The most bytes that a segment has, so that a record's length always fits 32 bits.
pub const SEGMENT_MAX: u64 = 1 << 30;

/// How the end of the log is found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// The end is found by looking for the last whole record: an append is one update.
    Singleton,
    /// The end is found by a word that is written after the record: an append is two updates, in order.
    Compound,
}

impl Mode {
    /// Both modes, the one that needs no tail word first.
    pub const ALL: [Self; 2] = [Self::Singleton, Self::Compound];

    /// The word for options and machine-readable output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Singleton => "singleton",
            Self::Compound => "compound",
        }
    }

    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Singleton => 1,
            Self::Compound => 2,
        }
    }

    pub(crate) const fn from_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Singleton),
            2 => Some(Self::Compound),
            _ => None,
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("{text:?} is no mode of a log; write singleton or compound"))
    }
}

/// Who writes: a counter that each new writer raises, and a number that tells writers with one counter apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch before that of any writer.
    pub const NONE: Self = Self(0);

    /// The epoch of a counter and of a number that the writer drew.
    #[must_use]
    pub const fn new(counter: u32, writer: u32) -> Self {
        Self((counter as u64) << 32 | writer as u64)
    }

    /// The number that the writer drew.
    #[must_use]
    pub const fn writer(self) -> u32 {
        self.0 as u32
    }

    /// The counter, which each new writer raises; 0 only before any writer.
    #[must_use]
    pub const fn counter(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether whoever promised this one may promise that one: a later one, or the same to the same writer.
    #[must_use]
    pub const fn may_become(self, epoch: Self) -> bool {
        epoch.counter() > self.counter() || epoch.0 == self.0 && self.counter() > 0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08x}", self.counter(), self.0 as u32)
    }
}

/// How a region is divided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Geometry {
    /// Bytes of the region.
    pub size: u64,
    /// Bytes of a segment.
    pub segment: u64,
}

impl Geometry {
    /// A division into segments of that length, a multiple of 8, of which there are two at least. `None` if that is not so.
    #[must_use]
    pub fn new(size: u64, segment: u64) -> Option<Self> {
        let fair = (DATA_AT..1 << 48).contains(&size)
            && (SEGMENT_MIN..=SEGMENT_MAX).contains(&segment)
            && segment.is_multiple_of(8)
            && (size - DATA_AT) / segment >= 2;
        fair.then_some(Self { size, segment })
    }

    /// The usual division of a region: 16 segments, none shorter than 64 KiB if that leaves four, none longer than 64 MiB.
    #[must_use]
    pub fn for_size(size: u64) -> Option<Self> {
        let data = size.checked_sub(DATA_AT)?;
        let segment = (data / 16).clamp(64 << 10, 64 << 20).min(data / 4) & !63;
        Self::new(size, segment)
    }

    /// Bytes in all segments.
    #[must_use]
    pub const fn capacity(self) -> u64 {
        (self.size - DATA_AT) / self.segment * self.segment
    }

    /// The longest payload of a record.
    #[must_use]
    pub const fn payload_max(self) -> u64 {
        self.segment - record::HEADER_LEN
    }

    /// Where the byte of a position lies in the region.
    #[must_use]
    pub const fn offset(self, position: u64) -> u64 {
        DATA_AT + position % self.capacity()
    }

    /// The first position of the segment after the one that this position is in.
    #[must_use]
    pub const fn next_segment(self, position: u64) -> u64 {
        (position / self.segment + 1) * self.segment
    }

    /// Where a record of so many bytes goes when the log ends there; it is not longer than a segment.
    #[must_use]
    pub const fn place(self, end: u64, len: u64) -> u64 {
        if end % self.segment + len <= self.segment { end } else { self.next_segment(end) }
    }
}

/// Where a log goes on: the next record's number and least position, and what the one before it carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The position at which the last record ends; the next one begins there or with the next segment.
    pub position: u64,
    /// The number of the next record.
    pub sequence: u64,
    /// The epoch of the record before it.
    pub epoch: Epoch,
    /// The stamp of the record before it.
    pub stamp: u32,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_never_straddles_segments() {
        let geometry = Geometry::new(DATA_AT + 4 * 256 + 100, 256).expect("fair");
        assert_eq!((geometry.capacity(), geometry.payload_max()), (1024, 224));
        assert_eq!(geometry.place(0, 256), 0);
        assert_eq!(geometry.place(8, 256), 256);
        assert_eq!(geometry.place(200, 56), 200);
        assert_eq!(geometry.place(200, 64), 256);
        assert_eq!((geometry.offset(1024), geometry.offset(2047)), (DATA_AT, DATA_AT + 1023));
        assert_eq!(geometry.next_segment(256), 512);
    }

    #[test]
    fn what_cannot_be_divided_is_refused() {
        for (size, segment) in
            [(0, 256), (DATA_AT + 511, 256), (1 << 20, 255), (1 << 20, 128), (1 << 50, 4096)]
        {
            assert_eq!(Geometry::new(size, segment), None, "{size} {segment}");
        }
        assert_eq!(Geometry::for_size(1 << 30).map(|g| g.segment), Some((((1 << 30) - DATA_AT) / 16) & !63));
        assert!(Geometry::for_size(DATA_AT + 4096).is_some());
        assert_eq!(Geometry::for_size(4096), None);
    }
}
