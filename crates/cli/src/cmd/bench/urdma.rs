//! `rem bench urdma`.

use std::path::PathBuf;

use remanence_bench::plot;
use remanence_bench::urdma::{self, Options};

use super::Common;
use crate::fail::Fail;

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
    super::measure(&args.common, plot::draw, |common, progress| {
        urdma::run(&Options { common, libraries, directory: cache() }, progress)
    })
}

/// Where the guest's kernel is kept.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(std::env::temp_dir).join("remanence/guest")
}
