//! ICRC, the invariant CRC over everything in a RoCEv2 packet that routers leave alone.
//!
//! Read first: IBA Vol 1, 7.8.1 (ICRC) and Annex A17 (which IP, UDP and BTH fields count as ones). It is the
//! Ethernet CRC-32, over eight bytes of ones in the place of an LRH, then IP header, UDP header, BTH, extension
//! headers, payload and pad, and it is the one little-endian field on the wire.
//!
//! **The IPv4 identification** is covered, and a UDP socket neither chooses nor sees it. Sending is settled by
//! contract (segment *i* of one send carries the identification that the link told, and *i*); receiving, [`check`] finds it out. A CRC is
//! linear: the ICRC that came, xor the ICRC computed with a guessed identification, is the identification's
//! error, `e(x) * x^(8n + 32) mod P`, where `n` is the number of bytes behind it. `P` has a constant term, so
//! `x` has an inverse: dividing gives back `e(x)`, which must fit 16 bits. A damaged packet passes with a
//! chance of 2^-16 in place of 2^-32 (`tests/computes/properties.rs` measures the share of single-bit errors); a
//! receiver that sees the IP header passes it in and keeps all 32 bits.
//!
//! **Linux' FLUSH** has another ICRC: Soft-RoCE (seen in 6.12, there since FLUSH came in 6.2) takes the headers for
//! payload too and covers them twice, the second time with the BTH as it is. It expects the same of others and
//! drops a FLUSH with the right ICRC. [`check`] takes either; [`seal_linux_flush`] makes the other one, for a
//! requester that found out whom it is talking to.

mod linear;
mod words;

use std::net::IpAddr;

use crc32fast::Hasher;

use self::linear::{Bytes, Number16};
use crate::opcode::Opcode;
use crate::{bth, ip, udp};

/// Bytes of an ICRC.
pub const LEN: usize = 4;

/// Ones that stand where InfiniBand has its LRH.
const LRH: usize = 8;
const V4_HEADERS: usize = LRH + ip::V4_LEN + udp::LEN;
const V6_HEADERS: usize = LRH + ip::V6_LEN + udp::LEN;
/// Bytes of the headers behind the IPv4 identification.
const BEHIND_IDENT: usize = V4_HEADERS - (LRH + 4) - 2;
/// What RoCEv2 packets may be long at most, as a UDP payload over IPv4.
const PAYLOAD_MAX: usize = 65535 - ip::V4_LEN - udp::LEN;

// What the numbers that change from packet to packet add to the register behind the headers.
static V4_TOTAL_LEN: Number16 = Number16::new(V4_HEADERS - (LRH + 2) - 2);
static V4_IDENT: Number16 = Number16::new(BEHIND_IDENT);
static V6_PAYLOAD_LEN: Number16 = Number16::new(V6_HEADERS - (LRH + 4) - 2);
static UDP_LEN: Number16 = Number16::new(2);
static FOUR: Bytes<4> = Bytes::new();
static TWELVE: Bytes<12> = Bytes::new();

/// Addresses and ports of a packet, as the ICRC sees them. Made once per peer, it saves most of the headers' work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The CRC register behind LRH, IP and UDP header, with zeros for lengths and identification.
    register: u32,
    v6: bool,
}

