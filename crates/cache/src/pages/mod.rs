//! NVPages: a page cache in persistent memory, with a redo log (paper 000, chapter 4).
//!
//! Whole pages lie in slots, clean ones and dirty ones. A write first goes into records of the redo log, one a page, and is committed by one word; then its bytes
//! go into the pages in place (4.2). Pages that are dirty are written back to their files later, many with one sync. The paper's figures say that it loses to a log
//! with a cache in DRAM wherever persistent memory is slower than DRAM; this is here to be compared with that, and its
//! steps are those of [`reads`](crate::reads).
//!
//! | part | what it is |
//! |---|---|
//! | [`mod@format`] | where things lie on a medium, and the root record |
//! | [`Pages`] | reading and writing, by many threads |
//! | [`keeper`] | writes back, sets slots and records free, truncates: one for a cache |
//! | [`recovery`] | what counts after a crash, and how it comes into its files |
//!
//! # Where this differs from the paper
//!
//! **Several threads** (the paper's has one). A page is locked by a word in its descriptor, and a write locks *all* its pages, in ascending order, before it
//! takes its number. So overlapping writes have one order, which is that of their numbers, in the pages and in a recovery. Nobody waits in here: what is
//! locked by somebody else is [`Step::Busy`]. Records are taken from one list and not from logs of the threads' own: what was to be won
//! by that is a lock held for some ten instructions. They are independent in that none waits for another to be written back.
//!
//! **The map from pages to slots survives** (in the paper it is volatile, and nothing says what a recovery finds). Only what a file lacks has to be found
//! again, so only *dirty* slots are named, each by a line with file, page and the number of the write that made it dirty (*born*):
//!
//! 1. The line of a slot is durable before the commit word of the first record that names it, with the page as it came from the file. So a record that counts has its slot.
//! 2. A record names slot *and* born. Where the line says another one, the record is of an earlier page, and counts for nothing.
//! 3. A slot is given up in this order: page in the file, file synced, the word *free* (a stamp of born) durable, and only then may another page be loaded there. So
//!    a line that is not free never stands before another page's content.
//! 4. The line of the next page leaves *free* alone. Torn, it is the old line, which is free, or one whose checksum does not fit, which no record that counts names.
//! 5. A record is used again when its bytes are durable in place, a *mark* in the slot's line says so (the write's number, the page's checksum and how much
//!    of it is of the file), and then a watermark, that all up to its number are in place. Marks are written in turn: a torn one leaves the one before,
//!    whose records are still there. So a recovery misses none that it needs, and takes none that it does not need for damage.
//! 6. What has a number below the root's *floor* is of an earlier life. Closing and recovering raise it, which empties all with one record.
//!
//! **A truncation is a record as well.** It is durable first; then pages beyond are given up, the tail of the last one is cleared, the file is
//! truncated. Its record goes when a sync of the file has come behind that, before any page of it is given up that was written since.
//!
//! # What is promised
//!
//! As in the table of [the crate](crate), with these differences. Under [`Promise::AtReturn`] a write is durable, as a whole, when it returns: two waits. Under [`Promise::AtSync`]
//! nothing of a write goes into its pages before a sync has made its record durable, so reads put the records over the page; what survives is
//! a prefix in the order of numbers, by their being without gaps: a recovery ends before the first that is missing. For that a sync waits for
//! writes in progress with a lower number ([`Step::Busy`]), where the log passes them: writers here are threads of one process, and none dies alone.
//! A write is atomic as far as it has no more pages than half the records or slots; a longer one is [refused](Fault::TooLong).
//! A bit that rots is found, but for one in the bytes of a page that has newer records than its mark, where none of them has written.

pub mod format;
pub mod keeper;
pub mod recovery;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use remanence_pmem::Medium;
use remanence_pmem::image::{self, RootError};

use self::format::{Kind, Layout, Mark, Record, RecordLine, SEQ_MAX, SlotLine, content_crc, data_crc};
pub use crate::descriptors::PageOf;
use crate::descriptors::{Descriptors, Held, Refused};
use crate::format::Promise;
use crate::gate::{Gate, Piece, UNKNOWN, piece, pieces};
use crate::table::FileId;

