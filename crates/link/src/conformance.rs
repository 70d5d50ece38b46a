//! What every [`Link`] must do, whatever carries the datagrams. Each back end runs [`all`] over a pair of its links.
//!
//! Read first: `link.rs`, whose sentences these tests hold to account.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::link::{Link, Outgoing, Received, WaitFd};

/// How long a test waits for what must come; only a failing test ever waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two links that reach each other, and what the suite must know about them.
pub(crate) struct Pair {
    /// The link at one end: a test sends from it, or from `b`.
    pub(crate) a: Box<dyn Link>,
    /// The other end.
    pub(crate) b: Box<dyn Link>,
    /// The carrier may lose datagrams when its queues are full (UDP); otherwise a full queue must refuse.
    pub(crate) lossy: bool,
    /// The ECN bits and hop limit arrive at least while traffic is dense.
    pub(crate) sees_ecn: bool,
}

/// One datagram, owned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Datagram {
    pub(crate) src: SocketAddr,
    pub(crate) dst_ip: std::net::IpAddr,
    pub(crate) train_index: u16,
    pub(crate) ecn: u8,
    pub(crate) ttl: u8,
    pub(crate) payload: Vec<u8>,
}

impl From<Received<'_>> for Datagram {
    fn from(rx: Received<'_>) -> Self {
        Self {
            src: rx.src,
            dst_ip: rx.dst_ip,
            train_index: rx.train_index,
            ecn: rx.ecn,
            ttl: rx.ttl,
            payload: rx.payload.to_vec(),
        }
    }
}

/// Sends from `from`'s first address to `to`'s first address.
pub(crate) fn outgoing(from: &dyn Link, to: &dyn Link, len: usize, segment_size: usize) -> Outgoing {
    Outgoing {
        src: from.caps().addresses[0],
        src_port: 0xC123,
        dst: SocketAddr::new(to.caps().addresses[0], to.caps().port),
        tos: 0,
        ttl: 64,
        len,
        segment_size,
    }
}

/// Sends once, waiting for room where there is none.
pub(crate) fn send_patiently(link: &mut dyn Link, out: &Outgoing) {
    let start = Instant::now();
    loop {
        match link.send(out).and_then(|()| link.flush()) {
            Ok(()) => return,
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => wait(link, Duration::from_millis(10)),
            Err(err) => panic!("{out:?}: {err}"),
        }
        assert!(start.elapsed() < PATIENCE, "no room for {out:?}");
    }
}

/// Fills the lent buffer and sends it.
pub(crate) fn send(from: &mut dyn Link, to: &dyn Link, payload: &[u8], segment_size: usize) {
    from.tx_buffer().expect("an idle link has room")[..payload.len()].copy_from_slice(payload);
    let out = outgoing(from, to, payload.len(), segment_size);
    send_patiently(from, &out);
}

/// Waits as a live device does: arm, then poll(2) the descriptors.
pub(crate) fn wait(link: &mut dyn Link, at_most: Duration) {
    if link.prepare_wait().expect("a working link") {
        return;
    }
    let mut fds = Vec::new();
    link.wait_fds(&mut fds);
    crate::wait::poll(&fds, Some(at_most)).expect("poll on the link's descriptors");
}

/// Receives until `count` datagrams are there.
pub(crate) fn receive(link: &mut dyn Link, count: usize) -> Vec<Datagram> {
    let start = Instant::now();
    let mut got = Vec::new();
    while got.len() < count {
        let n = link.recv(&mut |rx| got.push(rx.into())).expect("a working link");
        assert!(start.elapsed() < PATIENCE, "only {} of {count} datagrams came", got.len());
        if n == 0 {
            wait(link, Duration::from_millis(100));
        }
    }
    got
}

/// Checks that nothing (more) comes.
pub(crate) fn assert_silent(link: &mut dyn Link) {
    let n = link.recv(&mut |rx| panic!("unexpected {:?}", Datagram::from(rx))).expect("a working link");
    assert_eq!(n, 0);
}

/// Bytes that differ between positions and between `seed`s.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

/// The whole suite. `make` builds a fresh pair for each rule.
pub(crate) fn all(mut make: impl FnMut() -> Pair) {
    one_datagram_arrives_whole_with_its_addresses(make());
    an_empty_link_receives_nothing(make());
    a_train_comes_apart_where_it_was_cut(make());
    both_directions_and_many_sizes(make());
    a_refused_send_can_be_repeated(make());
    a_batch_never_brings_more_than_was_sent(make());
    the_ecn_bits_arrive_in_dense_traffic(make());
    limits_are_errors_of_the_caller(make());
    waiting_ends_when_something_arrives(make());
    a_look_in_between_leaves_the_sleeper_armed(make());
    counters_count(make());
}

