//! Memory of a peer reached with no packet: the same results as with packets, in the same order, only to those that
//! may, and not after it was taken back.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{ALL, LIMIT, Pair, Side, connect, pattern, wr};
use remanence_pmem::{FileOptions, Region};
use remanence_rnic::{
    Access, Data, Placement, QpAttr, QpCaps, QpState, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp,
    SendWr, Sge, WcOpcode, WcStatus,
};
use remanence_verbs::{Context, Options, Progress, QpOptions};

fn open() -> Context {
    Context::open(Options { progress: Progress::Adaptive, ..Options::shm(None) })
        .expect("a device on this host")
}

fn memory() -> Region {
    Region::memfd("in-place-test", 1 << 20).unwrap()
}

/// A side whose memory peers may have.
fn sharing(access: Access) -> Side {
    let side = Side::with_memory(open(), &memory(), access);
    side.mr.share_in_place().unwrap();
    side
}

/// Two connected QPs; `qa` reaches the memory of `b` with no packet.
fn pair() -> Pair {
    let pair = Pair::of(Side::with_memory(open(), &memory(), ALL), sharing(ALL));
    warm_up(&pair);
    pair
}

/// Writes by packets until the memory was granted.
fn warm_up(pair: &Pair) {
    let before = pair.qa.in_place_operations();
    while pair.qa.in_place_operations() == before {
        write(pair, 0, b"warm");
    }
    pair.b.fill(0, &[0; 8]);
}

fn write(pair: &Pair, at: u64, bytes: &[u8]) {
    let inline = SendWr { data: Data::Inline(bytes), ..wr(at, SendOp::Write(pair.b.mr.remote(at)), &[]) };
    pair.qa.post_send(&inline).unwrap();
    assert_eq!(pair.a.success().wr_id, at);
}

/// Runs `act` and says how many operations were done in place meanwhile.
fn in_place<T>(pair: &Pair, act: impl FnOnce() -> T) -> (T, u64) {
    let before = pair.qa.in_place_operations();
    let result = act();
    (result, pair.qa.in_place_operations() - before)
}

/// As `in_place`, and no datagram left or arrived.
fn silently(pair: &Pair, act: impl FnOnce()) -> u64 {
    let count = || pair.a.context.link_stats().tx_datagrams + pair.b.context.link_stats().tx_datagrams;
    let before = count();
    let (_, done) = in_place(pair, act);
    assert_eq!(count(), before, "no packet was needed");
    done
}

#[test]
fn every_operation_does_what_it_does_with_packets() {
    let pair = pair();
    let remote = |at| pair.b.mr.remote(at);
    let post = |op, sges: &[Sge]| {
        pair.qa.post_send(&wr(9, op, sges)).unwrap();
        let wc = pair.a.success();
        assert_eq!((wc.wr_id, wc.qpn), (9, pair.qa.qpn()));
        (wc.opcode, wc.byte_len)
    };
    let done = silently(&pair, || {
        for (i, len) in [1_usize, 7, 8, 64, 4095, 65_536, 300_001].into_iter().enumerate() {
            let data = pattern(len, i as u8);
            pair.a.fill(0, &data);
            pair.b.fill(0, &vec![0xEE; len + 20]);
            let sge = [pair.a.mr.sge(0, len as u32)];
            assert_eq!(post(SendOp::Write(remote(10)), &sge), (WcOpcode::RdmaWrite, len as u32));
            let got = pair.b.bytes(0, len + 20);
            assert_eq!(got[10..10 + len], data, "{len} bytes");
            assert!(got[..10].iter().chain(&got[10 + len..]).all(|&b| b == 0xEE), "{len} bytes");

            pair.a.fill(0, &vec![0xDD; len + 20]);
            let sge = [pair.a.mr.sge(10, len as u32)];
            assert_eq!(post(SendOp::Read(remote(10)), &sge), (WcOpcode::RdmaRead, len as u32));
            let got = pair.a.bytes(0, len + 20);
            assert_eq!(got[10..10 + len], data, "{len} bytes");
            assert!(got[..10].iter().chain(&got[10 + len..]).all(|&b| b == 0xDD), "{len} bytes");
        }
        // Gathered from three places, and scattered to three.
        pair.a.fill(0, b"one two three");
        let three = [pair.a.mr.sge(0, 3), pair.a.mr.sge(4, 3), pair.a.mr.sge(8, 5)];
        post(SendOp::Write(remote(0)), &three);
        assert_eq!(pair.b.bytes(0, 11), b"onetwothree");
        pair.a.fill(0, &[b'.'; 13]);
        post(SendOp::Read(remote(0)), &three);
        assert_eq!(pair.a.bytes(0, 13), b"one.two.three");

        pair.b.mr.region().store_u64(64, 41);
        let sge = [pair.a.mr.sge(0, 8)];
        let (compare, swap) = (42, 99);
        assert_eq!(post(SendOp::FetchAdd { remote: remote(64), add: 1 }, &sge), (WcOpcode::FetchAdd, 8));
        assert_eq!((pair.a.mr.region().load_u64(0), pair.b.mr.region().load_u64(64)), (41, 42));
        for after in [99, 99] {
            let op = SendOp::CompareSwap { remote: remote(64), compare, swap };
            assert_eq!(post(op, &sge), (WcOpcode::CompSwap, 8));
            assert_eq!(pair.b.mr.region().load_u64(64), after);
        }
        assert_eq!(pair.a.mr.region().load_u64(0), 99);
        pair.a.fill(0, b"8 bytes.");
        assert_eq!(post(SendOp::AtomicWrite(remote(64)), &sge), (WcOpcode::AtomicWrite, 8));
        assert_eq!(pair.b.bytes(64, 8), b"8 bytes.");
        for selectivity in [Selectivity::Range, Selectivity::MemoryRegion] {
            let placement = Placement::GlobalVisibility;
            let op = SendOp::Flush { remote: remote(64), len: 8, placement, selectivity };
            assert_eq!(post(op, &[]), (WcOpcode::Flush, 0));
        }
    });
    // `success` waits on the CQ, so that these completions went through the engine, without a packet.
    assert_eq!(done, 7 * 2 + 2 + 3 + 1 + 2);
}

