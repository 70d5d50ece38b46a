//! `rem kv salvage`.

use std::path::{Path, PathBuf};

use remanence_kv_live::{Error, salvage};
use serde_json::json;

use super::dump::Out;
use super::verify::finding;
use super::{member, shown};
use crate::fail::Fail;
use crate::ui::{self, Bar, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv salvage broken.kv -o rescued.dump         and then: rem kv load SERVER rescued.dump, into a new store

The file is not changed, and needs to be readable only. While its metadata tells where values are, they are read as a server would, and only what it could not
read is looked for; otherwise every object is found by its own checksum, and of each key the newest counts. It fails if
something is lost, and names it, or if part of its journal is, which has what was acknowledged last; the dump has the rest.")]
pub(super) struct Args {
    /// The file, or directory of a member, that nobody serves
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to write the dump
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let path: &Path = &args.file;
    let image = member::directory_of(path).map(|dir| dir.join("image"));
    let file = remanence_kv_live::file_options();
    let (region, journal) =
        file.salvage(image.as_deref().unwrap_or(path)).map_err(|e| Fail::new(e.to_string()))?;
    let journal = journal.map(|e| e.to_string());
    let mut out = Out::new(Some(&args.output))?;
    let bar = Bar::items(0, "values", args.json);
    let mut failed = None;
    let outcome = salvage(&region, super::now(), &mut |record| {
        bar.add(1);
        out.value(&record).map_err(|fail| {
            let sentence = fail.to_string();
            failed = Some(fail);
            Error::Argument(sentence)
        })
    });
    bar.done();
    if let Some(fail) = failed {
        return Err(fail);
    }
    let salvaged = outcome.map_err(|e| Fail::new(format!("{}: {e}", path.display())))?;
    let lost = salvaged.lost.len() as u64 + salvaged.nameless;
    (0..lost).for_each(|_| out.unreadable());
    let summary = out.end()?;
    if args.json {
        ui::print_json(&json!({
            "values": summary.values,
            "bytes": summary.bytes,
            "journal": journal,
            "without_tables": salvaged.without_tables,
            "doubtful": salvaged.doubtful.iter().map(|key| shown(key)).collect::<Vec<_>>(),
            "lost": salvaged.lost.iter().map(|key| shown(key)).collect::<Vec<_>>(),
            "lost_without_a_name": salvaged.nameless,
            "damaged": salvaged.findings.iter().map(finding).collect::<Vec<_>>(),
        }))?;
    } else {
        let text = format!(
            "{} ({}) in {}",
            ui::count(summary.values as usize, "value"),
            ui::bytes(summary.bytes),
            args.output.display()
        );
        ui::line(Mood::Good, "salvaged", text);
        if let Some(why) = &salvaged.without_tables {
            let text = format!(
                "the store's tables cannot be found ({why}): values are the newest that are whole, and some may have been \
                 deleted since"
            );
            ui::line(Mood::Note, "doubtful", text);
        } else {
            for key in &salvaged.doubtful {
                ui::line(Mood::Note, "doubtful", format!("{}: the newest version that is whole", shown(key)));
            }
        }
        if let Some(why) = &journal {
            let text = format!("what was acknowledged last may be missing or older: {why}");
            ui::line(Mood::Bad, "journal", text);
        }
        for finding in &salvaged.findings {
            ui::line(Mood::Bad, "damaged", finding);
        }
        for key in &salvaged.lost {
            ui::line(Mood::Bad, "lost", shown(key));
        }
    }
    match lost {
        0 if journal.is_some() => Err(Fail::new(format!(
            "{}: its journal is damaged, and what was acknowledged last may be missing or older; the dump has the others",
            path.display()
        ))),
        0 if !salvaged.doubtful.is_empty() && salvaged.without_tables.is_none() => Err(Fail::new(format!(
            "{}: {} an older version in the dump, as what was written last is lost",
            path.display(),
            match salvaged.doubtful.len() {
                1 => "1 key has".to_owned(),
                n => format!("{n} keys have"),
            }
        ))),
        0 => Ok(()),
        1 => Err(Fail::new(format!("{}: 1 value is lost; the dump has the others", path.display()))),
        n => Err(Fail::new(format!("{}: {n} values are lost; the dump has the others", path.display()))),
    }
}