fn one_datagram_arrives_whole_with_its_addresses(mut p: Pair) {
    let payload = pattern(1, 64);
    send(&mut *p.a, &*p.b, &payload, 64);
    let got = receive(&mut *p.b, 1);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].payload, payload);
    assert_eq!(got[0].dst_ip, p.b.caps().addresses[0]);
    assert_eq!(got[0].src.ip(), p.a.caps().addresses[0]);
    assert_eq!(got[0].src.port(), p.a.caps().effective_src_port(0xC123), "the ICRC covers the source port");
    assert_eq!(got[0].train_index, 0);
    assert_silent(&mut *p.b);
    assert_silent(&mut *p.a);
}

fn an_empty_link_receives_nothing(mut p: Pair) {
    for _ in 0..100 {
        assert_silent(&mut *p.a);
    }
    assert!(!p.a.prepare_wait().expect("a working link"), "nothing is there to hurry for");
}

fn a_train_comes_apart_where_it_was_cut(mut p: Pair) {
    let (max_segments, max_bytes) = (p.a.caps().max_segments, p.a.caps().max_send_bytes);
    for (segment_size, last) in [(1084, 1084), (1084, 20), (32, 1), (4148, 100)] {
        let segments = max_segments.min((max_bytes - last) / segment_size + 1);
        let len = (segments - 1) * segment_size + last;
        let payload = pattern(last as u8, len);
        // Several in a row, so that a back end with modes goes through them.
        for _ in 0..20 {
            send(&mut *p.a, &*p.b, &payload, segment_size);
            let got = receive(&mut *p.b, segments);
            assert_eq!(got.len(), segments);
            for (datagram, expected) in got.iter().zip(payload.chunks(segment_size)) {
                assert_eq!(datagram.payload, expected, "{segment_size} x {segments}, last {last}");
            }
        }
    }
    assert_silent(&mut *p.b);
}

fn both_directions_and_many_sizes(mut p: Pair) {
    let limit = p.a.caps().max_send_bytes.min(p.a.caps().mtu - 48);
    for len in [1, 2, 3, 4, 63, 64, 65, 255, 1024, 1452, 4096, 4148, 9000, 65_507] {
        if len > limit {
            continue;
        }
        let (ping, pong) = (pattern(len as u8, len), pattern(!len as u8, len));
        send(&mut *p.a, &*p.b, &ping, len);
        assert_eq!(receive(&mut *p.b, 1)[0].payload, ping);
        send(&mut *p.b, &*p.a, &pong, len);
        assert_eq!(receive(&mut *p.a, 1)[0].payload, pong);
    }
}

/// Sends until the link refuses (or until it is clear that this one never does), then checks that the refused
/// datagram was kept and arrives once there is room.
fn a_refused_send_can_be_repeated(mut p: Pair) {
    let mut waiting: VecDeque<Vec<u8>> = VecDeque::new();
    let mut refused = None;
    for i in 0..20_000_u32 {
        let payload = i.to_be_bytes();
        match p.a.tx_buffer() {
            Ok(buffer) => buffer[..4].copy_from_slice(&payload),
            Err(err) => {
                assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
                refused = Some(payload.to_vec());
                break;
            }
        }
        let out = outgoing(&*p.a, &*p.b, 4, 4);
        match p.a.send(&out) {
            Ok(()) => waiting.push_back(payload.to_vec()),
            Err(err) => {
                assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
                assert_eq!(
                    p.a.tx_buffer().expect("still lent")[..4],
                    payload,
                    "a refused send keeps the buffer"
                );
                refused = Some(payload.to_vec());
                break;
            }
        }
    }
    let _ = p.a.flush();
    let mut got = Vec::new();
    if p.lossy {
        while p.b.recv(&mut |rx| got.push(rx.payload.to_vec())).expect("a working link") > 0 {}
        let mut sent = waiting.iter();
        for payload in &got {
            assert!(sent.any(|s| s == payload), "{payload:?} came twice, out of order or from nowhere");
        }
    } else {
        got.extend(receive(&mut *p.b, waiting.len()).into_iter().map(|d| d.payload));
        assert!(waiting.iter().eq(got.iter()), "a link that does not lose must deliver all, in order");
    }
    if let Some(payload) = refused {
        p.a.tx_buffer().expect("room again")[..4].copy_from_slice(&payload);
        let out = outgoing(&*p.a, &*p.b, 4, 4);
        send_patiently(&mut *p.a, &out);
        assert_eq!(receive(&mut *p.b, 1)[0].payload, payload);
    }
}

