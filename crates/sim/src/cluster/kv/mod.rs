//! The replicated key-value store in a simulated cluster: members with their logs and images, clients that read and write one-sidedly, and
//! one client that comes when all faults are over.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`]). The members run `kv`'s machines ([`Takeover`], [`Keeper`], and as
//! the primary [`Primary`] below a [`Server`]) over the log's ([`Holder`], [`Store`]). A primary waits while it serves, for its members;
//! so it is code that waits, which `cluster/task.rs` runs. What is checked:
//! - what clients were told is linearizable for each key, over all crashes, lost disks and takeovers; of an operation of which nothing is
//!   known, either is possible until somebody else has taken over;
//! - no value is served that nobody has written, and a scan sees each key once that was there all the time;
//! - no client is kept from writing what was handed out to it;
//! - no member takes the log over without what was acknowledged in an earlier epoch, and no epoch has two primaries;
//! - no crash is taken for damage;
//! - when all faults are over, a client reads and writes all keys, one member serves and all others take part and follow it, and all images
//!   are the same byte for byte, within a bounded time.
//!
//! What is modelled in place of `kv`'s live part: sessions, messages and what members tell each other (`member.rs`), what a primary does for
//! the others between requests (`lead.rs`), and when a client believes what it has got (`client.rs`). A whole node waits for
//! a disk that is slow; where one does not answer at all, the member goes on to talk to the others, and says so.
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
mod lead;
mod member;
mod message;
mod oracle;
mod plan;
mod scan;

use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use oracle::Work;
pub use plan::{Params, Plan};

use super::core::{Core, Counts, Host};
use super::disk::Disk;
use super::fault::Time;
use super::run::Cluster;
use super::shrink::shrink;
use super::{Input, Process};
use crate::panic_text;
use crate::report::{Failure, quoted};
use client::Client;
use member::Member;
use oracle::Oracle;

/// Simulated time in which the members must be as one when all faults are over: a log's patience, the longest pause between two attempts
/// to take a member in again, and a good deal more.
const DRAIN: u64 = 60_000_000_000;
/// How often it is looked whether they are.
const LOOK: u64 = 10_000_000;

/// What runs on a node.
enum Node {
    Member(Box<Member>),
    Client(Box<Client>),
}

impl Node {
    fn member(&self) -> Option<&Member> {
        match self {
            Self::Member(member) => Some(member),
            Self::Client(_) => None,
        }
    }
}

impl Process for Node {
    type Oracle = Oracle;

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        if host.node() < usize::from(host.known().plan.members) {
            Member::boot(host).map(|member| Self::Member(Box::new(member)))
        } else {
            Ok(Self::Client(Box::new(Client::boot(host))))
        }
    }

    fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        match self {
            Self::Member(member) => member.on(input, host),
            Self::Client(client) => client.on(input, host),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Member(member) => member.deadline(),
            Self::Client(client) => client.deadline(),
        }
    }

    /// So many members may lose their disks at a time as what is acknowledged lies on others beside one. A member counts until it has all
    /// again that was acknowledged.
    fn new_disks(core: &mut Core<Oracle>, processes: &[Option<Self>], node: usize) -> Option<Vec<Disk>> {
        let member = |at: usize| processes[at].as_ref().and_then(Self::member);
        let below = core.oracle.next();
        let head = (0..processes.len()).filter_map(|at| Some(member(at)?.head())).max().unwrap_or(0);
        core.oracle.lost.retain(|lost| member(*lost).is_none_or(|member| !member.has_all(below, head)));
        let plan = &core.oracle.plan;
        let others = core.oracle.lost.iter().filter(|lost| **lost != node).count();
        if node >= usize::from(plan.members) || others + 1 >= usize::from(plan.acks) {
            return None;
        }
        core.oracle.lost.insert(node);
        Some(member::make(core))
    }

    fn look(core: &mut Core<Oracle>, processes: &mut [Option<Self>]) -> bool {
        core.oracle.now = core.now();
        if core.oracle.verify && core.now() >= core.oracle.next_look {
            core.oracle.next_look = core.now() + LOOK;
            match settled(core, processes) {
                Ok(()) => core.oracle.finished = true,
                Err(why) => core.oracle.waits = why,
            }
        }
        core.oracle.finished
    }
}

