//! What can go wrong when a region is made: one sentence each, which says what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::domain::PersistenceDomain;
use crate::flush::Instruction;

/// Why a region could not be made.
#[derive(thiserror::Error)]
pub enum Error {
    /// Another process, or another region of this one, has the file open as a region.
    #[error(
        "{path} is in use by {}: stop it first, or use another file",
        holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The file that is locked.
        path: PathBuf,
        /// The process that holds the lock, where /proc/locks names it.
        holder: Option<u32>,
    },
    /// The file does not exist, and nobody asked to create it.
    #[error("{path} does not exist: create it first, or check the path")]
    Missing {
        /// The path at which no file was found.
        path: PathBuf,
    },
    /// The file exists already, and was to be created anew.
    #[error("{path} exists already: open it instead, or remove it first if it is not needed")]
    Exists {
        /// The path at which there is a file already.
        path: PathBuf,
    },
    /// The file is shorter than what its owner wrote.
    #[error(
        "{path} was truncated: {found} bytes are left of {expected}; restore it from a replica or a backup"
    )]
    Truncated {
        /// The file that is shorter than it was.
        path: PathBuf,
        /// The length that it should have.
        expected: u64,
        /// The length that it has.
        found: u64,
    },
    /// The file is shorter than it was when it got its journal.
    #[error(
        "{path} was truncated: {found} bytes are left of {expected}, and of its journal not enough to be read; restore it \
         from a replica or a backup{way}"
    )]
    JournalCut {
        /// The file that was cut short.
        path: PathBuf,
        /// The length that it should have.
        expected: u64,
        /// The length that it has.
        found: u64,
        /// What can be done else.
        way: WayOut,
    },
    /// The file had a journal, as it says itself, and has none: nothing is left of it, or it was cut off.
    #[error(
        "the journal of {path} is gone, which may have had what was acknowledged last: restore the file from a replica or a \
         backup{way}"
    )]
    JournalGone {
        /// The file that says so.
        path: PathBuf,
        /// What can be done else.
        way: WayOut,
    },
    /// What a journal has is needed, and cannot be read.
    #[error("the journal of {path} is damaged, {what}: restore the file from a replica or a backup{way}")]
    JournalDamaged {
        /// The file that ends in the damaged journal.
        path: PathBuf,
        /// What is wrong with the journal.
        what: String,
        /// What can be done else.
        way: WayOut,
    },
    /// The journal was made by a program that does it otherwise.
    #[error(
        "the journal of {path} is of version {version}, and this program knows 1: open it with the one that made it"
    )]
    JournalVersion {
        /// The file that ends in the journal.
        path: PathBuf,
        /// The version that the journal's footer names.
        version: u32,
    },
    /// The file system cannot hold the file: found out now, by reserving every block, and not by SIGBUS later.
    #[error("no space for {len} bytes in {path}: free some space, or ask for less")]
    NoSpace {
        /// The file whose blocks could not be reserved.
        path: PathBuf,
        /// The length that was asked for.
        len: u64,
    },
    /// The file has, or would have, more bytes than this process may write a file to.
    #[error(
        "{path} takes {len} bytes, and the file-size limit of this process (ulimit -f) is {limit} bytes: raise it, or ask for less"
    )]
    FileLimit {
        /// The file that is refused.
        path: PathBuf,
        /// The length that it has, or was to have.
        len: u64,
        /// What the process may have.
        limit: u64,
    },
    /// The file is there, and has no bytes: whatever it had is gone.
    #[error("{path} has no bytes: put back what was there, from a replica or a backup{way}")]
    Empty {
        /// The file that has nothing.
        path: PathBuf,
        /// What can be done else.
        way: WayOut,
    },
    /// A directory, a device or a pipe.
    #[error(
        "{path} is not a regular file: a region needs one (for persistent memory, a file on a DAX mount)"
    )]
    NotAFile {
        /// The path at which there is something else than a regular file.
        path: PathBuf,
    },
    /// A region of no bytes, or one that does not fit the address space.
    #[error(
        "a region of {len} bytes cannot be mapped: ask for between 1 byte and what the machine can address"
    )]
    BadLength {
        /// The length that was asked for.
        len: u64,
    },
    /// A persistence domain was declared for memory that certainly does not have it.
    #[error(
        "{what} cannot be declared {declared}: its data gets to the device by fdatasync, whatever is declared; \
         leave the declaration out, or put the file on a DAX mount"
    )]
    Declared {
        /// What the domain was declared for: a file, with the medium that it is on.
        what: String,
        /// The domain that was declared.
        declared: PersistenceDomain,
    },
    /// Cache lines were to be written back by an instruction that this CPU does not have.
    #[error("this CPU has no {instruction}: leave the choice out, and the best that it has is taken")]
    NoInstruction {
        /// The instruction that was chosen.
        instruction: Instruction,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, on what.
        what: String,
        /// The error that the system call returned.
        source: io::Error,
    },
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What can be done with a file that cannot be used, or not without its journal, and of which there is no other copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WayOut {
    /// Nothing that we could tell: how long the file is without its journal is not known.
    Nothing,
    /// What only the journal has can be given up: the file has so many bytes without it.
    Truncate(u64),
    /// What its owner says, who has told the file that it has a journal: cut off, it would be missed.
    Owner(&'static str),
}

impl fmt::Display for WayOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Truncate(region) => {
                write!(f, " (or give up what only the journal has: truncate -s {region} cuts it off)")
            }
            Self::Owner(says) => write!(f, ", or {says}"),
        }
    }
}

impl Error {
    /// The same of a file whose owner says what to do.
    pub(crate) fn with_way(mut self, says: &'static str) -> Self {
        if let Self::JournalCut { way, .. }
        | Self::JournalGone { way, .. }
        | Self::JournalDamaged { way, .. }
        | Self::Empty { way, .. } = &mut self
        {
            *way = WayOut::Owner(says);
        }
        self
    }

    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source }
    }

    pub(crate) fn last_os(what: impl Into<String>) -> Self {
        Self::os(what, io::Error::last_os_error())
    }
}
