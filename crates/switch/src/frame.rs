//! One packet, from its IP header to its ICRC: what is looked at of it, and how it is made another one.
//!
//! A rewritten packet has the identification zero, as a datagram that must not be fragmented needs none (RFC 6864), and a socket of UDP
//! that does path-MTU discovery sends the same. TTL, TOS, payload and, unless the switch has one for all, the UDP source port are the sender's. Its ICRC comes from the one that it
//! had ([`icrc`](crate::icrc)).

use std::net::IpAddr;

use remanence_wire::icrc::{self, Flow};
use remanence_wire::ip::{self, Datagram};
use remanence_wire::opcode::Layout;
use remanence_wire::packet::Packet;
use remanence_wire::{Psn, Qpn, ROCE_PORT, aeth, bth, feth, reth, udp};

use crate::icrc::{Advance, register, share};

/// The most bytes of headers in which a rewritten packet can differ: IPv6 addresses, UDP, BTH, FETH, and of the RETH address and key.
const DIFFERENCE_MAX: usize = 32 + udp::LEN + bth::LEN + feth::LEN + 12;
/// Ones in front of what an ICRC covers.
const LRH: usize = 8;

/// A RoCEv2 packet over IP.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// From the IP header to the ICRC.
    bytes: &'a [u8],
    pub(crate) ip: ip::Repr,
    udp: udp::Repr,
    /// From the BTH to the ICRC.
    pub(crate) packet: Packet<'a>,
}

/// Why a packet is nothing to act upon.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotOurs {
    /// It is for somebody else, or another protocol's.
    Foreign,
    /// It came to the port of RoCEv2, and is no packet of that.
    Malformed,
}

/// What is written over the headers of a packet.
pub(crate) struct Edit {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) dest_qp: Qpn,
    pub(crate) psn: Psn,
    /// In the place of the one that is there.
    pub(crate) reth: Option<reth::Repr>,
    /// In the place of the one that is there.
    pub(crate) aeth: Option<aeth::Repr>,
}

impl<'a> Frame<'a> {
    /// Takes an IP packet apart that is one of RoCEv2 for `addr`.
    pub(crate) fn parse(bytes: &'a [u8], addr: IpAddr) -> Result<Self, NotOurs> {
        let Datagram { ip, udp, payload } = Datagram::parse(bytes).map_err(|_| NotOurs::Foreign)?;
        if ip.dst != addr || udp.dst_port != ROCE_PORT {
            return Err(NotOurs::Foreign);
        }
        let packet = Packet::parse(payload).map_err(|_| NotOurs::Malformed)?;
        // Without what Ethernet has put behind it.
        let len = ip.header_len() + udp::LEN + payload.len();
        Ok(Self { bytes: &bytes[..len], ip, udp, packet })
    }

    /// Where the BTH is.
    const fn bth(&self) -> usize {
        self.ip.header_len() + udp::LEN
    }

    /// Where the RETH is, or would be.
    fn reth(&self) -> usize {
        let feth = if self.packet.info().layout == Layout::FethReth { feth::LEN } else { 0 };
        self.bth() + bth::LEN + feth
    }

    /// Where the last byte is that a rewriting may change, and one more.
    fn end(&self) -> usize {
        match self.packet.info().layout {
            // Address and key.
            Layout::Reth | Layout::RethImm | Layout::FethReth => self.reth() + 12,
            Layout::Aeth => self.bth() + bth::LEN + aeth::LEN,
            Layout::None
            | Layout::Imm
            | Layout::Ieth
            | Layout::AethAtomicAck
            | Layout::AtomicEth
            | Layout::Deth
            | Layout::DethImm
            | Layout::Cnp => self.bth() + bth::LEN,
        }
    }

    /// Addresses and ports.
    fn flow(&self) -> Flow {
        Flow::new(self.ip.src, self.ip.dst, self.udp.src_port, self.udp.dst_port)
    }

    /// Whether its ICRC is right, which takes a look at every byte.
    pub(crate) fn is_intact(&self) -> bool {
        let ident = self.ip.src.is_ipv4().then_some(self.ip.ident);
        icrc::check(&self.flow(), ident, self.packet.bytes()).is_ok()
    }

