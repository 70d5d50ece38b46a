//! What this crate's callers can be told. Verbs keep the engine's own errors; what the machine refuses is added.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use remanence_rnic::cm::CmError;
use remanence_rnic::{CqError, PostError, VerbError, WcStatus};
use remanence_wire::cm::RejReason;

/// Why a call failed.
#[derive(Clone, thiserror::Error)]
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
        /// The error that the operating system gave.
        source: Arc<io::Error>,
    },
    /// The connection manager refused.
    #[error(transparent)]
    Cm(#[from] CmError),
    /// Another listener has the port.
    #[error("port {0} is taken by another listener on this host: stop it, or choose another port")]
    PortInUse(u16),
    /// The peer does not want the connection.
    #[error("{} refused the connection: {}", place(peer), describe(*reason))]
    Rejected {
        /// The address that refused, and the port that was asked for.
        peer: SocketAddr,
        /// The reason in the peer's REJ.
        reason: RejReason,
        /// What its consumer says, padded with zeros.
        private_data: Arc<[u8]>,
    },
    /// The peer did not answer, or its host says that nothing answers there.
    #[error("{} does not answer: check the address, and that the server is running", place(_0))]
    NoAnswer(SocketAddr),
    /// A work request failed.
    #[error("a work request failed: {0}")]
    Completion(WcStatus),
    /// The connection is over.
    #[error("the connection to {} is over", place(_0))]
    Disconnected(SocketAddr),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source: Arc::new(source) }
    }
}

/// A peer, with its port where that is known: of one that connected to us it is not.
fn place(peer: &SocketAddr) -> String {
    if peer.port() == 0 { peer.ip().to_string() } else { peer.to_string() }
}

/// The reasons that a user can do something about, in the user's words.
fn describe(reason: RejReason) -> String {
    match reason {
        RejReason::INVALID_SERVICE_ID => {
            "nothing listens on that port; start the server, or check the port".to_owned()
        }
        RejReason::CONSUMER_DEFINED => "the program there said no".to_owned(),
        other => other.to_string(),
    }
}
