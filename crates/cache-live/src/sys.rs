//! System calls as they can be made inside a hook: none allocates, touches `errno` or a thread's own memory, and all go by [`raw`].
//!
//! The promise of this room: what a call reads or writes is memory of ours that its signature names, or the program's own, in a call that the
//! program itself was about to make.
#![expect(unsafe_code, reason = "raw system calls, and memory that other processes write too")]

use std::ffi::{CStr, CString};
use std::mem::{MaybeUninit, size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use remanence_cache::entry::Mtime;
use remanence_intercept::{Syscall, raw};
use rustix::time::{ClockId, clock_gettime};

use crate::segment::Key;

/// A number of `errno`.
pub(crate) type Errno = i32;

/// What a call takes and gives.
fn call<const N: usize>(number: libc::c_long, arguments: [u64; N]) -> Result<u64, Errno> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: each caller in this room hands over what the room's promise says.
    let value = unsafe { raw(number.cast_unsigned(), all) };
    u64::try_from(value).map_err(|_| value.wrapping_neg() as Errno)
}

/// A descriptor as an argument.
fn fd_of(fd: i32) -> u64 {
    i64::from(fd).cast_unsigned()
}

/// Whether whoever a call is carried out for still waits for it, by the number that it has in place of its site: where that is another process, which may have been killed.
static WAITS: OnceLock<fn(u64) -> bool> = OnceLock::new();

/// From now on calls are carried out for others, and this says of each whether somebody still waits for it.
pub(crate) fn on_behalf(waits: fn(u64) -> bool) {
    // Once is enough.
    let _ = WAITS.set(waits);
}

/// Whether calls are carried out for others, whose descriptors have other numbers here.
pub(crate) fn is_on_behalf() -> bool {
    WAITS.get().is_some()
}

/// Carries out what the program was about to, and gives what the kernel gave.
pub(crate) fn forward(call: &Syscall) -> i64 {
    if WAITS.get().is_some_and(|waits| !waits(call.site)) {
        return -i64::from(libc::EINTR);
    }
    // SAFETY: the program's own call, with its own arguments.
    unsafe { raw(call.number, call.arguments) }
}

/// What the kernel says of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    /// Which file it is.
    pub(crate) key: Key,
    /// Its type and permissions.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) size: u64,
    /// When its content or its attributes changed, in nanoseconds since 1970. No call can set it.
    pub(crate) changed: u64,
    /// When its content changed, as a recovery will find it.
    pub(crate) modified: Mtime,
}

impl Stat {
    /// That of a descriptor's file.
    pub(crate) fn of(fd: i32) -> Result<Self, Errno> {
        Self::at(fd, c"", libc::AT_EMPTY_PATH)
    }

    /// That of what is at a path.
    pub(crate) fn at(directory: i32, path: &CStr, flags: i32) -> Result<Self, Errno> {
        /// The basic fields, and the birth time.
        const FIELDS: u64 = 0xfff;
        // SAFETY: numbers only, for which zeros are values.
        let mut found: libc::statx = unsafe { zeroed() };
        let (path, flags) = (path.as_ptr() as u64, i64::from(flags).cast_unsigned());
        call(libc::SYS_statx, [fd_of(directory), path, flags, FIELDS, (&raw mut found) as u64])?;
        let nanoseconds = |time: libc::statx_timestamp| {
            time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.into())
        };
        Ok(Self {
            key: Key {
                device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
                inode: found.stx_ino,
                born: nanoseconds(found.stx_btime),
            },
            mode: found.stx_mode.into(),
            links: found.stx_nlink,
            user: found.stx_uid,
            group: found.stx_gid,
            size: found.stx_size,
            changed: nanoseconds(found.stx_ctime),
            modified: Mtime(nanoseconds(found.stx_mtime)),
        })
    }

    pub(crate) const fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// Whether it was made a moment ago.
    pub(crate) fn is_new(&self) -> bool {
        const NEW_NS: u64 = 10_000_000_000;
        self.key.born.saturating_add(NEW_NS) > since_1970()
    }

    pub(crate) const fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// A descriptor of ours in a program, which is there for the length of one call of it: what the program opens by that call is given the lowest number afterwards.
#[derive(Debug)]
pub(crate) struct Own(pub(crate) i32);

impl Drop for Own {
    fn drop(&mut self) {
        close(self.0);
    }
}

