//! Recovery on real files: the executor of what [`remanence_cache::recovery`] decides.
//!
//! | module | what it is |
//! |---|---|
//! | [`files`] | the few calls that it makes, as a trait |
//! | [`real`] | these, of the machine |
//! | `find` | which file an identity means now |
//! | `names` | brings about what names mean in the end |
//! | `bytes` | writes; reconciles with what others wrote |
//! | `kept` | nothing of that, where the page cache has it all |
//! | [`pages`] | the same for NVPages, which has pages in the log's place |
//!
//! **In which order.** All files are looked for and looked at first, and what was found of them is sealed in the log with all else that was decided. Then come names, then
//! bytes in batches with one sync a file, then files that somebody else has changed, then the log is emptied, and last the second names of what was made
//! are taken away. Whatever fails or dies in between, the log has everything, and who begins anew does the same again, to the same end.
//!
//! **What it writes to.** Only to what has the identity that the log names, in the directories that the log names, under names without a slash, and never
//! through a symbolic link; a log that was forged can do as much as who opens it may do to those files, and no more.

mod bytes;
pub mod files;
mod find;
mod kept;
mod names;
pub mod pages;
pub mod real;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use remanence_cache::Damage;
use remanence_cache::cleaner::Action;
use remanence_cache::entry::Mtime;
use remanence_cache::format::{Held, OpenError};
use remanence_cache::recovery::{Judged, Outcome, Policy, Recovery, Scan};
use remanence_cache::table::FileId;
use remanence_pmem::Medium;

use bytes::{Beside, Entries, apply, reconcile, set_aside};
use files::{Files, Kind};
use find::{Finder, Found, split};
use names::Namer;
use real::RealFiles;

/// How a recovery is carried out.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is done with what lies behind damage.
    pub policy: Policy,
    /// Only say what would be done, and change nothing, the log neither.
    pub dry: bool,
    /// Where to put what the log has for files that are not found. Without it, the log keeps it.
    pub set_aside: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { policy: Policy::Hold, dry: false, set_aside: None }
    }
}

/// What became of a file, or would.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// What was due is in it.
    Replayed,
    /// What was due was in it all the time, as the kernel has kept its pages: it was synced.
    Kept,
    /// It was lost, and is made anew, with what was due.
    Made,
    /// It was unlinked or replaced afterwards: nothing is due.
    Gone,
    /// It is not found: the log keeps what is due.
    Absent {
        /// Why it was not looked for any further, if it was not.
        why: Option<String>,
    },
    /// It is not found: what was due is in this file.
    SetAside {
        /// The file's path.
        path: String,
    },
    /// Somebody else has changed it since: where his bytes would have been undone they were kept.
    Foreign {
        /// Where the pages lie that were kept.
        kept: Vec<u64>,
        /// How many pages were replayed.
        replayed: u64,
        /// The log would have cut it, and it has its length still.
        uncut: bool,
        /// The name of a file beside it, which has what the log has; none where nothing was kept, and in a dry run.
        beside: Option<String>,
    },
}

/// What is said of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileReport {
    /// Its number in the log.
    pub file: FileId,
    /// Its path when it was opened.
    pub path: String,
    /// How many entries are due.
    pub entries: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What became of it.
    pub state: State,
}

/// What became of a name, or would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameState {
    /// It means what the log says.
    Given,
    /// It means nothing.
    Taken,
    /// It was left alone, for this reason.
    Left(&'static str),
}

/// Why a name was left alone that is to mean nothing: nobody has to decide that, as nothing of the log is lost by it.
pub(crate) const NEWER: &str = "it is a newer file's, which the log does not know";

/// What is said of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// Its path, as the log has it.
    pub name: String,
    /// What became of it.
    pub state: NameState,
}

/// What a recovery has done, or would do.
#[derive(Clone, Debug)]
pub struct Report {
    /// Each file for which something was due.
    pub files: Vec<FileReport>,
    /// Each name that was not as the log says.
    pub names: Vec<Name>,
    /// What is damaged: it was durable.
    pub damaged: Vec<Damage>,
    /// How it has ended; `None` in a dry run.
    pub outcome: Option<Outcome>,
}

