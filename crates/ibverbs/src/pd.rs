//! Protection domains.

use remanence_verbs::Pd;

use crate::abi::ibv_pd;

/// A protection domain, with what C sees of it in front.
#[repr(C)]
pub(crate) struct PdObj {
    pub(crate) c: ibv_pd,
    pub(crate) pd: Pd,
}

/// Our protection domain behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_alloc_pd`] and was not deallocated yet.
pub(crate) unsafe fn pd<'a>(p: *mut ibv_pd) -> &'a PdObj {
    // SAFETY: by the contract `c` is the first field of a live PdObj.
    unsafe { &*p.cast::<PdObj>() }
}
