//! Randomness from one seed, in independent streams.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// A stream of choices. Each part of the simulator has its own, so that a change to the workload does not move
/// every fault of the network.
#[derive(Clone, Debug)]
pub(crate) struct Rng(ChaCha8Rng);

impl Rng {
    /// Stream `stream` of `seed`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, which must not be zero. The modulo's bias is far below what any run could notice.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `parts` times in a million.
    pub(crate) fn chance(&mut self, parts: Ppm) -> bool {
        parts.0 > 0 && self.below(1_000_000) < u64::from(parts.0)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// An exponentially distributed time with the given mean, at most 20 means.
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        // -ln of a uniform number, by its leading zeros and a table-free quadratic for the mantissa: floating
        // point functions may differ between machines, and a seed must not.
        let bits = self.0.next_u64() | 1;
        let zeros = u64::from(bits.leading_zeros());
        let mantissa = (bits << zeros << 1) >> 48;
        // ln 2 in 1/65536: 45426. Between two powers of two the logarithm is near enough to a straight line.
        let log = zeros * 45_426 + 45_426 - ((mantissa * 45_426) >> 16);
        ((mean * log) >> 16).min(20 * mean)
    }
}

/// A probability in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Ppm(pub u32);

impl Ppm {
    /// `n` percent.
    #[must_use]
    pub const fn percent(n: u32) -> Self {
        Self(n * 10_000)
    }
}

impl std::fmt::Display for Ppm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02} %", self.0 / 10_000, self.0 % 10_000 / 100)
    }
}

/// Bytes that tell where they belong: the content of operation `key`.
///
/// A word that turns up in the wrong message, the wrong place or the wrong order is seen, as no two keys share
/// their words.
pub(crate) fn fill(key: u64, into: &mut [u8]) {
    let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6a09_e667_f3bc_c909;
    for chunk in into.chunks_mut(8) {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_has_about_its_mean() {
        let mut rng = Rng::new(1, 0);
        let sum: u64 = (0..10_000).map(|_| rng.exponential(1000)).sum();
        assert!((9_000_000..11_500_000).contains(&sum), "{sum}");
    }

    #[test]
    fn streams_differ_and_replay() {
        assert_ne!(Rng::new(1, 0).u64(), Rng::new(1, 1).u64());
        assert_eq!(Rng::new(1, 2).u64(), Rng::new(1, 2).u64());
    }
}
