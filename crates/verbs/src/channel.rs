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

use remanence_link::generation;
use remanence_rnic::CqHandle;

use crate::context::Handle;
use crate::driver::Interest;
use crate::error::Error;
use crate::progress::Interrupted;
use crate::wake::{self, Event};

/// A queue whose descriptor is readable while it holds something. The descriptor is made when somebody asks for it:
/// ten thousand connections need not cost ten thousand descriptors.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    born: u32,
    queue: Mutex<VecDeque<T>>,
    event: OnceLock<Event>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Self {
        Self { born: generation(), queue: Mutex::new(VecDeque::new()), event: OnceLock::new() }
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

    /// The descriptor.
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
    /// The queue.
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
        self.get_event_unless(limit, || false).unwrap_or(None)
    }

    /// The same, for programs whose signal handlers end calls.
    ///
    /// # Errors
    /// Nothing came, and a signal handler has run in this thread while it slept, of which `ends` then says that it ends the
    /// call.
    pub fn get_event_unless(
        &self,
        limit: Option<Duration>,
        ends: impl Fn() -> bool,
    ) -> Result<Option<CqEvent>, Interrupted> {
        let events = &self.inner.events;
        match events.pop() {
            None if !events.is_nonblocking() => {
                self.inner.handle.wait_unless(limit, Interest::Events, ends, |_| events.pop())
            }
            found => Ok(found),
        }
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
