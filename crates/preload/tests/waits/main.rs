//! Real programs under a real daemon: what an absorbed sync promised is in the log.

mod cache;
mod kills;
mod loss;
mod programs;
mod start;
mod traps;
