//! Redis commands, over Erda and over a map.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_gateway::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::commands(data));
