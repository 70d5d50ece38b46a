//! Protection domains, and the thread domains that go with them.
//!
//! A thread domain promises that one thread at a time uses its objects. We need no such promise, so it is a name; a parent
//! domain is its protection domain under another name, which keeps the first one in use.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use remanence_verbs::Pd;

use crate::abi::*;
use crate::context::ctx;
use crate::errno;

/// A protection domain, with what C sees of it in front.
#[repr(C)]
pub(crate) struct PdObj {
    pub(crate) c: ibv_pd,
    pub(crate) pd: Pd,
    /// Of a parent domain: the protection domain, and the thread domain if there is one.
    of: Option<(*mut ibv_pd, *mut ibv_td)>,
    /// Parent domains that were made of it.
    parents: AtomicU32,
}

/// A thread domain.
#[repr(C)]
struct TdObj {
    c: ibv_td,
    /// Parent domains that use it.
    used: AtomicU32,
}

/// Our protection domain behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_alloc_pd`] (or is a parent domain) and was not deallocated yet.
pub(crate) unsafe fn pd<'a>(p: *mut ibv_pd) -> &'a PdObj {
    // SAFETY: by the contract `c` is the first field of a live PdObj.
    unsafe { &*p.cast::<PdObj>() }
}

pub(crate) fn install(_: &mut ibv_context_ops, block: &mut verbs_context) {
    block.alloc_td = Some(alloc_td);
    block.dealloc_td = Some(dealloc_td);
    block.alloc_parent_domain = Some(alloc_parent_domain);
}

fn new(c: ibv_pd, pd: Pd, of: Option<(*mut ibv_pd, *mut ibv_td)>) -> *mut ibv_pd {
    let parents = AtomicU32::new(0);
    Box::into_raw(Box::new(PdObj { c, pd, of, parents })).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's open device.
    match unsafe { ctx(context) }.context.alloc_pd() {
        Ok(pd) => new(ibv_pd { context, handle: pd.raw().0 }, pd, None),
        Err(e) => errno::null_with(errno::of(&e)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(p: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's domain.
    let obj = unsafe { pd(p) };
    if obj.parents.load(Ordering::Acquire) != 0 {
        return libc::EBUSY;
    }
    match obj.of {
        None => {
            if let Err(e) = obj.pd.dealloc() {
                return errno::of_verb(e);
            }
        }
        // SAFETY: what a parent domain is made of is alive as long as it is.
        Some((of, td)) => unsafe {
            pd(of).parents.fetch_sub(1, Ordering::Release);
            if let Some(td) = td.cast::<TdObj>().as_ref() {
                td.used.fetch_sub(1, Ordering::Release);
            }
        },
    }
    // SAFETY: the caller gives it back.
    drop(unsafe { Box::from_raw(p.cast::<PdObj>()) });
    0
}

unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: the caller's structure.
    if unsafe { (*attr).comp_mask } != 0 {
        return errno::null_with(libc::EINVAL);
    }
    Box::into_raw(Box::new(TdObj { c: ibv_td { context }, used: AtomicU32::new(0) })).cast()
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let td = td.cast::<TdObj>();
    // SAFETY: the caller gives it back.
    unsafe {
        if (*td).used.load(Ordering::Acquire) != 0 {
            return libc::EBUSY;
        }
        drop(Box::from_raw(td));
    }
    0
}

/// Its allocator, if it brings one, is never asked: we allocate nothing that a card reads.
unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // SAFETY: the caller's structure.
    let attr = unsafe { *attr };
    if attr.pd.is_null() || attr.comp_mask & !KNOWN != 0 {
        return errno::null_with(libc::EINVAL);
    }
    // SAFETY: the caller's domains.
    unsafe {
        let of = pd(attr.pd);
        of.parents.fetch_add(1, Ordering::AcqRel);
        if let Some(td) = attr.td.cast::<TdObj>().as_ref() {
            td.used.fetch_add(1, Ordering::AcqRel);
        }
        new(ibv_pd { context, handle: of.c.handle }, of.pd.clone(), Some((attr.pd, attr.td)))
    }
}

/// Domains belong to the process that made them: there is no kernel that others could ask for one.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _pd_handle: u32) -> *mut ibv_pd {
    errno::null_with(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}
