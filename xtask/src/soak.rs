//! `cargo xtask soak`: what takes too long for every push. The simulations with many seeds, real processes killed by the hundred,
//! the benches that boot a guest, and every mutation.
//!
//! Each run is a command that can be typed as it is printed. One that fails does not keep the others from being run.

use std::process::Command;
use std::time::Instant;

use crate::{root, run as run_command};

/// A long run.
struct Run {
    name: &'static str,
    /// What it looks for.
    what: &'static str,
    env: &'static [(&'static str, &'static str)],
    /// What follows `cargo`.
    args: &'static [&'static str],
}

const fn run_of(
    name: &'static str,
    what: &'static str,
    env: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
) -> Run {
    Run { name, what, env, args }
}

/// `cargo test` of one test program of a package, or of some of its tests.
macro_rules! test {
    ($package:literal, $($more:literal),+) => {
        &["test", "--locked", "-p", concat!("remanence-", $package), $($more),+]
    };
}

/// The most that the tests try: `crates/effort`.
const NIGHT: &[(&str, &str)] = &[("REMANENCE_EFFORT", "night")];

const RUNS: &[Run] = &[
    run_of(
        "log-sim",
        "simulated clusters of the remote log",
        NIGHT,
        test!("sim", "--test", "computes", "log::"),
    ),
    run_of(
        "replicated",
        "simulated clusters of a replicated service",
        NIGHT,
        test!("sim", "--test", "computes", "replicated::"),
    ),
    run_of(
        "recipes-sim",
        "simulated clusters that carry out recipes of persistence",
        NIGHT,
        test!("sim", "--test", "computes", "recipes::"),
    ),
    run_of(
        "kv-cluster",
        "simulated clusters of the replicated store",
        NIGHT,
        test!("sim", "--test", "computes", "kv::"),
    ),
    run_of("mu", "simulated groups that run Mu", NIGHT, test!("sim", "--test", "computes", "mu::")),
    run_of(
        "pool-cluster",
        "simulated clusters of blobs",
        NIGHT,
        test!("sim", "--test", "computes", "pool::"),
    ),
    run_of(
        "log-crash",
        "the log's crashes at every persist point",
        NIGHT,
        test!("coord", "--test", "computes", "crash::"),
    ),
    run_of(
        "cache-crash",
        "the write cache's crashes at every persist point, and deaths of its writers",
        NIGHT,
        test!("cache", "--test", "computes", "crash::"),
    ),
    run_of(
        "cache-databases",
        "databases under the write cache, killed with and without its daemon",
        NIGHT,
        test!("preload", "--test", "waits", "databases::"),
    ),
    run_of(
        "cache-servers",
        "servers of Go under the write cache, three members of one cluster among them, killed with and without its daemon",
        NIGHT,
        test!("preload", "--test", "waits", "servers::"),
    ),
    run_of(
        "cache-tools",
        "tools under the write cache, killed with and without its daemon",
        NIGHT,
        test!("preload", "--test", "waits", "tools::"),
    ),
    run_of(
        "cache-kill",
        "programs under the write cache and its daemon, killed, and their disk cut off (as root)",
        NIGHT,
        test!("preload", "--test", "waits", "torture::"),
    ),
    run_of(
        "cache-library-kill",
        "a program that has the write cache as a library, killed",
        NIGHT,
        test!("nvcache", "--test", "waits", "kills::"),
    ),
    run_of(
        "idle-sessions",
        "what ten thousand silent sessions cost a server",
        &[],
        test!("remote", "--test", "waits", "idle::", "--", "--ignored"),
    ),
    run_of("log-kill", "servers of a log, killed", NIGHT, test!("cli", "--test", "waits", "log::")),
    run_of(
        "blobs",
        "every order of puts, gets, catch-ups, crashes and late messages, with gigabytes of states",
        &[],
        &[
            "test",
            "--locked",
            "--release",
            "-p",
            "remanence-pool",
            "--test",
            "computes",
            "register::",
            "--",
            "--ignored",
        ],
    ),
    run_of("kv-sim", "simulated stores", NIGHT, test!("kv", "--test", "computes", "sim::")),
    run_of("kv-crash", "the store's crashes", NIGHT, test!("kv", "--test", "computes", "crash::")),
    run_of(
        "kv-torture",
        "stores whose process is killed",
        NIGHT,
        test!("kv-live", "--test", "waits", "torture::", "--", "--skip", "cluster_torture::"),
    ),
    run_of(
        "kv-members-torture",
        "members whose processes are killed, with and without their disks",
        NIGHT,
        test!("kv-live", "--test", "waits", "cluster_torture::"),
    ),
    run_of(
        "gateway-kill",
        "gateways with their stores, killed",
        NIGHT,
        test!("gateway", "--test", "waits", "store::"),
    ),
    run_of(
        "remote-kill",
        "responders of recipes, killed",
        NIGHT,
        test!("remote", "--test", "waits", "processes::"),
    ),
    run_of(
        "rpc-sim",
        "simulated clusters of remote procedure calls",
        NIGHT,
        test!("sim", "--test", "computes", "rpc::"),
    ),
    run_of(
        "rpc-kill",
        "persistent log servers, killed",
        NIGHT,
        test!("rpc", "--test", "waits", "logserver::"),
    ),
    run_of(
        "engines",
        "two million copies by each engine, seen in order",
        NIGHT,
        test!("pmem", "copies_are_seen_in_order"),
    ),
    run_of("ucmatose", "connections in all modes, fifty times", NIGHT, test!("ibverbs", "ucmatose")),
    run_of(
        "bench-urdma",
        "perftest beside Soft-RoCE in a guest, as short as it gets",
        &[],
        &["run", "--locked", "-p", "remanence-cli", "--", "bench", "urdma", "--tiny"],
    ),
    run_of(
        "bench-failover",
        "for how long a store takes no write: members killed, stopped, and with a disk that hangs (as root)",
        &[],
        &["run", "--locked", "-p", "remanence-cli", "--", "bench", "failover", "--tiny"],
    ),
    run_of("mutations", "every rule broken on purpose", &[], &["xtask", "mutate"]),
];

