//! `rem log bench`: latency of durable appends to real servers.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use remanence_remotelog::{AppendError, GroupError};
use serde_json::json;

use super::Write;
use crate::args::Size;
use crate::fail::Fail;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem log bench 127.0.0.1 --size 64 --seconds 5
  rem log bench a,b,c --acks 2 --op SEND

It appends to the log that is there, and trims its own records when they fill it: give it a log of its own. The
figures of the paper, all configurations beside one another, are `rem bench remotelog`.")]
pub(super) struct Args {
    #[command(flatten)]
    write: Write,
    /// Bytes of a record
    #[arg(long, value_name = "SIZE", default_value = "64")]
    size: Size,
    /// How long
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Trim records that were in the log before too, if it fills up
    #[arg(long)]
    trim_all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let said = |e: GroupError| Fail::new(e.to_string());
    let (mut group, _) = args.write.open()?;
    let first = group.next();
    let record = vec![0x5a; args.size.0 as usize];
    let mut nanos = Histogram::<u64>::new(3).expect("three digits are allowed");
    let begin = Instant::now();
    let mut trimmed = false;
    while begin.elapsed() < Duration::from_secs(args.seconds) {
        let start = Instant::now();
        match group.append(&record) {
            Ok(_) => {
                // It grows as it must; clamping it to what it holds so far would make every append one of 2 ns.
                nanos.record(start.elapsed().as_nanos() as u64).expect("it grows");
            }
            Err(GroupError::Append(AppendError::Full { .. })) if group.next() > first && !trimmed => {
                if first > 0 && !args.trim_all {
                    return Err(Fail::new(
                        "the log is full, and holds records that are not of this bench; give it a log of its own, or --trim-all",
                    ));
                }
                group.trim(group.next()).map_err(said)?;
                trimmed = true;
                continue;
            }
            Err(error) => return Err(said(error)),
        }
        trimmed = false;
    }
    let elapsed = begin.elapsed();
    let quorum = group.quorum();
    let plan = remanence_persist::plan::Request::record(args.size.0.next_power_of_two() as u32);
    let recipes: Vec<_> = group
        .connections()
        .map(|(server, connection)| {
            let (recipe, two_sided) = connection.explain(&plan).unwrap_or_else(|e| (e.to_string(), false));
            let region = connection.session().region();
            json!({
                "server": server,
                "configuration": connection.session().config().to_string(),
                "declared": region.declared,
                "recipe": recipe,
                "two_sided": two_sided,
                "survives": region.sentence,
            })
        })
        .collect();
    group.close().map_err(said)?;
    let us = |q: f64| nanos.value_at_quantile(q) as f64 / 1e3;
    let rate = nanos.len() as f64 / elapsed.as_secs_f64();
    if args.json {
        return ui::print_json(&json!({
            "size": args.size.0,
            "acks": quorum.0,
            "members": quorum.1,
            "n": nanos.len(),
            "p50_us": us(0.5),
            "p99_us": us(0.99),
            "p999_us": us(0.999),
            "appends_per_second": rate,
            "servers": recipes,
        }));
    }
    ui::print(format_args!(
        "{} bytes, {} of {} servers: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us; {rate:.0} appends a second ({} in all)",
        args.size.0,
        quorum.0,
        quorum.1,
        us(0.5),
        us(0.99),
        us(0.999),
        nanos.len()
    ));
    for recipe in &recipes {
        let text = |key: &str| recipe[key].as_str().unwrap_or_default().to_owned();
        ui::remark(format!("{}: {} ({})", text("server"), text("recipe"), text("survives")));
    }
    Ok(())
}
