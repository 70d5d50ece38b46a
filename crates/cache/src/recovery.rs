//! What a crash has left of a log, and how it comes into its files.
//!
//! [`scan`] looks and changes nothing: it is the dry run. [`Recovery`] then makes what it has found durable, *seals* that (a second recovery
//! decides the same, whatever else is lost meanwhile), has the entries carried out by a [`Cleaner`], and moves the tail a whole lap on, behind every index
//! that anybody can have reserved. So it may be cut short anywhere and begun anew; what was not promised and was dropped never comes back.
//!
//! **What counts.** An entry is whole if its commit word, the headers of its group and their data fit. Let *known* be the highest index
//! below which all was durable, as any whole header says, or a mark (`log.rs`).
//!
//! | at an index | committed and whole | not committed | committed, not whole |
//! |---|---|---|---|
//! | fenced, or nothing was lost | counts | hole | damaged |
//! | a place that a mark names | counts | hole | hole |
//! | below *known* | counts | damaged: it is missing | damaged |
//! | from *known* on | counts | the end | the end; told, as it may be damaged |
//!
//! **Whose bytes they are.** In a file that only those change who use the log, everything that is due is carried out again, in order, whatever pages
//! of which state the crash has left: then it is as after the last entry that counts. What a real sync of the file made durable is older than that and never
//! undone, as an entry says that all below is [settled](Op::Settled). A file that somebody else changed since is told by its mtime ([`Scan::is_foreign`]), and
//! looked at page by page ([`foreign`](crate::foreign)); what is due to a file that is not found is held.
//!
//! The mtime may be somewhat later than that of the last entry that is left without anybody else having been there: what was written and not synced may have
//! come to the file's inode and not to the log. Whoever changes a file therefore sees to it that the log has a time of it durably, which is less than a half of [`GRACE`] old
//! then, and has a file that somebody else has changed synced and settled; what others synced within [`GRACE`] behind our last change of the file, where it overlaps what the log has, may be undone, and nothing else of theirs;
//! and not even that if the log goes on for as long, as what it lacks of ours is behind all that it has: only a writer that stood still between his write and its entry would be taken for somebody else then. To know each page's content before its first
//! entry instead would be a read and a checksum at each first write of a page, for the sake of that second.
//!
//! Under [`Promise::AtReturn`] all are fenced. A commit word that no writer ever wrote before a group that is whole is mended: the checksums prove the
//! group; before any other it is damage.

use std::collections::{BTreeMap, BTreeSet};

use remanence_pmem::Medium;

use crate::cleaner::{Action, Cleaner, Stopped, Token};
use crate::entry::{Commit, Kind, Mtime, commit};
use crate::format::{Held, Layout, Lost, OpenError, Promise, Record, Seal};
use crate::log::passed;
use crate::op::Op;
use crate::read::{self, Damage, Entry, Flaw};
use crate::table::{FileId, Identity};

/// An entry that counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// What is to be carried out.
    pub entry: Entry,
    /// The files that it is about: the first, and directories.
    pub files: Vec<FileId>,
    /// Its commit word was damaged.
    pub mended: bool,
}

/// What a log has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// Where things lie.
    pub layout: Layout,
    /// What the root record says.
    pub record: Record,
    /// What was lost, as far as this log is concerned.
    pub lost: Lost,
    /// The entries that count, in their order.
    pub items: Vec<Item>,
    /// Those that should be there and are not whole, in their order.
    pub damaged: Vec<Damage>,
    /// Places of writers that died before they had committed.
    pub holes: Vec<u64>,
    /// The index from which on nothing counts.
    pub end: u64,
    /// What lies from there on and was committed, and is not whole: nobody was told that it is durable, as far as the log still knows.
    pub unsure: Vec<Damage>,
    /// How many whole entries from there on are dropped: something before them is missing, and nobody was told that they are durable.
    pub dropped: u64,
    /// Of each file, when those who use the log have changed its bytes last, as far as the log knows, also by entries that do not count.
    pub changed: BTreeMap<FileId, Mtime>,
    /// The time of the latest write that counts, of whatever file.
    pub latest: Mtime,
}

/// A file may be so many nanoseconds younger than the last that the log knows of it, and nobody else has changed it, where the machine was lost.
pub const GRACE: u64 = 2_000_000_000;

