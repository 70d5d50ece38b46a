//! What leaves together, and what is acknowledged together.

use std::time::Duration;

use remanence_wire::aeth::Aeth;
use remanence_wire::packet::Packet;
use remanence_wire::{Mtu, Opcode};

use super::pair::*;
use crate::*;

/// Small requests that are posted together are one send, one after the other on the wire, and one ACK is enough for them.
#[test]
fn small_writes_posted_together_are_one_train_and_one_ack() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(4096, Access::LOCAL_WRITE, 1);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    for n in 0..32 {
        pair.post(n, SendOp::Write(dst.remote(8 * n)), &[src.sge(0, 8)]);
    }
    let mut buf = vec![0; 65_507];
    let (now, rx) = (pair.now, pair.rx_meta(1));
    let [a, b] = &mut pair.nodes;
    let train = a.device.poll_transmit(now, &mut buf, 64, &mut a.mem).unwrap();
    assert_eq!(train.len, 32 * train.segment_size, "equal packets, as segmentation offload has them");
    assert!(a.device.poll_transmit(now, &mut vec![0; 65_507], 64, &mut a.mem).is_none());
    let mut last = None;
    for (index, bytes) in buf[..train.len].chunks(train.segment_size).enumerate() {
        let rx = RxMeta { ip_id: Some(index as u16), src_port: train.src_port, ..rx };
        last = Some(Packet::parse(bytes).unwrap().bth().psn);
        b.device.handle_datagram(now, &rx, bytes, &mut b.mem);
    }
    let answer = b.device.poll_transmit(now, &mut buf, 64, &mut b.mem).unwrap();
    assert_eq!(answer.len, answer.segment_size, "one packet");
    let ack = Packet::parse(&buf[..answer.len]).unwrap();
    assert_eq!((ack.repr().bth.opcode, Some(ack.bth().psn)), (Opcode::RcAck, last));
    assert!(matches!(ack.aeth().unwrap().aeth, Aeth::Ack(_)));
    assert!(b.device.poll_transmit(now, &mut vec![0; 65_507], 64, &mut b.mem).is_none());
}

/// Packets of a stream whose window opens by little with each ACK leave by whole trains all the same.
#[test]
fn a_full_window_opens_by_whole_trains() {
    let window = WindowLimits { initial: 512, max: 512 };
    let mut pair = Pair::connected_with(Config { window, ..Config::default() }, Mtu::B4096);
    pair.max_segments = 15;
    let src = pair.a().buffer(64 << 10, Access::LOCAL_WRITE, 1);
    let dst = pair.b().buffer(64 << 10, REMOTE, 0);
    let receiver = pair.qpns[1];
    // Several laps of the send queue: what a WQE says of an earlier one does not count.
    for _ in 0..4 {
        for n in 0..128 {
            pair.b().post_recv(receiver, n, &[dst.sge(0, 64 << 10)]);
            pair.post(n, SendOp::Send, &[src.sge(0, 64 << 10)]);
        }
        pair.run();
        assert_eq!((pair.a().sends().len(), pair.b().recvs().len()), (128, 128));
    }
    let acks = pair.sent(1, Opcode::RcAck);
    let trains = pair.batches.len() - acks;
    assert!(trains <= 4 * ((128 * 16_usize).div_ceil(15) + 2), "{trains} trains, {acks} ACKs");
    assert_eq!(pair.a().device.stats().timeouts, 0, "nobody waited for what does not come");
}

/// What is left to send is not kept back when there is no more than the window has room for.
#[test]
fn the_end_of_a_stream_does_not_wait_for_room() {
    let window = WindowLimits { initial: 512, max: 512 };
    let mut pair = Pair::connected_with(Config { window, ..Config::default() }, Mtu::B4096);
    pair.max_segments = 15;
    let src = pair.a().buffer(1 << 20, Access::LOCAL_WRITE, 1);
    let dst = pair.b().buffer(1 << 20, REMOTE, 0);
    pair.post(1, SendOp::Write(dst.remote(0)), &[src.sge(0, 1 << 20)]);
    pair.post(2, SendOp::Write(dst.remote(0)), &[src.sge(0, 1 << 20)]);
    pair.collect();
    assert_eq!(pair.batches.iter().sum::<usize>(), 512, "all that the window allows, to the last packet");
}

