//! The calls of libibverbs that librdmacm makes, by their C names: it is an application of that library like any other,
//! and knows of its objects what the headers say.

use std::ffi::{c_int, c_void};

use crate::abi::*;
use crate::context;
use crate::errno;

unsafe extern "C" {
    pub(super) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(super) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    pub(super) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(super) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(super) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    pub(super) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub(super) fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(super) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    pub(super) fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub(super) fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub(super) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub(super) fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(super) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
}

/// The inline function of the header: the old call for what it can do, the table of the context for the rest.
///
/// # Safety
/// As `ibv_create_qp_ex`.
pub(super) unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: by the contract; the longer structure begins with the shorter one.
    unsafe {
        if (*attr).comp_mask == IBV_QP_INIT_ATTR_PD {
            return ibv_create_qp((*attr).pd, attr.cast());
        }
        match (*context::verbs(context)).create_qp_ex {
            Some(create) => create(context, attr),
            None => errno::null_with(libc::EOPNOTSUPP),
        }
    }
}

/// The inline function of the header, as above.
///
/// # Safety
/// As `ibv_create_srq_ex`.
pub(super) unsafe fn ibv_create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PLAIN: u32 = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    // SAFETY: by the contract; the longer structure begins with the shorter one.
    unsafe {
        let mask = (*attr).comp_mask;
        let basic = mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*attr).srq_type == IBV_SRQT_BASIC;
        if (mask | PLAIN) == PLAIN && mask & IBV_SRQ_INIT_ATTR_PD != 0 && basic {
            return ibv_create_srq((*attr).pd, attr.cast());
        }
        match (*context::verbs(context)).create_srq_ex {
            Some(create) => create(context, attr),
            None => errno::null_with(libc::EOPNOTSUPP),
        }
    }
}
