//! The state machine as a table, and what each state does and flushes.

use remanence_wire::{Gid, Mtu, Psn, Qkey, Qpn};

use super::pair::*;
use crate::*;

/// An attribute set with everything that a transition could want; `keep` says which fields stay.
fn full(peer: &Node) -> QpAttr {
    QpAttr {
        state: None,
        cur_state: None,
        qkey: Some(Qkey(5)),
        access: Some(REMOTE),
        av: Some(AhAttr::new(Gid::from_ip(peer.ip))),
        path_mtu: Some(Mtu::B1024),
        dest_qpn: Some(Qpn::new(0x20)),
        rq_psn: Some(Psn::new(1)),
        sq_psn: Some(Psn::new(2)),
        max_rd_atomic: Some(1),
        max_dest_rd_atomic: Some(1),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        min_rnr_timer: Some(1),
        sqd_event: Some(true),
    }
}

/// Sets a field of `to` from `from` by its number.
fn set(to: &mut QpAttr, from: &QpAttr, field: usize) {
    match field {
        0 => to.qkey = from.qkey,
        1 => to.access = from.access,
        2 => to.av = from.av,
        3 => to.path_mtu = from.path_mtu,
        4 => to.dest_qpn = from.dest_qpn,
        5 => to.rq_psn = from.rq_psn,
        6 => to.sq_psn = from.sq_psn,
        7 => to.max_rd_atomic = from.max_rd_atomic,
        8 => to.max_dest_rd_atomic = from.max_dest_rd_atomic,
        9 => to.timeout = from.timeout,
        10 => to.retry_cnt = from.retry_cnt,
        11 => to.rnr_retry = from.rnr_retry,
        12 => to.min_rnr_timer = from.min_rnr_timer,
        13 => to.sqd_event = from.sqd_event,
        _ => unreachable!("there are 14 fields"),
    }
}

const FIELDS: [&str; 14] = [
    "qkey",
    "access",
    "av",
    "path_mtu",
    "dest_qpn",
    "rq_psn",
    "sq_psn",
    "max_rd_atomic",
    "max_dest_rd_atomic",
    "timeout",
    "retry_cnt",
    "rnr_retry",
    "min_rnr_timer",
    "sqd_event",
];

