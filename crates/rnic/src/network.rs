//! The device's edges to the network and to time.

use remanence_wire::Gid;

use crate::ah::AhAttr;
use crate::device::{Device, RxMeta, Transmit};
use crate::error::VerbError;
use crate::memory::{FlushId, Memory};
use crate::stats::DropReason;
use crate::time::Instant;

/// A MAD that came to QP 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedMad {
    /// The sender.
    pub from: Gid,
    /// Our address that it was sent to.
    pub to: Gid,
    /// The sender's UDP source port.
    pub src_port: u16,
    /// The MAD.
    pub mad: Box<[u8; 256]>,
}

impl Device {
    /// Takes one received UDP payload, BTH to ICRC.
    pub fn handle_datagram(&mut self, _now: Instant, _rx: &RxMeta, payload: &[u8], _mem: &mut impl Memory) {
        self.shared.stats.rx_packets += 1;
        self.shared.stats.rx_bytes += payload.len() as u64;
        self.shared.stats.drop(DropReason::NoSuchQp);
    }

    /// Writes the next packets into `buf`, up to `max_segments` of them, all from one QP to its peer. The buffer
    /// must hold at least one packet of the largest path MTU with its headers. `None`: nothing to send now.
    pub fn poll_transmit(
        &mut self,
        _now: Instant,
        _buf: &mut [u8],
        _max_segments: usize,
        _mem: &mut impl Memory,
    ) -> Option<Transmit> {
        None
    }

    /// When to call [`Device::handle_timeout`] at the latest; earlier does no harm.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does what is due. Poll for packets and deadlines again.
    pub fn handle_timeout(&mut self, _now: Instant) {}

    /// Tells the outcome of a flush that [`Memory::flush`] said was pending; `Err` if the medium failed.
    /// Unknown and outdated ids are ignored.
    pub fn flush_done(
        &mut self,
        _now: Instant,
        _id: FlushId,
        _result: Result<(), ()>,
        _mem: &mut impl Memory,
    ) {
    }

    /// Sends a MAD from QP 1 to the peer's QP 1, unreliably.
    pub fn send_mad(&mut self, to: &AhAttr, _mad: &[u8; 256]) -> Result<(), VerbError> {
        self.shared.resolve(to).map(|_| ())
    }

    /// The next MAD that came to QP 1.
    pub fn poll_mad(&mut self) -> Option<ReceivedMad> {
        None
    }
}
