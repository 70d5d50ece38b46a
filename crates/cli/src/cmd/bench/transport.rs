//! `rem bench transport`.

use remanence_bench::plot;
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
    super::measure(&args.common, plot::draw, |common, progress| {
        transport::run(&Options { common, paths: args.paths.clone() }, progress)
    })
}
