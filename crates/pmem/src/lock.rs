//! A file that this process has for itself.
//!
//! flock(2) ties a lock to the open file, and frees it with its last descriptor: a killed process holds nobody up. But a
//! duplicate may exist a moment longer than the value. Every child of this process begins with all its
//! descriptors, and has them until it executes another program; so a file that was only closed would now and then be found
//! in use, by a process that has nothing to do with it. It is therefore unlocked before it is closed.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;

/// A file, and the lock on it if it was taken: given back when this is dropped, whoever still has a duplicate.
#[derive(Debug)]
pub(crate) struct OwnFile {
    file: File,
    /// The process that took the lock and gives it back, which a forked child does not: the lock is its parent's still.
    /// `None` while the file is not locked.
    locked_by: Option<u32>,
}

impl OwnFile {
    /// Takes the file for ourselves, until this is dropped.
    pub(crate) fn lock(&mut self) -> io::Result<()> {
        self.locked(self.file.try_lock())
    }

    /// Keeps everybody away who would have it for himself, until this is dropped.
    pub(crate) fn lock_to_look(&mut self) -> io::Result<()> {
        self.locked(self.file.try_lock_shared())
    }

    fn locked(&mut self, outcome: Result<(), TryLockError>) -> io::Result<()> {
        outcome.map_err(|why| match why {
            TryLockError::Error(e) => e,
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
        })?;
        self.locked_by = Some(std::process::id());
        Ok(())
    }
}

impl From<File> for OwnFile {
    /// Takes over an open file without locking it.
    fn from(file: File) -> Self {
        Self { file, locked_by: None }
    }
}

impl Deref for OwnFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if self.locked_by == Some(std::process::id()) {
            // It fails for no open file; and closing comes next anyway.
            let _ = self.file.unlock();
        }
    }
}
