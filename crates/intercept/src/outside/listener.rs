//! The kernel's side of a supervisor: a filter that is put over a program, calls that it is told of, and what it may see of who makes them.
//!
//! *The promise of this room*: what the kernel reads or writes is memory of ours, as long as it is told; the program's is only ever copied by the kernel.
#![expect(unsafe_code, reason = "system calls that no library has, and their structures")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use super::filter::Instruction;
use crate::{Syscall, Verdict};

/// `SECCOMP_SET_MODE_FILTER`.
const SET_FILTER: u64 = 1;
/// `SECCOMP_FILTER_FLAG_NEW_LISTENER` and `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
const FLAGS: u64 = 1 << 3 | 1 << 5;
/// `SECCOMP_IOCTL_NOTIF_RECV`.
const RECEIVE: u64 = 0xc050_2100;
/// `SECCOMP_IOCTL_NOTIF_SEND`.
const SEND: u64 = 0xc018_2101;
/// `SECCOMP_IOCTL_NOTIF_ID_VALID`.
const IS_VALID: u64 = 0x4008_2102;
/// `SECCOMP_IOCTL_NOTIF_SET_FLAGS`.
const SET_FLAGS: u64 = 0x4008_2104;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;
/// `PIDFD_THREAD`.
const THREAD: u64 = libc::O_EXCL as u64;
/// How many vectors one call may have.
const VECTORS: usize = 1024;

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notice {
    id: u64,
    thread: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    behind: u64,
    arguments: [u64; 6],
}

const _: () =
    assert!(size_of::<Notice>() == 80 && size_of::<Response>() == 24 && size_of::<Instruction>() == 8);

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// Makes a call whose arguments are numbers, or live memory of ours.
///
/// # Safety
/// As for the call itself.
unsafe fn call(number: libc::c_long, a: u64, b: u64, c: u64) -> io::Result<u64> {
    // SAFETY: the caller's promise.
    let value = unsafe { libc::syscall(number, a, b, c, 0_u64, 0_u64) };
    u64::try_from(value).map_err(|_| io::Error::last_os_error())
}

fn ioctl(fd: &OwnedFd, request: u64, argument: u64) -> io::Result<()> {
    let fd = i64::from(fd.as_raw_fd()).cast_unsigned();
    // SAFETY: a descriptor of ours, and a structure of the size that the request has in it, or a number.
    unsafe { call(libc::SYS_ioctl, fd, request, argument) }.map(|_| ())
}

/// Puts a filter over this thread and all that it will ever start or become, and gives what a supervisor listens at. It allocates nothing, and may be called
/// in a forked child.
///
/// # Errors
/// `EINVAL`: the kernel is older than 5.19. `EBUSY`: there is such a filter over this thread already. Or it is refused.
pub fn confine(filter: &[Instruction]) -> io::Result<OwnedFd> {
    let program = Program { len: u16::try_from(filter.len()).unwrap_or(0), filter: filter.as_ptr() };
    // SAFETY: the structure and the filter live, and the kernel copies them.
    let ask = || unsafe { call(libc::SYS_seccomp, SET_FILTER, FLAGS, (&raw const program) as u64) };
    let listener = match ask() {
        Err(why) if why.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: numbers only.
            if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            ask()?
        }
        other => other?,
    };
    new(listener as RawFd)
}

/// A call that a thread waits in.
#[derive(Clone, Copy, Debug)]
pub struct Notified {
    /// The wait's number, which is never used again.
    pub id: u64,
    /// The thread, as it is called here; 0 if it has no number here.
    pub thread: i32,
    /// The call that it is about to make.
    pub call: Syscall,
}

/// Where a supervisor hears of calls. Any number of threads may listen, each on a [`Seat`], and each call wakes one of them.
#[derive(Debug)]
pub struct Listener {
    calls: OwnedFd,
    /// It can be read when nobody is left, and wakes all.
    ended: OwnedFd,
}

/// A thread's place among those that listen.
#[derive(Debug)]
pub struct Seat<'l> {
    listener: &'l Listener,
    waits: OwnedFd,
}

