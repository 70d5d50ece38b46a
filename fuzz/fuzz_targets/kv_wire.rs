//! Calls and answers of a live session.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_kv_live::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::wire(data));
