//! Turns responses into completions, and decides what must be sent again.
//!
//! Read first: IBA Vol 1, 9.7.6 (responses at the requester), 9.9.2 (requester errors).
//!
//! Completions are in the order of the work requests. A response to one request acknowledges all before it; a
//! READ, an atomic, a FLUSH or an ATOMIC WRITE is completed by its own response only, so that an answer from
//! beyond it says that the response was lost (9.7.6: implied NAK).

use remanence_wire::aeth::{self, Aeth, NakCode};
use remanence_wire::opcode::{Operation, Position};
use remanence_wire::packet::Packet;
use remanence_wire::{Msn, Psn, bth};

use super::receive::scatter;
use super::retry::Expired;
use super::{Qp, QpState, Silence, distance};
use crate::async_event::AsyncEvent;
use crate::device::Shared;
use crate::memory::Memory;
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wqe::Wqe;
use crate::wr::{SendFlags, SendOp};

impl Qp {
    /// Takes a response packet.
    pub(crate) fn handle_response(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        packet: &Packet<'_>,
        bth: &bth::Repr,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        // Only what is in flight can be answered (9.7.6: ghost responses are dropped).
        let req = &self.requester;
        if !bth.psn.in_window(req.una, distance(req.una, req.max_psn)) {
            if packet.info().operation == Operation::ReadResponse && bth.psn.is_before(req.una) {
                self.congestion.on_duplicate_response();
            }
            return Err(DropReason::Stale);
        }
        match packet.info().operation {
            Operation::Acknowledge => {
                let aeth = packet.aeth().ok_or(DropReason::Malformed)?;
                self.handle_acknowledge(shared, now, bth.psn, aeth);
                Ok(())
            }
            Operation::ReadResponse | Operation::AtomicAcknowledge => {
                self.handle_result(shared, now, packet, bth.psn, mem)
            }
            Operation::Send
            | Operation::Write
            | Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite
            | Operation::Cnp => Err(DropReason::Malformed),
        }
    }

    fn handle_acknowledge(&mut self, shared: &mut Shared, now: Instant, psn: Psn, aeth: aeth::Repr) {
        match aeth.aeth {
            Aeth::Ack(credits) => {
                self.update_credits(aeth.msn, credits.count());
                if self.acknowledge(shared, now, psn.next()).is_err() {
                    self.on_gap(now);
                }
            }
            Aeth::RnrNak(timer) => {
                shared.stats.rx_rnr_nak += 1;
                if self.acknowledge(shared, now, psn).is_err() {
                    return self.on_gap(now);
                }
                if self.state == QpState::Err {
                    return;
                }
                let limit = self.attr.rnr_retry.unwrap_or(0);
                if self.retry.on_rnr_nak(timer.duration(), limit, now).is_err() {
                    shared.stats.rnr_retries_exceeded += 1;
                    self.fail_head(shared, WcStatus::RnrRetryExcErr);
                } else {
                    self.go_back();
                }
            }
            Aeth::Nak(code) => {
                let acknowledged = self.acknowledge(shared, now, psn);
                let status = match code {
                    NakCode::PsnSequenceError => {
                        shared.stats.rx_nak_sequence += 1;
                        return self.on_gap(now);
                    }
                    NakCode::InvalidRequest | NakCode::InvalidRdRequest => WcStatus::RemInvReqErr,
                    NakCode::RemoteAccessError => WcStatus::RemAccessErr,
                    NakCode::RemoteOperationalError => WcStatus::RemOpErr,
                };
                if acknowledged.is_err() {
                    // The refusal is of a later request than the one whose response was lost.
                    return self.on_gap(now);
                }
                if self.state != QpState::Err {
                    self.fail_head(shared, status);
                }
            }
        }
    }

    /// Everything before `una` is acknowledged. Completes what that finishes; `Err` if a response is missing on
    /// the way, which nothing but the response can make up for.
    fn acknowledge(&mut self, shared: &mut Shared, now: Instant, una: Psn) -> Result<(), ()> {
        let before = self.requester.una;
        let mut result = Ok(());
        while self.sq.head != self.requester.fresh {
            let wqe = self.sq.get(self.sq.head);
            if wqe.psns == 0 {
                self.complete_head(shared, WcStatus::Success);
                continue;
            }
            let news = distance(self.requester.una, una);
            if news == 0 {
                break;
            }
            if wqe.takes_resource() {
                result = Err(());
                break;
            }
            let left = wqe.psns - distance(wqe.first_psn, self.requester.una);
            if news < left {
                self.requester.una = una;
                break;
            }
            self.requester.una = self.requester.una.add(left);
            self.complete_head(shared, WcStatus::Success);
        }
        self.after_acknowledge(shared, now, before);
        result
    }

