//! The replicated log in a simulated cluster: servers with their disks, writers that do not know of each other, and one that comes
//! when all faults are over.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`](super::run_plan)). What is checked:
//! - a number is acknowledged with one content only, and no epoch begins before what was acknowledged in an earlier one;
//! - a record is acknowledged when enough servers have said that they have it: no sooner, and in the very event in which the last of
//!   them says so, whatever the others do;
//! - what was acknowledged is on every server that takes part when the last writer has opened the log, and at the end on all,
//!   byte for byte, unless somebody gave it up;
//! - at any time what was acknowledged lies durably on as many servers as acknowledge, but for those that have lost their disks
//!   (`durable.rs`);
//! - a reader from afar does not go on with what was acknowledged behind something else;
//! - who is told of a later writer before it has changed anything changes nothing;
//! - no crash is taken for damage;
//! - when all faults are over, the sessions of usual writers come to their ends within a bounded time: what they append is
//!   acknowledged, or they learn that another one has the log;
//! - and the last writer opens the log, appends, and brings all servers up to date within a bounded time, though it loses all its
//!   connections in the middle of that.

mod durable;
mod follower;
mod oracle;
pub(super) mod plan;
pub(super) mod server;
mod tracker;
mod writer;

pub use oracle::Work;
pub use plan::Log;

use super::core::{Core, Host};
use super::disk::Disk;
use super::fault::Time;
use super::{DRAIN, End, Process, nodes};
use oracle::Oracle;
use server::{Rot, Server};
use writer::Writer;

/// A plan of the log.
pub type Plan = super::Plan<Log>;
/// What became of one.
pub type Outcome = super::Outcome<Log>;

/// Simulated time in which the session of a usual writer must have come to its end when all faults are over: its records and their
/// pauses, patience, and the time of a server that is busy cutting somebody off.
const ENDS: u64 = 10_000_000_000;

nodes!(Member: Server, Writer);

impl Process for Member {
    type Service = Log;
    type Oracle = Oracle;

    fn oracle(seed: u64, plan: &Plan) -> Oracle {
        Oracle::new(seed, plan)
    }

    fn disks(core: &mut Core<Oracle>, node: usize) -> Vec<Disk> {
        vec![server::make(core, node)]
    }

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        if host.node() < host.known().plan.servers.into() {
            Server::boot(host).map(|server| Self::Server(Box::new(server)))
        } else {
            Ok(Self::Writer(Box::new(Writer::boot(host))))
        }
    }

    fn new_disks(core: &mut Core<Oracle>, _: &[Option<Self>], node: usize) -> Option<Vec<Disk>> {
        let quorum = (core.oracle.plan.servers, core.oracle.plan.acks);
        let disks = server::new_disks(core, node, quorum)?;
        core.oracle.rotten[node] = Rot::None;
        core.oracle.remembered[node] = 0;
        Some(disks)
    }

    fn rots(core: &mut Core<Oracle>, _: &[Option<Self>], node: usize, salt: u64) -> bool {
        let quorum = (core.oracle.plan.servers, core.oracle.plan.acks);
        let remembered = core.oracle.remembered[node];
        let rots = server::may_be_lost(core, node, quorum)
            && server::rot(&core.nodes[node].disks[0], remembered, salt);
        if rots {
            core.oracle.rotten[node] = Rot::There;
        }
        rots
    }

    fn look(core: &mut Core<Oracle>, processes: &mut [Option<Self>]) -> bool {
        if std::mem::take(&mut core.oracle.is_to_check)
            && let Err(why) = durable::check(core)
        {
            core.wrong(why);
        }
        if let Some(servers) = core.oracle.verify.take() {
            for n in servers {
                let Some(Self::Server(server)) = &mut processes[n] else { continue };
                if let Err(why) = server.verify(&core.oracle) {
                    core.wrong(format!("server {n}: {why}"));
                }
            }
            core.oracle.verified += 1;
        }
        if core.now() > core.oracle.plan.heals + ENDS
            && let Some(writer) = core.oracle.working.first()
        {
            let what = format!(
                "writer {writer} has not come to an end, and all faults are over since {}",
                Time(ENDS)
            );
            core.wrong(what);
        }
        core.oracle.finished
    }

    fn drain(plan: &Plan) -> u64 {
        DRAIN + if plan.lets_end { ENDS } else { 0 }
    }

    fn end(oracle: &Oracle) -> End<Log> {
        let waits = (!oracle.finished).then(|| format!("the last writer: {}", oracle.waits));
        End { work: oracle.work, measured: oracle.latencies.clone(), waits }
    }
}