fn a_batch_never_brings_more_than_was_sent(mut p: Pair) {
    for round in 0..50_u8 {
        for i in 0..round {
            send(&mut *p.a, &*p.b, &[round, i], 2);
        }
        let got = receive(&mut *p.b, round.into());
        let expected: Vec<_> = (0..round).map(|i| vec![round, i]).collect();
        assert_eq!(got.iter().map(|d| d.payload.clone()).collect::<Vec<_>>(), expected);
    }
}

fn the_ecn_bits_arrive_in_dense_traffic(mut p: Pair) {
    if !p.sees_ecn {
        return;
    }
    let mut last = None;
    for _ in 0..4 {
        for _ in 0..32 {
            p.a.tx_buffer().expect("room")[..8].fill(7);
            let out = Outgoing { tos: 0x6b, ttl: 7, ..outgoing(&*p.a, &*p.b, 8, 8) };
            send_patiently(&mut *p.a, &out);
        }
        last = receive(&mut *p.b, 32).pop();
    }
    let last = last.expect("32 datagrams");
    assert_eq!((last.ecn, last.ttl), (3, 7));
}

fn limits_are_errors_of_the_caller(mut p: Pair) {
    let caps = p.a.caps().clone();
    let good = outgoing(&*p.a, &*p.b, 8, 8);
    for bad in [
        Outgoing { len: caps.max_send_bytes + 1, segment_size: caps.max_send_bytes + 1, ..good },
        Outgoing { len: caps.max_segments + 1, segment_size: 1, ..good },
        Outgoing { src: "192.0.2.9".parse().expect("an address"), ..good },
    ] {
        p.a.tx_buffer().expect("room");
        assert_eq!(
            p.a.send(&bad).expect_err("must be refused").kind(),
            io::ErrorKind::InvalidInput,
            "{bad:?}"
        );
    }
    send(&mut *p.a, &*p.b, b"still works", 64);
    assert_eq!(receive(&mut *p.b, 1)[0].payload, b"still works");
}

fn waiting_ends_when_something_arrives(p: Pair) {
    let Pair { mut a, mut b, .. } = p;
    let destination = SocketAddr::new(b.caps().addresses[0], b.caps().port);
    let (armed, is_armed) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || {
        let mut fds: Vec<WaitFd> = Vec::new();
        for round in 0..20_u8 {
            let mut got = None;
            while got.is_none() {
                if !b.prepare_wait().expect("a working link") {
                    armed.send(round).expect("the sender lives");
                    fds.clear();
                    b.wait_fds(&mut fds);
                    crate::wait::poll(&fds, Some(PATIENCE)).expect("poll");
                }
                b.recv(&mut |rx| got = Some(rx.payload.to_vec())).expect("a working link");
            }
            assert_eq!(got.as_deref(), Some(&[round][..]));
        }
    });
    for round in 0..20_u8 {
        while is_armed.recv().expect("the receiver lives") != round {}
        a.tx_buffer().expect("room")[0] = round;
        let out = Outgoing {
            src: a.caps().addresses[0],
            src_port: 0xC000,
            dst: destination,
            tos: 0,
            ttl: 64,
            len: 1,
            segment_size: 1,
        };
        send_patiently(&mut *a, &out);
    }
    receiver.join().expect("every datagram woke the receiver");
}

/// One thread sleeps on the link; another one looks in between, takes what is there, and goes.
fn a_look_in_between_leaves_the_sleeper_armed(mut p: Pair) {
    send(&mut *p.a, &*p.b, b"acquainted", 10);
    receive(&mut *p.b, 1);
    assert!(!p.b.prepare_wait().expect("a working link"));
    let mut fds = Vec::new();
    p.b.wait_fds(&mut fds);
    for round in 0..5_u8 {
        assert_silent(&mut *p.b);
        send(&mut *p.a, &*p.b, &[round], 1);
        assert!(crate::wait::poll(&fds, Some(PATIENCE)).expect("poll"), "the sleeper wakes, round {round}");
        let mut got = Vec::new();
        p.b.recv(&mut |rx| got.push(rx.payload.to_vec())).expect("a working link");
        assert_eq!(got, [[round]]);
    }
    p.b.wait_is_over();
    send(&mut *p.a, &*p.b, b"awake", 5);
    assert_eq!(receive(&mut *p.b, 1)[0].payload, b"awake");
}

fn counters_count(mut p: Pair) {
    send(&mut *p.a, &*p.b, &pattern(0, 100), 100);
    receive(&mut *p.b, 1);
    let (tx, rx) = (p.a.stats(), p.b.stats());
    assert_eq!((tx.tx_datagrams, tx.tx_bytes, tx.tx_batches), (1, 100, 1));
    assert_eq!((rx.rx_datagrams, rx.rx_bytes, rx.rx_batches), (1, 100, 1));
    assert_eq!(rx.rx_malformed + rx.undeliverable + tx.tx_failed, 0);
}
