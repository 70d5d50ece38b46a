//! A story of sessions that call what they like.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_kv_live::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::host(data));
