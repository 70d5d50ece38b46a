//! One rule to a test in `rules.rs` and `admission.rs`, bytes from an enemy in `hostile.rs`. Whole worlds from a seed are clusters of
//! the simulator (`sim/src/cluster/rpc`).

mod admission;
mod hostile;
mod rules;

use remanence_rnic::Instant;
use remanence_wire::{Gid, Qpn};

use super::endpoint::Endpoint;
pub(super) use super::heap::{Datagram, Heap};
pub(super) use crate::draw::Draw;
use crate::header::Address;

pub(super) type End = Endpoint<Heap>;

pub(super) fn address(n: u8) -> Address {
    Address { gid: Gid::from_ip([10, 0, 0, n].into()), qpn: Qpn::new(u32::from(n) + 16) }
}

pub(super) fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}
