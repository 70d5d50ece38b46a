//! Replicas of a group that runs Mu ([`remanence_coord::mu`]) in a simulated cluster, at the level of verbs: each has two connections to each other one, on which
//! READs, WRITEs and updates are carried out line by line without its process; rights are taken away and given while writes are under way; memory is
//! lost line by line with the power. Clients send commands of a counter to whoever leads.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`](super::run_plan)). What is checked, at each step:
//! - agreement: no two replicas apply two values at one index, in whichever of their lives, and each applies them in their order;
//! - a snapshot is that of the entries below its index;
//! - what is acknowledged is durable on a majority at that moment: it would be there after the worst crash of all;
//!
//! and when all faults are over: what a client asks for then is answered within a bounded time, all replicas apply all that any has applied, what was acknowledged is
//! durable on a majority still, and one counter could have told the clients what they were told (linearizability).

mod client;
mod oracle;
mod plan;
mod replica;

pub use oracle::Work;
pub use plan::Mu;

use super::core::{Core, Host};
use super::disk::Disk;
use super::{End, Process, nodes};
use client::Client;
use oracle::Oracle;
use replica::Member;

/// A plan of such a group.
pub type Plan = super::Plan<Mu>;
/// What became of one.
pub type Outcome = super::Outcome<Mu>;

/// Beats in which everybody must have come to an end when all faults are over, with [`RETRIES`] and [`PAUSES`].
const BEATS: u32 = 4_000;
/// So many times an RNIC takes a peer for lost until then.
const RETRIES: u64 = 4;
/// Nanoseconds until then in which clients wait before they ask again, and rights are changed.
const PAUSES: u64 = 200_000_000;

nodes!(Node: Member, Client);

impl Process for Node {
    type Service = Mu;
    type Oracle = Oracle;

    fn oracle(seed: u64, plan: &Plan) -> Oracle {
        Oracle::new(seed, plan)
    }

    fn disks(core: &mut Core<Oracle>, node: usize) -> Vec<Disk> {
        vec![replica::make(core, node)]
    }

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        if host.node() < usize::from(host.known().plan.servers) {
            Member::boot(host).map(|member| Self::Member(Box::new(member)))
        } else {
            Ok(Self::Client(Box::new(Client::boot(host))))
        }
    }

    fn look(core: &mut Core<Oracle>, processes: &mut [Option<Self>]) -> bool {
        let oracle = &core.oracle;
        let has_all = |node: &Option<Self>| match node {
            Some(Self::Member(member)) => member.applied() == oracle.decided(),
            _ => false,
        };
        let is_over = oracle.last_is_done && processes.iter().take(oracle.plan.servers.into()).all(has_all);
        if is_over && let Some(index) = oracle::lost(core, core.oracle.acknowledged.iter()) {
            core.wrong(format!(
                "index {index} was acknowledged, and is not durable on a majority in the end"
            ));
        }
        is_over
    }

    fn drain(plan: &Plan) -> u64 {
        (plan.options.period * BEATS).as_nanos() as u64 + RETRIES * plan.speeds.retry + PAUSES
    }

    fn judge(oracle: &mut Oracle) -> Result<(), String> {
        oracle.judge()
    }

    fn end(oracle: &Oracle) -> End<Mu> {
        End { work: oracle.work, measured: (), waits: Some(oracle.waits()) }
    }
}
