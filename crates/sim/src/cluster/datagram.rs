//! Datagrams: each comes to where it was sent once, or not at all, or twice, and in any order.
//!
//! They have the clocks, the speeds and the faults of the nodes in common with connections, and nothing is promised of them. A network that is
//! healthy loses none, but jitter has them overtake each other; what goes wrong with them is a fault as any other ([`Harm`]). A node that does nothing
//! has room for some, and one without a process for none.

use super::core::{Core, Event, tell};
use super::fault::{Fault, Kind, Scene};
use super::{Input, NodeId};
use crate::rng::Rng;

/// So many datagrams wait at most for a node that is stopped: it has no more receive buffers.
const RECEIVES: usize = 64;

/// By how much those are late that are, on average, in nanoseconds.
const LATE: u64 = 500_000;

/// What happens to some of the datagrams that a node sends and is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// They are lost.
    Lost,
    /// They arrive twice.
    Twice,
    /// They arrive late.
    Late,
    /// They are damaged, which their ICRC gives away to the RNIC that they come to.
    Damaged,
}

impl Harm {
    const ALL: [Self; 4] = [Self::Lost, Self::Twice, Self::Late, Self::Damaged];

    pub(super) const fn sentence(self) -> &'static str {
        match self {
            Self::Lost => "are lost",
            Self::Twice => "arrive twice",
            Self::Late => "arrive late",
            Self::Damaged => "are damaged",
        }
    }
}

/// A datagram that is under way.
#[derive(Clone, Debug)]
pub(super) struct Datagram {
    from: NodeId,
    pub(super) to: NodeId,
    /// Which life of the sender it is of, and when it left.
    life: u32,
    sent: u64,
    is_damaged: bool,
    bytes: Vec<u8>,
}

/// Harm for a seed, of which it leaves some out: of all datagrams of the servers, for the whole time or for a part of it.
pub(super) fn draw(rng: &mut Rng, scene: &Scene) -> Vec<Fault> {
    let mut faults = Vec::new();
    for harm in Harm::ALL {
        if rng.one_in(3) {
            continue;
        }
        let always = rng.one_in(2);
        for node in 0..scene.servers {
            let at = if always { 0 } else { rng.below(scene.ends - 1) };
            let lasts = if always { scene.ends } else { 1 + rng.exponential(scene.ends / 4) };
            let kind = Kind::Datagrams(harm, rng.between(1, 25) as u32);
            faults.push(Fault { at, lasts: lasts.min(scene.ends - at), node, kind, salt: 0 });
        }
    }
    faults
}

impl<O> Core<O> {
    /// Sends a datagram, which leaves when the process has done what it does.
    pub(super) fn send_datagram(&mut self, from: NodeId, to: NodeId, bytes: Vec<u8>) {
        if self.nodes[from].power.is_gone() {
            return;
        }
        self.counts.datagrams += 1;
        let copies = match (self.is_harmed(Harm::Lost, from, to), self.is_harmed(Harm::Twice, from, to)) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        self.counts.datagrams_lost += u64::from(copies == 0);
        self.counts.datagrams_twice += u64::from(copies == 2);
        let (life, sent) = (self.nodes[from].life, self.now() + self.spent(from));
        for _ in 0..copies {
            let mut at = sent + self.latency(from, to);
            if self.is_harmed(Harm::Late, from, to) {
                self.counts.datagrams_late += 1;
                at += self.rng.exponential(LATE);
            }
            let is_damaged = self.is_harmed(Harm::Damaged, from, to);
            self.counts.datagrams_damaged += u64::from(is_damaged);
            let datagram = Datagram { from, to, life, sent, is_damaged, bytes: bytes.clone() };
            self.queue.push(at, Event::Datagram(Box::new(datagram)));
        }
    }

    /// Whether a fault of one of the two ends has its way with a datagram.
    fn is_harmed(&mut self, harm: Harm, from: NodeId, to: NodeId) -> bool {
        let (nodes, rng) = (&self.nodes, &mut self.rng);
        let harms = [from, to].into_iter().flat_map(|node| nodes[node].harms.values());
        harms.filter(|(of, _)| *of == harm).any(|(_, percent)| rng.below(100) < u64::from(*percent))
    }

    /// A datagram has come to its node, if it does.
    pub(super) fn arrive_datagram(&mut self, datagram: Box<Datagram>) -> Option<Input> {
        let now = self.now();
        let Datagram { from, to, life, sent, is_damaged, .. } = *datagram;
        let (sender, receiver) = (&self.nodes[from], &self.nodes[to]);
        // What the process would have sent when it had done what it did, and it did not come to that.
        if sender.life != life && sent > sender.died || is_damaged {
            return None;
        }
        let held = sender.held_up.filter(|(began, until)| sent <= *began && now < *until);
        if let Some((_, until)) = held {
            self.queue.push(until, Event::Datagram(datagram));
            return None;
        }
        if self.blocked[from][to] > now {
            self.counts.datagrams_lost += 1;
            return None;
        }
        if !receiver.is_up {
            return None;
        }
        if receiver.busy > now {
            self.queue.push(receiver.busy, Event::Datagram(datagram));
            return None;
        }
        self.trace.hash(6 << 48 ^ (from as u64) << 16 ^ to as u64);
        datagram.bytes.chunks(8).for_each(|word| {
            self.trace.hash(word.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)));
        });
        Some(Input::Datagram { from, bytes: datagram.bytes })
    }

    /// Whether a datagram that comes to a node which is stopped finds a receive buffer; else it is lost.
    pub(super) fn has_receive_buffer(&mut self, node: NodeId) -> bool {
        let waiting = self.nodes[node].deferred.iter().filter(|event| matches!(event, Event::Datagram(_)));
        let has = waiting.count() < RECEIVES;
        if !has {
            self.counts.datagrams_lost += 1;
            tell!(self, "{} has no receive buffer left", self.nodes[node].name);
        }
        has
    }
}
