//! The reliable service: what is lost comes again, what cannot be done is given up, order is kept.

use std::time::Duration;

use remanence_wire::aeth::{Aeth, Credits};
use remanence_wire::feth::{PlacementType, SelectivityLevel};
use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Mtu, Opcode, Psn, atomic_eth, bth, feth, reth};

use super::pair::*;
use crate::*;

/// A connected pair, a source at the requester and a target at the responder.
fn pair_with(mtu: Mtu, len: u64) -> (Pair, Buffer, Buffer) {
    let mut pair = Pair::connected_with(Config::default(), mtu);
    let src = pair.a().buffer(len, Access::LOCAL_WRITE, 0x11);
    let dst = pair.b().buffer(len, REMOTE, 0xee);
    (pair, src, dst)
}

fn ids(wcs: &[Wc]) -> Vec<(u64, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Drops the packets whose running numbers (of all that one side sends) are listed.
fn drop_from(pair: &mut Pair, side: usize, numbers: &'static [usize]) {
    let mut count = 0;
    pair.hook = Some(Box::new(move |from, _| {
        if from != side {
            return Fate::Deliver;
        }
        count += 1;
        if numbers.contains(&(count - 1)) { Fate::Drop } else { Fate::Deliver }
    }));
}

#[test]
fn any_single_lost_packet_of_a_message_is_repaired() {
    for lost in 0..10 {
        for (op, sender) in [(0, 0), (1, 1), (1, 0), (2, 0), (0, 1), (2, 1)] {
            let (mut pair, src, dst) = pair_with(Mtu::B1024, 10_000);
            let qpns = pair.qpns;
            let mut count = 0;
            pair.hook = Some(Box::new(move |from, _| {
                count += usize::from(from == sender);
                if from == sender && count == lost + 1 { Fate::Drop } else { Fate::Deliver }
            }));
            pair.b().post_recv(qpns[1], 5, &[dst.sge(0, 10_000)]);
            let op = match op {
                0 => SendOp::Write(dst.remote(0)),
                1 => SendOp::Read(dst.remote(0)),
                _ => SendOp::Send,
            };
            assert_eq!(pair.execute(op, &[src.sge(0, 10_000)]).status, WcStatus::Success);
            let filled = if matches!(op, SendOp::Read(_)) { 0xee } else { 0x11 };
            assert!(pair.a().bytes(&src).iter().all(|&byte| byte == filled));
            assert!(pair.b().bytes(&dst).iter().all(|&byte| byte == filled));
        }
    }
}

#[test]
fn a_nak_repairs_within_a_round_trip_and_a_lost_tail_within_a_timeout() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 10_000);
    // Let the round trip be known.
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
    let start = pair.now;
    drop_from(&mut pair, 0, &[3]);
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 10_000)]);
    assert_eq!(pair.a().device.stats().rx_nak_sequence, 1);
    assert_eq!(pair.a().device.stats().timeouts, 0);
    // The packets behind the lost one, again.
    assert_eq!(pair.a().device.stats().retransmits, 7);
    let done = pair.log.len();
    drop_from(&mut pair, 0, &[9]);
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 10_000)]);
    assert_eq!(pair.a().device.stats().timeouts, 1);
    let tail = pair.a().device.stats().retransmits - 7;
    assert!((1..=2).contains(&tail), "only what no ACK had covered: {tail}");
    assert!(pair.log.len() > done);
    assert!(pair.now.since(start) < Duration::from_millis(70), "within two of the shortest timeouts");
}

#[test]
fn a_dead_peer_is_given_up_after_the_retry_count() {
    for (timeout, retry_cnt) in [(14u8, 0u8), (14, 3), (16, 7)] {
        let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
        let qpns = pair.qpns;
        let sqd = QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() };
        let change = QpAttr { timeout: Some(timeout), retry_cnt: Some(retry_cnt), ..sqd };
        let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        for attr in [sqd, change, rts] {
            pair.nodes[0].device.modify_qp(pair.now, qpns[0], &attr).unwrap();
        }
        pair.hook = Some(Box::new(|_, _| Fate::Drop));
        let start = pair.now;
        pair.a().post_flags(qpns[0], 1, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)], SendFlags::empty());
        pair.post(2, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
        pair.run();
        assert_eq!(ids(&pair.a().sends()), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(pair.a().device.stats().retries_exceeded, 1);
        assert_eq!(pair.a().state(qpns[0]), QpState::Err);
        // Up to four times what was asked for, to a second and a half.
        let asked = Duration::from_nanos(4096 << timeout) * (u32::from(retry_cnt) + 1);
        let patience = asked.max((4 * asked).min(Duration::from_millis(1500)));
        let waited = pair.now.since(start);
        assert!(waited >= patience && waited < patience + Duration::from_millis(30), "{waited:?}");
        assert!(pair.a().device.stats().retransmits > 0);
    }
}

