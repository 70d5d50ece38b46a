//! Unmodified verbs programs of Debian's packages on the drop-in libraries: a table of what is run, and what they must say.
//!
//! Read first: `harness.rs`, how two programs meet. Each test runs its table from the first row to the last and then
//! reports all rows that failed, with what both ends said. One pair runs at a time: most of these programs spin.

mod harness;

mod at_once;
mod devices;
mod links;
mod others;
mod perftest;
mod pingpong;
mod qperf;
mod rdmacm;
mod weather;
