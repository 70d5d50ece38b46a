//! What leaves together, and what is acknowledged together.

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
