//! The commands, one file each.

mod bench;
mod blob;
mod cache;
mod check;
mod demo;
mod doctor;
mod explain;
mod get;
mod kv;
mod log;
mod perf;
mod ping;
mod put;
mod report;
mod run;
mod serve;
mod sim;
mod switch;
mod verbs;

use crate::fail::Fail;

/// Makes a command of subcommands: what each of them takes, and what it does with that.
macro_rules! subcommands {
    ($(#![$own:meta])* $($(#[$meta:meta])* $name:ident($args:ty) => $run:path,)*) => {
        #[derive(clap::Args, Debug)]
        $(#[$own])*
        pub(crate) struct Args {
            #[command(subcommand)]
            subcommand: Subcommand,
        }

        #[derive(clap::Subcommand, Debug)]
        enum Subcommand {
            $($(#[$meta])* $name($args),)*
        }

        pub(crate) fn run(args: &Args) -> Result<(), $crate::fail::Fail> {
            match &args.subcommand {
                $(Subcommand::$name(args) => $run(args),)*
            }
        }
    };
}
use subcommands;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// The whole story on this machine: write durably to three servers, kill them, recover, verify
    Demo(demo::Args),
    /// What this machine guarantees: persistence domains, flush instructions, links, devices
    Doctor(doctor::Args),
    /// A memory server: exports a pool of persistent memory
    Serve(serve::Args),
    /// Make files or a stream durable on one or several servers
    Put(put::Args),
    /// Get a blob back, verified
    Get(get::Args),
    /// List, delete or copy blobs
    Blob(blob::Args),
    /// An append-only log in remote memory, on one server or several
    Log(log::Args),
    /// A key-value store in remote memory, read one-sidedly
    Kv(kv::Args),
    /// A switch that scatters a leader's requests to replicas and gathers their answers
    Switch(switch::Args),
    /// Latency of one operation to a server
    Ping(ping::Args),
    /// Latency and bandwidth of the operations to a server
    Perf(perf::Args),
    /// One simulated cluster; the seed replays it
    Sim(sim::Args),
    /// Run an unmodified verbs program on our RNIC
    Verbs(verbs::Args),
    /// Run an unmodified program with its syncs absorbed by a log
    Run(run::Args),
    /// The log of `rem run`: its daemon, what it has, and recovery after a crash
    Cache(cache::Args),
    /// Explore everything that can happen, and say what was seen
    Check(check::Args),
    /// Reproduce a figure or a table, with the baselines in the same run
    Bench(bench::Args),
    /// Every figure and verdict that benches wrote, on one page
    Report(report::Args),
    /// One process of a bench, started by its controller
    #[command(hide = true)]
    BenchAgent(bench::AgentArgs),
}

impl Command {
    pub(crate) fn run(self) -> Result<(), Fail> {
        match self {
            Self::Demo(args) => demo::run(&args),
            Self::Doctor(args) => doctor::run(&args),
            Self::Serve(args) => serve::run(&args),
            Self::Put(args) => put::run(&args),
            Self::Get(args) => get::run(&args),
            Self::Blob(args) => blob::run(&args),
            Self::Log(args) => log::run(&args),
            Self::Kv(args) => kv::run(&args),
            Self::Switch(args) => switch::run(&args),
            Self::Ping(args) => ping::run(&args),
            Self::Perf(args) => perf::run(&args),
            Self::Sim(args) => sim::run(&args),
            Self::Verbs(args) => verbs::run(&args),
            Self::Run(args) => run::run(&args),
            Self::Cache(args) => cache::run(&args),
            Self::Check(args) => check::run(&args),
            Self::Bench(args) => bench::run(&args),
            Self::Report(args) => report::run(&args),
            Self::BenchAgent(args) => bench::agent(&args),
        }
    }
}
