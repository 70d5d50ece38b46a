//! `rem bench failover`.

use std::path::PathBuf;

use remanence_bench::failover::{self, Options};

use super::Common;
use crate::fail::Fail;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench failover --quick
  sudo rem bench failover --directory /var/tmp      (with hanging disks and links that go down, which take root)")]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// Where members keep what they have [default: shared memory]
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    pub(super) directory: PathBuf,
    /// How often each fault comes, and up to three times as often while a bar is undecided [default: 10, or 6 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Has another `rem` serve, to compare releases
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Further arguments of `rem kv serve`
    #[arg(last = true)]
    more: Vec<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let program = super::program(args.program.as_deref())?;
    let (directory, rounds) = (super::supervise::place(), args.rounds.map(u64::from));
    super::measure(&args.common, failover::draw, |common, progress| {
        failover::run(&Options { common, program, directory, rounds, more: args.more.clone() }, progress)
    })
}
