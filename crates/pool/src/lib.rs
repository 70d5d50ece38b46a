//! Durable remote blobs: a pool of memory in a file, served over verbs.
//!
//! Read in this order:
//!
//! 1. [`format`](mod@format) — how a pool lies in its file, and why a crash at any point is harmless;
//! 2. [`pool`] — a blob's life: reserved, data durable, committed; [`recover`](mod@recover) is the way back after a
//!    crash. Both are pure: they decide over a [`remanence_pmem::Medium`] and never wait for anything else;
//! 3. [`quorum`] and [`promise`] — why of several servers with one blob the right one is believed; pure;
//! 4. [`proto`] and [`auth`] — what client and server say to each other before and around the one-sided
//!    operations that move the data;
//! 5. `server` — exports a pool: who has the token may write into the extents it reserved and read what it looked
//!    up, and reaches nothing else;
//! 6. `client` — puts a stream on several servers at once and says *durable* when enough of them have said so.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod auth;
pub mod blob;
pub mod client;
pub mod error;
pub mod format;
pub mod pool;
pub mod promise;
pub mod proto;
pub mod quorum;
pub mod recover;
pub mod server;

pub use blob::{BlobName, Digest, Listing, State, Version};
pub use error::{OpenError, PoolError};
pub use pool::{Change, Pool};
pub use recover::recover;
