//! Writes dirty pages back, sets slots and records free, and truncates: a machine that says what is to be done with files and is told how it went.
//!
//! There is one for a cache, and what it does to lines of slots nobody else does: a page becomes dirty by its writer, and clean only here. What concerns the medium
//! it does itself, in [`poll`](Keeper::poll). A batch goes so: pages that are dirty for the longest are copied, each under its lock for the time of the copy
//! ([`Action::Write`], side by side); their files are synced, once each; truncations that the sync covers are let go, durably; the lines of
//! pages that were not written since say *free*, durably; their slots may go.
//!
//! **What is waited for.** Pages that are written again and again are dirty for ever. So who waits for files to have what was written until now waits for a *sweep*: each
//! page that was dirty when it began is copied once, and is in its file. That of a page which somebody has locked is taken up later, before any other.
//!
//! **What fails stops it.** Pages stay dirty, so [`retry`](Keeper::retry) begins with the writes and not with the sync that failed: after that a
//! page cache may have dropped what it could not write, and call it clean.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use remanence_pmem::Medium;

use super::format::{Kind, Level, Mark, RecordLine, SlotLine, content_crc};
use super::{Applied, Fault, PageOf, Pages, Slot, State, Step};
use crate::descriptors::Held;
use crate::format::Promise;
use crate::gate::UNKNOWN;
use crate::table::FileId;

/// So many pages are given up with one wait when a file is truncated.
const CUT: usize = 256;

/// Names something that was asked for, until it is done or has failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token(u64);

/// When the keeper works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Pages of a batch, at most.
    pub batch: usize,
    /// From so many dirty pages on it writes back without being asked.
    pub low: usize,
}

impl Options {
    /// Those for a cache of so many pages: from a half on, in batches of at most a thousand.
    #[must_use]
    pub const fn usual(slots: u32) -> Self {
        let batch = if slots / 4 < 1024 { slots / 4 } else { 1024 };
        Self { batch: if batch == 0 { 1 } else { batch as usize }, low: slots as usize / 2 }
    }
}

/// What is to be done with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Cut it short or extend it. Nobody else gets into it before that is done.
    Truncate {
        /// The file that is cut.
        file: FileId,
        /// How long it is then.
        len: u64,
    },
    /// Write [these bytes](Keeper::bytes) to it. Only the page at its end has fewer than a page; with O_DIRECT that one is written as a whole, and
    /// the file then truncated to where these bytes end, before the sync.
    Write {
        /// The file that is written to.
        file: FileId,
        /// Where they go.
        offset: u64,
        /// How many there are.
        len: u32,
    },
    /// Make all that was done to it before durable.
    Sync {
        /// The file that is synced.
        file: FileId,
    },
}

/// Why the keeper does nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// What has failed.
    pub doing: Action,
    /// What was said of it.
    pub why: String,
}

#[derive(Debug)]
struct Job {
    at: usize,
    born: u64,
    of: PageOf,
    /// The last write that is in the copy.
    seq: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Write(usize),
    Sync,
}

/// How far a truncation is with its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    Due,
    Asked,
    Done,
}

#[derive(Debug)]
struct Truncation {
    file: FileId,
    len: u64,
    record: u32,
    seq: u64,
    made: Made,
}

/// A truncation that is not durable in the cache yet.
#[derive(Debug)]
struct Cut {
    file: FileId,
    len: u64,
    record: u32,
    /// Its number, once it is committed.
    seq: Option<u64>,
    /// Nobody else is in the file.
    alone: bool,
    /// Pages of which nothing is left, as far as is visible.
    gone: Vec<Held>,
    /// The next page to be looked at.
    next: u64,
}

/// Pages that are to be in their files before others.
#[derive(Debug)]
struct Sweep {
    /// All writes up to this one are in what is due.
    upto: u64,
    /// So many of what was due have not been looked at.
    left: usize,
    /// Pages that somebody had locked.
    late: Vec<usize>,
}

/// What a keeper has done since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Batches that are in their files, and truncations.
    pub batches: u64,
    /// Records that were set free.
    pub freed: u64,
    /// All writes up to this one are in their files, durably, as [tickets](Pages::ticket) count.
    pub filed: u64,
}

