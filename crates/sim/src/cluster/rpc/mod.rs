//! Remote procedure calls in a simulated cluster: servers that answer and keep logs, clients that call them, and datagrams between them that
//! are lost, repeated, late, damaged and out of order.
//!
//! All nodes have the endpoint of `rpc` as it is, and servers its log with the machine that serves it (`rpc/src/log/machine.rs`). A plan is drawn from a
//! seed ([`Plan::draw`]) and run ([`run_plan`](super::run_plan)). What is checked:
//! - every call ends once: it is answered, never sent, or nobody knows. What was answered was carried out once, what was never sent was
//!   not, and nothing is carried out twice, whatever the network repeats and whoever starts anew;
//! - requests and answers arrive whole, and are those of their call;
//! - an append that is acknowledged is durable, at its place, before its answer leaves: no loss of power takes it back, and each log has
//!   entries of appends and no others, each once. A server whose medium has failed acknowledges nothing more;
//! - whoever has another token gets no session, and whoever has it does;
//! - a session ends for a reason that a fault of the run gives;
//! - when all faults are over, a client that comes then is answered by every server, and when all have said goodbye no session is left anywhere.

mod client;
mod end;
mod oracle;
mod plan;
mod server;

pub use oracle::Work;
pub use plan::Rpc;

use super::core::{Core, Host};
use super::disk::Disk;
use super::{End as Over, Process, nodes};
use client::Client;
use oracle::Oracle;
use server::Server;

/// A plan of calls.
pub type Plan = super::Plan<Rpc>;
/// What became of one.
pub type Outcome = super::Outcome<Rpc>;

/// Simulated time in which a server must have forgotten those that went without a word.
const FORGETS: u64 = 2_000_000_000;

nodes!(Node: Server, Client);

impl Node {
    /// Sessions that it has, of both kinds.
    fn sessions(&self) -> usize {
        match self {
            Self::Server(server) => server.sessions(),
            Self::Client(client) => client.sessions(),
        }
    }
}

impl Process for Node {
    type Service = Rpc;
    type Oracle = Oracle;

    fn oracle(seed: u64, plan: &Plan) -> Oracle {
        Oracle::new(seed, plan)
    }

    fn disks(core: &mut Core<Oracle>, node: usize) -> Vec<Disk> {
        vec![server::make(&core.oracle, node)]
    }

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        if host.node() < usize::from(host.known().plan.servers) {
            Server::boot(host).map(|server| Self::Server(Box::new(server)))
        } else {
            Ok(Self::Client(Box::new(Client::boot(host))))
        }
    }

    fn look(core: &mut Core<Oracle>, processes: &mut [Option<Self>]) -> bool {
        if core.oracle.leaves.is_none_or(|since| core.now() < since + FORGETS) {
            return false;
        }
        for (node, process) in processes.iter().enumerate() {
            let sessions = process.as_ref().map_or(0, Self::sessions);
            if sessions > 0 {
                core.wrong(format!("{} still has {sessions} sessions", core.nodes[node].name));
            }
        }
        for server in 0..core.oracle.plan.servers.into() {
            if let Err(why) = server::open(core.nodes[server].disks[0].durable(), &core.oracle, server) {
                core.wrong(format!("server {server}, if its power went now: {why}"));
            }
        }
        true
    }

    fn judge(oracle: &mut Oracle) -> Result<(), String> {
        oracle.judge()
    }

    fn end(oracle: &Oracle) -> Over<Rpc> {
        Over { work: oracle.work, measured: (), waits: oracle.waits() }
    }
}
