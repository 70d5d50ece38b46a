//! Objects: what a log is made of (paper 002, 3.2.1 and figures 2 and 3).
//!
//! ```text
//!  0  mark       u64  the server's alone: equal to `version`, there is or may be a newer one
//!  8  crc        u64  CRC-64/NVME of the place and of everything from here on
//! 16  version    u64  of the whole store: no two objects share one
//! 24  expires    u64  milliseconds; 0: never
//! 32  epoch      u32  of the region
//! 36  value_len  u32  bytes of value, or of the chunk list
//! 40  key_len    u16  1 to 1024
//! 42  flags      u8   1: deleted (no value), 2: the value lies in chunks
//! 43  zero       5 bytes
//! 48  key, value
//! ```
//! Clients write everything behind the mark, with one WRITE. The checksum begins with the place: the store's salt, head,
//! offset and region epoch. So bytes that were whole somewhere else, or here in an earlier use of the region, are not
//! whole here. 64 bits, since a torn object of many MiB passes 32 of them once in four billion times.
//!
//! Objects are no log of [records](remanence_pmem::image::Records), as clients write them in any order, and the index says where one is due;
//! so there is no end to be found. The argument there holds for each: the region's epoch is its life, and its version its number; an object that
//! a *pending* entry names may be torn, and one that was settled was durable, so that it is damaged if it is not whole (`server/open.rs`).
//!
//! The mark is how a client with a cached location notices, with one READ, that it is stale: the server stores the version
//! there before it hands out the address of the next. It needs no reset when memory is used again (another version does
//! not match) and need not be durable: after a restart no client has a cache.
//!
//! A value that does not fit a segment lies in chunks, extents of the same log. The object's value is then the list:
//! `total u64`, and per chunk `offset u32, len u32, crc u64`.

use super::{KEY_MAX, Offset, get_u16, get_u32, get_u64};

/// Bytes before the key.
pub const HEADER_LEN: usize = 48;
/// The part of an object that a client writes starts here.
pub const WRITTEN_FROM: usize = 8;
/// Where the epoch of its region is.
pub(crate) const EPOCH_AT: usize = field::EPOCH;
/// Bytes of a chunk list before the first chunk.
pub const LIST_LEN: usize = 8;
/// Bytes per chunk in the list.
pub const CHUNK_LEN: usize = 16;

mod field {
    pub(super) const CRC: usize = 8;
    pub(super) const VERSION: usize = 16;
    pub(super) const EXPIRES: usize = 24;
    pub(super) const EPOCH: usize = 32;
    pub(super) const VALUE: usize = 36;
    pub(super) const KEY: usize = 40;
    pub(super) const FLAGS: usize = 42;
    pub(super) const ZERO: usize = 43;
}

const DELETED: u8 = 1;
const CHAINED: u8 = 2;

/// Where an object lies, which its checksum covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectAddress {
    /// The store's salt, as its superblock has it.
    pub salt: u64,
    /// The head whose log the object is in.
    pub head: u8,
    /// The place in that log.
    pub offset: Offset,
    /// The epoch of the region, so of its present use.
    pub epoch: u32,
}

impl ObjectAddress {
    fn bytes(self) -> [u8; 17] {
        let mut bytes = [0; 17];
        bytes[..8].copy_from_slice(&self.salt.to_le_bytes());
        bytes[8] = self.head;
        bytes[9..13].copy_from_slice(&self.offset.0.to_le_bytes());
        bytes[13..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }
}

/// CRC-64/NVME of these, one after the other.
#[must_use]
pub fn crc64(parts: &[&[u8]]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize()
}

/// An extent that holds a part of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The place of the chunk in the log of the same head.
    pub offset: Offset,
    /// Bytes of value in it.
    pub len: u32,
    /// CRC-64/NVME of these bytes.
    pub crc: u64,
}

