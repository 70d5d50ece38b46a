//! The log on real memory and real connections: [`LogServer`] exports one, [`SessionConnection`] is a connection to one.
//!
//! Appends, reads and whatever else moves records are RDMA into the server's region, by the recipe that its machine needs;
//! the server's application is asked only for what [`crate::proto`] has.

#[expect(clippy::disallowed_types, reason = "who waits for servers has a clock")]
mod connection;
mod medium;
mod server;

pub use connection::{CallError, Method, SessionConnection, connect};
pub use medium::Part;
pub use server::{LogServer, New, OwnLog, ServeError};

/// The number of the log's service at a server.
pub const SERVICE: u16 = 1;