#[test]
fn without_a_timeout_a_dead_peer_is_waited_for() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    let qpns = pair.qpns;
    for attr in [
        QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() },
        QpAttr { timeout: Some(0), ..QpAttr::default() },
        QpAttr { state: Some(QpState::Rts), ..QpAttr::default() },
    ] {
        pair.nodes[0].device.modify_qp(pair.now, qpns[0], &attr).unwrap();
    }
    pair.hook = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
    pair.run_for(Duration::from_secs(600));
    assert_eq!(pair.a().sends(), []);
    pair.hook = None;
    let healed = pair.now;
    while pair.step() {}
    assert_eq!(ids(&pair.a().sends()), [(1, WcStatus::Success)]);
    assert!(pair.now.since(healed) < Duration::from_secs(1));
}

#[test]
fn receiver_not_ready_waits_and_counts() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    let qpns = pair.qpns;
    pair.post(1, SendOp::Send, &[src.sge(0, 3000)]);
    pair.post(2, SendOp::Write(dst.remote(3500)), &[src.sge(0, 8)]);
    pair.run_for(Duration::from_millis(5));
    assert_eq!(pair.a().sends(), []);
    assert!(pair.a().device.stats().rx_rnr_nak > 10, "min_rnr_timer of 10 us");
    assert_eq!(pair.b().mem.writes, 0, "what follows is not executed before");
    pair.b().post_recv(qpns[1], 7, &[dst.sge(0, 3000)]);
    pair.run();
    assert_eq!(ids(&pair.a().sends()), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(ids(&pair.b().recvs()), [(7, WcStatus::Success)]);

    // WRITE with immediate: its data may be written before, its completion needs the receive.
    pair.post(3, SendOp::WriteImm(dst.remote(0), 9), &[src.sge(0, 2048)]);
    pair.run_for(Duration::from_millis(1));
    assert_eq!(pair.b().recvs(), []);
    pair.b().post_recv(qpns[1], 8, &[]);
    pair.run();
    assert_eq!(pair.b().recvs()[0].byte_len, 2048);

    // A limit.
    for attr in [
        QpAttr { state: Some(QpState::Sqd), ..QpAttr::default() },
        QpAttr { rnr_retry: Some(3), ..QpAttr::default() },
        QpAttr { state: Some(QpState::Rts), ..QpAttr::default() },
    ] {
        pair.nodes[0].device.modify_qp(pair.now, qpns[0], &attr).unwrap();
    }
    pair.a().sends();
    let before = pair.a().device.stats().rx_rnr_nak;
    pair.post(4, SendOp::Send, &[src.sge(0, 8)]);
    pair.run();
    assert_eq!(ids(&pair.a().sends()), [(4, WcStatus::RnrRetryExcErr)]);
    assert_eq!(pair.a().device.stats().rx_rnr_nak - before, 4);

    // As Linux counts it, in `hw_counters`.
    let of =
        |stats: &Stats, name: &str| stats.hw_counters(0).into_iter().find(|(n, _)| *n == name).unwrap().1;
    let (a, b) = (pair.a().device.stats().clone(), pair.b().device.stats().clone());
    assert_eq!(
        (of(&a, "rdma_sends"), of(&b, "rdma_recvs")),
        (1, 2),
        "a failed SEND is none; WRITE with immediate takes a WQE"
    );
    assert_eq!((of(&a, "rdma_recvs"), of(&b, "rdma_sends")), (0, 0));
    assert_eq!((of(&a, "retry_rnr_exceeded_err"), of(&a, "retry_exceeded_err")), (1, 0));
    assert_eq!(of(&a, "rcvd_rnr_err"), of(&b, "send_rnr_err"), "no packet was lost");
    assert_eq!((of(&a, "sent_pkts"), of(&b, "rcvd_pkts")), (a.tx_packets, a.tx_packets));
}

