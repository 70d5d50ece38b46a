//! Watched peers: the living answer and notice nothing, the dead are found out.

use std::time::Duration;

use remanence_wire::{Mtu, Opcode, Qpn};

use super::pair::{Fate, Pair, REMOTE, connect_attr};
use crate::*;

fn watch(pair: &mut Pair) {
    let (now, qpns) = (pair.now, pair.qpns);
    for (node, qpn) in pair.nodes.iter_mut().zip(qpns) {
        node.device.watch_peer(now, qpn);
    }
}

fn silences(pair: &mut Pair) -> Vec<(Qpn, Silence)> {
    std::iter::from_fn(|| pair.a().device.poll_silence()).collect()
}

#[test]
fn a_quiet_peer_is_asked_and_answers_without_noticing() {
    let mut pair = Pair::connected();
    watch(&mut pair);
    let qpn = pair.qpns[1];
    pair.b().post_recv(qpn, 1, &[]);
    pair.run_for(Duration::from_secs(60));
    let (asked, answered) = (pair.sent(0, Opcode::RcWriteOnly), pair.sent(1, Opcode::RcAck));
    assert!((10..=15).contains(&asked), "{asked} questions in a minute");
    assert_eq!(asked, answered);
    assert_eq!(silences(&mut pair), []);
    assert_eq!((pair.b().recvs(), pair.b().events(), pair.b().mem.writes), (vec![], vec![], 0));
    // And the connection works on, from the first PSN.
    let data = pair.a().buffer(64, REMOTE, 7);
    let sink = pair.b().buffer(64, REMOTE, 0);
    pair.post(2, SendOp::Write(sink.remote(0)), &[data.sge(0, 64)]);
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.a().sends()[0].status, WcStatus::Success);
    assert_eq!(pair.b().bytes(&sink), [7; 64]);
}

#[test]
fn nobody_is_asked_who_is_heard_or_not_watched() {
    let mut pair = Pair::connected();
    pair.run_for(Duration::from_secs(60));
    assert_eq!(pair.sent(0, Opcode::RcWriteOnly), 0);
    watch(&mut pair);
    let qpn = pair.qpns[1];
    for _ in 0..60 {
        pair.b().post_recv(qpn, 1, &[]);
        pair.post(1, SendOp::Send, &[]);
        pair.run_for(Duration::from_secs(1));
    }
    assert_eq!(pair.sent(0, Opcode::RcWriteOnly) + pair.sent(1, Opcode::RcWriteOnly), 0);
}

#[test]
fn a_dead_peer_is_lost_after_ten_seconds_of_silence() {
    let mut pair = Pair::connected();
    watch(&mut pair);
    pair.hook = Some(Box::new(|from, _| if from == 1 { Fate::Drop } else { Fate::Deliver }));
    let qpn = pair.qpns[0];
    pair.run_for(Duration::from_millis(9_900));
    let known = silences(&mut pair);
    assert!(!known.is_empty() && known.iter().all(|&known| known == (qpn, Silence::Unanswered)), "{known:?}");
    pair.run_for(Duration::from_millis(200));
    assert_eq!(silences(&mut pair), [(qpn, Silence::Lost)]);
    assert_eq!(pair.a().state(qpn), QpState::Rts, "what becomes of the QP is its owner's business");
    let asked = pair.sent(0, Opcode::RcWriteOnly);
    pair.run_for(Duration::from_secs(60));
    assert_eq!((silences(&mut pair), pair.sent(0, Opcode::RcWriteOnly)), (vec![], asked));
}

#[test]
fn a_peer_that_acknowledges_nothing_is_suspected_long_before_it_is_lost() {
    for is_watched in [true, false] {
        let mut pair = Pair::connected();
        if is_watched {
            watch(&mut pair);
        }
        let (data, sink) = (pair.a().buffer(64, REMOTE, 7), pair.b().buffer(64, REMOTE, 0));
        let write = |pair: &mut Pair| {
            pair.post(2, SendOp::Write(sink.remote(0)), &[data.sge(0, 64)]);
        };
        // With some loss nobody is suspected.
        let mut lost = 3;
        pair.hook = Some(Box::new(move |from, _| {
            lost -= i32::from(from == 1 && lost > 0);
            if from == 1 && lost > 0 { Fate::Drop } else { Fate::Deliver }
        }));
        write(&mut pair);
        pair.run_for(Duration::from_secs(1));
        assert_eq!((pair.a().sends()[0].status, silences(&mut pair)), (WcStatus::Success, vec![]));
        pair.hook = Some(Box::new(|from, _| if from == 1 { Fate::Drop } else { Fate::Deliver }));
        write(&mut pair);
        pair.run_for(Duration::from_millis(500));
        let suspected = silences(&mut pair);
        assert_eq!(!suspected.is_empty(), is_watched);
        assert!(suspected.iter().all(|&known| known == (pair.qpns[0], Silence::Retried)), "{suspected:?}");
    }
}

