//! Behind each root copy: the ceiling of the version numbers that this pool has promised.
//!
//! A server promises never to hand out a number again that it handed out, or that a client asked it to leave behind
//! (`crate::promise` has the reason). Each promise has to outlive a crash, and none may cost a wait for the medium of
//! its own: so what is on the medium is a ceiling that lies ahead of all promises made, and after a crash the pool goes
//! on above it.
//!
//! The ceiling has a place of its own, 512 bytes into the blocks of the root copies, which earlier releases neither read
//! nor write. A pool that an earlier release made has none; it is written when the first number is asked for.

use super::{BLOCK, u32_at, u64_at};

const MAGIC: &[u8; 8] = b"REMCEIL\0";

mod field {
    pub(super) const NUMBER: usize = 8;
    pub(super) const CRC: usize = 16;
    pub(super) const END: usize = 20;
}

/// Bytes of a copy.
pub const LEN: usize = field::END;

/// Where the two copies lie. Another sector than the root's, so that a torn write of one does not take the other.
pub const COPIES: [u64; 2] = [BLOCK + 512, 2 * BLOCK + 512];

/// One copy. `salt` is the superblock's: a ceiling of another pool is none.
#[must_use]
pub fn emit(number: u64, salt: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[field::NUMBER..][..8].copy_from_slice(&number.to_le_bytes());
    let crc = checksum(&bytes, salt);
    bytes[field::CRC..][..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Reads one copy, if it is whole.
#[must_use]
pub fn parse(bytes: &[u8; LEN], salt: u64) -> Option<u64> {
    let whole = &bytes[..8] == MAGIC && checksum(bytes, salt) == u32_at(bytes, field::CRC);
    whole.then(|| u64_at(bytes, field::NUMBER))
}

fn checksum(bytes: &[u8; LEN], salt: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&bytes[..field::CRC]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let hex: String = emit(77, 9).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "52454d4345494c004d000000000000001f16b383");
    }

    #[test]
    fn a_changed_bit_makes_it_none() {
        let bytes = emit(77, 9);
        assert_eq!(parse(&bytes, 9), Some(77));
        assert_eq!(parse(&bytes, 8), None);
        for bit in 0..LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bad, 9), None, "bit {bit}");
        }
    }
}
