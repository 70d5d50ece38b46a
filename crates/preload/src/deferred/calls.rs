//! Which system call does what.
//!
//! | call | what is done |
//! |---|---|
//! | `open` and its kin, to write | the kernel's; then the file is taken, if it can be. One that the cache has already is handed back first |
//! | `read`, `write` and their kin, `lseek`, `ftruncate`, `fsync`, `fdatasync`, `sync_file_range` | the cache's, on a file that it has |
//! | `stat` and its kin, by a descriptor or a path | the kernel's, with the length and the time that the cache knows |
//! | `dup` and its kin | the kernel's; the new number leads to the same file |
//! | `close`, `close_range`, `dup2` onto it | the last number: the file is handed back first. A number of the cache's own is none |
//! | `fcntl`: flags that are read, those of the number; `ioctl`: whether it is a terminal, those of the number | the kernel's |
//! | `sync`, `syncfs` | the kernel's, when the log has all durably |
//! | `fcntl` else, locks above all; `ioctl` else; `flock`; `mmap`; `fallocate`; `copy_file_range`, `sendfile`, `splice`; `lseek` to data and holes; reads and writes with flags | the file is handed back first |
//! | `rename`, `unlink`, `utimensat`, `truncate` and their kin, of a path | the same; of a directory that is renamed, all are |
//! | `fork`, `vfork`, `clone` but of a thread, `execve`, `io_submit`, messages with descriptors | all are |
//! | `setrlimit` and its kin, of the length of files | all are |
//! | `chroot`, `pivot_root`, `unshare`, `setns`, a table of descriptors that is shared | all are, and no other is taken: a recovery would look elsewhere |
//! | `io_uring_setup` | is refused as on a kernel that lacks it |
//! | `exit_group`, and `exit` of the last thread | all is brought into the files, and the log is closed |
//!
//! All else is the kernel's alone.

use std::io::SeekFrom;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use remanence_intercept::{Syscall, Verdict};
use remanence_nvcache::File;
use remanence_nvcache::programs::Count;

use super::open::{self, Open, lock};
use super::program::{self, About, Buffers, Errno, control, forward, peek};
use super::{SHARES_MEMORY, THREADS, count, keeper};

/// The numbers that a hook asks [`wants`] about.
pub(super) const NUMBERS: [u16; 68] = [
    libc::SYS_open as u16,
    libc::SYS_openat as u16,
    libc::SYS_openat2 as u16,
    libc::SYS_creat as u16,
    libc::SYS_read as u16,
    libc::SYS_pread64 as u16,
    libc::SYS_readv as u16,
    libc::SYS_preadv as u16,
    libc::SYS_preadv2 as u16,
    libc::SYS_write as u16,
    libc::SYS_pwrite64 as u16,
    libc::SYS_writev as u16,
    libc::SYS_pwritev as u16,
    libc::SYS_pwritev2 as u16,
    libc::SYS_lseek as u16,
    libc::SYS_ftruncate as u16,
    libc::SYS_fsync as u16,
    libc::SYS_fdatasync as u16,
    libc::SYS_sync_file_range as u16,
    libc::SYS_sync as u16,
    libc::SYS_syncfs as u16,
    libc::SYS_stat as u16,
    libc::SYS_fstat as u16,
    libc::SYS_lstat as u16,
    libc::SYS_newfstatat as u16,
    libc::SYS_statx as u16,
    libc::SYS_dup as u16,
    libc::SYS_dup2 as u16,
    libc::SYS_dup3 as u16,
    libc::SYS_fcntl as u16,
    libc::SYS_close as u16,
    libc::SYS_close_range as u16,
    libc::SYS_ioctl as u16,
    libc::SYS_flock as u16,
    libc::SYS_mmap as u16,
    libc::SYS_fallocate as u16,
    libc::SYS_copy_file_range as u16,
    libc::SYS_sendfile as u16,
    libc::SYS_splice as u16,
    libc::SYS_rename as u16,
    libc::SYS_renameat as u16,
    libc::SYS_renameat2 as u16,
    libc::SYS_unlink as u16,
    libc::SYS_unlinkat as u16,
    libc::SYS_truncate as u16,
    libc::SYS_utime as u16,
    libc::SYS_utimes as u16,
    libc::SYS_futimesat as u16,
    libc::SYS_utimensat as u16,
    libc::SYS_fork as u16,
    libc::SYS_vfork as u16,
    libc::SYS_clone as u16,
    libc::SYS_clone3 as u16,
    libc::SYS_execve as u16,
    libc::SYS_execveat as u16,
    libc::SYS_io_submit as u16,
    libc::SYS_io_uring_setup as u16,
    libc::SYS_sendmsg as u16,
    libc::SYS_sendmmsg as u16,
    libc::SYS_pidfd_getfd as u16,
    libc::SYS_chroot as u16,
    libc::SYS_pivot_root as u16,
    libc::SYS_unshare as u16,
    libc::SYS_setns as u16,
    libc::SYS_exit as u16,
    libc::SYS_exit_group as u16,
    libc::SYS_setrlimit as u16,
    libc::SYS_prlimit64 as u16,
];

