//! What waits: for time, sockets, disks and processes. `cargo xtask test` runs each of these modules as a program of its own, in a process of
//! its own, and asks a test that failed again, by itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../../tests/guest/machine.rs"]
mod machine;

mod borrowed;
mod connections;
mod events;
mod in_place;
mod interfaces;
mod multicast;
mod network;
mod operations;
mod processes;
mod soft_roce;
mod threads;
mod wakers;
