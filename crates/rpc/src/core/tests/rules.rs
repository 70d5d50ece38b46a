//! One rule to a test, on two ends without a network between them.

use std::sync::Arc;
use std::time::Duration;

use remanence_rnic::Instant;

use super::{Datagram, End, Heap, address, at};
use crate::core::buffers::Body;
use crate::core::config::Config;
use crate::core::endpoint::Endpoint;
use crate::core::event::{CallError, Ended, Event, Failure, RequestId, SessionId};
use crate::header::{HEADER_LEN, Repr, Status};

const CAPACITY: usize = 256 - HEADER_LEN;

/// A client, a server, a session, and a wire that the test holds in its hand.
struct Pair {
    now: Instant,
    client: End,
    server: End,
    client_heap: Heap,
    server_heap: Heap,
    session: SessionId,
}

fn config(incarnation: u64) -> Config {
    Config {
        incarnation,
        seed: incarnation,
        datagram: 256,
        message_max: 1 << 16,
        credits: 8,
        backlog: 2,
        ..Config::default()
    }
}

impl Pair {
    fn new() -> Self {
        let mut client = Endpoint::new(config(1));
        let session = client.connect(at(0), address(2)).unwrap();
        let server = Endpoint::new(config(2));
        let (client_heap, server_heap) = (Heap::default(), Heap::default());
        let mut pair = Self { now: at(0), client, server, client_heap, server_heap, session };
        pair.exchange();
        assert!(matches!(pair.client.poll_event(), Some(Event::Connected(id)) if id == session));
        assert!(matches!(pair.server.poll_event(), Some(Event::Accepted { peer, .. }) if peer == address(1)));
        pair
    }

    fn call(&mut self, len: usize, tag: u64) {
        let message = Arc::new(vec![tag as u8; len]);
        self.client.call(self.now, self.session, 5, message, len as u32, tag).unwrap();
    }

    /// What the client has to send now.
    fn client_says(&mut self) -> Vec<Datagram> {
        std::iter::from_fn(|| self.client.poll_transmit(self.now)).map(|t| Datagram::of(&t)).collect()
    }

    fn server_says(&mut self) -> Vec<Datagram> {
        std::iter::from_fn(|| self.server.poll_transmit(self.now)).map(|t| Datagram::of(&t)).collect()
    }

    fn tell_server(&mut self, packet: &Datagram) {
        self.server.handle_packet(self.now, &mut self.server_heap, address(1), packet.clone());
    }

    fn tell_client(&mut self, packet: &Datagram) {
        self.client.handle_packet(self.now, &mut self.client_heap, address(2), packet.clone());
    }

