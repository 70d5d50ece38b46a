//! BTH, the base transport header, which every packet has.
//!
//! Read first: IBA Vol 1, 9.2.
//!
//! ```text
//!  0      opcode
//!  1      SE(1) MigReq(1) PadCnt(2) TVer(4)
//!  2..4   P_Key
//!  4      FECN(1) BECN(1) reserved(6)        the byte that the ICRC leaves out
//!  5..8   destination QP
//!  8      AckReq(1) reserved(7)
//!  9..12  PSN
//! ```

use crate::Error;
use crate::opcode::Opcode;
use crate::psn::Psn;
use crate::types::{Pkey, Qpn};

/// Bytes of a BTH.
pub const LEN: usize = 12;

/// Offset of the byte whose bits may change on the way, and which the ICRC therefore leaves out.
pub(crate) const VARIANT_BYTE: usize = 4;

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const PAD_MASK: u8 = 0x30;
const TVER_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// A view of a BTH that may hold anything.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LEN]);

impl<'a> Header<'a> {
    /// The view of the first bytes of `bytes`.
    ///
    /// # Errors
    /// When there are too few bytes.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        bytes.first_chunk().map(Self).ok_or(Error::Truncated { len: bytes.len(), need: LEN })
    }

    /// The view of exactly a BTH's bytes.
    #[must_use]
    pub const fn of(bytes: &'a [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// The opcode's number.
    #[must_use]
    pub const fn opcode(self) -> u8 {
        self.0[0]
    }

    /// Solicited event: the responder's consumer asked to be woken for it.
    #[must_use]
    pub const fn solicited(self) -> bool {
        self.0[1] & SOLICITED != 0
    }

    /// The MigReq bit: the sender's path migration state is migrated.
    #[must_use]
    pub const fn mig_req(self) -> bool {
        self.0[1] & MIG_REQ != 0
    }

    /// Pad bytes between payload and ICRC, 0 to 3.
    #[must_use]
    pub const fn pad(self) -> u8 {
        (self.0[1] & PAD_MASK) >> PAD_SHIFT
    }

    /// Transport header version.
    #[must_use]
    pub const fn tver(self) -> u8 {
        self.0[1] & TVER_MASK
    }

    /// The partition in which the packet is sent.
    #[must_use]
    pub const fn pkey(self) -> Pkey {
        Pkey(u16::from_be_bytes([self.0[2], self.0[3]]))
    }

    /// Forward explicit congestion notification.
    #[must_use]
    pub const fn fecn(self) -> bool {
        self.0[VARIANT_BYTE] & FECN != 0
    }

    /// Backward explicit congestion notification.
    #[must_use]
    pub const fn becn(self) -> bool {
        self.0[VARIANT_BYTE] & BECN != 0
    }

    /// The number of the QP at the receiver that the packet is for.
    #[must_use]
    pub const fn dest_qp(self) -> Qpn {
        Qpn::new(u32::from_be_bytes([0, self.0[5], self.0[6], self.0[7]]))
    }

    /// AckReq: the requester asks the responder to schedule an acknowledgement for this packet.
    #[must_use]
    pub const fn ack_req(self) -> bool {
        self.0[8] & ACK_REQ != 0
    }

    /// Packet sequence number.
    #[must_use]
    pub const fn psn(self) -> Psn {
        Psn::new(u32::from_be_bytes([0, self.0[9], self.0[10], self.0[11]]))
    }
}

/// A BTH as the engine acts on it. PadCnt is not here: it follows from the payload's length, so that
/// [`packet::finish`](crate::packet::finish) writes it and [`Packet::payload`](crate::packet::Packet::payload)
/// takes it off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// What the packet carries: transport service, operation, and place in the message.
    pub opcode: Opcode,
    /// The responder's consumer asked to be woken for this message, if it armed its CQ for solicited events.
    pub solicited: bool,
    /// Migration state; kept as received and without effect here.
    pub mig_req: bool,
    /// The partition in which the packet is sent.
    pub pkey: Pkey,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// The number of the QP at the receiver that the packet is for.
    pub dest_qp: Qpn,
    /// The requester asks the responder to schedule an acknowledgement for this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Repr {
    /// A BTH of the default partition with every flag clear.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads a view.
    ///
    /// # Errors
    /// When the opcode or the transport header version is unknown.
    #[inline]
    pub fn parse(header: Header<'_>) -> Result<Self, Error> {
        let opcode = Opcode::from_u8(header.opcode()).ok_or(Error::Opcode(header.opcode()))?;
        if header.tver() != 0 {
            return Err(Error::TransportVersion(header.tver()));
        }
        Ok(Self::with_opcode(opcode, header))
    }

    /// Reads a view whose opcode and version were checked before.
    #[inline]
    pub(crate) const fn with_opcode(opcode: Opcode, header: Header<'_>) -> Self {
        Self {
            opcode,
            solicited: header.solicited(),
            mig_req: header.mig_req(),
            pkey: header.pkey(),
            fecn: header.fecn(),
            becn: header.becn(),
            dest_qp: header.dest_qp(),
            ack_req: header.ack_req(),
            psn: header.psn(),
        }
    }

    /// Writes the header, with PadCnt zero.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        let [pkey0, pkey1] = self.pkey.0.to_be_bytes();
        let [_, qp0, qp1, qp2] = self.dest_qp.value().to_be_bytes();
        let [_, psn0, psn1, psn2] = self.psn.value().to_be_bytes();
        *bytes = [
            self.opcode as u8,
            if self.solicited { SOLICITED } else { 0 } | if self.mig_req { MIG_REQ } else { 0 },
            pkey0,
            pkey1,
            if self.fecn { FECN } else { 0 } | if self.becn { BECN } else { 0 },
            qp0,
            qp1,
            qp2,
            if self.ack_req { ACK_REQ } else { 0 },
            psn0,
            psn1,
            psn2,
        ];
    }
}

/// Puts PadCnt into an emitted BTH.
#[inline]
pub(crate) const fn set_pad(flags: &mut u8, pad: u8) {
    *flags = *flags & !PAD_MASK | pad << PAD_SHIFT;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_has_its_place() {
        let repr = Repr {
            opcode: Opcode::RcFlush,
            solicited: true,
            mig_req: false,
            pkey: Pkey(0x8123),
            fecn: false,
            becn: true,
            dest_qp: Qpn::new(0x0a_0b0c),
            ack_req: true,
            psn: Psn::new(0xfe_dcba),
        };
        let mut bytes = [0xee; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0x1c, 0x80, 0x81, 0x23, 0x40, 0x0a, 0x0b, 0x0c, 0x80, 0xfe, 0xdc, 0xba]);
        set_pad(&mut bytes[1], 3);
        let view = Header::of(&bytes);
        assert_eq!((view.pad(), view.tver(), view.solicited()), (3, 0, true));
        assert_eq!(Repr::parse(view), Ok(repr));
    }

    #[test]
    fn unknown_opcode_and_version_are_refused() {
        let mut bytes = [0; LEN];
        bytes[0] = 0x15;
        assert_eq!(Repr::parse(Header::of(&bytes)), Err(Error::Opcode(0x15)));
        bytes[0] = 0x04;
        bytes[1] = 0x01;
        assert_eq!(Repr::parse(Header::of(&bytes)), Err(Error::TransportVersion(1)));
        assert_eq!(Header::new(&bytes[..11]).err(), Some(Error::Truncated { len: 11, need: 12 }));
    }
}
