//! From bytes on a medium back to a [`Pool`].
//!
//! Nothing is repaired by guessing: either the medium holds a pool that a crash may have left behind, and then
//! exactly the durable commits are in it, or it was damaged, and then the error says how it shows.

use std::collections::BTreeMap;

use remanence_pmem::Medium;

use crate::blob::BlobName;
use crate::error::OpenError;
use crate::format::BLOCK;
use crate::format::ceiling;
use crate::format::frame::{ALIGN, Frame, Record};
use crate::format::root::{self, Root};
use crate::format::superblock::{FORMAT, Superblock};
use crate::pool::{Pool, Recovered};

/// Opens the pool on `medium` after a clean end or a crash.
///
/// # Errors
/// There is no pool, or another version's, or a damaged one.
pub fn recover<M: Medium>(medium: M) -> Result<Pool<M>, OpenError> {
    let superblock = read_superblock(&medium)?;
    let copies = root::COPIES.map(|at| {
        let mut bytes = [0; root::LEN];
        medium.read(at, &mut bytes);
        Root::parse(&bytes, superblock.salt)
    });
    let root = Root::choose(copies).ok_or(OpenError::RootDamaged)?;
    let ceilings = ceiling::COPIES.map(|at| {
        let mut bytes = [0; ceiling::LEN];
        medium.read(at, &mut bytes);
        ceiling::parse(&bytes, superblock.salt)
    });
    let ceiling = ceilings.into_iter().flatten().max();
    let mut half = vec![0; superblock.geometry.half_len as usize];
    medium.read(superblock.geometry.half(root.half), &mut half);
    let log = replay(&half, &superblock, &root)?;

    // A crash may have left a half-written move to the other half. Its frames must never count, so the next
    // move takes a generation above theirs.
    let mut newest = root.generation.max(newest_generation(&half, superblock.salt));
    medium.read(superblock.geometry.half(root.half.other()), &mut half);
    newest = newest.max(newest_generation(&half, superblock.salt));

    let pool = Pool::assemble(Recovered {
        medium,
        superblock,
        root: Root { reached: log.sequence, ..root },
        log_end: log.end,
        sequence: log.sequence,
        next_generation: newest + 1,
        records: log.records,
        ceiling,
    })?;
    // Both copies again: one may have been torn, and the next crash may take the other.
    pool.store_root().map_err(|e| OpenError::medium(&e))?;
    Ok(pool)
}

fn read_superblock<M: Medium>(medium: &M) -> Result<Superblock, OpenError> {
    if medium.len() < BLOCK {
        return Err(OpenError::TooShort { file: medium.len() });
    }
    Superblock::parse(&FORMAT.read(medium), medium.len())
}

struct Log {
    records: BTreeMap<BlobName, Record>,
    end: u64,
    sequence: u64,
}

/// Walks the frames from the start of the half that counts, to the first that is not there.
fn replay(half: &[u8], superblock: &Superblock, root: &Root) -> Result<Log, OpenError> {
    let mut log = Log { records: BTreeMap::new(), end: 0, sequence: 0 };
    while let Some(frame) = Frame::parse(superblock.salt, &half[log.end as usize..]) {
        let first = log.end == 0;
        if frame.generation != root.generation || (!first && frame.sequence != log.sequence + 1) {
            break;
        }
        for record in frame.records().ok_or_else(|| OpenError::catalogue("a record means nothing"))? {
            log.records.insert(record.name().clone(), record);
        }
        log.sequence = frame.sequence;
        log.end = (log.end + frame.occupies()).min(half.len() as u64);
    }
    if log.sequence < root.reached {
        let (end, reached) = (log.sequence, root.reached);
        return Err(OpenError::catalogue(format!("it ends at frame {end} and once reached frame {reached}")));
    }
    // A frame is written only after the one before it is durable. So whatever ended the walk was the last one,
    // torn, unless there is a later one of this generation behind it.
    let later = frames(&half[log.end as usize..], superblock.salt)
        .any(|frame| frame.generation == root.generation && frame.sequence > log.sequence);
    if later {
        return Err(OpenError::catalogue(format!(
            "frame {} is unreadable, later ones are not",
            log.sequence + 1
        )));
    }
    Ok(log)
}

fn newest_generation(half: &[u8], salt: u64) -> u64 {
    frames(half, salt).map(|frame| frame.generation).max().unwrap_or(0)
}

/// All whole frames, wherever they begin.
fn frames(bytes: &[u8], salt: u64) -> impl Iterator<Item = Frame<'_>> {
    bytes.chunks_exact(ALIGN as usize).enumerate().filter_map(move |(n, chunk)| {
        // Most chunks are no frame's first, and that shows in the first four bytes.
        let at = n * ALIGN as usize;
        Frame::starts(chunk).then(|| Frame::parse(salt, &bytes[at..])).flatten()
    })
}
