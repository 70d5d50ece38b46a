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
mod ah;
mod async_event;
mod beside;
pub mod cm;
mod cq;
pub mod device;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gsi;
mod idents;
mod keys;
pub mod memory;
mod mr;
mod mw;
mod network;
mod pd;
mod qp;
pub mod side;
mod slab;
mod srq;
pub mod stats;
pub mod time;
mod transmit;
pub mod wc;
mod wqe;
pub mod wr;

pub use access::{Access, PlacementSupport};
pub use ah::AhAttr;
pub use async_event::AsyncEvent;
pub use beside::LocalMr;
pub use cq::CqHandle;
pub use device::{
    ACK_RIDE, Config, Device, MAX_MESSAGE, ROCE_PORT, RxMeta, SourcePort, Transmit, WindowLimits,
};
pub use error::{CqError, PostError, VerbError};
pub use gsi::{MAD_LEN, ReceivedMad};
pub use memory::{FlushId, FlushOutcome, Memory, Placement, RegionId, Span};
pub use mr::{Mr, MrAttr, MrHandle};
pub use pd::PdHandle;
pub use qp::{QpAttr, QpCaps, QpInfo, QpInit, QpState, QpType, Silence};
pub use srq::{SrqAttr, SrqHandle};
pub use stats::{DropReason, Stats};
pub use time::Instant;
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{
    AhHandle, Data, MwBind, MwHandle, MwType, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr,
    Sge, UdDest,
};

#[cfg(test)]
mod tests;
