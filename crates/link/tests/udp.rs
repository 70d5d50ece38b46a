//! The UDP link over a veth pair of our own: what really leaves, as AF_XDP sees it at the far end, and what a real
//! path does to it. Skipped, with the reason, where the privilege is missing.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use remanence_link::udp::{Options, UdpLink};
use remanence_link::veth::{End, Veth};
use remanence_link::wait;
use remanence_link::xdp::{Config, Mode, XdpLink};
use remanence_link::{Event, Link, Outgoing, Received};

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
        assert_eq!(event, Event::Unreachable { dst: SocketAddr::new(dst, 4791), port_closed: true });
        while left.poll_event().is_some() {}
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
