//! `rem sim`: one simulated cluster, or many.

use std::time::Instant;

use remanence_remotelog::Mode;
use remanence_sim::cluster::{kv, log, replicated};
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
  rem sim --cluster replicated --seeds 0..500  a replicated service: a log's servers, hosts and clients")]
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
    /// How often each writer of a log opens it
    #[arg(long, value_name = "N")]
    sessions: Option<u32>,
    /// Records that a writer of a log appends each time, at most
    #[arg(long, value_name = "N")]
    records: Option<u32>,
    /// Servers of a log (also that of a service) or members of a store, in place of as many as its seed draws; --acks goes with it
    #[arg(long, value_name = "N", requires = "acks", value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: Option<u16>,
    /// How many of them must have a record before it is acknowledged
    #[arg(long, value_name = "N", requires = "servers", value_parser = clap::value_parser!(u16).range(1..=16))]
    acks: Option<u16>,
    /// How the ends of a log's records are found: singleton or compound
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    mode: Option<Mode>,
    /// Operations of each client of a store or a service, at most
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
    /// A replicated service, on the servers of a log
    Replicated,
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

/// Refuses options of other clusters than the one that is run.
fn check(args: &Args) -> Result<(), Fail> {
    use Cluster::{Engines, Kv, Log, Replicated};
    let given = [
        ("--ops", args.ops.is_some(), &[Engines][..], "--cluster engines"),
        ("--faults", args.faults.is_some(), &[Log, Kv, Replicated], "--cluster log, kv and replicated"),
        ("--sessions", args.sessions.is_some(), &[Log], "--cluster log"),
        ("--records", args.records.is_some(), &[Log], "--cluster log"),
        ("--servers", args.servers.is_some(), &[Log, Kv, Replicated], "--cluster log, kv and replicated"),
        ("--mode", args.mode.is_some(), &[Log], "--cluster log"),
        ("--operations", args.operations.is_some(), &[Kv, Replicated], "--cluster kv and replicated"),
    ];
    let strange = given.into_iter().find(|(_, given, of, _)| *given && !of.contains(&args.cluster));
    strange.map_or(Ok(()), |(option, _, _, with)| Err(Fail::new(format!("{option} goes with {with}"))))
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    check(args)?;
    let quorum = args.servers.zip(args.acks);
    let faults = args.faults.as_ref().map(|Faults(numbers)| &numbers[..]);
    match args.cluster {
        Cluster::Engines => {
            let mut params = Params::default();
            if let Some(ops) = args.ops {
                params.ops = ops;
            }
            each(args, |seed| {
                let outcome = simulate(seed, &params);
                Run {
                    passed: outcome.passed(),
                    json: outcome.to_json(),
                    text: outcome.to_string(),
                    replay: format!("rem sim --seed {seed}"),
                }
            })
        }
        Cluster::Log | Cluster::Kv | Cluster::Replicated if args.acks > args.servers => {
            Err(Fail::new("no more servers can acknowledge than there are; --acks is at most --servers"))
        }
        Cluster::Log => each(args, |seed| {
            let params = log::Params { quorum, mode: args.mode, ..log::Params::default() };
            let mut plan = log::Plan::draw(seed, &params);
            faults.into_iter().for_each(|numbers| plan.keep(numbers));
            plan.sessions = args.sessions.unwrap_or(plan.sessions);
            plan.records = args.records.unwrap_or(plan.records);
            let outcome = log::run_shrunk(seed, &plan, &params);
            Run {
                passed: outcome.passed(),
                json: outcome.to_json(),
                text: outcome.to_string(),
                replay: outcome.replay(),
            }
        }),
        Cluster::Kv => each(args, |seed| {
            let params = kv::Params { quorum, ..kv::Params::default() };
            let mut plan = kv::Plan::draw(seed, &params);
            faults.into_iter().for_each(|numbers| plan.keep(numbers));
            plan.operations = args.operations.unwrap_or(plan.operations);
            let outcome = kv::run_shrunk(seed, &plan, &params);
            Run {
                passed: outcome.passed(),
                json: outcome.to_json(),
                text: outcome.to_string(),
                replay: outcome.replay(),
            }
        }),
        Cluster::Replicated => each(args, |seed| {
            let params = replicated::Params { quorum, ..replicated::Params::default() };
            let mut plan = replicated::Plan::draw(seed, &params);
            faults.into_iter().for_each(|numbers| plan.keep(numbers));
            plan.operations = args.operations.unwrap_or(plan.operations);
            let outcome = replicated::run_shrunk(seed, &plan, &params);
            Run {
                passed: outcome.passed(),
                json: outcome.to_json(),
                text: outcome.to_string(),
                replay: outcome.replay(),
            }
        }),
    }
}

/// What became of a seed.
struct Run {
    passed: bool,
    json: String,
    text: String,
    replay: String,
}

fn each(args: &Args, mut simulate: impl FnMut(u64) -> Run) -> Result<(), Fail> {
    let stop = Stop::listen()?;
    let (first, count) = match args.seeds {
        Some((from, to)) => (from, to - from),
        None => (args.seed.unwrap_or(0), args.count),
    };
    let began = Instant::now();
    let mut done = 0;
    for n in 0..count {
        let seed = first.wrapping_add(n);
        let run = simulate(seed);
        if args.json {
            anstream::println!("{}", run.json);
        } else if count == 1 || !run.passed {
            anstream::println!("{}", run.text);
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
        anstream::println!("{} passed in {}", ui::count(done, "seed"), ui::time(began.elapsed()));
    }
    Ok(())
}
