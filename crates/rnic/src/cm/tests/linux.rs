//! Against what `rdma_cm` of Linux 6.12 really said: a captured conversation of `rping`, with the IDs that are ours
//! put in. (Provenance: `crates/wire/testdata/README.md`.)

use remanence_wire::cm::{Message, PortSpace, Repr, ServiceId};
use remanence_wire::{Gid, Mtu, Psn, Qpn};

use super::pair::accept_with;
use crate::ah::AhAttr;
use crate::cm::message::Mad;
use crate::cm::{Config, Connect, Ended, Event, Listen, Manager, Path, State, Transport};
use crate::time::Instant;

const CAPTURE: &[u8] = include_bytes!("../../../../wire/testdata/linux-6.12-rxe.pcap");
/// Ethernet, IPv4, UDP, BTH, DETH.
const HEADERS: usize = 14 + 20 + 8 + 12 + 8;
const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7174);

/// REQ, REP, RTU, DREQ and DREP, in that order.
fn conversation() -> Vec<Repr> {
    let word = |at: usize| u32::from_le_bytes(CAPTURE[at..at + 4].try_into().unwrap()) as usize;
    let mut at = 24;
    let mut mads = Vec::new();
    while at < CAPTURE.len() {
        let len = word(at + 8);
        let frame = &CAPTURE[at + 16..at + 16 + len];
        if let Some(mad) = frame.get(HEADERS..HEADERS + 256)
            && let Ok(repr) = Repr::parse(mad.try_into().unwrap())
        {
            mads.push(repr);
        }
        at += 16 + len;
    }
    assert_eq!(mads.len(), 5);
    mads
}

fn host(last: u8) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(10, 77, 0, last))
}

fn sent(manager: &mut Manager) -> Message {
    Repr::parse(&manager.poll_transmit().expect("an answer").1).unwrap().message
}

fn patched(mut repr: Repr, ids: impl FnOnce(&mut Message)) -> Mad {
    ids(&mut repr.message);
    repr.to_bytes()
}

#[test]
fn linux_connects_to_us() {
    let [req, _, rtu, dreq, _] = conversation().try_into().unwrap();
    let Message::Req(asked) = req.message.clone() else { panic!() };
    let mut manager = Manager::new(Config { gids: vec![host(2)], ..Config::default() });
    manager.listen(&Listen { service_id: SERVICE, local: None, backlog: 1 }).unwrap();
    let now = Instant::ZERO;
    manager.handle_mad(now, host(3), &req.to_bytes());
    let Some(Event::ConnectRequest(request)) = manager.poll_event() else { panic!() };
    assert_eq!((request.remote_qpn, request.mtu), (Qpn::new(0x15), Mtu::B4096));
    assert_eq!((request.retry_count, request.rnr_retry_count, request.srq), (7, 7, false));
    assert_eq!(request.cma.unwrap().src_port, 0xdab5);
    // The PSN in a REQ is where we begin.
    assert_eq!(manager.qp_rts(request.id).unwrap().sq_psn, Some(Psn::new(0x14_1a9a)));

    manager.accept(now, request.id, &accept_with(0x42)).unwrap();
    let Message::Rep(rep) = sent(&mut manager) else { panic!() };
    assert_eq!(rep.remote_comm_id, asked.local_comm_id);
    let ours = rep.local_comm_id;
    let rtu = patched(rtu, |message| {
        let Message::Rtu(rtu) = message else { panic!() };
        rtu.remote_comm_id = ours;
    });
    manager.handle_mad(now, host(3), &rtu);
    assert_eq!(manager.poll_event(), Some(Event::Established { id: request.id }));
    let dreq = patched(dreq, |message| {
        let Message::Dreq(dreq) = message else { panic!() };
        assert_eq!(dreq.local_comm_id, asked.local_comm_id);
        (dreq.remote_comm_id, dreq.remote_qpn) = (ours, Qpn::new(0x42));
    });
    manager.handle_mad(now, host(3), &dreq);
    let Message::Drep(drep) = sent(&mut manager) else { panic!() };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (ours, asked.local_comm_id));
    assert_eq!(manager.poll_event(), Some(Event::Disconnected { id: request.id, ended: Ended::Remote }));
}

#[test]
fn we_connect_to_linux() {
    let [req, rep, rtu, dreq, drep] = conversation().try_into().unwrap();
    let Message::Req(asked) = req.message else { panic!() };
    let mut manager =
        Manager::new(Config { gids: vec![host(3)], ca_guid: asked.local_ca_guid, ..Config::default() });
    let connect = Connect {
        path: Path { local: host(3), remote: host(2) },
        service_id: asked.service_id,
        transport: Transport::Rc,
        qpn: asked.local_qpn,
        responder_resources: asked.responder_resources,
        initiator_depth: asked.initiator_depth,
        retry_count: asked.retry_count,
        rnr_retry_count: asked.rnr_retry_count,
        srq: asked.srq,
        mtu: Mtu::B4096,
        cma_port: Some(0xdab5),
        private_data: &[],
    };
    let now = Instant::ZERO;
    let id = manager.connect(now, &connect).unwrap();
    let Message::Req(ours) = sent(&mut manager) else { panic!() };
    // What Linux looks at is what Linux would have sent.
    let looked_at = |req: &remanence_wire::cm::Req| {
        let path = req.primary;
        let gids = (path.local_lid, path.remote_lid, path.local_gid, path.remote_gid);
        (
            gids,
            path.hop_limit,
            path.subnet_local,
            req.pkey,
            req.path_mtu,
            req.transport_service,
            req.private_data,
        )
    };
    assert_eq!(looked_at(&ours), looked_at(&asked));

    let rep = patched(rep, |message| {
        let Message::Rep(rep) = message else { panic!() };
        rep.remote_comm_id = id.0;
    });
    manager.handle_mad(now, host(2), &rep);
    let Some(Event::Response { remote_qpn, .. }) = manager.poll_event() else { panic!() };
    assert_eq!(remote_qpn, Qpn::new(0x15));
    assert_eq!(
        manager.qp_rts(id).unwrap().sq_psn,
        Some(Psn::new(0x5f_452d)),
        "as the captured data packets do"
    );
    assert_eq!(manager.qp_rtr(id, AhAttr::new(host(2))).unwrap().rq_psn, Some(ours.starting_psn));
    manager.establish(id, b"").unwrap();
    let (Message::Rtu(said), Message::Rtu(captured)) = (sent(&mut manager), rtu.message) else { panic!() };
    assert_eq!(said.remote_comm_id, captured.remote_comm_id);

    manager.disconnect(now, id).unwrap();
    let (Message::Dreq(said), Message::Dreq(captured)) = (sent(&mut manager), dreq.message) else { panic!() };
    assert_eq!((said.remote_comm_id, said.remote_qpn), (captured.remote_comm_id, captured.remote_qpn));
    let drep = patched(drep, |message| {
        let Message::Drep(drep) = message else { panic!() };
        drep.remote_comm_id = id.0;
    });
    manager.handle_mad(now, host(2), &drep);
    assert_eq!(manager.poll_event(), Some(Event::Disconnected { id, ended: Ended::Local }));
    assert_eq!(manager.state(id), Some(State::Timewait));
}
