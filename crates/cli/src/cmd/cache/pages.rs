//! `rem cache recover` of pages (NVPages), which a program of the library has in place of a log.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use remanence_cache::pages::format::{FORMAT, file_options};
use remanence_cache::pages::recovery::{Outcome, scan};
use remanence_cache_live::recover::pages::{PagesReport, open, recover};
use remanence_cache_live::recover::real::{RealFiles, lost};
use remanence_cache_live::recover::{FileReport, Options, State};
use serde_json::{Value, json};

use super::look::bad;
use super::recover::file_json;
use crate::fail::Fail;
use crate::ui::{self, Mood};

/// Whether a file has pages.
pub(super) fn are_in(path: &Path) -> bool {
    let mut head = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head == FORMAT.signature.magic
}

/// Brings files to what pages have for them; or says what that would be.
pub(super) fn run(path: &Path, options: &Options, as_json: bool) -> Result<(), Fail> {
    let bad = bad(path);
    let region = if options.dry {
        file_options().view(path).map_err(|e| bad(&e))?
    } else {
        open(path).map_err(|e| bad(&e))?
    };
    let found = scan(&region, lost(path)).map_err(|e| bad(&e))?;
    let is_clean = found.is_clean();
    let report = recover(&region, found, &RealFiles, options).map_err(|e| bad(&e))?;
    if as_json {
        ui::print_json(&in_json(path, &report, is_clean, options.dry))?;
    } else {
        tell(path, &report, is_clean, options.dry);
    }
    let held = report.outcome == Some(Outcome::Held) || options.dry && options.set_aside.is_none();
    match report.undecided(path).filter(|_| held) {
        Some(why) => Err(bad(&why)),
        None => Ok(()),
    }
}

fn in_json(path: &Path, report: &PagesReport, is_clean: bool, dry: bool) -> Value {
    json!({
        "pages": path.display().to_string(),
        "dry_run": dry,
        "outcome": match report.outcome {
            _ if is_clean => "clean",
            None => "not-begun",
            Some(Outcome::Empty) => "recovered",
            Some(Outcome::Held) => "held",
        },
        "dropped": report.dropped,
        "damaged": report.damaged.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "files": report.files.iter().map(file_json).collect::<Vec<_>>(),
    })
}

fn tell(path: &Path, report: &PagesReport, is_clean: bool, dry: bool) {
    if is_clean {
        let said = format!("{} was closed, and its files lack nothing", path.display());
        return ui::line(Mood::Good, "clean", said);
    }
    for file in &report.files {
        let (mood, said) = said(file, dry || report.outcome == Some(Outcome::Held));
        ui::line(mood, &file.path, said);
    }
    for flaw in &report.damaged {
        ui::line(Mood::Bad, "damaged", flaw);
    }
    if report.dropped > 0 {
        let dropped = ui::count(report.dropped as usize, "write");
        let why = "behind what the crash tore off; nobody was told that they are durable";
        ui::line(Mood::Note, "dropped", format!("{dropped} {why}"));
    }
    match report.outcome {
        None => ui::remark("nothing was changed"),
        Some(Outcome::Empty) => {
            ui::line(Mood::Good, "recovered", "there are no pages that files lack, and it can be used again");
        }
        Some(Outcome::Held) => {}
    }
}

fn said(file: &FileReport, would_be: bool) -> (Mood, String) {
    let due = format!("{} of {}", ui::bytes(file.bytes), ui::count(file.entries as usize, "page"));
    match &file.state {
        State::SetAside { path } => (Mood::Note, format!("it is not found; {due} are in {path}")),
        State::Absent { why } => {
            let why = why.as_ref().map_or(String::new(), |why| format!("; {why}"));
            (Mood::Bad, format!("it is not found, and {due} are due to it{why}"))
        }
        _ if would_be => (Mood::Good, format!("{due} would be in it")),
        _ => (Mood::Good, format!("{due} are in it")),
    }
}
