//! One rule to a test in `rules.rs` and `admission.rs`, whole worlds from a seed in `world.rs`, bytes from an enemy in `hostile.rs`.

mod admission;
mod hostile;
mod rules;
mod world;

use std::ops::Range;
use std::sync::Arc;

use remanence_rnic::Instant;
use remanence_wire::{Gid, Qpn};

use super::buffers::{Body, Buffers, Packet};
use super::endpoint::{Endpoint, Transmit};
pub(super) use crate::draw::Draw;
use crate::header::{Address, HEADER_LEN};

/// A datagram on the heap.
#[derive(Clone, Debug)]
pub(super) struct Datagram(pub(super) Vec<u8>);

impl Packet for Datagram {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }
}

/// Memory on the heap, some of which may be refused.
#[derive(Default)]
pub(super) struct Heap {
    /// The largest message that there is memory for, if there is a limit.
    pub(super) largest: Option<usize>,
    /// Nothing may stay in the receive buffer.
    pub(super) short: bool,
}

impl Buffers for Heap {
    type Packet = Datagram;
    type Message = Arc<Vec<u8>>;

    fn allocate(&mut self, len: usize) -> Option<Arc<Vec<u8>>> {
        (self.largest.is_none_or(|largest| len <= largest)).then(|| Arc::new(vec![0; len]))
    }

    fn copy(&mut self, packet: &Datagram, from: usize, len: usize, to: &mut Arc<Vec<u8>>, at: usize) {
        let to = Arc::get_mut(to).expect("nobody else has it before it is whole");
        to[at..at + len].copy_from_slice(&packet.0[from..from + len]);
    }

    fn may_keep(&self) -> bool {
        !self.short
    }
}

pub(super) type End = Endpoint<Heap>;

pub(super) fn address(n: u8) -> Address {
    Address { gid: Gid::from_ip([10, 0, 0, n].into()), qpn: Qpn::new(u32::from(n) + 16) }
}

pub(super) fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

pub(super) fn bytes_of(body: &Body<Heap>) -> Vec<u8> {
    match body {
        Body::Packet(packet) => packet.0[HEADER_LEN..].to_vec(),
        Body::Message { message, len } => {
            assert_eq!(message.len(), *len);
            message.to_vec()
        }
    }
}

/// The bytes that a transmit puts on the wire.
pub(super) fn datagram(transmit: &Transmit<Arc<Vec<u8>>>) -> Datagram {
    let mut bytes = transmit.header.to_vec();
    bytes.extend_from_slice(transmit.credential.as_deref().unwrap_or_default());
    if let Some((message, Range { start, end })) = &transmit.payload {
        bytes.extend_from_slice(&message[*start..*end]);
    }
    Datagram(bytes)
}

pub(super) trait Percent {
    fn percent(&mut self, n: u64) -> bool;
}

impl Percent for Draw {
    fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }
}
