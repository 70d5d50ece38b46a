//! The benches: each reproduces one figure or table, or holds one hot path against the physical limit of the
//! machine and against the peer that a user would pick instead.
//!
//! What is compared is interleaved in one run. The two cores of a small virtual machine drift between a *near*
//! and a *far* state (see [`machine`]), which changes two-core figures by up to 3.5 times: so every sample is
//! tagged with the state that was probed before and after it, and ratios are taken within one state only.

mod alike;
pub mod claims;
pub mod compare;
pub mod copy_engine;
pub mod counter;
pub mod effort;
pub mod erda;
pub mod failover;
pub mod gateway;
pub mod kv_size;
mod limits;
pub mod load_latency;
pub mod machine;
pub mod markdown;
pub mod netns;
pub mod nvcache;
pub mod nvpages;
mod only;
pub mod page;
pub mod peers;
pub mod perftest;
pub mod plot;
pub mod process;
mod programs;
pub mod quorum;
mod redis;
pub mod remotelog;
pub mod repeat;
pub mod report;
pub mod role;
pub mod rpc;
pub mod samples;
pub mod server_load;
pub mod settings;
pub mod stats;
pub mod transport;
pub mod urdma;
pub mod verbs;
#[cfg(test)]
mod whole_path;
