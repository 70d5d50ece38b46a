//! Shared receive queues.
//!
//! Read first: IBA Vol 1, 10.2.9 and 11.2.3 (verbs), 11.6.3 (limit event).

use crate::async_event::AsyncEvent;
use crate::device::{Device, Shared};
use crate::error::{PostError, VerbError};
use crate::pd::PdHandle;
use crate::wqe::RecvQueue;
use crate::wr::RecvWr;

/// Names a shared receive queue of this device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SrqHandle(pub u32);

/// What an SRQ is created with, and what a query answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// WQEs that it holds.
    pub max_wr: u32,
    /// Scatter/gather entries of each.
    pub max_sge: u32,
    /// An event is raised, once, when fewer WQEs than this are left; 0 means never.
    pub limit: u32,
}

#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) pd: PdHandle,
    pub(crate) queue: RecvQueue,
    pub(crate) limit: u32,
    pub(crate) users: u32,
}

impl Shared {
    /// Called when a WQE was taken: raises the limit event, which disarms itself.
    pub(crate) fn check_srq_limit(&mut self, handle: SrqHandle) {
        let srq = self.srqs.get_mut(handle.0).expect("an SRQ outlives its queue pairs");
        if srq.queue.len() < srq.limit {
            srq.limit = 0;
            self.async_events.push_back(AsyncEvent::SrqLimitReached(handle));
        }
    }
}

impl Device {
    /// Creates a shared receive queue.
    pub fn create_srq(&mut self, pd: PdHandle, attr: &SrqAttr) -> Result<SrqHandle, VerbError> {
        self.check_pd(pd)?;
        let config = &self.shared.config;
        if attr.max_wr == 0 || attr.max_wr > config.max_srq_wr || attr.max_sge > config.max_sge {
            return Err(VerbError::InvalidArgument("SRQ size"));
        }
        if attr.limit > attr.max_wr {
            return Err(VerbError::InvalidArgument("SRQ limit above its size"));
        }
        let srq = Srq { pd, queue: RecvQueue::new(attr.max_wr, attr.max_sge), limit: attr.limit, users: 0 };
        let handle = self.shared.srqs.insert(srq).ok_or(VerbError::NoRoom("SRQ"))?;
        self.use_pd(pd);
        Ok(SrqHandle(handle))
    }

    /// Changes the size, the limit, or both.
    pub fn modify_srq(
        &mut self,
        srq: SrqHandle,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<(), VerbError> {
        let max = self.shared.config.max_srq_wr;
        let srq = self.shared.srqs.get_mut(srq.0).ok_or(VerbError::NoSuchObject("SRQ"))?;
        let size = max_wr.unwrap_or(srq.queue.capacity());
        if size == 0 || size > max || size < srq.queue.len() {
            return Err(VerbError::InvalidArgument("SRQ size"));
        }
        if limit.unwrap_or(srq.limit) > size {
            return Err(VerbError::InvalidArgument("SRQ limit above its size"));
        }
        srq.queue.set_capacity(size);
        srq.limit = limit.unwrap_or(srq.limit);
        Ok(())
    }

    /// Size and limit; a limit of 0 after one was set says that the event was raised.
    pub fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttr, VerbError> {
        let srq = self.shared.srqs.get(srq.0).ok_or(VerbError::NoSuchObject("SRQ"))?;
        Ok(SrqAttr { max_wr: srq.queue.capacity(), max_sge: srq.queue.max_sge(), limit: srq.limit })
    }

    /// Destroys an SRQ that no QP uses, with the WQEs in it.
    pub fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), VerbError> {
        match self.shared.srqs.get(srq.0) {
            None => Err(VerbError::NoSuchObject("SRQ")),
            Some(&Srq { users: 0, pd, .. }) => {
                self.shared.srqs.remove(srq.0);
                self.release_pd(pd);
                Ok(())
            }
            Some(_) => Err(VerbError::Busy("SRQ")),
        }
    }

    /// Posts a receive to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.srqs.get_mut(srq.0).ok_or(PostError::NoSuchQueue)?.queue.post(wr)
    }
}
