//! `rem bench erda`.

use std::path::PathBuf;

use remanence_bench::erda::{self, Carrier, Options, figure};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench erda --quick
  rem bench erda --json erda.json --plot erda.svg
  rem bench erda --only peers --dir /var/tmp

Its parts have names of their own for --only: latency, threads, cleaning, bytes, peers.

The paper's NVM is declared: every step of a scheme is carried out on live memory, and nothing makes the domain true. Beside
Redis nothing is declared. Redis and memcached are measured where they are installed: `apt-get install redis-server
redis-tools memcached`.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// What carries packets in the paper's figures
    #[arg(long, value_name = "CARRIER", default_value = "udp", value_parser = ["udp", "shm"])]
    carrier: String,
    /// A directory on a disk, for what is synced to one [default: where temporary files go]
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) dir: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let carrier = if args.carrier == "shm" { Carrier::Shm } else { Carrier::Udp };
    super::measure(&args.common, figure::draw, |common, progress| {
        erda::run(&Options { common, carrier, dir: super::supervise::place() }, progress)
    })
}
