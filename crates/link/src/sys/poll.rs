//! poll(2), with a time limit in nanoseconds.

use std::io;
use std::time::Duration;

use super::net::check;
use crate::link::WaitFd;

/// Descriptors that are polled without allocating: a link has two for each address, and callers add one.
const ON_STACK: usize = 16;

/// See [`crate::wait::poll_or_signal`].
pub(crate) fn poll(fds: &[WaitFd], at_most: Option<Duration>) -> io::Result<bool> {
    let raw = |f: &WaitFd| libc::pollfd { fd: f.fd, events: f.events, revents: 0 };
    if fds.len() <= ON_STACK {
        let mut set = [libc::pollfd { fd: -1, events: 0, revents: 0 }; ON_STACK];
        for (to, from) in set.iter_mut().zip(fds) {
            *to = raw(from);
        }
        poll_raw(&mut set[..fds.len()], at_most)
    } else {
        poll_raw(&mut fds.iter().map(raw).collect::<Vec<_>>(), at_most)
    }
}

fn poll_raw(raw: &mut [libc::pollfd], at_most: Option<Duration>) -> io::Result<bool> {
    let timeout = at_most.map(|d| libc::timespec {
        tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: d.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and the time limit outlive the call; a null mask leaves the signals alone.
    let ret = unsafe { libc::ppoll(raw.as_mut_ptr(), raw.len() as libc::nfds_t, timeout, std::ptr::null()) };
    check(ret as isize).map(|ready| ready > 0)
}
