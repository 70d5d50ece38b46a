//! An entry of a replica's log: its bytes, and how it is told from other bytes.
//!
//! ```text
//! entry, at the start of its slot:
//!   0  length    u32   bytes of payload
//!   4  crc       u32   CRC-32 of the group's salt and of all the others but the next but one
//!   8  index     u64   which entry of the log it is
//!  16  bound     u64   the number of the leader that wrote it, in 36 bits; below, the 28 low bits of the CRC
//!  24  decided   u64   the first index that was not decided when its value was proposed
//!  32  kind      u32   see [`Kind`]
//!  36  zero      u32
//!  40  payload, then zeros up to a multiple of 8
//! ```
//! Mu has a byte behind the payload that is not zero. A checksum with the index in it needs neither slots that were zeroed nor an order in
//! which bytes become visible: what is left of a longer entry under a shorter one, of an earlier lap, or of a write that a
//! crash cut short is no entry. A snapshot is framed in the same way.
//!
//! **A value that may be decided is written over by the same one, under a higher number**, and whoever does that may die within it. Then the value must
//! still be there, as a majority may have been counted with it. So all bytes stay the same but one word: the checksum does not cover
//! it, and it has a part of the checksum, so that the number of one value is none of another's. All that is proposed stays the same with it, `decided` included.
//! That word is written first, alone, and made durable ([`renumber`](Entry::renumber)): one aligned word is never torn, and one within a longer write may be.

use remanence_pmem::image::Framing;

/// Bytes before the payload.
pub const HEADER_LEN: u64 = 40;
/// How entries are framed.
pub const FRAMING: Framing = Framing {
    header: HEADER_LEN as usize,
    length: Some(0),
    mark: None,
    max: u32::MAX as usize,
    crc: 4,
    align: 8,
    padding: true,
};

/// What an entry is. No kind is 0, as in memory that nobody has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// A value that somebody proposed.
    Value = 1,
    /// Nothing: a leader found later entries and none here.
    Nothing = 2,
    /// What the entries below the index lead to.
    Snapshot = 3,
}

/// An entry of a log, or a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Which entry of the log it is; of a snapshot, the first entry that it does not cover.
    pub index: u64,
    /// The number of the leader that wrote it.
    pub proposal: u64,
    /// The first index that was not decided when it was proposed: all entries below are, whatever else is in flight.
    pub decided: u64,
    /// What it is.
    pub kind: Kind,
    /// The value that was proposed.
    pub payload: Vec<u8>,
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

/// Where the number lies.
const BOUND: usize = 16;
/// How many bits of that word are the checksum's.
const CHECK: u32 = 28;

/// The word that has a number and belongs to a checksum. Numbers of terms have twelve zero bits, of 48.
const fn bound(proposal: u64, crc: u32) -> u64 {
    proposal >> 12 << CHECK | (crc as u64 & ((1 << CHECK) - 1))
}

/// Bytes that the entry takes whose header begins these, if it lies in `room`.
pub(super) fn len_of(header: &[u8], room: u64) -> Option<usize> {
    let len = FRAMING.len(FRAMING.payload(header)?);
    (len <= room).then_some(len as usize)
}

