//! Datagrams and messages on the heap, for ends without a device: simulations, tests, fuzz targets.

use std::sync::Arc;

use super::buffers::{Body, Buffers, Packet};
use super::endpoint::Transmit;
use crate::header::HEADER_LEN;

/// A datagram on the heap.
#[derive(Clone, Debug)]
pub struct Datagram(pub Vec<u8>);

impl Datagram {
    /// The bytes that a transmit puts on the wire.
    #[must_use]
    pub fn of(transmit: &Transmit<Arc<Vec<u8>>>) -> Self {
        let mut bytes = transmit.header.to_vec();
        bytes.extend_from_slice(transmit.credential.as_deref().unwrap_or_default());
        if let Some((message, range)) = &transmit.payload {
            bytes.extend_from_slice(&message[range.clone()]);
        }
        Self(bytes)
    }
}

impl Packet for Datagram {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }
}

/// Memory for messages, some of which may be refused.
#[derive(Default, Debug)]
pub struct Heap {
    /// The largest message that there is memory for, if there is a limit.
    pub largest: Option<usize>,
    /// Nothing may stay in the receive buffer.
    pub short: bool,
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

impl Body<Heap> {
    /// All of it.
    ///
    /// # Panics
    /// The memory has another length than the message.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Packet(packet) => packet.0[HEADER_LEN..].to_vec(),
            Self::Message { message, len } => {
                assert_eq!(message.len(), *len, "a message has memory of its own length");
                message.to_vec()
            }
        }
    }
}
