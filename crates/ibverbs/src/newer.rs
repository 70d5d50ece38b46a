//! Names that rdma-core has had since version 44, each with the node of the version that it came with: programs built
//! against newer headers load, and what they ask for is either there or refused as a device refuses that has none of it.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::abi::*;
use crate::context::ctx;
use crate::errno;
use crate::mr::reg_mr_ex;

/// `ibv_reg_mr_ex(3)`: a registration by attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    const BUF: u64 = IBV_REG_MR_MASK_BUF as u64;
    const ADDR: u64 = IBV_REG_MR_MASK_ADDR as u64;
    const FILE: u64 = (IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET) as u64;
    // SAFETY: the caller's structure. (Older headers have it without its last field, which is read if it is announced.)
    let mask = unsafe { (*attr).comp_mask };
    if mask & BUF == 0 {
        // SAFETY: the caller's domain and structure.
        return unsafe { reg_mr_ex(pd, attr) };
    }
    // SAFETY: as announced, the structure has the field, and it is a buffer of ours.
    let (buf, addr, length) = unsafe { (&*(*attr).buf.cast::<Buffer>(), (*attr).addr, (*attr).length) };
    let offset = addr.addr().checked_sub(buf.at.addr());
    let inside = offset.is_some_and(|offset| offset <= buf.size && length <= buf.size - offset);
    if pd != buf.pd || mask & ADDR == 0 || mask & FILE != 0 || !inside {
        return errno::null_with(libc::EINVAL);
    }
    // SAFETY: as above.
    let mut plain = ibv_mr_init_attr { comp_mask: mask & !BUF, ..unsafe { ptr::read(attr) } };
    // SAFETY: the caller's domain, and a structure of ours.
    unsafe { reg_mr_ex(pd, &raw mut plain) }
}

/// Behind C's `ibv_buf`, of which programs have the address only.
struct Buffer {
    pd: *mut ibv_pd,
    at: *mut c_void,
    size: usize,
}

/// `ibv_alloc_buf(3)`: memory that begins with a page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    let mut at = ptr::null_mut();
    // SAFETY: a constant is read; a variable of ours gets the address.
    let refused =
        unsafe { libc::posix_memalign(&raw mut at, libc::sysconf(libc::_SC_PAGESIZE) as usize, size) };
    if refused != 0 {
        return errno::null_with(refused);
    }
    // SAFETY: the caller's variable.
    unsafe { *buf = Box::into_raw(Box::new(Buffer { pd, at, size })).cast() };
    at
}

/// `ibv_free_buf(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    // SAFETY: the caller gives back what `ibv_alloc_buf` made.
    unsafe { libc::free(Box::from_raw(buf.cast::<Buffer>()).at) };
}

/// `ibv_reg_buf_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let comp_mask = u64::from(IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR);
    let mut attr = ibv_mr_init_attr { length, access, comp_mask, addr, buf, ..ibv_mr_init_attr::zeroed() };
    // SAFETY: as of the longer one.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}

/// `ibv_export_buf_dmabuf_fd(3)`: ours are ordinary memory, with no DMA-buf behind them.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    errno::minus_one_with(libc::ENODATA)
}

/// `ibv_query_port_speed(3)`, in units of 100 Mbit/s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    speed: *mut u64,
) -> c_int {
    if port_num != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's open device, and variable.
    unsafe { *speed = (crate::query::mbps(ctx(context)) / 100).max(1).into() };
    0
}

macro_rules! refused {
    ($answer:expr => $ty:ty: $($name:ident)*) => {
        $(
            /// Of rdma-core: what no software device has.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> $ty {
                $answer
            }
        )*
    };
}

refused!(errno::null_with(libc::EOPNOTSUPP) => *mut c_void: ibv_alloc_dmah ibv_create_comp_cntr);
refused!(libc::EOPNOTSUPP => c_int:
    _ibv_query_comp_cntr_caps
    ibv_dealloc_dmah
    ibv_destroy_comp_cntr
    ibv_inc_comp_cntr
    ibv_inc_err_comp_cntr
    ibv_qp_attach_comp_cntr
    ibv_read_comp_cntr
    ibv_read_err_comp_cntr
    ibv_set_comp_cntr
    ibv_set_err_comp_cntr
);
refused!(errno::minus_one_with(libc::EOPNOTSUPP) => c_int:
    ibv_dm_export_dmabuf_fd
    rem_rdma_query_addrinfo
    rem_rdma_resolve_addrinfo
    rem_rdma_write_cm_event
);
