//! What a record of the log says: bytes and their places, in the order in which they were stored. Little-endian.
//!
//! ```text
//!  0  at    u64   where on the medium
//!  8  len   u32   how many bytes
//! 12  kind  u32   0: the bytes follow; 1: they are zeros
//! ```
//! A record is any number of these behind one another. It is applied as a whole or not at all, and it may be applied again.

use remanence_pmem::Medium;

use crate::format::{get_u32, get_u64};

const HEADER: usize = 16;
/// Longer changes are cut, so that they can be divided between records.
const PIECE: usize = 64 << 10;
/// Zeros are left out from so many on.
const ZEROS: usize = 64;

/// A record that means nothing: whoever wrote it is no primary of this store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record of the store's log means nothing on this medium: the log is another store's, or damaged")]
pub struct Meaningless;

/// Changes that were not shipped yet.
#[derive(Clone, Default, Debug)]
pub struct Changes {
    bytes: Vec<u8>,
    /// Where each change ends.
    ends: Vec<usize>,
    /// The place and the header of the last one.
    last: Option<(u64, usize)>,
}

impl Changes {
    /// Whether there are no changes to ship.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a change: the bytes that were stored at a place of the medium.
    pub fn push(&mut self, at: u64, bytes: &[u8]) {
        // What was stored and is then written back is said once.
        if let Some((before, from)) = self.last
            && let Some(skip) = at.checked_sub(before)
            && get_u32(&self.bytes, from + 12) == 0
            && self.bytes[from + HEADER..].get(skip as usize..skip as usize + bytes.len()) == Some(bytes)
        {
            return;
        }
        for (n, piece) in bytes.chunks(PIECE).enumerate() {
            let zeros = piece.len() >= ZEROS && piece.iter().all(|byte| *byte == 0);
            let at = at + (n * PIECE) as u64;
            self.last = Some((at, self.bytes.len()));
            self.bytes.extend_from_slice(&at.to_le_bytes());
            self.bytes.extend_from_slice(&(piece.len() as u32).to_le_bytes());
            self.bytes.extend_from_slice(&u32::from(zeros).to_le_bytes());
            if !zeros {
                self.bytes.extend_from_slice(piece);
            }
            self.ends.push(self.bytes.len());
        }
    }

    /// All of them as records of at most so many bytes. A change that does not fit one is cut.
    ///
    /// # Panics
    /// With less room than a change of one byte takes.
    #[must_use]
    pub fn records(&self, max: usize) -> Vec<Vec<u8>> {
        assert!(max > HEADER, "a record has room for a change");
        let mut records: Vec<Vec<u8>> = Vec::new();
        let mut from = 0;
        for end in &self.ends {
            for change in cut(&self.bytes[from..*end], max) {
                match records.last_mut() {
                    Some(record) if record.len() + change.len() <= max => record.extend_from_slice(&change),
                    _ => records.push(change),
                }
            }
            from = *end;
        }
        records
    }

    /// There are none any more.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.last = None;
    }
}

fn cut(change: &[u8], max: usize) -> Vec<Vec<u8>> {
    if change.len() <= max {
        return vec![change.to_vec()];
    }
    let at = get_u64(change, 0);
    let room = max - HEADER;
    let piece = |(n, bytes): (usize, &[u8])| {
        let mut cut = Vec::with_capacity(HEADER + bytes.len());
        cut.extend_from_slice(&(at + (n * room) as u64).to_le_bytes());
        cut.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        cut.extend_from_slice(&0_u32.to_le_bytes());
        cut.extend_from_slice(bytes);
        cut
    };
    change[HEADER..].chunks(room).enumerate().map(piece).collect()
}

/// One change: place, length, and the bytes unless they are zeros.
pub type Change<'a> = (u64, u64, Option<&'a [u8]>);

/// The changes of a record, checked for a medium of so many bytes.
///
/// # Errors
/// It means nothing there; then none of it may be applied.
pub fn parse(record: &[u8], size: u64) -> Result<Vec<Change<'_>>, Meaningless> {
    let mut rest = record;
    let mut changes = Vec::new();
    while !rest.is_empty() {
        let (header, behind) = rest.split_at_checked(HEADER).ok_or(Meaningless)?;
        let (at, len, kind) = (get_u64(header, 0), get_u32(header, 8), get_u32(header, 12));
        if at.checked_add(len.into()).is_none_or(|end| end > size) {
            return Err(Meaningless);
        }
        let bytes = match kind {
            0 => {
                let (bytes, behind) = behind.split_at_checked(len as usize).ok_or(Meaningless)?;
                rest = behind;
                Some(bytes)
            }
            1 => {
                rest = behind;
                None
            }
            _ => return Err(Meaningless),
        };
        changes.push((at, len.into(), bytes));
    }
    Ok(changes)
}

/// Applies a record. Durable after the next psync of the medium.
///
/// # Errors
/// It means nothing there; nothing was changed.
pub fn apply(record: &[u8], medium: &impl Medium) -> Result<(), Meaningless> {
    for (at, len, bytes) in parse(record, medium.len())? {
        match bytes {
            Some(bytes) => medium.write_nt(at, bytes),
            None => {
                let zeros = [0; 4096];
                let mut done = 0;
                while done < len {
                    let part = (len - done).min(zeros.len() as u64);
                    medium.write_nt(at + done, &zeros[..part as usize]);
                    done += part;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::CrashImage;

    use super::*;

    fn image(len: u64) -> CrashImage {
        CrashImage::new(len, PersistenceDomain::Adr)
    }

    proptest! {
        #[test]
        fn records_of_any_size_say_what_was_stored(
            stores in prop::collection::vec((0..3000_u64, 0..400_usize, any::<u8>()), 0..40),
            max in 17..600_usize,
        ) {
            let (direct, applied) = (image(4096), image(4096));
            let mut changes = Changes::default();
            for (at, len, byte) in &stores {
                let bytes = vec![*byte; *len];
                direct.write(*at, &bytes);
                changes.push(*at, &bytes);
            }
            for record in changes.records(max) {
                prop_assert!(record.len() <= max);
                apply(&record, &applied).expect("it was made so");
            }
            prop_assert_eq!(direct.bytes(), applied.bytes());
        }

        #[test]
        fn any_bytes_do_no_harm(record in prop::collection::vec(any::<u8>(), 0..100)) {
            let image = image(4096);
            if apply(&record, &image).is_err() {
                prop_assert_eq!(image.bytes(), vec![0; 4096]);
            }
        }
    }

    #[test]
    fn what_is_stored_and_then_written_back_is_said_once_and_zeros_are_counted() {
        let mut changes = Changes::default();
        changes.push(64, &[7; 100]);
        changes.push(80, &[7; 20]);
        assert_eq!(changes.records(4096)[0].len(), 16 + 100);
        changes.push(80, &[8; 20]);
        changes.push(0, &[0; 4000]);
        assert_eq!(changes.records(4096)[0].len(), 16 + 100 + 16 + 20 + 16);
    }

    #[test]
    fn a_change_behind_the_end_of_the_medium_is_refused_with_all_of_its_record() {
        let mut changes = Changes::default();
        changes.push(0, &[1; 8]);
        changes.push(4090, &[1; 8]);
        let image = image(4096);
        assert_eq!(apply(&changes.records(4096)[0], &image), Err(Meaningless));
        assert_eq!(image.bytes(), vec![0; 4096]);
    }
}