    /// Everything that is to be sent arrives, until there is no more.
    fn exchange(&mut self) {
        loop {
            let there = self.client_says();
            there.iter().for_each(|packet| self.tell_server(packet));
            let back = self.server_says();
            back.iter().for_each(|packet| self.tell_client(packet));
            if there.is_empty() && back.is_empty() {
                return;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        let now = self.now;
        self.client.handle_timeout(now);
        self.server.handle_timeout(now);
    }

    fn request(&mut self) -> (RequestId, Body<Heap>) {
        match self.server.poll_event() {
            Some(Event::Request { id, body, .. }) => (id, body),
            other => panic!("a request was expected: {other:?}"),
        }
    }

    fn respond(&mut self, id: RequestId, bytes: &[u8]) {
        assert!(self.server.respond(id, Status::Done, Some(Arc::new(bytes.to_vec())), bytes.len() as u32));
    }

    fn response(&mut self, tag: u64) -> Vec<u8> {
        match self.client.poll_event() {
            Some(Event::Response { tag: of, status: Status::Done, body }) if of == tag => body.to_vec(),
            other => panic!("a response was expected: {other:?}"),
        }
    }
}

fn kind(packet: &Datagram) -> Repr {
    Repr::parse(packet.0[..HEADER_LEN].try_into().unwrap()).unwrap()
}

#[test]
fn a_request_in_one_packet_stays_in_the_receive_buffer() {
    let mut pair = Pair::new();
    pair.call(CAPACITY, 1);
    let packets = pair.client_says();
    assert_eq!(packets.len(), 1);
    pair.tell_server(&packets[0]);
    let (id, body) = pair.request();
    assert!(matches!(&body, Body::Packet(packet) if packet.0 == packets[0].0));
    pair.respond(id, b"yes");
    let back = pair.server_says();
    assert_eq!(back.len(), 1, "one packet there, one back");
    pair.tell_client(&back[0]);
    assert_eq!(pair.response(1), b"yes");
    assert_eq!((pair.server.stats().uncopied, pair.client.stats().uncopied), (1, 1));
    assert!(pair.client_says().is_empty() && pair.server_says().is_empty(), "nothing more is said");
}

#[test]
fn with_few_receive_buffers_it_is_copied() {
    let mut pair = Pair::new();
    pair.server_heap.short = true;
    pair.call(10, 1);
    pair.exchange();
    let (_, body) = pair.request();
    assert!(matches!(body, Body::Message { len: 10, .. }));
    assert_eq!(body.to_vec(), [1; 10]);
}

#[test]
fn messages_of_every_size_around_a_packet_arrive_whole() {
    let mut pair = Pair::new();
    for (tag, len) in
        [0, 1, CAPACITY - 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY, 40 * CAPACITY + 7].into_iter().enumerate()
    {
        pair.call(len, tag as u64);
        pair.exchange();
        let (id, body) = pair.request();
        assert_eq!(body.to_vec(), vec![tag as u8; len]);
        let answer = vec![!(tag as u8); len / 2 + 300];
        pair.respond(id, &answer);
        pair.exchange();
        assert_eq!(pair.response(tag as u64), answer);
    }
}

#[test]
fn no_more_packets_are_under_way_than_credits() {
    let mut pair = Pair::new();
    pair.call(100 * CAPACITY, 1);
    assert_eq!(pair.client_says().len(), 8);
    assert!(pair.client_says().is_empty());
}

#[test]
fn a_repeated_request_is_carried_out_once_and_answered_again() {
    let mut pair = Pair::new();
    pair.call(10, 1);
    let request = pair.client_says().remove(0);
    pair.tell_server(&request);
    let (id, _) = pair.request();
    pair.tell_server(&request);
    assert!(pair.server.poll_event().is_none(), "it is being carried out");
    let working = pair.server_says();
    assert!(matches!(kind(&working[0]), Repr::Working { .. }));
    pair.respond(id, b"answer");
    let first = pair.server_says();
    pair.tell_server(&request);
    assert!(pair.server.poll_event().is_none(), "it was carried out");
    let second = pair.server_says();
    assert_eq!(second[0].0[HEADER_LEN..], first[0].0[HEADER_LEN..], "the same answer");
    pair.tell_client(&second[0]);
    pair.tell_client(&first[0]);
    assert_eq!(pair.response(1), b"answer");
    assert!(pair.client.poll_event().is_none(), "told once");
    // The slot goes on; the old request is nothing to it.
    (0..9).for_each(|tag| pair.client.call(pair.now, pair.session, 5, Arc::new(vec![]), 0, tag).unwrap());
    pair.exchange();
    while let Some(event) = pair.server.poll_event() {
        let Event::Request { id, .. } = event else { panic!("{event:?}") };
        pair.respond(id, b"");
    }
    pair.exchange();
    while pair.server.poll_event().is_some() {}
    let stale = pair.server.stats().stale;
    pair.tell_server(&request);
    assert!(pair.server.poll_event().is_none());
    assert_eq!(pair.server.stats().stale, stale + 1);
}

#[test]
fn a_lost_packet_is_sent_again_and_everything_behind_it() {
    let mut pair = Pair::new();
    pair.call(5 * CAPACITY, 1);
    let packets = pair.client_says();
    for packet in packets.iter().enumerate().filter(|(i, _)| *i != 2).map(|(_, packet)| packet) {
        pair.tell_server(packet);
    }
    let credits = pair.server_says();
    assert_eq!(credits.len(), 2, "what is behind a gap is dropped");
    credits.iter().for_each(|packet| pair.tell_client(packet));
    assert!(pair.client_says().is_empty(), "not before the timeout");
    pair.pass(Duration::from_secs(1));
    let again: Vec<u16> = pair
        .client_says()
        .iter()
        .map(|packet| match kind(packet) {
            Repr::Request { packet, .. } => packet,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(again, [2, 3, 4]);
    assert_eq!(pair.client.stats().timeouts, 1);
}

#[test]
fn a_slow_handler_holds_no_credits_and_ends_no_session() {
    let mut pair = Pair::new();
    let patience = pair.client.config().patience;
    (0..8).for_each(|tag| pair.call(10, tag));
    pair.exchange();
    let waiting: Vec<_> = (0..7).map(|_| pair.request().0).collect();
    let (last, _) = pair.request();
    let mut waited = Duration::ZERO;
    while waited < patience * 3 {
        waited += Duration::from_millis(100);
        pair.pass(Duration::from_millis(100));
        pair.exchange();
        assert!(pair.server.poll_event().is_none(), "nothing is carried out again");
    }
    pair.respond(last, b"at last");
    pair.exchange();
    assert_eq!(pair.response(7), b"at last");
    // Eight credits; seven calls are with their handlers. All of the next call's train leaves at once.
    pair.call(8 * CAPACITY, 9);
    assert_eq!(pair.client_says().len(), 8);
    assert_eq!(waiting.len(), 7);
}

#[test]
fn a_server_that_started_anew_says_so_and_carries_nothing_out() {
    let mut pair = Pair::new();
    pair.call(10, 1);
    pair.exchange();
    let _ = pair.request();
    pair.call(10, 2);
    pair.server = Endpoint::new(config(3));
    pair.exchange();
    assert!(pair.server.poll_event().is_none());
    let mut failed = Vec::new();
    loop {
        match pair.client.poll_event() {
            Some(Event::Failed { tag, why: Failure::Ended(Ended::Reset) }) => failed.push(tag),
            Some(Event::Ended { session, why: Ended::Reset }) => {
                assert_eq!(session, pair.session);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(failed, [1, 2]);
    let call = pair.client.call(pair.now, pair.session, 5, Arc::new(vec![]), 0, 3);
    assert!(matches!(call, Err((CallError::NoSession, _))));
}

#[test]
fn a_client_that_started_anew_leaves_no_session_behind() {
    let mut pair = Pair::new();
    pair.call(10, 1);
    let late = pair.client_says();
    pair.client = Endpoint::new(config(9));
    pair.session = pair.client.connect(pair.now, address(2)).unwrap();
    pair.exchange();
    assert!(matches!(pair.server.poll_event(), Some(Event::Ended { why: Ended::Reset, .. })));
    assert!(matches!(pair.server.poll_event(), Some(Event::Accepted { .. })));
    assert_eq!(pair.server.sessions(), 1);
    // What its earlier life said is not carried out, not even where the new session has the old one's number.
    late.iter().for_each(|packet| pair.tell_server(packet));
    assert!(pair.server.poll_event().is_none());
    assert!(matches!(kind(&pair.server_says()[0]), Repr::Reset { .. }));
}

#[test]
fn what_is_left_of_an_earlier_life_ends_no_later_one() {
    let mut pair = Pair::new();
    let mut old = Endpoint::<Heap>::new(config(0));
    old.connect(pair.now, address(2)).unwrap();
    let hello = Datagram::of(&old.poll_transmit(pair.now).unwrap());
    pair.tell_server(&hello);
    assert!(pair.server.poll_event().is_none());
    assert_eq!(pair.server.sessions(), 1);
    pair.call(10, 1);
    pair.exchange();
    let _ = pair.request();
}

#[test]
fn a_dead_server_is_noticed_and_a_dead_client_forgotten() {
    let mut pair = Pair::new();
    pair.call(10, 1);
    let mut told = Vec::new();
    for _ in 0..300 {
        pair.pass(Duration::from_millis(100));
        let _lost = (pair.client_says(), pair.server_says());
        told.extend(std::iter::from_fn(|| pair.client.poll_event()));
    }
    assert!(matches!(
        told[..],
        [
            Event::Failed { tag: 1, why: Failure::Ended(Ended::Unreachable) },
            Event::Ended { why: Ended::Unreachable, .. }
        ]
    ));
    assert!(matches!(pair.server.poll_event(), Some(Event::Ended { why: Ended::Unreachable, .. })));
    assert_eq!((pair.client.sessions(), pair.server.sessions()), (0, 0));
    assert_eq!((pair.client.poll_timeout(), pair.server.poll_timeout()), (None, None));
}

#[test]
fn an_idle_session_lives_on_pings() {
    let mut pair = Pair::new();
    for _ in 0..300 {
        pair.pass(Duration::from_millis(100));
        pair.exchange();
    }
    assert!(pair.client.poll_event().is_none() && pair.server.poll_event().is_none());
    assert_eq!(pair.server.sessions(), 1);
}

#[test]
fn a_goodbye_is_answered_and_said_again_if_it_is_lost() {
    let mut pair = Pair::new();
    pair.call(10, 1);
    pair.client.disconnect(pair.now, pair.session);
    assert!(matches!(
        pair.client.poll_event(),
        Some(Event::Failed { tag: 1, why: Failure::NeverSent(Ended::Closed) })
    ));
    let _lost = pair.client_says();
    pair.pass(Duration::from_secs(1));
    pair.exchange();
    assert!(matches!(pair.client.poll_event(), Some(Event::Ended { why: Ended::Closed, .. })));
    assert!(matches!(pair.server.poll_event(), Some(Event::Ended { why: Ended::Closed, .. })));
    assert_eq!((pair.client.sessions(), pair.server.sessions()), (0, 0));
}

#[test]
fn no_more_sessions_than_allowed() {
    let mut pair = Pair::new();
    pair.server = Endpoint::new(Config { sessions_max: 1, ..config(2) });
    let mut ends: Vec<_> = (0..3).map(|_| pair.client.connect(pair.now, address(2)).unwrap()).collect();
    pair.exchange();
    let told: Vec<_> = std::iter::from_fn(|| pair.client.poll_event()).collect();
    let refused =
        told.iter().filter(|event| matches!(event, Event::Ended { why: Ended::Refused, .. })).count();
    assert_eq!(refused, 2, "{told:?}");
    ends.retain(|&session| pair.client.peer(session).is_some());
    assert_eq!(ends.len(), 1);
}

#[test]
fn too_much_is_refused_and_said_so() {
    let mut pair = Pair::new();
    let big = Arc::new(vec![0; 1 << 17]);
    let call = pair.client.call(pair.now, pair.session, 5, Arc::clone(&big), 1 << 17, 1);
    assert!(matches!(call, Err((CallError::TooLong(_), _))));
    (0..10).for_each(|tag| pair.call(1, tag));
    let call = pair.client.call(pair.now, pair.session, 5, big, 1, 11);
    assert!(matches!(call, Err((CallError::Full, _))), "eight slots, two in the backlog");
    // The server has no memory.
    let mut pair = Pair::new();
    pair.server_heap.largest = Some(1000);
    pair.call(1001, 1);
    pair.call(1000, 2);
    pair.exchange();
    let (id, body) = pair.request();
    assert_eq!(body.len(), 1000);
    assert!(matches!(
        pair.client.poll_event(),
        Some(Event::Response { tag: 1, status: Status::Overloaded, body }) if body.is_empty()
    ));
    // The client has none for the response.
    pair.client_heap.largest = Some(1000);
    pair.respond(id, &[0; 1001]);
    pair.exchange();
    assert!(matches!(pair.client.poll_event(), Some(Event::Failed { tag: 2, why: Failure::NoRoom(1001) })));
    pair.call(5, 3);
    pair.exchange();
    let _ = pair.request();
}

#[test]
fn an_answer_to_nobody_is_dropped() {
    let mut pair = Pair::new();
    pair.call(10, 1);
    pair.exchange();
    let (id, _) = pair.request();
    pair.respond(id, b"1");
    assert!(!pair.server.respond(id, Status::Done, None, 0), "answered already");
    pair.client.disconnect(pair.now, pair.session);
    pair.exchange();
    assert!(!pair.server.respond(id, Status::Done, None, 0), "gone");
}

#[test]
fn a_handlers_time_is_no_round_trip() {
    let mut pair = Pair::new();
    for tag in 0..50 {
        pair.call(10, tag);
        let request = pair.client_says().remove(0);
        pair.tell_server(&request);
        let (id, _) = pair.request();
        // Shorter than the timeout: no packet is repeated.
        pair.pass(Duration::from_millis(3));
        pair.respond(id, b"");
        pair.exchange();
        let _ = pair.response(tag);
    }
    let congestion = pair.client.congestion(pair.session).unwrap();
    assert_eq!(congestion.window(), 8);
    assert!(congestion.shortest().unwrap() < Duration::from_micros(1), "{:?}", congestion.shortest());
}

/// Found by seed 317 of the worlds: a call was carried out twice.
#[test]
fn a_late_hello_brings_no_session_back() {
    let mut client = Endpoint::<Heap>::new(config(1));
    let session = client.connect(at(0), address(2)).unwrap();
    let hello = Datagram::of(&client.poll_transmit(at(0)).unwrap());
    let mut pair = Pair::new();
    (pair.client, pair.session) = (client, session);
    pair.server = Endpoint::new(config(2));
    pair.tell_server(&hello);
    pair.exchange();
    pair.call(10, 1);
    let request = pair.client_says().remove(0);
    pair.tell_server(&request);
    assert!(matches!(pair.server.poll_event(), Some(Event::Accepted { .. })));
    let _ = pair.request();
    // The server starts anew, the network repeats the hello, and the client the call.
    pair.server = Endpoint::new(config(3));
    pair.tell_server(&hello);
    assert_eq!(pair.server.sessions(), 1);
    pair.tell_server(&request);
    assert!(matches!(pair.server.poll_event(), Some(Event::Accepted { .. })));
    assert!(pair.server.poll_event().is_none(), "it was carried out in the life before");
}

#[test]
fn a_session_whose_number_comes_again_with_another_key_is_a_new_one() {
    let mut server: End = Endpoint::new(config(2));
    let mut accepted = |key| {
        let hello = Repr::Connect { session: 3, key, incarnation: 1, capacity: 224, credits: 8 };
        let packet = Datagram(hello.emit().to_vec());
        server.handle_packet(at(0), &mut Heap::default(), address(1), packet);
        let said = Datagram::of(&server.poll_transmit(at(0)).expect("an answer"));
        let Repr::Accept { key: of, drawn, .. } = kind(&said) else { panic!("{:?}", kind(&said)) };
        assert_eq!(of, key);
        let told: Vec<_> = std::iter::from_fn(|| server.poll_event()).map(|e| format!("{e:?}")).collect();
        (drawn, told.iter().map(|told| told.split(' ').next().unwrap_or("").to_owned()).collect::<Vec<_>>())
    };
    let (first, told) = accepted(5);
    assert_eq!(told, ["Accepted"]);
    assert_eq!(accepted(5), (first, vec![]), "it did not hear of it");
    let (second, told) = accepted(6);
    assert_eq!(told, ["Ended", "Accepted"], "what it forgot is over");
    assert_ne!(first, second);
}