/// Bytes that a read takes from the cache at a time.
const CHUNK: usize = 1 << 20;

/// `TCGETS`, `TIOCGWINSZ`, `FIONCLEX` and `FIOCLEX`: they say nothing of what is in a file.
const HARMLESS: [u64; 4] = [0x5401, 0x5413, 0x5450, 0x5451];
const CLONE: u64 = 0x4004_9409;
const CLONE_RANGE: u64 = 0x4020_940d;
const CLOSE_RANGE_UNSHARE: u64 = 2;
const CLOSE_RANGE_CLOEXEC: u64 = 4;

fn number(call: &Syscall) -> libc::c_long {
    i64::from(call.number as u32)
}

/// Whether an `open` with these flags is of a file that may be written.
const fn writes(flags: u64) -> bool {
    let flags = flags as i32;
    flags & libc::O_ACCMODE != libc::O_RDONLY && flags & (libc::O_PATH | libc::O_DIRECTORY) == 0
}

/// What [`Hook::wants`](remanence_intercept::Hook::wants) is for deferred files.
pub(super) fn wants(call: &Syscall) -> bool {
    let arguments = &call.arguments;
    let has = |n: usize| open::has(arguments[n]);
    match number(call) {
        libc::SYS_open => writes(arguments[1]) || open::any(),
        libc::SYS_openat => writes(arguments[2]) || open::any(),
        libc::SYS_close => has(0) || open::is_own(arguments[0]),
        libc::SYS_dup2 | libc::SYS_dup3 => has(0) || has(1) || open::is_own(arguments[1]),
        libc::SYS_mmap => arguments[3] & libc::MAP_ANONYMOUS as u64 == 0 && has(4),
        // What is cloned, by that number or in a structure, is not to be changed: but it has to be in its file.
        libc::SYS_ioctl => has(0) || matches!(arguments[1] & 0xffff_ffff, CLONE | CLONE_RANGE) && open::any(),
        libc::SYS_copy_file_range | libc::SYS_splice => has(0) || has(2),
        libc::SYS_sendfile => has(0) || has(1),
        // How long files may be: the cache has asked for that.
        libc::SYS_setrlimit => arguments[0] as u32 == libc::RLIMIT_FSIZE && open::any(),
        libc::SYS_prlimit64 => arguments[1] as u32 == libc::RLIMIT_FSIZE && arguments[2] != 0 && open::any(),
        libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_truncate
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat
        | libc::SYS_utimensat
        | libc::SYS_sync
        | libc::SYS_syncfs
        | libc::SYS_io_submit
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_pidfd_getfd => open::any(),
        libc::SYS_openat2
        | libc::SYS_creat
        | libc::SYS_close_range
        | libc::SYS_fork
        | libc::SYS_vfork
        | libc::SYS_clone
        | libc::SYS_clone3
        | libc::SYS_execve
        | libc::SYS_execveat
        | libc::SYS_io_uring_setup
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_unshare
        | libc::SYS_setns
        | libc::SYS_exit
        | libc::SYS_exit_group => true,
        // All others are about a descriptor.
        _ => has(0),
    }
}

