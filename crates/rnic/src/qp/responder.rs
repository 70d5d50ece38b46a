//! Executes the peer's requests: a chain of checks, each with the refusal that the specification asks for, then
//! execution, completion, acknowledgement.
//!
//! Read first: IBA Vol 1, 9.7.4 (request packet validation), 9.7.5 (responses), 9.9.3 (responder errors), and
//! Annex A19. The sending half, which streams READ responses and coalesces ACKs, is `respond.rs`; what is kept
//! of READs, atomics and flushes is `resource.rs`.
//!
//! Nothing is changed before the last check has passed, so that a refused packet leaves no trace but its NAK.

use remanence_wire::aeth::{Aeth, NakCode, RnrTimer};
use remanence_wire::feth::{PlacementType, SelectivityLevel};
use remanence_wire::opcode::{OpcodeInfo, Operation, Position};
use remanence_wire::packet::Packet;
use remanence_wire::{Psn, Rkey, bth, reth};

use super::resource::{Progress, Request, Resources};
use super::riding::Riding;
use super::{Qp, QpState, QpType, packets};
use crate::access::Access;
use crate::async_event::AsyncEvent;
use crate::device::{MAX_MESSAGE, Shared};
use crate::keys::RegionOffset;
use crate::memory::{Memory, Placement};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::wc::{WcOpcode, WcStatus};

/// The message of several packets that is half way in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Message {
    #[default]
    None,
    Send,
    Write {
        /// Of the next byte.
        va: u64,
        rkey: Rkey,
        /// Bytes still to come.
        left: u32,
        total: u32,
    },
}

/// A request that was refused for good. The QP is in the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) psn: Psn,
    pub(crate) code: NakCode,
    /// The NAK is to be sent (again).
    pub(crate) due: bool,
}

/// The responder of an RC or UC QP.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The PSN that comes next.
    pub(crate) epsn: Psn,
    /// Message sequence number: requests completed, as AETHs tell the requester.
    pub(crate) msn: u32,
    message: Message,
    /// The request at `epsn` was NAKed (sequence error or RNR): what follows it is dropped until it comes again.
    waiting: bool,
    /// UC: the rest of a broken message is being skipped.
    skipping: bool,
    pub(crate) ack_due: bool,
    /// When it leaves.
    pub(crate) riding: Riding,
    /// A NAK for `epsn` that the peer answers by sending again.
    pub(crate) nak_due: Option<Aeth>,
    pub(crate) refused: Option<Refused>,
    pub(crate) resources: Resources,
}

impl Responder {
    /// Back to the start of a connection.
    pub(crate) fn reset(&mut self, epsn: Psn, max_dest_rd_atomic: u8) {
        let mut resources = std::mem::take(&mut self.resources);
        resources.reset(max_dest_rd_atomic);
        *self = Self { epsn, resources, ..Self::default() };
    }

    /// When an ACK that waits for a request to ride with leaves alone.
    pub(crate) fn ack_deadline(&self) -> Option<Instant> {
        self.riding.deadline().filter(|_| self.ack_due)
    }

    /// The QP leaves the states that answer, for a reason of its own side.
    pub(crate) fn silence(&mut self) {
        self.resources.close_from(0);
        self.ack_due = false;
        self.nak_due = None;
        self.refused = None;
        self.message = Message::None;
    }
}

/// Why a request is not executed (RC); UC and UD drop instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// No receive WQE: come back later.
    NotReady,
    /// Class C of 9.9.3: NAK, and the QP goes to the error state. The receive WQE of the message, if one is
    /// taken, completes with the status.
    Fatal(NakCode, WcStatus),
    /// Class J: the message was received and is acknowledged, but what it asked to invalidate could not be.
    Invalidate,
}

const INVALID_REQUEST: Refusal = Refusal::Fatal(NakCode::InvalidRequest, WcStatus::RemInvReqErr);
const ACCESS_ERROR: Refusal = Refusal::Fatal(NakCode::RemoteAccessError, WcStatus::LocAccessErr);
const LENGTH_ERROR: Refusal = Refusal::Fatal(NakCode::InvalidRequest, WcStatus::LocLenErr);
const PROTECTION_ERROR: Refusal = Refusal::Fatal(NakCode::RemoteOperationalError, WcStatus::LocProtErr);

/// Where a checked request does its work.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// The receive WQE, or nowhere.
    None,
    /// Registered memory, which the request's rkey has opened.
    RegionOffset(RegionOffset),
    /// A responder resource.
    Resource(Request, u32),
}

