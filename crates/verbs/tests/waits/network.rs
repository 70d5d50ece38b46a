//! Bad networks: loss and worse, a full socket, a lost handshake message, a cut and healed cable; and the recording
//! of it all.

use crate::common;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::thread;

use common::{LIMIT, Pair, Side, address, address_of, pattern, socket_addr, wr};
use remanence_link::fault::{Faults, Plan};
use remanence_link::udp::UdpLink;
use remanence_link::{Link, LinkCaps, LinkStats, Outgoing, Received, WaitFd, udp};
use remanence_rnic::{RecvWr, SendOp};
use remanence_verbs::{ConnectAttr, Connection, Context, LinkKind, Listener, Options, QpOptions};

#[test]
fn over_a_bad_network_everything_arrives_once_and_whole() {
    let faults =
        Faults { loss: 0.03, duplication: 0.02, reordering: 0.02, corruption: 0.01, ..Faults::default() };
    let plan = Plan { rx: faults, ..Plan::default() };
    let bad = |seed| {
        Side::with(Context::open(Options { faults: Some((plan, seed)), ..Options::udp(address()) }).unwrap())
    };
    let pair = Pair::of(bad(1), bad(2));
    let counter = pair.b.mr.remote(0);
    let mut sum = 0;
    for round in 0..40u64 {
        let len = (round as usize * 1733) % 50_000 + 1;
        let data = pattern(len, round as u8);
        pair.a.fill(1 << 19, &data);
        let sge = [pair.a.mr.sge(1 << 19, len as u32)];
        pair.qb.post_recv(&RecvWr { wr_id: round, sges: &[pair.b.mr.sge(1 << 18, 1 << 16)] }).unwrap();
        pair.qa.post_send(&wr(1, SendOp::Write(pair.b.mr.remote(1 << 19)), &sge)).unwrap();
        pair.qa.post_send(&wr(2, SendOp::Send, &sge)).unwrap();
        let add = SendOp::FetchAdd { remote: counter, add: round };
        pair.qa.post_send(&wr(3, add, &[pair.a.mr.sge(0, 8)])).unwrap();
        let back = [pair.a.mr.sge(4096, len as u32)];
        pair.qa.post_send(&wr(4, SendOp::Read(pair.b.mr.remote(1 << 19)), &back)).unwrap();
        assert_eq!([(); 4].map(|()| pair.a.success().wr_id), [1, 2, 3, 4]);
        assert_eq!((pair.b.success().wr_id, pair.b.bytes(1 << 18, len)), (round, data.clone()));
        assert_eq!(pair.a.bytes(4096, len), data);
        assert_eq!(pair.a.mr.region().load_u64(0), sum, "an atomic was done twice or not at all");
        sum += round;
    }
    let lost = pair.b.context.fault_control().unwrap().stats().lost;
    assert!(lost > 0, "the network was not bad");
}

#[test]
fn a_cut_cable_heals_before_the_retries_are_used_up() {
    let options = Options { faults: Some((Plan::default(), 1)), ..Options::udp(address()) };
    let pair = Pair::of(Side::with(Context::open(options).unwrap()), Side::new());
    let control = pair.a.context.fault_control().unwrap();
    control.isolate_all();
    pair.a.fill(0, b"late");
    pair.qa.post_send(&wr(1, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 4)])).unwrap();
    let mut none = Vec::new();
    assert_eq!(pair.a.cq.poll(&mut none, 1), Ok(0));
    control.heal();
    pair.a.success();
    assert_eq!(pair.b.bytes(0, 4), b"late");
    assert!(pair.a.context.stats().retransmits > 0);
}

#[test]
fn what_passes_is_recorded() {
    let path = std::env::temp_dir().join(format!("remanence-verbs-{}.pcapng", std::process::id()));
    let options = Options { capture: Some(path.clone()), ..Options::udp(address()) };
    let pair = Pair::of(Side::with(Context::open(options).unwrap()), Side::new());
    pair.a.fill(0, b"caught in the act");
    pair.qa.post_send(&wr(1, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 17)])).unwrap();
    pair.a.success();
    drop(pair);
    let recording = std::fs::read(&path).unwrap();
    assert_eq!(recording[..4], [0x0a, 0x0d, 0x0d, 0x0a], "pcapng begins so");
    assert!(recording.windows(17).any(|window| window == b"caught in the act"));
    std::fs::remove_file(path).unwrap();
    let nowhere = Options { capture: Some("/nowhere/at/all".into()), ..Options::udp(address()) };
    let error = Context::open(nowhere).unwrap_err();
    assert!(error.to_string().contains("cannot write /nowhere/at/all"), "{error}");
}

/// A UDP link whose sends pass through the test's hands.
struct Tampered {
    inner: UdpLink,
    /// What to do with a send.
    judge: Box<Judge>,
    /// Always writable; watched while a send is refused.
    room: UnixDatagram,
    refusing: bool,
}

type Judge = dyn FnMut(&[u8]) -> Judgement + Send;

enum Judgement {
    Pass,
    Lose,
    Refuse,
}

impl Tampered {
    fn open(address: IpAddr, judge: impl FnMut(&[u8]) -> Judgement + Send + 'static) -> Context {
        let inner = UdpLink::open(&udp::Options::new(vec![address])).unwrap();
        let room = UnixDatagram::unbound().unwrap();
        let link = Self { inner, judge: Box::new(judge), room, refusing: false };
        Context::open(Options::new(LinkKind::Given(Box::new(link)))).unwrap()
    }
}

