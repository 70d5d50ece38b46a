//! A redo journal for a region on a page cache, at the end of the region's own file.
//!
//! Without one, a psync of scattered lines has the kernel write the page of each; with one it writes the lines, together,
//! to one place, and the pages are left to a checkpoint that nobody waits for. `log` has what is written when, and why a
//! crash at any moment loses nothing; `format` the bytes; `live` who waits for whom; this file makes, finds and removes
//! journals of files that are locked by us.
//!
//! Whoever opens the file finds the journal, and replays it unless the page cache is known to have lived since: `log` has the
//! rule, `cache` what the kernel says; `note` how a journal is missed of which nothing is left.
//!
//! What it rests on. Its blocks were written once before, so that writing them changes no metadata. Linux tells of a write that
//! failed, to each descriptor and by syncfs (since 5.8); an older kernel, a page of the region that another process has mapped while it is recovered, and a
//! device that lost what it had acknowledged can keep a failure from us. A file with a journal
//! that is read by other programs, on another machine, is not what was acknowledged before it was opened by this one.

mod format;
mod live;
mod log;
mod note;
mod pending;
#[cfg(test)]
mod tests;
mod view;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

pub(crate) use format::{JournalLayout, NO_BOOT, Name};
pub(crate) use live::Journal;
pub use note::{JOURNAL_NOTE_LEN, is_journal_note};
pub(crate) use note::{NO_NAME, Note, Sizes};

use crate::error::WayOut;
use crate::file::step;
use crate::{Error, Region, cache};
use format::{ALIGN, BLOCK, ENDING, MIN, NoFooter};
use live::FileDisk;
use log::{Bad, Cache, Log};
use view::View;

/// The journal for a region of this many bytes, if nobody says how large: an eighth of it, of at most 64 MiB.
pub(crate) const fn default_len(region: u64) -> u64 {
    const MAX: u64 = 64 << 20;
    let eighth = region / 8;
    if eighth < MIN {
        MIN
    } else if eighth > MAX {
        MAX
    } else {
        eighth
    }
}

/// This boot of the machine.
pub(crate) fn boot() -> Result<Name, Error> {
    uuid("/proc/sys/kernel/random/boot_id")
}

fn uuid(path: &str) -> Result<Name, Error> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "it is not a UUID");
    let read = || -> io::Result<Name> {
        let text = fs::read_to_string(path)?;
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 {
            return Err(bad());
        }
        u128::from_str_radix(&digits, 16).map(u128::to_be_bytes).map_err(|_| bad())
    };
    read().map_err(|e| Error::os(format!("reading {path}, which a file with a journal needs"), e))
}

/// Where the journal of a file of this length is, if it has one.
pub(crate) fn find(file: &File, len: u64, path: &Path) -> Result<Option<JournalLayout>, Error> {
    if len % ALIGN != ENDING || len < MIN {
        return Ok(None);
    }
    let mut bytes = [0; BLOCK as usize];
    let bytes = &mut bytes[..ENDING as usize];
    file.read_exact_at(bytes, len - ENDING)
        .map_err(|e| Error::os(format!("reading {}", path.display()), e))?;
    let path = path.to_owned();
    match JournalLayout::decode(bytes) {
        Ok(place) if place.file() == len => Ok(Some(place)),
        Err(NoFooter::Foreign) => Ok(None),
        Err(NoFooter::Version(version)) => Err(Error::JournalVersion { path, version }),
        Ok(_) | Err(NoFooter::Damaged) => Err(Error::JournalDamaged {
            path,
            what: "its last block is not as it was written".into(),
            way: WayOut::Nothing,
        }),
    }
}

/// Refuses a file without a footer that has the copy of one where the journal of a region of this length would start.
pub(crate) fn refuse_cut(file: &File, len: u64, region: u64, path: &Path) -> Result<(), Error> {
    let start = region.next_multiple_of(ALIGN);
    let mut copy = [0; BLOCK as usize];
    if len < start + BLOCK || file.read_exact_at(&mut copy, start).is_err() {
        return Ok(());
    }
    match JournalLayout::decode(&copy) {
        Ok(place) if place.start() == start && place.file() > len => Err(cut_short(place, len, path)),
        _ => Ok(()),
    }
}

/// What is said of a file that has so many bytes, and had more.
pub(crate) fn cut_short(place: JournalLayout, len: u64, path: &Path) -> Error {
    Error::JournalCut {
        path: path.to_owned(),
        expected: place.file(),
        found: len,
        way: WayOut::Truncate(place.region),
    }
}

/// The journal whose first block lies in a part of a file, or of a region, as one does of a file that was cut short within its
/// journal and then opened whole. `read` reads a block, and says whether it is there.
pub(crate) fn in_front(
    part: Range<u64>,
    mut read: impl FnMut(u64, &mut [u8]) -> bool,
) -> Option<JournalLayout> {
    let mut at = part.start.checked_next_multiple_of(ALIGN)?;
    let mut copy = [0; BLOCK as usize];
    while at < part.end && read(at, &mut copy) {
        match JournalLayout::decode(&copy) {
            Ok(place) if place.start() == at => return Some(place),
            _ => at += ALIGN,
        }
    }
    None
}

