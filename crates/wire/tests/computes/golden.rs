//! Packets that another implementation sent, against ours: what we read must write the same bytes again.
//! `testdata/README.md` says where each packet comes from.

use crate::common;

use std::collections::BTreeSet;

use remanence_wire::cm::{self, Message, PortSpace, RejReason, ServiceId};
use remanence_wire::icrc::{self, IpId};
use remanence_wire::ip::Datagram;
use remanence_wire::packet::{self, Packet};
use remanence_wire::{Mtu, Opcode, Qkey, Qpn, ROCE_PORT, mad};

/// Everything that must hold of a packet that another implementation made.
fn check(frame: &[u8], datagram: &Datagram<'_>) -> Opcode {
    assert_eq!(datagram.udp.dst_port, ROCE_PORT);
    let packet = Packet::parse(datagram.payload).unwrap();

    // Its ICRC is right, and can be checked without the IP header.
    let (flow, id) = (datagram.flow(), datagram.ip.ident);
    let (given, recovered) = match datagram.ip_id() {
        None => (IpId::Absent, IpId::Absent),
        Some(0) => (IpId::Confirmed(0), IpId::Confirmed(0)),
        Some(id) => (IpId::Confirmed(id), IpId::Recovered(id)),
    };
    assert_eq!(icrc::check(&flow, datagram.ip_id(), datagram.payload), Ok(given));
    assert_eq!(icrc::check(&flow, None, datagram.payload), Ok(recovered));

    // Emitted again, it is the same bytes.
    let mut again = vec![0xee; datagram.payload.len()];
    let header_len = packet.repr().emit(&mut again);
    let payload = packet.payload();
    again[header_len..header_len + payload.len()].copy_from_slice(payload);
    let len = packet::finish(&mut again, header_len, payload.len(), &flow, id);
    assert_eq!(len, datagram.payload.len());
    if packet.opcode() == Opcode::RcFlush {
        // Linux is alone with its ICRC of a FLUSH.
        assert_ne!(again, datagram.payload);
        assert_eq!(icrc::check(&flow, datagram.ip_id(), &again), Ok(given));
        icrc::seal_linux_flush(&flow, id, &mut again);
    } else {
        assert_eq!(packet.icrc(), icrc::compute(&flow, id, &again[..len - icrc::LEN]));
    }
    assert_eq!(again, datagram.payload, "{packet}");
    let mut header = [0; 60];
    let len = datagram.ip.emit(&mut header);
    assert_eq!(header[..len], frame[14..14 + len]);

    if packet.dest_qp() == Qpn::GSI {
        let deth = packet.deth().unwrap();
        assert_eq!((deth.qkey, deth.src_qp), (Qkey::GSI, Qpn::GSI));
        let mad: &[u8; mad::LEN] = payload.try_into().unwrap();
        assert_eq!(cm::Repr::parse(mad).unwrap().to_bytes(), *mad, "{packet}");
    }
    packet.opcode()
}

#[test]
fn every_golden_packet_is_read_and_written_byte_by_byte() {
    for golden in common::goldens() {
        let datagram = golden.datagram();
        println!("{:50} {}", golden.name, packet::Packet::parse(datagram.payload).unwrap());
        let opcode = check(golden.frame(), &datagram);
        assert_eq!(golden.opcode_name(), kebab(opcode), "{}", golden.name);
        // They were captured at a path MTU of 256, which the management QP does not have.
        let packet = Packet::parse(datagram.payload).unwrap();
        assert!(opcode.info().payload.admits(packet.payload().len(), Mtu::B256), "{packet}");
    }
}

/// A new opcode gets a golden packet.
#[test]
fn every_opcode_has_a_golden_packet() {
    let goldens = common::goldens();
    let captured: BTreeSet<_> = goldens.iter().map(common::Golden::opcode_name).collect();
    let opcodes: BTreeSet<_> = Opcode::ALL.iter().map(|&opcode| kebab(opcode)).collect();
    assert_eq!(captured, opcodes.iter().map(String::as_str).collect());
}

