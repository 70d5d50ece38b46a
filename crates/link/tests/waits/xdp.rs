//! The AF_XDP link over a veth pair of our own, with another AF_XDP link or the kernel's sockets at the far end.
//! Skipped, with the reason, where the privilege is missing.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use remanence_effort::{Process, again};
use remanence_link::veth::{End, Veth};
use remanence_link::xdp::{Config, Mode, OpenError, XdpLink};
use remanence_link::{Event, Evidence, Link, Outgoing, Received};

const PORT: u16 = 4791;
/// Far beyond what anything here takes; reached only by a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// A veth pair, or a reason to skip.
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

fn open(veth: &Veth, end: End, mode: Mode) -> XdpLink {
    veth.within(end, || Ok(XdpLink::open(&Config { mode, ..Config::new(Veth::INTERFACE) })))
        .unwrap()
        .unwrap_or_else(|e| panic!("{e}"))
}

fn to(dst: IpAddr, src: IpAddr, len: usize) -> Outgoing {
    Outgoing {
        src,
        src_port: 0xC0DE,
        dst: SocketAddr::new(dst, PORT),
        tos: 2,
        ttl: 17,
        len,
        segment_size: len.max(1),
    }
}

fn send(link: &mut XdpLink, out: Outgoing, payload: &[u8]) {
    link.tx_buffer().unwrap()[..payload.len()].copy_from_slice(payload);
    link.send(&out).unwrap();
    link.flush().unwrap();
}