/// IBA Vol 1, 11.2.5 as the verbs have it, written out once more: state from, state to, needed, also allowed.
fn table(ty: QpType) -> Vec<(QpState, QpState, &'static [&'static str], &'static [&'static str])> {
    use QpState::*;
    let mut rows: Vec<(QpState, QpState, &[&str], &[&str])> = vec![(Rts, Sqd, &[], &["sqd_event"])];
    for state in QpState::ALL {
        rows.push((state, Reset, &[], &[]));
        rows.push((state, Err, &[], &[]));
    }
    match ty {
        QpType::Rc => rows.extend([
            (Reset, Init, &["access"][..], &[][..]),
            (Init, Init, &[], &["access"]),
            (
                Init,
                Rtr,
                &["av", "path_mtu", "dest_qpn", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"],
                &["access"],
            ),
            (
                Rtr,
                Rts,
                &["sq_psn", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic"],
                &["access", "min_rnr_timer"],
            ),
            (Rts, Rts, &[], &["access", "min_rnr_timer"]),
            (Sqd, Rts, &[], &["access", "min_rnr_timer"]),
            (
                Sqd,
                Sqd,
                &[],
                &[
                    "av",
                    "timeout",
                    "retry_cnt",
                    "rnr_retry",
                    "max_rd_atomic",
                    "max_dest_rd_atomic",
                    "access",
                    "min_rnr_timer",
                ],
            ),
        ]),
        QpType::Uc => rows.extend([
            (Reset, Init, &["access"][..], &[][..]),
            (Init, Init, &[], &["access"]),
            (Init, Rtr, &["av", "path_mtu", "dest_qpn", "rq_psn"], &["access"]),
            (Rtr, Rts, &["sq_psn"], &["access"]),
            (Rts, Rts, &[], &["access"]),
            (Sqd, Rts, &[], &["access"]),
            (Sqe, Rts, &[], &["access"]),
            (Sqd, Sqd, &[], &["av", "access"]),
        ]),
        QpType::Ud => rows.extend([
            (Reset, Init, &["qkey"][..], &[][..]),
            (Init, Init, &[], &["qkey"]),
            (Init, Rtr, &[], &["qkey"]),
            (Rtr, Rts, &["sq_psn"], &["qkey"]),
            (Rts, Rts, &[], &["qkey"]),
            (Sqd, Rts, &[], &["qkey"]),
            (Sqe, Rts, &[], &["qkey"]),
            (Sqd, Sqd, &[], &["qkey"]),
        ]),
    }
    rows
}

/// A fresh QP led to a state. SQE is reached by a send that fails.
fn qp_in(pair: &mut Pair, ty: QpType, state: QpState) -> Qpn {
    let peer = full(&pair.nodes[1]);
    let now = pair.now;
    let node = &mut pair.nodes[0];
    let init = QpInit {
        pd: node.pd,
        ty,
        send_cq: node.scq,
        recv_cq: node.rcq,
        srq: None,
        caps: caps(),
        sq_sig_all: false,
    };
    let qpn = node.device.create_qp(&init).unwrap();
    let path: &[QpState] = match state {
        QpState::Reset => &[],
        QpState::Init => &[QpState::Init],
        QpState::Rtr => &[QpState::Init, QpState::Rtr],
        QpState::Rts | QpState::Sqe => &[QpState::Init, QpState::Rtr, QpState::Rts],
        QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
        QpState::Err => &[QpState::Err],
    };
    for &to in path {
        let from = node.state(qpn);
        let rows = table(ty);
        let row = rows.iter().find(|row| (row.0, row.1) == (from, to)).unwrap();
        let mut attr = QpAttr { state: Some(to), ..QpAttr::default() };
        for (field, name) in FIELDS.iter().enumerate() {
            if row.2.contains(name) {
                set(&mut attr, &peer, field);
            }
        }
        node.device.modify_qp(now, qpn, &attr).unwrap();
    }
    if state == QpState::Sqe {
        let bad = [Sge { addr: 0, len: 8, lkey: BAD_LKEY }];
        let pd = node.pd;
        let ah = node.device.create_ah(pd, &peer.av.unwrap()).unwrap();
        let ud = Some(UdDest { ah, qpn: Qpn::new(0x20), qkey: Qkey(5) });
        let wr = SendWr { wr_id: 0, op: SendOp::Send, data: Data::Sges(&bad), flags: SendFlags::empty(), ud };
        node.device.post_send(qpn, &wr).unwrap();
        pair.collect();
        assert_eq!(pair.a().sends().len(), 1);
    }
    assert_eq!(pair.a().state(qpn), state);
    qpn
}

#[test]
fn every_transition_needs_and_allows_what_the_table_says() {
    for ty in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let rows = table(ty);
        for from in QpState::ALL {
            if from == QpState::Sqe && ty == QpType::Rc {
                continue;
            }
            for to in QpState::ALL {
                let row = rows.iter().find(|row| (row.0, row.1) == (from, to));
                let mut pair = Pair::unconnected(Config::default());
                let values = full(&pair.nodes[1]);
                let now = pair.now;
                let mut attempt = |attr: &QpAttr| {
                    let qpn = qp_in(&mut pair, ty, from);
                    let before = pair.a().device.query_qp(qpn).unwrap();
                    let result = pair.a().device.modify_qp(now, qpn, attr);
                    let after = pair.a().device.query_qp(qpn).unwrap();
                    if result.is_ok() {
                        assert_eq!(after.state, to);
                    } else {
                        assert_eq!(before, after, "a refused change changes nothing");
                    }
                    pair.a().device.destroy_qp(qpn).unwrap();
                    result.is_ok()
                };
                let mut minimal = QpAttr { state: Some(to), ..QpAttr::default() };
                let Some((_, _, needed, allowed)) = row else {
                    let everything = QpAttr { state: Some(to), ..values };
                    assert!(!attempt(&minimal), "{ty:?}: {from} to {to} does not exist");
                    assert!(!attempt(&everything), "{ty:?}: {from} to {to} does not exist");
                    continue;
                };
                for (field, name) in FIELDS.iter().enumerate() {
                    if needed.contains(name) {
                        set(&mut minimal, &values, field);
                    }
                }
                assert!(attempt(&minimal), "{ty:?}: {from} to {to}");
                assert!(attempt(&QpAttr { cur_state: Some(from), ..minimal }));
                let wrong = if from == QpState::Init { QpState::Rts } else { QpState::Init };
                assert!(!attempt(&QpAttr { cur_state: Some(wrong), ..minimal }));
                for (field, name) in FIELDS.iter().enumerate() {
                    let mut more = minimal;
                    set(&mut more, &values, field);
                    let fine = needed.contains(name) || allowed.contains(name);
                    assert_eq!(attempt(&more), fine, "{ty:?}: {from} to {to} with {name}");
                    if needed.contains(name) {
                        let mut less = minimal;
                        set(&mut less, &QpAttr::default(), field);
                        assert!(!attempt(&less), "{ty:?}: {from} to {to} without {name}");
                    }
                }
            }
        }
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let mut pair = Pair::unconnected(Config { mtu: Mtu::B1024, max_rd_atomic: 16, ..Config::default() });
    let [init, rtr, rts] = connect_attr(&pair.nodes[1], Qpn::new(0x20), Mtu::B1024);
    let now = pair.now;
    let qpn = qp_in(&mut pair, QpType::Rc, QpState::Reset);
    let device = &mut pair.a().device;
    let mut refused = |attr: QpAttr| assert!(device.modify_qp(now, qpn, &attr).is_err(), "{attr:?}");
    let _ = init;
    refused(QpAttr { state: Some(QpState::Rtr), ..rtr });
    device.modify_qp(now, qpn, &init).unwrap();
    let mut refused = |attr: QpAttr| assert!(device.modify_qp(now, qpn, &attr).is_err(), "{attr:?}");
    refused(QpAttr { path_mtu: Some(Mtu::B2048), ..rtr });
    refused(QpAttr { max_dest_rd_atomic: Some(17), ..rtr });
    refused(QpAttr { min_rnr_timer: Some(32), ..rtr });
    refused(QpAttr { av: Some(AhAttr { sgid_index: 1, ..rtr.av.unwrap() }), ..rtr });
    refused(QpAttr { av: Some(AhAttr::new(Gid::default())), ..rtr });
    refused(QpAttr { av: Some(AhAttr::new(Gid::from_ip("fe80::1".parse().unwrap()))), ..rtr });
    device.modify_qp(now, qpn, &rtr).unwrap();
    let mut refused = |attr: QpAttr| assert!(device.modify_qp(now, qpn, &attr).is_err(), "{attr:?}");
    refused(QpAttr { max_rd_atomic: Some(17), ..rts });
    refused(QpAttr { timeout: Some(32), ..rts });
    refused(QpAttr { retry_cnt: Some(8), ..rts });
    refused(QpAttr { rnr_retry: Some(8), ..rts });
    device.modify_qp(now, qpn, &rts).unwrap();
}

#[test]
fn postings_are_accepted_where_the_state_allows_and_flushed_in_error() {
    let mut pair = Pair::unconnected(Config::default());
    for state in QpState::ALL {
        if state == QpState::Sqe {
            continue;
        }
        let qpn = qp_in(&mut pair, QpType::Rc, state);
        let wr =
            SendWr { wr_id: 1, op: SendOp::Send, data: Data::Sges(&[]), flags: SendFlags::empty(), ud: None };
        let sent = pair.a().device.post_send(qpn, &wr);
        let received = pair.a().device.post_recv(qpn, &RecvWr { wr_id: 2, sges: &[] });
        let may_send = matches!(state, QpState::Rts | QpState::Sqd | QpState::Err);
        assert_eq!(sent, if may_send { Ok(()) } else { Err(PostError::InvalidState) }, "{state}");
        assert_eq!(received.is_ok(), state != QpState::Reset, "{state}");
        let flushed = |wcs: Vec<Wc>| wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>();
        let expect = |wr_id| if state == QpState::Err { vec![(wr_id, WcStatus::WrFlushErr)] } else { vec![] };
        assert_eq!(flushed(pair.a().sends()), expect(1), "{state}");
        assert_eq!(flushed(pair.a().recvs()), expect(2), "{state}");
    }
}

#[test]
fn going_to_error_flushes_everything_in_order_and_reset_forgets() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(64, Access::LOCAL_WRITE, 0);
    let qpns = pair.qpns;
    pair.hook = Some(Box::new(|_, _| Fate::Drop));
    for n in 0..5 {
        pair.a().post_recv(qpns[0], 100 + n, &[src.sge(0, 8)]);
        pair.a().post_flags(qpns[0], n, SendOp::Send, &[src.sge(0, 8)], SendFlags::empty());
    }
    pair.collect();
    let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    let now = pair.now;
    pair.a().device.modify_qp(now, qpns[0], &err).unwrap();
    assert!(
        pair.a().sends().iter().map(|wc| (wc.wr_id, wc.status)).eq((0..5).map(|n| (n, WcStatus::WrFlushErr)))
    );
    assert!(
        pair.a()
            .recvs()
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .eq((100..105).map(|n| (n, WcStatus::WrFlushErr)))
    );
    assert_eq!(pair.a().device.poll_timeout().map(|_| ()), Some(()), "the entry is lazy");
    pair.run();
    assert_eq!(pair.a().sends(), []);

    let mut pair = Pair::connected();
    let src = pair.a().buffer(64, Access::LOCAL_WRITE, 0);
    pair.hook = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, SendOp::Send, &[src.sge(0, 8)]);
    let qpns = pair.qpns;
    pair.a().post_recv(qpns[0], 2, &[src.sge(0, 8)]);
    pair.collect();
    let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
    let now = pair.now;
    pair.a().device.modify_qp(now, qpns[0], &reset).unwrap();
    pair.run();
    assert_eq!((pair.a().sends(), pair.a().recvs()), (vec![], vec![]));
    // Nor is anything left in the CQs of what a QP completed before: but it is of others.
    let stranger = qp_in(&mut pair, QpType::Rc, QpState::Err);
    for qpn in [qpns[0], stranger] {
        pair.nodes[0].device.modify_qp(now, qpn, &err).unwrap();
        pair.a().post_recv(qpn, 3, &[src.sge(0, 8)]);
    }
    pair.nodes[0].device.modify_qp(now, qpns[0], &reset).unwrap();
    assert!(pair.a().recvs().iter().map(|wc| (wc.wr_id, wc.qpn)).eq([(3, stranger)]));
    // The QP can be connected again, with other PSNs, and is as new.
    pair.hook = None;
    for at in [0, 1] {
        pair.nodes[at].device.modify_qp(now, qpns[at], &reset).unwrap();
        let [init, rtr, rts] = connect_attr(&pair.nodes[1 - at], qpns[1 - at], Mtu::B256);
        for attr in [init, rtr, rts] {
            pair.nodes[at].device.modify_qp(now, qpns[at], &attr).unwrap();
        }
    }
    let dst = pair.b().buffer(64, Access::LOCAL_WRITE, 0xee);
    pair.b().post_recv(qpns[1], 3, &[dst.sge(0, 64)]);
    assert_eq!(pair.execute(SendOp::Send, &[src.sge(0, 8)]).status, WcStatus::Success);
}

