//! What the commands that only look at a log share.

use std::path::Path;

use remanence_cache::format::{self, Lost, Promise};
use remanence_cache::recovery::{self, Scan};
use remanence_cache::table::{FileId, Identity};
use remanence_pmem::Region;
use serde_json::{Value, json};

use crate::fail::Fail;

/// What is wrong with a log, as a sentence that begins with its path.
pub(super) fn bad(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> Fail {
    move |error| {
        let (path, error) = (path.display().to_string(), error.to_string());
        // Some sentences begin with it already.
        if error.starts_with(&path) { Fail::new(error) } else { Fail::new(format!("{path}: {error}")) }
    }
}

/// An empty file is no region, and its sentence would be about memory.
pub(super) fn refuse_empty(path: &Path) -> Result<(), Fail> {
    match std::fs::metadata(path) {
        Ok(there) if there.is_file() && there.len() == 0 => {
            Err(bad(path)(&"the file is empty: it has no log"))
        }
        _ => Ok(()),
    }
}

/// A log that is only looked at: a copy of it in memory.
pub(super) fn view(path: &Path, lost: Lost) -> Result<(Region, Scan), Fail> {
    refuse_empty(path)?;
    let region = format::file_options().view(path).map_err(|e| bad(path)(&e))?;
    let scan = recovery::scan(&region, lost).map_err(|e| bad(path)(&e))?;
    Ok((region, scan))
}

/// What is said of a log as a whole.
pub(super) fn log_json(path: &Path, scan: &Scan) -> Value {
    json!({
        "log": path.display().to_string(),
        "uuid": scan.layout.uuid.to_string(),
        "clean": scan.is_clean(),
        "recovering": scan.record.seal.is_some(),
        "promise": match scan.record.promise {
            Promise::AtReturn => "at-return",
            Promise::AtSync => "at-sync",
        },
        "tail": scan.record.tail,
        "end": scan.end,
        "entries": scan.items.len(),
        "holes": scan.holes.len(),
        "dropped": scan.dropped,
        "damaged": scan.damaged.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "unsure": scan.unsure.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The path of a file, fit to be shown.
pub(super) fn shown(region: &Region, scan: &Scan, file: FileId) -> String {
    Identity::read(region, &scan.layout, file)
        .map_or_else(|| format!("{file}, which the log does not know"), |identity| identity.shown())
}
