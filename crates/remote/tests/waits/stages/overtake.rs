//! Packets that overtake each other: what a responder does whose memory may be written in any order.
//!
//! The engine delivers in the order of the packets' numbers, as RC must. A responder with relaxed ordering, several paths, or
//! iWARP's direct placement (RFC 5041) *places* what a packet brings when that packet is there, whatever is missing before
//! it; only completions, acknowledgements and whatever is executed keep their order. Here such a packet is looked at while it
//! is on the wire, and its words come into the RNIC's buffer at once; when the engine takes the packet they are there already.

use std::collections::{BTreeMap, BTreeSet};

use remanence_rnic::RegionId;
use remanence_wire::opcode::Operation;
use remanence_wire::packet::Packet;

use super::memory::PM;

/// Where the bytes of a packet go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) region: RegionId,
    pub(crate) at: u64,
    pub(crate) atomic: bool,
    /// Which message it is, if it takes a receive buffer.
    message: Option<u64>,
}

/// The packets of one requester, by their numbers.
#[derive(Default)]
pub(crate) struct Overtaking {
    targets: BTreeMap<u32, Target>,
    /// Taken or placed: what is sent again is not placed again, over what may have come later.
    seen: BTreeSet<u32>,
    /// Messages that were sent.
    messages: u64,
    /// Where the next packet of a message goes on.
    next: Option<Target>,
}

impl Overtaking {
    /// Looks at a packet that is sent. `buffer` is where the receive buffer of a message lies.
    pub(crate) fn sent(&mut self, bytes: &[u8], buffer: impl Fn(u64) -> (RegionId, u64)) {
        let packet = Packet::parse(bytes).expect("the engine's own");
        let info = packet.info();
        if self.targets.contains_key(&packet.psn().value()) {
            return;
        }
        let mut target = match (info.operation, info.position.starts()) {
            (Operation::Write | Operation::AtomicWrite, true) => {
                let at = packet.reth().expect("it has one").va;
                let atomic = info.operation == Operation::AtomicWrite;
                Target { region: PM, at, atomic, message: None }
            }
            (Operation::Send, true) => {
                let (region, at) = buffer(self.messages + 1);
                Target { region, at, atomic: false, message: None }
            }
            (Operation::Write | Operation::Send, false) => self.next.expect("it has begun"),
            _ => return,
        };
        let ends = info.position.ends() && info.takes_receive();
        self.messages += u64::from(ends);
        // A SEND lies in its buffer from its first packet on; a WRITE takes one with its immediate.
        let takes = info.operation == Operation::Send || ends;
        target.message = takes.then_some(self.messages + u64::from(!ends));
        self.targets.insert(packet.psn().value(), target);
        self.next = Some(Target { at: target.at + packet.payload().len() as u64, ..target });
    }

    /// What a packet on the wire brings, if the responder may place it now: it has `given` so many receive buffers so far.
    pub(crate) fn place<'a>(&mut self, bytes: &'a [u8], given: u64) -> Option<(Target, &'a [u8])> {
        let packet = Packet::parse(bytes).expect("the engine's own");
        let target = *self.targets.get(&packet.psn().value())?;
        let room = target.message.is_none_or(|number| number <= given);
        let payload = packet.payload();
        (room && !payload.is_empty() && self.seen.insert(packet.psn().value())).then_some((target, payload))
    }

    /// The engine takes a packet.
    pub(crate) fn delivered(&mut self, bytes: &[u8]) {
        self.seen.insert(Packet::parse(bytes).expect("the engine's own").psn().value());
    }
}
