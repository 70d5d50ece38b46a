//! `rem bench NAME`: figures and tables, reproduced with the baselines in the same run. One file per bench that has options of its own; what they
//! share (options, and what becomes of a report) is here.

mod bulk;
mod erda;
mod failover;
mod gateway;
mod kv_size;
mod nvcache;
mod nvpages;
mod quorum;
mod supervise;
mod transport;
mod urdma;
mod verbs;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser;
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use remanence_bench::effort::{Effort, Options};
use remanence_bench::report::Report;
use remanence_bench::rpc::{logserver, pwrite};
use remanence_bench::{
    claims, compare, copy_engine, counter, load_latency, plot, remotelog, role, samples, settings,
};

use crate::fail::{Context as _, Fail};
use crate::ui;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand, Debug)]
enum Bench {
    /// Bulk durable writes, one-sided and by calls, with and without a copy engine
    Bulk(bulk::Args),
    /// Copy engines beside memcpy, in order or not, and what direct cache access does to DIMMs
    #[command(after_help = "\
Examples:
  rem bench copy-engine --quick
  rem bench copy-engine --json copy-engine.json --plot copy-engine.svg")]
    CopyEngine(Common),
    /// Durable words that are set again and again, plain and rotating, and logs that count with them
    #[command(after_help = "\
Examples:
  rem bench counter --quick
  rem bench counter --json counter.json --plot counter.svg")]
    Counter(Common),
    /// Erda, Redo Logging and Read After Write, figures 14 to 26 and Table 1 of paper 002; Redis and memcached beside ours
    Erda(erda::Args),
    /// How long a store on several members takes no write when its primary is killed, stopped, or its disk hangs
    Failover(failover::Args),
    /// Commands of Redis clients that change something, on a disk, beside Redis that syncs before it replies
    Gateway(gateway::Args),
    /// What a store of many keys costs, and for how long one step of its server holds others up
    KvSize(kv_size::Args),
    /// Latency by offered load, and by the number of clients: calls, the store and logs beside Redis, memcached and bare UDP
    #[command(after_help = "\
Examples:
  rem bench load-latency --quick
  rem bench load-latency --json load-latency.json --plot load-latency.svg

Offered load: one client whose requests are due at the times of a Poisson process, from 10 to 120 % of what saturates the service; a
latency counts from when the request was due. Clients: 1, 4, 16, 64 and 256, each of which asks again as soon as it is answered. Both
for calls, GET and PUT of the store and durable appends, beside bare UDP, and Redis and memcached where they are installed:
apt-get install redis-server memcached")]
    LoadLatency(Common),
    /// Programs under `rem run` beside the file system with and without syncs: writes, SQLite, reads, a log that is full, recovery
    Nvcache(nvcache::Args),
    /// Pages in persistent memory beside a log with pages in DRAM, both as a library: mixes of reads and writes, threads
    Nvpages(nvpages::Args),
    /// What a durable append to three servers waits for: their quorum, while the third one is stopped as well
    Quorum(quorum::Args),
    /// Durable appends by all 72 recipes of paper 004, its figure 2, beside message passing and bare UDP
    #[command(after_help = "\
Examples:
  rem bench remotelog --quick
  rem bench remotelog --json remotelog.json --plot remotelog.svg

The configurations are declared: every recipe is carried out on live memory, and nothing makes the domain true.")]
    Remotelog(Common),
    /// The persistent log server, by the word that says how long its log is
    #[command(after_help = "\
Examples:
  rem bench logserver --quick
  rem bench logserver --json logserver.json --plot logserver.svg")]
    Logserver(Common),
    /// Small durable writes, one-sided and by calls, and the write-visibility test
    #[command(after_help = "\
Examples:
  rem bench pwrite --quick
  rem bench pwrite --json pwrite.json --plot pwrite.svg")]
    Pwrite(Common),
    /// Every operation over every carrier, beside the bare path and the peers
    Transport(transport::Args),
    /// perftest on our libraries against Linux' Soft-RoCE, inside one guest
    Urdma(urdma::Args),
    /// perftest on the drop-in libraries, beside bare UDP; the C ABI beside the Rust API
    Verbs(verbs::Args),
}

/// Options of every bench.
#[derive(clap::Args, Debug)]
struct Common {
    /// Write the report to this file as JSON; `-` is standard output, in place of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Draw the figure to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Measure only what has one of these in its name, whatever the case: operations, series, or else what bars are made of [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    only: Vec<String>,
    /// Say what changed since this report of the same bench, as JSON, beyond what differs from run to run
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Fewer and shorter bursts: one or two minutes; eight for erda, more in a guest (urdma)
    #[arg(long)]
    quick: bool,
    /// Measure all of it so often, and say whether each bar has the same verdict each time; the JSON has every report, and the figure is the
    /// last one's
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000),
        hide_default_value = true)]
    repeat: u16,
    /// Tell what is measured of this series as if it had taken 15 % longer, to see that it is seen
    #[arg(long, value_name = "SERIES", hide = true)]
    slower: Option<String>,
    /// As little as shows that all of it runs, for tests
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,
}

