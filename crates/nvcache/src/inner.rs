//! The cache beneath its descriptors: an access from its first step to its last, what is waited for in between, and when what was written is
//! ordered and durable. What keeps changes until their files have them is an [`Engine`]: a log with a cache in memory ([`Inner`]), or
//! [pages](crate::paging).
//!
//! **Locks, in the order in which they are taken**: a descriptor's position, a file's extent, one's turn while the log is full, pages. Who waits for room has
//! given up its pages; the cleaner's thread takes none of these, so it always goes on. What an access waits for has a waker ([`Events`], [`Room`]), and an end: the cache's
//! patience.
//!
//! **Acknowledged is a prefix.** Under [`Promise::AtSync`] a crash ends the log at the first gap. So a write returns when all entries before its own are committed,
//! which other threads are about to do: what was acknowledged is there after the death of the process, whatever its other threads were in the middle of.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use remanence_cache::entry::{Mtime, Owner};
use remanence_cache::format::{Promise, Record};
use remanence_cache::log::{AppendError, Log};
use remanence_cache::op::Op;
use remanence_cache::reads::{Access, Fault, PageOf, Reads, Step};
use remanence_cache::table::{FileId, FileTable};
use remanence_cache::words::LocalWords;
use remanence_pmem::Region;

use crate::PAGE;
use crate::about::Key;
use crate::error::Error;
use crate::events::{Events, Waiter};
use crate::forks;
use crate::inode::Inode;
use crate::room::{Failure, Refusal, Room, Turn};

/// All entries are of this process, which has the log alone.
pub(crate) const ME: Owner = Owner::new(1);
/// A page that somebody else has is looked at again so often before its next event is waited for: most are had for a copy of some bytes.
pub(crate) const GLANCES: u32 = 20;

/// What was done, and how often.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) changes: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) waits: AtomicU64,
    pub(crate) batches: AtomicU64,
}

/// Files by what they are known by.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) by_key: BTreeMap<Key, Arc<Inode>>,
    pub(crate) by_id: BTreeMap<FileId, Arc<Inode>>,
}

/// Who hands out numbers, and how many descriptors each file has.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) table: FileTable<Region>,
    pub(crate) opens: BTreeMap<FileId, u32>,
    pub(crate) closed: bool,
}

/// What each cache has, whatever keeps its changes.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) region: Region,
    /// Each write waits until it is durable.
    pub(crate) strict: bool,
    /// Files are read and written by `O_DIRECT`.
    pub(crate) direct: bool,
    pub(crate) patience: Duration,
    /// Bytes of the longest write that is one change.
    pub(crate) longest: u64,
    /// What became of a log that was not closed.
    pub(crate) recovered: Option<String>,
    pub(crate) opening: Mutex<Opening>,
    pub(crate) files: Mutex<Files>,
    pub(crate) room: Room,
    /// Pages were unlocked, files left, entries committed or freed.
    pub(crate) events: Events,
    /// The cleaner has something to do.
    pub(crate) bell: Events,
    /// It waits for any entry.
    pub(crate) hungry: AtomicBool,
    pub(crate) process: u64,
    pub(crate) counts: Counts,
}

/// A cache over a log, with pages in memory.
#[derive(Debug)]
pub(crate) struct Inner {
    shared: Shared,
    pub(crate) log: Log<Region, LocalWords>,
    pub(crate) reads: Reads,
    /// So many entries that wait begin a batch.
    pub(crate) batch: u64,
    /// After so many steps each page was looked at for a place.
    passes: u32,
    /// All entries below are committed.
    ordered: AtomicU64,
    /// All entries below are durable.
    durable: AtomicU64,
    /// The index behind the highest entry that is committed.
    newest: AtomicU64,
    syncing: Mutex<()>,
}

impl Deref for Inner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// How an access to a file's end is kept apart from others.
#[derive(Debug)]
pub(crate) enum Extent<'a> {
    Shared { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteOffset {
    At(u64),
    End,
}

/// What a cache is made of.
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    pub(crate) region: Region,
    pub(crate) table: FileTable<Region>,
    pub(crate) strict: bool,
    pub(crate) direct: bool,
    pub(crate) patience: Duration,
    pub(crate) longest: u64,
    pub(crate) recovered: Option<String>,
    pub(crate) process: u64,
}

