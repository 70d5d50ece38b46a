//! ACKs that wait for an answer to ride with, as two programs that take turns have it, and those that must not wait.

use std::time::Duration;

use remanence_wire::{Mtu, Opcode};

use super::pair::*;
use crate::*;

const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Two programs that answer each other, WRITE by WRITE, each `later` after it sees the other's.
struct PingPong {
    pair: Pair,
    buffers: [Buffer; 2],
    /// Of each WRITE, in bytes.
    len: u32,
    turns: u64,
}

impl PingPong {
    fn new(config: Config) -> Self {
        Self::of_len(config, 1)
    }

    fn of_len(config: Config, len: u32) -> Self {
        let mut pair = Pair::connected_with(config, Mtu::B1024);
        let room = 63 + u64::from(len);
        let buffers = [pair.a().buffer(room, REMOTE, 0), pair.b().buffer(room, REMOTE, 0)];
        Self { pair, buffers, len, turns: 0 }
    }

    /// One WRITE, each way in turn, and `later` until the other side acts; returns the trains and packets that left.
    fn turn(&mut self, later: Duration) -> (usize, Vec<Opcode>) {
        let from = (self.turns % 2) as usize;
        self.turns += 1;
        let (packets, trains) = (self.pair.log.len(), self.pair.batches.len());
        let value = self.turns as u8;
        let [near, far] = [self.buffers[from], self.buffers[1 - from]];
        let last = self.len as usize - 1;
        self.pair.nodes[from].bytes_mut(&near)[32 + last] = value;
        let qpn = self.pair.qpns[from];
        self.pair.nodes[from].post(qpn, self.turns, SendOp::Write(far.remote(0)), &[near.sge(32, self.len)]);
        self.pair.run_for(self.pair.latency + later);
        assert_eq!(self.pair.nodes[1 - from].bytes(&far)[last], value, "what arrives is visible at once");
        let sent = self.pair.log[packets..].iter().map(|(_, repr)| repr.bth.opcode).collect();
        (self.pair.batches.len() - trains, sent)
    }

    fn warm(config: Config) -> Self {
        let mut it = Self::new(config);
        for _ in 0..12 {
            it.turn(micros(2));
        }
        it
    }

    fn completions(&mut self) -> [usize; 2] {
        [self.pair.a().sends().len(), self.pair.b().sends().len()]
    }
}

#[test]
fn programs_that_take_turns_send_one_train_each() {
    let mut it = PingPong::new(Config::default());
    assert_eq!(
        it.turn(micros(2)),
        (2, vec![Opcode::RcWriteOnly, Opcode::RcAck]),
        "nothing is known of them yet"
    );
    for _ in 0..11 {
        it.turn(micros(2));
    }
    for _ in 0..20 {
        assert_eq!(it.turn(micros(2)), (1, vec![Opcode::RcWriteOnly, Opcode::RcAck]));
    }
    it.pair.run();
    assert_eq!(it.completions(), [16, 16]);
    assert!(it.pair.a().device.stats().acks_ridden >= 10);
    assert_eq!(it.pair.a().device.stats().timeouts, 0);
}

/// WRITEs of many packets ask for ACKs on their way; one that arrives whole is answered as a short one is.
#[test]
fn long_writes_are_answered_in_one_go() {
    // The window lets all of it out, in two trains: what follows the first packet is shorter.
    let window = WindowLimits { initial: 64, max: 512 };
    let mut it = PingPong::of_len(Config { window, ..Config::default() }, 64 << 10);
    it.pair.at_once = true;
    for _ in 0..12 {
        it.turn(micros(2));
    }
    for _ in 0..20 {
        let (trains, sent) = it.turn(micros(2));
        assert_eq!((trains, sent.len()), (2, 65), "{sent:?}");
        assert_eq!(sent[63..], [Opcode::RcWriteLast, Opcode::RcAck]);
    }
    it.pair.run();
    assert_eq!(it.completions(), [16, 16]);

    // Where the rest is long in coming, what asks for an ACK on the way gets it, and so does the end.
    let mut sent = 0;
    it.pair.hook = Some(Box::new(move |_, packet| {
        sent += u64::from(packet.info().operation == remanence_wire::opcode::Operation::Write);
        if sent > 48 { Fate::Delay(micros(10)) } else { Fate::Deliver }
    }));
    let (_, sent) = it.turn(micros(12));
    assert_eq!(sent.iter().filter(|&&op| op == Opcode::RcAck).count(), 1, "of the middle");
    let (_, sent) = it.turn(micros(12));
    assert_eq!(sent.last(), Some(&Opcode::RcAck), "and the end rides");
}

