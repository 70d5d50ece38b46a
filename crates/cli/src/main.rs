//! `rem`, the one binary.
//!
//! `rem <noun> <verb>`: one file for each noun, in `cmd`. A command returns, and `main` alone decides what becomes of
//! it: exit status 0 on success only; else one sentence on stderr, and status 1 (2 for a command line that makes no
//! sense, and `rem verbs` has those of env(1)).

mod args;
mod cmd;
mod device;
mod door;
mod fail;
mod signals;
mod ui;

use std::process::ExitCode;

use clap::Parser;

/// Durable remote memory over RoCEv2, in userspace
#[derive(Parser, Debug)]
#[command(name = "rem", version, propagate_version = true)]
#[command(after_help = "Begin with `rem demo`, which shows all of it on this machine in less than a minute.")]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fail) => {
            anstream::eprintln!("rem: {fail}");
            ExitCode::from(fail.status())
        }
    }
}
