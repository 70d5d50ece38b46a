//! Waiting for any of a link's descriptors: poll(2), for callers without an event loop of their own.

use std::io;
use std::time::Duration;

use crate::link::WaitFd;
use crate::sys;

/// Waits until one of `fds` is ready, or for `at_most`; whether one is. A signal ends the wait as well.
///
/// # Errors
/// When the kernel refuses the descriptors.
pub fn poll(fds: &[WaitFd], at_most: Option<Duration>) -> io::Result<bool> {
    match poll_or_signal(fds, at_most) {
        Err(err) if err.kind() == io::ErrorKind::Interrupted => Ok(true),
        other => other,
    }
}

/// The same, and says when it was a signal.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`] when a signal handler has run in this thread meanwhile; when the kernel refuses the
/// descriptors.
pub fn poll_or_signal(fds: &[WaitFd], at_most: Option<Duration>) -> io::Result<bool> {
    sys::poll::poll(fds, at_most)
}
