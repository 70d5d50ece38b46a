//! A replicated service in a simulated cluster: the servers of its log with their disks, hosts that take it over from each other, and clients
//! that send their commands again until they are answered. The service is whatever is [`Simulated`]; `rem sim` has a counter, which says of each
//! command which place it has.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`](super::run_plan)). What is checked:
//! - one such service could have told the clients what they were told (linearizability): nothing that was answered is lost or comes later than
//!   what was answered after it, and no command is applied twice, however often it was sent, and to which hosts;
//! - each request is answered once, and with something that can be;
//! - no crash is taken for damage, and every log that a host opens can be read, from its first record or from a snapshot;
//! - when all faults are over, what clients have under way comes to its end within a bounded time, and so do the commands of one who comes then.
//!
//! Servers are those of [`log`](super::log), where what a log must be is checked.

mod client;
mod host;
mod oracle;
mod plan;
mod simulated;

pub use oracle::{Counter, Work};
pub use plan::Replicated;
pub use simulated::{Failed, Simulated, Told, simulate};

use super::core::{Core, Host as Node};
use super::disk::Disk;
use super::log::server::{self, Server};
use super::{End, Process, nodes};
use client::Client;
use host::Host;
use oracle::Oracle;

/// A plan of a replicated service.
pub type Plan<A = Counter> = super::Plan<Replicated<A>>;
/// What became of one.
pub type Outcome<A = Counter> = super::Outcome<Replicated<A>>;

nodes!(Member<A: Simulated>: Server, Host<A>, Client);

impl<A: Simulated> Process for Member<A> {
    type Service = Replicated<A>;
    type Oracle = Oracle<A>;

    fn oracle(seed: u64, plan: &Plan<A>) -> Oracle<A> {
        Oracle::new(seed, plan)
    }

    fn disks(core: &mut Core<Oracle<A>>, node: usize) -> Vec<Disk> {
        vec![server::make(core, node)]
    }

    fn boot(node: &mut Node<'_, Oracle<A>>) -> Result<Self, String> {
        let plan = &node.known().plan;
        let (servers, hosts) = (usize::from(plan.servers), usize::from(plan.hosts));
        if node.node() < servers {
            Server::boot(node).map(|server| Self::Server(Box::new(server)))
        } else if node.node() < servers + hosts {
            Ok(Self::Host(Box::new(Host::boot(node))))
        } else {
            Ok(Self::Client(Box::new(Client::boot(node))))
        }
    }

    fn new_disks(core: &mut Core<Oracle<A>>, _: &[Option<Self>], node: usize) -> Option<Vec<Disk>> {
        let quorum = (core.oracle.plan.servers, core.oracle.plan.acks);
        server::new_disks(core, node, quorum)
    }

    fn look(core: &mut Core<Oracle<A>>, _: &mut [Option<Self>]) -> bool {
        core.oracle.finished
    }

    fn judge(oracle: &mut Oracle<A>) -> Result<(), String> {
        oracle.judge()
    }

    fn end(oracle: &Oracle<A>) -> End<Replicated<A>> {
        let waits = oracle.waits().filter(|_| !oracle.finished);
        let waits = waits.map(|client| format!("client {client} waits for an answer"));
        End { work: oracle.work, measured: (), waits }
    }
}
