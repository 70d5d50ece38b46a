//! What a file says, among its owner's own bytes, of the journal at its end: so that one of which nothing is left, footer
//! included, is missed.
//!
//! A footer cannot say that it was there. Its owner gives it a line of the region in which it has nothing
//! ([`FileOptions::journal_note`](crate::FileOptions::journal_note)), and three things may stand there. *Nothing*: the file has no
//! journal, or was made before there were notes. *Has*: it has one, and is refused without. *Moves*: its journal is being made, in
//! place of none or of one that was removed in order, so that a file without one gets it now, and nothing is missing. The line is one of a sector, so that a
//! crash leaves one of them. What *has* one says its name, too, so that one that was copied from another file is not taken for it; files that were
//! written before that say none.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::format::{JournalLayout, Name};
use crate::layout::{get_u32, get_u64};

/// Bytes of a note.
pub const JOURNAL_NOTE_LEN: usize = 64;

const MAGIC: [u8; 8] = *b"RMNCjnot";
const VERSION: u32 = 1;
const HAS: u32 = 1;
const MOVES: u32 = 2;
const CRC: usize = JOURNAL_NOTE_LEN - 4;

/// What is noted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Note {
    /// Nothing that can be read.
    #[default]
    Nothing,
    /// There is a journal behind so many bytes.
    Has(Sizes),
    /// It is being made.
    Moves(Sizes),
}

/// Of a file with a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    /// Bytes of the region.
    pub(crate) region: u64,
    /// Bytes of the journal, about.
    pub(crate) journal: u64,
    /// Its name; [`NO_NAME`]: it has none yet, or is not told.
    pub(crate) name: Name,
}

/// Of no journal.
pub(crate) const NO_NAME: Name = [0; 16];

impl Note {
    /// As it stands in the file.
    pub(crate) fn encode(&self) -> [u8; JOURNAL_NOTE_LEN] {
        let mut bytes = [0; JOURNAL_NOTE_LEN];
        let (what, sizes) = match self {
            Self::Nothing => return bytes,
            Self::Has(sizes) => (HAS, sizes),
            Self::Moves(sizes) => (MOVES, sizes),
        };
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&what.to_le_bytes());
        bytes[16..24].copy_from_slice(&sizes.region.to_le_bytes());
        bytes[24..32].copy_from_slice(&sizes.journal.to_le_bytes());
        bytes[32..48].copy_from_slice(&sizes.name);
        let crc = crc32fast::hash(&bytes[..CRC]);
        bytes[CRC..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// What these bytes say.
    pub(crate) fn decode(bytes: &[u8; JOURNAL_NOTE_LEN]) -> Self {
        let name = bytes[32..48].try_into().expect("sixteen bytes");
        let sizes = Sizes { region: get_u64(bytes, 16), journal: get_u64(bytes, 24), name };
        let note = match get_u32(bytes, 12) {
            HAS => Self::Has(sizes),
            MOVES => Self::Moves(sizes),
            _ => return Self::Nothing,
        };
        if note.encode() == *bytes { note } else { Self::Nothing }
    }

    /// The note of a file; nothing, if it has no such bytes.
    pub(crate) fn read(file: &File, at: u64) -> io::Result<Self> {
        let mut bytes = [0; JOURNAL_NOTE_LEN];
        match file.read_exact_at(&mut bytes, at) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Self::Nothing),
            read => read.map(|()| Self::decode(&bytes)),
        }
    }

    /// Whether this journal is another one than it tells of.
    pub(crate) fn is_of_another(&self, place: &JournalLayout) -> bool {
        matches!(self, Self::Has(sizes) if sizes.name != NO_NAME && sizes.name != place.name)
    }

    /// Puts it into a file that has no journal, durably. One that has may still have to be told of writes that failed, by the
    /// very sync that this takes.
    pub(crate) fn write(&self, file: &File, at: u64) -> io::Result<()> {
        file.write_all_at(&self.encode(), at)?;
        file.sync_data()
    }
}

/// Whether these bytes of a region are what an owner finds in the line that it left for a
/// [note](crate::FileOptions::journal_note): one, or zeros.
#[must_use]
pub fn is_journal_note(bytes: &[u8]) -> bool {
    let Ok(bytes): Result<&[u8; JOURNAL_NOTE_LEN], _> = bytes.try_into() else { return false };
    *bytes == Note::Nothing.encode() || Note::decode(bytes) != Note::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_which_a_bit_is_flipped_says_nothing() {
        let sizes = Sizes { region: 300_001, journal: 1 << 18, name: [3; 16] };
        assert!(is_journal_note(&[0; JOURNAL_NOTE_LEN]) && !is_journal_note(&[0; JOURNAL_NOTE_LEN - 1]));
        for note in [Note::Has(sizes), Note::Moves(sizes)] {
            let mut bytes = note.encode();
            assert_eq!(Note::decode(&bytes), note);
            assert!(is_journal_note(&bytes));
            for bit in 0..JOURNAL_NOTE_LEN * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Note::decode(&bytes), Note::Nothing, "bit {bit}");
                assert!(!is_journal_note(&bytes), "somebody else's");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
