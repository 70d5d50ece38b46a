//! Tokens: one rule to a test. The wire is in the hand of the test, and so is the enemy.

use std::sync::Arc;
use std::time::Duration;

use remanence_auth::{Gate, Token};
use remanence_rnic::Instant;

use super::{Datagram, End, Heap, address, at};
use crate::core::config::Config;
use crate::core::endpoint::Endpoint;
use crate::core::event::{Ended, Event, Failure, SessionId};
use crate::header::{Address, HEADER_LEN, Refusal, Repr, Status};

const OURS: &str = "correct-horse-battery";
const OTHER: &str = "correct-horse-batterz";
const PATIENCE: Duration = Duration::from_secs(5);

fn end(n: u8, incarnation: u64, token: Option<&str>) -> End {
    Endpoint::new(Config {
        incarnation,
        seed: u64::from(n) << 32 | incarnation,
        secret: [n ^ incarnation as u8; 32],
        own: address(n),
        token: token.map(|text| Token::new(text).expect("a fair token")),
        patience: PATIENCE,
        ..Config::default()
    })
}

fn kind(packet: &Datagram) -> Repr {
    Repr::parse(packet.0[..HEADER_LEN].try_into().unwrap()).unwrap()
}

/// A client at 1, and a server at 2.
struct Pair {
    now: Instant,
    client: End,
    server: End,
    session: SessionId,
    /// What the client said, for who listens.
    said: Vec<Datagram>,
}

impl Pair {
    fn new(client: Option<&str>, server: Option<&str>) -> Self {
        let (mut client, server) = (end(1, 1, client), end(2, 2, server));
        let session = client.connect(at(0), address(2)).unwrap();
        Self { now: at(0), client, server, session, said: Vec::new() }
    }

    fn client_says(&mut self) -> Vec<Datagram> {
        let said: Vec<_> = std::iter::from_fn(|| self.client.poll_transmit(self.now))
            .map(|transmit| Datagram::of(&transmit))
            .collect();
        self.said.extend(said.iter().cloned());
        said
    }

    fn server_says(&mut self) -> Vec<(Address, Datagram)> {
        std::iter::from_fn(|| self.server.poll_transmit(self.now)).map(|t| (t.to, Datagram::of(&t))).collect()
    }

    fn tell_server(&mut self, from: Address, packet: &Datagram) {
        self.server.handle_packet(self.now, &mut Heap::default(), from, packet.clone());
    }

    fn tell_client(&mut self, packet: &Datagram) {
        self.client.handle_packet(self.now, &mut Heap::default(), address(2), packet.clone());
    }

