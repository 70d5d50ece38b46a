//! The UDP header under a RoCEv2 packet.
//!
//! Read first: RFC 768; IBA Vol 1, Annex A17. The destination port is 4791 and the source port is any, so that
//! switches can spread flows. The checksum may be zero, also over IPv6 (RFC 6935): the ICRC does the work.

use crate::Error;

/// Bytes of a UDP header.
pub const LEN: usize = 8;

/// The destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// The sender's port, which RoCEv2 uses as entropy for the choice of a path.
    pub src_port: u16,
    /// The receiver's port, [`ROCE_PORT`] for RoCEv2.
    pub dst_port: u16,
    /// Bytes of UDP payload.
    pub payload_len: u16,
}

impl Repr {
    /// Splits a datagram into header and payload. The checksum is not looked at: it may be zero, and the ICRC
    /// is the stronger check.
    ///
    /// # Errors
    /// When the length field is not that of the bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (header, payload) =
            bytes.split_first_chunk::<LEN>().ok_or(Error::Truncated { len: bytes.len(), need: LEN })?;
        let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if len != bytes.len() {
            return Err(Error::Ip("UDP and IP lengths differ"));
        }
        Ok((
            Self {
                src_port: u16::from_be_bytes([header[0], header[1]]),
                dst_port: u16::from_be_bytes([header[2], header[3]]),
                payload_len: (len - LEN) as u16,
            },
            payload,
        ))
    }

    /// Writes the header, with checksum zero.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[..2].copy_from_slice(&self.src_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        bytes[4..6].copy_from_slice(&(LEN as u16 + self.payload_len).to_be_bytes());
        bytes[6..].fill(0);
    }
}
