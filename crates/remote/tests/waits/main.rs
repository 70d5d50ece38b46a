//! What waits: for time, sockets, disks and processes. `cargo xtask test` runs each of these modules as a program of its own, in a process of
//! its own, and asks a test that failed again, by itself.

#[path = "../common/mod.rs"]
mod common;

mod admission;
mod faults;
mod guest;
mod idle;
mod immediates;
mod live;
mod meter;
mod processes;
mod readers;
mod shared;
mod stages;
mod together;
mod withdrawn;
