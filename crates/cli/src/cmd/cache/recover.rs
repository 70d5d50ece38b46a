//! `rem cache recover`.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use remanence_cache::copy::Rebuilt;
use remanence_cache::format::{self, Held, Layout, Lost};
use remanence_cache::images::{Builder, State as ImageState, is_image};
use remanence_cache::recovery::{self, Outcome, Policy, Scan};
use remanence_cache_live::build::{Made, Nowhere, Staging, said};
use remanence_cache_live::copies::{Copies, Taken, look_with};
use remanence_cache_live::daemon::retire;
use remanence_cache_live::recover::real::{RealFiles, lost};
use remanence_cache_live::recover::{
    FileReport, Name, NameState, Options, Report, State, recover, recover_here,
};
use remanence_pmem::Region;
use serde_json::{Value, json};

use super::daemon::{Reach, copies_path};
use super::look::{bad, log_json, refuse_empty, view};
use crate::fail::Fail;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem cache recover --dry-run app.log      file by file what would be done; nothing is changed
  rem cache recover app.log                do it; again, if it was cut short
  rem cache recover --set-aside lost app.log
                                           put what is due to files that are not found into files of that directory
  rem cache recover --from a,b,c           recover from the copy that these servers have; the program's daemon, wherever it is, is shut out
  rem cache recover --from a,b,c --into /restored
                                           make the files again of which these servers have images, on a machine that has none of them

A log that was closed has nothing to recover, and a log that a daemon has open is refused. What cannot be carried out stays in the log, and
the command fails and says why. Files that somebody else has changed since are not undone: what the log has for them is put beside
them, as NAME.rem-recovered, and the status is 3, as somebody is to say which to take.")]
pub(super) struct Args {
    /// The log, or the file with pages of the library; with --from the file that it is made again in [default: the one in memory of a daemon with such copies]
    #[arg(value_name = "LOG", required_unless_present = "from")]
    log: Option<PathBuf>,
    /// Take the log from its copy on these servers, whoever had it open until now
    #[arg(long, value_name = "SERVERS")]
    from: Option<PathBuf>,
    /// Make the files again of which these servers have images, by their whole paths below this directory; `/` is where they were
    #[arg(long, value_name = "DIRECTORY", requires = "from", conflicts_with_all = ["log", "set_aside"])]
    into: Option<PathBuf>,
    #[command(flatten)]
    reach: Reach,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Give damaged entries up, and carry out what is behind them; with --into, files of which there is no whole image
    #[arg(long)]
    skip_damage: bool,
    /// Put what is due to files that are not found into files of this directory, and not keep it in the log
    #[arg(long, value_name = "DIRECTORY")]
    set_aside: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    match (&args.from, &args.log) {
        (Some(from), log) => match &args.into {
            Some(into) => build(args, from, into),
            None => from_copies(args, from, log.as_deref()),
        },
        (None, Some(log)) if super::pages::are_in(log) => {
            if !args.dry_run {
                refuse_strangers(log)?;
            }
            super::pages::run(log, &options(args), args.json)
        }
        (None, Some(log)) => recovered(args, log, lost(log), false)?.map_or(Ok(()), Err),
        (None, None) => Err(Fail::new("name the log, or the servers that have its copy with --from")),
    }
}

/// Makes the log again of its copy, and recovers from that.
fn from_copies(args: &Args, from: &Path, log: Option<&Path>) -> Result<(), Fail> {
    let copies = args.reach.copies_on(from)?;
    let log = log.map_or_else(|| copies_path(&copies), |log| Ok(log.to_owned()))?;
    let (bad, of_copies) = (bad(&log), bad(from));
    let mut images = false;
    let mut count = |_: u64, record: &[u8]| {
        images |= is_image(record);
        Ok(())
    };
    if args.dry_run {
        let found = look_with(&copies, &mut count).map_err(|e| of_copies(&e))?;
        if found.is_closed() {
            return tell_closed(args, from, images);
        }
        let made = suffixed(&log, ".look");
        write(&found, &made)?;
        let looked = recovered(args, &made, Lost::Unsynced, true);
        let _ = std::fs::remove_file(&made);
        return looked?.map_or(Ok(()), Err);
    }
    let taken = Taken::take_with(&copies, &mut count).map_err(|e| of_copies(&e))?;
    let found = taken.rebuilt();
    let Some(layout) = found.layout().filter(|_| !found.is_closed()) else {
        return tell_closed(args, from, images);
    };
    let (lost, made) = match format::file_options().view(&log) {
        // This machine still has it, with all that the copy has.
        Ok(region) if Layout::read(&region).is_ok_and(|there| there == *layout) => (lost(&log), false),
        Ok(_) => {
            let text = "there is another log here: name a file that is not there, to make this one in";
            return Err(bad(&text));
        }
        Err(_) => {
            let made = suffixed(&log, ".made");
            write(found, &made)?;
            std::fs::rename(&made, &log).map_err(|e| bad(&e))?;
            (Lost::Unsynced, true)
        }
    };
    let undecided = recovered(args, &log, lost, made)?;
    taken.close(images).map_err(|why| {
        of_copies(&format!("all is in its files, but these servers could not be told ({why}); recover again"))
    })?;
    undecided.map_or(Ok(()), Err)
}

