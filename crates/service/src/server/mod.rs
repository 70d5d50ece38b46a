//! The server's half: who has a session, what arrives in it, and when to wake up.
//!
//! Two threads serve. The *accepting* thread waits for requests, asks the service's [`Admit`] about each, and does what
//! takes its time: it registers memory, makes a QP, posts its receive buffers. It holds no lock meanwhile that the other
//! thread takes. The *serving* thread owns all sessions. It sleeps until something completes, a deadline is due, or another
//! thread wakes it through [`Control`]; it hands each message to the [`Service`], and sends what that answers. No turn of its
//! loop depends on how many sessions are silent, and a server that nobody asks for anything is never woken.
//!
//! A server whose medium failed ends ([`Server::rests_on`]), whichever service it is and whoever met the failure: a message, the service's
//! own work, or the FLUSH of a peer, of which no service hears. It can make nothing durable any more, and what it would still show may be
//! what no recovery finds; a server that is started again serves what is on the disk, or says why it cannot. So it says what is wrong at
//! once, and whoever looks after it sees that it has ended.
//!
//! Read in this order: [`bounds`] (how much there may be of everything), [`session`] (receive ring, send buffers),
//! [`accept`], [`live`] (the loop). One-sided operations need none of this: the device serves them.

pub mod accept;
pub mod bounds;
mod control;
pub mod live;
pub mod session;

use std::fmt;

pub use accept::{Admit, Decision, Refusal, Request, Workshop};
pub use bounds::{Bounds, Claim, Full, Permit};
pub use control::{Control, Counters, Stop, Wakes};
pub use live::{Between, Close, Lot, Message, Options, Server, Service, Sessions, Turn};
pub use session::{Buffers, Link, Opened, Session, SessionId, Spec};

/// Why a server, or a session of one, cannot be made.
#[derive(thiserror::Error)]
pub enum Error {
    /// Verbs refused something.
    #[error(transparent)]
    Verbs(#[from] remanence_verbs::Error),
    /// There is no memory for message buffers.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
    /// A bound of the server is reached.
    #[error(transparent)]
    Full(#[from] Full),
    /// The medium that a server [rests on](live::Server::rests_on) failed.
    #[error(
        "the medium failed ({0}); what was not acknowledged may be lost; check the disk, and start the server again"
    )]
    Medium(#[source] std::io::Error),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