#[test]
fn small_requests_may_wait_for_company_while_an_answer_is_under_way() {
    let mut pair = Pair::connected();
    let qpn = pair.qpns[0];
    let src = pair.a().buffer(4096, REMOTE, 1);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let small = SendOp::Write(dst.remote(0));
    pair.post(0, small, &[src.sge(0, 8)]);
    assert!(!pair.a().device.may_wait(qpn), "nothing is under way that would bring somebody back");
    pair.collect();
    for n in 1..32 {
        pair.post(
            n,
            if n == 7 { SendOp::Read(dst.remote(0)) } else { small },
            &[src.sge(0, if n == 7 { 4096 } else { 8 })],
        );
        assert!(pair.a().device.may_wait(qpn), "{n}");
    }
    pair.post(32, small, &[src.sge(0, 8)]);
    assert!(!pair.a().device.may_wait(qpn), "enough for a train");
    pair.collect();
    pair.post(33, small, &[src.sge(0, 257)]);
    assert!(!pair.a().device.may_wait(qpn), "a large one");
    pair.post(34, small, &[src.sge(0, 8)]);
    assert!(!pair.a().device.may_wait(qpn), "a large one before it");
    pair.run();
    pair.post(35, small, &[src.sge(0, 8)]);
    pair.collect();
    pair.post(36, small, &[src.sge(0, 8)]);
    assert!(pair.a().device.may_wait(qpn), "it has left");
    pair.run();
    assert_eq!(pair.a().sends().len(), 37);
    let [uc, _] = pair.connect(QpType::Uc, Mtu::B1024, |_| {});
    pair.a().post(uc, 0, small, &[src.sge(0, 8)]);
    pair.collect();
    pair.a().post(uc, 1, small, &[src.sge(0, 8)]);
    assert!(!pair.a().device.may_wait(uc), "nobody answers");
}

/// Has each side know how far the other one is.
fn acquaint(pair: &mut Pair, after: Duration) {
    let src = pair.a().buffer(8, REMOTE, 1);
    let dst = pair.b().buffer(8, REMOTE, 0);
    pair.post(0, SendOp::Write(dst.remote(0)), &[src.sge(0, 8)]);
    pair.collect();
    pair.now = pair.now + after;
    pair.run();
    assert_eq!(pair.a().sends().len(), 1);
}

/// As of a consumer that keeps a queue of small requests filled: posts one, and collects.
fn post_one_by_one(pair: &mut Pair, count: usize, op: SendOp, sge: Sge) -> Vec<usize> {
    let before = pair.batches.len();
    for n in 0..count {
        pair.post(n as u64, op, &[sge]);
        pair.collect();
    }
    pair.batches[before..].to_vec()
}

/// Consumers of bandwidth post one request for each completion; each by itself would be a send, a receive and an ACK.
#[test]
fn a_queue_that_is_refilled_one_by_one_goes_on_in_trains() {
    let window = WindowLimits { initial: 512, max: 512 };
    let mut pair = Pair::connected_with(Config { window, ..Config::default() }, Mtu::B1024);
    let src = pair.a().buffer(4096, REMOTE, 1);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let small = SendOp::Write(dst.remote(0));
    // Few do not wait; then they leave when they are as many as are in flight, or a train.
    let sge = src.sge(0, 8);
    acquaint(&mut pair, Duration::ZERO);
    assert_eq!(post_one_by_one(&mut pair, 16, small, sge), [1; 16]);
    assert_eq!(post_one_by_one(&mut pair, 15, small, sge), []);
    assert_eq!(post_one_by_one(&mut pair, 1, small, sge), [16]);
    assert_eq!(post_one_by_one(&mut pair, 31, small, sge), []);
    assert_eq!(post_one_by_one(&mut pair, 1, small, sge), [32]);
    assert_eq!(post_one_by_one(&mut pair, 64, small, sge), [32, 32]);
    // What is large does not wait, nor does what stands before it.
    assert_eq!(post_one_by_one(&mut pair, 10, small, sge), []);
    assert_eq!(post_one_by_one(&mut pair, 1, small, src.sge(0, 257)), [10, 1]);
    pair.run();
    assert_eq!(pair.a().sends().len(), 139);
    // The end of what is in flight lets go of those that wait, with no timer.
    assert_eq!(post_one_by_one(&mut pair, 16, small, sge), [1; 16]);
    assert_eq!(post_one_by_one(&mut pair, 5, small, sge), []);
    pair.run();
    assert_eq!((pair.a().sends().len(), pair.a().device.stats().timeouts), (21, 0));
    assert_eq!(*pair.batches.iter().rfind(|&&len| len > 1).unwrap(), 5);
    // Whoever posts no more says so.
    assert_eq!(post_one_by_one(&mut pair, 20, small, sge), [1; 16]);
    let [sender, _] = pair.qpns;
    assert!(pair.a().device.hurry(sender));
    pair.collect();
    assert_eq!(pair.batches.last(), Some(&4));
    assert!(!pair.a().device.hurry(sender));
    pair.run();
    assert_eq!(pair.a().sends().len(), 20);
    // The ACKs may be lost, too.
    pair.weather(7, 30, 10, 20, 5);
    for _ in 0..20 {
        post_one_by_one(&mut pair, 100, small, sge);
        pair.run();
        assert_eq!(pair.a().sends().len(), 100);
    }
}