impl Shared {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            path: parts.path,
            region: parts.region,
            strict: parts.strict,
            direct: parts.direct,
            patience: parts.patience,
            longest: parts.longest,
            recovered: parts.recovered,
            opening: Mutex::new(Opening { table: parts.table, opens: BTreeMap::new(), closed: false }),
            files: Mutex::default(),
            room: Room::new(),
            events: Events::default(),
            bell: Events::default(),
            hungry: AtomicBool::new(false),
            process: parts.process,
            counts: Counts::default(),
        }
    }

    pub(crate) fn opening(&self) -> MutexGuard<'_, Opening> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses whoever is not the process that has the log.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if forks::is_other(self.process) { Err(Error::Forked) } else { Ok(()) }
    }
}

/// What keeps changes until their files have them. A change has a number; those that come later have higher ones.
pub(crate) trait Engine: Debug + Send + Sync + Deref<Target = Shared> {
    /// When changes are durable.
    fn promise(&self) -> Promise;

    /// Makes a file known, which is so long.
    fn take_in(&self, file: FileId, len: u64);

    /// Forgets a file that nobody has open and which has all that is due to it; whether that could be done.
    fn let_go(&self, file: FileId) -> bool;

    /// How long a file is, with what only the cache has.
    fn len(&self, inode: &Inode) -> u64;

    /// Carries a read to its end.
    fn fill(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize, Error>;

    /// Carries a write to its end, which is one change; gives the number up to which all is to be waited for, for this one to be.
    fn put(&self, inode: &Inode, offset: u64, bytes: &[u8]) -> Result<Option<u64>, Error>;

    /// The same of a truncation.
    fn cut(&self, inode: &Inode, len: u64) -> Result<Option<u64>, Error>;

    /// Waits until all changes up to a number are committed.
    fn order(&self, end: u64) -> Result<(), Error>;

    /// Waits until they are durable. Who comes meanwhile waits for the next sync of the medium, together with all others.
    fn persist(&self, upto: u64) -> Result<(), Error>;

    /// Stands for all changes until now.
    fn head(&self) -> u64;

    /// All changes up to there are in their files, durably.
    fn tail(&self) -> u64;

    /// What is in use, and of how much.
    fn used(&self) -> [u64; 2];

    /// Says that nothing of a file is due after a crash: it has no name by which a recovery could find it.
    fn settle(&self, inode: &Inode) -> Result<(), Error>;

    /// Waits until all is in its files, and nobody would find anything. Nobody changes anything any more.
    fn empty(&self) -> Result<(), Error>;

    /// Says that it is closed, when it is empty and its thread has ended.
    fn close(&self) -> Result<(), Error>;

    /// Reads as many bytes as there are.
    fn read(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        self.check_process()?;
        self.fill(inode, offset, into)
    }

    /// Writes all bytes, as few changes as they take; says where they lie, and how many there are, which is fewer where something failed behind the first change.
    fn write(
        &self,
        inode: &Inode,
        place: WriteOffset,
        bytes: &[u8],
        durably: bool,
    ) -> Result<(u64, usize), Error> {
        self.check_change(inode)?;
        if bytes.is_empty() {
            return Ok((if let WriteOffset::At(offset) = place { offset } else { self.len(inode) }, 0));
        }
        let (extent, offset) = self.extent(inode, place, bytes.len() as u64)?;
        let mut done = 0;
        let mut end = None;
        while done < bytes.len() {
            let piece = &bytes[done..bytes.len().min(done + self.longest as usize)];
            let at = offset + done as u64;
            match self.put(inode, at, piece) {
                Ok(appended) => end = appended.or(end),
                Err(why) if done == 0 => return Err(why),
                Err(_) => break,
            }
            done += piece.len();
        }
        drop(extent);
        self.counts.bytes.fetch_add(done as u64, Ordering::Relaxed);
        if let Some(end) = end {
            self.acknowledge(inode, end, durably)?;
        }
        Ok((offset, done))
    }

    /// Cuts a file, or extends it.
    fn truncate(&self, inode: &Inode, len: u64, durably: bool) -> Result<(), Error> {
        self.check_change(inode)?;
        inode.allows(len)?;
        let extent = inode.extent.write().unwrap_or_else(PoisonError::into_inner);
        let end = self.cut(inode, len)?;
        drop(extent);
        end.map_or(Ok(()), |end| self.acknowledge(inode, end, durably))
    }

    fn check_change(&self, inode: &Inode) -> Result<(), Error> {
        self.check_process()?;
        self.check_failure(inode)
    }

    /// Whether the disk takes what the log has of a file, as far as is known.
    fn check_failure(&self, inode: &Inode) -> Result<(), Error> {
        self.room.failure_of(inode.id).map_or(Ok(()), |failure| Err(self.said(failure)))
    }

    /// Keeps the file's end where it is for a write within it; and has it alone for one that moves it.
    fn extent<'a>(&self, inode: &'a Inode, place: WriteOffset, len: u64) -> Result<(Extent<'a>, u64), Error> {
        if let WriteOffset::At(offset) = place {
            let end = offset.checked_add(len).ok_or(Error::OutOfBounds)?;
            let guard = inode.extent.read().unwrap_or_else(PoisonError::into_inner);
            if end <= self.len(inode) {
                return Ok((Extent::Shared { _guard: guard }, offset));
            }
        }
        let guard = inode.extent.write().unwrap_or_else(PoisonError::into_inner);
        let offset = match place {
            WriteOffset::At(offset) => offset,
            WriteOffset::End => self.len(inode),
        };
        inode.allows(offset.checked_add(len).ok_or(Error::OutOfBounds)?)?;
        Ok((Extent::Alone { _guard: guard }, offset))
    }

