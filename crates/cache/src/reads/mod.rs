//! The read cache of the mode *deferred*: pages in memory over a log (paper 000, 3.2.5 and 3.2.6).
//!
//! What a file has is behind what the log has. So a read is answered from pages that are kept up to date; a page that is not here is read from its file, and what the
//! log has of it that the file may lack is put over it (*dirty miss*); of a page of which the log has nothing the file has all (*clean miss*). It does no I/O
//! and appends nothing: each step says [what is to be done](Step).
//!
//! **A hit takes no lock that waits for anybody's I/O.** The tree is walked by loads of words; the page's content lies behind a reader-writer
//! lock that is held for a copy of at most a page, by whoever writes there too: without unsafe code bytes that others write are behind a lock, or
//! are copied word by word, which costs more than the lock. Descriptors have a second lock, a word, for who loads a page or writes to it: it is held
//! across I/O and the log's append, and nobody waits for it in here: [`Step::Busy`].
//!
//! **Order of a write**: lock *all* its pages, in ascending order ([`Step::Append`] says that it is so); append to the log; [`appended`](Reads::appended) brings the pages
//! up to date and unlocks them. So writes that overlap have one order in the cache, in the log and in the files. (The paper's algorithm 3.1 takes the
//! log's place before the lock, and locks the first page only.) Where the log is full the write is [given up](Reads::give_up), so
//! that nobody has pages locked while it waits for the cleaner.
//!
//! **Dirty counters are lists**: of each page, which entries its file may lack. The paper counts them and searches the log from its tail on; here a
//! dirty miss reads those that it needs and no other, and of a long one only the slots that lie in the page. A page with [more](Options::patches) than
//! a miss should read waits for the cleaner instead. A truncation concerns pages that have no descriptor, so each file has a list of those.
//!
//! **The cleaner and a miss** (option 3 of 3.2.6: a page is read while the cleaner writes it, and a mix of old and new is kept). The paper has the cleaner lock the
//! pages of a batch, and cut the batch at the first one that is locked. Here an entry stays on its page's list until its batch is synced,
//! and just before it is freed ([`settle`](Reads::settle)): what a miss reads torn, or not at all after a sync that failed, is what the entries that it puts over
//! have whole. What must not happen is that an entry is freed under a miss that is about to read it, so `settle` is refused while one of its pages is loading.
//! Batches are never cut, and a miss never waits for a batch.
//!
//! **What goes, goes without loss**: content may go at any time, as the file and the log have it. A descriptor stays while its list is not empty; when all have
//! one, a write is told [`Step::Full`], and waits for the cleaner. The clock that chooses is in `descriptors.rs`.
//!
//! `fallocate` that changes bytes, `mmap` and everything else that goes past this: drain the file, [`forget`](Reads::forget) it, and open it again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use remanence_pmem::Medium;

pub use crate::descriptors::PageOf;
use crate::descriptors::{Descriptors, Held, Refused};
use crate::entry::{Kind, data_checksum};
use crate::format::Layout;
use crate::gate::{Gate, Piece, UNKNOWN, piece, pieces};
use crate::read::{self, Damage, Flaw};
use crate::table::FileId;

/// So many pages are looked at in one go when a file is cut or forgotten.
const CUT: usize = 256;

/// How large the cache is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How many files there are numbers for: as many as the log has.
    pub files: u32,
    /// Bytes of a page.
    pub page: usize,
    /// Pages whose content is kept.
    pub frames: usize,
    /// Pages that have a descriptor: those, and all that the log may have entries of, or writes wait for the cleaner before it is full.
    pub descriptors: usize,
    /// The most entries that a miss puts over a page.
    pub patches: usize,
}

impl Options {
    /// Those for a log of so many entries of a page each, and the content of so many pages (the paper has 250,000).
    #[must_use]
    pub const fn usual(files: u32, frames: usize, entries: usize) -> Self {
        Self { files, page: 4096, frames, descriptors: frames + 2 * entries + 64, patches: 64 }
    }
}

