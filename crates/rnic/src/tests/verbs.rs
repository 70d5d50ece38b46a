//! What the verbs promise beyond the reliable service: inline data, signals, notification, SRQ, windows, UC, UD,
//! QP 1, many QPs.

use std::time::Duration;

use remanence_wire::{Gid, Mtu, Opcode, Qkey, Qpn, Rkey};

use super::pair::*;
use crate::*;

fn request<'a>(op: SendOp, data: Data<'a>) -> SendWr<'a> {
    SendWr { wr_id: 1, op, data, flags: SendFlags::SIGNALED, ud: None }
}

fn ids(wcs: &[Wc]) -> Vec<(u64, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn inline_data_may_be_used_again_at_once() {
    let mut pair = Pair::connected();
    let dst = pair.b().buffer(1024, REMOTE, 0xee);
    let qpn = pair.qpns[0];
    let mut bytes = [0x31; 200];
    let device = &mut pair.a().device;
    device.post_send(qpn, &request(SendOp::Write(dst.remote(0)), Data::Inline(&bytes))).unwrap();
    bytes.fill(0);
    device.post_send(qpn, &request(SendOp::AtomicWrite(dst.remote(512)), Data::Inline(&[7; 8]))).unwrap();
    let too_long = [0; 257];
    assert_eq!(
        device.post_send(qpn, &request(SendOp::Send, Data::Inline(&too_long))),
        Err(PostError::InlineTooLong)
    );
    assert_eq!(
        device.post_send(qpn, &request(SendOp::Read(dst.remote(0)), Data::Inline(&[0; 8]))),
        Err(PostError::InlineTooLong)
    );
    pair.run();
    assert_eq!(pair.a().sends().len(), 2);
    assert_eq!(pair.b().bytes(&dst)[..200], [0x31; 200]);
    assert_eq!(pair.b().bytes(&dst)[200..512], [0xee; 312]);
    assert_eq!(pair.b().bytes(&dst)[512..520], [7; 8]);
}

#[test]
fn postings_beyond_the_queue_are_refused() {
    let mut pair = Pair::connected();
    let qpns = pair.qpns;
    let sge = Sge { addr: 0, len: 0, lkey: BAD_LKEY };
    let device = &mut pair.a().device;
    assert_eq!(
        device.post_send(qpns[0], &request(SendOp::Send, Data::Sges(&[sge; 5]))),
        Err(PostError::TooManySges)
    );
    assert_eq!(
        device.check_post_send(qpns[0], &request(SendOp::Send, Data::Sges(&[sge; 5])), 0),
        Err(PostError::TooManySges)
    );
    let nothing = request(SendOp::Send, Data::Sges(&[]));
    assert_eq!(device.check_post_send(qpns[0], &nothing, 255), Ok(()));
    assert_eq!(device.check_post_send(qpns[0], &nothing, 256), Err(PostError::QueueFull));
    for _ in 0..256 {
        device.post_send(qpns[0], &request(SendOp::Send, Data::Sges(&[]))).unwrap();
        device.post_recv(qpns[0], &RecvWr { wr_id: 0, sges: &[] }).unwrap();
    }
    assert_eq!(device.post_send(qpns[0], &request(SendOp::Send, Data::Sges(&[]))), Err(PostError::QueueFull));
    assert_eq!(device.post_recv(qpns[0], &RecvWr { wr_id: 0, sges: &[] }), Err(PostError::QueueFull));
    assert_eq!(
        device.post_send(Qpn::new(0x999), &request(SendOp::Send, Data::Sges(&[]))),
        Err(PostError::NoSuchQueue)
    );
    let atomic = |len| {
        let sges = [Sge { len, ..sge }];
        let op = SendOp::FetchAdd { remote: RemoteAddr { addr: 0, rkey: Rkey(0) }, add: 1 };
        let wr = SendWr { wr_id: 1, op, data: Data::Sges(&sges), flags: SendFlags::empty(), ud: None };
        Device::post_send(&mut Pair::connected().nodes[0].device, qpns[0], &wr)
    };
    assert_eq!(atomic(8), Ok(()));
    assert_eq!(atomic(7), Err(PostError::InvalidLength));
}

#[test]
fn sq_sig_all_signals_all() {
    let mut pair = Pair::unconnected(Config::default());
    pair.qpns = pair.connect(QpType::Rc, Mtu::B1024, |init| init.sq_sig_all = true);
    let dst = pair.b().buffer(64, REMOTE, 0);
    let src = pair.a().buffer(64, Access::empty(), 1);
    let qpn = pair.qpns[0];
    pair.a().post_flags(qpn, 1, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)], SendFlags::empty());
    pair.run();
    assert_eq!(pair.a().sends().len(), 1);
}

#[test]
fn solicited_completions_wake_and_others_do_not() {
    let mut pair = Pair::connected();
    let (qpns, rcq) = (pair.qpns, pair.nodes[1].rcq);
    for n in 0..3 {
        pair.b().post_recv(qpns[1], n, &[]);
    }
    pair.b().device.req_notify_cq(rcq, true).unwrap();
    pair.post(1, SendOp::Send, &[]);
    pair.run();
    assert_eq!(pair.b().device.poll_cq_event(), None);
    pair.a().post_flags(qpns[0], 2, SendOp::Send, &[], SendFlags::SOLICITED);
    pair.post(3, SendOp::Send, &[]);
    pair.run();
    assert_eq!(pair.b().device.poll_cq_event(), Some(rcq));
    assert_eq!(pair.b().device.poll_cq_event(), None);
}

