//! `rem kv bench`: YCSB against a store that runs, ours or another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use remanence_bench::erda::load::{self, Handle, Load, Until};
use remanence_bench::erda::ycsb::measure::{Measurements, Series};
use remanence_bench::erda::ycsb::workload::Mix;
use remanence_bench::erda::ycsb::{Workload, WorkloadError};
use remanence_bench::erda::{ConnectOptions, Native, Target, others};
use serde_json::{Value, json};

use crate::args::{Server, Size, Tokens};
use crate::device;
use crate::fail::{Context as _, Fail};
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv bench 127.0.0.1 --workload a,b,c --threads 4 --seconds 10
  rem kv bench 127.0.0.1 --value-size 1K --operations 100000 --histogram
  rem kv bench redis://127.0.0.1:6379 --workload a --json
  rem kv bench 127.0.0.1 --properties workloads/workloada --target-rate 5000

It writes keys that begin with `user`, and leaves them there. Records are YCSB's, ten fields of 100 bytes of which an update
replaces one by reading and writing the record; with --value-size a record is one value, as in paper 002. The figures of that
paper, with its baselines, are `rem bench erda`.")]
pub(super) struct Args {
    /// The store: HOST or HOST:PORT for ours, redis://HOST:PORT for whatever speaks RESP, memcached://HOST:PORT
    #[arg(value_name = "STORE")]
    target: Target,
    /// YCSB's workloads a to f, and update for updates only; several run one after the other on the same records
    #[arg(long, short, value_name = "LIST", value_delimiter = ',', default_value = "a",
        value_parser = ["a", "b", "c", "d", "e", "f", "update"], ignore_case = true)]
    workload: Vec<String>,
    /// A YCSB property file in place of a workload
    #[arg(long, short = 'P', value_name = "FILE", conflicts_with_all = ["workload", "value_size", "records"])]
    properties: Option<std::path::PathBuf>,
    /// Records that are one value of so many bytes
    #[arg(long, value_name = "SIZE")]
    value_size: Option<Size>,
    /// Records
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Threads, each with a connection of its own
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// How long each workload runs [default: 5, unless --operations is given]
    #[arg(long, value_name = "SECONDS", conflicts_with = "operations", value_parser = seconds)]
    seconds: Option<Duration>,
    /// How many operations each workload makes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,
    /// Operations a second of all threads together [default: as fast as it goes]
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u32).range(1..))]
    target_rate: Option<u32>,
    /// What the random numbers are drawn from: one seed gives the same operations
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The records are there already
    #[arg(long, conflicts_with = "load_only")]
    no_load: bool,
    /// Write the records, and no more
    #[arg(long)]
    load_only: bool,
    /// Keep no locations: a GET of ours is two READs then, as in the paper
    #[arg(long)]
    no_cache: bool,
    /// Check every read against what was written; for workloads without changes to single fields
    #[arg(long)]
    verify: bool,
    /// Print how many operations took how long
    #[arg(long)]
    histogram: bool,
    /// Print operations and latency over time, in slices of so many milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    timeline: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tokens: Tokens,
    /// Local address to send from [default: the one that routes to the server]
    #[arg(long, value_name = "ADDRESS", env = "REM_LOCAL")]
    local: Option<std::net::IpAddr>,
    /// Give up when a server of ours shows no sign of life for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let fine = text.parse::<f64>().ok().filter(|seconds| (0.001..=86_400.0).contains(seconds));
    fine.map(Duration::from_secs_f64).ok_or_else(|| "a run lasts 0.001 to 86400 seconds".to_owned())
}

/// The workloads of a run, by name.
fn workloads(args: &Args) -> Result<Vec<(String, Workload)>, Fail> {
    let fault = |e: WorkloadError| Fail::new(e.to_string());
    let mut all = Vec::new();
    if let Some(file) = &args.properties {
        let text = std::fs::read_to_string(file).context(|| format!("{} cannot be read", file.display()))?;
        let workload = Workload::parse(&text).map_err(fault)?;
        all.push((file.display().to_string(), workload));
    }
    for name in args.workload.iter().filter(|_| args.properties.is_none()) {
        let mix: Mix = name.parse().map_err(fault)?;
        let workload = match args.value_size {
            Some(size) => Workload::paper_002(mix, size.0 as usize),
            None => Workload::core(mix),
        };
        // With inserts, the key space grows by about as many as there will be.
        all.push((mix.to_string(), workload.sized(args.records, args.operations.unwrap_or(args.records))));
    }
    for (_, workload) in &mut all {
        workload.integrity |= args.verify;
        workload.check().map_err(fault)?;
    }
    Ok(all)
}

