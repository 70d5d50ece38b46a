//! Names of the export lists that nobody has written yet, so that programs load: each answers that the function is not
//! implemented. Whoever defines one deletes its name here.

use std::ffi::{c_int, c_void};

use crate::errno;

macro_rules! absent {
    ($answer:expr => $ty:ty: $($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> $ty {
                $answer
            }
        )*
    };
}

absent!(errno::null_with(libc::ENOSYS) => *mut c_void:
    rem_rdma_create_event_channel
    rem_rdma_get_devices
    rem_rdma_event_str
);
absent!(errno::minus_one_with(libc::ENOSYS) => c_int:
    rem_raccept
    rem_rbind
    rem_rclose
    rem_rconnect
    rem_rdma_accept
    rem_rdma_ack_cm_event
    rem_rdma_bind_addr
    rem_rdma_connect
    rem_rdma_create_ep
    rem_rdma_create_id
    rem_rdma_create_qp
    rem_rdma_create_qp_ex
    rem_rdma_create_srq
    rem_rdma_create_srq_ex
    rem_rdma_destroy_ep
    rem_rdma_destroy_event_channel
    rem_rdma_destroy_id
    rem_rdma_destroy_qp
    rem_rdma_destroy_srq
    rem_rdma_disconnect
    rem_rdma_establish
    rem_rdma_free_devices
    rem_rdma_freeaddrinfo
    rem_rdma_get_cm_event
    rem_rdma_get_dst_port
    rem_rdma_get_remote_ece
    rem_rdma_get_request
    rem_rdma_get_src_port
    rem_rdma_getaddrinfo
    rem_rdma_init_qp_attr
    rem_rdma_join_multicast
    rem_rdma_join_multicast_ex
    rem_rdma_leave_multicast
    rem_rdma_listen
    rem_rdma_migrate_id
    rem_rdma_notify
    rem_rdma_reject
    rem_rdma_reject_ece
    rem_rdma_resolve_addr
    rem_rdma_resolve_route
    rem_rdma_set_local_ece
    rem_rdma_set_option
    rem_rfcntl
    rem_rgetpeername
    rem_rgetsockname
    rem_rgetsockopt
    rem_riomap
    rem_riounmap
    rem_riowrite
    rem_rlisten
    rem_rpoll
    rem_rread
    rem_rreadv
    rem_rrecv
    rem_rrecvfrom
    rem_rrecvmsg
    rem_rselect
    rem_rsend
    rem_rsendmsg
    rem_rsendto
    rem_rsetsockopt
    rem_rshutdown
    rem_rsocket
    rem_rwrite
    rem_rwritev
);