/// The promise of the documents: ten seconds where the connection is in use, and a quarter of the time before where it is not.
#[test]
fn a_dead_peer_is_found_out_later_where_nobody_uses_the_connection() {
    for (quiet, used, least, most) in [(40, false, 8, 19), (3600, false, 8, 39), (3600, true, 10, 11)] {
        let mut pair = Pair::connected();
        watch(&mut pair);
        let qpns = pair.qpns;
        pair.run_for(Duration::from_secs(quiet));
        if used {
            // It comes from there, and no request is under way here that would find out.
            pair.a().post_recv(qpns[0], 1, &[]);
            pair.b().post(qpns[1], 1, SendOp::Send, &[]);
            pair.run_for(Duration::from_millis(1));
        }
        pair.hook = Some(Box::new(|from, _| if from == 1 { Fate::Drop } else { Fate::Deliver }));
        let mut after = 0;
        while !silences(&mut pair).contains(&(qpns[0], Silence::Lost)) {
            pair.run_for(Duration::from_secs(1));
            after += 1;
        }
        assert!((least..=most).contains(&after), "{after} s after {quiet}, used: {used}");
    }
}

#[test]
fn loss_is_not_death() {
    let mut pair = Pair::connected();
    watch(&mut pair);
    pair.weather(3, 10, 0, 0, 0);
    pair.run_for(Duration::from_secs(600));
    let known = silences(&mut pair);
    assert!(known.iter().all(|known| known.1 == Silence::Unanswered), "{known:?}");
}

#[test]
fn a_work_request_that_ran_out_of_retries_says_the_same() {
    let mut pair = Pair::connected();
    watch(&mut pair);
    pair.hook = Some(Box::new(|_, _| Fate::Drop));
    let qpn = pair.qpns[0];
    pair.post(1, SendOp::Send, &[]);
    pair.run_for(Duration::from_secs(3));
    assert_eq!(pair.a().sends()[0].status, WcStatus::RetryExcErr);
    let mut known = silences(&mut pair);
    assert_eq!(known.pop(), Some((qpn, Silence::Lost)));
    assert!(known.iter().all(|&before| before == (qpn, Silence::Retried)), "{known:?}");
}

#[test]
fn a_qp_that_left_rts_asks_nobody() {
    for state in [QpState::Err, QpState::Reset] {
        let mut pair = Pair::connected();
        watch(&mut pair);
        let (now, qpn) = (pair.now, pair.qpns[0]);
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        pair.a().device.modify_qp(now, qpn, &attr).unwrap();
        pair.run_for(Duration::from_secs(60));
        assert_eq!((pair.sent(0, Opcode::RcWriteOnly), silences(&mut pair)), (0, vec![]));
    }
}

#[test]
fn a_qp_that_stays_in_rtr_does_not_take_silence_for_death() {
    let mut pair = Pair::connected();
    let (now, qpns) = (pair.now, pair.qpns);
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    let [init, rtr, rts] = connect_attr(&pair.nodes[1], qpns[1], Mtu::B1024);
    for attr in [reset, init, rtr] {
        pair.a().device.modify_qp(now, qpns[0], &attr).unwrap();
    }
    pair.a().device.watch_peer(now, qpns[0]);
    pair.run_for(Duration::from_secs(60));
    assert_eq!(pair.sent(0, Opcode::RcWriteOnly), 0);
    assert!(silences(&mut pair).into_iter().all(|silence| silence == (qpns[0], Silence::Unanswered)));
    // From RTS on it can ask, and then silence counts.
    pair.hook = Some(Box::new(|_, _| Fate::Drop));
    let now = pair.now;
    pair.a().device.modify_qp(now, qpns[0], &rts).unwrap();
    pair.run_for(Duration::from_secs(12));
    assert_eq!(pair.sent(0, Opcode::RcWriteOnly), 8);
    assert_eq!(silences(&mut pair).last(), Some(&(qpns[0], Silence::Lost)));
}
