//! Engine against engine, in memory and in simulated time.

mod bad_input;
mod basic;
#[expect(dead_code, reason = "the tests that use the rest of the harness come one by one")]
mod pair;
mod states;
