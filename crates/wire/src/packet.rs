//! A whole RoCEv2 packet as a UDP payload: BTH, extension headers, payload, pad, ICRC.
//!
//! Read first: IBA Vol 1, 9.1 and 9.2; `opcode.rs` for which headers follow which opcode. [`Packet`] is the
//! view, cheap to make and to ask: one table row decides every offset. [`Repr`] is BTH and [`Headers`] by value;
//! what can be constructed with matching halves can be emitted.
//!
//! A sender works in place: [`Repr::emit`] writes the headers, the caller puts the payload behind them, and
//! [`finish`] adds pad and ICRC. A receiver calls [`icrc::check`] on the same bytes that it
//! parses; parsing does not.

use crate::opcode::{CNP_RESERVED_LEN, Layout, Opcode, OpcodeInfo};
use crate::psn::Psn;
use crate::types::Qpn;
use crate::{Error, aeth, atomic_ack_eth, atomic_eth, bth, deth, feth, icrc, ieth, imm_dt, reth};

/// The longest BTH with extension headers: that of an atomic.
pub const HEADER_LEN_MAX: usize = bth::LEN + atomic_eth::LEN;

/// What a packet adds to its payload at most: headers, pad and ICRC.
pub const OVERHEAD_MAX: usize = HEADER_LEN_MAX + 3 + icrc::LEN;

/// The extension headers behind a BTH, by value; one variant for each legal combination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Headers {
    /// No extension header follows the BTH.
    None,
    /// A RETH alone: the range in the responder's memory.
    Reth(reth::Repr),
    /// A RETH, then an ImmDt.
    RethImm(reth::Repr, imm_dt::Repr),
    /// An ImmDt alone: 4 bytes of immediate data.
    Imm(imm_dt::Repr),
    /// An IETH alone: the rkey to invalidate.
    Ieth(ieth::Repr),
    /// An AETH alone: syndrome and MSN.
    Aeth(aeth::Repr),
    /// An AETH, then an AtomicAckETH.
    AethAtomicAck(aeth::Repr, atomic_ack_eth::Repr),
    /// An AtomicETH alone: address, key and operands of an atomic.
    AtomicEth(atomic_eth::Repr),
    /// A FETH, then a RETH.
    FethReth(feth::Repr, reth::Repr),
    /// A DETH alone: Q_Key and source QP of a datagram.
    Deth(deth::Repr),
    /// A DETH, then an ImmDt.
    DethImm(deth::Repr, imm_dt::Repr),
    /// The reserved bytes of a CNP.
    Cnp,
}

impl Headers {
    /// Which combination this is.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        match self {
            Self::None => Layout::None,
            Self::Reth(_) => Layout::Reth,
            Self::RethImm(..) => Layout::RethImm,
            Self::Imm(_) => Layout::Imm,
            Self::Ieth(_) => Layout::Ieth,
            Self::Aeth(_) => Layout::Aeth,
            Self::AethAtomicAck(..) => Layout::AethAtomicAck,
            Self::AtomicEth(_) => Layout::AtomicEth,
            Self::FethReth(..) => Layout::FethReth,
            Self::Deth(_) => Layout::Deth,
            Self::DethImm(..) => Layout::DethImm,
            Self::Cnp => Layout::Cnp,
        }
    }
}

/// BTH and extension headers, by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// The base transport header, whose opcode must ask for these `headers`.
    pub bth: bth::Repr,
    /// What follows it.
    pub headers: Headers,
}

