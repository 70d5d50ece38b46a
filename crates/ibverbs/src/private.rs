//! The private version node that provider libraries link to. perftest, UCX and libfabric link to libmlx5 or libefa, which
//! do not load without every name of it.
//!
//! rdma-core renames the node with each release that changes what is in it: 34 is that of releases 34 to 56, then came
//! 57, 59, 64 and 65. As all of it refuses, all names are in all nodes (`link.sh` puts them there), those too that only
//! later releases have.
//!
//! No provider ever drives a device here: each of these refuses, except the two that are queries.

use std::ffi::{c_char, c_int, c_uint};

use crate::errno;

/// A provider introduces itself when it is loaded, maybe before our own state is there. We do not need it.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_register_driver_34() {}

/// Whether objects may be destroyed after their device is gone: a variable that providers read.
#[unsafe(no_mangle)]
pub static verbs_allow_disassociate_destroy: u8 = 0;

#[unsafe(no_mangle)]
pub extern "C" fn __ioctl_final_num_attrs() -> c_uint {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_ibdev_sysfs_file(_buf: *mut c_char, _size: usize) -> c_int {
    errno::minus_one_with(libc::EINVAL)
}

macro_rules! refusals {
    (nothing: $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() {}
        )*
    };
    ($answer:expr => $ty:ty: $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> $ty {
                $answer
            }
        )*
    };
}

refusals!(nothing:
    __verbs_log
    ibv_dmabuf_heap_destroy
    ibv_dmabuf_heap_free
    verbs_init_cq
    verbs_set_ops
    verbs_uninit_context
);
refusals!(errno::null_with(libc::EOPNOTSUPP) => *mut std::ffi::c_void:
    _verbs_init_and_alloc_context
    ibv_dmabuf_heap_alloc
    ibv_dmabuf_heap_cc_shared_init
    verbs_open_device
);
refusals!(errno::minus_one_with(libc::EOPNOTSUPP) => c_int:
    ibv_cmd_export_dmabuf_fd
);
refusals!(libc::EOPNOTSUPP => c_int:
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_dmah
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_comp_cntr
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_cq_ex2
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_comp_cntr
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_free_dmah
    ibv_cmd_get_context
    ibv_cmd_inc_comp_cntr
    ibv_cmd_inc_err_comp_cntr
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_qp_attach_comp_cntr
    ibv_cmd_query_comp_cntr_caps
    ibv_cmd_query_context
    ibv_cmd_query_device
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_port_speed
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_comp_cntr
    ibv_cmd_read_counters
    ibv_cmd_read_err_comp_cntr
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_reg_mr_ex
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
    ibv_cmd_set_comp_cntr
    ibv_cmd_set_err_comp_cntr
);

/// Attributes that two devices agree on beyond the standard: we have none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// As [`ibv_query_ece`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece() -> c_int {
    errno::set(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}
