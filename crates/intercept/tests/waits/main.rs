//! Real programs under a preloaded hook, and a tracer that sees each of their system calls.

mod net;
mod programs;
mod tracer;
