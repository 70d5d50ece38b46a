//! `rem kv dump`, and where a dump is written to.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Read as _, Write};
use std::path::{Path, PathBuf};

use remanence_kv::dump::{MAGIC, Record, Summary, Writer};
use remanence_kv::proto::Refusal;
use remanence_kv_live::{Error, Store, read_all};
use remanence_resp::parts::{Collected, collect, has_part, id_in, is_in_parts, owner_of};
use serde_json::json;

use super::{Reach, member, of, server_of, shown, view_file};
use crate::fail::{Context as _, Fail};
use crate::ui::{self, Bar, Mood};
use crate::whole::Whole;

/// Keys asked for at a time.
const PAGE: u32 = 128;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv dump 127.0.0.1 -o users.dump              of a store that is served; clients go on meanwhile
  rem kv dump users.kv -o users.dump               of a file that nobody serves
  rem kv dump 127.0.0.1 | zstd > users.dump.zst    through a pipe

Of a store that is served, each value is one that was committed, and every key that was there all the time is in it; keys that
come and go meanwhile may be or not. So it is with the fields of a large hash of a Redis client, which is one value
in the dump. `rem kv load` writes a dump into a store. It fails if a value is damaged, and names its key; the others
are in the dump.")]
pub(super) struct Args {
    /// A server, or a file
    #[arg(value_name = "SERVER|FILE")]
    what: String,
    /// Where to write the dump, complete or not at all [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object at the end, on standard error if the dump goes to standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// A dump that is being written, which takes its place when it is whole.
pub(super) struct Out {
    writer: Writer<BufWriter<Box<dyn Write>>>,
    whole: Option<(Whole, PathBuf)>,
}

impl Out {
    pub(super) fn new(output: Option<&Path>) -> Result<Self, Fail> {
        let (out, whole): (Box<dyn Write>, _) = match output {
            // A device or a pipe is written as it is.
            Some(path) if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) => {
                let there = File::options().write(true).open(path);
                (Box::new(there.context(|| format!("{} cannot be written", path.display()))?), None)
            }
            Some(path) => {
                check_place(path)?;
                let unmade = || format!("{} cannot be made", path.display());
                // What is in it is for who may read the store.
                let whole = Whole::at(path, 0o600).context(unmade)?;
                let file = whole.file().try_clone().context(unmade)?;
                (Box::new(file), Some((whole, path.to_owned())))
            }
            None if io::stdout().is_terminal() => {
                return Err(Fail::new(
                    "a dump is no text for a terminal; name a file with -o, or use a pipe",
                ));
            }
            None => (Box::new(io::stdout()), None),
        };
        let writer = Writer::new(BufWriter::with_capacity(1 << 20, out)).context(unwritten)?;
        Ok(Self { writer, whole })
    }

    pub(super) fn value(&mut self, record: &Record) -> Result<(), Fail> {
        self.writer.value(&record.key, record.version, record.expires, &record.value).context(unwritten)
    }

    pub(super) fn unreadable(&mut self) {
        self.writer.unreadable();
    }

    /// The dump is whole, and durable.
    pub(super) fn end(self) -> Result<Summary, Fail> {
        let (summary, _) = self.writer.end().context(unwritten)?;
        if let Some((whole, path)) = self.whole {
            whole.end().context(|| format!("{} cannot be made", path.display()))?;
        }
        Ok(summary)
    }
}

/// What stands for the key of a value that is damaged so much that it cannot be told.
pub(super) const NAMELESS: &str = "a key that nobody knows";

/// Refuses a file that is no dump, as it would be gone: the store itself, above all.
fn check_place(path: &Path) -> Result<(), Fail> {
    if !path.is_file() {
        return Ok(());
    }
    let file = File::open(path).context(|| format!("{} cannot be looked at", path.display()))?;
    let mut begin = Vec::new();
    file.take(MAGIC.len() as u64)
        .read_to_end(&mut begin)
        .context(|| format!("{} cannot be read", path.display()))?;
    if begin.is_empty() || begin == *MAGIC {
        return Ok(());
    }
    Err(Fail::new(format!(
        "{} is there, and is no dump; name another file, or remove it first if it is not needed",
        path.display()
    )))
}

fn unwritten() -> String {
    "the dump cannot be written".to_owned()
}

