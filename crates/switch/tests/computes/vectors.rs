//! The vectors: they are what they are said to be here, packet by packet, and the core reproduces them.
//!
//! What must leave is made by hand here, and sealed by `wire`'s computation over every byte: the core has no part in it. After a change of the cases
//! `REMANENCE_WRITE_VECTORS=1 cargo test -p remanence-switch --test computes vectors::` writes the file again.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_rnic::Instant;
use remanence_switch::vectors::{Case, FILE, Step, Vectors};
use remanence_switch::{Spec, Switch};
use remanence_wire::aeth::{self, Aeth, Credits, NakCode, RnrTimer};
use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Msn, Opcode, bth, feth, imm_dt, ip};

use crate::common::{PORT, Path, Rig, SWITCH, config, host, packet, plain_ack, spec};

/// What the file says of itself.
const HEAD: &str = "\
# Packets in, and packets out, for every data plane of the switch: crates/switch/src/vectors.rs has the format.
# Made by crates/switch/tests/computes/vectors.rs.
";

/// The group of all cases: three replicas, the last of which is Linux; two must have a WRITE, and two must agree.
fn group() -> Spec {
    let mut spec = spec(3, 2, 2);
    spec.replicas[2].linux_flush = true;
    spec
}

/// Writes the steps of a case.
struct Story {
    rig: Rig,
    case: Case,
}

impl Story {
    /// What goes in next.
    fn goes_in(&mut self, input: Vec<u8>) {
        self.case.steps.push(Step { input, outputs: Vec::new() });
    }

    fn leaves(&mut self, output: Vec<u8>) {
        self.case.steps.last_mut().unwrap().outputs.push(output);
    }

    /// A request and its copies.
    fn scatters(&mut self, opcode: Opcode, n: u32, headers: impl Fn(usize) -> Headers, payload: &[u8]) {
        self.goes_in(self.rig.request(opcode, n, headers(LEADER), payload));
        for to in 0..3 {
            let mut copy = self.rig.copy(to, opcode, n, headers(to), payload);
            if opcode == Opcode::RcFlush && self.rig.spec.replicas[to].linux_flush {
                let flow = ip::Datagram::parse(&copy).unwrap().flow();
                remanence_wire::icrc::seal_linux_flush(&flow, 0, &mut copy[28..]);
            }
            self.leaves(copy);
        }
    }

    fn range(&self, at: usize, offset: u64, len: u32) -> remanence_wire::reth::Repr {
        if at == LEADER { self.rig.range(offset, len) } else { self.rig.range_at(at, offset, len) }
    }

    fn writes(&mut self, n: u32, len: u32) {
        let ranges: Vec<_> = (0..=LEADER).map(|at| Headers::Reth(self.range(at, 64, len))).collect();
        let payload: Vec<u8> = (0..len).map(|at| (at * 7 + n) as u8).collect();
        self.scatters(Opcode::RcWriteOnly, n, |at| ranges[at], &payload);
    }

    fn asks(&mut self, opcode: Opcode, n: u32, len: u32) {
        let feth = feth::Repr::parse(&[0, 0, 0, 2]);
        let headers = |range| {
            if opcode == Opcode::RcFlush { Headers::FethReth(feth, range) } else { Headers::Reth(range) }
        };
        let all: Vec<_> = (0..=LEADER).map(|at| headers(self.range(at, 128, len))).collect();
        let payload: &[u8] = if opcode == Opcode::RcAtomicWrite { &[5; 8] } else { &[] };
        self.scatters(opcode, n, |at| all[at], payload);
    }

    /// A replica answers.
    fn says(&mut self, from: usize, opcode: Opcode, n: u32, aeth: Aeth, msn: u32, payload: &[u8]) {
        let headers = Headers::Aeth(aeth::Repr { aeth, msn: Msn::new(msn) });
        self.goes_in(self.rig.response(from, opcode, n, headers, payload));
    }

    fn acks(&mut self, from: usize, n: u32, msn: u32) {
        self.says(from, Opcode::RcAck, n, ACK, msn, &[]);
    }

