//! Whose each abstract name is, as the kernel tells.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_link::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::sock_diag(data));