fn kebab(opcode: Opcode) -> String {
    opcode.info().name.to_lowercase().replace(' ', "-")
}

/// Linux 6.12 Soft-RoCE at a path MTU of 4096.
#[test]
fn what_linux_sent_is_what_we_would_have_sent() {
    let pcap = common::conversation();
    let frames = common::frames(&pcap);
    assert_eq!(frames.len(), 87);
    for frame in frames {
        check(frame, &common::datagram(frame));
    }
}

/// The CM conversation of `rping`, which says what `rping` was told.
#[test]
fn the_cm_conversation_of_linux_makes_sense() {
    let pcap = common::conversation();
    let mut conversation = Vec::new();
    for frame in common::frames(&pcap) {
        let packet = Packet::parse(common::datagram(frame).payload).unwrap();
        if packet.dest_qp() == Qpn::GSI {
            conversation.push(cm::Repr::parse(packet.payload().try_into().unwrap()).unwrap().message);
        }
    }
    let [Message::Req(req), Message::Rep(rep), Message::Rtu(rtu), Message::Dreq(dreq), Message::Drep(drep)] =
        &conversation[..]
    else {
        panic!("{conversation:?}")
    };
    assert_eq!(req.service_id, ServiceId::new(PortSpace::Tcp, 7174));
    assert_eq!((req.path_mtu, req.retry_count, req.rnr_retry_count), (Mtu::B4096 as u8, 7, 7));
    assert_eq!(rep.remote_comm_id, req.local_comm_id);
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert_eq!((dreq.local_comm_id, dreq.remote_qpn), (req.local_comm_id, rep.local_qpn));
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (rep.local_comm_id, req.local_comm_id));
    let (cma, _user) = req.cma().unwrap();
    assert_eq!((cma.src.to_string(), cma.dst.to_string()), ("10.77.0.3".into(), "10.77.0.2".into()));
    assert_eq!((req.primary.local_gid.to_ip(), req.primary.remote_gid.to_ip()), (cma.src, cma.dst));
}

/// The other messages, over IPv4 and IPv6.
#[test]
fn golden_cm_messages_say_what_their_programs_did() {
    let message = |name: &str| {
        let goldens = common::goldens();
        let golden = goldens.iter().find(|golden| golden.name == name).unwrap();
        let packet = Packet::parse(golden.datagram().payload).unwrap();
        cm::Repr::parse(packet.payload().try_into().unwrap()).unwrap().message
    };
    let Message::Rej(rej) = message("ud-send-only.cm-rej") else { unreachable!() };
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
    let Message::Req(req) = message("ud-send-only.cm-req") else { unreachable!() };
    assert_eq!((req.service_id.port(), rej.remote_comm_id), (Some(9), req.local_comm_id));
    let Message::Req(req) = message("ud-send-only.cm-req.ipv6") else { unreachable!() };
    let (cma, _user) = req.cma().unwrap();
    assert_eq!((cma.src.to_string(), cma.dst.to_string()), ("fd77::3".into(), "fd77::2".into()));
    let Message::SidrReq(req) = message("ud-send-only.cm-sidr-req") else { unreachable!() };
    assert_eq!(req.service_id, ServiceId::new(PortSpace::Udp, 7174));
    assert_eq!(req.cma().unwrap().0.dst.to_string(), "10.77.0.2");
    let Message::SidrRep(rep) = message("ud-send-only.cm-sidr-rep") else { unreachable!() };
    assert_eq!((rep.request_id, rep.status, rep.qkey), (req.request_id, 0, Qkey::RDMA_UDP));
    let Message::Lap(lap) = message("ud-send-only.cm-lap") else { unreachable!() };
    assert_eq!((lap.alternate.flow_label, lap.alternate.packet_rate), (0xa_bcde, 10));
    assert_eq!((lap.alternate.local_ack_timeout, lap.alternate.subnet_local), (17, true));
}
