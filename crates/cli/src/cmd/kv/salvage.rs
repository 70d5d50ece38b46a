//! `rem kv salvage`.

use std::path::{Path, PathBuf};

use remanence_kv::live::{Error, salvage};
use remanence_pmem::{FileOptions, Image};
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

The file is not changed. While its metadata tells where values are, they are read as a server would, and only what it could not
read is looked for; otherwise every object is found by its own checksum, and of each key the newest counts. It fails if
something is lost, and names it; the dump has the rest.")]
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
    // Whatever is left of it: if its journal was cut off, what lies in the pages.
    let opened = FileOptions::new().image(|_, _| Image::Foreign).open(image.as_deref().unwrap_or(path));
    let region = opened.map_err(|e| Fail::new(e.to_string()))?;
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
        for finding in &salvaged.findings {
            ui::line(Mood::Bad, "damaged", finding);
        }
        for key in &salvaged.lost {
            ui::line(Mood::Bad, "lost", shown(key));
        }
    }
    match lost {
        0 => Ok(()),
        1 => Err(Fail::new(format!("{}: 1 value is lost; the dump has the others", path.display()))),
        n => Err(Fail::new(format!("{}: {n} values are lost; the dump has the others", path.display()))),
    }
}
