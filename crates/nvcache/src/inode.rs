//! A file that is open, by however many descriptors.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, RwLock};
use std::time::{Duration, SystemTime};

use remanence_cache::table::FileId;
use rustix::fs::SeekFrom;
use rustix::process::{Resource, getrlimit};

use crate::PAGE;
use crate::about::Key;
use crate::error::Error;

/// A page, where a disk takes it from.
#[derive(Debug)]
#[repr(align(4096))]
pub(crate) struct Block(pub(crate) [u8; PAGE]);

impl Block {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self([0; PAGE]))
    }
}

/// How far a file may grow is asked for in steps of so many bytes.
const STEP: u64 = 1 << 30;

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) id: FileId,
    pub(crate) key: Key,
    /// Its path when it was opened.
    pub(crate) path: PathBuf,
    /// It is locked by this descriptor, for as long as the cache has it.
    file: File,
    /// It can be written by that one.
    writes: bool,
    /// Or by this one, which was opened later.
    writer: OnceLock<File>,
    /// Whole pages are read and written by this one, past the kernel's page cache.
    direct: Option<File>,
    /// Whoever may move its end has this alone: so the end is known to who appends.
    pub(crate) extent: RwLock<()>,
    /// The index behind its last entry.
    last: AtomicU64,
    /// When it was last changed, in nanoseconds since 1970; 0: not since it was opened.
    modified: AtomicU64,
    /// It may grow to this length.
    allowed: AtomicU64,
    /// It has lost its last name: nothing of it is due after a crash.
    pub(crate) nameless: AtomicBool,
}

impl Inode {
    /// That of an open file, which `writes` if it can be written by that descriptor.
    pub(crate) const fn new(
        id: FileId,
        key: Key,
        path: PathBuf,
        file: File,
        writes: bool,
        direct: Option<File>,
    ) -> Self {
        Self {
            id,
            key,
            path,
            file,
            writes,
            writer: OnceLock::new(),
            direct,
            extent: RwLock::new(()),
            last: AtomicU64::new(0),
            modified: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            nameless: AtomicBool::new(false),
        }
    }

    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Takes a descriptor by which it can be written, if it has none.
    pub(crate) fn can_be_written_by(&self, file: File) {
        if !self.writes {
            // Of two that come at once one is enough.
            let _ = self.writer.set(file);
        }
    }

    /// The descriptor by which the cleaner writes.
    pub(crate) fn to_write(&self) -> io::Result<&File> {
        let own = self.writes.then_some(&self.file);
        own.or_else(|| self.writer.get()).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Reads a page that the file itself has; fewer bytes only at its end.
    pub(crate) fn read_page(&self, offset: u64, into: &mut Block) -> io::Result<usize> {
        let Some(direct) = &self.direct else { return self.read(offset, &mut into.0, 0) };
        loop {
            match direct.read_at(&mut into.0, offset) {
                Ok(PAGE) => return Ok(PAGE),
                // It ends there, or the kernel has stopped short of it: at a place that is none of a block's.
                Ok(some) => return self.read(offset, &mut into.0, some),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Writes a page, or as much of the last one as the file is to have: that goes by the page cache, as no other length is a disk's.
    pub(crate) fn write_page(&self, offset: u64, page: &Block, len: usize) -> io::Result<()> {
        let file = match &self.direct {
            Some(direct) if len == PAGE && self.writes => direct,
            _ => self.to_write()?,
        };
        file.write_all_at(&page.0[..len], offset)
    }

    /// Reads what the file itself has from an offset on, of which so much is `done`; fewer bytes only at its end.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8], mut done: usize) -> io::Result<usize> {
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(some) => done += some,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(done)
    }

    /// The index behind its last entry.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
    }

    /// It was changed by an entry that ends there.
    pub(crate) fn changed(&self, end: u64) {
        self.last.fetch_max(end, Ordering::SeqCst);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.modified.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// When it was last changed, if that was by the cache.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        let modified = self.modified.load(Ordering::Relaxed);
        (modified > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_nanos(modified))
    }

    /// Whether it may be so long. What the log has and its file can never take would stay in the log for ever.
    pub(crate) fn allows(&self, end: u64) -> Result<(), Error> {
        if end <= self.allowed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX).min(i64::MAX as u64);
        // The kernel refuses to go where no byte of a file can be; nobody uses the position of this descriptor.
        let fits = |end: u64| end <= limit && rustix::fs::seek(&self.file, SeekFrom::Start(end)).is_ok();
        let ample = end.checked_next_multiple_of(STEP).filter(|end| fits(*end));
        match ample.or_else(|| fits(end).then_some(end)) {
            Some(allowed) => {
                self.allowed.fetch_max(allowed, Ordering::Relaxed);
                Ok(())
            }
            None => Err(Error::TooLarge { path: self.path.clone(), end }),
        }
    }
}