/// What the caller is to do before it comes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing: it is done.
    Done,
    /// Read this page from its file, and hand over [what was there](Reads::loaded).
    Load(PageOf),
    /// Append the change to the log, and say [where it is](Reads::appended); or [give it up](Reads::give_up).
    Append,
    /// Somebody else has a page or a file: come again.
    Busy,
    /// All descriptors are of pages that the log has something of, or all pages are in use: let the cleaner work.
    Full,
    /// The page has more entries than a miss puts over one: come again when all below are free.
    Clean {
        /// Where the log's tail has to be.
        upto: u64,
    },
}

/// A change, or a read, on its way. One that is not carried to its end is to be [given up](Reads::give_up).
#[derive(Debug)]
pub struct Access<'a> {
    file: FileId,
    offset: u64,
    what: What<'a>,
    done: usize,
    entered: bool,
    waits: Waits,
    held: Vec<Held>,
    frame: Option<Box<[u8]>>,
    fixes: Vec<Fix>,
}

#[derive(Debug)]
enum What<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    Truncate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Nothing,
    Load,
    Append,
}

impl<'a> Access<'a> {
    const fn new(file: FileId, offset: u64, what: What<'a>) -> Self {
        Self {
            file,
            offset,
            what,
            done: 0,
            entered: false,
            waits: Waits::Nothing,
            held: Vec::new(),
            frame: None,
            fixes: Vec::new(),
        }
    }

    /// A read of as many bytes as there are from an offset on.
    #[must_use]
    pub const fn read(file: FileId, offset: u64, into: &'a mut [u8]) -> Self {
        Self::new(file, offset, What::Read(into))
    }

    /// A write, which is one entry of the log.
    #[must_use]
    pub const fn write(file: FileId, offset: u64, bytes: &'a [u8]) -> Self {
        Self::new(file, offset, What::Write(bytes))
    }

    /// A truncation, which is one too.
    #[must_use]
    pub const fn truncate(file: FileId, len: u64) -> Self {
        Self::new(file, len, What::Truncate)
    }

    /// Bytes that were read: fewer than asked for at the end of the file.
    #[must_use]
    pub const fn done(&self) -> usize {
        self.done
    }

    /// What was read until now.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.what {
            What::Read(into) => &into[..self.done],
            What::Write(_) | What::Truncate => &[],
        }
    }
}

/// A write that a file may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Patch {
    first: u64,
    offset: u64,
    len: u64,
}

/// What a miss puts over a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fix {
    Patch(Patch),
    /// All from this byte of the page on is cleared.
    Cut(usize),
}

/// What a descriptor leads to.
#[derive(Debug, Default)]
struct Page {
    /// Nobody looks at the content of another page that was here before.
    of: Option<PageOf>,
    content: Option<Box<[u8]>>,
    /// The paper's dirty counter is the length of this.
    dirty: Vec<Patch>,
    loading: bool,
}

/// A change that the log has and its file may lack.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write { file: FileId, offset: u64, len: u64 },
    Truncate { file: FileId },
}

/// All of them.
#[derive(Debug, Default)]
struct Pending {
    changes: BTreeMap<u64, Change>,
    /// The truncations among them, by file.
    cuts: BTreeMap<(FileId, u64), u64>,
    /// Those of the log below are in their files.
    settled: u64,
}

impl Pending {
    /// Truncations of a file, by their place in the log.
    fn cuts(&self, file: FileId) -> impl Iterator<Item = (u64, u64)> {
        self.cuts.range((file, 0)..=(file, u64::MAX)).map(|((_, first), len)| (*first, *len))
    }
}

/// All changes that the log has.
#[derive(Debug)]
pub struct Reads {
    options: Options,
    pages: Descriptors,
    content: Box<[RwLock<Page>]>,
    gates: Box<[Gate]>,
    pending: Mutex<Pending>,
    spare: Mutex<Vec<Box<[u8]>>>,
}

