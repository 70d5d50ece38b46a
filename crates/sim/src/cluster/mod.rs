//! Clusters of services: any core with its media, its connections and its clock, under one seed.
//!
//! A `Process` is a core and what drives it: it is told what happened, acts on its `Host`, and says when it wants to look at its
//! clock. Everything else is here, and the same for all services: time, connections, one-sided operations, disks, faults.
//!
//! | file | what |
//! |---|---|
//! | `queue.rs` | simulated time, and clocks that show another one |
//! | `wire.rs` | connections as RC gives them, and one-sided operations step by step |
//! | `disk.rs` | media that lose their power in the middle of something, or fail |
//! | `fault.rs` | what goes wrong, as data |
//! | `aim.rs` | what goes wrong at a moment of the protocol |
//! | `core.rs` | nodes: what happens to them, whatever runs there |
//! | `run.rs` | processes on the nodes, and faults that happen to them |
//! | `shrink.rs` | the least that still fails |
//! | `task.rs` | code of a process that waits |
//! | [`kv`] | the replicated key-value store as a service: its members, its clients, and what must be true |
//! | [`log`] | the replicated log as a service: its servers, its writers, and what must be true |
//! | [`replicated`] | a replicated service over that log: its hosts, its clients, and what must be true |
//!
//! A service that comes next needs what `log/` has: a process for each kind of node, what an oracle is told of them, a plan, and a
//! check at the end.

mod aim;
mod core;
mod disk;
mod fault;
pub mod kv;
pub mod log;
mod queue;
pub mod replicated;
mod run;
mod shrink;
mod task;
mod wire;

use std::time::Duration;

pub use self::core::{Counts, Speeds};
pub use aim::{Aim, Blow, Moment, Whom};
pub use fault::{Fault, Kind, Way};
pub use queue::Clock;

use self::core::{ConnectionId, Core, Host};
use disk::Disk;

/// A node's place among the nodes.
type NodeId = usize;

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
    /// It may be time for something.
    Timer,
}

/// What runs on a node.
pub(crate) trait Process: Sized {
    /// What the service knows and its processes do not: what they were told, and what must be true.
    type Oracle;

    /// Starts on a node, with what is on its disks.
    ///
    /// # Errors
    /// What is there cannot be started from, which no fault may lead to.
    fn boot(host: &mut Host<'_, Self::Oracle>) -> Result<Self, String>;

    /// Handles what has happened to this node.
    fn on(&mut self, input: Input, host: &mut Host<'_, Self::Oracle>);

    /// When it wants to be told the time, by its own clock.
    fn deadline(&self) -> Option<Duration>;

    /// New disks for a node that has lost its own, if the service can stand that now.
    fn new_disks(
        core: &mut Core<Self::Oracle>,
        processes: &[Option<Self>],
        node: NodeId,
    ) -> Option<Vec<Disk>>;

    /// Destroys something on the disk of a node without power that its process must notice, if the service can stand that now. Whether it
    /// did.
    fn rots(_core: &mut Core<Self::Oracle>, _node: NodeId, _salt: u64) -> bool {
        false
    }

    /// Looks at all of them between two events, and whether the run is over.
    fn look(core: &mut Core<Self::Oracle>, processes: &mut [Option<Self>]) -> bool;
}
