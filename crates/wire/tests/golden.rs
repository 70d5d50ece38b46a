//! Packets that another implementation sent, against ours: what we read must write the same bytes again.

mod common;

use remanence_wire::icrc::{self, IpId};
use remanence_wire::packet::{self, Packet};
use remanence_wire::{Opcode, ROCE_PORT};

/// Linux 6.12 Soft-RoCE, two guests on a bridge: every packet parses, its ICRC is right, its identification can
/// be recovered without the IP header, and its headers emitted again are its bytes.
#[test]
fn what_linux_sent_is_what_we_would_have_sent() {
    let pcap = std::fs::read(common::testdata().join("linux-6.12-rxe.pcap")).unwrap();
    let frames = common::frames(&pcap);
    assert_eq!(frames.len(), 87);
    let mut seen = std::collections::BTreeSet::new();
    for frame in frames {
        let datagram = common::datagram(frame);
        assert_eq!(datagram.udp.dst_port, ROCE_PORT);
        let packet = Packet::parse(datagram.payload).unwrap();
        seen.insert(packet.opcode());

        let (flow, id) = (datagram.flow(), datagram.ip.ident);
        assert_eq!(icrc::check(&flow, Some(id), datagram.payload), Ok(IpId::Confirmed(id)));
        let recovered = if id == 0 { IpId::Confirmed(0) } else { IpId::Recovered(id) };
        assert_eq!(icrc::check(&flow, None, datagram.payload), Ok(recovered));

        let mut again = vec![0xee; datagram.payload.len()];
        let header_len = packet.repr().emit(&mut again);
        let payload = packet.payload();
        again[header_len..header_len + payload.len()].copy_from_slice(payload);
        let len = packet::finish(&mut again, header_len, payload.len(), &flow, id);
        assert_eq!(len, datagram.payload.len());
        assert_eq!(again, datagram.payload, "{}", packet.opcode());

        let mut header = [0; 60];
        let len = datagram.ip.emit(&mut header);
        assert_eq!(header[..len], frame[14..14 + len]);
    }
    assert!(seen.contains(&Opcode::RcWriteMiddle) && seen.contains(&Opcode::UdSendOnly));
}
