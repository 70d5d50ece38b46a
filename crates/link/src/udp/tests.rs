//! The UDP link: the conformance suite over both address families, and what is particular to sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, ipproto, recv, socket_with};

use super::{Options, UdpLink};
use crate::conformance::{self, Pair, outgoing, receive, send};
use crate::host::{Seat, SteerRule};
use crate::link::{Event, Evidence, Link, Outgoing, Quote, SourcePort};

/// A free port of its own.
fn options(addr: IpAddr) -> Options {
    Options { port: 0, ..Options::new(vec![addr]) }
}

fn link(addr: IpAddr) -> UdpLink {
    UdpLink::open(&options(addr)).expect("a socket on loopback")
}

fn pair(addr: IpAddr) -> Pair {
    Pair { a: Box::new(link(addr)), b: Box::new(link(addr)), lossy: true, sees_ecn: true }
}

#[test]
fn ipv4_conforms() {
    conformance::all(|| pair(Ipv4Addr::LOCALHOST.into()));
}

#[test]
fn a_connected_sender_conforms_as_well() {
    conformance::all(|| {
        let open = || {
            let options = Options { connect: true, ..options(Ipv4Addr::LOCALHOST.into()) };
            Box::new(UdpLink::open(&options).expect("a socket on loopback"))
        };
        Pair { a: open(), b: open(), lossy: true, sees_ecn: true }
    });
}

#[test]
fn ipv6_conforms() {
    if crate::route::interface_of(Ipv6Addr::LOCALHOST.into()).is_err() {
        eprintln!("skipped: this machine has no IPv6 loopback address");
        return;
    }
    conformance::all(|| pair(Ipv6Addr::LOCALHOST.into()));
}

#[test]
fn without_offload_it_conforms_as_well() {
    conformance::all(|| {
        let open = || {
            let options =
                Options { port: 0, offload: false, ..Options::new(vec![Ipv4Addr::LOCALHOST.into()]) };
            let link = UdpLink::open(&options).expect("a socket on loopback");
            assert_eq!(link.caps().max_segments, 1);
            Box::new(link)
        };
        Pair { a: open(), b: open(), lossy: true, sees_ecn: true }
    });
}

#[test]
fn a_shared_port_conforms_as_well() {
    conformance::all(|| {
        let open = || {
            // By this rule nothing is anybody's in particular, and so stays where it arrives.
            let seat = Seat::claim(SteerRule { cases: Vec::new() }).expect("a seat");
            let options =
                Options { port: 0, seat: Some(seat), ..Options::new(vec![Ipv4Addr::LOCALHOST.into()]) };
            Box::new(UdpLink::open(&options).expect("a socket on loopback"))
        };
        Pair { a: open(), b: open(), lossy: true, sees_ecn: true }
    });
}

#[test]
fn two_addresses_receive_and_send_each_under_its_own_name() {
    let (one, two) = (Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2));
    let mut both = UdpLink::open(&Options { port: 0, ..Options::new(vec![one.into(), two.into()]) })
        .expect("sockets on loopback");
    let mut peer = link(one.into());
    for (i, addr) in [one, two, one, one, two].into_iter().enumerate() {
        let note = [i as u8; 8];
        peer.tx_buffer().expect("room")[..8].copy_from_slice(&note);
        let out =
            Outgoing { dst: SocketAddr::new(addr.into(), both.caps().port), ..outgoing(&peer, &both, 8, 8) };
        peer.send(&out).expect("sent");
        let got = receive(&mut both, 1);
        assert_eq!((got[0].dst_ip, &got[0].payload[..]), (addr.into(), &note[..]));

        both.tx_buffer().expect("room")[..8].copy_from_slice(&note);
        let out = Outgoing { src: addr.into(), ..outgoing(&both, &peer, 8, 8) };
        both.send(&out).expect("sent");
        assert_eq!(receive(&mut peer, 1)[0].src.ip(), IpAddr::from(addr));
    }
}

#[test]
fn a_busy_address_does_not_starve_the_other() {
    let (one, two) = (Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2));
    let mut both = UdpLink::open(&Options { port: 0, ..Options::new(vec![one.into(), two.into()]) })
        .expect("sockets on loopback");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for _ in 0..2000 {
        sender.send_to(b"busy", (one, both.caps().port)).expect("sent");
    }
    sender.send_to(b"quiet", (two, both.caps().port)).expect("sent");
    let (mut calls, mut heard) = (0, false);
    while !heard {
        both.recv(&mut |rx| heard |= rx.payload == b"quiet").expect("a working link");
        calls += 1;
        assert!(calls < 40, "2000 datagrams on one address hid one on the other");
    }
}

