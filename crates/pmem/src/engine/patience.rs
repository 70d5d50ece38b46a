//! How long to spin before sleeping: as long as spinning has paid lately.
//!
//! A wait that ended within [`SPIN_MAX`] would have been worth spinning for, whether it was spun or slept through,
//! so the next one spins up to twice as long as this one took. A longer wait teaches to sleep at once. A thread that
//! spins gives its core away now and then: on a small machine, whoever it waits for may need that very core.

use std::time::{Duration, Instant};

/// A sleep and a wake-up cost about this much; spinning longer than that is never the better half.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// What is tried at first.
const SPIN_FIRST: Duration = Duration::from_micros(10);

/// Spins between two looks at the clock.
const SPINS: u32 = 64;

/// Looks at the clock between two offers of the core to others.
const YIELD_EVERY: u32 = 8;

/// The patience of one waiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    limit: Duration,
    most: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        // With a single core, whoever we wait for cannot run while we spin.
        let alone = std::thread::available_parallelism().map_or(1, usize::from) == 1;
        if alone { Self::of(Duration::ZERO, Duration::ZERO) } else { Self::of(SPIN_FIRST, SPIN_MAX) }
    }

    const fn of(limit: Duration, most: Duration) -> Self {
        Self { limit, most }
    }

    /// Waits until `ready`: spinning, then by `sleep`, which returns when it may be so.
    pub(super) fn wait(&mut self, mut ready: impl FnMut() -> bool, mut sleep: impl FnMut()) {
        if ready() {
            return;
        }
        let start = Instant::now();
        let mut looks = 0_u32;
        while start.elapsed() < self.limit {
            for _ in 0..SPINS {
                if ready() {
                    return self.learn(start.elapsed());
                }
                std::hint::spin_loop();
            }
            looks += 1;
            if looks.is_multiple_of(YIELD_EVERY) {
                std::thread::yield_now();
            }
        }
        while !ready() {
            sleep();
        }
        self.learn(start.elapsed());
    }

    fn learn(&mut self, waited: Duration) {
        self.limit = if waited < SPIN_MAX { (2 * waited).min(self.most) } else { Duration::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_teach_to_spin_and_long_ones_to_sleep() {
        let mut patience = Patience::of(SPIN_FIRST, SPIN_MAX);
        patience.learn(Duration::from_micros(4));
        assert_eq!(patience.limit, Duration::from_micros(8));
        patience.learn(Duration::from_micros(40));
        assert_eq!(patience.limit, SPIN_MAX);
        patience.learn(Duration::from_millis(3));
        assert_eq!(patience.limit, Duration::ZERO, "the next wait sleeps at once");
        patience.learn(Duration::from_micros(9));
        assert_eq!(
            patience.limit,
            Duration::from_micros(18),
            "and a short one, slept through, brings spinning back"
        );
    }

    #[test]
    fn a_wait_ends_when_it_is_ready_whoever_woke_it() {
        let mut sleeps = 0;
        let mut patience = Patience::of(Duration::ZERO, SPIN_MAX);
        let left = std::cell::Cell::new(3);
        patience.wait(
            || left.get() == 0,
            || {
                sleeps += 1;
                left.set(left.get() - 1);
            },
        );
        assert_eq!(sleeps, 3);
    }
}
