//! What a recovery takes: a log that is nearly full, whose daemon was killed, is carried out on its file again.
//!
//! The file's pages are in memory, as the program wrote them there, so what is timed reads and checks the log, writes all of it and syncs. A log in
//! a file is read from the disk, as after a loss of power.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::ends::{BLOCK, Burst, How, LogSpec, WriterSpec};
use super::logged::Logged;
use crate::process;

/// Bytes of an entry with a block in it.
const ENTRY: u64 = BLOCK + 64;
/// How much of the log has something to be recovered, in tenths: one that is full is drained, and some places of it are for marks.
const FULL: u64 = 7;

/// Makes such a log there, and files in that directory, and recovers it; seconds per GiB.
pub(super) fn recover(program: &Path, log: &Path, entries: u64, files: &WriterSpec) -> Result<f64, String> {
    // It is not cleaned before all is in it.
    let spec = LogSpec { log: log.to_owned(), entries, batch: Some(2 * entries), servers: Vec::new() };
    let mut logged = Logged::new(program.to_owned(), Some(spec), files.clone());
    let done = recovered(program, log, entries, &mut logged);
    logged.end();
    done
}

fn recovered(program: &Path, log: &Path, entries: u64, logged: &mut Logged) -> Result<f64, String> {
    logged.ready()?;
    let writes = entries * FULL / 10;
    let burst = |least, how| Burst::Write { jobs: 1, how, warm: 0, least, time: Duration::ZERO };
    // From here on its syncs are absorbed.
    logged.burst(&burst(4, How::Fsync(1)))?;
    logged.undrained(&burst(writes, How::Never))?;
    logged.crash()?;
    let file = File::open(log).map_err(|e| format!("{}: {e}", log.display()))?;
    file.sync_all().map_err(|e| e.to_string())?;
    // Where it is in memory it stays there.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    drop(file);
    let begin = Instant::now();
    let mut command = process::tool(&program.to_string_lossy());
    let said = command.args(["cache", "recover", "--json"]).arg(log).output().map_err(|e| e.to_string())?;
    let took = begin.elapsed();
    let text = String::from_utf8_lossy(&said.stdout);
    let outcome = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
    let entries = outcome["files"][0]["entries"].as_u64().unwrap_or_default();
    if outcome["outcome"] != "recovered" || entries < writes {
        let why = String::from_utf8_lossy(&said.stderr);
        return Err(format!("{entries} of {writes} entries were recovered: {} {}", text.trim(), why.trim()));
    }
    Ok(took.as_secs_f64() / ((entries * ENTRY) as f64 / f64::from(1 << 30)))
}
