//! Behind each root copy: the ceiling of the version numbers that this pool has promised.
//!
//! A server promises never to hand out a number again that it handed out, or that a client asked it to leave behind
//! (`crate::promise` has the reason). Each promise has to outlive a crash, and none may cost a wait for the medium of
//! its own: so what is on the medium is a ceiling that lies ahead of all promises made, and after a crash the pool goes
//! on above it.
//!
//! The ceiling has a place of its own, 512 bytes into the blocks of the root copies, which earlier releases neither read
//! nor write. A pool that an earlier release made has none; it is written when the first number is asked for. It is a
//! [root record](remanence_pmem::image::RootFormat) of its own: one that is damaged is not taken for none.

use remanence_pmem::Medium;
use remanence_pmem::image::{RootError, RootFormat};

use super::{BLOCK, u64_at};

const MAGIC: &[u8; 8] = b"REMCEIL\0";

mod field {
    pub(super) const NUMBER: usize = 8;
    // The checksum.
    pub(super) const END: usize = 20;
}

/// Bytes of a copy.
pub const LEN: usize = field::END;

/// Where the two copies lie. Another sector than the root's, so that a torn write of one does not take the other.
pub const COPIES: [u64; 2] = [BLOCK + 512, 2 * BLOCK + 512];

/// How a ceiling lies in its pool. `salt` is the superblock's: a ceiling of another pool is none.
const fn lies(salt: u64) -> RootFormat {
    RootFormat::header(COPIES, *MAGIC, salt, field::END, &[field::NUMBER])
}

/// Replaces the ceiling of a pool; durable on return.
///
/// # Errors
/// The medium failed.
pub fn store(number: u64, medium: &impl Medium, salt: u64) -> std::io::Result<()> {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[field::NUMBER..][..8].copy_from_slice(&number.to_le_bytes());
    lies(salt).store(medium, &bytes, &[])
}

/// Reads the ceiling of a pool, and makes sure that both copies have it durably. `None`: there never was one.
///
/// # Errors
/// Both copies are damaged, or the medium failed.
pub fn open(medium: &impl Medium, salt: u64) -> Result<Option<u64>, RootError> {
    Ok(lies(salt).open(medium)?.map(|bytes| u64_at(&bytes, field::NUMBER)))
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::CrashImage;

    use super::*;

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let image = CrashImage::new(4 * BLOCK, PersistenceDomain::Adr);
        assert_eq!(open(&image, 9).expect("memory"), None);
        store(77, &image, 9).expect("memory");
        let bytes = image.bytes();
        for at in COPIES {
            let hex: String = bytes[at as usize..][..LEN].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, "52454d4345494c004d000000000000001f16b383");
        }
        assert_eq!(open(&image, 9).expect("whole"), Some(77));
    }

    #[test]
    fn one_that_is_damaged_is_not_taken_for_none() {
        let image = CrashImage::new(4 * BLOCK, PersistenceDomain::Adr);
        store(77, &image, 9).expect("memory");
        COPIES.iter().for_each(|at| image.write(*at + 9, b"rot"));
        assert!(open(&image, 9).is_err());
    }
}
