//! The device's edges to the network and to time.

use std::collections::VecDeque;
use std::ops::Range;

use remanence_wire::packet::{OVERHEAD_MAX, Packet};
use remanence_wire::{Gid, Psn, Qpn};

use crate::device::{Device, RxMeta, Shared, Transmit};
use crate::gsi::MAD_LEN;
use crate::memory::{FlushId, Memory};
use crate::qp::timer::Timers;
use crate::qp::{Qp, QpType, Silence, distance};
use crate::stats::DropReason;
use crate::time::Instant;
use crate::transmit::Batch;

/// The low bits of a flush id count; the high bits name the QP.
const FLUSH_BITS: u32 = 40;

/// Which QPs want to send, and when which want to be asked.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    ready: VecDeque<u32>,
    timers: Timers,
    flushes: u64,
}

impl Shared {
    /// Notes what a QP wants after something happened to it.
    #[inline]
    pub(crate) fn settle(&mut self, qp: &mut Qp) {
        if qp.wants_tx && !qp.queued {
            qp.queued = true;
            self.agenda.ready.push_back(qp.slot);
        }
        if let Some(deadline) = qp.retry.deadline() {
            self.agenda.timers.arm(qp.slot, &mut qp.timer, deadline);
        }
        if let Some(deadline) = qp.keepalive.deadline((qp.requester.max_psn, qp.responder.epsn)) {
            self.agenda.timers.arm(qp.slot, &mut qp.timer, deadline);
        }
        if let Some(deadline) = qp.responder.ack_deadline() {
            self.agenda.timers.arm(qp.slot, &mut qp.timer, deadline);
        }
    }

    /// A QP is destroyed.
    pub(crate) fn forget(&mut self, qp: &mut Qp) {
        self.agenda.timers.disarm(qp.slot, &mut qp.timer);
        if qp.queued {
            self.agenda.ready.retain(|&slot| slot != qp.slot);
        }
    }

    pub(crate) const fn flush_id(&mut self, slot: u32) -> FlushId {
        self.agenda.flushes = (self.agenda.flushes + 1) & ((1 << FLUSH_BITS) - 1);
        FlushId((slot as u64) << FLUSH_BITS | self.agenda.flushes)
    }
}

impl Device {
    /// Takes one received UDP payload, BTH to ICRC.
    pub fn handle_datagram(&mut self, now: Instant, rx: &RxMeta, payload: &[u8], mem: &mut impl Memory) {
        self.shared.stats.rx_packets += 1;
        self.shared.stats.rx_bytes += payload.len() as u64;
        if let Err(reason) = self.dispatch(now, rx, payload, mem) {
            self.shared.stats.drop(reason);
        }
    }

    #[inline]
    fn dispatch(
        &mut self,
        now: Instant,
        rx: &RxMeta,
        payload: &[u8],
        mem: &mut impl Memory,
    ) -> Result<(), DropReason> {
        let packet = Packet::parse(payload).map_err(|_| DropReason::Malformed)?;
        let Self { shared, qps, gsi, groups, .. } = self;
        let qpn = packet.dest_qp();
        // IBA Vol 1, 9.6.1.2: the QP number of multicast goes with a multicast address, and with no other.
        if rx.dst.is_multicast() != (qpn == Qpn::MULTICAST) || rx.src.is_multicast() {
            return Err(DropReason::NoSuchQp);
        }
        if let Some(qp) = qps.get_mut(qpn) {
            let result = qp.receive(shared, now, rx, &packet, mem);
            shared.settle(qp);
            return result;
        }
        match qpn {
            Qpn::GSI => gsi.receive(&mut shared.idents, rx, &packet),
            Qpn::MULTICAST => {
                let group = Gid::from_ip(rx.dst);
                let mut result = Err(DropReason::NoSuchQp);
                for &(_, member) in groups.iter().filter(|(mgid, _)| *mgid == group) {
                    let Some(qp) = qps.get_mut(member) else { continue };
                    result = qp.receive(shared, now, rx, &packet, mem);
                    shared.settle(qp);
                }
                result
            }
            _ => Err(DropReason::NoSuchQp),
        }
    }