/// What stands before an object's key and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Equal to `version` once the server has said that there is or may be a newer one.
    pub mark: u64,
    /// The version of the value, or of its deletion; never 0.
    pub version: u64,
    /// When the value ends, in milliseconds of the server's clock; 0: never.
    pub expires: u64,
    /// The epoch of the region that it was written for.
    pub epoch: u32,
    /// Bytes of value, or of the list of chunks.
    pub value_len: u32,
    /// Bytes of key, 1 to [`KEY_MAX`].
    pub key_len: u16,
    /// Whether it says that the key has no value.
    pub deleted: bool,
    /// Whether the value is a list of chunks.
    pub chained: bool,
}

/// Why bytes are no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// The object has more bytes than were given: so many.
    Short(u64),
    /// Lengths or flags mean nothing, or the checksum does not fit: not written, not all of it, or for another place.
    Torn,
}

impl Header {
    /// Reads the first [`HEADER_LEN`] bytes. Nothing is verified but that lengths are possible.
    ///
    /// # Errors
    /// It cannot be the start of an object.
    pub fn parse(bytes: &[u8]) -> Result<Self, Flaw> {
        if bytes.len() < HEADER_LEN {
            return Err(Flaw::Short(HEADER_LEN as u64));
        }
        let flags = bytes[field::FLAGS];
        let header = Self {
            mark: get_u64(bytes, 0),
            version: get_u64(bytes, field::VERSION),
            expires: get_u64(bytes, field::EXPIRES),
            epoch: get_u32(bytes, field::EPOCH),
            value_len: get_u32(bytes, field::VALUE),
            key_len: get_u16(bytes, field::KEY),
            deleted: flags & DELETED != 0,
            chained: flags & CHAINED != 0,
        };
        let key = usize::from(header.key_len);
        let fair = (1..=KEY_MAX).contains(&key)
            && flags <= CHAINED
            && header.version != 0
            && bytes[field::ZERO..HEADER_LEN] == [0; HEADER_LEN - field::ZERO]
            && !(header.deleted && header.value_len != 0);
        if fair { Ok(header) } else { Err(Flaw::Torn) }
    }

    /// Bytes of the whole object.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an object is never empty")]
    pub const fn len(&self) -> u64 {
        HEADER_LEN as u64 + self.key_len as u64 + self.value_len as u64
    }

    /// Whether the server has said that there is or may be a newer version.
    #[must_use]
    pub const fn is_superseded(&self) -> bool {
        self.mark == self.version
    }

    /// Whether its time has come.
    #[must_use]
    pub const fn is_expired(&self, now: u64) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// A whole object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// What stands before the key.
    pub header: Header,
    /// The key that the object is of.
    pub key: &'a [u8],
    /// The value, or the list of chunks as it is stored.
    pub value: &'a [u8],
}

impl<'a> Object<'a> {
    /// The header of an object at this place.
    fn header_at(bytes: &[u8], place: &ObjectAddress) -> Result<Header, Flaw> {
        let header = Header::parse(bytes)?;
        if header.epoch != place.epoch {
            return Err(Flaw::Torn);
        }
        Ok(header)
    }

    /// The object at this place, of which `bytes` are the first ones.
    ///
    /// # Errors
    /// There is no whole object, or more bytes are needed to tell.
    pub fn parse(bytes: &'a [u8], place: &ObjectAddress) -> Result<Self, Flaw> {
        let header = Self::header_at(bytes, place)?;
        let Some(object) = usize::try_from(header.len()).ok().and_then(|len| bytes.get(..len)) else {
            return Err(Flaw::Short(header.len()));
        };
        if crc64(&[&place.bytes(), &object[field::VERSION..]]) != get_u64(object, field::CRC) {
            return Err(Flaw::Torn);
        }
        let (key, value) = object[HEADER_LEN..].split_at(header.key_len.into());
        Ok(Self { header, key, value })
    }

    /// The front of a longer object at this place, of which `bytes` are the first ones: its key is all there, its value in part, and nothing
    /// of it is verified. That is for objects that are known to be whole.
    ///
    /// # Errors
    /// It cannot be the start of an object at this place, or more bytes are needed for its key.
    pub fn front(bytes: &'a [u8], place: &ObjectAddress) -> Result<Self, Flaw> {
        let header = Self::header_at(bytes, place)?;
        let end = HEADER_LEN + usize::from(header.key_len);
        let (key, value) =
            bytes[HEADER_LEN..].split_at_checked(header.key_len.into()).ok_or(Flaw::Short(end as u64))?;
        Ok(Self { header, key, value: &value[..value.len().min(header.value_len as usize)] })
    }