/// Gives a file a journal of about `len` bytes behind a region, which is all that it has, and is reserved.
pub(crate) fn create(file: &File, region: u64, len: u64, boot: Name, path: &Path) -> Result<Journal, Error> {
    let place = JournalLayout::new(region, len, uuid("/proc/sys/kernel/random/uuid")?);
    let os = |e| Error::os(format!("making the journal of {}", path.display()), e);
    // The footer comes last, when what it speaks of is durable. Until then the length says that there is none.
    crate::file::reserve(file, place.footer(), path)?;
    step(file);
    crate::file::write_zeros(file, region, place.footer(), path)?;
    step(file);
    let mut disk = disk(file, place).map_err(os)?;
    let log = Log::create(&mut disk, place, boot).map_err(os)?;
    let mut footer = place.encode();
    file.write_all_at(&footer, place.start()).map_err(os)?;
    file.sync_all().map_err(os)?;
    step(file);
    footer.resize(ENDING as usize, 0);
    file.write_all_at(&footer, place.footer()).map_err(os)?;
    file.sync_all().map_err(os)?;
    step(file);
    cache::leave_trace(file);
    Ok(Journal::new(log, disk))
}

/// Recovers the region from the journal, and goes on with it; its batches are signed with this boot, or with [`NO_BOOT`].
pub(crate) fn open(
    file: &File,
    place: JournalLayout,
    boot: Name,
    signs: Name,
    path: &Path,
) -> Result<Journal, Error> {
    let mut disk =
        disk(file, place).map_err(|e| Error::os(format!("opening the journal of {}", path.display()), e))?;
    let (mut log, _) =
        Log::open(&mut disk, place, boot, cache_of(file)).map_err(|bad| refused(bad, place, path))?;
    // Not before: what a replay was needed for is in the region now.
    cache::leave_trace(file);
    log.sign(signs);
    Ok(Journal::new(log, disk))
}

/// Puts into a copy of the region what a recovery would put into the region, and changes nothing of the file.
pub(crate) fn view(
    file: &File,
    place: JournalLayout,
    boot: Name,
    copy: &Region,
    path: &Path,
) -> Result<(), Error> {
    Log::open(&mut View::new(file, place, copy), place, boot, cache_of(file))
        .map(drop)
        .map_err(|bad| refused(bad, place, path))
}

/// The same; if that cannot be done as it should, as far as it can, and says why.
pub(crate) fn salvage(
    file: &File,
    place: JournalLayout,
    boot: Name,
    copy: &Region,
    path: &Path,
) -> Result<Option<Error>, Error> {
    let mut disk = View::new(file, place, copy);
    match Log::open(&mut disk, place, boot, cache_of(file)) {
        Ok(_) => Ok(None),
        Err(Bad::Os(e)) => Err(refused(Bad::Os(e), place, path)),
        Err(damaged) => {
            let cache = if disk.has_failed() { Cache::Unknown } else { cache_of(file) };
            log::salvage(&mut disk, place, cache).map_err(|bad| refused(bad, place, path))?;
            Ok(Some(refused(damaged, place, path)))
        }
    }
}

fn cache_of(file: &File) -> Cache {
    if cache::has_trace(file) { Cache::Kept } else { Cache::Unknown }
}

fn refused(bad: Bad, place: JournalLayout, path: &Path) -> Error {
    match bad {
        Bad::Os(e) => Error::os(format!("replaying the journal of {}", path.display()), e),
        Bad::Damaged(what) => {
            Error::JournalDamaged { path: path.to_owned(), what, way: WayOut::Truncate(place.region) }
        }
    }
}

/// Recovers the region from the journal, and cuts the file behind the region. `note`: what the file says from then on, and where.
pub(crate) fn remove(
    file: &File,
    place: JournalLayout,
    boot: Name,
    note: Option<(u64, Note)>,
    path: &Path,
) -> Result<(), Error> {
    let journal = open(file, place, boot, boot, path)?;
    let removed = || -> io::Result<()> {
        journal.finish()?;
        // While the journal is there, what the note says of it does not matter.
        if let Some((at, note)) = note {
            note.write(file, at)?;
        }
        step(file);
        file.set_len(place.region)?;
        file.sync_all()?;
        step(file);
        Ok(())
    };
    removed().map_err(|e| Error::os(format!("removing the journal of {}", path.display()), e))
}

fn disk(file: &File, place: JournalLayout) -> io::Result<FileDisk> {
    let this = format!("/proc/self/fd/{}", file.as_raw_fd());
    let through = File::options().write(true).custom_flags(libc::O_DSYNC).open(this)?;
    Ok(FileDisk { file: Arc::new(file.try_clone()?), through: Arc::new(through), place })
}
