//! A service on several servers, made of any deterministic state machine: its commands are records of the replicated log ([`crate::log`]).
//!
//! Whoever writes a service writes a [`StateMachine`]: what a command does, and how the state becomes bytes and is made of them again. Everything
//! else is here, without a clock or a connection:
//!
//! 1. A host opens the group, which shuts out every earlier host, and reads the log ([`crate::log::group::replay`]): so it has the state
//!    that all earlier hosts had told anybody of.
//! 2. A command is appended, applied to the state in the order of the log, and answered when its record is acknowledged: durable on as
//!    many servers as the log was made with ([`Replica`]).
//! 3. A client has a session, which is a record of its own, and numbers its commands. The state has the last number of each session and
//!    what it was answered, so that a command that is sent again, to this host or a later one, is applied once ([`sessions`]).
//! 4. Now and then the whole state is appended as records, and what lies before them is trimmed ([`record`]): a log begins with its first
//!    record, or with a whole snapshot, and never in between.
//!
//! What a client is told ([`Reply`]): that its command was applied, and with what result; that it was not taken, and why; or that nothing is known,
//! and then it asks again with the same number, here or at another host.
//!
//! ARGUMENT that what is answered is never taken back, though commands are applied before they are acknowledged. The state of a host is a
//! function of the records that it has read and appended, in their order. It answers a command only when all records up to that one are acknowledged, so
//! every later host reads the same records up to there, and comes to the same state and the same answer. What was applied and never
//! acknowledged is seen by nobody: a host that is shut out answers nothing more, and its state goes with it.
//!
//! `remanence_remotelog` has a host on real memory and connections, and a client; `docs/services.md` shows how a service is written.

pub mod message;
pub mod record;
mod replica;
pub mod sessions;

use remanence_codec::Malformed;

pub use message::{Refusal, Reply, Request};
pub use replica::{Log, Read, Replica};

/// What a service does, and has. It must be deterministic: the same commands lead to the same state and the same answers, on every machine
/// and in every release that reads the same log. [`Default`] is the state before the first command.
pub trait StateMachine: Default {
    /// Carries out a command; what its client is answered. A command that makes no sense is answered, too: it is in the log by now.
    fn apply(&mut self, command: &[u8]) -> Vec<u8>;

    /// The whole state as bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// The state that a snapshot is of.
    ///
    /// # Errors
    /// The bytes are not a snapshot of this service.
    fn restore(snapshot: &[u8]) -> Result<Self, Malformed>;
}

/// How much a host keeps for its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Commands that wait for an answer at most; further ones are refused.
    pub waiting: usize,
    /// Sessions that the state has at most. A new one takes the place of the one that has been silent for the most records.
    pub sessions: u32,
    /// How long a server may take to be read from before another one is.
    pub patience: std::time::Duration,
}

impl Default for Limits {
    /// 1,024 commands that wait, as many sessions, and a second for each part of the log that is read.
    fn default() -> Self {
        Self { waiting: 1024, sessions: 1024, patience: std::time::Duration::from_secs(1) }
    }
}
