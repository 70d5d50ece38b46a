//! `rem kv load`.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::time::Duration;

use remanence_kv::dump::{Reader, Record};
use remanence_kv::proto::Expect;
use remanence_kv_live::{PutOptions, Store};
use serde_json::json;

use super::{At, Reach, of, refused};
use crate::fail::{Context as _, Fail};
use crate::ui::{self, Bar, Mood};

/// Values that are written together.
const LOT: usize = 256;
/// And bytes of them, about.
const LOT_BYTES: usize = 4 << 20;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv load 127.0.0.1 users.dump                 checks all of the dump first, and writes nothing if it is not whole
  zstd -d < users.dump.zst | rem kv load 127.0.0.1 checks as it goes: a dump that ends too soon is an error at its end

A key's value is replaced. Values end when they would have ended, and those that have ended are left out. The store gives each a
version of its own.")]
pub(super) struct Args {
    /// Server as HOST or HOST:PORT; of a store on several, one member or all of them, separated by commas
    #[arg(value_name = "SERVER")]
    server: At,
    /// The dump [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Leave keys alone that have a value
    #[arg(long)]
    keep: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Default)]
struct Done {
    written: u64,
    kept: u64,
    ended: u64,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let name =
        args.file.as_ref().map_or_else(|| "standard input".to_owned(), |file| file.display().to_string());
    let bad = |written: u64, e| {
        let so_far = match written {
            0 => "nothing was written".to_owned(),
            1 => "1 value of it was written".to_owned(),
            n => format!("{n} values of it were written"),
        };
        Fail::new(format!("{name}: {e}; {so_far}"))
    };
    let open = |file: &PathBuf| {
        File::open(file).map(BufReader::new).context(|| format!("{} cannot be read", file.display()))
    };
    let mut total = 0;
    // What can be read twice is verified to its end before anything of it is written.
    if let Some(file) = args.file.as_ref().filter(|file| file.is_file()) {
        let mut reader = Reader::new(open(file)?).map_err(|e| bad(0, e))?;
        while reader.next().map_err(|e| bad(0, e))?.is_some() {}
        total = reader.summary().values;
    }
    let input: Box<dyn Read> = match &args.file {
        Some(file) => Box::new(open(file)?),
        None => Box::new(BufReader::new(io::stdin())),
    };
    let mut reader = Reader::new(input).map_err(|e| bad(0, e))?;
    let mut store = args.reach.connect(&args.server)?;
    let bar = Bar::items(total, "values", args.json);
    let mut done = Done::default();
    let (mut lot, mut bytes, mut ends) = (Vec::new(), 0, 0);
    loop {
        let record = reader.next().map_err(|e| bad(done.written, e))?;
        let over = record.is_none();
        // Those that end at the same time go together.
        let other = record.as_ref().is_some_and(|record| record.expires != ends);
        if !lot.is_empty() && (over || other || lot.len() == LOT || bytes >= LOT_BYTES) {
            write(args, &mut store, std::mem::take(&mut lot), ends, &mut done)?;
            bytes = 0;
        }
        let Some(Record { key, expires, value, .. }) = record else { break };
        bar.add(1);
        ends = expires;
        bytes += value.len();
        lot.push((key, value));
    }
    bar.done();
    let summary = reader.summary();
    if args.json {
        return ui::print_json(&json!({
            "values": summary.values,
            "bytes": summary.bytes,
            "written": done.written,
            "kept": done.kept,
            "ended": done.ended,
            "unreadable_when_dumped": summary.unreadable,
        }));
    }
    let text = format!(
        "{} written ({} in the dump), {} left alone, {} had ended",
        ui::count(done.written as usize, "value"),
        ui::bytes(summary.bytes),
        done.kept,
        done.ended
    );
    ui::line(Mood::Good, "loaded", text);
    if summary.unreadable > 0 {
        let text = format!(
            "{} could not be read when the dump was made",
            ui::count(summary.unreadable as usize, "key")
        );
        ui::line(Mood::Note, "missing", text);
    }
    Ok(())
}

fn write(
    args: &Args,
    store: &mut Store,
    lot: Vec<(Vec<u8>, Vec<u8>)>,
    ends: u64,
    done: &mut Done,
) -> Result<(), Fail> {
    let left = ends.saturating_sub(super::now());
    if ends != 0 && left == 0 {
        done.ended += lot.len() as u64;
        return Ok(());
    }
    let options = PutOptions {
        expect: if args.keep { Expect::Absent } else { Expect::Any },
        ttl: (ends != 0).then(|| Duration::from_millis(left)),
    };
    let outcomes = store.put_many(&lot, options).map_err(|e| of(&args.server, &e))?;
    for ((key, _), outcome) in lot.iter().zip(outcomes) {
        match outcome {
            Ok(_) => done.written += 1,
            Err(remanence_kv_live::Error::Refused(remanence_kv::Refusal::WrongVersion { .. }))
                if args.keep =>
            {
                done.kept += 1;
            }
            Err(error) => {
                return Err(Fail::new(format!(
                    "{}: {}; {} values of the dump were written before it",
                    args.server,
                    refused(key, &error),
                    done.written
                )));
            }
        }
    }
    Ok(())
}
