//! A record of a log: its bytes, and how it is told from other bytes.
//!
//! ```text
//! record, at a multiple of 8:
//!   0  length    u32   bytes of payload
//!   4  crc       u32   CRC-32 of the log's salt and of all the others
//!   8  sequence  u64   which record it is
//!  16  epoch     u64   of the writer that first appended it: two records of one number and epoch are the same
//!  24  stamp     u32   counter of the epoch in which it was put here
//!  28  pending   u32   how many records before it were not acknowledged when it was put here
//!  32  payload, then zeros up to a multiple of 8
//! ```
//! `pending` is how damage is told from the end of the log: a record whose writer knew that number 17 was durable proves
//! that 17 was whole once. `stamp` differs from the epoch's counter in copies that a later writer made for a server
//! that had missed them.

use remanence_pmem::image::Framing;

use super::{Epoch, u32_at, u64_at};

/// Bytes before the payload.
pub const HEADER_LEN: u64 = 32;
const CRC: usize = 4;
/// How records are framed.
pub const FRAMING: Framing = Framing {
    header: HEADER_LEN as usize,
    length: Some(0),
    mark: None,
    max: u32::MAX as usize,
    crc: CRC,
    align: 8,
    padding: true,
};

/// Bytes that a record takes with so many of payload.
#[must_use]
pub const fn record_len(payload: u64) -> u64 {
    FRAMING.len(payload as usize)
}

/// What stands before the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bytes of payload, without the padding.
    pub length: u32,
    /// CRC-32 of the log's salt and of the record without this field.
    pub crc: u32,
    /// The number of the record in its log, which grows by 1 from record to record.
    pub sequence: u64,
    /// The epoch of the writer that appended it first.
    pub epoch: Epoch,
    /// The counter of the epoch in which it was put here.
    pub stamp: u32,
    /// How many records before it were not acknowledged when it was put here.
    pub pending: u32,
}

impl Header {
    /// Reads one; any 32 bytes are one, and [`verify`] tells whether they belong to a record.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            length: u32_at(bytes, 0),
            crc: u32_at(bytes, CRC),
            sequence: u64_at(bytes, 8),
            epoch: Epoch(u64_at(bytes, 16)),
            stamp: u32_at(bytes, 24),
            pending: u32_at(bytes, 28),
        }
    }

    /// Bytes of the record.
    #[must_use]
    pub const fn record_len(&self) -> u64 {
        record_len(self.length as u64)
    }
}

/// Appends the bytes of a record to `out`. The length and the checksum of the header are filled in.
///
/// # Panics
/// If the payload has 4 GiB or more.
pub fn emit(header: &Header, salt: u64, payload: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).expect("a payload is shorter than a segment");
    let mut bytes = [0; HEADER_LEN as usize];
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[8..16].copy_from_slice(&header.sequence.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.epoch.0.to_le_bytes());
    bytes[24..28].copy_from_slice(&header.stamp.to_le_bytes());
    bytes[28..].copy_from_slice(&header.pending.to_le_bytes());
    FRAMING.emit(Some(salt), &bytes, payload, out);
}

/// Whether these bytes are a whole record of the log with that salt: its length and its checksum are right.
#[must_use]
pub fn verify(record: &[u8], salt: u64) -> bool {
    FRAMING.is_whole(Some(salt), record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(payload: &[u8]) -> Vec<u8> {
        let header = Header { length: 0, crc: 0, sequence: 9, epoch: Epoch::new(2, 7), stamp: 3, pending: 1 };
        let mut out = Vec::new();
        emit(&header, 77, payload, &mut out);
        out
    }

    #[test]
    fn every_bit_is_covered_by_the_checksum() {
        for payload in [&b""[..], b"x", b"12345678", b"123456789"] {
            let bytes = record(payload);
            assert!(verify(&bytes, 77) && !verify(&bytes, 78));
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert!(!verify(&other, 77), "bit {bit}");
            }
            assert!(!verify(&bytes[..bytes.len() - 8], 77));
        }
    }

    #[test]
    fn golden() {
        // The format is fixed: a change of it must change the version.
        let bytes = record(b"abc");
        assert_eq!(bytes.len(), 40);
        assert_eq!((u32_at(&bytes, 0), u32_at(&bytes, 4)), (3, 0xB0A1_36D2));
        assert_eq!(&bytes[8..40], b"\x09\0\0\0\0\0\0\0\x07\0\0\0\x02\0\0\0\x03\0\0\0\x01\0\0\0abc\0\0\0\0\0");
    }
}