/// Makes files again of their images.
fn build(args: &Args, from: &Path, into: &Path) -> Result<(), Fail> {
    let of_copies = bad(from);
    let copies = Copies { images: true, ..args.reach.copies_on(from)? };
    let mut builder = Builder::default();
    if args.dry_run {
        let mut told = |_: u64, record: &[u8]| builder.add(record, &mut Nowhere).map_err(|e| e.to_string());
        look_with(&copies, &mut told).map_err(|e| of_copies(&e))?;
        let built = builder.finish(&mut Nowhere).map_err(|e| of_copies(&e))?;
        return tell_built(args, &built.iter().map(said).collect::<Vec<_>>()).map(drop);
    }
    let mut staging = Staging::new(into).map_err(|e| of_copies(&e))?;
    let mut told = |_: u64, record: &[u8]| builder.add(record, &mut staging).map_err(|e| e.to_string());
    let taken = Taken::take_with(&copies, &mut told).map_err(|e| of_copies(&e))?;
    let built = builder.finish(&mut staging).map_err(|e| of_copies(&e))?;
    let made = staging.place(&built).map_err(|e| of_copies(&e))?;
    let lacking = tell_built(args, &made)?;
    if lacking > 0 && !args.skip_damage {
        return Err(of_copies(&format!(
            "{} could not be made again; the servers keep what they have, and --skip-damage gives that up",
            ui::count(lacking, "file")
        )));
    }
    taken.close(false).map_err(|why| {
        of_copies(&format!(
            "all files are made again, but these servers could not be told ({why}); recover again"
        ))
    })
}

/// Says what became of files, and how many are not whole.
fn tell_built(args: &Args, made: &[Made]) -> Result<usize, Fail> {
    let lacking =
        made.iter().filter(|file| matches!(file.state, ImageState::Building | ImageState::GivenUp)).count();
    if args.json {
        let files: Vec<Value> = made
            .iter()
            .map(|file| {
                json!({
                    "path": file.path,
                    "bytes": file.len,
                    "state": match file.state {
                        ImageState::Whole => "whole",
                        ImageState::Stale => "stale",
                        ImageState::Building => "incomplete",
                        ImageState::GivenUp => "given-up",
                    },
                    "at": file.at.as_ref().map(|at| at.display().to_string()),
                    "kept": file.kept,
                })
            })
            .collect();
        ui::print_json(&json!({ "dry_run": args.dry_run, "lacking": lacking, "files": files }))?;
        return Ok(lacking);
    }
    for file in made {
        let bytes = ui::bytes(file.len);
        let at = file.at.as_ref().map_or(String::new(), |at| format!(" in {}", at.display()));
        let (mood, what) = match file.state {
            ImageState::Whole if file.kept => (Mood::Good, format!("its {bytes} are there already{at}")),
            ImageState::Whole => (Mood::Good, format!("{bytes}{at}")),
            ImageState::Stale => (
                Mood::Note,
                format!(
                    "{bytes}{at}; of what was changed without being logged, the last is missing, or there in part"
                ),
            ),
            ImageState::Building => (Mood::Bad, format!("only a part of its {bytes} was on the servers{at}")),
            ImageState::GivenUp => {
                (Mood::Bad, format!("its {bytes} were not on the servers, which had no room"))
            }
        };
        ui::line(mood, &file.path, what);
    }
    match (args.dry_run, lacking) {
        (true, _) => ui::remark("nothing was changed"),
        (false, 0) => ui::line(Mood::Good, "recovered", ui::count(made.len(), "file")),
        (false, _) => {}
    }
    Ok(lacking)
}

fn tell_closed(args: &Args, from: &Path, images: bool) -> Result<(), Fail> {
    if args.json {
        return ui::print_json(&json!({ "from": from.display().to_string(), "outcome": "clean" }));
    }
    ui::line(Mood::Good, "clean", "the log on these servers was closed, and its files lack nothing");
    if images {
        ui::remark("these servers have images of files: --into makes them again where they are lost");
    }
    Ok(())
}

