//! RoCEv2 and IBTA packet formats: what is on the wire, and nothing of what it means to a QP.
//!
//! Read first: IBA Vol 1 chapter 9 (transport layer) and Annex A17 (RoCEv2). Untrusted bytes stop here: a
//! *view* ([`packet::Packet`], [`bth::Header`]) may look at any bytes ever received and never panics; a *repr* holds only what
//! the engine acts on, and parsing it is the single gate.
//!
//! From the outside in: [`ip`] and [`udp`] hold a [`packet`]; its first byte is an [`opcode`], whose table says
//! which of [`deth`], [`reth`], [`atomic_eth`], [`aeth`], [`atomic_ack_eth`], [`imm_dt`], [`ieth`] and [`feth`]
//! follow the [`bth`]; an [`icrc`] ends it. Connections are made by [`cm`] messages, which are [`mad`]s. [`pretty`] prints any of it.
#![forbid(unsafe_code)]
#![deny(clippy::little_endian_bytes)]
#![warn(clippy::wildcard_enum_match_arm)]

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod cm;
pub mod deth;
mod error;
pub mod feth;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod icrc;
pub mod ieth;
pub mod imm_dt;
pub mod ip;
pub mod mad;
pub mod opcode;
pub mod packet;
pub mod pretty;
mod psn;
pub mod reth;
mod types;
pub mod udp;

pub use error::Error;
pub use opcode::Opcode;
pub use psn::Psn;
pub use types::{Gid, Lkey, Msn, Mtu, Pkey, Qkey, Qpn, Rkey};
pub use udp::ROCE_PORT;
