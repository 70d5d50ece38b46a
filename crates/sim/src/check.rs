//! What completions must say: the oracle at work.

use remanence_rnic::{QpType, Wc, WcOpcode, WcStatus};
use remanence_wire::Qpn;

use crate::end::{AtomicTarget, Kind, Message, Op, Piece, Window, gap_pattern};
use crate::memory::{AtomicDone, AtomicKind};
use crate::target::WrongByte;
use crate::workload::{GRH, wr_id};
use crate::world::{Check, ConnState, Violation, World, ensure};

impl World<'_> {
    /// The memory of node `node` has carried out an atomic: it must be the next one that somebody asked for.
    pub(crate) fn carried_out(&mut self, node: usize, done: &AtomicDone) -> Check {
        self.counts.atomics += 1;
        let offset = done.offset as usize;
        let expected = |place: AtomicTarget, index: usize, world: &Self| {
            let end = &world.ends[index];
            end.atomics
                .front()
                .is_some_and(|&(_, p, at, kind)| p == place && at == offset && kind == done.kind)
        };
        let index = if done.region == self.nodes[node].shared {
            let here = |index: &usize| self.ends[self.ends[*index].peer].node == node;
            (0..self.ends.len()).filter(here).find(|&index| expected(AtomicTarget::Shared, index, self))
        } else {
            let of = |end: &crate::end::End| end.node == node && end.target == done.region;
            let peer = self.ends.iter().find(|end| of(end)).map(|end| end.peer);
            peer.filter(|&index| expected(AtomicTarget::Target, index, self))
        };
        let Some(index) = index else {
            return Err(Violation(format!(
                "node {node} carries out {:?} at {offset} of {:?}, which is not the next atomic that anybody posted: \
                 twice, or out of order",
                done.kind, done.region
            )));
        };
        let (seq, ..) = self.ends[index].atomics.pop_front().expect("found above");
        self.check_flush_order(index, seq)?;
        let end = &mut self.ends[index];
        if let Some(op) = end.ops.iter_mut().find(|op| op.seq == seq) {
            match op.old {
                _ if op.kind == Kind::AtomicWrite => {}
                Some(old) => ensure!(
                    old == done.old,
                    "end {index}: atomic {seq} found {:#x} in place of {old:#x}",
                    done.old
                ),
                None => op.old = Some(done.old),
            }
        }
        Ok(())
    }

    /// What commits by an atomic or ATOMIC WRITE relies on the FLUSHes before it: they must have taken place, or a
    /// crash could leave the commit without the data (Annex A19, ordering).
    fn check_flush_order(&self, index: usize, seq: u64) -> Check {
        let end = &self.ends[index];
        let earlier = end.ops.iter().take_while(|op| op.seq < seq);
        let flushes: Vec<&Op> =
            earlier.filter(|op| matches!(op.kind, Kind::Flush { persist: true, .. })).collect();
        if flushes.is_empty() || end.survivors.is_some() {
            return Ok(());
        }
        let peer = &self.ends[end.peer];
        let left = self.nodes[peer.node].memory.after_worst_crash(peer.target);
        for flush in flushes {
            let range = flush.remote.clone();
            end.oracle.check_flushed(flush.seq, range.start, &left[range]).map_err(|wrong| {
                wrong_byte(index, flush, "was passed by an atomic; a crash now would leave", wrong)
            })?;
        }
        Ok(())
    }

    /// A work completion came out of node `node`.
    pub(crate) fn complete(&mut self, node: usize, wc: &Wc) -> Check {
        self.counts.completions += 1;
        let Some(index) = self.ends.iter().position(|end| end.node == node && end.qpn == Some(wc.qpn)) else {
            return Err(Violation(format!(
                "node {node}: a completion of QP {}, which does not exist",
                wc.qpn
            )));
        };
        let receive = wc.wr_id >> 63 == 1;
        match (wc.status, receive) {
            (WcStatus::Success, false) => self.complete_sends(index, wc)?,
            (WcStatus::Success, true) => self.complete_receive(index, wc)?,
            (_, false) => self.complete_failed_send(index, wc)?,
            (_, true) => self.complete_flushed_receive(index, wc)?,
        }
        // There is room for another work request.
        if self.conns[index / 2].state == ConnState::Up {
            let pause = 1 + self.rng.exponential(self.plan.pause);
            self.schedule_tick(index, pause);
        }
        Ok(())
    }

    /// A send work request succeeded, and with it all earlier ones, which must have been unsignalled.
    fn complete_sends(&mut self, index: usize, wc: &Wc) -> Check {
        loop {
            let Some(op) = self.ends[index].ops.pop_front() else {
                return Err(Violation(format!("end {index}: {:#x} completed twice, or never was", wc.wr_id)));
            };
            let last = wr_id(index, op.seq) == wc.wr_id;
            ensure!(
                last == op.signaled,
                "end {index}: {:#x} completed, but {:?} {} comes first",
                wc.wr_id,
                op.kind,
                op.seq
            );
            self.retire(index, &op)?;
            if last {
                ensure!(
                    wc.opcode == opcode(op.kind),
                    "end {index}: {:?} completed as {:?}",
                    op.kind,
                    wc.opcode
                );
                let read = matches!(op.kind, Kind::Read | Kind::Atomic(_));
                ensure!(
                    !read || wc.byte_len as usize == op.len,
                    "end {index}: {:?} of {} bytes completed with {}",
                    op.kind,
                    op.len,
                    wc.byte_len
                );
                return Ok(());
            }
        }
    }

    /// Everything that must be true once an operation has completed.
    fn retire(&mut self, index: usize, op: &Op) -> Check {
        self.counts.ops += 1;
        let sink = self.take_slot(index, op)?;
        let end = &mut self.ends[index];
        end.completed = op.seq;
        // A crash may have taken back what this completion tells, and only a flush could have prevented it.
        let crashed = end.survivors.is_some();
        let reliable = end.ty == QpType::Rc;
        if reliable && op.kind.is_message() {
            ensure!(
                end.outbox.front().is_none_or(|message| message.seq > op.seq),
                "end {index}: {:?} {} completed before the peer received it",
                op.kind,
                op.seq
            );
        }
        match op.kind {
            Kind::Write | Kind::WriteImm(_) | Kind::AtomicWrite if reliable && !crashed => {
                self.check_visible(index, op)
            }
            Kind::Read => self.check_read(index, op, &sink),
            Kind::Atomic(_) => {
                let found = u64::from_le_bytes(sink.as_slice().try_into().expect("8 bytes"));
                ensure!(
                    op.old == Some(found),
                    "end {index}: atomic {} returned {found:#x}; the word held {:x?} when it was carried out",
                    op.seq,
                    op.old
                );
                Ok(())
            }
            Kind::Flush { persist, whole } => self.check_flush(index, op, persist, whole, crashed),
            Kind::BindMw => {
                if let Window::Binding { start, len, rkey } = self.ends[index].window {
                    self.ends[index].window = Window::Bound { start, len, rkey };
                }
                Ok(())
            }
            Kind::LocalInv => {
                self.ends[index].window = Window::Free;
                Ok(())
            }
            Kind::Send
            | Kind::SendImm(_)
            | Kind::SendInv(_)
            | Kind::Write
            | Kind::WriteImm(_)
            | Kind::AtomicWrite => Ok(()),
        }
    }

    /// Reads what an operation left in its slot, and gives the slot back.
    fn take_slot(&mut self, index: usize, op: &Op) -> Check<Vec<u8>> {
        let end = &mut self.ends[index];
        let Some(slot) = op.slot else { return Ok(Vec::new()) };
        let range = end.slots.range(slot);
        end.slots.give_back(slot);
        let bytes = self.nodes[end.node].memory.bytes(end.local, range.start, range.len());
        gather(&op.pieces, &range, &bytes)
            .map_err(|what| Violation(format!("end {index}: {:?} {}: {what}", op.kind, op.seq)))
    }

    fn check_visible(&self, index: usize, op: &Op) -> Check {
        let end = &self.ends[index];
        let peer = &self.ends[end.peer];
        let found = self.nodes[peer.node].memory.bytes(peer.target, op.remote.start, op.remote.len());
        end.oracle
            .check_visible(op.seq, op.remote.start, &found)
            .map_err(|wrong| wrong_byte(index, op, "completed, but the target holds", wrong))
    }

    fn check_read(&self, index: usize, op: &Op, sink: &[u8]) -> Check {
        // What is older than the READ itself was posted before it and had to be carried out before it.
        self.ends[index]
            .oracle
            .check_read(op.seq, op.barrier, op.remote.start, sink)
            .map_err(|wrong| wrong_byte(index, op, "returned", wrong))
    }

    fn check_flush(&mut self, index: usize, op: &Op, persist: bool, whole: bool, crashed: bool) -> Check {
        let end = &mut self.ends[index];
        // The whole of what the rkey names: the region, or the window.
        let range = match (&op.window, whole) {
            (_, false) => op.remote.clone(),
            (None, true) => 0..end.oracle.len(),
            (Some((window, _)), true) => window.clone(),
        };
        if persist {
            end.oracle.flushed(op.seq, range.clone());
        }
        if crashed {
            return Ok(());
        }
        let end = &self.ends[index];
        let peer = &self.ends[end.peer];
        let memory = &self.nodes[peer.node].memory;
        let visible = memory.bytes(peer.target, range.start, range.len());
        end.oracle
            .check_visible(op.seq, range.start, &visible)
            .map_err(|wrong| wrong_byte(index, op, "completed, but the target holds", wrong))?;
        if persist {
            let left = memory.after_worst_crash(peer.target);
            end.oracle
                .check_survived(range.start, &left[range])
                .map_err(|wrong| wrong_byte(index, op, "completed, but a crash now would leave", wrong))?;
            self.counts.flushes_checked += 1;
        }
        Ok(())
    }

    fn complete_receive(&mut self, index: usize, wc: &Wc) -> Check {
        let end = &self.ends[index];
        let queue = &mut self.recvs[end.recv];
        // Receives of a queue complete in their order; those of an SRQ complete with the messages that took them.
        let at = queue.posted.iter().position(|recv| recv.wr_id == wc.wr_id);
        let Some(at) = at.filter(|&at| at == 0 || queue.shared) else {
            return Err(Violation(format!(
                "end {index}: receive {:#x} completed twice or out of order",
                wc.wr_id
            )));
        };
        let recv = queue.posted.remove(at).expect("found above");
        let range = queue.slots.range(recv.slot);
        queue.slots.give_back(recv.slot);
        let bytes = self.nodes[end.node].memory.bytes(queue.region, range.start, range.len());
        let buffer = gather(&recv.pieces, &range, &bytes)
            .map_err(|what| Violation(format!("end {index}: receive {:#x}: {what}", wc.wr_id)))?;
        if end.ty == QpType::Rc {
            let used = if wc.opcode == WcOpcode::Recv { wc.byte_len as usize } else { 0 };
            let untouched = gather(&recv.pieces, &range, &gap_pattern(&range)).expect("nothing changed");
            ensure!(
                buffer.get(used..) == untouched.get(used..),
                "end {index}: receive {:#x} of {} bytes changed more than {used}",
                wc.wr_id,
                buffer.len()
            );
        }
        let sender = end.peer;
        self.counts.messages += 1;
        if end.ty == QpType::Rc {
            let Some(message) = self.ends[sender].outbox.pop_front() else {
                return Err(Violation(format!("end {index} received a message that nobody sent")));
            };
            self.check_message(index, wc, &message, &buffer)?;
            if message.invalidated.is_some() {
                self.ends[index].window = Window::Free;
            }
            return Ok(());
        }
        // Unreliable: it must be one of those that were sent, whole.
        let sent = &self.ends[sender].outbox;
        let fits = sent.iter().any(|message| self.check_message(index, wc, message, &buffer).is_ok());
        ensure!(fits, "end {index} received {} bytes over {:?} that are no message", wc.byte_len, end.ty);
        Ok(())
    }

    fn check_message(&self, index: usize, wc: &Wc, message: &Message, buffer: &[u8]) -> Check {
        let end = &self.ends[index];
        let sender = &self.ends[end.peer];
        let seq = message.seq;
        let (opcode, grh) = match message.written {
            Some(_) => (WcOpcode::RecvRdmaWithImm, 0),
            None => (WcOpcode::Recv, if end.ty == QpType::Ud { GRH } else { 0 }),
        };
        ensure!(wc.opcode == opcode, "end {index}: message {seq} was received as {:?}", wc.opcode);
        ensure!(
            wc.byte_len as usize == message.data.len() + grh,
            "end {index}: message {seq} of {} bytes was received with {}",
            message.data.len(),
            wc.byte_len
        );
        ensure!(
            wc.imm == message.imm,
            "end {index}: message {seq} with {:x?} was received with {:x?}",
            message.imm,
            wc.imm
        );
        ensure!(
            wc.invalidated == message.invalidated,
            "end {index}: message {seq} that invalidates {:?} invalidated {:?}",
            message.invalidated,
            wc.invalidated
        );
        ensure!(wc.grh == (end.ty == QpType::Ud), "end {index}: message {seq}: grh is {}", wc.grh);
        let from: Option<Qpn> = (end.ty == QpType::Ud).then_some(wc.src_qp);
        // (A sender that has lost its power has no QP any more.)
        ensure!(
            from.is_none() || sender.qpn.is_none() || from == sender.qpn,
            "end {index}: message {seq} is said to be from {from:?}"
        );
        match message.written {
            // The data is where the WRITE put it, before the consumer learns of it.
            Some(start) if end.ty == QpType::Rc => {
                let found = self.nodes[end.node].memory.bytes(end.target, start, message.data.len());
                sender.oracle.check_visible(seq, start, &found).map_err(|wrong| {
                    Violation(format!(
                        "end {index}: WRITE with immediate {seq} was received, and {:#04x} is at {}",
                        wrong.found, wrong.offset
                    ))
                })
            }
            Some(_) => Ok(()),
            None => {
                let found = &buffer[grh..grh + message.data.len()];
                ensure!(found == message.data, "end {index}: message {seq} was received with other bytes");
                Ok(())
            }
        }
    }

    /// The first failure breaks the connection, if anything excuses it; all later ones are flushes, in order.
    fn complete_failed_send(&mut self, index: usize, wc: &Wc) -> Check {
        let conn = &mut self.conns[index / 2];
        let fatal = wc.status != WcStatus::WrFlushErr;
        if fatal {
            ensure!(
                wc.status == WcStatus::RetryExcErr && conn.excused,
                "end {index}: {:#x} failed for no reason: {}",
                wc.wr_id,
                wc.status
            );
            self.counts.retries_exhausted += 1;
            if conn.state == ConnState::Up {
                conn.state = ConnState::Broken;
            }
            self.broken.push(index / 2);
        } else {
            ensure!(
                conn.state == ConnState::Broken,
                "end {index}: {:#x} was flushed for no reason",
                wc.wr_id
            );
        }
        let flushing = std::mem::replace(&mut self.ends[index].flushing, true);
        // An unsignalled one may have succeeded before the failure, and then says nothing.
        loop {
            let end = &mut self.ends[index];
            let Some(op) = end.ops.pop_front() else {
                return Err(Violation(format!("end {index}: {:#x} failed twice, or never was", wc.wr_id)));
            };
            if let Some(slot) = op.slot {
                end.slots.give_back(slot);
            }
            if wr_id(index, op.seq) == wc.wr_id {
                return Ok(());
            }
            ensure!(
                !flushing && !op.signaled,
                "end {index}: {:#x} failed, but {:?} {} comes first",
                wc.wr_id,
                op.kind,
                op.seq
            );
        }
    }

    fn complete_flushed_receive(&mut self, index: usize, wc: &Wc) -> Check {
        ensure!(
            wc.status == WcStatus::WrFlushErr && self.conns[index / 2].state == ConnState::Broken,
            "end {index}: receive {:#x} failed for no reason: {}",
            wc.wr_id,
            wc.status
        );
        let queue = &mut self.recvs[self.ends[index].recv];
        let at = queue.posted.iter().position(|recv| recv.wr_id == wc.wr_id);
        ensure!(
            at == Some(0) || at.is_some() && queue.shared,
            "end {index}: receive {:#x} was flushed twice or out of order",
            wc.wr_id
        );
        let recv = queue.posted.remove(at.expect("checked above")).expect("found above");
        queue.slots.give_back(recv.slot);
        Ok(())
    }
}

