//! `rem bench bulk`.

use remanence_bench::rpc::{Options, bulk};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench bulk --quick
  rem bench bulk --json bulk.json --plot bulk.svg")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Let Intel's accelerator (DSA) copy too; it is tested first, and `rem doctor` says whether there is one
    #[arg(long)]
    dsa: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let options = Options { effort: args.common.effort(), program: super::program(None)? };
    let (bar, progress) = super::progress();
    let outcome = bulk::run(&options, args.dsa, progress);
    bar.finish_and_clear();
    let (report, claims) = outcome.map_err(Fail::new)?;
    super::publish_with_claims(&report, &claims, &args.common)
}
