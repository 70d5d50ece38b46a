//! Whether this process is a forked child of the one that has opened a cache. A child has a copy of the words that say where the log's head is, and the log itself in
//! common with its parent: an append of each in the same place would destroy both.
//!
//! The promise of this room: the handler that runs in a child adds one to a word, and does nothing else.
#![expect(unsafe_code, reason = "pthread_atfork has no safe wrapper")]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between this process and the first.
static DEPTH: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    DEPTH.fetch_add(1, Ordering::Relaxed);
}

/// Which of the processes this is, for [`is_other`].
pub(crate) fn this() -> io::Result<u64> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler may run in a child whose other threads are gone: it touches one atomic word.
    let register = || unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    match REGISTERED.get_or_init(register) {
        0 => Ok(DEPTH.load(Ordering::Relaxed)),
        errno => Err(io::Error::from_raw_os_error(*errno)),
    }
}

/// Whether this process is another one than that which said so.
pub(crate) fn is_other(process: u64) -> bool {
    DEPTH.load(Ordering::Relaxed) != process
}
