//! A medium, and somebody who is told of each step before it is made: tests count, refuse and hold up by it.

use std::io;
use std::ops::Range;

use crate::medium::Medium;

/// Who is told. Each step of which nothing is said is simply made.
pub trait Watch {
    /// How many bytes are stored in one step at most; more are so many steps.
    const STEP: usize = usize::MAX;

    /// A word is about to be loaded.
    fn load(&self) {}

    /// These bytes are about to be stored.
    fn store(&self, range: Range<u64>) {
        let _ = range;
    }

    /// These bytes are about to be written back.
    fn pwb(&self, range: Range<u64>) {
        let _ = range;
    }

    /// Somebody is about to order what was written back before what is stored later.
    fn pfence(&self) {}

    /// Somebody is about to wait for what was written back.
    ///
    /// # Errors
    /// The medium is to fail here, and nobody waits.
    fn psync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Somebody asks whether the medium stands.
    ///
    /// # Errors
    /// It does not.
    fn failure(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A medium of which each step is told to somebody before it is made.
#[derive(Clone, Debug)]
pub struct Watched<M, W> {
    /// What is beneath. Whoever uses it directly is not watched.
    pub medium: M,
    /// Who is told.
    pub watch: W,
}

impl<M: Medium, W: Watch> Medium for Watched<M, W> {
    fn len(&self) -> u64 {
        self.medium.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        self.medium.read(offset, into);
    }
    fn write(&self, offset: u64, bytes: &[u8]) {
        for (n, piece) in bytes.chunks(W::STEP).enumerate() {
            let at = offset + (n * W::STEP) as u64;
            self.watch.store(at..at + piece.len() as u64);
            self.medium.write(at, piece);
        }
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.watch.load();
        self.medium.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.watch.store(offset..offset + 8);
        self.medium.store_u64(offset, value);
    }
    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.watch.store(offset..offset + 8);
        self.medium.compare_and_swap(offset, compare, swap)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.watch.store(offset..offset + 8);
        self.medium.fetch_add(offset, add)
    }
    fn pwb(&self, range: Range<u64>) {
        self.watch.pwb(range.clone());
        self.medium.pwb(range);
    }
    fn pfence(&self) -> io::Result<()> {
        self.watch.pfence();
        self.medium.pfence()
    }
    fn psync(&self) -> io::Result<()> {
        self.watch.psync()?;
        self.medium.psync()
    }
    fn failure(&self) -> io::Result<()> {
        self.watch.failure()?;
        self.medium.failure()
    }
}