#[test]
fn polled_completions_keep_the_order_of_posting_whichever_way_the_operations_go() {
    let pair = pair();
    let (mut posted, mut polled, mut wcs, mut received) = (0_u64, 0_u64, Vec::new(), Vec::new());
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let (_, done) = in_place(&pair, || {
        while posted < 20_000 {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            if random >> 61 == 0 {
                // A message: goes by packet, and what follows waits for it.
                pair.b.cq.poll(&mut received, 16).unwrap();
                pair.qb.post_recv(&RecvWr { wr_id: 0, sges: &[] }).unwrap();
                let message = SendWr { data: Data::Inline(b""), ..wr(posted, SendOp::Send, &[]) };
                pair.qa.post_send(&message).unwrap();
            } else {
                let at = pair.b.mr.remote(8 * (posted % 1000));
                let bytes = posted.to_be_bytes();
                let write = SendWr { data: Data::Inline(&bytes), ..wr(posted, SendOp::Write(at), &[]) };
                pair.qa.post_send(&write).unwrap();
            }
            posted += 1;
            let backlog = (random >> 32) % 60;
            while posted - polled > backlog {
                wcs.clear();
                pair.a.cq.poll(&mut wcs, 1 + (random >> 40) as usize % 7).unwrap();
                for wc in &wcs {
                    assert_eq!((wc.wr_id, wc.status), (polled, WcStatus::Success));
                    polled += 1;
                }
            }
        }
    });
    assert!(done > 1000, "both ways were taken: {done}");
    for (i, word) in pair.b.bytes(0, 8000).as_chunks::<8>().0.iter().enumerate() {
        let last = u64::from_be_bytes(*word);
        assert!(last >= posted - 20 * 1000 && last % 1000 == i as u64, "{last} at {i}");
    }
}

#[test]
fn unsignalled_operations_complete_silently_and_the_backlog_may_exceed_what_waits_beside_the_engine() {
    let pair = pair();
    let region = pair.b.mr.remote(0);
    for i in 0..2000_u64 {
        let bytes = i.to_be_bytes();
        let flags = if i % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let write = SendWr { data: Data::Inline(&bytes), flags, ..wr(i, SendOp::Write(region), &[]) };
        pair.qa.post_send(&write).unwrap();
        assert_eq!(pair.b.bytes(0, 8), bytes, "done when it is posted");
    }
    let mut wcs = Vec::new();
    while wcs.len() < 1000 {
        pair.a.cq.poll(&mut wcs, 1000).unwrap();
    }
    assert!(wcs.iter().map(|wc| wc.wr_id).eq((0..2000).step_by(2)));
    assert_eq!(pair.a.cq.poll(&mut wcs, 10), Ok(0));
}

