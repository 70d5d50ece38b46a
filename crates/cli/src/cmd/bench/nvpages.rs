//! `rem bench nvpages`.

use std::path::PathBuf;

use remanence_bench::nvpages::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench nvpages --quick
  rem bench nvpages --directory /mnt/disk --json nvpages.json --plot nvpages.svg
  rem bench nvpages --quick --only randw

Figures 4.3 and 4.4 of paper 000: NVPages and NVCache, both as the library nvcache, beside system calls with and without fsync. The
file is as large as 64 MiB with --quick and 512 MiB without, and /dev/shm has to have room for five times as much, twice.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Where the file is: the file system that is measured
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub(super) directory: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let directory = super::supervise::place();
    super::measure(&args.common, nvpages::draw, |common, progress| {
        nvpages::run(&Options { common, directory }, progress)
    })
}