impl Scan {
    /// Whether its files lack nothing, and it can be opened as it is.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.record.open && self.record.seal.is_none()
    }

    /// Whether somebody else has changed a file since, which says that its bytes were changed then. (On kernels whose times are of a tick, who changed it
    /// within one is not told from us.)
    #[must_use]
    pub fn is_foreign(&self, file: FileId, mtime: Mtime) -> bool {
        let grace = if self.lost == Lost::Nothing { 0 } else { GRACE };
        let known = self.changed.get(&file).filter(|known| **known != Mtime::UNKNOWN);
        // What is logged by then has all before it in the log.
        let grace = if mtime.0.saturating_add(grace) < self.latest.0 { 0 } else { grace };
        known.is_some_and(|known| mtime.0 > known.0.saturating_add(grace))
    }

    /// Below which index nothing is due any more to the bytes of a file, or the names in a directory.
    fn settled(&self) -> BTreeMap<FileId, u64> {
        let mut settled = BTreeMap::new();
        for item in self.items.iter().filter(|item| item.entry.kind == Kind::Settled) {
            let upto = settled.entry(item.entry.file).or_insert(0);
            *upto = item.entry.offset.min(item.entry.first).max(*upto);
        }
        settled
    }

    /// The entries that count and are due: nothing that was settled, nor what a recovery that has held others has carried out.
    #[must_use]
    pub fn due(&self) -> Vec<&Item> {
        let due = self.record.seal.as_ref().map_or(&Held::All, |seal| &seal.due);
        let settled = self.settled();
        let is_due = |item: &&Item| {
            // What was held together has all its files in there.
            if item.files.is_empty() || !item.files.iter().all(|file| due.has(*file)) {
                return false;
            }
            let is_settled = settled.get(&item.files[0]).is_some_and(|upto| item.entry.first < *upto);
            item.is_of_names() || item.entry.kind != Kind::Settled && !is_settled
        };
        self.items.iter().filter(is_due).collect()
    }

    /// What names mean by all entries that count, whatever else is done with them: by these, files are found.
    pub fn names(&self, medium: &impl Medium) -> Names {
        let mut names = Names::default();
        let mut payload = Vec::new();
        let settled = self.settled();
        for item in self.items.iter().filter(|item| item.is_of_names()) {
            let read = read::payload(medium, &self.layout, &item.entry, &mut payload);
            if let Some(op) = read.ok().and_then(|()| item.entry.op(&payload)) {
                names.change(&op, &item.entry, &settled);
            }
        }
        names
    }

    /// Reads the data of an entry.
    ///
    /// # Errors
    /// It is damaged: it was whole when the log was scanned.
    pub fn payload(&self, medium: &impl Medium, entry: &Entry, into: &mut Vec<u8>) -> Result<(), Damage> {
        read::payload(medium, &self.layout, entry, into)
    }
}

impl Item {
    /// Whether it changes names, and not bytes.
    #[must_use]
    pub fn is_of_names(&self) -> bool {
        // What names change has a directory.
        self.files.len() > 1
    }
}

/// What is known of a log besides each entry's own bytes.
struct Evidence {
    /// All below was durable, but for what marks name.
    known: u64,
    /// Places that marks name, each with how many entries it has.
    passed: BTreeMap<u64, u64>,
    /// When files were changed.
    changed: BTreeMap<FileId, Mtime>,
}

impl Evidence {
    fn gather(medium: &impl Medium, layout: &Layout, tail: u64) -> Self {
        let mut evidence = Self { known: tail, passed: BTreeMap::new(), changed: BTreeMap::new() };
        let mut payload = Vec::new();
        for index in tail..tail + layout.geometry.entries {
            let (word, header) = read::line(medium, layout, index);
            let Some(header) = header else { continue };
            if header.durable <= index {
                evidence.known = evidence.known.max(header.durable);
            }
            let is_of_bytes = match header.kind {
                Kind::Write | Kind::Settled => true,
                Kind::Change if header.back == 0 => read::group(medium, layout, index)
                    .and_then(|entry| read::payload(medium, layout, &entry, &mut payload).map(|()| entry))
                    .is_ok_and(|entry| entry.op(&payload).is_some_and(|op| op.span().is_some())),
                _ => false,
            };
            if is_of_bytes {
                let changed = evidence.changed.entry(FileId(header.file)).or_insert(header.mtime);
                *changed = header.mtime.max(*changed);
            }
            let set = matches!(
                commit(layout.salt, index, layout.geometry.entries, word),
                Commit::Set { .. } | Commit::Damaged
            );
            if header.kind != Kind::Mark || header.back != 0 || !set {
                continue;
            }
            let Ok(mark) = read::group(medium, layout, index) else { continue };
            if mark.offset <= index && read::payload(medium, layout, &mark, &mut payload).is_ok() {
                evidence.known = evidence.known.max(mark.offset);
                evidence.passed.extend(passed(&payload));
            }
        }
        evidence
    }

