//! Block 0: what this file is. Written once, as the last step of making a pool.

use remanence_pmem::image::{Checksum, Fault, Format, Places, Signature, Version};
pub use remanence_pmem::layout::Uuid;

use super::{BLOCK, Geometry, VERSION};
use crate::error::OpenError;

/// What tells a pool from all else.
pub const FORMAT: Format = Format {
    signature: Signature {
        magic: *b"REMPOOL\0",
        second: None,
        making: None,
        head: BLOCK as usize,
        note: None,
    },
    versions: &[Version { number: VERSION, crc_at: 56, len: BLOCK as usize, twice: false }],
    places: Places::COMMON,
    checksum: Checksum::CRC32,
};

/// The fields behind those that every format has.
mod field {
    pub(super) const HALF_LEN: usize = 40;
    pub(super) const SALT: usize = 48;
}

/// The contents of block 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The pool's UUID, drawn when it was made.
    pub uuid: Uuid,
    /// How the file is divided.
    pub geometry: Geometry,
    /// Goes into the checksum of every frame, so that nothing a client may choose can pass for one.
    pub salt: u64,
}

impl Superblock {
    /// The block to write.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let [half_len, salt] = [self.geometry.half_len, self.salt].map(u64::to_le_bytes);
        let own: [(usize, &[u8]); 2] = [(field::HALF_LEN, &half_len), (field::SALT, &salt)];
        FORMAT.emit(VERSION, self.uuid, self.geometry.size, &own)
    }

    /// Reads block 0 of a file of `file_len` bytes.
    ///
    /// # Errors
    /// The file is no pool, another version's pool, damaged, or not as long as it says.
    pub fn parse(block: &[u8], file_len: u64) -> Result<Self, OpenError> {
        let parsed = FORMAT.judge(block).and_then(|found| {
            let fields = found.fields;
            let half_len = fields.u64(field::HALF_LEN);
            let geometry = Geometry::check(fields.size(), half_len).ok_or(Fault::Damaged)?;
            fields.fill(file_len)?;
            Ok(Self { uuid: fields.uuid(), geometry, salt: fields.u64(field::SALT) })
        });
        parsed.map_err(|fault| match fault {
            Fault::TooShort => OpenError::TooShort { file: file_len },
            Fault::Blank | Fault::Making => OpenError::Blank,
            Fault::Foreign => OpenError::NotAPool,
            Fault::OtherByteOrder => OpenError::OtherByteOrder,
            Fault::OtherVersion { found } => OpenError::OtherVersion { found },
            Fault::Damaged => OpenError::SuperblockDamaged,
            Fault::Truncated { has, wants } => OpenError::Truncated { file: has, pool: wants },
            Fault::Grown { has, wants } => OpenError::Grown { file: has, pool: wants },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: usize = 60;

    fn superblock() -> Superblock {
        let geometry = Geometry::for_size(1 << 20).expect("a fair size");
        Superblock { uuid: Uuid(*b"0123456789abcdef"), geometry, salt: 0xDEAD_BEEF_0BAD_CAFE }
    }

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let bytes = superblock().emit();
        let hex: String = bytes[..END].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "52454d504f4f4c00010000000403020130313233343536373839616263646566\
             00001000000000000000010000000000fecaad0befbeadde9c43175a"
        );
        assert_eq!(bytes.len(), 4096);
        assert!(bytes[END..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_was_emitted_is_parsed() {
        assert_eq!(Superblock::parse(&superblock().emit(), 1 << 20), Ok(superblock()));
        assert_eq!(superblock().uuid.to_string(), "30313233-3435-3637-3839-616263646566");
    }

    #[test]
    fn another_file_is_told_from_a_damaged_one() {
        let parse = |change: &dyn Fn(&mut Vec<u8>), len| {
            let mut block = superblock().emit();
            change(&mut block);
            Superblock::parse(&block, len)
        };
        assert_eq!(parse(&|b| b[0] = b'X', 1 << 20), Err(OpenError::NotAPool));
        assert_eq!(parse(&|b| b.fill(0), 1 << 20), Err(OpenError::Blank));
        assert_eq!(parse(&|b| b[8] = 2, 1 << 20), Err(OpenError::OtherVersion { found: 2 }));
        assert_eq!(parse(&|b| b[12..16].reverse(), 1 << 20), Err(OpenError::OtherByteOrder));
        assert_eq!(parse(&|b| b[..8].reverse(), 1 << 20), Err(OpenError::OtherByteOrder));
        for byte in 16..END {
            assert_eq!(
                parse(&|b| b[byte] ^= 0x10, 1 << 20),
                Err(OpenError::SuperblockDamaged),
                "byte {byte}"
            );
        }
        assert_eq!(parse(&|_| (), 4096), Err(OpenError::Truncated { file: 4096, pool: 1 << 20 }));
        assert_eq!(parse(&|_| (), 2 << 20), Err(OpenError::Grown { file: 2 << 20, pool: 1 << 20 }));
    }
}
