//! A descriptor of a file: its position, and what it was opened for.

use std::fs::Metadata;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::cache::{Keeper, modified};
use crate::error::Error;
use crate::inner::{Engine, WriteOffset};
use crate::inode::Inode;
use crate::options::OpenOptions;

/// What is said of a file.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Bytes of it, with what only the log has.
    pub len: u64,
    /// When it was changed last, also if that is only in the log.
    pub modified: SystemTime,
    /// What the system says of it. Its length, its time and its blocks there are those of what was brought into the file.
    pub system: Metadata,
}

impl Stat {
    pub(crate) fn of(inner: &dyn Engine, inode: &Inode) -> Result<Self, Error> {
        let system = inode.file().metadata().map_err(Error::system(&inode.path, "looked at"))?;
        Ok(Self { len: inner.len(inode), modified: modified(inode, &system), system })
    }

    pub(crate) fn of_system(system: Metadata, path: &Path) -> Result<Self, Error> {
        let modified = system.modified().map_err(Error::system(path, "looked at"))?;
        Ok(Self { len: system.len(), modified, system })
    }
}

/// A file that is open in a cache. Threads may share it; each call is whole beside others', and those that move the position come one after the other.
///
/// **What a write promises** when it returns: whoever reads the file through this cache sees it; it survives the death of this process at any moment, and is
/// there for everybody when the log was recovered, which [`Cache::open`](crate::Cache::open) and `rem cache recover` do. The loss of power it survives as follows, and then
/// also everything that had returned before it began:
///
/// | log | from when a write survives the loss of power and of the kernel |
/// |---|---|
/// | on persistent memory (DAX) | when it has returned |
/// | in a file on a disk | when [`sync`](Self::sync) has returned; with [`Options::strict`](crate::Options::strict) or [`OpenOptions::sync`], when it has returned |
/// | in `/dev/shm` | never for what is in the log: when it was brought into its file, as [`drain`](Self::drain) does |
///
/// A write of at most [`Cache::longest`](crate::Cache::longest) bytes is there wholly after a crash, or not at all. If a disk that holds a file does not take what is brought there, writes and syncs of that
/// file say so from then on, until it does; nothing of what had returned is lost.
#[derive(Debug)]
pub struct File {
    keeper: Arc<Keeper>,
    inode: Arc<Inode>,
    options: OpenOptions,
    position: Mutex<u64>,
    closed: bool,
}

impl File {
    pub(crate) fn new(keeper: Arc<Keeper>, inode: Arc<Inode>, options: &OpenOptions) -> Self {
        Self { keeper, inode, options: *options, position: Mutex::new(0), closed: false }
    }

    fn inner(&self) -> &dyn Engine {
        &*self.keeper.inner
    }

    fn position(&self) -> MutexGuard<'_, u64> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn not_opened(&self, what: &'static str) -> Error {
        Error::NotOpenedFor { path: self.inode.path.clone(), what }
    }

    /// Reads from an offset on: fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// It was not opened for reading; its disk, or an entry of the log, cannot be read; or a page has been changed so often that the disk is to have it first, and does
    /// not take it.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize, Error> {
        if !self.options.read {
            return Err(self.not_opened("read"));
        }
        self.inner().read(&self.inode, offset, into)
    }

    /// Reads from the position on, and moves it.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    pub fn read(&self, into: &mut [u8]) -> Result<usize, Error> {
        let mut position = self.position();
        let done = self.read_at(into, *position)?;
        *position += done as u64;
        Ok(done)
    }

    /// Writes at an offset, or at the end if it was opened to be appended to, as `pwrite` does on Linux. What lies between the end and the offset is zeros then. Fewer bytes than asked
    /// for were written where something failed behind the first of several changes.
    ///
    /// # Errors
    /// It was not opened for writing; it would be too long; the disk takes nothing; or the log has failed. Where a write that is to be durable fails with [`Error::Log`],
    /// it may be there.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, Error> {
        self.write_to(bytes, WriteOffset::At(offset)).map(|(_, done)| done)
    }

    fn write_to(&self, bytes: &[u8], place: WriteOffset) -> Result<(u64, usize), Error> {
        if !self.options.writes() {
            return Err(self.not_opened("written"));
        }
        let place = if self.options.append { WriteOffset::End } else { place };
        self.inner().write(&self.inode, place, bytes, self.options.sync)
    }

    /// Writes at the position, or at the end, and moves the position behind it.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        let mut position = self.position();
        let (offset, done) = self.write_to(bytes, WriteOffset::At(*position))?;
        *position = offset + done as u64;
        Ok(done)
    }

    /// Moves the position, also behind the end; says where it is.
    ///
    /// # Errors
    /// It would be before the begin, or where no file reaches.
    pub fn seek(&self, to: SeekFrom) -> Result<u64, Error> {
        self.inner().check_process()?;
        let mut position = self.position();
        let to = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
        };
        *position = to.filter(|to| i64::try_from(*to).is_ok()).ok_or(Error::OutOfBounds)?;
        Ok(*position)
    }

    /// Bytes of the file, with what only the log has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner().len(&self.inode)
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the file, or extends it by zeros. It promises what a write does.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        if !self.options.writes() {
            return Err(self.not_opened("written"));
        }
        self.inner().truncate(&self.inode, len, self.options.sync)
    }

    /// What is said of the file.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn stat(&self) -> Result<Stat, Error> {
        self.inner().check_process()?;
        Stat::of(self.inner(), &self.inode)
    }

    /// Waits until all that was written to the file is durable: it survives what the table above says of its log. On persistent memory and in `/dev/shm` there is nothing to wait for.
    ///
    /// # Errors
    /// The log has failed: what was written since the last sync may be lost with the machine. Or the disk does not take what the log has of this file, of which nothing is lost.
    pub fn sync(&self) -> Result<(), Error> {
        self.inner().sync(&self.inode)
    }

    /// Waits until all that was written to the file is in the file itself, durably: other programs see it then.
    ///
    /// # Errors
    /// The disk does not take it: the log keeps it, and it is tried again.
    pub fn drain(&self) -> Result<(), Error> {
        self.inner().drain(&self.inode)
    }

    /// Closes this descriptor. With the last one of a file all of it is brought into the file, durably, and the file can be opened by others.
    ///
    /// # Errors
    /// The disk does not take it: the descriptor is closed, the log keeps it, and the cache has the file until it was opened and closed again, or the cache was.
    pub fn close(mut self) -> Result<(), Error> {
        self.closed = true;
        self.keeper.closed(&self.inode)
    }

    /// The descriptor of the system by which the cache has the file.
    pub(crate) fn system(&self) -> &std::fs::File {
        self.inode.file()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.closed {
            // Who wants to know closes it.
            let _ = self.keeper.closed(&self.inode);
        }
    }
}

impl Read for &File {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(File::read(self, into)?)
    }
}

impl Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(File::write(self, bytes)?)
    }

    /// There is nothing in this process that the cache has not: [`File::sync`] and [`File::drain`] say more.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Ok(File::seek(self, to)?)
    }
}

impl Read for File {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, into)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Seek::seek(&mut &*self, to)
    }
}
