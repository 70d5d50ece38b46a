//! The header of an entry, which is one cache line; the word that commits it; and the word that claims its place.
//!
//! ```text
//!  0  commit   u64  stored last: index, check bits, and whether all behind it was durable before
//!  8  index    u64
//! 16  claim    u64  who reserved it: the lap's low bits, entries of the group, the owner
//! 24  mtime    u64  when the file's bytes were last changed, as it said after the call; nanoseconds since 1970
//! 32  offset   u64  of these bytes in their file
//! 40  file     u32
//! 44  length   u24  bytes of data in this entry's slot
//! 47  kind     u8
//! 48  data     u32  CRC-32 of salt, index and data
//! 52  back     u16  how many entries before this one its group begins
//! 54  count    u16  entries of the group
//! 56  durable  u32  all but so many of the entries below were known to be durable when this one was written; all ones: not known
//! 60  crc      u32  CRC-32 of salt and all but the commit word
//! ```
//! Neither word need ever be reset, as both say which lap they are of. The check bits tell a commit word of an earlier lap, which is no
//! damage, from one in which a bit was flipped. The checksum is the CRC-32 that all formats here have, for which the tree has one fast
//! implementation; another polynomial finds nothing more in a line or a page.

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 64;
/// Where the claim lies in it.
pub(crate) const CLAIM: u64 = 16;
/// Where the length of its data lies in it, in three bytes; the kind is in the fourth.
pub(crate) const LENGTH: usize = 44;
/// No slot is as long.
pub(crate) const LENGTH_MAX: u32 = (1 << 24) - 1;
/// No index is as high: a million entries a second come there after nine years.
pub const INDEX_MAX: u64 = 1 << 48;
/// The most entries of a group.
pub const GROUP_MAX: u64 = u16::MAX as u64;
/// Laps are told apart as far.
const LAPS: u64 = 1 << 24;

/// An incarnation of a process that appends: whoever reserved an entry and died is known by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner(u32);

impl Owner {
    /// The number of an incarnation; numbers are reused when no entry of an earlier one is in the log.
    ///
    /// # Panics
    /// It has more than 24 bits.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        assert!(number < 1 << 24, "an owner's number has 24 bits");
        Self(number)
    }

    /// The number of the incarnation.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// When the bytes of a file were last changed, in nanoseconds since 1970, as the file itself says; of a change of names, when it was logged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mtime(pub u64);

impl Mtime {
    /// It is not known: of a file that only the cleaner writes, which has no say then in whether somebody else did.
    pub const UNKNOWN: Self = Self(0);
}

/// What a claim says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    lap: u64,
    pub(crate) count: u16,
    pub(crate) owner: Owner,
}

/// How a claim's lap stands to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Age {
    Earlier,
    Same,
    Later,
}

impl Claim {
    pub(crate) fn new(lap: u64, count: u16, owner: Owner) -> Self {
        Self { lap: lap % LAPS, count, owner }
    }

    pub(crate) fn word(self) -> u64 {
        self.lap << 40 | u64::from(self.count) << 24 | u64::from(self.owner.0)
    }

    pub(crate) fn of(word: u64) -> Self {
        Self { lap: word >> 40, count: (word >> 24) as u16, owner: Owner(word as u32 & 0xff_ffff) }
    }

    pub(crate) fn age(self, lap: u64) -> Age {
        match (lap % LAPS + LAPS - self.lap) % LAPS {
            0 => Age::Same,
            1..=0x7f_ffff => Age::Earlier,
            _ => Age::Later,
        }
    }
}

/// The commit word of an index. `fenced`: all of its group was durable before this word was stored.
pub(crate) fn stamp(salt: u64, index: u64, fenced: bool) -> u64 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&index.to_le_bytes());
    index << 16 | u64::from(crc.finalize() & 0x7fff) << 1 | u64::from(fenced)
}

/// What a commit word says of the entry whose place it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Commit {
    /// It is of an earlier lap, or was never written.
    Unset,
    /// It commits this index.
    Set { fenced: bool },
    /// No writer wrote it.
    Damaged,
}

pub(crate) fn commit(salt: u64, index: u64, entries: u64, word: u64) -> Commit {
    let (found, fenced) = (word >> 16, word & 1 == 1);
    if word == stamp(salt, index, fenced) {
        Commit::Set { fenced }
    } else if word == 0
        || found < index && (index - found).is_multiple_of(entries) && word == stamp(salt, found, fenced)
    {
        Commit::Unset
    } else {
        Commit::Damaged
    }
}

/// What kind of entry a header begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing: the place of a writer that died.
    Hole,
    /// What a sync found in progress below it, which is on its way and may be missing.
    Mark,
    /// Bytes of a file.
    Write,
    /// Another change of a file, or of names: its payload says which.
    Change,
    /// Nothing of its file below its offset, which is an index, is due any more.
    Settled,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Hole, Self::Mark, Self::Write, Self::Change, Self::Settled];

    const fn code(self) -> u8 {
        match self {
            Self::Hole => 1,
            Self::Mark => 2,
            Self::Write => 3,
            Self::Change => 4,
            Self::Settled => 5,
        }
    }
}

/// A header, its commit word apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) index: u64,
    pub(crate) claim: u64,
    /// Entries below were known to be durable; 0 where none is known.
    pub(crate) durable: u64,
    pub(crate) mtime: Mtime,
    pub(crate) offset: u64,
    pub(crate) file: u32,
    pub(crate) length: u32,
    pub(crate) data: u32,
    pub(crate) back: u16,
    pub(crate) count: u16,
    pub(crate) kind: Kind,
}

