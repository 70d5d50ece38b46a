//! Ethernet, IP and UDP headers around a payload, as they were on the wire.
//!
//! Read first: RFC 791, RFC 8200, RFC 768.

use std::net::{IpAddr, SocketAddr};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
const IPPROTO_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

/// What the headers say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) ip_id: u16,
}

/// Room for the headers of one packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame(Vec<u8>);

impl Frame {
    /// The bytes that precede `payload`.
    pub(super) fn build(&mut self, headers: &Headers, payload: &[u8]) -> &[u8] {
        let bytes = &mut self.0;
        bytes.clear();
        bytes.extend(mac(headers.dst.ip()));
        bytes.extend(mac(headers.src.ip()));
        let udp_len = u16::try_from(payload.len() + 8).unwrap_or(u16::MAX);
        match (headers.src.ip(), headers.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
                let at = bytes.len();
                bytes.extend([0x45, headers.tos]);
                bytes.extend(udp_len.saturating_add(20).to_be_bytes());
                bytes.extend(headers.ip_id.to_be_bytes());
                bytes.extend(DONT_FRAGMENT.to_be_bytes());
                bytes.extend([headers.ttl, IPPROTO_UDP, 0, 0]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
                let checksum = !sum(0, &bytes[at..]);
                bytes[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            (src, dst) => {
                bytes.extend(ETHERTYPE_IPV6.to_be_bytes());
                bytes.extend((0x6000_0000 | u32::from(headers.tos) << 20).to_be_bytes());
                bytes.extend(udp_len.to_be_bytes());
                bytes.extend([IPPROTO_UDP, headers.ttl]);
                bytes.extend(octets16(src));
                bytes.extend(octets16(dst));
            }
        }
        let checksum = udp_checksum(headers, udp_len, payload);
        for word in [headers.src.port(), headers.dst.port(), udp_len, checksum] {
            bytes.extend(word.to_be_bytes());
        }
        bytes
    }
}

/// A locally administered address made of the IP address: the real one is nobody's business here.
fn mac(ip: IpAddr) -> [u8; 6] {
    let tail = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => *ip.octets().last_chunk().expect("16 bytes"),
    };
    [2, 0, tail[0], tail[1], tail[2], tail[3]]
}

fn octets16(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The checksum over pseudo header, header and payload; never 0, which would mean "none".
fn udp_checksum(headers: &Headers, udp_len: u16, payload: &[u8]) -> u16 {
    let mut total = match (headers.src.ip(), headers.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => sum(sum(0, &src.octets()), &dst.octets()),
        (src, dst) => sum(sum(0, &octets16(src)), &octets16(dst)),
    };
    for word in [IPPROTO_UDP.into(), udp_len, headers.src.port(), headers.dst.port(), udp_len] {
        total = sum(total, &word.to_be_bytes());
    }
    match !sum(total, payload) {
        0 => 0xFFFF,
        checksum => checksum,
    }
}

/// Adds the big-endian 16-bit words of `bytes` to `start`, with end-around carry (RFC 1071).
fn sum(start: u16, bytes: &[u8]) -> u16 {
    let mut total = u64::from(start);
    for word in bytes.chunks(2) {
        total += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
    }
    while total >> 16 != 0 {
        total = (total & 0xFFFF) + (total >> 16);
    }
    total as u16
}
