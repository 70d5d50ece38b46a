//! The committed fuzzing corpus, through the same bodies as the fuzzer.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

use super::BODIES;

#[test]
fn every_body_takes_its_corpus() {
    remanence_effort::replay_corpora(BODIES);
}

/// The corpus with bytes changed, dropped, doubled and spliced: what a fuzzer begins with. `REMANENCE_RESP_MUTANTS` sets
/// how many of each file.
#[test]
fn every_body_takes_what_is_almost_its_corpus() {
    let mutants =
        std::env::var("REMANENCE_RESP_MUTANTS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut below = move |bound: usize| (random.next_u64() % bound.max(1) as u64) as usize;
    for (name, body) in BODIES {
        let files: Vec<Vec<u8>> =
            remanence_effort::corpus(name).into_iter().map(|(_, bytes)| bytes).collect();
        for file in &files {
            for _ in 0..mutants {
                let mut bytes = file.clone();
                for _ in 0..=below(4) {
                    let (at, len) = (below(bytes.len()), below(20));
                    let end = (at + len).min(bytes.len());
                    match below(6) {
                        0 if !bytes.is_empty() => bytes[at] = below(256) as u8,
                        1 if !bytes.is_empty() => bytes[at] ^= 1 << below(8),
                        2 => _ = bytes.drain(at..end),
                        3 => bytes.extend_from_within(at..end),
                        4 => {
                            let other = &files[below(files.len())];
                            let from = below(other.len());
                            bytes.truncate(at);
                            bytes.extend_from_slice(&other[from..]);
                        }
                        // A number that means something else.
                        _ => {
                            let number = ["0", "-1", "9", "99999999999", "9223372036854775807"][below(5)];
                            _ = bytes.splice(at..at, number.bytes());
                        }
                    }
                }
                body(&bytes);
            }
        }
    }
}
