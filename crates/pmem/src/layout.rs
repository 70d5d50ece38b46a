//! Checksummed building blocks of on-media formats. All integers are little-endian.
//!
//! [`Root`] is a small record that is replaced as a whole: where a format keeps what must never be half-new.
//! [`Log`] is a sequence of records that is appended to. Both are read after a crash of any kind, at any point, and
//! then hold what was durable, perhaps what was not yet, and nothing else; `tests.rs` crashes them at every step.
//!
//! What recovery hands out it makes durable first: after a crash of the process alone, the newest record may still be
//! on its way to the device, and who has acted on it must not lose it to a second failure.

mod log;
mod root;
mod uuid;

use std::io;

pub use log::{Appended, Log, LogError, Unrecovered};
pub use root::{ROOT_LEN, ROOT_PAYLOAD_MAX, Root};
pub use uuid::Uuid;

/// Why a block could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Nothing valid is there: never formatted, formatted for something else, or damaged beyond repair.
    #[error("no valid record at offset {offset}: it was never written, or its medium is damaged")]
    Invalid {
        /// Where it should be.
        offset: u64,
    },
    /// The medium failed.
    #[error("the medium failed: {0}")]
    Medium(#[from] io::Error),
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