impl Flow {
    /// The flow from `src` to `dst`. Two IPv4-mapped IPv6 addresses count as IPv4, which they are on the wire.
    ///
    /// # Panics
    /// When one address is IPv4 and the other is not.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr, src_port: u16, dst_port: u16) -> Self {
        let pair = match (src, dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) => (src, dst),
            // One mapped address beside a real one is what nobody sends, but a frame may hold it.
            _ => match (src.to_canonical(), dst.to_canonical()) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => (src.into(), dst.into()),
                _ => (src, dst),
            },
        };
        // What routers may change counts as ones: TOS, TTL and checksum, or traffic class, flow label and hop limit.
        match pair {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                // LRH; version and length, TOS, total length, identification, DF, TTL, UDP, checksum.
                const FRONT: u32 = linear::register(
                    b"\xff\xff\xff\xff\xff\xff\xff\xff\x45\xff\0\0\0\0\x40\0\xff\x11\xff\xff",
                );
                let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (src.octets(), dst.octets());
                let ([s4, s5], [d4, d5]) = (src_port.to_be_bytes(), dst_port.to_be_bytes());
                let register = TWELVE.update(FRONT, &[s0, s1, s2, s3, d0, d1, d2, d3, s4, s5, d4, d5]);
                // UDP length and checksum.
                Self { register: FOUR.update(register, &[0, 0, 0xff, 0xff]), v6: false }
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut headers = [0xff; V6_HEADERS];
                let h = &mut headers[LRH..];
                h[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, ip::PROTOCOL_UDP, 0xff]);
                h[8..24].copy_from_slice(&src.octets());
                h[24..40].copy_from_slice(&dst.octets());
                h[40..42].copy_from_slice(&src_port.to_be_bytes());
                h[42..44].copy_from_slice(&dst_port.to_be_bytes());
                h[44..46].fill(0);
                Self { register: !crc32fast::hash(&headers), v6: true }
            }
            (src, dst) => panic!("{src} and {dst} are of different IP versions"),
        }
    }

    /// Whether the packets travel over IPv6, and so have no identification.
    #[must_use]
    pub const fn is_ipv6(&self) -> bool {
        self.v6
    }
}

/// The identification that a packet was found to carry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpId {
    /// IPv6 has none. All 32 bits of the ICRC were checked.
    Absent,
    /// The one that was given, or guessed and confirmed. All 32 bits of the ICRC were checked.
    Confirmed(u16),
    /// Found out from the ICRC itself. Only 16 bits were left to check the packet.
    Recovered(u16),
}

/// The packet is damaged, or was not meant for these addresses and ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[error("ICRC mismatch")]
pub struct BadIcrc;

/// The ICRC of a packet whose UDP payload without ICRC is `body`. `ip_id` is not looked at for IPv6.
///
/// # Panics
/// When `body` is shorter than a BTH or too long for UDP.
#[must_use]
#[inline]
pub fn compute(flow: &Flow, ip_id: u16, body: &[u8]) -> u32 {
    !register(flow, ip_id, body)
}

/// The register behind the last byte of `body`.
#[inline]
fn register(flow: &Flow, ip_id: u16, body: &[u8]) -> u32 {
    assert!(body.len() >= bth::LEN && body.len() + LEN <= PAYLOAD_MAX, "{} bytes are no packet", body.len());
    let udp_len = (udp::LEN + body.len() + LEN) as u16;
    let lengths = if flow.v6 {
        V6_PAYLOAD_LEN.share(udp_len)
    } else {
        V4_TOTAL_LEN.share(ip::V4_LEN as u16 + udp_len) ^ V4_IDENT.share(ip_id)
    };
    let register = flow.register ^ lengths ^ UDP_LEN.share(udp_len);
    let (bth, rest) = body.split_first_chunk().expect("longer than a BTH");
    let mut bth: [u8; bth::LEN] = *bth;
    bth[bth::VARIANT_BYTE] = 0xff;
    update(TWELVE.update(register, &bth), rest)
}

/// The register after more bytes.
#[inline]
fn update(register: u32, bytes: &[u8]) -> u32 {
    if words::pays(bytes.len()) { words::update(register, bytes) } else { by_library(register, bytes) }
}

#[inline]
fn by_library(register: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(!register);
    hasher.update(bytes);
    !hasher.finalize()
}

/// Writes the ICRC into the last four bytes of `payload`, a whole UDP payload.
///
/// # Panics
/// When `payload` is shorter than BTH and ICRC or too long for UDP.
#[inline]
pub fn seal(flow: &Flow, ip_id: u16, payload: &mut [u8]) {
    let (body, icrc) = payload.split_last_chunk_mut::<LEN>().expect("room for an ICRC");
    *icrc = to_wire(compute(flow, ip_id, body));
}