#[test]
fn an_ack_that_waits_in_vain_leaves_when_the_delay_is_over() {
    let mut it = PingPong::warm(Config::default());
    it.turn(micros(0));
    assert_eq!(it.completions().iter().sum::<usize>(), 12, "the thirteenth is not acknowledged yet");
    it.pair.run_for(ACK_RIDE + it.pair.latency - Duration::from_nanos(1));
    assert_eq!(it.completions().iter().sum::<usize>(), 0);
    it.pair.run_for(Duration::from_nanos(1));
    assert_eq!(it.completions().iter().sum::<usize>(), 1);
    // Who was wrong asks for more before it waits again, and the other side is as it was.
    for _ in 0..6 {
        assert_eq!((it.turn(micros(2)).0, it.turn(micros(2)).0), (1, 2));
    }
}

#[test]
fn a_peer_that_sends_on_is_told_at_once() {
    let mut it = PingPong::warm(Config::default());
    let [near, far] = it.buffers;
    // One by one: of what leaves together only the last asks.
    for n in 0..2 {
        it.pair.post(100 + n, SendOp::Write(far.remote(0)), &[near.sge(32, 1)]);
        it.pair.collect();
    }
    it.pair.run_for(it.pair.latency * 2);
    assert_eq!(it.pair.a().sends().iter().filter(|wc| wc.wr_id >= 100).count(), 2);
}

/// Who is told of an answer has been told before that what it answers was received: in every pair of a message and an answer
/// in which either is not a plain WRITE, the ACK leaves at once, or before the answer.
#[test]
fn an_answer_never_overtakes_the_ack_of_what_it_answers() {
    type Op = fn(RemoteAddr) -> SendOp;
    let write: Op = |to| SendOp::Write(to);
    let imm: Op = |to| SendOp::WriteImm(to, 7);
    let send: Op = |_| SendOp::Send;
    for (ask, answer) in [(send, send), (imm, imm), (write, send), (send, write), (write, imm), (imm, write)]
    {
        let mut it = PingPong::warm(Config::default());
        it.pair.run_for(micros(100));
        let in_vain =
            |pair: &Pair| pair.nodes.iter().map(|node| node.device.stats().acks_in_vain).sum::<u64>();
        let before = in_vain(&it.pair);
        for n in 0..64 {
            for at in [0, 1] {
                let (buffer, qpn) = (it.buffers[at], it.pair.qpns[at]);
                it.pair.nodes[at].post_recv(qpn, n, &[buffer.sge(0, 16)]);
            }
        }
        for n in 0..40 {
            for (from, op) in [(0, ask), (1, answer)] {
                let start = it.pair.log.len();
                let [near, far] = [it.buffers[from], it.buffers[1 - from]];
                let qpn = it.pair.qpns[from];
                it.pair.nodes[from].post(qpn, n, op(far.remote(0)), &[near.sge(32, 8)]);
                it.pair.collect();
                let sent: Vec<Opcode> =
                    it.pair.log[start..].iter().map(|(_, repr)| repr.bth.opcode).collect();
                assert_ne!(sent.last(), Some(&Opcode::RcAck), "{sent:?} in turn {n}");
                it.pair.run_for(it.pair.latency + micros(2));
            }
        }
        assert_eq!(in_vain(&it.pair), before);
    }
}