/// Who polls in a row looks at the address that was busy last, and at the other one now and then; who slept looks at both.
#[test]
fn an_address_that_is_not_busy_is_looked_at_now_and_then() {
    let [one, two] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last)));
    let mut options = Options::new(vec![one, two]);
    options.port = 0;
    let mut receiver = UdpLink::open(&options).unwrap();
    let port = receiver.caps.port;
    let send = |to: IpAddr| {
        let socket = std::net::UdpSocket::bind((to, 0)).unwrap();
        socket.send_to(b"here", (to, port)).unwrap();
    };
    let mut recv = |looks: u32| (0..looks).any(|_| receiver.recv(&mut |_| ()).unwrap() > 0);
    for to in [one, two, one, two] {
        send(to);
        assert!(recv(2 * super::OTHER_EVERY), "{to}");
    }
    send(one);
    assert!(recv(2 * super::OTHER_EVERY) && !recv(2 * super::OTHER_EVERY));
    for _ in 0..super::OTHER_EVERY {
        send(two);
        assert!(!receiver.prepare_wait().unwrap());
        assert_eq!(receiver.recv(&mut |_| ()).unwrap(), 1, "the first look of who was woken");
        (receiver.hot, receiver.look_when_idle) = (0, false);
        // Takes a call, so that the next round begins elsewhere.
        assert_eq!(receiver.recv(&mut |_| ()).unwrap(), 0);
        receiver.fruitful = true;
    }
}

#[test]
fn a_closed_port_is_an_event_and_the_link_goes_on() {
    let mut a = link(Ipv4Addr::LOCALHOST.into());
    let gone = {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.local_addr().expect("bound")
    };
    for _ in 0..3 {
        a.tx_buffer().expect("room")[..4].fill(0);
        let out = Outgoing { dst: gone, ..outgoing(&a, &a, 4, 4) };
        a.send(&out).expect("losing is the network's right");
    }
    let mut found = Vec::new();
    while found.is_empty() {
        a.prepare_wait().expect("a working link");
        found.extend(std::iter::from_fn(|| a.poll_event()));
    }
    let evidence = Evidence::Quoted(Quote::of(&[0; 4]));
    assert_eq!(found[0], Event::Unreachable { dst: gone, port_closed: true, evidence });
    let mut b = link(Ipv4Addr::LOCALHOST.into());
    send(&mut a, &b, b"alive", 64);
    assert_eq!(receive(&mut b, 1)[0].payload, b"alive");
}

/// What arrives at an address, headers and all.
struct Raw(OwnedFd, Ipv4Addr);

/// `None` without the right to look.
fn raw(address: Ipv4Addr) -> Option<Raw> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::UDP)) {
        Ok(socket) => {
            bind(&socket, &SocketAddr::from((address, 0))).expect("an address of loopback");
            Some(Raw(socket, address))
        }
        Err(e) => {
            eprintln!("skipped: a raw socket needs root: {e}");
            None
        }
    }
}

/// The identification and the payload of what arrived next.
fn next_raw(Raw(socket, address): &Raw) -> (u16, Vec<u8>) {
    let mut packet = [0; 2048];
    let len = loop {
        let (len, _) = recv(socket, &mut packet, RecvFlags::empty()).expect("the packet that has arrived");
        // Until it was bound, a raw socket got what went to anybody, such as other tests.
        if packet[16..20] == address.octets() {
            break len;
        }
    };
    const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
    assert_eq!(packet[6..8], DONT_FRAGMENT);
    (u16::from_be_bytes([packet[4], packet[5]]), packet[28..len].to_vec())
}

/// The ICRC is sealed for these (ARCHITECTURE.md).
#[test]
fn datagrams_have_the_identification_0_however_many_go_to_the_same_peer() {
    let address = Ipv4Addr::new(127, 73, 80, 1);
    let Some(headers) = raw(address) else { return };
    let (mut a, mut b) = (link(Ipv4Addr::LOCALHOST.into()), link(address.into()));
    for i in 0..200_u32 {
        send(&mut a, &b, &i.to_be_bytes(), 64);
        assert_eq!(receive(&mut b, 1)[0].payload, i.to_be_bytes());
        assert_eq!(next_raw(&headers), (0, i.to_be_bytes().to_vec()), "datagram {i}");
        assert_eq!(a.ident(), 0);
    }
}

