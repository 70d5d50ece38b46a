//! Replication as state machines: what is told, what is to be done about it, and until when. Nothing here waits, reads a clock,
//! draws a number or has a connection, so that one seed replays all of it.
//!
//! - [`log`] is an append-only log on one server or several: its format, recovery, and the writer that makes all of them equal;
//! - [`takeover`] decides when a member of a service on several servers tries to become its primary; [`watch`] is its failure
//!   detector. Who *may* be the primary is decided by the log's promises ([`log::group`]);
//! - [`mu`] is consensus by one-sided writes, with a service on it ([`mu::service`]);
//! - [`replicated`] makes a service on several servers of any deterministic state machine, over the log.
//!
//! `remanence_remotelog` puts the log on real memory and real connections; `remanence_kv_live` does with the takeover, and `remanence_smr` with Mu.
#![forbid(unsafe_code)]

pub mod log;
pub mod mu;
pub mod replicated;
pub mod takeover;
pub mod watch;
