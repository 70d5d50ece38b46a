//! A number that was a pipe's and is a file's: what is known of it is forgotten, or, where nobody could see that, the file's syncs are the kernel's.

use std::fs;

use crate::cache::{Cache, Talk, example};

const NEVER: u64 = 3000;

/// How many more syncs of the file were absorbed, and were the kernel's.
fn becomes(how: &str) -> [u64; 2] {
    let Some(cache) = Cache::new(how, NEVER) else { return [1, 1] };
    fs::write(cache.path("file"), [7; 10_000]).expect("room");
    let mut program = Talk::with(cache.command(example("cache_load")).args([how, "file"]));
    program.until("ready");
    let old = cache.old(&["file"]);
    let counts = || ["absorbed", "kernel"].map(|what| cache.count("file", what));
    let before = counts();
    program.say("\n");
    program.until("done");
    let after = counts();
    let bytes = fs::read(cache.path("file")).expect("it is there");
    assert!(bytes.windows(13).any(|bytes| bytes == b"into the file"));
    if after[1] == before[1] {
        old.becomes_what_is_there(&cache);
    }
    cache.old(&["file"]).becomes_what_is_there(&cache);
    program.end();
    cache.stop();
    [0, 1].map(|n| after[n] - before[n])
}

#[test]
fn a_number_that_is_a_files_now_is_asked_about_again() {
    assert_eq!(becomes("seen")[0], 1, "what was written to it is in the log");
}

/// It is as if somebody else had written: the file's time tells.
#[test]
fn what_a_wrong_note_keeps_from_the_log_is_the_kernels() {
    assert_eq!(becomes("unseen")[1], 1);
}
