//! Whether the log is where it was: else nobody who comes behind a crash finds what it has promised.
//!
//! The kernel tells when its file loses a name, gets another one, or is cut short; what is stored in a mapping tells nothing, so this costs nothing. Only what
//! becomes of a directory above is told to nobody: that is looked at with each batch.

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify;

/// Where a log is to be.
#[derive(Debug)]
pub(super) struct LogWatch {
    path: PathBuf,
    file: File,
    len: u64,
    inotify: OwnedFd,
}

impl LogWatch {
    /// That of a log that is there now.
    pub(super) fn new(path: &Path, file: File) -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let flags = inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::MOVE_SELF
            | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&inotify, format!("/proc/self/fd/{}", file.as_raw_fd()), flags)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len, inotify })
    }

    /// What can be read when something has become of the file.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Takes note of what the kernel has told.
    pub(super) fn take(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        // What it was is seen by a look at the file.
        while matches!(reader.next(), Ok(_) | Err(rustix::io::Errno::INTR)) {}
    }

    /// What has become of the log, if it is not there as it was.
    pub(super) fn lost(&self) -> Option<&'static str> {
        let found = match self.file.metadata() {
            Ok(found) if found.nlink() == 0 => return Some("was removed"),
            Ok(found) if found.len() != self.len => return Some("was cut short, or made longer"),
            Ok(found) => found,
            // A file that is open says what it is; if not, nothing of its name is known to be wrong.
            Err(_) => return None,
        };
        match fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (found.dev(), found.ino()) => None,
            Ok(_) => Some("was moved, and something else is in its place"),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Some("was moved"),
            // Who may not look there any more may find it again.
            Err(_) => None,
        }
    }
}