/// What [`Hook::handle`](remanence_intercept::Hook::handle) is for deferred files.
pub(super) fn answer(call: &Syscall) -> Verdict {
    let fd = |n: usize| call.arguments[n] as i32;
    match number(call) {
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 | libc::SYS_creat => opened(call),
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => {
            transfer(call, read)
        }
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => {
            transfer(call, write)
        }
        libc::SYS_lseek => seek(call),
        libc::SYS_ftruncate => on_file(call, |_, file| {
            let len = u64::try_from(call.arguments[1].cast_signed()).map_err(|_| libc::EINVAL)?;
            count(Count::Writes, 1);
            file.set_len(len).map_or_else(|why| Err(why.errno()), |()| Ok(0))
        }),
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range => on_file(call, |_, file| {
            count(Count::Syncs, 1);
            file.sync().map_or_else(|why| Err(why.errno()), |()| Ok(0))
        }),
        libc::SYS_sync | libc::SYS_syncfs => {
            for open in open::all() {
                // As by the kernel, nobody is told.
                let _ = open.state().as_ref().map(File::sync);
            }
            Verdict::Pass
        }
        libc::SYS_stat | libc::SYS_fstat | libc::SYS_lstat => stat(call, 1),
        libc::SYS_newfstatat => stat(call, 2),
        libc::SYS_statx => stat(call, 4),
        libc::SYS_dup => duplicate(call, None),
        libc::SYS_dup2 | libc::SYS_dup3 => duplicate(call, Some(fd(1))),
        libc::SYS_fcntl => control_file(call),
        libc::SYS_close => close(call),
        libc::SYS_close_range => close_range(call),
        libc::SYS_ioctl => match call.arguments[1] & 0xffff_ffff {
            harmless if HARMLESS.contains(&harmless) => Verdict::Pass,
            CLONE => both_back(fd(0), fd(2)),
            CLONE_RANGE => passes(open::hand_back_all(Count::Copied)),
            _ => back(fd(0), Count::Other),
        },
        libc::SYS_flock => back(fd(0), Count::Locked),
        libc::SYS_mmap => back(fd(4), Count::Mapped),
        libc::SYS_fallocate => back(fd(0), Count::Allocated),
        libc::SYS_copy_file_range | libc::SYS_splice => both_back(fd(0), fd(2)),
        libc::SYS_sendfile => both_back(fd(0), fd(1)),
        libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_truncate
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat
        | libc::SYS_utimensat => named(call),
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => child(call),
        libc::SYS_execve | libc::SYS_execveat => passes(open::hand_back_all(Count::Executed)),
        libc::SYS_io_submit => passes(open::hand_back_all(Count::Asynchronous)),
        libc::SYS_setrlimit | libc::SYS_prlimit64 => passes(open::hand_back_all(Count::Other)),
        libc::SYS_io_uring_setup => Verdict::Return(-i64::from(libc::ENOSYS)),
        libc::SYS_sendmsg | libc::SYS_sendmmsg if !sends_descriptors(call) => Verdict::Pass,
        libc::SYS_sendmsg | libc::SYS_sendmmsg | libc::SYS_pidfd_getfd => {
            passes(open::hand_back_all(Count::Sent))
        }
        libc::SYS_unshare if call.arguments[0] & ELSEWHERE == 0 => Verdict::Pass,
        libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_unshare | libc::SYS_setns => elsewhere(),
        libc::SYS_exit => {
            if THREADS.fetch_sub(1, Ordering::SeqCst) == 1 {
                keeper::end_process(fd(0));
            }
            Verdict::Pass
        }
        libc::SYS_exit_group => {
            keeper::end();
            Verdict::Pass
        }
        _ => Verdict::Pass,
    }
}

/// What of a process' own makes a path mean something else, or a number.
const ELSEWHERE: u64 = (libc::CLONE_FILES | libc::CLONE_NEWNS | libc::CLONE_NEWUSER) as u64;

fn verdict(done: Result<i64, Errno>) -> Verdict {
    Verdict::Return(done.unwrap_or_else(|errno| -i64::from(errno)))
}

/// The kernel is next, if that could be done.
fn passes(done: Result<(), Errno>) -> Verdict {
    done.map_or_else(|errno| Verdict::Return(-i64::from(errno)), |()| Verdict::Pass)
}

/// A descriptor's file is handed back, and the kernel is next.
fn back(fd: i32, why: Count) -> Verdict {
    passes(open::of(fd).map_or(Ok(()), |open| open.hand_back(why)))
}

fn both_back(from: i32, to: i32) -> Verdict {
    match back(from, Count::Copied) {
        Verdict::Pass => back(to, Count::Copied),
        refused @ Verdict::Return(_) => refused,
    }
}

/// Answers a call on the file of its first argument, unless the kernel has that.
fn on_file(call: &Syscall, answer: impl FnOnce(&Open, &File) -> Result<i64, Errno>) -> Verdict {
    let Some(open) = open::of(call.arguments[0] as i32) else { return Verdict::Pass };
    let answered = open.state().as_ref().map(|file| answer(&open, file));
    match answered {
        None => Verdict::Pass,
        // How much of it fits, and who is told by a signal, is the kernel's to say.
        Some(Err(libc::EFBIG)) => passes(open.hand_back(Count::Other)),
        Some(answered) => verdict(answered),
    }
}

