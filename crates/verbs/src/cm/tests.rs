//! What is believed of those who say that nobody is there.

use remanence_link::Quote;
use remanence_rnic::cm::{Accept, Config, Connect, Listen, Transport};
use remanence_rnic::side::Plain;
use remanence_rnic::{Access, QpCaps, QpInit, QpType};
use remanence_wire::{Mtu, cm::PortSpace};

use super::*;

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7471);
const NOW: Instant = Instant::ZERO;

fn gid(host: u8) -> Gid {
    Gid::from_ip([10, 0, 0, host].into())
}

fn config(host: u8) -> Config {
    Config { ca_guid: host.into(), gids: vec![gid(host)], seed: host.into(), ..Config::default() }
}

/// Host 1, which has asked host 2 for a connection, and the request as it left.
struct Asking {
    device: Device,
    books: Connections,
    id: CommId,
    events: Arc<EventQueue<CmEvent>>,
    qpn: Qpn,
    request: Vec<u8>,
}

impl Asking {
    fn new() -> Self {
        let config_of_device =
            remanence_rnic::Config { gids: vec![gid(1)], ..remanence_rnic::Config::default() };
        let mut device = Device::new(config_of_device);
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let init =
            QpInit { pd, ty: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
        let qpn = device.create_qp(&init).unwrap();
        let mut books = Connections::new(config(1), false);
        let connect = Connect {
            path: Path { local: gid(1), remote: gid(2) },
            service_id: SERVICE,
            transport: Transport::Rc,
            qpn,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            mtu: Mtu::B1024,
            cma_port: Some(40_000),
            private_data: b"",
        };
        let id = books.manager.connect(NOW, &connect).unwrap();
        let events = Arc::new(EventQueue::new());
        books.routes.insert(id, Route::new(&events, 0));
        books.attach_qp(id, qpn, false);
        let (_, mad) = books.manager.poll_transmit().unwrap();
        Self { device, books, id, events, qpn, request: mad.to_vec() }
    }

    /// Somebody says that nobody has the port of `host` open, and quotes `payload`. Returns the events that it made.
    fn told(&mut self, host: u8, payload: &[u8]) -> u64 {
        let evidence = Evidence::Quoted(Quote::of(payload));
        self.books.refused(NOW, &self.device, gid(host), &evidence)
    }
}

/// A datagram of which a packet of 12 bytes or more is looked at.
fn packet(dest: u32, psn: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x64, 0, 0xff, 0xff];
    bytes.extend(dest.to_be_bytes());
    bytes.extend(psn.to_be_bytes());
    bytes.extend(rest);
    bytes
}

fn mad(request: &[u8]) -> Vec<u8> {
    let datagram_header = [0; 8];
    packet(1, 0, &[&datagram_header, request].concat())
}

#[test]
fn a_request_is_given_up_for_who_quotes_it_and_for_nobody_else() {
    let mut asking = Asking::new();
    let (truth, mut forged) = (mad(&asking.request), mad(&asking.request));
    *forged.get_mut(12 + 8 + 15).unwrap() ^= 1;
    for _ in 0..10 {
        assert_eq!(asking.told(2, &forged), 0, "another transaction");
        assert_eq!(asking.told(2, &truth[..35]), 0, "as little as says nothing");
        assert_eq!(asking.told(2, &[]), 0);
        assert_eq!(asking.told(2, &packet(0x11, 0, &[0; 24])), 0);
        assert_eq!(asking.told(3, &truth), 0, "of another host");
    }
    assert_eq!(asking.books.manager.state(asking.id), Some(cm::State::ReqSent));
    assert_eq!(asking.told(2, &truth), 0, "it may be about to restart");
    assert_eq!(asking.told(2, &truth[..36]), 1);
    let event = asking.events.pop().expect("an event").event;
    assert_eq!(event, Some(Event::Unreachable { id: asking.id }));
}

#[test]
fn this_host_needs_no_proof() {
    let mut asking = Asking::new();
    for made in [0, 1] {
        assert_eq!(asking.books.refused(NOW, &asking.device, gid(2), &Evidence::Local), made);
    }
}

#[test]
fn a_connection_is_doubted_for_who_quotes_its_packet_and_for_nobody_else() {
    let mut asking = Asking::new();
    let mut peer = Manager::new(config(2));
    peer.listen(&Listen { service_id: SERVICE, local: None, backlog: 1 }).unwrap();
    peer.handle_mad(NOW, gid(1), asking.request.as_slice().try_into().unwrap());
    let Some(Event::ConnectRequest(request)) = peer.poll_event() else { panic!("no request") };
    let accept = Accept {
        qpn: Qpn::new(0x22),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        private_data: b"",
    };
    peer.accept(NOW, request.id, &accept).unwrap();
    let (_, answer) = peer.poll_transmit().unwrap();
    let Asking { device, books, id, qpn, .. } = &mut asking;
    books.manager.handle_mad(NOW, gid(2), &answer);
    device.modify_qp(NOW, *qpn, &Manager::qp_init(Access::empty())).unwrap();
    device.modify_qp(NOW, *qpn, &books.manager.qp_rtr(*id, AhAttr::new(gid(2))).unwrap()).unwrap();
    let rts = books.manager.qp_rts(*id).unwrap();
    device.modify_qp(NOW, *qpn, &rts).unwrap();
    books.manager.establish(*id, b"").unwrap();

    // The question whether the peer is there has the PSN before the first.
    let psn = rts.sq_psn.unwrap().sub(1).value();
    let doubted = |asking: &mut Asking, host, payload: &[u8]| {
        asking.told(host, payload);
        std::mem::take(&mut asking.books.routes.get_mut(&asking.id).unwrap().closed)
    };
    let truth = packet(0x22, psn, &[]);
    assert!(doubted(&mut asking, 2, &truth));
    assert!(!doubted(&mut asking, 3, &truth), "of another host");
    assert!(!doubted(&mut asking, 2, &truth[..11]));
    for wrong in [packet(0x22, psn + 1, &[]), packet(0x22, psn.wrapping_sub(1), &[]), packet(0x23, psn, &[])]
    {
        assert!(!doubted(&mut asking, 2, &wrong));
    }
    let request = mad(&asking.request);
    assert!(!doubted(&mut asking, 2, &request));

    // One that was sent and not answered.
    let wr = remanence_rnic::SendWr {
        wr_id: 1,
        op: remanence_rnic::SendOp::Send,
        data: remanence_rnic::Data::Sges(&[]),
        flags: remanence_rnic::SendFlags::empty(),
        ud: None,
    };
    asking.device.post_send(asking.qpn, &wr).unwrap();
    assert!(!doubted(&mut asking, 2, &packet(0x22, psn + 1, &[])), "not sent yet");
    asking.device.poll_transmit(NOW, &mut [0; 8192], 1, &mut Plain(Vec::new())).unwrap();
    assert!(doubted(&mut asking, 2, &packet(0x22, psn + 1, &[])));
    assert!(!doubted(&mut asking, 2, &packet(0x22, psn + 2, &[])));
}
