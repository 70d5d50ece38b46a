//! What the mere death of processes leaves: the page cache has all that the log has, as the kernel's call came first. Then the files are synced, the log is
//! emptied, and nothing is replayed. A replay could only undo what was not logged: the last write of a program that was killed in the middle of it, and all
//! that came when the daemon was gone.
//!
//! **How that is known.** The daemon leaves a trace in the inode of each file, and of its directory, that is on no disk and goes when the kernel forgets the inode
//! ([`has_trace`](crate::sys::has_trace)); when a sync fails it is taken away. So an inode that has one has been in memory since, and with it its pages
//! that were not written. Of a page that could not be written the sync here tells, or, where somebody was told who died of it, that of the whole file system. A
//! file to which nobody has written behind the log, as its time says, is compared as well. What is not found was removed, if its file system has a trace: the kernel has lost nothing of that.
//!
//! **Cut short**, it has changed nothing. Where any of this is not known, nothing is changed either, and what the log has is replayed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use remanence_cache::entry::Mtime;
use remanence_cache::format::{Lost, Record};
use remanence_cache::recovery::{self, Outcome};
use remanence_cache::table::FileId;
use remanence_pmem::Medium;

use super::bytes::{Entries, reconcile};
use super::files::{About, Files as _, Kind};
use super::find::{Finder, Found, split};
use super::real::{Node, RealFiles};
use super::{Due, Error, Report, State, due_of, reports};
use crate::sys;

/// Empties a log whose files have all of it; or, in a dry run, says whether they have. `None`: that is not known, and nothing was changed.
pub(super) fn settle<M: Medium>(medium: &M, dry: bool) -> Result<Option<Report>, Error> {
    // The log as processes left it: what was committed counts, whether somebody waited for it or not.
    let scan = &recovery::scan(medium, Lost::Nothing)?;
    // A recovery that was cut short has begun to replay; and whose entry was damaged may not be known.
    if !scan.record.open || scan.record.seal.is_some() || !scan.damaged.is_empty() {
        return Ok(None);
    }
    let mut finder = Finder::new(&RealFiles, medium, scan.layout, scan.names(medium));
    let due = due_of(scan);
    let all: BTreeSet<FileId> = scan.due().iter().flat_map(|item| item.files.iter().copied()).collect();
    let mut states: BTreeMap<FileId, State> = BTreeMap::new();
    let mut systems: BTreeMap<u64, File> = BTreeMap::new();
    let mut removed_from = BTreeSet::new();
    let mut files = Vec::new();
    for file in all {
        // Only the cleaner writes such a file (the mode *deferred*): its page cache has no more than that has brought there.
        if due.contains_key(&file) && scan.changed.get(&file) == Some(&Mtime::UNKNOWN) {
            return Ok(None);
        }
        let Some(identity) = finder.identity(file) else { return Ok(None) };
        if let Some(directory) = split(&identity.path).and_then(|(path, _)| traced(path, identity.device)) {
            systems.entry(identity.device).or_insert(directory);
        }
        let shown = finder.shown(file);
        let Some(found) = finder.find(file).map_err(Error::of("looked for", shown.clone()))? else {
            removed_from.insert(identity.device);
            states.insert(file, State::Gone);
            continue;
        };
        let Ok(open) = found.node.to_read() else { return Ok(None) };
        let nothing = Due::default();
        let entries = Entries { medium, scan, entries: &due.get(&file).unwrap_or(&nothing).entries };
        if !sys::has_trace(open.as_raw_fd()) || !has_all(&found, &entries, scan.changed.get(&file), &shown)? {
            return Ok(None);
        }
        systems.entry(found.about.device).or_insert(open.try_clone().map_err(Error::of("opened", shown))?);
        states.insert(file, State::Kept);
        files.push(open);
    }
    if !removed_from.iter().all(|device| systems.contains_key(device)) {
        return Ok(None);
    }
    if !dry {
        let synced = files.iter().all(|file| file.sync_all().is_ok())
            && systems.values().all(|system| rustix::fs::syncfs(system).is_ok());
        if !synced {
            // The kernel tells that once.
            files.iter().for_each(|file| sys::take_trace(file.as_raw_fd()));
            return Ok(None);
        }
        let record = Record::read(medium, &scan.layout)?;
        // The head was never further than a lap above the persistent tail.
        Record::empty(record.tail + scan.layout.geometry.entries, record.promise).store(medium)?;
    }
    let outcome = (!dry).then_some(Outcome::Empty);
    let files = reports(&finder, &due, states);
    Ok(Some(Report { files, names: Vec::new(), damaged: Vec::new(), outcome }))
}

/// The directory at a path, if it is of that file system, and the kernel has had it in memory all the time.
fn traced(path: &[u8], device: u64) -> Option<File> {
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_DIRECTORY);
    let directory = options.open(Path::new(std::ffi::OsStr::from_bytes(path))).ok()?;
    let same = directory.metadata().is_ok_and(|found| found.dev() == device);
    (same && sys::has_trace(directory.as_raw_fd())).then_some(directory)
}

/// Whether a file has what its entries say, or something that is newer.
fn has_all<M: Medium>(
    found: &Found<Node>,
    entries: &Entries<'_, M>,
    known: Option<&Mtime>,
    shown: &str,
) -> Result<bool, Error> {
    let is_newer = |about: &About| known.is_none_or(|known| about.mtime > *known);
    if found.about.kind != Kind::File || is_newer(&found.about) {
        return Ok(true);
    }
    if is_whole(found, entries, shown)? {
        return Ok(true);
    }
    if let Some(before) = entries.before_cut()?
        && is_whole(found, &before, shown)?
    {
        return Ok(true);
    }
    // A program that goes on has written to it meanwhile.
    let now = RealFiles.about(&found.node).map_err(Error::of("looked at", shown.to_owned()))?;
    Ok(is_newer(&now))
}

/// Whether a file has just what its entries say.
fn is_whole<M: Medium>(found: &Found<Node>, entries: &Entries<'_, M>, shown: &str) -> Result<bool, Error> {
    let done = reconcile(&RealFiles, found, entries, Vec::new(), true, shown)?;
    Ok(done.replayed == 0 && done.kept.is_empty() && !done.uncut)
}
