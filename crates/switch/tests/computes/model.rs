//! A requester and responders as simple as can be, and a network that loses, repeats and reorders: whatever happens, the leader is told of nothing
//! that not enough replicas have, and in the end of everything.

use std::collections::{BTreeSet, VecDeque};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_effort::{replay, seeds};
use remanence_wire::aeth::{self, Aeth, Credits, NakCode};
use remanence_wire::packet::Headers;
use remanence_wire::{Msn, Opcode, Psn};

use crate::common::{Rig, SWITCH, host, see, spec};

/// Requests of a run.
const TOTAL: u32 = 150;
/// Those that may be under way.
const WINDOW: u32 = 16;

/// What the `n`th request is.
const fn kind(n: u32) -> Opcode {
    match n % 13 {
        3 => Opcode::RcFlush,
        5 => Opcode::RcAtomicWrite,
        8 | 9 => Opcode::RcReadRequest,
        _ => Opcode::RcWriteOnly,
    }
}

/// Whether it has an answer of its own.
fn has_answer(n: u32) -> bool {
    kind(n) != Opcode::RcWriteOnly
}

/// A responder: it takes requests in order, and knows nothing of a group.
#[derive(Clone, Default)]
struct Responder {
    /// Requests that it has carried out.
    done: u32,
    /// It has asked for the next one.
    has_asked: bool,
    /// All below were acknowledged by something that has left it.
    acked: u32,
}

/// A requester that goes back as far as it has to.
#[derive(Default)]
struct Requester {
    /// All below are completed.
    una: u32,
    next: u32,
    /// It has gone back to there, and does so once, unless nothing comes at all.
    gap: Option<u32>,
}

impl Requester {
    fn go_back(&mut self) {
        if self.gap.replace(self.una) != Some(self.una) {
            self.next = self.una;
        }
    }

    /// Everything below `n` was acknowledged: up to the first one that needs more than that, to which it goes back then.
    fn advance(&mut self, n: u32) -> bool {
        while self.una < n.min(TOTAL) {
            if has_answer(self.una) {
                self.go_back();
                return false;
            }
            self.una += 1;
        }
        self.next = self.next.max(self.una);
        true
    }
}

