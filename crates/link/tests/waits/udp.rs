//! The UDP link over a veth pair of our own: what really leaves, as AF_XDP sees it at the far end, and what a real
//! path does to it. Skipped, with the reason, where the privilege is missing.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use remanence_link::udp::{Options, UdpLink};
use remanence_link::veth::{End, Veth};
use remanence_link::wait;
use remanence_link::xdp::{Config, Mode, XdpLink};
use remanence_link::{Event, Evidence, Link, Outgoing, Quote, Received};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

/// Far beyond what anything here takes; reached only by a failure.
const PATIENCE: Duration = Duration::from_secs(120);

fn veth(mtu: u32) -> Option<Veth> {
    match Veth::new(mtu) {
        Ok(veth) => Some(veth),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            println!("SKIPPED: network namespaces need root: {e}");
            None
        }
        Err(e) => panic!("the veth pair could not be made: {e}"),
    }
}

fn addresses(end: End) -> Vec<IpAddr> {
    vec![end.ipv4(), end.ipv6()]
}

fn udp(veth: &Veth, end: End) -> UdpLink {
    veth.within(end, || UdpLink::open(&Options::new(addresses(end)))).unwrap()
}

fn xdp(veth: &Veth, end: End, mode: Mode) -> XdpLink {
    let config = Config { mode, ..Config::new(Veth::INTERFACE) };
    veth.within(end, || Ok(XdpLink::open(&config))).unwrap().unwrap_or_else(|e| panic!("{e}"))
}

fn out(src: IpAddr, dst: IpAddr, len: usize, segment_size: usize) -> Outgoing {
    let dst = SocketAddr::new(dst, 4791);
    Outgoing { src, src_port: 0xC0DE, dst, tos: 0b10, ttl: 33, len, segment_size }
}

/// Sends again and again until `enough` says so: the first datagrams of a path may wait for its neighbour's address.
fn exchange(
    from: &mut dyn Link,
    out: &Outgoing,
    payload: &[u8],
    to: &mut dyn Link,
    mut enough: impl FnMut(Received<'_>) -> bool,
) {
    let start = Instant::now();
    let mut done = false;
    while !done {
        assert!(start.elapsed() < PATIENCE, "{out:?} never arrives");
        from.tx_buffer().unwrap()[..payload.len()].copy_from_slice(payload);
        from.send(out).unwrap();
        from.flush().unwrap();
        from.recv(&mut |_| ()).unwrap();
        let mut fds = Vec::new();
        to.wait_fds(&mut fds);
        if !to.prepare_wait().unwrap() {
            wait::poll(&fds, Some(Duration::from_millis(50))).unwrap();
        }
        while to.recv(&mut |rx| done |= enough(rx)).unwrap() > 0 {}
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + i / 256) as u8).collect()
}

#[test]
fn datagram_i_of_a_train_carries_identification_i_and_all_that_the_icrc_covers() {
    let Some(veth) = veth(1500) else { return };
    let mut left = udp(&veth, End::Left);
    // With an XDP program in the far end's driver the cable no longer takes trains whole: the kernel cuts them, as
    // it does before a real wire.
    let mut right = xdp(&veth, End::Right, Mode::Native);
    let src_port = left.caps().effective_src_port(0xC0DE);
    for (src, dst) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
        let payload = pattern(7 * 1000 + 50);
        let mut expected = 0;
        exchange(&mut left, &out(src, dst, payload.len(), 1000), &payload, &mut right, |rx| {
            if expected == 8 {
                return true;
            }
            assert_eq!(rx.payload, payload.chunks(1000).nth(expected).unwrap(), "datagram {expected}");
            assert_eq!(rx.ip_id, src.is_ipv4().then_some(expected as u16));
            assert_eq!((rx.src, rx.dst_ip), (SocketAddr::new(src, src_port), dst));
            assert_eq!((rx.ecn, rx.ttl), (0b10, 33));
            expected += 1;
            expected == 8
        });
    }
}

