//! The committed fuzzing corpus, through the same body as the fuzzer.

#[test]
fn every_body_takes_its_corpus() {
    remanence_effort::replay_corpora(super::BODIES);
}
