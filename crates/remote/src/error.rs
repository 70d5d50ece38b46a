//! What can go wrong, each as one sentence that says what to do.

use std::net::SocketAddr;

use remanence_persist::plan::Refusal;
use remanence_rnic::WcStatus;

use crate::requester::Broken;
use crate::responder::Fault;
use crate::ring::RingError;

/// Why a call failed.
#[derive(thiserror::Error)]
pub enum Error {
    /// Verbs refused something.
    #[error(transparent)]
    Verbs(#[from] remanence_verbs::Error),
    /// The memory could not be had.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
    /// Who listens there is no server of this protocol.
    #[error("{0} is no persistence server; check the port")]
    Stranger(SocketAddr),
    /// It speaks another version.
    #[error(
        "{peer} speaks version {theirs} of the protocol, and this is version {}; use the same release on both sides",
        crate::hello::VERSION
    )]
    OtherVersion {
        /// The address of the server.
        peer: SocketAddr,
        /// The version of the protocol that the server speaks.
        theirs: u16,
    },
    /// The server refused, and said why.
    #[error("{peer} refused the connection: {why}")]
    Refused {
        /// The address of the server that refused.
        peer: SocketAddr,
        /// The sentence that the server gave.
        why: String,
    },
    /// It asks for a token, and none was given.
    #[error("{0} asks for a token; pass the one that it was started with (--token-file, or REM_TOKEN)")]
    TokenNeeded(SocketAddr),
    /// None of the tokens is its own.
    #[error("{0} has another token; pass the one that it was started with (--token-file, or REM_TOKEN)")]
    WrongToken(SocketAddr),
    /// A token was given, and whoever listens there did not prove to have it.
    #[error(
        "{0} did not prove that it has the token, so nothing was sent to it; check the address, or leave the token out if that server is meant to be open"
    )]
    Unproven(SocketAddr),
    /// The token is one for readers. Nothing was sent.
    #[error("the token for {0} is one for readers; use the one for writers to change something")]
    ReadOnly(SocketAddr),
    /// The two sides cannot rely on anything together, or nothing is proven for what they agree on.
    #[error(transparent)]
    NoRecipe(#[from] Refusal),
    /// The server's memory may be written in any order.
    #[error(
        "the server's memory is registered with relaxed ordering, so that writes may be placed in any order; register it without, or declare \"relaxed\" here to use the slower methods that are proven for it"
    )]
    Relaxed,
    /// The server says that it executes FLUSH, and does not.
    #[error(
        "the server says that it executes {what}, and answers {status}; nothing can be made durable that way: declare \"read\" on its side, or check its RNIC"
    )]
    FlushRefused {
        /// The kind of FLUSH that was tried.
        what: &'static str,
        /// The status that the FLUSH completed with.
        status: WcStatus,
    },
    /// The server executed FLUSHes for this session, and refuses one.
    #[error(
        "the server executed {what} for this session until now, and answers {status}; what was acknowledged is as safe as before, what was under way may be durable or not, and nothing more can be made durable here: connect again, and declare \"read\" on its side if it goes on refusing"
    )]
    FlushWithdrawn {
        /// The kind of FLUSH that was tried.
        what: &'static str,
        /// The status that the FLUSH completed with.
        status: WcStatus,
    },
    /// The server tried to execute a FLUSH, and its medium failed.
    #[error(
        "the server's medium failed under {what} ({status}); what was acknowledged is safe if the medium is, what was under way may be durable or not: check its disk, start the server again, and connect again"
    )]
    MediumFailed {
        /// The kind of FLUSH that was tried.
        what: &'static str,
        /// The status that the FLUSH completed with.
        status: WcStatus,
    },
    /// An argument is wrong; nothing was sent.
    #[error("{0}")]
    Argument(String),
    /// A work request failed. Nothing that was under way may be believed durable; it may be, all the same.
    #[error("{what} failed ({status}); what was under way may be durable or not: connect again and look")]
    Completion {
        /// What failed: a kind of work request, or the connection.
        what: &'static str,
        /// The status of the completion that told of it.
        status: WcStatus,
    },
    /// The other side ended the connection, or is not there any more. As for [`Completion`](Self::Completion).
    #[error(
        "{0} ended the connection, or died; what was under way may be durable or not: connect again and look"
    )]
    Ended(SocketAddr),
    /// The session is over for another reason.
    #[error("{0}; what was under way may be durable or not: connect again and look")]
    Broken(#[from] Broken),
    /// The session has failed before.
    #[error("the session is over since an earlier failure; connect again")]
    Over,
    /// The server did not go on in time.
    #[error(
        "the server has not gone on for {0} s; what is under way may be durable or not: check whether it runs"
    )]
    Silent(u64),
    /// The server was silent, and whoever looked meanwhile ([`Options::give_up`](crate::Options::give_up)) said that it is not
    /// to be waited for any more.
    #[error(
        "{0} is silent, and is waited for no more; what was under way may be durable or not: connect again and look"
    )]
    GivenUp(SocketAddr),
    /// The application at the server refused a call.
    #[error("the server's application refused: {0}")]
    Application(String),
    /// A server cannot serve this region.
    #[error("{0}")]
    Region(String),
    /// Its receive buffers cannot be opened, or recovered.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A client of the server, or its medium.
    #[error(transparent)]
    Session(#[from] Fault),
}

impl From<remanence_service::server::Error> for Error {
    fn from(error: remanence_service::server::Error) -> Self {
        match error {
            remanence_service::server::Error::Verbs(error) => Self::Verbs(error),
            remanence_service::server::Error::Memory(error) => Self::Memory(error),
            remanence_service::server::Error::Full(full) => Self::Argument(full.to_string()),
            remanence_service::server::Error::Medium(error) => Self::Session(Fault::Medium(error)),
        }
    }
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