/// An object on standard output, or beside a dump that is there.
pub(super) fn print(object: &serde_json::Value, output: Option<&Path>) -> Result<(), Fail> {
    match output {
        Some(_) => ui::print_json(object),
        None => {
            anstream::eprintln!("{object}");
            Ok(())
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let path = Path::new(&args.what);
    let mut out = Out::new(args.output.as_deref())?;
    let damaged = match member::directory_of(path) {
        Some(dir) => of_file(args, &dir.join("image"), &mut out)?,
        None if path.exists() => of_file(args, path, &mut out)?,
        None => of_server(args, &mut out)?,
    };
    let summary = out.end()?;
    if args.json {
        let object = json!({
            "values": summary.values,
            "bytes": summary.bytes,
            "damaged": damaged,
            "file": args.output,
        });
        print(&object, args.output.as_deref())?;
    } else if let Some(output) = &args.output {
        let text = format!(
            "{} ({}) in {}",
            ui::count(summary.values as usize, "value"),
            ui::bytes(summary.bytes),
            output.display()
        );
        ui::line(Mood::Good, "dumped", text);
    }
    match damaged.first() {
        None => Ok(()),
        Some(first) => Err(Fail::new(format!(
            "{}: {} not in the dump, as the value is damaged ({first} for one); the others are",
            args.what,
            if damaged.len() == 1 { "1 key is".to_owned() } else { format!("{} keys are", damaged.len()) },
        ))),
    }
}

fn of_file(args: &Args, path: &Path, out: &mut Out) -> Result<Vec<String>, Fail> {
    let region = view_file(path)?;
    let mut damaged = Vec::new();
    let bar = Bar::items(0, "values", args.json);
    let mut failed = None;
    let outcome = read_all(
        &region,
        super::now(),
        &mut |record| {
            bar.add(1);
            out.value(&record).map_err(|fail| {
                let sentence = fail.to_string();
                failed = Some(fail);
                Error::Argument(sentence)
            })
        },
        &mut |key| damaged.push(key.map_or_else(|| NAMELESS.to_owned(), shown)),
    );
    bar.done();
    if let Some(fail) = failed {
        return Err(fail);
    }
    outcome.map_err(|e| Fail::new(format!("{}: {e}", args.what)))?;
    damaged.iter().for_each(|_| out.unreadable());
    Ok(damaged)
}

fn of_server(args: &Args, out: &mut Out) -> Result<Vec<String>, Fail> {
    let server = server_of(&args.what)?;
    let mut store = args.reach.connect(&server)?;
    let total = store.stats().map_err(|e| of(&server, &e))?.usage.entries;
    let bar = Bar::items(total, "values", args.json);
    let (mut damaged, mut hashes) = (Vec::new(), BTreeSet::new());
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let page = store.scan(from, PAGE).map_err(|e| of(&server, &e))?;
        for _ in 0..page.nameless {
            out.unreadable();
            damaged.push(NAMELESS.to_owned());
        }
        for key in &page.keys {
            bar.add(1);
            // A part of a hash that is known: it is dumped with that.
            if id_in(key).is_some_and(|id| hashes.contains(&id)) {
                continue;
            }
            // One by one: values may be large, and one that is damaged is named.
            match store.get(key) {
                Ok(Some(found)) => {
                    let (version, expires) = (found.version, found.expires);
                    let value = match whole(&mut store, key, found.value, &mut hashes) {
                        Ok(Found::Value(value)) => value,
                        Ok(Found::Part | Found::Gone) => continue,
                        Ok(Found::Lost) | Err(Error::Refused(Refusal::Damaged)) => {
                            out.unreadable();
                            damaged.push(shown(key));
                            continue;
                        }
                        Err(error) => return Err(of(&server, &error)),
                    };
                    out.value(&Record { key: key.clone(), version, expires, value })?;
                }
                // Deleted meanwhile.
                Ok(None) => {}
                Err(Error::Refused(Refusal::Damaged)) => {
                    out.unreadable();
                    damaged.push(shown(key));
                }
                Err(error) => return Err(of(&server, &error)),
            }
        }
        cursor = page.next;
    }
    bar.done();
    Ok(damaged)
}

/// What is dumped of a key that is served.
enum Found {
    Value(Vec<u8>),
    /// Nothing: it is a part of a hash, which is dumped whole.
    Part,
    /// Nothing: it was deleted meanwhile.
    Gone,
    /// It cannot be read.
    Lost,
}

/// A hash of a Redis client that is in parts (docs/gateway.md) becomes one value: its parts are changed one after the other, and
/// would not belong together in a dump. `hashes` are those that were seen.
fn whole(
    store: &mut Store,
    key: &[u8],
    value: Vec<u8>,
    hashes: &mut BTreeSet<[u8; 16]>,
) -> Result<Found, Error> {
    let mut read = |keys: &[Vec<u8>]| -> Result<Vec<Option<Vec<u8>>>, Error> {
        let found = store.get_many(keys)?;
        Ok(found.into_iter().map(|found| found.map(|found| found.value)).collect())
    };
    if let Some(owner) = owner_of(key, &value)
        && read(&[owner])?.pop().flatten().is_some_and(|owner| has_part(&owner, key))
    {
        hashes.extend(id_in(key));
        return Ok(Found::Part);
    }
    if !is_in_parts(&value) {
        return Ok(Found::Value(value));
    }
    Ok(match collect(key, read)? {
        Collected::Value(value) => Found::Value(value),
        Collected::Gone => Found::Gone,
        Collected::Lost => Found::Lost,
    })
}
