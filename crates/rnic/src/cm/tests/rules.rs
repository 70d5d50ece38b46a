//! One rule of chapter 12 each.

use std::time::Duration;

use remanence_wire::cm::{Message, PortSpace, RejReason, RejectedMessage, Repr, ServiceId, SidrRep};
use remanence_wire::{Mtu, Psn, Qkey, Qpn};

use super::pair::{Pair, accept_with, config, connect_to, gid, listen_anywhere, parse};
use crate::ah::AhAttr;
use crate::cm::message::{self, Reject};
use crate::cm::{
    CmError, CommId, CommIdSpace, Config, Connect, Ended, Event, Listen, Manager, Path, SidrReply, State,
    Transport,
};
use crate::qp::QpState;
use crate::time::Instant;

#[test]
fn req_rep_rtu_make_a_connection_and_dreq_drep_end_it() {
    let mut pair = Pair::new();
    let active = pair.active.connect(pair.now, &connect_to(2, 1, 0x11)).unwrap();
    pair.step_active();
    let Some(Event::ConnectRequest(request)) = pair.passive.poll_event() else { panic!() };
    assert_eq!(request.listener, pair.listener);
    assert_eq!(request.path, Path { local: gid(2), remote: gid(1) });
    assert_eq!(request.remote_qpn, Qpn::new(0x11));
    // What the peer can have outstanding is what we may have to serve.
    assert_eq!((request.responder_resources, request.initiator_depth), (3, 4));
    let cma = request.cma.unwrap();
    assert_eq!((cma.src, cma.src_port, cma.dst), (gid(1).to_ip(), 40_000, gid(2).to_ip()));
    assert_eq!(request.private_data.len(), 56, "the whole field, as the length is not on the wire");
    assert_eq!(&request.private_data[..6], b"hello\0");

    let rtr = pair.passive.qp_rtr(request.id, AhAttr::new(gid(1))).unwrap();
    assert_eq!((rtr.state, rtr.dest_qpn), (Some(QpState::Rtr), Some(Qpn::new(0x11))));
    assert_eq!(rtr.path_mtu, Some(Mtu::B1024));
    pair.passive.accept(pair.now, request.id, &accept_with(0x22)).unwrap();
    pair.run();
    let Some(Event::Response { id, remote_qpn, private_data, .. }) = pair.active.poll_event() else {
        panic!()
    };
    assert_eq!((id, remote_qpn, &private_data[..8]), (active, Qpn::new(0x22), &b"welcome\0"[..]));
    assert_eq!(private_data.len(), 196);

    // Each side begins to send where the other begins to receive.
    let there = pair.active.qp_rts(active).unwrap();
    assert_eq!(there.sq_psn, rtr.rq_psn);
    assert_eq!((there.rnr_retry, there.retry_cnt, there.max_rd_atomic), (Some(6), Some(7), Some(3)));
    let back = pair.passive.qp_rts(request.id).unwrap();
    assert_eq!(back.sq_psn, pair.active.qp_rtr(active, AhAttr::new(gid(2))).unwrap().rq_psn);
    assert_eq!((back.rnr_retry, back.max_rd_atomic), (Some(7), Some(4)));
    // Who tries again for ever may do so soon; who counts to 6 gets the time that Linux would give.
    let soon = Some(pair.active.config.min_rnr_timer);
    assert_eq!(pair.active.qp_rtr(active, AhAttr::new(gid(2))).unwrap().min_rnr_timer, soon);
    assert_eq!(pair.passive.qp_rtr(request.id, AhAttr::new(gid(1))).unwrap().min_rnr_timer, Some(0));
    assert_eq!(rtr.min_rnr_timer, soon, "before it was accepted, as the peer wants it for us");

    pair.active.establish(active, b"").unwrap();
    pair.run();
    assert_eq!(pair.passive.poll_event(), Some(Event::Established { id: request.id }));
    assert_eq!(pair.passive.state(request.id), Some(State::Established));

    pair.passive.disconnect(pair.now, request.id).unwrap();
    pair.run();
    assert_eq!(pair.active.poll_event(), Some(Event::Disconnected { id: active, ended: Ended::Remote }));
    assert_eq!(pair.passive.poll_event(), Some(Event::Disconnected { id: request.id, ended: Ended::Local }));
    pair.pass(Duration::from_secs(2));
    assert_eq!(pair.active.poll_event(), Some(Event::TimewaitExit { id: active }));
    assert_eq!(pair.passive.poll_event(), Some(Event::TimewaitExit { id: request.id }));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
    assert_eq!((pair.active.poll_timeout(), pair.passive.poll_timeout()), (None, None));
}

#[test]
fn a_lost_peer_ends_the_connection_and_is_told_should_it_come_back() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.active.lost(pair.now, active);
    assert_eq!(pair.active.poll_event(), Some(Event::Disconnected { id: active, ended: Ended::Unanswered }));
    assert_eq!(pair.active.state(active), Some(State::Timewait));
    pair.run();
    assert_eq!(pair.passive.poll_event(), Some(Event::Disconnected { id: passive, ended: Ended::Remote }));
    // Not twice.
    pair.active.lost(pair.now, active);
    assert_eq!(pair.active.poll_event(), None);
}

