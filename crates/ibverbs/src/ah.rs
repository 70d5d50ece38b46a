//! Address handles: where a UD send goes.

use remanence_verbs::Ah;

use crate::abi::ibv_ah;

/// An address handle, with what C sees of it in front.
#[repr(C)]
pub(crate) struct AhObj {
    pub(crate) c: ibv_ah,
    pub(crate) ah: Ah,
}

/// Our address handle behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_create_ah`] or [`ibv_create_ah_from_wc`] and was not destroyed yet.
pub(crate) unsafe fn ah<'a>(p: *mut ibv_ah) -> &'a AhObj {
    // SAFETY: by the contract `c` is the first field of a live AhObj.
    unsafe { &*p.cast::<AhObj>() }
}
