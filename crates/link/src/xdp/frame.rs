//! Ethernet, IPv4/IPv6 and UDP headers: written in place in front of a payload, and looked through on the way in.
//!
//! Read first: RFC 791 (IPv4), RFC 8200 (IPv6), RFC 768 (UDP), and IBA Vol 1 Annex A17 for what RoCEv2 fixes:
//! "don't fragment" set, UDP checksum zero. The IPv4 identification is always 0 here, as every send is one
//! datagram and datagram i of a send carries i (see `Outgoing::segment_size`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::netlink::Mac;

const ETH: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;

/// Room kept in front of a payload: the longest headers (62 bytes), rounded so that payloads are aligned.
pub(super) const HEADER_ROOM: usize = 64;

/// The headers towards one destination, but for what differs from packet to packet.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: [u8; HEADER_ROOM],
    /// Where the headers start in `bytes`, so that they end at its end.
    start: usize,
    /// The constant words of the IPv4 header, summed.
    sum: u32,
}

/// What differs from packet to packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// Bytes of the UDP payload.
    pub(super) len: usize,
}

impl Template {
    /// The headers from `src` to `dst`; the MAC addresses come with [`set_macs`]. None if the families differ.
    pub(super) fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        let mut bytes = [0; HEADER_ROOM];
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let start = HEADER_ROOM - UDP - IPV4 - ETH;
                bytes[start + 12..start + ETH].copy_from_slice(&[0x08, 0x00]);
                let ip = &mut bytes[start + ETH..];
                ip[0] = 0x45;
                ip[6] = 0x40;
                ip[9] = PROTOCOL_UDP;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                let sum = sum16(&ip[..IPV4]);
                Some(Self { bytes, start, sum })
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let start = HEADER_ROOM - UDP - IPV6 - ETH;
                bytes[start + 12..start + ETH].copy_from_slice(&[0x86, 0xDD]);
                let ip = &mut bytes[start + ETH..];
                ip[6] = PROTOCOL_UDP;
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..40].copy_from_slice(&dst.octets());
                Some(Self { bytes, start, sum: 0 })
            }
            _ => None,
        }
    }

    /// Where the frame starts in its [`HEADER_ROOM`].
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Bytes of the IP header.
    pub(super) fn ip_header(&self) -> usize {
        HEADER_ROOM - UDP - ETH - self.start
    }

    pub(super) fn set_macs(&mut self, from: Mac, to: Mac) {
        set_macs(&mut self.bytes[self.start..], from, to);
    }

    /// Writes the headers into `room`, whose end is the payload's start.
    pub(super) fn write(&self, room: &mut [u8; HEADER_ROOM], fields: Fields) {
        let Fields { src_port, dst_port, tos, ttl, len } = fields;
        *room = self.bytes;
        let udp_len = u16::try_from(UDP + len).expect("the link's MTU is below 64 KiB");
        let udp = HEADER_ROOM - UDP;
        room[udp..udp + 2].copy_from_slice(&src_port.to_be_bytes());
        room[udp + 2..udp + 4].copy_from_slice(&dst_port.to_be_bytes());
        room[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let ip = &mut room[self.start + ETH..udp];
        if ip.len() == IPV4 {
            let total = udp_len + IPV4 as u16;
            let sum = self.sum + u32::from(tos) + u32::from(total) + (u32::from(ttl) << 8);
            ip[1] = tos;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[8] = ttl;
            ip[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
        } else {
            ip[0] = 0x60 | tos >> 4;
            ip[1] = tos << 4;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
            ip[7] = ttl;
        }
    }
}

/// Puts the MAC addresses into a frame that was written without.
pub(super) fn set_macs(frame: &mut [u8], from: Mac, to: Mac) {
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
}

/// Sum of the big-endian 16-bit words, not folded.
fn sum16(bytes: &[u8]) -> u32 {
    bytes.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

/// Ones' complement sum.
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xFFFF) + (sum >> 16);
    ((sum & 0xFFFF) + (sum >> 16)) as u16
}

/// What a received frame holds.
#[derive(Debug)]
pub(super) struct Parsed<'a> {
    pub(super) src: SocketAddr,
    pub(super) dst_ip: IpAddr,
    pub(super) ip_id: Option<u16>,
    pub(super) ecn: u8,
    pub(super) ttl: u8,
    pub(super) payload: &'a [u8],
}

