//! The only raw memory: a mapped range that a peer, other threads and other processes write when they like.
//!
//! The promise of this room: every access lies inside the live mapping that the `Region` holds (checked, in release
//! builds too), and is an atomic or one of the copies of `copy`, whose head has the argument for why racing is
//! sound. No reference to this memory is ever made, but to an atomic word for the length of one access.
#![expect(unsafe_code, reason = "the room with the pointers")]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cache;
use crate::copy::{NT_MIN, copy, copy_nt};
use crate::domain::{self, Domain, PersistenceDomain, StoreGranularity};
use crate::failure::{FailureWatch, FirstFailure};
use crate::flush::page::{Pages, Work};
use crate::flush::{self, Instruction, LINE};
use crate::journal::{self, Journal, Name};
use crate::lock::OwnFile;
use crate::map::{self, Mapping};
use crate::medium::{Medium, Psyncs, Ticket};
use crate::sigbus::{self, Watch};
use crate::{Error, Fault, FileOptions, guarded};

/// What a region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A file on persistent memory, mapped with MAP_SYNC.
    DaxFile,
    /// A file behind the page cache, or in a tmpfs.
    File,
    /// What a file had when it was opened: what is written to it stays in this process.
    Copy,
    /// A file without a name, in memory, to be shared by its descriptor.
    Memfd,
    /// Memory of this process alone.
    Anonymous,
    /// Memory that somebody else mapped.
    Foreign,
}

/// A handle to mapped memory; clones are the same memory, which is unmapped with the last of them.
///
/// The verbs of persistence are those of [`Medium`], and mean what the region's [`Domain`] says.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    base: *mut u8,
    len: u64,
    kind: Kind,
    domain: Domain,
    granularity: StoreGranularity,
    instruction: Instruction,
    /// The memory may vanish: it is reached through `guarded` only.
    guarded: bool,
    /// An access that cannot say so met memory that had vanished.
    faulted: AtomicBool,
    /// How psync does it where it takes a system call.
    sync: Way,
    /// Of those that take one.
    psyncs: Psyncs,
    /// Of them, the first that failed.
    failed: FirstFailure,
    page: u64,
    path: Option<PathBuf>,
    /// Its file was made when it was opened.
    new: bool,
    // Dropped in this order, after the journal: the watch ends before the mapping does, and the file is the next owner's when
    // nothing of ours reaches it any more.
    watch: Watch,
    mapping: Mapping,
    file: Option<OwnFile>,
}

/// How a page cache is made durable.
enum Way {
    /// The pages are written.
    Pages(Pages),
    /// The lines are, in the journal.
    Journal(Box<Journal>),
    /// The file has a journal that only its owner writes: what reached the disk by another way, a replay would undo.
    Owner,
}

