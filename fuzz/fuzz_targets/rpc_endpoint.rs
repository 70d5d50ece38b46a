//! A story about two ends that call each other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_rpc::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::endpoint(data));
