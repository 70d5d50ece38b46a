//! Any bytes as a log's superblock, root, record or message, and in the place of its segments.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    remanence_remotelog::fuzzing::decode(bytes);
    remanence_remotelog::fuzzing::recover(bytes);
});
