//! Correct remote persistence: which steps make an update durable on which machine, and the proof.
//!
//! A completed RDMA WRITE is not durable, and what makes it so depends on the responder ([`taxonomy`]). A [`recipe`] is
//! the list of steps for one configuration; [`check`] explores every behaviour of the machine under that list, with a
//! crash in every state; [`plan`] picks the cheapest recipe that is proven.
//!
//! Read first: paper 004, "Correct, Fast Remote Persistence"; `docs/persistence.md` has the model and its assumptions.
#![forbid(unsafe_code)]

pub mod check;
pub mod plan;
pub mod recipe;
pub mod taxonomy;

pub use recipe::{Op, Persistent, Recipe, Shape};
pub use taxonomy::Config;
