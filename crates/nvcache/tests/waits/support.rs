//! A directory with files and a log, in memory or on a disk, that go with the test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use remanence_nvcache::{Cache, OpenOptions, Options};

/// Where a log lies, or pages in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Medium {
    /// `/dev/shm`: what is committed survives the death of the process.
    Memory,
    /// A file on the disk that the tests are built on.
    Disk,
    /// Pages in `/dev/shm`.
    Pages,
    /// Pages in a file on that disk.
    PagesOnDisk,
    /// Pages in `/dev/shm`, of files that are read and written by `O_DIRECT`.
    PagesDirect,
}

pub(crate) const MEDIA: [Medium; 5] =
    [Medium::Memory, Medium::Disk, Medium::Pages, Medium::PagesOnDisk, Medium::PagesDirect];
/// One of either kind.
pub(crate) const EITHER: [Medium; 2] = [Medium::Memory, Medium::Pages];

impl Medium {
    pub(crate) const fn is_log(self) -> bool {
        matches!(self, Self::Memory | Self::Disk)
    }

    /// The name of its file, which says what is in it.
    const fn name(self) -> &'static str {
        match self {
            Self::Memory | Self::Disk => "log",
            Self::Pages | Self::PagesOnDisk => "pages",
            Self::PagesDirect => "direct-pages",
        }
    }
}

pub(crate) struct World {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) log: PathBuf,
}

impl World {
    pub(crate) fn new(medium: Medium) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let directory =
            tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo's directory for tests");
        let name = medium.name();
        let log = match medium {
            Medium::Disk | Medium::PagesOnDisk => directory.path().join(name),
            Medium::Memory | Medium::Pages | Medium::PagesDirect => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                format!("/dev/shm/remanence-nvcache-test-{}-{number}-{name}", std::process::id()).into()
            }
        };
        Self { directory, log }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A cache with a log and a memory that are as small as they can be.
    pub(crate) fn open(&self) -> Cache {
        Cache::open(&small(&self.log)).expect("nobody has the log")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.log);
    }
}

/// The smallest log and memory, or as few pages as there are: they are full all the time.
pub(crate) fn small(log: &Path) -> Options {
    let name = log.to_string_lossy();
    let options = if name.ends_with("pages") { Options::pages(log) } else { Options::new(log) };
    let options = options.size(64 * 4160).memory(16 * 4096).patience(Duration::from_secs(120));
    options.direct(name.ends_with("direct-pages"))
}

pub(crate) fn both() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

/// Numbers in an order that a seed chooses.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}
