//! `rem bench quorum`.

use std::path::PathBuf;

use remanence_bench::quorum::{self, Options};

use super::Common;
use crate::fail::Fail;
use crate::signals::Stop;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench quorum --quick
  rem bench quorum --directory /dev/shm -- --declare wsp      (memory, which is taken for what survives power)")]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Where servers keep what they have
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    directory: PathBuf,
    /// Has another `rem` serve, to compare releases
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Further arguments of `rem log serve`
    #[arg(last = true)]
    more: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let place = super::place_in(&args.directory)?;
    let options = Options {
        program: super::program(args.program.as_deref())?,
        roles: super::program(None)?,
        directory: place.path().to_owned(),
        effort: args.common.effort(),
        more: args.more.clone(),
        stop: Stop::listen()?.flag(),
    };
    let (bar, progress) = super::progress();
    let outcome = quorum::run(&options, progress);
    bar.finish_and_clear();
    super::publish(&outcome.map_err(Fail::new)?, &args.common)
}
