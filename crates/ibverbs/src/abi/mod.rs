//! The C ABI: mirrors of the structures in rdma-core's headers, in their newest layouts (v65), with C's own names.
//!
//! Programs are compiled against older headers too. They see the part they know: of `verbs_context` the end, of every
//! other structure that grew the beginning. So what we allocate is always the newest, and what a program allocates is
//! written only as far as it says it is long.
//!
//! `tests/waits/layout.rs` holds all of this to the headers, field by field.
#![expect(
    missing_docs,
    non_camel_case_types,
    clippy::use_self,
    non_snake_case,
    reason = "the names are C's, and C's headers and man pages say what they mean"
)]

/// What may be made of zeros: the structures of C, in which a null pointer is a value like any other.
///
/// # Safety
/// All bytes zero must be a valid value.
pub unsafe trait Plain: Copy {
    /// All zeros, as C programs start their structures.
    #[must_use]
    fn zeroed() -> Self {
        // SAFETY: what the implementation promises.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($ty:ty),* $(,)?) => {
        $(
            // SAFETY: integers, raw pointers, and functions that may be absent: zeros are a value of each.
            unsafe impl $crate::abi::Plain for $ty {}
        )*
    };
}

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

mod context;
mod cq_ex;
mod enums;
mod qp_ex;
mod rdma;
mod sa;
mod verbs;

pub use context::*;
pub use cq_ex::*;
pub use enums::*;
pub use qp_ex::*;
pub use rdma::*;
pub use sa::*;
pub use verbs::*;

// What we only ever see pointers to, of features that no RoCE device in software has.
opaque!(
    ibv_flow,
    ibv_flow_attr,
    ibv_flow_action,
    ibv_flow_action_esp_attr,
    ibv_buf,
    verbs_ex_private,
    verbs_device_ops,
    verbs_sysfs_dev,
);
