//! Asynchronous events: what happens to an object outside any work request.
//!
//! An object may only go when all of its events that were handed out are acknowledged. So they are counted where they
//! are handed out, under the lock of the context's table, and where they are acknowledged, in the C object; who
//! destroys an object waits until both numbers are equal.

use std::ffi::{c_int, c_void};

use remanence_rnic::AsyncEvent;
use remanence_verbs::{DeviceEvent, Step};

use crate::abi::*;
use crate::context::{Ctx, ctx};
use crate::errno;
use crate::sleep::{Event, Sleep};

/// An event of the one port.
fn of_port(event_type: ibv_event_type) -> ibv_async_event {
    let mut event = ibv_async_event { event_type, ..ibv_async_event::zeroed() };
    event.element.port_num = 1;
    event
}

/// The C form of an event, which counts as handed out; nothing if its object is gone.
fn to_c(ctx: &Ctx, event: DeviceEvent) -> Option<ibv_async_event> {
    let mut c = ibv_async_event::zeroed();
    let event = match event {
        DeviceEvent::Affiliated(event) => event,
        DeviceEvent::DeviceFatal(_) => {
            c.event_type = IBV_EVENT_DEVICE_FATAL;
            return Some(c);
        }
        DeviceEvent::PortActive => return Some(of_port(IBV_EVENT_PORT_ACTIVE)),
        DeviceEvent::PortError => return Some(of_port(IBV_EVENT_PORT_ERR)),
        DeviceEvent::GidChange => return Some(of_port(IBV_EVENT_GID_CHANGE)),
    };
    let mut table = ctx.table();
    let mut qp = |qpn, event_type| {
        let element = ibv_async_event_element { qp: table.report_qp(qpn)? };
        Some(ibv_async_event { element, event_type })
    };
    match event {
        AsyncEvent::CommEst(qpn) => qp(qpn, IBV_EVENT_COMM_EST),
        AsyncEvent::SqDrained(qpn) => qp(qpn, IBV_EVENT_SQ_DRAINED),
        AsyncEvent::LastWqeReached(qpn) => qp(qpn, IBV_EVENT_QP_LAST_WQE_REACHED),
        AsyncEvent::QpRequestError(qpn) => qp(qpn, IBV_EVENT_QP_REQ_ERR),
        AsyncEvent::QpAccessError(qpn) => qp(qpn, IBV_EVENT_QP_ACCESS_ERR),
        AsyncEvent::QpFatal(qpn) => qp(qpn, IBV_EVENT_QP_FATAL),
        AsyncEvent::CqError(cq) => {
            let element = ibv_async_event_element { cq: table.report_cq(cq)? };
            Some(ibv_async_event { element, event_type: IBV_EVENT_CQ_ERR })
        }
        AsyncEvent::SrqLimitReached(srq) => {
            let element = ibv_async_event_element { srq: table.report_srq(srq)? };
            Some(ibv_async_event { element, event_type: IBV_EVENT_SRQ_LIMIT_REACHED })
        }
    }
}

/// `ibv_get_async_event(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_async_event_step(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
    _: *mut c_void,
    _: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    // SAFETY: the caller's open device; and what cancel.c sleeps on, which is its own.
    let (ctx, sleep) = unsafe { (ctx(context), &mut *sleep) };
    let mut interrupted = sleep.is_interrupted();
    let mut awaited = match sleep.taken() {
        Some(Event::Async(awaited)) => awaited,
        _ => ctx.context.awaited_async_event(),
    };
    loop {
        let next = match awaited.step(std::mem::take(&mut interrupted)) {
            Step::Found(next) => next,
            Step::Nothing => return errno::minus_one_with(libc::EAGAIN),
            Step::Interrupted => return errno::minus_one_with(libc::EINTR),
            Step::Sleep => return sleep.wait(Event::Async(awaited)),
        };
        if let Some(c) = to_c(ctx, next) {
            // SAFETY: the caller's structure.
            unsafe { *event = c };
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event from ibv_get_async_event; which object it names follows from its type, and the object is alive, as
    // whoever destroys it waits for this call.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = element.cq;
                let done = &raw mut (*cq).async_events_completed;
                acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, done, 1);
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = element.qp;
                let done = &raw mut (*qp).events_completed;
                acknowledge(&raw mut (*qp).mutex, &raw mut (*qp).cond, done, 1);
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = element.srq;
                let done = &raw mut (*srq).events_completed;
                acknowledge(&raw mut (*srq).mutex, &raw mut (*srq).cond, done, 1);
            }
            _ => {}
        }
    }
}

/// Counts `n` acknowledged events of an object.
///
/// # Safety
/// All three lie in a live C object, whose mutex and condition are initialized.
pub(crate) unsafe fn acknowledge(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    completed: *mut u32,
    n: u32,
) {
    // SAFETY: by the contract; the counter is changed under the mutex only.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        *completed = (*completed).wrapping_add(n);
        libc::pthread_cond_signal(cond);
        libc::pthread_mutex_unlock(mutex);
    }
}