fn opened(call: &Syscall) -> Verdict {
    let [a, b, c, ..] = call.arguments;
    let (directory, path, flags) = match number(call) {
        libc::SYS_open => (libc::AT_FDCWD, a, b),
        libc::SYS_creat => (libc::AT_FDCWD, a, (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u64),
        libc::SYS_openat => (a as i32, b, c),
        _ => match peek(c) {
            Some(flags) => (a as i32, b, flags),
            None => return Verdict::Pass,
        },
    };
    let has = |flag: i32| flags as i32 & flag != 0;
    let is_new = has(libc::O_CREAT) && has(libc::O_EXCL);
    let follow = if is_new || has(libc::O_NOFOLLOW) { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    let made = match About::at(directory, path, follow) {
        Ok(about) if about.is_regular() && !is_new && !has(libc::O_PATH) => {
            if let Some(open) = open::known(about.key)
                && let Err(errno) = open.hand_back(Count::Shared)
            {
                return Verdict::Return(-i64::from(errno));
            }
            false
        }
        Err(libc::ENOENT) if has(libc::O_CREAT) => true,
        _ => return Verdict::Pass,
    };
    if !writes(flags) {
        return Verdict::Pass;
    }
    let fd = forward(call);
    if fd >= 0 {
        open::take(fd as i32, flags as i32, made);
    }
    Verdict::Return(fd)
}

type Transfer = fn(&Open, &File, &Buffers, Option<u64>) -> Result<i64, Errno>;

/// A read or a write.
fn transfer(call: &Syscall, carry_out: Transfer) -> Verdict {
    let [fd, at, len, offset, _, flags] = call.arguments;
    let number = number(call);
    let is_second = matches!(number, libc::SYS_preadv2 | libc::SYS_pwritev2);
    if is_second && flags as i32 != 0 {
        return back(fd as i32, Count::Other);
    }
    let is_flat = matches!(number, libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64);
    let is_current = matches!(number, libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev)
        || is_second && offset == u64::MAX;
    on_file(call, |open, file| {
        let place = (!is_current).then_some(offset);
        if place.is_some_and(|offset| i64::try_from(offset).is_err()) {
            return Err(libc::EINVAL);
        }
        let buffers = if is_flat { Buffers::flat(at, len) } else { Buffers::vectors(at, len)? };
        carry_out(open, file, &buffers, place)
    })
}

fn read(open: &Open, file: &File, buffers: &Buffers, place: Option<u64>) -> Result<i64, Errno> {
    let _turn = place.is_none().then(|| lock(&open.turn));
    count(Count::Reads, 1);
    let at = |to: SeekFrom| file.seek(to).map_err(|why| why.errno());
    let from = place.map_or_else(|| at(open::HERE), Ok)?;
    let (mut done, mut bytes, mut refused) = (0, Vec::new(), None);
    while done < buffers.len() && refused.is_none() {
        let wanted = (buffers.len() - done).min(CHUNK);
        bytes.resize(wanted, 0);
        match file.read_at(&mut bytes, from.saturating_add(done as u64)) {
            Ok(got) if !buffers.write(done, &bytes[..got]) => refused = Some(libc::EFAULT),
            Ok(got) => {
                done += got;
                if got < wanted {
                    break;
                }
            }
            Err(why) => refused = Some(why.errno()),
        }
    }
    match refused {
        Some(errno) if done == 0 => return Err(errno),
        _ => {}
    }
    if place.is_none() {
        at(SeekFrom::Start(from + done as u64))?;
    }
    Ok(done as i64)
}

fn write(open: &Open, file: &File, buffers: &Buffers, place: Option<u64>) -> Result<i64, Errno> {
    let _turn = place.is_none().then(|| lock(&open.turn));
    count(Count::Writes, 1);
    // As much as is one change at a time.
    let longest = keeper::cache().map_or(CHUNK, |cache| cache.longest() as usize);
    let (mut done, mut bytes) = (0, Vec::new());
    while done < buffers.len() {
        bytes.resize((buffers.len() - done).min(longest), 0);
        if !buffers.read(done, &mut bytes) {
            return if done > 0 { Ok(done as i64) } else { Err(libc::EFAULT) };
        }
        let taken = match place {
            Some(offset) => file.write_at(&bytes, offset.saturating_add(done as u64)),
            None => file.write(&bytes),
        };
        match taken {
            Ok(taken) => done += taken,
            Err(_) if done > 0 => break,
            Err(why) => return Err(why.errno()),
        }
    }
    Ok(done as i64)
}

fn seek(call: &Syscall) -> Verdict {
    let [fd, by, whence, ..] = call.arguments;
    let by = by.cast_signed();
    let to = match whence as i32 {
        libc::SEEK_SET => u64::try_from(by).map(SeekFrom::Start).map_err(|_| libc::EINVAL),
        libc::SEEK_CUR => Ok(SeekFrom::Current(by)),
        libc::SEEK_END => Ok(SeekFrom::End(by)),
        _ => return back(fd as i32, Count::Other),
    };
    on_file(call, |open, file| {
        let _turn = lock(&open.turn);
        file.seek(to?).map_or_else(|why| Err(why.errno()), |position| Ok(position.cast_signed()))
    })
}

/// The kernel's answer, with what only the cache knows.
fn stat(call: &Syscall, buffer: usize) -> Verdict {
    let value = forward(call);
    if value == 0 {
        // Where it cannot be looked at any more, another thread has taken the memory away.
        let _ = correct(call.arguments[buffer], number(call) == libc::SYS_statx);
    }
    Verdict::Return(value)
}

fn correct(at: u64, is_statx: bool) -> Option<()> {
    use std::mem::{offset_of, size_of};
    let len = if is_statx { size_of::<libc::statx>() } else { size_of::<libc::stat>() };
    let (memory, mut bytes) = (Buffers::flat(at, len as u64), vec![0; len]);
    if !memory.read(0, &mut bytes) {
        return None;
    }
    let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let half = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let key = if is_statx {
        let major = half(&bytes, offset_of!(libc::statx, stx_dev_major))?;
        let minor = half(&bytes, offset_of!(libc::statx, stx_dev_minor))?;
        (libc::makedev(major, minor), word(&bytes, offset_of!(libc::statx, stx_ino))?)
    } else {
        (word(&bytes, offset_of!(libc::stat, st_dev))?, word(&bytes, offset_of!(libc::stat, st_ino))?)
    };
    let open = open::known(key)?;
    let state = open.state();
    let found = state.as_ref()?.stat().ok()?;
    let time = found.modified.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let (size, blocks, seconds, rest) = if is_statx {
        let time = offset_of!(libc::statx, stx_mtime);
        (
            offset_of!(libc::statx, stx_size),
            offset_of!(libc::statx, stx_blocks),
            time + offset_of!(libc::statx_timestamp, tv_sec),
            time + offset_of!(libc::statx_timestamp, tv_nsec),
        )
    } else {
        (
            offset_of!(libc::stat, st_size),
            offset_of!(libc::stat, st_blocks),
            offset_of!(libc::stat, st_mtime),
            offset_of!(libc::stat, st_mtime_nsec),
        )
    };
    // Of a file whose blocks are not there yet, as many as it will have.
    let has = word(&bytes, blocks)?.max(found.len.div_ceil(512));
    for (at, word) in [(size, found.len), (blocks, has), (seconds, time.as_secs())] {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes[rest..rest + 4].copy_from_slice(&time.subsec_nanos().to_le_bytes());
    memory.write(0, &bytes).then_some(())
}

/// A number that leads to where another one does; or `onto` one that may be in use.
fn duplicate(call: &Syscall, onto: Option<i32>) -> Verdict {
    let from = call.arguments[0] as i32;
    if let Some(onto) = onto {
        if onto == from || control(from, libc::F_GETFD, 0).is_err() {
            return Verdict::Pass;
        }
        if open::is_own(u64::from(onto.cast_unsigned())) {
            return Verdict::Return(-i64::from(libc::EBUSY));
        }
        // As by the kernel, nobody is told.
        let _ = open::closing(onto);
    }
    let open = open::of(from);
    let fd = forward(call);
    if let Some(open) = open
        && fd >= 0
        && let Err(errno) = open::duplicated(&open, fd as i32)
    {
        program::close(fd as i32);
        return Verdict::Return(-i64::from(errno));
    }
    Verdict::Return(fd)
}

fn control_file(call: &Syscall) -> Verdict {
    match call.arguments[1] as i32 {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicate(call, None),
        libc::F_GETFD | libc::F_SETFD => Verdict::Pass,
        libc::F_GETFL => on_file(call, |open, _| {
            let flags = forward(call);
            Ok(if open.appends && flags >= 0 { flags | i64::from(libc::O_APPEND) } else { flags })
        }),
        libc::F_SETFL => back(call.arguments[0] as i32, Count::Other),
        _ => back(call.arguments[0] as i32, Count::Locked),
    }
}

fn close(call: &Syscall) -> Verdict {
    let fd = call.arguments[0];
    if open::is_own(fd) {
        return Verdict::Return(-i64::from(libc::EBADF));
    }
    let done = open::closing(fd as i32);
    let value = forward(call);
    verdict(if value == 0 { done.map(|()| 0) } else { Ok(value) })
}

/// All but the cache's own are closed.
fn close_range(call: &Syscall) -> Verdict {
    let [first, last, flags, ..] = call.arguments;
    let (first, last) = (first as u32, last as u32);
    if flags & CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return Verdict::Pass;
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        return elsewhere();
    }
    for fd in open::files_between(first, last) {
        // As by the kernel, nobody is told.
        let _ = open::closing(fd);
    }
    let mut from = u64::from(first);
    let close = |from: u64, upto: u64| {
        let mut part = *call;
        (part.arguments[0], part.arguments[1]) = (from, upto);
        if from <= upto { forward(&part) } else { 0 }
    };
    for own in open::own_between(first, last).map(u64::from) {
        if own > from {
            close(from, own - 1);
        }
        from = own + 1;
    }
    Verdict::Return(close(from, last.into()))
}

/// A file's name, or its times, change by a path.
fn named(call: &Syscall) -> Verdict {
    const AT: i32 = libc::AT_FDCWD;
    const LAST: i32 = libc::AT_SYMLINK_NOFOLLOW;
    let [a, b, c, d, ..] = call.arguments;
    let at = |directory: u64, path: u64, flags: i32| Some((directory as i32, path, flags));
    let (first, second) = match number(call) {
        libc::SYS_rename => (Some((AT, a, LAST)), Some((AT, b, LAST))),
        libc::SYS_renameat | libc::SYS_renameat2 => (at(a, b, LAST), at(c, d, LAST)),
        libc::SYS_unlink => (Some((AT, a, LAST)), None),
        libc::SYS_unlinkat => (at(a, b, LAST), None),
        libc::SYS_futimesat => (at(a, b, 0), None),
        libc::SYS_utimensat => (at(a, b, d as i32 & LAST), None),
        _ => (Some((AT, a, 0)), None),
    };
    let renames = second.is_some();
    for (directory, path, flags) in [first, second].into_iter().flatten() {
        let found = if path == 0 { About::of(directory) } else { About::at(directory, path, flags) };
        let Ok(about) = found else { continue };
        let done = if about.is_directory() && renames {
            // What is below is found by other paths then.
            open::hand_back_all(Count::Named)
        } else {
            open::known(about.key).map_or(Ok(()), |open| open.hand_back(Count::Named))
        };
        if let Err(errno) = done {
            return Verdict::Return(-i64::from(errno));
        }
    }
    Verdict::Pass
}

fn child(call: &Syscall) -> Verdict {
    let flags = match number(call) {
        libc::SYS_clone => call.arguments[0],
        libc::SYS_clone3 => peek(call.arguments[0]).unwrap_or(0),
        libc::SYS_vfork => libc::CLONE_VM as u64,
        _ => 0,
    };
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    if has(libc::CLONE_THREAD) {
        THREADS.fetch_add(1, Ordering::SeqCst);
        return Verdict::Pass;
    }
    if has(libc::CLONE_VM) {
        SHARES_MEMORY.store(true, Ordering::SeqCst);
    }
    if has(libc::CLONE_FILES) { elsewhere() } else { passes(open::hand_back_all(Count::Forked)) }
}

/// From now on paths, or numbers, may mean something else: no file is taken any more.
fn elsewhere() -> Verdict {
    open::stop();
    passes(open::hand_back_all(Count::Elsewhere))
}

/// Whether a message has something beside its bytes.
fn sends_descriptors(call: &Syscall) -> bool {
    /// Where a `msghdr` says how much that is, and how long a `mmsghdr` is.
    const BESIDE: u64 = 40;
    const EACH: u64 = 64;
    let count = if number(call) == libc::SYS_sendmmsg { call.arguments[2].min(1024) } else { 1 };
    let first = call.arguments[1];
    (0..count).any(|n| peek(first.wrapping_add(n * EACH + BESIDE)).is_some_and(|len| len > 0))
}
