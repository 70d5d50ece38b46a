//! System calls of unmodified programs, seen and answered inside the program: a library that is preloaded finds the
//! `syscall` instructions of the C library and of the dynamic loader, and puts a jump in front of each.
//!
//! A library that only replaces functions sees one call of ten: `fopen`, `dprintf`, `aio_write` and `mkstemp` go around
//! it, as the C library calls itself by names that nobody can replace. Here it is the instructions that are found,
//! whoever leads to them.
//!
//! Read first: `scan.rs`, what is found; `plan.rs`, what takes its place; `live/gate.rs`, how a call travels. The first two are pure, and know
//! nothing of this process.
//!
//! # A hook
//!
//! A call that is made at a patched site passes three questions, the cheapest first: is its number one of those that were
//! given to [`install`] (four instructions)? [`Hook::wants`]? Then [`Hook::handle`] answers it or lets it pass. A call that passes is made
//! by the instruction of the program itself wherever there was room before that, and the program goes on as if nobody had looked.
//!
//! With a bare call of 80 ns, one of another number costs 2 ns more and one that `wants` refuses 15; one that goes to `handle` some 300, half of them for
//! the two calls that hold signals back (`examples/cost.rs`).
//!
//! Programs of Go make their calls themselves, at one site: with [`Scope::All`] it is patched where the loader loads the program, as it
//! does with those that use the C library for anything. What Go's scheduler does for itself is not seen.
//!
//! # From outside
//!
//! Into a static program no library can be loaded. Its calls are handed to another process by the kernel ([`outside`]), at some microseconds each; so are
//! those of all that it executes. [`Report::way`] says which of the two a program takes.
//!
//! # The net
//!
//! [`watch`] has the kernel stop each call that is made anywhere but here, and tells of those that came by no trampoline, with their sites. It costs
//! a signal a call: it is for tests, and to find out why a program is not seen whole.
//!
//! # What is not seen
//!
//! [`Patched`] lists what could not be patched and [`inspect()`] says of a program what a hook will not see: static
//! programs, setuid programs, `io_uring`. Calls of the kernel's own object (vDSO) are the clock's only.
//! Up to glibc 2.40 a thread that is cancelled while it waits in a call is unwound from the instruction that it waits at, which is the program's own; it is
//! in a trampoline at the few sites that had to be moved, where an unwinder finds no way on and the thread ends without its C++ destructors.
//! musl, and glibc from 2.41 on, look at that address instead: a cancellation that arrives in the nanoseconds between their look and the call
//! is noticed when the call returns.
//!
//! A program that is executed has the hook only if the loader preloads it there too (`LD_PRELOAD` in its environment): this crate changes no `execve`.

pub mod image;
mod inspect;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod live;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod outside;
pub mod plan;
pub mod scan;

pub use inspect::{InspectError, Libc, Obstacle, Report, Way, inspect, inspect_bytes};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use live::{InstallError, Patched, extend, install, own_calls, raw, watch};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("remanence-intercept patches the instructions of x86-64 programs on Linux, and no others yet");

/// A system call that is about to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Syscall {
    /// Its number, as the program has it in RAX; the kernel looks at the low 32 bits.
    pub number: u64,
    /// Its arguments, of which it may have fewer.
    pub arguments: [u64; 6],
    /// The address of the instruction in the program that was patched.
    pub site: u64,
    /// The address of the instruction that makes the call if it passes: the same, or in a trampoline.
    pub call: u64,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The kernel carries it out.
    Pass,
    /// The program gets this, as from the kernel: a negative number is an error.
    Return(i64),
}

/// Who looks at calls.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Whether a call is one for [`handle`](Self::handle). It runs on the program's stack, with its signals, in any thread, in
    /// signal handlers and in the children of `vfork`. So it looks at memory and decides: it waits for nobody, calls no
    /// library, and makes no system call.
    pub wants: fn(&Syscall) -> bool,
    /// Answers a call. It runs with all signals blocked and on a stack of 100 KiB. A system call that it makes through a
    /// library is not hooked; it should make it by [`raw`], which leaves `errno` alone. It must not allocate: the program
    /// may be in the allocator.
    pub handle: fn(&Syscall) -> Verdict,
}

/// Which of the loaded objects are patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The C library and the dynamic loader.
    Libc,
    /// All, the program itself too; but not the one with the hook.
    All,
}

impl Scope {
    /// The name by which the program itself goes here.
    pub const PROGRAM: &str = "(program)";

    /// Whether an object of this path is one of these.
    #[must_use]
    pub fn has(self, path: &str) -> bool {
        const LIBC: [&str; 8] =
            ["libc.so", "libc-2", "ld-linux", "ld-2", "ld-musl", "libc.musl", "libpthread", "librt"];
        let file = path.rsplit('/').next().unwrap_or(path);
        self == Self::All || LIBC.iter().any(|name| file.starts_with(name))
    }
}