#[test]
fn memory_that_was_not_offered_is_reached_by_packets_only() {
    let pair = Pair::of(Side::with_memory(open(), &memory(), ALL), Side::with_memory(open(), &memory(), ALL));
    for i in 0..100 {
        write(&pair, i * 8, b"by mail!");
    }
    assert_eq!(pair.qa.in_place_operations(), 0);
    assert_eq!(pair.b.bytes(99 * 8, 8), b"by mail!");
}

#[test]
fn only_whole_nameless_memory_with_all_rights_is_offered() {
    let side = Side::with_memory(open(), &memory(), ALL);
    let part = side.pd.reg_mr_at(side.mr.region(), 4096, 4096, 0, ALL).unwrap();
    assert!(part.share_in_place().unwrap_err().to_string().contains("whole region"));
    let read_only = side.pd.reg_mr(side.mr.region(), Access::REMOTE_READ).unwrap();
    assert!(read_only.share_in_place().unwrap_err().to_string().contains("remote read and write"));
    let path = std::env::temp_dir().join(format!("remanence-in-place-{}", std::process::id()));
    let file = FileOptions::new().create_new(1 << 16).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let named = side.pd.reg_mr(&file, ALL).unwrap();
    assert!(named.share_in_place().unwrap_err().to_string().contains("without a name"));
    side.mr.share_in_place().unwrap();
    // On a link without that way the offer changes nothing.
    let udp = Side::with_memory(common::open(Progress::default()), &memory(), ALL);
    udp.mr.share_in_place().unwrap();
}

/// Bounds, rights and keys are those of the responder, found out by packet, and not a byte is touched.
#[test]
fn what_may_not_be_done_is_refused_as_ever() {
    type Case = (&'static str, fn(RemoteAddr) -> SendOp);
    let cases: [Case; 5] = [
        ("past the end", |r| SendOp::Write(RemoteAddr { addr: r.addr + (1 << 20) - 7, ..r })),
        ("before the start", |r| SendOp::Write(RemoteAddr { addr: r.addr.wrapping_sub(1), ..r })),
        ("without the right", |r| SendOp::FetchAdd { remote: r, add: 1 }),
        ("without the right to flush", |r| SendOp::Flush {
            remote: r,
            len: 8,
            placement: Placement::GlobalVisibility,
            selectivity: Selectivity::Range,
        }),
        ("another key", |mut r| {
            r.rkey.0 ^= 0x100;
            SendOp::Write(r)
        }),
    ];
    for (what, op) in cases {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let pair = Pair::of(Side::with_memory(open(), &memory(), ALL), sharing(rights));
        warm_up(&pair);
        let before = pair.b.bytes(0, 1 << 20);
        let sge = [pair.a.mr.sge(0, 8)];
        let op = op(pair.b.mr.remote(0));
        let sges: &[Sge] = if matches!(op, SendOp::Flush { .. }) { &[] } else { &sge };
        pair.qa.post_send(&wr(1, op, sges)).unwrap();
        assert_eq!(pair.a.completion().status, WcStatus::RemAccessErr, "{what}");
        assert_eq!(pair.b.bytes(0, 1 << 20), before, "{what}");
    }
}

#[test]
fn an_unaligned_atomic_is_refused_as_ever() {
    let pair = pair();
    let sge = [pair.a.mr.sge(0, 8)];
    pair.qa.post_send(&wr(1, SendOp::FetchAdd { remote: pair.b.mr.remote(4), add: 1 }, &sge)).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::RemInvReqErr);
    assert_eq!(pair.b.bytes(0, 16), [0; 16]);
}

#[test]
fn local_buffers_are_checked_as_ever() {
    let pair = pair();
    let mut other = pair.a.pd.reg_mr(&memory(), Access::empty()).unwrap();
    let remote = pair.b.mr.remote(0);
    let sge = [other.sge(0, 8)];
    // It may be sent from, and is known to the lane after that.
    let (_, done) = in_place(&pair, || {
        for _ in 0..3 {
            pair.qa.post_send(&wr(1, SendOp::Write(remote), &sge)).unwrap();
            pair.a.success();
        }
    });
    assert_eq!(done, 3);
    other.dereg().unwrap();
    pair.b.fill(0, b"untouched");
    pair.qa.post_send(&wr(2, SendOp::Write(remote), &sge)).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::LocProtErr, "its key is gone");
    assert_eq!(pair.b.bytes(0, 9), b"untouched");

    // It may not be read into.
    let pair = self::pair();
    let other = pair.a.pd.reg_mr(&memory(), Access::empty()).unwrap();
    pair.qa.post_send(&wr(3, SendOp::Read(pair.b.mr.remote(0)), &[other.sge(0, 8)])).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::LocProtErr);
}

