//! What is the same for every service in a cluster: its plan as data, how a plan is drawn, run, shrunk and replayed, and what is said of a run.
//!
//! # How to add a service
//!
//! A service is a folder beside this file with what is its own, and nothing else:
//! - the part of its [`Plan`] that no other service has, which implements [`Service`]: how it is drawn from a seed, what its nodes are called,
//!   and what makes a run long (so it can be made shorter);
//! - an oracle: what its processes were told, and what must be true because of that, with its own counters (`report::counters`);
//! - its processes, each with `boot`, `on` and `deadline`, put together by `nodes!`;
//! - a `Process` (in `mod.rs`): which process runs on which node, which disks it has, when it may lose them, when a run is over, and what
//!   is judged then.
//!
//! Faults, shrinking, replays, counts of what happened to nodes, the text and JSON of an outcome, and the tests' loops over seeds
//! (`crates/sim/tests/computes/clusters.rs`) are then there for it. `rem sim --cluster` needs its name (`crates/cli/src/cmd/sim.rs`),
//! and `docs/sim.md` a section.

use std::fmt::{self, Debug, Display, Write as _};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use remanence_coord::log::Mode;
use remanence_pmem::PersistenceDomain;

use super::core::{Core, Counts, Speeds};
use super::fault::{Fault, Scene, Time};
use super::queue::Clock;
use super::run::Cluster;
use super::shrink::shrink;
use super::{End, Process};
use crate::panic_text;
use crate::report::{Counters, Failure, quoted};
use crate::rng::Rng;

/// A service in a cluster. The type is what its plans have and those of no other service.
pub trait Service: Clone + Eq + Debug + 'static {
    /// What `rem sim --cluster` calls it.
    const NAME: &'static str;
    /// What one of the nodes is called that have disks.
    const SERVER: &'static str;
    /// What it did, counted.
    type Work: Counters;
    /// What was measured beside that.
    type Measured: Clone + Eq + Debug;

    /// The plan of a seed.
    fn draw(seed: u64, params: &Params) -> Plan<Self>;

    /// Runs a plan, as it is.
    fn run(plan: &Plan<Self>, seed: u64, trace_lines: usize) -> Outcome<Self>;

    /// The command that runs it: what replays a run begins so.
    #[must_use]
    fn command() -> String {
        format!("rem sim --cluster {}", Self::NAME)
    }

    /// What kinds of nodes there are behind the servers, and how many of each. One more of the last kind comes at the end.
    fn clients(&self) -> Vec<(&'static str, u16)>;

    /// What makes a run long, by the names of the options that say so.
    fn lengths(&mut self) -> Vec<(&'static str, &mut u32)>;

    /// How the ends of logs are found, if that can be asked for.
    fn mode(&self) -> Option<Mode> {
        None
    }

    /// A sentence on what is run.
    fn sentence(plan: &Plan<Self>) -> String;
}

/// The bounds within which a seed draws its run. The defaults are those of `rem sim`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Nodes with disks, and how many of them must have something before it is acknowledged. `None`: the seed says so.
    pub quorum: Option<(u16, u16)>,
    /// How the ends of logs are found, where that can be asked for. `None`: the seed says so.
    pub mode: Option<Mode>,
    /// Whoever was replaced is kept from doing harm. Without, what was acknowledged is lost, which a simulator must see.
    pub guarded: bool,
    /// Lines of the trace that a failed run shows.
    pub trace_lines: usize,
    /// How many runs the search for a smaller plan that fails may take.
    pub shrinking: usize,
}

impl Params {
    /// How many nodes have disks, and how many of them must have something before it is acknowledged: one of these, if it is for the seed to say.
    pub(super) fn draw_quorum(&self, rng: &mut Rng, usual: &[(u16, u16)]) -> (u16, u16) {
        let drawn = rng.pick(usual);
        self.quorum.unwrap_or(drawn)
    }
}

impl Default for Params {
    fn default() -> Self {
        Self { quorum: None, mode: None, guarded: true, trace_lines: 100, shrinking: 200 }
    }
}