/// Looks through the headers of a frame that the XDP program let pass. None: not for `mac`, or malformed.
///
/// The UDP checksum is not looked at: RoCEv2 sends none, and that of a packet from the veth peer's own kernel is
/// legally unfinished. The ICRC covers more.
pub(super) fn parse(frame: &[u8], mac: Mac) -> Option<Parsed<'_>> {
    let (eth, ip) = frame.split_at_checked(ETH)?;
    if eth[..6] != mac {
        return None;
    }
    match [eth[12], eth[13]] {
        [0x08, 0x00] => {
            let header = ip.first_chunk::<IPV4>()?;
            if header[0] != 0x45 || fold(sum16(header)) != 0xFFFF {
                return None;
            }
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let (src_port, payload) = udp(ip.get(IPV4..total)?)?;
            Some(Parsed {
                src: (Ipv4Addr::new(header[12], header[13], header[14], header[15]), src_port).into(),
                dst_ip: Ipv4Addr::new(header[16], header[17], header[18], header[19]).into(),
                ip_id: Some(u16::from_be_bytes([header[4], header[5]])),
                ecn: header[1] & 3,
                ttl: header[8],
                payload,
            })
        }
        [0x86, 0xDD] => {
            let header = ip.first_chunk::<IPV6>()?;
            if header[0] >> 4 != 6 || header[6] != PROTOCOL_UDP {
                return None;
            }
            let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
            let (src_port, payload) = udp(ip.get(IPV6..IPV6 + len)?)?;
            let address = |at: usize| -> Ipv6Addr {
                <[u8; 16]>::try_from(&header[at..at + 16]).expect("16 bytes of a 40-byte header").into()
            };
            Some(Parsed {
                src: (address(8), src_port).into(),
                dst_ip: address(24).into(),
                ip_id: None,
                ecn: header[1] >> 4 & 3,
                ttl: header[7],
                payload,
            })
        }
        _ => None,
    }
}

/// Source port and payload of a UDP datagram.
fn udp(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let header = datagram.first_chunk::<UDP>()?;
    let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    Some((u16::from_be_bytes([header[0], header[1]]), datagram.get(UDP..len)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Mac = [2, 0, 0, 0, 0, 1];
    const THERE: Mac = [2, 0, 0, 0, 0, 2];

    fn frame(src: &str, dst: &str, payload: &[u8], fields: Fields) -> Vec<u8> {
        let mut template = Template::new(src.parse().unwrap(), dst.parse().unwrap()).unwrap();
        template.set_macs(HERE, THERE);
        let mut room = [0; HEADER_ROOM];
        template.write(&mut room, fields);
        [&room[template.start()..], payload].concat()
    }

    fn fields(len: usize) -> Fields {
        Fields { src_port: 0xC123, dst_port: 4791, tos: 0xB2, ttl: 63, len }
    }

    #[test]
    fn what_is_written_is_parsed_back_for_both_families() {
        for (src, dst, id) in [("10.1.2.3", "10.1.2.255", Some(0)), ("2001:db8::1", "2001:db8:ffff::2", None)]
        {
            for len in [0, 1, 64, 3000] {
                let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let bytes = frame(src, dst, &payload, fields(len));
                let parsed = parse(&bytes, THERE).expect("well formed");
                assert_eq!(parsed.src, SocketAddr::new(src.parse().unwrap(), 0xC123));
                assert_eq!(parsed.dst_ip, dst.parse::<IpAddr>().unwrap());
                assert_eq!((parsed.ip_id, parsed.ecn, parsed.ttl), (id, 2, 63));
                assert_eq!(parsed.payload, payload);
                // Ethernet pads short frames; the padding is not payload.
                let padded = [bytes.as_slice(), &[0xEE; 30]].concat();
                assert_eq!(parse(&padded, THERE).expect("padded").payload, payload);
            }
        }
    }

    #[test]
    fn the_ipv4_header_is_as_a_known_one() {
        // Checksum computed independently (RFC 1071 by hand): 45b2 0054 0000 4000 3f11 .... 0a00 0001 0a00 0002.
        let bytes = frame("10.0.0.1", "10.0.0.2", &[0; 56], fields(56));
        let words = [0x45b2_u32, 0x0054, 0x0000, 0x4000, 0x3f11, 0x0a00, 0x0001, 0x0a00, 0x0002];
        let sum = words.iter().sum::<u32>();
        let checksum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        assert_eq!(&bytes[14..24], [0x45, 0xb2, 0, 0x54, 0, 0, 0x40, 0, 0x3f, 0x11]);
        assert_eq!(bytes[24..26], checksum.to_be_bytes());
        assert_eq!(bytes[40..42], [0, 0], "RoCEv2 sends no UDP checksum");
    }

    #[test]
    fn no_cut_or_flipped_frame_is_taken_for_a_whole_one() {
        let payload = [7; 64];
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")] {
            let good = frame(src, dst, &payload, fields(64));
            for len in 0..good.len() {
                assert!(parse(&good[..len], THERE).is_none(), "cut to {len}");
            }
            assert!(parse(&good, HERE).is_none(), "for another station");
        }
        let good = frame("10.0.0.1", "10.0.0.2", &payload, fields(64));
        for bit in 14 * 8..34 * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bad, THERE).is_none(), "IPv4 header bit {bit} flipped");
        }
    }
}