    /// An entry is committed: whoever made the change hears of it when all before is, too; and when it is durable, if that is asked for.
    fn acknowledge(&self, inode: &Inode, end: u64, durably: bool) -> Result<(), Error> {
        inode.changed(end);
        if inode.nameless.load(Ordering::Relaxed) {
            self.settle(inode)?;
        }
        self.order(end)?;
        if durably || self.strict { self.persist(end) } else { Ok(()) }
    }

    /// Waits until all of a file is durable, in the cache or in the file.
    fn sync(&self, inode: &Inode) -> Result<(), Error> {
        self.check_change(inode)?;
        self.persist(inode.last())
    }

    /// Waits until all changes up to there are in their files, durably.
    fn wait_tail(&self, upto: u64) -> Result<(), Error> {
        if self.tail() >= upto {
            return Ok(());
        }
        self.want(upto);
        let waited = self.room.wait_tail(self.patience, upto, || self.tail());
        waited.map_err(|refusal| self.refused(refusal))
    }

    /// Waits until all of a file is in it, durably.
    fn drain(&self, inode: &Inode) -> Result<(), Error> {
        self.check_process()?;
        self.wait_tail(inode.last())
    }
}

impl Engine for Inner {
    fn promise(&self) -> Promise {
        self.log.promise()
    }

    fn take_in(&self, file: FileId, len: u64) {
        self.reads.open_file(file, len);
    }

    fn let_go(&self, file: FileId) -> bool {
        loop {
            match self.reads.forget(file) {
                Ok(Step::Done) => return true,
                // Somebody looks for a place, and has one of its pages for a moment.
                Ok(Step::Busy) => std::thread::yield_now(),
                // Something of it is in the log still.
                _ => return false,
            }
        }
    }

    fn len(&self, inode: &Inode) -> u64 {
        self.reads.size(inode.id).unwrap_or(0)
    }

    fn fill(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let mut access = Access::read(inode.id, offset, into);
        self.run(&mut access, inode, None)?;
        Ok(access.done())
    }

    fn put(&self, inode: &Inode, offset: u64, bytes: &[u8]) -> Result<Option<u64>, Error> {
        let op = Op::Write { file: inode.id, offset, bytes };
        self.run(&mut Access::write(inode.id, offset, bytes), inode, Some(&op))
    }

    fn cut(&self, inode: &Inode, len: u64) -> Result<Option<u64>, Error> {
        let op = Op::Truncate { file: inode.id, len };
        self.run(&mut Access::truncate(inode.id, len), inode, Some(&op))
    }

    fn head(&self) -> u64 {
        self.log.head()
    }

    fn tail(&self) -> u64 {
        self.log.tail()
    }

    fn used(&self) -> [u64; 2] {
        [self.log.used(), self.log.layout().geometry.entries]
    }

    fn empty(&self) -> Result<(), Error> {
        // But for a sync's mark that was on its way.
        while self.log.used() > 0 {
            self.wait_tail(self.log.head())?;
        }
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        let record = Record::empty(self.log.tail(), self.log.promise());
        record.store(&self.region).map_err(|source| Error::Open { log: self.path.clone(), source })
    }