impl Qp {
    /// Takes a request packet of RC or UC.
    pub(crate) fn handle_request(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        packet: &Packet<'_>,
        bth: &bth::Repr,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let info = packet.info();
        match self.init.ty {
            QpType::Rc => {
                if let Some(refused) = &mut self.responder.refused
                    && !bth.psn.is_before(refused.psn)
                {
                    // Our NAK was lost, or is on its way: what it says stays true.
                    refused.due = true;
                    self.wants_tx = true;
                    return Err(DropReason::WrongState);
                }
                if !self.check_psn(shared, bth.psn)? {
                    return self.handle_duplicate(shared, packet, bth, mem);
                }
            }
            QpType::Uc => self.check_psn_uc(info, bth.psn)?,
            QpType::Ud => unreachable!("datagrams are handled in datagram.rs"),
        }
        if self.state == QpState::Rtr && !self.comm_est {
            self.comm_est = true;
            shared.async_events.push_back(AsyncEvent::CommEst(self.qpn));
        }
        let verdict = self
            .check_op_seq(info)
            .and_then(|()| self.check_op_valid(packet))
            .and_then(|()| self.check_resource(shared, info))
            .and_then(|()| self.check_length(packet))
            .and_then(|()| self.check_rkey(shared, packet))
            .and_then(|target| self.execute(shared, packet, bth.psn, target, mem))
            .and_then(|()| self.complete_message(shared, packet));
        match verdict {
            Ok(()) => {
                self.acknowledge_later(shared, info, bth, now);
                Ok(())
            }
            Err(refusal) => self.refuse(shared, packet, bth, refusal),
        }
    }

    /// Whether a request is the one expected (`true`) or a duplicate; a request from beyond a gap is NAKed once.
    fn check_psn(&mut self, shared: &mut Shared, psn: Psn) -> Result<bool, DropReason> {
        let ahead = psn.diff(self.responder.epsn);
        if ahead == 0 {
            self.responder.waiting = false;
            if matches!(self.responder.nak_due, Some(Aeth::RnrNak(_))) {
                self.responder.nak_due = None;
            }
            return Ok(true);
        }
        if ahead < 0 {
            return Ok(false);
        }
        if !self.responder.waiting {
            // One NAK for each gap (9.7.5): everything that follows it is missing the same packet.
            self.responder.waiting = true;
            self.responder.nak_due = Some(Aeth::Nak(NakCode::PsnSequenceError));
            self.wants_tx = true;
            shared.stats.tx_nak += 1;
            shared.stats.rx_gaps += 1;
        }
        Err(DropReason::OutOfSequence)
    }

    /// UC has no memory of what was lost: a gap ends the message it is in, and the next message starts anew
    /// (9.8.2).
    fn check_psn_uc(&mut self, info: &OpcodeInfo, psn: Psn) -> Result<(), DropReason> {
        let responder = &mut self.responder;
        if psn != responder.epsn || responder.skipping {
            if !info.position.starts() {
                responder.skipping = true;
                responder.message = Message::None;
                return Err(DropReason::OutOfSequence);
            }
            responder.message = Message::None;
        }
        responder.skipping = false;
        responder.epsn = psn;
        Ok(())
    }

    /// First after last, middle after first, and of the same kind (9.7.4).
    fn check_op_seq(&mut self, info: &OpcodeInfo) -> Result<(), Refusal> {
        let fits = match (info.position, self.responder.message) {
            (Position::First | Position::Only, Message::None) => true,
            (Position::Middle | Position::Last, Message::Send) => info.operation == Operation::Send,
            (Position::Middle | Position::Last, Message::Write { .. }) => info.operation == Operation::Write,
            (Position::First | Position::Only, Message::Send | Message::Write { .. })
            | (Position::Middle | Position::Last, Message::None) => false,
        };
        if fits {
            return Ok(());
        }
        if self.init.ty == QpType::Uc && info.position.starts() {
            // A new message where the old one should go on: the old one is dropped (9.8.2).
            self.responder.message = Message::None;
            return Ok(());
        }
        Err(INVALID_REQUEST)
    }