/// A handle for each thread.
fn connect(args: &Args) -> Result<Vec<Handle>, Fail> {
    let threads = usize::from(args.threads);
    let Target::Native(name) = &args.target else {
        return others(&args.target, threads).map_err(Fail::new);
    };
    if name.contains(',') {
        return Err(Fail::new(format!(
            "{name}: a load is put on a store on one server; measure members through `rem kv gateway {name}` and redis://HOST:PORT"
        )));
    }
    let server: Server = name.parse().map_err(|e| Fail::new(format!("{name}: {e}")))?;
    let to = server.resolve()?;
    let context = device::open_towards(to.ip(), args.local)?;
    let options = ConnectOptions::default()
        .patience(Duration::from_secs(args.patience))
        .tokens(args.tokens.load_any()?);
    let options = if args.no_cache { options.locations(0) } else { options };
    (0..threads)
        .map(|_| -> Result<Handle, Fail> {
            Ok(Box::new(Native::connect(&context, to, &options).map_err(Fail::new)?))
        })
        .collect()
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let workloads = workloads(args)?;
    let mut handles = connect(args)?;
    let until = match (args.operations, args.seconds) {
        (Some(operations), _) => Until::Operations(operations),
        (None, time) => Until::Time(time.unwrap_or(Duration::from_secs(5))),
    };
    let load_of = |workload: &Workload| Load {
        seed: args.seed,
        target: args.target_rate.map(f64::from),
        slice: args.timeline.unwrap_or(100) * 1_000_000,
        ..Load::new(workload.clone(), until)
    };
    let mut said = Vec::new();
    if !args.no_load {
        let load = load_of(&workloads[0].1);
        let (told, begin) = (AtomicU64::new(0), Instant::now());
        let bar = ui::Bar::items(load.workload.loads(), "records", args.json);
        let loaded = watched(&bar, &told, || load::fill(&load, &mut handles, &told));
        bar.done();
        let loaded = loaded.map_err(Fail::new)?;
        if !args.json {
            let rate = loaded.operations as f64 / begin.elapsed().as_secs_f64();
            ui::print(format_args!("load: {} records, {rate:.0} a second", loaded.operations));
        }
        said.push(result(args, "load", &load, &loaded));
    }
    let mut failed = 0;
    for (name, workload) in workloads.iter().filter(|_| !args.load_only) {
        let load = load_of(workload);
        let measured = load::run(&load, &mut handles, &AtomicBool::new(false)).map_err(Fail::new)?;
        failed += measured.faults();
        if !args.json {
            tell(args, name, &measured);
        }
        said.push(result(args, name, &load, &measured));
    }
    if args.json {
        let all = json!({
            "store": args.target.to_string(),
            "threads": args.threads,
            "seed": args.seed,
            "runs": said,
        });
        ui::print_json(&all)?;
    }
    if failed > 0 {
        let why = "operations failed or read something else than was written: see what the store says";
        return Err(Fail::new(format!("{failed} {why}")));
    }
    Ok(())
}

/// Shows how far a load is while it goes on.
fn watched<T: Send>(bar: &ui::Bar, told: &AtomicU64, work: impl FnOnce() -> T + Send) -> T {
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        let working = scope.spawn(move || {
            let outcome = work();
            drop(done);
            outcome
        });
        let mut shown = 0;
        while over.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            let now = told.load(Ordering::Relaxed);
            bar.add(now - shown);
            shown = now;
        }
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("p9999", 0.9999)];

fn us(nanos: f64) -> f64 {
    (nanos / 10.0).round() / 100.0
}

