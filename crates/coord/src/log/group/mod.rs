//! One log on several servers, driven by its writer.
//!
//! Every server has a log of its own. A record is acknowledged when `acks` of `members` servers have it durably. A writer
//! that opens the group
//! 1. draws an epoch higher than any promised and has every server that it reaches promise it, which shuts out all earlier
//!    writers there (their connections are cut first);
//! 2. needs `members - acks + 1` promises of servers that belong to the group already: every set of so many meets every
//!    set of `acks`; and has them confirmed, as a promise may be lost with its disk ([`machine`] says why that is enough);
//! 3. chooses the log of the server that *adopted* the highest epoch, and of those the longest;
//! 4. makes the others equal to it: cuts off what differs, copies what lacks;
//! 5. has them adopt its epoch, and appends once `acks` of them have.
//!
//! ARGUMENT that no acknowledged record is lost. Say record *r* was acknowledged in epoch *e*: `acks` servers, all of which
//! had adopted *e*, have it durably. Claim: every log that is adopted in an epoch above *e* has *r*. Take the lowest such
//! epoch *f* that chose a log without *r*. Its promises (2) include one of a server *s* with *r*, and *s* promised after it
//! had *r*, as it listens to nobody of *e* after promising *f*. So *s* had adopted at least *e*. The log chosen (3) had
//! adopted an epoch *g* with *e* <= *g* < *f*. If *g* > *e*, it has *r* because *f* is lowest. If *g* = *e*, it is at least
//! as long as that of *s*, and both are beginnings of what the one writer of *e* appended: it has *r*. Epochs name one
//! writer each (their low half is drawn), and a server promises each counter once, so its stamps only rise.
//!
//! A server that came back empty or damaged has no say in 2 and 3, since it may have forgotten what it promised; it is
//! rebuilt in 4. A new group is open when so many have adopted that their promises are enough for the next writer. The number of servers
//! and `acks` are fixed when the group is made, or sets of servers might not meet.
//!
//! A server that was away, or slow, is taken in later in the same epoch: it promises the same epoch (again), which cuts off
//! what this writer still had under way on an older connection, and adopts it only when its log has all of the log that was chosen, and all
//! that was acknowledged when it began to be fed: it may have had that, have counted for it, and have lost its disk since. So the claim holds
//! for it as well: what it has adopted in *e* is a beginning of what the writer of *e* appended, and has each record of *e* that it can have
//! counted for. What it had of *e* already is such a beginning, as a number has one content in an epoch; a later
//! record of *e* that lies there whole behind a gap is what that place will be written with again.
//!
//! [`machine`] has the steps, without a clock or a connection; [`Opening`] says when a log that is being opened is handed over.

mod action;
mod belong;
mod copy;
pub mod machine;
mod opening;
pub mod replay;
mod server;

use std::time::Duration;

use thiserror::Error;

pub use machine::{Action, Event, Machine, NotTaken};
pub use opening::Opening;
pub use replay::{Replay, Replayed};

pub use crate::log::error::ConnectionLost;
use crate::log::error::{AppendError, Refused};
use crate::log::format::Epoch;
use crate::log::format::superblock::Uuid;

/// How a group is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How many servers must have a record before it is acknowledged. `None`: as the group was made, and all for a new one.
    pub acks: Option<u16>,
    /// A number drawn by the writer.
    pub writer: u32,
    /// The name of the group if it is made now: draw it.
    pub group: Uuid,
    /// Updates that a server has under way at a time.
    pub depth: usize,
    /// How long the other servers are waited for where enough have answered.
    pub grace: Duration,
    /// How long a server may leave what it was asked for unanswered before it is taken for lost.
    pub patience: Duration,
}

impl Options {
    /// Of a writer with this number, for a group of this name if it is made now; draw both. 16 updates under way on a server, one
    /// second for those that are slower than enough others, and 30 for each to give a sign.
    #[must_use]
    pub const fn new(writer: u32, group: Uuid) -> Self {
        let (grace, patience) = (Duration::from_secs(1), Duration::from_secs(30));
        Self { acks: None, writer, group, depth: 16, grace, patience }
    }

    /// How many servers must have a record before it is acknowledged.
    #[must_use]
    pub const fn acks(self, acks: Option<u16>) -> Self {
        Self { acks, ..self }
    }

    /// How many updates a server has under way at a time.
    #[must_use]
    pub const fn depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// How long the other servers are waited for where enough have answered: when the group is opened, trimmed and closed.
    #[must_use]
    pub const fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// How long a server may leave what it was asked for unanswered before it is taken for lost.
    #[must_use]
    pub const fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// Why a group cannot be written to. What was acknowledged is safe in every case.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum GroupError {
    /// Not enough of them were reached.
    #[error("{}", belong::too_few_sentence(*.reached, *.needed, *.named, why))]
    TooFew {
        /// Servers that count.
        reached: usize,
        /// Servers that are needed.
        needed: usize,
        /// Servers that were named.
        named: usize,
        /// What became of the others.
        why: String,
    },
    /// A later writer was faster.
    #[error(
        "another writer (epoch {promised}) has taken the log over; what it found acknowledged it keeps; open it again to go on"
    )]
    Fenced {
        /// The epoch of the later writer.
        promised: Epoch,
    },
    /// A server of another group.
    #[error("{server} holds the log of another group ({theirs}, not {ours}); name only servers of one log")]
    Stranger {
        /// The name by which the server was reached.
        server: String,
        /// The group that the server's log belongs to.
        theirs: Uuid,
        /// The group that the other servers' logs belong to.
        ours: Uuid,
    },
    /// One server under two names.
    #[error("{a} and {b} are one and the same log; name each server once")]
    Twice {
        /// The name that was given first.
        a: String,
        /// Another name of the same server.
        b: String,
    },
    /// Another number of servers.
    #[error(
        "this log lies on {made}, with {acks} acknowledgements for each record, and was to be opened on {given}; name them all, lost ones too, and leave out --acks"
    )]
    Members {
        /// As it was made.
        made: String,
        /// As it was made.
        acks: u16,
        /// As it was opened.
        given: String,
    },
    /// A record that cannot be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A record that cannot be trimmed.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for GroupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What opening did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Records that a server lacked and got, by server.
    pub copied: Vec<(String, u64)>,
    /// Records that a server had and nobody had chosen, by server.
    pub cut: Vec<(String, u64)>,
    /// Servers that do without, and why.
    pub lost: Vec<(String, String)>,
}
