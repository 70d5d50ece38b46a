//! Carries entries out on their files, in batches, and frees them: a machine that says what is to be done next and is told how it went.
//!
//! A batch goes through five stages: its entries are made durable in the log (else a file could have in part what the log has
//! lost), carried out, their files and directories synced once each, the persistent tail moved, the entries freed.
//! Changes that overlap are carried out one after the other in the order of the log, others beside each other. A group is one change, and is never cut.
//!
//! **What fails stops it.** The log keeps everything. [`retry`](Cleaner::retry) begins with the *writes* of the batch, not with the sync that failed: after a
//! failed sync a page cache may have dropped what it could not write, and call it clean.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use remanence_pmem::Medium;

use crate::entry::{Kind, Owner};
use crate::log::{Log, Look};
use crate::op::Op;
use crate::read::{Damage, Entry, Flaw};
use crate::table::FileId;
use crate::words::Words;

/// When the cleaner works, in entries in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// A batch ends with the group that has so many entries in it; so many that wait begin one.
    pub batch: u64,
    /// From here on a batch begins whenever there is anything.
    pub low: u64,
}

impl Options {
    /// Those for a log of so many entries: a watermark at a half of it, and batches of at most the paper's 10,000.
    #[must_use]
    pub const fn usual(entries: u64) -> Self {
        let batch = if entries / 4 < 10_000 { entries / 4 } else { 10_000 };
        Self { batch, low: entries / 2 }
    }
}

/// Names something that was asked for, until it is done or has failed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token(u64);

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Make the batch durable in the log ([`Log::secure`]).
    Persist {
        /// The index of its first entry.
        from: u64,
        /// The index behind the batch.
        upto: u64,
    },
    /// Carry this out; its data is read from the log ([`Log::payload`]). Names were changed by who logged that.
    Apply {
        /// What is to be carried out.
        entry: Entry,
    },
    /// Bring about what names mean in the end ([`Recovery::names`](crate::recovery::Recovery::names)), durably. Only a recovery asks for it,
    /// and first.
    Names,
    /// Sync a file or a directory.
    Sync {
        /// Which one it is.
        file: FileId,
    },
    /// Move the persistent tail ([`Log::advance`]).
    Advance {
        /// Entries below are in their files.
        tail: u64,
    },
    /// Free the entries ([`Log::free`]).
    Free {
        /// Entries below are free.
        tail: u64,
    },
}

/// Why the cleaner does nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// What has failed.
    pub doing: Action,
    /// The file that it was about, whose name the [table](crate::table::Identity) has.
    pub file: Option<FileId>,
    /// What whoever tried it says.
    pub why: String,
}

/// What [`Cleaner::feed`] has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feed {
    /// It has all that the log has, or enough for now.
    Fed,
    /// The next place is in progress: it goes on when that is committed, or its owner is dead.
    Waits {
        /// The index of the place.
        first: u64,
        /// Whose it is.
        owner: Owner,
    },
    /// The next entry is damaged: it goes no further, and a recovery decides.
    Damaged(Damage),
}

/// A change that waits for its batch, or is in it.
#[derive(Clone, Debug)]
struct Work {
    entry: Entry,
    /// What has to be synced behind it; nothing of a hole.
    files: Vec<FileId>,
    /// Which bytes of its file change; `None` where names do.
    span: Option<(u64, u64)>,
}

impl Work {
    /// Whether this and one before it have to be carried out in their order.
    fn overlaps(&self, before: &Self) -> bool {
        match (self.span, before.span) {
            (Some((from, to)), Some((other_from, other_to))) => {
                self.entry.file == before.entry.file && from < other_to && other_from < to
            }
            _ => true,
        }
    }

    fn is_nothing(&self) -> bool {
        matches!(self.entry.kind, Kind::Hole | Kind::Mark | Kind::Settled)
    }
}

/// How far a batch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Names,
    Persist,
    /// The next one of the batch to be carried out.
    Apply(usize),
    Sync,
    Advance,
    Free,
}

/// The machine that cleans a log, or carries out what a recovery hands it.
#[derive(Debug)]
pub struct Cleaner {
    options: Options,
    /// Whether the entries are a recovery's, which moves the tail itself at its end.
    replays: bool,
    /// Whether what an entry says was carried out by who logged it.
    applied: bool,
    /// Where the next entry is looked for.
    next: u64,
    /// Entries below are free.
    tail: u64,
    /// Somebody waits for all below.
    wanted: u64,
    queue: VecDeque<Work>,
    batch: Vec<Work>,
    stage: Stage,
    /// Files of the batch that are still to be synced.
    unsynced: Vec<FileId>,
    running: BTreeMap<Token, (Action, usize)>,
    token: u64,
    stopped: Option<Stopped>,
    /// It begins anew when nothing runs any more.
    retries: bool,
}