/// The machine that keeps a cache.
#[derive(Debug)]
pub struct Keeper {
    options: Options,
    progress: Progress,
    sweep: Option<Sweep>,
    /// All writes up to this one are to be in their files.
    upto: u64,
    /// A sweep is to be made, whatever was swept before.
    again: bool,
    stage: Stage,
    jobs: Vec<Job>,
    unsynced: Vec<FileId>,
    /// Truncations that the batch's syncs cover.
    covered: BTreeSet<u64>,
    running: BTreeMap<Token, (Action, usize)>,
    token: u64,
    wanted: bool,
    cut: Option<Cut>,
    truncations: Vec<Truncation>,
    stopped: Option<Stopped>,
    retries: bool,
}

impl Keeper {
    /// The keeper of a cache that was just opened.
    #[must_use]
    pub const fn new(options: Options) -> Self {
        Self {
            options,
            progress: Progress { batches: 0, freed: 0, filed: 0 },
            sweep: None,
            upto: 0,
            again: false,
            stage: Stage::Idle,
            jobs: Vec::new(),
            unsynced: Vec::new(),
            covered: BTreeSet::new(),
            running: BTreeMap::new(),
            token: 0,
            wanted: false,
            cut: None,
            truncations: Vec::new(),
            stopped: None,
            retries: false,
        }
    }

    /// Somebody waits until all is in its files, durably.
    pub fn drain(&mut self) {
        self.wanted = true;
    }

    /// Somebody waits until all writes up to a [ticket](Pages::ticket) are in their files, durably: until [so many are filed](Progress::filed).
    pub fn drain_to(&mut self, ticket: u64) {
        self.upto = self.upto.max(ticket);
    }

    /// Somebody waits for a page to be clean that was read when it became so: each page that is dirty is to be in its file once more.
    pub const fn sweep_again(&mut self) {
        self.again = true;
    }

