//! Signals to our own children, for tests.

use std::io;

use super::net::check;

/// kill(2).
pub(crate) fn kill(pid: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid.cast_signed(), signal) } as isize).map(drop)
}