/// Like [`seal`], for a FLUSH to Linux Soft-RoCE.
///
/// # Panics
/// When `payload` is shorter than BTH and ICRC or too long for UDP.
pub fn seal_linux_flush(flow: &Flow, ip_id: u16, payload: &mut [u8]) {
    let (body, icrc) = payload.split_last_chunk_mut::<LEN>().expect("room for an ICRC");
    *icrc = to_wire(compute_linux_flush(flow, ip_id, body));
}

fn compute_linux_flush(flow: &Flow, ip_id: u16, body: &[u8]) -> u32 {
    !update(register(flow, ip_id, body), body)
}

/// Checks the ICRC of `payload`, a whole UDP payload. An identification that is given must be the packet's;
/// without one, zero is tried and then the packet's own is found out.
///
/// # Errors
/// When no identification explains the ICRC.
#[inline]
pub fn check(flow: &Flow, ip_id: Option<u16>, payload: &[u8]) -> Result<IpId, BadIcrc> {
    match ip_id {
        Some(id) => match mismatch(flow, id, payload)? {
            0 => Ok(confirmed(flow, id)),
            _ => check_linux_flush(flow, id, true, payload),
        },
        None => check_guess(flow, 0, payload),
    }
}

#[inline]
const fn confirmed(flow: &Flow, ip_id: u16) -> IpId {
    if flow.v6 { IpId::Absent } else { IpId::Confirmed(ip_id) }
}

/// Like [`check`], where the identification is probably `guess` (the segment's number within a batch of a
/// sender like us) but may be any.
///
/// # Errors
/// When no identification explains the ICRC.
#[inline]
pub fn check_guess(flow: &Flow, guess: u16, payload: &[u8]) -> Result<IpId, BadIcrc> {
    let mismatch = mismatch(flow, guess, payload)?;
    if mismatch == 0 {
        return Ok(confirmed(flow, guess));
    }
    if !flow.v6
        && let Some(error) = ident_error(mismatch, payload.len() - LEN)
    {
        return Ok(IpId::Recovered(guess ^ error));
    }
    check_linux_flush(flow, guess, false, payload)
}

/// The second chance of a FLUSH whose ICRC is wrong by the specification.
#[cold]
fn check_linux_flush(flow: &Flow, ip_id: u16, is_known: bool, payload: &[u8]) -> Result<IpId, BadIcrc> {
    let Some((body, icrc)) = payload.split_last_chunk::<LEN>() else { return Err(BadIcrc) };
    if body[0] != Opcode::RcFlush as u8 {
        return Err(BadIcrc);
    }
    let mismatch = from_wire(*icrc) ^ compute_linux_flush(flow, ip_id, body);
    if mismatch == 0 {
        return Ok(confirmed(flow, ip_id));
    }
    if is_known || flow.v6 {
        return Err(BadIcrc);
    }
    let error = ident_error(mismatch, 2 * body.len()).ok_or(BadIcrc)?;
    Ok(IpId::Recovered(ip_id ^ error))
}

/// The xor between the true identification and the one assumed, if one explains the mismatch; `covered` bytes are
/// between the headers and the ICRC.
fn ident_error(mismatch: u32, covered: usize) -> Option<u16> {
    linear::number_of_share(mismatch, u16::try_from(BEHIND_IDENT + covered).ok()?)
}

/// What came xor what should have come, were `ip_id` the identification.
#[inline]
fn mismatch(flow: &Flow, ip_id: u16, payload: &[u8]) -> Result<u32, BadIcrc> {
    match payload.split_last_chunk::<LEN>() {
        Some((body, icrc)) if body.len() >= bth::LEN && payload.len() <= PAYLOAD_MAX => {
            Ok(from_wire(*icrc) ^ compute(flow, ip_id, body))
        }
        _ => Err(BadIcrc),
    }
}

#[expect(clippy::little_endian_bytes, reason = "the one little-endian field: least significant byte first")]
const fn to_wire(icrc: u32) -> [u8; LEN] {
    icrc.to_le_bytes()
}

