//! The way back: from the answers of the replicas to what the leader is told.
//!
//! Read first: IBA Vol 1, 9.7.5 (responses) and 9.7.6 (how a requester takes them).
//!
//! A response on a reliable connection acknowledges everything before it. So one word for each replica says all that it has acknowledged, and the
//! leader is told the highest PSN that `writes` replicas have reached: neither duplicates nor responses that stand for several can be counted wrongly, and any
//! number of requests may be in flight. Three things follow for what the leader gets.
//!
//! - **A NAK acknowledges what is before it as well**, and one replica has not the say in that. Whatever a replica refuses, the leader gets the NAK at
//!   the first PSN that it was not told about, never at a later one. Where a replica asks for something that the leader was told to be acknowledged, no NAK
//!   can help it: the control plane has to.
//! - **The answer to a FLUSH, an ATOMIC WRITE or a READ leaves before any later ACK**, or the leader takes it for lost (9.7.6). Those of the first two say no more than
//!   an acknowledgement, and are made here when enough replicas have come so far. Those of a READ have data: the packet of the replica with which enough have said the
//!   same goes on to the leader.
//! - **Message counts and credits are the connection's own**: all replicas have had the same messages, and the one with the least room counts.

use remanence_wire::aeth::{Aeth, NakCode};
use remanence_wire::opcode::Operation;
use remanence_wire::{Psn, aeth};

use crate::frame::{Edit, Frame};
use crate::group::Group;
use crate::port::Port;
use crate::reads::{Read, Verdict, Wait};
use crate::report::Report;

impl Group {
    /// Takes a packet from a replica.
    pub(crate) fn response(&mut self, replica: usize, frame: &Frame<'_>, port: &mut Port<'_>) {
        if self.refused.is_some() || self.progress[replica].out {
            port.stats.late += 1;
            return;
        }
        let operation = frame.packet.info().operation;
        match operation {
            Operation::Cnp => return self.congested(frame, port),
            Operation::Acknowledge | Operation::ReadResponse => {}
            Operation::Send
            | Operation::Write
            | Operation::ReadRequest
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite => {
                port.stats.malformed += 1;
                return;
            }
        }
        // What is only passed on may be left to its receiver. This is acted upon.
        if !frame.is_intact() {
            port.stats.damaged += 1;
            return;
        }
        let psn = self.psn_from(replica, frame.packet.psn());
        if self.sent.is_before(psn) {
            port.stats.ahead += 1;
            return;
        }
        port.stats.gathered += 1;
        let aeth = frame.packet.aeth();
        if operation == Operation::ReadResponse {
            self.hear(replica, psn, aeth);
            self.settle(port);
            self.result(replica, psn, frame, port);
            return self.settle(port);
        }
        let Some(said) = aeth else { return };
        match said.aeth {
            Aeth::Ack(_) => {
                self.hear(replica, psn, aeth);
                self.settle(port);
            }
            Aeth::RnrNak(_) | Aeth::Nak(_) => {
                self.hear(replica, psn.sub(1), aeth);
                self.settle(port);
                if self.refused.is_none() {
                    self.negative(replica, psn, said, port);
                }
            }
        }
    }

    /// A replica has acknowledged everything up to `psn`.
    fn hear(&mut self, replica: usize, psn: Psn, aeth: Option<aeth::Repr>) {
        let one = &mut self.progress[replica];
        if psn.is_before(one.acked) {
            return;
        }
        one.acked = psn;
        if let Some(aeth) = aeth {
            one.msn = aeth.msn;
            if let Aeth::Ack(credits) = aeth.aeth {
                one.credits = Some(credits);
            }
        }
    }

    /// A replica does not take a request.
    fn negative(&mut self, replica: usize, psn: Psn, said: aeth::Repr, port: &mut Port<'_>) {
        if let Aeth::Nak(code) = said.aeth
            && code != NakCode::PsnSequenceError
        {
            port.report(Report::Refused { group: self.id, replica, code });
            // Whichever replica it was and however far the others are: it may be that it has another leader.
            return self.refuse(code, port);
        }
        if !self.told.is_before(psn) {
            // The leader will not send it again.
            let one = &mut self.progress[replica];
            if !one.behind {
                one.behind = true;
                port.report(Report::Behind { group: self.id, replica, missing: psn });
            }
            return;
        }
        let from = self.told.next();
        if matches!(said.aeth, Aeth::Nak(_)) && self.asked.replace(from) == Some(from) {
            // Another replica misses the same: once is enough.
            return;
        }
        let msn = self.aeth().msn;
        port.acknowledge(self, from, aeth::Repr { aeth: said.aeth, msn });
    }

