//! `rem kv put`.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use remanence_kv::proto::Expect;
use remanence_kv_live::{Error, PutOptions, Store};
use serde_json::json;

use super::{At, Condition, Reach, field, refused};
use crate::fail::{Context as _, Fail};
use crate::{input, ui};

/// Pairs of a stream that are written together.
const LOT: usize = 256;
/// And bytes of their values, about.
const LOT_BYTES: usize = 4 << 20;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv put 127.0.0.1 greeting hello              prints the version that was made
  rem kv put 127.0.0.1 photo --file photo.jpg      any bytes, of any size that fits the store
  date | rem kv put 127.0.0.1 now --ttl 10s        gone ten seconds later
  rem kv put 127.0.0.1 greeting hi --expect 1099511627777
                                                   only if that is its version: compare and swap
  rem kv put 127.0.0.1 --batch < pairs.tsv         lines of key, tab, value, many at a time

In a store of mode `durable` a value is durable when its version is printed.")]
pub(super) struct Args {
    /// Server as HOST or HOST:PORT; of a store on several, one member or all of them, separated by commas
    #[arg(value_name = "SERVER")]
    server: At,
    /// The key
    #[arg(value_name = "KEY", required_unless_present = "batch", conflicts_with = "batch")]
    key: Option<String>,
    /// The value; without it and without --file, what standard input has
    #[arg(value_name = "VALUE", conflicts_with = "file")]
    value: Option<String>,
    /// Take the value from a file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Read lines of key, tab, value from standard input
    #[arg(long, conflicts_with_all = ["value", "file"])]
    batch: bool,
    /// Write only if the key is `absent`, is `present`, or has this version
    #[arg(long, value_name = "CONDITION")]
    expect: Option<Condition>,
    /// How long the value lasts, like 500ms, 10s, 5m, 2h, 7d
    #[arg(long, value_name = "TIME")]
    ttl: Option<Time>,
    /// Print JSON, one line for each value
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// A time with its unit.
#[derive(Clone, Copy, Debug)]
struct Time(Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no time; write a number and ms, s, m, h or d, like 10s");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit: u64 = match &text[digits.len()..] {
            "ms" => 1,
            "s" | "" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        let time = number.checked_mul(unit).filter(|time| *time > 0).ok_or_else(bad)?;
        Ok(Self(Duration::from_millis(time)))
    }
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let options = PutOptions {
        expect: args.expect.map_or(Expect::Any, |condition| condition.0),
        ttl: args.ttl.map(|time| time.0),
    };
    if args.batch {
        return batch(args, options);
    }
    let key = args.key.as_deref().unwrap_or_default().as_bytes();
    let mut store = None;
    let value = match &args.value {
        Some(value) => value.clone().into_bytes(),
        None => {
            let (mut input, from) = input(args)?;
            // Who waits for its input keeps no server waiting.
            let mut longest = || {
                let store = store.insert(args.reach.connect(&args.server)?);
                Ok(store.session().region().len)
            };
            input::piece(&mut input, &from, None, "a value of this store", &mut longest)?.unwrap_or_default()
        }
    };
    let mut store = store.map_or_else(|| args.reach.connect(&args.server), Ok)?;
    let version = store
        .put(key, &value, options)
        .map_err(|e| Fail::new(format!("{}: {}", args.server, refused(key, &e))))?;
    if args.json {
        let survives = store.session().survives().map(|survives| survives.to_string());
        let mut made = json!({ "version": version, "bytes": value.len(), "survives": survives });
        if let Some(primary) = store.primary() {
            made["members"] = primary.acks.into();
            made["survives"] = primary.survives.clone().into();
        }
        field(&mut made, "key", key);
        ui::print_json(&made)
    } else {
        let mut out = io::stdout().lock();
        writeln!(out, "{version}").context(|| "standard output cannot be written".into())
    }
}

/// What is read, and what it is called.
fn input(args: &Args) -> Result<(Box<dyn io::BufRead>, String), Fail> {
    Ok(match &args.file {
        Some(file) => {
            let name = file.display().to_string();
            let file = File::open(file).context(|| format!("{name} cannot be read"))?;
            (Box::new(io::BufReader::new(file)), name)
        }
        None => (Box::new(io::stdin().lock()), "standard input".into()),
    })
}

fn batch(args: &Args, options: PutOptions) -> Result<(), Fail> {
    let mut store = args.reach.connect(&args.server)?;
    let room = store.session().region().len;
    let (mut input, from) = input(args)?;
    let (mut lot, mut bytes, mut count, mut wrong) = (Vec::new(), 0, 0_u64, 0_u64);
    for number in 1_u64.. {
        let line = input::piece(&mut input, &from, Some(b'\n'), "a pair of this store", &mut || Ok(room));
        let line = match line {
            Ok(line) => line,
            Err(e) => {
                put_lot(args, &mut store, options, &mut lot, &mut wrong)?;
                return Err(Fail::new(format!(
                    "line {number}: {e}; the {count} lines before it were written"
                )));
            }
        };
        let is_last = line.is_none();
        if let Some(text) = line {
            let Some(tab) = text.iter().position(|byte| *byte == b'\t') else {
                put_lot(args, &mut store, options, &mut lot, &mut wrong)?;
                return Err(Fail::new(format!(
                    "line {number} has no tab between key and value; the {count} lines before it were written"
                )));
            };
            let (key, value) = (text[..tab].to_vec(), text[tab + 1..].to_vec());
            bytes += value.len();
            lot.push((key, value));
            count += 1;
        }
        if lot.len() >= LOT || bytes >= LOT_BYTES || is_last {
            put_lot(args, &mut store, options, &mut lot, &mut wrong)?;
            bytes = 0;
        }
        if is_last {
            break;
        }
    }
    if wrong > 0 {
        return Err(Fail::new(format!("{wrong} of {count} pairs were not written; the lines above say why")));
    }
    anstream::eprintln!("{} written", ui::count(count as usize, "pair"));
    Ok(())
}

fn put_lot(
    args: &Args,
    store: &mut Store,
    options: PutOptions,
    lot: &mut Vec<(Vec<u8>, Vec<u8>)>,
    wrong: &mut u64,
) -> Result<(), Fail> {
    let lot = std::mem::take(lot);
    if lot.is_empty() {
        return Ok(());
    }
    let outcomes = store.put_many(&lot, options).map_err(|e: Error| super::of(&args.server, &e))?;
    let mut out = io::stdout().lock();
    for ((key, value), outcome) in lot.iter().zip(outcomes) {
        match outcome {
            Ok(version) if args.json => {
                let mut made = json!({ "version": version, "bytes": value.len() });
                field(&mut made, "key", key);
                writeln!(out, "{made}")
            }
            Ok(version) => writeln!(out, "{version}"),
            Err(error) => {
                *wrong += 1;
                anstream::eprintln!("{}", refused(key, &error));
                Ok(())
            }
        }
        .context(|| "standard output cannot be written".into())?;
    }
    out.flush().context(|| "standard output cannot be written".into())
}