    /// Whether the QP is enabled for the operation (9.7.4).
    fn check_op_valid(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let needed = match packet.info().operation {
            Operation::Send => return Ok(()),
            Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            Operation::Flush => flush_rights(packet.feth().expect("a FLUSH has a FETH").placement),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => return Err(INVALID_REQUEST),
        };
        if self.access.contains(needed) { Ok(()) } else { Err(INVALID_REQUEST) }
    }

    /// Whether what the request needs here is there: a receive WQE (9.7.5) or a responder resource
    /// (9.7.4).
    fn check_resource(&mut self, shared: &mut Shared, info: &OpcodeInfo) -> Result<(), Refusal> {
        match info.operation {
            Operation::Send if info.position.starts() => {
                if self.take_receive(shared) {
                    Ok(())
                } else {
                    Err(Refusal::NotReady)
                }
            }
            // It will be taken when the data has been written.
            Operation::Write if info.has_immediate() => {
                if self.can_receive(shared) {
                    Ok(())
                } else {
                    Err(Refusal::NotReady)
                }
            }
            Operation::Send | Operation::Write => Ok(()),
            Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite => {
                if self.responder.resources.has_room() {
                    Ok(())
                } else {
                    Err(INVALID_REQUEST)
                }
            }
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => Err(INVALID_REQUEST),
        }
    }

    /// Whether the payload is as long as its opcode, the path MTU, the RETH and the receive WQE allow
    /// (9.7.4).
    fn check_length(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let info = packet.info();
        let len = packet.payload().len();
        if !info.payload.admits(len, self.mtu) {
            return Err(INVALID_REQUEST);
        }
        let len = len as u32;
        match info.operation {
            Operation::Send => {
                let after = u64::from(self.receiving.received) + u64::from(len);
                if after > self.receiving.wqe.room { Err(LENGTH_ERROR) } else { Ok(()) }
            }
            Operation::Write => {
                let (left, more) = match (packet.reth(), self.responder.message) {
                    (Some(reth), _) => (reth.dma_len, info.position == Position::First),
                    (None, Message::Write { left, .. }) => (left, info.position == Position::Middle),
                    (None, Message::None | Message::Send) => return Err(INVALID_REQUEST),
                };
                let fits = if more { len < left } else { len == left };
                if fits && left <= MAX_MESSAGE { Ok(()) } else { Err(INVALID_REQUEST) }
            }
            Operation::ReadRequest => {
                if reth_of(packet).dma_len <= MAX_MESSAGE {
                    Ok(())
                } else {
                    Err(INVALID_REQUEST)
                }
            }
            Operation::AtomicWrite => {
                if reth_of(packet).dma_len == 8 {
                    Ok(())
                } else {
                    Err(INVALID_REQUEST)
                }
            }
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => Ok(()),
        }
    }

    /// Whether the rkey reaches the bytes with the right that the operation needs (9.7.4); says where they
    /// are. A READ or WRITE of nothing needs no key (C9-88).
    fn check_rkey(&self, shared: &Shared, packet: &Packet<'_>) -> Result<Target, Refusal> {
        let remote = |rkey, va, len: u32, need| {
            shared.keys.remote(self.init.pd, self.qpn, rkey, va, u64::from(len), need).ok_or(ACCESS_ERROR)
        };
        // The address must be aligned (9.4.5). Whether the memory is, is seen when it is reached.
        let aligned = |va: u64| if va.is_multiple_of(8) { Ok(()) } else { Err(INVALID_REQUEST) };
        match packet.info().operation {
            Operation::Send => Ok(Target::None),
            Operation::Write => {
                let (va, rkey, len) = match (packet.reth(), self.responder.message) {
                    // The first packet answers for the whole message.
                    (Some(reth), _) => (reth.va, reth.rkey, reth.dma_len),
                    (None, Message::Write { va, rkey, left, .. }) => (va, rkey, left),
                    (None, Message::None | Message::Send) => return Err(INVALID_REQUEST),
                };
                if len == 0 {
                    return Ok(Target::None);
                }
                Ok(Target::RegionOffset(remote(rkey, va, len, Access::REMOTE_WRITE)?))
            }
            Operation::ReadRequest => {
                let reth::Repr { va, rkey, dma_len } = reth_of(packet);
                if dma_len != 0 {
                    remote(rkey, va, dma_len, Access::REMOTE_READ)?;
                }
                let psns = packets(dma_len, self.mtu);
                Ok(Target::Resource(Request::Read { va, len: dma_len, rkey }, psns))
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let atomic = packet.atomic_eth().expect("an atomic has an AtomicETH");
                remote(atomic.rkey, atomic.va, 8, Access::REMOTE_ATOMIC)?;
                aligned(atomic.va)?;
                let (va, rkey) = (atomic.va, atomic.rkey);
                let request = if packet.info().operation == Operation::CompareSwap {
                    Request::CompareSwap { va, rkey, compare: atomic.compare, swap: atomic.swap_or_add }
                } else {
                    Request::FetchAdd { va, rkey, add: atomic.swap_or_add }
                };
                Ok(Target::Resource(request, 1))
            }
            Operation::AtomicWrite => {
                let reth::Repr { va, rkey, .. } = reth_of(packet);
                remote(rkey, va, 8, Access::REMOTE_WRITE)?;
                aligned(va)?;
                let data = packet.payload().try_into().map_err(|_| INVALID_REQUEST)?;
                Ok(Target::Resource(Request::AtomicWrite { va, rkey, data }, 1))
            }
            Operation::Flush => self.check_flush(shared, packet),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => Err(INVALID_REQUEST),
        }
    }

