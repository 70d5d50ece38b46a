//! `rem bench verbs`.

use remanence_bench::plot;
use remanence_bench::verbs::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench verbs --quick
  rem bench verbs --json verbs.json --plot verbs.svg

It needs Debian's perftest, and the libraries: cargo xtask dropin --release")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let libraries = crate::cmd::verbs::find_libraries()?;
    super::measure(&args.common, plot::draw, |common, progress| {
        verbs::run(&Options { common, libraries }, progress)
    })
}
