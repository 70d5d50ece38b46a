//! A replicated service in a simulated cluster: the servers of its log with their disks, hosts that take it over from each other, and clients
//! that send their commands again until they are answered. The service is a counter, which says of each command which place it has.
//!
//! A plan is drawn from a seed ([`Plan::draw`]) and run ([`run_plan`]). What is checked:
//! - one counter could have told the clients what they were told (linearizability): nothing that was answered is lost or comes later than
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

use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub use oracle::Work;
pub use plan::{Params, Plan};

use super::core::{Core, Counts, Host as Node};
use super::disk::Disk;
use super::fault::Time;
use super::log::server::{self, Server};
use super::run::Cluster;
use super::shrink::shrink;
use super::{Input, Process};
use crate::panic_text;
use crate::report::{Failure, quoted};
use client::Client;
use host::Host;
use oracle::Oracle;

/// Simulated time in which everybody must have come to an end when all faults are over.
const DRAIN: u64 = 20_000_000_000;

/// What runs on a node.
enum Member {
    Server(Box<Server>),
    Host(Box<Host>),
    Client(Box<Client>),
}

impl Process for Member {
    type Oracle = Oracle;

    fn boot(node: &mut Node<'_, Oracle>) -> Result<Self, String> {
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

    fn on(&mut self, input: Input, node: &mut Node<'_, Oracle>) {
        match self {
            Self::Server(server) => server.on(input, node),
            Self::Host(host) => host.on(input, node),
            Self::Client(client) => client.on(input, node),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Server(_) => None,
            Self::Host(host) => host.deadline(),
            Self::Client(client) => client.deadline(),
        }
    }

    fn new_disks(core: &mut Core<Oracle>, _: &[Option<Self>], node: usize) -> Option<Vec<Disk>> {
        let quorum = (core.oracle.plan.servers, core.oracle.plan.acks);
        server::new_disks(core, node, quorum)
    }

    fn look(core: &mut Core<Oracle>, _: &mut [Option<Self>]) -> bool {
        if core.oracle.finished
            && let Err(what) = core.oracle.judge()
        {
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
    /// What the service did.
    pub work: Work,
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
    let panic = catch_unwind(AssertUnwindSafe(|| cluster.run(plan.heals + DRAIN))).err();
    let core = cluster.core;
    let what = match panic {
        Some(panic) => Some(format!("panic: {}", panic_text(&*panic))),
        None => core.what_is_wrong().cloned(),
    };
    let (counts, nanos, hash) = (core.counts, core.now(), core.trace.value());
    let waits = core.oracle.waits().filter(|_| !core.oracle.finished);
    let waits = waits.map_or_else(String::new, |client| format!("; client {client} waits for an answer"));
    let work = core.oracle.work;
    let failure = what.map(|what| Failure { what: format!("{what}{waits}"), trace: core.trace.into_lines() });
    Outcome { seed, plan: plan.clone(), counts, work, nanos, hash, failure }
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
        let mut line = format!("rem sim --cluster replicated --seed {}", self.seed);
        let Plan { faults, operations, servers, acks, .. } = &self.plan;
        // Who asks for other servers than the seed has drawn gets other faults as well.
        let default = Plan::draw(self.seed, &Params::default());
        let quorum = Some((*servers, *acks)).filter(|quorum| *quorum != (default.servers, default.acks));
        let drawn = Plan::draw(self.seed, &Params { quorum, ..Params::default() });
        if faults.len() < drawn.faults.len() {
            let numbers: Vec<String> = faults.iter().map(|(number, _)| number.to_string()).collect();
            let numbers = if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") };
            write!(line, " --faults {numbers}").expect("a string takes all");
        }
        if *operations != drawn.operations {
            write!(line, " --operations {operations}").expect("a string takes all");
        }
        if quorum.is_some() {
            write!(line, " --servers {servers} --acks {acks}").expect("a string takes all");
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
        field("cluster", &"\"replicated\"");
        field("seed", &self.seed);
        field("verdict", &if self.passed() { "\"pass\"" } else { "\"fail\"" });
        field("hash", &format_args!("\"{:016x}\"", self.hash));
        field("simulated_ns", &self.nanos);
        let nodes = [
            ("servers", plan.servers),
            ("acks", plan.acks),
            ("hosts", plan.hosts),
            ("clients", plan.clients),
        ];
        for (name, value) in nodes {
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
            "seed {}: a service on {} servers, {} of them acknowledge; {} hosts, {} clients, up to {} commands each",
            self.seed, plan.servers, plan.acks, plan.hosts, plan.clients, plan.operations
        )?;
        writeln!(
            f,
            "hosts    {} had the log, {} times from a snapshot, {} gave it up, {} connected again, {} shut out",
            work.led, work.from_snapshot, work.stood_down, work.connected_again, work.shut_out
        )?;
        writeln!(
            f,
            "clients  {} commands, {} answered, {} unknown, {} sent again, {} refused, {} sessions had ended",
            work.begun, work.done, work.unknown, work.sent_again, work.refused, work.expired
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