    fn has_passed(&self, index: u64) -> bool {
        self.passed.range(..=index).next_back().is_some_and(|(first, count)| index - first < *count)
    }
}

/// Looks at what a log has, and changes nothing. `lost` is what the failure can have taken; where that is not certain it is
/// [`Lost::Unsynced`]. No bytes make it panic.
///
/// # Errors
/// There is no log that can be read.
pub fn scan(medium: &impl Medium, lost: Lost) -> Result<Scan, OpenError> {
    let layout = Layout::read(medium)?;
    let record = Record::peek(medium, &layout)?;
    let lost = record.seal.as_ref().map_or(lost, |seal| seal.lost);
    let mut scan = Scan {
        layout,
        lost,
        items: Vec::new(),
        damaged: Vec::new(),
        holes: Vec::new(),
        end: record.tail,
        unsure: Vec::new(),
        dropped: 0,
        changed: BTreeMap::new(),
        latest: Mtime::UNKNOWN,
        record,
    };
    if !scan.is_clean() {
        scan.look(medium);
    }
    Ok(scan)
}

/// What an entry that is due turned out to be.
enum Verdict {
    Counts(Item),
    Hole,
    Damaged(Damage),
    End(Option<Damage>),
}

impl Scan {
    fn look(&mut self, medium: &impl Medium) {
        let tail = self.record.tail;
        let lap = tail + self.layout.geometry.entries;
        let mut evidence = Evidence::gather(medium, &self.layout, tail);
        self.changed = std::mem::take(&mut evidence.changed);
        let until = self.record.seal.as_ref().map_or(lap, |seal| seal.end);
        let mut at = tail;
        while at < until {
            match self.judge(medium, &evidence, at) {
                Verdict::Counts(item) => {
                    at = item.entry.end();
                    if item.entry.kind == Kind::Write {
                        self.latest = self.latest.max(item.entry.mtime);
                    }
                    self.items.push(item);
                    self.end = at;
                }
                Verdict::Hole => {
                    self.holes.push(at);
                    at += 1;
                }
                Verdict::Damaged(damage) => {
                    at += damage.count.max(1);
                    self.damaged.push(damage);
                    self.end = at.min(until);
                }
                Verdict::End(_) => break,
            }
        }
        // A place behind all that counts is nobody's loss.
        self.holes.retain(|hole| *hole < self.end);
        if self.record.seal.is_some() {
            self.end = until;
            return;
        }
        let mut at = self.end;
        while at < lap {
            at = match self.judge(medium, &evidence, at) {
                Verdict::Counts(item) => {
                    self.dropped += 1;
                    item.entry.end()
                }
                Verdict::End(Some(damage)) => {
                    self.unsure.push(damage);
                    at + damage.count.max(1)
                }
                Verdict::Hole | Verdict::Damaged(_) | Verdict::End(None) => at + 1,
            };
        }
    }

    fn judge(&self, medium: &impl Medium, evidence: &Evidence, at: u64) -> Verdict {
        let layout = &self.layout;
        let (word, header) = read::line(medium, layout, at);
        let state = commit(layout.salt, at, layout.geometry.entries, word);
        let lost = self.lost == Lost::Unsynced && self.record.promise == Promise::AtSync;
        let passed = evidence.has_passed(at);
        let fenced = match state {
            Commit::Set { fenced } => fenced || !lost,
            Commit::Unset if !lost || passed => return Verdict::Hole,
            Commit::Unset if at < evidence.known => {
                return Verdict::Damaged(Damage::unknown(at, Flaw::Missing));
            }
            Commit::Unset => return Verdict::End(None),
            // It was a crash that left no such word.
            Commit::Damaged if header.is_none_or(|header| header.back != 0) => {
                return Verdict::Damaged(Damage::unknown(at, Flaw::Commit));
            }
            Commit::Damaged => true,
        };
        match self.whole(medium, at) {
            Ok((entry, files)) => Verdict::Counts(Item { entry, files, mended: state == Commit::Damaged }),
            Err(_) if !fenced && passed => Verdict::Hole,
            Err(damage) if !fenced && at >= evidence.known => Verdict::End(Some(damage)),
            Err(damage) => Verdict::Damaged(damage),
        }
    }

