//! Any bytes as a log's superblock, root, record or message, and in the place of its segments.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    remanence_coord::log::fuzzing::decode(bytes);
    remanence_coord::log::fuzzing::recover(bytes);
});