/// Why a recovery has not come to its end. The log has everything, and it may be begun anew.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be read or written.
    #[error("{0}")]
    Log(#[from] OpenError),
    /// Pages cannot be read or written.
    #[error("{0}")]
    Pages(#[from] remanence_cache::pages::Fault),
    /// An entry rotted since the log was scanned.
    #[error("the log was whole a moment ago, and is damaged now: {0}")]
    Damaged(Damage),
    /// A file or directory failed.
    #[error(
        "{path} cannot be {what} ({source}): the log keeps everything; recover again when that is repaired"
    )]
    File {
        /// What was tried.
        what: &'static str,
        /// The path of the file, fit to be shown.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// Programs that have used the log go on, and may write to the files.
    #[error(
        "programs that have used the log still run ({}): end them, and recover again",
        .0.iter().map(|process| format!("process {process}")).collect::<Vec<_>>().join(", ")
    )]
    InUse(Vec<u32>),
    /// A file is found by no name, so nothing can be put beside it.
    #[error(
        "{path} was changed by somebody else and is found by its handle only: give it a name, and recover again"
    )]
    Nowhere {
        /// The path of the file, fit to be shown.
        path: String,
    },
}

impl From<Damage> for Error {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

impl Error {
    fn of(what: &'static str, path: String) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what, path, source }
    }
}

/// Says which files are not found, if there are any, and what decides that.
pub(crate) fn reason_to_wait(files: &[FileReport], path: &Path) -> Option<String> {
    let absent = files.iter().filter(|file| matches!(file.state, State::Absent { .. }));
    let absent: Vec<&str> = absent.map(|file| file.path.as_str()).collect();
    let [first, more @ ..] = &absent[..] else { return None };
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    Some(format!(
        "{first}{more} cannot be found (`rem cache recover --set-aside DIRECTORY {}` puts there what it has for that)",
        path.display()
    ))
}

/// What is due to one file's bytes.
#[derive(Clone, Debug, Default)]
struct Due {
    entries: Vec<remanence_cache::Entry>,
    bytes: u64,
}

/// The same as [`recover`] on the files of this machine, for the log at a path. Where the page cache is known to have all that the log has, that is not replayed.
///
/// # Errors
/// Something failed: the log has everything, and it may be begun anew.
pub fn recover_here(
    log: &Path,
    medium: &impl Medium,
    scan: Scan,
    options: &Options,
) -> Result<Report, Error> {
    if let Some(report) = kept::settle(medium, options.dry)? {
        return Ok(report);
    }
    if !options.dry && !scan.is_clean() {
        let users =
            real::users(log).map_err(Error::of("looked for in processes", log.display().to_string()))?;
        if !users.is_empty() {
            return Err(Error::InUse(users));
        }
    }
    recover(medium, scan, &RealFiles, options)
}

/// What is due to the bytes of each file.
fn due_of(scan: &Scan) -> BTreeMap<FileId, Due> {
    let mut due: BTreeMap<FileId, Due> = BTreeMap::new();
    for item in scan.due().into_iter().filter(|item| !item.is_of_names()) {
        let due = due.entry(item.files[0]).or_default();
        due.entries.push(item.entry);
        due.bytes += item.entry.len;
    }
    due
}

/// Carries out what a log has that its files lack; or says what that would be.
///
/// # Errors
/// Something failed: the log has everything, and it may be begun anew.
pub fn recover<F: Files>(
    medium: &impl Medium,
    scan: Scan,
    files: &F,
    options: &Options,
) -> Result<Report, Error> {
    let mut finder = Finder::new(files, medium, scan.layout, scan.names(medium));
    let due = due_of(&scan);
    for file in scan.due().iter().flat_map(|item| &item.files) {
        finder.find(*file).map_err(Error::of("looked for", finder.shown(*file)))?;
    }
    finder.look_for_newer().map_err(Error::of("looked for", "a name".to_owned()))?;
    let (states, judged) = judge(&mut finder, &scan, &due, options)?;
    let mut report =
        Report { files: Vec::new(), names: Vec::new(), damaged: scan.damaged.clone(), outcome: None };
    let states = if options.dry {
        let names = finder.names.clone();
        let mut namer = Namer::new(&mut finder, &names, true);
        namer.run()?;
        report.names = namer.told;
        look_at_foreign(medium, &mut finder, &scan, &due, states)?
    } else {
        let mut run = Run { medium, files, finder, options, changed: scan.changed.clone(), states };
        let mut recovery = Recovery::begin(medium, scan, options.policy, &judged)?;
        let names = recovery.names().clone();
        let made = run.poll(&mut recovery, &mut report)?;
        run.reconcile(&mut recovery)?;
        report.outcome = Some(recovery.finish(medium)?);
        Namer::new(&mut run.finder, &names, false).clear(|file| made.contains(&file))?;
        return Ok(run.report(report, &due));
    };
    report.files = reports(&finder, &due, states);
    Ok(report)
}

fn reports<M: Medium, F: Files>(
    finder: &Finder<'_, M, F>,
    due: &BTreeMap<FileId, Due>,
    mut states: BTreeMap<FileId, State>,
) -> Vec<FileReport> {
    let report = |(file, due): (&FileId, &Due)| FileReport {
        file: *file,
        path: finder.shown(*file),
        entries: due.entries.len() as u64,
        bytes: due.bytes,
        state: states.remove(file).unwrap_or(State::Replayed),
    };
    due.iter().map(report).collect()
}

/// Says of each file what is to become of it, before anything is changed.
fn judge<M: Medium, F: Files>(
    finder: &mut Finder<'_, M, F>,
    scan: &Scan,
    due: &BTreeMap<FileId, Due>,
    options: &Options,
) -> Result<(BTreeMap<FileId, State>, Judged), Error> {
    let sealed = scan.record.seal.as_ref().and_then(|seal| seal.foreign.clone());
    let mut states = BTreeMap::new();
    let mut judged = Judged::default();
    for file in due.keys() {
        let shown = finder.shown(*file);
        let found = finder.find(*file).map_err(Error::of("looked for", shown.clone()))?;
        let is_made = finder.names.made.contains_key(file);
        let is_wanted = !finder.due(*file).is_empty();
        let state = match found {
            Some(found) if found.about.kind != Kind::File => {
                State::Absent { why: Some("what is there is no regular file".to_owned()) }
            }
            Some(found) => {
                let is_foreign = match &sealed {
                    Some(sealed) => sealed.has(*file),
                    None => scan.is_foreign(*file, found.about.mtime),
                };
                match (is_foreign, &found.place) {
                    (true, Some(_)) => {
                        State::Foreign { kept: Vec::new(), replayed: 0, uncut: false, beside: None }
                    }
                    (true, None) => State::Absent {
                        why: Some(
                            "somebody else has changed it, and it is found by its handle only".to_owned(),
                        ),
                    },
                    (false, _) => State::Replayed,
                }
            }
            None if is_made && is_wanted => State::Made,
            None if finder.is_gone(*file)
                || finder.is_removed(*file).map_err(Error::of("looked for", shown.clone()))? =>
            {
                State::Gone
            }
            None => State::Absent { why: finder.refusal(*file).map(str::to_owned) },
        };
        let may_be_set_aside = sealed.as_ref().is_none_or(|sealed| sealed.has(*file));
        match (&state, &options.set_aside) {
            (State::Foreign { .. }, _) => judged.foreign.push(*file),
            // It is handed out with those, and goes as a whole into another file.
            (State::Absent { .. }, Some(_)) if may_be_set_aside => judged.foreign.push(*file),
            (State::Absent { .. }, _) => drop(judged.absent.insert(*file)),
            _ => {}
        }
        states.insert(*file, state);
    }
    Ok((states, judged))
}

/// What a dry run says of files that somebody else has changed.
fn look_at_foreign<M: Medium, F: Files>(
    medium: &M,
    finder: &mut Finder<'_, M, F>,
    scan: &Scan,
    due: &BTreeMap<FileId, Due>,
    mut states: BTreeMap<FileId, State>,
) -> Result<BTreeMap<FileId, State>, Error> {
    for (file, state) in &mut states {
        let shown = finder.shown(*file);
        let found = finder.find(*file).map_err(Error::of("looked for", shown.clone()))?;
        if let (State::Foreign { kept, replayed, uncut, .. }, Some(found)) = (state, found) {
            let entries = Entries { medium, scan, entries: &due[file].entries };
            let done = reconcile(finder.files, &found, &entries, Vec::new(), true, &shown)?;
            (*kept, *replayed, *uncut) = (done.kept, done.replayed, done.uncut);
        }
    }
    Ok(states)
}

/// A recovery that changes files.
struct Run<'a, M, F: Files> {
    medium: &'a M,
    files: &'a F,
    finder: Finder<'a, M, F>,
    options: &'a Options,
    /// When files were last changed by those who use the log.
    changed: BTreeMap<FileId, Mtime>,
    states: BTreeMap<FileId, State>,
}

