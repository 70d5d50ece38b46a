//! Completion channels, and the events of completion queues.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr;

use remanence_verbs::{CompChannel, Step};

use crate::abi::*;
use crate::async_event::acknowledge;
use crate::context::ctx;
use crate::errno;
use crate::sleep::{Event, Sleep};

/// A completion channel, with what C sees of it in front.
#[repr(C)]
pub(crate) struct ChannelObj {
    pub(crate) c: ibv_comp_channel,
    pub(crate) channel: CompChannel,
}

/// Our completion channel behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_create_comp_channel`] and was not destroyed yet.
pub(crate) unsafe fn channel<'a>(p: *mut ibv_comp_channel) -> &'a ChannelObj {
    // SAFETY: by the contract `c` is the first field of a live ChannelObj.
    unsafe { &*p.cast::<ChannelObj>() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: the caller's open device.
    let channel = match unsafe { ctx(context) }.context.create_comp_channel() {
        Ok(channel) => channel,
        Err(e) => return errno::null_with(errno::of(&e)),
    };
    let c = ibv_comp_channel { context, fd: channel.as_fd().as_raw_fd(), refcnt: 0 };
    Box::into_raw(Box::new(ChannelObj { c, channel })).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(p: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's channel. Who creates a CQ counts it in `refcnt`, under the context's mutex, as C does.
    unsafe {
        let mutex = &raw mut (*(*p).context).mutex;
        libc::pthread_mutex_lock(mutex);
        let used = (*p).refcnt != 0;
        libc::pthread_mutex_unlock(mutex);
        if used || channel(p).channel.is_used() {
            return libc::EBUSY;
        }
        drop(Box::from_raw(p.cast::<ChannelObj>()));
    }
    0
}

/// `ibv_get_cq_event(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_cq_event_step(
    p: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
    _: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    // SAFETY: the caller's channel, of an open device; and what cancel.c sleeps on, which is its own.
    let (channel, ctx, sleep) = unsafe { (&channel(p).channel, ctx((*p).context), &mut *sleep) };
    let mut interrupted = sleep.is_interrupted();
    let mut awaited = match sleep.taken() {
        Some(Event::Completion(awaited)) => awaited,
        _ => channel.awaited(),
    };
    loop {
        let event = match awaited.step(std::mem::take(&mut interrupted)) {
            Step::Found(event) => event,
            Step::Nothing => return errno::minus_one_with(libc::EAGAIN),
            Step::Interrupted => return errno::minus_one_with(libc::EINTR),
            Step::Sleep => return sleep.wait(Event::Completion(awaited)),
        };
        let object = ptr::with_exposed_provenance_mut(event.user_data as usize);
        // Of a CQ that was destroyed meanwhile, nobody is told.
        if let Some(found) = ctx.table().report_completion(event.cq, object) {
            // SAFETY: two variables of the caller; the CQ is in the table, so nobody has freed it yet, and nobody will
            // until this event is acknowledged.
            unsafe {
                *cq = found;
                *cq_context = (*found).cq_context;
            }
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    // SAFETY: the caller's CQ, alive while events of it are not acknowledged.
    unsafe {
        let done = &raw mut (*cq).comp_events_completed;
        acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, done, nevents);
    }
}