/// What the caller is to do before it comes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing: it is done.
    Done,
    /// Read this page from its file, and hand over [what was there](Pages::loaded).
    Load(PageOf),
    /// Somebody else has a page or a file, or is in the middle of something: come again.
    Busy,
    /// There is no page or no record that is free: let the [keeper](keeper::Keeper) work.
    Full,
}

/// A read or a write on its way. One that is not carried to its end is to be [given up](Pages::give_up).
#[derive(Debug)]
pub struct Access<'a> {
    file: FileId,
    offset: u64,
    what: What<'a>,
    /// Bytes that were read.
    done: usize,
    entered: bool,
    loads: bool,
    /// The number of a write that was made.
    seq: u64,
    records: Vec<u32>,
    held: Vec<Held>,
}

#[derive(Debug)]
enum What<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl<'a> Access<'a> {
    const fn new(file: FileId, offset: u64, what: What<'a>) -> Self {
        Self {
            file,
            offset,
            what,
            done: 0,
            entered: false,
            loads: false,
            seq: 0,
            records: Vec::new(),
            held: Vec::new(),
        }
    }

    /// A read of as many bytes as there are from an offset on.
    #[must_use]
    pub const fn read(file: FileId, offset: u64, into: &'a mut [u8]) -> Self {
        Self::new(file, offset, What::Read(into))
    }

    /// A write of these bytes, which is atomic.
    #[must_use]
    pub const fn write(file: FileId, offset: u64, bytes: &'a [u8]) -> Self {
        Self::new(file, offset, What::Write(bytes))
    }

    /// Bytes that were read: fewer than asked for at the end of the file.
    #[must_use]
    pub const fn done(&self) -> usize {
        self.done
    }

    /// The number of a write that was made: a [ticket](Pages::ticket) as high stands for it. 0, of one that was not, or of nothing.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.seq
    }
}

/// Bytes of a record that are not in the page yet.
#[derive(Clone, Copy, Debug)]
struct Part {
    seq: u64,
    record: u32,
    offset: usize,
    len: usize,
}

/// How a slot stands to the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The file has all, durably, and no line says otherwise: another page may have the slot.
    Clean,
    /// The file has all; that the line is free is not durable yet.
    Settling { born: u64 },
    /// The file may lack what is here, and the line says so.
    Dirty { born: u64 },
}

/// What is known of a slot besides its line. Whoever has its page locked may look; the keeper alone makes it clean.
#[derive(Clone, Debug)]
struct Slot {
    state: State,
    loaded: bool,
    /// Bytes of the page, in place, that are of the file.
    valid: u32,
    /// All records up to this write are in place.
    applied: u64,
    /// The last write.
    last: u64,
    /// Which copy of the mark is the newer one.
    copy: usize,
    /// Records that are not in place, in their order.
    pending: Vec<Part>,
}

impl Slot {
    const EMPTY: Self = Self {
        state: State::Clean,
        loaded: false,
        valid: 0,
        applied: 0,
        last: 0,
        copy: 0,
        pending: Vec::new(),
    };

    const fn is_dirty(&self, its: u64) -> bool {
        matches!(self.state, State::Dirty { born } if born == its)
    }
}

/// A record whose bytes are in place, as far as is visible.
#[derive(Clone, Copy, Debug)]
struct Applied {
    seq: u64,
    record: u32,
    slot: usize,
    born: u64,
}

/// Records, and the numbers of writes.
#[derive(Debug)]
struct Redo {
    next: u64,
    running: BTreeSet<u64>,
    free: Vec<u32>,
    /// Slots with records to be put in place, by their order.
    pending: VecDeque<(u64, usize)>,
    applied: VecDeque<Applied>,
    /// Not needed any more, but for the watermark, which is below.
    done: Vec<(u64, u32)>,
    /// Slots that are dirty, those that have been for the longest first.
    due: VecDeque<usize>,
}

impl Redo {
    /// All writes up to there have committed.
    fn settled(&self) -> u64 {
        self.running.first().copied().unwrap_or(self.next) - 1
    }
}

