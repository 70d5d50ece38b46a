//! The functions inside a context. Programs call the data path through them without a look whether they are there, and
//! take a missing one of the others for a library that is older than it is: so every one is filled, by its file if we
//! have it, else by a refusal.

use std::ffi::{c_int, c_void};

use crate::abi::*;
use crate::errno;
use crate::{cq, cq_ex, mr, mw, pd, qp, qp_ex, query, srq, wr};

/// Refusals by number of arguments. The types follow from the field that one is put into.
mod refuse {
    use super::*;

    pub(super) unsafe extern "C" fn int1<A>(_: A) -> c_int {
        libc::EOPNOTSUPP
    }
    pub(super) unsafe extern "C" fn int2<A, B>(_: A, _: B) -> c_int {
        libc::EOPNOTSUPP
    }
    pub(super) unsafe extern "C" fn int3<A, B, C>(_: A, _: B, _: C) -> c_int {
        libc::EOPNOTSUPP
    }
    pub(super) unsafe extern "C" fn int4<A, B, C, D>(_: A, _: B, _: C, _: D) -> c_int {
        libc::EOPNOTSUPP
    }
    /// Of those that say -1 and not the reason.
    pub(super) unsafe extern "C" fn minus_one1<A>(_: A) -> c_int {
        errno::minus_one_with(libc::EOPNOTSUPP)
    }
    pub(super) unsafe extern "C" fn minus_one3<A, B, C>(_: A, _: B, _: C) -> c_int {
        errno::minus_one_with(libc::EOPNOTSUPP)
    }
    pub(super) unsafe extern "C" fn null0() -> *mut c_void {
        errno::null_with(libc::EOPNOTSUPP)
    }
    pub(super) unsafe extern "C" fn null1<A, T>(_: A) -> *mut T {
        errno::null_with(libc::EOPNOTSUPP)
    }
    pub(super) unsafe extern "C" fn null2<A, B, T>(_: A, _: B) -> *mut T {
        errno::null_with(libc::EOPNOTSUPP)
    }
    pub(super) unsafe extern "C" fn null3<A, B, C, T>(_: A, _: B, _: C) -> *mut T {
        errno::null_with(libc::EOPNOTSUPP)
    }
    pub(super) unsafe extern "C" fn null5<A, B, C, D, E, T>(_: A, _: B, _: C, _: D, _: E) -> *mut T {
        errno::null_with(libc::EOPNOTSUPP)
    }
    pub(super) unsafe extern "C" fn nothing0() {}
    pub(super) unsafe extern "C" fn nothing1<A>(_: A) {}
}

/// Fills a context.
pub(crate) fn install(block: &mut verbs_context) {
    refuse_all(block);
    let mut ops = block.context.ops;
    query::install(&mut ops, block);
    pd::install(&mut ops, block);
    mr::install(&mut ops, block);
    mw::install(&mut ops, block);
    cq::install(&mut ops, block);
    cq_ex::install(&mut ops, block);
    srq::install(&mut ops, block);
    qp::install(&mut ops, block);
    qp_ex::install(&mut ops, block);
    wr::install(&mut ops, block);
    block.context.ops = ops;
}