    fn exchange(&mut self) {
        loop {
            let there = self.client_says();
            there.iter().for_each(|packet| self.tell_server(address(1), packet));
            let back = self.server_says();
            back.iter().for_each(|(to, packet)| {
                assert_eq!(*to, address(1));
                self.tell_client(packet);
            });
            if there.is_empty() && back.is_empty() {
                return;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.client.handle_timeout(self.now);
        self.server.handle_timeout(self.now);
    }

    fn is_up(&mut self) -> bool {
        matches!(self.client.poll_event(), Some(Event::Connected(id)) if id == self.session)
    }

    fn over(&mut self) -> Ended {
        match self.client.poll_event() {
            Some(Event::Ended { session, why }) if session == self.session => why,
            other => panic!("it is over: {other:?}"),
        }
    }

    /// Both ends up to where the client proves; its proof, which nobody has heard yet.
    fn up_to_the_proof(&mut self) -> Datagram {
        let ask = self.client_says().remove(0);
        assert!(matches!(kind(&ask), Repr::Ask { .. }));
        self.tell_server(address(1), &ask);
        let (_, challenge) = self.server_says().remove(0);
        self.tell_client(&challenge);
        self.client_says().remove(0)
    }
}

/// Sessions of a server, and whether anybody was told of one.
fn sessions(server: &mut End) -> (usize, usize) {
    let told = std::iter::from_fn(|| server.poll_event()).filter(|e| matches!(e, Event::Accepted { .. }));
    (told.count(), server.sessions())
}

#[test]
fn who_has_the_token_gets_a_session_and_calls() {
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    pair.exchange();
    assert!(pair.is_up());
    let said: Vec<_> = pair.said.iter().map(kind).collect();
    assert!(matches!(said[..], [Repr::Ask { .. }, Repr::Prove { .. }]), "two round trips: {said:?}");
    assert_eq!(sessions(&mut pair.server), (1, 1));
    pair.client.call(pair.now, pair.session, 5, Arc::new(vec![7; 9]), 9, 1).unwrap();
    pair.exchange();
    let Some(Event::Request { id, body, .. }) = pair.server.poll_event() else { panic!("a request") };
    assert_eq!(body.to_vec(), [7; 9]);
    assert!(pair.server.respond(id, Status::Done, None, 0));
    pair.exchange();
    assert!(matches!(pair.client.poll_event(), Some(Event::Response { tag: 1, .. })));
    assert_eq!((pair.server.stats().unadmitted, pair.server.stats().misbehaved), (0, 0));
}

#[test]
fn who_has_no_token_or_another_one_gets_no_session_and_is_told_which() {
    for (token, why) in [(None, Ended::TokenNeeded), (Some(OTHER), Ended::WrongToken)] {
        let mut pair = Pair::new(token, Some(OURS));
        pair.client.call(pair.now, pair.session, 5, Arc::new(vec![7; 9]), 9, 1).unwrap();
        pair.exchange();
        let failed = pair.client.poll_event();
        assert!(
            matches!(failed, Some(Event::Failed { tag: 1, why: Failure::NeverSent(of) }) if of == why),
            "{failed:?}"
        );
        assert_eq!(pair.over(), why);
        assert_eq!(sessions(&mut pair.server), (0, 0));
        assert_eq!(pair.server.stats().unadmitted, 1);
        assert!(pair.said.iter().all(|packet| !matches!(kind(packet), Repr::Request { .. })));
    }
}

#[test]
fn a_client_with_a_token_goes_on_with_no_server_that_has_none() {
    let mut pair = Pair::new(Some(OURS), None);
    pair.exchange();
    assert_eq!(pair.over(), Ended::NoToken);
    assert_eq!(sessions(&mut pair.server), (0, 0));
    // Nor does a proof help that server: it has nothing to hold it against.
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    let proof = pair.up_to_the_proof();
    pair.server = end(2, 3, None);
    pair.tell_server(address(1), &proof);
    assert_eq!(sessions(&mut pair.server), (0, 0));
}

#[test]
fn each_packet_may_be_lost_or_come_again() {
    // By number: Ask, Challenge, Prove, Accept.
    for victim in 0..4 {
        for copies in [0, 2] {
            let mut pair = Pair::new(Some(OURS), Some(OURS));
            let mut number = 0;
            for _ in 0..100 {
                let times = |number: &mut usize| {
                    *number += 1;
                    if *number == victim + 1 { copies } else { 1 }
                };
                for packet in pair.client_says() {
                    (0..times(&mut number)).for_each(|_| pair.tell_server(address(1), &packet));
                }
                for (_, packet) in pair.server_says() {
                    (0..times(&mut number)).for_each(|_| pair.tell_client(&packet));
                }
                pair.pass(Duration::from_millis(20));
            }
            assert!(pair.is_up(), "packet {victim} came {copies} times");
            assert_eq!(sessions(&mut pair.server), (1, 1), "packet {victim} came {copies} times");
            assert_eq!(pair.client.stats().misbehaved, 0);
        }
    }
}

#[test]
fn a_recorded_conversation_is_worth_nothing() {
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    pair.exchange();
    assert!(pair.is_up());
    pair.client.disconnect(pair.now, pair.session);
    pair.exchange();
    assert_eq!(sessions(&mut pair.server), (1, 0));
    // The same again: from the client's own address, as who forges it says, and from the enemy's; to the same server, to one
    // that started anew, and to one whose nonces come from elsewhere.
    let recorded = std::mem::take(&mut pair.said);
    for life in 2..4 {
        for from in [address(1), address(66)] {
            for packet in recorded.iter().chain(&recorded) {
                pair.tell_server(from, packet);
                for (to, answer) in pair.server_says() {
                    assert_eq!(to, from);
                    assert!(!matches!(kind(&answer), Repr::Accept { .. }), "{:?}", kind(&answer));
                }
            }
        }
        assert_eq!(sessions(&mut pair.server), (0, 0));
        assert_eq!(pair.server.stats().requests, 0);
        pair.server = end(2, life + 1, Some(OURS));
    }
}

#[test]
fn a_proof_is_good_for_one_session_of_one_client_at_one_server() {
    type Change = fn(&mut Repr, &mut Address);
    let changes: [Change; 8] = [
        |repr, _| {
            if let Repr::Prove { session, .. } = repr {
                *session += 1
            }
        },
        |repr, _| {
            if let Repr::Prove { key, .. } = repr {
                *key ^= 1
            }
        },
        |repr, _| {
            if let Repr::Prove { incarnation, .. } = repr {
                *incarnation += 1
            }
        },
        |repr, _| {
            if let Repr::Prove { capacity, .. } = repr {
                *capacity -= 1
            }
        },
        |repr, _| {
            if let Repr::Prove { credits, .. } = repr {
                *credits += 1
            }
        },
        |_, from| from.qpn = address(66).qpn,
        |_, from| from.gid = address(66).gid,
        |_, _| {},
    ];
    for (n, change) in changes.iter().enumerate() {
        let mut pair = Pair::new(Some(OURS), Some(OURS));
        let proof = pair.up_to_the_proof();
        let (mut repr, mut from) = (kind(&proof), address(1));
        change(&mut repr, &mut from);
        let forged = Datagram([&repr.emit()[..], &proof.0[HEADER_LEN..]].concat());
        // The last one: another server, that has the same token and gave the same challenge.
        if n == 7 {
            let mut other = end(2, 2, Some(OURS));
            other = Endpoint::new(Config { own: address(3), ..other.config().clone() });
            let ask = pair.said[0].clone();
            other.handle_packet(pair.now, &mut Heap::default(), address(1), ask);
            while other.poll_transmit(pair.now).is_some() {}
            pair.server = other;
        }
        pair.tell_server(from, &forged);
        let answers = pair.server_says();
        // (Another host was not given that challenge at all.)
        let expected = if from.gid == address(1).gid { Refusal::WrongToken } else { Refusal::Late };
        assert_eq!(answers.len(), 1);
        assert!(matches!(kind(&answers[0].1), Repr::Refuse { why, .. } if why == expected), "{n}");
        assert_eq!(sessions(&mut pair.server), (0, 0), "{n}");
    }
}

#[test]
fn who_does_not_prove_to_be_the_server_is_not_believed() {
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    let proof = pair.up_to_the_proof();
    pair.tell_server(address(1), &proof);
    let (_, accept) = pair.server_says().remove(0);
    for at in 0..accept.0.len() {
        let mut forged = accept.clone();
        forged.0[at] ^= 0x10;
        pair.tell_client(&forged);
        assert!(pair.client.poll_event().is_none(), "byte {at} may be changed on the way");
    }
    // One without a proof, as an open server says it.
    let Repr::Accept { session, key, drawn, incarnation, server, capacity, credits, .. } = kind(&accept)
    else {
        panic!("{:?}", kind(&accept))
    };
    let open = Repr::Accept { session, key, drawn, incarnation, server, capacity, credits, sealed: false };
    pair.tell_client(&Datagram(open.emit().to_vec()));
    assert!(pair.client.poll_event().is_none());
    // The right one still counts.
    pair.tell_client(&accept);
    assert!(pair.is_up());

    // Before anything was proven, and with nothing better to come.
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    let Repr::Ask { session, key } = kind(&pair.client_says()[0]) else { panic!("it asks") };
    let open = Repr::Accept { session, key, drawn, incarnation, server, capacity, credits, sealed: false };
    pair.tell_client(&Datagram(open.emit().to_vec()));
    assert!(pair.client.poll_event().is_none());
    pair.pass(PATIENCE);
    assert_eq!(pair.over(), Ended::Impostor);
    // A seal says nothing to who has no token to hold it against.
    let mut pair = Pair::new(None, None);
    let Repr::Connect { session, key, .. } = kind(&pair.client_says()[0]) else { panic!("it connects") };
    let sealed = Repr::Accept { session, key, drawn, incarnation, server, capacity, credits, sealed: true };
    pair.tell_client(&Datagram([&sealed.emit()[..], &[0; 32]].concat()));
    assert!(pair.client.poll_event().is_none());
}

#[test]
fn what_is_cut_short_or_too_long_changes_nothing() {
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    let mut counted = 0;
    let ask = pair.client_says().remove(0);
    let wrong = |packet: &Datagram| {
        let cut = (0..packet.0.len()).map(|len| Datagram(packet.0[..len].to_vec()));
        let long = Datagram([&packet.0[..], &[0; 4]].concat());
        cut.chain([long]).collect::<Vec<_>>()
    };
    for packet in wrong(&ask) {
        pair.tell_server(address(1), &packet);
        counted += 1;
    }
    assert!(pair.server_says().is_empty());
    pair.tell_server(address(1), &ask);
    let (_, challenge) = pair.server_says().remove(0);
    for packet in wrong(&challenge) {
        pair.tell_client(&packet);
        assert!(pair.client_says().is_empty());
    }
    pair.tell_client(&challenge);
    let proof = pair.client_says().remove(0);
    for packet in wrong(&proof) {
        pair.tell_server(address(1), &packet);
        counted += 1;
    }
    assert!(pair.server_says().is_empty(), "not even its challenge is used up");
    assert_eq!(pair.server.stats().malformed, counted);
    pair.tell_server(address(1), &proof);
    let (_, accept) = pair.server_says().remove(0);
    for packet in wrong(&accept) {
        pair.tell_client(&packet);
        assert!(pair.client.poll_event().is_none());
    }
    pair.tell_client(&accept);
    assert!(pair.is_up());
}

#[test]
fn who_guesses_waits_and_others_do_not() {
    let mut server = end(2, 2, Some(OURS));
    let mut attempt = |n: u8, token: &str| {
        let mut pair = Pair { server: end(9, 9, None), ..Pair::new(Some(token), None) };
        std::mem::swap(&mut pair.server, &mut server);
        // (Each a program of its own.)
        let now = pair.now;
        pair.client = end(n, 1, Some(token));
        pair.session = pair.client.connect(now, address(2)).unwrap();
        loop {
            let there = pair.client_says();
            there.iter().for_each(|packet| pair.tell_server(address(n), packet));
            let back = pair.server_says();
            back.iter().for_each(|(_, packet)| pair.tell_client(packet));
            if there.is_empty() && back.is_empty() {
                break;
            }
        }
        std::mem::swap(&mut pair.server, &mut server);
        match pair.client.poll_event() {
            Some(Event::Ended { why, .. }) => Err(why),
            Some(Event::Connected(_)) => Ok(()),
            other => panic!("{other:?}"),
        }
    };
    for _ in 0..=Gate::FREE {
        assert_eq!(attempt(1, OTHER), Err(Ended::WrongToken));
    }
    assert_eq!(attempt(1, OURS), Err(Ended::Wait(2)), "the right one has to wait too");
    assert_eq!(attempt(3, OURS), Ok(()));
    assert_eq!(server.stats().unadmitted, u64::from(Gate::FREE) + 2);
}

#[test]
fn a_server_that_started_anew_is_asked_anew_and_nobody_goes_in_circles() {
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    let proof = pair.up_to_the_proof();
    pair.server = end(2, 3, Some(OURS));
    pair.tell_server(address(1), &proof);
    let (_, late) = pair.server_says().remove(0);
    assert!(matches!(kind(&late), Repr::Refuse { why: Refusal::Late, .. }));
    pair.tell_client(&late);
    assert!(pair.client_says().is_empty(), "not before its time");
    pair.pass(Duration::from_millis(500));
    pair.exchange();
    assert!(pair.is_up());

    // A server that forgets everything at once is asked as one that loses packets, and then given up.
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    while pair.client.sessions() > 0 {
        for packet in pair.client_says() {
            pair.tell_server(address(1), &packet);
            let answers = pair.server_says();
            answers.iter().for_each(|(_, packet)| pair.tell_client(packet));
            pair.server = end(2, 3, Some(OURS));
        }
        pair.pass(Duration::from_millis(1));
    }
    assert_eq!(pair.over(), Ended::Unreachable);
    assert!(pair.said.len() < 200, "{} packets in {PATIENCE:?}", pair.said.len());
}

#[test]
fn a_stranger_ends_nobodys_session() {
    let mut pair = Pair::new(Some(OURS), Some(OURS));
    pair.exchange();
    assert!(pair.is_up());
    assert_eq!(sessions(&mut pair.server), (1, 1));
    // With the address of the client, and as a later start of it: with nothing, and with a proof by another token.
    let hello = Repr::Connect { session: 0, key: 4, incarnation: 9, capacity: 1000, credits: 8 };
    pair.tell_server(address(1), &Datagram(hello.emit().to_vec()));
    let mut mallory = Pair::new(Some(OTHER), None);
    mallory.client = end(1, 9, Some(OTHER));
    mallory.session = mallory.client.connect(mallory.now, address(2)).unwrap();
    std::mem::swap(&mut mallory.server, &mut pair.server);
    mallory.exchange();
    std::mem::swap(&mut mallory.server, &mut pair.server);
    assert_eq!(mallory.over(), Ended::WrongToken);
    assert_eq!(sessions(&mut pair.server), (0, 1));
    pair.client.call(pair.now, pair.session, 5, Arc::new(vec![]), 0, 1).unwrap();
    let packets = pair.client_says();
    packets.iter().for_each(|packet| pair.tell_server(address(1), packet));
    assert!(matches!(pair.server.poll_event(), Some(Event::Request { .. })), "it goes on");
}