    /// What the headers and those that come in their place add to the ICRC; `None` if the packet is longer than any may be. `new` is as long as the
    /// headers up to [`end`](Self::end).
    fn share(&self, new: &[u8], advance: &Advance) -> Option<u32> {
        let (bth, end) = (self.bth(), self.end());
        // Lengths are as they were; what the ICRC leaves out does not count.
        let v4 = self.ip.src.is_ipv4();
        let (begin, variant): (usize, &[usize]) = if v4 { (4, &[8, 10, 11]) } else { (8, &[]) };
        let mut difference = [0; DIFFERENCE_MAX];
        let pairs = self.bytes[begin..end].iter().zip(&new[begin..end]);
        for ((old, new), into) in pairs.zip(&mut difference) {
            *into = old ^ new;
        }
        for &at in variant.iter().chain(&[bth - 2, bth - 1, bth + 4]) {
            difference[at - begin] = 0;
        }
        advance.apply(share(&difference[..end - begin]), self.bytes.len() - icrc::LEN - end)
    }

    /// Makes the packet that `edit` says of it, in `into`, and that leaves from `src_port`, or else from where it came from; `None` if it is longer than any may be.
    pub(crate) fn rewrite(
        &self,
        edit: &Edit,
        src_port: Option<u16>,
        advance: &Advance,
        into: &mut Vec<u8>,
    ) -> Option<()> {
        into.clear();
        into.extend_from_slice(self.bytes);
        let bth = self.bth();
        ip::Repr { src: edit.src, dst: edit.dst, ident: 0, ..self.ip }.emit(into);
        let src_port = src_port.unwrap_or(self.udp.src_port);
        udp::Repr { src_port, ..self.udp }.emit(chunk(into, bth - udp::LEN));
        let [_, qpn @ ..] = edit.dest_qp.value().to_be_bytes();
        let [_, psn @ ..] = edit.psn.value().to_be_bytes();
        *chunk(into, bth + 5) = qpn;
        *chunk(into, bth + 9) = psn;
        if let Some(reth) = edit.reth {
            reth.emit(chunk(into, self.reth()));
        }
        if let Some(aeth) = edit.aeth {
            aeth.emit(chunk(into, bth + bth::LEN));
        }
        let share = self.share(&into[..self.end()], advance)?;
        let icrc = into.last_chunk_mut().expect("a packet has an ICRC");
        *icrc = (u32::from_le_bytes(*icrc) ^ share).to_le_bytes();
        Some(())
    }

    /// What is the same of two answers whose data are the same, whoever sent them and in whichever part of an answer they came: how many there are, and their share
    /// of the ICRC. `None` if it is longer than any may be, or no answer.
    pub(crate) fn content(&self, advance: &Advance) -> Option<Content> {
        let bth = self.bth();
        let end = bth + usize::from(self.packet.info().header_len);
        // Ones in the place of an LRH, and of all that routers may change.
        let mut covered = [0xff; LRH + ip::V6_LEN + udp::LEN + bth::LEN + aeth::LEN];
        let headers = covered.get_mut(LRH..LRH + end)?;
        headers.copy_from_slice(&self.bytes[..end]);
        if self.ip.src.is_ipv4() {
            [1, 8, 10, 11].into_iter().for_each(|at| headers[at] = 0xff);
        } else {
            headers[0] |= 0x0f;
            [1, 2, 3, 7].into_iter().for_each(|at| headers[at] = 0xff);
        }
        [bth - 2, bth - 1, bth + 4].into_iter().for_each(|at| headers[at] = 0xff);
        let before = register(u32::MAX, &covered[..LRH + end]);
        let share = advance.apply(before, self.bytes.len() - icrc::LEN - end)? ^ !self.packet.icrc();
        Some(Content { len: self.packet.payload().len() as u32, share })
    }
}

/// What an answer has for data.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Content {
    /// The bytes that there are.
    len: u32,
    /// What they add to the ICRC.
    share: u32,
}

/// Seals a FLUSH that was rewritten: for Linux, whose ICRC of it is another, or for everybody else.
pub(crate) fn seal_flush(packet: &mut [u8], linux: bool) {
    let datagram = Datagram::parse(packet).expect("a packet that was rewritten is one");
    let (flow, at) = (datagram.flow(), packet.len() - datagram.payload.len());
    if linux {
        icrc::seal_linux_flush(&flow, 0, &mut packet[at..]);
    } else {
        icrc::seal(&flow, 0, &mut packet[at..]);
    }
}

/// The bytes of a header of the packet.
fn chunk<const N: usize>(packet: &mut [u8], at: usize) -> &mut [u8; N] {
    packet[at..].first_chunk_mut().expect("a header that was parsed before")
}
