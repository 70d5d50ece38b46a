//! `rem perf`: latency and bandwidth of the operations, side by side.

use std::time::Duration;

use hdrhistogram::Histogram;
use remanence_pool::client::measure::{Op, Scratch};
use serde_json::json;

use crate::args::{self, Reach, Servers, Size};
use crate::device;
use crate::fail::Fail;
use crate::signals::Stop;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem perf 127.0.0.1 --token-file pool.token
  rem perf server --op write --op read --size 64K --depth 32 --time 5

Latency is of one operation at a time; throughput of --depth operations under way.")]
pub(crate) struct Args {
    /// The server
    #[arg(value_name = "HOST[:PORT]")]
    server: args::Server,
    #[command(flatten)]
    reach: Reach,
    /// The operations, several times for several [default: all]
    #[arg(long = "op", value_name = "OP")]
    ops: Vec<OpName>,
    /// Sizes of writes and reads, separated by commas
    #[arg(long = "size", value_name = "SIZES", value_delimiter = ',', default_value = "8,4K,64K,1M")]
    sizes: Vec<Size>,
    /// Operations under way for throughput
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: u16,
    /// Seconds for each figure
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    time: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// An operation on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpName(Op);

impl From<OpName> for Op {
    fn from(name: OpName) -> Self {
        name.0
    }
}

impl clap::ValueEnum for OpName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [OpName; Op::ALL.len()] = {
            let mut all = [OpName(Op::Ping); Op::ALL.len()];
            let mut n = 0;
            while n < all.len() {
                all[n] = OpName(Op::ALL[n]);
                n += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// Durations, to three digits.
pub(crate) struct Samples(Histogram<u64>);

impl Samples {
    pub(crate) fn new() -> Self {
        // A nanosecond to an hour.
        Self(Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("constant bounds"))
    }

    pub(crate) fn add(&mut self, sample: Duration) {
        self.0.saturating_record(u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    pub(crate) fn at(&self, quantile: f64) -> Duration {
        let nanos = match quantile {
            q if q <= 0.0 => self.0.min(),
            q if q >= 1.0 => self.0.max(),
            q => self.0.value_at_quantile(q),
        };
        Duration::from_nanos(nanos)
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let us = |q: f64| self.at(q).as_nanos() as f64 / 1e3;
        json!({
            "unit": "us",
            "n": self.count(),
            "min": us(0.0),
            "p50": us(0.5),
            "p90": us(0.9),
            "p99": us(0.99),
            "p99.9": us(0.999),
            "max": us(1.0),
        })
    }
}

/// The most bytes of one operation: our own side of it lies in the client's ring.
const MAX_SIZE: Size = Size(16 << 20);

/// A size that can be measured.
pub(crate) fn fitting(size: Size) -> Result<u32, Fail> {
    match u32::try_from(size.0) {
        Ok(fits) if (1..=MAX_SIZE.0).contains(&size.0) => Ok(fits),
        _ => Err(Fail::new(format!("a size of {size} cannot be measured; take one from 1 to {MAX_SIZE}"))),
    }
}

struct Row {
    op: Op,
    size: u32,
    latency: Samples,
    done: u64,
    elapsed: Duration,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    if !(0.001..=3600.0).contains(&args.time) {
        return Err(Fail::new("--time takes 0.001 to 3600 seconds"));
    }
    let sizes = args.sizes.iter().map(|size| fitting(*size)).collect::<Result<Vec<_>, _>>()?;
    let stop = Stop::listen()?;
    let servers = Servers { servers: vec![args.server.clone()], reach: args.reach.clone() };
    let mut client = device::connect(&servers, 1)?;
    let largest = sizes.iter().max().copied().unwrap_or(8);
    let mut scratch = client.scratch(0, largest.into()).map_err(|lost| Fail::new(lost.to_string()))?;
    let ops: Vec<Op> =
        if args.ops.is_empty() { Op::ALL.to_vec() } else { args.ops.iter().map(|op| op.0).collect() };
    let mut rows = Vec::new();
    for op in ops {
        for &size in &sizes {
            // Operations of a fixed length do not get another one by asking.
            if stop.is_asked()
                || rows.iter().any(|row: &Row| row.op == op && op.bytes(row.size) == op.bytes(size))
            {
                continue;
            }
            let row = measure(&mut scratch, op, size, args).map_err(|lost| Fail::new(lost.to_string()))?;
            if !args.json {
                if rows.is_empty() {
                    ui::print(format_args!(
                        "{:<14} {:>9} {:>10} {:>10} {:>10} {:>12} {:>12}",
                        "operation", "size", "median", "p99", "slowest", "per second", "throughput"
                    ));
                }
                print(&row);
            }
            rows.push(row);
        }
    }
    if args.json {
        let rows: Vec<_> = rows.iter().map(|row| as_json(row, args.depth)).collect();
        return ui::print_json(&json!({
            "server": args.server.to_string(),
            "durable": scratch.durable(),
            "rows": rows,
        }));
    }
    if !scratch.durable() {
        ui::remark("The pool lives in memory only: durable-write is a write and a flush to visibility here.");
    }
    Ok(())
}

fn measure(
    scratch: &mut Scratch<'_>,
    op: Op,
    size: u32,
    args: &Args,
) -> Result<Row, remanence_pool::client::Lost> {
    let time = Duration::from_secs_f64(args.time);
    let mut latency = Samples::new();
    scratch.once(op, size)?;
    let began = std::time::Instant::now();
    while began.elapsed() < time / 2 || latency.count() < 3 {
        latency.add(scratch.once(op, size)?);
    }
    let (done, elapsed) = scratch.stream(op, size, args.depth.into(), time / 2)?;
    Ok(Row { op, size, latency, done, elapsed })
}

fn print(row: &Row) {
    let moved = u64::from(row.op.bytes(row.size)) * row.done;
    let size = match row.op.bytes(row.size) {
        0 => String::new(),
        n => Size(n.into()).to_string(),
    };
    let throughput = match row.op {
        Op::Write | Op::Read | Op::DurableWrite => ui::rate(moved, row.elapsed),
        Op::Ping | Op::Flush | Op::CompareSwap | Op::FetchAdd | Op::AtomicWrite => String::new(),
    };
    ui::print(format_args!(
        "{:<14} {size:>9} {:>10} {:>10} {:>10} {:>12.0} {throughput:>12}",
        row.op.name(),
        ui::time(row.latency.at(0.5)),
        ui::time(row.latency.at(0.99)),
        ui::time(row.latency.at(1.0)),
        row.done as f64 / row.elapsed.as_secs_f64(),
    ));
}

fn as_json(row: &Row, depth: u16) -> serde_json::Value {
    let bytes = row.op.bytes(row.size);
    json!({
        "op": row.op.name(),
        "size": bytes,
        "latency": row.latency.json(),
        "depth": depth,
        "per_second": row.done as f64 / row.elapsed.as_secs_f64(),
        "bytes_per_second": (u64::from(bytes) * row.done) as f64 / row.elapsed.as_secs_f64(),
    })
}
