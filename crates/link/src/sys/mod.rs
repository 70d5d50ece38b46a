//! The system calls of the sockets, each as one safe function. Nothing here decides anything.
#![expect(
    unsafe_code,
    reason = "the room of the socket system calls: every block hands the kernel live, sized buffers"
)]

pub(crate) mod bpf;
pub(crate) mod control;
pub(crate) mod descriptor;
pub(crate) mod event;
pub(crate) mod interfaces;
pub(crate) mod net;
pub(crate) mod poll;
#[cfg(test)]
pub(crate) mod process;
pub(crate) mod sched;
pub(crate) mod thread;
pub(crate) mod unix;
pub(crate) mod words;