impl Repr {
    /// Bytes of the headers.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.bth.opcode.info().header_len as usize
    }

    /// Writes the headers to the front of `buf`; returns their length.
    ///
    /// # Panics
    /// When the extension headers are not the opcode's, or `buf` is too short.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let info = self.bth.opcode.info();
        assert!(info.layout == self.headers.layout(), "{} with {:?}", info.name, self.headers);
        let (bth, rest) = part(buf);
        self.bth.emit(bth);
        match &self.headers {
            Headers::None => {}
            Headers::Reth(reth) => reth.emit(part(rest).0),
            Headers::RethImm(reth, imm) => {
                let (bytes, rest) = part(rest);
                reth.emit(bytes);
                imm.emit(part(rest).0);
            }
            Headers::Imm(imm) => imm.emit(part(rest).0),
            Headers::Ieth(ieth) => ieth.emit(part(rest).0),
            Headers::Aeth(aeth) => aeth.emit(part(rest).0),
            Headers::AethAtomicAck(aeth, ack) => {
                let (bytes, rest) = part(rest);
                aeth.emit(bytes);
                ack.emit(part(rest).0);
            }
            Headers::AtomicEth(atomic) => atomic.emit(part(rest).0),
            Headers::FethReth(feth, reth) => {
                let (bytes, rest) = part(rest);
                feth.emit(bytes);
                reth.emit(part(rest).0);
            }
            Headers::Deth(deth) => deth.emit(part(rest).0),
            Headers::DethImm(deth, imm) => {
                let (bytes, rest) = part(rest);
                deth.emit(bytes);
                imm.emit(part(rest).0);
            }
            Headers::Cnp => *part(rest).0 = [0; CNP_RESERVED_LEN],
        }
        usize::from(info.header_len)
    }
}

/// The first `N` bytes of a buffer that is to hold headers, and the rest.
#[inline]
fn part<const N: usize>(buf: &mut [u8]) -> (&mut [u8; N], &mut [u8]) {
    buf.split_first_chunk_mut().expect("a buffer with room for the headers")
}

/// Pad bytes that follow a payload of `len` bytes.
#[must_use]
pub const fn pad_len(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Bytes of the whole packet: what [`finish`] will return.
#[must_use]
pub const fn packet_len(header_len: usize, payload_len: usize) -> usize {
    header_len + payload_len + pad_len(payload_len) + icrc::LEN
}

/// Completes a packet in place, `buf` holding `header_len` bytes of headers and then `payload_len` of payload:
/// adds pad, PadCnt and ICRC, and returns the length of the whole.
///
/// # Panics
/// When `buf` has no room for pad and ICRC.
#[inline]
pub fn finish(buf: &mut [u8], header_len: usize, payload_len: usize, flow: &icrc::Flow, ip_id: u16) -> usize {
    let len = pad(buf, header_len, payload_len) + icrc::LEN;
    icrc::seal(flow, ip_id, &mut buf[..len]);
    len
}

/// Like [`finish`], with zero for the ICRC: for links that cannot damage a packet, between peers that both know.
///
/// # Panics
/// When `buf` has no room for pad and ICRC.
#[inline]
pub fn finish_without_icrc(buf: &mut [u8], header_len: usize, payload_len: usize) -> usize {
    let end = pad(buf, header_len, payload_len);
    buf[end..end + icrc::LEN].fill(0);
    end + icrc::LEN
}

/// Adds pad and PadCnt; returns where the ICRC goes.
#[inline]
fn pad(buf: &mut [u8], header_len: usize, payload_len: usize) -> usize {
    let pad = pad_len(payload_len);
    let end = header_len + payload_len;
    if pad != 0 {
        bth::set_pad(&mut buf[1], pad as u8);
        buf[end..end + pad].fill(0);
    }
    end + pad
}

/// A view of a whole UDP payload that has the shape of a packet: a known opcode, all of its headers, a legal
/// pad and room for an ICRC. Whether the payload's length suits the opcode is for the engine to judge, which
/// must answer some of the misfits ([`OpcodeInfo::payload`]).
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    opcode: Opcode,
    payload_end: usize,
}