#[test]
fn a_full_cq_ends_the_qps_that_need_it_and_nothing_else() {
    let mut pair = Pair::unconnected(Config::default());
    let small = pair.a().device.create_cq(2).unwrap();
    pair.nodes[0].scq = small;
    pair.qpns = pair.connect(QpType::Rc, Mtu::B1024, |_| {});
    let qpns = pair.qpns;
    let dst = pair.b().buffer(64, REMOTE, 0);
    let src = pair.a().buffer(64, Access::empty(), 1);
    for n in 0..3 {
        pair.post(n, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
    }
    pair.run();
    assert_eq!(pair.a().events(), [AsyncEvent::CqError(small), AsyncEvent::QpFatal(qpns[0])]);
    assert_eq!(pair.a().state(qpns[0]), QpState::Err);
    assert_eq!(pair.a().sends().len(), 2);
    let mut out = Vec::new();
    assert_eq!(pair.a().device.poll_cq(small, &mut out, 1), Err(CqError::Overflow));
}

#[test]
fn receives_are_shared_and_the_limit_is_told_once() {
    let mut pair = Pair::unconnected(Config::default());
    let pd = pair.nodes[1].pd;
    let srq = pair.b().device.create_srq(pd, &SrqAttr { max_wr: 8, max_sge: 1, limit: 3 }).unwrap();
    let first = pair.connect(QpType::Rc, Mtu::B1024, |_| {});
    let second = pair.connect(QpType::Rc, Mtu::B1024, |_| {});
    // The responders use the SRQ: connect them anew.
    let with_srq = |pair: &mut Pair, peer: Qpn| {
        let b = pair.b();
        let (pd, scq, rcq) = (b.pd, b.scq, b.rcq);
        let init = QpInit {
            pd,
            ty: QpType::Rc,
            send_cq: scq,
            recv_cq: rcq,
            srq: Some(srq),
            caps: caps(),
            sq_sig_all: false,
        };
        let qpn = pair.b().device.create_qp(&init).unwrap();
        let now = pair.now;
        for attr in connect_attr(&pair.nodes[0], peer, Mtu::B1024) {
            pair.nodes[1].device.modify_qp(now, qpn, &attr).unwrap();
        }
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        pair.nodes[0].device.modify_qp(now, peer, &reset).unwrap();
        for attr in connect_attr(&pair.nodes[1], qpn, Mtu::B1024) {
            pair.nodes[0].device.modify_qp(now, peer, &attr).unwrap();
        }
        qpn
    };
    let receivers = [with_srq(&mut pair, first[0]), with_srq(&mut pair, second[0])];
    let dst = pair.b().buffer(8192, Access::LOCAL_WRITE, 0);
    let src = pair.a().buffer(8192, Access::empty(), 5);
    for n in 0..6u64 {
        let sges = [dst.sge(n * 1024, 1024)];
        pair.b().device.post_srq_recv(srq, &RecvWr { wr_id: n, sges: &sges }).unwrap();
    }
    assert_eq!(
        pair.b().device.post_recv(receivers[0], &RecvWr { wr_id: 0, sges: &[] }),
        Err(PostError::InvalidState)
    );
    for n in 0..4u64 {
        let qpn = [first[0], second[0]][n as usize % 2];
        pair.a().post(qpn, n, SendOp::Send, &[src.sge(0, 100)]);
        pair.run();
    }
    let recvs = pair.b().recvs();
    assert!(recvs.iter().map(|wc| wc.wr_id).eq(0..4));
    assert_eq!(recvs[1].qpn, receivers[1]);
    assert_eq!(pair.b().events(), [AsyncEvent::SrqLimitReached(srq)]);
    assert_eq!(pair.b().device.query_srq(srq).unwrap(), SrqAttr { max_wr: 8, max_sge: 1, limit: 0 });
    // An SRQ that runs dry is not ready, and the QP in error says that it takes no more.
    pair.a().post(first[0], 10, SendOp::Send, &[src.sge(0, 8)]);
    pair.a().post(second[0], 11, SendOp::Send, &[src.sge(0, 8)]);
    pair.run();
    pair.a().post(second[0], 12, SendOp::Send, &[src.sge(0, 8)]);
    pair.run_for(Duration::from_millis(1));
    assert!(pair.a().device.stats().rx_rnr_nak > 0);
    let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    let now = pair.now;
    pair.b().device.modify_qp(now, receivers[1], &err).unwrap();
    assert_eq!(pair.b().events(), [AsyncEvent::LastWqeReached(receivers[1])]);
    assert_eq!(pair.b().device.destroy_srq(srq), Err(VerbError::Busy("SRQ")));
    for qpn in receivers {
        pair.b().device.destroy_qp(qpn).unwrap();
    }
    pair.b().device.modify_srq(srq, Some(16), Some(16)).unwrap();
    assert!(pair.b().device.modify_srq(srq, Some(2), Some(3)).is_err());
    pair.b().device.destroy_srq(srq).unwrap();
}

/// Node B offers memory through a window; node A is the peer that uses it.
fn window(ty: MwType) -> (Pair, Buffer, Buffer, MwHandle, Rkey) {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(64, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(4096, Access::LOCAL_WRITE | Access::MW_BIND, 0xee);
    let pd = pair.nodes[1].pd;
    let (mw, rkey) = pair.b().device.alloc_mw(pd, ty).unwrap();
    (pair, src, dst, mw, rkey)
}

/// WRITEs to the window from node A on a fresh connection, as a refusal ends one.
fn poke(pair: &mut Pair, src: &Buffer, to: RemoteAddr) -> WcStatus {
    let wc = pair.execute(SendOp::Write(to), &[src.sge(0, 8)]);
    wc.status
}

#[test]
fn a_type_1_window_reaches_what_it_is_bound_to_and_its_rkey_changes() {
    let (mut pair, src, dst, mw, first) = window(MwType::Type1);
    let qpn = pair.qpns[1];
    let bind = MwBind { mr: dst.mr.lkey, addr: dst.addr + 1024, len: 64, access: Access::REMOTE_WRITE };
    let rkey = pair.b().device.bind_mw(qpn, 1, SendFlags::SIGNALED, mw, bind).unwrap();
    assert_ne!(rkey, first);
    pair.run();
    assert_eq!(ids(&pair.b().sends()), [(1, WcStatus::Success)]);
    assert_eq!(pair.b().device.dereg_mr(dst.mr.handle), Err(VerbError::Busy("MR")));
    let at = |rkey, offset| RemoteAddr { addr: dst.addr + offset, rkey };
    assert_eq!(poke(&mut pair, &src, at(rkey, 1024)), WcStatus::Success);
    assert_eq!(poke(&mut pair, &src, at(rkey, 1080)), WcStatus::Success);
    let again = pair.b().device.bind_mw(qpn, 2, SendFlags::empty(), mw, MwBind { len: 8, ..bind }).unwrap();
    pair.run();
    assert_eq!(poke(&mut pair, &src, at(again, 1024)), WcStatus::Success);
    // The old rkey is dead.
    assert_eq!(poke(&mut pair, &src, at(rkey, 1024)), WcStatus::RemAccessErr);
    let bytes = pair.b().bytes(&dst).to_vec();
    assert_eq!((&bytes[1024..1032], &bytes[1080..1088]), (&[0x11; 8][..], &[0x11; 8][..]));
    assert!(bytes[1032..1080].iter().all(|&byte| byte == 0xee));
    pair.b().device.dealloc_mw(mw).unwrap();
    pair.b().device.dereg_mr(dst.mr.handle).unwrap();
}

#[test]
fn binds_of_a_type_1_window_that_are_posted_together_have_an_rkey_each() {
    let (mut pair, src, dst, mw, first) = window(MwType::Type1);
    let qpn = pair.qpns[1];
    let bind = MwBind { mr: dst.mr.lkey, addr: dst.addr, len: 64, access: Access::REMOTE_WRITE };
    let mut rkeys = vec![first];
    for wr_id in 0..3 {
        let rkey = pair.b().device.bind_mw(qpn, wr_id, SendFlags::empty(), mw, bind).unwrap();
        assert!(!rkeys.contains(&rkey), "{rkey:?} was given out before");
        rkeys.push(rkey);
    }
    pair.run();
    assert_eq!(poke(&mut pair, &src, RemoteAddr { addr: dst.addr, rkey: rkeys[3] }), WcStatus::Success);
    assert_eq!(poke(&mut pair, &src, RemoteAddr { addr: dst.addr, rkey: rkeys[2] }), WcStatus::RemAccessErr);
}

#[test]
fn a_window_refuses_what_its_binding_does_not_allow() {
    for (offset, rights) in
        [(1020u64, Access::REMOTE_WRITE), (1084, Access::REMOTE_WRITE), (1024, Access::REMOTE_READ)]
    {
        let (mut pair, src, dst, mw, _) = window(MwType::Type1);
        let qpn = pair.qpns[1];
        let bind = MwBind { mr: dst.mr.lkey, addr: dst.addr + 1024, len: 64, access: rights };
        let rkey = pair.b().device.bind_mw(qpn, 1, SendFlags::empty(), mw, bind).unwrap();
        pair.run();
        let to = RemoteAddr { addr: dst.addr + offset, rkey };
        assert_eq!(poke(&mut pair, &src, to), WcStatus::RemAccessErr);
        assert_eq!(pair.b().mem.writes, 0);
    }
    // Unbound by a bind of length zero.
    let (mut pair, src, dst, mw, _) = window(MwType::Type1);
    let qpn = pair.qpns[1];
    let bind = MwBind { mr: dst.mr.lkey, addr: dst.addr, len: 64, access: Access::REMOTE_WRITE };
    pair.b().device.bind_mw(qpn, 1, SendFlags::empty(), mw, bind).unwrap();
    let rkey = pair.b().device.bind_mw(qpn, 2, SendFlags::empty(), mw, MwBind { len: 0, ..bind }).unwrap();
    pair.run();
    let to = RemoteAddr { addr: dst.addr, rkey };
    assert_eq!(poke(&mut pair, &src, to), WcStatus::RemAccessErr);
}

#[test]
fn a_bind_that_the_rules_refuse_is_a_bind_error() {
    for kind in 0..5 {
        let (mut pair, _, dst, mw, _) = window(MwType::Type1);
        let plain = pair.b().buffer(64, Access::LOCAL_WRITE, 0xee);
        let read_only = pair.b().buffer(64, Access::MW_BIND, 0xee);
        let good = MwBind { mr: dst.mr.lkey, addr: dst.addr, len: 64, access: Access::REMOTE_WRITE };
        let bind = match kind {
            0 => MwBind { mr: plain.mr.lkey, addr: plain.addr, ..good },
            1 => MwBind { mr: read_only.mr.lkey, addr: read_only.addr, ..good },
            2 => MwBind { len: 4097, ..good },
            3 => MwBind { mr: BAD_LKEY, ..good },
            _ => MwBind { access: Access::REMOTE_WRITE | Access::ZERO_BASED, ..good },
        };
        let qpn = pair.qpns[1];
        pair.b().device.bind_mw(qpn, 9, SendFlags::empty(), mw, bind).unwrap();
        pair.b().post(qpn, 10, SendOp::Send, &[]);
        pair.run();
        assert_eq!(ids(&pair.b().sends()), [(9, WcStatus::MwBindErr), (10, WcStatus::WrFlushErr)]);
        assert_eq!(pair.b().state(qpn), QpState::Err);
    }
}

#[test]
fn a_failed_local_operation_waits_for_what_was_posted_before_it() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(4096, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    pair.post(1, SendOp::Write(dst.remote(0)), &[src.sge(0, 4096)]);
    pair.post(2, SendOp::LocalInv(Rkey(0x1234)), &[]);
    pair.post(3, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
    pair.run();
    assert_eq!(
        ids(&pair.a().sends()),
        [(1, WcStatus::Success), (2, WcStatus::LocQpOpErr), (3, WcStatus::WrFlushErr)]
    );
}

#[test]
fn a_type_2_window_belongs_to_its_qp_and_is_invalidated() {
    let (mut pair, src, dst, mw, rkey) = window(MwType::Type2);
    let qpns = pair.qpns;
    let other = pair.connect(QpType::Rc, Mtu::B1024, |_| {});
    let bind = |rkey| SendOp::BindMw {
        mw,
        rkey,
        bind: MwBind {
            mr: dst.mr.lkey,
            addr: dst.addr + 100,
            len: 64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ZERO_BASED,
        },
    };
    let key = Rkey(rkey.0 ^ 0x5a);
    pair.b().post(qpns[1], 1, bind(key), &[]);
    pair.run();
    // Zero-based: addresses count from the window's start.
    let to = RemoteAddr { addr: 0, rkey: key };
    assert_eq!(poke(&mut pair, &src, to), WcStatus::Success);
    assert_eq!(pair.b().bytes(&dst)[100..108], [0x11; 8]);
    // Not through another QP.
    pair.a().post(other[0], 5, SendOp::Write(to), &[src.sge(0, 8)]);
    pair.run();
    assert_eq!(ids(&pair.a().sends()), [(5, WcStatus::RemAccessErr)]);
    // Invalidated by its owner, then bound anew under another variant.
    let fresh = Rkey(rkey.0 ^ 0x33);
    pair.b().post(qpns[1], 2, SendOp::LocalInv(key), &[]);
    pair.b().post(qpns[1], 3, bind(fresh), &[]);
    pair.run();
    assert!(pair.b().sends().iter().all(|wc| wc.status == WcStatus::Success));
    let to = RemoteAddr { rkey: fresh, ..to };
    assert_eq!(poke(&mut pair, &src, to), WcStatus::Success);
    // Invalidated by the peer, with its last message.
    pair.b().post_recv(qpns[1], 7, &[]);
    assert_eq!(pair.execute(SendOp::SendInv(fresh), &[]).status, WcStatus::Success);
    let recv = pair.b().recvs().remove(0);
    assert_eq!((recv.invalidated, recv.status), (Some(fresh), WcStatus::Success));
    assert_eq!(poke(&mut pair, &src, to), WcStatus::RemAccessErr);
}

#[test]
fn an_rkey_that_cannot_be_invalidated_is_the_receivers_error() {
    let mut pair = Pair::connected();
    let qpns = pair.qpns;
    let dst = pair.b().buffer(64, REMOTE, 0);
    pair.b().post_recv(qpns[1], 7, &[]);
    // An MR of the peer is not for others to invalidate.
    assert_eq!(pair.execute(SendOp::SendInv(dst.mr.rkey), &[]).status, WcStatus::Success);
    assert_eq!(ids(&pair.b().recvs()), [(7, WcStatus::RemInvReqErr)]);
    assert_eq!(pair.b().state(qpns[1]), QpState::Err);
}

#[test]
fn rereg_keeps_the_keys() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(64, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(64, Access::REMOTE_READ, 0);
    let b = pair.b();
    let span = Span { region: dst.region, offset: 64, len: 32 };
    let attr = MrAttr { span, iova: 0x9000, access: REMOTE };
    b.device.rereg_mr(dst.mr.handle, None, Some(&attr), &b.mem).unwrap();
    let to = RemoteAddr { addr: 0x9000, rkey: dst.mr.rkey };
    assert_eq!(poke(&mut pair, &src, to), WcStatus::Success);
    let b = pair.b();
    let bad = MrAttr { access: Access::REMOTE_WRITE, ..attr };
    assert!(b.device.rereg_mr(dst.mr.handle, None, Some(&bad), &b.mem).is_err());
    let pd = b.device.alloc_pd().unwrap();
    b.device.rereg_mr(dst.mr.handle, Some(pd), None, &b.mem).unwrap();
    assert_eq!(poke(&mut pair, &src, to), WcStatus::RemAccessErr);
    let b = pair.b();
    b.device.dereg_mr(dst.mr.handle).unwrap();
    assert_eq!(b.device.dereg_mr(dst.mr.handle), Err(VerbError::NoSuchObject("MR")));
    b.device.dealloc_pd(pd).unwrap();
}

#[test]
fn flush_rights_need_memory_that_can() {
    let mut pair = Pair::connected();
    let b = pair.b();
    b.mem.regions.push(vec![0; 64]);
    let span = Span { region: RegionId(0), offset: 0, len: 64 };
    let attr = |access| MrAttr { span, iova: 0, access };
    b.mem.support = PlacementSupport::GLOBAL_VISIBILITY;
    assert!(b.device.reg_mr(b.pd, &attr(Access::FLUSH_GLOBAL), &b.mem).is_ok());
    assert!(matches!(
        b.device.reg_mr(b.pd, &attr(Access::FLUSH_PERSISTENT), &b.mem),
        Err(VerbError::Unsupported(_))
    ));
    b.mem.support = PlacementSupport::empty();
    assert!(b.device.reg_mr(b.pd, &attr(Access::FLUSH_GLOBAL), &b.mem).is_err());
    assert!(b.device.reg_mr(b.pd, &attr(Access::REMOTE_ATOMIC), &b.mem).is_err());
}

#[test]
fn uc_messages_arrive_whole_or_not_at_all() {
    let mut pair =
        Pair::unconnected(Config { window: WindowLimits { initial: 4, max: 8 }, ..Config::default() });
    pair.qpns = pair.connect(QpType::Uc, Mtu::B256, |_| {});
    let qpns = pair.qpns;
    let src = pair.a().buffer(100_000, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(100_000, REMOTE, 0xee);
    // Longer than any window: nobody acknowledges UC.
    assert_eq!(pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 60_000)]).status, WcStatus::Success);
    assert!(pair.b().bytes(&dst)[..60_000].iter().all(|&byte| byte == 0x11));
    // A packet of the first message is lost: it does not complete, and its receive serves the next.
    pair.b().post_recv(qpns[1], 1, &[dst.sge(70_000, 2000)]);
    pair.b().post_recv(qpns[1], 2, &[dst.sge(80_000, 2000)]);
    let mut n = 0;
    pair.hook = Some(Box::new(move |_, _| {
        n += 1;
        if n == 3 { Fate::Drop } else { Fate::Deliver }
    }));
    pair.post(1, SendOp::SendImm(1), &[src.sge(0, 2000)]);
    pair.post(2, SendOp::SendImm(2), &[src.sge(0, 1000)]);
    pair.post(3, SendOp::WriteImm(dst.remote(90_000), 3), &[src.sge(0, 10)]);
    pair.run();
    assert_eq!(pair.a().sends().len(), 3, "sent is done");
    let recvs: Vec<_> = pair.b().recvs().iter().map(|wc| (wc.wr_id, wc.imm, wc.byte_len)).collect();
    assert_eq!(recvs, [(1, Some(2), 1000), (2, Some(3), 10)]);
    // No receive, one that is too small, a bad key: dropped, and the QP lives.
    let stats = |pair: &Pair| pair.nodes[1].device.stats().dropped_for(DropReason::NoReceive);
    pair.post(4, SendOp::Send, &[src.sge(0, 10)]);
    pair.run();
    assert_eq!(stats(&pair), 1);
    pair.b().post_recv(qpns[1], 5, &[dst.sge(0, 5)]);
    pair.post(5, SendOp::Send, &[src.sge(0, 10)]);
    pair.post(6, SendOp::Write(RemoteAddr { rkey: Rkey(1), ..dst.remote(0) }), &[src.sge(0, 10)]);
    pair.post(7, SendOp::Write(RemoteAddr { addr: 0, rkey: dst.mr.rkey }), &[src.sge(0, 1000)]);
    pair.post(8, SendOp::Send, &[src.sge(0, 5)]);
    pair.run();
    assert_eq!(pair.b().state(qpns[1]), QpState::Rts);
    assert_eq!(ids(&pair.b().recvs()), [(5, WcStatus::Success)]);
    // What RC has and UC has not.
    let read = SendWr {
        wr_id: 1,
        op: SendOp::Read(dst.remote(0)),
        data: Data::Sges(&[]),
        flags: SendFlags::empty(),
        ud: None,
    };
    assert_eq!(pair.a().device.post_send(qpns[0], &read), Err(PostError::InvalidOperation));
}

#[test]
fn uc_survives_any_weather() {
    for seed in 0..50 {
        let mut pair = Pair::unconnected(Config::default());
        pair.qpns = pair.connect(QpType::Uc, Mtu::B256, |_| {});
        let qpns = pair.qpns;
        let src = pair.a().buffer(4096, Access::LOCAL_WRITE, 0x11);
        let dst = pair.b().buffer(4096, REMOTE, 0xee);
        pair.weather(seed, 10, 10, 20, 5);
        for n in 0..50 {
            pair.b().post_recv(qpns[1], n, &[dst.sge(0, 2000)]);
            pair.post(n, SendOp::SendImm(n as u32), &[src.sge(0, 100 * (n as u32 % 16))]);
        }
        pair.run();
        assert_eq!(pair.a().sends().len(), 50);
        for wc in pair.b().recvs() {
            assert_eq!(wc.status, WcStatus::Success);
            assert_eq!(wc.byte_len, 100 * (wc.imm.unwrap() % 16), "whole messages only");
        }
    }
}

/// A UD pair with an address handle to the peer at each end.
fn datagrams(config: Config) -> (Pair, [AhHandle; 2]) {
    let mut pair = Pair::unconnected(config);
    pair.qpns = pair.connect(QpType::Ud, Mtu::B1024, |_| {});
    let ahs = [0, 1].map(|at| {
        let attr = AhAttr::new(Gid::from_ip(pair.nodes[1 - at].ip));
        let node = &mut pair.nodes[at];
        node.device.create_ah(node.pd, &attr).unwrap()
    });
    (pair, ahs)
}

fn send_ud(pair: &mut Pair, wr_id: u64, dest: UdDest, sges: &[Sge]) -> Result<(), PostError> {
    let wr = SendWr {
        wr_id,
        op: SendOp::SendImm(wr_id as u32),
        data: Data::Sges(sges),
        flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
        ud: Some(dest),
    };
    let qpn = pair.qpns[0];
    pair.a().device.post_send(qpn, &wr)
}

#[test]
fn a_datagram_brings_its_ip_header_and_its_sender() {
    let (mut pair, ahs) = datagrams(Config::default());
    let qpns = pair.qpns;
    let src = pair.a().buffer(5000, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(5000, Access::LOCAL_WRITE, 0xee);
    let dest = UdDest { ah: ahs[0], qpn: qpns[1], qkey: Qkey(0x1111) };
    pair.b().post_recv(qpns[1], 1, &[dst.sge(0, 20), dst.sge(100, 120)]);
    send_ud(&mut pair, 5, dest, &[src.sge(0, 100)]).unwrap();
    pair.run();
    assert_eq!(ids(&pair.a().sends()), [(5, WcStatus::Success)]);
    let wc = pair.b().recvs().remove(0);
    assert_eq!((wc.byte_len, wc.grh, wc.src_qp, wc.imm, wc.solicited), (140, true, qpns[0], Some(5), true));
    let bytes = pair.b().bytes(&dst).to_vec();
    assert_eq!(bytes[..20], [0; 20]);
    let (header, _) = remanence_wire::ip::Repr::parse(&[&bytes[100..120], &[0; 256][..]].concat()).unwrap();
    assert_eq!((header.src, header.dst, header.hop_limit), (pair.nodes[0].ip, pair.nodes[1].ip, 64));
    assert_eq!(bytes[120..220], [0x11; 100]);
    assert_eq!(bytes[220], 0xee);

    // A wrong Q_Key, no receive, one too small: dropped, each for its reason.
    send_ud(&mut pair, 6, UdDest { qkey: Qkey(1), ..dest }, &[src.sge(0, 8)]).unwrap();
    send_ud(&mut pair, 7, dest, &[src.sge(0, 8)]).unwrap();
    pair.run();
    pair.b().post_recv(qpns[1], 2, &[dst.sge(0, 47)]);
    send_ud(&mut pair, 8, dest, &[src.sge(0, 8)]).unwrap();
    send_ud(&mut pair, 9, dest, &[src.sge(0, 7)]).unwrap();
    pair.run();
    let stats = pair.nodes[1].device.stats();
    assert_eq!(stats.dropped_for(DropReason::BadQkey), 1);
    assert_eq!(stats.dropped_for(DropReason::NoReceive), 2);
    assert_eq!(pair.b().recvs()[0].imm, Some(9), "the receive that was too small is still there");

    // A controlled Q_Key is replaced by the QP's own.
    pair.b().post_recv(qpns[1], 3, &[dst.sge(0, 100)]);
    send_ud(&mut pair, 10, UdDest { qkey: Qkey(0x8000_0000), ..dest }, &[src.sge(0, 7)]).unwrap();
    pair.run();
    assert_eq!(pair.b().recvs().len(), 1);
    assert_eq!(send_ud(&mut pair, 1, dest, &[src.sge(0, 4097)]), Err(PostError::InvalidLength));
    assert_eq!(send_ud(&mut pair, 1, UdDest { ah: AhHandle(77), ..dest }, &[]), Err(PostError::InvalidAh));
}

#[test]
fn datagrams_to_one_peer_leave_in_batches_and_to_two_do_not() {
    let (mut pair, ahs) = datagrams(Config::default());
    let src = pair.a().buffer(64, Access::LOCAL_WRITE, 0x11);
    let gid = Gid::from_ip("10.0.0.77".parse().unwrap());
    let pd = pair.nodes[0].pd;
    let away = pair.a().device.create_ah(pd, &AhAttr::new(gid)).unwrap();
    let qpns = pair.qpns;
    for n in 0..12 {
        let ah = if n == 8 { away } else { ahs[0] };
        send_ud(&mut pair, n, UdDest { ah, qpn: qpns[1], qkey: Qkey(0x1111) }, &[src.sge(0, 64)]).unwrap();
    }
    pair.collect();
    assert_eq!(pair.batches, [8, 1, 3]);
}

#[test]
fn an_address_handle_destroyed_too_early_fails_the_send() {
    let (mut pair, ahs) = datagrams(Config::default());
    let qpns = pair.qpns;
    send_ud(&mut pair, 1, UdDest { ah: ahs[0], qpn: qpns[1], qkey: Qkey(0x1111) }, &[]).unwrap();
    pair.a().device.destroy_ah(ahs[0]).unwrap();
    pair.run();
    assert_eq!(ids(&pair.a().sends()), [(1, WcStatus::LocQpOpErr)]);
    assert_eq!(pair.a().state(qpns[0]), QpState::Sqe);
}

#[test]
fn a_multicast_datagram_reaches_every_member() {
    let (mut pair, _) = datagrams(Config::default());
    let group = Gid::from_ip("230.0.0.5".parse().unwrap());
    let second = pair.connect(QpType::Ud, Mtu::B1024, |_| {});
    let outsider = pair.connect(QpType::Ud, Mtu::B1024, |_| {});
    let qpns = pair.qpns;
    let dst = pair.b().buffer(4096, Access::LOCAL_WRITE, 0);
    for qpn in [qpns[1], second[1], outsider[1]] {
        pair.b().post_recv(qpn, qpn.value().into(), &[dst.sge(0, 1000)]);
    }
    pair.b().device.attach_mcast(qpns[1], group).unwrap();
    pair.b().device.attach_mcast(second[1], group).unwrap();
    assert!(pair.b().device.attach_mcast(qpns[1], Gid::from_ip("10.0.0.1".parse().unwrap())).is_err());
    let pd = pair.nodes[0].pd;
    let ah = pair.a().device.create_ah(pd, &AhAttr::new(group)).unwrap();
    send_ud(&mut pair, 1, UdDest { ah, qpn: Qpn::MULTICAST, qkey: Qkey(0x1111) }, &[]).unwrap();
    pair.run();
    let got: Vec<_> = pair.b().recvs().iter().map(|wc| wc.qpn).collect();
    assert_eq!(got, [qpns[1], second[1]]);
    pair.b().device.detach_mcast(qpns[1], group).unwrap();
    assert!(pair.b().device.detach_mcast(qpns[1], group).is_err());
    assert_eq!(pair.b().device.poll_left_group(), None, "one member is left");

    // A group's address goes with the QP number of groups only.
    let before = pair.b().device.stats().clone();
    send_ud(&mut pair, 2, UdDest { ah, qpn: outsider[1], qkey: Qkey(0x1111) }, &[]).unwrap();
    pair.run();
    assert_eq!(pair.b().recvs(), []);
    assert_eq!(pair.b().device.stats().rx_packets, before.rx_packets + 1);

    pair.b().device.destroy_qp(second[1]).unwrap();
    assert_eq!(pair.b().device.poll_left_group(), Some(group));
    assert_eq!(pair.b().device.poll_left_group(), None);
}

#[test]
fn multicast_groups_and_their_members_are_limited() {
    let limits = Config { max_mcast_groups: 1, max_mcast_qps: 2, ..Config::default() };
    let (mut pair, _) = datagrams(limits);
    let group = |n| Gid::from_ip(std::net::IpAddr::from([230, 0, 0, n]));
    let qpns = [0; 3].map(|_| pair.connect(QpType::Ud, Mtu::B1024, |_| {})[1]);
    let device = &mut pair.b().device;
    device.attach_mcast(qpns[0], group(1)).unwrap();
    device.attach_mcast(qpns[1], group(1)).unwrap();
    device.attach_mcast(qpns[1], group(1)).unwrap();
    assert!(matches!(device.attach_mcast(qpns[2], group(1)), Err(VerbError::NoRoom(_))));
    assert!(matches!(device.attach_mcast(qpns[2], group(2)), Err(VerbError::NoRoom(_))));
    device.detach_mcast(qpns[0], group(1)).unwrap();
    device.attach_mcast(qpns[2], group(1)).unwrap();
    assert!(device.groups().eq([group(1)]));
}

#[test]
fn mads_travel_between_qps_1_and_floods_are_bounded() {
    let mut pair = Pair::unconnected(Config::default());
    let mut mad = [0; MAD_LEN];
    mad[0] = 1;
    mad[255] = 9;
    let to = AhAttr::new(Gid::from_ip(pair.nodes[1].ip));
    pair.a().device.send_mad(&to, &mad).unwrap();
    pair.run();
    let got = pair.b().device.poll_mad().unwrap();
    assert_eq!(*got.mad, mad);
    assert_eq!(got.from, Gid::from_ip(pair.nodes[0].ip));
    assert_eq!(got.to, Gid::from_ip(pair.nodes[1].ip));
    assert_eq!(pair.b().device.poll_mad(), None);
    for _ in 0..3 {
        for _ in 0..1000 {
            pair.a().device.send_mad(&to, &mad).unwrap();
        }
        pair.run();
    }
    assert_eq!(std::iter::from_fn(|| pair.b().device.poll_mad()).count(), 1024);
    assert_eq!(pair.b().device.stats().dropped_for(DropReason::MadOverflow), 3000 - 1024);
}

#[test]
fn ipv6_is_spoken_too() {
    let ips = ["fd00::1", "fd00::2"].map(|ip| ip.parse().unwrap());
    let mut pair = Pair::unconnected(Config::default());
    for at in [0, 1] {
        pair.nodes[at].ip = ips[at];
        pair.nodes[at].device.set_gid(0, Some(Gid::from_ip(ips[at])));
    }
    pair.qpns = pair.connect(QpType::Rc, Mtu::B1024, |_| {});
    let src = pair.a().buffer(10_000, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(10_000, REMOTE, 0);
    assert_eq!(pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 10_000)]).status, WcStatus::Success);
    assert_eq!(pair.b().bytes(&dst), [0x11; 10_000]);
}