#[test]
fn credits_hold_back_what_nobody_can_receive() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    let qpns = pair.qpns;
    for n in 0..3 {
        pair.b().post_recv(qpns[1], n, &[dst.sge(0, 64)]);
    }
    // The first ACK tells how many there are.
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
    let told = pair.log.iter().find_map(|(from, repr)| match repr.headers {
        Headers::Aeth(aeth) if *from == 1 => Some(aeth.aeth),
        _ => None,
    });
    assert_eq!(told, Some(Aeth::Ack(Credits::at_most(3))));
    pair.log.clear();
    for n in 0..10 {
        pair.post(n, SendOp::Send, &[src.sge(0, 8)]);
    }
    pair.collect();
    assert_eq!(pair.sent(0, Opcode::RcSendOnly), 3, "no more than the credits");
    for n in 3..10 {
        pair.b().post_recv(qpns[1], n, &[dst.sge(0, 64)]);
    }
    pair.run();
    assert_eq!(pair.a().sends().len(), 10);
    assert_eq!(pair.a().device.stats().rx_rnr_nak, 0);
    // Without credits, or with a shared receive queue, nothing is held back.
    let mut pair = Pair::connected_with(Config { credits: false, ..Config::default() }, Mtu::B1024);
    let (src, dst) = (pair.a().buffer(64, Access::empty(), 1), pair.b().buffer(64, REMOTE, 0));
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
    for n in 0..10 {
        pair.post(n, SendOp::Send, &[src.sge(0, 8)]);
    }
    pair.collect();
    assert_eq!(pair.sent(0, Opcode::RcSendOnly), 10);
}

#[test]
fn reads_in_flight_are_limited_and_a_fence_waits_for_them() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    let qpns = pair.qpns;
    for n in 0..9 {
        pair.post(n, SendOp::Read(dst.remote(n * 8)), &[src.sge(n * 8, 8)]);
    }
    pair.collect();
    assert_eq!(pair.sent(0, Opcode::RcReadRequest), 4, "max_rd_atomic");
    pair.a().post_flags(
        qpns[0],
        9,
        SendOp::Write(dst.remote(0)),
        &[src.sge(0, 72)],
        SendFlags::FENCE | SendFlags::SIGNALED,
    );
    pair.run();
    assert!(ids(&pair.a().sends()).into_iter().eq((0..10).map(|n| (n, WcStatus::Success))));
    let write = pair.log.iter().position(|(_, repr)| repr.bth.opcode == Opcode::RcWriteOnly).unwrap();
    let answers = pair.log[..write].iter().filter(|(from, _)| *from == 1).count();
    assert_eq!(answers, 9, "the fenced WRITE left after every response");
    // What it wrote are the bytes that the READs brought.
    assert_eq!(pair.b().bytes(&dst)[..72], [0xee; 72]);
}

#[test]
fn a_long_read_is_several_requests_and_stays_within_the_window() {
    let mut pair = Pair::connected_with(
        Config { window: WindowLimits { initial: 8, max: 64 }, ..Config::default() },
        Mtu::B256,
    );
    let sink = pair.a().buffer(200_000, Access::LOCAL_WRITE, 0);
    let src = pair.b().buffer(200_000, REMOTE, 0x77);
    let wc = pair.execute(SendOp::Read(src.remote(3)), &[sink.sge(0, 150_001)]);
    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 150_001));
    assert!(pair.a().bytes(&sink)[..150_001].iter().all(|&byte| byte == 0x77));
    assert!(pair.a().bytes(&sink)[150_001..].iter().all(|&byte| byte == 0));
    assert!(pair.sent(0, Opcode::RcReadRequest) > 9);
    let mut left = 150_001u32;
    for (_, repr) in &pair.log {
        if let Headers::Reth(reth) = repr.headers {
            assert!(reth.dma_len <= 64 * 256);
            left -= reth.dma_len;
        }
    }
    assert_eq!(left, 0, "every byte was asked for once");
}

#[test]
fn acknowledgements_are_shared() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    for n in 0..20 {
        pair.post(n, SendOp::Write(dst.remote(n * 8)), &[src.sge(0, 8)]);
    }
    pair.run();
    assert_eq!(pair.a().sends().len(), 20);
    assert!(pair.sent(1, Opcode::RcAck) <= 20);
    // When all arrive before the responder's next turn, one ACK is enough.
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    for n in 0..20 {
        pair.post(n, SendOp::Write(dst.remote(n * 8)), &[src.sge(0, 8)]);
    }
    let mut buf = vec![0; 65_507];
    let (now, rx) = (pair.now, pair.rx_meta(1));
    let [a, b] = &mut pair.nodes;
    let t = a.device.poll_transmit(now, &mut buf, 64, &mut a.mem).unwrap();
    assert_eq!(t.len / t.segment_size, 20, "equal packets leave as one batch");
    for (index, bytes) in buf[..t.len].chunks(t.segment_size).enumerate() {
        let rx = RxMeta { src_port: t.src_port, ip_id: None, train_index: index as u16, ..rx };
        b.device.handle_datagram(now, &rx, bytes, &mut b.mem);
    }
    pair.run();
    assert_eq!(pair.sent(1, Opcode::RcAck), 1);
    assert_eq!(pair.a().sends().len(), 20);
}

