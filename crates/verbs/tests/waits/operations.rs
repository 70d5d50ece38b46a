//! Every operation between two devices over real sockets: the bytes, the completions, and what was not touched.

use crate::common;

use common::{ALL, Pair, Side, address_of, open, pattern, wr};
use remanence_pmem::{FileOptions, Region};
use remanence_rnic::{
    Access, AhAttr, Data, MwBind, MwType, Placement, QpCaps, QpType, RecvWr, RemoteAddr, Selectivity,
    SendFlags, SendOp, SendWr, SrqAttr, WcOpcode, WcStatus,
};
use remanence_verbs::{Progress, QpOptions};
use remanence_wire::{Gid, Qkey, Rkey};

const SIZES: [usize; 9] = [0, 1, 7, 64, 4095, 4096, 4097, 65_536, 300_001];

#[test]
fn a_write_puts_the_bytes_there_and_nothing_beside() {
    let pair = Pair::new();
    for (i, len) in SIZES.into_iter().enumerate() {
        let data = pattern(len, i as u8);
        pair.a.fill(0, &data);
        pair.b.fill(0, &vec![0xee; len + 20]);
        let sge = [pair.a.mr.sge(0, len as u32)];
        pair.qa.post_send(&wr(i as u64, SendOp::Write(pair.b.mr.remote(10)), &sge)).unwrap();
        let wc = pair.a.success();
        assert_eq!((wc.wr_id, wc.opcode), (i as u64, WcOpcode::RdmaWrite));
        let got = pair.b.bytes(0, len + 20);
        assert_eq!(got[10..10 + len], data, "{len} bytes");
        assert!(got[..10].iter().chain(&got[10 + len..]).all(|&byte| byte == 0xee), "{len} bytes");
    }
}

#[test]
fn a_read_brings_the_bytes_and_nothing_beside() {
    let pair = Pair::new();
    for (i, len) in SIZES.into_iter().enumerate() {
        let data = pattern(len, i as u8);
        pair.b.fill(10, &data);
        pair.a.fill(0, &vec![0xee; len + 20]);
        let sge = [pair.a.mr.sge(10, len as u32)];
        pair.qa.post_send(&wr(i as u64, SendOp::Read(pair.b.mr.remote(10)), &sge)).unwrap();
        let wc = pair.a.success();
        assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaRead, len));
        let got = pair.a.bytes(0, len + 20);
        assert_eq!(got[10..10 + len], data, "{len} bytes");
        assert!(got[..10].iter().chain(&got[10 + len..]).all(|&byte| byte == 0xee), "{len} bytes");
    }
}

#[test]
fn sends_scatter_and_gather_with_immediate_and_inline() {
    let pair = Pair::new();
    let data = pattern(5000, 3);
    pair.a.fill(0, &data);
    let pieces = [pair.b.mr.sge(0, 100), pair.b.mr.sge(1000, 4000), pair.b.mr.sge(8000, 4000)];
    pair.qb.post_recv(&RecvWr { wr_id: 7, sges: &pieces }).unwrap();
    let gathered = [pair.a.mr.sge(0, 2500), pair.a.mr.sge(2500, 2500)];
    pair.qa.post_send(&wr(1, SendOp::SendImm(0xdead_beef), &gathered)).unwrap();
    assert_eq!(pair.a.success().opcode, WcOpcode::Send);
    let wc = pair.b.success();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len, wc.imm), (7, WcOpcode::Recv, 5000, Some(0xdead_beef)));
    let got = [pair.b.bytes(0, 100), pair.b.bytes(1000, 4000), pair.b.bytes(8000, 900)].concat();
    assert_eq!(got, data);

    pair.qb.post_recv(&RecvWr { wr_id: 8, sges: &[pair.b.mr.sge(0, 100)] }).unwrap();
    let inline = SendWr { data: Data::Inline(b"inline"), ..wr(2, SendOp::Send, &[]) };
    pair.qa.post_send(&inline).unwrap();
    pair.a.success();
    assert_eq!((pair.b.success().byte_len, pair.b.bytes(0, 6)), (6, b"inline".to_vec()));
}

#[test]
fn a_write_with_immediate_takes_a_receive() {
    let pair = Pair::new();
    pair.a.fill(0, b"written");
    pair.qb.post_recv(&RecvWr { wr_id: 9, sges: &[] }).unwrap();
    let sge = [pair.a.mr.sge(0, 7)];
    pair.qa.post_send(&wr(1, SendOp::WriteImm(pair.b.mr.remote(100), 42), &sge)).unwrap();
    pair.a.success();
    let wc = pair.b.success();
    assert_eq!((wc.wr_id, wc.opcode, wc.imm), (9, WcOpcode::RecvRdmaWithImm, Some(42)));
    assert_eq!(pair.b.bytes(100, 7), b"written");
}