fn suffixed(log: &Path, suffix: &str) -> PathBuf {
    let mut path = log.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Writes a log to a file, whatever a run that was cut short has left there.
fn write(found: &Rebuilt, path: &Path) -> Result<(), Fail> {
    let bad = bad(path);
    let layout = found.layout().ok_or_else(|| bad(&"the servers have no log"))?;
    match std::fs::remove_file(path) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(bad(&why)),
        _ => {}
    }
    let options = format::file_options().create_new(layout.geometry.size());
    let region = options.open(path).map_err(|e| bad(&e))?;
    found.write(&region).map_err(|e| bad(&e))
}

/// The status where nothing is left in the log, and somebody is to decide which of two files to take.
const UNDECIDED: u8 = 3;

fn options(args: &Args) -> Options {
    Options {
        policy: if args.skip_damage { Policy::Skip } else { Policy::Hold },
        dry: args.dry_run,
        set_aside: args.set_aside.clone(),
    }
}

/// Recovers from a log. Gives what somebody has to decide still, if there is anything, where nothing is left in the log.
fn recovered(args: &Args, log: &Path, lost: Lost, made: bool) -> Result<Option<Fail>, Fail> {
    let bad = bad(log);
    let options = options(args);
    // One that was made again of its copy says nothing of what this kernel's page cache has.
    let carry_out = |region: &Region, scan: Scan| {
        let report = match made {
            true => recover(region, scan, &RealFiles, &options),
            false => recover_here(log, region, scan, &options),
        };
        report.map_err(|e| bad(&e))
    };
    let (scan, report) = if args.dry_run {
        let (region, scan) = view(log, lost)?;
        let report = carry_out(&region, scan.clone())?;
        (scan, report)
    } else {
        refuse_empty(log)?;
        refuse_strangers(log)?;
        let region = format::file_options().open(log).map_err(|e| bad(&e))?;
        // Programs that a killed daemon has left append nothing to it any more.
        File::open(log).map_err(|e| bad(&e)).and_then(|log| retire(&log).map_err(|e| bad(&e)))?;
        let scan = recovery::scan(&region, lost).map_err(|e| bad(&e))?;
        let report = carry_out(&region, scan.clone())?;
        (scan, report)
    };
    let verdict = verdict(&report);
    if args.json {
        ui::print_json(&as_json(args, log, &scan, &report))?;
    } else {
        tell(args, &scan, &report, verdict.is_none());
    }
    match verdict {
        Some(why) => Err(bad(&why)),
        None => Ok(beside(&report).map(|why| bad(&why).with_status(UNDECIDED))),
    }
}

/// Refuses a log of another user: it says to which files of ours it writes what.
fn refuse_strangers(log: &Path) -> Result<(), Fail> {
    match std::fs::metadata(log) {
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => Err(bad(log)(&format!(
            "it belongs to another user (number {}), and would have anything written to files of yours: recover it as that user, or make it your own if you trust it",
            found.uid()
        ))),
        _ => Ok(()),
    }
}

/// What somebody has to decide where what the log has was put beside files.
fn beside(report: &Report) -> Option<String> {
    let beside = |file: &&FileReport| matches!(file.state, State::Foreign { beside: Some(_), .. });
    let mut files = report.files.iter().filter(beside);
    let first = &files.next()?.path;
    let more = match files.count() {
        0 => String::new(),
        more => format!(" and {}", ui::count(more, "more file")),
    };
    Some(format!(
        "somebody else has changed {first}{more}, and what was synced by programs of this log is only beside, as NAME.rem-recovered: compare them, and take one"
    ))
}

/// Why not all is done, if it is not.
fn verdict(report: &Report) -> Option<String> {
    let Some(Outcome::Held(held)) = &report.outcome else { return None };
    let absent = report.files.iter().filter(|file| matches!(file.state, State::Absent { .. })).count();
    let files = match held {
        Held::All => "all files".to_owned(),
        Held::Files(files) => ui::count(files.len(), "file"),
    };
    let way = match (absent, report.damaged.is_empty()) {
        (0, _) => "it lies behind damage, which --skip-damage gives up",
        (_, true) => "they are not found; recover again where they are, or put it elsewhere with --set-aside",
        (_, false) => {
            "it lies behind damage, which --skip-damage gives up, or they are not found, and --set-aside puts it elsewhere"
        }
    };
    Some(format!("the log keeps what is due to {files}: {way}"))
}