impl Link for Tampered {
    fn caps(&self) -> &LinkCaps {
        self.inner.caps()
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        self.inner.tx_buffer()
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        let judgement = (self.judge)(&self.inner.tx_buffer()?[..out.len]);
        self.refusing = matches!(judgement, Judgement::Refuse);
        match judgement {
            Judgement::Pass => self.inner.send(out),
            Judgement::Lose => Ok(()),
            Judgement::Refuse => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.inner.recv(sink)
    }

    fn wait_fds(&self, fds: &mut Vec<WaitFd>) {
        self.inner.wait_fds(fds);
        if self.refusing {
            fds.push(WaitFd { fd: self.room.as_raw_fd(), events: libc::POLLOUT });
        }
    }

    fn prepare_wait(&mut self) -> io::Result<bool> {
        self.inner.prepare_wait()
    }

    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

#[test]
fn a_full_socket_delays_and_loses_nothing() {
    let mut sends = 0;
    let a = Tampered::open(address(), move |_| {
        sends += 1;
        // Refuses twice, passes once.
        if sends % 3 == 0 { Judgement::Pass } else { Judgement::Refuse }
    });
    let pair = Pair::of(Side::with(a), Side::new());
    let data = pattern(300_000, 8);
    pair.a.fill(0, &data);
    for i in 0..4 {
        let sge = [pair.a.mr.sge(0, 300_000)];
        pair.qa.post_send(&wr(i, SendOp::Write(pair.b.mr.remote(0)), &sge)).unwrap();
    }
    // Nobody polls: the progress thread has to notice that there is room.
    for i in 0..4 {
        let wc = pair.a.success();
        assert_eq!(wc.wr_id, i);
    }
    assert_eq!(pair.b.bytes(0, 300_000), data);
}

/// Whether a datagram is a MAD with this attribute: behind BTH, DETH and 16 bytes of MAD header.
fn is_mad(payload: &[u8], attribute: u16) -> bool {
    payload.len() == 280 && payload[5..8] == [0, 0, 1] && payload[36..38] == attribute.to_be_bytes()
}

const RTU: u16 = 0x14;

#[test]
fn the_first_packet_replaces_a_lost_rtu() {
    let client = Side::with(Tampered::open(address(), |payload| {
        if is_mad(payload, RTU) { Judgement::Lose } else { Judgement::Pass }
    }));
    let server = Side::new();
    let listener = Listener::bind(&server.context, 7471, 1).unwrap();
    let peer = socket_addr(&server.context, 7471);
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.get_request(LIMIT).unwrap();
            let qp = server.qp();
            let connection = incoming.accept(&qp, &ConnectAttr::default(), b"").unwrap();
            assert!(connection.wait_established(LIMIT).unwrap());
            assert!(connection.wait_ended(LIMIT).unwrap());
        });
        let qp = client.qp();
        let connection = Connection::connect(&qp, peer, &ConnectAttr::default(), b"", LIMIT).unwrap();
        qp.post_send(&wr(1, SendOp::Write(server.mr.remote(0)), &[client.mr.sge(0, 8)])).unwrap();
        client.success();
        connection.disconnect().unwrap();
        assert!(connection.wait_ended(LIMIT).unwrap());
    });
}

#[test]
fn a_listener_that_names_no_port_gets_one_and_its_client_needs_no_address_of_its_own() {
    let server = Side::new();
    let listener = Listener::bind(&server.context, 0, 16).unwrap();
    let other = Listener::bind(&server.context, 0, 16).unwrap();
    assert!(listener.port() >= 49152 && listener.port() != other.port());
    let peer = socket_addr(&server.context, listener.port());
    let context = Context::towards(peer.ip()).unwrap();
    assert!(address_of(&context).is_loopback(), "the one from which loopback is reached");
    let cq = context.create_cq(16, None, 0).unwrap();
    let qp = context.alloc_pd().unwrap().create_qp(&QpOptions::rc(&cq)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.get_request(LIMIT).expect("a request");
            let connection = incoming.accept(&server.qp(), &ConnectAttr::default(), b"welcome").unwrap();
            assert!(connection.wait_established(LIMIT).unwrap());
        });
        let connection = Connection::connect(&qp, peer, &ConnectAttr::default(), b"hello", LIMIT).unwrap();
        assert_eq!(&connection.private_data()[..8], b"welcome\0");
    });
    let nowhere = Context::towards("255.255.255.255".parse().unwrap()).expect_err("no host has it");
    assert!(nowhere.to_string().starts_with("there is no way from here to"), "{nowhere}");
}

/// A list of servers of which one cannot be reached, or is this host itself, is no reason to look no further.
#[test]
fn a_device_is_opened_towards_whichever_of_several_peers_is_reached() {
    let local: std::net::IpAddr = "127.0.0.1".parse().expect("an address");
    // No route leads to an address of this kind.
    let unreachable: std::net::IpAddr = "255.255.255.255".parse().expect("an address");
    let opened = Context::towards_any([unreachable, local]).expect("one of them is reached");
    assert!(opened.link_caps().addresses[0].is_loopback());
    assert!(Context::towards_any([]).is_err() && Context::towards_any([unreachable]).is_err());
}