    /// What it has done.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        self.progress
    }

    /// Whether it would go on if somebody unlocked a page, or committed a write.
    #[must_use]
    pub fn is_hungry(&self) -> bool {
        self.stopped.is_none() && self.running.is_empty() && (self.is_wanted() || self.wanted)
    }

    /// Whether somebody waits for a sweep.
    const fn is_wanted(&self) -> bool {
        self.progress.filed < self.upto || self.again || self.sweep.is_some()
    }

    /// Whether files lack nothing, and nothing is on its way to them.
    pub fn is_drained<M: Medium>(&self, pages: &Pages<M>) -> bool {
        self.stage == Stage::Idle
            && self.running.is_empty()
            && self.cut.is_none()
            && self.truncations.is_empty()
            && pages.dirty() == 0
    }

    /// Why it does nothing, if something has failed.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref()
    }

    /// Begins anew what has failed, as soon as nothing of the attempt before runs any more.
    pub fn retry(&mut self) {
        self.retries = self.stopped.is_some();
    }

    /// The bytes of a write that was asked for.
    #[must_use]
    pub fn bytes(&self, token: Token) -> Option<&[u8]> {
        let (action, job) = self.running.get(&token)?;
        matches!(action, Action::Write { .. }).then(|| &self.jobs[*job].bytes[..])
    }

    /// What is to be done next, until it says that there is nothing: it waits for what runs, or has no reason to work.
    ///
    /// # Errors
    /// The medium failed.
    pub fn poll<M: Medium>(&mut self, pages: &Pages<M>) -> Result<Option<(Token, Action)>, Fault> {
        if self.stopped.is_some() {
            if !self.retries || !self.running.is_empty() {
                return Ok(None);
            }
            (self.stopped, self.retries, self.stage) = (None, false, Stage::Idle);
            self.requeue(pages);
        }
        loop {
            match self.stage {
                Stage::Idle => {
                    let due = self.truncations.iter_mut().find(|truncation| truncation.made != Made::Done);
                    if let Some(truncation) = due {
                        if truncation.made == Made::Asked {
                            return Ok(None);
                        }
                        truncation.made = Made::Asked;
                        let action = Action::Truncate { file: truncation.file, len: truncation.len };
                        return Ok(Some(self.ask(action, 0)));
                    }
                    self.secure(pages)?;
                    self.retire(pages)?;
                    if self.cut.is_some() || !self.has_reason(pages) {
                        return Ok(None);
                    }
                    self.collect(pages);
                    if self.jobs.is_empty() && self.truncations.is_empty() {
                        self.end_sweep();
                        return Ok(None);
                    }
                    self.stage = Stage::Write(0);
                }
                Stage::Write(next) => match self.jobs.get(next) {
                    Some(job) => {
                        self.stage = Stage::Write(next + 1);
                        let offset = job.of.page * u64::from(pages.layout.geometry.page);
                        let len = job.bytes.len() as u32;
                        let action = Action::Write { file: job.of.file, offset, len };
                        return Ok(Some(self.ask(action, next)));
                    }
                    None if self.running.is_empty() => {
                        let cut = self.truncations.iter().map(|truncation| truncation.file);
                        let files: BTreeSet<FileId> =
                            self.jobs.iter().map(|job| job.of.file).chain(cut).collect();
                        self.unsynced = files.into_iter().rev().collect();
                        self.covered = self.truncations.iter().map(|truncation| truncation.seq).collect();
                        self.stage = Stage::Sync;
                    }
                    None => return Ok(None),
                },
                Stage::Sync => {
                    if let Some(file) = self.unsynced.pop() {
                        return Ok(Some(self.ask(Action::Sync { file }, 0)));
                    }
                    if !self.running.is_empty() {
                        return Ok(None);
                    }
                    self.settle(pages)?;
                    self.stage = Stage::Idle;
                }
            }
        }
    }

    fn ask(&mut self, action: Action, of: usize) -> (Token, Action) {
        self.token += 1;
        let token = Token(self.token);
        self.running.insert(token, (action, of));
        (token, action)
    }

    /// What was asked for is done.
    pub fn done<M: Medium>(&mut self, pages: &Pages<M>, token: Token) {
        let Some((Action::Truncate { file, .. }, _)) = self.running.remove(&token) else { return };
        for truncation in self.truncations.iter_mut().filter(|truncation| truncation.made == Made::Asked) {
            truncation.made = Made::Done;
        }
        self.progress.batches += 1;
        pages.gates[file.0 as usize].open();
    }

    /// What was asked for has failed: nothing more is done until somebody says to [retry](Self::retry).
    pub fn failed(&mut self, token: Token, why: &str) {
        let Some((doing, _)) = self.running.remove(&token) else { return };
        for truncation in self.truncations.iter_mut().filter(|truncation| truncation.made == Made::Asked) {
            truncation.made = Made::Due;
        }
        self.retries = false;
        self.stopped.get_or_insert(Stopped { doing, why: why.to_owned() });
    }

    fn has_reason<M: Medium>(&mut self, pages: &Pages<M>) -> bool {
        let (dirty, cut) = (pages.dirty(), !self.truncations.is_empty());
        self.wanted &= dirty > 0 || cut;
        self.is_wanted() || self.wanted || dirty >= self.options.low.max(1) || cut && pages.is_scarce()
    }

    /// Copies pages that are due.
    fn collect<M: Medium>(&mut self, pages: &Pages<M>) {
        if self.sweep.is_none() && self.is_wanted() {
            let redo = pages.redo();
            self.sweep = Some(Sweep { upto: redo.settled(), left: redo.due.len(), late: Vec::new() });
            self.again = false;
        }
        let swept = self.sweep.as_ref().map_or(0, |sweep| sweep.upto);
        let late = self.sweep.as_mut().map(|sweep| std::mem::take(&mut sweep.late)).unwrap_or_default();
        let mut late = VecDeque::from(late);
        let mut due = pages.redo().due.len();
        while self.jobs.len() < self.options.batch.max(1) {
            let next = match late.pop_front() {
                Some(at) => Some(at),
                None if due == 0 => None,
                None => {
                    due -= 1;
                    self.sweep.iter_mut().for_each(|sweep| sweep.left = sweep.left.saturating_sub(1));
                    pages.redo().due.pop_front()
                }
            };
            let Some(at) = next else { break };
            let job = if pages.pages.share_at(at) {
                let slot = pages.slot(at).clone();
                let misses = slot.pending.first().is_some_and(|part| part.seq <= swept);
                let job = match (slot.state, pages.pages.of(at)) {
                    (State::Dirty { born }, Some(of)) if slot.applied >= born && !misses => {
                        let mut bytes = pages.in_place(at);
                        bytes.truncate(slot.valid as usize);
                        Some(Job { at, born, of, seq: slot.applied, bytes })
                    }
                    _ => None,
                };
                pages.pages.unshare(at);
                if job.is_none() && !matches!(slot.state, State::Dirty { .. }) {
                    continue;
                }
                job
            } else {
                None
            };
            match (job, &mut self.sweep) {
                (Some(job), _) => self.jobs.push(job),
                (None, Some(sweep)) => sweep.late.push(at),
                (None, None) => pages.redo().due.push_back(at),
            }
        }
        self.sweep.iter_mut().for_each(|sweep| sweep.late.extend(&late));
    }

    /// A batch is in its files, or there was none to be made: a sweep may have come to its end.
    fn end_sweep(&mut self) {
        let is_over = |sweep: &mut Sweep| sweep.left == 0 && sweep.late.is_empty();
        let Some(Sweep { upto, .. }) = self.sweep.take_if(is_over) else { return };
        // A truncation is a batch of its own, and comes before what was written behind it.
        let cut = self.truncations.iter().map(|truncation| truncation.seq - 1).min();
        let upto = cut.map_or(upto, |cut| upto.min(cut));
        self.progress.filed = self.progress.filed.max(upto);
    }

    /// Has the pages of a batch that came to nothing be due again.
    fn requeue<M: Medium>(&mut self, pages: &Pages<M>) {
        let late = self.sweep.take().map(|sweep| sweep.late).unwrap_or_default();
        pages.redo().due.extend(self.jobs.drain(..).map(|job| job.at).chain(late));
        self.unsynced.clear();
    }

    /// Makes what files have got be of the past here: truncations first, as they would undo what was written since.
    fn settle<M: Medium>(&mut self, pages: &Pages<M>) -> Result<(), Fault> {
        let (medium, layout) = (&pages.medium, &pages.layout);
        let is_covered = |truncation: &mut Truncation| self.covered.contains(&truncation.seq);
        let gone: Vec<Truncation> = self.truncations.extract_if(.., is_covered).collect();
        if !gone.is_empty() {
            let let_go = |gone: &Truncation| RecordLine::let_go(medium, layout, gone.record, gone.seq);
            gone.iter().for_each(let_go);
            medium.psync()?;
            pages.redo().done.extend(gone.iter().map(|truncation| (truncation.seq, truncation.record)));
        }
        let mut settling = Vec::new();
        for job in std::mem::take(&mut self.jobs) {
            let is_its = |held: &Held| held.of == job.of;
            let held = match pages.pages.lock_at(job.at) {
                Some(held) if is_its(&held) => held,
                Some(other) => {
                    pages.pages.unlock(other);
                    continue;
                }
                None => {
                    pages.redo().due.push_back(job.at);
                    continue;
                }
            };
            let mut slot = pages.slot(job.at);
            let is_in_its_file = slot.is_dirty(job.born) && slot.last == job.seq;
            if is_in_its_file {
                slot.state = State::Settling { born: job.born };
            }
            let is_due = matches!(slot.state, State::Dirty { .. });
            drop(slot);
            if is_in_its_file {
                SlotLine::free(medium, layout, job.at as u32, job.born);
                pages.dirty.fetch_sub(1, Ordering::AcqRel);
                settling.push((job.at, job.born));
            } else if is_due {
                pages.redo().due.push_back(job.at);
            }
            pages.pages.unlock(held);
        }
        self.progress.batches += 1;
        self.end_sweep();
        if settling.is_empty() {
            return Ok(());
        }
        medium.psync()?;
        for (at, born) in settling {
            let mut slot = pages.slot(at);
            if slot.state == (State::Settling { born }) {
                slot.state = State::Clean;
            }
        }
        Ok(())
    }

    /// Makes what was written durable, and puts it in place, where that did not happen when it was written.
    fn secure<M: Medium>(&self, pages: &Pages<M>) -> Result<(), Fault> {
        if pages.promise == Promise::AtReturn || pages.redo().pending.is_empty() {
            return Ok(());
        }
        let settled = pages.redo().settled();
        pages.sync(settled)?;
        // Once it is in place its page is not what it was when it became dirty: a recovery has to know that it need not look at that.
        Level::Durable.put(&pages.medium, &pages.layout, settled);
        pages.medium.psync()?;
        let mut busy = Vec::new();
        loop {
            let next = pages.redo().pending.pop_front_if(|(seq, _)| *seq <= settled);
            let Some((seq, at)) = next else { break };
            // It is in place, or its page was given up.
            if !pages.slot(at).pending.iter().any(|part| part.seq == seq) {
                continue;
            }
            match pages.pages.lock_at(at) {
                Some(held) => {
                    pages.apply(at, settled);
                    pages.pages.unlock(held);
                }
                None => busy.push((seq, at)),
            }
        }
        let mut redo = pages.redo();
        busy.into_iter().rev().for_each(|one| redo.pending.push_front(one));
        Ok(())
    }

    /// Sets records free whose bytes are in place, if there are few.
    fn retire<M: Medium>(&mut self, pages: &Pages<M>) -> Result<(), Fault> {
        let (medium, layout) = (&pages.medium, &pages.layout);
        let (applied, settled) = {
            let scarce = pages.is_scarce();
            let mut redo = pages.redo();
            if !scarce || redo.applied.is_empty() && redo.done.is_empty() {
                return Ok(());
            }
            let count = redo.applied.len().min(self.options.batch.max(1));
            let applied: Vec<Applied> = redo.applied.drain(..count).collect();
            (applied, redo.settled())
        };
        let mut marks: BTreeMap<usize, (u64, Mark, usize)> = BTreeMap::new();
        let (mut busy, mut done) = (Vec::new(), Vec::new());
        for one in applied {
            if let Entry::Vacant(place) = marks.entry(one.slot) {
                if !pages.pages.share_at(one.slot) {
                    busy.push(one);
                    continue;
                }
                let is_here = pages.slot(one.slot).is_dirty(one.born);
                if is_here {
                    let content = content_crc(&pages.in_place(one.slot));
                    let mut slot = pages.slot(one.slot);
                    slot.copy = 1 - slot.copy;
                    let mark = Mark { seq: slot.applied, valid: slot.valid, content };
                    place.insert((one.born, mark, slot.copy));
                }
                pages.pages.unshare(one.slot);
            }
            done.push((one.seq, one.record));
        }
        let in_place = {
            let mut redo = pages.redo();
            busy.into_iter().rev().for_each(|one| redo.applied.push_front(one));
            let needed = redo.applied.iter().map(|one| one.seq);
            let needed = needed.chain(redo.pending.iter().map(|(seq, _)| *seq));
            let cut = self.cut.iter().filter_map(|cut| cut.seq);
            let needed = needed.chain(cut).chain(self.truncations.iter().map(|truncation| truncation.seq));
            needed.min().map_or(settled, |oldest| settled.min(oldest - 1))
        };
        // In this order: bytes, the marks that speak of them, and what makes a recovery do without their records.
        medium.pfence()?;
        for (at, (born, mark, copy)) in &marks {
            mark.put(medium, layout, *at as u32, *born, *copy);
        }
        medium.pfence()?;
        Level::InPlace.put(medium, layout, in_place);
        medium.psync()?;
        if pages.promise == Promise::AtReturn {
            pages.durable.fetch_max(settled, Ordering::AcqRel);
        }
        let mut redo = pages.redo();
        redo.done.extend(done);
        let free: Vec<(u64, u32)> = redo.done.extract_if(.., |(seq, _)| *seq <= in_place).collect();
        self.progress.freed += free.len() as u64;
        redo.free.extend(free.into_iter().map(|(_, record)| record));
        Ok(())
    }

    /// Goes on with a truncation: to be called until it says that it is done. Then it is as durable as the promise says, and nobody gets into
    /// the file before [what is asked for](Action::Truncate) is done. One at a time.
    ///
    /// # Errors
    /// The file is not known, or the medium failed.
    ///
    /// # Panics
    /// Another one is not done yet.
    pub fn truncate<M: Medium>(&mut self, pages: &Pages<M>, file: FileId, len: u64) -> Result<Step, Fault> {
        let gate = pages.gate(file)?;
        if self.cut.is_none() {
            // Before anything is locked: a batch that sets records free would wait for this.
            let Some(record) = pages.redo().free.pop() else { return Ok(Step::Full) };
            let next = len / u64::from(pages.layout.geometry.page);
            self.cut = Some(Cut { file, len, record, seq: None, alone: false, gone: Vec::new(), next });
        }
        let mut cut = self.cut.take().expect("it was begun");
        assert_eq!((cut.file, cut.len), (file, len), "one truncation at a time");
        cut.alone = cut.alone || gate.close();
        // A page of a batch, written now, would make the file longer again.
        let idle = self.stage == Stage::Idle && self.running.is_empty() && self.stopped.is_none();
        if !cut.alone || !idle {
            self.cut = Some(cut);
            return Ok(Step::Busy);
        }
        let step = self.cut_on(pages, &mut cut);
        if !matches!(step, Ok(Step::Done)) {
            self.cut = Some(cut);
            return step;
        }
        gate.size.store(len.min(UNKNOWN - 1), Ordering::Release);
        let seq = cut.seq.expect("it has one when it is done");
        self.truncations.push(Truncation { file, len, record: cut.record, seq, made: Made::Due });
        Ok(Step::Done)
    }

    /// Gives up a truncation that is not done; whether nothing of it was done. If something was, it is to be carried to its end: it waits for nobody's file then.
    pub fn give_up_truncation<M: Medium>(&mut self, pages: &Pages<M>) -> bool {
        let Some(cut) = self.cut.take_if(|cut| cut.seq.is_none()) else { return self.cut.is_none() };
        let gate = &pages.gates[cut.file.0 as usize];
        if cut.alone {
            gate.open();
        } else {
            gate.give_up();
        }
        pages.redo().free.push(cut.record);
        true
    }

    fn cut_on<M: Medium>(&self, pages: &Pages<M>, cut: &mut Cut) -> Result<Step, Fault> {
        let (medium, layout) = (&pages.medium, &pages.layout);
        let seq = match cut.seq {
            Some(seq) => seq,
            None => {
                let seq = pages.number()?;
                let line = RecordLine {
                    seq,
                    born: cut.len,
                    slot: cut.file.0,
                    offset: 0,
                    len: 0,
                    data: 0,
                    back: 0,
                    count: 1,
                    kind: Kind::Truncate,
                    durable: pages.durable.load(Ordering::Acquire),
                };
                line.put(medium, layout, cut.record);
                pages.seal(cut.record, seq)?;
                pages.redo().running.remove(&seq);
                cut.seq = Some(seq);
                seq
            }
        };
        // What is given up below has to be so on account of a record that counts.
        if pages.promise == Promise::AtSync {
            if pages.sync(seq)? != Step::Done {
                return Ok(Step::Busy);
            }
            Level::Durable.put(medium, layout, seq);
            medium.psync()?;
        }
        loop {
            let found = pages.pages.from(PageOf { file: cut.file, page: cut.next }, CUT);
            if found.is_empty() {
                return Ok(Step::Done);
            }
            let mut short = None;
            for (page, _) in &found {
                let of = PageOf { file: cut.file, page: *page };
                let held = match pages.pages.lock_known(of) {
                    Ok(Some(held)) => held,
                    // It was evicted meanwhile.
                    Ok(None) => continue,
                    Err(_) => return self.give_up_pages(pages, cut, short).map(|()| Step::Busy),
                };
                cut.next = page + 1;
                match (cut.len % u64::from(layout.geometry.page)) as usize {
                    within if page * u64::from(layout.geometry.page) < cut.len => {
                        self.shorten(pages, held.at, within, seq);
                        short = Some(held);
                    }
                    _ => {
                        self.lose(pages, &held);
                        cut.gone.push(held);
                    }
                }
            }
            self.give_up_pages(pages, cut, short)?;
        }
    }

    /// Clears the tail of a page.
    fn shorten<M: Medium>(&self, pages: &Pages<M>, at: usize, within: usize, seq: u64) {
        pages.apply(at, seq);
        let zeros = vec![0; pages.page() - within];
        pages.medium.write_nt(pages.layout.data(at as u32) + within as u64, &zeros);
        let mut slot = pages.slot(at);
        slot.valid = slot.valid.min(within as u32);
        if matches!(slot.state, State::Dirty { .. }) {
            (slot.applied, slot.last) = (seq, seq);
        }
    }

    /// Gives up what a page has.
    fn lose<M: Medium>(&self, pages: &Pages<M>, held: &Held) {
        let mut slot = pages.slot(held.at);
        let pending = std::mem::take(&mut slot.pending);
        let State::Dirty { born } = slot.state else { return };
        slot.state = State::Settling { born };
        drop(slot);
        SlotLine::free(&pages.medium, &pages.layout, held.at as u32, born);
        pages.dirty.fetch_sub(1, Ordering::AcqRel);
        let applied = |part: super::Part| Applied { seq: part.seq, record: part.record, slot: held.at, born };
        pages.redo().applied.extend(pending.into_iter().map(applied));
    }

    /// Makes durable that pages are given up, and what is left of the one that was shortened, and lets go of all.
    fn give_up_pages<M: Medium>(
        &self,
        pages: &Pages<M>,
        cut: &mut Cut,
        short: Option<Held>,
    ) -> Result<(), Fault> {
        pages.medium.psync()?;
        for held in cut.gone.drain(..) {
            *pages.slot(held.at) = Slot::EMPTY;
            pages.pages.release(held);
        }
        let Some(held) = short else { return Ok(()) };
        let slot = pages.slot(held.at).clone();
        if let State::Dirty { born } = slot.state {
            let content = content_crc(&pages.in_place(held.at));
            let mark = Mark { seq: slot.applied, valid: slot.valid, content };
            pages.slot(held.at).copy = 1 - slot.copy;
            mark.put(&pages.medium, &pages.layout, held.at as u32, born, 1 - slot.copy);
            pages.medium.psync()?;
        }
        pages.pages.unlock(held);
        Ok(())
    }

    /// Forgets a file of which nothing is dirty, so that its number can be another's: to be called until it says that it is done.
    ///
    /// # Errors
    /// The file is not known.
    pub fn forget<M: Medium>(&self, pages: &Pages<M>, file: FileId) -> Result<Step, Fault> {
        let gate = pages.gate(file)?;
        let idle = self.stage == Stage::Idle && self.running.is_empty() && self.cut.is_none();
        if !idle || self.truncations.iter().any(|truncation| truncation.file == file) {
            return Ok(Step::Busy);
        }
        if !gate.close() {
            gate.give_up();
            return Ok(Step::Busy);
        }
        loop {
            let found = pages.pages.from(PageOf { file, page: 0 }, CUT);
            if found.is_empty() {
                break;
            }
            for (page, _) in found {
                let held = match pages.pages.lock_known(PageOf { file, page }) {
                    Ok(Some(held)) => held,
                    Ok(None) => continue,
                    Err(_) => {
                        gate.open();
                        return Ok(Step::Busy);
                    }
                };
                let is_clean = pages.slot(held.at).state == State::Clean;
                if !is_clean {
                    pages.pages.unlock(held);
                    gate.open();
                    return Ok(Step::Busy);
                }
                pages.pages.release(held);
            }
        }
        gate.size.store(UNKNOWN, Ordering::Release);
        gate.open();
        Ok(Step::Done)
    }
}