    /// Bookkeeping after `una` may have moved on from `before`.
    fn after_acknowledge(&mut self, shared: &mut Shared, now: Instant, before: Psn) {
        let una = self.requester.una;
        let n = distance(before, una);
        if n != 0 {
            // After a timeout one packet was sent again; an answer to more than that was on its way already.
            if self.congestion.after_timeout(self.requester.psn.is_before(una)) {
                // Nothing was lost: go on where the timeout broke in.
                self.seek(self.requester.max_psn);
            }
            self.congestion.on_progress(n, una);
            self.retry.on_progress(una, una == self.requester.max_psn, now);
            // While sending again: what was just acknowledged need not be. (The cursor can also fall behind on
            // local operations, which have no PSN.)
            let behind = self.requester.cursor.wrapping_sub(self.sq.head) > self.sq.len();
            if behind || self.requester.psn.is_before(una) {
                self.seek(una);
            }
            self.wants_tx |= self.requester.cursor != self.sq.tail;
        }
        self.settle_halt(shared);
        self.check_drained(shared);
    }

    /// The response of a READ, an atomic, a FLUSH or an ATOMIC WRITE.
    fn handle_result(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        packet: &Packet<'_>,
        psn: Psn,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        if self.acknowledge(shared, now, psn).is_err() || self.requester.una != psn {
            self.on_gap(now);
            return Err(DropReason::OutOfSequence);
        }
        if self.state == QpState::Err {
            return Ok(());
        }
        let at = self.sq.head;
        if at == self.requester.fresh {
            return Err(DropReason::Stale);
        }
        let wqe = *self.sq.get(at);
        if let Some(aeth) = packet.aeth()
            && let Aeth::Ack(credits) = aeth.aeth
        {
            self.update_credits(aeth.msn, credits.count());
        }
        let status = self.take_result(shared, packet, psn, at, &wqe, mem);
        if status != WcStatus::Success {
            self.fail_head(shared, status);
            return Ok(());
        }
        let req = &mut self.requester;
        let before = req.una;
        req.una = psn.next();
        if let Some(part) = req.outstanding.pop_front_if(|part| part.last == psn) {
            if let Some(sent) = part.flush {
                req.flush_icrc.on_answer(sent);
            }
            // A fence, or a READ in want of a resource, may go on.
            self.wants_tx |= self.requester.cursor != self.sq.tail;
        }
        if psn == wqe.last_psn() {
            self.complete_head(shared, WcStatus::Success);
            self.complete_local(shared);
        }
        self.after_acknowledge(shared, now, before);
        Ok(())
    }

    /// Checks a response against the request that it answers, and puts its data where they belong.
    fn take_result(
        &self,
        shared: &Shared,
        packet: &Packet<'_>,
        psn: Psn,
        at: u32,
        wqe: &Wqe,
        mem: &mut impl Memory,
    ) -> WcStatus {
        let info = packet.info();
        let payload = packet.payload();
        let result = match (wqe.op, info.operation) {
            (SendOp::Read(_), Operation::ReadResponse) => {
                let mtu = self.mtu.bytes() as u32;
                let offset = distance(wqe.first_psn, psn).wrapping_mul(mtu);
                let expected = (wqe.len - offset).min(mtu) as usize;
                // Where a response begins and ends depends on how the request was sent again; but it must end
                // where its first request did.
                let end = self.requester.outstanding.front().is_some_and(|part| part.last == psn);
                if payload.len() != expected || (end && !info.position.ends()) {
                    return WcStatus::BadRespErr;
                }
                scatter(shared, self.init.pd, self.sq.sges(at), offset.into(), payload, mem)
            }
            (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, Operation::AtomicAcknowledge) => {
                let Some(ack) = packet.atomic_ack() else { return WcStatus::BadRespErr };
                let bytes = crate::memory::native_bytes(ack.original);
                scatter(shared, self.init.pd, self.sq.sges(at), 0, &bytes, mem)
            }
            (SendOp::Flush { .. } | SendOp::AtomicWrite(_), Operation::ReadResponse) => {
                if info.position != Position::Only || !payload.is_empty() {
                    return WcStatus::BadRespErr;
                }
                Ok(())
            }
            _ => return WcStatus::BadRespErr,
        };
        if result.is_ok() { WcStatus::Success } else { WcStatus::LocProtErr }
    }

    fn update_credits(&mut self, msn: Msn, credits: Option<u32>) {
        self.requester.limit = credits.map(|count| msn.value().wrapping_add(count));
        self.wants_tx |= self.requester.cursor != self.sq.tail;
    }

    /// Something was lost: go back, with a smaller window, unless that has just been done.
    fn on_gap(&mut self, now: Instant) {
        if self.state == QpState::Err || !self.retry.is_new_gap(self.requester.una, now) {
            return;
        }
        self.congestion.on_loss(self.requester.una, self.requester.max_psn);
        self.go_back();
    }

