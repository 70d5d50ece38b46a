//! The software RNIC, sans-IO.
//!
//! One [`Device`](device) owns the verbs objects (PD, MR, MW, AH, CQ, SRQ, QP) and moves packets between them and
//! the network. It never waits and owns no clock, socket, thread, pointer or source of randomness: time, memory
//! and the seed are arguments; packets, deadlines, completions and events are polled out. The same engine runs
//! under a socket, under shared memory and under the simulator.
//!
//! Read first: IBA Vol 1 chapters 9 (transport), 10 (verbs semantics) and 11 (verbs), Annex A17 (RoCEv2) and
//! Annex A19 (memory placement extensions: FLUSH, ATOMIC WRITE).
#![forbid(unsafe_code)]

pub mod access;
pub mod memory;
pub mod time;
pub mod wc;
pub mod wr;
