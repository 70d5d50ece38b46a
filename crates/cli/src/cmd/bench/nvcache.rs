//! `rem bench nvcache`.

use std::path::PathBuf;

use remanence_bench::nvcache::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench nvcache --quick
  rem bench nvcache --directory /mnt/disk --json nvcache.json --plot nvcache.svg
  rem bench nvcache --quick --only SQLite

Figures 3.9 to 3.13 and table 3.2 of paper 000, as far as the mode `through` can draw them, and what is asked of it. It takes the library that
`rem run` takes (libremanence_preload.so), and beside it are fio and sqlite3 where they are installed: apt-get install fio sqlite3")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Where files and the log that is in a file are: the file system that is measured
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub(super) directory: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    // Every bar needs it: whoever lacks it is told before minutes are measured, and not behind them.
    crate::cmd::run::library()?;
    let directory = super::supervise::place();
    super::measure(&args.common, nvcache::draw, |common, progress| {
        nvcache::run(&Options { common, directory }, progress)
    })
}