    /// Writes the next packets into `buf`, up to `max_segments` of them, all from one QP to one peer. `None`:
    /// nothing to send now. QPs take turns.
    ///
    /// # Panics
    /// When `buf` cannot hold one packet of the device's MTU with its headers.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        max_segments: usize,
        mem: &mut impl Memory,
    ) -> Option<Transmit> {
        let Self { shared, qps, gsi, .. } = self;
        let largest = (shared.config.mtu.bytes() + OVERHEAD_MAX).max(MAD_LEN + OVERHEAD_MAX);
        assert!(buf.len() >= largest, "a transmit buffer of {} bytes; {largest} are needed", buf.len());
        if let Some(transmit) = gsi.transmit(shared, buf) {
            shared.stats.tx_packets += 1;
            shared.stats.tx_bytes += transmit.len as u64;
            return Some(transmit);
        }
        if let Some(parting) = shared.partings.pop_front() {
            let transmit = parting.transmit(shared, buf);
            shared.stats.tx_packets += 1;
            shared.stats.tx_bytes += transmit.len as u64;
            return Some(transmit);
        }
        while let Some(slot) = shared.agenda.ready.pop_front() {
            let Some(qp) = qps.at(slot) else { continue };
            qp.queued = false;
            let mut batch = Batch::new(buf, max_segments, shared.config.icrc, shared.ident);
            let transmit = qp.transmit(shared, now, &mut batch, mem);
            let count = batch.count();
            shared.settle(qp);
            if let Some(transmit) = transmit {
                shared.stats.tx_packets += count as u64;
                shared.stats.tx_bytes += transmit.len as u64;
                return Some(transmit);
            }
        }
        None
    }

    /// The IPv4 identification with which the first packet of the next [`poll_transmit`](Self::poll_transmit) leaves; those
    /// of a batch follow it one by one. 0 until something else is said. The ICRC covers it.
    #[inline]
    pub const fn set_ident(&mut self, first: u16) {
        self.shared.ident = first;
    }

    /// When to call [`Device::handle_timeout`] at the latest; earlier does no harm.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.shared.agenda.timers.next()
    }

    /// Does what is due. Poll for packets and deadlines again.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Self { shared, qps, .. } = self;
        while let Some(slot) = shared.agenda.timers.pop(now) {
            let qp = qps.at(slot).expect("a destroyed QP has no timer");
            qp.timer.fired();
            qp.handle_timeout(shared, now);
            shared.settle(qp);
        }
    }

    /// Nobody will come back to this device: what is owed an ACK gets it with the next packets, and what was posted leaves;
    /// neither waits for company.
    pub fn hurry_all(&mut self) {
        let Self { shared, qps, .. } = self;
        for qp in qps.iter_mut() {
            if qp.responder.ack_deadline().is_some() {
                qp.responder.riding.hurry();
                qp.wants_tx = true;
            }
            qp.let_leave();
            shared.settle(qp);
        }
    }

    /// Tells the outcome of a flush that [`Memory::flush`] said was pending; `Err` if the medium failed.
    /// Unknown and outdated ids are ignored.
    pub fn flush_done(&mut self, _now: Instant, id: FlushId, result: Result<(), ()>, mem: &mut impl Memory) {
        let Self { shared, qps, .. } = self;
        if let Some(qp) = qps.at((id.0 >> FLUSH_BITS) as u32) {
            qp.finish_flush(shared, id, result, mem);
            shared.settle(qp);
        }
    }

    /// Watches over the peer of an RC QP from now on, until the QP leaves RTS: [`poll_silence`](Self::poll_silence).
    pub fn watch_peer(&mut self, now: Instant, qpn: Qpn) {
        let Self { shared, qps, .. } = self;
        if let Some(qp) = qps.get_mut(qpn).filter(|qp| qp.init.ty == QpType::Rc) {
            qp.keepalive.watch(now);
            shared.settle(qp);
        }
    }

    /// The next news of a watched peer that does not answer. After [`Silence::Lost`] it is no longer watched.
    pub fn poll_silence(&mut self) -> Option<(Qpn, Silence)> {
        self.shared.silences.pop_front()
    }

    /// Whether `qpn` has sent a request with this PSN that is not acknowledged, or the last one that is, which a question
    /// whether the peer is there repeats. Whoever can name it has most likely seen the packet.
    #[must_use]
    pub fn is_asking(&self, qpn: Qpn, psn: Psn) -> bool {
        self.qps.get(qpn).is_some_and(|qp| {
            let first = qp.requester.una.sub(1);
            distance(first, psn) < distance(first, qp.requester.max_psn)
        })
    }

    /// Gives the device more QP numbers, when a host hands them out in blocks.
    pub fn add_qpns(&mut self, qpns: Range<u32>) {
        self.qps.add_range(qpns);
    }
}
