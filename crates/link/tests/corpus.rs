//! The committed fuzzing corpus, through the same bodies as the fuzzer.

use std::fs;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};
use remanence_link::fuzzing::BODIES;

/// As it is, and with a few bytes changed.
#[test]
fn every_body_takes_its_corpus_and_what_is_almost_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for (name, body) in BODIES {
        let mut files: Vec<_> =
            fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        files.sort();
        for file in files {
            let bytes = fs::read(&file).unwrap();
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