#[test]
fn nobody_listening_is_told_at_once() {
    let mut pair = Pair::new();
    let other = ServiceId::new(PortSpace::Tcp, 1);
    let id = pair.active.connect(pair.now, &Connect { service_id: other, ..connect_to(2, 1, 0x11) }).unwrap();
    pair.run();
    assert!(matches!(
        pair.active.poll_event(),
        Some(Event::Rejected { id: rejected, reason: RejReason::INVALID_SERVICE_ID, .. }) if rejected == id
    ));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
}

#[test]
fn a_listener_with_an_address_goes_before_the_wildcard() {
    let mut manager = Manager::new(Config { gids: vec![], ..config(2) });
    let wildcard = manager.listen(&listen_anywhere(8)).unwrap();
    let exact = manager.listen(&Listen { local: Some(gid(3)), ..listen_anywhere(8) }).unwrap();
    assert_eq!(manager.listen(&listen_anywhere(1)), Err(CmError::InUse));
    let mut peer = Manager::new(config(1));
    for (host, expected) in [(2, wildcard), (3, exact)] {
        peer.connect(Instant::ZERO, &connect_to(host, 1, u32::from(host))).unwrap();
        let (path, mad) = peer.poll_transmit().unwrap();
        manager.handle_mad(Instant::ZERO, path.local, &mad);
        let Some(Event::ConnectRequest(request)) = manager.poll_event() else { panic!() };
        assert_eq!(request.listener, expected);
    }
}

#[test]
fn an_absent_peer_is_asked_16_times_and_given_up() {
    let mut pair = Pair::new();
    let id = pair.active.connect(pair.now, &connect_to(9, 1, 0x11)).unwrap();
    let mut sent = 0;
    while pair.active.state(id).is_some() {
        while let Some((_, mad)) = pair.active.poll_transmit() {
            sent += usize::from(matches!(parse(&mad), Message::Req(_)));
        }
        pair.active.handle_timeout(pair.active.poll_timeout().unwrap());
    }
    assert_eq!(sent, 16, "once, and 15 retries");
    assert_eq!(pair.active.poll_event(), Some(Event::Unreachable { id }));
    // The peer may have it after all, and shall forget it.
    let Message::Rej(rej) = parse(&Pair::lose(&mut pair.active)) else { panic!() };
    assert_eq!((rej.reason, rej.info_len), (RejReason::TIMEOUT, 8));
    assert!(pair.active.is_empty());
}

#[test]
fn a_request_that_was_given_up_is_taken_back() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.active.close(pair.now, active);
    pair.run();
    assert!(matches!(
        pair.passive.poll_event(),
        Some(Event::Rejected { id, reason: RejReason::TIMEOUT, .. }) if id == passive
    ));
    assert_eq!(pair.passive.accept(pair.now, passive, &accept_with(2)), Err(CmError::UnknownId));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
    assert_eq!(pair.active.poll_event(), None, "closed means no more events");
}

#[test]
fn a_duplicate_req_asks_for_patience_and_makes_no_second_request() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.active.handle_timeout(pair.active.poll_timeout().unwrap());
    pair.run();
    assert_eq!(pair.passive.poll_event(), None);
    assert_eq!(pair.passive.state(passive), Some(State::MraReqSent));
    assert_eq!(pair.active.state(active), Some(State::MraReqRcvd));
    assert_eq!((pair.passive.stats().duplicates, pair.passive.len()), (1, 1));
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    pair.run();
    assert!(matches!(pair.active.poll_event(), Some(Event::Response { .. })));
}

#[test]
fn a_lost_rep_is_sent_again_for_a_duplicate_req_and_by_its_own_timer() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    let first = Pair::lose(&mut pair.passive);
    pair.active.handle_timeout(pair.active.poll_timeout().unwrap());
    pair.step_active();
    assert_eq!(Pair::lose(&mut pair.passive), first);
    pair.passive.handle_timeout(pair.passive.poll_timeout().unwrap());
    pair.step_passive();
    assert!(matches!(pair.active.poll_event(), Some(Event::Response { id, .. }) if id == active));
}

#[test]
fn a_slow_caller_on_the_active_side_asks_for_patience_too() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.active.state(active), Some(State::MraRepSent));
    assert_eq!(pair.passive.state(passive), Some(State::MraRepRcvd));
    pair.active.establish(active, b"").unwrap();
    pair.run();
    assert_eq!(pair.passive.poll_event(), Some(Event::Established { id: passive }));
}

#[test]
fn a_lost_rtu_is_sent_again_for_a_duplicate_rep() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    pair.run();
    pair.active.poll_event();
    pair.active.establish(active, b"").unwrap();
    Pair::lose(&mut pair.active);
    assert_eq!(pair.passive.state(passive), Some(State::RepSent));
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.passive.poll_event(), Some(Event::Established { id: passive }));
    assert_eq!(pair.active.stats().duplicates, 1);
}