impl Cleaner {
    /// One for a log whose tail is there.
    #[must_use]
    pub fn new(options: Options, tail: u64) -> Self {
        Self {
            options,
            replays: false,
            applied: false,
            next: tail,
            tail,
            wanted: 0,
            queue: VecDeque::new(),
            batch: Vec::new(),
            stage: Stage::Idle,
            unsynced: Vec::new(),
            running: BTreeMap::new(),
            token: 0,
            stopped: None,
            retries: false,
        }
    }

    /// The same, where whoever logs a change has carried it out: none is asked to be.
    #[must_use]
    pub fn of_what_was_done(self) -> Self {
        Self { applied: true, ..self }
    }

    /// One that carries out what a recovery hands it.
    pub(crate) fn replaying(batch: u64, tail: u64) -> Self {
        let options = Options { batch, low: 0 };
        Self { replays: true, wanted: u64::MAX, ..Self::new(options, tail) }
    }

    /// Takes committed entries of the log, in their order, as many as it can use now. Places whose owner is `dead` are passed.
    ///
    /// # Errors
    /// The log's medium failed.
    pub fn feed<M: Medium, W: Words>(
        &mut self,
        log: &Log<M, W>,
        mut dead: impl FnMut(Owner) -> bool,
    ) -> io::Result<Feed> {
        let mut payload = Vec::new();
        while self.waiting() < self.options.batch.max(1) * 2 {
            let entry = match log.look(self.next) {
                Look::End => break,
                Look::Pending { first, owner } if dead(owner) => {
                    log.abandon(first, owner)?;
                    continue;
                }
                Look::Pending { first, owner } => return Ok(Feed::Waits { first, owner }),
                Look::Damaged(damage) => return Ok(Feed::Damaged(damage)),
                Look::Entry(entry) => entry,
            };
            if let Err(damage) = log.payload(&entry, &mut payload) {
                return Ok(Feed::Damaged(damage));
            }
            let op = entry.op(&payload);
            if op.is_none() && entry.kind == Kind::Change {
                return Ok(Feed::Damaged(Damage::of(&entry, Flaw::Unknown)));
            }
            self.offer(entry, op.as_ref());
        }
        Ok(Feed::Fed)
    }

    /// Takes one entry, which is behind all that it was given.
    pub(crate) fn offer(&mut self, entry: Entry, op: Option<&Op<'_>>) {
        let mut files = Vec::new();
        if let Some(op) = op {
            files.extend(op.directories().into_iter().flatten());
            // A name is its directory's: what it means need not be synced for it, nor even be there any more.
            if op.span().is_some_and(|(from, to)| from < to) || matches!(op, Op::Create { .. }) {
                files.push(op.file());
            }
        }
        self.next = entry.end();
        self.queue.push_back(Work { entry, files, span: op.and_then(Op::span) });
    }

    /// Asks for the names, before there is a batch: nothing else runs meanwhile.
    pub(crate) fn names_first(&mut self) {
        self.stage = Stage::Names;
    }

    /// How many entries wait for a batch.
    fn waiting(&self) -> u64 {
        self.queue.back().map_or(0, |last| last.entry.end() - self.queue[0].entry.first)
    }

    /// Somebody waits until all below is in its file, durably.
    pub fn drain_to(&mut self, index: u64) {
        self.wanted = self.wanted.max(index);
    }

