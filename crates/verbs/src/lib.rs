//! A live RNIC: the engine of `rnic`, driven over a link, with registered memory of `pmem`; and the safe verbs on it.
//!
//! [`Context`] is an open device; everything else is created from it: [`Pd`], [`Mr`], [`Mw`], [`Ah`], [`Cq`],
//! [`CompChannel`], [`Srq`], [`Qp`]. Objects keep what they need alive (a QP its CQs, all of them the device) and are
//! destroyed when dropped, so nothing dangles; where a verb can be refused, as in `Pd::dealloc`, there is a method
//! that says so.
//!
//! Work requests, completions and attributes are the engine's own types ([`remanence_rnic`]).
//!
//! Inside: `driver` is what the device lock protects and one turn of driving it; `handover` decides which thread
//! drives (read its head: whoever polls, drives); `progress` has those threads; `flush` makes durable what takes a
//! system call, off the lock.
#![forbid(unsafe_code)]

mod abandon;
mod ah;
mod channel;
mod claims;
mod clock;
mod cm;
mod company;
mod connect;
mod context;
mod cq;
mod driver;
mod error;
mod flush;
mod follow;
mod handover;
mod inplace;
mod lock;
mod memory;
mod mr;
mod options;
mod pd;
mod progress;
mod qp;
mod share;
mod srq;
mod wake;

pub use ah::Ah;
pub use channel::{Awaited, CompChannel, CqEvent, Step};
pub use cm::{Claim, Cm, CmChannel, CmEvent};
pub use connect::{Connection, Handshake, Incoming, Listener, Phase};
pub use context::{Context, DeviceEvent};
pub use cq::Cq;
pub use driver::ProgressStats;
pub use error::Error;
pub use follow::{GID_TABLE_LEN, Port};
pub use handover::Progress;
pub use mr::{Mr, MrMemory, Mw};
pub use options::{LinkKind, Options};
pub use pd::Pd;
pub use qp::{ConnectAttr, Doorbell, Qp, QpEndpoint, QpOptions};
pub use srq::Srq;
pub use wake::Waker;