/// Whether the members are as one.
///
/// # Errors
/// Why they are not yet.
fn settled(core: &mut Core<Oracle>, processes: &[Option<Node>]) -> Result<(), String> {
    let count = usize::from(core.oracle.plan.members);
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
    let first = members[0].image();
    if let Some(other) = (1..count).find(|at| members[*at].image() != first) {
        let image = members[other].image();
        let at = first.iter().zip(&image).position(|(a, b)| a != b).unwrap_or(0);
        core.wrong(format!("the images of members 0 and {other} differ at byte {at}"));
    }
    Ok(())
}

/// What became of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The seed, which replays the run.
    pub seed: u64,
    /// What was run: of a run that failed the smallest plan that was found to fail as well.
    pub plan: Plan,
    /// What happened to the nodes.
    pub counts: Counts,
    /// What the store did.
    pub work: Work,
    /// Simulated time, in nanoseconds.
    pub nanos: u64,
    /// The longest time in which no operation came to its end, before all faults were over.
    pub still: u64,
    /// Of everything that happened: two runs of a seed are the same if these are.
    pub hash: u64,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
}

/// Runs a seed. One that fails is shrunk, and what is left is run once more to tell its story.
#[must_use]
pub fn run(seed: u64, params: &Params) -> Outcome {
    run_shrunk(seed, &Plan::draw(seed, params), params)
}

/// Runs a plan as [`run`] runs that of a seed.
#[must_use]
pub fn run_shrunk(seed: u64, plan: &Plan, params: &Params) -> Outcome {
    let outcome = run_plan(seed, plan, 0);
    if outcome.passed() {
        return outcome;
    }
    let plan = shrink(plan, params.shrinking, |less| !run_plan(seed, less, 0).passed());
    run_plan(seed, &plan, params.trace_lines)
}

/// Runs a plan, as it is.
#[must_use]
pub fn run_plan(seed: u64, plan: &Plan, trace_lines: usize) -> Outcome {
    let flush_alone = plan.flush_alone;
    let mut core = Core::new(seed, plan.speeds.clone(), flush_alone, trace_lines, Oracle::new(seed, plan));
    for (name, clock) in plan.names().into_iter().zip(&plan.clocks) {
        core.add(name, *clock);
    }
    for node in 0..usize::from(plan.members) {
        let disks = member::make(&mut core);
        core.plug_in(node, disks);
    }
    let faults: Vec<_> = plan.faults.iter().map(|(_, fault)| *fault).collect();
    let mut cluster: Cluster<Node> = Cluster::new(core, &faults);
    // A broken promise of the code is a finding like any other, and has a seed and a story.
    let panic = catch_unwind(AssertUnwindSafe(|| cluster.run(plan.heals + DRAIN))).err();
    let core = &mut cluster.core;
    let what = match panic {
        Some(panic) => Some(format!("panic: {}", panic_text(&*panic))),
        None => core.what_is_wrong().cloned().or_else(|| core.oracle.judge().err()),
    };
    let (counts, nanos, hash) = (core.counts, core.now(), core.trace.value());
    let Oracle { work, finished, waits, still, .. } = &core.oracle;
    let what = what.map(|what| {
        if *finished || !what.contains("come to an end") {
            what
        } else {
            format!("{what}; the last client: {waits}")
        }
    });
    let (work, still) = (*work, *still);
    let failure = what.map(|what| Failure { what, trace: cluster.core.trace.into_lines() });
    Outcome { seed, plan: plan.clone(), counts, work, nanos, still, hash, failure }
}

