//! The live floor of every service: sessions and bytes, and nothing of any protocol.
//!
//! [`server`] admits, keeps the sessions, hands whole messages over once, and sleeps until a deadline or a waker.
#![forbid(unsafe_code)]

pub mod server;