/// Doublings of a microsecond, as far as anything took so long.
fn buckets(series: &Series) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    let mut limit = 256_u64;
    let mut below = 0;
    while below < series.latency.len() {
        let count = series.latency.count_between(0, limit - 1);
        if count > below || !buckets.is_empty() {
            buckets.push((limit as f64 / 1e3, count - below));
        }
        below = count;
        limit *= 2;
    }
    buckets
}

fn result(args: &Args, name: &str, load: &Load, measured: &Measurements) -> Value {
    let kinds: serde_json::Map<String, Value> = measured
        .kinds()
        .map(|(kind, series)| {
            let mut of = json!({
                "n": series.latency.len(),
                "missing": series.missing,
                "failed": series.failed,
                "wrong": series.wrong,
                "mean_us": us(series.latency.mean()),
                "max_us": us(series.latency.max() as f64),
            });
            for (quantile, q) in QUANTILES {
                of[format!("{quantile}_us")] = us(series.latency.value_at_quantile(q) as f64).into();
            }
            if !series.intended.is_empty() {
                of["intended_p99_us"] = us(series.intended.value_at_quantile(0.99) as f64).into();
            }
            if args.histogram {
                let buckets = buckets(series);
                of["histogram"] = buckets.iter().map(|(to, n)| json!({ "below_us": to, "n": n })).collect();
            }
            (kind.name().to_owned(), of)
        })
        .collect();
    let span = measured.span.map_or(0.0, |(from, to)| (to - from) as f64 / 1e9);
    let mut run = json!({
        "workload": name,
        "records": load.workload.records,
        "record_bytes": load.workload.record_len(),
        "operations": measured.operations,
        "seconds": span,
        "per_second": measured.rate().round(),
        "first_error": measured.first_error,
        "kinds": kinds,
    });
    if args.timeline.is_some() {
        let slice = measured.timeline.slice;
        let windows = measured.timeline.windows.iter();
        run["timeline"] = windows
            .map(|(number, window)| {
                json!({
                    "ms": number * slice / 1_000_000,
                    "n": window.operations,
                    "mean_us": us(window.latency_sum as f64 / window.operations.max(1) as f64),
                    "max_us": us(window.latency_max as f64),
                })
            })
            .collect();
    }
    run
}

fn tell(args: &Args, name: &str, measured: &Measurements) {
    ui::print(format_args!(
        "workload {name}: {} operations, {:.0} a second",
        measured.operations,
        measured.rate()
    ));
    for (kind, series) in measured.kinds() {
        let at = |q: f64| us(series.latency.value_at_quantile(q) as f64);
        let mut line = format!(
            "  {:<18} n {:<9} mean {:<8} p50 {:<8} p99 {:<8} p99.9 {:<8} max {} us",
            kind.name(),
            series.latency.len(),
            us(series.latency.mean()),
            at(0.5),
            at(0.99),
            at(0.999),
            us(series.latency.max() as f64)
        );
        for (count, what) in
            [(series.missing, "not there"), (series.failed, "failed"), (series.wrong, "wrong")]
        {
            if count > 0 {
                line += &format!(", {count} {what}");
            }
        }
        if !series.intended.is_empty() {
            line += &format!(
                "; p99 from the intended start {} us",
                us(series.intended.value_at_quantile(0.99) as f64)
            );
        }
        ui::print(format_args!("{line}"));
        if args.histogram {
            let buckets = buckets(series);
            let most = buckets.iter().map(|(_, n)| *n).max().unwrap_or(1).max(1);
            for (below, count) in buckets {
                let bar = "#".repeat((count * 50).div_ceil(most) as usize);
                ui::print(format_args!("    < {below:>10.1} us {count:>9} {bar}"));
            }
        }
    }
    if args.timeline.is_some() {
        let slice = measured.timeline.slice;
        for (number, window) in &measured.timeline.windows {
            let mean = us(window.latency_sum as f64 / window.operations.max(1) as f64);
            let rate = window.operations as f64 * 1e9 / slice as f64;
            ui::print(format_args!(
                "  {:>8} ms {rate:>9.0} a second, mean {mean} us",
                number * slice / 1_000_000
            ));
        }
    }
    if let Some(why) = &measured.first_error {
        ui::remark(format!("the first failure: {why}"));
    }
}
