//! What the fuzz targets do with their bytes; `fuzz/` holds the shells, and the unit tests run the committed corpus through the
//! same functions.
//!
//! Each body takes any bytes and panics if a promise of the crate is broken: decoders do not panic, and what they
//! accept can be emitted and read again as the same thing.

use std::net::IpAddr;

use crate::cm::{CMA_HEADER_LEN, CmaHeader};
use crate::icrc::{self, BadIcrc, Flow, IpId};
use crate::ip::Datagram;
use crate::packet::{self, Packet};
use crate::pretty::Pretty;
use crate::{ROCE_PORT, bth, cm, mad};

/// A fuzz target.
pub type Body = fn(&[u8]);

/// Every body, under its target's name.
pub const BODIES: &[(&str, Body)] =
    &[("packet", packet), ("icrc", icrc), ("ip", ip), ("cm", cm), ("cma", cma)];

fn example_flow(v6: bool) -> Flow {
    let (src, dst) = if v6 { ("fd77::3", "fd77::2") } else { ("10.77.0.3", "10.77.0.2") };
    let address = |text: &str| text.parse::<IpAddr>().expect("a constant");
    Flow::new(address(src), address(dst), 0xc0de, ROCE_PORT)
}

/// A UDP payload: BTH to ICRC.
pub fn packet(data: &[u8]) {
    assert!(!Pretty(data).to_string().contains('\n'));
    let Ok(packet) = Packet::parse(data) else { return };
    let repr = packet.repr();
    let payload = packet.payload();
    let mut again = vec![0xee; data.len()];
    let header_len = repr.emit(&mut again);
    assert_eq!(header_len, usize::from(packet.info().header_len));
    again[header_len..header_len + payload.len()].copy_from_slice(payload);
    let flow = example_flow(false);
    let len = packet::finish(&mut again, header_len, payload.len(), &flow, 7);
    assert_eq!(len, packet::packet_len(header_len, payload.len()));
    assert_eq!(len, data.len());
    let second = Packet::parse(&again[..len]).expect("what we emit, we read");
    assert_eq!((second.repr(), second.payload()), (repr, payload));
    assert_eq!(icrc::check(&flow, Some(7), &again[..len]), Ok(IpId::Confirmed(7)));
}

/// A UDP payload behind three bytes: identification, and which bit to flip.
pub fn icrc(data: &[u8]) {
    let Some((&[id0, id1, flip], body)) = data.split_first_chunk() else { return };
    for v6 in [false, true] {
        let flow = example_flow(v6);
        _ = icrc::check(&flow, None, body);
        _ = icrc::check(&flow, Some(0), body);
        if body.len() < bth::LEN + icrc::LEN || body.len() > 9000 {
            continue;
        }
        let id = u16::from_be_bytes([id0, id1]);
        let mut sealed = body.to_vec();
        icrc::seal(&flow, id, &mut sealed);
        let known = if v6 { IpId::Absent } else { IpId::Confirmed(id) };
        let found = if v6 || id == 0 { known } else { IpId::Recovered(id) };
        assert_eq!(icrc::check(&flow, Some(id), &sealed), Ok(known));
        assert_eq!(icrc::check(&flow, None, &sealed), Ok(found));
        let at = usize::from(flip) % sealed.len();
        if at != bth::VARIANT_BYTE {
            sealed[at] ^= 1 << (flip & 7);
            assert_eq!(icrc::check(&flow, Some(id), &sealed), Err(BadIcrc));
        }
    }
}

/// An IP packet.
pub fn ip(data: &[u8]) {
    let Ok(datagram) = Datagram::parse(data) else { return };
    assert_eq!(usize::from(datagram.udp.payload_len), datagram.payload.len());
    let mut header = [0; 60];
    let len = datagram.ip.emit(&mut header);
    assert_eq!(header[..len], data[..len]);
    _ = icrc::check(&datagram.flow(), datagram.ip_id(), datagram.payload);
    packet(datagram.payload);
}

/// A MAD; short ones are filled up with zeros.
pub fn cm(data: &[u8]) {
    let mut bytes = [0; mad::LEN];
    let len = data.len().min(mad::LEN);
    bytes[..len].copy_from_slice(&data[..len]);
    let Ok(repr) = cm::Repr::parse(&bytes) else { return };
    assert!(!repr.message.to_string().contains('\n'));
    // Reserved bits are lost the first time, and nothing after that.
    let again = repr.to_bytes();
    assert_eq!(cm::Repr::parse(&again).as_ref(), Ok(&repr));
    match &repr.message {
        cm::Message::Req(req) => _ = req.cma(),
        cm::Message::SidrReq(req) => _ = req.cma(),
        cm::Message::Mra(_)
        | cm::Message::Rej(_)
        | cm::Message::Rep(_)
        | cm::Message::Rtu(_)
        | cm::Message::Dreq(_)
        | cm::Message::Drep(_)
        | cm::Message::SidrRep(_)
        | cm::Message::Lap(_)
        | cm::Message::Apr(_) => {}
    }
}

/// An RDMA-CM header.
pub fn cma(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<CMA_HEADER_LEN>() else { return };
    let Ok(header) = CmaHeader::parse(bytes) else { return };
    let mut again = [0xee; CMA_HEADER_LEN];
    header.emit(&mut again);
    assert_eq!(CmaHeader::parse(&again), Ok(header));
}

#[cfg(test)]
mod tests;