/// A page cache that is open.
#[derive(Debug)]
pub struct Pages<M> {
    medium: M,
    layout: Layout,
    promise: Promise,
    pages: Descriptors,
    slots: Box<[Mutex<Slot>]>,
    gates: Box<[Gate]>,
    redo: Mutex<Redo>,
    /// All writes up to there are durable.
    durable: AtomicU64,
    dirty: AtomicUsize,
}

impl<M: Medium> Pages<M> {
    /// Opens a cache that is empty: nobody else has it open. It is dirty from now on, until it is [closed](Self::close) or recovered.
    ///
    /// # Errors
    /// There is no cache, it is dirty, or its medium failed.
    pub fn start(medium: M, promise: Promise) -> Result<Self, Fault> {
        let layout = Layout::read(&medium)?;
        let record = Record::read(&medium)?;
        if record.open {
            return Err(Fault::Dirty);
        }
        Record { promise, open: true, ..record }.store(&medium)?;
        let geometry = layout.geometry;
        let redo = Redo {
            next: record.floor,
            running: BTreeSet::new(),
            free: (0..geometry.records).rev().collect(),
            pending: VecDeque::new(),
            applied: VecDeque::new(),
            done: Vec::new(),
            due: VecDeque::new(),
        };
        Ok(Self {
            medium,
            layout,
            promise,
            pages: Descriptors::new(geometry.files, geometry.slots as usize),
            slots: (0..geometry.slots).map(|_| Mutex::new(Slot::EMPTY)).collect(),
            gates: (0..geometry.files).map(|_| Gate::new()).collect(),
            redo: Mutex::new(redo),
            durable: AtomicU64::new(record.floor - 1),
            dirty: AtomicUsize::new(0),
        })
    }

    /// Closes a cache of which all is in its files, when nobody uses it any more.
    ///
    /// # Errors
    /// Something is not, or the medium failed: it is still dirty.
    pub fn close(&self, keeper: &keeper::Keeper) -> Result<(), Fault> {
        if !keeper.is_drained(self) {
            return Err(Fault::Dirty);
        }
        let floor = self.redo().next;
        Record::empty(floor, self.promise).store(&self.medium)
    }

