//! **A model** of how long durable writes take on the machine of paper 001, in simulated nanoseconds.
//!
//! The paper's finding (6.1): a line that was written back is gone from the cache, so that the next store to it has
//! to fetch it again. Small durable writes in sequence take 120 ns each; to one and the same line 770 ns; in
//! rotation over ten lines 100 ns. The rules that give these three figures, and nothing else:
//!
//! 1. A write-back of a line begins when the line is there, and is accepted [`accept`](Delays::accept) later, or
//!    [`accept_new`](Delays::accept_new) later if the line was never written back before.
//! 2. A line that is written back is there again [`refetch`](Delays::refetch) after that began.
//! 3. Write-backs between two fences overlap, [`gap`](Delays::gap) apart; the fence waits for the last.
//!
//! The CPU's own work is not counted: these are the delays of the memory alone.

use std::collections::BTreeMap;

use super::trace::Event;

/// The delays of a machine, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delays {
    /// From a write-back to its acceptance.
    pub accept: u64,
    /// The same of a line that was not written back before.
    pub accept_new: u64,
    /// From a write-back of a line to when the next one of it can begin.
    pub refetch: u64,
    /// Between two write-backs that overlap.
    pub gap: u64,
}

impl Delays {
    /// Cascade Lake with Optane DIMMs, from the figures of paper 001: 100, 120 and 770 ns (6.1, 6.2), and 15 ns a
    /// line for one core's 4.3 GB/s (5.4.2).
    pub const CASCADE_LAKE: Self = Self { accept: 100, accept_new: 120, refetch: 770, gap: 15 };

    /// A memory that takes as long for any line: what the rotation is of no use to.
    #[must_use]
    pub const fn flat(accept: u64) -> Self {
        Self { accept, accept_new: accept, refetch: 0, gap: 0 }
    }

    /// The time that these write-backs and fences take, in nanoseconds.
    #[must_use]
    pub fn run(self, events: &[Event]) -> u64 {
        let mut ready: BTreeMap<u64, u64> = BTreeMap::new();
        // `now` is the time of the code, `next` when the next write-back may begin, `accepted` when all are.
        let (mut now, mut next, mut accepted) = (0, 0, 0);
        for event in events {
            match event {
                Event::WriteBack(line) => {
                    let known = ready.get(line).copied();
                    let begin = now.max(next).max(known.unwrap_or(0));
                    let accept = if known.is_some() { self.accept } else { self.accept_new };
                    ready.insert(*line, begin + self.refetch);
                    next = begin + self.gap;
                    accepted = accepted.max(begin + accept);
                }
                Event::Fence => now = now.max(accepted),
            }
        }
        now.max(accepted)
    }
}
