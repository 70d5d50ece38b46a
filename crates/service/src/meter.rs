//! What the application costs: the CPU time that a server's serving thread spends on messages, apart from what it spends on
//! waiting for them and on driving the device.
//!
//! In hardware the device is another chip. Here it is the same CPU, and may be the same thread, so a process's CPU time alone
//! does not tell what a server's *application* costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A server's counters. Clones count the same.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    messages: AtomicU64,
    nanos: AtomicU64,
}

/// What was counted, since the server began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Metered {
    /// Messages of clients: one-sided operations are none.
    pub messages: u64,
    /// CPU time of the serving thread for them: decoding, handlers, answers, and what they put off. Posting an answer is in
    /// it, and where nobody else drives the device, sending its packets.
    pub application: Duration,
}

impl Meter {
    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> Metered {
        Metered {
            messages: self.0.messages.load(Ordering::Relaxed),
            application: Duration::from_nanos(self.0.nanos.load(Ordering::Relaxed)),
        }
    }

    /// The calling thread's CPU time, nanoseconds.
    #[must_use]
    pub fn now() -> u64 {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// Counts messages, and the calling thread's CPU time since it was so much.
    pub fn add(&self, messages: u64, since: u64) {
        self.spent(messages, Self::now().saturating_sub(since));
    }

    /// Counts messages, and nanoseconds that were spent on them.
    pub fn spent(&self, messages: u64, nanos: u64) {
        self.0.messages.fetch_add(messages, Ordering::Relaxed);
        self.0.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}
