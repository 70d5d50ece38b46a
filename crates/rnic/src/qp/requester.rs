//! Turns posted WQEs into request packets, and sends them again until the completer is satisfied.
//!
//! Read first: IBA Vol 1, 9.7.3 (request packets), 9.7.7 (credits), 10.8.3 (ordering, fence). The receiving half
//! is `completer.rs`; when to send again is `retry.rs`; how much may be in flight is `congestion.rs`.
//!
//! The unacknowledged requests are not kept anywhere but in the send queue: each started WQE knows its PSNs. The
//! requester is a cursor (a WQE and the next PSN), and to go back N is to move it.

use std::collections::VecDeque;

use remanence_wire::feth::{self, PlacementType, SelectivityLevel};
use remanence_wire::packet::{Headers, Repr, packet_len};
use remanence_wire::{Opcode, Psn, Rkey, atomic_eth, bth, ieth, imm_dt, reth};

use super::receive::for_each_part;
use super::respond::Full;
use super::{Qp, QpState, QpType, distance, packets};
use crate::access::Access;
use crate::device::Shared;
use crate::keys::BindRequest;
use crate::memory::{Memory, Placement};
use crate::time::Instant;
use crate::transmit::Batch;
use crate::wc::WcStatus;
use crate::wqe::Wqe;
use crate::wr::{RemoteAddr, Selectivity, SendFlags, SendOp};

/// At least every so many packets one asks for an ACK, so that the window moves on under a long message.
const ACK_REQ_INTERVAL: u32 = 16;

/// So many small requests are worth a send of their own: it costs less than they do.
const TRAIN: u32 = 32;

/// Behind fewer requests in flight than these no request waits to become part of a train.
const CROWD: u32 = 16;
/// Nor does one if the peer is further than that, in round trips: a request that waits may wait for one. Hosts of a rack are nearer.
const NEAR_NS: u64 = 200_000;

/// A request that takes a responder resource of the peer, from first sending to last response. A long READ is
/// several of them, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outstanding {
    pub(crate) first: Psn,
    pub(crate) last: Psn,
    /// A FLUSH, which may take as long as the medium does: the ICRCs that it was sent with.
    pub(crate) flush: Option<FlushIcrcs>,
}

/// A set of the two ICRCs that a FLUSH can have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct FlushIcrcs {
    standard: bool,
    linux: bool,
}

/// Which ICRC FLUSHes get. Linux Soft-RoCE expects another than the specification's (`remanence_wire::icrc`) and drops
/// all others, and nothing tells who the peer is. So each time that the requester goes back to a FLUSH it tries the
/// other kind, for all that it sends again; and when a FLUSH that went out in one kind only is answered, it knows.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct FlushIcrc {
    linux: bool,
    known: bool,
}

impl FlushIcrc {
    /// The oldest request in flight is a FLUSH, and is sent again.
    pub(crate) const fn on_go_back(&mut self) {
        if !self.known {
            self.linux = !self.linux;
        }
    }

