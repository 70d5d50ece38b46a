//! Completion queues, and the fast path of driving: a consumer that polls drives the device inline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remanence_rnic::CqHandle;
use remanence_rnic::Wc;
use remanence_rnic::{CqError, VerbError};

use crate::channel::{ChannelInner, CompChannel};
use crate::context::{Context, Handle};
use crate::driver::{Driver, Interest, Object, Turn};
use crate::error::Error;
use crate::inplace::Beside;
use crate::wake::Waker;

#[derive(Debug)]
pub(crate) struct CqInner {
    pub(crate) raw: CqHandle,
    pub(crate) handle: Arc<Handle>,
    channel: Option<Arc<ChannelInner>>,
    /// `Driver::news` when the queue was last found empty under the lock. While nothing else is published the queue
    /// is still empty, and a poller who finds the lock taken need not wait for it.
    empty_at: AtomicU64,
    /// Completions of operations that needed no engine.
    pub(crate) beside: Arc<Beside>,
    waker: Waker,
}

/// A thread that may sleep on a CQ: until it goes, completions take the way that wakes it.
struct Sleeper<'a>(&'a Beside);

impl<'a> Sleeper<'a> {
    fn new(beside: &'a Beside) -> Self {
        beside.sleeper(true);
        Self(beside)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.sleeper(false);
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Some(mut driver) = self.handle.lock.lock_to_drop() {
            driver.unroute_cq(self.raw);
            // QPs own their CQs, so none is left; unless it was destroyed by name.
            if driver.device.destroy_cq(self.raw).is_ok() {
                driver.forget_async_events(Object::Cq(self.raw));
            }
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
        let beside = Arc::new(Beside::default());
        beside.set_capacity(capacity);
        let empty_at = AtomicU64::new(u64::MAX);
        let waker = Waker::new();
        Ok(Self { inner: Arc::new(CqInner { raw, handle, channel, empty_at, beside, waker }) })
    }

    /// Names it among the device's CQs (notifications and asynchronous events do).
    #[must_use]
    pub fn raw(&self) -> CqHandle {
        self.inner.raw
    }

    /// The device that the queue belongs to.
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
    pub fn poll(&self, out: &mut impl Extend<Wc>, max: usize) -> Result<usize, CqError> {
        let inner = &*self.inner;
        let shared = &*inner.handle.shared;
        if inner.beside.is_used() {
            return self.poll_both(out, max);
        }
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
        let mut turn = Turn::new(driver, &shared.clock);
        turn.poll();
        let n = turn.device.poll_cq(inner.raw, out, max)?;
        if n == 0 {
            inner.empty_at.store(turn.news(), Ordering::Relaxed);
        }
        Ok(n)
    }

    /// As [`poll`](Self::poll), where there may be completions that the engine has not seen. Its own are older, so
    /// they come first.
    #[inline]
    fn poll_both(&self, out: &mut impl Extend<Wc>, max: usize) -> Result<usize, CqError> {
        let inner = &*self.inner;
        let shared = &*inner.handle.shared;
        if shared.lock.is_abandoned() {
            return Err(CqError::NoSuchCq);
        }
        let engine_is_empty =
            || shared.signals.news.load(Ordering::Acquire) == inner.empty_at.load(Ordering::Relaxed);
        if engine_is_empty() {
            let (n, serve) = inner.beside.take(out, max);
            if n > 0 {
                if serve && let Some(driver) = shared.lock.try_lock() {
                    let mut turn = Turn::new(driver, &shared.clock);
                    turn.poll();
                }
                return Ok(n);
            }
        }
        let mut driver = match shared.lock.try_lock() {
            Some(driver) => driver,
            None if engine_is_empty() => {
                shared.lock.miss();
                return Ok(0);
            }
            None => shared.lock.lock(),
        };
        let n = self.poll_under_lock(&mut driver, out, max)?;
        if n > 0 {
            driver.count_polls(1);
            return Ok(n);
        }
        let mut turn = Turn::new(driver, &shared.clock);
        turn.poll();
        self.poll_under_lock(&mut turn, out, max)
    }

    fn poll_under_lock(
        &self,
        driver: &mut Driver,
        out: &mut impl Extend<Wc>,
        max: usize,
    ) -> Result<usize, CqError> {
        let n = driver.device.poll_cq(self.inner.raw, out, max)?;
        if n == max {
            return Ok(n);
        }
        self.inner.empty_at.store(driver.news(), Ordering::Relaxed);
        Ok(n + self.inner.beside.take(out, max - n).0)
    }

    /// Moves what is there to `out` without serving the device.
    ///
    /// # Errors
    /// The queue overflowed; completions were lost.
    pub fn peek(&self, out: &mut impl Extend<Wc>, max: usize) -> Result<usize, CqError> {
        if self.inner.handle.lock.is_abandoned() {
            return Err(CqError::NoSuchCq);
        }
        self.poll_under_lock(&mut self.inner.handle.lock.lock(), out, max)
    }

    /// As [`poll`](Self::poll), but waits for the first completion: spins as long as that has paid lately, then
    /// sleeps. 0 if the limit was reached first, or if the queue's [waker](Self::waker) was woken.
    ///
    /// # Errors
    /// The queue overflowed; completions were lost.
    pub fn wait(&self, out: &mut Vec<Wc>, max: usize, limit: Option<Duration>) -> Result<usize, CqError> {
        if self.inner.handle.lock.is_abandoned() {
            return Err(CqError::NoSuchCq);
        }
        let _sleeper = Sleeper::new(&self.inner.beside);
        let inner = &*self.inner;
        let found = inner.handle.wait_or_woken(
            limit,
            Interest::Completions,
            &inner.waker,
            || Ok(0),
            |driver| match self.poll_under_lock(driver, out, max) {
                Ok(0) => None,
                result => Some(result),
            },
        );
        found.unwrap_or(Ok(0))
    }

    /// What ends the present [`wait`](Self::wait) for this queue, or else the next one, from any thread and at once. Of
    /// several threads that wait for one queue it ends one wait.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.inner.waker.clone()
    }

    /// Asks for one notification on the queue's channel at the next completion, or only at the next solicited or
    /// failed one. Completions already there do not count: poll after asking.
    ///
    /// # Errors
    /// It was destroyed by name.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbError> {
        if self.inner.handle.lock.is_abandoned() {
            return Err(VerbError::NoSuchObject("CQ"));
        }
        self.inner.beside.notifies();
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
        self.inner.handle.turn().device.resize_cq(self.inner.raw, capacity)?;
        self.inner.beside.set_capacity(capacity);
        Ok(())
    }

    /// Destroys it now, if no QP uses it; pending notifications vanish.
    ///
    /// # Errors
    /// `Busy`: a QP uses it.
    pub fn destroy(&self) -> Result<(), VerbError> {
        let mut turn = self.inner.handle.turn();
        turn.device.destroy_cq(self.inner.raw)?;
        turn.unroute_cq(self.inner.raw);
        turn.forget_async_events(Object::Cq(self.inner.raw));
        Ok(())
    }
}
