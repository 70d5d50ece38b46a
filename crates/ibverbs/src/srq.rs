//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use libc::{PTHREAD_COND_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
use remanence_rnic::SrqAttr;
use remanence_verbs::Srq;

use crate::abi::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, IBV_SRQT_BASIC, ibv_context,
    ibv_context_ops, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, verbs_context,
};
use crate::context::ctx;
use crate::cq::wait_for_acks;
use crate::errno;
use crate::pd::pd;

/// A shared receive queue, with what C sees of it in front.
#[repr(C)]
pub(crate) struct SrqObj {
    /// C reads and writes it too.
    c: UnsafeCell<ibv_srq>,
    pub(crate) srq: Srq,
}

/// Our shared receive queue behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_create_srq`] or `ibv_create_srq_ex` and was not destroyed yet.
#[inline]
pub(crate) unsafe fn srq<'a>(p: *mut ibv_srq) -> &'a SrqObj {
    // SAFETY: by the contract `c` is the first field of a live SrqObj.
    unsafe { &*p.cast::<SrqObj>() }
}

/// Puts this file's functions into a context.
pub(crate) fn install(_: &mut ibv_context_ops, vc: &mut verbs_context) {
    vc.create_srq_ex = Some(create_srq_ex);
    vc.get_srq_num = Some(get_srq_num);
}

/// Creates a shared receive queue, and writes back how large it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(p: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: C hands in a live domain and a structure to be read and written.
    unsafe {
        let (domain, context) = (pd(p), (*p).context);
        let attr = (*init).attr;
        // No program asks for the limit here; rdma-core's devices do not look at it either.
        let wanted = SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: 0 };
        let srq = match domain.pd.create_srq(&wanted) {
            Ok(srq) => srq,
            Err(e) => return errno::null_with(errno::of(&e)),
        };
        let handle = srq.raw();
        let c = ibv_srq {
            context,
            srq_context: (*init).srq_context,
            pd: p,
            handle: handle.0,
            mutex: PTHREAD_MUTEX_INITIALIZER,
            cond: PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        };
        let object = Box::into_raw(Box::new(SrqObj { c: UnsafeCell::new(c), srq })).cast::<ibv_srq>();
        ctx(context).table().add_srq(handle, object);
        object
    }
}

unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: C hands in a live context, and a structure whose mask says which fields it has.
    unsafe {
        let mask = (*init).comp_mask;
        let basic = mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*init).srq_type == IBV_SRQT_BASIC;
        if !basic || mask & !(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) != 0 {
            return errno::null_with(libc::EOPNOTSUPP);
        }
        if mask & IBV_SRQ_INIT_ATTR_PD == 0 || (*(*init).pd).context != context {
            return errno::null_with(libc::EINVAL);
        }
        let mut plain = ibv_srq_init_attr { srq_context: (*init).srq_context, attr: (*init).attr };
        let object = ibv_create_srq((*init).pd, &raw mut plain);
        (*init).attr = plain.attr;
        object
    }
}

unsafe extern "C" fn get_srq_num(p: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: C hands in a live queue, and where the number goes.
    unsafe { *number = (*p).handle };
    0
}

/// Changes the size, the limit, or both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(p: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let mask = mask as u32;
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return libc::EINVAL;
    }
    // SAFETY: C hands in a live queue and an attribute structure.
    let (object, attr) = unsafe { (srq(p), attr.read()) };
    let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
    errno::code(object.srq.modify(max_wr, limit).map_err(errno::of_verb))
}

/// Size and limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(p: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: C hands in a live queue.
    match unsafe { srq(p) }.srq.query() {
        Ok(SrqAttr { max_wr, max_sge, limit }) => {
            // SAFETY: and where the answer goes.
            unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit: limit }) };
            0
        }
        Err(e) => errno::of_verb(e),
    }
}

/// Destroys a shared receive queue that no QP uses, when all of its events that were handed out are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(p: *mut ibv_srq) -> c_int {
    // SAFETY: C hands in a live queue, whose context is live too.
    let (object, ctx) = unsafe { (srq(p), ctx((*p).context)) };
    let reported = match ctx.destroy_srq(object.srq.raw(), || object.srq.destroy()) {
        Ok(reported) => reported,
        Err(e) => return e,
    };
    // SAFETY: as above; after this nobody else knows the object, which came from a Box.
    unsafe {
        let (mutex, cond) = (&raw mut (*p).mutex, &raw mut (*p).cond);
        wait_for_acks(mutex, cond, &raw const (*p).events_completed, reported);
        drop(Box::from_raw(p.cast::<SrqObj>()));
    }
    0
}