impl Own {
    /// What is at a path, to be looked at, and not to be read. It is no link that is followed at its end, unless it is to be a directory.
    pub(crate) fn look(directory: i32, path: &CStr, flags: i32) -> Result<Self, Errno> {
        let opened =
            open(directory, path, u64::from((libc::O_PATH | libc::O_CLOEXEC | flags).cast_unsigned()), 0);
        i32::try_from(opened).ok().filter(|fd| *fd >= 0).map(Self).ok_or(opened.wrapping_neg() as Errno)
    }
}

/// What the kernel gives for a call.
fn value<const N: usize>(number: libc::c_long, arguments: [u64; N]) -> i64 {
    call(number, arguments).map_or_else(|errno| -i64::from(errno), u64::cast_signed)
}

pub(crate) fn open(directory: i32, path: &CStr, flags: u64, mode: u64) -> i64 {
    value(libc::SYS_openat, [fd_of(directory), path.as_ptr() as u64, flags, mode])
}

/// Gives a descriptor of a file that was just opened the lowest number that is free.
pub(crate) fn lowest(fd: i32, closes_at_exec: bool) -> i32 {
    let how = if closes_at_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let Ok(other) = call(libc::SYS_fcntl, [fd_of(fd), how as u64, 0]) else { return fd };
    let (lower, higher) = (fd.min(other as i32), fd.max(other as i32));
    close(higher);
    lower
}

pub(crate) fn mkdir(directory: i32, path: &CStr, mode: u64) -> i64 {
    value(libc::SYS_mkdirat, [fd_of(directory), path.as_ptr() as u64, mode])
}

pub(crate) fn unlink(directory: i32, path: &CStr, flags: u64) -> i64 {
    value(libc::SYS_unlinkat, [fd_of(directory), path.as_ptr() as u64, flags])
}

pub(crate) fn rename(from: (i32, &CStr), to: (i32, &CStr), flags: u64) -> i64 {
    let [(from, old), (to, new)] = [from, to].map(|(fd, name)| (fd_of(fd), name.as_ptr() as u64));
    value(libc::SYS_renameat2, [from, old, to, new, flags])
}

pub(crate) fn link(from: (i32, &CStr), to: (i32, &CStr)) -> i64 {
    let [(from, old), (to, new)] = [from, to].map(|(fd, name)| (fd_of(fd), name.as_ptr() as u64));
    value(libc::SYS_linkat, [from, old, to, new, 0])
}

/// Whether a directory has no names, as far as can be told.
pub(crate) fn is_empty(directory: i32) -> bool {
    /// What `.` and `..` take.
    const BOTH: u64 = 48;
    let mut names = [0_u64; 64];
    let mut more = || {
        call(libc::SYS_getdents64, [fd_of(directory), names.as_mut_ptr() as u64, size_of_val(&names) as u64])
    };
    more().is_ok_and(|len| len <= BOTH) && more() == Ok(0)
}

/// The path that the kernel shows of a descriptor.
pub(crate) fn shown(fd: i32) -> Option<Vec<u8>> {
    let link = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let mut path = vec![0; PATH_MAX];
    let here = fd_of(libc::AT_FDCWD);
    let asked = [here, link.as_ptr() as u64, path.as_mut_ptr() as u64, PATH_MAX as u64];
    let len = call(libc::SYS_readlinkat, asked).ok()?;
    path.truncate(len as usize);
    Some(path)
}

/// Bytes of the longest path, and its end.
const PATH_MAX: usize = 4096;

/// A path of the program's, without its end. `None`: there is none, or it is too long.
pub(crate) fn path(from: u64) -> Option<Vec<u8>> {
    const PAGE: u64 = 4096;
    let mut path = Vec::with_capacity(256);
    while path.len() < PATH_MAX {
        let (done, at) = (path.len(), from.checked_add(path.len() as u64)?);
        // Behind the page that it ends in there may be nothing. Most are short.
        let len = (PAGE - at % PAGE).min(256).min((PATH_MAX - done) as u64);
        path.resize(done + len as usize, 0);
        let local = [path[done..].as_mut_ptr() as u64, len];
        let remote = [at, len];
        let (local, remote) = (local.as_ptr() as u64, remote.as_ptr() as u64);
        if call(libc::SYS_process_vm_readv, [process(), local, 1, remote, 1, 0]) != Ok(len) {
            return None;
        }
        if let Some(end) = path[done..].iter().position(|byte| *byte == 0) {
            path.truncate(done + end);
            return Some(path);
        }
    }
    None
}

