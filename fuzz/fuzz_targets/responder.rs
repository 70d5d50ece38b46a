//! A story about a device: packets, work, time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_rnic::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::responder(data));
