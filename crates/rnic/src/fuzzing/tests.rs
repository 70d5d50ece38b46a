//! Every file of the fuzz corpus, through the body of its target, and as many random stories: what a fuzzer once
//! found stays found, without a fuzzer.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::{BODIES, responder};

#[test]
fn the_fuzz_corpus_breaks_no_promise() {
    remanence_effort::replay_corpora(BODIES);
}

#[test]
fn random_stories_break_no_promise() {
    for seed in 0..3000 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut data = vec![0; rng.next_u32() as usize % 3000];
        rng.fill_bytes(&mut data);
        println!("seed {seed}");
        responder(&data);
    }
}
