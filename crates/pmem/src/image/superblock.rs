//! The superblock: magic number, version, byte order, name, size, salt, what a format has of its own, and a checksum.
//!
//! ```text
//! 0   magic, 8 bytes       16  uuid, 16 bytes      40       fields of the format
//! 8   version, u32         32  size, u64           crc_at   CRC-32 of all before it, u32
//! 12  0x01020304, u32
//! ```
//! Little-endian.

use crate::layout::{Uuid, get_u32, get_u64};
use crate::{FileOptions, Image, JOURNAL_NOTE_LEN, is_journal_note};

const BYTE_ORDER: u32 = 0x0102_0304;

mod field {
    pub(super) const VERSION: usize = 8;
    pub(super) const BYTE_ORDER: usize = 12;
    pub(super) const UUID: usize = 16;
    pub(super) const SIZE: usize = 32;
    pub(super) const OWN: usize = 40;
}

/// A format, as far as its superblock tells it from others.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its first eight bytes.
    pub magic: [u8; 8],
    /// What stands in place of them while an image is made, if the format marks that: what a crash leaves then is as good as
    /// blank.
    pub making: Option<[u8; 8]>,
    /// The version that is written, and the only one that is read.
    pub version: u32,
    /// Where the checksum lies, in bytes from the start; it covers all before it.
    pub crc_at: usize,
    /// Bytes of the superblock with the zeros behind its checksum: all of them are zeros if a medium is blank.
    pub len: usize,
    /// Where the format leaves [`JOURNAL_NOTE_LEN`] bytes for the note of its file's journal, and what an owner is told to do
    /// when that journal is missing ([`FileOptions::journal_note`]). No format says anything of its own there.
    pub note: Option<(u64, &'static str)>,
}

/// Why a medium has no image that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It has fewer bytes than the fields of a superblock take.
    TooShort,
    /// It has zeros, but for what is noted of its file's journal.
    Blank,
    /// A crash came while an image was made: nothing was acknowledged, and one may be made in its place.
    Making,
    /// It has something else.
    Foreign,
    /// It was written in the other byte order.
    OtherByteOrder,
    /// It was written by another version, of which nothing else is known.
    OtherVersion {
        /// The version that the head says.
        found: u32,
    },
    /// The checksum does not fit.
    Damaged,
    /// The medium is shorter than its image: the end was cut off.
    Truncated {
        /// Bytes of the medium.
        has: u64,
        /// Bytes of the image.
        wants: u64,
    },
    /// The medium is longer than its image.
    Grown {
        /// Bytes of the medium.
        has: u64,
        /// Bytes of the image.
        wants: u64,
    },
}

/// The fields of a superblock whose checksum fits.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// The name of the image.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        Uuid(self.0[field::UUID..field::SIZE].try_into().expect("sixteen bytes"))
    }

    /// Bytes that the image has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.u64(field::SIZE)
    }

    /// The number at a constant place in front of the checksum.
    ///
    /// # Panics
    /// No field of the format lies there.
    #[must_use]
    pub fn u32(&self, at: usize) -> u32 {
        get_u32(self.0, at)
    }

    /// The same, of eight bytes.
    ///
    /// # Panics
    /// As for [`u32`](Self::u32).
    #[must_use]
    pub fn u64(&self, at: usize) -> u64 {
        get_u64(self.0, at)
    }

    /// Compares the size with a medium of `has` bytes.
    ///
    /// # Errors
    /// The medium is [shorter](Fault::Truncated) or [longer](Fault::Grown).
    pub fn fill(&self, has: u64) -> Result<(), Fault> {
        let wants = self.size();
        match has.cmp(&wants) {
            std::cmp::Ordering::Less => Err(Fault::Truncated { has, wants }),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(Fault::Grown { has, wants }),
        }
    }
}