// SAFETY: `base` points into the mapping, which is not tied to a thread; all accesses through it may race.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Region {
    /// Opens or creates a file as the options say: [`FileOptions::open`].
    ///
    /// # Errors
    /// As [`FileOptions::open`].
    pub fn open_file(path: impl Into<PathBuf>, options: &FileOptions) -> Result<Self, Error> {
        options.open(path)
    }

    /// A file in memory without a name, to be shared by its descriptor ([`share`](Self::share)).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn memfd(name: &str, len: u64) -> Result<Self, Error> {
        let file = map::memfd(name, len)?;
        let (mapping, _) = Mapping::file(&file, len)?;
        Ok(Self::assemble(Kind::Memfd, mapping, len, domain::of_memfd(), Some(file.into()), None))
    }

    /// Memory of this process alone, zeroed, on huge pages where the kernel has some.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn anonymous(len: u64) -> Result<Self, Error> {
        let mapping = Mapping::anonymous(len)?;
        Ok(Self::assemble(Kind::Anonymous, mapping, len, domain::of_anonymous(), None, None))
    }

    /// Memory of this process alone that begins as what is here. Where there is a file, that takes neither time nor memory:
    /// a page is copied when the copy is first written there, and shows what the file has until then. So whoever writes this
    /// region afterwards has to have written at least the same range of the copy before.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn private_copy(&self) -> Result<Self, Error> {
        let Some(file) = &self.0.file else {
            let copy = Self::anonymous(self.len())?;
            let mut bytes = vec![0; 1 << 20];
            let mut at = 0;
            while at < self.len() {
                let part = &mut bytes[..(1 << 20).min((self.len() - at) as usize)];
                self.read(at, part);
                copy.write(at, part);
                at += part.len() as u64;
            }
            return Ok(copy);
        };
        let mapping = Mapping::copy(file, self.len())?;
        // The file may be cut short under it.
        let watch = Watch::new(mapping.base() as usize, mapping.mapped());
        let mut copy =
            Self::assemble(Kind::Anonymous, mapping, self.len(), domain::of_anonymous(), None, None);
        copy.own().watch = watch;
        Ok(copy)
    }

    /// The memory behind a descriptor that a peer shared ([`share`](Self::share)): the first `len` bytes.
    ///
    /// # Errors
    /// It is shorter than that, or cannot be mapped.
    pub fn from_shared_fd(fd: OwnedFd, len: u64) -> Result<Self, Error> {
        let file = File::from(fd);
        let found = file.metadata().map_err(|e| Error::os("the shared memory's length", e))?.len();
        if found < len {
            let path = PathBuf::from("the shared memory");
            return Err(Error::Truncated { path, expected: len, found });
        }
        let journaled = journal::find(&file, found, std::path::Path::new("the shared memory"))?.is_some();
        let (mapping, map_sync) = Mapping::file(&file, len)?;
        let sealed = is_sealed_memfd(&file);
        let domain = if sealed { domain::of_memfd() } else { domain::of_file(&file, map_sync, None)? };
        let kind = match (sealed, map_sync) {
            (true, _) => Kind::Memfd,
            (false, true) => Kind::DaxFile,
            (false, false) => Kind::File,
        };
        let mut region = Self::assemble(kind, mapping, len, domain, Some(file.into()), None);
        if journaled {
            region.own().sync = Way::Owner;
        }
        Ok(region)
    }

    /// Memory that somebody else mapped, such as the caller of a C interface.
    ///
    /// `declared`: what its owner knows of its persistence domain; nothing is detected. Memory behind a page cache
    /// may be declared so: its pages are then written by msync.
    ///
    /// # Safety
    /// `base..base + len` is mapped, readable and writable, for as long as any clone of the region lives. Rust code
    /// holds no reference into it while the region is used.
    ///
    /// # Errors
    /// A length of zero, or one that runs past the address space.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: u64,
        declared: Option<PersistenceDomain>,
    ) -> Result<Self, Error> {
        let fits = usize::try_from(len).is_ok_and(|len| base.addr().get().checked_add(len).is_some());
        if len == 0 || !fits {
            return Err(Error::BadLength { len });
        }
        let mapping = Mapping::foreign(base.as_ptr());
        Ok(Self::assemble(Kind::Foreign, mapping, len, domain::of_foreign(declared), None, None))
    }

    /// Memory of the process that its owner, such as an application behind a C interface, hands over for a while, and
    /// may even unmap: then accesses fail ([`try_read`](Self::try_read) and its like say so), and nothing else happens.
    /// It is volatile: nothing makes it durable.
    ///
    /// Any address and any length will do, zero included, and nothing is looked at:
    /// [`check_present`](Self::check_present) does that. Atomics need an *address* that is a multiple of 8, whatever
    /// the offset.
    ///
    /// # Safety
    /// Rust code holds no reference into what of the range is mapped, while the region is used. What is mapped there
    /// later, while a clone of the region lives, is reached too.
    ///
    /// # Errors
    /// A range that runs past the address space.
    pub unsafe fn borrowed(base: *mut u8, len: u64) -> Result<Self, Error> {
        if usize::try_from(len).is_ok_and(|len| base.addr().checked_add(len).is_some()) {
            let domain = domain::of_borrowed();
            sigbus::guard();
            Ok(Self::assemble_with(true, Kind::Foreign, Mapping::foreign(base), len, domain, None, None))
        } else {
            Err(Error::BadLength { len })
        }
    }

    pub(crate) fn assemble(
        kind: Kind,
        mapping: Mapping,
        len: u64,
        domain: Domain,
        file: Option<OwnFile>,
        path: Option<PathBuf>,
    ) -> Self {
        Self::assemble_with(false, kind, mapping, len, domain, file, path)
    }

    fn assemble_with(
        guarded: bool,
        kind: Kind,
        mapping: Mapping,
        len: u64,
        domain: Domain,
        file: Option<OwnFile>,
        path: Option<PathBuf>,
    ) -> Self {
        let base = mapping.base();
        // A sealed memfd cannot be cut short; any other file can.
        let watch = match kind {
            Kind::File | Kind::DaxFile | Kind::Copy => Watch::new(base as usize, mapping.mapped()),
            Kind::Memfd | Kind::Anonymous | Kind::Foreign => Watch::none(),
        };
        Self(Arc::new(Inner {
            base,
            len,
            kind,
            granularity: domain.granularity(),
            domain,
            instruction: flush::instruction(),
            guarded,
            faulted: AtomicBool::new(false),
            sync: Way::Pages(Pages::default()),
            psyncs: Psyncs::default(),
            failed: FirstFailure::default(),
            page: map::page_size() as u64,
            path,
            new: false,
            watch,
            mapping,
            file,
        }))
    }

    /// The same, before anybody else has it, with lines written back by an instruction that this CPU has.
    pub(crate) fn with_instruction(mut self, instruction: Instruction) -> Self {
        self.own().instruction = instruction;
        self
    }

    /// The same, before anybody else has it, with psyncs that write a journal.
    pub(crate) fn with_journal(mut self, journal: Journal) -> Self {
        self.own().sync = Way::Journal(Box::new(journal));
        self
    }

    /// The same, before anybody else has it, of a file that was made for it.
    pub(crate) fn made_now(mut self) -> Self {
        self.own().new = true;
        self
    }

    fn own(&mut self) -> &mut Inner {
        Arc::get_mut(&mut self.0).expect("nobody else has it yet")
    }

    /// Bytes in it.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "only borrowed memory can be empty, and is of no interest then"
    )]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// What it is made of.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Which failures its data survives.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.0.domain
    }

    /// Bytes in the journal that psync writes, if it writes one: [`Journaling`](crate::Journaling).
    #[must_use]
    pub fn journal(&self) -> Option<u64> {
        match &self.0.sync {
            Way::Journal(journal) => Some(journal.len()),
            Way::Pages(_) | Way::Owner => None,
        }
    }

    /// The same, and its name.
    pub(crate) fn journal_and_name(&self) -> Option<(u64, Name)> {
        match &self.0.sync {
            Way::Journal(journal) => Some((journal.len(), journal.name())),
            Way::Pages(_) | Way::Owner => None,
        }
    }

    /// For an owner that has nothing of its own in `unused`, and did not open the file itself
    /// ([`FileOptions::image`] does it for those who do): refuses a region whose file was cut short within its journal. It is asked by
    /// [`image::Format::open`](crate::image::Format::open), without which such an owner gets no head to look at. Such
    /// a file looks like one without a journal, with what is left of that at the end of its region. Looks at one block each
    /// 64 KiB. A file that was cut in the journal's first block is taken for one whose journal was given up.
    ///
    /// # Errors
    /// [`JournalCut`](Error::JournalCut): what psync promised may have been in what was cut off.
    pub(crate) fn refuse_cut_journal(&self, unused: Range<u64>) -> Result<(), Error> {
        let read = |at: u64, block: &mut [u8]| {
            let there = self.contains(at, block.len() as u64);
            if there {
                self.read(at, block);
            }
            there
        };
        let Some(place) = journal::in_front(unused, read) else { return Ok(()) };
        let path = self.path().unwrap_or(std::path::Path::new("the region's file"));
        Err(journal::cut_short(place, self.len(), path))
    }

    /// The file behind it, if it was opened by name.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        self.0.path.as_deref()
    }

    /// Whether the file was made when it was opened, and was not there before.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.0.new
    }

    pub(crate) fn file(&self) -> Option<&File> {
        self.0.file.as_deref()
    }

    /// The descriptor of the file behind it. It carries the exclusive lock as long as the region lives: to give it to another
    /// process use [`share`](Self::share).
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.file.as_ref().map(|file| file.as_fd())
    }

    /// A descriptor for another process, which makes a region of it by [`from_shared_fd`](Self::from_shared_fd). It
    /// is opened anew, as a duplicate would keep the exclusive lock after this process has died.
    ///
    /// # Errors
    /// There is no file (anonymous and foreign memory, a copy), or it cannot be opened again.
    pub fn share(&self) -> io::Result<OwnedFd> {
        let Some(file) = self.0.file.as_ref().filter(|_| self.0.kind != Kind::Copy) else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this memory has no file to share it by"));
        };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(File::options().read(true).write(true).open(path)?.into())
    }

    /// The first byte. Whoever reads or writes through it takes over the promise of `copy`: no references, and only
    /// accesses that may race.
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.0.base
    }

    /// Whether the range lies inside.
    #[must_use]
    #[inline]
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.0.len)
    }

    /// Makes every page present now, so that no first access has to wait for the kernel.
    pub fn populate(&self) {
        self.0.mapping.populate();
    }

    /// What has gone wrong with the medium, if anything: a page was lost, or a psync has failed, whoever asked for it. Then no psync
    /// succeeds any more. Cheap; worth asking before handing out what was read, as a lost page reads as zeros.
    #[inline]
    pub fn failure(&self) -> Result<(), io::Error> {
        self.lost()?;
        self.0.failed.get()
    }

    #[inline]
    fn lost(&self) -> Result<(), io::Error> {
        if self.0.faulted.load(Ordering::Relaxed) {
            return Err(vanished());
        }
        match self.0.watch.lost() {
            None => Ok(()),
            Some(offset) => Err(self.lost_page(offset)),
        }
    }

    /// Calls somebody when a psync has failed, whoever asked for it, as long as what is returned is there. It may have failed already:
    /// look at [`failure`](Self::failure) behind this call. What is called may hold up whoever has asked for the psync, and nothing
    /// else; it may be called more than once. Nobody is called for a page that was lost before the next psync finds that out.
    #[must_use = "nobody is called when it is gone"]
    pub fn when_failed(&self, call: impl Fn() + Send + Sync + 'static) -> FailureWatch {
        self.0.failed.call(self, Arc::new(call))
    }

    pub(crate) fn first_failure(&self) -> &FirstFailure {
        &self.0.failed
    }

    #[cold]
    fn lost_page(&self, offset: u64) -> io::Error {
        let name = self.0.path.as_ref().map_or("a shared file".into(), |path| path.to_string_lossy());
        let found = self.0.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |m| m.len());
        let why =
            if found < self.file_len() { "the file was truncated" } else { "its medium cannot be read" };
        io::Error::other(format!("{name} lost the page at offset {offset}: {why}; restore it from a replica"))
    }

    /// The address of `len` bytes at an offset.
    #[inline]
    #[track_caller]
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        assert!(
            self.contains(offset, len as u64),
            "{len} bytes at offset {offset} do not lie in a region of {}",
            self.0.len
        );
        // Inside the mapping, as just checked (so the offset fits a usize). Borrowed memory need not be mapped, and may
        // be the whole address space.
        self.0.base.wrapping_add(offset as usize)
    }

    /// The word at an offset.
    #[inline]
    #[track_caller]
    fn word(&self, offset: u64) -> &AtomicU64 {
        let at = self.at(offset, 8);
        assert!((at as usize).is_multiple_of(8), "the word at offset {offset} is not aligned");
        // SAFETY: aligned and inside the live mapping, as just checked. The reference is to an atomic, which is what
        // lets others write meanwhile; it does not outlive the borrow of `self`.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// Copies bytes out. (Zeros instead, of borrowed memory that has vanished: see [`failure`](Self::failure).)
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        if self.try_read(offset, into).is_err() {
            into.fill(0);
            self.fault();
        }
    }

    /// Copies bytes in, the last byte last: visible, not durable.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        if self.try_write(offset, bytes).is_err() {
            self.fault();
        }
    }

    /// As [`read`](Self::read).
    ///
    /// # Errors
    /// The memory is borrowed, and part of it has vanished; what was copied is undefined.
    #[inline]
    pub fn try_read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        let from = self.at(offset, into.len());
        // SAFETY: `at` checked the source; the target is the caller's own. The handler came with the region.
        unsafe {
            if self.0.guarded {
                return guarded::copy(into.as_mut_ptr(), from, into.len());
            }
            copy(into.as_mut_ptr(), from, into.len());
        }
        Ok(())
    }

    /// As [`write`](Self::write).
    ///
    /// # Errors
    /// The memory is borrowed, and part of it has vanished, or may not be written; what was copied is undefined.
    #[inline]
    pub fn try_write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let to = self.at(offset, bytes.len());
        // SAFETY: `at` checked the target; the source is the caller's own. The handler came with the region.
        unsafe {
            if self.0.guarded {
                return guarded::copy(to, bytes.as_ptr(), bytes.len());
            }
            copy(to, bytes.as_ptr(), bytes.len());
        }
        Ok(())
    }

    /// Whether all of a range can be read, and written with `write`: what a network card finds out when it pins the
    /// pages of borrowed memory. Its pages are made present. Other memory is ours, and always can.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn check_present(&self, offset: u64, len: u64, write: bool) -> io::Result<()> {
        assert!(self.contains(offset, len), "{len} bytes at offset {offset} do not lie in {}", self.0.len);
        if !self.0.guarded || len == 0 {
            return Ok(());
        }
        map::make_present(self.0.base.addr().wrapping_add(offset as usize), len as usize, write)
    }

    #[cold]
    fn fault(&self) {
        self.0.faulted.store(true, Ordering::Relaxed);
    }

    /// As [`write`](Self::write) then [`pwb`](Self::pwb): on persistent memory long writes go past the caches, which
    /// is about half the work.
    pub fn write_nt(&self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        if !self.gains_past_caches(bytes.len()) {
            self.write(offset, bytes);
            return self.pwb(offset..end);
        }
        // SAFETY: the source is the caller's own.
        unsafe { self.past_caches(offset, bytes.as_ptr(), bytes.len()) };
    }

    /// As [`copy_to`](Self::copy_to) and then [`pwb`](Self::pwb) of the target, past the caches where
    /// [`write_nt`](Self::write_nt) would.
    pub fn copy_nt_to(&self, offset: u64, to: &Self, to_offset: u64, len: usize) {
        if self.0.guarded || !to.gains_past_caches(len) {
            self.copy_to(offset, to, to_offset, len);
            return to.pwb(to_offset..to_offset + len as u64);
        }
        // SAFETY: `at` checked the source.
        unsafe { to.past_caches(to_offset, self.at(offset, len), len) };
    }

    fn gains_past_caches(&self, len: usize) -> bool {
        !self.0.guarded && self.0.granularity == StoreGranularity::CacheLine && len >= NT_MIN
    }

    /// # Safety
    /// `len` bytes can be read at `from`, by somebody who promises what `copy` asks.
    unsafe fn past_caches(&self, offset: u64, from: *const u8, len: usize) {
        let to = self.at(offset, len);
        // The two ends share their lines with other data, so they go through the cache.
        let head = (to as usize).next_multiple_of(LINE) - to as usize;
        let body = (len - head) & !(LINE - 1);
        let tail = head + body;
        // SAFETY: `at` checked the target, whose body starts on a line; the source is the caller's.
        unsafe {
            copy(to, from, head);
            copy_nt(to.add(head), from.add(head), body);
            copy(to.add(tail), from.add(tail), len - tail);
        }
        self.pwb(offset..offset + head as u64);
        self.pwb(offset + tail as u64..offset + len as u64);
    }

    /// Copies from one place to another, between regions or within one; ranges that overlap get a mixture.
    pub fn copy_to(&self, offset: u64, to: &Self, to_offset: u64, len: usize) {
        let (from, target) = (self.at(offset, len), to.at(to_offset, len));
        // SAFETY: both were checked.
        unsafe {
            if !(self.0.guarded || to.0.guarded) {
                copy(target, from, len);
            } else if guarded::copy(target, from, len).is_err() {
                self.fault();
                to.fault();
            }
        }
    }

    /// Loads the native-endian word at a multiple of 8 (acquire).
    #[inline]
    #[must_use]
    pub fn load_u64(&self, offset: u64) -> u64 {
        if self.0.guarded {
            let loaded = self.guarded_word(offset).and_then(|at| {
                // SAFETY: `guarded_word` checked it.
                unsafe { guarded::load(at) }
            });
            return self.or_zero(loaded);
        }
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores the native-endian word at a multiple of 8 (release). Visible, not durable.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) {
        let stored = self.try_store_u64(offset, value);
        self.or_zero(stored.map(|()| 0));
    }

    /// Atomically replaces the word at a multiple of 8 if it equals `compare`; returns what was there.
    #[inline]
    pub fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        let was = self.try_compare_and_swap(offset, compare, swap);
        self.or_zero(was)
    }

    /// Atomically adds to the word at a multiple of 8, wrapping; returns what was there.
    #[inline]
    pub fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let was = self.try_fetch_add(offset, add);
        self.or_zero(was)
    }

    /// As [`store_u64`](Self::store_u64).
    ///
    /// # Errors
    /// The memory is borrowed, and the word has vanished, may not be written, or its address is not a multiple of 8.
    #[inline]
    pub fn try_store_u64(&self, offset: u64, value: u64) -> Result<(), Fault> {
        if self.0.guarded {
            let at = self.guarded_word(offset)?;
            // SAFETY: `guarded_word` checked it.
            return unsafe { guarded::store(at, value) };
        }
        self.word(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// As [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// # Errors
    /// As [`try_store_u64`](Self::try_store_u64).
    #[inline]
    pub fn try_compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        if self.0.guarded {
            let at = self.guarded_word(offset)?;
            // SAFETY: `guarded_word` checked it.
            return unsafe { guarded::compare_and_swap(at, compare, swap) };
        }
        match self.word(offset).compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(was) | Err(was) => Ok(was),
        }
    }

    /// As [`fetch_add`](Self::fetch_add).
    ///
    /// # Errors
    /// As [`try_store_u64`](Self::try_store_u64).
    #[inline]
    pub fn try_fetch_add(&self, offset: u64, add: u64) -> Result<u64, Fault> {
        if self.0.guarded {
            let at = self.guarded_word(offset)?;
            // SAFETY: `guarded_word` checked it.
            return unsafe { guarded::fetch_add(at, add) };
        }
        Ok(self.word(offset).fetch_add(add, Ordering::SeqCst))
    }

    /// The address of a word of borrowed memory. Where addresses that peers name and those of the memory differ, a
    /// word that is aligned for them need not be for us.
    fn guarded_word(&self, offset: u64) -> Result<*mut u8, Fault> {
        let at = self.at(offset, 8);
        if at.addr().is_multiple_of(8) { Ok(at) } else { Err(Fault) }
    }

    #[inline]
    fn or_zero(&self, value: Result<u64, Fault>) -> u64 {
        value.unwrap_or_else(|Fault| {
            self.fault();
            0
        })
    }

    /// Asks that these bytes go to the persistence domain; does not wait.
    #[inline]
    pub fn pwb(&self, range: Range<u64>) {
        let len = range.end.saturating_sub(range.start);
        let start = self.at(range.start, len as usize) as usize;
        match self.0.granularity {
            // SAFETY: every line of the range is mapped, as `at` checked: mappings are whole pages, and a page is
            // whole lines.
            StoreGranularity::CacheLine => unsafe {
                flush::write_back(self.0.instruction, start..start + len as usize);
            },
            StoreGranularity::Page => match &self.0.sync {
                Way::Journal(journal) => journal.pwb(range),
                Way::Pages(pages) => pages.pwb(self.page_range(range), self.0.page),
                Way::Owner => {}
            },
            StoreGranularity::Byte | StoreGranularity::None => {}
        }
    }

    /// Foreign memory need not start on a page, and msync wants one: then count from the page below.
    fn page_range(&self, range: Range<u64>) -> Range<u64> {
        let skew = self.0.base as u64 & (self.0.page - 1);
        if range.is_empty() { range } else { range.start + skew..range.end + skew }
    }

    /// No later store reaches the domain before every earlier write-back has.
    ///
    /// # Errors
    /// As [`psync`](Self::psync): on a page cache the only order is to wait.
    #[inline]
    pub fn pfence(&self) -> io::Result<()> {
        self.psync()
    }

    /// Waits until every earlier write-back, by any thread, is in the persistence domain.
    ///
    /// # Errors
    /// The medium failed, now or before: what was not durable may never be.
    #[inline]
    pub fn psync(&self) -> io::Result<()> {
        self.psync_unannounced().inspect_err(|_| self.announce_failure())
    }

    /// As [`psync`](Self::psync), for who has somebody else to answer before all are [told](Self::announce_failure) that it failed.
    ///
    /// # Errors
    /// As [`psync`](Self::psync).
    #[inline]
    pub fn psync_unannounced(&self) -> io::Result<()> {
        flush::fence();
        if self.0.granularity == StoreGranularity::Page {
            let synced = self.0.psyncs.run(|| {
                match &self.0.sync {
                    Way::Journal(journal) => journal.psync(|lines, into| self.copy_lines(lines, into))?,
                    Way::Pages(pages) => {
                        let written = pages.psync(|work| self.write_pages(work));
                        // The next owner must not take for durable what the cache alone has.
                        written.inspect_err(|_| self.file().into_iter().for_each(cache::take_trace))?;
                    }
                    Way::Owner => return Err(not_ours()),
                }
                self.check_length()?;
                self.failure()
            });
            return synced.inspect_err(|error| self.0.failed.note(error));
        }
        self.failure().inspect_err(|error| self.0.failed.note(error))
    }

    /// Calls those who asked to be [called](Self::when_failed), if a psync has failed.
    #[cold]
    pub fn announce_failure(&self) {
        self.0.failed.announce();
    }

    /// [`pwb`](Self::pwb) and [`psync`](Self::psync).
    ///
    /// # Errors
    /// As [`psync`](Self::psync).
    pub fn persist(&self, range: Range<u64>) -> io::Result<()> {
        self.pwb(range);
        self.psync()
    }

    fn write_pages(&self, work: Work) -> io::Result<()> {
        let skew = self.0.base as usize & (self.0.page as usize - 1);
        let ranges = match (work, &self.0.file) {
            (Work::Everything, Some(file)) => return file.sync_data(),
            (Work::Everything, None) => std::iter::once(0..self.0.len + skew as u64).collect(),
            (Work::Ranges(ranges), _) => ranges,
        };
        for range in ranges {
            let start = range.start as usize;
            self.0.mapping.msync(start.wrapping_sub(skew), range.end as usize - start)?;
        }
        Ok(())
    }

    /// Adds the bytes of whole lines to the end; those behind the region's end are zeros. Each word is loaded at once.
    fn copy_lines(&self, lines: Range<u64>, into: &mut Vec<u8>) -> io::Result<()> {
        let line = LINE as u64;
        let (start, end) = (lines.start * line, (lines.end * line).min(self.0.len));
        let words = end & !7;
        let before = into.len();
        into.reserve(((lines.end - lines.start) * line) as usize);
        for at in (start..words).step_by(8) {
            #[expect(clippy::host_endian_bytes, reason = "the bytes as they lie there")]
            into.extend_from_slice(&self.word(at).load(Ordering::Acquire).to_ne_bytes());
        }
        let mut rest = [0; 8];
        self.read(words, &mut rest[..(end - words) as usize]);
        into.extend_from_slice(&rest[..(end - words) as usize]);
        into.resize(before + ((lines.end - lines.start) * line) as usize, 0);
        // A page that was lost meanwhile reads as zeros, which must not be taken for its bytes.
        self.failure()
    }

    fn file_len(&self) -> u64 {
        match &self.0.sync {
            Way::Journal(journal) => journal.file_len(),
            Way::Pages(_) | Way::Owner => self.0.len,
        }
    }

    /// Pages beyond the end of a file that was cut short are dropped from the mapping without a signal until somebody
    /// touches them, and msync of them succeeds. (A journal's writes end before the last byte of its file, and so never
    /// make up for what was cut off.)
    fn check_length(&self) -> io::Result<()> {
        let Some(file) = &self.0.file else { return Ok(()) };
        let found = file.metadata()?.len();
        if found < self.file_len() { Err(self.lost_page(found & !(self.0.page - 1))) } else { Ok(()) }
    }
}