    /// A group that is whole, and the files that it is about.
    fn whole(&self, medium: &impl Medium, at: u64) -> Result<(Entry, Vec<FileId>), Damage> {
        let mut payload = Vec::new();
        let entry = read::group(medium, &self.layout, at)?;
        read::payload(medium, &self.layout, &entry, &mut payload)?;
        if matches!(entry.kind, Kind::Hole | Kind::Mark) {
            return Ok((entry, Vec::new()));
        }
        let op = entry.op(&payload).ok_or_else(|| Damage::of(&entry, Flaw::Unknown))?;
        let files = op.files();
        match files.iter().all(|file| Identity::read(medium, &self.layout, *file).is_some()) {
            true => Ok((entry, files)),
            false => Err(Damage::of(&entry, Flaw::File)),
        }
    }
}

/// What is done with what lies behind damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// What comes behind it and is about the same file is held, and the log stays as it is; of a file that is not known, all is.
    Hold,
    /// It is given up, and what is behind it is carried out.
    Skip,
}

/// What names mean when all is carried out.
///
/// Whoever brings it about keeps what will have a name from losing its last one meanwhile: first what is to get a name that it has not gets another
/// one for the time being, then those are put in place, then names that mean nothing are taken away; what a recovery that was cut short has left of
/// the names for the time being goes last. A name that means a file that the log does not know was given by somebody who does not use
/// it: that is left alone, and told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// Of each directory and name that changed, what it means.
    pub means: BTreeMap<(FileId, Vec<u8>), Option<FileId>>,
    /// What is to be made if it is not there: its first change was lost, and all others are in the log. Of what the kernel has synced since it was made that is not so: it was there, and
    /// what is not found was moved to where nothing is logged.
    pub made: BTreeMap<FileId, Made>,
    /// When each of those names was changed last.
    pub changed: BTreeMap<(FileId, Vec<u8>), Mtime>,
    /// The names that each file had at some time, by which it may be found.
    pub places: BTreeMap<FileId, Vec<(FileId, Vec<u8>)>>,
    /// Those of them whose directory the kernel has synced since they were changed last: they mean what they mean by now, whoever has changed them.
    pub settled: BTreeSet<(FileId, Vec<u8>)>,
    /// Files that an entry gives a further name: they may have had others that no entry tells of.
    pub linked: BTreeSet<FileId>,
}

/// How something is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Made {
    /// A file, a directory or whatever its mode says.
    Node {
        /// Its type and permissions, as in `st_mode`.
        mode: u32,
    },
    /// A symbolic link.
    Symlink {
        /// What it says.
        target: Vec<u8>,
    },
}

impl Names {
    /// The names that a file has in the end.
    #[must_use]
    pub fn wanted(&self, file: FileId) -> Vec<(FileId, Vec<u8>)> {
        let wanted = self.means.iter().filter(|(_, means)| **means == Some(file));
        wanted.map(|(name, _)| name.clone()).collect()
    }

    /// The names of a file that are to be brought about, if they are not there.
    #[must_use]
    pub fn due(&self, file: FileId) -> Vec<(FileId, Vec<u8>)> {
        let mut wanted = self.wanted(file);
        wanted.retain(|name| !self.settled.contains(name));
        wanted
    }

    fn change(&mut self, op: &Op<'_>, entry: &Entry, settled: &BTreeMap<FileId, u64>) {
        let when = entry.mtime;
        for (name, means) in op.meanings().into_iter().flatten() {
            let name = (name.directory, name.name.to_vec());
            // What is settled is so up to an index, and names are changed in the order of these.
            if settled.get(&name.0).is_some_and(|upto| entry.first < *upto) {
                self.settled.insert(name.clone());
            } else {
                self.settled.remove(&name);
            }
            let exchanged = match *op {
                Op::Rename { exchanged, .. } => exchanged,
                _ => None,
            };
            for file in means.into_iter().chain([op.file()]).chain(exchanged) {
                let places = self.places.entry(file).or_default();
                if !places.contains(&name) {
                    places.push(name.clone());
                }
            }
            self.changed.insert(name.clone(), when);
            self.means.insert(name, means);
        }
        if let Op::Link { file, .. } = *op {
            self.linked.insert(file);
        }
        let made = match *op {
            Op::Create { mode, .. } => Made::Node { mode },
            Op::Symlink { target, .. } => Made::Symlink { target: target.to_vec() },
            _ => return,
        };
        if settled.get(&op.file()).is_none_or(|upto| entry.first >= *upto) {
            self.made.insert(op.file(), made);
        }
    }
}