/// The next datagram, driving `other` as well, since resolving a neighbour may be under way there.
fn receive<T>(link: &mut XdpLink, other: &mut XdpLink, look: impl Fn(Received<'_>) -> T) -> T {
    let start = Instant::now();
    let mut found = None;
    while found.is_none() {
        assert!(start.elapsed() < PATIENCE, "nothing arrived");
        other.recv(&mut |_| panic!("the sender receives nothing")).unwrap();
        other.flush().unwrap();
        link.recv(&mut |received| found = Some(look(received))).unwrap();
    }
    found.unwrap()
}

#[test]
fn datagrams_of_every_size_arrive_whole_in_both_families_and_modes() {
    let Some(veth) = veth(9000) else { return };
    // The driver's hook wants an MTU that fits in a page.
    let small = self::veth(3000).unwrap();
    for (veth, mode, largest) in [(&veth, Mode::Generic, 3826 - 28), (&small, Mode::Native, 3000 - 28)] {
        let mut left = open(veth, End::Left, mode);
        let mut right = open(veth, End::Right, mode);
        assert_eq!((left.mode(), left.caps().max_send_bytes), (mode, largest));
        for (src, dst) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
            let largest = if src.is_ipv4() { largest } else { largest - 20 };
            for len in [0, 1, 16, 63, 64, 1024, 2090, largest] {
                let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                send(&mut left, to(dst, src, len), &payload);
                receive(&mut right, &mut left, |received| {
                    assert_eq!(received.payload, payload, "{len} bytes, {mode}");
                    assert_eq!(received.src, SocketAddr::new(src, 0xC0DE));
                    assert_eq!(received.dst_ip, dst);
                    assert_eq!(received.ip_id, src.is_ipv4().then_some(0));
                    assert_eq!((received.ecn, received.ttl), (2, 17));
                });
            }
            left.tx_buffer().unwrap();
            let too_long = left.send(&to(dst, src, largest + 1)).unwrap_err();
            assert_eq!(too_long.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(right.stats().rx_datagrams, 16);
        assert_eq!(left.stats().tx_datagrams, 16);
        assert_eq!((left.stats().tx_failed, right.stats().rx_malformed), (0, 0));
    }
}

#[test]
fn on_veth_auto_means_generic() {
    let Some(veth) = veth(1500) else { return };
    assert_eq!(open(&veth, End::Left, Mode::Auto).mode(), Mode::Generic);
}

#[test]
fn a_burst_wraps_the_rings_and_loses_nothing() {
    let Some(veth) = veth(1500) else { return };
    let mut left = open(&veth, End::Left, Mode::Generic);
    let mut right = open(&veth, End::Right, Mode::Generic);
    let (src, dst) = (End::Left.ipv4(), End::Right.ipv4());
    send(&mut left, to(dst, src, 8), &[0; 8]);
    receive(&mut right, &mut left, |_| ());
    let (mut sent, mut next) = (1_u64, 1_u64);
    while next < 10_000 {
        for _ in 0..100 {
            left.tx_buffer().unwrap()[..8].copy_from_slice(&sent.to_be_bytes());
            left.send(&to(dst, src, 8)).unwrap();
            sent += 1;
        }
        left.flush().unwrap();
        while right
            .recv(&mut |received| {
                assert_eq!(received.payload, next.to_be_bytes());
                next += 1;
            })
            .unwrap()
            > 0
        {}
    }
    assert_eq!((next, right.dropped().unwrap()), (sent, 0));
    assert_eq!(right.stats().rx_bytes, left.stats().tx_bytes);
}

#[test]
fn two_threads_play_ping_pong_without_a_loss() {
    let Some(veth) = veth(1500) else { return };
    let ends = [End::Left, End::Right];
    let mut links = ends.map(|end| open(&veth, end, Mode::Generic));
    std::thread::scope(|scope| {
        for (link, end) in links.iter_mut().zip(ends) {
            scope.spawn(move || {
                let rounds = 40_000;
                let out = to(end.other().ipv4(), end.ipv4(), 4);
                let start = Instant::now();
                // Left serves, and gets the odd numbers; Right gets the even ones.
                let mut expected = 0_u32;
                if end == End::Left {
                    send(link, out, &expected.to_be_bytes());
                    expected = 1;
                }
                while expected < rounds {
                    assert!(start.elapsed() < PATIENCE, "the ball was lost at {expected}");
                    let mut got = false;
                    link.recv(&mut |received| {
                        assert_eq!(received.payload, expected.to_be_bytes());
                        got = true;
                    })
                    .unwrap();
                    if got {
                        send(link, out, &(expected + 1).to_be_bytes());
                        expected += 2;
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

#[test]
fn a_killed_process_leaves_the_interface_free() {
    let Some(veth) = veth(1500) else { return };
    let start =
        || Ok(Process::start(again("xdp::holds_the_interface_for_another_test").stdin(Stdio::piped())));
    let mut child = veth.within(End::Left, start).unwrap();
    child.after("holding").expect("the child opens the link");
    let refused = veth.within(End::Left, || Ok(XdpLink::open(&Config::new(Veth::INTERFACE)))).unwrap();
    assert!(matches!(refused.unwrap_err(), OpenError::QueueTaken(_, 0)));
    child.kill();
    open(&veth, End::Left, Mode::Generic);
}

/// Not a test: the child of the one above.
#[test]
#[ignore = "a child process of `cargo test -p remanence-link --test waits xdp::a_killed_process`"]
fn holds_the_interface_for_another_test() {
    let _link = XdpLink::open(&Config::new(Veth::INTERFACE)).unwrap();
    println!("holding");
    io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn the_kernel_keeps_what_is_not_ours_and_can_be_our_peer() {
    let Some(veth) = veth(1500) else { return };
    let mut left = open(&veth, End::Left, Mode::Generic);
    let socket = |end: End, ip: IpAddr, port: u16| {
        let socket = veth.within(end, || UdpSocket::bind((ip, port))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    for (here, there) in [(End::Left.ipv4(), End::Right.ipv4()), (End::Left.ipv6(), End::Right.ipv6())] {
        let peer = socket(End::Right, there, PORT);
        // The kernel's socket takes our datagram: our headers are good. (RoCEv2 over IPv6 sends no UDP checksum,
        // which the kernel accepts only where the receiver says so.)
        if here.is_ipv4() {
            send(&mut left, to(there, here, 5), b"hello");
            // While the neighbour is being resolved the frame waits in the link.
            let start = Instant::now();
            while left.stats().tx_datagrams == 0 {
                assert!(start.elapsed() < PATIENCE, "the neighbour was never resolved");
                left.recv(&mut |_| ()).unwrap();
            }
            let mut buffer = [0; 16];
            let (len, from) = peer.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), (&b"hello"[..], SocketAddr::new(here, 0xC0DE)));
        }
        // And we take the kernel's.
        peer.send_to(b"answer", (here, PORT)).unwrap();
        let start = Instant::now();
        let mut got = false;
        while !got {
            assert!(start.elapsed() < PATIENCE, "nothing arrived");
            left.recv(&mut |received| {
                assert_eq!(received.payload, b"answer");
                assert_eq!(received.src, SocketAddr::new(there, PORT));
                got = true;
            })
            .unwrap();
        }
        // Another port is not ours: the kernel of the left end gets it.
        let other = socket(End::Left, here, 4790);
        peer.send_to(b"for the kernel", (here, 4790)).unwrap();
        let mut buffer = [0; 16];
        let (len, _) = other.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"for the kernel");
    }
}

#[test]
fn a_neighbour_that_does_not_exist_is_reported_and_costs_no_frames() {
    let Some(veth) = veth(1500) else { return };
    let mut left = open(&veth, End::Left, Mode::Generic);
    let nobody: IpAddr = [10, 88, 0, 77].into();
    // More than the frames there are: those that cannot wait are lost, not kept.
    for _ in 0..5000 {
        send(&mut left, to(nobody, End::Left.ipv4(), 64), &[1; 64]);
    }
    let start = Instant::now();
    let event = loop {
        assert!(start.elapsed() < PATIENCE, "no verdict on the neighbour");
        left.recv(&mut |_| ()).unwrap();
        if let Some(event) = left.poll_event() {
            break event;
        }
    };
    assert_eq!(
        event,
        Event::Unreachable {
            dst: SocketAddr::new(nobody, PORT),
            port_closed: false,
            evidence: Evidence::Local
        }
    );
    assert_eq!((left.stats().tx_datagrams, left.stats().tx_failed), (0, 5000));
    // A network without a route is refused in the same way.
    send(&mut left, to([192, 0, 2, 1].into(), End::Left.ipv4(), 64), &[1; 64]);
    assert!(matches!(left.poll_event(), Some(Event::Unreachable { .. })));
}

#[test]
fn a_link_reaches_itself() {
    let Some(veth) = veth(1500) else { return };
    let mut left = open(&veth, End::Left, Mode::Generic);
    let here = End::Left.ipv4();
    send(&mut left, to(here, here, 4), b"self");
    let mut got = 0;
    left.recv(&mut |received| {
        assert_eq!((received.payload, received.src), (&b"self"[..], SocketAddr::new(here, 0xC0DE)));
        got += 1;
    })
    .unwrap();
    assert_eq!(got, 1);
}

#[test]
fn errors_say_what_to_do() {
    let Some(veth) = veth(1500) else { return };
    let try_open = |config: Config| veth.within(End::Left, || Ok(XdpLink::open(&config))).unwrap();

    let error = try_open(Config::new("nothere")).unwrap_err();
    assert!(matches!(error, OpenError::NoInterface(_)), "{error}");
    let error = try_open(Config { ring_entries: 100, ..Config::new(Veth::INTERFACE) }).unwrap_err();
    assert!(matches!(error, OpenError::BadConfig(_)), "{error}");
    let error = try_open(Config { queues: Some(vec![]), ..Config::new(Veth::INTERFACE) }).unwrap_err();
    assert!(matches!(error, OpenError::BadConfig(_)), "{error}");
    let error = try_open(Config { queues: Some(vec![77]), ..Config::new(Veth::INTERFACE) }).unwrap_err();
    assert!(matches!(error, OpenError::Io(..)), "{error}");

    let first = open(&veth, End::Left, Mode::Generic);
    let error = try_open(Config::new(Veth::INTERFACE)).unwrap_err();
    assert!(matches!(error, OpenError::QueueTaken(_, 0)), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::AddrInUse);
    // Dropped, it leaves the interface free.
    drop(first);
    open(&veth, End::Left, Mode::Generic);
}