#[test]
fn memory_that_was_taken_back_is_not_touched_any_more() {
    for _ in 0..20 {
        let Pair { a, b, qa, qb } = pair();
        let remote = b.mr.remote(0);
        let region = b.mr.region().clone();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut round = 1_u64;
                while !stop.load(Ordering::Relaxed) {
                    a.fill(0, &round.to_be_bytes());
                    let sge = [a.mr.sge(0, 65_536)];
                    if qa.post_send(&wr(round, SendOp::Write(remote), &sge)).is_err() {
                        break;
                    }
                    let mut wcs = Vec::new();
                    while a.cq.poll(&mut wcs, 1).unwrap() == 0 {}
                    match wcs[0].status {
                        WcStatus::Success => round += 1,
                        WcStatus::RemAccessErr => return round,
                        other => panic!("{other}"),
                    }
                }
                0
            });
            while region.load_u64(0) == 0 {
                std::thread::yield_now();
            }
            let mut mr = b.mr;
            mr.dereg().unwrap();
            // From here on it is ours alone.
            region.write(0, &[0xAA; 65_536]);
            let failed_at = writer.join().unwrap();
            assert!(failed_at > 0, "the writer is told");
            let mut after = vec![0; 65_536];
            region.read(0, &mut after);
            assert!(after.iter().all(|&byte| byte == 0xAA), "written after it was taken back");
            stop.store(true, Ordering::Relaxed);
        });
        drop(qb);
    }
}

#[test]
fn a_connection_that_ends_at_either_side_ends_it() {
    let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    for at_requester in [true, false] {
        let pair = pair();
        if at_requester { &pair.qa } else { &pair.qb }.modify(&err).unwrap();
        pair.b.fill(0, b"untouched");
        let sge = [pair.a.mr.sge(0, 8)];
        let ((), done) = in_place(&pair, || {
            pair.qa.post_send(&wr(1, SendOp::Write(pair.b.mr.remote(0)), &sge)).unwrap();
        });
        assert_eq!(done, 0);
        let status = pair.a.completion().status;
        let expected = if at_requester { WcStatus::WrFlushErr } else { WcStatus::RetryExcErr };
        assert_eq!(status, expected);
        assert_eq!(pair.b.bytes(0, 9), b"untouched");
    }
}

#[test]
fn only_the_connected_qp_and_only_in_the_memorys_domain() {
    // Memory of another domain of the peer.
    let pair = Pair::of(Side::with_memory(open(), &memory(), ALL), Side::with_memory(open(), &memory(), ALL));
    let other_pd = pair.b.context.alloc_pd().unwrap();
    let other = other_pd.reg_mr(&memory(), ALL).unwrap();
    other.share_in_place().unwrap();
    let sge = [pair.a.mr.sge(0, 8)];
    pair.qa.post_send(&wr(1, SendOp::Write(other.remote(0)), &sge)).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::RemAccessErr);
    assert_eq!(pair.qa.in_place_operations(), 0);
    // A QP that lets the peer do less than the memory does.
    let (a, b) = (Side::with_memory(open(), &memory(), ALL), sharing(ALL));
    let (qa, qb) = (a.qp(), b.qp());
    connect(&qa, &qb);
    let read_only = Access::REMOTE_READ;
    qb.modify(&QpAttr { access: Some(read_only), ..QpAttr::default() }).unwrap();
    let pair = Pair { a, b, qa, qb };
    for _ in 0..100 {
        pair.qa.post_send(&wr(1, SendOp::Read(pair.b.mr.remote(0)), &[pair.a.mr.sge(0, 8)])).unwrap();
        pair.a.success();
    }
    assert_eq!(pair.qa.in_place_operations(), 0);
}