/// The ICRC of its four bytes on the wire.
#[expect(clippy::little_endian_bytes, reason = "the one little-endian field: least significant byte first")]
pub(crate) const fn from_wire(bytes: [u8; LEN]) -> u32 {
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str) -> Flow {
        Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 0xc123, udp::ROCE_PORT)
    }

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + 7) as u8).collect()
    }

    #[test]
    fn any_identification_is_recovered_at_any_length() {
        let flow = flow("10.0.0.1", "10.0.0.2");
        for len in [16, 20, 268, 272, 1044, 4140, 65504] {
            let mut packet = payload(len);
            for id in [0u16, 1, 0x0080, 0x8000, 0xbeef, 0xffff] {
                seal(&flow, id, &mut packet);
                assert_eq!(check(&flow, Some(id), &packet), Ok(IpId::Confirmed(id)));
                assert_eq!(check(&flow, Some(id ^ 1), &packet), Err(BadIcrc));
                let expected = if id == 0 { IpId::Confirmed(0) } else { IpId::Recovered(id) };
                assert_eq!(check(&flow, None, &packet), Ok(expected));
                assert_eq!(check_guess(&flow, id, &packet), Ok(IpId::Confirmed(id)));
            }
        }
    }

    #[test]
    fn ipv6_has_no_identification_to_hide_behind() {
        let flow = flow("fe80::1", "fe80::2");
        let mut packet = payload(64);
        seal(&flow, 0, &mut packet);
        assert_eq!(check(&flow, None, &packet), Ok(IpId::Absent));
        assert_eq!(check(&flow, Some(7), &packet), Ok(IpId::Absent));
        packet[30] ^= 1;
        assert_eq!(check(&flow, None, &packet), Err(BadIcrc));
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        assert_eq!(flow("::ffff:10.0.0.1", "::ffff:10.0.0.2"), flow("10.0.0.1", "10.0.0.2"));
        assert_eq!(flow("::ffff:10.0.0.1", "10.0.0.2"), flow("10.0.0.1", "10.0.0.2"));
        assert!(flow("::ffff:10.0.0.1", "fe80::1").is_ipv6());
    }

    #[test]
    fn routers_may_mark_congestion() {
        let flow = flow("10.0.0.1", "10.0.0.2");
        let mut packet = payload(64);
        seal(&flow, 0, &mut packet);
        packet[bth::VARIANT_BYTE] ^= 0xff;
        assert_eq!(check(&flow, Some(0), &packet), Ok(IpId::Confirmed(0)));
    }

    #[test]
    fn a_flush_may_have_the_icrc_of_linux() {
        for flow in [flow("10.0.0.1", "10.0.0.2"), flow("fe80::1", "fe80::2")] {
            let mut packet = payload(36);
            packet[0] = Opcode::RcFlush as u8;
            seal_linux_flush(&flow, 0x1234, &mut packet);
            let (given, recovered) = if flow.is_ipv6() {
                (IpId::Absent, IpId::Absent)
            } else {
                (IpId::Confirmed(0x1234), IpId::Recovered(0x1234))
            };
            assert_eq!(check(&flow, Some(0x1234), &packet), Ok(given));
            assert_eq!(check(&flow, None, &packet), Ok(recovered));
            assert_eq!(check(&flow, Some(0x1235), &packet).is_ok(), flow.is_ipv6());
            packet[30] ^= 4;
            assert_eq!(check(&flow, Some(0x1234), &packet), Err(BadIcrc));
            packet[30] ^= 4;
            packet[0] = Opcode::RcReadRequest as u8;
            seal_linux_flush(&flow, 0x1234, &mut packet);
            assert_eq!(check(&flow, Some(0x1234), &packet), Err(BadIcrc), "nothing but a FLUSH may");
        }
    }

    #[test]
    fn scraps_are_refused() {
        let flow = flow("10.0.0.1", "10.0.0.2");
        for len in 0..16 {
            assert_eq!(check(&flow, None, &payload(len)), Err(BadIcrc));
        }
        assert_eq!(check(&flow, None, &payload(65508)), Err(BadIcrc));
    }
}
