//! A story of clients that say and write what they like.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_kv::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::server(data));