/// Whether a file lies on a file system whose syncs reach a device, and whose times tell two writes apart as well as this kernel can.
pub(crate) fn is_on_disk(fd: i32) -> bool {
    const EXT: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const F2FS: i64 = 0xf2f5_2010;
    // SAFETY: numbers only, for which zeros are values.
    let mut found: libc::statfs = unsafe { zeroed() };
    let asked = call(libc::SYS_fstatfs, [fd_of(fd), (&raw mut found) as u64]);
    asked.is_ok() && [EXT, XFS, BTRFS, F2FS].contains(&(found.f_type & 0xffff_ffff))
}

/// Whether two names in a directory can be one, as they are told apart by more than their bytes (`chattr +F`).
pub(crate) fn folds_names(directory: i32) -> bool {
    /// `FS_IOC_GETFLAGS`, and `FS_CASEFOLD_FL`.
    const GET_FLAGS: u64 = 0x8008_6601;
    const FOLDS: u32 = 0x4000_0000;
    let mut flags = [0_u32; 2];
    let asked = call(libc::SYS_ioctl, [fd_of(directory), GET_FLAGS, (&raw mut flags) as u64]);
    asked.is_ok() && flags[0] & FOLDS != 0
}

const GET_HINT: u64 = 1024 + 11;
const SET_HINT: u64 = 1024 + 12;

/// Whether the kernel has had an inode in memory since [`leave_trace`]. It is the hint about the life time of what is written (`F_SET_RW_HINT`), in its value
/// *none*, which has no effect: that is on no disk (`pmem/src/cache.rs`). A hint of the program's own does as well.
pub(crate) fn has_trace(fd: i32) -> bool {
    let mut hint = 0_u64;
    call(libc::SYS_fcntl, [fd_of(fd), GET_HINT, (&raw mut hint) as u64]).is_ok() && hint != 0
}

/// Has the kernel remember this inode until it forgets it. Without effect where it cannot.
pub(crate) fn leave_trace(fd: i32) {
    if !has_trace(fd) {
        hint(fd, 1);
    }
}

/// Takes the trace away: nobody relies on what the page cache has.
pub(crate) fn take_trace(fd: i32) {
    hint(fd, 0);
}

fn hint(fd: i32, hint: u64) {
    let _ = call(libc::SYS_fcntl, [fd_of(fd), SET_HINT, (&raw const hint) as u64]);
}

/// The flags that a descriptor's file was opened with.
pub(crate) fn flags(fd: i32) -> Result<i32, Errno> {
    call(libc::SYS_fcntl, [fd_of(fd), libc::F_GETFL as u64, 0]).map(|flags| flags as i32)
}

/// Whether a descriptor is one that a program keeps which is executed. `None`: there is no such descriptor.
pub(crate) fn stays_at_exec(fd: i32) -> Option<bool> {
    let flags = call(libc::SYS_fcntl, [fd_of(fd), libc::F_GETFD as u64, 0]).ok()?;
    Some(flags & libc::FD_CLOEXEC as u64 == 0)
}

/// Gives a descriptor of ours a number that programs do not come to, of the last quarter of those that there may be, and closes it at `exec`.
pub(crate) fn put_high(fd: i32) -> Result<i32, Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let (which, to) = (u64::from(libc::RLIMIT_NOFILE), (&raw mut limit) as u64);
    call(libc::SYS_prlimit64, [0, which, 0, to])?;
    let least = limit.rlim_cur.min(1 << 20) / 4 * 3;
    let high = call(libc::SYS_fcntl, [fd_of(fd), libc::F_DUPFD_CLOEXEC as u64, least])?;
    Ok(high as i32)
}

/// How many bytes can be read from a descriptor now.
pub(crate) fn readable(fd: i32) -> Result<u32, Errno> {
    let mut bytes = [0_u32; 2];
    call(libc::SYS_ioctl, [fd_of(fd), libc::FIONREAD, (&raw mut bytes) as u64]).map(|_| bytes[0])
}

