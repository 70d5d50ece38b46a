//! Every file of the fuzz corpus, through the body of its target, and as many random stories.

use std::path::Path;

use remanence_kv::fuzzing;
use remanence_pmem::crash_image::{Choices, Seeded};

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
    for seed in remanence_effort::seeds(400) {
        let mut choices = Seeded::new(seed);
        let len = choices.pick(600);
        let data: Vec<u8> = (0..len).map(|_| choices.pick(256) as u8).collect();
        println!("seed {seed}");
        fuzzing::decoders(&data);
        fuzzing::server(&data);
        fuzzing::medium(&data[..len.min(1 + seed as usize % 24)]);
    }
}
