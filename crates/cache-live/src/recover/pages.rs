//! Recovery of the pages of NVPages on real files: the executor of what [`remanence_cache::pages::recovery`] decides.
//!
//! All files are looked for first. Where one that something is due to is not found, or something is damaged, nothing is changed before somebody has decided: a
//! truncation, or a page, may be a part of anything. Whatever fails or dies in between, the cache has everything, and who begins anew does the same again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use remanence_cache::pages::format::file_options;
use remanence_cache::pages::keeper::Action;
use remanence_cache::pages::recovery::{Flaw, Outcome, Recovery, Scan, scan};
use remanence_cache::recovery::{Made, Names, Policy};
use remanence_cache::table::FileId;
use remanence_pmem::{Medium, Region};

use super::files::{Files, Kind};
use super::find::{Finder, split};
use super::real::{RealFiles, lost};
use super::{Error, FileReport, Options, State, reason_to_wait};

/// What a recovery of pages has done, or would do.
#[derive(Clone, Debug)]
pub struct PagesReport {
    /// Each file to which something was due; entries are pages and truncations.
    pub files: Vec<FileReport>,
    /// What is damaged.
    pub damaged: BTreeSet<Flaw>,
    /// Writes that are dropped: one before them is missing, and nobody was told that they are durable.
    pub dropped: u64,
    /// How it has ended; `None` in a dry run.
    pub outcome: Option<Outcome>,
}

impl PagesReport {
    /// What somebody has to decide before the cache at a path can be recovered, if there is anything.
    #[must_use]
    pub fn undecided(&self, path: &Path) -> Option<String> {
        let pages = path.display();
        let damaged = self.damaged.first().map(|first| {
            let more = self.damaged.len() - 1;
            let more = if more == 0 { String::new() } else { format!(", and {more} more are wrong") };
            format!("{first}{more} (`rem cache recover --skip-damage {pages}` gives up what is damaged)")
        });
        let why: Vec<String> = damaged.into_iter().chain(reason_to_wait(&self.files, path)).collect();
        (!why.is_empty()).then(|| why.join("; "))
    }
}

/// What is due to a file.
#[derive(Clone, Copy, Default)]
struct Due {
    entries: u64,
    bytes: u64,
}

fn due_of(scan: &Scan) -> BTreeMap<FileId, Due> {
    let mut due: BTreeMap<FileId, Due> = BTreeMap::new();
    for page in &scan.pages {
        let due = due.entry(page.of.file).or_default();
        due.entries += 1;
        due.bytes += u64::from(page.valid);
    }
    for truncation in &scan.truncations {
        due.entry(truncation.file).or_default().entries += 1;
    }
    due
}