/// What one run does: drawn from a seed, and data from then on. What is only the service's [own](Self::own) is read as if it were here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan<S> {
    /// How many nodes have disks: the servers of a log, or the members of a store.
    pub servers: u16,
    /// How many of them must have something before it is acknowledged.
    pub acks: u16,
    /// Whoever was replaced is kept from doing harm.
    pub guarded: bool,
    /// Where what is flushed is safe.
    pub domain: PersistenceDomain,
    /// A flush makes durable what it is for, and nothing else.
    pub flush_alone: bool,
    /// What only this service has.
    pub own: S,
    /// How fast everything is.
    pub speeds: Speeds,
    /// The clock of each node, in the order of their names.
    pub clocks: Vec<Clock>,
    /// When all faults are over, in nanoseconds. The last client comes then.
    pub heals: u64,
    /// What goes wrong until then. The number of each is its place among those that the seed has drawn.
    pub faults: Vec<(usize, Fault)>,
}

impl<S> Deref for Plan<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.own
    }
}

impl<S> DerefMut for Plan<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.own
    }
}

/// Where what is flushed is safe: behind the memory controller so many times for each time that it is elsewhere.
pub(super) fn domain(rng: &mut Rng, adr: usize) -> PersistenceDomain {
    match rng.index(adr + 2).checked_sub(adr) {
        None => PersistenceDomain::Adr,
        Some(0) => PersistenceDomain::Eadr,
        Some(_) => PersistenceDomain::PageCache,
    }
}

impl<S> Plan<S> {
    /// A plan for that scene. A seed is drawn from in the order of the arguments, by all services: what was drawn once stays as it is.
    pub(super) fn of(
        params: &Params,
        acks: u16,
        (scene, faults): (&Scene, Vec<Fault>),
        (domain, flush_alone): (PersistenceDomain, bool),
        own: S,
        (speeds, clocks): (Speeds, Vec<Clock>),
    ) -> Self {
        let (servers, faults) = (scene.servers as u16, (0..).zip(faults).collect());
        let (guarded, heals) = (params.guarded, scene.ends);
        Self { servers, acks, guarded, domain, flush_alone, own, speeds, clocks, heals, faults }
    }
}

impl<S: Service> Plan<S> {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, params: &Params) -> Self {
        S::draw(seed, params)
    }

    /// Leaves out all faults but these.
    pub fn keep(&mut self, numbers: &[usize]) {
        self.faults.retain(|(number, _)| numbers.contains(number));
    }

    /// Names of the nodes.
    pub(super) fn names(&self) -> Vec<String> {
        let kinds = [vec![(S::SERVER, self.servers)], self.own.clients()].concat();
        let last = kinds.last().map(|(kind, _)| format!("the last {kind}"));
        let named = kinds.iter().flat_map(|(kind, count)| (0..*count).map(move |n| format!("{kind} {n}")));
        named.chain(last).collect()
    }

    /// What goes wrong, in sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let names = self.names();
        self.faults.iter().map(|(number, fault)| format!("{number:>2}  {}", fault.sentence(&names))).collect()
    }

    /// What is a little less than this, the best first: halves of the faults, then each of them, then a shorter run.
    fn less(&self) -> Vec<Self> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plan
        };
        let mut less = Vec::new();
        let count = self.faults.len();
        if count > 3 {
            less.push(with(&|plan| drop(plan.faults.drain(..count / 2))));
            less.push(with(&|plan| plan.faults.truncate(count / 2)));
        }
        less.extend((0..count).map(|n| with(&|plan| _ = plan.faults.remove(n))));
        for n in 0..self.own.clone().lengths().len() {
            for shorter in [|length: u32| length / 2, |length: u32| length - 1] {
                let mut plan = self.clone();
                let (_, length) = plan.own.lengths().swap_remove(n);
                if *length > 1 {
                    *length = shorter(*length);
                    less.push(plan);
                }
            }
        }
        less
    }
}

/// Events that the search for a smaller plan may take, beside those of its last run: a few runs that come to no end.
const SHRINKING_EVENTS: u64 = 2_000_000;

/// Runs a seed. One that fails is shrunk, and what is left is run once more to tell its story.
#[must_use]
pub fn run<S: Service>(seed: u64, params: &Params) -> Outcome<S> {
    run_shrunk(seed, &S::draw(seed, params), params)
}

