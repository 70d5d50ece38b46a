//! Where messages are: the core never looks at payload, and does not know what memory it lies in.

use std::fmt;

use crate::header::HEADER_LEN;

/// A received datagram, in the buffer that it came in. Dropping it gives the buffer back.
pub trait Packet {
    /// Bytes, header included.
    fn len(&self) -> usize;

    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    fn read(&self, at: usize, into: &mut [u8]);
}

/// What an endpoint needs from the memory of its caller.
pub trait Buffers {
    /// A received datagram.
    type Packet: Packet;
    /// Memory of a message. Clones are the same memory.
    type Message: Clone;

    /// Memory for a message of `len` bytes; `None`: there is no room now.
    fn allocate(&mut self, len: usize) -> Option<Self::Message>;

    /// Copies `len` bytes of a packet, from byte `from` of it, to byte `at` of a message.
    fn copy(&mut self, packet: &Self::Packet, from: usize, len: usize, to: &mut Self::Message, at: usize);

    /// Whether the caller's consumer may keep a received packet for as long as it likes. If not (few receive buffers
    /// are left), a message that came in one packet is copied.
    fn may_keep(&self) -> bool {
        true
    }
}

/// A message that arrived.
pub enum Body<B: Buffers> {
    /// It came in one packet, and still lies in the receive buffer, behind the header.
    Packet(B::Packet),
    /// It came in several, or receive buffers are short.
    Message {
        /// The memory that the packets were put together in.
        message: B::Message,
        /// Bytes of the message.
        len: usize,
    },
}

impl<B: Buffers> Body<B> {
    /// Bytes of the message.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Packet(packet) => packet.len() - HEADER_LEN,
            Self::Message { len, .. } => *len,
        }
    }

    /// Whether the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Buffers> fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if matches!(self, Self::Packet(_)) { "Packet" } else { "Message" };
        f.debug_struct(kind).field("len", &self.len()).finish_non_exhaustive()
    }
}
