//! `rem bench bulk`.

use remanence_bench::plot;
use remanence_bench::rpc::bulk;

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
    super::measure(&args.common, plot::draw, |common, progress| bulk::run(&common, args.dsa, progress))
}
