//! What strangers may make us do for everyone.
//!
//! A datagram that does not say whose it is goes to all who could be meant, up to 255 processes, each of which it wakes;
//! and anybody on the network can send such datagrams. Few are ever needed (who gives up on a request that was never
//! answered sends one), and none must arrive.

use std::time::{Duration, Instant};

/// So many at once: as many clients of a host may give up together.
const MOST: u32 = 64;

/// And one more each time that this has passed.
const EVERY: Duration = Duration::from_millis(10);

/// How many more there may be now.
#[derive(Debug)]
pub(super) struct Allowance {
    left: u32,
    /// Up to when time has been counted.
    counted: Instant,
}

impl Allowance {
    pub(super) const fn new(now: Instant) -> Self {
        Self { left: MOST, counted: now }
    }

    /// Takes `count` if there are as many.
    pub(super) fn take(&mut self, now: Instant, count: u64) -> bool {
        let passed = now.saturating_duration_since(self.counted);
        let earned = passed.as_nanos() / EVERY.as_nanos();
        self.left = u32::try_from(earned).unwrap_or(MOST).saturating_add(self.left).min(MOST);
        self.counted += if self.left == MOST {
            passed
        } else {
            EVERY * u32::try_from(earned).expect("less than what fills it")
        };
        let Some(left) = u64::from(self.left).checked_sub(count) else { return false };
        self.left = u32::try_from(left).expect("no more than there were");
        true
    }

    /// How many there can be in `time`.
    #[cfg(test)]
    pub(super) fn within(time: Duration) -> u128 {
        u128::from(MOST) + time.as_nanos() / EVERY.as_nanos() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_used_up_and_comes_back_with_time() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert!(allowance.take(start, u64::from(MOST) - 1), "many at once");
        assert!(!allowance.take(start, 2), "more than is left");
        assert!(allowance.take(start, 1), "which takes nothing");
        let mut given = 0;
        // Asked more often than it earns: what passes between two questions is not lost.
        for n in 1..=100 {
            given += u32::from(allowance.take(start + EVERY / 4 * n, 1));
        }
        assert_eq!(given, 25);
        let rested = start + EVERY * 10_000;
        assert!(allowance.take(rested, MOST.into()), "all of it after a while");
        assert!(!allowance.take(rested, 1), "and no more");
        assert!(!allowance.take(rested + EVERY / 2, 1), "nor is what passed before it was full kept");
    }
}
