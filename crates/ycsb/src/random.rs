//! The stream of random numbers that everything else draws from.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// What a generator asks of its source. Java's `ThreadLocalRandom` has the same three, made of the same bits of one
/// 64-bit draw, so that a stream of words replayed there and here gives the same operations.
pub trait Random {
    /// 64 fresh bits.
    fn next_u64(&mut self) -> u64;

    /// A number in [0, 1): the upper 53 bits of a draw.
    fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A number below `bound`, as YCSB makes it: the absolute value of a draw, modulo the bound.
    ///
    /// # Panics
    /// If `bound` is 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().cast_signed().unsigned_abs() % bound
    }

    /// 32 fresh bits: the upper half of a draw.
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }
}

/// A seeded stream that is the same on every machine and in every release.
#[derive(Clone, Debug)]
pub struct Seeded(ChaCha8Rng);

impl Seeded {
    /// The stream of one thread: threads of one run share the seed and differ in the stream.
    #[must_use]
    pub fn new(seed: u64, thread: u64) -> Self {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        generator.set_stream(thread);
        Self(generator)
    }
}

impl Random for Seeded {
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, Seeded};

    #[test]
    fn threads_of_one_seed_have_streams_of_their_own_and_replay() {
        let draw = |seed, thread| {
            let mut random = Seeded::new(seed, thread);
            [random.next_u64(), random.next_u64(), random.next_u64()]
        };
        assert_eq!(draw(7, 0), draw(7, 0));
        assert_ne!(draw(7, 0), draw(7, 1));
        assert_ne!(draw(7, 0), draw(8, 0));
    }

    #[test]
    fn numbers_in_the_unit_interval_never_reach_one() {
        struct Ones;
        impl Random for Ones {
            fn next_u64(&mut self) -> u64 {
                u64::MAX
            }
        }
        assert!(Ones.next_f64() < 1.0);
        assert_eq!(Ones.below(10), 1, "the absolute value of -1");
    }
}