#[test]
fn datagrams_without_udp_checksum_are_received_in_both_families() {
    let Some(veth) = veth(1500) else { return };
    // AF_XDP leaves the checksum zero, as hardware does.
    let mut left = xdp(&veth, End::Left, Mode::Generic);
    let mut right = udp(&veth, End::Right);
    for (src, dst) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
        let payload = pattern(333);
        exchange(&mut left, &out(src, dst, 333, 333), &payload, &mut right, |rx| {
            assert_eq!(rx.payload, payload);
            assert_eq!((rx.src, rx.dst_ip), (SocketAddr::new(src, 0xC0DE), dst));
            true
        });
    }
}

#[test]
fn trains_cross_between_two_links_in_both_families() {
    let Some(veth) = veth(9000) else { return };
    let (mut left, mut right) = (udp(&veth, End::Left), udp(&veth, End::Right));
    for (src, dst) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
        let payload = pattern(14 * 4112 + 7);
        let mut seen = [false; 15];
        exchange(&mut left, &out(src, dst, payload.len(), 4112), &payload, &mut right, |rx| {
            // The first train may lose some while the neighbour's address is being asked for.
            let index = payload.chunks(4112).position(|chunk| chunk == rx.payload);
            seen[index.expect("one of those that were sent")] = true;
            seen == [true; 15]
        });
    }
}

#[test]
fn the_path_mtu_is_known_and_a_longer_packet_is_a_loss_with_a_reason() {
    let Some(veth) = veth(1500) else { return };
    let mut left = udp(&veth, End::Left);
    assert_eq!(left.caps().mtu, 1500);
    for (src, dst) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
        assert_eq!(veth.within(End::Left, || Ok(left.path_mtu(src, dst))).unwrap(), 1500);
        for (len, segment_size) in [(1500, 1500), (4000, 2000)] {
            left.tx_buffer().unwrap()[..len].fill(0);
            let out = out(src, dst, len, segment_size);
            veth.within(End::Left, || left.send(&out)).unwrap();
            assert_eq!(
                left.poll_event(),
                Some(Event::PathMtu { dst: out.dst, mtu: 1500 }),
                "{len} in {segment_size}"
            );
        }
    }
    assert_eq!(left.stats().tx_failed, 4);
}

#[test]
fn a_closed_port_at_the_far_end_is_an_event() {
    let Some(veth) = veth(1500) else { return };
    let mut left = udp(&veth, End::Left);
    for (src, dst) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
        let start = Instant::now();
        let event = loop {
            left.tx_buffer().unwrap()[..8].fill(0);
            left.send(&out(src, dst, 8, 8)).unwrap();
            if !left.prepare_wait().unwrap() {
                let mut fds = Vec::new();
                left.wait_fds(&mut fds);
                wait::poll(&fds, Some(Duration::from_millis(50))).unwrap();
                left.prepare_wait().unwrap();
            }
            if let Some(event) = left.poll_event() {
                break event;
            }
            assert!(start.elapsed() < PATIENCE, "no news from {dst}");
        };
        let (dst, evidence) = (SocketAddr::new(dst, 4791), Evidence::Quoted(Quote::of(&[0; 8])));
        assert_eq!(event, Event::Unreachable { dst, port_closed: true, evidence });
        while left.poll_event().is_some() {}
    }
}

