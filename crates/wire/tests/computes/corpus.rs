//! Every file of the fuzz corpus, through the body of its target: what a fuzzer once found stays found, without
//! nightly and without a fuzzer.

use std::path::Path;

use remanence_wire::fuzzing::BODIES;

#[test]
fn the_fuzz_corpus_breaks_no_promise() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, body) in BODIES {
        let mut inputs = 0;
        for entry in std::fs::read_dir(corpus.join(name)).unwrap_or_else(|e| panic!("corpus of {name}: {e}"))
        {
            let path = entry.unwrap().path();
            println!("{name}: {}", path.file_name().unwrap().display());
            body(&std::fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has a corpus");
    }
}
