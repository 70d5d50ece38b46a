//! What waits: for time, sockets, disks and processes. `cargo xtask test` runs each of these modules as a program of its own, in a process of
//! its own, and asks a test that failed again, by itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/load.rs"]
mod load;

mod bench_ends;
mod benches;
mod cache;
mod cache_copies;
mod cache_recovery;
mod commands;
mod deferred;
mod demo;
mod exposure;
mod gateway;
mod kv;
mod log;
mod make;
mod members;
mod readme;
mod servers;
mod switch;
mod verbs;