/// How a recovery has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All that counts is in its files, and the log is empty.
    Empty,
    /// What is behind damage in these files is not, or they were not found. The log is dirty until somebody says to skip the damage, or they are there again.
    Held(Held),
}

/// What is known of the files before any is changed; by whoever can look at them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Judged {
    /// Files that [somebody else](Scan::is_foreign) has changed. Nobody changes a file while a recovery that was cut short waits to be begun anew: only
    /// the first one's word counts.
    pub foreign: Vec<FileId>,
    /// Files that are not found, and are not [made](Names::made): what is due to their bytes is held.
    pub absent: BTreeSet<FileId>,
}

/// A recovery under way.
#[derive(Debug)]
pub struct Recovery {
    scan: Scan,
    held: Held,
    /// Files that are not found, and for whose bytes something is due.
    absent: BTreeSet<FileId>,
    /// What is due to files that somebody else has changed, until it is reconciled with what they have.
    foreign: BTreeMap<FileId, Vec<Entry>>,
    /// The first index that is still needed when something is held.
    keep: u64,
    names: Names,
    cleaner: Cleaner,
}

impl Recovery {
    /// Makes durable what was found, and what was decided about it, before any file is changed.
    ///
    /// # Errors
    /// The medium failed, or the root record is damaged.
    pub fn begin(
        medium: &impl Medium,
        mut scan: Scan,
        policy: Policy,
        judged: &Judged,
    ) -> Result<Self, OpenError> {
        // Both copies of the root say so durably from here on.
        scan.record = Record::read(medium, &scan.layout)?;
        let tail = scan.record.tail;
        let mut recovery = Self {
            held: Held::nothing(),
            absent: BTreeSet::new(),
            foreign: BTreeMap::new(),
            keep: scan.end,
            names: Names::default(),
            cleaner: Cleaner::replaying((scan.layout.geometry.entries / 4).clamp(1, 10_000), tail),
            scan,
        };
        if recovery.scan.is_clean() {
            return Ok(recovery);
        }
        for item in &recovery.scan.items {
            read::write_back(medium, &recovery.scan.layout, item.entry.first, item.entry.count);
        }
        medium.psync()?;
        let mut seal = recovery.scan.record.seal.clone().unwrap_or(Seal {
            end: recovery.scan.end,
            lost: recovery.scan.lost,
            due: Held::All,
            foreign: None,
        });
        if seal.foreign.is_none() {
            seal.foreign = Some(Held::Files(judged.foreign.clone()));
            recovery.scan.record = Record { open: true, seal: Some(seal), ..recovery.scan.record.clone() };
            recovery.scan.record.store(medium)?;
        }
        recovery.plan(medium, policy, &judged.absent);
        Ok(recovery)
    }

    /// Hands the cleaner what is due, and holds what is behind damage.
    fn plan(&mut self, medium: &impl Medium, policy: Policy, absent: &BTreeSet<FileId>) {
        let seal = self.scan.record.seal.as_ref();
        let foreign = seal.and_then(|seal| seal.foreign.clone()).unwrap_or(Held::nothing());
        let settled = self.scan.settled();
        let mut damaged = if policy == Policy::Hold { self.scan.damaged.clone() } else { Vec::new() };
        damaged.retain(|damage| match (damage.kind, damage.file) {
            (Some(Kind::Write), Some((file, ..))) => {
                settled.get(&file).is_none_or(|upto| damage.first >= *upto)
            }
            _ => true,
        });
        // What such an entry has settled is not known any more: nothing of its file is carried out.
        for damage in damaged.iter().filter(|damage| damage.kind == Some(Kind::Settled)) {
            self.hold(damage);
        }
        let mut damaged = damaged.iter().peekable();
        let mut payload = Vec::new();
        let due: Vec<Item> = self.scan.due().into_iter().cloned().collect();
        for item in due {
            while let Some(damage) = damaged.next_if(|damage| damage.first < item.entry.first) {
                self.hold(damage);
            }
            let (entry, file) = (item.entry, item.files[0]);
            // A change of names joins what it is about: what is held of one is held of all.
            if item.files.iter().any(|file| self.held.has(*file)) {
                self.keep = self.keep.min(item.entry.first);
                item.files.iter().for_each(|file| hold(&mut self.held, Some(*file)));
                continue;
            }
            if !item.is_of_names() && absent.contains(&file) {
                self.keep = self.keep.min(entry.first);
                self.absent.insert(file);
                continue;
            }
            if !item.is_of_names() && foreign.has(file) {
                self.foreign.entry(file).or_default().push(entry);
                continue;
            }
            // It was whole a moment ago. If it is not any more, whoever carries it out finds the same.
            let read = read::payload(medium, &self.scan.layout, &entry, &mut payload);
            let op: Option<Op<'_>> = read.ok().and_then(|()| entry.op(&payload));
            match op {
                Some(op) if op.span().is_none() => self.names.change(&op, &entry, &settled),
                op => self.cleaner.offer(entry, op.as_ref()),
            }
        }
        for damage in damaged {
            self.hold(damage);
        }
        if !self.names.means.is_empty() {
            self.cleaner.names_first();
        }
    }