fn refuse_all(block: &mut verbs_context) {
    use refuse::*;

    let ops = &mut block.context.ops;
    ops._compat_query_device = Some(int2);
    ops._compat_query_port = Some(int3);
    // No header ever called these; they hold the places of functions that are symbols now.
    for unused in [
        &mut ops._compat_alloc_pd,
        &mut ops._compat_dealloc_pd,
        &mut ops._compat_reg_mr,
        &mut ops._compat_rereg_mr,
        &mut ops._compat_dereg_mr,
        &mut ops._compat_create_cq,
        &mut ops._compat_cq_event,
        &mut ops._compat_resize_cq,
        &mut ops._compat_destroy_cq,
        &mut ops._compat_create_srq,
        &mut ops._compat_modify_srq,
        &mut ops._compat_query_srq,
        &mut ops._compat_destroy_srq,
        &mut ops._compat_create_qp,
        &mut ops._compat_query_qp,
        &mut ops._compat_modify_qp,
        &mut ops._compat_destroy_qp,
        &mut ops._compat_create_ah,
        &mut ops._compat_destroy_ah,
        &mut ops._compat_attach_mcast,
        &mut ops._compat_detach_mcast,
        &mut ops._compat_async_event,
    ] {
        *unused = Some(null0);
    }
    ops.alloc_mw = Some(null2);
    ops.bind_mw = Some(int3);
    ops.dealloc_mw = Some(int1);
    // Of these two a negative number is the error, a positive one a count.
    ops.poll_cq = Some(minus_one3);
    ops.req_notify_cq = Some(int2);
    ops.post_srq_recv = Some(int3);
    ops.post_send = Some(int3);
    ops.post_recv = Some(int3);

    block.free_buf = Some(nothing1);
    block.alloc_buf = Some(null3);
    block.dm_export_dmabuf_fd = Some(minus_one1);
    block.reg_mr_ex = Some(null2);
    block.dealloc_dmah = Some(int1);
    block.alloc_dmah = Some(null2);
    block.query_port = Some(int4);
    block.advise_mr = Some(refuse_advice);
    block.alloc_null_mr = Some(null1);
    block.read_counters = Some(int4);
    block.attach_counters_point_flow = Some(int3);
    block.create_counters = Some(null2);
    block.destroy_counters = Some(int1);
    block.reg_dm_mr = Some(null5);
    block.alloc_dm = Some(null2);
    block.free_dm = Some(int1);
    block.modify_flow_action_esp = Some(int2);
    block.destroy_flow_action = Some(int1);
    block.create_flow_action_esp = Some(null2);
    block.modify_qp_rate_limit = Some(int2);
    block.alloc_parent_domain = Some(null2);
    block.dealloc_td = Some(int1);
    block.alloc_td = Some(null2);
    block.modify_cq = Some(int2);
    block.post_srq_ops = Some(int3);
    block.destroy_rwq_ind_table = Some(int1);
    block.create_rwq_ind_table = Some(null2);
    block.destroy_wq = Some(int1);
    block.modify_wq = Some(int2);
    block.create_wq = Some(null2);
    block.query_rt_values = Some(int2);
    block.create_cq_ex = Some(null2);
    block.query_device_ex = Some(int4);
    block.ibv_destroy_flow = Some(int1);
    block.ABI_placeholder2 = Some(nothing0);
    block.ibv_create_flow = Some(null2);
    block.ABI_placeholder1 = Some(nothing0);
    block.open_qp = Some(null2);
    block.create_qp_ex = Some(null2);
    block.get_srq_num = Some(int2);
    block.create_srq_ex = Some(null2);
    block.open_xrcd = Some(null2);
    block.close_xrcd = Some(int1);
}

unsafe extern "C" fn refuse_advice(
    _: *mut ibv_pd,
    _: ibv_advise_mr_advice,
    _: u32,
    _: *mut ibv_sge,
    _: u32,
) -> c_int {
    libc::EOPNOTSUPP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_is_missing() {
        let mut block = Box::new(verbs_context::zeroed());
        install(&mut block);
        let all = std::ptr::from_ref(&*block).cast::<usize>();
        let words = std::mem::offset_of!(verbs_context, _ABI_placeholder3) / 8;
        let ops =
            std::mem::offset_of!(verbs_context, context) / 8 + std::mem::offset_of!(ibv_context, ops) / 8;
        let private = std::mem::offset_of!(verbs_context, priv_) / 8;
        for word in (0..words).chain(ops..ops + size_of::<ibv_context_ops>() / 8).filter(|&w| w != private) {
            // SAFETY: a word of the block, which consists of pointers there.
            assert_ne!(unsafe { *all.add(word) }, 0, "the pointer at offset {}", word * 8);
        }
    }
}