#[test]
fn large_messages_leave_as_whole_batches() {
    let (mut pair, src, dst) = pair_with(Mtu::B4096, 65_536);
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 65_536)]);
    // The first packet carries a RETH and is longer; what is shorter ends a batch. Then 14 equal ones.
    let requests: Vec<usize> = pair.batches.iter().copied().filter(|&n| n > 1).collect();
    assert_eq!(requests, [2, 14]);
    pair.batches.clear();
    pair.execute(SendOp::Read(dst.remote(0)), &[src.sge(0, 65_536)]);
    assert!(pair.batches.iter().copied().max() >= Some(6), "{:?}", pair.batches);
}

#[test]
fn psns_wrap_under_a_long_stream() {
    // The harness starts 16 before the wrap; this goes around it with every kind of request outstanding.
    let (mut pair, src, dst) = pair_with(Mtu::B256, 65_536);
    pair.weather(3, 5, 5, 5, 0);
    for n in 0..40 {
        pair.post(n * 2, SendOp::Write(dst.remote(0)), &[src.sge(0, 700)]);
        pair.post(n * 2 + 1, SendOp::Read(dst.remote(0)), &[src.sge(1000, 700)]);
    }
    pair.run();
    assert!(ids(&pair.a().sends()).into_iter().eq((0..80).map(|n| (n, WcStatus::Success))));
}

#[test]
fn a_pending_flush_lets_writes_pass_and_holds_answers() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    let qpns = pair.qpns;
    let flush = |offset| SendOp::Flush {
        remote: dst.remote(offset),
        len: 64,
        placement: Placement::Persistence,
        selectivity: Selectivity::Range,
    };
    pair.b().mem.flush_mode = FlushMode::Pending;
    pair.b().post_recv(qpns[1], 50, &[dst.sge(2000, 64)]);
    pair.post(1, flush(0), &[]);
    pair.post(2, SendOp::Write(dst.remote(64)), &[src.sge(0, 64)]);
    pair.post(3, SendOp::Send, &[src.sge(0, 64)]);
    pair.post(4, flush(64), &[]);
    pair.post(5, SendOp::AtomicWrite(dst.remote(128)), &[src.sge(0, 8)]);
    pair.run_for(Duration::from_micros(500));
    // Posted operations were executed, and both flushes started together; nothing else, and nobody was told.
    assert_eq!(pair.b().bytes(&dst)[64..128], [0x11; 64]);
    assert_eq!(ids(&pair.b().recvs()), [(50, WcStatus::Success)]);
    assert_eq!(pair.b().mem.flushes.len(), 2);
    assert_eq!(pair.b().bytes(&dst)[128..136], [0xee; 8]);
    assert_eq!(pair.a().sends(), []);
    assert!(!pair.log.iter().any(|(from, _)| *from == 1), "no answer may overtake the first flush");
    // The second ends first: its answer waits for the first's.
    let flushes: Vec<_> = pair.b().mem.flushes.iter().map(|&(id, ..)| id).collect();
    let now = pair.now;
    let b = pair.b();
    b.device.flush_done(now, flushes[1], Ok(()), &mut b.mem);
    b.device.flush_done(now, FlushId(u64::MAX), Ok(()), &mut b.mem);
    pair.run_for(Duration::from_micros(500));
    assert_eq!(pair.a().sends(), []);
    assert_eq!(pair.b().bytes(&dst)[128..136], [0xee; 8]);
    let b = &mut pair.nodes[1];
    b.device.flush_done(pair.now, flushes[0], Ok(()), &mut b.mem);
    pair.run();
    assert!(ids(&pair.a().sends()).into_iter().eq((1..6).map(|n| (n, WcStatus::Success))));
    assert_eq!(pair.b().bytes(&dst)[128..136], [0x11; 8]);
}

