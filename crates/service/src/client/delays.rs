//! How long to wait between two attempts, where nobody can say when the next one is worth it.

use std::time::Duration;

/// Delays between attempts: each twice as long as the one before, up to a limit, less some chance of up to half of it, so that the many who
/// lost a server at one time do not come back to the next at one time.
#[derive(Clone, Debug)]
pub struct Delays {
    first: Duration,
    most: Duration,
    next: Duration,
    random: u64,
}

impl Delays {
    /// From the first one, which is the shortest, to the longest.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        let mut random = [0; 8];
        // Without chance they are still delays.
        let _ = getrandom::fill(&mut random);
        Self { first, most, next: first, random: u64::from_le_bytes(random) }
    }

    /// An attempt has failed: how long the next one is put off.
    #[must_use]
    pub fn next_delay(&mut self) -> Duration {
        // xorshift64, which zero alone does not leave.
        self.random |= u64::from(self.random == 0);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let whole = self.next;
        self.next = (whole * 2).min(self.most);
        whole / 2 + (whole / 2).mul_f64((self.random >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// The longest one.
    #[must_use]
    pub const fn most(&self) -> Duration {
        self.most
    }

    /// An attempt has succeeded: the next delay is the first one again.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_limit_differ_and_begin_anew_after_a_success() {
        let ms = Duration::from_millis;
        let mut delays = Delays { random: 7, ..Delays::new(ms(5), ms(60)) };
        let mut seen = Vec::new();
        for whole in [5, 10, 20, 40, 60, 60, 60].map(ms) {
            let delay = delays.next_delay();
            assert!((whole / 2..=whole).contains(&delay), "{delay:?} of {whole:?}");
            seen.push(delay);
        }
        seen.dedup();
        assert_eq!(seen.len(), 7, "chance has its part: {seen:?}");
        delays.reset();
        assert!(delays.next_delay() <= ms(5));
        assert!(Delays { random: 0, ..delays }.next_delay() >= ms(5), "of 10 ms half at least");
    }
}