    fn redo(&self) -> MutexGuard<'_, Redo> {
        self.redo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, at: usize) -> MutexGuard<'_, Slot> {
        self.slots[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self, file: FileId) -> Result<&Gate, Fault> {
        let gate = self.gates.get(file.0 as usize);
        gate.filter(|gate| gate.size.load(Ordering::Acquire) != UNKNOWN).ok_or(Fault::Unknown { file })
    }

    const fn page(&self) -> usize {
        self.layout.geometry.page as usize
    }

    /// Where things lie.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// When writes are durable.
    #[must_use]
    pub const fn promise(&self) -> Promise {
        self.promise
    }

    /// Makes a file known that the [table](crate::table) has a number for, with the size that the file system says: nothing of it is here.
    ///
    /// # Panics
    /// The cache has no such number.
    pub fn open_file(&self, file: FileId, size: u64) {
        self.gates[file.0 as usize].size.store(size.min(UNKNOWN - 1), Ordering::Release);
    }

    /// How long a file is, with what is only here: what `stat` and `lseek` have to say.
    #[must_use]
    pub fn size(&self, file: FileId) -> Option<u64> {
        self.gate(file).ok().map(|gate| gate.size.load(Ordering::Acquire))
    }

    /// Pages that files may lack.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Acquire)
    }

    /// Stands for all writes that were begun until now, for [`sync`](Self::sync). It is also what the [file table](crate::table) takes for a head.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.redo().next - 1
    }

    /// All writes up to there have committed, as [tickets](Self::ticket) count.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.redo().settled()
    }

    /// Records that are free: a write takes one for each of its pages.
    #[must_use]
    pub fn free_records(&self) -> usize {
        self.redo().free.len()
    }

    /// Whether so few records are free that the [keeper](keeper::Keeper) is to set others free.
    #[must_use]
    pub fn is_scarce(&self) -> bool {
        self.free_records() < self.layout.geometry.records as usize / 2
    }

    /// Whether nobody gets into a file, as it is truncated, or is about to be.
    #[must_use]
    pub fn is_closed(&self, file: FileId) -> bool {
        self.gates.get(file.0 as usize).is_some_and(Gate::is_closed)
    }

    /// How many pages a write may have at most.
    fn most(&self) -> usize {
        self.layout.geometry.records.min(self.layout.geometry.slots) as usize / 2
    }

    /// Bytes of the longest write that is atomic wherever it begins.
    #[must_use]
    pub fn longest(&self) -> u64 {
        (self.most() as u64 - 1) * self.page() as u64 + 1
    }

    /// Goes on with an access.
    ///
    /// # Errors
    /// The write is too long, the file is not known, or the medium failed: then the write was made or it was not, and is not durable.
    pub fn step(&self, access: &mut Access<'_>) -> Result<Step, Fault> {
        if access.loads {
            return Ok(Step::Load(access.held[access.held.len() - 1].of));
        }
        if !access.entered {
            let gate = self.gate(access.file)?;
            if let What::Write(bytes) = access.what {
                let ends = access.offset.checked_add(bytes.len() as u64).is_some_and(|end| end < UNKNOWN);
                let count = match ends {
                    true => pieces(access.file, access.offset, bytes.len(), self.page()).count(),
                    false => usize::MAX,
                };
                if count > self.most() {
                    return Err(Fault::TooLong { max: self.longest() });
                }
                if !gate.enter() {
                    return Ok(Step::Busy);
                }
                // Before any page is locked: whoever has locks and waits for records would keep them from being set free.
                let mut redo = self.redo();
                if redo.free.len() < count {
                    drop(redo);
                    gate.leave();
                    return Ok(Step::Full);
                }
                let from = redo.free.len() - count;
                access.records = redo.free.split_off(from);
            } else if !gate.enter() {
                return Ok(Step::Busy);
            }
            access.entered = true;
        }
        let reads = matches!(access.what, What::Read(_));
        let step = if reads { self.read(access)? } else { self.write(access)? };
        if matches!(step, Step::Done | Step::Full) {
            self.give_up(access);
        }
        Ok(step)
    }

    /// Gives up an access: nothing of it was done, or all is.
    pub fn give_up(&self, access: &mut Access<'_>) {
        for held in access.held.drain(..) {
            match self.slot(held.at).loaded {
                true => self.pages.unlock(held),
                // Nobody finds a page of which there is nothing.
                false => self.pages.release(held),
            }
        }
        if access.entered {
            self.redo().free.append(&mut access.records);
            self.gates[access.file.0 as usize].leave();
        }
        (access.entered, access.loads) = (false, false);
    }

    fn read(&self, access: &mut Access<'_>) -> Result<Step, Fault> {
        let What::Read(into) = &mut access.what else { return Ok(Step::Done) };
        let size = self.gate(access.file)?.size.load(Ordering::Acquire);
        let len = size.saturating_sub(access.offset).min(into.len() as u64) as usize;
        while access.done < len {
            let piece = piece(access.file, access.offset, len, self.page(), access.done);
            let Ok(shared) = self.pages.share(piece.of) else { return Ok(Step::Busy) };
            if let Some(at) = shared {
                let is_there = self.slot(at).loaded;
                if is_there {
                    self.copy(at, piece.offset, &mut into[piece.from..piece.from + piece.len]);
                    access.done += piece.len;
                }
                self.pages.unshare(at);
                if is_there {
                    continue;
                }
            }
            let held = match self.lock(piece.of) {
                Ok(held) => held,
                Err(Refused::Busy) => return Ok(Step::Busy),
                Err(Refused::Full) => return Ok(Step::Full),
            };
            if self.slot(held.at).loaded {
                self.pages.unlock(held);
                continue;
            }
            access.held.push(held);
            access.loads = true;
            return Ok(Step::Load(piece.of));
        }
        Ok(Step::Done)
    }

    /// The page that a read is at. Where there is [no place](Step::Full) for it the file has all of it, and a read need not wait: it can be [passed](Self::pass) on.
    #[must_use]
    pub fn at(&self, access: &Access<'_>) -> Option<PageOf> {
        let What::Read(into) = &access.what else { return None };
        let left = access.done < into.len();
        left.then(|| piece(access.file, access.offset, into.len(), self.page(), access.done).of)
    }

    /// Gives a read what the file has of the page [that it is at](Self::at), and does not keep it. Whether it took it: not if the page has a slot by now, or somebody
    /// has the file alone. That nobody has written to the file since it was read is for the caller to know.
    pub fn pass(&self, access: &mut Access<'_>, of: PageOf, bytes: &[u8]) -> bool {
        let Some(gate) =
            self.gate(access.file).ok().filter(|gate| self.at(access) == Some(of) && gate.enter())
        else {
            return false;
        };
        let is_not_here =
            matches!(self.pages.share(of).map(|at| at.map(|at| self.pages.unshare(at))), Ok(None));
        if let (What::Read(into), true) = (&mut access.what, is_not_here) {
            let size = gate.size.load(Ordering::Acquire);
            let len = size.saturating_sub(access.offset).min(into.len() as u64) as usize;
            if access.done < len {
                let piece = piece(access.file, access.offset, len, self.page(), access.done);
                let into = &mut into[piece.from..piece.from + piece.len];
                into.fill(0);
                let has = bytes.get(piece.offset..).unwrap_or_default();
                let has = &has[..has.len().min(piece.len)];
                into[..has.len()].copy_from_slice(has);
                access.done += piece.len;
            }
        }
        gate.leave();
        is_not_here
    }

    /// Locks a page, in the slot of one that is clean if it has none.
    fn lock(&self, of: PageOf) -> Result<Held, Refused> {
        let held = self.pages.lock(of, |at| self.slot(at).state == State::Clean)?;
        if held.fresh {
            *self.slot(held.at) = Slot::EMPTY;
        }
        Ok(held)
    }

    /// What a page has now: its slot, and records that are not in place over it.
    fn copy(&self, at: usize, offset: usize, into: &mut [u8]) {
        self.medium.read(self.layout.data(at as u32) + offset as u64, into);
        let pending = self.slot(at).pending.clone();
        for part in pending {
            let (from, to) = (part.offset.max(offset), (part.offset + part.len).min(offset + into.len()));
            if from < to {
                let at = self.layout.redo(part.record) + (from - part.offset) as u64;
                self.medium.read(at, &mut into[from - offset..to - offset]);
            }
        }
    }

    /// Takes what the file has of the page that a [step](Step::Load) asked for: as many bytes as there are.
    ///
    /// # Panics
    /// Nothing was asked for, or there are more bytes than a page has.
    pub fn loaded(&self, access: &mut Access<'_>, bytes: &[u8]) {
        assert!(std::mem::take(&mut access.loads), "no page was asked for");
        assert!(bytes.len() <= self.page(), "a page has {} bytes", self.page());
        let reads = matches!(access.what, What::Read(_));
        let held = access.held.last().expect("the page is locked");
        self.fill(held, bytes);
        if reads && let Some(held) = access.held.pop() {
            self.pages.unlock(held);
        }
    }

    fn fill(&self, held: &Held, bytes: &[u8]) {
        let mut page = vec![0; self.page()];
        page[..bytes.len()].copy_from_slice(bytes);
        self.medium.write_nt(self.layout.data(held.at as u32), &page);
        let mut slot = self.slot(held.at);
        (slot.loaded, slot.valid) = (true, bytes.len() as u32);
    }

    fn write(&self, access: &mut Access<'_>) -> Result<Step, Fault> {
        let What::Write(bytes) = access.what else { return Ok(Step::Done) };
        let gate = self.gate(access.file)?;
        let pieces: Vec<Piece> = pieces(access.file, access.offset, bytes.len(), self.page()).collect();
        for piece in &pieces[access.held.len()..] {
            let held = match self.lock(piece.of) {
                Ok(held) => held,
                Err(Refused::Busy) => return Ok(Step::Busy),
                Err(Refused::Full) => return Ok(Step::Full),
            };
            let needs = !self.slot(held.at).loaded && piece.len < self.page();
            let start = piece.of.page.saturating_mul(self.page() as u64);
            let beyond = needs && start >= gate.size.load(Ordering::Acquire);
            if beyond {
                self.fill(&held, &[]);
            }
            access.held.push(held);
            if needs && !beyond {
                access.loads = true;
                return Ok(Step::Load(piece.of));
            }
        }
        if !pieces.is_empty() {
            self.commit(access, bytes, &pieces)?;
            gate.size.fetch_max(access.offset + bytes.len() as u64, Ordering::AcqRel);
        }
        Ok(Step::Done)
    }

    /// Takes the next number: all pages of the write are locked.
    fn number(&self) -> Result<u64, Fault> {
        let mut redo = self.redo();
        let seq = redo.next;
        if seq >= SEQ_MAX {
            return Err(Fault::Exhausted);
        }
        redo.next += 1;
        redo.running.insert(seq);
        Ok(seq)
    }

    fn commit(&self, access: &mut Access<'_>, bytes: &[u8], pieces: &[Piece]) -> Result<(), Fault> {
        let seq = self.number()?;
        let durable = self.durable.load(Ordering::Acquire);
        for (n, (piece, held)) in pieces.iter().zip(&access.held).enumerate() {
            let born = self.become_dirty(held, seq);
            let data = &bytes[piece.from..piece.from + piece.len];
            let record = access.records[n];
            self.medium.write_nt(self.layout.redo(record), data);
            let line = RecordLine {
                seq,
                born,
                slot: held.at as u32,
                offset: piece.offset as u32,
                len: piece.len as u32,
                data: data_crc(self.layout.salt, seq, data),
                back: n as u16,
                count: pieces.len() as u16,
                kind: Kind::Bytes,
                durable,
            };
            line.put(&self.medium, &self.layout, record);
        }
        self.seal(access.records[0], seq)?;
        access.seq = seq;
        let records = std::mem::take(&mut access.records);
        for (n, (piece, held)) in pieces.iter().zip(&access.held).enumerate() {
            let part = Part { seq, record: records[n], offset: piece.offset, len: piece.len };
            let mut slot = self.slot(held.at);
            slot.loaded = true;
            slot.last = seq;
            slot.pending.push(part);
            drop(slot);
            match self.promise {
                Promise::AtReturn => self.apply(held.at, seq),
                Promise::AtSync => self.redo().pending.push_back((seq, held.at)),
            }
        }
        self.redo().running.remove(&seq);
        Ok(())
    }

    /// Has the line of a slot say which page it holds, if it does not yet; returns which write made it dirty.
    fn become_dirty(&self, held: &Held, seq: u64) -> u64 {
        let mut slot = self.slot(held.at);
        if let State::Dirty { born } = slot.state {
            return born;
        }
        slot.state = State::Dirty { born: seq };
        (slot.applied, slot.copy) = (seq - 1, 0);
        let valid = slot.valid;
        drop(slot);
        self.dirty.fetch_add(1, Ordering::AcqRel);
        self.redo().due.push_back(held.at);
        let at = held.at as u32;
        // Where nothing is durable before a sync, whether the page came there whole is told by this.
        let content = match self.promise {
            Promise::AtReturn => 0,
            Promise::AtSync => content_crc(&self.in_place(held.at)),
        };
        SlotLine::put(&self.medium, &self.layout, at, (held.of.file, held.of.page), seq);
        Mark { seq: seq - 1, valid, content }.put(&self.medium, &self.layout, at, seq, 0);
        seq
    }

    fn in_place(&self, at: usize) -> Vec<u8> {
        let mut page = vec![0; self.page()];
        self.medium.read(self.layout.data(at as u32), &mut page);
        page
    }

    /// Commits what lies in records. Under [`Promise::AtReturn`] it is durable on return.
    fn seal(&self, record: u32, seq: u64) -> io::Result<()> {
        match self.promise {
            Promise::AtReturn => {
                self.medium.pfence()?;
                RecordLine::commit(&self.medium, &self.layout, record, seq);
                self.medium.psync()
            }
            Promise::AtSync => {
                RecordLine::commit(&self.medium, &self.layout, record, seq);
                Ok(())
            }
        }
    }

    /// Puts records of a slot in place that are durable. Whoever does so has its page alone.
    fn apply(&self, at: usize, upto: u64) {
        let slot = self.slot(at);
        let parts: Vec<Part> = slot.pending.iter().take_while(|part| part.seq <= upto).copied().collect();
        let state = slot.state;
        drop(slot);
        let State::Dirty { born } = state else { return };
        let mut bytes = Vec::new();
        for part in &parts {
            bytes.resize(part.len, 0);
            self.medium.read(self.layout.redo(part.record), &mut bytes);
            self.medium.write_nt(self.layout.data(at as u32) + part.offset as u64, &bytes);
        }
        let mut slot = self.slot(at);
        slot.pending.drain(..parts.len());
        for part in &parts {
            slot.applied = part.seq;
            slot.valid = slot.valid.max((part.offset + part.len) as u32);
        }
        drop(slot);
        let applied = |part: &Part| Applied { seq: part.seq, record: part.record, slot: at, born };
        self.redo().applied.extend(parts.iter().map(applied));
    }

    /// Makes all writes up to a [ticket](Self::ticket) durable.
    ///
    /// # Errors
    /// The medium failed.
    pub fn sync(&self, ticket: u64) -> Result<Step, Fault> {
        if self.promise == Promise::AtReturn || self.durable.load(Ordering::Acquire) >= ticket {
            self.medium.failure()?;
            return Ok(Step::Done);
        }
        let settled = self.redo().settled();
        if settled < ticket {
            return Ok(Step::Busy);
        }
        self.medium.psync()?;
        self.durable.fetch_max(settled, Ordering::AcqRel);
        Ok(Step::Done)
    }
}

