//! What the loader puts into a program that `rem run` starts: it joins the write cache, and hooks the program's system calls.
//!
//! It exports nothing. `REMANENCE_CACHE` names the daemon's socket; without it the library does nothing. `REMANENCE_CACHE_SCOPE=all` has the
//! calls of all objects hooked, and not those of the C library alone. Programs that the program executes have the library too, as they inherit the
//! environment. Where the environment has [`Settings`] instead, the program's files are read and written by a cache in this process ([`deferred`]).
//!
//! Its memory is its own (`memory.rs`): a hook may run while the program is in its allocator.
#![expect(unsafe_code, reason = "a constructor")]

mod deferred;
mod memory;

use std::os::unix::ffi::OsStrExt as _;

use remanence_cache_live::face;
use remanence_intercept::{Hook, Scope, install};
use remanence_nvcache::programs::Settings;

#[global_allocator]
static MEMORY: memory::Own = memory::Own::new();

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if let Some(settings) = Settings::told() {
        if let Err(why) = deferred::start(settings) {
            eprintln!("remanence: {why}: the files of this program are the kernel's");
        }
        return;
    }
    let Some(socket) = std::env::var_os("REMANENCE_CACHE") else { return };
    let all = std::env::var_os("REMANENCE_CACHE_SCOPE").is_some_and(|scope| scope == "all");
    let scope = if all { Scope::All } else { Scope::Libc };
    let hook = Hook { wants: face::wants, handle: face::handle };
    let joined = face::join(socket.as_bytes())
        .and_then(|()| install(hook, face::NUMBERS, scope).map_err(|why| why.to_string()));
    if let Err(why) = joined {
        // The program runs as it would without us.
        eprintln!("remanence: {why}: the syncs of this program are the kernel's");
    }
}
