//! The fuzz corpora, and random stories on top, without a fuzzer.

use std::path::Path;

use remanence_rpc::fuzzing;

fn replay(target: &str, run: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&directory).expect("the corpus is committed") {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count > 5, "{count} files in {}", directory.display());
}

#[test]
fn headers() {
    replay("rpc_header", fuzzing::header);
}

#[test]
fn stories() {
    replay("rpc_endpoint", fuzzing::endpoint);
}

#[test]
fn random_stories() {
    let mut state = 1_u64;
    for _ in 0..3000 {
        let story: Vec<u8> = (0..400)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        fuzzing::endpoint(&story);
    }
}
