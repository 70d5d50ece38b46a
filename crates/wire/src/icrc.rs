//! ICRC, the invariant CRC over everything in a RoCEv2 packet that routers leave alone.
//!
//! Read first: IBA Vol 1, 7.8.1 (ICRC) and Annex A17 (which IP, UDP and BTH fields count as ones). It is the
//! Ethernet CRC-32, over eight bytes of ones in the place of an LRH, then IP header, UDP header, BTH, extension
//! headers, payload and pad, and it is the one little-endian field on the wire.
//!
//! **The IPv4 identification** is covered, and a UDP socket neither chooses nor sees it. Sending is settled by
//! contract (segment *i* of one send carries identification *i*); receiving, [`check`] finds it out. A CRC is
//! linear: the ICRC that came, xor the ICRC computed with a guessed identification, is the identification's
//! error, `e(x) * x^(8n + 32) mod P`, where `n` is the number of bytes behind it. `P` has a constant term, so
//! `x` has an inverse: dividing gives back `e(x)`, which must fit 16 bits. A damaged packet passes with a
//! chance of 2^-16 in place of 2^-32 (`tests/properties.rs` measures the share of single-bit errors); a
//! receiver that sees the IP header passes it in and keeps all 32 bits.
//!
//! **Linux' FLUSH** has another ICRC: Soft-RoCE (seen in 6.12, there since FLUSH came in 6.2) takes the headers for
//! payload too and covers them twice, the second time with the BTH as it is. It expects the same of others and
//! drops a FLUSH with the right ICRC. [`check`] takes either; [`seal_linux_flush`] makes the other one, for a
//! requester that found out whom it is talking to.

use std::net::IpAddr;

use crc32fast::Hasher;

use crate::opcode::Opcode;
use crate::{bth, ip, udp};

/// Bytes of an ICRC.
pub const LEN: usize = 4;

/// Ones that stand where InfiniBand has its LRH.
const LRH: usize = 8;
const V4_HEADERS: usize = LRH + ip::V4_LEN + udp::LEN;
const V6_HEADERS: usize = LRH + ip::V6_LEN + udp::LEN;
const V4_TOTAL_LEN: usize = LRH + 2;
const V4_IDENT: usize = LRH + 4;
const V6_PAYLOAD_LEN: usize = LRH + 4;
/// What RoCEv2 packets may be long at most, as a UDP payload over IPv4.
const PAYLOAD_MAX: usize = 65535 - ip::V4_LEN - udp::LEN;

/// Addresses and ports of a packet, laid out as the ICRC wants to see them. Cheap to copy; a QP keeps one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// LRH, IP and UDP header with ones where the ICRC asks for them and zeros for lengths and identification.
    headers: [u8; V6_HEADERS],
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
        let mut headers = [0xff; V6_HEADERS];
        let (udp_at, v6) = match pair {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let h = &mut headers[LRH..];
                // TOS, TTL and header checksum are ones.
                h[..10].copy_from_slice(&[0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, ip::PROTOCOL_UDP]);
                h[12..16].copy_from_slice(&src.octets());
                h[16..20].copy_from_slice(&dst.octets());
                (LRH + ip::V4_LEN, false)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let h = &mut headers[LRH..];
                // Traffic class, flow label and hop limit are ones.
                h[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, ip::PROTOCOL_UDP, 0xff]);
                h[8..24].copy_from_slice(&src.octets());
                h[24..40].copy_from_slice(&dst.octets());
                (LRH + ip::V6_LEN, true)
            }
            (src, dst) => panic!("{src} and {dst} are of different IP versions"),
        };
        headers[udp_at..udp_at + 2].copy_from_slice(&src_port.to_be_bytes());
        headers[udp_at + 2..udp_at + 4].copy_from_slice(&dst_port.to_be_bytes());
        Self { headers, v6 }
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
    hash(flow, ip_id, body).finalize()
}

