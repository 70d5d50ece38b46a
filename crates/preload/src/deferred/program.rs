//! What a deferred file's calls need of the program: its memory, its descriptors, and what the kernel says of a path that it names.
//!
//! *The promise of this room*: the program's memory is read and written by the kernel only (`process_vm_readv`, `process_vm_writev`), which says EFAULT where nothing is; what else a call is
//! given is ours.

use std::ffi::CStr;
use std::io;
use std::mem::zeroed;
use std::os::fd::AsRawFd as _;

use remanence_intercept::{Syscall, raw};

/// A number of `errno`.
pub(crate) type Errno = i32;

/// The kernel takes no more in one call.
const MOST: u64 = 0x7fff_f000;
/// And no more vectors.
const VECTORS: u64 = 1024;

pub(super) fn last() -> Errno {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Has the kernel carry out what the program was about to.
pub(super) fn forward(call: &Syscall) -> i64 {
    // SAFETY: the program's own call, with its own arguments.
    unsafe { raw(call.number, call.arguments) }
}

/// Runs something that may set `errno`, of which the program is to see nothing.
pub(super) fn keeping_errno<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: a word of this thread.
    let before = unsafe { libc::__errno_location().read() };
    let done = run();
    // SAFETY: the same.
    unsafe { libc::__errno_location().write(before) };
    done
}

/// What tells a thread from all others, without a call: the address that is the first word of its own memory, in the C library's ABI.
pub(super) fn thread() -> u64 {
    let own: u64;
    // SAFETY: reads a word that each thread of the C library has.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) own, options(nostack, readonly, preserves_flags)) };
    own
}

pub(super) fn process() -> u64 {
    // SAFETY: it takes nothing.
    unsafe { raw(libc::SYS_getpid as u64, [0; 6]) }.cast_unsigned()
}

/// `fcntl` with a number, or the address of something of ours that this command takes.
pub(super) fn control(fd: i32, command: i32, argument: u64) -> Result<i32, Errno> {
    // SAFETY: the caller's argument is one for this command.
    let done = unsafe { libc::fcntl(fd, command, argument) };
    if done < 0 { Err(last()) } else { Ok(done) }
}

/// What a file is known by.
pub(crate) type Key = (u64, u64);

/// What the kernel says of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) key: Key,
    mode: u32,
    pub(super) links: u32,
}

impl About {
    pub(super) fn of(fd: i32) -> Result<Self, Errno> {
        Self::at(fd, c"".as_ptr() as u64, libc::AT_EMPTY_PATH)
    }

    /// Of what is at a path, whose address the program has given.
    pub(super) fn at(directory: i32, path: u64, flags: i32) -> Result<Self, Errno> {
        // SAFETY: numbers only, for which zeros are values.
        let mut found: libc::statx = unsafe { zeroed() };
        let fields = libc::STATX_BASIC_STATS;
        // SAFETY: the kernel looks whether the path can be read, and writes into memory of ours.
        let done = unsafe { libc::statx(directory, path as *const _, flags, fields, &raw mut found) };
        if done < 0 {
            return Err(last());
        }
        let device = libc::makedev(found.stx_dev_major, found.stx_dev_minor);
        Ok(Self { key: (device, found.stx_ino), mode: found.stx_mode.into(), links: found.stx_nlink })
    }

    pub(super) const fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    pub(super) const fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// Whether a descriptor's file system keeps files on a disk, and leases.
pub(super) fn is_on_disk(fd: i32) -> bool {
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const F2FS: i64 = 0xf2f5_2010;
    // SAFETY: numbers only, for which zeros are values.
    let mut found: libc::statfs = unsafe { zeroed() };
    // SAFETY: it writes into memory of ours.
    let done = unsafe { libc::fstatfs(fd, &raw mut found) };
    done == 0 && [EXT, XFS, BTRFS, F2FS].contains(&(found.f_type & 0xffff_ffff))
}

/// Closes a descriptor that nobody knows, or that is the cache's in a process that has none.
pub(super) fn close(fd: i32) {
    // SAFETY: it takes a number.
    unsafe { libc::close(fd) };
}

/// Opens what is at a path of ours to read it, and closes it: whoever has a lease on it has given that back by then.
pub(super) fn break_lease(path: &CStr) {
    // SAFETY: a path of ours.
    close(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) });
}