/// Why a page cache cannot be used, or does not do something.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// There is no page cache, or none that can be used.
    #[error("{}", said(*.0))]
    Image(image::Fault),
    /// One was to be made where there is one.
    #[error("there is a page cache already: recover and remove it, or take another file")]
    Exists,
    /// The medium is not as long as the cache that was to be made.
    #[error(
        "a page cache like this takes {wants} bytes, and the medium has {has}; its sizes may be out of bounds as well"
    )]
    Size {
        /// Bytes of the medium.
        has: u64,
        /// Bytes of the cache.
        wants: u64,
    },
    /// The root record is damaged.
    #[error("both copies of the page cache's root record are damaged: what counts is not known any more")]
    Root,
    /// The cache was not closed.
    #[error("the page cache was not closed, and may have pages that their files lack: recover it first")]
    Dirty,
    /// No write of this cache is as long.
    #[error("a write of {max} bytes is atomic wherever it begins, and this one has too many pages")]
    TooLong {
        /// Bytes that fit wherever they begin.
        max: u64,
    },
    /// Nobody said how long the file is.
    #[error("the page cache knows no {file}")]
    Unknown {
        /// The number that was asked for.
        file: FileId,
    },
    /// Numbers are used up.
    #[error("the page cache has used up its numbers: drain it, and make another")]
    Exhausted,
    /// The medium failed.
    #[error("the page cache's medium failed: {0}")]
    Medium(#[from] io::Error),
}

