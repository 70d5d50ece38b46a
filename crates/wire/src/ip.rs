//! The IPv4 or IPv6 header under a RoCEv2 packet, and a whole UDP datagram over it.
//!
//! Read first: RFC 791, RFC 8200; IBA Vol 1, Annex A17 (no IPv4 options, DF set). Links that see whole frames
//! (AF_XDP, captures, shared memory) use this; a UDP socket's kernel does it for us.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Error, icrc, udp};

/// Bytes of an IPv4 header without options.
pub const V4_LEN: usize = 20;
/// Bytes of an IPv6 header.
pub const V6_LEN: usize = 40;
/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

const DONT_FRAGMENT: u16 = 0x4000;
const FRAGMENT: u16 = 0x3fff;

/// An IP header in front of UDP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// Source address; of the same family as the destination.
    pub src: IpAddr,
    /// The address that the packet is sent to.
    pub dst: IpAddr,
    /// TOS or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// IPv4 identification; zero for IPv6.
    pub ident: u16,
    /// IPv6 flow label; zero for IPv4.
    pub flow_label: u32,
    /// Bytes behind this header.
    pub payload_len: u16,
}

impl Repr {
    /// Bytes of the header.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        if self.src.is_ipv4() { V4_LEN } else { V6_LEN }
    }

    /// Splits an IP packet into header and payload; bytes behind the packet (Ethernet padding) are left out.
    ///
    /// # Errors
    /// When it is not a whole, unfragmented UDP datagram with DF set and without options.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => Self::parse_v4(bytes),
            Some(6) => Self::parse_v6(bytes),
            _ => Err(Error::Ip("IP version")),
        }
    }

    fn parse_v4(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let h: &[u8; V4_LEN] =
            bytes.first_chunk().ok_or(Error::Truncated { len: bytes.len(), need: V4_LEN })?;
        if h[0] != 0x45 {
            return Err(Error::Ip("IPv4 options"));
        }
        let total = usize::from(u16::from_be_bytes([h[2], h[3]]));
        let payload = bytes.get(V4_LEN..total).ok_or(Error::Ip("IPv4 total length"))?;
        let flags = u16::from_be_bytes([h[6], h[7]]);
        if flags & FRAGMENT != 0 {
            return Err(Error::Ip("fragment"));
        }
        // The ICRC covers the flags, and Annex A17 asks for DF alone; a flow without it is nobody's we know.
        if flags != DONT_FRAGMENT {
            return Err(Error::Ip("IPv4 flags"));
        }
        if h[9] != PROTOCOL_UDP {
            return Err(Error::Ip("not UDP"));
        }
        if checksum(h) != 0 {
            return Err(Error::Ip("IPv4 header checksum"));
        }
        let repr = Self {
            src: Ipv4Addr::new(h[12], h[13], h[14], h[15]).into(),
            dst: Ipv4Addr::new(h[16], h[17], h[18], h[19]).into(),
            traffic_class: h[1],
            hop_limit: h[8],
            ident: u16::from_be_bytes([h[4], h[5]]),
            flow_label: 0,
            payload_len: payload.len() as u16,
        };
        Ok((repr, payload))
    }

    fn parse_v6(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (h, rest) =
            bytes.split_first_chunk::<V6_LEN>().ok_or(Error::Truncated { len: bytes.len(), need: V6_LEN })?;
        let len = usize::from(u16::from_be_bytes([h[4], h[5]]));
        let payload = rest.get(..len).ok_or(Error::Ip("IPv6 payload length"))?;
        if h[6] != PROTOCOL_UDP {
            return Err(Error::Ip("not UDP"));
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&h[at..at + 16]);
            IpAddr::from(Ipv6Addr::from(octets))
        };
        let repr = Self {
            src: address(8),
            dst: address(24),
            traffic_class: h[0] << 4 | h[1] >> 4,
            hop_limit: h[7],
            ident: 0,
            flow_label: u32::from_be_bytes([0, h[1] & 0x0f, h[2], h[3]]),
            payload_len: payload.len() as u16,
        };
        Ok((repr, payload))
    }

    /// Writes the header; returns its length.
    ///
    /// # Panics
    /// When `bytes` is too short, or the addresses are of two families.
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let h = bytes.first_chunk_mut::<V4_LEN>().expect("room for an IPv4 header");
                let [len0, len1] = (V4_LEN as u16 + self.payload_len).to_be_bytes();
                let [id0, id1] = self.ident.to_be_bytes();
                let [df0, df1] = DONT_FRAGMENT.to_be_bytes();
                h[..12].copy_from_slice(&[
                    0x45,
                    self.traffic_class,
                    len0,
                    len1,
                    id0,
                    id1,
                    df0,
                    df1,
                    self.hop_limit,
                    PROTOCOL_UDP,
                    0,
                    0,
                ]);
                h[12..16].copy_from_slice(&src.octets());
                h[16..].copy_from_slice(&dst.octets());
                let sum = checksum(h).to_be_bytes();
                h[10..12].copy_from_slice(&sum);
                V4_LEN
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let h = bytes.first_chunk_mut::<V6_LEN>().expect("room for an IPv6 header");
                let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
                h[..4].copy_from_slice(&first.to_be_bytes());
                h[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
                h[6] = PROTOCOL_UDP;
                h[7] = self.hop_limit;
                h[8..24].copy_from_slice(&src.octets());
                h[24..].copy_from_slice(&dst.octets());
                V6_LEN
            }
            (src, dst) => panic!("{src} and {dst} are of different IP versions"),
        }
    }
}

