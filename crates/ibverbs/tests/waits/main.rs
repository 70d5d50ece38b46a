//! What waits: for time, sockets, disks and processes. `cargo xtask test` runs each of these modules as a program of its own, in a process of
//! its own, and asks a test that failed again, by itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../../tests/guest/machine.rs"]
mod machine;

mod cm;
mod data_path;
mod devices;
mod exports;
mod faults;
mod interop;
mod layout;
mod programs;
mod pyverbs;
mod rpma;
mod valgrind;
