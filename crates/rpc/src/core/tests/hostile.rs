//! Packets that no peer of ours would send.

use std::sync::Arc;
use std::time::Duration;

use super::{Datagram, Draw, End, Heap, address, at};
use crate::core::config::Config;
use crate::core::endpoint::Endpoint;
use crate::core::event::Event;
use crate::header::{Address, HEADER_LEN, Repr, Status};

fn config(incarnation: u64) -> Config {
    Config {
        incarnation,
        seed: 3,
        datagram: 256,
        message_max: 1 << 16,
        sessions_max: 16,
        ..Config::default()
    }
}

/// Two honest ends at work, and an enemy who sees and repeats what they say with changed bytes, from his own address and
/// (as whoever is on the path can) from theirs.
#[test]
fn nothing_that_an_enemy_says_breaks_an_end() {
    for seed in 0..40 {
        let mut draw = Draw(seed);
        let mut ends: [End; 2] = [Endpoint::new(config(1)), Endpoint::new(config(2))];
        let mut heaps = [Heap::default(), Heap { largest: Some(1 << 15), short: false }];
        let mut session = ends[0].connect(at(0), address(1));
        let mut now = at(0);
        for round in 0..400_u64 {
            now = now + Duration::from_micros(draw.below(3000));
            let tag = round;
            if let Some(session) = session {
                let len = draw.below(2000) as u32;
                let _ = ends[0].call(now, session, 1, Arc::new(vec![7; len as usize]), len, tag);
            }
            for n in 0..2 {
                ends[n].handle_timeout(now);
                while let Some(event) = ends[n].poll_event() {
                    match event {
                        Event::Request { id, body, .. } => {
                            let bytes = body.to_vec();
                            let length = bytes.len() as u32;
                            ends[n].respond(id, Status::Done, Some(Arc::new(bytes)), length);
                        }
                        Event::Ended { session: over, .. } if Some(over) == session => session = None,
                        _ => {}
                    }
                }
                while let Some(transmit) = ends[n].poll_transmit(now) {
                    let packet = Datagram::of(&transmit);
                    let to = usize::from(transmit.to == address(1));
                    let from = if n == 0 { address(0) } else { address(1) };
                    let mut evil = packet.clone();
                    for _ in 0..draw.below(3) {
                        let i = draw.below(evil.0.len() as u64) as usize;
                        evil.0[i] = draw.next() as u8;
                    }
                    if draw.below(100) < 10 {
                        evil.0.truncate(draw.below(evil.0.len() as u64 + 1) as usize);
                    }
                    if draw.below(100) < 10 {
                        evil.0.extend((0..draw.below(100)).map(|_| 0xee));
                    }
                    let liar: Address = if draw.below(100) < 50 { from } else { address(66) };
                    ends[to].handle_packet(now, &mut heaps[to], liar, evil);
                    ends[to].handle_packet(now, &mut heaps[to], from, packet);
                }
            }
            if session.is_none() {
                session = ends[0].connect(now, address(1));
            }
            assert!(ends[1].sessions() <= 16);
        }
    }
}

