//! `rem bench transport`.

use remanence_bench::transport::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench transport --quick
  rem bench transport --path udp-lo --json transport.json --plot transport.svg")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Only these paths, several times for several [default: all]
    #[arg(long = "path", value_name = "PATH", value_parser = ["udp-lo", "udp-veth", "xdp-veth", "shm"])]
    paths: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let program = super::program(None)?;
    let options = Options { effort: args.common.effort(), program, paths: args.paths.clone() };
    let (bar, progress) = super::progress();
    let report = transport::run(&options, progress);
    bar.finish_and_clear();
    super::publish(&report.map_err(Fail::new)?, &args.common)
}
