//! Every file of the fuzz corpus, through the body of its target, and as many random stories: what a fuzzer once
//! found stays found, without a fuzzer.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_rnic::fuzzing;

#[test]
fn the_fuzz_corpus_breaks_no_promise() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, body) in fuzzing::BODIES {
        let mut inputs = 0;
        for entry in std::fs::read_dir(corpus.join(name)).unwrap_or_else(|e| panic!("corpus of {name}: {e}"))
        {
            let path = entry.expect("a readable directory").path();
            let data = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            println!("{}", path.display());
            body(&data);
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has a corpus");
    }
}

#[test]
fn random_stories_break_no_promise() {
    for seed in 0..3000 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut data = vec![0; rng.next_u32() as usize % 3000];
        rng.fill_bytes(&mut data);
        println!("seed {seed}");
        fuzzing::responder(&data);
    }
}