/// The numbers of this process' descriptors, as far as the kernel shows them; each is told to `each`.
pub(crate) fn descriptors(mut each: impl FnMut(i32)) -> Result<(), Errno> {
    const NAME_AT: usize = 19;
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    let opened = open(libc::AT_FDCWD, c"/proc/self/fd", flags, 0);
    let own = match i32::try_from(opened) {
        Ok(fd @ 0..) => Own(fd),
        _ => return Err(opened.wrapping_neg() as Errno),
    };
    let mut entries = [0_u64; 256];
    loop {
        let (at, len) = (entries.as_mut_ptr() as u64, size_of_val(&entries) as u64);
        let len = call(libc::SYS_getdents64, [fd_of(own.0), at, len])? as usize;
        if len == 0 {
            return Ok(());
        }
        let bytes: &[u8] = &entries.map(u64::to_le_bytes).concat();
        let mut left = &bytes[..len.min(bytes.len())];
        while let Some(record) = left.get(16..18) {
            let record = usize::from(u16::from_le_bytes([record[0], record[1]]));
            let (Some(entry), true) = (left.get(..record), record > NAME_AT) else { return Err(libc::EIO) };
            let number =
                entry[NAME_AT..].split(|byte| *byte == 0).next().and_then(|name| str::from_utf8(name).ok());
            number
                .and_then(|number| number.parse().ok())
                .filter(|fd| *fd != own.0)
                .into_iter()
                .for_each(&mut each);
            left = &left[record..];
        }
    }
}

/// Whether nobody has a file open but by the description of this descriptor, which may write: nobody else may write, and on a kernel that counts readers (with IMA) nobody reads. It is asked for a lease,
/// which is given back at once: who opens the file in that moment without waiting is told to try again.
pub(crate) fn is_alone(fd: i32) -> bool {
    let set = |what: i32, to: i32| call(libc::SYS_fcntl, [fd_of(fd), what as u64, fd_of(to)]);
    // Whoever comes in that moment has a signal sent that nobody minds.
    let is_alone = set(F_SETSIG, libc::SIGURG).is_ok() && set(libc::F_SETLEASE, libc::F_WRLCK).is_ok();
    if is_alone {
        let _ = set(libc::F_SETLEASE, libc::F_UNLCK);
        let _ = set(libc::F_SETOWN, 0);
    }
    let _ = set(F_SETSIG, 0);
    is_alone
}

const F_SETSIG: i32 = 10;

/// What the kernel tells who has opened files: a group of fanotify, which needs no privilege, and tells of the own process which one it is (Linux 5.13).
pub(crate) fn openers() -> Result<OwnedFd, Errno> {
    const CLOEXEC_NONBLOCK: u64 = 0x1 | 0x2;
    const REPORT_FID: u64 = 0x200;
    let fd = call(libc::SYS_fanotify_init, [CLOEXEC_NONBLOCK | REPORT_FID, libc::O_RDONLY as u64])?;
    // SAFETY: it was just made, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Somebody has opened a file; has closed what he might have written by; has changed its attributes.
const OPENED: u64 = 0x20;
const CLOSED: u64 = 0x8;
const ATTRIBUTES: u64 = 0x4;

/// Has a group tell who opens a file, and what he may have done; or no more.
pub(crate) fn tell_openers(group: BorrowedFd<'_>, fd: i32, tell: bool) -> Result<(), Errno> {
    let (what, of) = (if tell { 1 } else { 2 }, OPENED | CLOSED | ATTRIBUTES);
    call(libc::SYS_fanotify_mark, [fd_of(group.as_raw_fd()), what, of, fd_of(fd), 0]).map(|_| ())
}

/// Which file an event is about: its file system's number, and its handle.
pub(crate) type Marked = ([u8; 8], u32, Vec<u8>);

/// What an event of such a group says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// This process has opened that file.
    Ours(Marked),
    /// Somebody else has.
    Others(Marked),
    /// Somebody else has closed what he might have written by.
    Closed(Marked),
    /// He has opened it before that, or has changed its attributes.
    Changed(Marked),
    /// Some were lost, or cannot be read.
    Unknown,
}

/// By what events name a file.
pub(crate) fn marked(fd: i32) -> Option<Marked> {
    // SAFETY: numbers only, for which zeros are values.
    let mut found: libc::statfs = unsafe { zeroed() };
    call(libc::SYS_fstatfs, [fd_of(fd), (&raw mut found) as u64]).ok()?;
    let (kind, handle) = handle(fd);
    let mut system = [0; 8];
    // SAFETY: two numbers of 32 bits, which have no other form.
    let words: [i32; 2] = unsafe { std::mem::transmute(found.f_fsid) };
    system[..4].copy_from_slice(&words[0].to_le_bytes());
    system[4..].copy_from_slice(&words[1].to_le_bytes());
    (!handle.is_empty()).then_some((system, kind, handle))
}

