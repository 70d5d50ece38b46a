//! What a group's machine asks for, and what comes back to it.

use std::sync::Arc;

use remanence_persist::plan::Request as PlanRequest;

use crate::log::error::Refused;
use crate::log::proto::Request;
use crate::log::store::Status;
use crate::log::writer::Updates;

/// What the driver is to do on the connection to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask for something. There is one call at a time.
    Call {
        /// The server's place among the names that the machine was made with.
        server: usize,
        /// What is asked.
        request: Request,
    },
    /// Read from its region.
    Read {
        /// The server's place among the names that the machine was made with.
        server: usize,
        /// The byte of the region at which it begins.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// Make updates durable, behind all that were begun before.
    Append {
        /// The server's place among the names that the machine was made with.
        server: usize,
        /// What is written where, in the order in which it must become durable.
        updates: Box<Updates>,
        /// What a planner is asked for them.
        plan: Arc<PlanRequest>,
    },
    /// The connection is of no use any more.
    Disconnect {
        /// The server's place among the names that the machine was made with.
        server: usize,
    },
}

impl Action {
    /// The server's place among the names that the machine was made with.
    #[must_use]
    pub const fn server(&self) -> usize {
        match *self {
            Self::Call { server, .. }
            | Self::Read { server, .. }
            | Self::Append { server, .. }
            | Self::Disconnect { server } => server,
        }
    }
}

/// What comes back from a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The answer to the call.
    Reply(Result<Box<Status>, Refused>),
    /// What the oldest READ brought.
    Data(Vec<u8>),
    /// The oldest updates are durable.
    Durable,
    /// The connection is gone: of what was under way nothing is known. A sentence.
    Lost(String),
}
