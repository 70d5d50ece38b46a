//! The write cache on real files and processes.
//!
//! | module | what it is |
//! |---|---|
//! | [`face`] | inside a program: sees its calls, logs its changes, absorbs its syncs |
//! | [`daemon`] | owns the log, and has what is in it synced into its files |
//! | [`copies`] | the servers that have a log's copy |
//! | [`memory`] | the user's directory in memory |
//! | [`build`] | files made again from the images that servers have |
//! | [`command`] | what a command asks a daemon |
//! | [`supervisor`] | the face for programs that no library can be loaded into, from another process |
//! | [`recover`] | carries out on real files what a log has after a crash |
//!
//! Read first: `segment.rs`, what the two halves share, and when a sync may be absorbed.

pub mod build;
pub mod command;
pub mod copies;
pub mod daemon;
pub mod face;
pub mod memory;
pub mod recover;
pub mod supervisor;

mod medium;
mod segment;
mod sys;
mod wire;
