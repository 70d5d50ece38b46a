//! A value out of a store.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_resp::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::value(data));
