//! Frames: what the catalogue is made of.
//!
//! A frame is a header, one or more records and padding to [`ALIGN`]. Several commits that arrive together share a
//! frame and its one `psync`; they are durable together or not at all.

use remanence_pmem::image::Framing;

use super::{MAX_EXTENTS, u64_at};
use crate::alloc::Extent;
use crate::blob::{BlobName, Digest, MAX_NAME, Version};

const MAGIC: u32 = u32::from_le_bytes(*b"RCAT");

/// Frames begin at multiples of this.
pub const ALIGN: u64 = 64;

/// The most payload bytes of a frame.
pub const MAX_PAYLOAD: usize = 1 << 20;

mod field {
    pub(super) const LEN: usize = 4;
    pub(super) const GENERATION: usize = 8;
    pub(super) const SEQUENCE: usize = 16;
    pub(super) const CRC: usize = 24;
    pub(super) const END: usize = 28;
}

/// Bytes of the header.
pub const HEADER: usize = field::END;

/// A change of the catalogue, as it lies on the medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The name stands for these bytes from now on.
    Put {
        /// The name of the blob.
        name: BlobName,
        /// The version that this record sets.
        version: Version,
        /// Bytes of the blob.
        len: u64,
        /// The digest of the blob's bytes.
        digest: Digest,
        /// Where they lie; the last block may be used in part.
        extents: Vec<Extent>,
    },
    /// The name stands for nothing from now on.
    Delete {
        /// The name that has no blob any more.
        name: BlobName,
        /// The version of the deletion.
        version: Version,
    },
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const FIXED: usize = 1 + 2 + 8 + 8;
const FIXED_PUT: usize = 8 + 32 + 2;
const PER_EXTENT: usize = 16;

const _: () = assert!(FIXED + FIXED_PUT + MAX_NAME + MAX_EXTENTS * PER_EXTENT <= MAX_PAYLOAD);

impl Record {
    /// The name it is about.
    #[must_use]
    pub const fn name(&self) -> &BlobName {
        match self {
            Self::Put { name, .. } | Self::Delete { name, .. } => name,
        }
    }

