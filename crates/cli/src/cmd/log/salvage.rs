//! `rem log salvage`.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use remanence_pmem::{JOURNAL_NOTE_LEN, Medium, Region};
use remanence_remotelog::Part;
use remanence_remotelog::Store;
use remanence_remotelog::format::superblock::{FORMAT, JOURNAL_NOTE, file_options, recorded_size};
use remanence_remotelog::walk::Local;
use serde_json::json;

use super::verify::{read_all, wrong};
use crate::fail::{Context as _, Fail};
use crate::ui::{self, Mood};
use crate::whole::Whole;

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem log salvage broken.log -o rescued.log       and then: rem log verify rescued.log, rem log serve rescued.log

The file is not changed, and needs to be readable only. What can be read of its journal is applied to the copy, which has no journal of
its own: say `--journal SIZE` when it is served. It fails if something of the journal is damaged or gone, as that had what was
acknowledged last, and if a record is damaged; the copy has the rest.")]
pub(super) struct Args {
    /// The file, which nobody serves
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where to put the copy; nothing may be there
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let (path, output) = (args.file.display(), args.output.display());
    let bad = |e: &dyn std::fmt::Display| Fail::new(format!("{path}: {e}"));
    if args.output.symlink_metadata().is_ok() {
        return Err(Fail::new(format!("{output} is there; name a file that is not")));
    }
    let (region, damage) = file_options().salvage(&args.file).map_err(|e| bad(&e))?;
    let len = recorded_size(&FORMAT.read(&region)).filter(|len| *len <= region.len()).unwrap_or(region.len());
    let mut log = Store::open(Part::new(region.clone(), len)).map_err(|e| bad(&e))?;
    let status = log.status().map_err(|e| bad(&e))?;
    if damage.is_some() && status.state.members > 1 {
        // It has a say in what was acknowledged, and may lack some of that.
        return Err(bad(
            &"the log is on several servers: take this file away, and the others fill a new one",
        ));
    }
    copy(&region, &args.output).context(|| format!("{output} cannot be made"))?;
    let records = status.tail.sequence - status.state.head.sequence;
    let rescued = format!("{} in {output}", ui::count(records as usize, "record"));
    if damage.is_some() {
        return Err(bad(&format!(
            "its journal is damaged or gone, and what was acknowledged last may be missing or older; the copy has the rest: {rescued}"
        )));
    }
    let Ok(read) = read_all(&status, &mut Local(log.medium()));
    if let Some(wrong) = wrong(&status, &read) {
        return Err(bad(&format!("{wrong}; the copy is as the file in that: {rescued}")));
    }
    if args.json {
        ui::print_json(&json!({ "records": records, "next": status.tail.sequence }))?;
    } else {
        ui::line(Mood::Good, "salvaged", rescued);
    }
    Ok(())
}

/// All of a region in a file, which then says nothing of a journal, as it has none.
fn copy(region: &Region, to: &Path) -> std::io::Result<()> {
    let whole = Whole::at(to, 0o600)?;
    let mut bytes = vec![0; PIECE as usize];
    for at in (0..region.len()).step_by(PIECE as usize) {
        let piece = &mut bytes[..PIECE.min(region.len() - at) as usize];
        Medium::read(region, at, piece);
        if at == 0 {
            piece[JOURNAL_NOTE as usize..][..JOURNAL_NOTE_LEN].fill(0);
        }
        whole.file().write_all_at(piece, at)?;
    }
    whole.end()
}
