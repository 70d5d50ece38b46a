//! The rules of every link, and what is special to shared memory. What a ring must do is tested beside it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::conformance::{self, Pair, outgoing, pattern, receive, send, wait};

fn open() -> ShmLink {
    ShmLink::open(&Config::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Looks until `seen` says so.
fn until(mut seen: impl FnMut() -> bool, what: &str) {
    let start = Instant::now();
    while !seen() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn conformance() {
    conformance::all(|| Pair { a: Box::new(open()), b: Box::new(open()), lossy: false, sees_ecn: true });
}

/// As if the peer were of another user that the configuration allows.
#[test]
fn conformance_of_copying_peers() {
    let distrust = |link: &mut ShmLink| {
        link.service().unwrap();
        link.peers.iter_mut().flatten().for_each(|peer| peer.trust = Trust::Copy);
    };
    conformance::all(|| {
        let (mut a, mut b) = (open(), open());
        // Connected in one direction, so that there is a peer to distrust at both ends.
        a.route(b.address()).unwrap();
        distrust(&mut a);
        distrust(&mut b);
        assert_eq!((a.peers(), b.peers()), (1, 1));
        Pair { a: Box::new(a), b: Box::new(b), lossy: false, sees_ecn: true }
    });
}

#[test]
fn an_address_belongs_to_one_process_at_a_time() {
    let first = open();
    let config = Config { address: Some(first.address()), ..Config::default() };
    let error = ShmLink::open(&config).unwrap_err();
    assert!(matches!(error, OpenError::AddressTaken(address) if address == first.address()), "{error}");
    drop(first);
    assert!(ShmLink::open(&config).is_ok(), "and is free when that has gone");
    let error = ShmLink::open(&Config { ring_size: 100_000, ..Config::default() }).unwrap_err();
    assert!(matches!(error, OpenError::BadRingSize(100_000)), "{error}");
}

#[test]
fn ipv6_addresses_are_names_as_well() {
    let name = |last: u16| -> IpAddr {
        [0xFD99, 0, 0, 0, 0, 0, u16::try_from(std::process::id() & 0xFFFF).unwrap(), last].into()
    };
    let [mut a, mut b] =
        [1, 2].map(|last| ShmLink::open(&Config { address: Some(name(last)), ..Config::default() }).unwrap());
    send(&mut a, &b, b"six", 8);
    let got = receive(&mut b, 1);
    assert_eq!((got[0].src.ip(), got[0].dst_ip), (name(1), name(2)));
}

#[test]
fn one_link_talks_to_many_and_to_itself() {
    let mut hub = open();
    let mut spokes: Vec<_> = (0..20).map(|_| open()).collect();
    for round in 0..3_u8 {
        for (i, spoke) in spokes.iter_mut().enumerate() {
            send(&mut hub, spoke, &[round, i as u8], 2);
            assert_eq!(receive(spoke, 1)[0].payload, [round, i as u8]);
            let back = pattern(round, 3000 + i);
            send(spoke, &hub, &back, 3000 + i);
            assert_eq!(receive(&mut hub, 1)[0].payload, back);
        }
    }
    assert_eq!(hub.peers(), 20, "an answer takes the way that is there");
    let own = outgoing(&hub, &hub, 4, 4);
    hub.tx_buffer().unwrap()[..4].copy_from_slice(b"self");
    hub.send(&own).unwrap();
    hub.flush().unwrap();
    assert_eq!(receive(&mut hub, 1)[0].payload, b"self");
}

#[test]
fn nobody_there_is_a_loss_and_an_event() {
    let mut a = open();
    let gone = open().address();
    let dst = SocketAddr::new(gone, 4791);
    a.tx_buffer().unwrap()[0] = 1;
    let out = Outgoing { dst, ..outgoing(&a, &a, 1, 1) };
    a.send(&out).unwrap();
    assert_eq!((a.stats().tx_failed, a.stats().tx_datagrams), (1, 0));
    assert_eq!(
        a.poll_event(),
        Some(Event::Unreachable { dst, port_closed: true, evidence: Evidence::Local })
    );
    assert_eq!(a.poll_event(), None);
}

#[test]
fn a_process_that_ends_is_forgotten_after_its_last_words_and_can_come_back() {
    let mut a = open();
    let mut b = open();
    let address = b.address();
    send(&mut a, &b, b"hello", 5);
    receive(&mut b, 1);
    for word in 0..100_u8 {
        send(&mut b, &a, &[word], 1);
    }
    drop(b);
    let words = receive(&mut a, 100);
    assert!(words.iter().map(|d| d.payload[0]).eq(0..100));
    until(
        || {
            wait(&mut a, Duration::from_millis(10));
            a.recv(&mut |_| panic!("no more words")).unwrap();
            a.peers() == 0
        },
        "the rings of a dead process are given back",
    );
    assert!(matches!(a.poll_side(), Some(SideEvent::Gone { peer }) if peer == address));
    let mut b = ShmLink::open(&Config { address: Some(address), ..Config::default() }).unwrap();
    send(&mut a, &b, b"again", 5);
    assert_eq!(receive(&mut b, 1)[0].payload, b"again");
}

#[test]
fn what_was_lent_in_the_ring_of_a_dead_process_is_kept() {
    let (mut a, mut b, mut c) = (open(), open(), open());
    send(&mut a, &b, b"hello", 5);
    receive(&mut b, 1);
    a.tx_buffer().unwrap()[..4].copy_from_slice(b"kept");
    assert!(matches!(a.lent, Lent::Ring(_)), "lent in place");
    drop(b);
    until(
        || {
            wait(&mut a, Duration::from_millis(10));
            a.recv(&mut |_| ()).unwrap();
            a.peers() == 0
        },
        "the dead process is forgotten",
    );
    assert_eq!(a.tx_buffer().unwrap()[..4], *b"kept");
    let out = outgoing(&a, &c, 4, 4);
    a.send(&out).unwrap();
    a.flush().unwrap();
    assert_eq!(receive(&mut c, 1)[0].payload, b"kept");
}

#[test]
fn a_peer_that_does_not_read_holds_up_nobody_for_long() {
    let (mut a, stuck, mut good) = (open(), open(), open());
    let mut sent = 0;
    // Fills the ring, is refused for a while, then loses.
    until(
        || {
            a.tx_buffer().unwrap();
            let out = outgoing(&a, &stuck, 1000, 1000);
            match a.send(&out) {
                Ok(()) => sent += 1,
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
            }
            a.stats().undeliverable >= 10
        },
        "a peer that does not read is given up",
    );
    assert!(a.stats().tx_blocked > 0, "but not at once");
    send(&mut a, &good, b"through", 7);
    assert_eq!(receive(&mut good, 1)[0].payload, b"through");
    // When it reads again it gets what was in its ring, and what comes then.
    let mut stuck = stuck;
    let in_ring = sent - a.stats().undeliverable;
    assert_eq!(receive(&mut stuck, usize::try_from(in_ring).unwrap()).len() as u64, in_ring);
    send(&mut a, &stuck, b"welcome back", 12);
    assert_eq!(receive(&mut stuck, 1)[0].payload, b"welcome back");
}

#[test]
fn memory_passes_beside_the_datagrams() {
    let (mut a, mut b) = (open(), open());
    let mut memory = File::from(rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    a.send_side(b.address(), b"take this", Some(memory.as_fd())).unwrap();
    a.send_side(b.address(), b"and this", None).unwrap();
    let mut got = Vec::new();
    until(
        || {
            wait(&mut b, Duration::from_millis(10));
            b.recv(&mut |_| panic!("no datagrams")).unwrap();
            got.extend(std::iter::from_fn(|| b.poll_side()));
            got.len() >= 2
        },
        "the messages arrive",
    );
    let [
        SideEvent::Message { from, message, file: Some(file) },
        SideEvent::Message { message: second, file: None, .. },
    ] = got.as_slice()
    else {
        panic!("{got:?}")
    };
    assert_eq!((*from, &message[..], &second[..]), (a.address(), &b"take this"[..], &b"and this"[..]));
    File::from(file.try_clone().unwrap()).write_all(b"shared").unwrap();
    let mut text = String::new();
    memory.rewind().unwrap();
    memory.read_to_string(&mut text).unwrap();
    assert_eq!(text, "shared");
    assert!(a.send_side(b.address(), &[0; MAX_MESSAGE], None).is_err(), "too long");
}

#[test]
fn a_peer_that_breaks_the_rules_is_dropped() {
    let mut a = open();
    let nonsense = |first: &[u8]| {
        let socket = peer::dial(a.address()).unwrap();
        rustix::net::send(&socket, first, rustix::net::SendFlags::NOSIGNAL).unwrap();
        socket
    };
    let sockets = [nonsense(b"p"), nonsense(b"hello?"), nonsense(&[0xFF; 32])];
    a.service().unwrap();
    a.service().unwrap();
    assert_eq!(a.peers(), 0);
    for socket in sockets {
        let got = rustix::net::recv(&socket, &mut [0; 8][..], rustix::net::RecvFlags::empty());
        assert!(matches!(got, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "closed: {got:?}");
    }
}

#[test]
fn a_process_of_another_user_is_refused_unless_it_is_allowed() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: taking another user's part needs root");
        return;
    }
    for allowed in [false, true] {
        let users = if allowed { vec![NOBODY] } else { vec![] };
        let mut a = ShmLink::open(&Config { allow_users: users, ..Config::default() }).unwrap();
        let child = Command::new("/proc/self/exe")
            .args(["--exact", "shm::tests::sends_as_another_user", "--ignored", "--nocapture"])
            .env("REMANENCE_TEST_SEND_TO", a.address().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let mut child = child.unwrap();
        let mut got = 0;
        let mut ended = false;
        until(
            || {
                wait(&mut a, Duration::from_millis(10));
                a.recv(&mut |rx| got += usize::from(rx.payload == b"from nobody")).unwrap();
                ended = ended || child.try_wait().unwrap().is_some();
                ended && a.peers() == 0
            },
            "the child sends and ends",
        );
        assert_eq!(got, usize::from(allowed), "allowed: {allowed}");
    }
}

const NOBODY: u32 = 65_534;

/// Not a test: the child of the one above.
#[test]
#[ignore = "a child process of `cargo test -p remanence-link --lib a_process_of_another_user`"]
fn sends_as_another_user() {
    let Ok(to) = std::env::var("REMANENCE_TEST_SEND_TO") else { return };
    rustix::thread::set_thread_res_uid(
        rustix::thread::Uid::from_raw(NOBODY),
        rustix::thread::Uid::from_raw(NOBODY),
        rustix::thread::Uid::from_raw(NOBODY),
    )
    .unwrap();
    let mut link = ShmLink::open(&Config::default()).unwrap();
    link.tx_buffer().unwrap()[..11].copy_from_slice(b"from nobody");
    let dst = SocketAddr::new(to.parse().unwrap(), 4791);
    let out = Outgoing { dst, ..outgoing(&link, &link, 11, 11) };
    link.send(&out).unwrap();
    link.flush().unwrap();
}
