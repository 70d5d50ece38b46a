//! Remote procedure calls over UD QPs, and what they are for here: making data durable by asking the remote CPU.
//!
//! The study of Kalia, Andersen and Kaminsky (SoCC '20) on this stack. Its question is when a call to the remote CPU is
//! as good as one-sided RDMA for data that must survive a failure, and its answers need a request path that leaves
//! nothing on the table.
//!
//! | module | what |
//! |---|---|
//! | [`header`] | the packets |
//! | [`core`] | the protocol, sans-IO: sessions, fragments, loss, congestion, at most once |
//! | [`live`] | the same on a live device: an event loop over a UD QP |
//! | [`copier`], [`durable`] | calls that make their payload durable, by a copy engine |
//! | [`log`] | the persistent log server |
//! | [`pwrite`] | the one-sided way: WRITE and READ, WRITE and FLUSH |
//! | [`visibility`] | what a completed WRITE is, on a responder with the stages of a real one |
//!
//! `docs/rpc.md` has the protocol, the formats, and what holds of the paper here.
#![forbid(unsafe_code)]

mod chooser;
pub mod copier;
pub mod core;
mod draw;
pub mod durable;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod header;
pub mod live;
pub mod log;
mod metering;
pub mod pwrite;
pub mod visibility;

pub use error::Error;
pub use remanence_auth::Token;
pub use remanence_service::server::Stop;
pub use remanence_service::{Meter, Metered};