#[test]
fn the_first_packet_is_as_good_as_an_rtu() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    pair.run();
    pair.active.establish(active, b"").unwrap();
    Pair::lose(&mut pair.active);
    pair.passive.communication_established(passive);
    assert_eq!(pair.passive.poll_event(), Some(Event::Established { id: passive }));
    assert_eq!(pair.passive.poll_timeout(), None, "nothing is repeated any more");
}

#[test]
fn a_rep_is_repeated_seldom_and_for_as_long_as_the_peer_would() {
    let mut pair = Pair::new();
    let (_, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    let (mut sent, accepted, mut ended) = (0, pair.now, pair.now);
    while pair.passive.state(passive) == Some(State::RepSent) {
        while let Some((_, mad)) = pair.passive.poll_transmit() {
            sent += usize::from(matches!(parse(&mad), Message::Rep(_)));
        }
        ended = pair.passive.poll_timeout().unwrap();
        pair.passive.handle_timeout(ended);
    }
    assert_eq!(sent, 5, "to one who may never have asked");
    let interval = pair.passive.config.response_timeout;
    assert!(ended.since(accepted) >= 16 * super::super::timing::duration(interval));
    assert_eq!(pair.passive.poll_event(), Some(Event::Unreachable { id: passive }));
}

#[test]
fn connections_that_are_over_leave_room_for_new_ones() {
    let mut pair = Pair::new();
    pair.passive = Manager::new(Config { max_connections: 16, ..config(2) });
    pair.passive.listen(&listen_anywhere(8)).unwrap();
    let mut old = Vec::new();
    for round in 0..100 {
        // As long as a peer may say that its packets are under way.
        pair.active = Manager::new(Config { seed: round, packet_lifetime: 31, ..config(1) });
        pair.active.connect(pair.now, &connect_to(2, 1, 0x11 + round as u32)).unwrap();
        pair.run();
        let request = loop {
            match pair.passive.poll_event().expect("a request") {
                Event::ConnectRequest(request) => break request,
                Event::TimewaitExit { id } => assert_eq!(old.remove(0), id, "the oldest first"),
                other => assert!(matches!(other, Event::Disconnected { .. }), "{other:?}"),
            }
        };
        pair.passive.accept(pair.now, request.id, &accept_with(0x22)).unwrap();
        pair.passive.communication_established(request.id);
        pair.run();
        pair.passive.poll_event();
        pair.passive.disconnect(pair.now, request.id).unwrap();
        pair.active = Manager::new(config(1));
        pair.run();
        assert_eq!(pair.passive.state(request.id), Some(State::Timewait));
        old.push(request.id);
    }
    assert_eq!(pair.passive.len(), 8, "half of all");
    let now = pair.now + Duration::from_secs(5);
    pair.passive.handle_timeout(now);
    assert!(pair.passive.is_empty() && pair.passive.waiting.is_empty());
}

#[test]
fn a_dreq_proves_that_the_rtu_was_sent() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    pair.run();
    pair.active.establish(active, b"").unwrap();
    Pair::lose(&mut pair.active);
    pair.active.disconnect(pair.now, active).unwrap();
    pair.run();
    assert_eq!(pair.passive.poll_event(), Some(Event::Established { id: passive }));
    assert_eq!(pair.passive.poll_event(), Some(Event::Disconnected { id: passive, ended: Ended::Remote }));
}

#[test]
fn reject_carries_reason_and_data_and_leaves_nothing() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.reject(passive, RejReason::CONSUMER_DEFINED, &[], b"full").unwrap();
    pair.run();
    let Some(Event::Rejected { id, reason, ari, private_data }) = pair.active.poll_event() else { panic!() };
    assert_eq!((id, reason, ari.len()), (active, RejReason::CONSUMER_DEFINED, 0));
    assert_eq!((private_data.len(), &private_data[..5]), (148, &b"full\0"[..]));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
}

#[test]
fn a_lost_reject_is_said_again_and_the_caller_is_not_asked_again() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.reject(passive, RejReason::CONSUMER_DEFINED, &[], b"full").unwrap();
    Pair::lose(&mut pair.passive);
    pair.pass(Duration::from_secs(2));
    assert_eq!(pair.passive.poll_event(), None, "it has decided");
    let Some(Event::Rejected { id, private_data, .. }) = pair.active.poll_event() else { panic!() };
    assert_eq!((id, &private_data[..5]), (active, &b"full\0"[..]));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
}

#[test]
fn the_active_side_can_refuse_the_answer() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    pair.run();
    pair.active.reject(active, RejReason::CONSUMER_DEFINED, &[], b"").unwrap();
    pair.run();
    assert!(matches!(pair.passive.poll_event(), Some(Event::Rejected { id, .. }) if id == passive));
    pair.pass(Duration::from_secs(2));
    assert_eq!(pair.passive.poll_event(), Some(Event::TimewaitExit { id: passive }));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
}

