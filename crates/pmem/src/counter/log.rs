//! The log of paper 001 (6): entries in a ring of bytes, and a durable word that says how many bytes were ever
//! appended.
//!
//! ```text
//! area, from a multiple of 256 to its last whole line:
//!      0  head   plain word: bytes that were trimmed
//!    256  tail   the word W: bytes that were appended (8 bytes, or ten chunks)
//!      …  ring, from the next multiple of 256 to the end
//! entry, at position p of all bytes ever appended, found at p mod ring:
//!      0  length    u32   bytes of payload; ffffffff: nothing here, go on at the start of the ring
//!      4  crc       u32   CRC-32 of the tag and of all the others
//!      8  position  u64
//!     16  payload, then zeros up to the end of its last line
//! ```
//! Entries begin on lines of their own. Where a written-back line has to be fetched again (which is what the rotating
//! words are for), an entry that shared a line with the one before it would pay just that for each append.
//!
//! [Its records](crate::image::Records) have the argument; this is what is particular here. [`commit`](CountedLog::commit) makes the
//! entries durable, and only then the tail that covers them; a crash leaves the old tail or the new one. So each entry below the tail was
//! durable, and one that is not whole is damaged. What lies behind the tail
//! is nothing, whole or torn: nobody looks there, and it will be overwritten. The head moves in the same way, over entries that nobody needs
//! any more, and space is reused only once the head that frees it is durable. A position is never used twice, so nothing of an
//! earlier lap passes for an entry. The words have no checksum: a tail that is damaged, and names an earlier end of an entry, is believed.
//!
//! An append costs two durable writes, where a log that looks for its last record (`remotelog`, `pool`) pays one. For that it knows its
//! end at once, keeps its entries intact where they lie, can commit many in one word, and forgets its oldest.

use std::io;
use std::ops::Range;

use super::{DurableWord, PlainWord, Reader, WordError};
use crate::flush::LINE;
use crate::image::{Framing, Local, Order, Record, Records, Standing, Verdict};
use crate::layout::{get_u32, get_u64};
use crate::medium::Medium;

const HEADER: u64 = 16;
const SKIP: u32 = u32::MAX;
const FRAMING: Framing = Framing {
    header: HEADER as usize,
    length: Some(0),
    mark: Some(SKIP),
    max: SKIP as usize - 1,
    crc: 4,
    align: LINE,
    padding: true,
};
const TAIL: u64 = 256;
const ALIGN: u64 = 256;
const STEP: u64 = LINE as u64;

/// A place in a log: bytes that were appended before it, ever.
pub type Position = u64;

/// An entry of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The position at which the entry begins.
    pub position: Position,
    /// The position at which it ends, and the next one begins.
    pub end: Position,
    /// Offset on the medium of its payload.
    pub payload: u64,
    /// Bytes of payload.
    pub len: u64,
}

