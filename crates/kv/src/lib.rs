//! Erda: a key-value store in remote persistent memory, which clients read with one-sided READs and write with one-sided
//! WRITEs, atomically under every failure.
//!
//! Read first: paper 002, "Write-Optimized and Consistent RDMA-based NVM Systems", and `docs/erda.md`, which has what is
//! different here and why: the paper's design loses data in nine ways, and a test per way shows that this one does not
//! (`remanence_erda_paper` has that design, and those tests).
//!
//! Pure: the [`server`] works on a [`pmem::Medium`](remanence_pmem::Medium), the [`client`] emits work requests and takes
//! completions; time is an argument, and nothing waits. `remanence_kv_live` has their host on real memory and real connections.
#![forbid(unsafe_code)]

pub mod client;
pub mod dump;
pub mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod offline;
pub mod overlay;
pub mod proto;
pub mod replica;
pub mod server;
pub mod view;

pub use client::Client;
pub use format::Geometry;
pub use proto::{Expect, Refusal, Reply, Request};
pub use server::{Options, Server};
pub use view::{Mode, View};
