//! `rem bench kv-size`.

use std::path::PathBuf;

use remanence_bench::kv_size::{self, Options};
use remanence_bench::plot;

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench kv-size --quick                        a million keys
  rem bench kv-size --keys 3000000 --directory /var/tmp")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Keys [default: 10 million, or 1 million with --quick]; each takes 220 bytes of the directory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    keys: Option<u64>,
    /// Where the store's file is made, and removed [default: shared memory]
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub(super) directory: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    super::measure(&args.common, plot::draw, |common, progress| {
        kv_size::run(&Options { common, directory: super::supervise::place(), keys: args.keys }, progress)
    })
}