    /// The parts of an object that was verified before.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), of lengths.
    pub fn split(bytes: &'a [u8]) -> Result<Self, Flaw> {
        let header = Header::parse(bytes)?;
        let Some(object) = usize::try_from(header.len()).ok().and_then(|len| bytes.get(..len)) else {
            return Err(Flaw::Short(header.len()));
        };
        let (key, value) = object[HEADER_LEN..].split_at(header.key_len.into());
        Ok(Self { header, key, value })
    }

    /// The chunks that a chained object lists, and the bytes of the whole value. `None`: the list means nothing.
    #[must_use]
    pub fn chunks(&self) -> Option<(u64, Vec<Chunk>)> {
        let (total, list) = self.value.split_at_checked(LIST_LEN)?;
        if !list.len().is_multiple_of(CHUNK_LEN) {
            return None;
        }
        let total = get_u64(total, 0);
        let chunks: Vec<Chunk> = list
            .chunks_exact(CHUNK_LEN)
            .map(|c| Chunk { offset: Offset(get_u32(c, 0)), len: get_u32(c, 4), crc: get_u64(c, 8) })
            .collect();
        let sum: u64 = chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
        let fair = sum == total && chunks.iter().all(|c| c.len > 0 && c.offset.0 >> super::OFFSET_BITS == 0);
        fair.then_some((total, chunks))
    }
}

/// What to write into an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// The key has no value any more.
    Deleted,
    /// A value, which is written behind the key.
    Value(&'a [u8]),
    /// A value that lies in these chunks.
    Chained(&'a [Chunk]),
}

/// Bytes of an object with such a key and such a value.
#[must_use]
pub const fn object_len(key: usize, value: u64) -> u64 {
    HEADER_LEN as u64 + key as u64 + value
}

/// An object for this place, with a mark of 0, which is not to be written: see [`WRITTEN_FROM`].
///
/// # Panics
/// A key or a list that no object can have; callers check lengths first.
#[must_use]
pub fn emit(place: &ObjectAddress, version: u64, expires: u64, key: &[u8], content: Content<'_>) -> Vec<u8> {
    assert!((1..=KEY_MAX).contains(&key.len()), "a key of {} bytes", key.len());
    let list;
    let (value, flags) = match content {
        Content::Deleted => (&[][..], DELETED),
        Content::Value(value) => (value, 0),
        Content::Chained(chunks) => {
            let total: u64 = chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
            let mut bytes = total.to_le_bytes().to_vec();
            for chunk in chunks {
                bytes.extend(chunk.offset.0.to_le_bytes());
                bytes.extend(chunk.len.to_le_bytes());
                bytes.extend(chunk.crc.to_le_bytes());
            }
            list = bytes;
            (&list[..], CHAINED)
        }
    };
    let value_len = u32::try_from(value.len()).expect("a value that fits a segment");
    let mut bytes = Vec::with_capacity(HEADER_LEN + key.len() + value.len());
    bytes.resize(HEADER_LEN, 0);
    bytes[field::VERSION..][..8].copy_from_slice(&version.to_le_bytes());
    bytes[field::EXPIRES..][..8].copy_from_slice(&expires.to_le_bytes());
    bytes[field::EPOCH..][..4].copy_from_slice(&place.epoch.to_le_bytes());
    bytes[field::VALUE..][..4].copy_from_slice(&value_len.to_le_bytes());
    bytes[field::KEY..][..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
    bytes[field::FLAGS] = flags;
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let crc = crc64(&[&place.bytes(), &bytes[field::VERSION..]]);
    bytes[field::CRC..][..8].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// How a value is divided into chunks of at most `chunk_max` bytes.
pub fn chunk_lens(total: u64, chunk_max: u64) -> impl Iterator<Item = u32> {
    let full = total / chunk_max;
    let rest = total % chunk_max;
    (0..full).map(move |_| chunk_max as u32).chain((rest > 0).then_some(rest as u32))
}
