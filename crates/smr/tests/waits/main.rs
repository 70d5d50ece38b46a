//! What waits: for time, sockets, disks and processes. `cargo xtask test` runs each of these modules as a program of its own, in a process of
//! its own, and asks a test that failed again, by itself.

mod common;
mod hostile;
mod kill;
mod live;
