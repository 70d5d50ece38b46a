//! Anything: a page, an object, a request, a reply.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remanence_kv::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::decoders(data));
