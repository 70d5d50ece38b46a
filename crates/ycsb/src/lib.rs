//! The Yahoo! Cloud Serving Benchmark, without its Java: what a client of workload A to F asks for, exactly.
//!
//! [`Workload`] is a YCSB property file as a value, with the six core workloads, the update-only one and the
//! value-size sweep of paper 002 built in. A [`Generator`] turns it into operations for one thread under one seed. A
//! [`driver::Client`] carries them out on any [`driver::Store`] and records latencies by any [`driver::Clock`]: this
//! crate owns no thread, clock or socket, so that one seed replays a run.
//!
//! *Exactly* means the definitions of the reference implementation (brianfrankcooper/YCSB, core workload and
//! generators), quirks included: what is drawn as a function of the random stream is the same number. The tests hold
//! figures printed by that code; where a quirk surprises, the module says so.
//!
//! Read first: Cooper et al., *Benchmarking Cloud Serving Systems with YCSB* (SoCC 2010); Gray et al., *Quickly
//! Generating Billion-Record Synthetic Databases* (SIGMOD 1994) for the zipfian draw.
#![forbid(unsafe_code)]

pub mod counter;
pub mod distribution;
pub mod driver;
pub mod fnv;
pub mod generator;
pub mod measure;
pub mod packed;
pub mod random;
pub mod record;
pub mod workload;
pub mod zipfian;

pub use generator::{Fields, Generator, Operation};
pub use random::Random;
pub use workload::{Workload, WorkloadError};