    fn settle(&self, inode: &Inode) -> Result<(), Error> {
        let op = Op::Settled { file: inode.id, upto: self.log.head() };
        loop {
            let appended = self.append(&op);
            self.events.happened();
            match appended {
                Ok(_) => return Ok(()),
                Err(AppendError::Full { until }) => self.wait_tail(until)?,
                Err(why) => return Err(self.of_log(&why)),
            }
        }
    }

    fn order(&self, end: u64) -> Result<(), Error> {
        if self.log.promise() == Promise::AtReturn {
            return Ok(());
        }
        let mut patient = Patient::new(self);
        loop {
            let from = self.ordered.load(Ordering::SeqCst);
            if from >= end {
                return Ok(());
            }
            let upto = self.log.committed_up_to(from, end);
            self.ordered.fetch_max(upto, Ordering::SeqCst);
            if upto >= end {
                return Ok(());
            }
            patient.wait(GLANCES, || Ok(()))?;
        }
    }

    fn persist(&self, upto: u64) -> Result<(), Error> {
        if self.log.promise() == Promise::AtReturn {
            return self.region.failure().map_err(|why| self.lost(why.to_string()));
        }
        let is_durable = || self.durable.load(Ordering::SeqCst) >= upto;
        if is_durable() {
            return Ok(());
        }
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        while !is_durable() {
            let target = self.newest.load(Ordering::SeqCst).max(upto);
            let persisted = self.log.persist_up_to(ME, target);
            // It may have appended a mark, for which others waited.
            self.events.happened();
            match persisted {
                Ok(()) => drop(self.durable.fetch_max(target, Ordering::SeqCst)),
                Err(AppendError::Full { until }) => self.wait_tail(until)?,
                Err(why) => return Err(self.of_log(&why)),
            }
        }
        Ok(())
    }
}

impl Inner {
    pub(crate) fn new(
        shared: Shared,
        log: Log<Region, LocalWords>,
        reads: Reads,
        batch: u64,
        passes: u32,
    ) -> Self {
        let tail = log.tail();
        let index = || AtomicU64::new(tail);
        let (ordered, durable, newest) = (index(), index(), index());
        Self { shared, log, reads, batch, passes, ordered, durable, newest, syncing: Mutex::new(()) }
    }

    /// Carries an access to its end. Gives the index behind its entry, if it has one.
    fn run(&self, access: &mut Access<'_>, inode: &Inode, op: Option<&Op<'_>>) -> Result<Option<u64>, Error> {
        let mut patient = Patient::new(self);
        let mut turn = None;
        let outcome = loop {
            if turn.is_none() && op.is_some() && self.room.is_taken() {
                // Nobody waits with pages that another one may need in his turn.
                self.reads.give_up(access);
                self.events.happened();
                if let Err(refusal) = self.room.wait_turn(self.patience) {
                    break Err(self.refused(refusal));
                }
            }
            let step = match self.reads.step(access) {
                Ok(step) => step,
                Err(Fault::TooLong { .. }) => break Err(Error::OutOfBounds),
                Err(why @ Fault::Unknown { .. }) => {
                    break Err(self.lost(why.to_string()));
                }
            };
            let next = match (step, op) {
                (Step::Done, _) => break Ok(None),
                (Step::Load(of), _) => self.load(access, inode, of),
                (Step::Append, Some(op)) => match self.append(op) {
                    Ok(entries) => {
                        self.reads.appended(access, entries.start);
                        break Ok(Some(entries.end));
                    }
                    Err(AppendError::Full { until }) => {
                        self.reads.give_up(access);
                        self.events.happened();
                        self.counts.waits.fetch_add(1, Ordering::Relaxed);
                        self.make_room(until, &mut turn)
                    }
                    Err(why) => Err(self.of_log(&why)),
                },
                (Step::Append, None) => unreachable!("a read appends nothing: {access:?}"),
                (Step::Busy, _) => patient.wait(GLANCES, || Ok(())),
                (Step::Full, _) => {
                    self.events.happened();
                    patient.wait(self.passes, || self.make_places())
                }
                (Step::Clean { upto }, _) => self.wait_tail(upto),
            };
            if let Err(why) = next {
                break Err(why);
            }
        };
        if outcome.is_err() {
            self.reads.give_up(access);
        }
        self.events.happened();
        outcome
    }

