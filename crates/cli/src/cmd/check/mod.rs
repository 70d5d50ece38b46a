//! `rem check NAME`: checkers that explore everything and say what they have seen. One file per checker.

mod persistence;

use crate::fail::Fail;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    check: Check,
}

#[derive(clap::Subcommand, Debug)]
enum Check {
    /// Every method of remote persistence, on every machine, with a crash in every state
    Persistence(persistence::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    match &args.check {
        Check::Persistence(args) => persistence::run(args),
    }
}
