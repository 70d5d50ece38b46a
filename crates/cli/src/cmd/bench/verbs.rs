//! `rem bench verbs`.

use remanence_bench::verbs::{self, Options};

use super::Common;
use crate::fail::{Context as _, Fail};

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
    let program = std::env::current_exe().context(|| "this program cannot be found".into())?;
    let libraries = crate::cmd::verbs::find_libraries()?;
    let options = Options { effort: args.common.effort(), program, libraries };
    let (bar, progress) = super::progress();
    let report = verbs::run(&options, progress);
    bar.finish_and_clear();
    super::publish(&report.map_err(Fail::new)?, &args.common)
}
