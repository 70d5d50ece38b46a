//! `libibverbs.so.1` and `librdmacm.so.1` without a kernel: the C ABI over the safe verbs of `remanence_verbs`, so that
//! programs built for RDMA hardware run unmodified, and speak `RoCEv2` on the wire.
//!
//! Read first: [`abi`], the C structures; `device.rs` and `context.rs`, where programs begin; then the file of the
//! object that you want. Each C object is the first field of a structure of ours: C holds a pointer to it, and each
//! file has the one function that casts it back. Those, and the exported functions, are thin: convert, call the
//! verbs, convert. They may assume what the C API promises of its arguments: pointers that came from us and were not
//! given back yet, arrays as long as their counts.
//!
//! Both libraries live in one object, so that they share all state; `link.sh` makes the second one of jumps into the
//! first. `exports/*.txt` list what programs may link to, with the version nodes of rdma-core.
#![expect(unsafe_code, reason = "the C ABI: every caller is C, every object is a raw pointer there")]
#![expect(unreachable_pub, reason = "exported to C by name, not to Rust by path")]

pub mod abi;

mod ah;
mod async_event;
mod capture;
mod channel;
#[allow(dead_code, reason = "it is landing part by part")]
mod cm;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod device;
mod errno;
mod fork;
mod marshall;
mod mcast;
mod mr;
mod mw;
mod neighbour;
mod newer;
mod ops;
mod pd;
mod per_process;
mod private;
mod qp;
mod qp_attr;
mod qp_ex;
mod query;
mod settings;
mod signals;
mod sleep;
mod srq;
mod strings;
mod sysfs;
mod turnstile;
mod wc;
mod wr;