/// What the link says that an identification will be, it is: before the socket is connected and after, of trains, of what
/// goes to somebody else, after a peer that was not there, and when it is connected to another one.
#[test]
fn a_connected_sender_counts_as_it_says() {
    let [home, first, second] = [2, 3, 4].map(|last| Ipv4Addr::new(127, 73, 80, last));
    let (Some(at_first), Some(at_second)) = (raw(first), raw(second)) else { return };
    let mut a = UdpLink::open(&Options { connect: true, ..options(home.into()) }).expect("a link");
    let (mut b, mut c) = (link(first.into()), link(second.into()));
    let counted = std::cell::Cell::new(0);
    let check = |a: &mut UdpLink, b: &mut UdpLink, headers: &Raw, len: usize, segment: usize| {
        let payload: Vec<u8> = (0..len).map(|i| (i / segment) as u8 + 1).collect();
        let ident = a.ident();
        counted.set(counted.get() + u32::from(ident != 0));
        send(a, b, &payload, segment);
        let pieces = len.div_ceil(segment);
        assert_eq!(receive(b, pieces).len(), pieces);
        // A raw socket sees a train as it went through the kernel: whole, or in pieces.
        let (found, data) = next_raw(headers);
        assert_eq!(found, ident);
        let mut seen = data.len();
        let mut index = 0;
        while seen < len {
            index += 1;
            let (found, data) = next_raw(headers);
            assert_eq!(found, ident.wrapping_add(index), "piece {index}");
            seen += data.len();
        }
    };
    for i in 0..600_usize {
        let train = if i % 3 == 0 { 5 } else { 1 };
        check(&mut a, &mut b, &at_first, 40 * train, 40);
        if i % 5 == 0 {
            check(&mut a, &mut c, &at_second, 32, 32);
        }
    }
    let mut row = 0;
    while counted.get() == 0 && row < 2000 {
        row += 1;
        check(&mut a, &mut b, &at_first, 24, 24);
    }
    for _ in 0..600 {
        check(&mut a, &mut b, &at_first, 200, 40);
    }
    for _ in 0..3000 {
        check(&mut a, &mut c, &at_second, 120, 40);
    }
    check(&mut a, &mut b, &at_first, 24, 24);
    // Nobody is there: a send fails, and the count is found out again or given up.
    let addr = SocketAddr::from((second, c.caps().port));
    drop(c);
    for _ in 0..4 {
        a.tx_buffer().expect("room")[..4].fill(0);
        let out = Outgoing { dst: addr, ..outgoing(&a, &b, 4, 4) };
        a.send(&out).expect("losing is the network's right");
    }
    for _ in 0..3000 {
        check(&mut a, &mut b, &at_first, 48, 24);
    }
    assert!(counted.get() > 4000, "{} datagrams or trains were counted", counted.get());
}

#[test]
fn no_route_is_a_loss_with_a_reason() {
    let mut a = link(Ipv4Addr::LOCALHOST.into());
    let dst: SocketAddr = "192.0.2.1:4791".parse().expect("an address");
    a.tx_buffer().expect("room")[..4].fill(0);
    let out = Outgoing { dst, ..outgoing(&a, &a, 4, 4) };
    // From 127.0.0.1 there is no way to another network.
    a.send(&out).expect("losing is the network's right");
    assert_eq!(
        a.poll_event(),
        Some(Event::Unreachable { dst, port_closed: false, evidence: Evidence::Local })
    );
    assert_eq!(a.stats().tx_failed, 1);
}

#[test]
fn a_taken_port_is_one_sentence_that_names_it() {
    let a = link(Ipv4Addr::LOCALHOST.into());
    let options = Options { port: a.caps().port, ..Options::new(vec![Ipv4Addr::LOCALHOST.into()]) };
    let err = UdpLink::open(&options).expect_err("taken");
    assert_eq!(err.kind(), std::io::ErrorKind::AddrInUse);
    let text = err.to_string();
    assert!(text.contains(&a.caps().port.to_string()) && text.contains("127.0.0.1"), "{text}");
}

#[test]
fn the_source_port_is_of_the_range_of_roce_senders() {
    let a = link(Ipv4Addr::LOCALHOST.into());
    let SourcePort::Fixed(port) = a.caps().src_port else { panic!("a socket has one port") };
    assert!(port >= 0xC000, "{port}");
}

#[test]
fn what_arrives_at_the_source_port_is_not_kept() {
    let mut a = link(Ipv4Addr::LOCALHOST.into());
    let SourcePort::Fixed(port) = a.caps().src_port else { panic!("a socket has one port") };
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    stranger.send_to(b"junk", ("127.0.0.1", port)).expect("sent");
    conformance::assert_silent(&mut a);
}
