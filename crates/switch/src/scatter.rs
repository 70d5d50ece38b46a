//! The way out: from a request of the leader to one for each replica.
//!
//! Each copy has the replica's QP, PSN, address and key in the place of those that the leader knows. Addresses and keys are translated and not put
//! in: what is beyond the group's memory stays as far beyond it, and a wrong key stays wrong, so that the replica refuses what it would have refused to the leader.
//!
//! A WRITE is passed on without a look at its payload: damage stays damage, for the replicas to see. What has an answer of its own changes what the group keeps,
//! and is short; so its ICRC is checked here.

use remanence_wire::aeth::NakCode;
use remanence_wire::opcode::{Operation, Transport};
use remanence_wire::{Psn, Rkey, reth};

use crate::frame::{Edit, Frame};
use crate::group::{Group, WINDOW};
use crate::port::{FlushForm, Port};
use crate::reads::{READ_PACKETS_MAX, Read, WAITS_MAX, Wait, forget, insert};

impl Group {
    /// Takes a packet from the leader.
    pub(crate) fn request(&mut self, frame: &Frame<'_>, port: &mut Port<'_>) {
        let bth = frame.packet.bth();
        let info = frame.packet.info();
        // Whoever sends the end of a message, or says so, waits for an answer.
        let asks = bth.ack_req || info.position.ends();
        if info.operation == Operation::Cnp || info.is_response() {
            port.stats.malformed += 1;
            return;
        }
        if let Some(code) = self.refused {
            port.stats.late += 1;
            if asks {
                self.say_refused(code, port);
            }
            return;
        }
        let (psn, ahead) = (bth.psn, bth.psn.diff(self.told));
        if ahead > WINDOW as i32 {
            port.stats.ahead += 1;
            return;
        }
        let count = self.psns(frame);
        // Whatever is not passed on as it is; what cannot be scattered may be a WRITE that was damaged.
        let is_kept = count.is_none() || info.operation != Operation::Write;
        if is_kept && !frame.is_intact() {
            port.stats.damaged += 1;
            return;
        }
        let Some(count) = count else {
            // As any responder says of what it does not support.
            return self.refuse(NakCode::InvalidRequest, port);
        };
        let last = psn.add(count - 1);
        if !self.expect(info.operation, psn, count) {
            port.stats.too_many += 1;
            return;
        }
        if self.sent.is_before(last) {
            self.sent = last;
        }
        if self.asked.is_some_and(|asked| !asked.is_before(psn)) {
            self.asked = None;
        }
        self.scatter(frame, info.operation == Operation::Flush, port);
        self.settle(port);
        // What the leader was told about, and says again, is answered as by any responder: the answer was lost. READs are answered by the replicas.
        if !self.told.is_before(psn) && asks {
            let aeth = self.aeth();
            match info.operation {
                Operation::Flush | Operation::AtomicWrite => port.done(self, psn, aeth),
                Operation::Write => port.acknowledge(self, self.told, aeth),
                Operation::Send
                | Operation::ReadRequest
                | Operation::ReadResponse
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Cnp => {}
            }
        }
    }

    /// How many PSNs a request takes; `None` if it is none that can be scattered.
    fn psns(&self, frame: &Frame<'_>) -> Option<u32> {
        let info = frame.packet.info();
        match info.operation {
            _ if info.transport != Transport::Rc => None,
            Operation::Write | Operation::Flush | Operation::AtomicWrite => Some(1),
            Operation::ReadRequest => {
                let len = frame.packet.reth()?.dma_len;
                Some(len.div_ceil(self.spec.mtu.bytes() as u32).max(1))
                    .filter(|&count| count <= READ_PACKETS_MAX)
            }
            Operation::Send
            | Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Cnp => None,
        }
    }

    /// Notes that a request has come; `false` if there are too many.
    fn expect(&mut self, operation: Operation, psn: Psn, count: u32) -> bool {
        // Said again, it counts as it is said now.
        forget(&mut self.waits, psn, count);
        let last = psn.add(count - 1);
        let told = !self.told.is_before(last);
        match operation {
            Operation::ReadRequest if told => {
                self.replays.retain(|read| !read.overlaps(psn, count));
                if self.replays.len() == WAITS_MAX {
                    self.replays.pop_front();
                }
                self.replays.push_back(Read::new(psn, count));
                return true;
            }
            Operation::ReadRequest | Operation::Flush | Operation::AtomicWrite if !told => {
                if self.waits.len() == WAITS_MAX {
                    return false;
                }
                let wait = if operation == Operation::ReadRequest {
                    // Of an answer that the leader has got in part it may want any part again.
                    if !self.told.is_before(psn) {
                        self.told = psn.sub(1);
                    }
                    Wait::Read(Read::new(psn, count))
                } else {
                    Wait::Done(psn)
                };
                insert(&mut self.waits, wait);
            }
            Operation::ReadRequest
            | Operation::Flush
            | Operation::AtomicWrite
            | Operation::Write
            | Operation::Send
            | Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Cnp => {}
        }
        true
    }

    fn scatter(&self, frame: &Frame<'_>, flush: bool, port: &mut Port<'_>) {
        port.stats.scattered += 1;
        let spec = &self.spec;
        let to = spec.replicas.iter().zip(&self.progress).enumerate().filter(|(_, (_, one))| !one.out);
        for (at, (replica, _)) in to {
            let reth = frame.packet.reth().map(|reth| reth::Repr {
                va: reth.va.wrapping_sub(spec.va).wrapping_add(replica.va),
                rkey: Rkey(reth.rkey.0 ^ spec.rkey.0 ^ replica.rkey.0),
                ..reth
            });
            let edit = Edit {
                src: port.addr,
                dst: replica.end.addr,
                dest_qp: replica.end.qpn,
                psn: self.psn_at(at, frame.packet.psn()),
                reth,
                aeth: None,
            };
            port.rewritten(frame, &edit, flush.then_some(FlushForm { linux: replica.linux_flush }));
            port.stats.copies += 1;
        }
    }
}