    /// Tells the leader what can be told.
    pub(crate) fn settle(&mut self, port: &mut Port<'_>) {
        while self.refused.is_none() {
            let (limit, _) = self.limit();
            let reach = match self.waits.front() {
                Some(Wait::Done(psn)) if !limit.is_before(*psn) => {
                    let psn = *psn;
                    self.waits.pop_front();
                    self.tell(psn, port);
                    let aeth = self.aeth();
                    port.done(self, psn, aeth);
                    continue;
                }
                Some(Wait::Read(read)) if read.next_differs() && !limit.is_before(read.next.sub(1)) => {
                    // In its turn, so that what is before it has succeeded.
                    let before = read.next.sub(1);
                    self.tell(before, port);
                    return self.refuse(NakCode::RemoteOperationalError, port);
                }
                Some(wait) if wait.before().is_before(limit) => wait.before(),
                _ => limit,
            };
            if self.told.is_before(reach) {
                self.tell(reach, port);
                let aeth = self.aeth();
                port.acknowledge(self, reach, aeth);
            }
            return;
        }
    }

    /// A replica's packet of the answer to a READ.
    fn result(&mut self, replica: usize, psn: Psn, frame: &Frame<'_>, port: &mut Port<'_>) {
        let enough = self.spec.reads;
        // A replica that lags must be able to catch up with whatever the leader counts as answered, so a READ is acknowledged like anything else.
        let reached = !self.limit().0.is_before(psn);
        let found = |read: &Read| read.contains(psn);
        let at = self.waits.iter().position(|wait| matches!(wait, Wait::Read(read) if found(read)));
        let replay = self.replays.iter().position(found);
        let (read, in_turn) = match (at, replay) {
            (Some(at), _) => match &mut self.waits[at] {
                Wait::Read(read) => (read, at == 0 && reached),
                Wait::Done(_) => return,
            },
            (None, Some(at)) => (&mut self.replays[at], true),
            // The answer to a FLUSH or an ATOMIC WRITE, or one that the leader has got already.
            (None, None) => return,
        };
        let Some(content) = frame.content(port.advance) else {
            port.stats.malformed += 1;
            return;
        };
        let verdict = read.hear(psn, replica, content, enough);
        let is_next = in_turn && read.next == psn;
        if verdict == Verdict::Enough && is_next {
            read.next = psn.next();
            let over = read.is_over();
            match (at, replay) {
                (Some(_), _) => {
                    if over {
                        self.waits.pop_front();
                    }
                    self.tell(psn, port);
                }
                (None, Some(at)) if over => _ = self.replays.remove(at),
                (None, _) => {}
            }
            self.pass_on(psn, frame, port);
        } else if verdict == Verdict::News {
            port.report(Report::Discrepancy { group: self.id, replica, psn });
            // What the leader waits for in its turn is refused there.
            if at.is_none() && is_next {
                self.told = psn.sub(1);
                self.refuse(NakCode::RemoteOperationalError, port);
            }
        }
    }

    /// Sends the leader a replica's answer as its own.
    fn pass_on(&mut self, psn: Psn, frame: &Frame<'_>, port: &mut Port<'_>) {
        let aeth = frame.packet.aeth().map(|_| self.aeth());
        let leader = self.spec.leader;
        let edit = Edit { src: port.addr, dst: leader.addr, dest_qp: leader.qpn, psn, reth: None, aeth };
        port.rewritten(frame, &edit, None);
        port.stats.answered += 1;
    }

    /// A replica got packets that had met congestion: the one who sends them shall know.
    fn congested(&self, frame: &Frame<'_>, port: &mut Port<'_>) {
        let leader = self.spec.leader;
        let psn = frame.packet.psn();
        let edit =
            Edit { src: port.addr, dst: leader.addr, dest_qp: leader.qpn, psn, reth: None, aeth: None };
        port.rewritten(frame, &edit, None);
    }
}
