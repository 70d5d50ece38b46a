//! The committed fuzzing corpus, through the same bodies as the fuzzer.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

use super::BODIES;

/// As it is, and with a few bytes changed.
#[test]
fn every_body_takes_its_corpus_and_what_is_almost_its_corpus() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for (name, body) in BODIES {
        for (_, bytes) in remanence_effort::corpus(name) {
            body(&bytes);
            for _ in 0..2_000 {
                let mut changed = bytes.clone();
                for _ in 0..=random.next_u32() % 4 {
                    let at = random.next_u32() as usize % changed.len();
                    // Lengths and kinds are small numbers.
                    let most = if random.next_u32() % 2 == 0 { 256 } else { 40 };
                    changed[at] = (random.next_u32() % most) as u8;
                }
                changed.truncate(changed.len() - random.next_u32() as usize % 4);
                body(&changed);
            }
        }
    }
}
