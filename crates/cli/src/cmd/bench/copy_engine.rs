//! `rem bench copy-engine`.

use remanence_bench::copy_engine::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench copy-engine --quick
  rem bench copy-engine --json copy-engine.json --plot copy-engine.svg")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let (bar, progress) = super::progress();
    let outcome = copy_engine::run(Options { effort: args.common.effort() }, progress);
    bar.finish_and_clear();
    let (report, claims) = outcome.map_err(Fail::new)?;
    super::publish_with_claims(&report, &claims, &args.common)
}
