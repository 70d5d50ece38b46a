//! `rem`, the one binary.
//!
//! `rem <noun> <verb>`: one file for each noun, in `cmd`. A command returns, and `main` alone decides what becomes of
//! it: exit status 0 on success only; else one sentence on stderr, and status 1 (2 for a command line that makes no
//! sense, and `rem verbs` has those of env(1)). Who asked for JSON gets the sentence as JSON, on stderr too: what a
//! command prints on stdout is its result.

mod args;
mod cmd;
mod device;
mod exposure;
mod fail;
mod input;
mod serving;
mod signals;
mod standard;
mod ui;
mod whole;

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser};

/// Durable remote memory over RoCEv2, in userspace
#[derive(Parser, Debug)]
#[command(name = "rem", version, propagate_version = true)]
#[command(after_help = "Begin with `rem demo`, which shows all of it on this machine in less than a minute.")]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    let (matches, cli) = match read_line() {
        Ok(read) => read,
        Err(error) => return refuse(&error),
    };
    signals::file_size_limit_is_an_error();
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fail) if wants_json(&matches) => {
            anstream::eprintln!(
                "{}",
                serde_json::json!({ "error": fail.to_string(), "status": fail.status() })
            );
            ExitCode::from(fail.status())
        }
        Err(fail) => {
            anstream::eprintln!("rem: {fail}");
            ExitCode::from(fail.status())
        }
    }
}

fn read_line() -> Result<(ArgMatches, Cli), clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches)?;
    Ok((matches, cli))
}

/// A command line that makes no sense; or one that asks for help or the version, which are printed.
fn refuse(error: &clap::Error) -> ExitCode {
    // There are no matches to be asked, so it is what stands there, up to what belongs to another program.
    let mut line = std::env::args_os().skip(1).take_while(|word| word != "--");
    if !error.use_stderr()
        || !line.any(|word| word == "--json" || word.to_string_lossy().starts_with("--json="))
    {
        error.exit();
    }
    let said = error.to_string();
    let sentence =
        said.split("\n\n").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    anstream::eprintln!("{}", serde_json::json!({ "error": sentence, "status": error.exit_code() }));
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Whether the command was given `--json`, wherever it is among its own options.
fn wants_json(matches: &ArgMatches) -> bool {
    let here = matches.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or(false);
    here || matches.subcommand().is_some_and(|(_, matches)| wants_json(matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_asked_for_by_the_command_and_not_by_what_it_runs() {
        let asked = |line: &str| {
            let matches = Cli::command().try_get_matches_from(line.split(' ')).expect("a fair line");
            wants_json(&matches)
        };
        assert!(asked("rem get -s a --json x") && asked("rem kv stats host --json"));
        assert!(!asked("rem get -s a x") && !asked("rem verbs -- program --json"));
    }
}
