//! Why bytes are not a packet. Nobody's fault that we could name: drop and count.

use crate::opcode::Opcode;

/// A datagram or MAD that cannot be what it claims to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Error {
    /// Shorter than its headers, pad and ICRC.
    #[error("truncated: {len} bytes where {need} are needed")]
    Truncated {
        /// What there is.
        len: usize,
        /// What the headers ask for.
        need: usize,
    },
    /// The opcode is unassigned, or of a transport that is not spoken here.
    #[error("unknown BTH opcode {0:#04x}")]
    Opcode(u8),
    /// The transport header version is not zero (IBA Vol 1, 9.6).
    #[error("unknown transport header version {0}")]
    TransportVersion(u8),
    /// Payload and pad are not a whole number of 4-byte words (IBA Vol 1, 9.2).
    #[error("{opcode}: {len} bytes are not a whole number of words")]
    Unaligned {
        /// Of the packet.
        opcode: Opcode,
        /// Of the whole UDP payload.
        len: usize,
    },
    /// The AETH carries a reserved syndrome (IBA Vol 1, 9.7.5.2).
    #[error("reserved AETH syndrome {0:#04x}")]
    Syndrome(u8),
    /// Not IP, an IP header that contradicts its packet, a fragment, or not UDP.
    #[error("not a whole UDP datagram over IP: {0}")]
    Ip(&'static str),
    /// Not a MAD that the communication manager understands.
    #[error("not a communication management MAD: {0}")]
    Mad(&'static str),
    /// A field of a CM message holds a value that is reserved.
    #[error("CM message: reserved value in {0}")]
    CmField(&'static str),
}