/// Reads some events of a group. `None`: there are none now.
pub(crate) fn read_openers(group: BorrowedFd<'_>) -> Option<Vec<Opened>> {
    let mut buffer = [0_u64; 512];
    let (at, len) = (buffer.as_mut_ptr() as u64, size_of_val(&buffer) as u64);
    match call(libc::SYS_read, [fd_of(group.as_raw_fd()), at, len]) {
        Ok(0) | Err(libc::EAGAIN) => None,
        Err(libc::EINTR) => Some(Vec::new()),
        Err(_) => Some(vec![Opened::Unknown]),
        Ok(len) => {
            let bytes = buffer.map(u64::to_le_bytes).concat();
            Some(parse_openers(&bytes[..(len as usize).min(bytes.len())], process()))
        }
    }
}

/// Takes events apart, as fanotify(7) says.
fn parse_openers(mut left: &[u8], own: u64) -> Vec<Opened> {
    const HEAD: usize = 24;
    const BY_HANDLE: u8 = 1;
    let number = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    };
    let mut found = Vec::new();
    while let Some(len) = number(left, 0) {
        let Some(event) = left.get(..len as usize).filter(|event| event.len() >= HEAD) else {
            found.push(Opened::Unknown);
            break;
        };
        left = &left[len as usize..];
        let file = || {
            let about = &event[usize::from(u16::from_le_bytes([event[6], event[7]]))..];
            let (kind, system) = (*about.first()?, about.get(4..12)?.try_into().ok()?);
            let (len, handle) = (number(about, 12)? as usize, number(about, 16)?);
            let bytes = about.get(20..20 + len)?.to_vec();
            (kind == BY_HANDLE).then_some((system, handle, bytes))
        };
        let process = number(event, 20).unwrap_or(0);
        let is_whole = usize::from(u16::from_le_bytes([event[6], event[7]])) <= event.len();
        let mask = event[8..16].try_into().map_or(0, u64::from_le_bytes);
        found.push(match if is_whole { file() } else { None } {
            Some(file) if u64::from(process) == own => Opened::Ours(file),
            Some(file) if mask == CLOSED => Opened::Closed(file),
            Some(file) if mask == OPENED => Opened::Others(file),
            Some(file) => Opened::Changed(file),
            None => Opened::Unknown,
        });
    }
    found
}

/// Where the next `read` or `write` of a descriptor is.
pub(crate) fn position(fd: i32) -> Result<u64, Errno> {
    call(libc::SYS_lseek, [fd_of(fd), 0, libc::SEEK_CUR as u64])
}

/// Has a file's content synced.
pub(crate) fn sync_data(fd: i32) -> Result<(), Errno> {
    call(libc::SYS_fdatasync, [fd_of(fd)]).map(|_| ())
}

