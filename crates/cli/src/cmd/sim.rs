//! `rem sim`: one simulated cluster, or many.

use std::time::Instant;

use remanence_remotelog::Mode;
use remanence_sim::cluster::kv::Kv;
use remanence_sim::cluster::log::Log;
use remanence_sim::cluster::mu::Mu;
use remanence_sim::cluster::pool::Pool;
use remanence_sim::cluster::recipes::Recipes;
use remanence_sim::cluster::replicated::Replicated;
use remanence_sim::cluster::rpc::Rpc;
use remanence_sim::cluster::{self, Plan, Service};
use remanence_sim::{Params, run as simulate};

use crate::fail::Fail;
use crate::signals::Stop;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem sim --seed 42                     that run, always the same
  rem sim --seed 0 --count 5000         those runs; the first that fails is told and ends it
  rem sim --cluster log --seeds 0..500  a log on several servers, its writers, and what happens to them
  rem sim --cluster kv --seeds 0..500   a store on several members, its clients, and what happens to them
  rem sim --cluster mu --seeds 0..500   replicas of a group that runs Mu, their clients, and what happens to them
  rem sim --cluster pool --seeds 0..500 blobs on several servers, their clients, and what happens to them
  rem sim --cluster replicated --seeds 0..500  a replicated service: a log's servers, hosts and clients
  rem sim --cluster rpc --seeds 0..500  calls to servers with logs, over datagrams that are lost, repeated, late and out of order
  rem sim --cluster recipes --seeds 0..500  updates that are made durable on responders of all kinds, by the recipe for each")]
pub(crate) struct Args {
    /// The seed, which decides everything
    #[arg(long, required_unless_present = "seeds")]
    seed: Option<u64>,
    /// Run so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: u64,
    /// Run the seeds from A on and below B
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, conflicts_with_all = ["seed", "count"])]
    seeds: Option<(u64, u64)>,
    /// What the nodes run
    #[arg(long, value_enum, default_value_t = Cluster::Engines)]
    cluster: Cluster,
    /// Work requests of each run of engines
    #[arg(long, value_name = "N")]
    ops: Option<u32>,
    /// Of the faults of a cluster's seed only these, by number; none: not any
    #[arg(long, value_name = "N,N,...", value_parser = parse_faults)]
    faults: Option<Faults>,
    /// How often each writer of a log opens it, at most
    #[arg(long, value_name = "N")]
    sessions: Option<u32>,
    /// Records that a writer of a log appends each time, at most
    #[arg(long, value_name = "N")]
    records: Option<u32>,
    /// Servers of a log (also that of a service) or of blobs, members of a store, or replicas of a group, in place of as many as its seed draws; --acks goes with it
    #[arg(long, value_name = "N", requires = "acks", value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: Option<u16>,
    /// How many of them must have a record or a blob before it is acknowledged
    #[arg(long, value_name = "N", requires = "servers", value_parser = clap::value_parser!(u16).range(1..=16))]
    acks: Option<u16>,
    /// How the ends of a log's records are found (also that of a service): singleton or compound
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<Mode>,
    /// Operations of each client of a store, of blobs, of a group or of a service, at most
    #[arg(long, value_name = "N")]
    operations: Option<u32>,
    /// Print one JSON object for each run
    #[arg(long)]
    json: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Cluster {
    /// Engines and nothing above them
    Engines,
    /// A log on several servers
    Log,
    /// A key-value store on several members
    Kv,
    /// Replicas of a group that runs Mu
    Mu,
    /// Durable blobs on several servers
    Pool,
    /// A replicated service, on the servers of a log
    Replicated,
    /// Remote procedure calls, and the logs of those who are called
    Rpc,
    /// Recipes of persistence
    Recipes,
}

/// Numbers of faults.
#[derive(Clone, Debug)]
struct Faults(Vec<usize>);

fn parse_faults(text: &str) -> Result<Faults, String> {
    if text == "none" {
        return Ok(Faults(Vec::new()));
    }
    let numbers = text.split(',').map(|number| number.trim().parse());
    numbers
        .collect::<Result<_, _>>()
        .map(Faults)
        .map_err(|_| format!("{text:?} are no numbers of faults; write 0,3,5 or none"))
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| format!("{text:?} is no mode of a log; write singleton or compound"))
}

fn parse_seeds(text: &str) -> Result<(u64, u64), String> {
    let bounds = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    bounds.filter(|(from, to)| from < to).ok_or_else(|| format!("{text:?} are no seeds; write 0..500"))
}

