//! How a cache and a file are opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a cache is opened: [`Cache::open`](crate::Cache::open).
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) log: PathBuf,
    pub(crate) keeps: Keeps,
    pub(crate) direct: bool,
    /// Bytes of a log, or of pages, that are made.
    pub(crate) bytes: Option<u64>,
    pub(crate) entries: Option<u64>,
    pub(crate) pages: usize,
    pub(crate) strict: bool,
    pub(crate) batch: Option<u64>,
    pub(crate) patience: Duration,
    pub(crate) begins: Option<fn()>,
}

/// What a cache keeps changes in until their files have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keeps {
    /// A log, with pages in memory beside it: NVCache.
    Log,
    /// Pages, with a small redo log: NVPages.
    Pages,
}

/// Bytes that an entry of the log takes.
const ENTRY: u64 = 4096 + 64;
/// The fewest entries that a log has.
const LEAST: u64 = 64;

impl Options {
    /// Those for a log in a file, which is made if it is not there: on persistent memory (DAX), on a disk, or in `/dev/shm`. What it has
    /// survives accordingly ([`Cache::survives`](crate::Cache::survives)).
    #[must_use]
    pub fn new(log: impl AsRef<Path>) -> Self {
        Self {
            log: log.as_ref().to_owned(),
            keeps: Keeps::Log,
            direct: false,
            bytes: None,
            entries: None,
            pages: (64 << 20) / crate::PAGE,
            strict: false,
            batch: None,
            patience: Duration::from_secs(60),
            begins: None,
        }
    }

    /// Those for pages in a file, in place of a log (NVPages): it is made if it is not there, and may be where a log's may be. Reads and writes are of these
    /// pages, which have both what files have and what they lack; there is none in other memory.
    #[must_use]
    pub fn pages(file: impl AsRef<Path>) -> Self {
        Self::new(file).in_pages()
    }

    /// The same with pages in that file, as by [`pages`](Self::pages).
    #[must_use]
    pub(crate) const fn in_pages(mut self) -> Self {
        self.keeps = Keeps::Pages;
        self
    }

    /// Whether pages are read from their files and written to them by `O_DIRECT`, past the kernel's page cache. With a log they are not.
    #[must_use]
    pub const fn direct(mut self, yes: bool) -> Self {
        self.direct = yes;
        self
    }

    /// Bytes of a log that is made, 128 MiB if nothing is said, 64 entries of 4 KiB at least, and 2^32 at most. Of pages some 4.5 MB are for names of files, and a sixteenth
    /// is for the redo log; there are 64 at least. What is there has to have this size.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self.entries = Some((bytes / ENTRY).max(LEAST));
        self
    }

    /// Bytes of file content that are kept in memory, 64 MiB if nothing is said, and 16 pages at least. Beside these there are some hundred bytes for
    /// each page, and for each entry of the log: a cache that would take more in all than the machine has is not opened. Where there are pages in place
    /// of a log it says nothing.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.pages = (bytes / crate::PAGE).max(16);
        self
    }

    /// Whether each write waits until it is durable, also on a disk, where that is a system call and not an instruction. If not, it is ordered when
    /// it returns, and durable when [`File::sync`](crate::File::sync) returns.
    #[must_use]
    pub const fn strict(mut self, yes: bool) -> Self {
        self.strict = yes;
        self
    }

    /// So many entries are brought into their files with one sync a file; a quarter of the log if nothing is said, and 10,000 at most. Of pages a quarter, and
    /// 1024 at most.
    #[must_use]
    pub const fn batch(mut self, entries: u64) -> Self {
        self.batch = Some(if entries == 0 { 1 } else { entries });
        self
    }

    /// How long a call waits while the disk takes nothing at all; a minute if nothing is said. As long as the disk takes something, it goes on waiting.
    #[must_use]
    pub const fn patience(mut self, time: Duration) -> Self {
        // A century is as good as for ever, and a point in time that there is.
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        self.patience = if time.as_secs() < LONGEST.as_secs() { time } else { LONGEST };
        self
    }

    /// What the cache's own thread calls before all else: who sees the system calls of this process by a hook learns by it which of them are the cache's.
    #[must_use]
    pub const fn thread_begins(mut self, call: fn()) -> Self {
        self.begins = Some(call);
        self
    }
}

/// How a file is opened: [`Cache::open_file`](crate::Cache::open_file).
#[derive(Clone, Copy, Default, Debug)]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) sync: bool,
    pub(crate) no_follow: bool,
    pub(crate) mode: Option<u32>,
}

impl OpenOptions {
    /// Opens a file that is there, for nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It can be read.
    #[must_use]
    pub const fn read(mut self, yes: bool) -> Self {
        self.read = yes;
        self
    }

    /// It can be written.
    #[must_use]
    pub const fn write(mut self, yes: bool) -> Self {
        self.write = yes;
        self
    }

    /// It can be written, and each write goes to its end, whatever the offset; also those of several threads and descriptors, none over another's.
    #[must_use]
    pub const fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// It is cut to nothing, which is an entry of the log as any truncation is; it has to be opened for writing.
    #[must_use]
    pub const fn truncate(mut self, yes: bool) -> Self {
        self.truncate = yes;
        self
    }

    /// It is made if it is not there. One that was made has its name durably when it is open.
    #[must_use]
    pub const fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// It is made, and must not be there.
    #[must_use]
    pub const fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Each write is durable when it returns, as with `O_DSYNC`.
    #[must_use]
    pub const fn sync(mut self, yes: bool) -> Self {
        self.sync = yes;
        self
    }

    /// It is refused if the last name of its path is a symbolic link, as with `O_NOFOLLOW`.
    #[must_use]
    pub const fn no_follow(mut self, yes: bool) -> Self {
        self.no_follow = yes;
        self
    }

    /// The permissions of a file that is made, from which the process' mask is taken; 0666 if nothing is said.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    pub(crate) const fn writes(&self) -> bool {
        self.write || self.append
    }
}