#[test]
fn a_source_port_stays_with_its_qp() {
    let mut ports = Vec::new();
    for source_port in [SourcePort::PerQp, SourcePort::Fixed(4791)] {
        let mut pair = Pair::connected_with(Config { source_port, ..Config::default() }, Mtu::B1024);
        let more = pair.connect(QpType::Rc, Mtu::B1024, |_| {});
        let dst = pair.b().buffer(64, REMOTE, 0);
        let src = pair.a().buffer(64, Access::empty(), 1);
        for qpn in [pair.qpns[0], more[0]] {
            pair.a().post(qpn, 1, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
        }
        let mut buf = vec![0; 65_507];
        let now = pair.now;
        let a = pair.a();
        while let Some(t) = a.device.poll_transmit(now, &mut buf, 64, &mut a.mem) {
            ports.push(t.src_port);
        }
    }
    assert!(ports[..2].iter().all(|&port| port >= 0xc000) && ports[0] != ports[1], "{ports:?}");
    assert_eq!(ports[2..], [4791, 4791]);
}

#[test]
fn ten_thousand_qps_live_in_one_device_within_their_memory() {
    let mut pair = Pair::unconnected(Config::default());
    let src = pair.a().buffer(64, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(8 * 10_000, REMOTE, 0);
    let all: Vec<_> = (0..10_000).map(|_| pair.connect(QpType::Rc, Mtu::B1024, |_| {})).collect();
    for (n, qpns) in all.iter().enumerate() {
        pair.a().post(qpns[0], n as u64, SendOp::Write(dst.remote(8 * n as u64)), &[src.sge(0, 8)]);
        if n % 1000 == 999 {
            pair.run();
            assert_eq!(pair.a().sends().len(), 1000);
        }
    }
    assert_eq!(pair.b().bytes(&dst), vec![0x11; 80_000]);
    // Idle, they want nothing: no packet, and no deadline that comes back.
    pair.run();
    assert_eq!(pair.a().device.poll_timeout(), None);
    for (at, qpns) in all.iter().flat_map(|qpns| [(0, qpns[0]), (1, qpns[1])]) {
        let bytes = pair.nodes[at].device.qp_footprint(qpns).unwrap();
        assert!(bytes <= 16 * 1024, "{bytes} bytes beside the queues");
    }
    for qpns in &all {
        pair.a().device.destroy_qp(qpns[0]).unwrap();
    }
    // Their numbers are not used again soon.
    let qpn = pair.connect(QpType::Rc, Mtu::B1024, |_| {})[0];
    assert!(!all.iter().any(|qpns| qpns[0] == qpn));
}

#[test]
fn qp_numbers_come_in_blocks() {
    let mut pair = Pair::unconnected(Config { qpns: 0x100..0x102, ..Config::default() });
    let node = pair.a();
    let init = QpInit {
        pd: node.pd,
        ty: QpType::Rc,
        send_cq: node.scq,
        recv_cq: node.rcq,
        srq: None,
        caps: caps(),
        sq_sig_all: false,
    };
    let mut create = || node.device.create_qp(&init);
    assert_eq!((create().unwrap(), create().unwrap()), (Qpn::new(0x100), Qpn::new(0x101)));
    assert_eq!(create(), Err(VerbError::NoRoom("QP")));
    node.device.add_qpns(0x2000..0x2001);
    assert_eq!(node.device.create_qp(&init), Ok(Qpn::new(0x2000)));
    node.device.destroy_qp(Qpn::new(0x100)).unwrap();
    assert_eq!(node.device.create_qp(&init), Ok(Qpn::new(0x100)));
    assert_eq!(node.state(Qpn::new(0x2000)), QpState::Reset);
    assert_eq!(pair.sent(0, Opcode::RcAck), 0);
}
