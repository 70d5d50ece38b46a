//! epoll(7) and timerfd: several slow channels behind one descriptor.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::descriptor::Descriptor;
use super::net::check;

/// An epoll set whose members are told apart by a token.
#[derive(Debug)]
pub(crate) struct Epoll(Descriptor);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check(fd as isize)?;
        // SAFETY: a fresh descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }.into()))
    }

    /// Watches `fd` for input. Closing its last copy takes it out; a forked child may have one.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.watch(fd, token, libc::EPOLLIN)
    }

    /// Watches for the end of what `fd` is connected to, and for nothing else.
    pub(crate) fn add_for_end(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        // The kernel reports an end, which it calls a hang-up, without being asked for it.
        self.watch(fd, token, 0)
    }

    /// Watches `fd` no more.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // SAFETY: the kernel reads no event.
        let ret = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), std::ptr::null_mut())
        };
        debug_assert_eq!(ret, 0, "it was watched");
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64, events: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event outlives the call.
        let ret = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event)
        };
        check(ret as isize).map(drop)
    }

    /// The tokens of members with input, at most 16, without waiting.
    pub(crate) fn ready(&self) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: pointer and count describe `events`.
        let n = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 16, 0) };
        let n = match check(n as isize) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => 0,
            other => other?,
        };
        Ok(events.into_iter().take(n).map(|event| event.u64))
    }

    pub(crate) fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// A periodic timer that is readable when it has fired.
#[derive(Debug)]
pub(crate) struct Timer(Descriptor);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        check(fd as isize)?;
        // SAFETY: a fresh descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }.into()))
    }

    /// Fires every `period` from now on.
    pub(crate) fn set(&self, period: Duration) -> io::Result<()> {
        self.program(period, period)
    }

    /// Fires once, `after` from now.
    pub(crate) fn set_once(&self, after: Duration) -> io::Result<()> {
        self.program(after, Duration::ZERO)
    }

    fn program(&self, first: Duration, period: Duration) -> io::Result<()> {
        let timespec = |time: Duration| libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let spec = libc::itimerspec { it_interval: timespec(period), it_value: timespec(first) };
        // SAFETY: the new value outlives the call; nobody asks for the old one.
        let ret =
            unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut()) };
        check(ret as isize).map(drop)
    }

    /// Forgets that it has fired.
    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: pointer and length describe `count`. An empty timer says EAGAIN, which is as good.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    pub(crate) fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }
}