/// Whether these first bytes of a medium are zeros, but for what may be noted at `note` of its file's journal. That is of the
/// file, and is there before there is an image; what is no [note](is_journal_note) is somebody else's.
#[must_use]
pub fn is_blank(head: &[u8], note: Option<u64>) -> bool {
    let note = note.map_or(0..0, |at| at as usize..at as usize + JOURNAL_NOTE_LEN);
    head.iter().enumerate().all(|(at, byte)| *byte == 0 || note.contains(&at))
        && (note.is_empty() || head.get(note).is_none_or(is_journal_note))
}

/// The bytes of a superblock, with the fields of the format's own from byte 40 on. Those of the [note](Format::note) are zeros:
/// whoever writes the others leaves out what is there.
///
/// # Panics
/// The fields do not end where the checksum of the format begins.
#[must_use]
pub fn emit(format: &Format, uuid: Uuid, size: u64, own: &[u8]) -> Vec<u8> {
    assert_eq!(field::OWN + own.len(), format.crc_at, "the fields are those of the format");
    let mut bytes = Vec::with_capacity(format.len);
    bytes.extend_from_slice(&format.magic);
    bytes.extend_from_slice(&format.version.to_le_bytes());
    bytes.extend_from_slice(&BYTE_ORDER.to_le_bytes());
    bytes.extend_from_slice(&uuid.0);
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(own);
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.resize(format.len, 0);
    bytes
}

