//! For work that is done beside the engine: a live device may carry out an operation on memory that both sides map
//! with no packet at all. It must then know what the engine knows, and keep the engine's order of completions.

use remanence_wire::{Lkey, Qpn};

use crate::access::Access;
use crate::cq::CqHandle;
use crate::device::Device;
use crate::memory::Span;
use crate::pd::PdHandle;
use crate::qp::QpState;
use crate::wc::Wc;

/// A live MR, as its lkey names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalMr {
    /// The bytes that the MR covers.
    pub span: Span,
    /// Virtual address of the first byte.
    pub base: u64,
    /// What the MR's registration allows.
    pub access: Access,
}

impl Device {
    /// Grows whenever any QP changes its state or is destroyed, for whatever reason.
    #[must_use]
    pub const fn qp_changes(&self) -> u64 {
        self.shared.qp_changes
    }

    /// The QP is in RTS, and all that was posted to its send queue has completed.
    #[must_use]
    pub fn send_queue_is_idle(&self, qpn: Qpn) -> bool {
        self.qps.get(qpn).is_some_and(|qp| qp.state == QpState::Rts && qp.sq.len() == 0 && !qp.cq_lost)
    }

    /// Puts the completion of an operation that was carried out beside the engine into a CQ, as if the engine had
    /// done it.
    pub fn complete_beside(&mut self, cq: CqHandle, wc: Wc) {
        if self.shared.cqs.get(cq.0).is_some() {
            // An overflow is told by the CQ itself.
            let _ = self.shared.complete(cq, wc);
        }
    }

    /// The MR that an lkey names, if it belongs to the domain.
    #[must_use]
    pub fn local_mr(&self, pd: PdHandle, lkey: Lkey) -> Option<LocalMr> {
        let mr = self.shared.keys.mr(self.shared.keys.find_mr(lkey.0)?)?;
        let span = Span { region: mr.place.region, offset: mr.place.offset, len: mr.len };
        (mr.pd == pd).then_some(LocalMr { span, base: mr.base, access: mr.access })
    }
}
