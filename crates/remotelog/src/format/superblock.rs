//! Page 0: what this region is. Written once, as the last step of making a log.
//!
//! One line of it is not the log's: the file says there that it has a journal. So a journal of which nothing is left is missed.

pub use remanence_pmem::layout::Uuid;
use remanence_pmem::{FileOptions, Image, JOURNAL_NOTE_LEN, is_journal_note};

use super::{Geometry, Mode, ROOT_AT, VERSION, u32_at, u64_at};
use crate::error::OpenError;

const MAGIC: &[u8; 8] = b"REMLOG\0\0";
/// In place of it while a log is made: what a crash leaves then is as good as blank. Both are stored atomically.
pub(crate) const MAKING: &[u8; 8] = b"REMLOG\0m";
const BYTE_ORDER: u32 = 0x0102_0304;

/// Bytes of the superblock.
pub const SUPERBLOCK_LEN: u64 = ROOT_AT;
/// Where a log's file says that it has a journal
/// ([`FileOptions::journal_note`](remanence_pmem::FileOptions::journal_note)): a sector that is nothing else's, of which logs made
/// before there were notes have zeros. It is of the file and not of the log: whoever makes a log leaves it as it is.
pub const JOURNAL_NOTE: u64 = 1024;
const NOTE: std::ops::Range<usize> = JOURNAL_NOTE as usize..JOURNAL_NOTE as usize + JOURNAL_NOTE_LEN;

mod field {
    pub(super) const VERSION: usize = 8;
    pub(super) const BYTE_ORDER: usize = 12;
    pub(super) const UUID: usize = 16;
    pub(super) const SIZE: usize = 32;
    pub(super) const SEGMENT: usize = 40;
    pub(super) const SALT: usize = 48;
    pub(super) const MODE: usize = 56;
    pub(super) const CRC: usize = 60;
    pub(super) const END: usize = 64;
}
const _: () = assert!(field::END == field::CRC + 4 && field::END <= NOTE.start);
const _: () = assert!(NOTE.end as u64 <= SUPERBLOCK_LEN);

/// The contents of page 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Which log.
    pub uuid: Uuid,
    /// How it is divided.
    pub geometry: Geometry,
    /// Goes into the checksum of every record, so that nothing of an earlier log in the same place can pass for one.
    pub salt: u64,
    /// How its end is found.
    pub mode: Mode,
}

/// How every opener of a log's file opens it.
#[must_use]
pub fn file_options() -> FileOptions {
    let way = "copy what is left with `rem log salvage FILE -o NEW`; if the log is on several servers, take this one's file away, and the \
               others fill a new one";
    FileOptions::new().image(image).journal_note(JOURNAL_NOTE, way)
}

/// Whether page 0 has no log, and none was being made: zeros, but for what may be noted of the file's journal.
#[must_use]
pub(crate) fn is_blank(page: &[u8]) -> bool {
    page.iter().enumerate().all(|(at, byte)| *byte == 0 || NOTE.contains(&at))
        && page.get(NOTE).is_none_or(is_journal_note)
}

/// What a file of this length has that begins so, as [`file_options`] says it. Behind the log may lie what clients write, receive buffers: who
/// serves it knows how far to look for what is left of a journal.
#[must_use]
pub fn image(head: &[u8], len: u64) -> Image {
    let page = &head[..head.len().min(SUPERBLOCK_LEN as usize)];
    match recorded_size(page) {
        Some(_) => Image::Ours { len },
        None if page.starts_with(MAKING) || is_blank(page) => Image::Blank,
        None => Image::Foreign,
    }
}

/// How many bytes a superblock says that its log has, if the page begins like one: it need not be right.
#[must_use]
pub fn recorded_size(page: &[u8]) -> Option<u64> {
    (page.len() >= field::END && page.starts_with(MAGIC)).then(|| u64_at(page, field::SIZE))
}