    /// Reads a page from its file.
    fn load(&self, access: &mut Access<'_>, inode: &Inode, of: PageOf) -> Result<(), Error> {
        let mut page = [0; PAGE];
        let read = inode.read(of.page * PAGE as u64, &mut page, 0);
        let len = read.map_err(Error::system(&inode.path, "read"))?;
        let loaded = self.reads.loaded(access, &page[..len], &self.region, self.log.layout());
        loaded.map_err(|damage| self.lost(damage.to_string()))?;
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        self.events.happened();
        Ok(())
    }

    /// Appends a change, if there is room.
    fn append(&self, op: &Op<'_>) -> Result<Range<u64>, AppendError> {
        let count = self.log.entries_of(op)?;
        let reserved = self.log.reserve(ME, count)?;
        self.log.fill(&reserved, op, Mtime::UNKNOWN);
        self.log.commit(&reserved)?;
        self.newest.fetch_max(reserved.end(), Ordering::SeqCst);
        self.counts.changes.fetch_add(1, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.hungry.load(Ordering::SeqCst) || self.log.used() >= self.batch {
            self.bell.happened();
        }
        Ok(reserved.first()..reserved.end())
    }

    /// Waits for room, if it is one's turn; else somebody else does, and is waited for.
    fn make_room<'a>(&'a self, until: u64, turn: &mut Option<Turn<'a>>) -> Result<(), Error> {
        if turn.is_none() {
            *turn = self.room.turn();
        }
        if turn.is_some() { self.wait_tail(until) } else { Ok(()) }
    }

    /// Has what is due to pages come into their files, as it keeps their places.
    fn make_places(&self) -> Result<(), Error> {
        if self.log.used() > 0 {
            if let Some(failure) = self.room.failure() {
                return Err(self.said(failure));
            }
            self.want(self.log.head());
        }
        Ok(())
    }

    fn of_log(&self, why: &AppendError) -> Error {
        match why {
            AppendError::TooLong { .. } => Error::OutOfBounds,
            other => self.lost(other.to_string()),
        }
    }
}

impl Shared {
    /// Has the cleaner bring all below an index into its files.
    pub(crate) fn want(&self, upto: u64) {
        self.room.want(upto);
        self.bell.happened();
    }

    pub(crate) fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Failed(failure) => self.said(failure),
            Refusal::Stuck => Error::Stuck { patience: self.patience },
        }
    }

    pub(crate) fn said(&self, failure: Failure) -> Error {
        match failure.file {
            Some(_) => Error::Disk { path: failure.path, why: failure.why, errno: failure.errno },
            None => Error::Log { log: self.path.clone(), why: failure.why },
        }
    }

    /// The log cannot be used any more, and everybody is told.
    pub(crate) fn lost(&self, why: String) -> Error {
        let path = self.path.display().to_string();
        self.room.failed(Failure { file: None, path, why: why.clone(), errno: libc::EIO });
        self.events.happened();
        Error::Log { log: self.path.clone(), why }
    }

    /// What is said of a system call on a file.
    pub(crate) fn number_of(why: &io::Error) -> i32 {
        why.raw_os_error().unwrap_or(libc::EIO)
    }
}

/// Who has met a page, or a file, that somebody else has.
pub(crate) struct Patient<'a> {
    shared: &'a Shared,
    waiter: Option<Waiter<'a>>,
    glances: u32,
    until: Option<Instant>,
}

impl<'a> Patient<'a> {
    pub(crate) const fn new(shared: &'a Shared) -> Self {
        Self { shared, waiter: None, glances: 0, until: None }
    }

    /// To be looked at again when this returns. After so many glances everything that was there was seen; what is to be done `before` it waits is done then.
    pub(crate) fn wait(
        &mut self,
        glances: u32,
        before: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.glances += 1;
        if self.glances < glances {
            std::thread::yield_now();
            return Ok(());
        }
        self.glances = 0;
        let shared = self.shared;
        let Some(waiter) = &mut self.waiter else {
            // All is looked at once more, now that nothing that happens is missed.
            self.waiter = Some(shared.events.waiter());
            return Ok(());
        };
        before()?;
        let until = *self.until.get_or_insert_with(|| Instant::now() + shared.patience);
        if waiter.wait(Some(until)) { Ok(()) } else { Err(Error::Stuck { patience: shared.patience }) }
    }

    /// What it waits for has come nearer: its patience begins anew.
    pub(crate) const fn hope(&mut self) {
        self.until = None;
    }

    /// Tells others of something, and not itself.
    pub(crate) fn tell(&mut self) {
        match &mut self.waiter {
            Some(waiter) => waiter.happened(),
            None => self.shared.events.happened(),
        }
    }
}
