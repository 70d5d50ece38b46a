//! What every command that serves does beside serving: it stops when it is asked to, and says lines to programs that started it.

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::path::Path;

use remanence_remote::Token;
use serde_json::json;

use crate::fail::{Context as _, Fail};
use crate::signals::Stop;
use crate::ui::{self, Mood};

/// Asks the command to stop when standard input ends, as it does with the program that started this one.
pub(crate) fn stop_on_eof(asked: &Stop) {
    let asked = asked.clone();
    std::thread::spawn(move || {
        let mut sink = [0; 64];
        while !matches!(std::io::stdin().read(&mut sink), Ok(0) | Err(_)) {}
        asked.ask();
    });
}

/// Does this when somebody asks the command to stop: a signal, and the end of standard input if that counts.
pub(crate) fn when_asked(asked: &Stop, on_eof: bool, stop: impl FnOnce() + Send + 'static) {
    if on_eof {
        stop_on_eof(asked);
    }
    let asked = asked.clone();
    std::thread::spawn(move || {
        asked.wait();
        stop();
    });
}

/// Serves until somebody asks the command to stop, as [`when_asked`] says.
///
/// # Errors
/// The server ended by itself: [`served_no_more`].
pub(crate) fn serve_until_asked<S, E: Display>(
    asked: &Stop,
    on_eof: bool,
    what: &Path,
    as_json: bool,
    run: impl FnOnce(&remanence_remote::Stop) -> Result<S, E>,
) -> Result<S, Fail> {
    let stop = remanence_remote::Stop::new();
    let stopping = stop.clone();
    when_asked(asked, on_eof, move || stopping.ask());
    run(&stop).map_err(|e| served_no_more(what, &e, as_json))
}

/// Why a server ended by itself, as its command says and ends with: programs that started it hear of it where they read what it does.
pub(crate) fn served_no_more(what: &Path, why: &impl Display, as_json: bool) -> Fail {
    let sentence = format!("{} is served no more: {why}", what.display());
    if as_json {
        // Who does not read it any more has the status.
        let _ = print_line(&json!({ "event": "failed", "why": sentence }).to_string());
    }
    Fail::new(sentence)
}

/// A line for another program, which may be waiting for it behind a pipe.
pub(crate) fn print_line(line: &str) -> Result<(), Fail> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context(|| "standard output cannot be written".into())
}

/// Says who may come to what is served, and returns the options that a client has to give.
pub(crate) fn tell_token(token: Option<&(Token, Option<&Path>)>, listens: IpAddr, what: &str) -> String {
    match token {
        Some((token, file)) => {
            let place = file.map_or_else(|| "as given".into(), |file| format!("in {}", file.display()));
            ui::line(Mood::Good, "token", format!("{place} (fingerprint {})", token.fingerprint()));
        }
        None if listens.is_loopback() => {
            ui::line(
                Mood::Note,
                "token",
                format!("none: everybody on this machine may read and write the {what}"),
            );
        }
        None => {
            let text = format!("none: whoever reaches this address may read and write the {what}");
            ui::line(Mood::Bad, "token", text);
        }
    }
    match token {
        Some((_, Some(file))) => format!(" --token-file {}", file.display()),
        Some((_, None)) => " --token TOKEN".into(),
        None => String::new(),
    }
}