    /// Entries below are in their files, durably, and free.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Whether it has nothing that is not in its file.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle && self.queue.is_empty()
    }

    /// Why it does nothing, if something has failed.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref()
    }

    /// Begins the batch anew that failed, as soon as nothing of the attempt before runs any more.
    pub fn retry(&mut self) {
        self.retries = self.stopped.is_some();
    }

    /// What is to be done next, until it says that there is nothing. `may_take` is asked before an entry is taken into a batch, and may lock its
    /// pages then: a batch is cut before the first entry that it refuses.
    pub fn poll(&mut self, mut may_take: impl FnMut(&Entry) -> bool) -> Option<(Token, Action)> {
        if self.stopped.is_some() {
            if !self.retries || !self.running.is_empty() {
                return None;
            }
            (self.stopped, self.retries) = (None, false);
            self.stage = match (self.stage, self.replays) {
                (Stage::Names, _) => Stage::Names,
                (_, true) => Stage::Apply(0),
                (_, false) => Stage::Persist,
            };
        }
        loop {
            match self.stage {
                Stage::Idle => {
                    if !self.begin(&mut may_take) {
                        return None;
                    }
                    self.stage = if self.replays { Stage::Apply(0) } else { Stage::Persist };
                }
                Stage::Apply(next) => match self.batch.get(next) {
                    Some(work) if self.applied || work.is_nothing() => self.stage = Stage::Apply(next + 1),
                    Some(work) => {
                        let entry = work.entry;
                        let waits = self.running.values().any(|(_, n)| work.overlaps(&self.batch[*n]));
                        if waits {
                            return None;
                        }
                        self.stage = Stage::Apply(next + 1);
                        return Some(self.ask(Action::Apply { entry }, next));
                    }
                    None if self.running.is_empty() => {
                        let files: BTreeSet<FileId> =
                            self.batch.iter().flat_map(|work| work.files.iter().copied()).collect();
                        self.unsynced = files.into_iter().rev().collect();
                        self.stage = Stage::Sync;
                    }
                    None => return None,
                },
                Stage::Sync => {
                    if let Some(file) = self.unsynced.pop() {
                        return Some(self.ask(Action::Sync { file }, 0));
                    }
                    if !self.running.is_empty() {
                        return None;
                    }
                    if self.replays {
                        self.end();
                    } else {
                        self.stage = Stage::Advance;
                    }
                }
                Stage::Names | Stage::Persist | Stage::Advance | Stage::Free if !self.running.is_empty() => {
                    return None;
                }
                Stage::Names => return Some(self.ask(Action::Names, 0)),
                Stage::Persist => {
                    return Some(self.ask(Action::Persist { from: self.tail, upto: self.behind() }, 0));
                }
                Stage::Advance => return Some(self.ask(Action::Advance { tail: self.behind() }, 0)),
                Stage::Free => return Some(self.ask(Action::Free { tail: self.behind() }, 0)),
            }
        }
    }

    /// The index behind the batch.
    fn behind(&self) -> u64 {
        self.batch.last().map_or(self.tail, |last| last.entry.end())
    }

    /// Takes a batch, if there is reason for one and something that may be taken.
    fn begin(&mut self, may_take: &mut impl FnMut(&Entry) -> bool) -> bool {
        let waiting = self.waiting();
        let reason = self.wanted > self.tail || waiting >= self.options.batch || waiting >= self.options.low;
        if !reason {
            return false;
        }
        let mut entries = 0;
        while entries < self.options.batch.max(1) {
            let Some(work) = self.queue.pop_front_if(|work| work.is_nothing() || may_take(&work.entry))
            else {
                break;
            };
            entries += work.entry.count;
            self.batch.push(work);
        }
        !self.batch.is_empty()
    }

    fn ask(&mut self, action: Action, of: usize) -> (Token, Action) {
        self.token += 1;
        let token = Token(self.token);
        self.running.insert(token, (action, of));
        (token, action)
    }

    /// What was asked for is done.
    pub fn done(&mut self, token: Token) {
        let Some((action, _)) = self.running.remove(&token) else { return };
        if self.stopped.is_some() {
            return;
        }
        match action {
            Action::Persist { .. } => self.stage = Stage::Apply(0),
            Action::Advance { .. } => self.stage = Stage::Free,
            Action::Free { .. } => self.end(),
            Action::Names => self.stage = Stage::Idle,
            Action::Apply { .. } | Action::Sync { .. } => {}
        }
    }

    /// What was asked for has failed: nothing more is done until somebody says to [retry](Self::retry).
    pub fn failed(&mut self, token: Token, why: &str) {
        let Some((doing, _)) = self.running.remove(&token) else { return };
        let file = match doing {
            Action::Apply { entry } => Some(entry.file),
            Action::Sync { file } => Some(file),
            Action::Persist { .. } | Action::Names | Action::Advance { .. } | Action::Free { .. } => None,
        };
        self.retries = false;
        self.stopped.get_or_insert(Stopped { doing, file, why: why.to_owned() });
    }

    fn end(&mut self) {
        self.tail = self.behind();
        self.batch.clear();
        self.stage = Stage::Idle;
    }
}
