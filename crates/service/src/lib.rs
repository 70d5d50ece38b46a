//! The live floor of every service: sessions and bytes, and nothing of any protocol.
//!
//! [`server`] admits, keeps the sessions, hands whole messages over once, and sleeps until a deadline or a waker.
//! [`client`] has one completion queue for any number of sessions, and one wait for all of them.
#![forbid(unsafe_code)]

pub mod client;
mod deadlines;
mod meter;
pub mod server;

pub use deadlines::Deadlines;
pub use meter::{Meter, Metered};
