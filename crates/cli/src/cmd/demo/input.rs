//! What the demo writes, and where.

use std::path::{Path, PathBuf};

use remanence_pmem::domain::probe_directory;

use crate::cmd::put::{Item, blob_name, walk};
use crate::fail::{Context as _, Fail};

/// Files to write.
pub(super) struct Input {
    /// As people know it.
    pub(super) what: String,
    pub(super) items: Vec<Item>,
    pub(super) bytes: u64,
}

/// Folders of the project that are not its source.
const NOT_SOURCE: [&str; 2] = ["target/", ".git/"];

impl Input {
    pub(super) fn find(path: Option<&Path>) -> Result<Self, Fail> {
        let (path, what) = match path {
            Some(path) => (path.to_owned(), path.display().to_string()),
            None => {
                // Known at build time; a binary that was carried elsewhere shows itself instead.
                let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
                match source.canonicalize() {
                    Ok(source) if source.join("Cargo.toml").exists() => {
                        (source, "this project's own source".to_owned())
                    }
                    _ => {
                        let program =
                            std::env::current_exe().context(|| "this program cannot be found".into())?;
                        (program, "this program itself".to_owned())
                    }
                }
            }
        };
        let mut items = Vec::new();
        if path.is_dir() {
            walk(&path, "", &mut items)?;
            if what.starts_with("this project") {
                items.retain(|item| !NOT_SOURCE.iter().any(|folder| item.name.as_str().starts_with(folder)));
            }
        } else {
            let metadata = path.metadata().context(|| format!("{} cannot be read", path.display()))?;
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("input");
            items.push(Item { name: blob_name(name)?, path: Some(path), len: Some(metadata.len()) });
        }
        let bytes = items.iter().filter_map(|item| item.len).sum();
        if bytes == 0 {
            return Err(Fail::new(format!(
                "there is nothing in {what}; name a file or directory with something in it"
            )));
        }
        Ok(Self { what, items, bytes })
    }
}

/// A directory whose files outlive a power loss, if there is one at hand: many systems keep /tmp in memory.
pub(super) fn place_for_pools(given: Option<&Path>) -> Result<PathBuf, Fail> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let candidates = [std::env::temp_dir(), "/var/tmp".into(), ".".into()];
    let durable = |dir: &&PathBuf| probe_directory(dir).is_ok_and(|domain| domain.guarantee().is_durable());
    Ok(candidates.iter().find(durable).unwrap_or(&candidates[0]).clone())
}
