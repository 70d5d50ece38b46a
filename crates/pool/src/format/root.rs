//! Blocks 1 and 2: which half of the catalogue counts, as a [root record](remanence_pmem::image::RootFormat) of its own bytes.

use remanence_pmem::Medium;
use remanence_pmem::image::{RootError, RootFormat};

use super::{BLOCK, Half, u64_at};

const MAGIC: &[u8; 8] = b"REMROOT\0";

mod field {
    pub(super) const GENERATION: usize = 8;
    pub(super) const REACHED: usize = 16;
    pub(super) const HALF: usize = 24;
    // The checksum.
    pub(super) const END: usize = 32;
}

/// Where the two copies lie.
pub const COPIES: [u64; 2] = [BLOCK, 2 * BLOCK];

/// The root of a pool: which half of the catalogue counts, and how far it reached at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Counts the catalogue's moves from half to half, from 1; frames of another generation are leftovers and do not
    /// count.
    pub generation: u64,
    /// The sequence number of a frame that was durable when the root was written: a catalogue that ends before
    /// it is damaged, not torn.
    pub reached: u64,
    /// The half that counts.
    pub half: Half,
}

/// How a root lies in its pool. `salt` is the superblock's: a root of another pool is none.
const fn lies(salt: u64) -> RootFormat {
    RootFormat::header(COPIES, *MAGIC, salt, field::END, &[field::GENERATION, field::REACHED])
}

impl Root {
    /// Replaces the root of a pool; durable on return.
    ///
    /// # Errors
    /// The medium failed.
    pub fn store(&self, medium: &impl Medium, salt: u64) -> std::io::Result<()> {
        let mut bytes = [0; field::END];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[field::GENERATION..][..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[field::REACHED..][..8].copy_from_slice(&self.reached.to_le_bytes());
        bytes[field::HALF] = u8::from(self.half == Half::Second);
        lies(salt).store(medium, &bytes, &[])
    }

    /// Reads the root of a pool, and makes sure that both copies have it durably.
    ///
    /// # Errors
    /// There is none that is whole, or the medium failed.
    pub fn open(medium: &impl Medium, salt: u64) -> Result<Self, RootError> {
        let invalid = RootError::Invalid { offset: COPIES[0] };
        let bytes = lies(salt).open(medium)?.filter(|bytes| bytes[field::HALF] <= 1).ok_or(invalid)?;
        Ok(Self {
            generation: u64_at(&bytes, field::GENERATION),
            reached: u64_at(&bytes, field::REACHED),
            half: if bytes[field::HALF] == 0 { Half::First } else { Half::Second },
        })
    }
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
        let root = Root { generation: 3, reached: 77, half: Half::Second };
        root.store(&image, 9).expect("memory");
        let bytes = image.bytes();
        for at in COPIES {
            let hex: String = bytes[at as usize..][..32].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, "52454d524f4f540003000000000000004d00000000000000010000003ad5a748");
        }
        assert_eq!(Root::open(&image, 9).expect("whole"), root);
        assert!(Root::open(&image, 8).is_err(), "another pool's");
        image.write(COPIES[0], &[0; 32]);
        assert_eq!(Root::open(&image, 9).expect("whole"), root);
        assert_eq!(image.bytes(), bytes, "it has both again");
    }

    #[test]
    fn the_later_copy_counts() {
        let old = Root { generation: 3, reached: 77, half: Half::Second };
        let medium = |root: Root| {
            let image = CrashImage::new(4 * BLOCK, PersistenceDomain::Adr);
            root.store(&image, 9).expect("memory");
            image
        };
        for new in [Root { generation: 4, reached: 5, half: Half::First }, Root { reached: 78, ..old }] {
            for at in COPIES {
                let (image, mut copy) = (medium(new), [0; field::END]);
                medium(old).read(at, &mut copy);
                image.write(at, &copy);
                assert_eq!(Root::open(&image, 9).expect("whole"), new);
            }
        }
    }
}
