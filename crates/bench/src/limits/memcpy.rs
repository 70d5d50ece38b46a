//! The limit of copies: memcpy on one core, from one small buffer, that stays in the cache, to as much memory as what is
//! compared goes to.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::role::End;

/// The memory that is copied to.
pub(crate) struct Memcpy {
    to: Vec<u8>,
    at: usize,
}

impl Memcpy {
    pub(crate) fn new(len: u64) -> Self {
        // Every page is touched here, and not in the first burst.
        Self { to: vec![1; len as usize], at: 0 }
    }

    /// GB/s of copies of `size` bytes for a while, each behind the one before in the first `within` bytes.
    pub(crate) fn burst(&mut self, size: u64, within: u64, budget: Duration) -> Result<f64, String> {
        let (size, within) = (size as usize, within as usize);
        let copying = || {
            End::Server.keep();
            let from = vec![0x5A_u8; size];
            let (begin, mut bytes) = (Instant::now(), 0);
            while bytes == 0 || begin.elapsed() < budget {
                for _ in 0..8 {
                    if self.at + size > within {
                        self.at = 0;
                    }
                    black_box(&mut self.to)[self.at..self.at + size].copy_from_slice(black_box(&from));
                    self.at += size;
                    bytes += size;
                }
            }
            bytes as f64 / begin.elapsed().as_nanos().max(1) as f64
        };
        // A thread of its own: the caller's is not to be pinned.
        std::thread::scope(|scope| scope.spawn(copying).join()).map_err(|_| "memcpy panicked".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_where_they_are_to_go() {
        let mut memcpy = Memcpy::new(4096);
        let rate = memcpy.burst(64, 1000, Duration::ZERO).expect("a rate");
        assert!(rate > 0.0 && rate.is_finite(), "{rate}");
        assert!(memcpy.to[..8 * 64].iter().all(|byte| *byte == 0x5A), "eight copies, one behind the other");
        (0..4).for_each(|_| drop(memcpy.burst(64, 1000, Duration::ZERO)));
        assert!(memcpy.to[960..].iter().all(|byte| *byte == 1), "fifteen of them fit");
    }
}