impl Entry {
    /// Its bytes, for the group with that salt.
    ///
    /// # Panics
    /// The payload has 4 GiB or more, or the proposal is no number of a term.
    #[must_use]
    pub fn emit(&self, salt: u64) -> Vec<u8> {
        assert!(self.proposal >> 48 == 0 && self.proposal & 0xFFF == 0, "{} is no term", self.proposal);
        let length = u32::try_from(self.payload.len()).expect("a payload fits a slot");
        let mut header = [0; HEADER_LEN as usize];
        header[..4].copy_from_slice(&length.to_le_bytes());
        for (at, word) in [(8, self.index), (24, self.decided)] {
            header[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        header[32..36].copy_from_slice(&(self.kind as u32).to_le_bytes());
        let mut bytes = Vec::new();
        FRAMING.emit(Some(salt), &header, &self.payload, &mut bytes);
        let bound = bound(self.proposal, u32_at(&bytes, FRAMING.crc));
        bytes[BOUND..BOUND + 8].copy_from_slice(&bound.to_le_bytes());
        bytes
    }

    /// What of its bytes is written first where there may be the same value under another number: where in the slot, and the word.
    #[must_use]
    pub fn renumber(bytes: &[u8]) -> (u64, [u8; 8]) {
        (BOUND as u64, u64_at(bytes, BOUND).to_le_bytes())
    }

    /// The entry that these bytes begin with, if it is whole.
    #[must_use]
    pub fn parse(bytes: &[u8], salt: u64) -> Option<Self> {
        let header = bytes.get(..HEADER_LEN as usize)?;
        let mut frame = bytes[..len_of(header, bytes.len() as u64)?].to_vec();
        let kind = match u32_at(header, 32) {
            1 => Kind::Value,
            2 => Kind::Nothing,
            3 => Kind::Snapshot,
            _ => return None,
        };
        let [index, bound_word, decided] = [8, BOUND, 24].map(|at| u64_at(header, at));
        let proposal = bound_word >> CHECK << 12;
        frame[BOUND..BOUND + 8].fill(0);
        if !FRAMING.is_whole(Some(salt), &frame) || bound(proposal, u32_at(header, FRAMING.crc)) != bound_word
        {
            return None;
        }
        let payload = &frame[HEADER_LEN as usize..][..u32_at(header, 0) as usize];
        Some(Self { index, proposal, decided, kind, payload: payload.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 77;

    fn entry(index: u64, payload: &[u8]) -> Entry {
        Entry { index, proposal: 3 << 12, decided: 4, kind: Kind::Value, payload: payload.to_vec() }
    }

    #[test]
    fn every_bit_is_covered_by_the_checksum_but_the_number() {
        for payload in [&b""[..], b"x", b"123456789"] {
            let entry = entry(5, payload);
            let bytes = entry.emit(SALT);
            assert_eq!(Entry::parse(&bytes, SALT), Some(entry));
            assert_eq!(Entry::parse(&bytes, SALT + 1), None, "another group's");
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let is_number = (8 * BOUND + CHECK as usize..8 * BOUND + 64).contains(&bit);
                assert_eq!(Entry::parse(&other, SALT).is_some(), is_number, "bit {bit}");
            }
            assert_eq!(Entry::parse(&bytes[..bytes.len() - 8], SALT), None);
        }
        assert_eq!(Entry::parse(&[0; 64], SALT), None, "what nobody has written");
    }

    /// What notes on Mu call a torn longer entry under a shorter new one.
    #[test]
    fn what_is_left_of_a_longer_entry_under_a_shorter_one_does_not_count() {
        let (long, short) = (entry(9, &[0xAA; 100]), entry(9, b"short"));
        let mut slot = vec![0; 256];
        let bytes = long.emit(SALT);
        // It was torn behind its first line.
        slot[..64].copy_from_slice(&bytes[..64]);
        assert_eq!(Entry::parse(&slot, SALT), None, "half of an entry");
        slot[..bytes.len()].copy_from_slice(&bytes);
        let bytes = short.emit(SALT);
        slot[..bytes.len()].copy_from_slice(&bytes);
        assert_eq!(Entry::parse(&slot, SALT), Some(short), "the rest of the longer one does not count");
        assert_eq!(Entry::parse(&slot[bytes.len()..], SALT), None, "and is no entry itself");
    }

    /// All mixtures of two entries in one slot, word by word: what a crash, or the end of a permission, can leave.
    fn mixtures(before: &Entry, after: &Entry) -> Vec<Option<Entry>> {
        let (mut old, mut new) = (before.emit(SALT), after.emit(SALT));
        let len = old.len().max(new.len());
        old.resize(len, 0);
        new.resize(len, 0);
        let words = len / 8;
        let mixture = |of: u32| {
            let word = |n: usize| if of >> n & 1 == 0 { &old } else { &new }[8 * n..8 * n + 8].to_vec();
            Entry::parse(&(0..words).flat_map(word).collect::<Vec<u8>>(), SALT)
        };
        (0..1 << words).map(mixture).collect()
    }

    #[test]
    fn a_value_that_is_written_again_under_a_higher_number_is_there_at_each_moment() {
        let before = entry(5, b"a value of 23 bytes...!");
        let after = Entry { proposal: 9 << 12, ..before.clone() };
        let left = mixtures(&before, &after);
        assert!(left.iter().all(|left| left == &Some(before.clone()) || left == &Some(after.clone())));
    }

    #[test]
    fn a_value_that_is_written_over_another_one_has_no_number_of_that() {
        for (payload, decided) in
            [(&b"another of 25 bytes......"[..], 4), (&b"a value of 23 bytes...?"[..], 4), (&b""[..], 5)]
        {
            let before = entry(5, b"a value of 23 bytes...!");
            let after = Entry { proposal: 9 << 12, decided, ..entry(5, payload) };
            let left: Vec<Entry> = mixtures(&before, &after).into_iter().flatten().collect();
            let fair = |left: &Entry| *left == before || *left == after;
            assert!(!left.is_empty() && left.iter().all(fair), "{left:?}");
        }
    }

    #[test]
    fn golden() {
        let bytes = entry(5, b"abc").emit(SALT);
        assert_eq!(bytes.len(), 48);
        assert_eq!(&bytes[..4], &[3, 0, 0, 0]);
        assert_eq!(u64_at(&bytes, BOUND), 3 << CHECK | u64::from(u32_at(&bytes, 4)) & 0xFFF_FFFF);
        let rest = b"\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0abc\0\0\0\0\0";
        assert_eq!((u64_at(&bytes, 8), &bytes[24..]), (5, &rest[..]));
    }
}
