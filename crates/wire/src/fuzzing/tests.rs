//! Every file of the fuzz corpus, through the body of its target.

#[test]
fn the_fuzz_corpus_breaks_no_promise() {
    remanence_effort::replay_corpora(super::BODIES);
}
