//! A packet of a message, as both halves of a session receive it: which part of the message it is, and how it gets there.

use std::ops::Range;

use super::buffers::{Buffers, Packet};
use crate::header::{HEADER_LEN, packets, range};

/// A packet of a request or of a response.
pub(super) struct Fragment<P> {
    pub(super) request: u64,
    pub(super) packet: u16,
    /// Bytes of the message.
    pub(super) length: u32,
    pub(super) datagram: P,
}

/// Where a packet belongs.
pub(super) struct FragmentPosition {
    /// Which of the message's packets it is, and how many there are.
    pub(super) number: u32,
    pub(super) count: u32,
    /// Its bytes of the message.
    pub(super) span: Range<usize>,
}

impl<P: Packet> Fragment<P> {
    /// Where it belongs in a message of which each packet holds `capacity` bytes; `None` if it is not what it says.
    pub(super) fn place(&self, capacity: u32) -> Option<FragmentPosition> {
        let (number, count) = (u32::from(self.packet), packets(self.length, capacity));
        let span = range(number, self.length, capacity);
        (number < count && span.len() == self.datagram.len() - HEADER_LEN).then_some(FragmentPosition {
            number,
            count,
            span,
        })
    }
}

impl FragmentPosition {
    /// Its bytes are put where they belong.
    pub(super) fn copy<B: Buffers>(&self, buffers: &mut B, datagram: &B::Packet, to: &mut B::Message) {
        buffers.copy(datagram, HEADER_LEN, self.span.len(), to, self.span.start);
    }
}
