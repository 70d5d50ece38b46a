//! `rem cache`: the write cache. One file for each verb.

mod dump;
mod fsck;
mod look;
mod recover;

use crate::fail::Fail;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Bring files to what a log has for them, after a crash
    Recover(recover::Args),
    /// Check a log: checksums, what a crash tore off, the files that it knows
    Fsck(fsck::Args),
    /// Print the entries of a log, one a line
    Dump(dump::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    match &args.verb {
        Verb::Recover(args) => recover::run(args),
        Verb::Fsck(args) => fsck::run(args),
        Verb::Dump(args) => dump::run(args),
    }
}
