//! Real programs under a real daemon: what an absorbed sync promised is in the log.

#[path = "../common/disk.rs"]
mod disk;

mod cache;
mod databases;
mod deferred;
mod exclusive;
mod faults;
mod kills;
mod loss;
#[expect(dead_code, reason = "the program has the other half")]
mod model;
mod names;
mod plain;
mod points;
mod power;
mod programs;
mod rounds;
mod servers;
mod start;
mod statics;
mod tools;
mod torture;
mod traps;