#[test]
fn who_is_not_on_the_path_can_end_or_read_nothing() {
    let mut server: End = Endpoint::new(config(2));
    let mut client: End = Endpoint::new(config(1));
    let (mut client_heap, mut server_heap) = (Heap::default(), Heap::default());
    let session = client.connect(at(0), address(1)).unwrap();
    let exchange = |client: &mut End, server: &mut End, ch: &mut Heap, sh: &mut Heap| loop {
        let mut quiet = true;
        while let Some(t) = client.poll_transmit(at(1)) {
            quiet = false;
            server.handle_packet(at(1), sh, address(0), Datagram::of(&t));
        }
        while let Some(t) = server.poll_transmit(at(1)) {
            quiet = false;
            // What is for others is not the client's.
            if t.to == address(0) {
                client.handle_packet(at(1), ch, address(1), Datagram::of(&t));
            }
        }
        if quiet {
            return;
        }
    };
    exchange(&mut client, &mut server, &mut client_heap, &mut server_heap);
    // He does not know the key; and with the key he is at the wrong place.
    for key in [0, 1, 0xffff_ffff] {
        for repr in [
            Repr::Disconnect { session: 0, key },
            Repr::Request { session: 0, key, request: 0, packet: 0, service: 1, length: 0 },
            Repr::More { session: 0, key, request: 0, packet: 1 },
        ] {
            let packet = Datagram(repr.emit().to_vec());
            server.handle_packet(at(1), &mut server_heap, address(0), packet.clone());
            server.handle_packet(at(1), &mut server_heap, address(66), packet);
        }
        let reset = Datagram(Repr::Reset { session: 0, key }.emit().to_vec());
        client.handle_packet(at(1), &mut client_heap, address(1), reset);
    }
    exchange(&mut client, &mut server, &mut client_heap, &mut server_heap);
    assert_eq!(server.sessions(), 1);
    client.call(at(1), session, 1, Arc::new(vec![1]), 1, 1).unwrap();
    exchange(&mut client, &mut server, &mut client_heap, &mut server_heap);
    let requests = std::iter::from_fn(|| server.poll_event()).filter(|e| matches!(e, Event::Request { .. }));
    assert_eq!(requests.count(), 1, "the honest one");
}

/// A request that says it is large costs no more memory than was sent of it... of the order of a message for each slot.
#[test]
fn sizes_that_do_not_fit_are_dropped() {
    let mut server: End = Endpoint::new(config(2));
    let mut heap = Heap::default();
    let hello = Repr::Connect { session: 0, key: 5, incarnation: 1, capacity: 224, credits: 8 };
    server.handle_packet(at(0), &mut heap, address(0), Datagram(hello.emit().to_vec()));
    let accept = Datagram::of(&server.poll_transmit(at(0)).unwrap());
    let Ok(Repr::Accept { key: 5, drawn: key, .. }) = Repr::parse(accept.0[..].try_into().unwrap()) else {
        panic!("{accept:?}");
    };
    let send = |server: &mut End, heap: &mut Heap, repr: Repr, payload: usize| {
        let mut bytes = repr.emit().to_vec();
        bytes.resize(HEADER_LEN + payload, 0);
        server.handle_packet(at(0), heap, address(0), Datagram(bytes));
    };
    let request =
        |request, packet, length| Repr::Request { session: 0, key, request, packet, service: 1, length };
    send(&mut server, &mut heap, request(0, 0, 10), 11);
    send(&mut server, &mut heap, request(0, 0, 10), 9);
    send(&mut server, &mut heap, request(0, 1, 10), 10);
    send(&mut server, &mut heap, request(0, 0, 1000), 223);
    send(&mut server, &mut heap, request(0, 0, u32::MAX), 224);
    assert_eq!(server.stats().misbehaved, 5);
    // Of another length in the middle.
    send(&mut server, &mut heap, request(1, 0, 400), 224);
    send(&mut server, &mut heap, request(1, 1, 401), 177);
    assert_eq!(server.stats().misbehaved, 6);
    send(&mut server, &mut heap, request(1, 1, 400), 176);
    // A second call in a slot whose first is with the handler.
    send(&mut server, &mut heap, request(9, 0, 1), 1);
    assert_eq!(server.stats().misbehaved, 7);
    let told: Vec<_> = std::iter::from_fn(|| server.poll_event()).collect();
    assert!(matches!(told[..], [Event::Accepted { .. }, Event::Request { .. }]), "{told:?}");
    // Connections that make no sense.
    for (capacity, credits) in [(0, 8), (127, 8), (224, 0)] {
        let hello = Repr::Connect { session: 1, key: 6, incarnation: 1, capacity, credits };
        send(&mut server, &mut heap, hello, 0);
    }
    assert_eq!(server.sessions(), 1);
}
