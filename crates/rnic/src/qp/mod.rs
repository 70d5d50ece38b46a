//! Queue pairs: their attributes and states, and the requester, completer and responder that work them.
//!
//! A QP is a requester (turns WQEs into request packets), a completer (turns responses into completions), and a
//! responder (executes the peer's requests). They share the connection's identity and path, and nothing else.
//!
//! Read first: IBA Vol 1, 9.7 (reliable service) and 10.2, 10.3 (QPs and their states).

pub(crate) mod attr;
mod completer;
mod congestion;
pub(crate) mod datagram;
mod keepalive;
mod parting;
pub(crate) mod path;
mod receive;
mod requester;
mod resource;
mod respond;
mod responder;
mod retry;
mod riding;
pub(crate) mod state;
mod table;
pub(crate) mod timer;
mod verbs;

use remanence_wire::opcode::Transport;
use remanence_wire::packet::{Headers, Packet, Repr, packet_len};
use remanence_wire::{Mtu, Opcode, Psn, Qpn, bth, icrc};

use crate::access::Access;
use crate::async_event::AsyncEvent;
use crate::device::{RxMeta, Shared, Transmit};
use crate::idents::Idents;
use crate::memory::Memory;
use crate::pd::PdHandle;
use crate::stats::DropReason;
use crate::time::Instant;
use crate::transmit::Batch;
use crate::wc::{Wc, WcOpcode, WcStatus};
use crate::wqe::{RecvQueue, SendQueue};
pub use attr::{QpAttr, QpCaps, QpInfo, QpInit, QpType};
use congestion::Congestion;
use keepalive::Keepalive;
pub use keepalive::Silence;
pub(crate) use parting::Parting;
use path::Path;
use receive::Receiving;
use requester::Requester;
use respond::Full;
use responder::Responder;
use retry::Retry;
pub use state::QpState;
pub(crate) use table::QpTable;
use timer::TimerEntry;

/// CNPs to one peer are at least this far apart (Annex A17 leaves the rate open; DCQCN uses 50 us).
const CNP_INTERVAL_NS: u64 = 50_000;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    /// Where the table keeps it; names it in timers and the ready list.
    pub(crate) slot: u32,
    pub(crate) state: QpState,
    /// On the ready list.
    pub(crate) queued: bool,
    /// There may be something to send.
    pub(crate) wants_tx: bool,
    /// A completion was lost to an overflow, and the QP must not go on.
    pub(crate) cq_lost: bool,
    /// In SQD, and work that was begun is not finished.
    pub(crate) draining: bool,
    /// The first packet has arrived.
    comm_est: bool,
    cnp_due: bool,
    cnp_at: Option<Instant>,
    pub(crate) mtu: Mtu,
    pub(crate) dest: Qpn,
    pub(crate) access: Access,
    pub(crate) init: QpInit,
    /// The PD of its receive WQEs: the SRQ's, if it has one.
    recv_pd: PdHandle,
    /// As the consumer set them, for queries.
    pub(crate) attr: QpAttr,
    pub(crate) path: Option<Box<Path>>,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    pub(crate) requester: Requester,
    pub(crate) congestion: Congestion,
    pub(crate) retry: Retry,
    pub(crate) keepalive: Keepalive,
    pub(crate) responder: Responder,
    pub(crate) receiving: Receiving,
    pub(crate) timer: TimerEntry,
}

/// How many steps forward on the circle of PSNs lead from one to the other.
#[inline]
pub(crate) const fn distance(from: Psn, to: Psn) -> u32 {
    Psn::new(to.value().wrapping_sub(from.value())).value()
}

/// How many packets carry `len` bytes; a message of nothing takes one.
#[inline]
pub(crate) const fn packets(len: u32, mtu: Mtu) -> u32 {
    let n = len.div_ceil(mtu.bytes() as u32);
    if n == 0 { 1 } else { n }
}