impl Superblock {
    /// The bytes to write. Those of the [note](JOURNAL_NOTE) are not the log's: whoever writes them leaves out what is there.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut page = vec![0; SUPERBLOCK_LEN as usize];
        page[..8].copy_from_slice(MAGIC);
        page[field::VERSION..][..4].copy_from_slice(&VERSION.to_le_bytes());
        page[field::BYTE_ORDER..][..4].copy_from_slice(&BYTE_ORDER.to_le_bytes());
        page[field::UUID..][..16].copy_from_slice(&self.uuid.0);
        page[field::SIZE..][..8].copy_from_slice(&self.geometry.size.to_le_bytes());
        page[field::SEGMENT..][..8].copy_from_slice(&self.geometry.segment.to_le_bytes());
        page[field::SALT..][..8].copy_from_slice(&self.salt.to_le_bytes());
        page[field::MODE..][..4].copy_from_slice(&self.mode.code().to_le_bytes());
        let crc = crc32fast::hash(&page[..field::CRC]);
        page[field::CRC..field::END].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// Reads page 0 of a region of so many bytes.
    ///
    /// # Errors
    /// The region is too short, no log, another version's log, damaged, or not as long as it says.
    pub fn parse(page: &[u8], len: u64) -> Result<Self, OpenError> {
        if page.len() < field::END {
            return Err(OpenError::TooShort { len });
        }
        if &page[..8] != MAGIC {
            let swapped = page[..8].iter().rev().eq(MAGIC);
            let blank = page.starts_with(MAKING) || is_blank(page);
            return Err(match (swapped, blank) {
                (true, _) => OpenError::OtherByteOrder,
                (_, true) => OpenError::Blank,
                _ => OpenError::NotALog,
            });
        }
        if u32_at(page, field::BYTE_ORDER) == BYTE_ORDER.swap_bytes() {
            return Err(OpenError::OtherByteOrder);
        }
        // The version comes before the checksum: where that lies is the other version's business.
        let version = u32_at(page, field::VERSION);
        if version != VERSION {
            return Err(OpenError::OtherVersion { found: version });
        }
        if crc32fast::hash(&page[..field::CRC]) != u32_at(page, field::CRC) {
            return Err(OpenError::SuperblockDamaged);
        }
        let geometry = Geometry::new(u64_at(page, field::SIZE), u64_at(page, field::SEGMENT));
        let (Some(geometry), Some(mode)) = (geometry, Mode::from_code(u32_at(page, field::MODE))) else {
            return Err(OpenError::SuperblockDamaged);
        };
        match len {
            n if n < geometry.size => Err(OpenError::Truncated { len: n, log: geometry.size }),
            n if n > geometry.size => Err(OpenError::Grown { len: n, log: geometry.size }),
            _ => Ok(Self {
                uuid: Uuid(page[field::UUID..][..16].try_into().expect("16 bytes")),
                geometry,
                salt: u64_at(page, field::SALT),
                mode,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        let geometry = Geometry::new(1 << 20, 4096).expect("fair");
        Superblock { uuid: Uuid(*b"0123456789abcdef"), geometry, salt: 0xDEAD_BEEF, mode: Mode::Compound }
    }

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let bytes = superblock().emit();
        let hex: String = bytes[..field::END].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "52454d4c4f470000010000000403020130313233343536373839616263646566\
             00001000000000000010000000000000efbeadde0000000002000000b16d9d1d"
        );
        assert_eq!(bytes.len(), 4096);
        assert!(bytes[field::END..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_was_emitted_is_parsed() {
        assert_eq!(Superblock::parse(&superblock().emit(), 1 << 20), Ok(superblock()));
    }

    #[test]
    fn a_log_and_what_one_may_be_made_in_are_told_from_all_else() {
        let page = superblock().emit();
        assert_eq!(image(&page, 1 << 20), Image::Ours { len: 1 << 20 });
        // It is written last when a log is made.
        let mut half_made = vec![0; 1 << 16];
        half_made[page.len()..].fill(1);
        assert_eq!(image(&half_made, 1 << 20), Image::Blank);
        half_made[7] = b'x';
        assert_eq!(image(&half_made, 1 << 20), Image::Foreign);
        assert_eq!((image(b"", 0), image(b"x", 1)), (Image::Blank, Image::Foreign));
        for short in 0..NOTE.end {
            assert_eq!(image(&vec![0; short], short as u64), Image::Blank);
        }
        let mut noted = vec![0; 1 << 16];
        noted[NOTE.start] = 1;
        assert_eq!(image(&noted, 1 << 20), Image::Foreign, "that is no note");
        assert_eq!(Superblock::parse(&noted, 1 << 20), Err(OpenError::NotALog));
    }

    #[test]
    fn another_file_is_told_from_another_version_and_from_a_damaged_one() {
        let parse = |change: &dyn Fn(&mut Vec<u8>), len| {
            let mut page = superblock().emit();
            change(&mut page);
            Superblock::parse(&page, len)
        };
        assert_eq!(parse(&|p| p[0] = b'X', 1 << 20), Err(OpenError::NotALog));
        assert_eq!(parse(&|p| p.fill(0), 1 << 20), Err(OpenError::Blank));
        assert_eq!(parse(&|p| p.truncate(20), 20), Err(OpenError::TooShort { len: 20 }));
        assert_eq!(parse(&|p| p[8] = 9, 1 << 20), Err(OpenError::OtherVersion { found: 9 }));
        assert_eq!(parse(&|p| p[12..16].reverse(), 1 << 20), Err(OpenError::OtherByteOrder));
        for byte in 16..field::END {
            assert_eq!(
                parse(&|p| p[byte] ^= 0x10, 1 << 20),
                Err(OpenError::SuperblockDamaged),
                "byte {byte}"
            );
        }
        assert_eq!(parse(&|_| (), 8192), Err(OpenError::Truncated { len: 8192, log: 1 << 20 }));
        assert_eq!(parse(&|_| (), 2 << 20), Err(OpenError::Grown { len: 2 << 20, log: 1 << 20 }));
    }
}