    /// What a FLUSH covers. A whole memory region is named by its rkey alone (A19).
    fn check_flush(&self, shared: &Shared, packet: &Packet<'_>) -> Result<Target, Refusal> {
        let feth = packet.feth().expect("a FLUSH has a FETH");
        let reth = reth_of(packet);
        let need = flush_rights(feth.placement);
        if need.is_empty() {
            return Err(INVALID_REQUEST);
        }
        let (va, len) = match feth.selectivity {
            SelectivityLevel::Range => (reth.va, u64::from(reth.dma_len)),
            SelectivityLevel::MemoryRegion => shared.keys.extent(reth.rkey).ok_or(ACCESS_ERROR)?,
            SelectivityLevel::Reserved2 | SelectivityLevel::Reserved3 => return Err(INVALID_REQUEST),
        };
        shared.keys.remote(self.init.pd, self.qpn, reth.rkey, va, len, need).ok_or(ACCESS_ERROR)?;
        // Persistence is the stronger of the two: what is durable here was visible before.
        let placement = if need.contains(Access::FLUSH_PERSISTENT) {
            Placement::Persistence
        } else {
            Placement::GlobalVisibility
        };
        Ok(Target::Resource(Request::Flush { va, len, rkey: reth.rkey, placement }, 1))
    }

    fn execute(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        psn: Psn,
        target: Target,
        mem: &mut impl Memory,
    ) -> Result<(), Refusal> {
        let payload = packet.payload();
        match target {
            Target::None => {
                if packet.info().operation == Operation::Send {
                    self.fill_receive(shared, payload, mem).map_err(|_| PROTECTION_ERROR)?;
                    self.responder.message = Message::Send;
                } else {
                    self.responder.message = Message::Write { va: 0, rkey: Rkey(0), left: 0, total: 0 };
                }
            }
            Target::RegionOffset(place) => {
                mem.write(place.region, place.offset, payload);
                if mem.take_fault() {
                    return Err(PROTECTION_ERROR);
                }
                let (va, rkey, left, total) = match (packet.reth(), self.responder.message) {
                    (Some(reth), _) => (reth.va, reth.rkey, reth.dma_len, reth.dma_len),
                    (None, Message::Write { va, rkey, left, total }) => (va, rkey, left, total),
                    (None, Message::None | Message::Send) => return Err(INVALID_REQUEST),
                };
                let len = payload.len() as u32;
                let va = va.wrapping_add(u64::from(len));
                self.responder.message = Message::Write { va, rkey, left: left - len, total };
            }
            Target::Resource(request, psns) => {
                self.responder.resources.push(request, psn, psn.add(psns - 1));
                self.responder.epsn = psn.add(psns);
                self.responder.msn = self.responder.msn.wrapping_add(1);
                self.wants_tx = true;
                self.run_resources(shared, mem);
            }
        }
        Ok(())
    }