impl Run {
    /// As a person would type it.
    fn words(&self) -> String {
        let set = self.env.iter().map(|(name, value)| format!("{name}={value} "));
        set.chain([format!("cargo {}", self.args.join(" "))]).collect()
    }
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if args.iter().any(|arg| arg == "--list") {
        RUNS.iter().for_each(|run| println!("{:14} {}\n{:14} {}", run.name, run.what, "", run.words()));
        return Ok(());
    }
    if let Some(name) = args.iter().find(|name| !RUNS.iter().any(|run| run.name == &name[..])) {
        return Err(format!("there is no long run {name}; --list has them all"));
    }
    // The libraries that some of them run.
    crate::dropin::run(false)?;
    let mut failed = Vec::new();
    for run in RUNS.iter().filter(|run| args.is_empty() || args.iter().any(|name| name == run.name)) {
        println!("==> {}: {}\n    {}", run.name, run.what, run.words());
        let start = Instant::now();
        let outcome = run_command(
            Command::new(env!("CARGO")).args(run.args).envs(run.env.iter().copied()).current_dir(root()),
        );
        let took = start.elapsed().as_secs();
        match outcome {
            Ok(()) => println!("==> {}: ok, {took} s", run.name),
            Err(why) => {
                println!("==> {}: FAILED after {took} s: {why}", run.name);
                failed.push(run.name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("these failed: {}", failed.join(", "))) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::testing;

    /// What follows a word among the arguments.
    fn after<'a>(args: &[&'a str], word: &str) -> Option<&'a str> {
        args.iter().position(|arg| *arg == word).and_then(|at| args.get(at + 1)).copied()
    }

    /// Whether a package has a module or a function whose name begins so.
    fn is_named(package: &Path, filter: &str) -> bool {
        std::fs::read_dir(package).into_iter().flatten().flatten().map(|entry| entry.path()).any(|path| {
            let text = || std::fs::read_to_string(&path).unwrap_or_default();
            let names = |line: &str| {
                let item = line.trim_start();
                ["fn ", "mod "]
                    .iter()
                    .any(|what| item.strip_prefix(what).is_some_and(|name| name.starts_with(filter)))
            };
            if path.is_dir() { is_named(&path, filter) } else { text().lines().any(names) }
        })
    }

    /// A filter that finds nothing passes, as cargo has it: nothing was run, and nobody would know.
    #[test]
    fn what_runs_at_night_is_there() {
        for run in RUNS.iter().filter(|run| run.args[0] == "test") {
            let package = after(run.args, "-p").expect("a package");
            let directory = package.strip_prefix("remanence-").unwrap_or(package);
            let at = root().join("crates").join(directory);
            let Some(target) = after(run.args, "--test") else {
                let filter = run.args.last().expect("a filter");
                assert!(is_named(&at, filter), "{}: no test of {package} is named after {filter}", run.name);
                continue;
            };
            let filter = run.args.iter().find_map(|arg| arg.strip_suffix("::"));
            let file = match filter {
                Some(module) => {
                    let (lane, file) = testing::source(&at, module);
                    assert_eq!(lane, Some(target), "{}: {module} is in another lane", run.name);
                    file
                }
                None => at.join("tests").join(target).with_extension("rs"),
            };
            assert!(file.is_file(), "{}: there is no {}", run.name, file.display());
        }
    }
}