    /// A FLUSH was answered that had been sent with these.
    pub(crate) const fn on_answer(&mut self, sent: FlushIcrcs) {
        if sent.standard != sent.linux {
            *self = Self { linux: sent.linux, known: true };
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// The WQE to send from next.
    pub(crate) cursor: u32,
    /// The first WQE not started yet.
    pub(crate) fresh: u32,
    /// The PSN to send next.
    pub(crate) psn: Psn,
    /// The first PSN never sent.
    pub(crate) max_psn: Psn,
    /// The first PSN not acknowledged.
    pub(crate) una: Psn,
    /// A WQE that failed here, and how. It completes when those before it have.
    pub(crate) halt: Option<(u32, WcStatus)>,
    pub(crate) outstanding: VecDeque<Outstanding>,
    /// Send sequence number: messages started. Only its low 24 bits are compared with credits.
    pub(crate) ssn: u32,
    /// The last message that the peer's credits allow (9.7.7); `None` without flow control.
    pub(crate) limit: Option<u32>,
    since_ack_req: u32,
    /// The WQE before which new requests wait for no more of them.
    hurries_until: u32,
    pub(crate) flush_icrc: FlushIcrc,
}

impl Requester {
    pub(crate) fn reset(&mut self, psn: Psn, at: u32) {
        let mut outstanding = std::mem::take(&mut self.outstanding);
        outstanding.clear();
        let (cursor, fresh, hurries_until) = (at, at, at);
        *self = Self {
            cursor,
            fresh,
            hurries_until,
            psn,
            max_psn: psn,
            una: psn,
            outstanding,
            ..Self::default()
        };
    }

    /// Packets in flight, response packets of READs included.
    #[inline]
    pub(crate) const fn in_flight(&self) -> u32 {
        distance(self.una, self.psn)
    }
}

/// Whether there is a request to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// From the WQE at the cursor.
    Send,
    /// Nothing for now.
    Nothing,
}

/// What became of one request.
enum Sent {
    /// It is in the batch.
    Yes,
    /// A local buffer is not what its lkey allows: the WQE fails.
    Failed(WcStatus),
}

impl Qp {
    /// Sends requests until the batch is full or something must be waited for.
    pub(crate) fn transmit_requests(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        mem: &impl Memory,
    ) -> Result<(), Full> {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.retry.rnr_waiting() {
            return Ok(());
        }
        if self.keepalive.due {
            self.send_probe(batch)?;
        }
        if self.awaits_room(batch) || self.awaits_company() {
            return Ok(());
        }
        while self.next_request(shared) == Next::Send {
            let sent = self.send_request(shared, now, batch, mem)?;
            match sent {
                Sent::Yes => {}
                Sent::Failed(status) => {
                    self.requester.halt = Some((self.requester.cursor, status));
                    self.settle_halt(shared);
                    self.ask_for_ack();
                }
            }
        }
        Ok(())
    }

    /// Nothing leaves behind the last packet, though it did not ask for an ACK as something was to: it leaves again, and asks.
    fn ask_for_ack(&mut self) {
        let req = &self.requester;
        if req.since_ack_req > 0 && req.psn == req.max_psn && req.in_flight() > 0 {
            self.seek(req.psn.sub(1));
        }
    }

    /// Whether all that is left to send are WRITEs of which the peer's consumer is not told; also when nothing is.
    pub(crate) fn sends_only_writes(&self) -> bool {
        self.sq.are_plain_writes_from(self.requester.cursor)
    }

    /// Asks the peer whether it is there. What is in flight asks that anyway.
    fn send_probe(&mut self, batch: &mut Batch<'_>) -> Result<(), Full> {
        let req = &self.requester;
        if req.una == req.max_psn {
            let opcode = Opcode::RcWriteOnly;
            if !batch.admits(packet_len(opcode.info().header_len.into(), 0)) {
                return Err(Full);
            }
            let last = Psn::new(req.una.value().wrapping_sub(1));
            let bth = bth::Repr { ack_req: true, ..bth::Repr::new(opcode, self.dest, last) };
            let reth = reth::Repr { va: 0, rkey: Rkey(0), dma_len: 0 };
            let path = self.path.as_deref().expect("a connected QP has a path");
            let repr = Repr { bth, headers: Headers::Reth(reth) };
            batch.push(&path.flow, &repr, 0, |_| Ok::<(), ()>(())).expect("no payload, nothing to fail");
        }
        self.keepalive.due = false;
        Ok(())
    }