#[test]
fn sqd_finishes_what_was_begun_and_says_so() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(8192, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(8192, REMOTE, 0);
    let qpns = pair.qpns;
    pair.max_segments = 1;
    pair.post(1, SendOp::Write(dst.remote(0)), &[src.sge(0, 4096)]);
    pair.post(2, SendOp::Write(dst.remote(4096)), &[src.sge(0, 8)]);
    // One packet of the first message has left.
    let mut buf = vec![0; 8192];
    let now = pair.now;
    let a = pair.a();
    assert!(a.device.poll_transmit(now, &mut buf, 1, &mut a.mem).is_some());
    let sqd = QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() };
    a.device.modify_qp(now, qpns[0], &sqd).unwrap();
    assert!(a.device.query_qp(qpns[0]).unwrap().draining);
    pair.run();
    let wcs: Vec<_> = pair.a().sends().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(wcs, [1], "the first packet was lost and repaired, the second message not begun");
    assert_eq!(pair.a().events(), [AsyncEvent::SqDrained(qpns[0])]);
    assert!(!pair.a().device.query_qp(qpns[0]).unwrap().draining);
    let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    pair.nodes[0].device.modify_qp(pair.now, qpns[0], &rts).unwrap();
    pair.run();
    assert_eq!(pair.a().sends().len(), 1);
    assert_eq!(pair.b().bytes(&dst)[4096..4104], [0x11; 8]);
}

