//! `rem bench quorum`.

use std::path::PathBuf;

use remanence_bench::plot;
use remanence_bench::quorum::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench quorum --quick
  rem bench quorum --directory /dev/shm -- --declare wsp      (memory, which is taken for what survives power)")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Where servers keep what they have
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub(super) directory: PathBuf,
    /// Has another `rem` serve, to compare releases
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Further arguments of `rem log serve`
    #[arg(last = true)]
    more: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let program = super::program(args.program.as_deref())?;
    let directory = super::supervise::place();
    super::measure(&args.common, plot::draw, |common, progress| {
        quorum::run(&Options { common, program, directory, more: args.more.clone() }, progress)
    })
}
