//! Block 0: what this file is. Written once, as the last step of making a pool.

pub use remanence_pmem::layout::Uuid;

use super::{BLOCK, Geometry, VERSION, u32_at, u64_at};
use crate::error::OpenError;

const MAGIC: &[u8; 8] = b"REMPOOL\0";
const BYTE_ORDER: u32 = 0x0102_0304;

mod field {
    pub(super) const VERSION: usize = 8;
    pub(super) const BYTE_ORDER: usize = 12;
    pub(super) const UUID: usize = 16;
    pub(super) const SIZE: usize = 32;
    pub(super) const HALF_LEN: usize = 40;
    pub(super) const SALT: usize = 48;
    pub(super) const CRC: usize = 56;
    pub(super) const END: usize = 60;
}
const _: () = assert!(field::END <= BLOCK as usize);

/// The contents of block 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Which pool.
    pub uuid: Uuid,
    /// How it is divided.
    pub geometry: Geometry,
    /// Goes into the checksum of every frame, so that nothing a client may choose can pass for one.
    pub salt: u64,
}

impl Superblock {
    /// The block to write.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK as usize];
        block[..8].copy_from_slice(MAGIC);
        block[field::VERSION..][..4].copy_from_slice(&VERSION.to_le_bytes());
        block[field::BYTE_ORDER..][..4].copy_from_slice(&BYTE_ORDER.to_le_bytes());
        block[field::UUID..][..16].copy_from_slice(&self.uuid.0);
        block[field::SIZE..][..8].copy_from_slice(&self.geometry.size.to_le_bytes());
        block[field::HALF_LEN..][..8].copy_from_slice(&self.geometry.half_len.to_le_bytes());
        block[field::SALT..][..8].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32fast::hash(&block[..field::CRC]);
        block[field::CRC..][..4].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads block 0 of a file of `file_len` bytes.
    ///
    /// # Errors
    /// The file is no pool, another version's pool, damaged, or not as long as it says.
    pub fn parse(block: &[u8], file_len: u64) -> Result<Self, OpenError> {
        assert_eq!(block.len() as u64, BLOCK, "the superblock is one block");
        if &block[..8] != MAGIC {
            let swapped = block[..8].iter().rev().eq(MAGIC);
            let blank = block.iter().all(|byte| *byte == 0);
            return Err(match (swapped, blank) {
                (true, _) => OpenError::OtherByteOrder,
                (_, true) => OpenError::Blank,
                _ => OpenError::NotAPool,
            });
        }
        if u32_at(block, field::BYTE_ORDER) == BYTE_ORDER.swap_bytes() {
            return Err(OpenError::OtherByteOrder);
        }
        // The version comes before the checksum: where that lies is the other version's business.
        let version = u32_at(block, field::VERSION);
        if version != VERSION {
            return Err(OpenError::OtherVersion { found: version });
        }
        if crc32fast::hash(&block[..field::CRC]) != u32_at(block, field::CRC) {
            return Err(OpenError::SuperblockDamaged);
        }
        let geometry = Geometry::check(u64_at(block, field::SIZE), u64_at(block, field::HALF_LEN))
            .ok_or(OpenError::SuperblockDamaged)?;
        match file_len {
            n if n < geometry.size => Err(OpenError::Truncated { file: n, pool: geometry.size }),
            n if n > geometry.size => Err(OpenError::Grown { file: n, pool: geometry.size }),
            _ => Ok(Self {
                uuid: Uuid(block[field::UUID..][..16].try_into().expect("16 bytes")),
                geometry,
                salt: u64_at(block, field::SALT),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        let geometry = Geometry::for_size(1 << 20).expect("a fair size");
        Superblock { uuid: Uuid(*b"0123456789abcdef"), geometry, salt: 0xDEAD_BEEF_0BAD_CAFE }
    }

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let bytes = superblock().emit();
        let hex: String = bytes[..field::END].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "52454d504f4f4c00010000000403020130313233343536373839616263646566\
             00001000000000000000010000000000fecaad0befbeadde9c43175a"
        );
        assert_eq!(bytes.len(), 4096);
        assert!(bytes[field::END..].iter().all(|byte| *byte == 0));
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
        for byte in 16..field::END {
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
