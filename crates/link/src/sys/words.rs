//! A file of 64-bit words, mapped and shared with other processes of the same user.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

/// A shared mapping of `len` words, every access to which is atomic.
#[derive(Debug)]
pub(crate) struct Words {
    base: *const AtomicU64,
    len: usize,
}

// SAFETY: the mapping is only ever reached through shared references to atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `len` words of `file`, which must be as long; without a file, memory of our own.
    pub(crate) fn map(file: Option<&File>, len: usize) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | if file.is_none() { libc::MAP_ANONYMOUS } else { 0 };
        let fd = file.map_or(-1, AsRawFd::as_raw_fd);
        let bytes = len * size_of::<AtomicU64>();
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast_const().cast(), len })
    }

    /// Word `index`.
    pub(crate) fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "word {index} of {}", self.len);
        // SAFETY: inside the mapping (asserted), page-aligned base, alive as long as `self`; other processes access
        // it atomically as well. The file is never shortened by any version of this program.
        unsafe { &*self.base.add(index) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; references from `at` cannot outlive `self`.
        unsafe { libc::munmap(self.base.cast_mut().cast(), self.len * size_of::<AtomicU64>()) };
    }
}
