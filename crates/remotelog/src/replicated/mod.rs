//! A replicated service on real memory and connections: [`Host`] serves a [`StateMachine`] whose commands are records of a log on several
//! servers, [`Client`] and [`AsyncClient`] have them carried out.
//!
//! A host is the log's one writer. Several may be ready: the one that runs last shuts the others out, and has everything that any of
//! them had acknowledged. A client knows the addresses of all of them, and goes on with another one where one is gone or was replaced; a command that
//! it sends again is applied once. What decides is in [`remanence_coord::replicated`], and `docs/services.md` shows how a service is written.

mod client;
mod host;

pub use client::{AsyncClient, Client, ClientError, ClientOptions};
pub use host::{Host, HostError, HostOptions};
pub use remanence_codec::Malformed;
pub use remanence_coord::replicated::{Limits, Refusal, Reply, Request, StateMachine};

/// The number of a replicated service at its host.
pub const SERVICE: u16 = 2;

/// Asks a host what acknowledged commands survive. The host answers it and not its replica, whose requests begin with other bytes; its
/// [answer](Reply::Done) is three bits, or nothing if it has made no record durable yet.
const SURVIVES: &[u8] = &[0];
