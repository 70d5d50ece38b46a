//! From bytes on a medium back to a [`Pool`].
//!
//! Nothing is repaired by guessing: either the medium holds a pool that a crash may have left behind, and then
//! exactly the durable commits are in it, or it was damaged, and then the error says how it shows.

use std::collections::BTreeMap;

use std::ops::Range;

use remanence_pmem::Medium;
use remanence_pmem::image::{Order, Records, RootError, Standing, Verdict};

use crate::blob::BlobName;
use crate::error::OpenError;
use crate::format::BLOCK;
use crate::format::ceiling;
use crate::format::frame::{self, ALIGN, FRAMING, Header, Record};
use crate::format::root::Root;
use crate::format::superblock::{FORMAT, Superblock};
use crate::pool::{Pool, Recovered};

/// So many moves there never were, nor frames: who forges a count makes none overflow.
const COUNT_MAX: u64 = 1 << 63;

/// Opens the pool on `medium` after a clean end or a crash.
///
/// # Errors
/// There is no pool, or another version's, or a damaged one.
pub fn recover<M: Medium>(medium: M) -> Result<Pool<M>, OpenError> {
    let superblock = read_superblock(&medium)?;
    let damaged = |what: fn() -> OpenError| {
        move |error| match error {
            RootError::Invalid { .. } => what(),
            RootError::Medium(e) => OpenError::medium(&e),
        }
    };
    let root = Root::open(&medium, superblock.salt).map_err(damaged(|| OpenError::RootDamaged))?;
    let ceiling = ceiling::open(&medium, superblock.salt).map_err(damaged(|| OpenError::CeilingDamaged))?;
    let mut half = vec![0; superblock.geometry.half_len as usize];
    medium.read(superblock.geometry.half(root.half), &mut half);
    let log = replay(&half, &superblock, &root)?;
    // If a process died frames may be visible only. Nothing that says that they were there may be durable before them.
    let begins = superblock.geometry.half(root.half);
    medium.persist(begins..begins + log.end).map_err(|e| OpenError::medium(&e))?;

    // A crash may have left a half-written move to the other half. Its frames must never count, so the next
    // move takes a generation above theirs.
    let mut newest = root.generation.max(newest_generation(&half, superblock.salt));
    medium.read(superblock.geometry.half(root.half.other()), &mut half);
    newest = newest.max(newest_generation(&half, superblock.salt));
    if newest >= COUNT_MAX {
        return Err(OpenError::RootDamaged);
    }

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
    // From now on a catalogue that ends before the last frame that was found is damaged.
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

/// The frame that is due in a half of the catalogue. `Records` has the argument; it holds here as a frame is only written
/// when the one before it is durable.
struct Due<'a> {
    root: &'a Root,
    /// The number of the frame before it, if there is one.
    last: Option<u64>,
    /// Where it begins, and where the half ends.
    room: Range<u64>,
}

impl Order for Due<'_> {
    type Header = Header;

    fn places(&self) -> impl Iterator<Item = Range<u64>> {
        std::iter::once(self.room.clone())
    }

    fn due(&self, header: &[u8]) -> Result<Header, Standing> {
        let header = Header::parse(header).ok_or(Standing::Other)?;
        let other = header.generation != self.root.generation;
        match self.last {
            _ if other => Err(Standing::Stale),
            None => Ok(header),
            Some(last) if header.sequence.checked_sub(1) == Some(last) => Ok(header),
            Some(last) if header.sequence <= last => Err(Standing::Stale),
            Some(_) => Err(Standing::Other),
        }
    }

    fn reached(&self) -> bool {
        self.last.unwrap_or(0) < self.root.reached
    }

    fn later(&self) -> impl Iterator<Item = Range<u64>> {
        places(self.room.clone())
    }

    fn proves(&self, header: &[u8]) -> bool {
        let later = |header: Header| header.sequence > self.last.unwrap_or(0);
        Header::parse(header).is_some_and(|header| header.generation == self.root.generation && later(header))
    }
}

/// Walks the frames from the start of the half that counts, to the first that is not there.
fn replay(mut half: &[u8], superblock: &Superblock, root: &Root) -> Result<Log, OpenError> {
    let frames = Records { framing: FRAMING, salt: superblock.salt };
    let mut log = Log { records: BTreeMap::new(), end: 0, sequence: 0 };
    let mut due = Due { root, last: None, room: 0..half.len() as u64 };
    let mut payload = Vec::new();
    let verdict = loop {
        let Ok(verdict) = frames.next(&due, &mut half, &mut payload);
        let Verdict::Whole(frame) = verdict else { break verdict };
        for record in
            frame::records(&payload).ok_or_else(|| OpenError::catalogue("a record means nothing"))?
        {
            log.records.insert(record.name().clone(), record);
        }
        if frame.header.sequence >= COUNT_MAX {
            return Err(OpenError::catalogue("a frame has a number that nobody reached"));
        }
        log.sequence = frame.header.sequence;
        log.end = frame.at + frame.len;
        (due.last, due.room.start) = (Some(log.sequence), log.end);
    };
    match verdict {
        Verdict::Rotted if due.reached() => {
            let (end, reached) = (log.sequence, root.reached);
            Err(OpenError::catalogue(format!("it ends at frame {end} and once reached frame {reached}")))
        }
        Verdict::Rotted => {
            let next = log.sequence + 1;
            Err(OpenError::catalogue(format!("frame {next} is unreadable, later ones are not")))
        }
        _ => Ok(log),
    }
}

/// Of all whole frames, wherever they begin.
fn newest_generation(mut half: &[u8], salt: u64) -> u64 {
    let mut payload = Vec::new();
    let generations = places(0..half.len() as u64).filter_map(|room| {
        let judge = |header: &[u8]| Header::parse(header).ok_or(());
        let Ok(found) = FRAMING.read(Some(salt), &mut half, room, &mut payload, judge);
        found.ok().map(|(header, _)| header.generation)
    });
    generations.max().unwrap_or(0)
}

/// Where frames may begin.
fn places(within: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    within.clone().step_by(ALIGN as usize).map(move |at| at..within.end)
}