#[test]
fn a_flush_behind_a_waiting_atomic_write_covers_it() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    let flush = SendOp::Flush {
        remote: dst.remote(0),
        len: 64,
        placement: Placement::Persistence,
        selectivity: Selectivity::Range,
    };
    pair.b().mem.flush_mode = FlushMode::Pending;
    pair.post(1, flush, &[]);
    pair.post(2, SendOp::AtomicWrite(dst.remote(0)), &[src.sge(0, 8)]);
    pair.post(3, flush, &[]);
    pair.run_for(Duration::from_micros(100));
    assert_eq!(pair.b().mem.flushes.len(), 1, "the second must come after the ATOMIC WRITE");
    for n in 0..2 {
        let b = &mut pair.nodes[1];
        let (id, ..) = b.mem.flushes[n];
        b.device.flush_done(pair.now, id, Ok(()), &mut b.mem);
        pair.run_for(Duration::from_micros(100));
        assert_eq!(pair.b().bytes(&dst)[..8], [0x11; 8]);
        assert_eq!(pair.b().mem.flushes.len(), 2);
    }
    pair.run();
    assert_eq!(pair.a().sends().len(), 3);
}

#[test]
fn a_flush_that_had_to_wait_finds_out_that_its_memory_was_taken_away() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 4096);
    let flush = SendOp::Flush {
        remote: dst.remote(0),
        len: 64,
        placement: Placement::Persistence,
        selectivity: Selectivity::Range,
    };
    let other = pair.b().buffer(64, REMOTE, 0);
    pair.b().mem.flush_mode = FlushMode::Pending;
    pair.post(1, flush, &[]);
    pair.post(2, SendOp::AtomicWrite(other.remote(0)), &[src.sge(0, 8)]);
    pair.post(3, flush, &[]);
    pair.run_for(Duration::from_micros(100));
    let b = &mut pair.nodes[1];
    b.device.dereg_mr(dst.mr.handle).unwrap();
    let (id, ..) = b.mem.flushes[0];
    b.device.flush_done(pair.now, id, Ok(()), &mut b.mem);
    pair.run();
    assert_eq!(pair.b().mem.flushes.len(), 1, "memory that is not registered any more was flushed");
    assert_eq!(
        ids(&pair.a().sends()),
        [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::RemAccessErr)]
    );
}

/// PSNs come again after 2^24 packets, and what is kept of an old request may still be there.
#[test]
fn a_duplicate_is_not_answered_for_a_request_that_was_a_lap_of_psns_earlier() {
    let mut pair = Pair::connected_with(Config { icrc: false, ..Config::default() }, Mtu::B1024);
    let dst = pair.b().buffer(64, REMOTE, 0);
    let rx = pair.rx_meta(1);
    let dest = pair.qpns[1];
    let first = Psn::new(0xff_fff0);
    let packet = |opcode, psn, headers| {
        let repr = Repr { bth: bth::Repr::new(opcode, dest, psn), headers };
        let mut bytes = vec![0; 256];
        let len = repr.emit(&mut bytes);
        // The ICRC, which nobody looks at.
        bytes.truncate(len + 4);
        bytes
    };
    let eth = atomic_eth::Repr { va: dst.addr, rkey: dst.mr.rkey, swap_or_add: 1, compare: 0 };
    let add = packet(Opcode::RcFetchAdd, first, Headers::AtomicEth(eth));
    let reth = reth::Repr { va: dst.addr, rkey: dst.mr.rkey, dma_len: 64 };
    let feth = feth::Repr { placement: PlacementType::PERSISTENCE, selectivity: SelectivityLevel::Range };
    let flush = packet(Opcode::RcFlush, first.next(), Headers::FethReth(feth, reth));
    let nothing = reth::Repr { dma_len: 0, ..reth };
    let mut write = packet(Opcode::RcWriteOnly, first, Headers::Reth(nothing));
    // What the responder says to these two: what it found, and whether anything was flushed.
    let answers = |pair: &mut Pair| {
        pair.log.clear();
        pair.collect();
        let said = pair.log.drain(..).filter(|(from, _)| *from == 1).map(|(_, repr)| match repr.headers {
            Headers::AethAtomicAck(_, ack) => Some(ack.original),
            _ => None,
        });
        said.collect::<Vec<_>>()
    };
    for lap in 0..2 {
        pair.b().mem.flush_mode = if lap == 0 { FlushMode::Done } else { FlushMode::Pending };
        pair.inject_raw(1, &rx, &add);
        pair.inject_raw(1, &rx, &flush);
        let flushed = if lap == 0 { vec![Some(0), None] } else { vec![Some(1)] };
        assert_eq!(answers(&mut pair), flushed);
        // Again, as their answers may have been lost.
        pair.inject_raw(1, &rx, &add);
        pair.inject_raw(1, &rx, &flush);
        assert_eq!(answers(&mut pair), flushed, "lap {lap}");
        assert_eq!((pair.b().mem.writes, pair.b().mem.flushes.len() as u64), (lap + 1, lap + 1));
        if lap == 0 {
            for n in 2..1 << 24 {
                write[9..12].copy_from_slice(&first.add(n).value().to_be_bytes()[1..]);
                pair.inject_raw(1, &rx, &write);
            }
        }
    }
    assert_eq!(pair.b().state(dest), QpState::Rts);
}

