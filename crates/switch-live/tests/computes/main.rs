//! What only computes. Nothing in these modules depends on time, other processes or threads: a test that fails fails again, and fails the run
//! at once. `cargo xtask test` runs each of them as a program of its own.

mod plane;
mod wire;
