//! An IP packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_wire::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::ip(data));