#[test]
fn an_idle_qp_is_drained_at_once() {
    let mut pair = Pair::connected();
    let qpns = pair.qpns;
    let sqd = QpAttr { state: Some(QpState::Sqd), sqd_event: Some(true), ..QpAttr::default() };
    let now = pair.now;
    pair.a().device.modify_qp(now, qpns[0], &sqd).unwrap();
    assert_eq!(pair.a().events(), [AsyncEvent::SqDrained(qpns[0])]);
    let quiet = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
    pair.b().device.modify_qp(now, qpns[1], &quiet).unwrap();
    assert_eq!(pair.b().events(), []);
}

#[test]
fn sqe_stops_sending_and_not_receiving() {
    let mut pair = Pair::unconnected(Config::default());
    pair.qpns = pair.connect(QpType::Uc, Mtu::B1024, |_| {});
    let qpns = pair.qpns;
    let a = pair.a().buffer(64, Access::LOCAL_WRITE, 0x11);
    let b = pair.b().buffer(64, Access::LOCAL_WRITE, 0x22);
    pair.a().post_recv(qpns[0], 9, &[a.sge(0, 64)]);
    pair.post(1, SendOp::Send, &[Sge { lkey: BAD_LKEY, ..a.sge(0, 8) }]);
    pair.post(2, SendOp::Send, &[a.sge(0, 8)]);
    pair.run();
    let wcs: Vec<_> = pair.a().sends().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(wcs, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(pair.a().state(qpns[0]), QpState::Sqe);
    pair.post(3, SendOp::Send, &[a.sge(0, 8)]);
    assert_eq!(pair.a().sends()[0].status, WcStatus::WrFlushErr);
    pair.b().post(qpns[1], 4, SendOp::Send, &[b.sge(0, 16)]);
    pair.run();
    assert_eq!(pair.a().recvs()[0].status, WcStatus::Success);
    let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    pair.nodes[0].device.modify_qp(pair.now, qpns[0], &rts).unwrap();
    pair.b().post_recv(qpns[1], 5, &[b.sge(0, 64)]);
    pair.post(6, SendOp::Send, &[a.sge(0, 8)]);
    pair.run();
    assert_eq!(pair.a().sends()[0].status, WcStatus::Success);
    assert_eq!(pair.b().recvs()[0].wr_id, 5);
}

#[test]
fn the_first_packet_in_rtr_raises_an_event() {
    let mut pair = Pair::unconnected(Config::default());
    let qpns = [0, 1].map(|at| {
        let node = &mut pair.nodes[at];
        let init = QpInit {
            pd: node.pd,
            ty: QpType::Rc,
            send_cq: node.scq,
            recv_cq: node.rcq,
            srq: None,
            caps: caps(),
            sq_sig_all: true,
        };
        node.device.create_qp(&init).unwrap()
    });
    pair.qpns = qpns;
    for at in [0, 1] {
        let [init, rtr, rts] = connect_attr(&pair.nodes[1 - at], qpns[1 - at], Mtu::B1024);
        let steps: &[QpAttr] = if at == 0 { &[init, rtr, rts] } else { &[init, rtr] };
        for attr in steps {
            pair.nodes[at].device.modify_qp(pair.now, qpns[at], attr).unwrap();
        }
    }
    let dst = pair.b().buffer(64, REMOTE, 0);
    let src = pair.a().buffer(64, Access::empty(), 0x11);
    for _ in 0..3 {
        assert_eq!(pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]).status, WcStatus::Success);
    }
    assert_eq!(pair.b().events(), [AsyncEvent::CommEst(qpns[1])]);
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let mut pair = Pair::connected();
    let (pd, scq, qpn) = (pair.nodes[0].pd, pair.nodes[0].scq, pair.qpns[0]);
    let device = &mut pair.a().device;
    assert_eq!(device.dealloc_pd(pd), Err(VerbError::Busy("PD")));
    assert_eq!(device.destroy_cq(scq), Err(VerbError::Busy("CQ")));
    device.destroy_qp(qpn).unwrap();
    assert_eq!(device.destroy_qp(qpn), Err(VerbError::NoSuchObject("QP")));
    device.destroy_cq(scq).unwrap();
    device.dealloc_pd(pd).unwrap();
    assert_eq!(device.dealloc_pd(pd), Err(VerbError::NoSuchObject("PD")));
}
