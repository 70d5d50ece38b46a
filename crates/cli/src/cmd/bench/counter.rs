//! `rem bench counter`.

use remanence_bench::counter::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench counter --quick
  rem bench counter --json counter.json --plot counter.svg")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let (bar, progress) = super::progress();
    let outcome = counter::run(Options { effort: args.common.effort() }, progress);
    bar.finish_and_clear();
    let (report, claims) = outcome.map_err(Fail::new)?;
    super::publish_with_claims(&report, &claims, &args.common)
}
