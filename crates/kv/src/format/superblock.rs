//! What a store is made of, in two copies: at the start, and in the last sector of the root record's pages.
//!
//! The second is written first and the first second, each durable before the other is touched, so that a crash leaves one that
//! is whole: the first if it is, and otherwise the second, which is then the newer. The version stands in front of everything
//! that a later one may change, and is looked at before the checksum, whose place that may change as well.

use std::io;

use remanence_pmem::{JOURNAL_NOTE_LEN, Medium, is_journal_note};

use super::{BadGeometry, Geometry, get_u16, get_u32, get_u64};

/// Bytes that the superblock takes.
pub const SUPERBLOCK_LEN: usize = 72;
/// Bytes that it takes if the store has grown.
pub const LONGEST: usize = 80;
/// Where the copies of the superblock are.
pub const COPIES: [u64; 2] = [0, super::HEAD_WORDS - 512];
/// The format that is written, of a store that has its first size.
pub const VERSION: u32 = 2;
/// The same, of a store that has grown: a program that does not know of that must not take it for larger than it was made.
pub const GROWN: u32 = 3;

const MAGIC: u64 = u64::from_le_bytes(*b"REMERDA\x01");
/// The first format: [`v1`](super::v1).
const FIRST: u32 = 1;
/// A medium that begins with zeros for so long is blank, but for what may be noted of its file's journal.
pub const BLANK: usize = 64 << 10;
/// Where a store's file says that it has a journal
/// ([`FileOptions::journal_note`](remanence_pmem::FileOptions::journal_note)): a sector that is nothing else's. It is of the
/// file and not of the store, so no copy of the store takes it along to another medium.
pub const JOURNAL_NOTE: u64 = 1024;

/// Whether a medium that begins so has nothing.
#[must_use]
pub fn is_blank(start: &[u8]) -> bool {
    let note = JOURNAL_NOTE as usize..JOURNAL_NOTE as usize + JOURNAL_NOTE_LEN;
    start.iter().enumerate().all(|(at, byte)| *byte == 0 || note.contains(&at))
        && start.get(note).is_none_or(is_journal_note)
}

mod field {
    pub(super) const VERSION: usize = 8;
    pub(super) const HEADS: usize = 12;
    pub(super) const STATE: usize = 14;
    pub(super) const SIZE: usize = 16;
    pub(super) const REGION: usize = 24;
    pub(super) const SEGMENT: usize = 32;
    pub(super) const SALT: usize = 40;
    pub(super) const UUID: usize = 48;
    /// Of a store that has grown, with the checksum behind it.
    pub(super) const GROWN_FROM: usize = 64;

    /// Where the checksum is, the last.
    pub(super) const fn crc(version: u32) -> usize {
        if version == super::GROWN { 72 } else { 64 }
    }
}

/// What a store is made of, which changes only when it grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// How the medium is divided.
    pub geometry: Geometry,
    /// Drawn at format: hashes and checksums depend on it, so nothing of an earlier store on this medium is believed.
    pub salt: u64,
    /// What the store is known by, drawn at format.
    pub uuid: [u8; 16],
}

/// How the rest of the store is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The store has format 1, and is to be upgraded.
    First,
    /// The store is on the way from there: words have the new offset first, and some have their check bits.
    Upgrading,
    /// The store is as it is written now.
    Current,
}

/// What was found of a store's superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// What the copy that counts says.
    pub superblock: Superblock,
    /// How the rest of the store is to be read.
    pub state: State,
    /// Which of the copies are whole and say the same.
    pub whole: [bool; 2],
}

