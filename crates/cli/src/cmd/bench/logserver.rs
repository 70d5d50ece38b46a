//! `rem bench logserver`.

use remanence_bench::rpc::{Options, logserver};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench logserver --quick
  rem bench logserver --json logserver.json --plot logserver.svg")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let options = Options { effort: args.common.effort(), program: super::program(None)? };
    let (bar, progress) = super::progress();
    let outcome = logserver::run(&options, progress);
    bar.finish_and_clear();
    let (report, claims) = outcome.map_err(Fail::new)?;
    super::publish_with_claims(&report, &claims, &args.common)
}
