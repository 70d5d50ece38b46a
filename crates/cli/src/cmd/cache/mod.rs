//! `rem cache`: the write cache. One file for each verb.

mod daemon;
mod dump;
mod fsck;
mod look;
mod metrics;
mod pages;
mod recover;
mod unit;

pub(super) use daemon::{Start, report, standing};

crate::cmd::subcommands! {
    /// Own a log, and have what programs write into it synced into their files; `rem run` starts one where none is
    Start(daemon::Foreground) => daemon::start,
    /// What a log has, who uses it, and which files are not absorbed
    Status(daemon::Status) => daemon::status,
    /// Wait until all that is in a log now is in its files
    Drain(daemon::Named) => daemon::drain,
    /// Drain a log and log nothing more until it is thawed, so that a snapshot of the disk has all that was promised; programs go on
    Freeze(daemon::Named) => daemon::freeze,
    /// Log again what programs change
    Thaw(daemon::Named) => daemon::thaw,
    /// Drain a log, close it, and end its daemon
    Stop(daemon::Named) => daemon::stop,
    /// Bring files to what a log has for them, after a crash
    Recover(recover::Args) => recover::run,
    /// Check a log: checksums, what a crash tore off, the files that it knows
    Fsck(fsck::Args) => fsck::run,
    /// Print the entries of a log, one a line
    Dump(dump::Args) => dump::run,
}