/// Why a log could not be opened, or not be appended to.
#[derive(Debug, thiserror::Error)]
pub enum LogFault {
    /// The ring has no room for the entry.
    #[error(
        "the log is full: {needed} bytes are needed and {left} are left; trim what is not needed any more"
    )]
    Full {
        /// Bytes that the entry takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// The entry takes more than half of the ring.
    #[error("an entry of {len} bytes does not fit a log whose ring has {ring}, as it may take half of that")]
    TooLong {
        /// Bytes of payload.
        len: u64,
        /// Bytes of the ring.
        ring: u64,
    },
    /// The area is misplaced, or too short.
    #[error(
        "{start}..{end} is no place for this log: it must be on the medium, start at a multiple of 256, \
         and have room for {least} bytes"
    )]
    Misplaced {
        /// Offset on the medium at which the area starts.
        start: u64,
        /// Offset on the medium at which the area ends.
        end: u64,
        /// Bytes that the area of such a log must have at least.
        least: u64,
    },
    /// Head and tail are none that this log could have written.
    #[error(
        "head {head} and tail {tail} do not belong to a log with a ring of {ring} bytes: it was never formatted, or is \
         damaged"
    )]
    Bounds {
        /// Bytes that were ever trimmed, as the word at the area's start says.
        head: Position,
        /// Bytes that were ever appended, as the durable word of the tail says.
        tail: Position,
        /// Bytes of the ring.
        ring: u64,
    },
    /// An entry below the tail is not whole.
    #[error(
        "the entry at position {at} is damaged: the {whole} entries before it are safe, the {lost} bytes from there to \
         the tail are not; restore them from a replica"
    )]
    Damaged {
        /// The position at which the damaged entry begins.
        at: Position,
        /// Entries before it, which were handed out.
        whole: u64,
        /// Bytes from there to the tail.
        lost: u64,
    },
    /// Nobody may trim in the middle of an entry, or what is not committed.
    #[error(
        "position {position} is no end of a committed entry of this log, so it cannot be trimmed to there"
    )]
    NotAnEnd {
        /// The position up to which the log was to be trimmed.
        position: Position,
    },
    /// Head or tail could not be set or opened.
    #[error(transparent)]
    Word(#[from] WordError),
    /// The medium failed.
    #[error("the medium failed: {0}")]
    Medium(#[from] io::Error),
}

/// A log whose tail is the durable word `W`. One writer; [`readers`](Self::reader) see how far it is durable.
#[derive(Debug)]
pub struct CountedLog<W: DurableWord> {
    medium: W::Medium,
    ring: Range<u64>,
    records: Records,
    head: PlainWord<W::Medium>,
    tail: W,
    /// Up to here entries were appended; up to the tail they are committed.
    end: Position,
    failed: bool,
    /// The entry that is being written.
    bytes: Vec<u8>,
}

impl<W: DurableWord> CountedLog<W>
where
    W::Medium: Clone,
{
    /// The shortest area that can hold any entry.
    pub const AREA_MIN: u64 = Self::RING + ALIGN;

    /// Where the ring begins in the area.
    const RING: u64 = TAIL + W::LEN.next_multiple_of(ALIGN);

    /// Makes an empty log, over whatever was there. The tag goes into the checksums: draw it anew for each new log.
    ///
    /// # Errors
    /// [`LogFault::Misplaced`]; the medium failed.
    pub fn format(medium: W::Medium, area: Range<u64>, tag: u64) -> Result<Self, LogFault> {
        let ring = Self::ring(&medium, &area)?;
        let records = Records { framing: FRAMING, salt: tag };
        let head = PlainWord::format(medium.clone(), area.start)?;
        let tail = W::format(medium.clone(), area.start + TAIL)?;
        Ok(Self { medium, ring, records, head, tail, end: 0, failed: false, bytes: Vec::new() })
    }

    /// Finds a log again, and hands every entry from head to tail to `visit`, oldest first.
    ///
    /// # Errors
    /// [`LogFault::Misplaced`], [`LogFault::Bounds`]; [`LogFault::Damaged`] after the entries before the damage were
    /// handed out; the medium failed.
    pub fn open(
        medium: W::Medium,
        area: Range<u64>,
        tag: u64,
        mut visit: impl FnMut(Entry, &[u8]),
    ) -> Result<Self, LogFault> {
        let ring = Self::ring(&medium, &area)?;
        let records = Records { framing: FRAMING, salt: tag };
        let head = PlainWord::open(medium.clone(), area.start)?;
        let tail = W::open(medium.clone(), area.start + TAIL)?;
        let end = tail.get();
        let log = Self { medium, ring, records, head, tail, end, failed: false, bytes: Vec::new() };
        let (from, len) = (log.head.get(), log.capacity());
        let sound = from.is_multiple_of(STEP) && end.is_multiple_of(STEP) && from <= end && end - from <= len;
        if !sound {
            return Err(LogFault::Bounds { head: from, tail: end, ring: len });
        }
        let (mut at, mut whole) = (from, 0);
        while at < end {
            let next = match log.read_at(at, end) {
                Some(Found::Entry(entry, payload)) => {
                    visit(entry, &payload);
                    whole += 1;
                    entry.end
                }
                Some(Found::Skip(next)) => next,
                None => return Err(LogFault::Damaged { at, whole, lost: end - at }),
            };
            at = next;
        }
        Ok(log)
    }

    fn ring(medium: &W::Medium, area: &Range<u64>) -> Result<Range<u64>, LogFault> {
        let Range { start, end } = *area;
        // Whole lines only.
        let last = end & !(STEP - 1);
        let fits =
            start.checked_add(Self::AREA_MIN).is_some_and(|least| least <= last) && end <= medium.len();
        if start.is_multiple_of(ALIGN) && fits {
            Ok(start + Self::RING..last)
        } else {
            Err(LogFault::Misplaced { start, end, least: Self::AREA_MIN })
        }
    }
}

enum Found {
    Entry(Entry, Vec<u8>),
    Skip(Position),
}

/// The entry that is due at a position below the tail.
struct Due {
    position: Position,
    /// Where it may lie.
    room: Range<u64>,
}

impl Order for Due {
    /// Whether it is the mark that the log goes on at the start of the ring.
    type Header = bool;

    fn places(&self) -> impl Iterator<Item = Range<u64>> {
        std::iter::once(self.room.clone())
    }

    fn due(&self, header: &[u8]) -> Result<bool, Standing> {
        match get_u64(header, 8) {
            found if found == self.position => Ok(get_u32(header, 0) == SKIP),
            found if found < self.position => Err(Standing::Stale),
            _ => Err(Standing::Other),
        }
    }

    fn reached(&self) -> bool {
        true
    }
}

impl<W: DurableWord> CountedLog<W> {
    /// Appends an entry: visible, and durable after the next [`commit`](Self::commit).
    ///
    /// # Errors
    /// [`LogFault::Full`], [`LogFault::TooLong`], which change nothing; the medium failed before.
    pub fn append(&mut self, payload: &[u8]) -> Result<Entry, LogFault> {
        if self.failed {
            return Err(WordError::Failed.into());
        }
        let (len, ring) = (payload.len() as u64, self.capacity());
        let needed = (HEADER + len).next_multiple_of(STEP);
        // Half a ring: so that an empty log has room for it wherever its end is, as entries do not wrap.
        if needed > ring / 2 || len >= u64::from(SKIP) {
            return Err(LogFault::TooLong { len, ring });
        }
        let to_the_end = ring - self.end % ring;
        let skipped = if needed > to_the_end { to_the_end } else { 0 };
        let left = self.left();
        if needed + skipped > left {
            return Err(LogFault::Full { needed: needed + skipped, left });
        }
        if skipped > 0 {
            self.write_entry(self.end, SKIP, &[]);
        }
        let position = self.end + skipped;
        self.write_entry(position, len as u32, payload);
        self.end = position + needed;
        Ok(Entry { position, end: self.end, payload: self.place(position) + HEADER, len })
    }

    /// Makes every appended entry durable, then the tail that covers them: two durable writes.
    ///
    /// # Errors
    /// The medium failed: the entries since the last commit may or may not be found later, and nothing more can be
    /// appended.
    pub fn commit(&mut self) -> Result<Position, LogFault> {
        if self.failed {
            return Err(WordError::Failed.into());
        }
        if self.end != self.tail.get() {
            let synced = self.medium.psync();
            self.failed = synced.is_err();
            synced?;
            let set = self.tail.set(self.end);
            self.failed = set.is_err();
            set?;
        }
        Ok(self.end)
    }

    /// Forgets the entries before a position, which is the end of a committed entry (or the head); durable on return.
    ///
    /// # Errors
    /// [`LogFault::NotAnEnd`]; the medium failed.
    pub fn trim(&mut self, to: Position) -> Result<(), LogFault> {
        let tail = self.tail.get();
        let mut at = self.head.get();
        while at < to && to <= tail {
            at = match self.read_at(at, tail) {
                Some(Found::Entry(entry, _)) => entry.end,
                Some(Found::Skip(next)) => next,
                None => break,
            };
        }
        if at != to {
            return Err(LogFault::NotAnEnd { position: to });
        }
        Ok(self.head.set(to)?)
    }

    /// Where the oldest entry is.
    #[must_use]
    pub fn head(&self) -> Position {
        self.head.get()
    }

    /// Up to where entries are committed.
    #[must_use]
    pub fn tail(&self) -> Position {
        self.tail.get()
    }

    /// The committed tail, for other threads.
    #[must_use]
    pub fn reader(&self) -> Reader {
        self.tail.reader()
    }

    /// Bytes of the ring.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.ring.end - self.ring.start
    }

    /// Bytes that are left in the ring.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.capacity() - (self.end - self.head.get())
    }

    fn place(&self, position: Position) -> u64 {
        self.ring.start + position % self.capacity()
    }

    fn write_entry(&mut self, position: Position, len: u32, payload: &[u8]) {
        let mut header = [0; HEADER as usize];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[8..].copy_from_slice(&position.to_le_bytes());
        self.bytes.clear();
        self.records.framing.emit(Some(self.records.salt), &header, payload, &mut self.bytes);
        self.medium.write_nt(self.place(position), &self.bytes);
    }

    /// What is at a position, if it is whole and ends at or before `end`.
    fn read_at(&self, position: Position, end: Position) -> Option<Found> {
        let ring = self.capacity();
        let (place, to_the_end) = (self.place(position), ring - position % ring);
        let due = Due { position, room: place..place + to_the_end.min(end - position) };
        let mut payload = Vec::new();
        let Ok(found) = self.records.next(&due, &mut Local(&self.medium), &mut payload);
        let Verdict::Whole(Record { header: skip, len, .. }) = found else { return None };
        if skip {
            let next_lap = position + to_the_end;
            return (next_lap <= end).then_some(Found::Skip(next_lap));
        }
        let entry =
            Entry { position, end: position + len, payload: place + HEADER, len: payload.len() as u64 };
        Some(Found::Entry(entry, payload))
    }
}
