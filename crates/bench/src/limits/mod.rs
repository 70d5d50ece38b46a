//! The physical limits that benches hold ours against, each in one file: what the kernel, a disk and a core do with nothing of
//! ours on them. Every bench has them from here, so that a limit means the same in all of them.
//!
//! Sockets are connected, as our link's are, and the kernel chooses their ports, so that benches can run side by side.

pub(crate) mod file;
pub(crate) mod memcpy;
pub(crate) mod udp;
pub(crate) mod xdp;

/// Operations that are none of a burst, of a limit and of what is compared with it: the first one lasts until whoever answers has its core, some
/// milliseconds, which would be all that a short burst has; the next ones pay for what is made on demand, and for learning who drives.
pub(crate) const WARM: u32 = 200;
