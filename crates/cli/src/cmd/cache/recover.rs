//! `rem cache recover`.

use std::fs::File;
use std::path::PathBuf;

use remanence_cache::format::{self, Held};
use remanence_cache::recovery::{self, Outcome, Policy, Scan};
use remanence_cache_live::daemon::retire;
use remanence_cache_live::recover::real::lost;
use remanence_cache_live::recover::{FileReport, Name, NameState, Options, Report, State, recover_here};
use serde_json::{Value, json};

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

A log that was closed has nothing to recover, and a log that a daemon has open is refused. What cannot be carried out stays in the log, and
the command fails and says why. Files that somebody else has changed since are not undone: what the log has for them is put beside
them, as NAME.rem-recovered.")]
pub(super) struct Args {
    /// The log
    #[arg(value_name = "LOG")]
    log: PathBuf,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Give damaged entries up, and carry out what is behind them
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
    let bad = bad(&args.log);
    let options = Options {
        policy: if args.skip_damage { Policy::Skip } else { Policy::Hold },
        dry: args.dry_run,
        set_aside: args.set_aside.clone(),
    };
    let (scan, report) = if args.dry_run {
        let (region, scan) = view(&args.log)?;
        let report = recover_here(&args.log, &region, scan.clone(), &options).map_err(|e| bad(&e))?;
        (scan, report)
    } else {
        refuse_empty(&args.log)?;
        let region = format::file_options().open(&args.log).map_err(|e| bad(&e))?;
        // Programs that a killed daemon has left append nothing to it any more.
        File::open(&args.log).map_err(|e| bad(&e)).and_then(|log| retire(&log).map_err(|e| bad(&e)))?;
        let scan = recovery::scan(&region, lost(&args.log)).map_err(|e| bad(&e))?;
        let report = recover_here(&args.log, &region, scan.clone(), &options).map_err(|e| bad(&e))?;
        (scan, report)
    };
    let verdict = verdict(&report);
    if args.json {
        ui::print_json(&as_json(args, &scan, &report))?;
    } else {
        tell(args, &scan, &report, verdict.is_none());
    }
    verdict.map_or(Ok(()), |why| Err(bad(&why)))
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

fn as_json(args: &Args, scan: &Scan, report: &Report) -> Value {
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
    let mut all = log_json(&args.log, scan);
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

fn file_json(file: &FileReport) -> Value {
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
