//! The physical limits that benches hold ours against, each in one file: what the kernel, a disk and a core do with nothing of
//! ours on them; and what the engine takes with nothing under it. Every bench has them from here, so that a limit means the same in all of them.
//!
//! Sockets are connected, as our link's are, and the kernel chooses their ports, so that benches can run side by side.

use std::time::{Duration, Instant};

pub(crate) mod engine;
pub(crate) mod file;
pub(crate) mod memcpy;
pub(crate) mod udp;
pub(crate) mod xdp;

/// Operations that are none of a burst, of a limit and of what is compared with it: the first one lasts until whoever answers has its core, some
/// milliseconds, which would be all that a short burst has; the next ones pay for what is made on demand, and for learning who drives.
pub(crate) const WARM: u32 = 200;

/// Nanoseconds of each of as many operations as the time allows, one behind the other: of a limit as of what is compared with it, so that both
/// pay for one look at the clock.
pub(crate) fn each<E>(time: Duration, mut one: impl FnMut() -> Result<(), E>) -> Result<Vec<u64>, E> {
    let mut nanos = Vec::with_capacity(1 << 14);
    let begin = Instant::now();
    let mut start = begin;
    while start - begin < time {
        one()?;
        let end = Instant::now();
        nanos.push((end - start).as_nanos() as u64);
        start = end;
    }
    Ok(nanos)
}