/// An ICMP message about a datagram from `port` of the left end to the RoCEv2 port of the right end, as anybody can send it
/// who guesses the port: what follows it in the datagram he never saw.
fn forged(v4: bool, port: u16, kind: [u8; 2], info: u32) -> Vec<u8> {
    let octets = |end: End| match if v4 { end.ipv4() } else { end.ipv6() } {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut quote = if v4 {
        vec![0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, 17, 0, 0]
    } else {
        vec![0x60, 0, 0, 0, 0x05, 0xb4, 17, 64]
    };
    quote.extend(octets(End::Left));
    quote.extend(octets(End::Right));
    quote.extend(port.to_be_bytes());
    quote.extend(4791_u16.to_be_bytes());
    quote.extend([0x05, 0xb4, 0, 0]);
    quote.extend([0x5a; 64]);
    let mut message = vec![kind[0], kind[1], 0, 0];
    message.extend(info.to_be_bytes());
    message.extend(quote);
    if v4 {
        // The kernel fills in the checksum of ICMPv6 only.
        let words = message.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let mut sum: u32 = words.sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    message
}

/// A raw socket at the right end, which may say whatever it likes.
fn forger(veth: &Veth, v4: bool) -> OwnedFd {
    let (family, protocol) =
        if v4 { (AddressFamily::INET, ipproto::ICMP) } else { (AddressFamily::INET6, ipproto::ICMPV6) };
    let open = || Ok(socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?);
    veth.within(End::Right, open).unwrap()
}

/// To hosts that believe it, a path of 576 (or 1280) bytes is the end of every connection of larger packets.
#[test]
fn what_a_stranger_says_of_the_path_mtu_stops_nothing() {
    const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
    const PACKET_TOO_BIG: [u8; 2] = [2, 0];
    for connect in [false, true] {
        let Some(veth) = veth(1500) else { return };
        let open = |end| {
            let options = Options { connect, ..Options::new(addresses(end)) };
            veth.within(end, || UdpLink::open(&options)).unwrap()
        };
        let (mut left, mut right) = (open(End::Left), open(End::Right));
        let port = left.caps().effective_src_port(0xC0DE);
        for (src, dst) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
            let payload = pattern(1400);
            // Often enough that the socket is connected, where it may be.
            let mut arrived = 0;
            while arrived < 200 {
                exchange(&mut left, &out(src, dst, 1400, 1400), &payload, &mut right, |rx| {
                    rx.payload == payload
                });
                arrived += 1;
            }
            let (kind, mtu) =
                if src.is_ipv4() { (FRAGMENTATION_NEEDED, 576) } else { (PACKET_TOO_BIG, 1280) };
            let (message, socket) = (forged(src.is_ipv4(), port, kind, mtu), forger(&veth, src.is_ipv4()));
            let heard = |left: &mut UdpLink| {
                let mut fds = Vec::new();
                left.wait_fds(&mut fds);
                wait::poll(&fds, Some(PATIENCE)).unwrap();
            };
            let before = left.stats().tx_failed;
            for _ in 0..3 {
                sendto(&socket, &message, SendFlags::empty(), &SocketAddr::new(src, 0)).unwrap();
                heard(&mut left);
                for (len, segment) in [(1400, 1400), (4200, 1400)] {
                    let payload = pattern(len);
                    exchange(&mut left, &out(src, dst, len, segment), &payload, &mut right, |rx| {
                        rx.payload == &payload[len - 1400..]
                    });
                }
            }
            assert_eq!((left.stats().tx_failed, left.poll_event()), (before, None), "{src}");
            if src.is_ipv4() {
                assert_eq!(veth.within(End::Left, || Ok(left.path_mtu(src, dst))).unwrap(), 576, "not heard");
            }
        }
    }
}

#[test]
fn an_ordinary_socket_is_a_peer_too() {
    let Some(veth) = veth(1500) else { return };
    let mut left = udp(&veth, End::Left);
    let peer = veth.within(End::Right, || UdpSocket::bind((End::Right.ipv4(), 4791))).unwrap();
    peer.send_to(b"hello", (End::Left.ipv4(), 4791)).unwrap();
    let mut got = None;
    while got.is_none() {
        left.recv(&mut |rx| got = Some((rx.src, rx.payload.to_vec()))).unwrap();
    }
    assert_eq!(got, Some((SocketAddr::new(End::Right.ipv4(), 4791), b"hello".to_vec())));
}