/// Runs a plan as [`run`] runs that of a seed.
#[must_use]
pub fn run_shrunk<S: Service>(seed: u64, plan: &Plan<S>, params: &Params) -> Outcome<S> {
    let outcome = S::run(plan, seed, 0);
    if outcome.passed() {
        return outcome;
    }
    let mut events = 0;
    let plan = shrink(plan, params.shrinking, Plan::less, |less| {
        // What comes to no end fails only when it has taken all that a run may.
        if events > SHRINKING_EVENTS {
            return false;
        }
        let outcome = S::run(less, seed, 0);
        events += outcome.counts.events;
        !outcome.passed()
    });
    S::run(&plan, seed, params.trace_lines)
}

/// Runs a plan, as it is.
#[must_use]
pub fn run_plan<S: Service>(seed: u64, plan: &Plan<S>, trace_lines: usize) -> Outcome<S> {
    S::run(plan, seed, trace_lines)
}

/// Runs a plan with the processes of its service.
pub(super) fn play<P: Process>(
    plan: &Plan<P::Service>,
    seed: u64,
    trace_lines: usize,
) -> Outcome<P::Service> {
    let (flush_alone, oracle) = (plan.flush_alone, P::oracle(seed, plan));
    let mut core = Core::new(seed, plan.speeds.clone(), flush_alone, trace_lines, oracle);
    for (name, clock) in plan.names().into_iter().zip(&plan.clocks) {
        core.add(name, *clock);
    }
    for node in 0..plan.servers.into() {
        let disks = P::disks(&mut core, node);
        core.plug_in(node, disks);
    }
    let faults: Vec<_> = plan.faults.iter().map(|(_, fault)| *fault).collect();
    let mut cluster: Cluster<P> = Cluster::new(core, &faults);
    // A broken promise of the code is a finding like any other, and has a seed and a story.
    let panic = catch_unwind(AssertUnwindSafe(|| cluster.run(plan.heals + P::drain(plan)))).err();
    let core = &mut cluster.core;
    let what = match panic {
        Some(panic) => Some(format!("panic: {}", panic_text(&*panic))),
        None => core.what_is_wrong().cloned().or_else(|| P::judge(&mut core.oracle).err()),
    };
    let (counts, nanos, hash) = (core.counts, core.now(), core.trace.value());
    let End { work, measured, waits } = P::end(&core.oracle);
    let what = what.map(|what| match waits {
        Some(waits) if what.contains("come to an end") => format!("{what}; {waits}"),
        _ => what,
    });
    let failure = what.map(|what| Failure { what, trace: cluster.core.trace.into_lines() });
    Outcome { seed, plan: plan.clone(), counts, work, measured, nanos, hash, failure }
}

/// What became of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome<S: Service> {
    /// The seed, which replays the run.
    pub seed: u64,
    /// What was run: of a run that failed the smallest plan that was found to fail as well.
    pub plan: Plan<S>,
    /// What happened to the nodes.
    pub counts: Counts,
    /// What the service did.
    pub work: S::Work,
    /// What was measured beside that.
    pub measured: S::Measured,
    /// Simulated time, in nanoseconds.
    pub nanos: u64,
    /// Of everything that happened: two runs of a seed are the same if these are.
    pub hash: u64,
    /// What went wrong, if anything.
    pub failure: Option<Failure>,
}

