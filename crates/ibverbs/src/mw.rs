//! Memory windows: the verbs that allocate, bind and deallocate them.

use std::ffi::{c_int, c_uint};

use remanence_rnic::{Access, MwBind, MwType, SendFlags};
use remanence_verbs::Mw;
use remanence_wire::Lkey;

use crate::abi::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_context_ops, ibv_mw, ibv_mw_bind,
    ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp, verbs_context,
};
use crate::errno;
use crate::pd::pd;
use crate::qp::qp;

/// A memory window, with what C sees of it in front.
#[repr(C)]
pub(crate) struct MwObj {
    c: ibv_mw,
    pub(crate) mw: Mw,
}

/// Our memory window behind C's pointer.
///
/// # Safety
/// `p` came from `ibv_alloc_mw` and was not deallocated yet.
#[inline]
pub(crate) unsafe fn mw<'a>(p: *mut ibv_mw) -> &'a Mw {
    // SAFETY: by the contract `p` is a live MwObj, of which C changes nothing but the part in front.
    unsafe { &(*p.cast::<MwObj>()).mw }
}

/// Puts this file's functions into a context.
pub(crate) fn install(ops: &mut ibv_context_ops, _: &mut verbs_context) {
    ops.alloc_mw = Some(alloc_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    ops.bind_mw = Some(bind_mw);
}

unsafe extern "C" fn alloc_mw(p: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    let ty = match type_ {
        IBV_MW_TYPE_1 => MwType::Type1,
        IBV_MW_TYPE_2 => MwType::Type2,
        _ => return errno::null_with(libc::EINVAL),
    };
    // SAFETY: C hands in a live domain.
    let (domain, context) = unsafe { (pd(p), (*p).context) };
    match domain.pd.alloc_mw(ty) {
        Ok(mw) => {
            let c = ibv_mw { context, pd: p, rkey: mw.rkey().0, handle: mw.raw().0, type_ };
            Box::into_raw(Box::new(MwObj { c, mw })).cast()
        }
        Err(e) => errno::null_with(errno::of(&e)),
    }
}

unsafe extern "C" fn dealloc_mw(p: *mut ibv_mw) -> c_int {
    // SAFETY: C hands in a live window, and forgets it.
    drop(unsafe { Box::from_raw(p.cast::<MwObj>()) });
    0
}

/// Binds a type 1 window; from then on it has another rkey.
unsafe extern "C" fn bind_mw(qp_of_c: *mut ibv_qp, p: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: C hands in live objects of one device, and a structure to read.
    let bound = unsafe {
        let bind = &*bind;
        let flags = SendFlags::from_bits_truncate(bind.send_flags);
        of_bind(&bind.bind_info).and_then(|info| {
            if (*p).pd != (*qp_of_c).pd {
                return Err(libc::EINVAL);
            }
            qp(qp_of_c).qp.bind_mw(bind.wr_id, flags, mw(p), info).map_err(errno::of_post)
        })
    };
    match bound {
        Ok(rkey) => {
            // SAFETY: as above.
            unsafe { (*p).rkey = rkey.0 };
            0
        }
        Err(e) => e,
    }
}

/// What a window is to be bound to.
///
/// # Safety
/// The MR, if there is one, is live.
pub(crate) unsafe fn of_bind(info: &ibv_mw_bind_info) -> Result<MwBind, c_int> {
    let mr = match info.mr {
        // Nothing is bound to nothing only.
        null if null.is_null() => {
            if info.length != 0 {
                return Err(libc::EINVAL);
            }
            Lkey(0)
        }
        // SAFETY: by the contract.
        mr => Lkey(unsafe { (*mr).lkey }),
    };
    let access = access(info.mw_access_flags)?;
    Ok(MwBind { mr, addr: info.addr, len: info.length, access })
}

/// Rights; hints that we do not know are no error.
pub(crate) fn access(flags: c_uint) -> Result<Access, c_int> {
    Access::from_bits(flags & !(IBV_ACCESS_OPTIONAL_RANGE & !Access::RELAXED_ORDERING.bits()))
        .ok_or(libc::EINVAL)
}
