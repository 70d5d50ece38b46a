//! Packets that another implementation sent, against ours: what we read must write the same bytes again.

mod common;

use remanence_wire::cm::{self, Message, PortSpace, ServiceId};
use remanence_wire::icrc::{self, IpId};
use remanence_wire::packet::{self, Packet};
use remanence_wire::{Opcode, Qkey, Qpn, ROCE_PORT, mad};

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

/// The CM conversation of `rping`: every MAD parses and comes out byte by byte, and says what `rping` was told.
#[test]
fn the_cm_conversation_of_linux_is_byte_exact() {
    let pcap = std::fs::read(common::testdata().join("linux-6.12-rxe.pcap")).unwrap();
    let mut conversation = Vec::new();
    for frame in common::frames(&pcap) {
        let packet = Packet::parse(common::datagram(frame).payload).unwrap();
        if packet.dest_qp() != Qpn::GSI {
            continue;
        }
        assert_eq!(packet.deth().map(|deth| (deth.qkey, deth.src_qp)), Some((Qkey::GSI, Qpn::GSI)));
        let mad: &[u8; mad::LEN] = packet.payload().try_into().unwrap();
        let repr = cm::Repr::parse(mad).unwrap();
        assert_eq!(repr.to_bytes(), *mad, "{}", repr.message);
        conversation.push(repr);
    }
    let names: Vec<_> = conversation.iter().map(|repr| repr.message.name()).collect();
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let Message::Req(req) = &conversation[0].message else { unreachable!() };
    let Message::Rep(rep) = &conversation[1].message else { unreachable!() };
    let Message::Rtu(rtu) = &conversation[2].message else { unreachable!() };
    let Message::Dreq(dreq) = &conversation[3].message else { unreachable!() };
    assert_eq!(req.service_id, ServiceId::new(PortSpace::Tcp, 7174));
    assert_eq!(rep.remote_comm_id, req.local_comm_id);
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert_eq!(dreq.remote_qpn, rep.local_qpn);
    let (cma, _user) = req.cma().unwrap();
    assert_eq!(cma.src.to_string(), "10.77.0.3");
    assert_eq!(cma.dst.to_string(), "10.77.0.2");
    assert_eq!((req.primary.local_gid.to_ip(), req.primary.remote_gid.to_ip()), (cma.src, cma.dst));
}
