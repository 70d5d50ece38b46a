//! What an endpoint tells its caller.

use std::fmt;

use super::buffers::{Body, Buffers};
use crate::header::{Address, Status};

/// Names a session at one endpoint. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId {
    pub(crate) number: u32,
    pub(crate) key: u32,
}

/// Names a request that a server got, until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId {
    pub(crate) session: SessionId,
    pub(crate) number: u64,
}

impl RequestId {
    /// The session that it came over.
    #[must_use]
    pub const fn session(self) -> SessionId {
        self.session
    }
}

/// Why a session is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Ended {
    /// The client asked for it.
    #[error("the session was closed")]
    Closed,
    /// The server has no room for it.
    #[error("the server has no room for another session")]
    Refused,
    /// The server does not know it any more.
    #[error("the server started anew, or gave this client up: connect again")]
    Reset,
    /// The peer says nothing.
    #[error("the peer does not answer")]
    Unreachable,
    /// The server asks for a token, and this endpoint has none.
    #[error("the server asks for a token: give the one that it was started with")]
    TokenNeeded,
    /// The server has another token.
    #[error("the server has another token: give the one that it was started with")]
    WrongToken,
    /// This endpoint has a token, and the server cannot prove to have it.
    #[error(
        "the server asks for no token, and cannot prove to be the right one: if it is, call it without a token"
    )]
    NoToken,
    /// Who answers does not have the token.
    #[error("who answers does not have the token, and is not the server: is the address right?")]
    Impostor,
    /// The server heard too many wrong tokens from this address.
    #[error("the server heard too many wrong tokens from this address: try again in {0} s")]
    Wait(u32),
}

/// Why a call has no response.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Failure {
    /// The session is over. Whether the call was carried out is unknown: once, or not at all.
    #[error("{0}; the call was carried out once, or not at all")]
    Ended(Ended),
    /// It waited for a slot or for the session when that ended: nothing of it was ever sent.
    #[error("{0}; the call was never sent")]
    NeverSent(Ended),
    /// The response is longer than this endpoint takes, or there was no memory for it. The call was carried out.
    #[error("there is no room for a response of {0} bytes; the call was carried out")]
    NoRoom(u32),
}

/// Why a call was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum CallError {
    /// The session is over, or is a peer's.
    #[error("no such session to call over")]
    NoSession,
    /// The message is longer than [`Config::message_max`](super::config::Config), or than packets can be counted.
    #[error("the message is longer than {0} bytes")]
    TooLong(u32),
    /// The backlog is full: take responses first.
    #[error("too many calls wait already")]
    Full,
}

/// What happened at an endpoint, for its caller to act on.
pub enum Event<B: Buffers> {
    /// Client: the session is up.
    Connected(SessionId),
    /// The session is over; of a client's, every call has been told of before.
    Ended {
        /// The session that is over.
        session: SessionId,
        /// The reason for which it is over.
        why: Ended,
    },
    /// Server: a client has a session.
    Accepted {
        /// The session that the client has.
        session: SessionId,
        /// Where the client is.
        peer: Address,
    },
    /// Server: carry this out, and answer with [`respond`](super::endpoint::Endpoint::respond), now or later.
    Request {
        /// Names it in the answer.
        id: RequestId,
        /// What is called.
        service: u16,
        /// The request; it stays valid for as long as it is held.
        body: Body<B>,
    },
    /// Client: a call is answered.
    Response {
        /// The caller's name of the call.
        tag: u64,
        /// How it ended.
        status: Status,
        /// The response; it stays valid for as long as it is held.
        body: Body<B>,
    },
    /// Client: a call has no answer.
    Failed {
        /// The caller's name of the call.
        tag: u64,
        /// The reason for which there is no answer.
        why: Failure,
    },
}

impl<B: Buffers> fmt::Debug for Event<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected(session) => f.debug_tuple("Connected").field(session).finish(),
            Self::Ended { session, why } => {
                f.debug_struct("Ended").field("session", session).field("why", why).finish()
            }
            Self::Accepted { session, peer } => {
                f.debug_struct("Accepted").field("session", session).field("peer", peer).finish()
            }
            Self::Request { id, service, body } => f
                .debug_struct("Request")
                .field("id", id)
                .field("service", service)
                .field("body", body)
                .finish(),
            Self::Response { tag, status, body } => f
                .debug_struct("Response")
                .field("tag", tag)
                .field("status", status)
                .field("body", body)
                .finish(),
            Self::Failed { tag, why } => {
                f.debug_struct("Failed").field("tag", tag).field("why", why).finish()
            }
        }
    }
}
