//! Exports a pool over verbs.
//!
//! [`core`](mod@core) decides, and is pure; [`live`] has the QPs and does the waiting; [`file`](mod@file) opens the
//! pool's file, or makes it.

pub mod core;
pub mod file;
pub mod live;

pub use self::core::{Limits, Stats};
pub use self::file::{FileError, in_memory, open_or_make};
pub use self::live::{Options, Port, Server};

#[cfg(test)]
mod tests;
