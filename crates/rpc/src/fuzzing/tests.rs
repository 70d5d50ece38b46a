//! The fuzz corpora, and random stories on top, without a fuzzer.

use super::{endpoint, header};

#[test]
fn headers() {
    remanence_effort::replay_corpora(&[("rpc_header", header)]);
}

#[test]
fn stories() {
    remanence_effort::replay_corpora(&[("rpc_endpoint", endpoint)]);
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
        endpoint(&story);
    }
}
