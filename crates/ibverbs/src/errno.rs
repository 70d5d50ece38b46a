//! From refusals to `errno`. The only place that knows these numbers.

use std::ffi::c_int;
use std::io;
use std::ptr;

use remanence_rnic::cm::CmError;
use remanence_rnic::{PostError, VerbError};
use remanence_verbs::Error;

/// Sets this thread's `errno`.
pub(crate) fn set(e: c_int) {
    // SAFETY: the location is this thread's own and lives as long as the thread.
    unsafe { *libc::__errno_location() = e };
}

/// What creators answer when they refuse: no object, and the reason in `errno`.
pub(crate) fn null_with<T>(e: c_int) -> *mut T {
    set(e);
    ptr::null_mut()
}

/// What the older calls answer when they refuse: -1, and the reason in `errno`.
pub(crate) fn minus_one_with(e: c_int) -> c_int {
    set(e);
    -1
}

/// What most calls answer: 0, or the reason.
pub(crate) fn code<T>(result: Result<T, c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// Of a call of the safe verbs.
pub(crate) fn of(error: &Error) -> c_int {
    match error {
        Error::Verb(e) => of_verb(*e),
        Error::Post(e) => of_post(*e),
        Error::Cq(_) => libc::EIO,
        Error::Os { source, .. } => of_io(source),
        Error::Cm(e) => of_cm(*e),
        Error::PortInUse(_) => libc::EADDRINUSE,
        Error::Rejected { .. } => libc::ECONNREFUSED,
        Error::NoAnswer(_) => libc::ETIMEDOUT,
        Error::Completion(_) => libc::EIO,
        Error::Disconnected(_) => libc::ENOTCONN,
    }
}

/// Of a verb.
pub(crate) fn of_verb(error: VerbError) -> c_int {
    match error {
        VerbError::NoSuchObject(_) | VerbError::InvalidArgument(_) | VerbError::InvalidTransition(_) => {
            libc::EINVAL
        }
        VerbError::Busy(_) => libc::EBUSY,
        VerbError::NoRoom(_) => libc::ENOMEM,
        VerbError::Unsupported(_) => libc::EOPNOTSUPP,
    }
}

/// Of a work request that was not accepted.
pub(crate) fn of_post(error: PostError) -> c_int {
    match error {
        PostError::QueueFull => libc::ENOMEM,
        PostError::NoSuchQueue
        | PostError::InvalidState
        | PostError::TooManySges
        | PostError::InlineTooLong
        | PostError::InvalidLength
        | PostError::InvalidOperation
        | PostError::InvalidAh => libc::EINVAL,
    }
}

/// Of what the operating system refused; what it said, if it said it in a number.
pub(crate) fn of_io(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or_else(|| match error.kind() {
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    })
}

/// Of the connection manager.
pub(crate) fn of_cm(error: CmError) -> c_int {
    match error {
        CmError::UnknownId | CmError::State | CmError::Path | CmError::PrivateData => libc::EINVAL,
        CmError::InUse => libc::EADDRINUSE,
        CmError::NoResources => libc::ENOMEM,
    }
}
