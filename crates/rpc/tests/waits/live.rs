//! Calls over real sockets.

use crate::common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{LIMIT, Server, device, options};
use remanence_link::fault::{Faults, Plan};
use remanence_rpc::core::config::Config;
use remanence_rpc::core::event::{Ended, Event, Failure};
use remanence_rpc::header::{Address, Status};
use remanence_rpc::live::{Error, Nexus, Options, Rpc};
use remanence_verbs::{Context, Options as Device};
use remanence_wire::Qpn;

fn content(tag: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64).wrapping_mul(tag.wrapping_mul(2) + 1).to_le_bytes()[0]).collect()
}

fn reversed(_: u16, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.reverse();
    bytes
}

/// Calls of these sizes, all at once; every answer must be the request in reverse.
fn converse(rpc: &mut Rpc, to: remanence_rpc::header::Address, sizes: &[usize]) {
    let session = rpc.connect(to).unwrap();
    let mut open = BTreeMap::new();
    for (tag, &len) in sizes.iter().enumerate() {
        let tag = tag as u64;
        let message = rpc.message(len).expect("there is room");
        message.write(0, &content(tag, len));
        rpc.call(session, 1, message, tag).expect("taken");
        open.insert(tag, len);
    }
    while !open.is_empty() {
        match rpc.poll(Some(LIMIT)).unwrap() {
            Some(Event::Response { tag, status: Status::Done, body }) => {
                let mut bytes = body.to_vec();
                bytes.reverse();
                let len = open.remove(&tag).expect("once");
                assert!(bytes == content(tag, len), "the answer to call {tag} of {len} bytes is damaged");
            }
            Some(Event::Connected(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    rpc.disconnect(session);
    let over = rpc.poll(Some(LIMIT)).unwrap();
    assert!(matches!(over, Some(Event::Ended { why: Ended::Closed, .. })), "{over:?}");
}

const SIZES: [usize; 12] = [0, 1, 200, 225, 4063, 4064, 4065, 100_000, 1 << 20, 5, 40_000, 8128];

#[test]
fn messages_of_every_size_come_and_go_whole() {
    let (there, here) = (device(), device());
    let server = Server::start(&there, options(), reversed);
    let nexus = Nexus::new(&here).unwrap();
    let mut rpc = nexus.create(&options()).unwrap();
    let to = nexus.resolve(server.at, 0, LIMIT).unwrap();
    converse(&mut rpc, to, &SIZES);
    let theirs = server.stop();
    assert_eq!(theirs.sessions(), 0);
    assert!(
        theirs.stats().uncopied >= 5,
        "messages of one packet stay where they came: {:?}",
        theirs.stats()
    );
}

#[test]
fn a_bad_network_costs_time_only() {
    let faults =
        Faults { loss: 0.02, duplication: 0.02, reordering: 0.05, corruption: 0.01, ..Faults::default() };
    let plan = Plan { tx: faults, rx: faults };
    let bad = |seed| {
        let device = Device { faults: Some((plan, seed)), ..Device::udp(common::address()) };
        Context::open(device).expect("a device on the loopback interface")
    };
    let (there, here) = (bad(5), bad(6));
    let server = Server::start(&there, options(), reversed);
    let nexus = Nexus::new(&here).unwrap();
    let mut rpc = nexus.create(&options()).unwrap();
    let to = nexus.resolve(server.at, 0, LIMIT).unwrap();
    converse(&mut rpc, to, &SIZES);
    assert!(rpc.stats().timeouts > 0, "{:?}", rpc.stats());
}

#[test]
fn many_clients_at_a_time() {
    let there = device();
    let server = Server::start(&there, Options { receives: 512, ..options() }, reversed);
    let at = server.at;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let here = device();
                let nexus = Nexus::new(&here).unwrap();
                let mut rpc = nexus.create(&options()).unwrap();
                let to = nexus.resolve(at, 0, LIMIT).unwrap();
                let sizes: Vec<usize> = (0..60).map(|i| i * 997 % 30_000).collect();
                converse(&mut rpc, to, &sizes);
            });
        }
    });
    assert_eq!(server.stop().stats().requests, 240);
}

#[test]
fn a_server_that_started_anew_is_noticed_and_found_again() {
    let (there, here) = (device(), device());
    let server = Server::start(&there, options(), reversed);
    let at = server.at;
    let nexus = Nexus::new(&here).unwrap();
    let mut rpc = nexus.create(&options()).unwrap();
    let to = nexus.resolve(at, 0, LIMIT).unwrap();
    let session = rpc.connect(to).unwrap();
    let (status, body) = rpc.call_and_wait(session, 1, b"abc", |_| {}).unwrap();
    assert_eq!((status, body.to_vec()), (Status::Done, b"cba".to_vec()));
    // The same QP number or another: nobody at the old one knows the session, or nobody is there at all.
    drop(server.stop());
    let server = Server::start(&there, options(), reversed);
    let to = nexus.resolve(at, 0, LIMIT).unwrap();
    let fresh = rpc.connect(to).unwrap();
    let (_, body) = rpc.call_and_wait(fresh, 1, b"xyz", |_| {}).unwrap();
    assert_eq!(body.to_vec(), b"zyx");
    drop(server);
}

