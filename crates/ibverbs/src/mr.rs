//! Memory regions: what work requests and peers may reach.
//!
//! A program registers memory of its own, wherever it lies, and may unmap it while it is registered: then work requests
//! and peers are refused, as they are on demand-paged memory of real devices.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use remanence_pmem::{Error as PmemError, Region};
use remanence_rnic::Access;
use remanence_verbs::{Mr, MrMemory};

use crate::abi::*;
use crate::errno;
use crate::pd::{PdObj, pd};

/// A memory region, with what C sees of it in front.
#[repr(C)]
pub(crate) struct MrObj {
    pub(crate) c: ibv_mr,
    /// `ibv_rereg_mr` changes it.
    state: Mutex<State>,
}

/// A registration, and what of it must be said again when a part of it changes.
struct State {
    mr: Mr,
    access: Access,
}

/// Our memory region behind C's pointer.
///
/// # Safety
/// `p` came from one of the calls that register memory and was not deregistered yet.
pub(crate) unsafe fn mr<'a>(p: *mut ibv_mr) -> &'a MrObj {
    // SAFETY: by the contract `c` is the first field of a live MrObj.
    unsafe { &*p.cast::<MrObj>() }
}

impl MrObj {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn install(_: &mut ibv_context_ops, block: &mut verbs_context) {
    block.reg_mr_ex = Some(reg_mr_ex);
    block.advise_mr = Some(advise_mr);
}

/// The rights that C asks for. Hints that we do not know are no error, and huge pages are pages.
fn rights(access: c_uint) -> Result<Access, c_int> {
    let hints = IBV_ACCESS_OPTIONAL_RANGE & !Access::RELAXED_ORDERING.bits();
    Access::from_bits(access & !(hints | IBV_ACCESS_HUGETLB)).ok_or(libc::EINVAL)
}

/// Borrows memory of the program.
fn region(addr: *mut c_void, length: usize) -> Result<Region, c_int> {
    // SAFETY: the memory is the program's: no Rust code has references into it.
    unsafe { Region::borrowed(addr.cast(), length as u64) }.map_err(|e| match e {
        PmemError::BadLength { .. } => libc::EINVAL,
        _ => libc::ENOMEM,
    })
}

fn register(
    domain: &PdObj,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Result<State, c_int> {
    let access = rights(access)?;
    if length == 0 {
        return Err(libc::EINVAL);
    }
    let region = region(addr, length)?;
    let mr = domain.pd.reg_mr_at(&region, 0, length as u64, iova, access).map_err(|e| errno::of(&e))?;
    Ok(State { mr, access })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    p: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's domain.
    let (domain, context) = unsafe { (pd(p), (*p).context) };
    match register(domain, addr, length, iova, access) {
        Ok(state) => {
            let (lkey, rkey) = (state.mr.lkey().0, state.mr.rkey().0);
            let c = ibv_mr { context, pd: p, addr, length, handle: lkey, lkey, rkey };
            Box::into_raw(Box::new(MrObj { c, state: Mutex::new(state) })).cast()
        }
        Err(e) => errno::null_with(e),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    p: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as of the longer one.
    unsafe { ibv_reg_mr_iova2(p, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    p: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as of the other one.
    unsafe { ibv_reg_mr_iova2(p, addr, length, iova, access.cast_unsigned()) }
}

/// As `ibv_reg_mr_ex(3)`, for memory that the program has of its own.
pub(crate) unsafe extern "C" fn reg_mr_ex(p: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    const KNOWN: u64 = (IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR) as u64;
    // SAFETY: the caller's structure.
    let attr = unsafe { &*attr };
    let given = |mask: c_uint| attr.comp_mask & u64::from(mask) != 0;
    if attr.comp_mask & !KNOWN != 0 {
        return errno::null_with(libc::EOPNOTSUPP);
    }
    if !given(IBV_REG_MR_MASK_ADDR) {
        return errno::null_with(libc::EINVAL);
    }
    let iova = if given(IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.addr.addr() as u64 };
    // SAFETY: the caller's domain.
    unsafe { ibv_reg_mr_iova2(p, attr.addr, attr.length, iova, attr.access.cast_unsigned()) }
}

/// What changes of a registration.
struct Change<'a> {
    pd: Option<&'a PdObj>,
    memory: Option<(*mut c_void, usize)>,
    access: Option<c_uint>,
}

fn change(obj: &MrObj, change: &Change<'_>) -> Result<(), c_int> {
    let mut state = obj.state();
    let access = change.access.map_or(Ok(state.access), rights)?;
    let fresh = change.memory.map(|(addr, length)| region(addr, length)).transpose()?;
    let memory = match (&fresh, change.memory) {
        (Some(region), Some((addr, length))) => {
            Some(MrMemory { region, offset: 0, len: length as u64, iova: addr.addr() as u64, access })
        }
        _ => None,
    };
    let kept = state.mr.region().clone();
    let memory = memory.or_else(|| {
        let (offset, len, iova) = (state.mr.offset(), state.mr.len(), state.mr.addr());
        change.access.map(|_| MrMemory { region: &kept, offset, len, iova, access })
    });
    state.mr.rereg(change.pd.map(|pd| &pd.pd), memory.as_ref()).map_err(|e| errno::of(&e))?;
    state.access = access;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    p: *mut ibv_mr,
    flags: c_int,
    new_pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = flags.cast_unsigned();
    let given = |flag: c_uint| flags & flag != 0;
    let moved = given(IBV_REREG_MR_CHANGE_TRANSLATION);
    if flags == 0
        || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || moved && (addr.is_null() || length == 0)
        || access != 0 && !given(IBV_REREG_MR_CHANGE_ACCESS)
    {
        errno::set(libc::EINVAL);
        return IBV_REREG_MR_ERR_INPUT;
    }
    let wanted = Change {
        // SAFETY: the caller's domain, if the flag says that there is one.
        pd: given(IBV_REREG_MR_CHANGE_PD).then(|| unsafe { pd(new_pd) }),
        memory: moved.then_some((addr, length)),
        access: given(IBV_REREG_MR_CHANGE_ACCESS).then_some(access.cast_unsigned()),
    };
    // SAFETY: the caller's MR.
    if let Err(e) = change(unsafe { mr(p) }, &wanted) {
        errno::set(e);
        return IBV_REREG_MR_ERR_CMD;
    }
    // SAFETY: as above; programs do not change a region from two threads at once.
    unsafe {
        if wanted.pd.is_some() {
            (*p).pd = new_pd;
        }
        if moved {
            ((*p).addr, (*p).length) = (addr, length);
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(p: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's MR, which it gives back if it can go.
    unsafe {
        if let Err(e) = mr(p).state().mr.dereg() {
            return errno::of_verb(e);
        }
        drop(Box::from_raw(p.cast::<MrObj>()));
    }
    0
}

/// Memory is present when it is touched; there is nothing to fetch ahead.
unsafe extern "C" fn advise_mr(
    _: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    _: *mut ibv_sge,
    num_sges: u32,
) -> c_int {
    if advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
        || flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0
        || num_sges == 0
    {
        return libc::EINVAL;
    }
    0
}

/// There is no device memory, and no other device that we could share memory with.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    errno::null_with(libc::EOPNOTSUPP)
}

/// Regions belong to the process that made them.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _mr_handle: u32) -> *mut ibv_mr {
    errno::null_with(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _dm_handle: u32) -> *mut ibv_dm {
    errno::null_with(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}
