//! `rem bench erda`.

use std::path::PathBuf;

use remanence_bench::erda::{self, Carrier, Options, Part, figure};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench erda --quick
  rem bench erda --json erda.json --plot erda.svg
  rem bench erda --only peers --dir /var/tmp

The paper's NVM is declared: every step of a scheme is carried out on live memory, and nothing makes the domain true. Beside
Redis nothing is declared. Redis and memcached are measured where they are installed: `apt-get install redis-server
redis-tools memcached`.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Only these parts; all of them if nothing is said
    #[arg(long, value_name = "PART", value_delimiter = ',',
        value_parser = ["latency", "threads", "cleaning", "bytes", "peers"])]
    only: Vec<String>,
    /// What carries packets in the paper's figures
    #[arg(long, value_name = "CARRIER", default_value = "udp", value_parser = ["udp", "shm"])]
    carrier: String,
    /// A directory on a disk, for what is synced to one [default: where temporary files go]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) dir: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let program = super::program(None)?;
    let options = Options {
        effort: args.common.effort(),
        program,
        carrier: if args.carrier == "shm" { Carrier::Shm } else { Carrier::Udp },
        dir: super::supervise::place(),
        parts: Part::ALL
            .into_iter()
            .filter(|part| args.only.iter().any(|name| name == part.name()))
            .collect(),
    };
    let (bar, mut progress) = super::progress();
    let outcome = erda::run(&options, &mut progress);
    bar.finish_and_clear();
    let (report, claims) = outcome.map_err(Fail::new)?;
    super::tell(&report, &args.common)?;
    super::tell_claims(&claims, &args.common);
    super::draw(&report, &args.common, figure::draw)?;
    report.whole().map_err(Fail::new)
}