impl Common {
    const fn effort(&self) -> Effort {
        match (self.tiny, self.quick) {
            (true, _) => Effort::Tiny,
            (_, true) => Effort::Quick,
            _ => Effort::Full,
        }
    }

    /// Whether the table is printed: standard output may be for the JSON.
    fn tells(&self) -> bool {
        self.json.as_deref().is_none_or(|file| file.as_os_str() != "-")
    }
}

impl Bench {
    const fn common(&self) -> &Common {
        match self {
            Self::Bulk(args) => &args.common,
            Self::Erda(args) => &args.common,
            Self::Failover(args) => &args.common,
            Self::Gateway(args) => &args.common,
            Self::KvSize(args) => &args.common,
            Self::Nvcache(args) => &args.common,
            Self::Nvpages(args) => &args.common,
            Self::Quorum(args) => &args.common,
            Self::Transport(args) => &args.common,
            Self::Urdma(args) => &args.common,
            Self::Verbs(args) => &args.common,
            Self::CopyEngine(common)
            | Self::Counter(common)
            | Self::LoadLatency(common)
            | Self::Remotelog(common)
            | Self::Logserver(common)
            | Self::Pwrite(common) => common,
        }
    }

    /// What it is called, on a command line and in its report.
    const fn name(&self) -> &'static str {
        match self {
            Self::Bulk(_) => "bulk",
            Self::CopyEngine(_) => "copy-engine",
            Self::Counter(_) => "counter",
            Self::Erda(_) => "erda",
            Self::Failover(_) => "failover",
            Self::Gateway(_) => "gateway",
            Self::KvSize(_) => "kv-size",
            Self::LoadLatency(_) => "load-latency",
            Self::Nvcache(_) => "nvcache",
            Self::Nvpages(_) => "nvpages",
            Self::Quorum(_) => "quorum",
            Self::Remotelog(_) => "remotelog",
            Self::Logserver(_) => "logserver",
            Self::Pwrite(_) => "pwrite",
            Self::Transport(_) => "transport",
            Self::Urdma(_) => "urdma",
            Self::Verbs(_) => "verbs",
        }
    }

    /// Where a directory of its own is made.
    fn directory(&self) -> PathBuf {
        match self {
            Self::Erda(args) => args.dir.clone(),
            Self::Failover(args) => Some(args.directory.clone()),
            Self::Gateway(args) => Some(args.directory.clone()),
            Self::KvSize(args) => Some(args.directory.clone()),
            Self::Nvcache(args) => Some(args.directory.clone()),
            Self::Nvpages(args) => Some(args.directory.clone()),
            Self::Quorum(args) => Some(args.directory.clone()),
            _ => None,
        }
        .unwrap_or_else(std::env::temp_dir)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    if !supervise::is_worker() {
        return match supervise::run(&args.bench)? {
            0 => Ok(()),
            // It has been said why.
            status => std::process::exit(status.into()),
        };
    }
    supervise::be_worker();
    match &args.bench {
        Bench::Bulk(args) => bulk::run(args),
        Bench::CopyEngine(common) => measure(common, plot::draw, |common, p| copy_engine::run(&common, p)),
        Bench::Counter(common) => measure(common, plot::draw, |common, p| counter::run(&common, p)),
        Bench::Erda(args) => erda::run(args),
        Bench::Failover(args) => failover::run(args),
        Bench::Gateway(args) => gateway::run(args),
        Bench::KvSize(args) => kv_size::run(args),
        Bench::LoadLatency(common) => {
            measure(common, load_latency::figure::draw, |common, p| load_latency::run(&common, p))
        }
        Bench::Nvcache(args) => nvcache::run(args),
        Bench::Nvpages(args) => nvpages::run(args),
        Bench::Quorum(args) => quorum::run(args),
        Bench::Remotelog(common) => {
            measure(common, remotelog::figure::draw, |common, p| remotelog::run(&common, p))
        }
        Bench::Logserver(common) => measure(common, plot::draw, |common, p| logserver::run(&common, p)),
        Bench::Pwrite(common) => measure(common, plot::draw, |common, p| pwrite::run(&common, p)),
        Bench::Transport(args) => transport::run(args),
        Bench::Urdma(args) => urdma::run(args),
        Bench::Verbs(args) => verbs::run(args),
    }
}

/// One process of a bench, which does what its controller says.
pub(crate) fn agent(args: &AgentArgs) -> Result<(), Fail> {
    supervise::be_worker();
    // It has told its controller already how it ended.
    role::main(&args.role).map(drop).map_err(Fail::new)
}

#[derive(clap::Args, Debug)]
pub(crate) struct AgentArgs {
    /// What it is
    #[arg(value_name = "ROLE", value_parser = clap::builder::PossibleValuesParser::new(remanence_bench::role::words()))]
    role: String,
}