    /// The leader is told, by the switch itself.
    fn tells(&mut self, opcode: Opcode, n: u32, aeth: Aeth, msn: u32) {
        let leader = self.rig.spec.leader;
        let src_port = 0xc000 | (self.rig.made.broadcast.value() & 0x3fff) as u16;
        let headers = Headers::Aeth(aeth::Repr { aeth, msn: Msn::new(msn) });
        let repr = Repr { bth: bth::Repr::new(opcode, leader.qpn, leader.psn.add(n)), headers };
        let mut told = packet(&Path { src: SWITCH, dst: leader.addr, src_port, ident: 0 }, &repr, &[]);
        // Not congestion-capable, other than the packets of engines: the ICRC does not see it.
        let ip = ip::Datagram::parse(&told).unwrap().ip;
        ip::Repr { traffic_class: 0, ..ip }.emit(&mut told);
        self.leaves(told);
    }

    /// The leader gets a replica's packet as the switch's.
    fn passes(&mut self, opcode: Opcode, n: u32, headers: Headers, payload: &[u8]) {
        let leader = self.rig.spec.leader;
        let path = Path { src: SWITCH, dst: leader.addr, src_port: PORT, ident: 0 };
        let repr = Repr { bth: bth::Repr::new(opcode, leader.qpn, leader.psn.add(n)), headers };
        self.leaves(packet(&path, &repr, payload));
    }
}

/// Stands for the leader where replicas are counted.
const LEADER: usize = 3;
const ACK: Aeth = Aeth::Ack(Credits::UNLIMITED);
const LOST: Aeth = Aeth::Nak(NakCode::PsnSequenceError);