#[test]
fn atomics_return_what_was_there() {
    let pair = Pair::new();
    pair.b.mr.region().store_u64(64, 41);
    let sge = [pair.a.mr.sge(0, 8)];
    let remote = pair.b.mr.remote(64);
    pair.qa.post_send(&wr(1, SendOp::FetchAdd { remote, add: 1 }, &sge)).unwrap();
    assert_eq!(pair.a.success().opcode, WcOpcode::FetchAdd);
    assert_eq!((pair.a.mr.region().load_u64(0), pair.b.mr.region().load_u64(64)), (41, 42));
    for (compare, after) in [(7, 42), (42, 99)] {
        pair.qa.post_send(&wr(2, SendOp::CompareSwap { remote, compare, swap: 99 }, &sge)).unwrap();
        assert_eq!(pair.a.success().opcode, WcOpcode::CompSwap);
        assert_eq!((pair.a.mr.region().load_u64(0), pair.b.mr.region().load_u64(64)), (42, after));
    }
    pair.a.fill(0, b"8 bytes.");
    pair.qa.post_send(&wr(3, SendOp::AtomicWrite(remote), &sge)).unwrap();
    assert_eq!(pair.a.success().opcode, WcOpcode::AtomicWrite);
    assert_eq!(pair.b.bytes(64, 8), b"8 bytes.");
}

fn flush(remote: RemoteAddr, len: u32, placement: Placement) -> SendOp {
    SendOp::Flush { remote, len, placement, selectivity: Selectivity::Range }
}

#[test]
fn a_flush_to_persistence_completes_on_a_file_and_is_refused_where_nothing_persists() {
    let path = std::env::temp_dir().join(format!("remanence-verbs-{}-flush", std::process::id()));
    let region = FileOptions::new().create_new(1 << 20).open(&path).unwrap();
    let durable = region.domain().guarantee().is_durable();
    let wants = ALL | Access::FLUSH_PERSISTENT;
    let b = open(Progress::default());
    if durable {
        let pair = Pair::of(Side::new(), Side::with_memory(b, &region, wants));
        pair.a.fill(0, &pattern(10_000, 1));
        let sge = [pair.a.mr.sge(0, 10_000)];
        for round in 0..20 {
            let remote = pair.b.mr.remote(round * 10_000);
            pair.qa.post_send(&wr(0, SendOp::Write(remote), &sge)).unwrap();
            pair.qa.post_send(&wr(1, flush(remote, 10_000, Placement::Persistence), &[])).unwrap();
            assert_eq!(pair.a.success().opcode, WcOpcode::RdmaWrite);
            assert_eq!(pair.a.success().opcode, WcOpcode::Flush);
        }
        let on_disk = std::fs::read(&path).unwrap();
        assert_eq!(on_disk[..10_000], pattern(10_000, 1));
    } else {
        println!("skipped: {} makes nothing durable", region.domain());
        assert!(b.alloc_pd().unwrap().reg_mr(&region, wants).is_err());
    }
    std::fs::remove_file(&path).unwrap();

    let volatile = Region::anonymous(4096).unwrap();
    let side = Side::with_memory(open(Progress::default()), &volatile, ALL);
    let refused = side.pd.reg_mr(&volatile, wants).unwrap_err();
    assert!(refused.to_string().contains("persistence"), "{refused}");
    // Asked for all the same, it is the peer that refuses, and global visibility it can give.
    let pair = Pair::of(Side::new(), side);
    pair.qa.post_send(&wr(1, flush(pair.b.mr.remote(0), 64, Placement::GlobalVisibility), &[])).unwrap();
    assert_eq!(pair.a.success().opcode, WcOpcode::Flush);
    pair.qa.post_send(&wr(2, flush(pair.b.mr.remote(0), 64, Placement::Persistence), &[])).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::RemAccessErr);
}

#[test]
fn a_wrong_rkey_is_refused_and_touches_nothing() {
    let pair = Pair::new();
    pair.b.fill(0, &[0xee; 64]);
    let remote = RemoteAddr { rkey: Rkey(pair.b.mr.rkey().0 ^ 0x0100), ..pair.b.mr.remote(0) };
    pair.qa.post_send(&wr(1, SendOp::Write(remote), &[pair.a.mr.sge(0, 64)])).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::RemAccessErr);
    assert_eq!(pair.b.bytes(0, 64), [0xee; 64]);
    // The QP is in the error state: whatever is posted comes back flushed.
    pair.qa.post_send(&wr(2, SendOp::Write(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 64)])).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::WrFlushErr);
}

