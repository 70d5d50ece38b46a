//! What the kernel knows of a file's page cache: whether it still has it, and whether writing it to the disk ever failed.
//!
//! The promise of this room: the calls are given descriptors that are open, and a number of ours to read or write.
//!
//! **Whether the cache was kept.** A boot of the machine is not the life of a cache: a file system may be unmounted and mounted
//! again, after it was shut down or its device was gone. The life that matters is that of the inode in the kernel's memory, which
//! goes not before its dirty pages are written or given up, and never survives its mount. So an owner leaves a trace there that is on no disk:
//! the hint about the life time of what is written (`F_SET_RW_HINT`, Linux 4.13), in its value *none*, which has no effect,
//! where a fresh inode's is *not set*. Who finds the trace knows that this very inode has been in memory since; a copy of the file, a
//! snapshot of its file system or a mount of a clone has none. Nor has a file whose inode the kernel has meanwhile forgotten, or whose opener may
//! not set it (since Linux 6.9 its owner may): that says nothing, and is taken for a loss.
//!
//! **Whether a write failed.** Linux tells of a page that could not be written once to each descriptor that was open then, and to
//! one opened later if nobody was told before. Then the page counts as clean: the cache has what the disk has not, until the page is
//! given up. [`check`] asks for that without writing anything. [`sync_all_of_system`] asks the file system,
//! which keeps an account of its own (Linux 5.8): what the death of a process took along with its answer is still in it.
#![expect(unsafe_code, reason = "system calls on descriptors")]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

#[cfg(test)]
thread_local! {
    /// How often this thread gave pages up.
    pub(crate) static FORGOTTEN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// `F_GET_RW_HINT` and `F_SET_RW_HINT` of fcntl(2): `F_LINUX_SPECIFIC_BASE` and 11 or 12.
const F_GET_RW_HINT: c_int = 1024 + 11;
const F_SET_RW_HINT: c_int = 1024 + 12;

/// `RWH_WRITE_LIFE_NONE`: no life time is known, as somebody said.
const TRACE: u64 = 1;
/// `RWH_WRITE_LIFE_NOT_SET`, which a fresh inode has.
const NO_TRACE: u64 = 0;

/// Whether [`leave_trace`] was called since the kernel has this inode in memory.
pub(crate) fn has_trace(file: &File) -> bool {
    let mut hint = 0_u64;
    // SAFETY: writes a word of ours.
    let got = unsafe { libc::fcntl(file.as_raw_fd(), F_GET_RW_HINT, &raw mut hint) };
    got == 0 && hint == TRACE
}

/// Has the kernel remember this inode until it forgets it. Without effect where it cannot.
pub(crate) fn leave_trace(file: &File) {
    let hint = TRACE;
    // SAFETY: reads a word of ours.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SET_RW_HINT, &raw const hint) };
}

/// Takes the trace away: whatever the cache has, nobody relies on it. Without effect where there never is one.
pub(crate) fn take_trace(file: &File) {
    let hint = NO_TRACE;
    // SAFETY: reads a word of ours.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SET_RW_HINT, &raw const hint) };
}

/// Has a file without a journal be read as the disk has it from now on, before anybody reads or maps it.
///
/// A page that could not be written counts as clean: it would be read, and taken for durable by every sync, until the kernel gives it
/// up and what is on the disk comes back. So the cache is given up, unless it is known that all of it is written, or was: its last
/// owner was told of no failure, or he would have taken his trace away, and neither the file nor its file system tells of one.
pub(crate) fn settle(file: &File, len: u64) -> io::Result<()> {
    let kept = has_trace(file);
    // Who is told of a failure and killed has told nobody.
    take_trace(file);
    let written = file.sync_all().is_ok() && kept && sync_all_of_system(file).is_ok();
    if !written {
        forget(file, 0, len)?;
    }
    leave_trace(file);
    Ok(())
}

/// Gives up the clean pages of part of a file, so that who reads next has what the disk has. Pages that a process has mapped stay.
pub(crate) fn forget(file: &File, from: u64, len: u64) -> io::Result<()> {
    #[cfg(test)]
    FORGOTTEN.with(|count| count.set(count.get() + 1));
    let number = |n: u64| i64::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG));
    // SAFETY: changes no content.
    match unsafe {
        libc::posix_fadvise(file.as_raw_fd(), number(from)?, number(len)?, libc::POSIX_FADV_DONTNEED)
    } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e)),
    }
}

/// The error of any page of the file that could not be written since this descriptor last heard of one. Of the page at `at` it
/// waits for a write that is under way; it starts none.
pub(crate) fn check(file: &File, at: u64) -> io::Result<()> {
    let at = i64::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: waits, and changes nothing.
    check_call(unsafe { libc::sync_file_range(file.as_raw_fd(), at, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) })
}

/// Writes all that the file system of a file has, and says whether writing anything of it ever failed and nobody who asked this was told.
pub(crate) fn sync_all_of_system(file: &File) -> io::Result<()> {
    // SAFETY: changes no content.
    check_call(unsafe { libc::syncfs(file.as_raw_fd()) })
}

fn check_call(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
