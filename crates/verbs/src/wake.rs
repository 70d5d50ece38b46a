//! The two things a thread of this crate sleeps on: an event descriptor that others raise, and a set of
//! descriptors with a time limit. Nothing else in the crate makes a system call of its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remanence_link::{Descriptor, WaitFd, wait};
use rustix::event::{EventfdFlags, PollFlags, eventfd};

/// A descriptor that is readable while it is raised. Raising it twice is raising it once.
#[derive(Debug)]
pub(crate) struct Event {
    fd: Descriptor,
    /// May be readable. Of an event for a consumer always, who could have raised it himself.
    raised: AtomicBool,
    for_consumer: bool,
}

impl Event {
    /// For threads of this crate.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into(),
            raised: AtomicBool::new(false),
            for_consumer: false,
        })
    }

    /// For a consumer, who finds it in blocking mode and may change that. Lower it only while it is raised.
    pub(crate) fn for_consumer() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC)?.into(),
            raised: AtomicBool::new(false),
            for_consumer: true,
        })
    }

    /// It is ours, and not what a forked child has given back.
    pub(crate) fn is_open(&self) -> bool {
        self.fd.is_open()
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        if !self.is_open() {
            return;
        }
        #[expect(clippy::host_endian_bytes, reason = "eventfd(2) takes a native word")]
        let one = 1u64.to_ne_bytes();
        loop {
            match rustix::io::write(&self.fd, &one) {
                Err(rustix::io::Errno::INTR) => {}
                // Full (2^64 - 2 raises unread) is raised, which is all that was asked for.
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {
                    // Behind the write: who sees it finds the descriptor readable.
                    self.raised.store(true, Ordering::Release);
                    return;
                }
                Err(e) => panic!("an event descriptor of this process could not be written: {e}"),
            }
        }
    }

    /// Makes the descriptor unreadable, if it was raised. (One that is being raised right now may stay readable; who
    /// sleeps on it then does not sleep.)
    pub(crate) fn lower(&self) {
        if !self.for_consumer && !self.raised.swap(false, Ordering::Acquire) {
            return;
        }
        if !self.is_open() {
            return;
        }
        let mut count = [0u8; 8];
        while let Err(rustix::io::Errno::INTR) = rustix::io::read(&self.fd, &mut count) {}
    }
}

impl Event {
    fn wait_fd(&self) -> WaitFd {
        WaitFd { fd: self.fd.as_raw_fd(), events: PollFlags::IN.bits().cast_signed() }
    }

    /// Whether it is raised.
    #[cfg(test)]
    pub(crate) fn is_raised(&self) -> bool {
        wait::poll(&[self.wait_fd()], Some(Duration::ZERO)).unwrap()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sleeps until `event` is raised, one of `fds` is ready, or `limit` is over. Wakes early for a signal, which it says, and
/// takes an error for a wake-up: callers look again anyway.
pub(crate) fn sleep(event: &Event, fds: &mut Vec<WaitFd>, limit: Option<Duration>) -> bool {
    fds.push(event.wait_fd());
    let woken = wait::poll_or_signal(fds, limit);
    fds.pop();
    woken.is_err_and(|e| e.kind() == std::io::ErrorKind::Interrupted)
}

/// Sleeps until `fd` is readable, or `limit` is over.
pub(crate) fn until_readable(fd: BorrowedFd<'_>, limit: Option<Duration>) {
    let _ = wait::poll(&[WaitFd { fd: fd.as_raw_fd(), events: PollFlags::IN.bits().cast_signed() }], limit);
}

/// Whether the file description behind `fd` is in non-blocking mode now: a consumer may switch it at any time
/// with fcntl, behind our back.
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_readable_from_the_first_raise_to_the_lowering() {
        let event = Event::new().unwrap();
        assert!(!event.is_raised());
        event.raise();
        event.raise();
        assert!(event.is_raised());
        event.lower();
        assert!(!event.is_raised());
        event.lower();
    }

    #[test]
    fn sleep_ends_for_the_event_for_a_descriptor_and_for_the_limit() {
        let event = Event::new().unwrap();
        let other = Event::new().unwrap();
        let mut fds = Vec::new();
        sleep(&event, &mut fds, Some(Duration::from_millis(1)));
        event.raise();
        sleep(&event, &mut fds, None);
        event.lower();
        other.raise();
        fds.push(other.wait_fd());
        sleep(&event, &mut fds, None);
        assert_eq!(fds, [other.wait_fd()], "the caller's list is as it was");
    }
}