impl From<image::Fault> for Fault {
    fn from(fault: image::Fault) -> Self {
        Self::Image(fault)
    }
}

impl From<RootError> for Fault {
    fn from(error: RootError) -> Self {
        match error {
            RootError::Invalid { .. } => Self::Root,
            RootError::Medium(error) => Self::Medium(error),
        }
    }
}

fn said(fault: image::Fault) -> String {
    match fault {
        image::Fault::TooShort => "the medium is too short for a page cache".into(),
        image::Fault::Blank => "the medium is blank: make a page cache on it first".into(),
        image::Fault::Making => {
            "a page cache was being made here, and nothing is in it: make it again".into()
        }
        image::Fault::Foreign => "the medium has something else than a page cache".into(),
        image::Fault::OtherByteOrder => {
            "the page cache was written on a machine of the other byte order".into()
        }
        image::Fault::OtherVersion { found } => {
            format!(
                "the page cache is of version {found}, and this release reads version {}",
                format::VERSION
            )
        }
        image::Fault::Damaged => "both copies of the page cache's superblock are damaged".into(),
        image::Fault::Truncated { has, wants } => {
            format!("the page cache has {wants} bytes, of which {has} are left")
        }
        image::Fault::Grown { has, wants } => {
            format!("the page cache has {wants} bytes, and its medium {has}")
        }
    }
}