impl<M: Medium, F: Files> Run<'_, M, F> {
    /// Names, and bytes of files that nobody else has changed; returns what was made.
    fn poll(&mut self, recovery: &mut Recovery, report: &mut Report) -> Result<BTreeSet<FileId>, Error> {
        let mut made = BTreeSet::new();
        let mut payload = Vec::new();
        while let Some((token, action)) = recovery.poll() {
            let done = match action {
                Action::Names => {
                    let names = recovery.names().clone();
                    let mut namer = Namer::new(&mut self.finder, &names, false);
                    let done = namer.run();
                    report.names.append(&mut namer.told);
                    made.append(&mut namer.made);
                    done
                }
                Action::Apply { entry } => self.apply(recovery, &entry, &mut payload),
                Action::Sync { file } => self.sync(file),
                // What a recovery does not ask for.
                Action::Persist { .. } | Action::Advance { .. } | Action::Free { .. } => Ok(()),
            };
            match done {
                Ok(()) => recovery.done(token),
                Err(error) => {
                    recovery.failed(token, &error.to_string());
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// A file whose bytes are to change.
    fn found(&mut self, file: FileId) -> Result<Option<Found<F::Node>>, Error> {
        let shown = self.finder.shown(file);
        let found = self.finder.find(file).map_err(Error::of("looked for", shown.clone()))?;
        let found = found.filter(|found| found.about.kind == Kind::File);
        let is_gone = self.states.get(&file) == Some(&State::Gone);
        if found.is_none() && !is_gone {
            // It was there, or was to be made.
            return Err(Error::of("found", shown)(io::ErrorKind::NotFound.into()));
        }
        Ok(found)
    }

    fn apply(
        &mut self,
        recovery: &Recovery,
        entry: &remanence_cache::Entry,
        payload: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Some(found) = self.found(entry.file)? else { return Ok(()) };
        recovery.scan().payload(self.medium, entry, payload)?;
        let Some(op) = entry.op(payload) else { return Ok(()) };
        // As it was behind the last one, which need not be the latest: some programs set it.
        if entry.mtime != Mtime::UNKNOWN {
            self.changed.insert(entry.file, entry.mtime);
        }
        apply(self.files, &found.node, &op).map_err(Error::of("written", self.finder.shown(entry.file)))
    }

    fn sync(&mut self, file: FileId) -> Result<(), Error> {
        let Some(found) = self.found(file)? else { return Ok(()) };
        let bad = |what| Error::of(what, self.finder.shown(file));
        // So whoever comes next sees that nobody else has changed it.
        if let Some(changed) = self.changed.get(&file).filter(|changed| **changed != Mtime::UNKNOWN) {
            self.files.stamp(&found.node, *changed).map_err(bad("given its time"))?;
        }
        self.files.sync(&found.node).map_err(bad("synced"))
    }

    /// Files that somebody else has changed, and those that are not found and are set aside.
    fn reconcile(&mut self, recovery: &mut Recovery) -> Result<(), Error> {
        for (file, entries) in recovery.foreign().clone() {
            let shown = self.finder.shown(file);
            let for_now = self.finder.for_now(file, true);
            let entries = Entries { medium: self.medium, scan: recovery.scan(), entries: &entries };
            let state = match (self.states.get(&file), self.finder.find(file)) {
                (Some(State::Foreign { .. }), Ok(Some(found))) => {
                    let done = reconcile(self.files, &found, &entries, for_now, false, &shown)?;
                    let beside = done.beside.map(|name| remanence_codec::printable(&name));
                    State::Foreign { kept: done.kept, replayed: done.replayed, uncut: done.uncut, beside }
                }
                (Some(State::Absent { .. }), _) if self.options.set_aside.is_some() => {
                    let path = self.options.set_aside.as_deref().unwrap_or(Path::new("."));
                    let identity =
                        self.finder.identity(file).map(|identity| identity.path).unwrap_or_default();
                    let name = split(&identity).map_or(b"file".as_slice(), |(_, name)| name);
                    State::SetAside { path: self.set_aside(path, name, for_now, &entries)? }
                }
                // It was foreign when a recovery began that was cut short, and is gone now.
                (Some(State::Gone), _) => State::Gone,
                _ => return Err(Error::of("found", shown)(io::ErrorKind::NotFound.into())),
            };
            self.states.insert(file, state);
            recovery.reconciled(file);
        }
        Ok(())
    }

    fn set_aside(
        &self,
        path: &Path,
        name: &[u8],
        for_now: Vec<u8>,
        entries: &Entries<'_, M>,
    ) -> Result<String, Error> {
        use std::os::unix::ffi::OsStrExt as _;
        let shown = path.display().to_string();
        let directory = self.files.directory(path.as_os_str().as_bytes());
        let directory = directory.map_err(Error::of("looked at", shown.clone()))?;
        let Some(directory) = directory else {
            return Err(Error::of("looked at", shown)(io::ErrorKind::NotFound.into()));
        };
        let beside = Beside { directory: &directory, name, for_now };
        let name = set_aside(self.files, &beside, None, entries, &shown)?;
        Ok(format!("{shown}/{}", remanence_codec::printable(&name)))
    }

    fn report(self, mut report: Report, due: &BTreeMap<FileId, Due>) -> Report {
        report.files = reports(&self.finder, due, self.states);
        report
    }
}

/// Whether everything that was due is in its files, so that nobody has anything left to do.
#[must_use]
pub fn is_done(report: &Report) -> bool {
    !matches!(&report.outcome, Some(Outcome::Held(held)) if *held != Held::nothing())
}
