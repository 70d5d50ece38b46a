//! The committed fuzzing corpus, through the same body as the fuzzer.

use std::fs;
use std::path::Path;

use remanence_gateway::fuzzing::BODIES;

#[test]
fn every_body_takes_its_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, body) in BODIES {
        let files: Vec<_> =
            fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in files {
            println!("{}", file.display());
            body(&fs::read(&file).unwrap());
        }
    }
}
