//! System calls of programs that no library can be loaded into, seen and answered from another process.
//!
//! The kernel stops a thread in front of each call that a filter names (`filter.rs`, seccomp) and tells a supervisor of it, by a descriptor
//! ([`Listener`]). What the filter is over it is over for good: threads, children, and whatever they execute. The supervisor
//! answers a call in the program's place, with copies of the program's descriptors and of its memory ([`Caller`]), or lets it pass. No privilege
//! is needed; without one, the program gets no new ones either (`PR_SET_NO_NEW_PRIVS`): set-user-ID programs that it executes run as its user.
//!
//! It costs two switches between processes a call that is handed over, some fifteen microseconds, and next to nothing any other. A hook
//! inside ([`install`](crate::install)) costs a fiftieth of that.
//!
//! # What a supervisor has to know
//!
//! - **A call that it lets pass is looked at again by the kernel**: another thread may have changed its memory or its descriptors since. What must not
//!   be so has to be answered.
//! - **Once it has received a call, only a fatal signal ends the thread's wait** (Linux 5.19; until 6.17, and in releases without that correction, a signal in the very instant in
//!   which a call is received *and* answered may have the program make it again).
//! - **A program may be killed while its call is being carried out.** [`Listener::is_waiting`] says whether it still waits: to be asked
//!   last before anything is changed.
//! - **If nobody has the listener any more, each call that is handed over fails with `ENOSYS`**, also those that were received.

pub mod filter;
mod listener;

pub use listener::{Caller, Listener, Notified, Seat, confine};
