//! Completion queues: rings of work completions, with one-shot notification and overflow.
//!
//! Read first: IBA Vol 1, 11.4.2 (poll and request notification) and 11.6.3 (CQ errors).

use std::collections::VecDeque;

use remanence_wire::Qpn;

use crate::async_event::AsyncEvent;
use crate::device::{Device, Shared};
use crate::error::{CqError, VerbError};
use crate::wc::{Wc, WcStatus};

/// Names a completion queue of this device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CqHandle(pub u32);

/// Which completion fires the next notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Next,
    /// A solicited one, or an error.
    Solicited,
}

#[derive(Debug)]
pub(crate) struct Cq {
    /// Grows up to `capacity`, so that a CQ sized for the worst case costs what it holds.
    ring: VecDeque<Wc>,
    capacity: u32,
    armed: Armed,
    overflowed: bool,
    /// Queue pairs (each queue counted) that complete here.
    pub(crate) users: u32,
}

/// The CQ had no room; the completion is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overflowed;

impl Shared {
    /// Writes a completion, fires the notification that it satisfies.
    pub(crate) fn complete(&mut self, handle: CqHandle, wc: Wc) -> Result<(), Overflowed> {
        let cq = self.cqs.get_mut(handle.0).expect("a CQ outlives its queue pairs");
        if cq.ring.len() >= cq.capacity as usize {
            if !cq.overflowed {
                cq.overflowed = true;
                self.async_events.push_back(AsyncEvent::CqError(handle));
            }
            return Err(Overflowed);
        }
        let fires = match cq.armed {
            Armed::No => false,
            Armed::Next => true,
            Armed::Solicited => wc.solicited || wc.status != WcStatus::Success,
        };
        cq.ring.push_back(wc);
        self.stats.completions += 1;
        if fires {
            cq.armed = Armed::No;
            self.cq_events.push_back(handle);
        }
        Ok(())
    }

    /// Drops the completions of a QP that nobody took yet.
    pub(crate) fn forget_completions(&mut self, handle: CqHandle, qpn: Qpn) {
        if let Some(cq) = self.cqs.get_mut(handle.0) {
            cq.ring.retain(|wc| wc.qpn != qpn);
        }
    }
}

impl Device {
    /// Creates a completion queue of at least `capacity` entries (1 or more).
    pub fn create_cq(&mut self, capacity: u32) -> Result<CqHandle, VerbError> {
        self.check_cq_capacity(capacity)?;
        let cq = Cq { ring: VecDeque::new(), capacity, armed: Armed::No, overflowed: false, users: 0 };
        self.shared.cqs.insert(cq).map(CqHandle).ok_or(VerbError::NoRoom("CQ"))
    }

    /// Changes the capacity, if what is in the queue fits.
    pub fn resize_cq(&mut self, cq: CqHandle, capacity: u32) -> Result<(), VerbError> {
        self.check_cq_capacity(capacity)?;
        let cq = self.shared.cqs.get_mut(cq.0).ok_or(VerbError::NoSuchObject("CQ"))?;
        if cq.ring.len() > capacity as usize {
            return Err(VerbError::InvalidArgument("more completions are waiting than the new capacity"));
        }
        cq.capacity = capacity;
        Ok(())
    }

