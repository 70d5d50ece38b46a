//! The Redis protocol and commands over any key-value store, sans-IO.
//!
//! Bytes of a connection go into a [`protocol::Decoder`]; requests come out of it and go into an [`engine::Session`] with
//! a [`store::Store`], the time and a random number; replies are appended to a buffer. No thread, clock or socket is in
//! here: `remanence-gateway` has those, and a test has neither.
//!
//! ```
//! use remanence_resp::engine::{Config, Moment, Session, Shared};
//! use remanence_resp::memory::MemoryStore;
//! use remanence_resp::protocol::{Decoder, Limits};
//!
//! let shared = Shared::new(Config::default(), 0);
//! let mut session = Session::open(&shared, "127.0.0.1:50000", "127.0.0.1:6379", 0);
//! let mut store = MemoryStore::default();
//! let mut decoder = Decoder::new(Limits::default());
//! let mut replies = Vec::new();
//!
//! decoder.push(b"SET greeting hello EX 60\r\n*2\r\n$3\r\nGET\r\n$8\r\ngreeting\r\n");
//! while let Some(request) = decoder.next(session.stranger(&shared)).unwrap() {
//!     session.execute(&request, &mut store, &shared, Moment { unix_us: 0, random: 0 }, &mut replies);
//! }
//! assert_eq!(replies, b"+OK\r\n$5\r\nhello\r\n");
//! ```
//!
//! What is not here: shard channels, scripts, lists, sets, sorted sets, streams, cluster
//! and replication commands. They are answered as commands that a Redis server does not know.
//!
//! Read first: the RESP2 and RESP3 specifications, and Redis' command reference. Texts of errors are Redis 7.0's to the
//! letter; tests run random commands against a real server beside this one.
#![forbid(unsafe_code)]

pub mod channels;
pub mod command;
pub mod engine;
pub mod float80;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod glob;
mod holds;
pub mod joint;
pub mod memory;
pub mod number;
pub mod parts;
pub mod protocol;
mod replay;
pub mod stats;
pub mod store;
pub mod sweep;
pub mod value;