#[test]
fn a_slow_flush_is_probed_for_and_not_repeated() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 200_000);
    pair.execute(SendOp::Write(dst.remote(0)), &[src.sge(0, 100_000)]);
    let before = pair.a().device.stats().retransmits;
    let flush = SendOp::Flush {
        remote: dst.remote(0),
        len: 64,
        placement: Placement::Persistence,
        selectivity: Selectivity::Range,
    };
    pair.b().mem.flush_mode = FlushMode::Pending;
    pair.post(1, flush, &[]);
    pair.post(2, SendOp::Write(dst.remote(0)), &[src.sge(0, 20_000)]);
    pair.run_for(Duration::from_millis(100));
    // 4, 8, 16, 32 … ms: a handful of probes, one packet each.
    let probes = pair.a().device.stats().retransmits - before;
    assert!((2..8).contains(&probes), "{probes} packets were sent again");
    assert_eq!(pair.b().mem.flushes.len(), 1);
    let b = &mut pair.nodes[1];
    let (id, ..) = b.mem.flushes[0];
    b.device.flush_done(pair.now, id, Ok(()), &mut b.mem);
    pair.run();
    assert_eq!(pair.a().sends().len(), 2);
    assert_eq!(pair.a().device.stats().retransmits - before, probes, "and nothing else again");
}

#[test]
fn a_failed_flush_promises_nothing() {
    for mode in [FlushMode::Failed, FlushMode::Pending] {
        let (mut pair, _, dst) = pair_with(Mtu::B1024, 4096);
        let qpns = pair.qpns;
        pair.b().mem.flush_mode = mode;
        let flush = SendOp::Flush {
            remote: dst.remote(0),
            len: 64,
            placement: Placement::Persistence,
            selectivity: Selectivity::Range,
        };
        pair.post(1, flush, &[]);
        pair.post(2, flush, &[]);
        pair.run_for(Duration::from_micros(100));
        if mode == FlushMode::Pending {
            let b = &mut pair.nodes[1];
            let (id, ..) = b.mem.flushes[0];
            b.device.flush_done(pair.now, id, Err(()), &mut b.mem);
        }
        pair.run();
        assert_eq!(ids(&pair.a().sends()), [(1, WcStatus::RemOpErr), (2, WcStatus::WrFlushErr)]);
        assert_eq!(pair.b().state(qpns[1]), QpState::Err);
        assert_eq!(pair.b().events(), [AsyncEvent::QpFatal(qpns[1])]);
    }
}

#[test]
fn a_qp_that_is_gone_ignores_its_flush() {
    let (mut pair, _, dst) = pair_with(Mtu::B1024, 4096);
    let qpns = pair.qpns;
    pair.b().mem.flush_mode = FlushMode::Pending;
    let flush = SendOp::Flush {
        remote: dst.remote(0),
        len: 64,
        placement: Placement::Persistence,
        selectivity: Selectivity::Range,
    };
    pair.post(1, flush, &[]);
    pair.run_for(Duration::from_micros(100));
    let now = pair.now;
    let b = pair.b();
    let (id, ..) = b.mem.flushes[0];
    b.device.destroy_qp(qpns[1]).unwrap();
    b.device.flush_done(now, id, Ok(()), &mut b.mem);
    let again = pair.connect(QpType::Rc, Mtu::B1024, |_| {});
    let b = pair.b();
    b.device.flush_done(now, id, Err(()), &mut b.mem);
    assert_eq!(b.state(again[1]), QpState::Rts);
}