    /// Destroys a CQ that no QP uses. Its pending notification vanishes.
    pub fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), VerbError> {
        match self.shared.cqs.get(cq.0) {
            None => Err(VerbError::NoSuchObject("CQ")),
            Some(Cq { users: 0, .. }) => {
                self.shared.cqs.remove(cq.0);
                self.shared.cq_events.retain(|&event| event != cq);
                Ok(())
            }
            Some(_) => Err(VerbError::Busy("CQ")),
        }
    }

    /// Asks for one notification at the next completion, or only at the next solicited or failed one.
    /// Completions already in the queue do not count: poll after arming, as with any RNIC.
    pub fn req_notify_cq(&mut self, cq: CqHandle, solicited_only: bool) -> Result<(), VerbError> {
        let cq = self.shared.cqs.get_mut(cq.0).ok_or(VerbError::NoSuchObject("CQ"))?;
        // A request for any completion is not weakened by a later one for solicited ones.
        cq.armed = match (cq.armed, solicited_only) {
            (Armed::Next, _) | (_, false) => Armed::Next,
            (Armed::No | Armed::Solicited, true) => Armed::Solicited,
        };
        Ok(())
    }

    /// Moves up to `max` completions, oldest first, to the end of `out`; says how many. After an overflow the
    /// completions before it come first, then [`CqError::Overflow`] for ever.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqHandle, out: &mut impl Extend<Wc>, max: usize) -> Result<usize, CqError> {
        let cq = self.shared.cqs.get_mut(cq.0).ok_or(CqError::NoSuchCq)?;
        let n = cq.ring.len().min(max);
        if n == 0 && cq.overflowed {
            return Err(CqError::Overflow);
        }
        out.extend(cq.ring.drain(..n));
        Ok(n)
    }

    /// Takes the oldest completion.
    pub fn pop_cq(&mut self, cq: CqHandle) -> Option<Wc> {
        self.shared.cqs.get_mut(cq.0)?.ring.pop_front()
    }

    /// The next CQ whose notification fired.
    pub fn poll_cq_event(&mut self) -> Option<CqHandle> {
        self.shared.cq_events.pop_front()
    }

    fn check_cq_capacity(&self, capacity: u32) -> Result<(), VerbError> {
        if capacity == 0 || capacity > self.shared.config.max_cqe {
            return Err(VerbError::InvalidArgument("CQ capacity"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use remanence_wire::Qpn;

    use super::*;
    use crate::device::Config;
    use crate::wc::WcOpcode;

    fn wc(wr_id: u64, status: WcStatus, solicited: bool) -> Wc {
        Wc { wr_id, status, solicited, ..Wc::new(WcOpcode::Recv, Qpn::new(17)) }
    }

    #[test]
    fn a_notification_fires_once_for_what_was_asked() {
        let mut device = Device::new(Config::default());
        let cq = device.create_cq(16).unwrap();
        device.shared.complete(cq, wc(0, WcStatus::Success, true)).unwrap();
        assert_eq!(device.poll_cq_event(), None);

        device.req_notify_cq(cq, true).unwrap();
        device.shared.complete(cq, wc(1, WcStatus::Success, false)).unwrap();
        assert_eq!(device.poll_cq_event(), None);
        device.shared.complete(cq, wc(2, WcStatus::Success, true)).unwrap();
        device.shared.complete(cq, wc(3, WcStatus::Success, true)).unwrap();
        assert_eq!(device.poll_cq_event(), Some(cq));
        assert_eq!(device.poll_cq_event(), None);

        device.req_notify_cq(cq, true).unwrap();
        device.shared.complete(cq, wc(4, WcStatus::WrFlushErr, false)).unwrap();
        assert_eq!(device.poll_cq_event(), Some(cq));

        device.req_notify_cq(cq, false).unwrap();
        device.req_notify_cq(cq, true).unwrap();
        device.shared.complete(cq, wc(5, WcStatus::Success, false)).unwrap();
        assert_eq!(device.poll_cq_event(), Some(cq));
        let mut out = Vec::new();
        assert_eq!(device.poll_cq(cq, &mut out, 4), Ok(4));
        assert_eq!(device.poll_cq(cq, &mut out, 4), Ok(2));
        assert!(out.iter().map(|wc| wc.wr_id).eq(0..6));
    }

    #[test]
    fn an_overflow_is_told_after_what_came_before_it() {
        let mut device = Device::new(Config::default());
        let cq = device.create_cq(1).unwrap();
        device.shared.complete(cq, wc(0, WcStatus::Success, true)).unwrap();
        assert_eq!(device.shared.complete(cq, wc(1, WcStatus::Success, true)), Err(Overflowed));
        assert_eq!(device.shared.complete(cq, wc(2, WcStatus::Success, true)), Err(Overflowed));
        assert_eq!(device.poll_async_event(), Some(AsyncEvent::CqError(cq)));
        assert_eq!(device.poll_async_event(), None);
        let mut out = Vec::new();
        assert_eq!(device.poll_cq(cq, &mut out, 4), Ok(1));
        assert_eq!(device.poll_cq(cq, &mut out, 4), Err(CqError::Overflow));
    }
}