    /// Sends again from the first packet that is not acknowledged.
    fn go_back(&mut self) {
        self.seek(self.requester.una);
        let req = &mut self.requester;
        if req.outstanding.front().is_some_and(|part| part.flush.is_some() && part.first == req.una) {
            req.flush_icrc.on_go_back();
        }
        self.retry.on_go_back();
        self.wants_tx = true;
    }

    /// The QP's deadline has come up.
    pub(crate) fn handle_timeout(&mut self, shared: &mut Shared, now: Instant) {
        let (timeout, retry_cnt) = (self.attr.timeout.unwrap_or(0), self.attr.retry_cnt.unwrap_or(0));
        match self.retry.expire(timeout, retry_cnt, now) {
            None => {}
            Some(Expired::RnrOver) => self.wants_tx = true,
            Some(Expired::Resend) => {
                shared.stats.timeouts += 1;
                // A FLUSH takes as long as the medium does; that says nothing of the path.
                let flushing = matches!(self.sq.get(self.sq.head).op, SendOp::Flush { .. });
                self.congestion.on_timeout(self.requester.max_psn, !flushing);
                self.go_back();
                if self.keepalive.is_watching() && self.retry.is_suspicious() {
                    shared.silences.push_back((self.qpn, Silence::Retried));
                }
            }
            Some(Expired::GiveUp) => {
                // It has answered nothing for as long as the consumer wanted to wait.
                if self.keepalive.is_watching() {
                    shared.silences.push_back((self.qpn, Silence::Lost));
                }
                shared.stats.retries_exceeded += 1;
                self.fail_head(shared, WcStatus::RetryExcErr);
            }
        }
        let asks = matches!(self.state, QpState::Rts | QpState::Sqd);
        let progress = (self.requester.max_psn, self.responder.epsn);
        if let Some(silence) = self.keepalive.expire(now, asks, progress) {
            shared.silences.push_back((self.qpn, silence));
        }
        self.wants_tx |= self.keepalive.due;
        self.wants_tx |= self.responder.riding.expire(now);
    }

    /// Completes the oldest WQE and frees it. Without error and signal nobody is told (10.7.3).
    pub(crate) fn complete_head(&mut self, shared: &mut Shared, status: WcStatus) {
        let wqe = self.sq.get(self.sq.head);
        shared.stats.sends += u64::from(
            matches!(wqe.op, SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_))
                && status == WcStatus::Success,
        );
        let signaled = self.init.sq_sig_all || wqe.flags.contains(SendFlags::SIGNALED);
        if signaled || status != WcStatus::Success {
            let wc =
                Wc { wr_id: wqe.wr_id, status, byte_len: wqe.len, ..Wc::new(send_opcode(&wqe.op), self.qpn) };
            if shared.complete(self.init.send_cq, wc).is_err() {
                self.cq_lost = true;
            }
        }
        self.sq.head = self.sq.head.wrapping_add(1);
    }

    /// Completes local operations that have become the oldest.
    pub(crate) fn complete_local(&mut self, shared: &mut Shared) {
        while self.sq.head != self.requester.fresh && self.sq.get(self.sq.head).psns == 0 {
            self.complete_head(shared, WcStatus::Success);
        }
    }

    /// If a WQE failed here and all before it have completed, it completes now, and the QP is in error.
    pub(crate) fn settle_halt(&mut self, shared: &mut Shared) {
        if let Some((at, status)) = self.requester.halt
            && at == self.sq.head
            && self.state != QpState::Err
        {
            self.fail_head(shared, status);
        }
    }

    /// Fails the oldest WQE. On a reliable connection that ends everything; on UC and UD only sending.
    pub(crate) fn fail_head(&mut self, shared: &mut Shared, status: WcStatus) {
        self.complete_head(shared, status);
        if self.init.ty == super::QpType::Rc {
            self.responder.silence();
            self.enter_error(shared);
        } else {
            self.state = QpState::Sqe;
            self.flush_sends(shared);
        }
    }

    /// In SQD: raises the event when nothing that was begun is left.
    pub(crate) fn check_drained(&mut self, shared: &mut Shared) {
        if self.state == QpState::Sqd && self.draining && self.sq.head == self.requester.fresh {
            self.draining = false;
            if self.attr.sqd_event == Some(true) {
                shared.async_events.push_back(AsyncEvent::SqDrained(self.qpn));
            }
        }
    }
}

/// The completion's opcode of an operation.
pub(crate) const fn send_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => WcOpcode::Send,
        SendOp::Write(_) | SendOp::WriteImm(..) => WcOpcode::RdmaWrite,
        SendOp::Read(_) => WcOpcode::RdmaRead,
        SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::AtomicWrite(_) => WcOpcode::AtomicWrite,
        SendOp::LocalInv(_) => WcOpcode::LocalInv,
        SendOp::BindMw { .. } => WcOpcode::BindMw,
    }
}
