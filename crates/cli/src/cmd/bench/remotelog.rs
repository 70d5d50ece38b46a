//! `rem bench remotelog`.

use remanence_bench::remotelog::{self, Options, figure};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench remotelog --quick
  rem bench remotelog --json remotelog.json --plot remotelog.svg

The configurations are declared: every recipe is carried out on live memory, and nothing makes the domain true.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let options = Options { effort: args.common.effort(), program: super::program(None)? };
    let (bar, progress) = super::progress();
    let report = remotelog::run(&options, progress);
    bar.finish_and_clear();
    let report = report.map_err(Fail::new)?;
    super::tell(&report, &args.common)?;
    super::draw(&report, &args.common, figure::draw)?;
    report.whole().map_err(Fail::new)
}