    /// After the last packet of a SEND or WRITE: the receive completion and the end of the message.
    fn complete_message(&mut self, shared: &mut Shared, packet: &Packet<'_>) -> Result<(), Refusal> {
        let info = packet.info();
        if !matches!(info.operation, Operation::Send | Operation::Write) || !info.position.ends() {
            return Ok(());
        }
        let message = std::mem::take(&mut self.responder.message);
        if let Some(ieth) = packet.ieth()
            && shared.keys.invalidate(self.init.pd, self.qpn, ieth.rkey).is_err()
        {
            return Err(Refusal::Invalidate);
        }
        match message {
            Message::Send => self.complete_receive(shared, WcOpcode::Recv, packet, self.receiving.received),
            Message::Write { total, .. } if info.has_immediate() => {
                let taken = self.take_receive(shared);
                debug_assert!(taken, "check_resource saw one");
                self.complete_receive(shared, WcOpcode::RecvRdmaWithImm, packet, total);
            }
            Message::Write { .. } | Message::None => {}
        }
        Ok(())
    }

    /// Moves on past a packet of a SEND or WRITE. Acknowledgements are only noted here: all that arrived before
    /// the next transmission share one.
    fn acknowledge_later(&mut self, shared: &mut Shared, info: &OpcodeInfo, bth: &bth::Repr, now: Instant) {
        if !matches!(info.operation, Operation::Send | Operation::Write) {
            return;
        }
        let responder = &mut self.responder;
        responder.epsn = bth.psn.next();
        responder.resources.pass();
        if info.position.ends() {
            responder.msn = responder.msn.wrapping_add(1);
        }
        if bth.ack_req && self.init.ty == QpType::Rc {
            if !info.position.ends() {
                responder.riding.asked_within(responder.ack_due);
            } else if info.operation == Operation::Write && !info.has_immediate() {
                let waits = responder.riding.asked(now, shared.config.ack_ride, responder.ack_due);
                shared.stats.acks_deferred += u64::from(waits);
            } else {
                responder.riding.hurry();
            }
            responder.ack_due = true;
            self.wants_tx = true;
        }
    }

    /// A request that came before (9.7.4): acknowledged again, and answered again if it has an answer.
    fn handle_duplicate(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        bth: &bth::Repr,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        shared.stats.rx_duplicates += 1;
        self.wants_tx = true;
        match packet.info().operation {
            // Where the peer waits for it, and not in the middle of what it sends again: Soft-RoCE (6.12) stops there when
            // the ACK covers the whole message, and never sends anything on that QP again.
            Operation::Send | Operation::Write => {
                self.responder.ack_due |= bth.ack_req || packet.info().position.ends();
                self.responder.riding.hurry();
                Ok(())
            }
            Operation::ReadRequest => self.replay_read(shared, bth.psn, &reth_of(packet), mem),
            Operation::CompareSwap | Operation::FetchAdd | Operation::Flush | Operation::AtomicWrite => {
                self.replay_result(packet, bth.psn)
            }
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Cnp => Err(DropReason::Stale),
        }
    }

    /// A READ is executed again, from where the peer asks: it may have the first part (9.7.4).
    fn replay_read(
        &mut self,
        shared: &mut Shared,
        psn: Psn,
        reth: &reth::Repr,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let resources = &mut self.responder.resources;
        let index = resources.find(psn, self.responder.epsn).ok_or(DropReason::Stale)?;
        let entry = *resources.get(index);
        let Request::Read { va, len, rkey } = entry.request else { return Err(DropReason::Stale) };
        // A piece of what was asked for the first time: whole packets, or up to its end.
        let mtu = self.mtu.bytes() as u32;
        let skipped = super::distance(entry.first, psn) * mtu;
        let end = psn.add(packets(reth.dma_len, self.mtu) - 1);
        let rest = len - skipped;
        let piece = reth.dma_len == rest || (reth.dma_len < rest && reth.dma_len.is_multiple_of(mtu));
        if reth.rkey != rkey
            || reth.va != va.wrapping_add(u64::from(skipped))
            || !piece
            || reth.dma_len == 0 && len != 0
        {
            return Err(DropReason::Stale);
        }
        match entry.progress {
            // Not answered at all yet, and will be.
            Progress::Waiting | Progress::Flushing(_) => {}
            Progress::Answering { next, .. } if !psn.is_before(next) => {}
            Progress::Answering { .. } | Progress::Closed => resources.reopen(index, psn, end),
        }
        self.run_resources(shared, mem);
        Ok(())
    }