#[test]
fn an_atomic_waits_for_a_read_that_is_still_being_sent() {
    let (mut pair, src, dst) = pair_with(Mtu::B256, 4096);
    pair.post(1, SendOp::Read(dst.remote(0)), &[src.sge(0, 1000)]);
    pair.post(2, SendOp::FetchAdd { remote: dst.remote(992), add: 1 }, &[src.sge(1000, 8)]);
    // Both arrive before the responder has its turn.
    let mut buf = vec![0; 65_507];
    let (now, rx) = (pair.now, pair.rx_meta(1));
    let [a, b] = &mut pair.nodes;
    while let Some(t) = a.device.poll_transmit(now, &mut buf, 64, &mut a.mem) {
        for bytes in buf[..t.len].chunks(t.segment_size) {
            let rx = RxMeta { src_port: t.src_port, ip_id: None, ..rx };
            b.device.handle_datagram(now, &rx, bytes, &mut b.mem);
        }
    }
    assert_eq!(pair.b().mem.writes, 0, "the READ comes first");
    pair.run();
    assert_eq!(pair.a().sends().len(), 2);
    assert_eq!(pair.a().bytes(&src)[..1000], [0xee; 1000]);
    assert_eq!(pair.b().bytes(&dst)[992..1000], memory::native_bytes(from_native([0xee; 8]).wrapping_add(1)));
}

#[test]
fn a_late_duplicate_read_of_memory_that_is_gone_is_dropped() {
    let (mut pair, local, remote) = pair_with(Mtu::B1024, 4096);
    let wc = pair.execute(SendOp::Read(remote.remote(0)), &[local.sge(0, 4096)]);
    assert_eq!(wc.status, WcStatus::Success);
    let late = pair.log.iter().find(|(from, _)| *from == 0).unwrap().1;
    pair.b().device.dereg_mr(remote.mr.handle).unwrap();
    pair.inject(1, &late, &[]);
    pair.run();
    let qpn = pair.qpns[1];
    assert_eq!(pair.b().state(qpn), QpState::Rts);
    assert_eq!(pair.b().events().iter().filter(|event| **event != AsyncEvent::CommEst(qpn)).count(), 0);
    assert_eq!(pair.execute(SendOp::Write(remote.remote(0)), &[]).status, WcStatus::Success);
}

#[test]
fn a_lossy_path_degrades_and_does_not_collapse() {
    // Goodput under random loss, as packets sent for each packet needed: a fixed window of 512 would send
    // hundreds. The window finds a size at which losing one packet costs a few.
    for (loss, most) in [(1, 1.35), (5, 1.8), (10, 2.6)] {
        let (mut pair, src, dst) = pair_with(Mtu::B1024, 1 << 20);
        pair.weather(11, loss, 0, 0, 0);
        for n in 0..8 {
            pair.post(n, SendOp::Write(dst.remote(0)), &[src.sge(0, 1 << 20)]);
        }
        pair.run();
        assert_eq!(pair.a().sends().len(), 8);
        let needed = 8 * 1024;
        let requests = pair.log.iter().filter(|(from, _)| *from == 0).count();
        let cost = requests as f64 / f64::from(needed);
        assert!(cost < most, "{loss} % loss: {cost:.2} packets for each that was needed");
    }
}

#[test]
fn a_peer_that_was_away_for_a_while_is_not_taken_for_a_loss() {
    for read in [false, true] {
        let (mut pair, src, dst) = pair_with(Mtu::B1024, 1 << 20);
        let op = if read { SendOp::Read(dst.remote(0)) } else { SendOp::Write(dst.remote(0)) };
        for _ in 0..3 {
            pair.execute(op, &[src.sge(0, 1 << 20)]);
        }
        let window = |pair: &Pair| pair.nodes[0].device.qps.get(pair.qpns[0]).unwrap().congestion.packets();
        let before = window(&pair);
        let back = pair.now + Duration::from_millis(30);
        pair.hook =
            Some(Box::new(move |from, _| if from == 0 { Fate::HoldUntil(back) } else { Fate::Deliver }));
        pair.execute(op, &[src.sge(0, 1 << 20)]);
        let stats = pair.nodes[0].device.stats();
        assert!(stats.timeouts >= 2, "it was missed");
        assert!(stats.retransmits <= 2 * stats.timeouts, "{} packets were sent again", stats.retransmits);
        assert!(window(&pair) >= before, "the window is {} after {before}", window(&pair));
    }
}

