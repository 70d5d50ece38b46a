//! Event channels: where programs wait for events, and get them.
//!
//! The descriptor is that of the connection manager's channel, readable while an event waits. Nobody sleeps in
//! read(2) on it, so that a program may switch it to non-blocking mode at any time.
//!
//! A channel that is destroyed while a thread of the program asks it for events is the program's fault, and rping's: its thread
//! goes on until exit ends it. With the kernel that thread sleeps in a call, for ever; so it does here, for which the
//! last channels that were destroyed stay where they were, empty.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use remanence_verbs::CmChannel;

use crate::abi::*;
use crate::errno;
use crate::per_process::PerProcess;
use crate::sleep::{self, Sleep};

use super::devices;
use super::event;
use super::id::registry;

#[repr(C)]
struct ChannelObj {
    c: rdma_event_channel,
    /// `None`: it was destroyed.
    queue: Mutex<Option<CmChannel>>,
}

/// How many channels stay that were destroyed.
const KEPT: usize = 64;

/// A live event channel.
#[derive(Clone, Copy)]
pub(super) struct Channel(NonNull<ChannelObj>);

// SAFETY: channels may be used from every thread; what is behind the pointer is C's, which is not written after it was made,
// and a lock.
unsafe impl Send for Channel {}

impl Channel {
    /// # Safety
    /// `channel` came from `rdma_create_event_channel`, or is one that a synchronous identifier made, and was not
    /// destroyed.
    pub(super) unsafe fn of(channel: *mut rdma_event_channel) -> Self {
        // SAFETY: by the contract it is not null, and the first field of a ChannelObj.
        Self(unsafe { NonNull::new_unchecked(channel.cast()) })
    }

    pub(super) fn new() -> Result<Self, c_int> {
        let queue = CmChannel::new().map_err(|e| errno::of(&e))?;
        let c = rdma_event_channel { fd: queue.as_fd().as_raw_fd() };
        let queue = Mutex::new(Some(queue));
        Ok(Self(NonNull::from(Box::leak(Box::new(ChannelObj { c, queue })))))
    }

    /// The pointer that the C program has of this channel.
    pub(super) fn c(self) -> *mut rdma_event_channel {
        self.0.as_ptr().cast()
    }

    /// The queue that the channel's events wait in.
    pub(super) fn queue(self) -> CmChannel {
        self.live().expect("an event channel that was not destroyed")
    }

    /// Its queue, if it was not destroyed.
    fn live(self) -> Option<CmChannel> {
        // SAFETY: the channel is live for as long as calls with it go on, or destroyed so lately that it is kept.
        let queue = unsafe { &(*self.0.as_ptr()).queue };
        queue.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn destroy(self) {
        static LAST: PerProcess<Mutex<VecDeque<Channel>>> = PerProcess::new();
        // SAFETY: live, as whoever has it gives it up only now.
        let queue = unsafe { &(*self.0.as_ptr()).queue };
        let queue = queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(queue);
        let mut last = LAST.get().lock().unwrap_or_else(PoisonError::into_inner);
        last.push_back(self);
        if last.len() > KEPT
            && let Some(oldest) = last.pop_front()
        {
            // SAFETY: so many were destroyed since that no call with it can go on.
            drop(unsafe { Box::from_raw(oldest.0.as_ptr()) });
        }
    }

    /// The next event, waiting for it unless the program has said that it does not want to.
    pub(super) fn next(self) -> Result<*mut rdma_cm_event, c_int> {
        let mut sleep = Sleep::new();
        loop {
            match self.step(&mut sleep) {
                Poll::Ready(next) => return next,
                Poll::Pending => sleep.sleep(),
            }
        }
    }

    /// The same, up to the next sleep.
    pub(super) fn step(self, sleep: &mut Sleep) -> Poll<Result<*mut rdma_cm_event, c_int>> {
        let Some(queue) = self.live() else {
            sleep.until_readable(None);
            return Poll::Pending;
        };
        let interrupted = sleep.is_interrupted();
        let fd = queue.as_fd().as_raw_fd();
        loop {
            let taken = registry().take(|| queue.try_get_event().map(|event| (event.user_data, event.event)));
            let Some((target, event)) = taken else {
                if is_nonblocking(fd) {
                    return Poll::Ready(Err(libc::EAGAIN));
                }
                if interrupted {
                    return Poll::Ready(Err(libc::EINTR));
                }
                sleep.until_readable(Some(fd));
                return Poll::Pending;
            };
            // Some events are not for the program.
            if let Some(event) = event::of(self, target, event) {
                return Poll::Ready(Ok(event));
            }
        }
    }
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: fcntl with F_GETFL takes any number for a descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// `rdma_create_event_channel(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_create_event_channel() -> *mut rdma_event_channel {
    match devices::some().and_then(|()| Channel::new()) {
        Ok(channel) => channel.c(),
        Err(e) => errno::null_with(e),
    }
}

/// `rdma_destroy_event_channel(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: what the C API promises.
    unsafe { Channel::of(channel) }.destroy();
}

/// `rdma_get_cm_event(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_cm_event_step(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
    _: *mut c_void,
    _: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    if event.is_null() {
        return errno::minus_one_with(libc::EINVAL);
    }
    // SAFETY: what the C API promises; and what cancel.c sleeps on, which is its own.
    let (channel, sleep) = unsafe { (Channel::of(channel), &mut *sleep) };
    // SAFETY: a variable of the caller.
    sleep::answer(channel.step(sleep).map_ok(|next| unsafe { event.write(next) }))
}