    /// Moves the cursor to the next WQE that has something to send, executing local operations on the way.
    fn next_request(&mut self, shared: &mut Shared) -> Next {
        loop {
            let req = &self.requester;
            let at = req.cursor;
            if at == self.sq.tail || req.halt.is_some_and(|(halted, _)| halted == at) {
                return Next::Nothing;
            }
            let wqe = self.sq.get(at);
            if at != req.fresh {
                // Begun before: more of it, or again.
                if wqe.psns == 0 {
                    self.requester.cursor = at.wrapping_add(1);
                    continue;
                }
                // The next part of a long READ is a request of its own.
                let part = wqe.takes_resource() && req.psn == req.max_psn && req.psn != wqe.first_psn;
                let allowed = self.window_allows() && (!part || self.resource_allows());
                return if allowed { Next::Send } else { Next::Nothing };
            }
            if self.state != QpState::Rts
                || (wqe.flags.contains(SendFlags::FENCE) && !req.outstanding.is_empty())
            {
                return Next::Nothing;
            }
            if let SendOp::LocalInv(_) | SendOp::BindMw { .. } = wqe.op {
                self.execute_local(shared);
                continue;
            }
            if !self.window_allows() || (wqe.takes_credit() && !self.credit_allows()) {
                return Next::Nothing;
            }
            if wqe.takes_resource() && !self.resource_allows() {
                return Next::Nothing;
            }
            self.start_wqe();
            return Next::Send;
        }
    }

    /// Whether a window that is nearly full, in the middle of much to send, is left to open until a whole train fits: in a stream
    /// it opens by what one ACK covers, and each piece would be a send of its own here and a receive there (as
    /// Linux' TCP defers a segment, `tcp_tso_should_defer`). Most of the window is under way, so the ACK that opens it is too.
    fn awaits_room(&self, batch: &Batch<'_>) -> bool {
        let req = &self.requester;
        let window = self.congestion.packets();
        let room = window.saturating_sub(req.in_flight());
        let at = req.cursor;
        if req.psn != req.max_psn || at == self.sq.tail || self.sq.get(at).takes_resource() {
            return false;
        }
        let train =
            batch.room_for(packet_len(Opcode::RcWriteMiddle.info().header_len.into(), self.mtu.bytes()));
        if room >= train || window < 4 * train {
            return false;
        }
        !self.is_left_within(room)
    }

    /// Whether new requests, all of them small, are left to wait for others: where many small ones are in flight and nothing else, they
    /// leave once they are as many as those, or a train, or when an ACK has come that leaves less in flight. A consumer that keeps
    /// its queue filled posts one for each completion, and each by itself costs a system call here, another one at the peer, and
    /// an ACK, which brings one completion: the queue never sees two at once again. It is Nagle's rule (RFC 896), with as much
    /// waiting as is in flight in place of a segment. A request that does not belong to such a queue waits in vain, for a round
    /// trip at most: so none does behind a large one or a READ, as the message that says that data has been written stands there,
    /// nor where the peer is [far](NEAR_NS). What the rule is notorious for, waiting out the delay of an ACK, needs a peer that
    /// delays: the last packet in flight has asked for an ACK here, and only a FLUSH may hold that up for long.
    fn awaits_company(&self) -> bool {
        let req = &self.requester;
        let (waiting, in_flight) =
            (self.sq.tail.wrapping_sub(req.cursor), req.cursor.wrapping_sub(self.sq.head));
        let hurries = req.hurries_until.wrapping_sub(req.cursor).wrapping_sub(1) < waiting;
        in_flight >= CROWD
            && waiting < in_flight
            && !hurries
            && self.may_await_company()
            // A packet each.
            && in_flight == req.in_flight()
            && self.sq.are_small_from(self.sq.head)
            && self.retry.least_rtt_ns().is_some_and(|least| least <= NEAR_NS)
            && !req.outstanding.iter().any(|part| part.flush.is_some())
    }

    /// What waits for company leaves. Says whether anything does.
    pub(crate) fn let_leave(&mut self) -> bool {
        let waits = self.requester.cursor != self.sq.tail && self.may_await_company();
        if waits {
            self.requester.hurries_until = self.sq.tail;
            self.wants_tx = true;
        }
        waits
    }