/// An answer to a FLUSH takes as long as the medium, and holds up the ACKs of all behind it.
#[test]
fn nothing_waits_for_company_behind_a_flush() {
    let mut pair = Pair::connected();
    acquaint(&mut pair, Duration::ZERO);
    let src = pair.a().buffer(4096, REMOTE, 1);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let flush = SendOp::Flush {
        remote: dst.remote(0),
        len: 8,
        placement: Placement::Persistence,
        selectivity: Selectivity::Range,
    };
    pair.post(0, flush, &[]);
    pair.collect();
    let small = SendOp::Write(dst.remote(0));
    assert_eq!(post_one_by_one(&mut pair, 20, small, src.sge(0, 8)), [1; 20]);
    pair.run();
    assert_eq!(pair.a().sends().len(), 21);
}

/// Such a one says that the data before it is there, and is waited for.
#[test]
fn nothing_waits_for_company_behind_what_is_large() {
    let window = WindowLimits { initial: 512, max: 512 };
    let mut pair = Pair::connected_with(Config { window, ..Config::default() }, Mtu::B1024);
    acquaint(&mut pair, Duration::ZERO);
    let src = pair.a().buffer(1 << 16, REMOTE, 1);
    let dst = pair.b().buffer(1 << 16, REMOTE, 0);
    let small = SendOp::Write(dst.remote(0));
    for (op, len) in [(small, 20_000), (SendOp::Read(dst.remote(0)), 1 << 16)] {
        pair.post(0, op, &[src.sge(0, len)]);
        pair.collect();
        assert_eq!(post_one_by_one(&mut pair, 20, small, src.sge(0, 8)), [1; 20]);
        pair.run();
        assert_eq!(pair.a().sends().len(), 21);
    }
    // Nor behind many of a packet each.
    for n in 0..20 {
        pair.post(n, small, &[src.sge(0, 1024)]);
    }
    pair.collect();
    assert_eq!(post_one_by_one(&mut pair, 5, small, src.sge(0, 8)), [1; 5]);
    pair.run();
    assert_eq!(pair.a().sends().len(), 25);
    // What was there before does not count.
    post_one_by_one(&mut pair, 16, small, src.sge(0, 8));
    assert_eq!(post_one_by_one(&mut pair, 5, small, src.sge(0, 8)), []);
    pair.run();
    assert_eq!(pair.a().sends().len(), 21);
}

/// It would wait for a round trip, for others that may not come.
#[test]
fn nothing_waits_for_company_where_the_peer_is_far_or_nobody_knows() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(8, REMOTE, 1);
    let dst = pair.b().buffer(8, REMOTE, 0);
    let small = SendOp::Write(dst.remote(0));
    let far = Duration::from_micros(201);
    for (round, after) in [far, far, far / 2, far].into_iter().enumerate() {
        // Once it was near, whatever stood in the way later.
        let waits = round == 3;
        let batches = post_one_by_one(&mut pair, 20, small, src.sge(0, 8));
        assert_eq!(batches.len(), if waits { 16 } else { 20 }, "{round}");
        pair.now = pair.now + after;
        pair.run();
        assert_eq!(pair.a().sends().len(), 20);
    }
}