/// Brings what a cache has into its files; or says what that would be.
///
/// # Errors
/// Something failed: the cache has everything, and it may be begun anew.
pub fn recover<F: Files>(
    medium: &impl Medium,
    scan: Scan,
    files: &F,
    options: &Options,
) -> Result<PagesReport, Error> {
    let mut finder = Finder::new(files, medium, scan.layout.table(), Names::default());
    let mut report = PagesReport {
        files: Vec::new(),
        damaged: scan.damaged.clone(),
        dropped: scan.dropped,
        outcome: None,
    };
    let mut nodes = BTreeMap::new();
    for (file, due) in due_of(&scan) {
        let path = finder.shown(file);
        let found = finder.find(file).map_err(Error::of("looked for", path.clone()))?;
        let state = match found {
            Some(found) if found.about.kind == Kind::File => {
                nodes.insert(file, found.node);
                State::Replayed
            }
            Some(_) => State::Absent { why: Some("what is there is no regular file".to_owned()) },
            None => State::Absent { why: finder.refusal(file).map(str::to_owned) },
        };
        report.files.push(FileReport { file, path, entries: due.entries, bytes: due.bytes, state });
    }
    if options.dry {
        return Ok(report);
    }
    let is_damaged = !report.damaged.is_empty() && options.policy == Policy::Hold;
    let is_absent = report.files.iter().any(|file| file.state != State::Replayed);
    if is_damaged || is_absent && options.set_aside.is_none() {
        report.outcome = Some(Outcome::Held);
        return Ok(report);
    }
    if let Some(directory) = &options.set_aside {
        for file in report.files.iter_mut().filter(|file| file.state != State::Replayed) {
            let identity = finder.identity(file.file).map(|identity| identity.path).unwrap_or_default();
            let name = split(&identity).map_or(b"file".as_slice(), |(_, name)| name);
            let (node, path) = aside(files, directory, name)?;
            nodes.insert(file.file, node);
            file.state = State::SetAside { path };
        }
    }
    let mut recovery = Recovery::begin(medium, scan, options.policy)?;
    while let Some((token, action)) = recovery.poll() {
        let (Action::Truncate { file, .. } | Action::Write { file, .. } | Action::Sync { file }) = action;
        let node = &nodes[&file];
        let (what, done) = match action {
            Action::Truncate { len, .. } => ("cut", files.truncate(node, len)),
            Action::Write { offset, .. } => {
                let bytes = recovery.bytes(medium, token).unwrap_or_default();
                ("written", files.write(node, offset, &bytes))
            }
            Action::Sync { .. } => ("synced", files.sync(node)),
        };
        if let Err(why) = done {
            recovery.failed(token, &why.to_string());
            return Err(Error::of(what, finder.shown(file))(why));
        }
        recovery.done(token);
    }
    report.outcome = Some(recovery.finish(medium)?);
    Ok(report)
}

/// Makes a file in a directory, for what is due to one that is not found, under a name that nothing has.
fn aside<F: Files>(files: &F, directory: &Path, name: &[u8]) -> Result<(F::Node, String), Error> {
    let shown = directory.display().to_string();
    let bad = |what| Error::of(what, shown.clone());
    let found = files.directory(directory.as_os_str().as_bytes()).map_err(bad("looked at"))?;
    let Some(place) = found else { return Err(bad("looked at")(io::ErrorKind::NotFound.into())) };
    for number in 0_u64.. {
        let end = if number == 0 { String::new() } else { format!(".{number}") };
        let name = [&name[..name.len().min(255 - end.len())], end.as_bytes()].concat();
        match files.make(&place, &name, &Made::Node { mode: 0o100_600 }) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.and_then(|()| files.sync(&place)).map_err(bad("written to"))?;
                let node = files.named(&place, &name).map_err(bad("looked at"))?;
                let node =
                    node.ok_or(io::ErrorKind::NotFound).map_err(|why| bad("written to")(why.into()))?;
                return Ok((node, format!("{shown}/{}", remanence_codec::printable(&name))));
            }
        }
    }
    Err(bad("written to")(io::ErrorKind::AlreadyExists.into()))
}

/// Opens the pages at a path, for whoever recovers them: nobody else has them meanwhile.
///
/// # Errors
/// There are none, or somebody has them.
pub fn open(path: &Path) -> Result<Region, remanence_pmem::Error> {
    file_options().open(path)
}

/// Recovers what a crash has left of the pages at a path, where nobody has to decide anything. `None`: they were closed, or nothing was due.
///
/// # Errors
/// One sentence: what is to be decided, or what has failed. The cache has everything.
pub fn recovered(path: &Path, region: &Region) -> Result<Option<String>, String> {
    let pages = path.display();
    let found = scan(region, lost(path)).map_err(|why| format!("{pages}: {why}"))?;
    if found.is_clean() {
        return Ok(None);
    }
    let failed = |why: Error| {
        format!("{pages} was not closed, and what it has cannot be brought into its files: {why}")
    };
    let report = recover(region, found, &RealFiles, &Options::default()).map_err(failed)?;
    if let Some(why) = report.undecided(path) {
        return Err(format!(
            "{pages} was not closed, and is for you to recover: {why}; `rem cache recover --dry-run {pages}` says more"
        ));
    }
    let entries: u64 = report.files.iter().map(|file| file.entries).sum();
    Ok((entries > 0).then(|| {
        let files = report.files.len();
        format!("{pages} was not closed, and is recovered: {entries} pages of it are in {files} of its files")
    }))
}