    /// Whether all that is left to send are new requests, small ones, too few to be worth a send, of a QP whose peer answers.
    pub(crate) fn may_await_company(&self) -> bool {
        let req = &self.requester;
        self.init.ty == QpType::Rc
            && req.cursor == req.fresh
            && self.sq.tail.wrapping_sub(req.cursor) < TRAIN
            && self.sq.are_small_from(req.cursor)
    }

    /// Whether all that is left to send leaves now, though not in one train.
    pub(crate) fn rest_leaves_now(&self) -> bool {
        self.is_left_within(self.congestion.packets().saturating_sub(self.requester.in_flight()))
    }

    /// Whether all that is left to send is `room` packets or less.
    fn is_left_within(&self, room: u32) -> bool {
        let req = &self.requester;
        let mut at = req.cursor;
        if at == self.sq.tail {
            return true;
        }
        // Of the WQE at the cursor some may have left. Those behind it have not begun, and know no PSN.
        let first = self.sq.get(at);
        let mut sent = if first.psns == 0 { 0 } else { distance(first.first_psn, req.psn) };
        let mut left = room;
        while at != self.sq.tail {
            let rest = packets(self.sq.get(at).len, self.mtu) - std::mem::take(&mut sent);
            let Some(after) = left.checked_sub(rest) else { return false };
            (left, at) = (after, at.wrapping_add(1));
        }
        true
    }

    fn window_allows(&self) -> bool {
        self.requester.in_flight() < self.congestion.packets()
    }

    /// Without credits one message may still go when nothing else is out: its answer tells how things stand, and
    /// an RNR NAK does no harm (the *limited* WQE of 9.7.7).
    fn credit_allows(&self) -> bool {
        let req = &self.requester;
        match req.limit {
            None => true,
            Some(limit) => next_message(req.ssn).diff(Psn::new(limit)) <= 0 || req.in_flight() == 0,
        }
    }

    fn resource_allows(&self) -> bool {
        self.requester.outstanding.len() < usize::from(self.attr.max_rd_atomic.unwrap_or(0))
    }

    /// Gives the WQE at the cursor its PSNs.
    fn start_wqe(&mut self) {
        let mtu = self.mtu;
        let req = &mut self.requester;
        debug_assert_eq!(req.psn, req.max_psn, "all before a fresh WQE was sent");
        req.fresh = req.fresh.wrapping_add(1);
        req.ssn = req.ssn.wrapping_add(1);
        let ssn = req.ssn;
        let wqe = self.sq.get_mut(req.cursor);
        wqe.first_psn = req.max_psn;
        wqe.psns = packets(wqe.len, mtu);
        wqe.ssn = ssn;
    }

    /// LOCAL_INV and BIND_MW touch no network. They happen in their turn, and complete in their turn.
    fn execute_local(&mut self, shared: &mut Shared) {
        let at = self.requester.cursor;
        let (pd, qpn) = (self.init.pd, self.qpn);
        let wqe = self.sq.get_mut(at);
        wqe.psns = 0;
        let result = match wqe.op {
            SendOp::LocalInv(rkey) => shared.keys.invalidate(pd, qpn, rkey).map_err(|_| WcStatus::LocQpOpErr),
            SendOp::BindMw { mw, rkey, bind } => {
                let request = BindRequest {
                    mw,
                    rkey,
                    mr: bind.mr,
                    addr: bind.addr,
                    len: bind.len,
                    access: bind.access,
                    pd,
                    qpn,
                };
                shared.keys.bind(&request).map_err(|_| WcStatus::MwBindErr)
            }
            _ => unreachable!("only local operations come here"),
        };
        let next = at.wrapping_add(1);
        match result {
            Ok(()) => {
                (self.requester.cursor, self.requester.fresh) = (next, next);
                self.complete_local(shared);
            }
            Err(status) => {
                self.requester.halt = Some((at, status));
                self.settle_halt(shared);
            }
        }
    }