/// The program that serves: another release, or this one.
fn program(other: Option<&Path>) -> Result<PathBuf, Fail> {
    match other {
        Some(other) => Ok(other.to_owned()),
        None => {
            std::env::current_exe().map_err(|e| Fail::new(format!("this program does not find itself: {e}")))
        }
    }
}

/// How often it is said how far a bench is, where no bar can be drawn.
const EACH: Duration = Duration::from_secs(60);

/// A progress bar, and what a bench tells it: done, of how many, what comes next.
fn progress() -> (ProgressBar, impl FnMut(u64, u64, &str)) {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{wide_bar:.cyan/dim} {pos}/{len}, {eta} left: {msg:40}")
        .expect("constant");
    bar.set_style(style.progress_chars("━━─"));
    let (shown, waiting) = (bar.clone(), bar.clone());
    role::notice_waits(move |what| waiting.set_message(what.to_owned()));
    let (is_shown, begin) = (std::io::stderr().is_terminal(), Instant::now());
    let mut last = begin;
    let tell = move |done, of, what: &str| {
        let (of, what) = step(done, of, what);
        shown.set_length(of);
        shown.set_position(done);
        shown.set_message(what.clone());
        // Where no bar can be drawn, as in a file.
        if !is_shown && last.elapsed() > EACH {
            last = Instant::now();
            let left = HumanDuration(left(begin.elapsed(), done, of));
            anstream::eprintln!("{done}/{of}, about {left} left: {what}");
        }
    };
    (bar, tell)
}

/// Of how many steps this is one, and what it is: a bench that goes on beyond those that it began with does so for bars that are undecided, and looks
/// at them after as many again.
fn step(done: u64, of: u64, what: &str) -> (u64, String) {
    match done / of.max(1) {
        0 => (of, what.to_owned()),
        more => (of.max(1) * (more + 1), format!("bars that are open: {what}")),
    }
}

/// How long the rest of so many steps takes, if each takes as long as those before.
fn left(took: Duration, done: u64, of: u64) -> Duration {
    took.mul_f64(of.saturating_sub(done) as f64 / done.max(1) as f64)
}

/// Measures, and shows what was found as the options say: the report, its table, what changed, the claims, and the figure. A report that
/// lacks something is shown as well, and is an error.
fn measure(
    common: &Common,
    draw: fn(&Report, &Path) -> Result<(), String>,
    run: impl FnOnce(Options, &mut dyn FnMut(u64, u64, &str)) -> Result<Report, String>,
) -> Result<(), Fail> {
    let options = Options { effort: common.effort(), only: common.only.clone(), program: program(None)? };
    common.slower.iter().cloned().for_each(samples::slow_down);
    let (bar, mut progress) = progress();
    let report = run(options, &mut progress);
    bar.finish_and_clear();
    let report = report.map_err(Fail::new)?;
    let file = supervise::report();
    std::fs::write(&file, report.json()).context(|| format!("{} cannot be written", file.display()))?;
    if common.tells() {
        tell(&report, common)?;
    }
    if common.plot.is_some() {
        let file = supervise::figure();
        draw(&report, &file).and_then(|()| settings::caption(&report.params, &file)).map_err(Fail::new)?;
    }
    report.whole().map_err(Fail::new)
}

/// Prints a report.
fn tell(report: &Report, common: &Common) -> Result<(), Fail> {
    ui::print(format_args!("{}{}", report.preface, report.table()));
    for line in settings::lines(&report.params) {
        ui::print(line);
    }
    if let Some(file) = common.compare.as_deref() {
        let old = std::fs::read_to_string(file).context(|| format!("{} cannot be read", file.display()))?;
        let found =
            compare::compare(report, &old).map_err(|why| Fail::new(format!("{}: {why}", file.display())))?;
        ui::print(found.text());
    }
    if !report.claims.is_empty() {
        ui::print(format_args!("{}", claims::text(&report.claims)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_that_goes_on_for_open_bars_has_as_many_steps_again() {
        assert_eq!(step(0, 10, "a"), (10, "a".to_owned()));
        assert_eq!(step(9, 10, "a").0, 10);
        assert_eq!(step(10, 10, "a"), (20, "bars that are open: a".to_owned()));
        assert_eq!((step(19, 10, "a").0, step(29, 10, "a").0), (20, 30));
        assert!(step(0, 0, "a").0 == 0 && step(3, 0, "a").0 > 3);
    }

    #[test]
    fn what_is_left_takes_as_long_as_what_was_before() {
        let minute = Duration::from_secs(60);
        assert_eq!(left(minute, 10, 40), 3 * minute);
        assert_eq!(left(minute, 10, 10), Duration::ZERO);
        assert_eq!(left(Duration::ZERO, 0, 10), Duration::ZERO);
    }
}