impl<'a> Packet<'a> {
    /// Looks at a UDP payload, BTH to ICRC. Does not check the ICRC.
    ///
    /// # Errors
    /// When the bytes do not have the shape of a packet.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let header = bth::Header::new(bytes)?;
        let opcode = Opcode::from_u8(header.opcode()).ok_or(Error::Opcode(header.opcode()))?;
        if header.tver() != 0 {
            return Err(Error::TransportVersion(header.tver()));
        }
        let info = opcode.info();
        let header_len = usize::from(info.header_len);
        let pad = usize::from(header.pad());
        let need = header_len + pad + icrc::LEN;
        if bytes.len() < need {
            return Err(Error::Truncated { len: bytes.len(), need });
        }
        // Headers and ICRC are whole words, and so must payload and pad together be.
        if !bytes.len().is_multiple_of(4) {
            return Err(Error::Unaligned { opcode, len: bytes.len() });
        }
        if info.aeth != 0 {
            let syndrome = bytes[usize::from(info.aeth)];
            if aeth::Aeth::from_u8(syndrome).is_none() {
                return Err(Error::Syndrome(syndrome));
            }
        }
        Ok(Self { bytes, opcode, payload_end: bytes.len() - pad - icrc::LEN })
    }

    /// What the packet carries; `parse` refuses opcodes that the table does not have.
    #[must_use]
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The opcode's row of the table.
    #[must_use]
    #[inline]
    pub const fn info(&self) -> &'static OpcodeInfo {
        self.opcode.info()
    }

    /// The bytes of the header at `at`, which is zero when the opcode has none. `parse` made sure of the length.
    #[inline]
    fn header<const N: usize>(&self, at: u8) -> Option<&'a [u8; N]> {
        if at == 0 { None } else { self.bytes.get(usize::from(at)..)?.first_chunk() }
    }

    /// The view of the BTH.
    #[must_use]
    #[inline]
    pub fn bth_header(&self) -> bth::Header<'a> {
        bth::Header::of(self.bytes.first_chunk().expect("parse found a BTH"))
    }

    /// The BTH by value, without its pad count.
    #[must_use]
    #[inline]
    pub fn bth(&self) -> bth::Repr {
        bth::Repr::with_opcode(self.opcode, self.bth_header())
    }

    /// Destination QP, without the rest of the BTH.
    #[must_use]
    #[inline]
    pub fn dest_qp(&self) -> Qpn {
        self.bth_header().dest_qp()
    }

    /// PSN, without the rest of the BTH.
    #[must_use]
    #[inline]
    pub fn psn(&self) -> Psn {
        self.bth_header().psn()
    }

    /// DETH, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn deth(&self) -> Option<deth::Repr> {
        self.header(self.info().deth).map(deth::Repr::parse)
    }

    /// RETH, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn reth(&self) -> Option<reth::Repr> {
        self.header(self.info().reth).map(reth::Repr::parse)
    }

    /// AETH, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn aeth(&self) -> Option<aeth::Repr> {
        aeth::Repr::parse(self.header(self.info().aeth)?).ok()
    }

    /// AtomicETH, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn atomic_eth(&self) -> Option<atomic_eth::Repr> {
        self.header(self.info().atomic_eth).map(atomic_eth::Repr::parse)
    }

    /// AtomicAckETH, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn atomic_ack(&self) -> Option<atomic_ack_eth::Repr> {
        self.header(self.info().atomic_ack_eth).map(atomic_ack_eth::Repr::parse)
    }

    /// ImmDt, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn imm(&self) -> Option<imm_dt::Repr> {
        self.header(self.info().imm_dt).map(imm_dt::Repr::parse)
    }

    /// IETH, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn ieth(&self) -> Option<ieth::Repr> {
        self.header(self.info().ieth).map(ieth::Repr::parse)
    }

    /// FETH, if the opcode has one.
    #[must_use]
    #[inline]
    pub fn feth(&self) -> Option<feth::Repr> {
        self.header(self.info().feth).map(feth::Repr::parse)
    }

    /// The payload without pad.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[usize::from(self.info().header_len)..self.payload_end]
    }

    /// The ICRC that the packet carries.
    #[must_use]
    pub fn icrc(&self) -> u32 {
        icrc::from_wire(*self.bytes.last_chunk().expect("parse found an ICRC"))
    }

    /// The whole UDP payload.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The extension headers, by value.
    #[must_use]
    pub fn headers(&self) -> Headers {
        self.try_headers().expect("parse checked that every header of the opcode is there and valid")
    }

    fn try_headers(&self) -> Option<Headers> {
        Some(match self.info().layout {
            Layout::None => Headers::None,
            Layout::Reth => Headers::Reth(self.reth()?),
            Layout::RethImm => Headers::RethImm(self.reth()?, self.imm()?),
            Layout::Imm => Headers::Imm(self.imm()?),
            Layout::Ieth => Headers::Ieth(self.ieth()?),
            Layout::Aeth => Headers::Aeth(self.aeth()?),
            Layout::AethAtomicAck => Headers::AethAtomicAck(self.aeth()?, self.atomic_ack()?),
            Layout::AtomicEth => Headers::AtomicEth(self.atomic_eth()?),
            Layout::FethReth => Headers::FethReth(self.feth()?, self.reth()?),
            Layout::Deth => Headers::Deth(self.deth()?),
            Layout::DethImm => Headers::DethImm(self.deth()?, self.imm()?),
            Layout::Cnp => Headers::Cnp,
        })
    }

    /// All headers, by value.
    #[must_use]
    pub fn repr(&self) -> Repr {
        Repr { bth: self.bth(), headers: self.headers() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortest packet of an opcode: its headers, zero but for the opcode, and an ICRC.
    fn shortest(opcode: Opcode) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(opcode.info().header_len) + icrc::LEN];
        bytes[0] = opcode as u8;
        bytes
    }

    #[test]
    fn every_opcode_needs_all_of_its_headers_and_its_pad() {
        for &opcode in Opcode::ALL {
            let bytes = shortest(opcode);
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!((packet.opcode(), packet.payload()), (opcode, &[][..]));
            for len in 0..bytes.len() {
                assert!(
                    matches!(Packet::parse(&bytes[..len]), Err(Error::Truncated { .. })),
                    "{opcode} {len}"
                );
            }
            for pad in 1..4u8 {
                let mut bytes = bytes.clone();
                bytes[1] = pad << 4;
                let need = bytes.len() + usize::from(pad);
                assert_eq!(Packet::parse(&bytes).err(), Some(Error::Truncated { len: bytes.len(), need }));
                bytes.extend([0; 4]);
                assert_eq!(Packet::parse(&bytes).unwrap().payload().len(), 4 - usize::from(pad));
            }
        }
    }

    #[test]
    fn what_has_not_the_shape_of_a_packet_is_refused() {
        let refused = |opcode: Opcode, at: usize, value: u8| {
            let mut bytes = shortest(opcode);
            bytes[at] = value;
            Packet::parse(&bytes).unwrap_err()
        };
        assert_eq!(refused(Opcode::RcSendOnly, 0, 0x15), Error::Opcode(0x15));
        // RD, XRC and the manufacturers' opcodes.
        assert_eq!(refused(Opcode::RcSendOnly, 0, 0x44), Error::Opcode(0x44));
        assert_eq!(refused(Opcode::RcSendOnly, 0, 0xa4), Error::Opcode(0xa4));
        assert_eq!(refused(Opcode::RcSendOnly, 0, 0xff), Error::Opcode(0xff));
        assert_eq!(refused(Opcode::RcSendOnly, 1, 0x0f), Error::TransportVersion(15));
        for syndrome in [0x40, 0x5f, 0x65, 0x80, 0xff] {
            for opcode in [Opcode::RcAck, Opcode::RcAtomicAck, Opcode::RcReadResponseOnly] {
                assert_eq!(refused(opcode, 12, syndrome), Error::Syndrome(syndrome));
            }
        }
        for extra in 1..4 {
            let mut bytes = shortest(Opcode::UdSendOnly);
            bytes.resize(bytes.len() + extra, 0);
            let (opcode, len) = (Opcode::UdSendOnly, bytes.len());
            assert_eq!(Packet::parse(&bytes).err(), Some(Error::Unaligned { opcode, len }));
        }
    }
}
