//! Durable blobs on several servers in a simulated cluster: servers with their pools on disks, clients that put, get and delete blobs and bring
//! servers up to date, and one that comes when all faults are over.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`](super::run_plan)). Servers have `pool`'s core and clients its
//! [`Client`](remanence_pool::client::Client), as they are. What is checked:
//! - what clients were told of each name is linearizable, and a change of which nothing is known takes effect before a later one is done, or never;
//! - a version stands for one state, everywhere and for ever; a change has a higher one than all that had ended when it began, well or badly;
//! - what was acknowledged lies durably on as many servers as acknowledge at any time, but for those that have lost their disks, and nothing lies
//!   anywhere that nobody has put there, byte for byte;
//! - no crash is taken for damage, and no client for a hostile one;
//! - when all faults are over, what clients have under way comes to its end within a bounded time, all servers can be brought up to date, have
//!   the same then, and no block is lost.

mod client;
mod network;
mod oracle;
mod plan;
mod server;

pub use oracle::Work;
pub use plan::Pool;

use std::collections::BTreeMap;

use remanence_pool::quorum::majority;
use remanence_pool::{BlobName, Listing, State, Version, recover};

use super::core::{Core, Host};
use super::disk::Disk;
use super::{End, Process, nodes};
use client::Client;
use oracle::Oracle;
use server::Server;

/// A plan of a pool.
pub type Plan = super::Plan<Pool>;
/// What became of one.
pub type Outcome = super::Outcome<Pool>;

nodes!(Member: Server, Client);

impl Process for Member {
    type Service = Pool;
    type Oracle = Oracle;

    fn oracle(seed: u64, plan: &Plan) -> Oracle {
        Oracle::new(seed, plan)
    }

    fn disks(core: &mut Core<Oracle>, _: usize) -> Vec<Disk> {
        vec![server::make(core)]
    }

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        if host.node() < host.known().plan.servers.into() {
            Server::boot(host).map(|server| Self::Server(Box::new(server)))
        } else {
            Ok(Self::Client(Box::new(Client::boot(host))))
        }
    }

    /// A majority has one server at least that has lost nothing.
    fn new_disks(core: &mut Core<Oracle>, _: &[Option<Self>], node: usize) -> Option<Vec<Disk>> {
        let (servers, lost) = (usize::from(core.oracle.plan.servers), &core.oracle.lost);
        let others = lost.keys().filter(|other| **other != node).count();
        if node >= servers || others + 1 >= majority(servers) {
            return None;
        }
        core.oracle.loses(node);
        Some(vec![server::make(core)])
    }

    fn look(core: &mut Core<Oracle>, processes: &mut [Option<Self>]) -> bool {
        if std::mem::take(&mut core.oracle.is_to_check)
            && let Err(why) = check(core)
        {
            core.wrong(why);
        }
        // Whoever is gone is gone for the servers too some time.
        let has_clients =
            |process: &Option<Self>| matches!(process, Some(Self::Server(server)) if server.has_clients());
        if core.oracle.verify && !processes.iter().any(has_clients) {
            match check(core).and_then(|()| are_equal(processes)) {
                Ok(()) => core.oracle.finished = true,
                Err(why) => core.wrong(why),
            }
        }
        core.oracle.finished
    }

    fn judge(oracle: &mut Oracle) -> Result<(), String> {
        oracle.judge()
    }

    fn end(oracle: &Oracle) -> End<Pool> {
        let waits = match oracle.working.first() {
            Some(client) => {
                format!("client {client} has not come to its end; the last one: {}", oracle.waits)
            }
            None => format!("the last client: {}", oracle.waits),
        };
        End { work: oracle.work, measured: (), waits: (!oracle.finished).then_some(waits) }
    }
}

/// Looks at what would be left on all disks if the power went now.
///
/// # Errors
/// Something that cannot be, or too little of what was acknowledged. A sentence.
fn check(core: &mut Core<Oracle>) -> Result<(), String> {
    core.oracle.work.verified += 1;
    let mut there: Vec<BTreeMap<BlobName, Version>> = Vec::new();
    for n in 0..usize::from(core.oracle.plan.servers) {
        let failed = |why: String| format!("server {n}, if its power went now: {why}");
        let pool = recover(core.nodes[n].disks[0].durable()).map_err(|error| failed(error.to_string()))?;
        let listings: Vec<Listing> = pool.list(None).collect();
        for listing in &listings {
            if matches!(listing.state, State::Live { .. }) && pool.verify(&listing.name) != Some(true) {
                return Err(failed(format!("{:?} has other bytes than were put there", listing.name)));
            }
            core.oracle.sees(listing).map_err(failed)?;
        }
        if !core.oracle.lost.contains_key(&n) {
            there.push(listings.into_iter().map(|listing| (listing.name, listing.version)).collect());
        }
    }
    let (lost, acks) = (core.oracle.lost.len(), usize::from(core.oracle.plan.acks));
    for (name, version) in core.oracle.acknowledged() {
        let have =
            there.iter().filter(|pool| pool.get(name).is_some_and(|theirs| *theirs >= version)).count();
        if have + lost < acks {
            return Err(format!(
                "version {version:?} of {name:?} was acknowledged by {acks} servers and lies on {have}, and only {lost} have lost their disks"
            ));
        }
    }
    Ok(())
}

/// Whether all servers have the same, byte for byte.
fn are_equal(processes: &[Option<Member>]) -> Result<(), String> {
    let mut first: Option<Vec<Listing>> = None;
    for (n, process) in processes.iter().enumerate() {
        let Some(Member::Server(server)) = process else { continue };
        let listings = server.listings().map_err(|why| format!("server {n}: {why}"))?;
        let first = first.get_or_insert_with(|| listings.clone());
        if *first != listings {
            return Err(format!(
                "all servers are up to date, and server {n} has {listings:?} and another one {first:?}"
            ));
        }
    }
    Ok(())
}
