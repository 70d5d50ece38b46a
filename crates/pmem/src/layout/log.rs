//! A sequence of records that is appended to.
//!
//! ```text
//! record, at a multiple of 8:
//!   0  length    u32   bytes of payload
//!   4  crc       u32   CRC-32 of the tag and of all the others
//!   8  sequence  u64   counts from 0 at the start of the area
//!  16  epoch     u64   of the recovery that it was appended after
//!  24  payload, then zeros up to a multiple of 8
//! ```
//! The crash argument. Records become durable in any order until a sync. Recovery takes them from the start while
//! each is whole (checksum), the next (sequence) and not older than the one before it (epoch), so it ends at or
//! behind the last synced record. What lies beyond the end may be whole: appended, never synced, and cut off by a
//! record that was lost. It must not come back when the gap is filled later. It cannot: every recovery appends with
//! an epoch higher than any before, so whatever was appended earlier is now older than the record before it.

use std::io;
use std::ops::Range;

use super::{LayoutError, get_u32, get_u64};
use crate::medium::Medium;

const CRC: usize = 4;
const SEQUENCE: usize = 8;
const EPOCH: usize = 16;
const HEADER_LEN: u64 = 24;

const _: () = assert!(HEADER_LEN as usize == EPOCH + 8 && HEADER_LEN.is_multiple_of(8));

/// A log that nothing can be appended to before it has been recovered.
#[derive(Debug)]
pub struct Unrecovered<M> {
    medium: M,
    area: Range<u64>,
    tag: u64,
}

/// A log that can be appended to.
#[derive(Debug)]
pub struct Log<M> {
    medium: M,
    area: Range<u64>,
    tag: u64,
    epoch: u64,
    sequence: u64,
    end: u64,
    /// Offset on the medium up to which the records are durable; at most `end`.
    synced: u64,
}

/// Why nothing was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    /// The area has no room for the record.
    #[error("the log is full: {needed} bytes are needed and {left} are left")]
    Full {
        /// Bytes that the record takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
}

/// Where a record was appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The number of the record, counted from 0 at the start of the area.
    pub sequence: u64,
    /// Where its payload is on the medium.
    pub payload: u64,
}

impl<M: Medium> Unrecovered<M> {
    /// A log in this area, which starts and ends at multiples of 8. The tag tells it from others that were there
    /// before: draw it anew when the area is put to a new use.
    #[must_use]
    pub fn new(medium: M, area: Range<u64>, tag: u64) -> Self {
        assert!(area.start.is_multiple_of(8) && area.end.is_multiple_of(8), "{area:?} is not aligned");
        assert!(area.start <= area.end && area.end <= medium.len(), "{area:?} is not on the medium");
        Self { medium, area, tag }
    }

    /// Hands every record to `visit`, in order, once they are durable, and goes on after the last.
    ///
    /// `epoch` must be higher than any that this log was recovered with before, at the time of a crash too: keep it in
    /// a root record, and store it there before the call.
    ///
    /// # Errors
    /// The medium failed, or the epoch was used before.
    pub fn recover(self, epoch: u64, mut visit: impl FnMut(Appended, &[u8])) -> Result<Log<M>, LayoutError> {
        let Self { medium, area, tag } = self;
        let mut found: Vec<(Appended, Vec<u8>)> = Vec::new();
        let (mut at, mut last_epoch) = (area.start, 0);
        while let Some((record_epoch, payload)) =
            read_record(&medium, at..area.end, tag, found.len() as u64, last_epoch)
        {
            let sequence = found.len() as u64;
            last_epoch = record_epoch;
            let here = Appended { sequence, payload: at + HEADER_LEN };
            at += record_len(payload.len());
            found.push((here, payload));
        }
        if last_epoch >= epoch {
            let used = format!("epoch {epoch} was used before: the last record has {last_epoch}");
            return Err(LayoutError::Medium(io::Error::new(io::ErrorKind::InvalidInput, used)));
        }
        medium.persist(area.start..at)?;
        found.iter().for_each(|(here, payload)| visit(*here, payload));
        let sequence = found.len() as u64;
        Ok(Log { medium, area, tag, epoch, sequence, end: at, synced: at })
    }
}

impl<M: Medium> Log<M> {
    /// Appends a record: visible, and durable after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// The area is full.
    pub fn append(&mut self, payload: &[u8]) -> Result<Appended, LogError> {
        let (needed, left) = (record_len(payload.len()), self.area.end - self.end);
        if needed > left || u32::try_from(payload.len()).is_err() {
            return Err(LogError::Full { needed, left });
        }
        let mut bytes = Vec::with_capacity(needed as usize);
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(needed as usize, 0);
        let crc = checksum(self.tag, &bytes);
        bytes[CRC..SEQUENCE].copy_from_slice(&crc.to_le_bytes());
        self.medium.write_nt(self.end, &bytes);
        let appended = Appended { sequence: self.sequence, payload: self.end + HEADER_LEN };
        self.sequence += 1;
        self.end += needed;
        Ok(appended)
    }

    /// Makes every appended record durable.
    ///
    /// # Errors
    /// The medium failed: the records since the last sync may or may not be found later.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.end {
            self.medium.psync()?;
            self.synced = self.end;
        }
        Ok(())
    }

    /// The number of the next record, which is how many there are.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes that are left in the area.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.area.end - self.end
    }
}

const fn record_len(payload: usize) -> u64 {
    HEADER_LEN + (payload as u64).next_multiple_of(8)
}

/// The record that starts here, if it is whole and may follow.
fn read_record(
    medium: &impl Medium,
    rest: Range<u64>,
    tag: u64,
    sequence: u64,
    last_epoch: u64,
) -> Option<(u64, Vec<u8>)> {
    if rest.end - rest.start < HEADER_LEN {
        return None;
    }
    let mut header = [0; HEADER_LEN as usize];
    medium.read(rest.start, &mut header);
    let len = get_u32(&header, 0) as usize;
    let epoch = get_u64(&header, EPOCH);
    let fits = record_len(len) <= rest.end - rest.start;
    if !fits || get_u64(&header, SEQUENCE) != sequence || epoch < last_epoch || epoch == 0 {
        return None;
    }
    let mut bytes = vec![0; record_len(len) as usize];
    medium.read(rest.start, &mut bytes);
    let valid = bytes.starts_with(&header) && checksum(tag, &bytes) == get_u32(&bytes, CRC);
    bytes.truncate(HEADER_LEN as usize + len);
    valid.then(|| (epoch, bytes.split_off(HEADER_LEN as usize)))
}

/// The checksum of a record and its log's tag, with the field of the checksum itself left out.
fn checksum(tag: u64, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&tag.to_le_bytes());
    hasher.update(&record[..CRC]);
    hasher.update(&record[SEQUENCE..]);
    hasher.finalize()
}