#[test]
fn congestion_marks_are_told_and_obeyed() {
    let (mut pair, src, dst) = pair_with(Mtu::B1024, 1 << 20);
    pair.hook = Some(Box::new(|from, packet| {
        let data = from == 0 && !packet.payload().is_empty();
        if data { Fate::Mark } else { Fate::Deliver }
    }));
    // As one stream: between runs time jumps to the next lazy deadline, and quiet time is forgiving.
    let window = |pair: &mut Pair| {
        let qpn = pair.qpns[0];
        for n in 0..20 {
            pair.post(n, SendOp::Write(dst.remote(0)), &[src.sge(0, 1 << 20)]);
        }
        pair.run();
        assert_eq!(pair.a().sends().len(), 20);
        pair.nodes[0].device.qps.get(qpn).unwrap().congestion.packets()
    };
    let small = window(&mut pair);
    let (cnps, marks) = (pair.sent(1, Opcode::Cnp), pair.nodes[1].device.stats().rx_ecn_marked);
    assert!(cnps > 0 && marks == 20 * 1024, "{cnps} {marks}");
    assert!((cnps as u64) < marks / 4, "told at a limited rate");
    assert_eq!(pair.nodes[0].device.stats().rx_cnp, cnps as u64);
    assert!(small < 64, "the window shrank: {small}");
    assert_eq!(pair.nodes[0].device.stats().retransmits, 0);
    // A quiet path: the window grows again.
    pair.hook = None;
    let grown = window(&mut pair);
    assert!(grown > 2 * small, "{grown} after {small}");
}

#[test]
fn a_marked_read_response_slows_the_reader() {
    let (mut pair, sink, src) = pair_with(Mtu::B1024, 1 << 20);
    pair.hook = Some(Box::new(|from, _| if from == 1 { Fate::Mark } else { Fate::Deliver }));
    for _ in 0..4 {
        pair.execute(SendOp::Read(src.remote(0)), &[sink.sge(0, 1 << 20)]);
    }
    assert!(pair.sent(0, Opcode::Cnp) > 0);
    let last = pair.log.iter().rev().find_map(|(from, repr)| match repr.headers {
        Headers::Reth(reth) if *from == 0 && reth.dma_len > 1024 => Some(reth.dma_len),
        _ => None,
    });
    assert!(last.unwrap_or(1024) <= 16 * 1024, "READs ask for less at a time: {last:?}");
}

#[test]
fn duplicated_and_reordered_everything_still_executes_once() {
    for seed in 0..30 {
        let (mut pair, src, dst) = pair_with(Mtu::B256, 4096);
        pair.weather(seed, 5, 30, 30, 0);
        for n in 0..50 {
            pair.post(n, SendOp::FetchAdd { remote: dst.remote(0), add: 1 }, &[src.sge(n * 8, 8)]);
        }
        pair.run();
        let first = from_native([0xee; 8]);
        for n in 0..50u64 {
            let got = from_native(pair.a().bytes(&src)[n as usize * 8..][..8].try_into().unwrap());
            assert_eq!(got, first.wrapping_add(n), "seed {seed}: each saw the one before it");
        }
    }
}

#[test]
fn messages_of_two_gigabytes_have_their_psns() {
    // Not sent in full: what matters is that the arithmetic holds at the largest size and the smallest MTU.
    let mut pair = Pair::connected_with(Config::default(), Mtu::B256);
    let src = pair.a().buffer(1024, Access::LOCAL_WRITE, 0);
    // An MR of 2^31 bytes over little memory: only the first packets are looked at.
    let node = pair.a();
    let span = Span { region: src.region, offset: 0, len: 1 << 31 };
    let attr = MrAttr { span, iova: 0, access: Access::LOCAL_WRITE };
    let mr = node.device.reg_mr(node.pd, &attr, &node.mem).unwrap();
    let dst = RemoteAddr { addr: 0, rkey: remanence_wire::Rkey(1) };
    let sge = Sge { addr: 0, len: 1 << 31, lkey: mr.lkey };
    let qpn = pair.qpns[0];
    let too_long = [sge, Sge { len: 1, ..sge }];
    for (sges, result) in [(&too_long[..], Err(PostError::InvalidLength)), (&[sge][..], Ok(()))] {
        let (op, data, flags) = (SendOp::Read(dst), Data::Sges(sges), SendFlags::SIGNALED);
        let wr = SendWr { wr_id: 1, op, data, flags, ud: None };
        assert_eq!(pair.a().device.post_send(qpn, &wr), result);
    }
    let next = pair.log.len();
    pair.collect();
    let (_, repr) = pair.log[next];
    assert_eq!(repr.bth.psn, Psn::new(0xff_fff0));
    pair.run();
    assert_eq!(ids(&pair.a().sends()), [(1, WcStatus::RemAccessErr)]);
}
