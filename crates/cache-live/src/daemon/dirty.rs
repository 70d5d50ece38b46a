//! A log that nobody has closed: what it has comes into its files before any program starts, where that needs nobody's decision.

use std::path::Path;

use remanence_cache::recovery;
use remanence_pmem::Region;

use super::DaemonError;
use crate::recover::real::lost;
use crate::recover::{NEWER, NameState, Options, Report, State, reason_to_wait, recover_here};

/// Recovers a log, if it was not closed. Gives a sentence, if there was anything to be done.
///
/// # Errors
/// Somebody has to decide something; or it has failed, and may be begun anew.
pub fn recovered(path: &Path, region: &Region) -> Result<Option<String>, DaemonError> {
    let log = path.display();
    let scan = recovery::scan(region, lost(path)).map_err(|why| DaemonError::Log(path.to_owned(), why))?;
    if scan.is_clean() {
        return Ok(None);
    }
    let recover = |options: &Options| {
        recover_here(path, region, scan.clone(), options).map_err(|why| {
            DaemonError::Said(format!(
                "{log} was not closed, and what it has cannot be brought into its files: {why}"
            ))
        })
    };
    if let Some(why) = undecided(path, &recover(&Options { dry: true, ..Options::default() })?) {
        return Err(DaemonError::Said(format!(
            "{log} was not closed, and is for you to recover: {why}; `rem cache recover --dry-run {log}` says more"
        )));
    }
    let report = recover(&Options::default())?;
    let is_kept = |state: &State| matches!(state, State::Kept | State::Gone);
    Ok(
        match (report.files.len() + report.names.len(), report.files.iter().all(|file| is_kept(&file.state)))
        {
            (0, _) => None,
            (_, true) => Some(format!("{log} was not closed, and its files have all of it")),
            (files, false) => {
                let entries: u64 = report.files.iter().map(|file| file.entries).sum();
                Some(format!(
                    "{log} was not closed, and is recovered: {entries} entries of it are in {files} of its files and names"
                ))
            }
        },
    )
}

/// What somebody has to decide before a log can be recovered, if there is anything.
fn undecided(path: &Path, report: &Report) -> Option<String> {
    let log = path.display();
    let mut why = Vec::new();
    if !report.damaged.is_empty() {
        let count = report.damaged.len();
        why.push(format!(
            "{count} of its entries are damaged (`rem cache recover --skip-damage {log}` gives them up)"
        ));
    }
    why.extend(reason_to_wait(&report.files, path));
    let is_foreign =
        |state: &State| matches!(state, State::Foreign { kept, uncut, .. } if *uncut || !kept.is_empty());
    if let Some(file) = report.files.iter().find(|file| is_foreign(&file.state)) {
        why.push(format!(
            "somebody else has changed {} (`rem cache recover {log}` keeps that, and puts what the log has beside it)",
            file.path
        ));
    }
    if let Some(name) =
        report.names.iter().find(|name| matches!(name.state, NameState::Left(why) if why != NEWER))
    {
        why.push(format!(
            "somebody else has changed what {} is (`rem cache recover {log}` keeps that)",
            name.name
        ));
    }
    (!why.is_empty()).then(|| why.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recover::{FileReport, Name};
    use remanence_cache::table::FileId;

    fn report(state: State) -> Report {
        let file = FileReport { file: FileId(1), path: "/data/f".into(), entries: 3, bytes: 9, state };
        Report { files: vec![file], names: Vec::new(), damaged: Vec::new(), outcome: None }
    }

    #[test]
    fn nobody_has_to_decide_what_only_comes_into_its_files() {
        let foreign = |kept, uncut| State::Foreign { kept, replayed: 4, uncut, beside: None };
        for state in [State::Replayed, State::Kept, State::Made, State::Gone, foreign(vec![], false)] {
            assert_eq!(undecided(Path::new("log"), &report(state)), None);
        }
        for (state, says) in [
            (State::Absent { why: None }, "--set-aside DIRECTORY log"),
            (foreign(vec![0], false), "somebody else has changed /data/f"),
            (foreign(vec![], true), "somebody else has changed /data/f"),
        ] {
            let said = undecided(Path::new("log"), &report(state)).unwrap_or_default();
            assert!(said.contains(says), "{said}");
        }
        let mut left = report(State::Kept);
        left.names.push(Name { name: "/data/n".into(), state: NameState::Left("it is another file") });
        assert!(undecided(Path::new("log"), &left).is_some_and(|said| said.contains("/data/n")));
    }
}