/// The Internet checksum of a header: zero if the header holds its own right one.
fn checksum(header: &[u8; V4_LEN]) -> u16 {
    let mut sum: u32 =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !sum as u16
}

/// A UDP datagram over IP, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The IP header.
    pub ip: Repr,
    /// The UDP header.
    pub udp: udp::Repr,
    /// The UDP payload: for RoCEv2, BTH to ICRC.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Takes an IP packet apart.
    ///
    /// # Errors
    /// When it is not a whole UDP datagram.
    pub fn parse(ip_packet: &'a [u8]) -> Result<Self, Error> {
        let (ip, rest) = Repr::parse(ip_packet)?;
        let (udp, payload) = udp::Repr::parse(rest)?;
        Ok(Self { ip, udp, payload })
    }

    /// The headers that this datagram's ICRC covers.
    #[must_use]
    pub fn flow(&self) -> icrc::Flow {
        icrc::Flow::new(self.ip.src, self.ip.dst, self.udp.src_port, self.udp.dst_port)
    }

    /// The IPv4 identification; `None` for IPv6, which has none.
    #[must_use]
    pub fn ip_id(&self) -> Option<u16> {
        self.ip.src.is_ipv4().then_some(self.ip.ident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(src: &str, dst: &str) -> Repr {
        let src: IpAddr = src.parse().unwrap();
        Repr {
            src,
            dst: dst.parse().unwrap(),
            traffic_class: 0x6a,
            hop_limit: 64,
            ident: if src.is_ipv4() { 0xbeef } else { 0 },
            flow_label: if src.is_ipv4() { 0 } else { 0xa_bcde },
            payload_len: 12,
        }
    }

    #[test]
    fn both_versions_survive_a_round_trip_and_lose_ethernet_padding() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "2001:db8::2")] {
            let repr = example(src, dst);
            let mut bytes = [0xee; 80];
            let len = repr.emit(&mut bytes);
            assert_eq!(len, repr.header_len());
            udp::Repr { src_port: 0xc001, dst_port: udp::ROCE_PORT, payload_len: 4 }
                .emit(bytes[len..].first_chunk_mut().unwrap());
            let datagram = Datagram::parse(&bytes).unwrap();
            assert_eq!(datagram.ip, repr);
            assert_eq!(datagram.udp.dst_port, 4791);
            assert_eq!(datagram.payload, [0xee; 4]);
            assert_eq!(datagram.ip_id(), repr.src.is_ipv4().then_some(0xbeef));
        }
    }

    #[test]
    fn what_is_not_a_whole_datagram_is_refused() {
        let mut good = [0; 32];
        example("10.0.0.1", "10.0.0.2").emit(&mut good);
        udp::Repr { src_port: 1, dst_port: 2, payload_len: 4 }.emit(good[20..].first_chunk_mut().unwrap());
        assert!(Datagram::parse(&good).is_ok());
        let refused = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Datagram::parse(&bytes).unwrap_err()
        };
        assert_eq!(refused(0, 0x46), Error::Ip("IPv4 options"));
        assert_eq!(refused(0, 0x55), Error::Ip("IP version"));
        assert_eq!(refused(3, 33), Error::Ip("IPv4 total length"));
        assert_eq!(refused(6, 0x20), Error::Ip("fragment"));
        assert_eq!(refused(6, 0x00), Error::Ip("IPv4 flags"));
        assert_eq!(refused(6, 0xc0), Error::Ip("IPv4 flags"));
        assert_eq!(refused(9, 6), Error::Ip("not UDP"));
        assert_eq!(refused(8, 63), Error::Ip("IPv4 header checksum"));
        assert_eq!(refused(25, 13), Error::Ip("UDP and IP lengths differ"));
        assert!(Datagram::parse(&[]).is_err());

        let mut good = [0; 52];
        example("fe80::1", "fe80::2").emit(&mut good);
        udp::Repr { src_port: 1, dst_port: 2, payload_len: 4 }.emit(good[40..].first_chunk_mut().unwrap());
        assert!(Datagram::parse(&good).is_ok());
        good[6] = 58;
        assert_eq!(Datagram::parse(&good), Err(Error::Ip("not UDP")));
    }
}
