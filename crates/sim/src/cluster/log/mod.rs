//! The replicated log in a simulated cluster: servers with their disks, writers that do not know of each other, and one that comes
//! when all faults are over.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`]). What is checked:
//! - a number is acknowledged with one content only, and no epoch begins before what was acknowledged in an earlier one;
//! - a record is acknowledged when enough servers have said that they have it: no sooner, and in the very event in which the last of
//!   them says so, whatever the others do;
//! - what was acknowledged is on every server that takes part when the last writer has opened the log, and at the end on all,
//!   byte for byte, unless somebody gave it up;
//! - at any time what was acknowledged lies durably on as many servers as acknowledge, but for those that have lost their disks
//!   (`durable.rs`);
//! - who is told of a later writer before it has changed anything changes nothing;
//! - no crash is taken for damage;
//! - when all faults are over, the sessions of usual writers come to their ends within a bounded time: what they append is
//!   acknowledged, or they learn that another one has the log;
//! - and the last writer opens the log, appends, and brings all servers up to date within a bounded time, though it loses all its
//!   connections in the middle of that.

mod durable;
mod oracle;
mod plan;
pub(super) mod server;
mod tracker;
mod writer;

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
use oracle::Oracle;
use server::{Rot, Server};
use writer::Writer;

/// Simulated time in which the last writer must have come to its end: patience, the time of a server that is busy cutting somebody
/// off, and a good deal more.
const DRAIN: u64 = 20_000_000_000;
/// Simulated time in which the session of a usual writer must have come to its end when all faults are over: its records and their
/// pauses, patience, and the time of a server that is busy cutting somebody off.
const ENDS: u64 = 10_000_000_000;

/// What runs on a node.
enum Member {
    Server(Box<Server>),
    Writer(Box<Writer>),
}

impl Process for Member {
    type Oracle = Oracle;

    fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        let servers = usize::from(host.oracle().plan.servers);
        if host.node() < servers {
            Server::boot(host).map(|server| Self::Server(Box::new(server)))
        } else {
            Ok(Self::Writer(Box::new(Writer::boot(host))))
        }
    }

    fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        match self {
            Self::Server(server) => server.on(input, host),
            Self::Writer(writer) => writer.on(input, host),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Server(_) => None,
            Self::Writer(writer) => writer.deadline(),
        }
    }

    fn new_disks(core: &mut Core<Oracle>, _: &[Option<Self>], node: usize) -> Option<Vec<Disk>> {
        let quorum = (core.oracle.plan.servers, core.oracle.plan.acks);
        let disks = server::new_disks(core, node, quorum)?;
        core.oracle.rotten[node] = Rot::None;
        core.oracle.remembered[node] = 0;
        Some(disks)
    }

    fn rots(core: &mut Core<Oracle>, node: usize, salt: u64) -> bool {
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
    /// What the group did.
    pub work: Work,
    /// When each record that was acknowledged was appended, and how long that took, in nanoseconds.
    pub latencies: Vec<(u64, u64)>,
    /// Simulated time, in nanoseconds.
    pub nanos: u64,
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
    for node in 0..usize::from(plan.servers) {
        let disk = server::make(&mut core, node);
        core.plug_in(node, vec![disk]);
    }
    let faults: Vec<_> = plan.faults.iter().map(|(_, fault)| *fault).collect();
    let mut cluster: Cluster<Member> = Cluster::new(core, &faults);
    // A broken promise of the code is a finding like any other, and has a seed and a story.
    let limit = plan.heals + DRAIN + if plan.lets_end { ENDS } else { 0 };
    let panic = catch_unwind(AssertUnwindSafe(|| cluster.run(limit))).err();
    let core = cluster.core;
    let what = match panic {
        Some(panic) => Some(format!("panic: {}", panic_text(&*panic))),
        None => core.what_is_wrong().cloned(),
    };
    let (counts, nanos, hash) = (core.counts, core.now(), core.trace.value());
    let Oracle { work, latencies, finished, waits, .. } = core.oracle;
    let what = what.map(|what| {
        let waits = if finished || !what.contains("come to an end") {
            String::new()
        } else {
            format!("; the last writer: {waits}")
        };
        format!("{what}{waits}")
    });
    let failure = what.map(|what| Failure { what, trace: core.trace.into_lines() });
    Outcome { seed, plan: plan.clone(), counts, work, latencies, nanos, hash, failure }
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
        let mut line = format!("rem sim --cluster log --seed {}", self.seed);
        let Plan { faults, sessions, records, servers, acks, mode, .. } = &self.plan;
        // Who asks for other servers than the seed has drawn gets other faults as well.
        let default = Plan::draw(self.seed, &Params::default());
        let quorum = Some((*servers, *acks)).filter(|quorum| *quorum != (default.servers, default.acks));
        let asked = Some(*mode).filter(|mode| *mode != default.mode);
        let drawn = Plan::draw(self.seed, &Params { quorum, mode: asked, ..Params::default() });
        if faults.len() < drawn.faults.len() {
            let numbers: Vec<String> = faults.iter().map(|(number, _)| number.to_string()).collect();
            let numbers = if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") };
            write!(line, " --faults {numbers}").expect("a string takes all");
        }
        if *sessions != drawn.sessions {
            write!(line, " --sessions {sessions}").expect("a string takes all");
        }
        if (*servers, *acks) != (default.servers, default.acks) {
            write!(line, " --servers {servers} --acks {acks}").expect("a string takes all");
        }
        if *mode != default.mode {
            write!(line, " --mode {}", mode.name()).expect("a string takes all");
        }
        if *records != drawn.records {
            write!(line, " --records {records}").expect("a string takes all");
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
        field("cluster", &"\"log\"");
        field("seed", &self.seed);
        field("verdict", &if self.passed() { "\"pass\"" } else { "\"fail\"" });
        field("hash", &format_args!("\"{:016x}\"", self.hash));
        field("simulated_ns", &self.nanos);
        for (name, value) in [("servers", plan.servers), ("acks", plan.acks), ("writers", plan.writers)] {
            field(name, &value);
        }
        field("mode", &quoted(plan.mode.name()));
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
            "seed {}: a log on {} servers, {} of them acknowledge; {} writers, {} times each, up to {} records; {}",
            self.seed,
            plan.servers,
            plan.acks,
            plan.writers,
            plan.sessions,
            plan.records,
            plan.mode.name()
        )?;
        writeln!(
            f,
            "group    {} opened, {} in vain, {} appended, {} acknowledged, {} trims, {} closed, {} times no room",
            work.opened,
            work.not_opened,
            work.appended,
            work.acknowledged,
            work.trims,
            work.closed,
            work.full
        )?;
        writeln!(
            f,
            "servers  {} records copied, {} cut off, {} connected again, {} writers shut out, {} ended by themselves",
            work.copied, work.cut, work.connected_again, work.shut_out, work.ended
        )?;
        writeln!(
            f,
            "faults   {} stopped, {} killed, {} without power ({} within something), {} disks lost, {} failed, {} slow, {} partitions, {} held up",
            c.pauses,
            c.kills,
            c.power_losses,
            c.power_losses_within,
            c.disks_lost,
            c.media_failed,
            c.slow,
            c.partitions,
            c.lingered
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
