//! Page 0: what this region is. Written once, as the last step of making a log.
//!
//! One line of it is not the log's: the file says there that it has a journal. So a journal of which nothing is left is missed.

use remanence_pmem::image::{Checksum, Fault, Format, Making, Places, Signature, Version};
pub use remanence_pmem::layout::Uuid;
use remanence_pmem::{FileOptions, Image};

use super::{Geometry, Mode, ROOT_AT, VERSION};
use crate::log::error::OpenError;

/// What tells a log from all else.
pub const FORMAT: Format = Format {
    signature: Signature {
        magic: *b"REMLOG\0\0",
        second: None,
        // In place of the magic number, which is then written over it.
        making: Some(Making { at: 0, mark: b"REMLOG\0m", ends: true }),
        head: SUPERBLOCK_LEN as usize,
        note: Some((
            JOURNAL_NOTE,
            "copy what is left with `rem log salvage FILE -o NEW`; if the log is on several servers, take this one's file away, and \
             the others fill a new one",
        )),
    },
    versions: &[Version { number: VERSION, crc_at: 60, len: SUPERBLOCK_LEN as usize, twice: false }],
    places: Places::COMMON,
    checksum: Checksum::CRC32,
};

/// Bytes of the superblock.
pub const SUPERBLOCK_LEN: u64 = ROOT_AT;
/// Where a log's file says that it has a journal
/// ([`FileOptions::journal_note`](remanence_pmem::FileOptions::journal_note)): a sector that is nothing else's, of which logs made
/// before there were notes have zeros. It is of the file and not of the log: whoever makes a log leaves it as it is.
pub const JOURNAL_NOTE: u64 = 1024;

/// The fields behind those that every format has.
mod field {
    pub(super) const SEGMENT: usize = 40;
    pub(super) const SALT: usize = 48;
    pub(super) const MODE: usize = 56;
}

/// The contents of page 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The UUID of the log, drawn when it was made.
    pub uuid: Uuid,
    /// How the region is divided.
    pub geometry: Geometry,
    /// Goes into the checksum of every record, so that nothing of an earlier log in the same place can pass for one.
    pub salt: u64,
    /// How the end of the log is found.
    pub mode: Mode,
}

/// How every opener of a log's file opens it.
#[must_use]
pub fn file_options() -> FileOptions {
    FORMAT.signature.file_options(image)
}

/// What a file of this length has that begins so, as [`file_options`] says it. Behind the log may lie what clients write, receive buffers: who
/// serves it knows how far to look for what is left of a journal.
#[must_use]
pub fn image(head: &[u8], len: u64) -> Image {
    FORMAT.image(head, len)
}

/// How many bytes a superblock says that its log has, if the page begins like one: it need not be right.
#[must_use]
pub fn recorded_size(page: &[u8]) -> Option<u64> {
    FORMAT.recorded_size(page)
}

impl Superblock {
    /// The bytes to write. Those of the [note](JOURNAL_NOTE) are not the log's: whoever writes them leaves out what is there.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let [segment, salt] = [self.geometry.segment, self.salt].map(u64::to_le_bytes);
        let mode = self.mode.code().to_le_bytes();
        let own: [(usize, &[u8]); 3] =
            [(field::SEGMENT, &segment), (field::SALT, &salt), (field::MODE, &mode)];
        FORMAT.emit(VERSION, self.uuid, self.geometry.size, &own)
    }

    /// Reads page 0 of a region of so many bytes.
    ///
    /// # Errors
    /// The region is too short, no log, another version's log, damaged, or not as long as it says.
    pub fn parse(page: &[u8], len: u64) -> Result<Self, OpenError> {
        let parsed = FORMAT.judge(page).and_then(|found| {
            let fields = found.fields;
            let geometry = Geometry::new(fields.size(), fields.u64(field::SEGMENT)).ok_or(Fault::Damaged)?;
            let mode = Mode::from_code(fields.u32(field::MODE)).ok_or(Fault::Damaged)?;
            fields.fill(len)?;
            Ok(Self { uuid: fields.uuid(), geometry, salt: fields.u64(field::SALT), mode })
        });
        parsed.map_err(|fault| match fault {
            Fault::TooShort => OpenError::TooShort { len },
            Fault::Blank | Fault::Making => OpenError::Blank,
            Fault::Foreign => OpenError::NotALog,
            Fault::OtherByteOrder => OpenError::OtherByteOrder,
            Fault::OtherVersion { found } => OpenError::OtherVersion { found },
            Fault::Damaged => OpenError::SuperblockDamaged,
            Fault::Truncated { has, wants } => OpenError::Truncated { len: has, log: wants },
            Fault::Grown { has, wants } => OpenError::Grown { len: has, log: wants },
        })
    }
}

#[cfg(test)]
mod tests {
    use remanence_pmem::JOURNAL_NOTE_LEN;

    use super::*;

    const END: usize = 64;

    fn superblock() -> Superblock {
        let geometry = Geometry::new(1 << 20, 4096).expect("fair");
        Superblock { uuid: Uuid(*b"0123456789abcdef"), geometry, salt: 0xDEAD_BEEF, mode: Mode::Compound }
    }

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let bytes = superblock().emit();
        let hex: String = bytes[..END].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "52454d4c4f470000010000000403020130313233343536373839616263646566\
             00001000000000000010000000000000efbeadde0000000002000000b16d9d1d"
        );
        assert_eq!(bytes.len(), 4096);
        assert!(bytes[END..].iter().all(|byte| *byte == 0));
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
        for short in 0..JOURNAL_NOTE as usize + JOURNAL_NOTE_LEN {
            assert_eq!(image(&vec![0; short], short as u64), Image::Blank);
        }
        let mut noted = vec![0; 1 << 16];
        noted[JOURNAL_NOTE as usize] = 1;
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
        for byte in 16..END {
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