#[test]
fn a_server_that_is_gone_is_noticed() {
    let (there, here) = (device(), device());
    let server = Server::start(&there, options(), reversed);
    let nexus = Nexus::new(&here).unwrap();
    // (Long enough for a server that waits for a core.)
    let config = Config { patience: Duration::from_secs(3), ..Config::default() };
    let mut rpc = nexus.create(&Options { config, ..options() }).unwrap();
    let to = nexus.resolve(server.at, 0, LIMIT).unwrap();
    let session = rpc.connect(to).unwrap();
    rpc.call_and_wait(session, 1, b"abc", |_| {}).unwrap();
    drop(server.stop());
    let message = rpc.message(3).unwrap();
    rpc.call(session, 1, message, 9).unwrap();
    let failed = rpc.poll(Some(LIMIT)).unwrap();
    assert!(matches!(failed, Some(Event::Failed { tag: 9, why: Failure::Ended(_) })), "{failed:?}");
    assert!(matches!(rpc.poll(Some(LIMIT)).unwrap(), Some(Event::Ended { .. })));
}

#[test]
fn a_poll_with_no_limit_comes_back_from_every_sleep() {
    let here = device();
    // The protocol asks again, until it gives up; each time may be that of a wake as well, of which there is only one.
    let config = Config { patience: Duration::from_secs(3), ..Config::default() };
    let mut rpc = Nexus::new(&here).unwrap().create(&Options { config, ..options() }).unwrap();
    let nobody = Address { qpn: Qpn::new(0x00AB_CDEF), ..rpc.address() };
    rpc.connect(nobody).unwrap();
    assert!(rpc.poll(None).unwrap().is_none(), "it slept until it knew that nobody is there");
}

#[test]
fn who_is_not_there_is_said_so() {
    let here = device();
    let nexus = Nexus::new(&here).unwrap();
    let nobody = std::net::SocketAddr::new(common::address(), common::PORT);
    let answer = nexus.resolve(nobody, 0, Duration::from_millis(200));
    assert!(matches!(answer, Err(Error::NoAnswer(_))), "{answer:?}");
    let there = device();
    let server = Server::start(&there, options(), reversed);
    let answer = nexus.resolve(server.at, 7, LIMIT);
    assert!(matches!(answer, Err(Error::NoService(_))), "there is one endpoint: {answer:?}");
    let six = std::net::SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), common::PORT);
    assert!(matches!(nexus.resolve(six, 0, LIMIT), Err(Error::NoPath(_))));
}

/// The consumer sits on everything that it gets; requests go on arriving, by way of copies.
#[test]
fn a_consumer_that_holds_everything_starves_nobody() {
    let (there, here) = (device(), device());
    let nexus = Nexus::serve(&there, common::PORT).unwrap();
    let mut server = nexus.create(&Options { receives: 32, ..options() }).unwrap();
    let ours = Nexus::new(&here).unwrap();
    let to = std::thread::scope(|scope| {
        scope.spawn(|| ours.resolve(common::socket_addr(&there), 0, LIMIT).unwrap()).join().unwrap()
    });
    let mut client = ours.create(&options()).unwrap();
    let mut held = Vec::new();
    for _ in 0..10 {
        let session = client.connect(to).unwrap();
        for tag in 0..8 {
            let message = client.message(100).unwrap();
            message.write(0, &content(tag, 100));
            client.call(session, 1, message, tag).unwrap();
        }
    }
    while held.len() < 80 {
        assert!(!matches!(client.poll(Some(Duration::ZERO)).unwrap(), Some(Event::Failed { .. })));
        match server.poll(Some(Duration::from_millis(1))).unwrap() {
            Some(Event::Request { id, body, .. }) => held.push((id, body)),
            _ => continue,
        }
    }
    assert!(server.stats().uncopied < 80, "{:?}", server.stats());
    for (id, body) in held {
        assert!((0..8).any(|tag| body.to_vec() == content(tag, 100)), "it is as it came");
        server.respond_with(id, Status::Done, b"");
    }
    let mut answers = 0;
    while answers < 80 {
        server.poll(Some(Duration::ZERO)).unwrap();
        if let Some(Event::Response { .. }) = client.poll(Some(Duration::from_millis(1))).unwrap() {
            answers += 1;
        }
    }
}
