//! What a Redis client sends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_resp::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::resp(data));
