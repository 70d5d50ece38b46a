//! A small record that is replaced as a whole: two slots, written in turn.
//!
//! ```text
//! slot, each on a page of its own so that one write-back cannot tear both:
//!   0  tag         u64   whose record this is
//!   8  generation  u64   the higher of two valid slots is the newer
//!  16  length      u32   bytes of payload
//!  20  crc         u32   CRC-32 of all the others
//!  24  payload
//! ```
//! The crash argument: a new record goes to the slot of the *older* generation, so while it is written, and torn, the
//! other slot holds the current record. It is valid from the moment its last byte is durable, checksum included, and
//! `store` returns after that. A crash leaves the old record or the new one.

use super::{LayoutError, get_u32, get_u64};
use crate::medium::Medium;

const SLOT_LEN: u64 = 4096;
const GENERATION: usize = 8;
const LENGTH: usize = 16;
const CRC: usize = 20;
const PAYLOAD: usize = 24;

/// Bytes that a root record takes on its medium.
pub const ROOT_LEN: u64 = 2 * SLOT_LEN;

/// The longest payload of a root record.
pub const ROOT_PAYLOAD_MAX: usize = SLOT_LEN as usize - PAYLOAD;

const _: () = assert!(PAYLOAD == CRC + 4 && CRC == LENGTH + 4 && LENGTH == GENERATION + 8);

/// A root record on a medium.
#[derive(Debug)]
pub struct Root<M> {
    medium: M,
    offset: u64,
    tag: u64,
    generation: u64,
    slot: u64,
}

impl<M: Medium> Root<M> {
    /// Writes the first record at a multiple of the page size, over whatever was there.
    ///
    /// # Errors
    /// The medium failed.
    pub fn format(medium: M, offset: u64, tag: u64, payload: &[u8]) -> Result<Self, LayoutError> {
        assert!(offset.is_multiple_of(SLOT_LEN), "a root record at {offset} does not start on a page");
        // What is in the slots may be valid, and newer than what is about to be written. No fence is needed between:
        // until `store` has waited for all of it, the old record may be found as well.
        for slot in 0..2 {
            medium.write(offset + slot * SLOT_LEN, &[0; PAYLOAD]);
            medium.pwb(offset + slot * SLOT_LEN..offset + slot * SLOT_LEN + PAYLOAD as u64);
        }
        let mut root = Self { medium, offset, tag, generation: 0, slot: 1 };
        root.store(payload)?;
        Ok(root)
    }

    /// Finds the newest record, and makes sure that it is durable.
    ///
    /// # Errors
    /// There is none with this tag, or the medium failed.
    pub fn open(medium: M, offset: u64, tag: u64) -> Result<(Self, Vec<u8>), LayoutError> {
        let newest = (0..2)
            .filter_map(|slot| {
                let (generation, payload) = read_slot(&medium, offset + slot * SLOT_LEN, tag)?;
                Some((generation, slot, payload))
            })
            .max_by_key(|(generation, ..)| *generation);
        let Some((generation, slot, payload)) = newest else {
            return Err(LayoutError::Invalid { offset });
        };
        medium.persist(offset + slot * SLOT_LEN..offset + (slot + 1) * SLOT_LEN)?;
        Ok((Self { medium, offset, tag, generation, slot }, payload))
    }

    /// What the slots hold that are whole, the older one first. Whoever [stores](Self::store) each record twice has two of them,
    /// and a record that is damaged later has another; one alone says that a slot is damaged, or that a crash cut a store
    /// short.
    #[must_use]
    pub fn slots(medium: &M, offset: u64, tag: u64) -> Vec<Vec<u8>> {
        let mut whole: Vec<_> =
            (0..2).filter_map(|slot| read_slot(medium, offset + slot * SLOT_LEN, tag)).collect();
        whole.sort_by_key(|(generation, _)| *generation);
        whole.into_iter().map(|(_, payload)| payload).collect()
    }

    /// Replaces the record; durable on return.
    ///
    /// # Errors
    /// The medium failed: either record may be found later.
    pub fn store(&mut self, payload: &[u8]) -> Result<(), LayoutError> {
        assert!(payload.len() <= ROOT_PAYLOAD_MAX, "{} bytes do not fit a root record", payload.len());
        let (slot, generation) = (1 - self.slot, self.generation + 1);
        let mut bytes = vec![0; PAYLOAD + payload.len()];
        bytes[..GENERATION].copy_from_slice(&self.tag.to_le_bytes());
        bytes[GENERATION..LENGTH].copy_from_slice(&generation.to_le_bytes());
        bytes[LENGTH..CRC].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes[PAYLOAD..].copy_from_slice(payload);
        let crc = checksum(&bytes);
        bytes[CRC..PAYLOAD].copy_from_slice(&crc.to_le_bytes());
        let at = self.offset + slot * SLOT_LEN;
        self.medium.write(at, &bytes);
        self.medium.persist(at..at + bytes.len() as u64)?;
        (self.slot, self.generation) = (slot, generation);
        Ok(())
    }

    /// How many times the record was written.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

fn read_slot(medium: &impl Medium, at: u64, tag: u64) -> Option<(u64, Vec<u8>)> {
    let mut bytes = vec![0; SLOT_LEN as usize];
    medium.read(at, &mut bytes);
    let len = get_u32(&bytes, LENGTH) as usize;
    if len > ROOT_PAYLOAD_MAX || get_u64(&bytes, 0) != tag {
        return None;
    }
    bytes.truncate(PAYLOAD + len);
    let valid = checksum(&bytes) == get_u32(&bytes, CRC);
    valid.then(|| (get_u64(&bytes, GENERATION), bytes.split_off(PAYLOAD)))
}

/// Of a slot, its own field left out. Never that of a slot of zeros, whose CRC field is zero too.
fn checksum(slot: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&slot[..CRC]);
    hasher.update(&slot[PAYLOAD..]);
    hasher.finalize()
}