struct World {
    rng: ChaCha8Rng,
    rig: Rig,
    requester: Requester,
    responders: Vec<Responder>,
    wire: VecDeque<Vec<u8>>,
    /// Percent of what may go wrong.
    loss: u32,
    /// Requests whose answers the switch has let through.
    answered: BTreeSet<u32>,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (replicas, enough) = [(3, 2), (3, 3), (2, 1), (5, 3), (3, 1)][(rng.next_u32() % 5) as usize];
        let mut spec = spec(replicas, enough, enough);
        spec.leader.psn = Psn::new(rng.next_u32() | 0xff_ff00);
        spec.replicas.iter_mut().for_each(|replica| replica.end.psn = Psn::new(rng.next_u32()));
        let responders = vec![Responder::default(); replicas.into()];
        let loss = rng.next_u32() % 12;
        let (requester, wire, answered) = (Requester::default(), VecDeque::new(), BTreeSet::new());
        Self { rng, rig: Rig::new(spec), requester, responders, wire, loss, answered, seed }
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.next_u32() % 100 < percent
    }

    /// The leader sends what it may.
    fn send(&mut self) {
        while self.requester.next < TOTAL.min(self.requester.una + WINDOW) {
            let n = self.requester.next;
            self.requester.next += 1;
            let range = self.rig.range(8 * u64::from(n), 8);
            let (headers, payload): (_, &[u8]) = match kind(n) {
                Opcode::RcFlush => {
                    (Headers::FethReth(remanence_wire::feth::Repr::parse(&[0, 0, 0, 2]), range), &[])
                }
                Opcode::RcReadRequest => (Headers::Reth(range), &[]),
                _ => (Headers::Reth(range), &[n as u8; 8]),
            };
            let packet = self.rig.request(kind(n), n, headers, payload);
            self.wire.push_back(packet);
        }
    }

    /// One packet arrives, or does not.
    fn step(&mut self) {
        if self.wire.is_empty() || self.rng.next_u32().is_multiple_of(1000) {
            // A timeout.
            self.requester.gap = None;
            self.requester.go_back();
            self.send();
        }
        let reordered = self.chance(self.loss);
        let at = if reordered { self.rng.next_u32() as usize % self.wire.len() } else { 0 };
        let packet = self.wire.remove(at).expect("somebody always sends");
        if self.chance(self.loss) {
            return;
        }
        if self.chance(self.loss) {
            self.wire.push_back(packet.clone());
        }
        let to = see(&packet).to;
        if to == SWITCH {
            for left in self.rig.give(&packet) {
                self.judge(&left);
                self.wire.push_back(left);
            }
        } else if to == host(1) {
            self.leader_gets(&packet);
            self.send();
        } else {
            let replica = (0..self.responders.len()).find(|&at| self.rig.spec.replicas[at].end.addr == to);
            self.replica_gets(replica.expect("a replica"), &packet);
        }
    }

    /// The count of a PSN from the first one of a connection.
    fn index(psn: Psn, first: Psn) -> u32 {
        u32::try_from(psn.diff(first)).expect("no PSN before the first")
    }

    /// What leaves the switch for the leader says nothing that is not so.
    fn judge(&mut self, packet: &[u8]) {
        let seen = see(packet);
        if seen.to != host(1) {
            return;
        }
        let n = Self::index(seen.psn(), self.rig.spec.leader.psn);
        let is_ack = matches!(seen.aeth().map(|aeth| aeth.aeth), Some(Aeth::Ack(_)));
        // All below this are acknowledged by it, in so many words or as what is before a NAK.
        let below = if is_ack { n + 1 } else { n };
        let have = self.responders.iter().filter(|one| one.acked >= below).count();
        assert!(have >= self.rig.spec.writes, "{}: {below} of {have} replicas: {seen:?}", replay(self.seed));
        if seen.repr.bth.opcode == Opcode::RcReadResponseOnly {
            self.answered.insert(n);
        }
        let missing = (0..below).find(|&n| has_answer(n) && !self.answered.contains(&n));
        assert_eq!(missing, None, "{}: its answer comes before {seen:?}", replay(self.seed));
    }

    fn leader_gets(&mut self, packet: &[u8]) {
        let seen = see(packet);
        let n = Self::index(seen.psn(), self.rig.spec.leader.psn);
        if n < self.requester.una {
            return;
        }
        if seen.repr.bth.opcode == Opcode::RcReadResponseOnly {
            assert!(has_answer(n), "{}: an answer to a WRITE", replay(self.seed));
            let data: &[u8] = if kind(n) == Opcode::RcReadRequest { &[n as u8; 8] } else { &[] };
            assert_eq!(seen.payload, data);
            if self.requester.advance(n) {
                self.requester.una = n + 1;
                self.requester.next = self.requester.next.max(n + 1);
            }
            return;
        }
        match seen.aeth().unwrap().aeth {
            Aeth::Ack(_) => _ = self.requester.advance(n + 1),
            Aeth::Nak(code) => {
                assert_eq!(code, NakCode::PsnSequenceError, "{}", replay(self.seed));
                if self.requester.advance(n) {
                    self.requester.go_back();
                }
            }
            Aeth::RnrNak(_) => panic!("nobody was not ready"),
        }
    }

    fn replica_gets(&mut self, at: usize, packet: &[u8]) {
        let seen = see(packet);
        let end = self.rig.spec.replicas[at].end;
        assert_eq!(seen.repr.bth.dest_qp, end.qpn);
        let n = Self::index(seen.psn(), end.psn);
        let lazy = self.chance(50);
        let one = &mut self.responders[at];
        let ack = Aeth::Ack(Credits::UNLIMITED);
        let (opcode, n, aeth) = if n > one.done {
            if std::mem::replace(&mut one.has_asked, true) {
                return;
            }
            (Opcode::RcAck, one.done, Aeth::Nak(NakCode::PsnSequenceError))
        } else {
            let is_new = n == one.done;
            if is_new {
                one.done += 1;
                one.has_asked = false;
            }
            match has_answer(n) {
                true => (Opcode::RcReadResponseOnly, n, ack),
                // One ACK for several.
                false if is_new && lazy => return,
                false => (Opcode::RcAck, one.done - 1, ack),
            }
        };
        let says = if aeth == ack { n + 1 } else { n };
        one.acked = one.acked.max(says);
        let headers = Headers::Aeth(aeth::Repr { aeth, msn: Msn::new(one.done) });
        let data: &[u8] =
            if opcode != Opcode::RcAck && kind(n) == Opcode::RcReadRequest { &[n as u8; 8] } else { &[] };
        let packet = self.rig.response(at, opcode, n, headers, data);
        self.wire.push_back(packet);
    }

    fn run(mut self) {
        self.send();
        for step in 0..200_000 {
            if self.requester.una == TOTAL {
                let have = self.responders.iter().filter(|one| one.done == TOTAL).count();
                assert!(have >= self.rig.spec.writes, "{}", replay(self.seed));
                return;
            }
            if step == 20_000 {
                // From now on all must come to an end.
                self.loss = 0;
            }
            self.step();
        }
        panic!("{}: {} of {TOTAL} are done, and no end", replay(self.seed), self.requester.una);
    }
}

#[test]
fn the_leader_is_told_of_what_enough_replicas_have_and_of_nothing_else() {
    for seed in seeds(200) {
        World::new(seed).run();
    }
}
