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

/// A view of a DETH.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LEN]);

impl<'a> Header<'a> {
    /// The view of exactly a DETH's bytes.
    #[must_use]
    pub const fn of(bytes: &'a [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// The Q_Key, which must be the destination QP's for the packet to be received.
    #[must_use]
    pub const fn qkey(self) -> Qkey {
        Qkey(u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]]))
    }

    /// The number of the QP that sent the datagram.
    #[must_use]
    pub const fn src_qp(self) -> Qpn {
        Qpn::new(u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]]))
    }
}

/// A DETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// Queue key, which must be the receiving QP's.
    pub qkey: Qkey,
    /// The QP to answer to.
    pub src_qp: Qpn,
}

impl Repr {
    /// Reads a view.
    #[must_use]
    pub const fn parse(header: Header<'_>) -> Self {
        Self { qkey: header.qkey(), src_qp: header.src_qp() }
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
        assert_eq!(Repr::parse(Header::of(&bytes)), repr);
    }
}
