//! The header of a datagram of a call.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_rpc::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::header(data));
