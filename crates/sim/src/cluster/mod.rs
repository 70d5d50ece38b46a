//! Clusters of services: any core with its media, its connections and its clock, under one seed.
//!
//! A `Process` is a core and what drives it: it is told what happened, acts on its `Host`, and says when it wants to look at its
//! clock. Everything else is here, and the same for all services: time, connections, one-sided operations, disks, faults.
//!
//! | file | what |
//! |---|---|
//! | `queue.rs` | simulated time, and clocks that show another one |
//! | `wire.rs` | connections as RC gives them, and one-sided operations step by step |
//! | `datagram.rs` | datagrams, of which nothing is promised |
//! | `stages.rs` | what an RNIC has received, on its way to where it is durable |
//! | `link.rs` | a connection that is made again and again |
//! | `disk.rs` | media that lose their power in the middle of something, or fail |
//! | `fault.rs` | what goes wrong, as data |
//! | `aim.rs` | what goes wrong at a moment of the protocol |
//! | `core.rs` | nodes: what happens to them, whatever runs there |
//! | `run.rs` | processes on the nodes, and faults that happen to them |
//! | `service.rs` | plans, outcomes, replays: what is the same for all services, and how to add one |
//! | `shrink.rs` | the least that still fails |
//! | `task.rs` | code of a process that waits |
//! | [`kv`] | the replicated key-value store as a service: its members, its clients, and what must be true |
//! | [`log`] | the replicated log as a service: its servers, its writers, and what must be true |
//! | [`mu`] | replicas of a group that runs Mu, their clients, and what must be true |
//! | [`pool`] | durable blobs on several servers as a service: its servers, its clients, and what must be true |
//! | [`replicated`] | a replicated service over that log: its hosts, its clients, and what must be true |
//! | [`recipes`] | recipes of persistence as a service: who carries them out, on which responders, and what must be durable |
//! | [`rpc`] | remote procedure calls as a service: its servers with their logs, its clients, and what must be true |

mod aim;
mod core;
mod datagram;
mod disk;
mod fault;
pub mod kv;
mod link;
pub mod log;
pub mod mu;
pub mod pool;
mod queue;
pub mod recipes;
pub mod replicated;
pub mod rpc;
mod run;
mod service;
mod shrink;
mod stages;
mod task;
mod wire;

use std::time::Duration;

pub use self::core::{Counts, Speeds};
pub use aim::{Aim, AimTarget, Blow, Moment};
pub use datagram::Harm;
pub use fault::{Fault, Kind, Way};
pub use queue::Clock;
pub use service::{Outcome, Params, Plan, Service, run, run_plan, run_shrunk};

pub use crate::report::Counters;

use self::core::{ConnectionId, Core, Host};
use disk::Disk;

/// A node's place among the nodes.
type NodeId = usize;

/// Simulated time in which everybody must have come to an end when all faults are over, in nanoseconds: patience, the time of a server that is
/// busy cutting somebody off, and a good deal more.
const DRAIN: u64 = 20_000_000_000;

/// What happens to a process.
#[derive(Debug)]
pub(crate) enum Input {
    /// A connection that it asked for is there.
    Connected { connection: ConnectionId },
    /// A connection is lost, or never came to be: of what was under way nothing is known.
    Lost { connection: ConnectionId, why: &'static str },
    /// A message has come.
    Message { connection: ConnectionId, bytes: Vec<u8> },
    /// What the oldest read brought.
    Read { connection: ConnectionId, bytes: Vec<u8> },
    /// The oldest updates are durable.
    Durable { connection: ConnectionId },
    /// What the oldest WRITE brought is visible.
    Written { connection: ConnectionId },
    /// A datagram has come.
    Datagram { from: NodeId, bytes: Vec<u8> },
    /// It may be time for something.
    Timer,
}

impl Input {
    /// The connection of which something has come.
    const fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Connected { connection }
            | Self::Lost { connection, .. }
            | Self::Message { connection, .. }
            | Self::Read { connection, .. }
            | Self::Durable { connection }
            | Self::Written { connection } => Some(*connection),
            Self::Datagram { .. } | Self::Timer => None,
        }
    }
}

/// What is handed to whatever runs on a node.
pub(crate) trait Runs<O>: Sized {
    /// Handles what has happened to this node.
    fn on(&mut self, input: Input, host: &mut Host<'_, O>);

    /// When it wants to be told the time, by its own clock.
    fn deadline(&self) -> Option<Duration>;
}

/// What runs on the nodes of a service: one of several kinds of processes. Those of a service that is simulated for somebody else name its type.
macro_rules! nodes {
    ($name:ident $(<$of:ident: $bound:ident>)?: $($kind:ident $(<$its:ident>)?),+) => {
        /// What runs on a node.
        enum $name $(<$of: $bound>)? {
            $($kind(Box<$kind $(<$its>)?>),)+
        }

        impl $(<$of: $bound>)? $crate::cluster::Runs<Oracle $(<$of>)?> for $name $(<$of>)? {
            fn on(
                &mut self,
                input: $crate::cluster::Input,
                host: &mut $crate::cluster::core::Host<'_, Oracle $(<$of>)?>,
            ) {
                match self {
                    $(Self::$kind(process) => process.on(input, host),)+
                }
            }

            fn deadline(&self) -> Option<std::time::Duration> {
                match self {
                    $(Self::$kind(process) => process.deadline(),)+
                }
            }
        }
    };
}
use nodes;

/// What the oracle of a run says when that is over.
pub(crate) struct End<S: Service> {
    /// What the service did.
    work: S::Work,
    /// What was measured beside that.
    measured: S::Measured,
    /// Who has not come to an end, and what it waits for.
    waits: Option<String>,
}

/// The processes of a service, what they have, and what must be true of them.
pub(crate) trait Process: Runs<Self::Oracle> {
    /// The service whose processes these are.
    type Service: Service;
    /// What the service knows and its processes do not: what they were told, and what must be true.
    type Oracle;

    /// What is known when a run begins.
    fn oracle(seed: u64, plan: &Plan<Self::Service>) -> Self::Oracle;

    /// The disks of a node that has some, when it starts for the first time.
    fn disks(core: &mut Core<Self::Oracle>, node: NodeId) -> Vec<Disk>;

    /// Starts on a node, with what is on its disks.
    ///
    /// # Errors
    /// What is there cannot be started from, which no fault may lead to.
    fn boot(host: &mut Host<'_, Self::Oracle>) -> Result<Self, String>;

    /// New disks for a node that has lost its own, if the service can stand that now.
    fn new_disks(
        _core: &mut Core<Self::Oracle>,
        _processes: &[Option<Self>],
        _node: NodeId,
    ) -> Option<Vec<Disk>> {
        None
    }

    /// Destroys something on the disk of a node without power that its process must notice, if the service can stand that now. Whether it
    /// did.
    fn rots(_core: &mut Core<Self::Oracle>, _processes: &[Option<Self>], _node: NodeId, _salt: u64) -> bool {
        false
    }

    /// Looks at all of them between two events, and whether the run is over.
    fn look(core: &mut Core<Self::Oracle>, processes: &mut [Option<Self>]) -> bool;

    /// Simulated time in which everybody must have come to an end when all faults are over, in nanoseconds.
    fn drain(_plan: &Plan<Self::Service>) -> u64 {
        DRAIN
    }

    /// Whether what clients were told can be true, when the run is over.
    ///
    /// # Errors
    /// It cannot. A sentence.
    fn judge(_oracle: &mut Self::Oracle) -> Result<(), String> {
        Ok(())
    }

    /// What became of the run.
    fn end(oracle: &Self::Oracle) -> End<Self::Service>;
}