    /// Puts one request packet of the WQE at the cursor into the batch.
    fn send_request(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        mem: &impl Memory,
    ) -> Result<Sent, Full> {
        let wqe = *self.sq.get(self.requester.cursor);
        match wqe.op {
            SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::Write(_)
            | SendOp::WriteImm(..) => self.send_data(shared, now, batch, &wqe, mem),
            SendOp::Read(remote) => self.send_read(shared, now, batch, &wqe, remote),
            SendOp::CompareSwap { remote, compare, swap } => {
                let eth = atomic_eth::Repr { va: remote.addr, rkey: remote.rkey, swap_or_add: swap, compare };
                self.send_single(
                    shared,
                    now,
                    batch,
                    &wqe,
                    Opcode::RcCompareSwap,
                    Headers::AtomicEth(eth),
                    mem,
                )
            }
            SendOp::FetchAdd { remote, add } => {
                let eth =
                    atomic_eth::Repr { va: remote.addr, rkey: remote.rkey, swap_or_add: add, compare: 0 };
                self.send_single(shared, now, batch, &wqe, Opcode::RcFetchAdd, Headers::AtomicEth(eth), mem)
            }
            SendOp::Flush { remote, len, placement, selectivity } => {
                let feth = feth::Repr {
                    placement: match placement {
                        Placement::GlobalVisibility => PlacementType::GLOBAL_VISIBILITY,
                        Placement::Persistence => PlacementType::PERSISTENCE,
                    },
                    selectivity: match selectivity {
                        Selectivity::Range => SelectivityLevel::Range,
                        Selectivity::MemoryRegion => SelectivityLevel::MemoryRegion,
                    },
                };
                let reth = reth::Repr { va: remote.addr, rkey: remote.rkey, dma_len: len };
                self.send_single(
                    shared,
                    now,
                    batch,
                    &wqe,
                    Opcode::RcFlush,
                    Headers::FethReth(feth, reth),
                    mem,
                )
            }
            SendOp::AtomicWrite(remote) => {
                let reth = reth::Repr { va: remote.addr, rkey: remote.rkey, dma_len: 8 };
                self.send_single(shared, now, batch, &wqe, Opcode::RcAtomicWrite, Headers::Reth(reth), mem)
            }
            SendOp::LocalInv(_) | SendOp::BindMw { .. } => unreachable!("local operations send nothing"),
        }
    }

    /// A packet of a SEND or WRITE.
    fn send_data(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        wqe: &Wqe,
        mem: &impl Memory,
    ) -> Result<Sent, Full> {
        let (at, psn) = (self.requester.cursor, self.requester.psn);
        let index = distance(wqe.first_psn, psn);
        let offset = index.wrapping_mul(self.mtu.bytes() as u32);
        let part = ((wqe.len - offset) as usize).min(self.mtu.bytes());
        let (first, last) = (index == 0, index + 1 == wqe.psns);
        let (opcode, headers) = data_opcode(self.init.ty, wqe, first, last);
        if !batch.admits(packet_len(opcode.info().header_len.into(), part)) {
            return Err(Full);
        }
        let ack_req = self.init.ty == QpType::Rc && self.wants_ack(last);
        let bth = bth::Repr {
            solicited: last && wqe.flags.contains(SendFlags::SOLICITED),
            ack_req,
            ..bth::Repr::new(opcode, self.dest, psn)
        };
        let path = self.path.as_deref().expect("a connected QP has a path");
        let fill = |buf: &mut [u8]| self.gather(shared, at, offset, buf, mem);
        if batch.push(&path.flow, &Repr { bth, headers }, part, fill).is_err() {
            return Ok(Sent::Failed(WcStatus::LocProtErr));
        }
        self.after_packet(shared, now, psn.next(), ack_req, last);
        if self.init.ty == QpType::Uc {
            // Nobody will answer: sent is done.
            self.requester.una = self.requester.psn;
            if last {
                self.complete_head(shared, WcStatus::Success);
                self.complete_local(shared);
            }
        }
        Ok(Sent::Yes)
    }

