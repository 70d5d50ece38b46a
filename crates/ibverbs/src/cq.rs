//! Completion queues: the verbs that create, poll, arm and destroy them.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use libc::{PTHREAD_COND_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, pthread_cond_t, pthread_mutex_t};
use remanence_verbs::Cq;
use remanence_wire::Qpn;

use crate::abi::{
    IBV_CQ_ATTR_MODERATE, Plain, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq, ibv_cq_ex,
    ibv_modify_cq_attr, ibv_wc, verbs_context,
};
use crate::channel::channel;
use crate::context::ctx;
use crate::cq_ex::Reader;
use crate::errno;
use crate::wc::Array;

/// A completion queue, with what C sees of it in front: always the extended structure, which begins like the plain
/// one.
#[repr(C)]
pub(crate) struct CqObj {
    /// C reads and writes it too.
    pub(crate) c: UnsafeCell<ibv_cq_ex>,
    pub(crate) cq: Cq,
    /// Of a CQ that is read field by field.
    pub(crate) reader: Option<Reader>,
}

impl CqObj {
    /// Drops what was taken out of the queue ahead of its reader, of a QP that is reset.
    pub(crate) fn forget(&self, qpn: Qpn) {
        if let Some(reader) = &self.reader {
            reader.forget(qpn);
        }
    }
}

/// Our completion queue behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_create_cq`] or `ibv_create_cq_ex` and was not destroyed yet.
#[inline]
pub(crate) unsafe fn cq<'a>(p: *mut ibv_cq) -> &'a CqObj {
    // SAFETY: by the contract `c` is the first field of a live CqObj.
    unsafe { &*p.cast::<CqObj>() }
}

/// Puts this file's functions into a context.
pub(crate) fn install(ops: &mut ibv_context_ops, vc: &mut verbs_context) {
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    vc.modify_cq = Some(modify_cq);
}

/// What a CQ is created with.
pub(crate) struct Request {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
}

/// # Safety
/// The pointers came from us, or are null where C allows that.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    request: &Request,
    reader: Option<Reader>,
) -> Result<*mut CqObj, c_int> {
    // SAFETY: C hands in a live context.
    let (ctx, vectors) = unsafe { (ctx(context), (*context).num_comp_vectors) };
    if request.cqe == 0 || i64::from(request.comp_vector) >= i64::from(vectors) {
        return Err(libc::EINVAL);
    }
    let channel = match request.channel {
        null if null.is_null() => None,
        // SAFETY: C hands in a live channel.
        channel_of_c => Some(unsafe { &channel(channel_of_c).channel }),
    };
    // Notifications name the queue by its address, so there is an address first.
    let object = Box::<CqObj>::new_uninit();
    let user_data = object.as_ptr().expose_provenance() as u64;
    let cq = ctx.context.create_cq(request.cqe, channel, user_data).map_err(|e| errno::of(&e))?;
    let handle = cq.raw();
    let c = ibv_cq_ex {
        context,
        channel: request.channel,
        cq_context: request.cq_context,
        handle: handle.0,
        cqe: c_int::try_from(request.cqe).unwrap_or(c_int::MAX),
        mutex: PTHREAD_MUTEX_INITIALIZER,
        cond: PTHREAD_COND_INITIALIZER,
        ..ibv_cq_ex::zeroed()
    };
    let object = Box::into_raw(Box::write(object, CqObj { c: UnsafeCell::new(c), cq, reader }));
    ctx.table().add_cq(handle, object.cast());
    Ok(object)
}

/// Creates a completion queue of at least `cqe` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return errno::null_with(libc::EINVAL);
    };
    let request = Request { cqe, cq_context, channel, comp_vector };
    // SAFETY: the arguments are C's.
    match unsafe { create(context, &request, None) } {
        Ok(object) => object.cast(),
        Err(e) => errno::null_with(e),
    }
}

/// Changes the number of entries, if what is in the queue fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(p: *mut ibv_cq, cqe: c_int) -> c_int {
    let Ok(capacity) = u32::try_from(cqe) else { return libc::EINVAL };
    // SAFETY: C hands in a live CQ.
    match unsafe { cq(p) }.cq.resize(capacity) {
        Ok(()) => {
            // SAFETY: the same; programs do not resize a queue from two threads at once.
            unsafe { (*p).cqe = cqe };
            0
        }
        Err(e) => errno::of_verb(e),
    }
}

/// Destroys a completion queue that no QP uses, when all of its events that were handed out are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(p: *mut ibv_cq) -> c_int {
    // SAFETY: C hands in a live CQ, whose context is live too.
    let (object, ctx) = unsafe { (cq(p), ctx((*p).context)) };
    let reported = match ctx.destroy_cq(object.cq.raw(), || object.cq.destroy()) {
        Ok(reported) => reported,
        Err(e) => return e,
    };
    // SAFETY: as above; after this nobody else knows the object, which came from a Box.
    unsafe {
        let (mutex, cond) = (&raw mut (*p).mutex, &raw mut (*p).cond);
        wait_for_acks(mutex, cond, &raw const (*p).comp_events_completed, reported.completions);
        wait_for_acks(mutex, cond, &raw const (*p).async_events_completed, reported.asynchronous);
        drop(Box::from_raw(p.cast::<CqObj>()));
    }
    0
}

/// Blocks until as many events are acknowledged as were handed out.
///
/// # Safety
/// The pointers are those of a live object, whose counter changes under its mutex only.
pub(crate) unsafe fn wait_for_acks(
    mutex: *mut pthread_mutex_t,
    cond: *mut pthread_cond_t,
    completed: *const u32,
    reported: u32,
) {
    // SAFETY: by the contract they are live and initialised.
    unsafe {
        libc::pthread_mutex_lock(mutex);
        while ptr::read_volatile(completed) != reported {
            libc::pthread_cond_wait(cond, mutex);
        }
        libc::pthread_mutex_unlock(mutex);
    }
}

unsafe extern "C" fn poll_cq(p: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let max = usize::try_from(num_entries).unwrap_or(0);
    // SAFETY: C hands in a live CQ, and an array as long as it says.
    let (object, mut array) = unsafe { (cq(p), Array::new(wc, max)) };
    let before = match &object.reader {
        None => 0,
        Some(reader) => reader.take(&mut array, max),
    };
    if before == max {
        return before as c_int;
    }
    match object.cq.poll(&mut array, max - before) {
        Ok(n) => (before + n) as c_int,
        // The queue overflowed. What was read ahead comes first.
        Err(_) if before > 0 => before as c_int,
        Err(_) => -1,
    }
}

unsafe extern "C" fn req_notify_cq(p: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: C hands in a live CQ.
    match unsafe { cq(p) }.cq.req_notify(solicited_only != 0) {
        Ok(()) => 0,
        Err(e) => errno::of_verb(e),
    }
}

/// Moderation is the one attribute that a CQ has, and each completion notifies: `ibv_query_device_ex` says so.
unsafe extern "C" fn modify_cq(_: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: C hands in an attribute structure.
    let ibv_modify_cq_attr { attr_mask, moderate } = unsafe { attr.read() };
    if attr_mask & !(IBV_CQ_ATTR_MODERATE as c_uint) != 0 {
        return libc::EINVAL;
    }
    let moderates = attr_mask != 0 && (moderate.cq_count > 1 || moderate.cq_period > 0);
    if moderates { libc::EOPNOTSUPP } else { 0 }
}