impl Qp {
    /// Takes a packet that names this QP.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        rx: &RxMeta,
        packet: &Packet<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let transport = packet.info().transport;
        match (self.init.ty, transport) {
            (QpType::Rc, Transport::Rc | Transport::Cnp) | (QpType::Uc, Transport::Uc | Transport::Cnp) => {}
            (QpType::Ud, Transport::Ud) => return self.handle_datagram(shared, rx, packet, mem),
            (
                QpType::Rc | QpType::Uc | QpType::Ud,
                Transport::Rc | Transport::Uc | Transport::Ud | Transport::Cnp,
            ) => {
                return Err(DropReason::WrongState);
            }
        }
        if !self.state.receives() && self.responder.refused.is_none() {
            return Err(DropReason::WrongState);
        }
        let path = self.path.as_deref_mut().ok_or(DropReason::WrongState)?;
        if !path.matches(rx) {
            return Err(DropReason::WrongAddress);
        }
        if shared.config.icrc {
            check_icrc(&mut shared.idents, path.rx_flow(rx.src_port), rx, packet.bytes())?;
        }
        let bth = packet.bth();
        check_pkey(&bth)?;
        self.keepalive.heard(now);
        if rx.congestion_experienced() {
            self.on_congestion_mark(shared, now, packet);
        }
        if transport == Transport::Cnp {
            shared.stats.rx_cnp += 1;
            self.congestion.on_cnp(now, self.retry.rtt_ns());
            return Ok(());
        }
        let result = if packet.info().is_response() {
            if matches!(self.state, QpState::Rts | QpState::Sqd) {
                self.handle_response(shared, now, packet, &bth, mem)
            } else {
                Err(DropReason::WrongState)
            }
        } else {
            self.handle_request(shared, now, packet, &bth, mem)
        };
        self.settle_cq(shared);
        result
    }

    /// A packet met congestion on its way: the peer is told, and if it answers our READ, we ask for less.
    fn on_congestion_mark(&mut self, shared: &mut Shared, now: Instant, packet: &Packet<'_>) {
        shared.stats.rx_ecn_marked += 1;
        if packet.info().transport == Transport::Cnp {
            return;
        }
        if packet.info().is_response() {
            self.congestion.on_cnp(now, self.retry.rtt_ns());
        }
        let quiet = |at: Instant| now.as_nanos().saturating_sub(at.as_nanos()) < CNP_INTERVAL_NS;
        if !self.cnp_at.is_some_and(quiet) {
            self.cnp_at = Some(now);
            self.cnp_due = true;
            self.wants_tx = true;
        }
    }

    /// Writes what the QP has to send into the batch; says where it goes.
    pub(crate) fn transmit(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        mem: &mut impl Memory,
    ) -> Option<Transmit> {
        self.wants_tx = false;
        let result = if self.init.ty == QpType::Ud {
            return self.transmit_datagrams(shared, batch, mem);
        } else {
            self.transmit_connected(shared, now, batch, mem)
        };
        // A full batch is sent, and then there is more.
        self.wants_tx |= result.is_err() && !batch.is_empty();
        self.settle_cq(shared);
        if batch.is_empty() {
            return None;
        }
        let path = self.path.as_deref().expect("a QP that sends has a path");
        Some(path.transmit(batch.len(), batch.segment()))
    }

    fn transmit_connected(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        batch: &mut Batch<'_>,
        mem: &mut impl Memory,
    ) -> Result<(), Full> {
        if self.path.is_none() {
            return Ok(());
        }
        self.transmit_cnp(shared, batch)?;
        if self.init.ty == QpType::Rc {
            self.transmit_responses(shared, now, batch, mem)?;
        }
        let answers = self.responder.riding.is_silent() && self.sends_only_writes();
        let reached = self.requester.max_psn;
        let sent = self.transmit_requests(shared, now, batch, mem);
        if self.init.ty != QpType::Rc || self.requester.max_psn == reached {
            return sent;
        }
        if answers && sent.is_err() && self.rest_leaves_now() {
            // An ACK between two trains of an answer sends the peer's consumer away from its CQ before it has the answer.
            return sent;
        }
        // Behind them, as the shorter packet: so all of it is one train.
        sent.and(self.ride_along(shared, now, batch, answers))
    }

    fn transmit_cnp(&mut self, shared: &mut Shared, batch: &mut Batch<'_>) -> Result<(), Full> {
        if !self.cnp_due {
            return Ok(());
        }
        if !batch.admits(packet_len(Opcode::Cnp.info().header_len.into(), 0)) {
            return Err(Full);
        }
        let bth = bth::Repr { becn: true, ..bth::Repr::new(Opcode::Cnp, self.dest, Psn::new(0)) };
        let path = self.path.as_deref().expect("checked by the caller");
        let repr = Repr { bth, headers: Headers::Cnp };
        batch.push(&path.flow, &repr, 0, |_| Ok::<(), ()>(())).expect("no payload, nothing to fail");
        self.cnp_due = false;
        shared.stats.tx_cnp += 1;
        Ok(())
    }

    /// Takes the QP to the error state: everything posted completes as flushed (10.3.1).
    pub(crate) fn enter_error(&mut self, shared: &mut Shared) {
        self.state = QpState::Err;
        self.keepalive.stop();
        shared.qp_changes += 1;
        self.flush_sends(shared);
        self.flush_receives(shared);
        if self.init.srq.is_some() {
            shared.async_events.push_back(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    /// Completes all send WQEs as flushed, and forgets what is in flight.
    pub(crate) fn flush_sends(&mut self, shared: &mut Shared) {
        while self.sq.len() != 0 {
            self.complete_head(shared, WcStatus::WrFlushErr);
        }
        self.requester.reset(self.requester.max_psn, self.sq.tail);
        self.retry = Retry::default();
    }

    pub(crate) fn flush_receives(&mut self, shared: &mut Shared) {
        self.fail_receive(shared, WcStatus::WrFlushErr);
        while let Some(wr_id) = self.rq.pop_wr_id() {
            let wc = Wc { wr_id, status: WcStatus::WrFlushErr, ..Wc::new(WcOpcode::Recv, self.qpn) };
            if shared.complete(self.init.recv_cq, wc).is_err() {
                self.cq_lost = true;
            }
        }
    }

    /// A QP whose completion was lost goes to the error state (11.6.3).
    fn settle_cq(&mut self, shared: &mut Shared) {
        if std::mem::take(&mut self.cq_lost) && self.state != QpState::Err {
            self.responder.silence();
            self.enter_error(shared);
            self.cq_lost = false;
            shared.async_events.push_back(AsyncEvent::QpFatal(self.qpn));
        }
    }

    /// Panics if the QP's books do not balance.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn audit(&self) {
        let (sq, req) = (&self.sq, &self.requester);
        let from_head = |at: u32| at.wrapping_sub(sq.head);
        assert!(from_head(req.fresh) <= sq.len(), "fresh is between head and tail");
        assert!(from_head(req.cursor) <= from_head(req.fresh), "the cursor is not beyond what was started");
        let (sent, reached) = (distance(req.una, req.max_psn), distance(req.una, req.psn));
        assert!(
            reached <= sent && sent < 1 << 23,
            "una {:?}, psn {:?}, max {:?}",
            req.una,
            req.psn,
            req.max_psn
        );
        let busy = (from_head(req.fresh) != 0 || sent != 0) && self.init.ty == QpType::Rc;
        let started =
            (0..from_head(req.fresh)).any(|n| sq.get(sq.head.wrapping_add(n)).psns != 0 && sent != 0);
        assert_eq!(busy && sent != 0, started, "what is in flight belongs to a WQE");
        assert!(!started || self.retry.deadline().is_some(), "what is in flight has a deadline");
        assert!(req.outstanding.len() <= usize::from(self.attr.max_rd_atomic.unwrap_or(0)));
        for part in &req.outstanding {
            let within = distance(req.una, part.last);
            assert!(within < sent, "an outstanding request is not answered yet");
        }
        self.responder.resources.audit();
    }

    /// Bytes that the QP takes beside its queues.
    pub(crate) fn footprint(&self) -> usize {
        size_of::<Self>()
            + self.path.as_ref().map_or(0, |_| size_of::<Path>())
            + self.responder.resources.heap_bytes()
            + self.requester.outstanding.capacity() * size_of::<requester::Outstanding>()
            + self.receiving.wqe.sges.capacity() * size_of::<crate::wr::Sge>()
    }
}

/// Checks the ICRC.
#[inline]
pub(crate) fn check_icrc(
    idents: &mut Idents,
    flow: &icrc::Flow,
    rx: &RxMeta,
    payload: &[u8],
) -> Result<(), DropReason> {
    idents.check(flow, rx, payload).map(drop).map_err(|_| DropReason::BadIcrc)
}

/// RoCE has the default partition only; a limited member may talk to a full one (10.9.3).
#[inline]
pub(crate) fn check_pkey(bth: &bth::Repr) -> Result<(), DropReason> {
    if bth.pkey.0 | 0x8000 == 0xffff { Ok(()) } else { Err(DropReason::BadPkey) }
}
