//! The replicated log: an append-only log in the memory of one server or of several.
//!
//! A writer puts records into a server's memory by RDMA and makes them durable with whatever recipe its machine needs
//! (`remanence_persist`). Here is what decides; `remanence_remotelog` puts it on real memory and real connections.
//!
//! Read in this order:
//!
//! 1. [`format`](mod@format) — how a log lies in its region, and why a stale record is never taken for one;
//! 2. [`writer`] — where the next record goes; [`walk`] — how records are found;
//! 3. [`store`] — the server's half: recovery, promises, truncation, trimming; [`proto`] — how it is asked; [`serve`] — by whom;
//! 4. [`group`] — one log on several servers, and why no acknowledged record is lost.
//!
//! Read first: paper 004, section 4.1; `docs/remotelog.md` has the promises and the failures.

pub mod error;
pub mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod group;
pub mod proto;
pub mod serve;
pub mod store;
pub mod walk;
pub mod writer;

pub use error::{AppendError, Damage, OpenError, Refused};
pub use format::{Cursor, Epoch, Geometry, Mode};
pub use group::{GroupError, Options};
pub use store::{Make, Reader, Status, Store};
pub use writer::{Updates, Writer};