/// Which file a descriptor is of, by device and inode. Its times are not asked for: the kernel would give it finer ones from then on.
pub(crate) fn which(fd: i32) -> Option<(u64, u64)> {
    /// `STATX_INO`.
    const INODE: u64 = 0x100;
    // SAFETY: numbers only, for which zeros are values.
    let mut found: libc::statx = unsafe { zeroed() };
    let (path, flags) = (c"".as_ptr() as u64, libc::AT_EMPTY_PATH as u64);
    call(libc::SYS_statx, [fd_of(fd), path, flags, INODE, (&raw mut found) as u64]).ok()?;
    Some((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// The same descriptor with a number that a program does not come to by itself. `None`: there are too few.
pub(crate) fn out_of_the_way(fd: i32) -> Option<i32> {
    const FEW: u64 = 256;
    /// The kernel has a table as long as the highest number is.
    const MANY: u64 = 1024;
    let limit = limit(libc::RLIMIT_NOFILE).filter(|limit| *limit >= FEW)?.min(MANY);
    let how = libc::F_DUPFD_CLOEXEC as u64;
    call(libc::SYS_fcntl, [fd_of(fd), how, limit / 4 * 3]).ok().map(|fd| fd as i32)
}

/// Whether each byte of a file has a block that was written: then nothing but these is to be written when it is written again.
pub(crate) fn is_all_written(fd: i32, len: u64) -> bool {
    /// `FS_IOC_FIEMAP`, and `FIEMAP_FLAG_SYNC`.
    const MAP: u64 = 0xc020_660b;
    const SYNC: u64 = 1;
    /// Unknown, delayed, encoded, inline, packed, unwritten, or shared.
    const ODD: u64 = 0x2 | 0x4 | 0x8 | 0x200 | 0x400 | 0x800 | 0x2000;
    const EXTENTS: usize = 64;
    let mut at = 0;
    while at < len {
        let mut words = [0_u64; 4 + 7 * EXTENTS];
        words[..4].copy_from_slice(&[at, len - at, SYNC, EXTENTS as u64]);
        if call(libc::SYS_ioctl, [fd_of(fd), MAP, words.as_mut_ptr() as u64]).is_err() {
            return false;
        }
        let count = (words[2] >> 32) as usize;
        for extent in words[4..].chunks_exact(7).take(count) {
            if extent[0] > at || extent[5] & ODD != 0 {
                return false;
            }
            at = extent[0].saturating_add(extent[2]);
        }
        if count == 0 {
            return false;
        }
    }
    true
}

pub(crate) fn fsync(fd: i32) -> i64 {
    call(libc::SYS_fsync, [fd_of(fd)]).map_or_else(|errno| -i64::from(errno), u64::cast_signed)
}

/// Syncs the file system that a descriptor is on.
pub(crate) fn sync_all(fd: i32) {
    let _ = call(libc::SYS_syncfs, [fd_of(fd)]);
}

pub(crate) fn close(fd: i32) {
    let _ = call(libc::SYS_close, [fd_of(fd)]);
}

pub(crate) fn process() -> u64 {
    call(libc::SYS_getpid, []).unwrap_or(0)
}

pub(crate) fn yield_now() {
    let _ = call(libc::SYS_sched_yield, []);
}

/// Nanoseconds that never go back.
pub(crate) fn monotonic() -> u64 {
    clock(ClockId::Monotonic)
}

/// Nanoseconds since 1970.
pub(crate) fn since_1970() -> u64 {
    clock(ClockId::Realtime)
}

/// By the kernel's own object (vDSO) where it has one, which is no system call. Who is in a hook has called it once before: then it is known where that is.
fn clock(which: ClockId) -> u64 {
    let time = clock_gettime(which);
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

/// Sleeps while the low half of a word has a value, or until it is woken, or as long as that.
pub(crate) fn wait(word: &AtomicU64, value: u32, milliseconds: u64) {
    let time = [milliseconds / 1000, milliseconds % 1000 * 1_000_000];
    let at = std::ptr::from_ref(word) as u64;
    let _ = call(libc::SYS_futex, [at, libc::FUTEX_WAIT as u64, value.into(), time.as_ptr() as u64]);
}

/// Wakes all who sleep on a word.
pub(crate) fn wake(word: &AtomicU64) {
    let at = std::ptr::from_ref(word) as u64;
    let _ = call(libc::SYS_futex, [at, libc::FUTEX_WAKE as u64, i32::MAX as u64]);
}

/// Bytes of address space that this process may have, if somebody has limited that.
pub(crate) fn address_limit() -> Option<u64> {
    limit(libc::RLIMIT_AS).filter(|limit| *limit != libc::RLIM_INFINITY)
}

/// How much of something this process may have.
fn limit(which: u32) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let asked = call(libc::SYS_prlimit64, [0, which.into(), 0, (&raw mut limit) as u64]);
    asked.ok().map(|_| limit.rlim_cur)
}

/// Maps so many bytes of a file, to be shared, for as long as this process lives.
pub(crate) fn map(fd: i32, len: u64) -> Result<u64, Errno> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    call(libc::SYS_mmap, [0, len, rights, libc::MAP_SHARED as u64, fd_of(fd), 0])
}

/// Maps a file as so many words. It is the maker's to see that the file is as long, and is never cut short.
pub(crate) fn map_words(fd: i32, count: usize) -> Result<&'static [AtomicU64], Errno> {
    let at = map(fd, count as u64 * 8)?;
    // SAFETY: just mapped, as long as this, and never unmapped; atomics may be written by others at any time.
    Ok(unsafe { std::slice::from_raw_parts(at as *const AtomicU64, count) })
}

/// Has a mapped file written to its device.
pub(crate) fn msync(at: u64, len: u64) -> Result<(), Errno> {
    call(libc::SYS_msync, [at, len, libc::MS_SYNC as u64]).map(|_| ())
}

/// Has the pages of a file written to its device that are to be, and waits for that; what the device has in a cache of its own, and what else a file system has to write before they are found
/// again, is another thing.
pub(crate) fn write_pages(fd: i32) -> Result<(), Errno> {
    let how =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    call(libc::SYS_sync_file_range, [fd_of(fd), 0, 0, how.into()]).map(|_| ())
}

/// Has pages of a mapping there, to be written.
pub(crate) fn populate(at: u64, len: u64) -> Result<(), Errno> {
    call(libc::SYS_madvise, [at, len, libc::MADV_POPULATE_WRITE as u64]).map(|_| ())
}

/// A page of words that are shared with the children of this process.
pub(crate) fn shared_page() -> Result<&'static [AtomicU64], Errno> {
    const PAGE: u64 = 4096;
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let kind = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
    let at = call(libc::SYS_mmap, [0, PAGE, rights, kind, u64::MAX, 0])?;
    // SAFETY: a new page, which is never unmapped; atomics may be written by others at any time.
    Ok(unsafe { std::slice::from_raw_parts(at as *const AtomicU64, 512) })
}