#[test]
fn a_rep_to_a_request_that_is_over_ends_the_half_open_connection() {
    let mut pair = Pair::new();
    let (active, passive) = pair.request();
    pair.active.close(pair.now, active);
    Pair::lose(&mut pair.active);
    pair.passive.accept(pair.now, passive, &accept_with(2)).unwrap();
    pair.run();
    assert!(matches!(
        pair.passive.poll_event(),
        Some(Event::Rejected { id, reason: RejReason::INVALID_COMM_ID, .. }) if id == passive
    ));
}

/// As between hosts of which one has jumbo frames, or a server that was there before its interface had them.
#[test]
fn an_mtu_that_does_not_fit_is_rejected_with_the_one_that_does_and_that_is_asked_for() {
    let mut pair = Pair::new();
    pair.passive = Manager::new(Config { max_mtu: Mtu::B512, ..config(2) });
    pair.passive.listen(&listen_anywhere(1)).unwrap();
    let active = pair.active.connect(pair.now, &connect_to(2, 1, 0x11)).unwrap();
    let first = Pair::lose(&mut pair.active);
    let mut reject = || {
        pair.passive.handle_mad(pair.now, gid(1), &first);
        Pair::lose(&mut pair.passive)
    };
    let Ok(Repr { message: Message::Rej(rej), .. }) = Repr::parse(&reject()) else { panic!("no REJ") };
    assert_eq!((rej.reason, rej.info[0]), (RejReason::INVALID_MTU, Mtu::B512 as u8));
    // The network may say it twice.
    for _ in 0..2 {
        let rej = reject();
        pair.active.handle_mad(pair.now, gid(2), &rej);
        assert_eq!(pair.active.poll_event(), None);
    }
    // And lose the second REQ, which the timer repeats.
    Pair::lose(&mut pair.active);
    assert!(pair.active.poll_transmit().is_none(), "one answer to both");
    pair.pass(Duration::from_secs(60));
    let Some(Event::ConnectRequest(request)) = pair.passive.poll_event() else { panic!("no request") };
    assert_eq!(request.mtu, Mtu::B512);
    pair.passive.accept(pair.now, request.id, &accept_with(0x22)).unwrap();
    pair.run();
    assert!(matches!(pair.active.poll_event(), Some(Event::Response { id, .. }) if id == active));
    for (manager, id) in [(&pair.active, active), (&pair.passive, request.id)] {
        assert_eq!(manager.qp_rtr(id, AhAttr::new(gid(1))).unwrap().path_mtu, Some(Mtu::B512));
    }
}

#[test]
fn a_rejection_for_the_mtu_that_names_none_which_is_smaller_is_final() {
    for info in [0, 9, Mtu::B1024 as u8, Mtu::B4096 as u8] {
        let mut pair = Pair::new();
        let id =
            pair.active.connect(pair.now, &Connect { mtu: Mtu::B1024, ..connect_to(2, 1, 0x11) }).unwrap();
        let req = Pair::lose(&mut pair.active);
        let Ok(Repr { transaction_id, message: Message::Req(req) }) = Repr::parse(&req) else {
            panic!("no REQ")
        };
        let reject = Reject { info: &[info], ..Reject::new(RejectedMessage::Req, RejReason::INVALID_MTU) };
        let rej = message::rej(transaction_id, 0, req.local_comm_id, &reject).unwrap();
        pair.active.handle_mad(pair.now, gid(2), &rej);
        assert!(
            matches!(pair.active.poll_event(), Some(Event::Rejected { id: of, reason: RejReason::INVALID_MTU, .. }) if of == id)
        );
        assert!(pair.active.poll_transmit().is_none());
    }
}

#[test]
fn a_gid_that_is_not_where_the_request_came_from_is_rejected() {
    let mut pair = Pair::new();
    pair.active.connect(pair.now, &connect_to(2, 1, 0x11)).unwrap();
    let req = Pair::lose(&mut pair.active);
    pair.passive.handle_mad(pair.now, gid(5), &req);
    let Message::Rej(rej) = parse(&Pair::lose(&mut pair.passive)) else { panic!() };
    assert_eq!(rej.reason, RejReason::INVALID_GID);
    assert!(pair.passive.is_empty());
}

#[test]
fn the_backlog_is_a_bound_and_requests_come_again() {
    let mut pair = Pair::new();
    pair.passive = Manager::new(config(2));
    pair.passive.listen(&listen_anywhere(2)).unwrap();
    for qpn in 1..=3 {
        pair.active.connect(pair.now, &connect_to(2, 1, qpn)).unwrap();
    }
    pair.run();
    assert_eq!((pair.passive.len(), pair.passive.stats().overflowed), (2, 1));
    let mut accepted = 0;
    while accepted < 3 {
        match pair.passive.poll_event() {
            Some(Event::ConnectRequest(request)) => {
                accepted += 1;
                pair.passive.accept(pair.now, request.id, &accept_with(0x100 + accepted)).unwrap();
            }
            Some(_) => {}
            None => pair.pass(Duration::from_millis(500)),
        }
        while let Some(event) = pair.active.poll_event() {
            if let Event::Response { id, .. } = event {
                pair.active.establish(id, b"").unwrap();
            }
        }
    }
}

