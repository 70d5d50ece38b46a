//! Asynchronous events (IBA Vol 1, 11.6.3): what happens to an object outside any work request.

use remanence_wire::Qpn;

use crate::cq::CqHandle;
use crate::device::Device;
use crate::srq::SrqHandle;

/// An affiliated asynchronous event or error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AsyncEvent {
    /// The first packet arrived on a QP in RTR (`IBV_EVENT_COMM_EST`).
    CommEst(Qpn),
    /// A QP in SQD has finished what was outstanding (`IBV_EVENT_SQ_DRAINED`).
    SqDrained(Qpn),
    /// A QP in the error state that uses an SRQ will take no more WQEs from it
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached(Qpn),
    /// The responder refused a malformed or unsupported request (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError(Qpn),
    /// The responder refused an access (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError(Qpn),
    /// The QP is in the error state for a reason that no completion tells (`IBV_EVENT_QP_FATAL`).
    QpFatal(Qpn),
    /// A CQ overflowed (`IBV_EVENT_CQ_ERR`).
    CqError(CqHandle),
    /// An SRQ holds fewer WQEs than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached(SrqHandle),
}

impl Device {
    /// The next asynchronous event.
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.shared.async_events.pop_front()
    }
}
