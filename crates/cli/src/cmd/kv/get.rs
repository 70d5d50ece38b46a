//! `rem kv get`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use remanence_kv::proto::Refusal;
use remanence_kv_live::Error;
use serde_json::json;

use super::{At, Reach, field, of, record, shown};
use crate::fail::{Context as _, Fail};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv get 127.0.0.1 greeting                    the value's bytes, and nothing else
  rem kv get 127.0.0.1 photo --output photo.jpg
  rem kv get 127.0.0.1 a b c --json                several at once, with their versions

It fails if a key has no value. The server's CPU takes no part: values are read out of its memory.")]
pub(super) struct Args {
    /// Server as HOST or HOST:PORT; of a store on several, one member or all of them, separated by commas
    #[arg(value_name = "SERVER")]
    server: At,
    /// Keys; the values of several are printed as lines of key, tab, value
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    /// Put the value into a file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON, one line for each key
    #[arg(long, conflicts_with = "output")]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    if args.output.is_some() && args.keys.len() > 1 {
        return Err(Fail::new("--output takes the value of one key; get the others one by one"));
    }
    let mut store = args.reach.connect(&args.server)?;
    let found = match store.get_many(&args.keys) {
        // Which of them is to be named.
        Err(Error::Refused(Refusal::Damaged)) => {
            let one = |key: &String| {
                store.get(key.as_bytes()).map_err(|e| match e {
                    Error::Refused(Refusal::Damaged) => Fail::new(format!(
                        "{}: the value of {key} is damaged on the medium: put it anew, or restore it from a copy",
                        args.server
                    )),
                    e => of(&args.server, &e),
                })
            };
            args.keys.iter().map(one).collect::<Result<Vec<_>, Fail>>()?
        }
        found => found.map_err(|e| of(&args.server, &e))?,
    };
    let unwritten = || "standard output cannot be written".to_owned();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut absent = Vec::new();
    for (key, found) in args.keys.iter().zip(&found) {
        match found {
            Some(found) if args.json => writeln!(out, "{}", record(key.as_bytes(), found)),
            None if args.json => {
                absent.push(key);
                let mut nothing = json!({ "version": null, "value": null });
                field(&mut nothing, "key", key.as_bytes());
                writeln!(out, "{nothing}")
            }
            Some(found) if args.keys.len() > 1 => writeln!(out, "{key}\t{}", shown(&found.value)),
            Some(found) => match &args.output {
                Some(file) => {
                    std::fs::write(file, &found.value)
                        .context(|| format!("{} cannot be written", file.display()))?;
                    Ok(())
                }
                None => out.write_all(&found.value),
            },
            None => {
                absent.push(key);
                Ok(())
            }
        }
        .context(unwritten)?;
    }
    out.flush().context(unwritten)?;
    match absent[..] {
        [] => Ok(()),
        [key] => Err(Fail::new(format!("{}: {key} has no value", args.server))),
        _ => Err(Fail::new(format!("{}: {} of the keys have no value", args.server, absent.len()))),
    }
}