    /// Copies message bytes into a packet.
    #[inline]
    pub(crate) fn gather(
        &self,
        shared: &Shared,
        at: u32,
        offset: u32,
        buf: &mut [u8],
        mem: &impl Memory,
    ) -> Result<(), ()> {
        if let Some(inline) = self.sq.inline(at) {
            buf.copy_from_slice(&inline[offset as usize..][..buf.len()]);
            return Ok(());
        }
        let len = buf.len();
        for_each_part(self.sq.sges(at), offset.into(), len, |sge, addr, done, part| {
            let from =
                shared.keys.local(self.init.pd, sge.lkey, addr, part as u64, Access::empty()).ok_or(())?;
            mem.read(from.region, from.offset, &mut buf[done..done + part]);
            if mem.take_fault() { Err(()) } else { Ok(()) }
        })
    }

    /// A READ request: for the next part of the READ, or again for what is missing of a part.
    fn send_read(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        wqe: &Wqe,
        remote: RemoteAddr,
    ) -> Result<Sent, Full> {
        let psn = self.requester.psn;
        if !batch.admits(packet_len(Opcode::RcReadRequest.info().header_len.into(), 0)) {
            return Err(Full);
        }
        if psn == self.requester.max_psn && !self.sinks_are_writable(shared, self.requester.cursor) {
            return Ok(Sent::Failed(WcStatus::LocProtErr));
        }
        let last = self.read_part(wqe, psn);
        let mtu = self.mtu.bytes() as u32;
        let offset = distance(wqe.first_psn, psn).wrapping_mul(mtu);
        let parts = distance(psn, last) + 1;
        let len = (wqe.len - offset).min(parts.saturating_mul(mtu));
        let reth =
            reth::Repr { va: remote.addr.wrapping_add(offset.into()), rkey: remote.rkey, dma_len: len };
        let bth = bth::Repr { ack_req: true, ..bth::Repr::new(Opcode::RcReadRequest, self.dest, psn) };
        let repr = Repr { bth, headers: Headers::Reth(reth) };
        let path = self.path.as_deref().expect("a connected QP has a path");
        batch.push(&path.flow, &repr, 0, |_| Ok::<(), ()>(())).expect("no payload, nothing to fail");
        if psn == self.requester.max_psn {
            if psn != wqe.first_psn {
                self.requester.ssn = self.requester.ssn.wrapping_add(1);
            }
            self.requester.outstanding.push_back(Outstanding { first: psn, last, flush: None });
        }
        self.after_packet(shared, now, last.next(), true, last == wqe.last_psn());
        Ok(Sent::Yes)
    }

    /// The last PSN of the part of a READ that begins at `psn`. A part sent before keeps its end: the peer may or may
    /// not have seen it, and must not see two requests that overlap in part.
    fn read_part(&self, wqe: &Wqe, psn: Psn) -> Psn {
        let req = &self.requester;
        if psn != req.max_psn {
            let known = req.outstanding.iter().find(|part| psn.in_window(part.first, part_len(part)));
            return known.expect("what was sent and not answered is outstanding").last;
        }
        let window = self.congestion.packets();
        let free = window.saturating_sub(req.in_flight()).max(1);
        let most = (window / 4).clamp(1, free);
        let left = distance(psn, wqe.last_psn()) + 1;
        psn.add(left.min(most) - 1)
    }

