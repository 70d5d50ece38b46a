//! The committed corpus of the fuzz target, through the functions that the fuzzer calls; and random bytes, a few.

use std::path::Path;

use proptest::prelude::*;
use remanence_persist::plan::Request;
use remanence_persist::recipe::{Op, build};

use super::{decode, recovery, responder};
use crate::message::Entry;
use crate::program::Program;

fn all(bytes: &[u8]) {
    decode(bytes);
    responder(bytes);
    recovery(bytes);
}

#[test]
fn the_corpus_is_no_trouble() {
    remanence_effort::replay_corpora(&[("remote", all)]);
}

/// A story of the fuzz target in which a plan is registered, and then used.
fn story(config: u8, text: &str, op: Op, with_classes: bool) -> Vec<u8> {
    let config_of = text.parse().expect("a configuration");
    let program = Program::compile(&build(&config_of, op, Request::record(8).shape())).expect("a recipe");
    let mut plan = program.emit();
    plan.extend(with_classes.then_some(0));
    let mut bytes = vec![config, 1, 3, 0, 0, 0, 0, plan.len() as u8, 0];
    bytes.extend(plan);
    let mut update = Vec::new();
    Entry::emit(&mut update, 64, 8, true);
    update.extend_from_slice(b"an entry");
    let replay = u8::from(program.replay());
    let how = if with_classes { 0 } else { 1 };
    bytes.extend([how, 1, replay, 0, 0, 1, update.len() as u8, 0]);
    bytes.extend(update);
    bytes.extend([1, 2, 0, 0, 0, 0, 4, 0]);
    bytes.extend(b"call");
    bytes
}

/// Writes the corpus anew: `REMANENCE_CORPUS=1 cargo test -p remanence-remote --lib fuzzing`.
#[test]
fn the_corpus_can_be_made_again() {
    let stories = [
        ("send", story(0, "DMP+DDIO+DRAM", Op::Send, false)),
        ("send-late", story(1, "DMP+no-DDIO+PM", Op::Send, false)),
        ("send-late-caches", story(2, "MHP+DDIO+PM", Op::Send, false)),
        ("immediate", story(0, "DMP+DDIO+DRAM", Op::WriteImm, true)),
        ("write", story(3, "page-cache+DDIO+PM+persistent", Op::Send, false)),
    ];
    for (name, bytes) in stories {
        all(&bytes);
        if std::env::var_os("REMANENCE_CORPUS").is_some() {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/remote");
            std::fs::write(corpus.join(name), bytes).expect("a file");
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_no_trouble(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        all(&bytes);
    }
}
