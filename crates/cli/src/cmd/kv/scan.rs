//! `rem kv scan`.

use std::io::{self, Write as _};

use remanence_kv::proto::Refusal;
use remanence_kv_live::Error;
use serde_json::json;

use super::verify::{Got, one_by_one};
use super::{At, Reach, field, of, record, shown};
use crate::fail::{Context as _, Fail};

/// Keys asked for at a time.
const PAGE: u32 = 256;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv scan 127.0.0.1                            all keys, one on a line
  rem kv scan 127.0.0.1 --prefix user: --limit 10
  rem kv scan 127.0.0.1 --values --json            values and versions too

The order is that of the keys' hashes. A key that is there all the time is printed once, whatever is written meanwhile.")]
pub(super) struct Args {
    /// Server as HOST or HOST:PORT; of a store on several, one member or all of them, separated by commas
    #[arg(value_name = "SERVER")]
    server: At,
    /// Only keys that begin like this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Stop after so many keys
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print values too, as lines of key, tab, value
    #[arg(long)]
    values: bool,
    /// Print JSON, one line for each key
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let mut store = args.reach.connect(&args.server)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let unwritten = || "standard output cannot be written".to_owned();
    let mut damaged = Vec::new();
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut cursor = Some(0);
    while let Some(from) = cursor.filter(|_| left > 0) {
        let page = store.scan(from, PAGE).map_err(|e| of(&args.server, &e))?;
        let mut keys = page.keys;
        keys.retain(|key| key.starts_with(args.prefix.as_bytes()));
        keys.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= keys.len() as u64;
        if args.values {
            let found: Vec<Got> = match store.get_many(&keys) {
                Err(Error::Refused(Refusal::Damaged)) => one_by_one(&mut store, &keys),
                found => found.map_err(|e| of(&args.server, &e))?.into_iter().map(Ok).collect(),
            };
            for (key, found) in keys.iter().zip(found) {
                let found = match found {
                    Ok(Some(found)) => found,
                    // Deleted meanwhile.
                    Ok(None) => continue,
                    Err(Error::Refused(Refusal::Damaged)) => {
                        damaged.push(shown(key));
                        continue;
                    }
                    Err(error) => return Err(of(&args.server, &error)),
                };
                if args.json {
                    writeln!(out, "{}", record(key, &found))
                } else {
                    writeln!(out, "{}\t{}", shown(key), shown(&found.value))
                }
                .context(unwritten)?;
            }
        } else {
            for key in &keys {
                if args.json {
                    let mut named = json!({});
                    field(&mut named, "key", key);
                    writeln!(out, "{named}")
                } else {
                    writeln!(out, "{}", shown(key))
                }
                .context(unwritten)?;
            }
        }
        cursor = page.next;
    }
    out.flush().context(unwritten)?;
    match damaged.first() {
        None => Ok(()),
        Some(first) => Err(Fail::new(format!(
            "{}: {} damaged on the medium ({first} for one), and not among these",
            args.server,
            match damaged.len() {
                1 => "1 value is".to_owned(),
                n => format!("{n} values are"),
            }
        ))),
    }
}
