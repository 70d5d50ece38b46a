//! Queues of events behind descriptors that consumers poll: completion channels, asynchronous events, events of
//! the connection manager.
//!
//! The descriptor is level-triggered and mirrors the queue: readable exactly while an event waits. Programs put it
//! into epoll sets, and switch it to non-blocking mode with fcntl behind our back; both must work as they do with
//! the kernel's verbs. So nobody ever sleeps in read(2) on it: a blocking get looks at the descriptor's mode each
//! time it finds the queue empty.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use remanence_link::{WaitFd, generation};
use remanence_rnic::CqHandle;

use crate::context::Handle;
use crate::driver::Interest;
use crate::error::Error;
use crate::progress::{Next, Outcome, Waiting};
use crate::wake::{self, Event, Waker};

/// A queue whose descriptor is readable while it holds something. The descriptor is made when somebody asks for it:
/// ten thousand connections need not cost ten thousand descriptors.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    born: u32,
    queue: Mutex<VecDeque<T>>,
    event: OnceLock<Event>,
    /// Woken with each event.
    wakes: OnceLock<Waker>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            born: generation(),
            queue: Mutex::new(VecDeque::new()),
            event: OnceLock::new(),
            wakes: OnceLock::new(),
        }
    }

    /// We are a forked child, and it was our parent's: whoever held its lock is not there to let go of it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.born != generation()
    }

    pub(crate) fn push(&self, item: T) {
        if self.is_abandoned() {
            return;
        }
        let mut queue = self.lock();
        queue.push_back(item);
        if queue.len() == 1
            && let Some(event) = self.event.get()
        {
            event.raise();
        }
        drop(queue);
        if let Some(waker) = self.wakes.get() {
            waker.wake();
        }
    }

    /// From now on whoever waits for something else is woken with each event, and once for those that wait already. One
    /// waker at most: `false` if there is one.
    pub(crate) fn wake_with(&self, waker: &Waker) -> bool {
        let set = self.wakes.set(waker.clone()).is_ok();
        // An event that came meanwhile may have found no waker.
        if set && !self.is_abandoned() && !self.lock().is_empty() {
            waker.wake();
        }
        set
    }

    pub(crate) fn pop(&self) -> Option<T> {
        if self.is_abandoned() {
            return None;
        }
        let mut queue = self.lock();
        let item = queue.pop_front()?;
        self.lower_if_empty(&queue);
        Some(item)
    }

    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        if self.is_abandoned() {
            return;
        }
        let mut queue = self.lock();
        if !queue.is_empty() {
            queue.retain(keep);
            self.lower_if_empty(&queue);
        }
    }

    /// Takes out what answers to `which`, in order.
    pub(crate) fn take(&self, which: impl Fn(&T) -> bool) -> Vec<T> {
        if self.is_abandoned() {
            return Vec::new();
        }
        let mut queue = self.lock();
        let (taken, kept) = std::mem::take(&mut *queue).into_iter().partition::<Vec<_>, _>(which);
        queue.extend(kept);
        if !taken.is_empty() {
            self.lower_if_empty(&queue);
        }
        taken
    }

    fn lower_if_empty(&self, queue: &VecDeque<T>) {
        if queue.is_empty()
            && let Some(event) = self.event.get()
        {
            event.lower();
        }
    }

    /// Whether the consumer switched the descriptor to non-blocking mode.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.event.get().is_some_and(|event| event.is_open() && wake::is_nonblocking(event.as_fd()))
    }

    /// The descriptor that becomes readable with an event.
    pub(crate) fn fd(&self) -> Result<BorrowedFd<'_>, Error> {
        if let Some(event) = self.event.get() {
            return Ok(event.as_fd());
        }
        if self.is_abandoned() {
            return Err(Error::os(
                "a channel of the parent process",
                std::io::ErrorKind::NotConnected.into(),
            ));
        }
        let event = Event::new().map_err(|e| Error::os("cannot create an event descriptor", e))?;
        let queue = self.lock();
        let event = self.event.get_or_init(|| event);
        if !queue.is_empty() {
            event.raise();
        }
        Ok(event.as_fd())
    }

    /// The queue is valid after any panic: no step of ours leaves it half changed.
    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A completion queue had what its consumer asked to be told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqEvent {
    /// The completion queue that the event is of.
    pub cq: CqHandle,
    /// What the queue was created with.
    pub user_data: u64,
}

#[derive(Debug)]
pub(crate) struct ChannelInner {
    pub(crate) events: Arc<EventQueue<CqEvent>>,
    pub(crate) handle: Arc<Handle>,
}

/// A completion channel: where the notifications of any number of CQs arrive. Clones are the same channel.
#[derive(Clone, Debug)]
pub struct CompChannel {
    pub(crate) inner: Arc<ChannelInner>,
}

impl CompChannel {
    pub(crate) fn new(handle: &Arc<Handle>) -> Result<Self, Error> {
        let events = Arc::new(EventQueue::new());
        events.fd()?;
        Ok(Self { inner: Arc::new(ChannelInner { events, handle: Arc::clone(handle) }) })
    }

