//! Calls that wait, in steps: between two steps they sleep in C, as a thread that is cancelled in its sleep leaves no frames of
//! Rust behind then. Read first: `cancel.c`.

use std::ffi::{c_int, c_ulong, c_void};
use std::ptr;
use std::task::Poll;

use remanence_verbs::{Awaited, CqEvent, DeviceEvent};

use crate::errno;
use crate::signals::is_interruptible;

/// What a step answers that is not the end of its call.
const ASLEEP: c_int = 1;

/// What a call sleeps on, and what it wants back afterwards: `struct rem_sleep` of `cancel.c`, which begins with zeros.
#[repr(C)]
pub(crate) struct Sleep {
    fds: *mut libc::pollfd,
    count: c_ulong,
    limit: libc::timespec,
    is_limited: c_int,
    signalled: c_int,
    has_begun: c_int,
    one: libc::pollfd,
    pending: Option<Box<Pending>>,
}

struct Pending {
    event: Event,
    fds: Vec<libc::pollfd>,
}

/// What the waiters of a device wait for.
pub(crate) enum Event {
    Completion(Awaited<CqEvent>),
    Async(Awaited<DeviceEvent>),
}

impl Sleep {
    /// A call's own, without C.
    pub(crate) const fn new() -> Self {
        Self {
            fds: ptr::null_mut(),
            count: 0,
            limit: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            is_limited: 0,
            signalled: 0,
            has_begun: 0,
            one: libc::pollfd { fd: -1, events: 0, revents: 0 },
            pending: None,
        }
    }

    /// Whether this is the first step of the call.
    pub(crate) fn begins(&mut self) -> bool {
        std::mem::replace(&mut self.has_begun, 1) == 0
    }

    /// Whether a signal handler has run in the last sleep that ends calls.
    pub(crate) fn is_interrupted(&mut self) -> bool {
        std::mem::take(&mut self.signalled) != 0 && is_interruptible()
    }

    /// What the last sleep was for.
    pub(crate) fn taken(&mut self) -> Option<Event> {
        self.pending.take().map(|pending| pending.event)
    }

    /// Sleeps as a waiter of the device.
    pub(crate) fn wait(&mut self, event: Event) -> c_int {
        let (fds, limit) = match &event {
            Event::Completion(awaited) => (awaited.fds(), awaited.limit()),
            Event::Async(awaited) => (awaited.fds(), awaited.limit()),
        };
        let fds = fds.iter().map(|fd| libc::pollfd { fd: fd.fd, events: fd.events, revents: 0 }).collect();
        self.is_limited = c_int::from(limit.is_some());
        if let Some(limit) = limit {
            self.limit = libc::timespec {
                tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
        }
        let pending = self.pending.insert(Box::new(Pending { event, fds }));
        (self.fds, self.count) = (pending.fds.as_mut_ptr(), pending.fds.len() as c_ulong);
        ASLEEP
    }

    /// Sleeps until a descriptor is readable; with none, until a signal comes.
    pub(crate) fn until_readable(&mut self, fd: Option<c_int>) {
        self.is_limited = 0;
        self.one = libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
        (self.fds, self.count) = (&raw mut self.one, 1);
    }

    /// Sleeps here, for calls that end by themselves.
    pub(crate) fn sleep(&mut self) {
        // SAFETY: as many entries as it says, either in the box or in this structure, which has not moved since.
        let ready = unsafe { libc::poll(self.fds, self.count, -1) };
        self.signalled = c_int::from(ready < 0);
    }
}

/// What a step answers.
pub(crate) fn answer(step: Poll<Result<(), c_int>>) -> c_int {
    match step {
        Poll::Ready(Ok(())) => 0,
        Poll::Ready(Err(e)) => errno::minus_one_with(e),
        Poll::Pending => ASLEEP,
    }
}

/// The thread was cancelled while it slept, and takes no further step.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_give_up(sleep: *mut c_void) {
    // SAFETY: `blocking` in cancel.c calls this with what it gave to the last step, or with zeros.
    drop(unsafe { (*sleep.cast::<Sleep>()).pending.take() });
}