/// The packets that `pair` sends next, one a batch: whether each asks for an ACK.
fn asks(pair: &mut Pair) -> Vec<bool> {
    pair.max_segments = 1;
    let before = pair.log.len();
    pair.collect();
    pair.log[before..].iter().map(|(_, repr)| repr.bth.ack_req).collect()
}

/// AF_XDP has no trains: a packet a frame, and an ACK is as dear as a request.
#[test]
fn where_packets_leave_one_by_one_a_train_asks_for_one_ack() {
    let window = WindowLimits { initial: 512, max: 512 };
    let mut pair = Pair::connected_with(Config { window, ..Config::default() }, Mtu::B1024);
    pair.at_once = true;
    let src = pair.a().buffer(4096, REMOTE, 1);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let small = SendOp::Write(dst.remote(0));
    let last_of = |count: usize, every: usize| -> Vec<bool> {
        (1..=count).map(|n| n == count || n % every == 0).collect()
    };
    for count in [1, 2, 16, 17, 40] {
        for n in 0..count {
            pair.post(n as u64, small, &[src.sge(0, 8)]);
        }
        assert_eq!(asks(&mut pair), last_of(count, 16));
        pair.run();
        assert_eq!(pair.a().sends().len(), count);
    }
    // What waited for company, and leaves.
    post_one_by_one(&mut pair, 63, small, src.sge(0, 8));
    pair.post(63, small, &[src.sge(0, 8)]);
    assert_eq!(asks(&mut pair), last_of(32, 16));
    pair.run();
    assert_eq!((pair.a().sends().len(), pair.a().device.stats().timeouts), (64, 0));
}

#[test]
fn who_is_followed_by_nobody_asks_for_an_ack() {
    let mut pair = Pair::connected();
    let [sender, receiver] = pair.qpns;
    let src = pair.a().buffer(4096, REMOTE, 1);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let small = SendOp::Write(dst.remote(0));
    let sge = [src.sge(0, 8)];
    // A fence waits for the answer of a READ.
    pair.post(0, SendOp::Read(dst.remote(0)), &sge);
    pair.post(1, small, &sge);
    pair.a().post_flags(sender, 2, small, &sge, SendFlags::SIGNALED | SendFlags::FENCE);
    assert_eq!(asks(&mut pair), [true, true]);
    pair.run();
    assert_eq!(pair.a().sends().len(), 3);
    // A READ is a request of its own; so is an atomic.
    pair.post(0, small, &sge);
    pair.post(1, SendOp::Read(dst.remote(0)), &sge);
    assert_eq!(asks(&mut pair), [true, true]);
    pair.run();
    assert_eq!(pair.a().sends().len(), 2);
    // One receive, and the sender knows.
    pair.b().post_recv(receiver, 0, &[dst.sge(0, 64)]);
    pair.post(0, SendOp::Send, &sge);
    pair.run();
    pair.b().post_recv(receiver, 1, &[dst.sge(0, 64)]);
    pair.post(1, small, &sge);
    pair.run();
    pair.post(2, SendOp::Send, &sge);
    pair.post(3, SendOp::Send, &sge);
    assert_eq!(asks(&mut pair), [true], "the second has no credit");
    pair.b().post_recv(receiver, 2, &[dst.sge(0, 64)]);
    pair.run();
    assert_eq!((pair.a().sends().len(), pair.a().device.stats().timeouts), (4, 0));
}

#[test]
fn where_the_next_fails_the_last_one_asks_again() {
    let mut pair = Pair::connected();
    let src = pair.a().buffer(64, REMOTE, 1);
    let dst = pair.b().buffer(4096, REMOTE, 0);
    let small = SendOp::Write(dst.remote(0));
    pair.post(0, small, &[src.sge(0, 8)]);
    pair.post(1, small, &[src.sge(60, 8)]);
    assert_eq!(asks(&mut pair), [false, true], "and the first of these may be all that a peer has seen");
    pair.run();
    let statuses: Vec<_> = pair.a().sends().iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::LocProtErr]);
    assert_eq!(pair.a().device.stats().timeouts, 0);
}
