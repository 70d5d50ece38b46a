//! RoCEv2 and IBTA packet formats: what is on the wire, and nothing of what it means to a QP.
//!
//! Read first: IBA Vol 1 chapter 9 (transport layer) and Annex A17 (RoCEv2). Untrusted bytes stop here: a
//! *view* may look at any bytes ever received and never panics; a *repr* holds only what the engine acts on,
//! and parsing it is the single gate.
#![forbid(unsafe_code)]

mod psn;
mod types;

pub use psn::Psn;
pub use types::{Gid, Lkey, Msn, Mtu, Pkey, Qkey, Qpn, Rkey};