    /// A request of one packet that takes a responder resource.
    #[expect(clippy::too_many_arguments, reason = "the operations differ in opcode and headers only")]
    fn send_single(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        wqe: &Wqe,
        opcode: Opcode,
        headers: Headers,
        mem: &impl Memory,
    ) -> Result<Sent, Full> {
        let (at, psn) = (self.requester.cursor, self.requester.psn);
        let part = if matches!(wqe.op, SendOp::AtomicWrite(_)) { 8 } else { 0 };
        let size = packet_len(opcode.info().header_len.into(), part);
        if !batch.admits(size) {
            return Err(Full);
        }
        let is_atomic = matches!(wqe.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        if is_atomic && !self.sinks_are_writable(shared, at) {
            return Ok(Sent::Failed(WcStatus::LocProtErr));
        }
        let bth = bth::Repr { ack_req: true, ..bth::Repr::new(opcode, self.dest, psn) };
        let path = self.path.as_deref().expect("a connected QP has a path");
        let fill = |buf: &mut [u8]| self.gather(shared, at, 0, buf, mem);
        if batch.push(&path.flow, &Repr { bth, headers }, part, fill).is_err() {
            return Ok(Sent::Failed(WcStatus::LocProtErr));
        }
        let flush = (opcode == Opcode::RcFlush).then(FlushIcrcs::default);
        let req = &mut self.requester;
        if psn == req.max_psn {
            req.outstanding.push_back(Outstanding { first: psn, last: psn, flush });
        }
        if flush.is_some() {
            let linux = req.flush_icrc.linux;
            if linux {
                batch.seal_for_linux(&path.flow, size);
            }
            let part = req.outstanding.iter_mut().find(|part| part.first == psn);
            let sent =
                part.and_then(|part| part.flush.as_mut()).expect("what is not answered is outstanding");
            *(if linux { &mut sent.linux } else { &mut sent.standard }) = true;
        }
        self.after_packet(shared, now, psn.next(), true, true);
        Ok(Sent::Yes)
    }

    /// Whether the result of a READ or atomic has a place to go: known before the peer does anything for it.
    fn sinks_are_writable(&self, shared: &Shared, at: u32) -> bool {
        self.sq.sges(at).iter().all(|sge| {
            let len = u64::from(sge.len);
            len == 0
                || shared.keys.local(self.init.pd, sge.lkey, sge.addr, len, Access::LOCAL_WRITE).is_some()
        })
    }

    /// Whether this packet asks for an ACK: the end of a message, the last packet that the window lets out, and
    /// one every now and then.
    #[inline]
    fn wants_ack(&self, last: bool) -> bool {
        let window = self.congestion.packets();
        let interval = (window / 4).clamp(1, ACK_REQ_INTERVAL);
        (last && !self.is_followed())
            || self.requester.since_ack_req + 1 >= interval
            || self.requester.in_flight() + 1 >= window
    }

    /// Whether another small message certainly leaves behind the one at the cursor, in this train or the next of this turn, and asks
    /// for the ACK of both. Where packets come one by one (AF_XDP), each that asks has an ACK of its own, which costs as
    /// much as the request did.
    fn is_followed(&self) -> bool {
        let req = &self.requester;
        let next = req.cursor.wrapping_add(1);
        let is_halted = req.halt.is_some_and(|(at, _)| at == next);
        if next == self.sq.tail
            || is_halted
            || self.state != QpState::Rts
            || !self.sq.are_small_from(req.cursor)
        {
            return false;
        }
        let next = self.sq.get(next);
        let has_credit = req.limit.is_none_or(|limit| next_message(req.ssn).diff(Psn::new(limit)) <= 0);
        (has_credit || !next.takes_credit())
            && matches!(next.op, SendOp::Send | SendOp::SendImm(_) | SendOp::Write(_) | SendOp::WriteImm(..))
            && !next.flags.contains(SendFlags::FENCE)
    }

    /// The cursor moves on behind a packet; `next` is the PSN that follows it.
    #[inline]
    fn after_packet(&mut self, shared: &mut Shared, now: Instant, next: Psn, ack_req: bool, last: bool) {
        if self.init.ty == QpType::Rc {
            self.retry.on_sent(now);
        }
        let req = &mut self.requester;
        let again = req.psn != req.max_psn;
        if again {
            shared.stats.retransmits += 1;
        } else {
            // Round trips are measured, flushes are not.
            if ack_req
                && self.retry.wants_sample()
                && !req.outstanding.iter().any(|part| part.flush.is_some())
            {
                self.retry.start_sample(next.sub(1), now);
            }
            req.max_psn = next;
        }
        req.since_ack_req = if ack_req { 0 } else { req.since_ack_req + 1 };
        req.psn = next;
        if last {
            req.cursor = req.cursor.wrapping_add(1);
        }
    }

    /// Moves the cursor to a PSN that was sent before (or is the next to be sent).
    pub(crate) fn seek(&mut self, psn: Psn) {
        let req = &mut self.requester;
        req.psn = psn;
        let mut at = self.sq.head;
        while at != req.fresh {
            let wqe = self.sq.get(at);
            if wqe.psns != 0 && psn.in_window(wqe.first_psn, wqe.psns) {
                break;
            }
            at = at.wrapping_add(1);
        }
        req.cursor = at;
    }
}

/// Messages are counted in 24 bits, and compared on that circle.
const fn next_message(ssn: u32) -> Psn {
    Psn::new(ssn.wrapping_add(1))
}

const fn part_len(part: &Outstanding) -> u32 {
    distance(part.first, part.last) + 1
}

/// Opcode and headers of a SEND or WRITE packet.
#[inline]
fn data_opcode(ty: QpType, wqe: &Wqe, first: bool, last: bool) -> (Opcode, Headers) {
    use Opcode as O;
    let reth = |to: RemoteAddr| reth::Repr { va: to.addr, rkey: to.rkey, dma_len: wqe.len };
    let rc = ty == QpType::Rc;
    let pick = |of_rc, of_uc| if rc { of_rc } else { of_uc };
    match (wqe.op, first, last) {
        (SendOp::Send, true, true) => (pick(O::RcSendOnly, O::UcSendOnly), Headers::None),
        (SendOp::Send, false, true) => (pick(O::RcSendLast, O::UcSendLast), Headers::None),
        (SendOp::SendImm(imm), true, true) => {
            (pick(O::RcSendOnlyImm, O::UcSendOnlyImm), Headers::Imm(imm_dt::Repr { imm }))
        }
        (SendOp::SendImm(imm), false, true) => {
            (pick(O::RcSendLastImm, O::UcSendLastImm), Headers::Imm(imm_dt::Repr { imm }))
        }
        (SendOp::SendInv(rkey), true, true) => (O::RcSendOnlyInv, Headers::Ieth(ieth::Repr { rkey })),
        (SendOp::SendInv(rkey), false, true) => (O::RcSendLastInv, Headers::Ieth(ieth::Repr { rkey })),
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_), true, false) => {
            (pick(O::RcSendFirst, O::UcSendFirst), Headers::None)
        }
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_), false, false) => {
            (pick(O::RcSendMiddle, O::UcSendMiddle), Headers::None)
        }
        (SendOp::Write(to), true, true) => (pick(O::RcWriteOnly, O::UcWriteOnly), Headers::Reth(reth(to))),
        (SendOp::WriteImm(to, imm), true, true) => {
            (pick(O::RcWriteOnlyImm, O::UcWriteOnlyImm), Headers::RethImm(reth(to), imm_dt::Repr { imm }))
        }
        (SendOp::Write(to) | SendOp::WriteImm(to, _), true, false) => {
            (pick(O::RcWriteFirst, O::UcWriteFirst), Headers::Reth(reth(to)))
        }
        (SendOp::Write(_) | SendOp::WriteImm(..), false, false) => {
            (pick(O::RcWriteMiddle, O::UcWriteMiddle), Headers::None)
        }
        (SendOp::Write(_), false, true) => (pick(O::RcWriteLast, O::UcWriteLast), Headers::None),
        (SendOp::WriteImm(_, imm), false, true) => {
            (pick(O::RcWriteLastImm, O::UcWriteLastImm), Headers::Imm(imm_dt::Repr { imm }))
        }
        (
            SendOp::Read(_)
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::Flush { .. }
            | SendOp::AtomicWrite(_)
            | SendOp::LocalInv(_)
            | SendOp::BindMw { .. },
            _,
            _,
        ) => unreachable!("not a SEND or WRITE"),
    }
}