impl Args {
    /// How long a run is to be, by the names of the options that say so.
    fn lengths(&self) -> [(&'static str, Option<u32>); 3] {
        [("sessions", self.sessions), ("records", self.records), ("operations", self.operations)]
    }
}

/// Refuses an option that does not go with the cluster that is run, if it was given.
fn refuse(option: &str, is_given: bool, name: &str) -> Result<(), Fail> {
    let why = || {
        format!("--{option} does not go with --cluster {name}; rem sim --help says what each cluster runs")
    };
    if is_given { Err(Fail::new(why())) } else { Ok(()) }
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    match args.cluster {
        Cluster::Engines => engines(args),
        Cluster::Log => service::<Log>(args),
        Cluster::Kv => service::<Kv>(args),
        Cluster::Mu => service::<Mu>(args),
        Cluster::Pool => service::<Pool>(args),
        Cluster::Replicated => service::<Replicated>(args),
        Cluster::Rpc => service::<Rpc>(args),
        Cluster::Recipes => service::<Recipes>(args),
    }
}

fn engines(args: &Args) -> Result<(), Fail> {
    let others = [
        ("faults", args.faults.is_some()),
        ("servers", args.servers.is_some()),
        ("mode", args.mode.is_some()),
    ];
    let lengths = args.lengths().map(|(name, length)| (name, length.is_some()));
    others.into_iter().chain(lengths).try_for_each(|(name, given)| refuse(name, given, "engines"))?;
    let mut params = Params::default();
    params.ops = args.ops.unwrap_or(params.ops);
    each(args, |seed| {
        let outcome = simulate(seed, &params);
        Ok(Run {
            passed: outcome.passed(),
            json: outcome.to_json(),
            text: outcome.to_string(),
            replay: format!("rem sim --seed {seed}"),
        })
    })
}

/// Runs clusters of a service.
fn service<S: Service>(args: &Args) -> Result<(), Fail> {
    let params = cluster::Params {
        quorum: args.servers.zip(args.acks),
        mode: args.mode,
        ..cluster::Params::default()
    };
    let mut any = Plan::<S>::draw(0, &params);
    let known: Vec<&str> = any.own.lengths().into_iter().map(|(name, _)| name).collect();
    refuse("ops", args.ops.is_some(), S::NAME)?;
    refuse("mode", args.mode.is_some() && any.own.mode().is_none(), S::NAME)?;
    for (name, length) in args.lengths() {
        refuse(name, length.is_some() && !known.contains(&name), S::NAME)?;
    }
    if args.acks > args.servers {
        return Err(Fail::new("no more servers can acknowledge than there are; --acks is at most --servers"));
    }
    each(args, |seed| {
        let mut plan = Plan::<S>::draw(seed, &params);
        if let Some(Faults(numbers)) = &args.faults {
            if let Some(number) =
                numbers.iter().find(|number| plan.faults.iter().all(|(of, _)| of != *number))
            {
                let count = ui::count(plan.faults.len(), "fault");
                return Err(Fail::new(format!(
                    "--faults {number}: seed {seed} has {count}, which are numbered from 0"
                )));
            }
            plan.keep(numbers);
        }
        for (name, length) in plan.own.lengths() {
            let asked = args.lengths().into_iter().find(|(of, _)| *of == name).and_then(|(_, asked)| asked);
            *length = asked.unwrap_or(*length);
        }
        let outcome = cluster::run_shrunk(seed, &plan, &params);
        Ok(Run {
            passed: outcome.passed(),
            json: outcome.to_json(),
            text: outcome.to_string(),
            replay: outcome.replay(),
        })
    })
}

/// What became of a seed.
struct Run {
    passed: bool,
    json: String,
    text: String,
    replay: String,
}

fn each(args: &Args, mut simulate: impl FnMut(u64) -> Result<Run, Fail>) -> Result<(), Fail> {
    let stop = Stop::listen()?;
    let (first, count) = match args.seeds {
        Some((from, to)) => (from, to - from),
        None => (args.seed.unwrap_or(0), args.count),
    };
    let began = Instant::now();
    let mut done = 0;
    for n in 0..count {
        let seed = first.wrapping_add(n);
        let run = simulate(seed)?;
        if args.json {
            ui::print(format_args!("{}", run.json));
        } else if count == 1 || !run.passed {
            ui::print(format_args!("{}", run.text));
        }
        if !run.passed {
            return Err(Fail::new(format!("seed {seed} failed; `{}` replays it", run.replay)));
        }
        done += 1;
        if stop.is_asked() {
            break;
        }
    }
    if count > 1 && !args.json {
        ui::print(format_args!("{} passed in {}", ui::count(done, "seed"), ui::time(began.elapsed())));
    }
    Ok(())
}
