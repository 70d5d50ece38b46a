//! Completion queues, and the fast path of driving: a consumer that polls drives the device inline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remanence_rnic::CqHandle;
use remanence_rnic::Wc;
use remanence_rnic::{CqError, VerbError};

use crate::channel::{ChannelInner, CompChannel};
use crate::context::{Context, Handle};
use crate::driver::Turn;
use crate::error::Error;

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) raw: CqHandle,
    pub(crate) handle: Arc<Handle>,
    channel: Option<Arc<ChannelInner>>,
    /// `Driver::news` when the queue was last found empty under the lock. While nothing else is published the queue
    /// is still empty, and a poller who finds the lock taken need not wait for it.
    empty_at: AtomicU64,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Some(mut driver) = self.handle.lock.lock_to_drop() {
            driver.unroute_cq(self.raw);
            // QPs own their CQs, so none is left; unless it was destroyed by name.
            let _ = driver.device.destroy_cq(self.raw);
        }
    }
}

/// A completion queue. Clones are the same queue; it goes with the last clone and the last QP that completes here.
#[derive(Clone, Debug)]
pub struct Cq {
    pub(crate) inner: Arc<CqInner>,
}

impl Cq {
    pub(crate) fn new(
        handle: &Arc<Handle>,
        capacity: u32,
        channel: Option<&CompChannel>,
        user_data: u64,
    ) -> Result<Self, Error> {
        let mut driver = handle.lock.lock();
        let raw = driver.device.create_cq(capacity)?;
        if let Some(channel) = channel {
            driver.route_cq(raw, Arc::clone(&channel.inner.events), user_data);
        }
        let channel = channel.map(|channel| Arc::clone(&channel.inner));
        let handle = Arc::clone(handle);
        Ok(Self { inner: Arc::new(CqInner { raw, handle, channel, empty_at: AtomicU64::new(u64::MAX) }) })
    }

    /// Names it among the device's CQs (notifications and asynchronous events do).
    #[must_use]
    pub fn raw(&self) -> CqHandle {
        self.inner.raw
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { handle: Arc::clone(&self.inner.handle) }
    }

    /// Where its notifications go.
    #[must_use]
    pub fn channel(&self) -> Option<CompChannel> {
        self.inner.channel.as_ref().map(|inner| CompChannel { inner: Arc::clone(inner) })
    }

    /// Moves up to `max` completions, oldest first, to the end of `out`, and says how many. If there are none, this
    /// thread serves the device once and looks again: polling is what drives.
    ///
    /// # Errors
    /// The queue overflowed; completions were lost.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Wc>, max: usize) -> Result<usize, CqError> {
        let inner = &*self.inner;
        let shared = &*inner.handle.shared;
        let mut driver = match shared.lock.try_lock() {
            Some(driver) => driver,
            // Someone else drives. What is published before its turn ends is what this queue may hold.
            None if shared.signals.news.load(Ordering::Acquire) == inner.empty_at.load(Ordering::Relaxed) => {
                shared.lock.miss();
                return Ok(0);
            }
            None => shared.lock.lock(),
        };
        let n = driver.device.poll_cq(inner.raw, out, max)?;
        if n > 0 {
            driver.count_polls(1);
            return Ok(n);
        }
        let mut turn = Turn::new(driver, shared.clock.now());
        turn.polled();
        turn.drive();
        let n = turn.device.poll_cq(inner.raw, out, max)?;
        if n == 0 {
            inner.empty_at.store(turn.news(), Ordering::Relaxed);
        }
        Ok(n)
    }

    /// Moves what is there to `out` without serving the device.
    ///
    /// # Errors
    /// The queue overflowed; completions were lost.
    pub fn peek(&self, out: &mut Vec<Wc>, max: usize) -> Result<usize, CqError> {
        self.inner.handle.lock.lock().device.poll_cq(self.inner.raw, out, max)
    }

    /// As [`poll`](Self::poll), but waits for the first completion: spins as long as that has paid lately, then
    /// sleeps. 0 if the limit was reached first.
    ///
    /// # Errors
    /// The queue overflowed; completions were lost.
    pub fn wait(&self, out: &mut Vec<Wc>, max: usize, limit: Option<Duration>) -> Result<usize, CqError> {
        let raw = self.inner.raw;
        let found = self.inner.handle.wait(limit, |driver| match driver.device.poll_cq(raw, out, max) {
            Ok(0) => None,
            result => Some(result),
        });
        found.unwrap_or(Ok(0))
    }

    /// Asks for one notification on the queue's channel at the next completion, or only at the next solicited or
    /// failed one. Completions already there do not count: poll after asking.
    ///
    /// # Errors
    /// It was destroyed by name.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbError> {
        let mut turn = self.inner.handle.turn();
        turn.device.req_notify_cq(self.inner.raw, solicited_only)?;
        turn.armed();
        Ok(())
    }

    /// Changes the capacity, if what is in the queue fits.
    ///
    /// # Errors
    /// It does not fit, or the capacity is zero or beyond the device's.
    pub fn resize(&self, capacity: u32) -> Result<(), VerbError> {
        self.inner.handle.turn().device.resize_cq(self.inner.raw, capacity)
    }

    /// Destroys it now, if no QP uses it; pending notifications vanish.
    ///
    /// # Errors
    /// `Busy`: a QP uses it.
    pub fn destroy(&self) -> Result<(), VerbError> {
        let mut turn = self.inner.handle.turn();
        turn.device.destroy_cq(self.inner.raw)?;
        turn.unroute_cq(self.inner.raw);
        Ok(())
    }
}
