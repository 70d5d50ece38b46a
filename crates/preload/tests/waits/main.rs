//! Real programs under a real daemon: what an absorbed sync promised is in the log.

mod cache;
mod databases;
mod kills;
mod programs;
mod rounds;
mod tools;
mod traps;
