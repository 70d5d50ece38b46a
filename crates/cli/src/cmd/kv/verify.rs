//! `rem kv verify`.

use std::path::Path;

use remanence_kv::proto::Refusal;
use remanence_kv::server::{Fate, Finding};
use remanence_kv_live::{Error, Store, inspect};
use serde_json::{Value, json};

use super::dump::NAMELESS;
use super::{Reach, field, member, of, server_of, shown, view_file};
use crate::fail::Fail;
use crate::ui::{self, Mood};

/// Keys asked for at a time.
const PAGE: u32 = 128;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv verify 127.0.0.1                          every value of a running server, read over the network
  rem kv verify users.kv                           a file that nobody serves now, and what recovery would do to it

Nothing is changed. It fails if a value is damaged, and names its key; of a file, too, if any bit of its superblocks, root
record, directory or table is. `rem kv scrub` repairs what can be repaired.")]
pub(super) struct Args {
    /// A server, or a file
    #[arg(value_name = "SERVER|FILE")]
    what: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let path = Path::new(&args.what);
    match member::directory_of(path) {
        // Of what a member has it is the image that has values.
        Some(dir) => of_file(args, &dir.join("image")),
        None if path.exists() => of_file(args, path),
        None => of_server(args),
    }
}

fn of_file(args: &Args, path: &Path) -> Result<(), Fail> {
    let region = view_file(path)?;
    let found = inspect(&region).map_err(|e| Fail::new(format!("{}: {e}", args.what)))?;
    let (recovered, scrubbed) = (found.recovered, found.scrubbed);
    let values = scrubbed.repaired + scrubbed.lost;
    let damaged = values + recovered.mended + recovered.lost;
    if args.json {
        ui::print_json(&json!({
            "whole": damaged == 0,
            "verified": scrubbed.verified,
            "repairable": scrubbed.repaired,
            "lost": scrubbed.lost,
            "size": found.superblock.geometry.size,
            "damaged": found.findings.iter().map(finding).collect::<Vec<_>>(),
            "recovery": {
                "mended": recovered.mended,
                "lost": recovered.lost,
                "upgraded": recovered.upgraded,
                "pending": recovered.pending,
                "completed": recovered.completed,
                "rolled_back": recovered.rolled_back,
                "doubled": recovered.doubled,
                "freed": recovered.freed,
            },
        }))?;
    } else if damaged == 0 {
        ui::line(
            Mood::Good,
            "whole",
            format!(
                "{}, every checksum right, of the metadata too",
                ui::count(scrubbed.verified as usize, "value")
            ),
        );
        if recovered.pending > 0 {
            ui::line(
                Mood::Note,
                "recovery",
                format!(
                    "{} writes were under way when it stopped: {} are whole and will count, {} will go back to the version before",
                    recovered.pending, recovered.completed, recovered.rolled_back
                ),
            );
        }
    } else {
        for finding in &found.findings {
            ui::line(Mood::Bad, "damaged", finding);
        }
    }
    if damaged == 0 {
        return Ok(());
    }
    let of_values = format!("{values} of {}", ui::count((scrubbed.verified + values) as usize, "value"));
    let words = ui::count((recovered.mended + recovered.lost) as usize, "word");
    Err(Fail::new(format!(
        "{}: damaged are {of_values}, and {words} of the metadata; serving it or `rem kv scrub {}` puts {} right; {} lost: restore \
         what is from a copy, or write it anew",
        args.what,
        args.what,
        match scrubbed.repaired {
            0 => ui::count(recovered.mended as usize, "word"),
            n => format!(
                "{} and {}",
                ui::count(recovered.mended as usize, "word"),
                ui::count(n as usize, "value")
            ),
        },
        match scrubbed.lost + recovered.lost {
            1 => "1 is".to_owned(),
            n => format!("{n} are"),
        }
    )))
}

/// Something damaged, for a program.
pub(super) fn finding(finding: &Finding) -> Value {
    let mut object = json!({ "what": finding.to_string(), "mended": finding.fate == Fate::Mended });
    if let Some(key) = &finding.key {
        field(&mut object, "key", key);
    }
    object
}

fn of_server(args: &Args) -> Result<(), Fail> {
    let server = server_of(&args.what)?;
    let mut store = args.reach.connect(&server)?;
    let (mut values, mut bytes, mut damaged) = (0_u64, 0_u64, Vec::new());
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let page = store.scan(from, PAGE).map_err(|e| of(&server, &e))?;
        damaged.extend((0..page.nameless).map(|_| NAMELESS.to_owned()));
        let found = match store.get_many(&page.keys) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(Error::Refused(Refusal::Damaged)) => one_by_one(&mut store, &page.keys),
            Err(error) => return Err(of(&server, &error)),
        };
        for (key, found) in page.keys.iter().zip(found) {
            match found {
                Ok(Some(found)) => {
                    values += 1;
                    bytes += found.value.len() as u64;
                }
                // Deleted meanwhile.
                Ok(None) => {}
                Err(Error::Refused(Refusal::Damaged)) => damaged.push(shown(key)),
                Err(error) => return Err(of(&server, &error)),
            }
        }
        cursor = page.next;
    }
    if args.json {
        ui::print_json(&json!({
            "whole": damaged.is_empty(),
            "values": values,
            "bytes": bytes,
            "damaged": damaged,
        }))?;
    } else if damaged.is_empty() {
        let text =
            format!("{} ({}), every checksum right", ui::count(values as usize, "value"), ui::bytes(bytes));
        ui::line(Mood::Good, "whole", text);
    }
    match damaged.first() {
        None => Ok(()),
        Some(first) => Err(Fail::new(format!(
            "{}: {} damaged ({first} for one); `rem kv scrub {}` repairs what can be repaired",
            args.what,
            ui::part(damaged.len() as u64, values + damaged.len() as u64, "value"),
            args.what
        ))),
    }
}

/// What was found of a key.
pub(super) type Got = Result<Option<remanence_kv::client::Found>, Error>;

/// Each by itself, where one of them may be damaged.
pub(super) fn one_by_one(store: &mut Store, keys: &[Vec<u8>]) -> Vec<Got> {
    keys.iter().map(|key| store.get(key)).collect()
}