/// What must hold, and the steps that show it.
type Told = (&'static str, fn(&mut Story));

fn cases() -> Vec<Case> {
    let stories: &[Told] = &[
        ("a WRITE of one packet at several lengths, acknowledged by two", |story| {
            for (n, len) in (0..).zip([0, 1, 2, 3, 8, 64, 100, 1023, 1024]) {
                story.writes(n, len);
                story.acks(n as usize % 3, n, n + 1);
                story.acks((n as usize + 1) % 3, n, n + 1);
                story.tells(Opcode::RcAck, n, ACK, n + 1);
                story.acks((n as usize + 2) % 3, n, n + 1);
            }
        }),
        ("a WRITE of several packets, and immediate data", |story| {
            let ranges: Vec<_> = (0..=LEADER).map(|at| story.range(at, 0, 2248)).collect();
            let imm = imm_dt::Repr { imm: 0x0102_0304 };
            story.scatters(Opcode::RcWriteFirst, 0, |at| Headers::Reth(ranges[at]), &[1; 1024]);
            story.scatters(Opcode::RcWriteMiddle, 1, |_| Headers::None, &[2; 1024]);
            story.scatters(Opcode::RcWriteLast, 2, |_| Headers::None, &[3; 200]);
            story.scatters(Opcode::RcWriteLastImm, 3, |_| Headers::Imm(imm), &[4; 7]);
            story.scatters(Opcode::RcWriteOnlyImm, 4, |at| Headers::RethImm(ranges[at], imm), &[5; 30]);
            story.acks(2, 4, 3);
            story.acks(1, 2, 1);
            story.tells(Opcode::RcAck, 2, ACK, 1);
            story.acks(1, 4, 3);
            story.tells(Opcode::RcAck, 4, ACK, 3);
        }),
        ("duplicates count once", |story| {
            story.writes(0, 8);
            story.acks(1, 0, 1);
            story.acks(1, 0, 1);
            story.writes(0, 8);
            story.acks(1, 0, 1);
            story.acks(0, 0, 1);
            story.tells(Opcode::RcAck, 0, ACK, 1);
            story.writes(0, 8);
            story.tells(Opcode::RcAck, 0, ACK, 1);
        }),
        ("the answer to a FLUSH and to an ATOMIC WRITE passes no later ACK", |story| {
            story.writes(0, 8);
            story.asks(Opcode::RcFlush, 1, 64);
            story.asks(Opcode::RcAtomicWrite, 2, 8);
            story.writes(3, 8);
            story.says(0, Opcode::RcReadResponseOnly, 1, ACK, 2, &[]);
            story.says(0, Opcode::RcReadResponseOnly, 2, ACK, 3, &[]);
            story.acks(0, 3, 4);
            story.acks(2, 3, 4);
            story.tells(Opcode::RcReadResponseOnly, 1, ACK, 4);
            story.tells(Opcode::RcReadResponseOnly, 2, ACK, 4);
            story.tells(Opcode::RcAck, 3, ACK, 4);
        }),
        ("a READ of two packets, on which two agree", |story| {
            story.asks(Opcode::RcReadRequest, 0, 1500);
            story.says(0, Opcode::RcReadResponseFirst, 0, ACK, 1, &[1; 1024]);
            story.says(2, Opcode::RcReadResponseFirst, 0, Aeth::Ack(Credits::at_most(4)), 1, &[1; 1024]);
            let four = aeth::Repr { aeth: Aeth::Ack(Credits::at_most(4)), msn: Msn::new(1) };
            story.passes(Opcode::RcReadResponseFirst, 0, Headers::Aeth(four), &[1; 1024]);
            story.says(2, Opcode::RcReadResponseLast, 1, Aeth::Ack(Credits::at_most(4)), 1, &[2; 476]);
            story.says(1, Opcode::RcReadResponseLast, 1, ACK, 1, &[2; 476]);
            story.passes(Opcode::RcReadResponseLast, 1, Headers::Aeth(four), &[2; 476]);
        }),
        ("a READ on which they do not agree", |story| {
            story.asks(Opcode::RcReadRequest, 0, 100);
            story.says(0, Opcode::RcReadResponseOnly, 0, ACK, 1, &[1; 100]);
            story.says(1, Opcode::RcReadResponseOnly, 0, ACK, 1, &[2; 100]);
            story.tells(Opcode::RcAck, 0, Aeth::Nak(NakCode::RemoteOperationalError), 0);
        }),
        ("a lost packet is asked for where the leader was told last", |story| {
            (0..3).for_each(|n| story.writes(n, 8));
            story.says(0, Opcode::RcAck, 2, LOST, 2, &[]);
            story.tells(Opcode::RcAck, 0, LOST, 0);
            story.says(1, Opcode::RcAck, 2, LOST, 2, &[]);
            story.tells(Opcode::RcAck, 1, ACK, 2);
            story.tells(Opcode::RcAck, 2, LOST, 2);
            story.says(2, Opcode::RcAck, 2, LOST, 2, &[]);
        }),
        ("a receiver that is not ready", |story| {
            (0..2).for_each(|n| story.writes(n, 8));
            let wait = Aeth::RnrNak(RnrTimer::new(5));
            story.says(0, Opcode::RcAck, 1, wait, 1, &[]);
            story.tells(Opcode::RcAck, 0, wait, 0);
        }),
        ("a refusal ends the group", |story| {
            (0..2).for_each(|n| story.writes(n, 8));
            let refused = Aeth::Nak(NakCode::RemoteAccessError);
            story.says(2, Opcode::RcAck, 1, refused, 1, &[]);
            story.tells(Opcode::RcAck, 0, refused, 0);
            story.acks(0, 1, 2);
            story.acks(1, 1, 2);
            let again =
                story.rig.request(Opcode::RcWriteOnly, 2, Headers::Reth(story.rig.range(0, 8)), &[1; 8]);
            story.goes_in(again);
            story.tells(Opcode::RcAck, 0, refused, 0);
        }),
        ("strangers, and answers to nothing", |story| {
            story.writes(0, 8);
            let path = Path { src: host(99), dst: SWITCH, src_port: PORT, ident: 0 };
            let bth = bth::Repr::new(
                Opcode::RcWriteOnly,
                story.rig.made.broadcast,
                story.rig.spec.leader.psn.add(1),
            );
            story.goes_in(packet(
                &path,
                &Repr { bth, headers: Headers::Reth(story.rig.range(0, 8)) },
                &[1; 8],
            ));
            let end = story.rig.spec.replicas[1].end;
            let bth = bth::Repr::new(Opcode::RcAck, story.rig.made.aggregate(1), end.psn);
            let forged = Repr { bth, headers: Headers::Aeth(plain_ack(1)) };
            story.goes_in(packet(&Path { src: host(2), ..path }, &forged, &[]));
            story.acks(0, 5, 6);
            story.acks(1, 5, 6);
            story.acks(0, 0, 1);
        }),
        ("damage stays damage, and what is acted upon must be whole", |story| {
            let break_at = |mut packet: Vec<u8>, at: usize| {
                packet[at] ^= 0x10;
                packet
            };
            story.writes(0, 100);
            let step = story.case.steps.last_mut().unwrap();
            let end = step.input.len();
            step.input = break_at(std::mem::take(&mut step.input), end - 10);
            for output in &mut step.outputs {
                *output = break_at(std::mem::take(output), end - 10);
            }
            story.acks(0, 0, 1);
            story.acks(1, 0, 1);
            let step = story.case.steps.last_mut().unwrap();
            step.input = break_at(std::mem::take(&mut step.input), 43);
        }),
        ("what is not for the switch goes on untouched", |story| {
            let path = Path { src: host(1), dst: host(2), src_port: PORT, ident: 0x1234 };
            let bth =
                bth::Repr::new(Opcode::RcWriteOnly, story.rig.made.broadcast, story.rig.spec.leader.psn);
            let other = packet(&path, &Repr { bth, headers: Headers::Reth(story.rig.range(0, 8)) }, &[1; 8]);
            story.goes_in(other.clone());
            story.leaves(other);
        }),
    ];
    let tell = |&(name, tell): &Told| {
        let case = Case { name: name.to_owned(), steps: Vec::new() };
        let mut story = Story { rig: Rig::new(group()), case };
        tell(&mut story);
        story.case
    };
    stories.iter().map(tell).collect()
}

#[test]
fn the_file_is_what_the_cases_say() {
    let text = format!("{HEAD}{}", Vectors { config: config(), groups: vec![group()], cases: cases() });
    if std::env::var_os("REMANENCE_WRITE_VECTORS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors/byp4ss.txt");
        std::fs::write(path, &text).unwrap();
        return;
    }
    let first = text.lines().zip(FILE.lines()).position(|(made, read)| made != read);
    assert!(text == FILE, "the file is another one from line {:?} on", first.map(|line| line + 1));
    assert_eq!(
        FILE.parse::<Vectors>().unwrap().to_string(),
        text[HEAD.len()..],
        "and is read as it is written"
    );
}