impl Reads {
    /// An empty one, over a log that is empty.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let frame = |_| vec![0; options.page].into_boxed_slice();
        Self {
            options,
            pages: Descriptors::new(options.files, options.descriptors),
            content: (0..options.descriptors).map(|_| RwLock::default()).collect(),
            gates: (0..options.files).map(|_| Gate::new()).collect(),
            pending: Mutex::default(),
            spare: Mutex::new((0..options.frames).map(frame).collect()),
        }
    }

    fn page(&self, at: usize) -> RwLockReadGuard<'_, Page> {
        self.content[at].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn page_mut(&self, at: usize) -> RwLockWriteGuard<'_, Page> {
        self.content[at].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken before any page's.
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Box<[u8]>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self, file: FileId) -> Result<&Gate, Fault> {
        let gate = self.gates.get(file.0 as usize);
        gate.filter(|gate| gate.size.load(Ordering::Acquire) != UNKNOWN).ok_or(Fault::Unknown { file })
    }

    /// Makes a file known that the log has a number for, with the size that the file system says: the log has nothing of it.
    ///
    /// # Panics
    /// There is no such number.
    pub fn open_file(&self, file: FileId, size: u64) {
        self.gates[file.0 as usize].size.store(size.min(UNKNOWN - 1), Ordering::Release);
    }

    /// How long a file is, with what only the log has: what `stat` and `lseek` have to say.
    #[must_use]
    pub fn size(&self, file: FileId) -> Option<u64> {
        self.gate(file).ok().map(|gate| gate.size.load(Ordering::Acquire))
    }

    /// How many entries of the log a page's file may lack: its dirty counter.
    #[must_use]
    pub fn dirty(&self, of: PageOf) -> usize {
        let at = self.pages.known(of);
        at.map(|at| self.page(at)).filter(|page| page.of == Some(of)).map_or(0, |page| page.dirty.len())
    }

    /// Goes on with an access.
    ///
    /// # Errors
    /// The write is too long, or the file is not known.
    pub fn step(&self, access: &mut Access<'_>) -> Result<Step, Fault> {
        match access.waits {
            Waits::Load => return Ok(Step::Load(access.held[0].of)),
            Waits::Append => return Ok(Step::Append),
            Waits::Nothing => {}
        }
        if !access.entered {
            let gate = self.gate(access.file)?;
            if let What::Write(bytes) = access.what {
                let ends = access.offset.checked_add(bytes.len() as u64).is_some_and(|end| end < UNKNOWN);
                // Of the pages that may have a descriptor two such writes leave each other enough.
                let most = self.options.descriptors / 4 * self.options.page;
                if !ends || bytes.len() > most {
                    return Err(Fault::TooLong { max: most as u64 });
                }
            }
            // A truncation waits outside, with the door shut.
            if !matches!(access.what, What::Truncate) && !gate.enter() {
                return Ok(Step::Busy);
            }
            access.entered = true;
        }
        let step = match access.what {
            What::Read(_) => self.read(access)?,
            What::Write(bytes) => self.lock_all(access, bytes.len()),
            What::Truncate if self.gate(access.file)?.close() => Step::Append,
            What::Truncate => Step::Busy,
        };
        match step {
            Step::Append => access.waits = Waits::Append,
            Step::Done | Step::Full => self.give_up(access),
            Step::Load(_) | Step::Busy | Step::Clean { .. } => {}
        }
        Ok(step)
    }

    /// Gives up an access: nothing of it was done, or all is.
    pub fn give_up(&self, access: &mut Access<'_>) {
        if let Some(frame) = access.frame.take() {
            self.spare().push(frame);
        }
        for held in access.held.drain(..) {
            self.let_go(held);
        }
        if access.entered {
            let gate = &self.gates[access.file.0 as usize];
            match (&access.what, access.waits) {
                (What::Truncate, Waits::Append) => gate.open(),
                (What::Truncate, _) => gate.give_up(),
                _ => gate.leave(),
            }
        }
        (access.entered, access.waits) = (false, Waits::Nothing);
    }

    /// Unlocks a page; a descriptor that leads to nothing is another page's to have.
    fn let_go(&self, held: Held) {
        let mut page = self.page_mut(held.at);
        page.loading = false;
        if page.content.is_none() && page.dirty.is_empty() {
            page.of = None;
            drop(page);
            self.pages.release(held);
        } else {
            drop(page);
            self.pages.unlock(held);
        }
    }

    /// Locks a page.
    fn lock(&self, of: PageOf) -> Result<Held, Refused> {
        let held = self.pages.lock(of, |at| {
            let mut page = self.page_mut(at);
            let goes = page.dirty.is_empty();
            if goes {
                page.of = None;
                self.spare().extend(page.content.take());
            }
            goes
        })?;
        if held.fresh {
            self.page_mut(held.at).of = Some(of);
        }
        Ok(held)
    }

    fn lock_all(&self, access: &mut Access<'_>, len: usize) -> Step {
        let rest = access.held.len();
        for piece in pieces(access.file, access.offset, len, self.options.page).skip(rest) {
            match self.lock(piece.of) {
                Ok(held) => access.held.push(held),
                Err(Refused::Busy) => return Step::Busy,
                Err(Refused::Full) => return Step::Full,
            }
        }
        if len == 0 { Step::Done } else { Step::Append }
    }

    fn read(&self, access: &mut Access<'_>) -> Result<Step, Fault> {
        let What::Read(into) = &mut access.what else { return Ok(Step::Done) };
        let size = self.gate(access.file)?.size.load(Ordering::Acquire);
        let len = size.saturating_sub(access.offset).min(into.len() as u64) as usize;
        while access.done < len {
            let piece = piece(access.file, access.offset, len, self.options.page, access.done);
            if self.hit(&piece, &mut into[piece.from..piece.from + piece.len]) {
                access.done += piece.len;
                continue;
            }
            let held = match self.lock(piece.of) {
                Ok(held) => held,
                Err(Refused::Busy) => return Ok(Step::Busy),
                Err(Refused::Full) => return Ok(Step::Full),
            };
            if self.page(held.at).content.is_some() {
                self.pages.unlock(held);
                continue;
            }
            let (fixes, upto) = self.fixes(&held);
            if fixes.len() > self.options.patches {
                self.let_go(held);
                return Ok(Step::Clean { upto });
            }
            let Some(frame) = self.frame() else {
                self.let_go(held);
                return Ok(Step::Full);
            };
            (access.frame, access.fixes) = (Some(frame), fixes);
            access.held.push(held);
            access.waits = Waits::Load;
            return Ok(Step::Load(piece.of));
        }
        Ok(Step::Done)
    }

    /// Copies a piece of a page, if it is here.
    fn hit(&self, piece: &Piece, into: &mut [u8]) -> bool {
        let Some(at) = self.pages.hint(piece.of) else { return false };
        let page = self.page(at);
        let Some(content) = page.content.as_ref().filter(|_| page.of == Some(piece.of)) else { return false };
        into.copy_from_slice(&content[piece.offset..piece.offset + piece.len]);
        drop(page);
        self.pages.use_it(at);
        true
    }

    /// What has to be put over a page that is locked, in the order of the log, and the index behind; nothing of it is freed from now on.
    fn fixes(&self, held: &Held) -> (Vec<Fix>, u64) {
        let pending = self.pending();
        let mut page = self.page_mut(held.at);
        page.loading = true;
        let start = held.of.page * self.options.page as u64;
        let cut = |(first, len): (u64, u64)| {
            let from = len.saturating_sub(start);
            (from < self.options.page as u64).then_some((first, Fix::Cut(from as usize)))
        };
        let patches = page.dirty.iter().map(|patch| (patch.first, Fix::Patch(*patch)));
        let mut fixes: Vec<(u64, Fix)> = pending.cuts(held.of.file).filter_map(cut).chain(patches).collect();
        fixes.sort_by_key(|(first, _)| *first);
        let upto = fixes.last().map_or(0, |(first, _)| first + 1);
        (fixes.into_iter().map(|(_, fix)| fix).collect(), upto)
    }

    /// A place for content: one that is free, or that of a page that was not used for a while.
    fn frame(&self) -> Option<Box<[u8]>> {
        if let Some(frame) = self.spare().pop() {
            return Some(frame);
        }
        let held = self.pages.idle(|at| self.page(at).content.is_some())?;
        let frame = self.page_mut(held.at).content.take();
        self.let_go(held);
        frame
    }

    /// Takes what the file has of the page that a [step](Step::Load) asked for, as many bytes as there are, and puts over it what the log has.
    ///
    /// # Errors
    /// An entry of the log is damaged: the page is not here, and the access was given up.
    ///
    /// # Panics
    /// Nothing was asked for, or there are more bytes than a page has.
    pub fn loaded<M: Medium>(
        &self,
        access: &mut Access<'_>,
        bytes: &[u8],
        log: &M,
        layout: &Layout,
    ) -> Result<(), Damage> {
        assert_eq!(access.waits, Waits::Load, "no page was asked for");
        let mut frame = access.frame.take().expect("there is a place for it");
        let held = access.held.pop().expect("the page is locked");
        frame.fill(0);
        frame[..bytes.len()].copy_from_slice(bytes);
        let start = held.of.page * self.options.page as u64;
        for fix in std::mem::take(&mut access.fixes) {
            let patch = match fix {
                Fix::Cut(from) => {
                    frame[from..].fill(0);
                    continue;
                }
                Fix::Patch(patch) => patch,
            };
            let from = patch.offset.max(start);
            let to = (patch.offset + patch.len).min(start + self.options.page as u64);
            let into = &mut frame[(from - start) as usize..(to - start) as usize];
            if let Err(damage) = log_bytes(log, layout, patch.first, from - patch.offset, into) {
                access.frame = Some(frame);
                access.held.push(held);
                self.give_up(access);
                return Err(damage);
            }
        }
        let mut page = self.page_mut(held.at);
        (page.content, page.loading) = (Some(frame), false);
        drop(page);
        access.waits = Waits::Nothing;
        self.pages.unlock(held);
        Ok(())
    }

    /// The change was appended as the entries from `first` on: brings the pages up to date, and unlocks them. It comes before anybody is told that the change is made.
    ///
    /// # Panics
    /// Nothing was asked for.
    pub fn appended(&self, access: &mut Access<'_>, first: u64) {
        assert_eq!(access.waits, Waits::Append, "nothing was to be appended");
        let gate = &self.gates[access.file.0 as usize];
        let mut pending = self.pending();
        // The cleaner may have been faster: then its file has it.
        let lacks = first >= pending.settled;
        match access.what {
            What::Write(bytes) => {
                let (offset, len) = (access.offset, bytes.len() as u64);
                let all = pieces(access.file, offset, bytes.len(), self.options.page);
                for (piece, held) in all.zip(&access.held) {
                    let mut page = self.page_mut(held.at);
                    if lacks {
                        page.dirty.push(Patch { first, offset, len });
                    }
                    if let Some(content) = &mut page.content {
                        let into = &mut content[piece.offset..piece.offset + piece.len];
                        into.copy_from_slice(&bytes[piece.from..piece.from + piece.len]);
                    }
                }
                if lacks {
                    pending.changes.insert(first, Change::Write { file: access.file, offset, len });
                }
                gate.size.fetch_max(offset + len, Ordering::AcqRel);
            }
            What::Truncate => {
                let (file, len) = (access.file, access.offset);
                if lacks {
                    pending.changes.insert(first, Change::Truncate { file });
                    pending.cuts.insert((file, first), len);
                }
                self.cut(file, len);
                gate.size.store(len.min(UNKNOWN - 1), Ordering::Release);
            }
            What::Read(_) => {}
        }
        drop(pending);
        self.give_up(access);
    }

    /// Has pages be what they are when their file is truncated; nobody is in it.
    fn cut(&self, file: FileId, len: u64) {
        let size = self.options.page as u64;
        let mut next = len / size;
        loop {
            let found = self.pages.from(PageOf { file, page: next }, CUT);
            let Some((last, _)) = found.last() else { return };
            next = last + 1;
            for (number, at) in found {
                let mut page = self.page_mut(at);
                if page.of != Some(PageOf { file, page: number }) {
                    continue;
                }
                match len.saturating_sub(number * size) as usize {
                    0 => self.spare().extend(page.content.take()),
                    from => page.content.iter_mut().for_each(|content| content[from..].fill(0)),
                }
            }
        }
    }

    /// Says that all changes below the log's next tail are in their files, durably, before the log's entries are [freed](crate::log::Log::free): whether they may be. If
    /// not, a page is being loaded that needs one of them: ask again.
    pub fn settle(&self, tail: u64) -> bool {
        let mut pending = self.pending();
        pending.settled = pending.settled.max(tail);
        loop {
            let next = pending.changes.first_key_value().map(|(first, change)| (*first, *change));
            let Some((first, change)) = next.filter(|(first, _)| *first < tail) else { return true };
            match change {
                Change::Write { file, offset, len } => {
                    let all = pieces(file, offset, len as usize, self.options.page);
                    let is_needed = |piece: &Piece| {
                        let Some(at) = self.pages.known(piece.of) else { return false };
                        let mut page = self.page_mut(at);
                        let is_its = page.of == Some(piece.of);
                        if is_its && !page.loading {
                            page.dirty.retain(|patch| patch.first != first);
                        }
                        is_its && page.loading
                    };
                    if all.filter(is_needed).count() > 0 {
                        return false;
                    }
                }
                Change::Truncate { file } => drop(pending.cuts.remove(&(file, first))),
            }
            pending.changes.remove(&first);
        }
    }

    /// Forgets a file of which the log has nothing, so that its number can be another's, or others can change it: to be called until it says that it is done.
    ///
    /// # Errors
    /// The file is not known.
    pub fn forget(&self, file: FileId) -> Result<Step, Fault> {
        let gate = self.gate(file)?;
        if !gate.close() {
            gate.give_up();
            return Ok(Step::Busy);
        }
        let step = self.forget_pages(file);
        if step == Step::Done {
            gate.size.store(UNKNOWN, Ordering::Release);
        }
        gate.open();
        Ok(step)
    }

    fn forget_pages(&self, file: FileId) -> Step {
        if let Some((upto, _)) = self.pending().cuts(file).last() {
            return Step::Clean { upto: upto + 1 };
        }
        loop {
            let found = self.pages.from(PageOf { file, page: 0 }, CUT);
            if found.is_empty() {
                return Step::Done;
            }
            for (page, _) in found {
                let held = match self.pages.lock_known(PageOf { file, page }) {
                    Ok(Some(held)) => held,
                    Ok(None) => continue,
                    Err(_) => return Step::Busy,
                };
                let mut page = self.page_mut(held.at);
                let last = page.dirty.last().copied();
                if last.is_none() {
                    self.spare().extend(page.content.take());
                }
                drop(page);
                self.let_go(held);
                if let Some(patch) = last {
                    return Step::Clean { upto: patch.first + 1 };
                }
            }
        }
    }
}

