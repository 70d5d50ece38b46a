//! Every file of the fuzz corpus, through the body of its target, and as many random stories.

use remanence_pmem::crash_image::{Choices, Seeded};

use super::{BODIES, decoders, medium, server};

#[test]
fn the_fuzz_corpus_breaks_no_promise() {
    remanence_effort::replay_corpora(BODIES);
}

#[test]
fn random_stories_break_no_promise() {
    for seed in remanence_effort::seeds(400) {
        let mut choices = Seeded::new(seed);
        let len = choices.pick(600);
        let data: Vec<u8> = (0..len).map(|_| choices.pick(256) as u8).collect();
        println!("seed {seed}");
        decoders(&data);
        server(&data);
        medium(&data[..len.min(1 + seed as usize % 24)]);
    }
}
