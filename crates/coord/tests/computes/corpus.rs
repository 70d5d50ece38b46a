//! The committed corpus of the fuzz target, through the function that the fuzzer calls.

use remanence_coord::log::fuzzing;

#[test]
fn the_corpus_is_no_trouble() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/remotelog");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).expect("it is committed") {
        let bytes = std::fs::read(file.expect("readable").path()).expect("readable");
        fuzzing::decode(&bytes);
        fuzzing::recover(&bytes);
        count += 1;
    }
    assert!(count >= 8, "only {count} files");
}