/// The hasher behind the last byte of `body`.
#[inline]
fn hash(flow: &Flow, ip_id: u16, body: &[u8]) -> Hasher {
    assert!(body.len() >= bth::LEN && body.len() + LEN <= PAYLOAD_MAX, "{} bytes are no packet", body.len());
    let udp_len = (udp::LEN + body.len() + LEN) as u16;
    let (bth, rest) = body.split_at(bth::LEN);
    let mut hasher = Hasher::new();
    // One block of headers, so that the hasher is entered twice per packet and no more: on small packets the
    // entry is what costs.
    if flow.v6 {
        let mut block = [0; V6_HEADERS + bth::LEN];
        block[..V6_HEADERS].copy_from_slice(&flow.headers);
        block[V6_PAYLOAD_LEN..V6_PAYLOAD_LEN + 2].copy_from_slice(&udp_len.to_be_bytes());
        block[LRH + ip::V6_LEN + 4..][..2].copy_from_slice(&udp_len.to_be_bytes());
        block[V6_HEADERS..].copy_from_slice(bth);
        block[V6_HEADERS + bth::VARIANT_BYTE] = 0xff;
        hasher.update(&block);
    } else {
        let mut block = [0; V4_HEADERS + bth::LEN];
        block[..V4_HEADERS].copy_from_slice(&flow.headers[..V4_HEADERS]);
        block[V4_TOTAL_LEN..V4_TOTAL_LEN + 2].copy_from_slice(&(ip::V4_LEN as u16 + udp_len).to_be_bytes());
        block[V4_IDENT..V4_IDENT + 2].copy_from_slice(&ip_id.to_be_bytes());
        block[LRH + ip::V4_LEN + 4..][..2].copy_from_slice(&udp_len.to_be_bytes());
        block[V4_HEADERS..].copy_from_slice(bth);
        block[V4_HEADERS + bth::VARIANT_BYTE] = 0xff;
        hasher.update(&block);
    }
    hasher.update(rest);
    hasher
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
    let mut hasher = hash(flow, ip_id, body);
    hasher.update(body);
    hasher.finalize()
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
    if body[0] != Opcode::RcFlush as u8 || 2 * body.len() > PAYLOAD_MAX {
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

// Polynomials of degree below 32 as the reflected CRC keeps them: bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

/// `p * x`.
const fn times_x(p: u32) -> u32 {
    p >> 1 ^ (POLYNOMIAL & (p & 1).wrapping_neg())
}

/// `p / x`.
const fn over_x(p: u32) -> u32 {
    // `times_x` sets the coefficient of x^0 exactly when it reduced.
    if p & ONE == 0 { p << 1 } else { (p ^ POLYNOMIAL) << 1 | 1 }
}

const fn over_x_to(mut p: u32, n: u32) -> u32 {
    let mut i = 0;
    while i < n {
        p = over_x(p);
        i += 1;
    }
    p
}

/// `a * b`.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut i = 0;
    while i < 32 {
        product ^= b & (a >> (31 - i) & 1).wrapping_neg();
        b = times_x(b);
        i += 1;
    }
    product
}

/// The xor between the true identification and the guessed one, if one explains the mismatch of a packet with
/// `body_len` bytes between UDP header and ICRC.
fn ident_error(mismatch: u32, body_len: usize) -> Option<u16> {
    /// `x^-(8n + 32)` for the headers behind the identification and the low byte of the body's length.
    static OVER_LOW: [u32; 256] = {
        let fixed = 32 + 8 * (V4_HEADERS - (V4_IDENT + 2)) as u32;
        let mut table = [over_x_to(ONE, fixed); 256];
        let mut i = 1;
        while i < 256 {
            table[i] = over_x_to(table[i - 1], 8);
            i += 1;
        }
        table
    };
    /// `x^-(8 * 256 * i)` for the high byte of the body's length.
    static OVER_HIGH: [u32; 256] = {
        let step = over_x_to(ONE, 8 * 256);
        let mut table = [ONE; 256];
        let mut i = 1;
        while i < 256 {
            table[i] = times(table[i - 1], step);
            i += 1;
        }
        table
    };
    let [high, low] = (body_len as u16).to_be_bytes();
    let error = times(times(mismatch, OVER_LOW[usize::from(low)]), OVER_HIGH[usize::from(high)]);
    // Degree below 16, or no identification can be the cause. The first bit on the wire is the highest power.
    (error & 0xffff == 0).then_some(((error >> 16) as u16).swap_bytes())
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
    fn division_undoes_multiplication() {
        for p in [1, ONE, 0x1234_5678, u32::MAX] {
            assert_eq!(over_x(times_x(p)), p);
            assert_eq!(times(p, ONE), p);
            assert_eq!(times(p, over_x(ONE)), over_x(p));
        }
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