    /// Atomics, FLUSH and ATOMIC WRITE are answered from memory and not executed again (9.7.4, A19).
    fn replay_result(&mut self, packet: &Packet<'_>, psn: Psn) -> Result<(), DropReason> {
        let resources = &mut self.responder.resources;
        let index = resources.find(psn, self.responder.epsn).ok_or(DropReason::Stale)?;
        let entry = resources.get(index);
        let same = match (packet.info().operation, &entry.request) {
            (Operation::CompareSwap, Request::CompareSwap { va, rkey, compare, swap }) => {
                packet.atomic_eth().is_some_and(|eth| {
                    (eth.va, eth.rkey, eth.compare, eth.swap_or_add) == (*va, *rkey, *compare, *swap)
                })
            }
            (Operation::FetchAdd, Request::FetchAdd { va, rkey, add }) => packet
                .atomic_eth()
                .is_some_and(|eth| (eth.va, eth.rkey, eth.swap_or_add) == (*va, *rkey, *add)),
            (Operation::AtomicWrite, Request::AtomicWrite { .. }) => true,
            (Operation::Flush, Request::Flush { .. }) => true,
            _ => false,
        };
        if !same {
            return Err(DropReason::Stale);
        }
        if entry.progress == Progress::Closed {
            resources.reopen(index, psn, psn);
        }
        Ok(())
    }

    fn refuse(
        &mut self,
        shared: &mut Shared,
        packet: &Packet<'_>,
        bth: &bth::Repr,
        refusal: Refusal,
    ) -> Result<(), DropReason> {
        if self.init.ty == QpType::Uc {
            return self.drop_message(shared, bth.psn, refusal);
        }
        self.wants_tx = true;
        match refusal {
            Refusal::NotReady => {
                let timer = RnrTimer::new(self.attr.min_rnr_timer.unwrap_or(0));
                self.responder.nak_due = Some(Aeth::RnrNak(timer));
                self.responder.waiting = true;
                shared.stats.tx_nak += 1;
                shared.stats.tx_rnr_nak += 1;
                Err(DropReason::NoReceive)
            }
            Refusal::Fatal(code, status) => {
                self.refuse_for_good(shared, bth.psn, code, status);
                Ok(())
            }
            Refusal::Invalidate => {
                self.acknowledge_later(shared, packet.info(), bth, Instant::ZERO);
                self.responder.ack_due = true;
                self.responder.riding.hurry();
                // What the responder still has to say leaves also from the error state.
                self.fail_receive(shared, WcStatus::RemInvReqErr);
                self.enter_error(shared);
                Ok(())
            }
        }
    }

    /// UC: nobody is told. A buffer that is wrong in itself is the consumer's error, and the QP's end (9.9.3).
    fn drop_message(&mut self, shared: &mut Shared, psn: Psn, refusal: Refusal) -> Result<(), DropReason> {
        let responder = &mut self.responder;
        responder.epsn = psn.next();
        responder.message = Message::None;
        responder.skipping = true;
        match refusal {
            PROTECTION_ERROR => {
                self.fail_receive(shared, WcStatus::LocProtErr);
                self.enter_error(shared);
            }
            Refusal::NotReady | Refusal::Fatal(..) | Refusal::Invalidate => {}
        }
        Err(DropReason::NoReceive)
    }

    /// Refuses the request at `psn` and takes the QP to the error state. Responses to what came before it still
    /// leave, then the NAK.
    pub(crate) fn refuse_for_good(&mut self, shared: &mut Shared, psn: Psn, code: NakCode, status: WcStatus) {
        shared.stats.tx_nak += 1;
        self.responder.refused = Some(Refused { psn, code, due: true });
        self.responder.nak_due = None;
        self.wants_tx = true;
        if self.receiving.taken {
            self.fail_receive(shared, status);
        } else {
            shared.async_events.push_back(match code {
                NakCode::RemoteAccessError => AsyncEvent::QpAccessError(self.qpn),
                NakCode::InvalidRequest | NakCode::PsnSequenceError | NakCode::InvalidRdRequest => {
                    AsyncEvent::QpRequestError(self.qpn)
                }
                NakCode::RemoteOperationalError => AsyncEvent::QpFatal(self.qpn),
            });
        }
        self.enter_error(shared);
    }
}

fn reth_of(packet: &Packet<'_>) -> reth::Repr {
    packet.reth().expect("the opcode table gives it a RETH")
}

/// The rights that a placement type needs.
fn flush_rights(placement: PlacementType) -> Access {
    let mut rights = Access::empty();
    rights.set(Access::FLUSH_GLOBAL, placement.contains(PlacementType::GLOBAL_VISIBILITY));
    rights.set(Access::FLUSH_PERSISTENT, placement.contains(PlacementType::PERSISTENCE));
    rights
}