impl Header {
    /// That of a place, or of all that its claim has, where there is nothing.
    pub(crate) fn hole(index: u64, claim: Claim, durable: u64) -> Self {
        Self {
            index,
            claim: claim.word(),
            durable,
            mtime: Mtime::UNKNOWN,
            offset: 0,
            file: 0,
            length: 0,
            data: 0,
            back: 0,
            count: claim.count.max(1),
            kind: Kind::Hole,
        }
    }

    /// The bytes of the line; those of the commit word are zeros.
    pub(crate) fn emit(&self, salt: u64) -> [u8; HEADER_LEN] {
        let mut line = [0; HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| line[at..at + bytes.len()].copy_from_slice(bytes);
        put(8, &self.index.to_le_bytes());
        put(16, &self.claim.to_le_bytes());
        put(24, &self.mtime.0.to_le_bytes());
        put(32, &self.offset.to_le_bytes());
        put(40, &self.file.to_le_bytes());
        put(LENGTH, &(self.length | u32::from(self.kind.code()) << 24).to_le_bytes());
        put(48, &self.data.to_le_bytes());
        put(52, &self.back.to_le_bytes());
        put(54, &self.count.to_le_bytes());
        // A sync may have gone past this entry before it was written; of what is above it, it says nothing.
        let behind = self.index.saturating_sub(self.durable);
        put(56, &u32::try_from(behind).unwrap_or(u32::MAX).to_le_bytes());
        let crc = checksum(salt, &line[8..60]);
        line[60..].copy_from_slice(&crc.to_le_bytes());
        line
    }

    /// Reads the header of an index. `None`: it is not whole, or another's.
    pub(crate) fn parse(line: &[u8; HEADER_LEN], salt: u64, index: u64) -> Option<Self> {
        let u64_at = |at: usize| u64::from_le_bytes(line[at..at + 8].try_into().expect("eight bytes"));
        let u32_at = |at: usize| u32::from_le_bytes(line[at..at + 4].try_into().expect("four bytes"));
        let u16_at = |at: usize| u16::from_le_bytes(line[at..at + 2].try_into().expect("two bytes"));
        if u32_at(60) != checksum(salt, &line[8..60]) || u64_at(8) != index {
            return None;
        }
        let kind = Kind::ALL.into_iter().find(|kind| kind.code() == line[LENGTH + 3])?;
        let (back, count) = (u16_at(52), u16_at(54));
        if back >= count {
            return None;
        }
        Some(Self {
            index,
            claim: u64_at(16),
            durable: if u32_at(56) == u32::MAX { 0 } else { index.saturating_sub(u32_at(56).into()) },
            mtime: Mtime(u64_at(24)),
            offset: u64_at(32),
            file: u32_at(40),
            length: u32_at(LENGTH) & LENGTH_MAX,
            data: u32_at(48),
            back,
            count,
            kind,
        })
    }
}

/// What proves the data of an entry to be its own.
pub(crate) fn data_checksum(salt: u64, index: u64, data: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&index.to_le_bytes());
    crc.update(data);
    crc.finalize()
}

fn checksum(salt: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_word_of_an_earlier_lap_is_unset_and_a_flipped_bit_is_damage() {
        const SALT: u64 = 77;
        let set = stamp(SALT, 24, true);
        assert_eq!(commit(SALT, 24, 8, set), Commit::Set { fenced: true });
        assert_eq!(commit(SALT, 32, 8, set), Commit::Unset);
        assert_eq!(commit(SALT, 24, 8, 0), Commit::Unset);
        assert_eq!(commit(SALT, 16, 8, set), Commit::Damaged, "of a later lap");
        assert_eq!(commit(SALT, 31, 8, set), Commit::Damaged, "of another place");
        for bit in 1..64 {
            assert_eq!(commit(SALT, 24, 8, set ^ 1 << bit), Commit::Damaged, "bit {bit}");
        }
    }

    #[test]
    fn a_claim_knows_its_lap() {
        let claim = Claim::new(LAPS + 5, 3, Owner::new(9));
        assert_eq!(Claim::of(claim.word()), claim);
        assert_eq!((claim.count, claim.owner.number()), (3, 9));
        assert_eq!([4, 5, 6].map(|lap| claim.age(LAPS + lap)), [Age::Later, Age::Same, Age::Earlier]);
        assert_eq!(Claim::of(0).age(1), Age::Earlier);
    }

    #[test]
    fn each_flipped_bit_of_a_header_is_found() {
        let header = Header {
            index: 24,
            claim: 5,
            durable: 8,
            mtime: Mtime(1 << 60),
            offset: 1 << 40,
            file: 3,
            length: 64,
            data: 0xdead_beef,
            back: 1,
            count: 2,
            kind: Kind::Write,
        };
        let line = header.emit(7);
        assert_eq!(Header::parse(&line, 7, 24), Some(header));
        assert_eq!(Header::parse(&line, 8, 24), None, "of a log with another salt");
        assert_eq!(Header::parse(&line, 7, 32), None, "of another lap");
        for bit in 64..512 {
            let mut line = line;
            line[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&line, 7, 24), None, "bit {bit}");
        }
    }

    #[test]
    fn what_was_durable_is_never_said_to_be_more_than_it_was() {
        let index = 1 << 40;
        let header = |durable| Header {
            index,
            claim: 0,
            durable,
            mtime: Mtime::UNKNOWN,
            offset: 0,
            file: 0,
            length: 1 << 20,
            data: 0,
            back: 0,
            count: 1,
            kind: Kind::Settled,
        };
        for (durable, said) in [
            (index - 5, index - 5),
            (index + 5, index),
            (index - (1 << 33), 0),
            (index - u64::from(u32::MAX), 0),
        ] {
            let parsed = Header::parse(&header(durable).emit(7), 7, index).expect("it is whole");
            assert_eq!((parsed.durable, parsed.length, parsed.kind), (said, 1 << 20, Kind::Settled));
        }
    }
}