    /// Holds what is behind damage: of a file, if it was a write; of all, if names may have changed.
    fn hold(&mut self, damage: &Damage) {
        match (damage.kind, damage.file) {
            (Some(Kind::Hole | Kind::Mark), _) => return,
            (Some(Kind::Write | Kind::Settled), Some((file, ..))) => hold(&mut self.held, Some(file)),
            _ => hold(&mut self.held, None),
        }
        self.keep = self.keep.min(damage.first);
    }

    /// What was found, also what entries that are to be carried out have ([`Scan::payload`]).
    #[must_use]
    pub const fn scan(&self) -> &Scan {
        &self.scan
    }

    /// What names are to mean ([`Action::Names`]).
    #[must_use]
    pub const fn names(&self) -> &Names {
        &self.names
    }

    /// What is due to files that somebody else has changed, in its order: page by page ([`foreign`](crate::foreign)), when all else is done.
    #[must_use]
    pub const fn foreign(&self) -> &BTreeMap<FileId, Vec<Entry>> {
        &self.foreign
    }

    /// What was due to such a file is in it, durably, or beside it.
    pub fn reconciled(&mut self, file: FileId) {
        self.foreign.remove(&file);
    }

    /// What is to be done next: the names, then changes and syncs of files, and nothing else. `None` when it is stopped, waits for what runs, or has come to its end.
    pub fn poll(&mut self) -> Option<(Token, Action)> {
        self.cleaner.poll(|_| true)
    }

    /// What was asked for is done.
    pub fn done(&mut self, token: Token) {
        self.cleaner.done(token);
    }

    /// What was asked for has failed: nothing more is done until somebody says to [retry](Self::retry).
    pub fn failed(&mut self, token: Token, why: &str) {
        self.cleaner.failed(token, why);
    }

    /// Why it does nothing, if something has failed.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Stopped> {
        self.cleaner.stopped()
    }

    /// Begins the batch anew that failed.
    pub fn retry(&mut self) {
        self.cleaner.retry();
    }

    /// Empties the log when all was carried out.
    ///
    /// # Errors
    /// The medium failed: the log is dirty, and a recovery may be begun anew.
    ///
    /// # Panics
    /// Something was not carried out.
    pub fn finish(self, medium: &impl Medium) -> Result<Outcome, OpenError> {
        assert!(
            self.cleaner.is_idle() && self.stopped().is_none() && self.foreign.is_empty(),
            "a recovery ends when all is in its files"
        );
        let Scan { layout, record, end, lost, .. } = self.scan;
        if record.open || record.seal.is_some() {
            let promise = record.promise;
            let mut held = self.held;
            self.absent.into_iter().for_each(|file| hold(&mut held, Some(file)));
            if !held.is_nothing() {
                // Whoever comes next looks again who has changed them.
                let seal = Seal { end, lost, due: held.clone(), foreign: None };
                Record { tail: self.keep, promise, open: true, seal: Some(seal) }.store(medium)?;
                return Ok(Outcome::Held(held));
            }
            // The head was never further than a lap above the persistent tail.
            Record::empty(record.tail + layout.geometry.entries, promise).store(medium)?;
        }
        Ok(Outcome::Empty)
    }
}

fn hold(held: &mut Held, file: Option<FileId>) {
    match (held, file) {
        (Held::Files(files), Some(file)) if !files.contains(&file) => files.push(file),
        (Held::Files(_), Some(_)) | (Held::All, _) => {}
        (held, None) => *held = Held::All,
    }
}
