//! `rem bench urdma`.

use std::path::PathBuf;

use remanence_bench::urdma::{self, Options};

use super::Common;
use crate::fail::Fail;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench urdma --quick
  rem bench urdma --json urdma.json --plot urdma.svg

It boots a Linux guest in QEMU's software emulation; the first time it fetches the guest's kernel with apt-get.")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let libraries = crate::cmd::verbs::find_libraries()?;
    let options = Options { effort: args.common.effort(), libraries, directory: cache() };
    let (bar, progress) = super::progress();
    let outcome = urdma::run(&options, progress);
    bar.finish_and_clear();
    let (report, tables) = outcome.map_err(Fail::new)?;
    if args.common.tells() {
        ui::print(format_args!("{tables}"));
    }
    super::publish(&report, &args.common)
}

/// Where the guest's kernel is kept.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(std::env::temp_dir).join("remanence/guest")
}