/// Why there is no store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// The medium is blank.
    #[error("there is no store on this medium: it is blank")]
    Missing,
    /// The medium begins with something else.
    #[error(
        "there is no store on this medium, and it is not blank: its first bytes are those of something else"
    )]
    Foreign,
    /// The store was made by a program of a later version.
    #[error("the store has format {0}, and this program reads formats 1 to 3: use the program that made it")]
    Version(u32),
    /// Neither copy has a checksum that fits.
    #[error(
        "both copies of the store's superblock are damaged: `rem kv salvage` reads what is left, or restore it from a copy"
    )]
    Damaged,
    /// The medium is shorter than the store.
    #[error("the store has {store} bytes and the medium {medium}: its end was cut off")]
    CutOff {
        /// Bytes that the store has.
        store: u64,
        /// Bytes that the medium has.
        medium: u64,
    },
    /// The checksum fits and the numbers do not.
    #[error("the store's geometry means nothing: {0}")]
    Geometry(#[from] BadGeometry),
}

impl Superblock {
    /// The superblock as it is stored.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        self.emit_as(State::Current)
    }

    fn emit_as(&self, state: State) -> Vec<u8> {
        let version = match (state, self.geometry.grown_from) {
            (State::First, _) => FIRST,
            (_, 0) => VERSION,
            (_, _) => GROWN,
        };
        let crc_at = field::crc(version);
        let mut bytes = vec![0; crc_at + 8];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[field::VERSION..][..4].copy_from_slice(&version.to_le_bytes());
        bytes[field::HEADS..][..2].copy_from_slice(&self.geometry.heads.to_le_bytes());
        bytes[field::STATE..][..2].copy_from_slice(&u16::from(state == State::Upgrading).to_le_bytes());
        bytes[field::SIZE..][..8].copy_from_slice(&self.geometry.size.to_le_bytes());
        bytes[field::REGION..][..8].copy_from_slice(&self.geometry.region_len.to_le_bytes());
        bytes[field::SEGMENT..][..8].copy_from_slice(&self.geometry.segment_len.to_le_bytes());
        bytes[field::SALT..][..8].copy_from_slice(&self.salt.to_le_bytes());
        bytes[field::UUID..][..16].copy_from_slice(&self.uuid);
        if version == GROWN {
            bytes[field::GROWN_FROM..][..8].copy_from_slice(&self.geometry.grown_from.to_le_bytes());
        }
        let crc = super::object::crc64(&[&bytes[..crc_at]]);
        bytes[crc_at..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the first bytes of a medium that has `medium` bytes.
    ///
    /// # Errors
    /// There is no store that this program can use; the sentence says why.
    pub fn parse(bytes: &[u8], medium: u64) -> Result<Self, SuperblockError> {
        Self::parse_as(bytes, medium).map(|(superblock, _)| superblock)
    }

    fn parse_as(bytes: &[u8], medium: u64) -> Result<(Self, State), SuperblockError> {
        if bytes.len() < SUPERBLOCK_LEN || get_u64(bytes, 0) != MAGIC {
            return Err(SuperblockError::Missing);
        }
        let whole = |bytes: &[u8]| {
            let crc = field::crc(get_u32(bytes, field::VERSION));
            crc + 8 <= bytes.len() && super::object::crc64(&[&bytes[..crc]]) == get_u64(bytes, crc)
        };
        let version = get_u32(bytes, field::VERSION);
        let state = match (version, get_u16(bytes, field::STATE)) {
            (FIRST, _) => State::First,
            (VERSION | GROWN, 0) => State::Current,
            (VERSION, 1) => State::Upgrading,
            (VERSION | GROWN, _) => return Err(SuperblockError::Damaged),
            (other, _) => {
                // A later one, unless it is the number that is damaged.
                let mut ours = bytes[..bytes.len().min(LONGEST)].to_vec();
                let ours = [FIRST, VERSION, GROWN].into_iter().any(|version| {
                    ours[field::VERSION..][..4].copy_from_slice(&version.to_le_bytes());
                    whole(&ours)
                });
                return Err(if ours { SuperblockError::Damaged } else { SuperblockError::Version(other) });
            }
        };
        if !whole(bytes) {
            return Err(SuperblockError::Damaged);
        }
        let geometry = Geometry {
            size: get_u64(bytes, field::SIZE),
            region_len: get_u64(bytes, field::REGION),
            segment_len: get_u64(bytes, field::SEGMENT),
            heads: get_u16(bytes, field::HEADS),
            grown_from: if version == GROWN { get_u64(bytes, field::GROWN_FROM) } else { 0 },
        };
        geometry.check()?;
        if geometry.size > medium {
            return Err(SuperblockError::CutOff { store: geometry.size, medium });
        }
        let uuid = bytes[field::UUID..][..16].try_into().expect("sixteen bytes");
        Ok((Self { geometry, salt: get_u64(bytes, field::SALT), uuid }, state))
    }

    /// The superblock of a medium, by the copy that is whole.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn read(medium: &impl Medium) -> Result<Found, SuperblockError> {
        Self::find(medium.len(), |at, bytes| medium.read(at, bytes))
    }

    /// The same, by the first [`BLANK`] bytes of a medium that has `medium` bytes; all of them, if it is shorter.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn of_head(head: &[u8], medium: u64) -> Result<Found, SuperblockError> {
        Self::find(medium, |at, bytes| {
            let there = head.get(at as usize..).unwrap_or_default();
            let there = &there[..there.len().min(bytes.len())];
            bytes[..there.len()].copy_from_slice(there);
        })
    }

    fn find(len: u64, read: impl Fn(u64, &mut [u8])) -> Result<Found, SuperblockError> {
        let copies = COPIES.map(|at| {
            let mut bytes = [0; LONGEST];
            let there = len.saturating_sub(at).min(LONGEST as u64) as usize;
            if there > 0 {
                read(at, &mut bytes[..there]);
            }
            Self::parse_as(&bytes[..there], len)
        });
        match copies {
            // Who writes a later format over ours need not know of the second copy.
            [Err(SuperblockError::Version(later)), _] => Err(SuperblockError::Version(later)),
            [Ok((superblock, state)), second] => {
                // Format 1 had one.
                let whole = second == Ok((superblock, state)) || state == State::First;
                Ok(Found { superblock, state, whole: [true, whole] })
            }
            [Err(_), Ok((superblock, state))] => Ok(Found { superblock, state, whole: [false, true] }),
            [Err(SuperblockError::Missing), Err(SuperblockError::Missing)] => {
                let mut start = vec![0; BLANK.min(usize::try_from(len).unwrap_or(BLANK))];
                read(0, &mut start);
                Err(if is_blank(&start) { SuperblockError::Missing } else { SuperblockError::Foreign })
            }
            [Err(SuperblockError::Missing), Err(second)] => Err(second),
            [Err(first), Err(_)] => Err(first),
        }
    }

    /// Writes both copies, one after the other; durable on return.
    ///
    /// # Errors
    /// The medium failed: one copy is whole.
    pub fn write(&self, medium: &impl Medium, state: State) -> io::Result<()> {
        let bytes = self.emit_as(state);
        for at in COPIES.into_iter().rev() {
            medium.write(at, &bytes);
            medium.persist(at..at + bytes.len() as u64)?;
        }
        Ok(())
    }

    /// The same where there is none: a crash leaves none, or one, and never one that is damaged.
    ///
    /// # Errors
    /// The medium failed.
    pub fn make(&self, medium: &impl Medium) -> io::Result<()> {
        let bytes = self.emit();
        for at in COPIES.into_iter().rev() {
            // The first word says that there is one, and is stored atomically.
            for part in [8..bytes.len(), 0..8] {
                let place = at + part.start as u64..at + part.end as u64;
                medium.write(place.start, &bytes[part]);
                medium.persist(place)?;
            }
        }
        Ok(())
    }

    /// Takes both copies away: there is no store any more.
    ///
    /// # Errors
    /// The medium failed.
    pub fn erase(medium: &impl Medium) -> io::Result<()> {
        for at in COPIES.into_iter().rev() {
            medium.write(at, &[0; LONGEST]);
            medium.pwb(at..at + LONGEST as u64);
        }
        medium.psync()
    }
}
