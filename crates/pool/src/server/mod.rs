//! Exports a pool over verbs.
//!
//! [`core`](mod@core) decides, and is pure; the live half owns the QPs and the waiting.

pub mod core;

#[cfg(test)]
mod tests;
