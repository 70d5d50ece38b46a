//! A part of a region: a log need not fill all of it, as receive buffers in persistent memory lie behind.

use std::io;
use std::ops::Range;

use remanence_pmem::{Medium, Region};

/// The first bytes of a region.
#[derive(Clone, Debug)]
pub struct Part {
    region: Region,
    len: u64,
}

impl Part {
    /// So many of them.
    ///
    /// # Panics
    /// If the region is shorter.
    #[must_use]
    pub fn new(region: Region, len: u64) -> Self {
        assert!(len <= Medium::len(&region), "a part of {len} bytes of a shorter region");
        Self { region, len }
    }

    fn inside(&self, offset: u64, len: usize) {
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        assert!(fits, "{len} bytes at offset {offset} do not lie in the first {}", self.len);
    }
}

impl Medium for Part {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.inside(offset, into.len());
        Medium::read(&self.region, offset, into);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.inside(offset, bytes.len());
        Medium::write(&self.region, offset, bytes);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.inside(offset, 8);
        Medium::load_u64(&self.region, offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.inside(offset, 8);
        Medium::store_u64(&self.region, offset, value);
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.inside(offset, 8);
        Medium::compare_and_swap(&self.region, offset, compare, swap)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.inside(offset, 8);
        Medium::fetch_add(&self.region, offset, add)
    }

    fn pwb(&self, range: Range<u64>) {
        self.inside(range.start, (range.end - range.start) as usize);
        Medium::pwb(&self.region, range);
    }

    fn pfence(&self) -> io::Result<()> {
        Medium::pfence(&self.region)
    }

    fn psync(&self) -> io::Result<()> {
        Medium::psync(&self.region)
    }

    fn failure(&self) -> io::Result<()> {
        Medium::failure(&self.region)
    }
}
