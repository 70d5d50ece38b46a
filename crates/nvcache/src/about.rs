//! What the kernel says of a file.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

/// What a file is known by while it is open.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// What is asked of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) key: Key,
    pub(crate) is_regular: bool,
    pub(crate) len: u64,
    pub(crate) links: u32,
}

impl About {
    /// Of an open file.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?))
    }

    /// Of what is at a path.
    pub(crate) fn at(path: &Path, follow: bool) -> io::Result<Self> {
        let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(Self::from(&rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS)?))
    }

    fn from(stat: &rustix::fs::Statx) -> Self {
        Self {
            key: Key {
                device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
                inode: stat.stx_ino,
            },
            is_regular: FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile,
            len: stat.stx_size,
            links: stat.stx_nlink,
        }
    }
}

/// Where the kernel says that an open file is.
pub(crate) fn path_of(file: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}