#[test]
fn a_memory_window_opens_a_part_and_closes_again() {
    let pair = Pair::new();
    let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
    let bind = MwBind { mr: pair.b.mr.lkey(), addr: 4096, len: 100, access: Access::REMOTE_WRITE };
    let op = SendOp::BindMw { mw: mw.raw(), rkey: mw.rkey(), bind };
    pair.qb.post_send(&wr(1, op, &[])).unwrap();
    assert_eq!(pair.b.success().opcode, WcOpcode::BindMw);
    pair.a.fill(0, b"through the window");
    let sge = [pair.a.mr.sge(0, 18)];
    let through = RemoteAddr { addr: 4100, rkey: mw.rkey() };
    pair.qa.post_send(&wr(2, SendOp::Write(through), &sge)).unwrap();
    pair.a.success();
    assert_eq!(pair.b.bytes(4100, 18), b"through the window");
    drop(mw);
    pair.qa.post_send(&wr(3, SendOp::Write(through), &sge)).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::RemAccessErr);
}

#[test]
fn unreliable_datagrams_arrive_with_their_senders_name() {
    let (a, b) = (Side::new(), Side::new());
    let caps = QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
    let create = |side: &Side| {
        let qp = side.pd.create_qp(&QpOptions { ty: QpType::Ud, caps, ..QpOptions::rc(&side.cq) }).unwrap();
        qp.activate_ud(Qkey(0x1234)).unwrap();
        qp
    };
    let (qa, qb) = (create(&a), create(&b));
    let ah = a.pd.create_ah(&AhAttr::new(Gid::from_ip(address_of(&b.context)))).unwrap();
    qb.post_recv(&RecvWr { wr_id: 5, sges: &[b.mr.sge(0, 140)] }).unwrap();
    a.fill(0, &pattern(100, 9));
    let sges = [a.mr.sge(0, 100)];
    let send = SendWr { ud: Some(ah.dest(qb.qpn(), Qkey(0x1234))), ..wr(1, SendOp::SendImm(77), &sges) };
    qa.post_send(&send).unwrap();
    a.success();
    let wc = b.success();
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm, wc.src_qp, wc.grh), (5, 140, Some(77), qa.qpn(), true));
    assert_eq!(b.bytes(40, 100), pattern(100, 9));
}

#[test]
fn a_shared_receive_queue_serves_several_qps() {
    let (a, b) = (Side::new(), Side::new());
    let srq = b.pd.create_srq(&SrqAttr { max_wr: 64, max_sge: 1, limit: 0 }).unwrap();
    let mut qps = Vec::new();
    for i in 0..8u64 {
        let qb = b.pd.create_qp(&QpOptions { srq: Some(&srq), ..QpOptions::rc(&b.cq) }).unwrap();
        let qa = a.qp();
        common::connect(&qa, &qb);
        srq.post_recv(&RecvWr { wr_id: i, sges: &[b.mr.sge(i * 64, 64)] }).unwrap();
        qps.push((qa, qb));
    }
    for (i, (qa, qb)) in qps.iter().enumerate() {
        a.fill(0, &[i as u8; 64]);
        qa.post_send(&wr(i as u64, SendOp::Send, &[a.mr.sge(0, 64)])).unwrap();
        a.success();
        let wc = b.success();
        assert_eq!((wc.wr_id, wc.qpn), (i as u64, qb.qpn()));
        assert_eq!(b.bytes(i as u64 * 64, 64), [i as u8; 64]);
    }
}

#[test]
fn a_qp_may_be_connected_to_another_of_its_own_device() {
    let side = Side::new();
    let (qa, qb) = (side.qp(), side.qp());
    common::connect(&qa, &qb);
    side.fill(0, b"to myself");
    qa.post_send(&wr(1, SendOp::Write(side.mr.remote(4096)), &[side.mr.sge(0, 9)])).unwrap();
    side.success();
    assert_eq!(side.bytes(4096, 9), b"to myself");
}

#[test]
fn unsignalled_work_completes_silently_and_in_order_before_what_is_signalled() {
    let pair = Pair::new();
    let sge = [pair.a.mr.sge(0, 64)];
    for i in 0..100u64 {
        pair.a.mr.region().store_u64(0, i);
        let op = SendOp::Write(pair.b.mr.remote(i * 64));
        let flags = if i == 99 { SendFlags::SIGNALED } else { SendFlags::empty() };
        pair.qa.post_send(&SendWr { flags, ..wr(i, op, &sge) }).unwrap();
    }
    assert_eq!(pair.a.success().wr_id, 99);
    let mut none = Vec::new();
    assert_eq!(pair.a.cq.poll(&mut none, 16), Ok(0));
    assert_eq!(pair.b.mr.region().load_u64(99 * 64), 99);
}