#[test]
fn whoever_knocks_again_finds_a_listener_that_comes_late() {
    let mut pair = Pair::new();
    pair.passive = Manager::new(config(2));
    pair.active.set_knocks(3);
    let late = pair.active.connect(pair.now, &connect_to(2, 1, 0x11)).unwrap();
    pair.pass(Duration::from_millis(25));
    assert_eq!(pair.active.poll_event(), None);
    pair.passive.listen(&listen_anywhere(1)).unwrap();
    pair.pass(Duration::from_millis(10));
    let Some(Event::ConnectRequest(request)) = pair.passive.poll_event() else { panic!("no request") };
    pair.passive.accept(pair.now, request.id, &accept_with(0x22)).unwrap();
    pair.run();
    assert!(matches!(pair.active.poll_event(), Some(Event::Response { id, .. }) if id == late));

    // And where nobody comes, it is told after all.
    let elsewhere = Connect { service_id: ServiceId(1), cma_port: None, ..connect_to(2, 1, 0x12) };
    pair.active.connect(pair.now, &elsewhere).unwrap();
    let path = Path { local: gid(1), remote: gid(2) };
    pair.active.resolve(pair.now, path, ServiceId(1), None, b"").unwrap();
    pair.pass(Duration::from_millis(25));
    assert_eq!(pair.active.poll_event(), None);
    pair.pass(Duration::from_millis(10));
    let told: Vec<Event> = std::iter::from_fn(|| pair.active.poll_event()).collect();
    assert!(
        matches!(
            &told[..],
            [
                Event::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. },
                Event::SidrResponse { status: SidrRep::STATUS_UNSUPPORTED, .. }
            ]
        ),
        "{told:?}"
    );
}

#[test]
fn an_adopted_request_leaves_the_backlog_and_outlives_its_listener() {
    let mut pair = Pair::new();
    pair.passive = Manager::new(config(2));
    pair.listener = pair.passive.listen(&listen_anywhere(1)).unwrap();
    let (_, adopted) = pair.request();
    pair.passive.adopt(adopted);
    pair.passive.adopt(adopted);
    pair.active.connect(pair.now, &connect_to(2, 1, 0x12)).unwrap();
    pair.run();
    assert_eq!((pair.passive.len(), pair.passive.stats().overflowed), (2, 0), "there is room for another");
    pair.passive.unlisten(pair.listener);
    assert_eq!(pair.passive.len(), 1, "the one that nobody took went with the listener");
    pair.passive.accept(pair.now, adopted, &accept_with(0x22)).unwrap();
    pair.run();
    let answered = std::iter::from_fn(|| pair.active.poll_event())
        .filter(|event| matches!(event, Event::Response { .. }))
        .count();
    assert_eq!(answered, 1);
}

#[test]
fn a_flood_of_requests_is_bounded_over_all_listeners() {
    let mut manager = Manager::new(Config { max_half_open: 10, ..config(2) });
    manager.listen(&listen_anywhere(100)).unwrap();
    let mut peer = Manager::new(config(1));
    for qpn in 1..=1000 {
        peer.connect(Instant::ZERO, &connect_to(2, 1, qpn)).unwrap();
    }
    while let Some((path, mad)) = peer.poll_transmit() {
        manager.handle_mad(Instant::ZERO, path.local, &mad);
    }
    assert_eq!((manager.len(), manager.stats().overflowed), (10, 990));
    // Those that nobody decides on go when the peer must have given up.
    manager.handle_timeout(Instant::from_nanos(3_600_000_000_000));
    assert!(manager.is_empty());
}

#[test]
fn rejects_of_strangers_do_not_pile_up() {
    let mut manager = Manager::new(config(2));
    let mut peer = Manager::new(config(1));
    for qpn in 1..=1000 {
        peer.connect(Instant::ZERO, &connect_to(2, 1, qpn)).unwrap();
    }
    while let Some((path, mad)) = peer.poll_transmit() {
        manager.handle_mad(Instant::ZERO, path.local, &mad);
    }
    assert!(manager.is_empty());
    assert_eq!(std::iter::from_fn(|| manager.poll_transmit()).count(), 256);
}