/// As many descriptors as there are below a number, which nobody else can get meanwhile: what is opened gets a higher one.
pub(super) struct Fill(Vec<i32>);

impl Fill {
    pub(super) fn below(number: i32) -> Option<Self> {
        let null = std::fs::File::open("/dev/null").ok()?;
        let mut fill = Self(Vec::with_capacity(number.unsigned_abs() as usize));
        loop {
            let next = control(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0).ok()?;
            fill.0.push(next);
            if next >= number {
                return Some(fill);
            }
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.0.iter().copied().for_each(close);
    }
}

/// Bytes in the program, in pieces.
pub(super) struct Buffers {
    parts: Vec<[u64; 2]>,
    len: usize,
}

impl Buffers {
    pub(super) fn flat(at: u64, len: u64) -> Self {
        let len = len.min(MOST);
        Self { parts: vec![[at, len]], len: len as usize }
    }

    /// Those that so many vectors name.
    pub(super) fn vectors(at: u64, count: u64) -> Result<Self, Errno> {
        if count > VECTORS {
            return Err(libc::EINVAL);
        }
        let mut bytes = vec![0; count as usize * 16];
        if !Self::flat(at, bytes.len() as u64).read(0, &mut bytes) {
            return Err(libc::EFAULT);
        }
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let mut all = Self { parts: Vec::with_capacity(count as usize), len: 0 };
        for vector in bytes.chunks_exact(16) {
            let len = word(&vector[8..]);
            if i64::try_from(len).is_err() {
                return Err(libc::EINVAL);
            }
            // What is beyond is not taken, as by the kernel.
            let len = len.min(MOST - all.len as u64);
            all.parts.push([word(&vector[..8]), len]);
            all.len += len as usize;
        }
        Ok(all)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// So many bytes, from one on.
    fn window(&self, mut from: usize, mut len: usize) -> Vec<[u64; 2]> {
        let mut window = Vec::with_capacity(self.parts.len());
        for [at, part] in &self.parts {
            let skipped = from.min(*part as usize);
            let taken = (*part as usize - skipped).min(len);
            if taken > 0 {
                window.push([at.wrapping_add(skipped as u64), taken as u64]);
            }
            (from, len) = (from - skipped, len - taken);
        }
        window
    }

    /// Copies between memory of ours and the program's. Whether all of it was.
    fn copy(&self, number: libc::c_long, from: usize, ours: u64, len: usize) -> bool {
        let window = self.window(from, len);
        if len == 0 {
            return true;
        }
        let local = [ours, len as u64];
        // By the number of this thread: that of the process is of no use when its first thread has ended.
        // SAFETY: it takes nothing.
        let own = unsafe { raw(libc::SYS_gettid as u64, [0; 6]) }.cast_unsigned();
        let arguments = [own, local.as_ptr() as u64, 1, window.as_ptr() as u64, window.len() as u64, 0];
        // SAFETY: our side is as long as it says; the kernel looks at the other one.
        let done = unsafe { raw(number as u64, arguments) };
        done == len as i64
    }

    /// Copies bytes of the program, from one on. `false`: they are not all there.
    pub(super) fn read(&self, from: usize, into: &mut [u8]) -> bool {
        self.copy(libc::SYS_process_vm_readv, from, into.as_mut_ptr() as u64, into.len())
    }

    /// The same into the program.
    pub(super) fn write(&self, from: usize, bytes: &[u8]) -> bool {
        self.copy(libc::SYS_process_vm_writev, from, bytes.as_ptr() as u64, bytes.len())
    }
}

/// A word of the program.
pub(super) fn peek(at: u64) -> Option<u64> {
    let mut word = [0; 8];
    Buffers::flat(at, 8).read(0, &mut word).then(|| u64::from_le_bytes(word))
}
