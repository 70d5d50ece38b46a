//! Whether standard output was there when this program was started. Before `main` begins, Rust's runtime opens `/dev/null` in the place of a
//! descriptor that is closed, and what is written there succeeds; so this looks before that.
//!
//! Room for `unsafe`: one function among those that the loader calls before the program begins.
#![expect(unsafe_code, reason = "where a section of the program goes is nothing that the compiler can check")]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fail::Fail;

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

// SAFETY: the section holds pointers to functions of this type, which the loader calls once each, with nothing else under way.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE: extern "C" fn() = look;

/// Asks the kernel and nobody else, as nothing of the runtime is there yet.
extern "C" fn look() {
    let is_closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()) == Err(rustix::io::Errno::BADF);
    IS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Refuses a command whose result nobody would see.
pub(crate) fn output_is_there() -> Result<(), Fail> {
    if IS_CLOSED.load(Ordering::Relaxed) {
        return Err(Fail::new("standard output is closed, and what is found is told there"));
    }
    Ok(())
}