impl<S: Service> Outcome<S> {
    /// Whether nothing was wrong.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.failure.is_none()
    }

    /// The line that replays this run.
    #[must_use]
    pub fn replay(&self) -> String {
        let mut options = String::new();
        let mut option = |name: &str, value: &dyn Display| {
            write!(options, " --{name} {value}").expect("a string takes all");
        };
        let (plan, mut own) = (&self.plan, self.plan.own.clone());
        // Who asks for other servers than the seed has drawn gets other faults as well.
        let default = S::draw(self.seed, &Params::default());
        let quorum = Some((plan.servers, plan.acks)).filter(|of| *of != (default.servers, default.acks));
        let mode = own.mode().filter(|mode| Some(*mode) != default.own.mode());
        let mut drawn = S::draw(self.seed, &Params { quorum, mode, ..Params::default() });
        if let Some((servers, acks)) = quorum {
            option("servers", &servers);
            option("acks", &acks);
        }
        if let Some(mode) = mode {
            option("mode", &mode.name());
        }
        if plan.faults.len() < drawn.faults.len() {
            let numbers: Vec<String> = plan.faults.iter().map(|(number, _)| number.to_string()).collect();
            option("faults", &if numbers.is_empty() { "none".to_owned() } else { numbers.join(",") });
        }
        for ((name, length), (_, usual)) in own.lengths().into_iter().zip(drawn.own.lengths()) {
            if length != usual {
                option(name, length);
            }
        }
        format!("{} --seed {}{options}", S::command(), self.seed)
    }

    /// The outcome as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut json = String::from("{");
        let mut field = |name: &str, value: &dyn Display| {
            let comma = if json.len() > 1 { "," } else { "" };
            write!(json, "{comma}\"{name}\":{value}").expect("a string takes all");
        };
        let plan = &self.plan;
        field("cluster", &quoted(S::NAME));
        field("seed", &self.seed);
        field("verdict", &if self.passed() { "\"pass\"" } else { "\"fail\"" });
        field("hash", &format_args!("\"{:016x}\"", self.hash));
        field("simulated_ns", &self.nanos);
        field(&format!("{}s", S::SERVER), &plan.servers);
        field("acks", &plan.acks);
        for (kind, count) in plan.own.clients() {
            field(&format!("{kind}s"), &count);
        }
        if let Some(mode) = plan.own.mode() {
            field("mode", &quoted(mode.name()));
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

/// What was counted, without what never happened, in lines that begin with what it is of.
fn counted(of: &str, counters: &impl Counters) -> String {
    let (mut text, mut line) = (String::new(), format!("{of:<8}"));
    for (name, count) in counters.fields().into_iter().filter(|(_, count)| *count > 0) {
        let next = format!(" {} {count},", name.replace('_', " "));
        if line.len() + next.len() > 120 {
            text += &format!("{line}\n");
            line = " ".repeat(8);
        }
        line += &next;
    }
    text + line.trim_end_matches([',', ' '])
}

impl<S: Service> Display for Outcome<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, S::sentence(&self.plan))?;
        writeln!(f, "{}\n{}", counted("work", &self.work), counted("nodes", &self.counts))?;
        self.plan.sentences().iter().try_for_each(|sentence| writeln!(f, "  {sentence}"))?;
        writeln!(f, "time     {} simulated, hash {:016x}", Time(self.nanos), self.hash)?;
        match &self.failure {
            None => write!(f, "verdict  pass"),
            Some(failure) => {
                failure.trace.iter().try_for_each(|line| writeln!(f, "{line}"))?;
                write!(f, "verdict  FAIL: {}\nreplay   {}", failure.what, self.replay())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Log;
    use super::*;

    #[test]
    fn what_was_counted_is_told_in_lines_that_are_not_too_long() {
        let few = Counts { pauses: 2, power_losses_within: 1, ..Counts::default() };
        assert_eq!(counted("nodes", &few), "nodes    pauses 2, power losses within 1");
        assert_eq!(counted("nodes", &Counts::default()), "nodes");
        let count = u64::MAX;
        let many = Counts { pauses: count, kills: count, connections: count, messages: count, ..few };
        let text = counted("nodes", &many);
        assert!(text.lines().count() > 1 && text.lines().all(|line| line.len() <= 121), "{text}");
    }

    #[test]
    fn what_is_less_than_a_plan_has_fewer_faults_or_is_shorter() {
        let seeds = (0..).map(|seed| Plan::<Log>::draw(seed, &Params::default()));
        let plan =
            seeds.into_iter().find(|plan| plan.faults.len() == 8 && plan.sessions > 1).expect("one of many");
        let less = plan.less();
        assert_eq!((less[0].faults.len(), less[1].faults.len()), (4, 4));
        assert_eq!(less[0].faults[0], plan.faults[4]);
        assert!(less[2..10].iter().all(|less| less.faults.len() == 7 && less.own == plan.own));
        let shorter: Vec<(u32, u32)> = less[10..].iter().map(|less| (less.sessions, less.records)).collect();
        let (sessions, records) = (plan.sessions, plan.records);
        let all = [
            (sessions / 2, records),
            (sessions - 1, records),
            (sessions, records / 2),
            (sessions, records - 1),
        ];
        assert_eq!(shorter, all);
    }
}