impl Format {
    /// Tells what a medium has that begins with these bytes. The size of the image is not compared with anything
    /// ([`Fields::fill`]): the fields of the format's own are checked before.
    ///
    /// # Errors
    /// There is no image of this version, or it is damaged. No bytes make this panic.
    pub fn judge<'a>(&self, head: &'a [u8]) -> Result<Fields<'a>, Fault> {
        if head.len() < self.crc_at + 4 {
            return Err(Fault::TooShort);
        }
        if !head.starts_with(&self.magic) {
            return Err(match () {
                () if head[..8].iter().rev().eq(&self.magic) => Fault::OtherByteOrder,
                () if self.is_making(head) => Fault::Making,
                () if self.is_blank(head) => Fault::Blank,
                () => Fault::Foreign,
            });
        }
        if get_u32(head, field::BYTE_ORDER) == BYTE_ORDER.swap_bytes() {
            return Err(Fault::OtherByteOrder);
        }
        let version = get_u32(head, field::VERSION);
        if version != self.version {
            return Err(Fault::OtherVersion { found: version });
        }
        if crc32fast::hash(&head[..self.crc_at]) != get_u32(head, self.crc_at) {
            return Err(Fault::Damaged);
        }
        Ok(Fields(&head[..self.crc_at]))
    }

    fn is_making(&self, head: &[u8]) -> bool {
        self.making.is_some_and(|mark| head.starts_with(&mark))
    }

    /// Whether a medium that begins so has no image, by as many bytes as a superblock has: [`is_blank`].
    #[must_use]
    pub fn is_blank(&self, head: &[u8]) -> bool {
        is_blank(&head[..head.len().min(self.len)], self.note.map(|(at, _)| at))
    }

    /// How many bytes a head says that its image has, if it begins like one: it need not be right.
    #[must_use]
    pub fn recorded_size(&self, head: &[u8]) -> Option<u64> {
        (head.len() >= self.crc_at + 4 && head.starts_with(&self.magic)).then(|| get_u64(head, field::SIZE))
    }

    /// What a file of `len` bytes has that begins so, for [`FileOptions::image`]. One that begins like an image is one also if
    /// it is damaged: whoever opens it gets to know what is wrong, and nobody makes another in its place.
    #[must_use]
    pub fn image(&self, head: &[u8], len: u64) -> Image {
        match self.recorded_size(head) {
            Some(_) => Image::Ours { len },
            None if self.is_making(head) || self.is_blank(head) => Image::Blank,
            None => Image::Foreign,
        }
    }

    /// How every opener of a file in this format opens it: with what tells whether it has an image, and with the note of its
    /// journal, if the format leaves room for that. `look` is the format's own question to [`image`](Self::image).
    #[must_use]
    pub fn file_options(&self, look: fn(&[u8], u64) -> Image) -> FileOptions {
        let options = FileOptions::new().image(look);
        match self.note {
            Some((at, way)) => options.journal_note(at, way),
            None => options,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format {
        magic: *b"REMTEST\0",
        making: Some(*b"REMTESTm"),
        version: 3,
        crc_at: 44,
        len: 512,
        note: Some((128, "ask its owner")),
    };

    fn judged(change: impl Fn(&mut Vec<u8>)) -> Result<u32, Fault> {
        let mut bytes = emit(&FORMAT, Uuid([7; 16]), 4096, &[1, 2, 3, 4]);
        change(&mut bytes);
        FORMAT.judge(&bytes).map(|fields| fields.u32(40))
    }

    #[test]
    fn what_was_emitted_is_read() {
        let bytes = emit(&FORMAT, Uuid([7; 16]), 4096, &[1, 2, 3, 4]);
        assert_eq!(bytes.len(), FORMAT.len);
        let fields = FORMAT.judge(&bytes).expect("whole");
        assert_eq!((fields.uuid(), fields.size(), fields.u32(40)), (Uuid([7; 16]), 4096, 0x0403_0201));
        assert_eq!(fields.fill(4096), Ok(()));
        assert_eq!(fields.fill(4095), Err(Fault::Truncated { has: 4095, wants: 4096 }));
        assert_eq!(fields.fill(4097), Err(Fault::Grown { has: 4097, wants: 4096 }));
    }

    /// A later version may have its checksum elsewhere, so one that fits no more says nothing of it.
    #[test]
    fn the_version_is_looked_at_before_the_checksum() {
        assert_eq!(judged(|b| b[8] = 4), Err(Fault::OtherVersion { found: 4 }));
        assert_eq!(judged(|b| b[12..16].reverse()), Err(Fault::OtherByteOrder));
        assert_eq!(judged(|b| b[..8].reverse()), Err(Fault::OtherByteOrder));
        for byte in 16..48 {
            assert_eq!(judged(|b| b[byte] ^= 1), Err(Fault::Damaged), "byte {byte}");
        }
    }

    #[test]
    fn only_zeros_but_for_the_note_are_blank() {
        assert_eq!(judged(|b| b.fill(0)), Err(Fault::Blank));
        assert_eq!(judged(|b| b[..8].copy_from_slice(b"REMTESTm")), Err(Fault::Making));
        assert_eq!(judged(|b| b.truncate(47)), Err(Fault::TooShort));
        for byte in 0..512 {
            let zeros_but = |b: &mut Vec<u8>| {
                b.fill(0);
                b[byte] = 1;
            };
            assert_eq!(
                judged(zeros_but),
                Err(Fault::Foreign),
                "byte {byte}: also in the note, as it is none"
            );
        }
        let no_note = Format { note: None, ..FORMAT };
        assert!(no_note.is_blank(&[0; 512]) && !no_note.is_blank(&[1; 1]));
    }

    #[test]
    fn a_file_that_begins_like_an_image_is_one_also_if_it_is_damaged() {
        let mut bytes = emit(&FORMAT, Uuid([7; 16]), 4096, &[1, 2, 3, 4]);
        bytes[20] ^= 1;
        assert_eq!(FORMAT.image(&bytes, 9000), Image::Ours { len: 9000 });
        assert_eq!(FORMAT.image(b"REMTESTm", 8), Image::Blank);
        assert_eq!(FORMAT.image(b"", 0), Image::Blank);
        assert_eq!(FORMAT.image(b"something", 9), Image::Foreign);
    }

    #[test]
    fn no_head_makes_it_panic() {
        let whole = emit(&FORMAT, Uuid([7; 16]), 4096, &[1, 2, 3, 4]);
        for len in 0..=whole.len() {
            for fill in [None, Some(0), Some(0xff)] {
                let mut head = whole[..len].to_vec();
                fill.into_iter().for_each(|byte| head.fill(byte));
                let _ = (FORMAT.judge(&head).is_ok(), FORMAT.image(&head, u64::MAX));
            }
        }
    }
}
