//! `rem cache fsck`.

use std::path::PathBuf;

use remanence_cache::entry::Kind;
use remanence_cache::table::{FileId, Identity};
use remanence_cache_live::recover::real::lost;
use remanence_codec::printable;
use serde_json::json;

use super::look::{bad, log_json, view};
use crate::fail::Fail;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem cache fsck app.log

Nothing is changed. It fails if something is damaged that was durable. What a crash tore off behind that is no damage: nobody had been told that it is
durable.")]
pub(super) struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let (region, scan) = view(&args.log, lost(&args.log))?;
    let geometry = scan.layout.geometry;
    let files: Vec<(FileId, Identity)> = (0..geometry.files)
        .map(FileId)
        .filter_map(|file| Some((file, Identity::read(&region, &scan.layout, file)?)))
        .collect();
    let of_kind = |kind: Kind| scan.items.iter().filter(|item| item.entry.kind == kind).count();
    let bytes: u64 =
        scan.items.iter().filter(|item| item.entry.kind == Kind::Write).map(|item| item.entry.len).sum();
    let mended = scan.items.iter().filter(|item| item.mended).count();
    if args.json {
        let mut all = log_json(&args.log, &scan);
        if let Some(all) = all.as_object_mut() {
            all.insert("slots".into(), geometry.entries.into());
            all.insert("slot_bytes".into(), geometry.slot.into());
            all.insert("writes".into(), of_kind(Kind::Write).into());
            all.insert("changes".into(), of_kind(Kind::Change).into());
            all.insert("settled".into(), of_kind(Kind::Settled).into());
            all.insert("bytes".into(), bytes.into());
            all.insert("mended".into(), mended.into());
            let files = files.iter().map(|(file, identity)| {
                json!({
                    "file": file.0,
                    "path": printable(&identity.path),
                    "inode": identity.inode,
                    "due": scan.due().iter().filter(|item| item.files.first() == Some(file)).count(),
                })
            });
            all.insert("files".into(), files.collect::<Vec<_>>().into());
        }
        ui::print_json(&all)?;
    } else {
        ui::line(
            Mood::Good,
            "log",
            format!(
                "{}, {} places of {}, {} in use from {} on",
                scan.layout.uuid,
                geometry.entries,
                ui::bytes(geometry.slot.into()),
                scan.end - scan.record.tail,
                scan.record.tail,
            ),
        );
        let state = match (scan.is_clean(), scan.record.seal.is_some()) {
            (true, _) => (Mood::Good, "it was closed, and its files lack nothing"),
            (false, false) => {
                (Mood::Note, "it was not closed: rem cache recover brings what it has into its files")
            }
            (false, true) => {
                (Mood::Note, "a recovery has begun and was cut short, or has held something: recover again")
            }
        };
        ui::line(state.0, "state", state.1);
        if !scan.is_clean() {
            let said = format!(
                "{} with {}, {} of names and lengths, {} settled; {} of writers that died",
                ui::count(of_kind(Kind::Write), "write"),
                ui::bytes(bytes),
                ui::count(of_kind(Kind::Change), "change"),
                of_kind(Kind::Settled),
                ui::count(scan.holes.len(), "hole"),
            );
            ui::line(Mood::Good, "entries", said);
        }
        if mended > 0 {
            ui::line(
                Mood::Note,
                "mended",
                format!("{mended} commit words were damaged; the checksums prove their entries"),
            );
        }
        for damage in &scan.unsure {
            ui::line(Mood::Note, "torn off", damage);
        }
        if scan.dropped > 0 {
            ui::line(
                Mood::Note,
                "dropped",
                format!("{} whole entries behind what a crash tore off", scan.dropped),
            );
        }
        for (file, identity) in &files {
            let due = scan.due().iter().filter(|item| item.files.first() == Some(file)).count();
            let mood = if due > 0 { Mood::Note } else { Mood::Absent };
            ui::line(mood, &file.to_string(), format!("{}: {due} due", identity.shown()));
        }
        for damage in &scan.damaged {
            ui::line(Mood::Bad, "damaged", damage);
        }
    }
    match scan.damaged.len() {
        0 => Ok(()),
        1 => Err(bad(&args.log)(
            &"an entry is damaged that was durable; rem cache recover holds what is behind it in its file",
        )),
        n => Err(bad(&args.log)(&format!(
            "{n} entries are damaged that were durable; rem cache recover holds what is behind them in their files"
        ))),
    }
}
