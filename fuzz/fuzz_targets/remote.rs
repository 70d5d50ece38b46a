//! Any bytes as messages of the handshake and of sessions, as a story told to a responder, and in the place of receive buffers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    remanence_remote::fuzzing::decode(bytes);
    remanence_remote::fuzzing::responder(bytes);
    remanence_remote::fuzzing::recovery(bytes);
});