/// A new descriptor.
fn new(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: each caller has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Seat<'_> {
    const CALLS: u64 = 0;
    const ENDED: u64 = 1;

    fn watch(&self, fd: &OwnedFd, what: u64, how: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | how).cast_unsigned(), u64: what };
        let (waits, fd) = (self.waits.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: descriptors of ours, and a structure that lives.
        match unsafe { libc::epoll_ctl(waits, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until there may be a call. `false`: nobody is left who could make one.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn wait(&self) -> io::Result<bool> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one structure.
        let came = unsafe { libc::epoll_wait(self.waits.as_raw_fd(), &raw mut event, 1, -1) };
        let (events, what) = (event.events, event.u64);
        if came < 0 {
            let why = io::Error::last_os_error();
            return if why.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(why) };
        }
        if what == Self::CALLS && events & libc::EPOLLIN.cast_unsigned() != 0 {
            return Ok(true);
        }
        // One is woken: it wakes the others.
        let one = [1_u8; 8];
        // SAFETY: eight bytes of ours.
        unsafe { libc::write(self.listener.ended.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        Ok(false)
    }
}

impl Listener {
    /// That of a descriptor that [`confine`] has given.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new(calls: OwnedFd) -> io::Result<Self> {
        /// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: who is woken runs here at once. Older kernels lack it, and are slower.
        const TOGETHER: u64 = 1;
        let _ = ioctl(&calls, SET_FLAGS, TOGETHER);
        // SAFETY: numbers only.
        let ended = new(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        Ok(Self { calls, ended })
    }

    /// A place for one more thread that listens.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn seat(&self) -> io::Result<Seat<'_>> {
        // SAFETY: numbers only.
        let waits = new(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let seat = Seat { listener: self, waits };
        seat.watch(&self.calls, Seat::CALLS, libc::EPOLLEXCLUSIVE)?;
        seat.watch(&self.ended, Seat::ENDED, 0)?;
        Ok(seat)
    }

    /// Whether there is a call, for one thread that asks: then [`receive`](Self::receive) does not wait.
    #[must_use]
    pub fn has_call(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.calls.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which lives.
        unsafe { libc::poll(&raw mut fd, 1, 0) > 0 && fd.revents & libc::POLLIN != 0 }
    }

    /// Receives a call; waits for one if there is none. `None`: whoever waited has gone.
    ///
    /// # Errors
    /// It is no listener.
    pub fn receive(&self) -> io::Result<Option<Notified>> {
        let mut notice = Notice::default();
        match ioctl(&self.calls, RECEIVE, (&raw mut notice) as u64) {
            Ok(()) => {}
            Err(why) if matches!(why.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => return Ok(None),
            Err(why) => return Err(why),
        }
        let number = i64::from(notice.number).cast_unsigned() & 0xffff_ffff;
        let at = notice.behind.wrapping_sub(2);
        let call = Syscall { number, arguments: notice.arguments, site: at, call: at };
        Ok(Some(Notified { id: notice.id, thread: notice.thread.cast_signed(), call }))
    }

    /// Whether a thread still waits for the answer.
    #[must_use]
    pub fn is_waiting(&self, id: u64) -> bool {
        ioctl(&self.calls, IS_VALID, (&raw const id) as u64).is_ok()
    }

    /// Answers a call. `false`: nobody waits for that.
    pub fn answer(&self, id: u64, verdict: Verdict) -> bool {
        let response = match verdict {
            Verdict::Pass => Response { id, value: 0, error: 0, flags: CONTINUE },
            Verdict::Return(value @ -4095..=-1) => Response { id, value: 0, error: value as i32, flags: 0 },
            Verdict::Return(value) => Response { id, value, error: 0, flags: 0 },
        };
        ioctl(&self.calls, SEND, (&raw const response) as u64).is_ok()
    }
}

/// The process of a thread that waits: its descriptors and its memory. What is had of it counts only if [`Listener::is_waiting`] holds behind that, as
/// else its number may be another's by now.
#[derive(Debug)]
pub struct Caller {
    process: OwnedFd,
    thread: i32,
}

impl Caller {
    /// That of a thread.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(thread: i32) -> io::Result<Self> {
        let opened = |number: i32, flags: u64| {
            // SAFETY: numbers only.
            unsafe { call(libc::SYS_pidfd_open, i64::from(number).cast_unsigned(), flags, 0) }
        };
        let process = match opened(thread, THREAD) {
            // Before Linux 6.9 there are descriptors of whole processes only.
            Err(why) if why.raw_os_error() == Some(libc::EINVAL) => opened(process_of(thread)?, 0)?,
            other => other?,
        };
        Ok(Self { process: new(process as RawFd)?, thread })
    }

    /// A descriptor of ours of the same open file as one of the program's: with its offset and its flags.
    ///
    /// # Errors
    /// `EBADF`: it has none of that number. `EPERM`: we may not look into it.
    pub fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        let process = i64::from(self.process.as_raw_fd()).cast_unsigned();
        // SAFETY: numbers only.
        let fd = unsafe { call(libc::SYS_pidfd_getfd, process, i64::from(number).cast_unsigned(), 0) }?;
        new(fd as RawFd)
    }

    /// Copies what is at these addresses, each with a length, one behind the other; gives how many bytes could be read.
    pub fn read(&self, from: &[(u64, usize)], into: &mut [u8]) -> usize {
        let part = |&(at, len): &(u64, usize)| libc::iovec { iov_base: at as *mut _, iov_len: len };
        let remote: Vec<libc::iovec> = from.iter().take(VECTORS).map(part).collect();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: what is written to is ours, and as long.
        let read = unsafe {
            libc::process_vm_readv(self.thread, &raw const local, 1, remote.as_ptr(), remote.len() as u64, 0)
        };
        usize::try_from(read).unwrap_or(0)
    }

    /// The words at an address.
    #[must_use]
    pub fn words<const N: usize>(&self, from: u64) -> Option<[u64; N]> {
        let mut bytes = [[0_u8; 8]; N];
        let whole = bytes.as_flattened_mut();
        let len = whole.len();
        (self.read(&[(from, len)], whole) == len).then(|| bytes.map(u64::from_le_bytes))
    }

    /// Writes a word to an address. `false`: nothing can be written there.
    #[must_use]
    pub fn write_word(&self, to: u64, word: u64) -> bool {
        let bytes = word.to_le_bytes();
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: to as *mut _, iov_len: bytes.len() };
        // SAFETY: what is read is ours; what is written is what the program has named in its call for that.
        let written =
            unsafe { libc::process_vm_writev(self.thread, &raw const local, 1, &raw const remote, 1, 0) };
        written == bytes.len() as isize
    }

    /// Whether a file that it writes may be of any length (`RLIMIT_FSIZE`). `false` also where that is not told.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a structure of ours is written.
        let asked =
            unsafe { libc::prlimit64(self.thread, libc::RLIMIT_FSIZE, std::ptr::null(), &raw mut limit) };
        asked == 0 && limit.rlim_cur == libc::RLIM_INFINITY
    }
}

/// The process that a thread belongs to.
fn process_of(thread: i32) -> io::Result<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
    let found = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    found.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
