//! What only computes. Nothing in these modules depends on time, other processes or threads: a test that fails fails again, and fails the run
//! at once. `cargo xtask test` runs each of them as a program of its own.

mod clusters;
mod kv;
mod log;
mod mu;
mod pool;
mod recipes;
mod replicated;
mod rpc;
mod seeds;
