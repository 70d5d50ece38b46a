//! What this crate's callers can be told. Verbs keep the engine's own errors; what the machine refuses is added.

use std::io;
use std::sync::Arc;

use remanence_rnic::{CqError, PostError, VerbError};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The engine refused a verb.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// The engine refused a work request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A completion queue is broken.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// Its answer.
        source: Arc<io::Error>,
    },
    /// A blocking call reached its time limit.
    #[error("timed out: {0}")]
    TimedOut(&'static str),
}

impl Error {
    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source: Arc::new(source) }
    }
}
