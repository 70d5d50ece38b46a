//! Devices: one for each network interface that is up and has an address.

use crate::abi::{ibv_device, verbs_device};

/// A device, with what C sees of it in front. It is never freed: programs compare these pointers between lists.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) c: verbs_device,
    pub(crate) info: Info,
}

// SAFETY: the pointers in `c` lead to statics.
unsafe impl Send for Device {}
// SAFETY: as above; nothing changes after it was made.
unsafe impl Sync for Device {}

/// What we know of a device beyond what C sees.
#[derive(Debug)]
pub(crate) struct Info {
    /// `rem_eth0`.
    pub(crate) name: String,
    /// `eth0`.
    pub(crate) interface: String,
}

/// Our device behind C's pointer.
///
/// # Safety
/// `p` came from `ibv_get_device_list`.
pub(crate) unsafe fn device(p: *mut ibv_device) -> &'static Device {
    // SAFETY: by the contract `c`, whose first field is the public part, is the first field of a Device of ours.
    unsafe { &*p.cast::<Device>() }
}
