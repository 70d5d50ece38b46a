//! The replicated key-value store in a simulated cluster: members with their logs and images, clients that read and write one-sidedly, and
//! one client that comes when all faults are over.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`](super::run_plan)). The members run `kv`'s machines ([`Takeover`], [`Keeper`], and as
//! the primary [`Primary`] below a [`Server`]) over the log's ([`Holder`], [`Store`]). A primary waits while it serves, for its members;
//! so it is code that waits, which `cluster/task.rs` runs. What is checked:
//! - what clients were told is linearizable for each key, over all crashes, lost disks and takeovers; of an operation of which nothing is
//!   known, either is possible until somebody else has taken over;
//! - no value is served that nobody has written, and a scan sees each key once that was there all the time;
//! - no client is kept from writing what was handed out to it;
//! - no member takes the log over without what was acknowledged in an earlier epoch, and no epoch has two primaries;
//! - no member tries to lead, or opens the log again, while another one has served for a while and the others slept at most (`judge.rs`);
//! - no member waits, or is done without, for long when nothing is wrong (`judge.rs`);
//! - no crash is taken for damage;
//! - when all faults are over, a client reads and writes all keys, one member serves and all others take part and follow it, and all images
//!   are the same byte for byte, within a bounded time.
//!
//! What is modelled in place of `kv`'s live part: sessions, messages and what members tell each other (`member.rs`), how a primary carries out
//! what it is to do between requests (`lead.rs`; what that is, `kv` decides), and when a client believes what it has got (`client.rs`). A
//! whole node waits for a disk that is slow; where one does not answer at all, the member goes on to talk to the others, and says so.
//!
//! [`Holder`]: remanence_coord::log::serve::Holder
//! [`Keeper`]: remanence_kv::replica::Keeper
//! [`Primary`]: remanence_kv::replica::Primary
//! [`Server`]: remanence_kv::Server
//! [`Store`]: remanence_coord::log::Store
//! [`Takeover`]: remanence_coord::takeover::Takeover

mod body;
mod client;
mod connection;
mod judge;
mod lead;
mod member;
mod message;
mod oracle;
mod plan;
mod scan;

pub use oracle::Work;
pub use plan::Kv;

use super::core::{Core, Host};
use super::disk::Disk;
use super::{End, Process, nodes};
use client::Client;
use member::Member;
use oracle::Oracle;

/// A plan of the store.
pub type Plan = super::Plan<Kv>;
/// What became of one.
pub type Outcome = super::Outcome<Kv>;

/// Simulated time in which the members must be as one when all faults are over: a log's patience, the longest pause between two attempts
/// to take a member in again, and a good deal more.
const DRAIN: u64 = 60_000_000_000;
/// How often it is looked whether they are.
const LOOK: u64 = 10_000_000;

nodes!(Node: Member, Client);

impl Node {
    fn member(&self) -> Option<&Member> {
        match self {
            Self::Member(member) => Some(member),
            Self::Client(_) => None,
        }
    }
}

impl Process for Node {
    type Service = Kv;
    type Oracle = Oracle;

    fn oracle(seed: u64, plan: &Plan) -> Oracle {
        Oracle::new(seed, plan)
    }