/// A page that is zeros again in a forked child.
pub(crate) fn wiped_page() -> Result<&'static [AtomicU64], Errno> {
    const PAGE: u64 = 4096;
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let at = call(libc::SYS_mmap, [0, PAGE, rights, kind, u64::MAX, 0])?;
    call(libc::SYS_madvise, [at, PAGE, libc::MADV_WIPEONFORK as u64])?;
    // SAFETY: a new page, which is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts(at as *const AtomicU64, 512) })
}

/// Copies what the program has written, and the kernel has just read. `false`: it is nobody's memory, as far as can be told.
pub(crate) fn copy_in(from: u64, into: &mut [MaybeUninit<u8>]) -> bool {
    if from.checked_add(into.len() as u64).is_none_or(|end| end >= 1 << 47) {
        return false;
    }
    // SAFETY: the kernel has read this memory in the same call, so it is there; that another thread writes it meanwhile is seen as some mixture.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr().cast(), into.len()) };
    true
}

/// Reads memory of the program's that need not be there.
pub(crate) fn peek<const N: usize>(from: u64) -> Option<[u64; N]> {
    let mut words = [0_u64; N];
    let local = [words.as_mut_ptr() as u64, size_of_val(&words) as u64];
    let remote = [from, size_of_val(&words) as u64];
    let read =
        call(libc::SYS_process_vm_readv, [process(), local.as_ptr() as u64, 1, remote.as_ptr() as u64, 1, 0]);
    (read == Ok(size_of_val(&words) as u64)).then_some(words)
}

/// The address of a socket in the file system.
#[derive(Clone, Copy)]
pub(crate) struct Address(libc::sockaddr_un);

impl Address {
    /// `None`: the path is too long for a socket's.
    pub(crate) fn new(path: &[u8]) -> Option<Self> {
        // SAFETY: numbers only, for which zeros are values.
        let mut address: libc::sockaddr_un = unsafe { zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        if path.is_empty() || path.len() >= address.sun_path.len() || path.contains(&0) {
            return None;
        }
        for (to, from) in address.sun_path.iter_mut().zip(path) {
            *to = from.cast_signed();
        }
        Some(Self(address))
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address")
    }
}

/// A socket that is connected, until it is dropped. The program must not notice it: it is there for the length of one question.
#[derive(Debug)]
pub(crate) struct Socket(i32);

impl Socket {
    /// Connects, if that takes no wait, and nothing is waited for either.
    pub(crate) fn at_once(address: &Address) -> Result<Self, Errno> {
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
        let socket = Self(call(libc::SYS_socket, [libc::AF_UNIX as u64, kind, 0])? as i32);
        socket.connected(address)
    }

