//! Why something is not done: one sentence each that says what to do, and the number that a C program finds in `errno`.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use remanence_cache::format::OpenError;
use remanence_cache::table::TableError;
use remanence_cache_live::daemon::DaemonError;

/// Why a call has failed. Unless it says otherwise, nothing was changed.
#[derive(thiserror::Error)]
pub enum Error {
    /// The system refuses something.
    #[error("{path} cannot be {what}: {source}")]
    System {
        /// What it is about.
        path: String,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Somebody else has the file.
    #[error(
        "{} is in use by another program, or by another cache of this one, and a file has one opener in this mode: close it there first",
        .path.display()
    )]
    InUse {
        /// The file that is locked.
        path: PathBuf,
    },
    /// A directory, a device or a pipe.
    #[error("{} is no regular file, and no other is cached: open it without the cache", .path.display())]
    NotRegular {
        /// What is none.
        path: PathBuf,
    },
    /// It lost its name, or got another, between two looks.
    #[error("{} was renamed or removed while it was opened: open it again", .path.display())]
    Moved {
        /// The file as it was named.
        path: PathBuf,
    },
    /// The file was opened for something else.
    #[error("{} was not opened to be {what}: open it again, for that", .path.display())]
    NotOpenedFor {
        /// The file that it is about.
        path: PathBuf,
        /// What it should be opened for.
        what: &'static str,
    },
    /// An offset or a length that no file has.
    #[error("no file here reaches as far: the offset or the length is out of bounds")]
    OutOfBounds,
    /// The end would lie further than the file system, or the process' limit, lets a file grow.
    #[error(
        "{} would reach {end} bytes, and its file system or the limit of this process (ulimit -f) allows no such file",
        .path.display()
    )]
    TooLarge {
        /// The file that it is about.
        path: PathBuf,
        /// Where the write or the truncation would have ended.
        end: u64,
    },
    /// The disk does not take what the log has.
    #[error(
        "what the cache has for {path} cannot be brought there ({why}): nothing is lost, and it is tried again; until then it takes no writes"
    )]
    Disk {
        /// The file that it is about.
        path: String,
        /// What the system says.
        why: String,
        /// Its number, as in `errno`.
        errno: i32,
    },
    /// The disk takes nothing, and says nothing.
    #[error(
        "the cache is full, or what it has was waited for, and the disk has taken nothing of it for {} s: nothing is lost; see whether the disk hangs, and try again",
        .patience.as_secs()
    )]
    Stuck {
        /// How long that is waited for.
        patience: Duration,
    },
    /// The log itself cannot be used any more: what was durable in it is. A change that fails so may be there after a recovery, or not.
    #[error("{} cannot be used any more ({why}): end the program; what it has is recovered when it is opened next", .log.display())]
    Log {
        /// The log's file.
        log: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The log cannot be opened.
    #[error("{}: {source}", .log.display())]
    Open {
        /// The log's file.
        log: PathBuf,
        /// Why it cannot be opened.
        source: OpenError,
    },
    /// The pages cannot be opened.
    #[error("{}: {source}", .pages.display())]
    Pages {
        /// The pages' file.
        pages: PathBuf,
        /// Why they cannot be opened.
        source: remanence_cache::pages::Fault,
    },
    /// The log's file cannot be opened.
    #[error("{0}")]
    Medium(#[from] remanence_pmem::Error),
    /// The log was not closed, and somebody has to decide something; or it is of another size.
    #[error("{0}")]
    Recovery(String),
    /// The log has no number for the file.
    #[error("{0}")]
    Table(#[from] TableError),
    /// This process has a copy of the cache, and the log belongs to its parent.
    #[error(
        "this process was forked from the one that has the cache: open another cache here, or leave the files to the parent"
    )]
    Forked,
    /// The cache was to be closed, and files are open.
    #[error("{count} files of the cache are open: close them first")]
    FilesOpen {
        /// How many there are.
        count: usize,
    },
    /// The cache is closed.
    #[error("the cache is closed: open it again")]
    Closed,
    /// A C program has no cache, or names a descriptor that is none.
    #[error("there is no such descriptor of the cache, or no cache: open it with nvinit and nvopen first")]
    BadDescriptor,
    /// A C program's argument has no meaning.
    #[error("{0}")]
    Argument(&'static str),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// A call of the system that has failed.
    pub(crate) fn system(path: impl Into<PathBuf>, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::System { path: path.display().to_string(), what, source }
    }

    /// The number of `errno` that says the same.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let of = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        match self {
            Self::System { source, .. } => of(source),
            Self::Disk { errno, .. } => *errno,
            Self::InUse { .. } | Self::FilesOpen { .. } => libc::EBUSY,
            Self::NotRegular { .. } | Self::OutOfBounds | Self::Argument(_) => libc::EINVAL,
            Self::Moved { .. } => libc::ESTALE,
            Self::NotOpenedFor { .. } | Self::Closed | Self::BadDescriptor => libc::EBADF,
            Self::TooLarge { .. } => libc::EFBIG,
            Self::Stuck { .. } => libc::ETIMEDOUT,
            Self::Table(TableError::Full { .. }) => libc::ENFILE,
            Self::Table(TableError::TooLong { .. }) => libc::ENAMETOOLONG,
            Self::Medium(remanence_pmem::Error::InUse { .. }) => libc::EBUSY,
            Self::Forked => libc::ECHILD,
            Self::Recovery(_) => libc::EUCLEAN,
            Self::Table(TableError::Medium(_))
            | Self::Log { .. }
            | Self::Open { .. }
            | Self::Pages { .. }
            | Self::Medium(_) => libc::EIO,
        }
    }
}

impl From<DaemonError> for Error {
    fn from(error: DaemonError) -> Self {
        Self::Recovery(error.to_string())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(Self::from_raw_os_error(error.errno()).kind(), error)
    }
}