/// Bytes of a write that the log has, from one of them on.
fn log_bytes(
    log: &impl Medium,
    layout: &Layout,
    first: u64,
    from: u64,
    into: &mut [u8],
) -> Result<(), Damage> {
    let slot = u64::from(layout.geometry.slot);
    let mut done = 0;
    while done < into.len() {
        let at = from + done as u64;
        let (index, within) = (first + at / slot, (at % slot) as usize);
        let damage = |flaw| Damage::unknown(index, flaw);
        let header = read::line(log, layout, index).1.ok_or_else(|| damage(Flaw::Header))?;
        let length = header.length as usize;
        let is_its = header.kind == Kind::Write && u64::from(header.back) == at / slot;
        if !is_its || within >= length || length > slot as usize {
            return Err(damage(Flaw::Group));
        }
        let mut data = vec![0; length];
        log.read(layout.data(index), &mut data);
        if data_checksum(layout.salt, index, &data) != header.data {
            return Err(damage(Flaw::Data));
        }
        let len = (length - within).min(into.len() - done);
        into[done..done + len].copy_from_slice(&data[within..within + len]);
        done += len;
    }
    Ok(())
}

/// Why the cache does not do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// No write that is one change is as long.
    #[error("the longest write that is one change has {max} bytes here")]
    TooLong {
        /// Bytes of the longest.
        max: u64,
    },
    /// Nobody said how long the file is.
    #[error("the cache knows no {file}")]
    Unknown {
        /// The number that was asked for.
        file: FileId,
    },
}