    /// Connects; each of its calls waits no longer than that.
    pub(crate) fn connect(address: &Address, milliseconds: u64) -> Result<Self, Errno> {
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
        let socket = Self(call(libc::SYS_socket, [libc::AF_UNIX as u64, kind, 0])? as i32);
        let time = [milliseconds / 1000, milliseconds % 1000 * 1000];
        for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
            let level = libc::SOL_SOCKET as u64;
            call(
                libc::SYS_setsockopt,
                [fd_of(socket.0), level, option as u64, time.as_ptr() as u64, size_of_val(&time) as u64],
            )?;
        }
        socket.connected(address)
    }

    fn connected(self, address: &Address) -> Result<Self, Errno> {
        let len = size_of::<libc::sockaddr_un>() as u64;
        call(libc::SYS_connect, [fd_of(self.0), (&raw const address.0) as u64, len])?;
        if self.user()? != call(libc::SYS_geteuid, [])? { Err(libc::EPERM) } else { Ok(self) }
    }

    /// Who listens. In a directory that all may write to, anybody may: descriptors of files are sent there, and what comes back is mapped.
    fn user(&self) -> Result<u64, Errno> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET as u64, libc::SO_PEERCRED as u64);
        let (to, len) = ((&raw mut peer) as u64, (&raw mut len) as u64);
        call(libc::SYS_getsockopt, [fd_of(self.0), level, option, to, len])?;
        Ok(peer.uid.into())
    }

    pub(crate) fn send(&self, bytes: &[u8], fds: &[i32]) -> Result<(), Errno> {
        send(self.0, bytes, fds)
    }

    pub(crate) fn receive(&self, into: &mut [u8]) -> Result<(usize, [i32; FDS]), Errno> {
        receive(self.0, into)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// The most descriptors that a message has.
pub(crate) const FDS: usize = 3;

/// The message that carries descriptors.
#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; FDS],
}

const CONTROL_HEAD: usize = 16;

/// Sends a message, with some descriptors.
pub(crate) fn send(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<(), Errno> {
    let mut control = Control {
        len: CONTROL_HEAD + size_of_val(fds),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fds: [-1; FDS],
    };
    control.fds[..fds.len()].copy_from_slice(fds);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: numbers and pointers, for which zeros are values.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<Control>();
    }
    let how = libc::MSG_NOSIGNAL as u64;
    call(libc::SYS_sendmsg, [fd_of(socket), (&raw const message) as u64, how]).map(|_| ())
}

/// Receives a message: how long it is, and the descriptors that came with it, or -1.
pub(crate) fn receive(socket: i32, into: &mut [u8]) -> Result<(usize, [i32; FDS]), Errno> {
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1; FDS] };
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: numbers and pointers, for which zeros are values.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    let how = libc::MSG_CMSG_CLOEXEC as u64;
    let len = call(libc::SYS_recvmsg, [fd_of(socket), (&raw mut message) as u64, how])?;
    let mut fds = [-1; FDS];
    let came = message.msg_controllen >= CONTROL_HEAD
        && (control.level, control.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let count = if came { control.len.saturating_sub(CONTROL_HEAD) / size_of::<i32>() } else { 0 };
    fds[..count.min(FDS)].copy_from_slice(&control.fds[..count.min(FDS)]);
    Ok((len as usize, fds))
}

/// The same, for who keeps what came.
pub(crate) fn receive_owned(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let (len, fds) = receive(socket.as_raw_fd(), into)?;
    // SAFETY: they have just come to us, and nobody else knows them.
    let fds = fds.into_iter().filter(|fd| *fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect();
    Ok((len, fds))
}

/// Bytes of the longest file handle.
const HANDLE_MAX: usize = 128;

/// The type and the bytes of a file's handle; empty where its file system has none.
pub(crate) fn handle(fd: i32) -> (u32, Vec<u8>) {
    #[repr(C)]
    struct Handle {
        len: u32,
        kind: i32,
        bytes: [u8; HANDLE_MAX],
    }
    let mut handle = Handle { len: HANDLE_MAX as u32, kind: 0, bytes: [0; HANDLE_MAX] };
    let (mut mount, path) = (0_i32, c"".as_ptr() as u64);
    let asked = call(
        libc::SYS_name_to_handle_at,
        [fd_of(fd), path, (&raw mut handle) as u64, (&raw mut mount) as u64, libc::AT_EMPTY_PATH as u64],
    );
    match asked {
        Ok(_) => {
            (handle.kind.cast_unsigned(), handle.bytes[..(handle.len as usize).min(HANDLE_MAX)].to_vec())
        }
        Err(_) => (0, Vec::new()),
    }
}
