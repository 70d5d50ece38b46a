//! The write cache on real files and processes.
//!
//! | module | what it is |
//! |---|---|
//! | [`recover`] | carries out on real files what a log has after a crash |

pub mod recover;