#[test]
fn a_peer_that_lost_its_memory_is_stale_at_first_and_connects_then() {
    let mut pair = Pair::new();
    let (_, old) = pair.establish();
    // The peer restarts: other communication IDs, the same QP number.
    pair.active = Manager::new(Config { seed: 99, ..config(1) });
    let id = pair.active.connect(pair.now, &connect_to(2, 1, 0x11)).unwrap();
    pair.step_active();
    assert_eq!(pair.passive.poll_event(), Some(Event::Disconnected { id: old, ended: Ended::Stale }));
    pair.run();
    assert!(matches!(
        pair.active.poll_event(),
        Some(Event::Rejected { id: rejected, reason: RejReason::STALE_CONN, .. }) if rejected == id
    ));
    // The DREQ of the old connection was answered by one who does not know it.
    pair.pass(Duration::from_secs(2));
    assert_eq!(pair.passive.poll_event(), Some(Event::TimewaitExit { id: old }));
    pair.establish();
}

#[test]
fn who_is_asked_whether_it_knows_a_connection_ends_one_that_it_has_forgotten_and_no_other() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    let nothing = |pair: &mut Pair| {
        pair.run();
        assert_eq!((pair.active.poll_event(), pair.passive.poll_event()), (None, None));
        let state = [pair.active.state(active), pair.passive.state(passive)];
        assert_eq!(state, [Some(State::Established); 2]);
    };
    pair.active.ask(active);
    nothing(&mut pair);
    // The passive side has nothing to ask with.
    pair.passive.ask(passive);
    assert!(pair.passive.poll_transmit().is_none());
    // Nor does the answer of somebody else say anything, who does not know the connection either.
    pair.active.ask(active);
    let question = Pair::lose(&mut pair.active);
    let mut stranger = Manager::new(config(3));
    stranger.handle_mad(pair.now, gid(1), &question);
    let answer = Pair::lose(&mut stranger);
    pair.active.handle_mad(pair.now, gid(3), &answer);
    nothing(&mut pair);
    // The peer was started anew, at the same address.
    pair.passive = Manager::new(Config { seed: 99, ..config(2) });
    pair.passive.listen(&listen_anywhere(1)).unwrap();
    pair.active.ask(active);
    pair.run();
    let ended = Event::Disconnected { id: active, ended: Ended::Stale };
    assert_eq!(pair.active.poll_event(), Some(ended));
    assert_eq!(pair.passive.poll_event(), None);
}

/// One that says of itself what is true of another: the same GUID, communication IDs and QP number, at another address.
fn double(of: u8, host: u8) -> Manager {
    Manager::new(Config { gids: vec![gid(host)], ..config(of) })
}

#[test]
fn a_request_that_looks_like_anothers_does_nothing_to_it() {
    for forger_is_first in [false, true] {
        let mut pair = Pair::new();
        let mut forger = double(1, 3);
        forger.connect(pair.now, &connect_to(2, 3, 0x11)).unwrap();
        let (path, forged) = forger.poll_transmit().unwrap();
        let mut established = None;
        if !forger_is_first {
            established = Some(pair.establish().1);
        }
        pair.passive.handle_mad(pair.now, path.local, &forged);
        let Some(Event::ConnectRequest(request)) = pair.passive.poll_event() else { panic!("no request") };
        assert_eq!(request.path.remote, gid(3));
        if forger_is_first {
            established = Some(pair.establish().1);
        }
        let established = established.expect("one of the two");
        // Nor does it when it takes its own back, by the GUID and the ID that both have.
        forger.close(pair.now, CommId(forger.conns.keys().copied().next().expect("one")));
        let (path, forged) = forger.poll_transmit().unwrap();
        pair.passive.handle_mad(pair.now, path.local, &forged);
        assert!(matches!(
            pair.passive.poll_event(),
            Some(Event::Rejected { id, reason: RejReason::TIMEOUT, .. }) if id == request.id
        ));
        assert_eq!(pair.passive.poll_event(), None);
        assert_eq!(pair.passive.state(established), Some(State::Established));
    }
}

#[test]
fn an_answer_that_looks_like_anothers_does_nothing_to_it() {
    let mut pair = Pair::new();
    let (old, _) = pair.establish();
    let mut forger = double(2, 3);
    forger.listen(&listen_anywhere(1)).unwrap();
    let id = pair.active.connect(pair.now, &connect_to(3, 1, 0x12)).unwrap();
    forger.handle_mad(pair.now, gid(1), &Pair::lose(&mut pair.active));
    let Some(Event::ConnectRequest(request)) = forger.poll_event() else { panic!("no request") };
    // The QP number of the peer that we are connected to.
    forger.accept(pair.now, request.id, &accept_with(0x22)).unwrap();
    pair.active.handle_mad(pair.now, gid(3), &Pair::lose(&mut forger));
    assert!(matches!(pair.active.poll_event(), Some(Event::Response { id: answered, .. }) if answered == id));
    assert_eq!((pair.active.poll_event(), pair.active.poll_transmit()), (None, None));
    assert_eq!(pair.active.state(old), Some(State::Established));
}

