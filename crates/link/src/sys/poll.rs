//! poll(2), with a time limit in nanoseconds.

use std::io;
use std::time::Duration;

use super::net::check;
use crate::link::WaitFd;

/// See [`crate::wait::poll`].
pub(crate) fn poll(fds: &[WaitFd], at_most: Option<Duration>) -> io::Result<bool> {
    let mut raw: Vec<libc::pollfd> =
        fds.iter().map(|f| libc::pollfd { fd: f.fd, events: f.events, revents: 0 }).collect();
    let timeout = at_most.map(|d| libc::timespec {
        tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: d.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time limit outlive the call; a null mask leaves the signals alone.
    let ret = unsafe { libc::ppoll(raw.as_mut_ptr(), raw.len() as libc::nfds_t, timeout, std::ptr::null()) };
    match check(ret as isize) {
        Ok(ready) => Ok(ready > 0),
        Err(err) if err.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(err) => Err(err),
    }
}
