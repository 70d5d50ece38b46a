//! Completion channels, and the events of completion queues.

use remanence_verbs::CompChannel;

use crate::abi::ibv_comp_channel;

/// A completion channel, with what C sees of it in front.
#[repr(C)]
pub(crate) struct ChannelObj {
    pub(crate) c: ibv_comp_channel,
    pub(crate) channel: CompChannel,
}

/// Our completion channel behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_create_comp_channel`] and was not destroyed yet.
pub(crate) unsafe fn channel<'a>(p: *mut ibv_comp_channel) -> &'a ChannelObj {
    // SAFETY: by the contract `c` is the first field of a live ChannelObj.
    unsafe { &*p.cast::<ChannelObj>() }
}