#[test]
fn messages_from_elsewhere_change_nothing() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.active.disconnect(pair.now, active).unwrap();
    let dreq = Pair::lose(&mut pair.active);
    pair.passive.handle_mad(pair.now, gid(7), &dreq);
    assert_eq!(pair.passive.state(passive), Some(State::Established));
    let Message::Dreq(wrong) = parse(&dreq) else { panic!() };
    let wrong = Message::Dreq(remanence_wire::cm::Dreq { remote_qpn: Qpn::new(0x99), ..wrong });
    pair.passive.handle_mad(pair.now, gid(1), &Repr { transaction_id: 1, message: wrong }.to_bytes());
    assert_eq!(pair.passive.state(passive), Some(State::Established));
    let mut garbage = dreq;
    garbage[1] = 0x81;
    pair.passive.handle_mad(pair.now, gid(1), &garbage);
    assert_eq!(pair.passive.poll_event(), None);
    assert_eq!((pair.passive.stats().malformed, pair.passive.stats().unexpected), (1, 2));
}

#[test]
fn answers_from_elsewhere_change_nothing() {
    let mut pair = Pair::new();
    let (id, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(0x22)).unwrap();
    let rep = Pair::lose(&mut pair.passive);
    pair.active.handle_mad(pair.now, gid(7), &rep);
    assert_eq!((pair.active.poll_event(), pair.active.state(id)), (None, Some(State::ReqSent)));
    // Whoever he is, he has no connection with us.
    let Message::Rej(rej) = parse(&Pair::lose(&mut pair.active)) else { panic!("not rejected") };
    assert_eq!(rej.reason, RejReason::INVALID_COMM_ID);
    pair.active.handle_mad(pair.now, gid(2), &rep);
    assert!(matches!(pair.active.poll_event(), Some(Event::Response { .. })));
    pair.active.establish(id, b"").unwrap();
    let rtu = Pair::lose(&mut pair.active);
    pair.passive.handle_mad(pair.now, gid(7), &rtu);
    assert_eq!(pair.passive.state(passive), Some(State::RepSent));
    pair.passive.handle_mad(pair.now, gid(1), &rtu);
    assert_eq!(pair.passive.state(passive), Some(State::Established));

    let mut pair = Pair::new();
    let (id, passive) = pair.request();
    pair.passive.reject(passive, RejReason::CONSUMER_DEFINED, b"", b"").unwrap();
    let rej = Pair::lose(&mut pair.passive);
    pair.active.handle_mad(pair.now, gid(7), &rej);
    assert_eq!((pair.active.poll_event(), pair.active.state(id)), (None, Some(State::ReqSent)));
    pair.active.handle_mad(pair.now, gid(2), &rej);
    assert!(matches!(pair.active.poll_event(), Some(Event::Rejected { .. })));
}

#[test]
fn both_may_disconnect_at_once() {
    let mut pair = Pair::new();
    let (active, passive) = pair.establish();
    pair.active.disconnect(pair.now, active).unwrap();
    pair.passive.disconnect(pair.now, passive).unwrap();
    pair.run();
    assert_eq!(pair.active.poll_event(), Some(Event::Disconnected { id: active, ended: Ended::Local }));
    assert_eq!(pair.passive.poll_event(), Some(Event::Disconnected { id: passive, ended: Ended::Local }));
    pair.pass(Duration::from_secs(2));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
}

#[test]
fn a_lost_drep_is_said_again_while_and_after_timewait() {
    for timewait_is_over in [false, true] {
        let mut pair = Pair::new();
        let (active, passive) = pair.establish();
        pair.active.disconnect(pair.now, active).unwrap();
        pair.step_active();
        let first = Pair::lose(&mut pair.passive);
        if timewait_is_over {
            pair.passive.handle_timeout(pair.passive.poll_timeout().unwrap());
        }
        assert_eq!(pair.passive.state(passive).is_none(), timewait_is_over);
        pair.active.handle_timeout(pair.active.poll_timeout().unwrap());
        pair.step_active();
        assert_eq!(Pair::lose(&mut pair.passive), first);
        pair.active.handle_mad(pair.now, gid(2), &first);
        assert_eq!(pair.active.poll_event(), Some(Event::Disconnected { id: active, ended: Ended::Local }));
    }
}

#[test]
fn an_unanswered_dreq_ends_all_the_same() {
    let mut pair = Pair::new();
    let (active, _) = pair.establish();
    pair.active.disconnect(pair.now, active).unwrap();
    while pair.active.state(active) == Some(State::DreqSent) {
        while pair.active.poll_transmit().is_some() {}
        pair.active.handle_timeout(pair.active.poll_timeout().unwrap());
    }
    assert_eq!(pair.active.poll_event(), Some(Event::Disconnected { id: active, ended: Ended::Unanswered }));
}

#[test]
fn private_data_has_its_limits() {
    let mut pair = Pair::new();
    let long = [1; 57];
    let connect = |cma_port, private_data| Connect { cma_port, private_data, ..connect_to(2, 1, 0x11) };
    assert_eq!(pair.active.connect(pair.now, &connect(Some(1), &long)), Err(CmError::PrivateData));
    assert!(pair.active.connect(pair.now, &connect(Some(1), &long[..56])).is_ok());
    assert_eq!(pair.active.connect(pair.now, &connect(None, &[1; 93])), Err(CmError::PrivateData));
    assert!(pair.active.connect(pair.now, &connect(None, &[1; 92])).is_ok());
    assert_eq!(pair.active.len(), 2, "what was refused left nothing");
}

