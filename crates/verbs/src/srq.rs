//! Shared receive queues.

use std::sync::Arc;

use remanence_rnic::RecvWr;
use remanence_rnic::{PostError, VerbError};
use remanence_rnic::{SrqAttr, SrqHandle};

use crate::driver::Object;
use crate::error::Error;
use crate::pd::Pd;

#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) raw: SrqHandle,
    pd: Pd,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let Some(mut driver) = self.pd.inner.handle.lock.lock_to_drop()
            && driver.device.destroy_srq(self.raw).is_ok()
        {
            driver.forget_async_events(Object::Srq(self.raw));
        }
    }
}

/// A shared receive queue. Clones are the same queue; it goes with the last clone and the last QP that uses it.
#[derive(Clone, Debug)]
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

impl Srq {
    pub(crate) fn new(pd: &Pd, attr: &SrqAttr) -> Result<Self, Error> {
        let raw = pd.inner.handle.lock.lock().device.create_srq(pd.inner.raw, attr)?;
        Ok(Self { inner: Arc::new(SrqInner { raw, pd: pd.clone() }) })
    }

    /// Names it among the device's SRQs (asynchronous events do).
    #[must_use]
    pub fn raw(&self) -> SrqHandle {
        self.inner.raw
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full, or there are too many scatter/gather entries. Nothing was posted.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.inner.pd.inner.handle.turn_to_post().device.post_srq_recv(self.inner.raw, wr)
    }

    /// Posts several receives in one turn.
    ///
    /// # Errors
    /// The first that was refused, and why; those before it are posted.
    pub fn post_recvs<'w>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'w>>,
    ) -> Result<(), (usize, PostError)> {
        let mut turn = self.inner.pd.inner.handle.turn();
        wrs.into_iter()
            .enumerate()
            .try_for_each(|(i, wr)| turn.device.post_srq_recv(self.inner.raw, &wr).map_err(|e| (i, e)))
    }

    /// Changes size or limit.
    ///
    /// # Errors
    /// What is in the queue does not fit, or the size is beyond the device's.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), VerbError> {
        self.inner.pd.inner.handle.turn().device.modify_srq(self.inner.raw, max_wr, limit)
    }

    /// Size and limit.
    ///
    /// # Errors
    /// It was destroyed by name.
    pub fn query(&self) -> Result<SrqAttr, VerbError> {
        self.inner.pd.inner.handle.lock.lock().device.query_srq(self.inner.raw)
    }

    /// Destroys it now, if no QP uses it.
    ///
    /// # Errors
    /// `Busy`: a QP uses it.
    pub fn destroy(&self) -> Result<(), VerbError> {
        let mut turn = self.inner.pd.inner.handle.turn();
        turn.device.destroy_srq(self.inner.raw)?;
        turn.forget_async_events(Object::Srq(self.inner.raw));
        Ok(())
    }
}
