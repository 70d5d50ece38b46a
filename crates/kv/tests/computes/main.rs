//! What only computes. Nothing in these modules depends on time, other processes or threads: a test that fails fails again, and fails the run
//! at once. `cargo xtask test` runs each of them as a program of its own.

#[path = "../common/mod.rs"]
mod common;

mod bounded;
mod client;
mod crash;
mod extend;
mod full;
mod keeper;
mod lazy;
mod lease;
mod mux;
mod oracle;
mod peek;
mod primary;
mod rules;
mod sim;
mod store;
mod together;
