//! DETH, the datagram extended transport header of UD packets.
//!
//! Read first: IBA Vol 1, 9.3.2.
//!
//! ```text
//!  0..4  Q_Key
//!  4     reserved
//!  5..8  source QP
//! ```

use crate::types::{Qkey, Qpn};

/// Bytes of a DETH.
pub const LEN: usize = 8;

/// A DETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// Queue key, which must be the receiving QP's.
    pub qkey: Qkey,
    /// The QP to answer to.
    pub src_qp: Qpn,
}

impl Repr {
    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let b = bytes;
        Self {
            qkey: Qkey(u32::from_be_bytes([b[0], b[1], b[2], b[3]])),
            src_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[..4].copy_from_slice(&self.qkey.0.to_be_bytes());
        bytes[4..].copy_from_slice(&self.src_qp.value().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let repr = Repr { qkey: Qkey::GSI, src_qp: Qpn::new(0x12_3456) };
        let mut bytes = [0xee; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0x80, 0x01, 0, 0, 0, 0x12, 0x34, 0x56]);
        assert_eq!(Repr::parse(&bytes), repr);
    }
}