#[test]
fn the_core_reproduces_them() {
    let vectors: Vectors = FILE.parse().unwrap();
    assert!(vectors.cases.len() >= 12);
    for case in &vectors.cases {
        let mut switch = Switch::new(vectors.config.clone());
        for group in &vectors.groups {
            switch.make_group(Instant::ZERO, group.clone()).unwrap();
        }
        for (at, step) in case.steps.iter().enumerate() {
            let mut left = Vec::new();
            switch.handle(Instant::ZERO, &step.input, &mut |packet| left.push(packet.to_vec()));
            assert_eq!(left, step.outputs, "{}: packet {at}", case.name);
        }
    }
}

#[test]
fn what_is_no_file_of_vectors_is_refused_with_its_line() {
    let refused = |text: &str| text.parse::<Vectors>().unwrap_err();
    assert_eq!(refused("# nothing\n"), "no switch");
    assert_eq!(refused("switch 10.0.0.1\n"), "line 1: no switch");
    assert_eq!(refused("replica 10.0.0.1/1/1 va=1 rkey=1\n"), "line 1: a replica of no group");
    assert_eq!(refused("\nin 00\n"), "line 2: a packet in no case");
    assert_eq!(refused("case a\nout 00\n"), "line 2: what leaves for no packet");
    assert_eq!(refused("case a\nin 0\n"), "line 2: no packet");
    assert_eq!(refused("case a\nin 0g\n"), "line 2: no packet");
    assert_eq!(refused("cases\n"), "line 1: begins with no known word");
}

#[test]
fn nothing_that_comes_in_makes_it_panic() {
    let vectors: Vectors = FILE.parse().unwrap();
    let inputs: Vec<&Vec<u8>> =
        vectors.cases.iter().flat_map(|case| &case.steps).map(|step| &step.input).collect();
    for seed in remanence_effort::seeds(100) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |n: usize| rng.next_u32() as usize % n;
        let mut rig = Rig::new(group());
        for _ in 0..200 {
            let mut packet = inputs[below(inputs.len())].clone();
            for _ in 0..below(4) {
                // Anything behind the IP header, and opcodes, flags and PSNs more often than their share.
                let at = 20 + if below(2) == 0 { 8 + below(12) } else { below(packet.len() - 20) };
                packet[at] ^= 1 << below(8);
            }
            let sealed = ip::Datagram::parse(&packet).ok().filter(|_| below(2) == 0);
            if let Some((flow, ident)) = sealed.map(|datagram| (datagram.flow(), datagram.ip.ident)) {
                remanence_wire::icrc::seal(&flow, ident, &mut packet[28..]);
            }
            for left in rig.give(&packet) {
                assert!(
                    left == packet || ip::Datagram::parse(&left).is_ok(),
                    "{}",
                    remanence_effort::replay(seed)
                );
            }
        }
    }
}