    fn disks(core: &mut Core<Oracle>, _: usize) -> Vec<Disk> {
        member::make(core)
    }

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        if host.node() < usize::from(host.known().plan.servers) {
            Member::boot(host).map(|member| Self::Member(Box::new(member)))
        } else {
            Ok(Self::Client(Box::new(Client::boot(host))))
        }
    }

    fn new_disks(core: &mut Core<Oracle>, processes: &[Option<Self>], node: usize) -> Option<Vec<Disk>> {
        if !may_be_lost(core, processes, node) {
            return None;
        }
        core.oracle.lost.insert(node);
        core.oracle.rotten.remove(&node);
        Some(member::make(core))
    }

    fn rots(core: &mut Core<Oracle>, processes: &[Option<Self>], node: usize, salt: u64) -> bool {
        if !may_be_lost(core, processes, node) {
            return false;
        }
        let Some(places) = member::rot(&core.nodes[node].disks[member::IMAGE], salt) else { return false };
        core.oracle.lost.insert(node);
        core.oracle.rotten.insert(node);
        core.oracle.rotted.extend(places);
        true
    }

    fn look(core: &mut Core<Oracle>, processes: &mut [Option<Self>]) -> bool {
        core.oracle.now = core.now();
        if let Err(why) = judge::judge(core, processes) {
            core.wrong(why);
        }
        if core.now() >= core.oracle.next_look {
            core.oracle.next_look = core.now() + LOOK;
            if let Err(why) = judge::take_part(core, processes) {
                core.wrong(why);
            }
            if core.oracle.verify {
                match settled(core, processes) {
                    Ok(()) => core.oracle.finished = true,
                    Err(why) => core.oracle.waits = why,
                }
            }
        }
        core.oracle.finished
    }

    fn drain(_: &Plan) -> u64 {
        DRAIN
    }

    fn judge(oracle: &mut Oracle) -> Result<(), String> {
        oracle.judge()
    }

    fn end(oracle: &Oracle) -> End<Kv> {
        let waits = (!oracle.finished).then(|| format!("the last client: {}", oracle.waits));
        End { work: oracle.work, measured: oracle.still, waits }
    }
}

/// So many members may lose their disks at a time, or have images in which something has rotted, as what is acknowledged lies on others
/// beside one. A member counts until it has all again that was acknowledged, and has it whole.
fn may_be_lost(core: &mut Core<Oracle>, processes: &[Option<Node>], node: usize) -> bool {
    let member = |at: usize| processes[at].as_ref().and_then(Node::member);
    let below = core.oracle.next();
    let head = (0..processes.len()).filter_map(|at| Some(member(at)?.head())).max().unwrap_or(0);
    let Oracle { lost, rotten, plan, .. } = &mut core.oracle;
    rotten.retain(|at| member(*at).is_none_or(|member| !member.is_sound()));
    lost.retain(|at| rotten.contains(at) || member(*at).is_none_or(|member| !member.has_all(below, head)));
    let others = lost.iter().filter(|lost| **lost != node).count();
    node < usize::from(plan.servers) && others + 1 < usize::from(plan.acks)
}

/// Whether the members are as one.
///
/// # Errors
/// Why they are not yet.
fn settled(core: &mut Core<Oracle>, processes: &[Option<Node>]) -> Result<(), String> {
    let count = usize::from(core.oracle.plan.servers);
    let members: Vec<&Member> =
        processes.iter().take(count).filter_map(|node| node.as_ref()?.member()).collect();
    let leaders = members.iter().filter(|member| member.leads()).count();
    if members.len() < count || leaders != 1 {
        return Err(format!("{} of {count} members run, and {leaders} lead", members.len()));
    }
    let below = core.oracle.next();
    if let Some(why) = members.iter().find_map(|member| member.unsettled(below)) {
        return Err(why);
    }
    // What is no value any more stays as it is.
    let rotted = &core.oracle.rotted;
    if let Some(rotten) = members.iter().position(|member| !rotted.is_empty() && !member.is_sound()) {
        return Err(format!("something in the image of member {rotten} has rotted"));
    }
    let image = |member: &Member| {
        let mut image = member.image();
        rotted.iter().for_each(|at| image[*at as usize] = 0);
        image
    };
    let first = image(members[0]);
    if let Some(other) = (1..count).find(|at| image(members[*at]) != first) {
        let image = image(members[other]);
        let at = first.iter().zip(&image).position(|(a, b)| a != b).unwrap_or(0);
        core.wrong(format!("the images of members 0 and {other} differ at byte {at}"));
    }
    Ok(())
}