    /// The version that the record sets.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::Put { version, .. } | Self::Delete { version, .. } => *version,
        }
    }

    /// Bytes that the record takes in a frame.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let rest = match self {
            Self::Put { extents, .. } => FIXED_PUT + extents.len() * PER_EXTENT,
            Self::Delete { .. } => 0,
        };
        FIXED + self.name().as_str().len() + rest
    }

    /// Appends it to a payload.
    pub fn emit(&self, to: &mut Vec<u8>) {
        let name = self.name().as_str().as_bytes();
        to.push(if matches!(self, Self::Put { .. }) { PUT } else { DELETE });
        to.extend((name.len() as u16).to_le_bytes());
        to.extend(self.version().counter.to_le_bytes());
        to.extend(self.version().writer.to_le_bytes());
        to.extend(name);
        if let Self::Put { len, digest, extents, .. } = self {
            to.extend(len.to_le_bytes());
            to.extend(digest.0);
            to.extend((extents.len() as u16).to_le_bytes());
            for extent in extents {
                to.extend(extent.start.to_le_bytes());
                to.extend(extent.blocks.to_le_bytes());
            }
        }
    }

    /// Takes one off the front of a payload. `None`: the bytes mean nothing, although their checksum was right.
    fn parse(bytes: &mut &[u8]) -> Option<Self> {
        let kind = take::<1>(bytes)?[0];
        let name_len = u16::from_le_bytes(take(bytes)?);
        let counter = u64::from_le_bytes(take(bytes)?);
        let writer = u64::from_le_bytes(take(bytes)?);
        let (name, rest) = bytes.split_at_checked(name_len.into())?;
        *bytes = rest;
        let name = BlobName::from_bytes(name).ok()?;
        let version = Version { counter, writer };
        match kind {
            PUT => {
                let len = u64::from_le_bytes(take(bytes)?);
                let digest = Digest(take(bytes)?);
                let count = usize::from(u16::from_le_bytes(take(bytes)?));
                if count > MAX_EXTENTS {
                    return None;
                }
                let extents = (0..count)
                    .map(|_| {
                        Some(Extent {
                            start: u64::from_le_bytes(take(bytes)?),
                            blocks: u64::from_le_bytes(take(bytes)?),
                        })
                    })
                    .collect::<Option<_>>()?;
                Some(Self::Put { name, version, len, digest, extents })
            }
            DELETE => Some(Self::Delete { name, version }),
            _ => None,
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

/// How frames are framed. The zeros behind a payload mean nothing.
pub const FRAMING: Framing = Framing {
    header: HEADER,
    length: Some(field::LEN),
    mark: None,
    max: MAX_PAYLOAD,
    crc: field::CRC,
    align: ALIGN as usize,
    padding: false,
};

/// Bytes that a frame with `payload` bytes occupies.
#[must_use]
pub const fn frame_len(payload: usize) -> u64 {
    FRAMING.len(payload)
}

/// Builds a frame.
///
/// # Panics
/// With more than [`MAX_PAYLOAD`] bytes.
#[must_use]
pub fn emit(salt: u64, generation: u64, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[field::LEN..][..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[field::GENERATION..][..8].copy_from_slice(&generation.to_le_bytes());
    header[field::SEQUENCE..][..8].copy_from_slice(&sequence.to_le_bytes());
    let mut bytes = Vec::with_capacity(frame_len(payload.len()) as usize);
    FRAMING.emit(Some(salt), &header, payload, &mut bytes);
    bytes
}

/// What the header of a frame says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The generation of the catalogue that the frame belongs to; frames of another generation are leftovers.
    pub generation: u64,
    /// Counts frames over all generations.
    pub sequence: u64,
}

impl Header {
    /// Reads one, if a frame begins so.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let begins = bytes.len() >= HEADER && bytes.starts_with(&MAGIC.to_le_bytes());
        begins.then(|| Self {
            generation: u64_at(bytes, field::GENERATION),
            sequence: u64_at(bytes, field::SEQUENCE),
        })
    }
}

/// The records of a frame's payload; `None` if they mean nothing.
#[must_use]
pub fn records(mut payload: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !payload.is_empty() {
        records.push(Record::parse(&mut payload)?);
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        let extents = prop::collection::vec((any::<u64>(), any::<u64>()), 0..6);
        ("[a-z/ü]{1,40}", any::<(u64, u64)>(), any::<u64>(), any::<[u8; 32]>(), extents, any::<bool>())
            .prop_map(|(name, (counter, writer), len, digest, extents, delete)| {
                let name = BlobName::new(&name).expect("a fair name");
                let version = Version { counter, writer };
                if delete {
                    return Record::Delete { name, version };
                }
                let extents = extents.into_iter().map(|(start, blocks)| Extent { start, blocks }).collect();
                Record::Put { name, version, len, digest: Digest(digest), extents }
            })
    }

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let bytes = emit(1, 2, 3, b"abc");
        let hex: String = bytes[..32].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "524341540300000002000000000000000300000000000000db2de5ae61626300");
        assert_eq!((bytes.len(), &bytes[32..]), (64, &[0; 32][..]));
    }

    /// The frame at the front of these bytes: its header, its payload, and how many it takes.
    fn parse(salt: u64, bytes: &[u8]) -> Option<(Header, Vec<u8>, u64)> {
        let (mut payload, room) = (Vec::new(), 0..bytes.len() as u64);
        let judge = |header: &[u8]| Header::parse(header).ok_or(());
        let Ok(found) = FRAMING.read(Some(salt), &mut &*bytes, room, &mut payload, judge);
        found.ok().map(|(header, len)| (header, payload, len))
    }

    proptest! {
        #[test]
        fn what_was_emitted_is_parsed(records in prop::collection::vec(record(), 0..5), flip in any::<prop::sample::Index>()) {
            let mut payload = Vec::new();
            records.iter().for_each(|r| r.emit(&mut payload));
            prop_assert_eq!(payload.len(), records.iter().map(Record::encoded_len).sum::<usize>());
            let mut bytes = emit(1, 2, 3, &payload);
            let header = Header { generation: 2, sequence: 3 };
            prop_assert_eq!(parse(1, &bytes), Some((header, payload.clone(), bytes.len() as u64)));
            prop_assert_eq!(super::records(&payload), Some(records));
            prop_assert_eq!(parse(2, &bytes), None);
            let bit = flip.index((HEADER + payload.len()) * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(parse(1, &bytes), None);
        }

        #[test]
        fn bytes_with_a_right_checksum_and_no_meaning_do_no_harm(payload in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = super::records(&payload);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(parse(1, &bytes), None);
        }
    }
}
