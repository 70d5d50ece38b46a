//! Recipes of persistence in a simulated cluster: clients that make updates durable on servers by the steps that `persist` has for a responder like
//! these, one recipe in each run.
//!
//! What is posted goes through the stages of a real responder (`cluster/stages.rs`), and what the responder's processor is to do is done by a
//! process that dies, loses its power or its connections at any moment, and recovers. A plan is drawn from a seed ([`Plan::draw`]) and run
//! ([`run_plan`](super::run_plan)). What is checked:
//! - what a run of a recipe says is durable would be found if the power went at that very moment, and is found whenever a server
//!   starts, and at the end, unless a later update took its place;
//! - of ordered updates a later one is found only with those before it;
//! - nothing is found that nobody wrote, and nothing that is older than what was acknowledged: no message that recovery applies goes over what
//!   came after it;
//! - when all faults are over, a client that comes then has its updates made durable.

mod client;
mod oracle;
mod plan;
mod server;

pub use oracle::Work;
pub use plan::Recipes;

use super::core::{Core, Host, blank_disk};
use super::disk::Disk;
use super::{End, Process, nodes};
use client::Client;
use oracle::Oracle;
use server::Server;

/// A plan of recipes.
pub type Plan = super::Plan<Recipes>;
/// What became of one.
pub type Outcome = super::Outcome<Recipes>;

/// Simulated time in which everybody must have come to an end when all faults are over.
const DRAIN: u64 = 5_000_000_000;

nodes!(Node: Server, Client);

impl Process for Node {
    type Service = Recipes;
    type Oracle = Oracle;

    fn oracle(seed: u64, plan: &Plan) -> Oracle {
        Oracle::new(seed, plan)
    }

    fn disks(core: &mut Core<Oracle>, _: usize) -> Vec<Disk> {
        vec![blank_disk(core.oracle.layout.len(), core.oracle.plan.domain)]
    }

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        if host.node() < usize::from(host.known().plan.servers) {
            Server::boot(host).map(|server| Self::Server(Box::new(server)))
        } else {
            Ok(Self::Client(Box::new(Client::boot(host))))
        }
    }

    fn look(core: &mut Core<Oracle>, _: &mut [Option<Self>]) -> bool {
        if !core.oracle.finished {
            return false;
        }
        for server in 0..core.oracle.plan.servers.into() {
            let disk = core.nodes[server].disks[0].durable();
            if let Err(why) = core.oracle.would_be(&disk, server, None) {
                core.wrong(format!("server {server}, if its power went now: {why}"));
            }
        }
        true
    }

    fn drain(_: &Plan) -> u64 {
        DRAIN
    }

    fn end(oracle: &Oracle) -> End<Recipes> {
        let waits = (oracle.running > 0).then(|| format!("{} updates have no end", oracle.running));
        End { work: oracle.work, measured: (), waits }
    }
}
