//! What a store is made of, in two copies: at the start, and in the last sector of the root record's pages.
//!
//! How they are written and told from all else: [`remanence_pmem::image`].

use std::io;

use remanence_pmem::image::{Checksum, Fault, Format, Making, Places, Signature, Version};
use remanence_pmem::layout::Uuid;
use remanence_pmem::{FileOptions, Image, Medium};

use super::{BadGeometry, Geometry};

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

/// The first format: [`v1`](super::v1).
const FIRST: u32 = 1;
/// A medium that begins with zeros for so long is blank, but for what may be noted of its file's journal.
pub const BLANK: usize = 64 << 10;
/// Where a store's file says that it has a journal
/// ([`FileOptions::journal_note`]): a sector that is nothing else's. It is of the
/// file and not of the store, so no copy of the store takes it along to another medium.
pub const JOURNAL_NOTE: u64 = 1024;

/// What tells a store from all else.
pub const FORMAT: Format = Format {
    signature: Signature {
        magic: *b"REMERDA\x01",
        second: Some(COPIES[1]),
        making: Some(Making { at: 2048, mark: b"REMERDA making \x01", ends: false }),
        head: BLANK,
        note: Some((
            JOURNAL_NOTE,
            "read what is left with `rem kv salvage FILE -o DUMP`, which goes into a new store by `rem kv load`; a member whose \
             directory is taken away is made anew if another one serves the store",
        )),
    },
    versions: &[
        Version { number: FIRST, crc_at: 64, len: SUPERBLOCK_LEN, twice: false },
        Version { number: VERSION, crc_at: 64, len: SUPERBLOCK_LEN, twice: true },
        Version { number: GROWN, crc_at: 72, len: LONGEST, twice: true },
    ],
    places: Places { byte_order: None, uuid: 48, size: 16 },
    checksum: Checksum { len: 8, of: |bytes| super::object::crc64(&[bytes]) },
};

/// The fields that are this format's own.
mod field {
    pub(super) const HEADS: usize = 12;
    pub(super) const STATE: usize = 14;
    pub(super) const REGION: usize = 24;
    pub(super) const SEGMENT: usize = 32;
    pub(super) const SALT: usize = 40;
    /// Only in a store that has grown: how many bytes it was made with. The checksum is behind it.
    pub(super) const GROWN_FROM: usize = 64;
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
    /// A crash came while a store was made: there is none, and one may be made in its place.
    #[error(
        "the store on this medium was not made to its end, and nothing was stored in it: serve it to have it made again, or remove it"
    )]
    Unfinished,
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

/// What a file of this length has that begins so, as [`file_options`] says it. One copy of the superblock that is whole makes it a
/// store.
#[must_use]
pub fn image(head: &[u8], len: u64) -> Image {
    match Superblock::of_head(head, len) {
        Ok(found) => Image::Ours { len: found.superblock.geometry.size },
        // All pages of a store may still have been in the journal.
        Err(SuperblockError::Missing | SuperblockError::Unfinished) => Image::Blank,
        // Who opens the store says why it is none.
        Err(_) => Image::Foreign,
    }
}

/// How every opener of a store's file opens it.
#[must_use]
pub fn file_options() -> FileOptions {
    FORMAT.signature.file_options(image)
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
        let Geometry { size, region_len, segment_len, heads, grown_from } = self.geometry;
        let [region, segment, salt, grown] =
            [region_len, segment_len, self.salt, grown_from].map(u64::to_le_bytes);
        let own: [(usize, &[u8]); 6] = [
            (field::HEADS, &heads.to_le_bytes()),
            (field::STATE, &u16::from(state == State::Upgrading).to_le_bytes()),
            (field::REGION, &region),
            (field::SEGMENT, &segment),
            (field::SALT, &salt),
            (field::GROWN_FROM, if version == GROWN { &grown } else { &[] }),
        ];
        FORMAT.emit(version, Uuid(self.uuid), size, &own)
    }

    /// Reads the first bytes of a medium that has `medium` bytes.
    ///
    /// # Errors
    /// There is no store that this program can use; the sentence says why.
    pub fn parse(bytes: &[u8], medium: u64) -> Result<Self, SuperblockError> {
        Self::of_head(bytes, medium).map(|found| found.superblock)
    }

    /// The superblock of a medium, by the copy that is whole.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn read(medium: &impl Medium) -> Result<Found, SuperblockError> {
        Self::of_head(&FORMAT.read(medium), medium.len())
    }

    /// The same, by the first [`BLANK`] bytes of a medium that has `medium` bytes; all of them, if it is shorter.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse).
    pub fn of_head(head: &[u8], medium: u64) -> Result<Found, SuperblockError> {
        let found = FORMAT.judge(head).map_err(|fault| match fault {
            Fault::Blank => SuperblockError::Missing,
            Fault::Making => SuperblockError::Unfinished,
            Fault::TooShort | Fault::Foreign | Fault::OtherByteOrder => SuperblockError::Foreign,
            Fault::OtherVersion { found } => SuperblockError::Version(found),
            Fault::Damaged | Fault::Truncated { .. } | Fault::Grown { .. } => SuperblockError::Damaged,
        })?;
        let fields = found.fields;
        let state = match (fields.version(), fields.u16(field::STATE)) {
            (FIRST, _) => State::First,
            (VERSION, 1) => State::Upgrading,
            (_, 0) => State::Current,
            (_, _) => return Err(SuperblockError::Damaged),
        };
        let geometry = Geometry {
            size: fields.size(),
            region_len: fields.u64(field::REGION),
            segment_len: fields.u64(field::SEGMENT),
            heads: fields.u16(field::HEADS),
            grown_from: if fields.version() == GROWN { fields.u64(field::GROWN_FROM) } else { 0 },
        };
        geometry.check()?;
        if geometry.size > medium {
            return Err(SuperblockError::CutOff { store: geometry.size, medium });
        }
        let superblock = Self { geometry, salt: fields.u64(field::SALT), uuid: fields.uuid().0 };
        Ok(Found { superblock, state, whole: found.whole })
    }

    /// Replaces both copies, one after the other; durable on return.
    ///
    /// # Errors
    /// The medium failed: one copy is whole.
    pub fn write(&self, medium: &impl Medium, state: State) -> io::Result<()> {
        FORMAT.replace(medium, &self.emit_as(state))
    }
}
