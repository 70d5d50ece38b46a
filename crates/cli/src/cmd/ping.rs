//! `rem ping`: how long one operation takes.

use remanence_pool::client::measure::Op;
use serde_json::json;

use super::perf::{OpName, Samples};
use crate::args::{self, Reach, Servers, Size};
use crate::device;
use crate::fail::Fail;
use crate::signals::Stop;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem ping 127.0.0.1 --token-file pool.token
  rem ping server --op durable-write --size 4K -n 10000

`ping` is a request and its reply through the server's program; the other operations are served by its RNIC alone.")]
pub(crate) struct Args {
    /// The server
    #[arg(value_name = "HOST[:PORT]")]
    server: args::Server,
    #[command(flatten)]
    reach: Reach,
    /// The operation
    #[arg(long, default_value = "ping")]
    op: OpName,
    /// Bytes of a write or read
    #[arg(long, default_value = "8")]
    size: Size,
    /// How often
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    count: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    let size = super::perf::fitting(args.size)?;
    let stop = Stop::listen()?;
    let servers = Servers { servers: vec![args.server.clone()], reach: args.reach.clone() };
    let mut client = device::connect(&servers, 1)?;
    let fail = |lost: remanence_pool::client::Lost| Fail::new(lost.to_string());
    let mut scratch = client.scratch(0, size.into()).map_err(fail)?;
    let op: Op = args.op.into();
    for _ in 0..args.count.min(16) {
        scratch.once(op, size).map_err(fail)?;
    }
    let mut samples = Samples::new();
    for _ in 0..args.count {
        if stop.is_asked() {
            break;
        }
        samples.add(scratch.once(op, size).map_err(fail)?);
    }
    let durable = scratch.durable();
    if args.json {
        return ui::print_json(&json!({
            "server": args.server.to_string(),
            "op": op.name(),
            "size": op.bytes(size),
            "durable": durable && op == Op::DurableWrite,
            "latency": samples.json(),
        }));
    }
    ui::print(format_args!(
        "{} of {} to {}: median {}, p99 {}, fastest {}, slowest {} ({} times)",
        op.name(),
        ui::bytes(op.bytes(size).into()),
        args.server,
        ui::time(samples.at(0.5)),
        ui::time(samples.at(0.99)),
        ui::time(samples.at(0.0)),
        ui::time(samples.at(1.0)),
        samples.count()
    ));
    if op == Op::DurableWrite && !durable {
        ui::remark("The pool lives in memory only: these writes are visible and not durable.");
    }
    Ok(())
}
