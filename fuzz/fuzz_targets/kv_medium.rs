//! A store whose medium was tampered with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_kv::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::medium(data));