    /// The next notification, waiting for it; `None` if the limit was reached first, or at once if the descriptor
    /// is in non-blocking mode and there is none.
    ///
    /// While it waits, this thread serves the device.
    pub fn get_event(&self, limit: Option<Duration>) -> Option<CqEvent> {
        let events = &self.inner.events;
        match events.pop() {
            None if !events.is_nonblocking() => {
                self.inner.handle.wait(limit, Interest::Events, |_| events.pop())
            }
            found => found,
        }
    }

    /// The next notification for a caller that sleeps by itself.
    #[must_use]
    pub fn awaited(&self) -> Awaited<CqEvent> {
        Awaited::new(&self.inner.handle, Arc::clone(&self.inner.events))
    }

    /// The next notification if there is one.
    #[must_use]
    pub fn try_get_event(&self) -> Option<CqEvent> {
        self.inner.events.pop()
    }

    /// Whether a CQ still uses this channel.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.inner.handle.with_driver(|driver| driver.routes_to(&self.inner.events) > 0)
    }
}

/// An event that a caller waits for who sleeps by itself, because others may end its thread while it does: nobody's frame lies
/// then between the sleep and the caller. Between the steps no lock is held; but others rely on a thread that waits, so
/// drop this when it does not wait any more.
pub struct Awaited<T> {
    handle: Arc<Handle>,
    events: Arc<EventQueue<T>>,
    waiting: Option<Waiting>,
}

/// What a step brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<T> {
    /// The oldest event that waited.
    Found(T),
    /// There is none, and the consumer wants no waiting: the descriptor is in non-blocking mode.
    Nothing,
    /// There is none, and the step was told of a signal.
    Interrupted,
    /// Sleep on [`Awaited::fds`], for [`Awaited::limit`] at most, and take another step.
    Sleep,
}

impl<T> Awaited<T> {
    pub(crate) fn new(handle: &Arc<Handle>, events: Arc<EventQueue<T>>) -> Self {
        Self { handle: Arc::clone(handle), events, waiting: None }
    }

    /// Serves the device until the event is there, or there is nothing to do. `interrupted`: a signal handler has run since the
    /// last step, and ends the call unless the event is there.
    pub fn step(&mut self, interrupted: bool) -> Step<T> {
        let Self { handle, events, waiting } = self;
        let waiting = match waiting {
            Some(waiting) => waiting,
            None => match events.pop() {
                Some(found) => return Step::Found(found),
                None if events.is_nonblocking() || events.is_abandoned() => return Step::Nothing,
                None => waiting.insert(Waiting::new(handle, None, Interest::Events)),
            },
        };
        match waiting.step(handle, interrupted, |_| events.pop()) {
            Next::Sleep => Step::Sleep,
            Next::Over(outcome) => {
                self.waiting = None;
                match outcome {
                    Outcome::Found(found) => Step::Found(found),
                    Outcome::Nothing => Step::Nothing,
                    Outcome::Interrupted => Step::Interrupted,
                }
            }
        }
    }

    /// What to sleep on.
    #[must_use]
    pub fn fds(&self) -> &[WaitFd] {
        self.waiting.as_ref().map_or(&[], |waiting| &waiting.fds)
    }

    /// For how long at most.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.waiting.as_ref().and_then(|waiting| waiting.limit)
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.leave(&self.handle);
        }
    }
}

/// Readable while a notification waits.
impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.events.fd().expect("made with the channel")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable<T>(queue: &EventQueue<T>) -> bool {
        queue.event.get().unwrap().is_raised()
    }

    #[test]
    fn the_descriptor_mirrors_the_queue() {
        let queue = EventQueue::new();
        queue.fd().unwrap();
        assert!(!queue.is_nonblocking(), "as with the kernel's verbs");
        assert!(!readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(readable(&queue));
        assert_eq!(queue.pop(), Some(1));
        assert!(readable(&queue), "one event is still there");
        assert_eq!(queue.pop(), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.pop(), None);
        queue.push(3);
        queue.push(4);
        queue.retain(|&event| event == 4);
        assert!(readable(&queue));
        queue.retain(|_| false);
        assert!(!readable(&queue));
    }

    #[test]
    fn a_descriptor_made_late_tells_of_what_waits_already() {
        let queue = EventQueue::new();
        queue.push(1);
        queue.fd().unwrap();
        assert!(readable(&queue));
        assert_eq!(queue.pop(), Some(1));
        assert!(!readable(&queue));
    }

    #[test]
    fn a_consumer_may_switch_the_mode_of_the_descriptor() {
        let queue = EventQueue::<u32>::new();
        assert!(!queue.is_nonblocking(), "nobody can have switched what does not exist");
        for nonblocking in [false, true, false] {
            let flags = rustix::fs::fcntl_getfl(queue.fd().unwrap()).unwrap();
            let flags = if nonblocking {
                flags | rustix::fs::OFlags::NONBLOCK
            } else {
                flags - rustix::fs::OFlags::NONBLOCK
            };
            rustix::fs::fcntl_setfl(queue.fd().unwrap(), flags).unwrap();
            assert_eq!(queue.is_nonblocking(), nonblocking);
            queue.push(1);
            assert_eq!(queue.pop(), Some(1));
            assert!(!readable(&queue));
        }
    }
}
