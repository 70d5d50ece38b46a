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
    sys::poll::poll(fds, at_most)
}
