//! `rem cache`: the write cache. One file for each verb.

mod daemon;
mod dump;
mod fsck;
mod look;
mod pages;
mod recover;

use crate::fail::Fail;

pub(super) use daemon::{Start, report, standing};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Own a log, and have what programs write into it synced into their files; `rem run` starts one where none is
    Start(daemon::Start),
    /// What a log has, who uses it, and which files are not absorbed
    Status(daemon::Status),
    /// Wait until all that is in a log now is in its files
    Drain(daemon::Named),
    /// Drain a log, close it, and end its daemon
    Stop(daemon::Named),
    /// Bring files to what a log has for them, after a crash
    Recover(recover::Args),
    /// Check a log: checksums, what a crash tore off, the files that it knows
    Fsck(fsck::Args),
    /// Print the entries of a log, one a line
    Dump(dump::Args),
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    match &args.verb {
        Verb::Start(args) => daemon::start(args),
        Verb::Status(args) => daemon::status(args),
        Verb::Drain(log) => daemon::drain(log),
        Verb::Stop(log) => daemon::stop(log),
        Verb::Recover(args) => recover::run(args),
        Verb::Fsck(args) => fsck::run(args),
        Verb::Dump(args) => dump::run(args),
    }
}
