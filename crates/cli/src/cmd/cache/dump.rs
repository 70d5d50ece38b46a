//! `rem cache dump`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use remanence_cache::Damage;
use remanence_cache::entry::{Kind, Mtime};
use remanence_cache::op::{Name, Op};
use remanence_cache::recovery::{Item, Scan};
use remanence_cache_live::recover::real::lost;
use remanence_codec::printable;
use remanence_pmem::Region;
use serde_json::{Value, json};

use super::look::{bad, shown, view};
use crate::fail::Fail;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem cache dump app.log
  rem cache dump --json app.log | jq 'select(.kind == \"write\")'

Every entry that counts from the tail on, in its order: its index, what it does, to which file, and when that was changed last. What is damaged, and what
a crash tore off, stands in its place; it fails if something was damaged that was durable.")]
pub(super) struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// What stands at an index.
enum Line<'a> {
    Item(&'a Item),
    Hole,
    Damaged(&'a Damage),
    Torn(&'a Damage),
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let (region, scan) = view(&args.log, lost(&args.log))?;
    let mut lines: BTreeMap<u64, Line<'_>> = BTreeMap::new();
    lines.extend(scan.holes.iter().map(|hole| (*hole, Line::Hole)));
    lines.extend(scan.unsure.iter().map(|damage| (damage.first, Line::Torn(damage))));
    lines.extend(scan.damaged.iter().map(|damage| (damage.first, Line::Damaged(damage))));
    lines.extend(scan.items.iter().map(|item| (item.entry.first, Line::Item(item))));
    for (index, line) in lines {
        let (text, value) = match line {
            Line::Item(item) => of_item(&region, &scan, item),
            Line::Hole => ("nothing: the place of a writer that died".into(), json!({ "kind": "hole" })),
            Line::Damaged(damage) => {
                (format!("damaged: {damage}"), json!({ "kind": "damaged", "why": damage.to_string() }))
            }
            Line::Torn(damage) => {
                (format!("torn off: {damage}"), json!({ "kind": "torn", "why": damage.to_string() }))
            }
        };
        if args.json {
            let mut all = json!({ "index": index });
            if let (Some(all), Some(value)) = (all.as_object_mut(), value.as_object()) {
                all.extend(value.clone());
            }
            ui::print(all);
        } else {
            ui::print(format_args!("{index:>12}  {text}"));
        }
    }
    match scan.damaged.len() {
        0 => Ok(()),
        1 => Err(bad(&args.log)(&"an entry is damaged that was durable")),
        n => Err(bad(&args.log)(&format!("{n} entries are damaged that were durable"))),
    }
}

fn of_item(region: &Region, scan: &Scan, item: &Item) -> (String, Value) {
    let entry = &item.entry;
    let mut payload = Vec::new();
    let read = scan.payload(region, entry, &mut payload);
    let op = read.ok().and_then(|()| entry.op(&payload));
    let file = |file| shown(region, scan, file);
    let name =
        |name: Name<'_>| format!("{}/{}", file(name.directory).trim_end_matches('/'), printable(name.name));
    let mut value = json!({ "count": entry.count });
    let text = match op {
        Some(Op::Write { file: id, offset, bytes }) => {
            put(&mut value, &[("kind", "write".into()), ("file", file(id).into())]);
            put(&mut value, &[("offset", offset.into()), ("bytes", bytes.len().into())]);
            format!("write {} bytes at {offset} of {}", bytes.len(), file(id))
        }
        Some(Op::Truncate { file: id, len }) => {
            put(&mut value, &[("kind", "truncate".into()), ("file", file(id).into()), ("len", len.into())]);
            format!("truncate {} to {len}", file(id))
        }
        Some(Op::Allocate { file: id, mode, offset, len }) => {
            put(&mut value, &[("kind", "allocate".into()), ("file", file(id).into()), ("mode", mode.into())]);
            put(&mut value, &[("offset", offset.into()), ("len", len.into())]);
            format!("allocate {len} bytes at {offset} of {} (mode {mode:#x})", file(id))
        }
        Some(Op::Settled { file: id, upto }) => {
            put(&mut value, &[("kind", "settled".into()), ("file", file(id).into()), ("upto", upto.into())]);
            format!("settled up to {upto}: {}", file(id))
        }
        Some(Op::Attributes { file: id, mode, user, group }) => {
            put(
                &mut value,
                &[("kind", "attributes".into()), ("file", file(id).into()), ("mode", mode.into())],
            );
            put(&mut value, &[("user", user.into()), ("group", group.into())]);
            format!("{} is of mode {mode:o}, user {user} and group {group}", file(id))
        }
        Some(Op::Create { at, mode, .. }) => {
            put(&mut value, &[("kind", "create".into()), ("name", name(at).into()), ("mode", mode.into())]);
            format!("create {} (mode {mode:o})", name(at))
        }
        Some(Op::Symlink { at, target, .. }) => {
            let target = printable(target);
            put(&mut value, &[("kind", "symlink".into()), ("name", name(at).into())]);
            put(&mut value, &[("target", target.clone().into())]);
            format!("symlink {} to {target}", name(at))
        }
        Some(Op::Link { file: id, at }) => {
            put(&mut value, &[("kind", "link".into()), ("file", file(id).into()), ("name", name(at).into())]);
            format!("link {} as {}", file(id), name(at))
        }
        Some(Op::Unlink { at, .. }) => {
            put(&mut value, &[("kind", "unlink".into()), ("name", name(at).into())]);
            format!("unlink {}", name(at))
        }
        Some(Op::Rename { from, to, exchanged, .. }) => {
            put(
                &mut value,
                &[("kind", "rename".into()), ("from", name(from).into()), ("to", name(to).into())],
            );
            put(&mut value, &[("exchanged", exchanged.is_some().into())]);
            format!(
                "{} {} to {}",
                if exchanged.is_some() { "exchange" } else { "rename" },
                name(from),
                name(to)
            )
        }
        None if entry.kind == Kind::Mark => {
            put(&mut value, &[("kind", "mark".into()), ("upto", entry.offset.into())]);
            format!("mark: all below {} was durable but for what was in progress", entry.offset)
        }
        None => {
            put(&mut value, &[("kind", "hole".into())]);
            "nothing: the place of a writer that died".into()
        }
    };
    if entry.mtime != Mtime::UNKNOWN {
        put(&mut value, &[("mtime", entry.mtime.0.into())]);
    }
    (text, value)
}

fn put(value: &mut Value, fields: &[(&str, Value)]) {
    if let Some(value) = value.as_object_mut() {
        value.extend(fields.iter().map(|(name, field)| ((*name).to_owned(), field.clone())));
    }
}