impl Outcome {
    /// Whether nothing was wrong.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.failure.is_none()
    }

    /// The line that replays this run.
    #[must_use]
    pub fn replay(&self) -> String {
        let mut line = format!("rem sim --cluster kv --seed {}", self.seed);
        let Plan { faults, operations, members, acks, .. } = &self.plan;
        // Who asks for other members than the seed has drawn gets other faults as well.
        let default = Plan::draw(self.seed, &Params::default());
        let quorum = Some((*members, *acks)).filter(|quorum| *quorum != (default.members, default.acks));
        let drawn = Plan::draw(self.seed, &Params { quorum, ..Params::default() });
        if let Some((members, acks)) = quorum {
            write!(line, " --servers {members} --acks {acks}").expect("a string takes all");
        }
        if faults.len() < drawn.faults.len() {
            let numbers: Vec<String> = faults.iter().map(|(number, _)| number.to_string()).collect();
            let numbers = if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") };
            write!(line, " --faults {numbers}").expect("a string takes all");
        }
        if *operations != drawn.operations {
            write!(line, " --operations {operations}").expect("a string takes all");
        }
        line
    }

    /// The outcome as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::from("{");
        let mut field = |name: &str, value: &dyn fmt::Display| {
            let comma = if json.len() > 1 { "," } else { "" };
            write!(json, "{comma}\"{name}\":{value}").expect("a string takes all");
        };
        let plan = &self.plan;
        field("cluster", &"\"kv\"");
        field("seed", &self.seed);
        field("verdict", &if self.passed() { "\"pass\"" } else { "\"fail\"" });
        field("hash", &format_args!("\"{:016x}\"", self.hash));
        field("simulated_ns", &self.nanos);
        for (name, value) in [("members", plan.members), ("acks", plan.acks), ("clients", plan.clients)] {
            field(name, &value);
        }
        for (name, value) in self.work.fields().into_iter().chain(self.counts.fields()) {
            field(name, &value);
        }
        let list = |lines: &[String]| {
            format!("[{}]", lines.iter().map(|line| quoted(line)).collect::<Vec<_>>().join(","))
        };
        field("faults", &list(&plan.sentences()));
        match &self.failure {
            None => field("failure", &"null"),
            Some(failure) => {
                field("failure", &quoted(&failure.what));
                field("replay", &quoted(&self.replay()));
                field("trace", &list(&failure.trace));
            }
        }
        json.push('}');
        json
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, work, c) = (&self.plan, &self.work, &self.counts);
        writeln!(
            f,
            "seed {}: a store on {} members, {} of them acknowledge; {} clients, up to {} operations each on {} keys",
            self.seed, plan.members, plan.acks, plan.clients, plan.operations, plan.keys
        )?;
        writeln!(
            f,
            "members  {} tried to take over, {} did, {} stood down; {} reconnected, {} times reopened, {} rebuilt, {} records trimmed",
            work.tried,
            work.led,
            work.stood_down,
            work.reconnected,
            work.reopened,
            work.rebuilt,
            work.trimmed
        )?;
        writeln!(
            f,
            "clients  {} operations, {} done, {} scans, {} unknown, {} disbelieved; {} times connected, {} cut off",
            work.begun, work.done, work.scans, work.unknown, work.disbelieved, work.connected, work.fenced
        )?;
        writeln!(
            f,
            "faults   {} stopped, {} killed, {} without power ({} within something), {} disks lost, {} failed, {} hung, {} slow, {} partitions",
            c.pauses,
            c.kills,
            c.power_losses,
            c.power_losses_within,
            c.disks_lost,
            c.media_failed,
            c.hung,
            c.slow,
            c.partitions
        )?;
        for sentence in plan.sentences() {
            writeln!(f, "  {sentence}")?;
        }
        let (connections, lost) = (c.connections, c.connections_lost);
        writeln!(
            f,
            "network  {connections} connections, {lost} lost, {} messages, {} one-sided operations",
            c.messages, c.operations
        )?;
        writeln!(f, "time     {} simulated, {} steps, hash {:016x}", Time(self.nanos), c.events, self.hash)?;
        match &self.failure {
            None => write!(f, "verdict  pass"),
            Some(failure) => {
                failure.trace.iter().try_for_each(|line| writeln!(f, "{line}"))?;
                writeln!(f, "verdict  FAIL: {}", failure.what)?;
                write!(f, "replay   {}", self.replay())
            }
        }
    }
}