#[test]
fn many_qps_to_one_peer_each_get_their_own_way() {
    let (a, b) = (Side::with_memory(open(), &memory(), ALL), sharing(ALL));
    let qps: Vec<_> = (0..20)
        .map(|_| {
            let (qa, qb) = (a.qp(), b.qp());
            connect(&qa, &qb);
            (qa, qb)
        })
        .collect();
    for (i, (qa, _)) in qps.iter().enumerate() {
        let at = 64 * i as u64;
        while qa.in_place_operations() == 0 {
            let bytes = [i as u8 + 1; 8];
            let write = SendWr { data: Data::Inline(&bytes), ..wr(0, SendOp::Write(b.mr.remote(at)), &[]) };
            qa.post_send(&write).unwrap();
            a.success();
        }
        assert_eq!(b.bytes(at, 8), [i as u8 + 1; 8]);
    }
}

#[test]
fn a_consumer_that_sleeps_is_woken_by_what_another_thread_does_in_place() {
    let pair = pair();
    std::thread::scope(|scope| {
        let (asleep, is_asleep) = std::sync::mpsc::channel();
        scope.spawn(|| {
            let asleep = asleep;
            for i in 0..50 {
                asleep.send(()).unwrap();
                assert_eq!(pair.a.completion().wr_id, i);
            }
        });
        for i in 0..50 {
            is_asleep.recv().unwrap();
            let write = SendWr { data: Data::Inline(b"x"), ..wr(i, SendOp::Write(pair.b.mr.remote(0)), &[]) };
            pair.qa.post_send(&write).unwrap();
        }
    });

    // The same with notifications on a channel.
    let a = Side::with_memory(open(), &memory(), ALL);
    let channel = a.context.create_comp_channel().unwrap();
    let cq = a.context.create_cq(16, Some(&channel), 7).unwrap();
    let a = Side { cq, ..a };
    let pair = Pair::of(a, sharing(ALL));
    warm_up(&pair);
    for i in 0..50 {
        pair.a.cq.req_notify(false).unwrap();
        let write = SendWr { data: Data::Inline(b"x"), ..wr(i, SendOp::Write(pair.b.mr.remote(0)), &[]) };
        let ((), done) = in_place(&pair, || pair.qa.post_send(&write).unwrap());
        assert_eq!(done, 1);
        let event = channel.get_event(LIMIT).expect("a notification");
        assert_eq!(event.user_data, 7);
        let mut wcs = Vec::new();
        assert_eq!(pair.a.cq.poll(&mut wcs, 4), Ok(1));
        assert_eq!(wcs[0].wr_id, i);
    }
}

#[test]
fn threads_that_share_a_qp_lose_nothing() {
    let pair = pair();
    let per_thread = 5000_u64;
    let counter = pair.b.mr.remote(512);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let pair = &pair;
            scope.spawn(move || {
                for _ in 0..per_thread {
                    let op = SendOp::FetchAdd { remote: counter, add: 1 };
                    pair.qa.post_send(&wr(thread, op, &[pair.a.mr.sge(8 * thread, 8)])).unwrap();
                    let mut wcs = Vec::new();
                    while pair.a.cq.poll(&mut wcs, 1).unwrap() == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(pair.b.mr.region().load_u64(512), 3 * per_thread);
}

#[test]
fn a_peer_that_ends_is_noticed_and_a_new_connection_works() {
    let pair = pair();
    let Pair { a, b, qa, qb } = pair;
    let remote = b.mr.remote(0);
    drop((qb, b));
    let sge = [a.mr.sge(0, 8)];
    // Until the end is noticed, writes land in memory that nobody looks at; then they fail as on any network.
    let failed = (0..1_000_000).find_map(|i| {
        qa.post_send(&wr(i, SendOp::Write(remote), &sge)).unwrap();
        let status = a.completion().status;
        (status != WcStatus::Success).then_some(status)
    });
    assert_eq!(failed, Some(WcStatus::RetryExcErr));
    let caps = QpCaps { max_send_wr: 8, ..QpOptions::rc(&a.cq).caps };
    let b = sharing(ALL);
    let (qa, qb) = (a.pd.create_qp(&QpOptions { caps, ..QpOptions::rc(&a.cq) }).unwrap(), b.qp());
    connect(&qa, &qb);
    let pair = Pair { a, b, qa, qb };
    warm_up(&pair);
    write(&pair, 8, b"again");
    assert_eq!(pair.b.bytes(8, 5), b"again");
    assert_eq!(pair.a.cq.wait(&mut Vec::new(), 1, Some(Duration::ZERO)), Ok(0));
}