#[test]
fn several_processes_of_one_host_are_told_apart_by_their_ids() {
    let space = CommIdSpace { prefix: 0x3f, prefix_bits: 8 };
    let mut manager = Manager::new(Config { comm_ids: space, ..config(1) });
    for qpn in 0..100 {
        let id = manager.connect(Instant::ZERO, &connect_to(2, 1, qpn)).unwrap();
        assert_eq!(id.0 >> 24, 0x3f);
    }
}

#[test]
fn unlisten_turns_the_undecided_away_and_keeps_the_rest() {
    let mut pair = Pair::new();
    let (first, passive) = pair.request();
    pair.passive.accept(pair.now, passive, &accept_with(0x22)).unwrap();
    let second = pair.active.connect(pair.now, &connect_to(2, 1, 0x12)).unwrap();
    pair.step_active();
    pair.passive.unlisten(pair.listener);
    assert_eq!(pair.passive.poll_event(), None, "the request went with its listener");
    pair.run();
    let events: Vec<Event> = std::iter::from_fn(|| pair.active.poll_event()).collect();
    assert!(events.iter().any(|event| matches!(event, Event::Response { id, .. } if *id == first)));
    assert!(events.iter().any(|event| matches!(event, Event::Rejected { id, .. } if *id == second)));
    pair.active.establish(first, b"").unwrap();
    pair.run();
    assert_eq!(pair.passive.poll_event(), Some(Event::Established { id: passive }));
}

#[test]
fn uc_connects_without_what_only_rc_has() {
    let mut pair = Pair::new();
    pair.active.connect(pair.now, &Connect { transport: Transport::Uc, ..connect_to(2, 1, 0x11) }).unwrap();
    pair.step_active();
    let Some(Event::ConnectRequest(request)) = pair.passive.poll_event() else { panic!() };
    assert_eq!(request.transport, Transport::Uc);
    let rts = pair.passive.qp_rts(request.id).unwrap();
    assert_eq!((rts.timeout, rts.retry_cnt, rts.max_rd_atomic), (None, None, None));
    assert_ne!(rts.sq_psn, Some(Psn::new(0)));
}

#[test]
fn sidr_resolves_a_ud_service_and_answers_duplicates_alike() {
    let mut pair = Pair::new();
    let service = ServiceId::new(PortSpace::Udp, 7000);
    pair.passive.listen(&Listen { service_id: service, local: None, backlog: 4 }).unwrap();
    let path = Path { local: gid(1), remote: gid(2) };
    let id = pair.active.resolve(pair.now, path, service, Some(5), b"who").unwrap();
    let question = Pair::lose(&mut pair.active);
    pair.passive.handle_mad(pair.now, gid(1), &question);
    let Some(Event::SidrRequest(request)) = pair.passive.poll_event() else { panic!() };
    assert_eq!((request.private_data.len(), &request.private_data[..4]), (180, &b"who\0"[..]));
    assert_eq!(request.path, Path { local: gid(2), remote: gid(1) });
    pair.passive.handle_mad(pair.now, gid(1), &question);
    assert!(pair.passive.poll_transmit().is_none(), "nothing to say yet");
    let reply = SidrReply {
        status: SidrRep::STATUS_VALID,
        qpn: Qpn::new(0x33),
        qkey: Qkey::RDMA_UDP,
        private_data: b"me",
    };
    pair.passive.sidr_reply(pair.now, request.id, &reply).unwrap();
    let answer = Pair::lose(&mut pair.passive);
    pair.passive.handle_mad(pair.now, gid(1), &question);
    assert_eq!(Pair::lose(&mut pair.passive), answer);
    pair.active.handle_mad(pair.now, gid(2), &answer);
    let Some(Event::SidrResponse { id: answered, status, qpn, qkey, .. }) = pair.active.poll_event() else {
        panic!()
    };
    assert_eq!((answered, status, qpn, qkey), (id, 0, Qpn::new(0x33), Qkey::RDMA_UDP));
    pair.pass(Duration::from_secs(60));
    assert!(pair.active.is_empty() && pair.passive.is_empty());
}

#[test]
fn sidr_of_a_service_that_nobody_serves_is_refused() {
    let mut pair = Pair::new();
    let path = Path { local: gid(1), remote: gid(2) };
    pair.active.resolve(pair.now, path, ServiceId::new(PortSpace::Udp, 1), Some(5), b"").unwrap();
    pair.run();
    assert!(matches!(
        pair.active.poll_event(),
        Some(Event::SidrResponse { status: SidrRep::STATUS_UNSUPPORTED, .. })
    ));
}