fn tell(args: &Args, scan: &Scan, report: &Report, is_done: bool) {
    if scan.is_clean() {
        ui::line(Mood::Good, "clean", "the log was closed, and its files lack nothing");
        return;
    }
    for file in &report.files {
        let (mood, what) = file_said(file, args.dry_run);
        ui::line(mood, &file.path, what);
    }
    for Name { name, state } in &report.names {
        let (mood, what) = match (state, args.dry_run) {
            (NameState::Given, false) => (Mood::Good, "it means again what it did".to_owned()),
            (NameState::Given, true) => (Mood::Good, "it would mean again what it did".to_owned()),
            (NameState::Taken, false) => (Mood::Good, "it is taken away again".to_owned()),
            (NameState::Taken, true) => (Mood::Good, "it would be taken away again".to_owned()),
            (NameState::Left(why), _) => (Mood::Note, format!("it is left as it is: {why}")),
        };
        ui::line(mood, name, what);
    }
    for damage in &report.damaged {
        ui::line(Mood::Bad, "damaged", damage);
    }
    for damage in &scan.unsure {
        ui::line(Mood::Note, "torn off", format!("{damage}; nobody was told that it is durable"));
    }
    if scan.dropped > 0 {
        let dropped = entries(scan.dropped);
        ui::line(
            Mood::Note,
            "dropped",
            format!("{dropped} behind what the crash tore off; nobody was told that they are durable"),
        );
    }
    match (args.dry_run, is_done) {
        (true, _) => ui::remark("nothing was changed"),
        (false, true) => ui::line(Mood::Good, "recovered", "the log is empty, and can be used again"),
        (false, false) => {}
    }
}

fn file_said(file: &FileReport, dry: bool) -> (Mood, String) {
    let due = format!("{} of {}", ui::bytes(file.bytes), entries(file.entries));
    let is = if dry { "would be" } else { "are" };
    match &file.state {
        State::Replayed => (Mood::Good, format!("{due} {is} in it")),
        State::Kept => (Mood::Good, format!("it has all of it; nothing is due of {due}")),
        State::Made => (Mood::Good, format!("it was lost; it is made anew, and {due} {is} in it")),
        State::Gone => (Mood::Good, format!("it was removed afterwards; nothing is due of {due}")),
        State::Absent { why: None } => (Mood::Bad, format!("it is not found, and {due} stay in the log")),
        State::Absent { why: Some(why) } => {
            (Mood::Bad, format!("it is not found, and {due} stay in the log; {why}"))
        }
        State::SetAside { path } => (Mood::Note, format!("it is not found; {due} are in {path}")),
        State::Foreign { kept, replayed, uncut, beside } => {
            let mut said = format!(
                "somebody else has changed it since; {} replayed",
                ui::count(*replayed as usize, "page")
            );
            if !kept.is_empty() {
                said += &format!(", {} kept as they are", ui::count(kept.len(), "page"));
            }
            if *uncut {
                said += ", not cut where the log would have cut it";
            }
            match beside {
                Some(beside) => said += &format!("; what the log has is beside it in {beside}"),
                None if dry && (*uncut || !kept.is_empty()) => {
                    said += "; what the log has would be put beside it"
                }
                None => {}
            }
            let mood = if kept.is_empty() && !uncut { Mood::Good } else { Mood::Note };
            (mood, said)
        }
    }
}

fn entries(n: u64) -> String {
    if n == 1 { "1 entry".into() } else { format!("{n} entries") }
}

fn as_json(args: &Args, log: &Path, scan: &Scan, report: &Report) -> Value {
    let files: Vec<Value> = report.files.iter().map(file_json).collect();
    let names: Vec<Value> = report
        .names
        .iter()
        .map(|Name { name, state }| match state {
            NameState::Given => json!({ "name": name, "state": "given" }),
            NameState::Taken => json!({ "name": name, "state": "taken" }),
            NameState::Left(why) => json!({ "name": name, "state": "left", "why": why }),
        })
        .collect();
    let mut all = log_json(log, scan);
    if let Some(all) = all.as_object_mut() {
        all.insert("dry_run".into(), args.dry_run.into());
        let outcome = match &report.outcome {
            _ if scan.is_clean() => "clean",
            None => "not-begun",
            Some(Outcome::Empty) => "recovered",
            Some(Outcome::Held(_)) => "held",
        };
        all.insert("outcome".into(), outcome.into());
        all.insert("files".into(), files.into());
        all.insert("names".into(), names.into());
    }
    all
}

pub(super) fn file_json(file: &FileReport) -> Value {
    let mut value = json!({
        "file": file.file.0,
        "path": file.path,
        "entries": file.entries,
        "bytes": file.bytes,
    });
    let state = match &file.state {
        State::Replayed => json!({ "state": "replayed" }),
        State::Kept => json!({ "state": "kept" }),
        State::Made => json!({ "state": "made" }),
        State::Gone => json!({ "state": "gone" }),
        State::Absent { why } => json!({ "state": "absent", "why": why }),
        State::SetAside { path } => json!({ "state": "set-aside", "beside": path }),
        State::Foreign { kept, replayed, uncut, beside } => json!({
            "state": "foreign",
            "kept": kept,
            "replayed": replayed,
            "uncut": uncut,
            "beside": beside,
        }),
    };
    if let (Some(value), Some(state)) = (value.as_object_mut(), state.as_object()) {
        value.extend(state.clone());
    }
    value
}