const fn opcode(kind: Kind) -> WcOpcode {
    match kind {
        Kind::Send | Kind::SendImm(_) | Kind::SendInv(_) => WcOpcode::Send,
        Kind::Write | Kind::WriteImm(_) => WcOpcode::RdmaWrite,
        Kind::Read => WcOpcode::RdmaRead,
        Kind::Atomic(AtomicKind::CompareSwap { .. }) => WcOpcode::CompSwap,
        Kind::Atomic(AtomicKind::FetchAdd { .. }) => WcOpcode::FetchAdd,
        Kind::AtomicWrite | Kind::Atomic(AtomicKind::Store { .. }) => WcOpcode::AtomicWrite,
        Kind::Flush { .. } => WcOpcode::Flush,
        Kind::BindMw => WcOpcode::BindMw,
        Kind::LocalInv => WcOpcode::LocalInv,
    }
}

/// The bytes of the pieces, in order; what lies between them must be as it was.
fn gather(pieces: &[Piece], slot: &std::ops::Range<usize>, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut data = Vec::new();
    let mut gaps = gap_pattern(slot);
    for piece in pieces {
        let at = piece.start - slot.start..piece.start - slot.start + piece.len;
        data.extend_from_slice(&bytes[at.clone()]);
        gaps[at.clone()].copy_from_slice(&bytes[at]);
    }
    match gaps.iter().zip(bytes).position(|(gap, byte)| gap != byte) {
        None => Ok(data),
        Some(at) => {
            Err(format!("the byte at {} of its buffers is no part of them and has changed", slot.start + at))
        }
    }
}

fn wrong_byte(index: usize, op: &Op, what: &str, wrong: WrongByte) -> Violation {
    Violation(format!(
        "end {index}: {:?} {} of {:?} {what} {:#04x} at {} (newest: {:#04x})",
        op.kind, op.seq, op.remote, wrong.found, wrong.offset, wrong.newest
    ))
}
