//! Memory regions: what work requests and peers may reach.

use std::sync::Mutex;

use remanence_verbs::Mr;

use crate::abi::ibv_mr;

/// A memory region, with what C sees of it in front.
#[repr(C)]
pub(crate) struct MrObj {
    pub(crate) c: ibv_mr,
    /// `ibv_rereg_mr` changes it.
    pub(crate) mr: Mutex<Mr>,
}

/// Our memory region behind C's pointer.
///
/// # Safety
/// `p` came from one of the calls that register memory and was not deregistered yet.
pub(crate) unsafe fn mr<'a>(p: *mut ibv_mr) -> &'a MrObj {
    // SAFETY: by the contract `c` is the first field of a live MrObj.
    unsafe { &*p.cast::<MrObj>() }
}
