//! What waits: for time, sockets, disks and processes.

mod errors;
mod examples;
