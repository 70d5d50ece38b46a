//! The first page: what a store is made of. Written once.

use super::{BadGeometry, Geometry, get_u16, get_u32, get_u64};

/// Bytes that the superblock takes.
pub const SUPERBLOCK_LEN: usize = 72;

const MAGIC: u64 = u64::from_le_bytes(*b"REMERDA\x01");
const VERSION: u32 = 1;

mod field {
    pub(super) const VERSION: usize = 8;
    pub(super) const HEADS: usize = 12;
    pub(super) const SIZE: usize = 16;
    pub(super) const REGION: usize = 24;
    pub(super) const SEGMENT: usize = 32;
    pub(super) const SALT: usize = 40;
    pub(super) const UUID: usize = 48;
    pub(super) const CRC: usize = 64;
}

/// What never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// How the medium is divided.
    pub geometry: Geometry,
    /// Drawn at format: hashes and checksums depend on it, so nothing of an earlier store on this medium is believed.
    pub salt: u64,
    /// The store's name.
    pub uuid: [u8; 16],
}

/// Why there is no store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// Something else, or nothing.
    #[error("there is no store on this medium: format it first")]
    Missing,
    /// Made by a later version.
    #[error("the store has format {0}, and this program reads format 1: use the program that made it")]
    Version(u32),
    /// The checksum does not fit.
    #[error("the store's first page is damaged: restore it from a copy")]
    Damaged,
    /// The medium is shorter than the store.
    #[error("the store has {store} bytes and the medium {medium}: its end was cut off")]
    CutOff {
        /// Of the store.
        store: u64,
        /// Of the medium.
        medium: u64,
    },
    /// The checksum fits and the numbers do not.
    #[error("the store's geometry means nothing: {0}")]
    Geometry(#[from] BadGeometry),
}

impl Superblock {
    /// As it is stored.
    #[must_use]
    pub fn emit(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut bytes = [0; SUPERBLOCK_LEN];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[field::VERSION..][..4].copy_from_slice(&VERSION.to_le_bytes());
        bytes[field::HEADS..][..2].copy_from_slice(&self.geometry.heads.to_le_bytes());
        bytes[field::SIZE..][..8].copy_from_slice(&self.geometry.size.to_le_bytes());
        bytes[field::REGION..][..8].copy_from_slice(&self.geometry.region_len.to_le_bytes());
        bytes[field::SEGMENT..][..8].copy_from_slice(&self.geometry.segment_len.to_le_bytes());
        bytes[field::SALT..][..8].copy_from_slice(&self.salt.to_le_bytes());
        bytes[field::UUID..][..16].copy_from_slice(&self.uuid);
        let crc = super::object::crc64(&[&bytes[..field::CRC]]);
        bytes[field::CRC..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// From the first bytes of a medium that has `medium` bytes.
    ///
    /// # Errors
    /// There is no store that this program can use; the sentence says why.
    pub fn parse(bytes: &[u8], medium: u64) -> Result<Self, SuperblockError> {
        if bytes.len() < SUPERBLOCK_LEN || get_u64(bytes, 0) != MAGIC {
            return Err(SuperblockError::Missing);
        }
        if super::object::crc64(&[&bytes[..field::CRC]]) != get_u64(bytes, field::CRC) {
            return Err(SuperblockError::Damaged);
        }
        match get_u32(bytes, field::VERSION) {
            VERSION => {}
            other => return Err(SuperblockError::Version(other)),
        }
        let geometry = Geometry {
            size: get_u64(bytes, field::SIZE),
            region_len: get_u64(bytes, field::REGION),
            segment_len: get_u64(bytes, field::SEGMENT),
            heads: get_u16(bytes, field::HEADS),
        };
        geometry.check()?;
        if geometry.size > medium {
            return Err(SuperblockError::CutOff { store: geometry.size, medium });
        }
        let uuid = bytes[field::UUID..][..16].try_into().expect("sixteen bytes");
        Ok(Self { geometry, salt: get_u64(bytes, field::SALT), uuid })
    }
}
