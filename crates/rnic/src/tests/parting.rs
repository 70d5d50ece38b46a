//! What a QP says last.

use std::time::Duration;

use remanence_wire::{Mtu, Opcode, Psn, Qpn};

use super::pair::*;
use crate::*;

/// A pair on which every ACK is lost, and the one message that was received nevertheless.
fn received_and_not_acknowledged() -> (Pair, Buffer) {
    let mut pair = Pair::connected_with(Config::default(), Mtu::B1024);
    let (src, dst) = (pair.a().buffer(4096, Access::LOCAL_WRITE, 0x11), pair.b().buffer(4096, REMOTE, 0xee));
    let qpns = pair.qpns;
    pair.b().post_recv(qpns[1], 5, &[dst.sge(0, 4096)]);
    pair.hook = Some(Box::new(|from, _| if from == 1 { Fate::Drop } else { Fate::Deliver }));
    pair.post(1, SendOp::Send, &[src.sge(0, 3000)]);
    pair.run_for(Duration::from_micros(50));
    assert_eq!((pair.b().recvs().len(), pair.a().sends()), (1, vec![]));
    pair.hook = None;
    (pair, dst)
}

fn leave(pair: &mut Pair, qpn: Qpn, to: QpState) {
    let attr = QpAttr { state: Some(to), ..QpAttr::default() };
    pair.nodes[1].device.modify_qp(pair.now, qpn, &attr).unwrap();
}

#[test]
fn a_receiver_that_goes_acknowledges_once_more() {
    type Way = fn(&mut Pair, Qpn);
    let ways: [(&str, Way); 3] = [
        ("destroyed", |pair, qpn| pair.b().device.destroy_qp(qpn).unwrap()),
        ("error", |pair, qpn| leave(pair, qpn, QpState::Err)),
        ("reset", |pair, qpn| leave(pair, qpn, QpState::Reset)),
    ];
    for (name, go) in ways {
        let (mut pair, _) = received_and_not_acknowledged();
        let (before, qpn) = (pair.log.len(), pair.qpns[1]);
        go(&mut pair, qpn);
        pair.run();
        let done = pair.a().sends();
        assert_eq!(done.len(), 1, "{name}");
        assert_eq!((done[0].wr_id, done[0].status), (1, WcStatus::Success), "{name}");
        let said: Vec<_> = pair.log[before..].iter().filter(|(from, _)| *from == 1).collect();
        assert_eq!(said.len(), 1, "{name}: once");
        assert_eq!(
            (said[0].1.bth.opcode, said[0].1.bth.psn),
            (Opcode::RcAck, Psn::new(0xff_fff0 + 2)),
            "{name}"
        );
    }
}

#[test]
fn who_never_received_anything_says_nothing() {
    let mut pair = Pair::connected();
    let qpns = pair.qpns;
    pair.b().device.destroy_qp(qpns[1]).unwrap();
    pair.run();
    assert_eq!(pair.log, []);
    // Nor does a QP of a service without acknowledgements.
    let mut pair = Pair::unconnected(Config::default());
    pair.qpns = pair.connect(QpType::Uc, Mtu::B1024, |_| {});
    let (src, dst) = (pair.a().buffer(64, Access::LOCAL_WRITE, 0x11), pair.b().buffer(64, REMOTE, 0xee));
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 64)]);
    let (before, qpn) = (pair.log.len(), pair.qpns[1]);
    pair.b().device.destroy_qp(qpn).unwrap();
    pair.run();
    assert_eq!(pair.log.len(), before);
}

/// An ACK acknowledges all before it: with a FLUSH among that, it would promise what is not durable yet.
#[test]
fn nothing_open_is_acknowledged() {
    let mut pair = Pair::connected();
    let (src, dst) = (pair.a().buffer(64, Access::LOCAL_WRITE, 0x11), pair.b().buffer(64, REMOTE, 0xee));
    pair.b().mem.flush_mode = FlushMode::Pending;
    let (remote, placement) = (dst.remote(0), Placement::Persistence);
    pair.post(1, SendOp::Write(remote), &[src.sge(0, 64)]);
    pair.post(2, SendOp::Flush { remote, len: 64, placement, selectivity: Selectivity::Range }, &[]);
    pair.run_for(Duration::from_micros(100));
    let (before, qpn) = (pair.log.len(), pair.qpns[1]);
    pair.b().device.destroy_qp(qpn).unwrap();
    pair.run_for(Duration::from_micros(100));
    assert!(!pair.log[before..].iter().any(|(from, _)| *from == 1));
    assert!(pair.a().sends().iter().all(|wc| wc.wr_id == 1), "the flush is not complete");
}
