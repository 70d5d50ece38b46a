//! The file under a journal that is only looked at: reads go to the file, and what a recovery writes to a copy in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::format::{self, BLOCK, JournalLayout, MARK};
use super::log::{Disk, Part};
use crate::{Region, cache};

#[derive(Debug)]
pub(super) struct View<'a> {
    file: &'a File,
    place: JournalLayout,
    /// Of the region.
    copy: &'a Region,
    /// Whether the kernel told of something that could not be written, when it was asked.
    failed: Option<bool>,
}

impl<'a> View<'a> {
    pub(super) const fn new(file: &'a File, place: JournalLayout, copy: &'a Region) -> Self {
        Self { file, place, copy, failed: None }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed == Some(true)
    }

    /// What was cut off reads as zeros.
    fn read_at(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.file.read_at(into, at) {
                Ok(0) => {
                    into.fill(0);
                    return Ok(());
                }
                Ok(n) => (at, into) = (at + n as u64, &mut into[n..]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl Disk for View<'_> {
    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_at(self.place.block(block), into)
    }
    /// What is restored needs none.
    fn sync(&mut self) -> io::Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        let synced = self.file.sync_data();
        self.failed = Some(synced.is_err());
        synced
    }
    fn restore(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.copy.write(at, bytes);
        Ok(())
    }
    fn check(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// The file system is not asked: it says that a write failed once, and the next owner has to hear it, who can note it.
    fn prove(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn mark(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn marked(&mut self) -> io::Result<Option<u64>> {
        let mut bytes = [0; MARK];
        self.read_at(self.place.mark(), &mut bytes)?;
        Ok(format::marked(&bytes, &self.place.name))
    }
    fn forget(&mut self, part: Part) -> io::Result<()> {
        match part {
            Part::Region => Ok(()),
            Part::Halves => cache::forget(self.file, self.place.block(0), self.place.blocks() * BLOCK),
        }
    }
}