#[cold]
fn vanished() -> io::Error {
    io::Error::other(
        "memory that was borrowed from its owner was unmapped while it was in use; nothing of it is left",
    )
}

#[cold]
fn not_ours() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "this memory's file has a journal, which only its owner writes: ask the owner to persist it",
    )
}

fn is_sealed_memfd(file: &File) -> bool {
    // SAFETY: asks for flags of an open file; other files answer EINVAL.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("kind", &self.0.kind)
            .field("len", &self.0.len)
            .field("path", &self.0.path)
            .field("domain", &self.0.domain.domain())
            .finish_non_exhaustive()
    }
}

impl Medium for Region {
    fn len(&self) -> u64 {
        self.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        self.read(offset, into);
    }
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes);
    }
    fn write_nt(&self, offset: u64, bytes: &[u8]) {
        self.write_nt(offset, bytes);
    }
    fn write_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        from.copy_to(at, self, offset, len as usize);
    }
    fn write_nt_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        from.copy_nt_to(at, self, offset, len as usize);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.store_u64(offset, value);
    }
    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.compare_and_swap(offset, compare, swap)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.fetch_add(offset, add)
    }
    fn pwb(&self, range: Range<u64>) {
        self.pwb(range);
    }
    fn pfence(&self) -> io::Result<()> {
        self.pfence()
    }
    fn psync(&self) -> io::Result<()> {
        self.psync()
    }
    fn failure(&self) -> io::Result<()> {
        self.failure()
    }
    fn ticket(&self) -> Option<Ticket> {
        (self.0.granularity == StoreGranularity::Page).then(|| self.0.psyncs.ticket())
    }
    fn is_covered(&self, ticket: Ticket) -> bool {
        self.0.psyncs.cover(ticket)
    }
}
