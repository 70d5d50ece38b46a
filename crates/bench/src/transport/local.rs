//! Limits that need no second process: memcpy on one core.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::plan::memcpy_key;
use crate::effort::Effort;
use crate::machine::{State, pin};
use crate::samples::Samples;

/// Measures memcpy at the sizes that streams in shared memory are held against.
pub(super) fn sample(samples: &mut Samples, effort: Effort) {
    for size in [4 << 10, 64 << 10, 1 << 20] {
        let budget = Duration::from_millis(effort.pick(2, 20, 20));
        let rate = std::thread::spawn(move || memcpy(size, budget)).join();
        let Ok(rate) = rate else { continue };
        samples.add(&memcpy_key(size as u64), State::Any, State::Any, [rate]);
    }
}

/// GB/s of copying the same `size` bytes again and again.
fn memcpy(size: usize, budget: Duration) -> f64 {
    pin(0);
    let from = vec![0x5A_u8; size];
    let mut to = vec![0_u8; size];
    let begin = Instant::now();
    let mut bytes = 0_u64;
    while begin.elapsed() < budget {
        for _ in 0..16 {
            black_box(&mut to).copy_from_slice(black_box(&from));
            bytes += size as u64;
        }
    }
    bytes as f64 / begin.elapsed().as_nanos() as f64
}
