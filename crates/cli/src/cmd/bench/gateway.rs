//! `rem bench gateway`.

use std::path::PathBuf;

use remanence_bench::gateway::{self, Options};
use remanence_bench::plot;

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench gateway --quick
  rem bench gateway --directory /mnt/disk --json report.json --plot figure.svg

What is not installed is skipped, and its bars are not measured: apt-get install redis-server memcached")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Where the gateway's store and Redis' logs lie, on the same disk
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    pub(super) directory: PathBuf,
    /// Measures the gateway of another `rem`, to compare releases
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let program = super::program(args.program.as_deref())?;
    super::measure(&args.common, plot::draw, |common, progress| {
        gateway::run(&Options { common, program, directory: super::supervise::place() }, progress)
    })
}
