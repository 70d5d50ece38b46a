//! The sending half of the responder: executes what waited, streams READ responses, answers, acknowledges.
//!
//! Read first: IBA Vol 1, 9.7.5 (response order), 9.7.7 (credits), 10.8.3 (ordering), Annex A19.
//!
//! Responses leave in the order of the requests. A response acknowledges everything before it, and so does a NAK;
//! an ACK proper is sent only when no resource is open, for the last request executed, however many asked.
//!
//! A FLUSH may take the memory long. What may pass it has been executed meanwhile (SENDs and WRITEs); READs,
//! atomics and further FLUSHes wait in their line, except that FLUSHes in a row start together, so that one
//! fdatasync can serve many.

use std::ops::RangeInclusive;

use remanence_wire::aeth::{self, Aeth, Credits, NakCode};
use remanence_wire::packet::{Headers, Repr, packet_len};
use remanence_wire::{Msn, Opcode, Psn, atomic_ack_eth, bth};

use super::resource::{Progress, Request};
use super::{Qp, packets};
use crate::access::Access;
use crate::device::Shared;
use crate::memory::{FlushId, FlushOutcome, Memory, Placement};
use crate::time::Instant;
use crate::transmit::Batch;
use crate::wc::WcStatus;

/// A packet did not fit the batch any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl Qp {
    /// Executes the resources whose turn has come (10.8.3 and the ordering table of Annex A19).
    pub(crate) fn run_resources(&mut self, shared: &mut Shared, mem: &mut impl Memory) {
        if self.responder.resources.is_quiet() {
            return;
        }
        // Something earlier is not executed yet; something earlier is still being read; and something earlier
        // that has yet to write, so that a flush must not start before it.
        let (mut behind, mut reading, mut writing) = (false, false, false);
        for index in 0..self.responder.resources.len() {
            let entry = *self.responder.resources.get(index);
            match (entry.progress, entry.request) {
                (Progress::Closed, _) => {}
                (Progress::Answering { .. }, request) => reading |= matches!(request, Request::Read { .. }),
                (Progress::Flushing(_), _) => behind = true,
                (Progress::Waiting, Request::Read { .. }) => {
                    if behind {
                        continue;
                    }
                    self.responder.resources.get_mut(index).answer();
                    reading = true;
                }
                (Progress::Waiting, Request::Flush { va, len, rkey, placement }) => {
                    if writing {
                        behind = true;
                        continue;
                    }
                    let need = match placement {
                        Placement::GlobalVisibility => Access::FLUSH_GLOBAL,
                        Placement::Persistence => Access::FLUSH_PERSISTENT,
                    };
                    // Its key is checked again, as for an atomic: the memory may have been taken away while it waited.
                    let Some(place) = shared.keys.remote(self.init.pd, self.qpn, rkey, va, len, need) else {
                        self.refuse_resource(shared, index, NakCode::RemoteAccessError);
                        return;
                    };
                    let id = shared.flush_id(self.slot);
                    let span = crate::memory::Span { region: place.region, offset: place.offset, len };
                    // A range of nothing is flushed; to Memory it would mean the whole region.
                    let outcome = if len == 0 { FlushOutcome::Done } else { mem.flush(id, span, placement) };
                    let entry = self.responder.resources.get_mut(index);
                    match outcome {
                        FlushOutcome::Done => entry.answer(),
                        FlushOutcome::Pending => {
                            entry.progress = Progress::Flushing(id);
                            behind = true;
                        }
                        FlushOutcome::Failed => {
                            self.refuse_resource(shared, index, NakCode::RemoteOperationalError);
                            return;
                        }
                    }
                }
                (
                    Progress::Waiting,
                    Request::CompareSwap { .. } | Request::FetchAdd { .. } | Request::AtomicWrite { .. },
                ) => {
                    if behind || reading {
                        (behind, writing) = (true, true);
                        continue;
                    }
                    if let Err(code) = self.execute_atomic(shared, index, mem) {
                        self.refuse_resource(shared, index, code);
                        return;
                    }
                }
            }
        }
    }

    /// Executes an atomic; its key is checked again, as it may have waited since the first time.
    fn execute_atomic<M: Memory>(
        &mut self,
        shared: &Shared,
        index: usize,
        mem: &mut M,
    ) -> Result<(), NakCode> {
        let entry = self.responder.resources.get_mut(index);
        let (pd, qpn) = (self.init.pd, self.qpn);
        // Memory need not be aligned where its address is: its consumer registered or bound it so that no atomic can reach it.
        let place = |mem: &M, rkey, va, need| {
            let at = shared.keys.remote(pd, qpn, rkey, va, 8, need).ok_or(NakCode::RemoteAccessError)?;
            if mem.is_word(at.region, at.offset) { Ok(at) } else { Err(NakCode::InvalidRequest) }
        };
        match entry.request {
            Request::CompareSwap { va, rkey, compare, swap } => {
                let at = place(mem, rkey, va, Access::REMOTE_ATOMIC)?;
                entry.original = mem.compare_and_swap(at.region, at.offset, compare, swap);
            }
            Request::FetchAdd { va, rkey, add } => {
                let at = place(mem, rkey, va, Access::REMOTE_ATOMIC)?;
                entry.original = mem.fetch_add(at.region, at.offset, add);
            }
            Request::AtomicWrite { va, rkey, data } => {
                let at = place(mem, rkey, va, Access::REMOTE_WRITE)?;
                mem.atomic_write(at.region, at.offset, data);
            }
            Request::Read { .. } | Request::Flush { .. } => unreachable!("not an atomic"),
        }
        if mem.take_fault() {
            return Err(NakCode::RemoteOperationalError);
        }
        entry.answer();
        Ok(())
    }

    /// Refuses a request that had been accepted, and with it all after it.
    fn refuse_resource(&mut self, shared: &mut Shared, index: usize, code: NakCode) {
        let psn = match self.responder.resources.get(index).progress {
            Progress::Answering { next, .. } => next,
            Progress::Waiting | Progress::Flushing(_) | Progress::Closed => {
                self.responder.resources.get(index).first
            }
        };
        self.responder.resources.close_from(index);
        self.responder.ack_due = false;
        self.refuse_for_good(shared, psn, code, WcStatus::WrFlushErr);
    }

    /// The memory finished (or failed) a flush that it had called pending.
    pub(crate) fn finish_flush(
        &mut self,
        shared: &mut Shared,
        id: FlushId,
        result: Result<(), ()>,
        mem: &mut impl Memory,
    ) {
        let Some(index) = self.responder.resources.flushing(id) else { return };
        self.wants_tx = true;
        match result {
            Ok(()) => {
                self.responder.resources.get_mut(index).answer();
                self.run_resources(shared, mem);
            }
            Err(()) => self.refuse_resource(shared, index, NakCode::RemoteOperationalError),
        }
    }

    /// Sends what the responder has to say.
    pub(crate) fn transmit_responses(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), Full> {
        while let Some(index) = self.responder.resources.front() {
            let entry = self.responder.resources.get(index);
            let Progress::Answering { start, next, end } = entry.progress else {
                // Still being executed; nothing may overtake it.
                return Ok(());
            };
            match entry.request {
                Request::Read { .. } => self.stream_read(shared, batch, index, start..=end, next, mem)?,
                Request::CompareSwap { .. } | Request::FetchAdd { .. } => {
                    let (psn, ack) = (entry.first, atomic_ack_eth::Repr { original: entry.original });
                    let headers = Headers::AethAtomicAck(self.ack_aeth(shared), ack);
                    self.respond(batch, Opcode::RcAtomicAck, psn, headers)?;
                }
                Request::Flush { .. } | Request::AtomicWrite { .. } => {
                    let psn = entry.first;
                    let headers = Headers::Aeth(self.ack_aeth(shared));
                    self.respond(batch, Opcode::RcReadResponseOnly, psn, headers)?;
                }
            }
            self.close_answered(index);
            self.run_resources(shared, mem);
        }
        self.transmit_acknowledge(shared, now, batch)
    }

    fn close_answered(&mut self, index: usize) {
        let resources = &mut self.responder.resources;
        let entry = resources.get(index);
        if entry.progress == Progress::Closed {
            // A READ whose memory region went away was refused half way.
            return;
        }
        // Its response acknowledged all that came before.
        let newest = entry.last.next() == self.responder.epsn;
        resources.close(index);
        if newest {
            self.responder.ack_due = false;
            self.responder.riding.hurry();
        }
    }

    /// Sends response packets of a READ until all have left or the batch is full.
    fn stream_read(
        &mut self,
        shared: &mut Shared,
        batch: &mut Batch<'_>,
        index: usize,
        range: RangeInclusive<Psn>,
        mut next: Psn,
        mem: &mut impl Memory,
    ) -> Result<(), Full> {
        let entry = *self.responder.resources.get(index);
        let Request::Read { va, len, rkey } = entry.request else { unreachable!("called for a READ") };
        let (start, end) = range.into_inner();
        let mtu = self.mtu.bytes() as u32;
        debug_assert_eq!(entry.psns(), packets(len, self.mtu));
        loop {
            let offset = super::distance(entry.first, next).wrapping_mul(mtu);
            let part = (len - offset).min(mtu);
            let (first, last) = (next == start, next == end);
            let opcode = match (first, last) {
                (true, true) => Opcode::RcReadResponseOnly,
                (true, false) => Opcode::RcReadResponseFirst,
                (false, false) => Opcode::RcReadResponseMiddle,
                (false, true) => Opcode::RcReadResponseLast,
            };
            let full = !batch.admits(packet_len(opcode.info().header_len.into(), part as usize));
            if full {
                let entry = self.responder.resources.get_mut(index);
                entry.progress = Progress::Answering { start, next, end };
                return Err(Full);
            }
            let headers = if first || last { Headers::Aeth(self.ack_aeth(shared)) } else { Headers::None };
            let repr = Repr { bth: bth::Repr::new(opcode, self.dest, next), headers };
            let path = self.path.as_deref().expect("a connected QP has a path");
            let sent: Result<(), NakCode> = batch.push(&path.flow, &repr, part as usize, |buf| {
                if part == 0 {
                    return Ok(());
                }
                let va = va.wrapping_add(u64::from(offset));
                let at = shared
                    .keys
                    .remote(self.init.pd, self.qpn, rkey, va, u64::from(part), Access::REMOTE_READ)
                    .ok_or(NakCode::RemoteAccessError)?;
                mem.read(at.region, at.offset, buf);
                if mem.take_fault() { Err(NakCode::RemoteOperationalError) } else { Ok(()) }
            });
            if let Err(code) = sent {
                self.responder.resources.get_mut(index).progress = Progress::Answering { start, next, end };
                if entry.is_replay() {
                    // It was answered while the key was good, and a copy that comes late must not end a connection
                    // whose consumers waited for the answer before they took the key away.
                    self.responder.resources.close(index);
                } else {
                    self.refuse_resource(shared, index, code);
                }
                return Ok(());
            }
            if last {
                return Ok(());
            }
            next = next.next();
        }
    }

    /// The ACK or NAK that is due, when no response must leave before it. An ACK that waits does not leave here.
    fn transmit_acknowledge(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
    ) -> Result<(), Full> {
        let msn = Msn::new(self.responder.msn);
        if let Some(refused) = self.responder.refused
            && refused.due
        {
            let aeth = aeth::Repr { aeth: Aeth::Nak(refused.code), msn };
            self.respond(batch, Opcode::RcAck, refused.psn, Headers::Aeth(aeth))?;
            self.responder.refused = Some(super::responder::Refused { due: false, ..refused });
            self.responder.ack_due = false;
        } else if let Some(nak) = self.responder.nak_due {
            let aeth = aeth::Repr { aeth: nak, msn };
            self.respond(batch, Opcode::RcAck, self.responder.epsn, Headers::Aeth(aeth))?;
            self.responder.nak_due = None;
            // A NAK acknowledges all before it.
            self.responder.ack_due = false;
        } else if self.responder.ack_due && !(self.responder.riding.waits() && self.sends_only_writes()) {
            self.send_acknowledge(shared, batch)?;
            shared.stats.acks_in_vain += u64::from(self.responder.riding.left_alone(now));
        }
        Ok(())
    }

    /// Behind requests that leave for the first time: the ACK that waited for them. `answers`: they were plain WRITEs.
    pub(super) fn ride_along(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        answers: bool,
    ) -> Result<(), Full> {
        let owed = self.responder.ack_due && self.responder.resources.front().is_none();
        let rides = owed && answers && self.responder.riding.waits();
        if rides && self.send_acknowledge(shared, batch).is_err() {
            self.responder.riding.lead();
            return Err(Full);
        }
        shared.stats.acks_ridden += u64::from(rides);
        self.responder.riding.request_left(now, shared.config.ack_ride, answers, rides);
        Ok(())
    }

    fn send_acknowledge(&mut self, shared: &Shared, batch: &mut Batch<'_>) -> Result<(), Full> {
        let psn = self.responder.refused.map_or(self.responder.epsn, |refused| refused.psn).sub(1);
        let headers = Headers::Aeth(self.ack_aeth(shared));
        self.respond(batch, Opcode::RcAck, psn, headers)?;
        self.responder.ack_due = false;
        Ok(())
    }

    /// An ACK with the receive WQEs that are free, unless they are shared with other QPs (9.7.7).
    pub(crate) fn ack_aeth(&self, shared: &Shared) -> aeth::Repr {
        let credits = if self.init.srq.is_some() || !shared.config.credits {
            Credits::UNLIMITED
        } else {
            // The message that is half way in has its WQE, and is not counted in the MSN.
            Credits::at_most(self.rq.len() + u32::from(self.receiving.taken))
        };
        aeth::Repr { aeth: Aeth::Ack(credits), msn: Msn::new(self.responder.msn) }
    }

    fn respond(&self, batch: &mut Batch<'_>, opcode: Opcode, psn: Psn, headers: Headers) -> Result<(), Full> {
        if !batch.admits(packet_len(opcode.info().header_len.into(), 0)) {
            return Err(Full);
        }
        let repr = Repr { bth: bth::Repr::new(opcode, self.dest, psn), headers };
        let path = self.path.as_deref().expect("a connected QP has a path");
        batch.push(&path.flow, &repr, 0, |_| Ok::<(), ()>(())).expect("no payload, nothing to fail");
        Ok(())
    }
}
