//! Every file of the fuzz corpus, through the body of its target.

use std::path::Path;

use remanence_kv_live::fuzzing;

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