/// The peer of a client that only ever writes, as to a log, never makes it wait.
#[test]
fn a_passive_target_never_waits() {
    let mut pair = Pair::connected();
    let (near, far) = (pair.a().buffer(64, REMOTE, 1), pair.b().buffer(64, REMOTE, 0));
    for _ in 0..50 {
        pair.post(1, SendOp::Write(far.remote(0)), &[near.sge(0, 8)]);
        pair.run_for(pair.latency * 2);
        assert_eq!(pair.a().sends().len(), 1);
    }
}

#[test]
fn a_delay_of_zero_is_none() {
    let mut it = PingPong::warm(Config { ack_ride: Duration::ZERO, ..Config::default() });
    assert_eq!(it.turn(micros(2)).0, 2);
}

#[test]
fn who_leaves_for_good_acknowledges_what_waits() {
    let mut it = PingPong::warm(Config::default());
    it.turn(micros(0));
    it.completions();
    let last = ((it.turns - 1) % 2) as usize;
    it.pair.nodes[1 - last].device.hurry_all();
    it.pair.run_for(it.pair.latency);
    assert_eq!(it.pair.nodes[last].sends().len(), 1);

    let mut it = PingPong::warm(Config::default());
    it.turn(micros(0));
    it.completions();
    let last = ((it.turns - 1) % 2) as usize;
    let qpn = it.pair.qpns[1 - last];
    it.pair.nodes[1 - last].device.destroy_qp(qpn).unwrap();
    it.pair.run_for(it.pair.latency);
    assert_eq!(it.pair.nodes[last].sends().len(), 1);
}

/// A stream of requests that fills every train must not hold the ACK back, where it is more than the window lets out now.
#[test]
fn an_ack_that_found_no_room_leads_the_next_train() {
    let mut it = PingPong::warm(Config::default());
    let pair = &mut it.pair;
    pair.max_segments = 4;
    let (near, far) = (pair.a().buffer(1 << 20, REMOTE, 1), pair.b().buffer(1 << 20, REMOTE, 0));
    it.completions();
    it.turn(micros(1));
    assert_eq!(it.completions(), [0, 1], "its ACK waits");
    let pair = &mut it.pair;
    let (qpn, start) = (pair.qpns[1], pair.log.len());
    for n in 0..4 {
        pair.b().post(qpn, n, SendOp::Write(near.remote(0)), &[far.sge(0, 256 << 10)]);
    }
    pair.collect();
    let ops: Vec<Opcode> = pair.log[start..].iter().map(|(_, repr)| repr.bth.opcode).collect();
    assert_eq!(ops.iter().position(|&op| op == Opcode::RcAck), Some(2), "{ops:?}");
    pair.run();
    assert_eq!(it.completions(), [1, 4]);
}

/// Lost trains and lost ACKs are repaired as ever: every message once, every completion once.
#[test]
fn weather_does_not_matter() {
    for seed in 0..40 {
        let mut it = PingPong::warm(Config::default());
        it.pair.run_for(micros(100));
        it.pair.weather(seed, 10, 5, 10, 2);
        it.completions();
        for turn in 0..60u64 {
            let from = (it.turns % 2) as usize;
            it.turns += 1;
            let value = (turn + 100) as u8;
            let [near, far] = [it.buffers[from], it.buffers[1 - from]];
            it.pair.nodes[from].bytes_mut(&near)[32] = value;
            let qpn = it.pair.qpns[from];
            it.pair.nodes[from].post(qpn, turn, SendOp::Write(far.remote(0)), &[near.sge(32, 1)]);
            for _ in 0..10_000 {
                if it.pair.nodes[1 - from].bytes(&far)[0] == value {
                    break;
                }
                it.pair.run_for(micros(20));
            }
            assert_eq!(it.pair.nodes[1 - from].bytes(&far)[0], value, "seed {seed}, turn {turn}");
        }
        it.pair.hook = None;
        it.pair.run();
        assert_eq!(it.completions(), [30, 30], "seed {seed}");
    }
}
