//! Porcupine, a linearizability checker that others wrote, as a second opinion: `tests/porcupine` judges our histories.
//!
//! It takes a Go toolchain (1.19 or later; `make test` installs one) and one Go module, which the Go module proxy has. Where
//! either cannot be had, tests say so and are skipped, unless `REMANENCE_PORCUPINE=required` is set.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use remanence_sim::history::History;

/// A history under its names.
pub(crate) struct Named {
    pub(crate) run: String,
    pub(crate) key: Vec<u8>,
    pub(crate) history: History,
}

pub(crate) struct Porcupine {
    program: PathBuf,
}

fn skipped(why: &str) -> Option<Porcupine> {
    let required = std::env::var("REMANENCE_PORCUPINE").is_ok_and(|value| value == "required");
    assert!(!required, "no second opinion: {why}");
    println!("skipped: {why}");
    None
}

impl Porcupine {
    /// Builds it, in a directory of this test's own.
    pub(crate) fn build(dir: &Path) -> Option<Self> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/porcupine");
        let go = |arguments: &[&str]| {
            let mut command = Command::new("go");
            command.args(arguments).current_dir(source).env("GOTOOLCHAIN", "local").stdin(Stdio::null());
            command.output()
        };
        match go(&["mod", "download"]) {
            Err(error) => {
                return skipped(&format!("no go toolchain ({error}); make test installs golang-go"));
            }
            Ok(output) if !output.status.success() => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                let what = "the Go module of tests/porcupine/go.mod cannot be had from the Go module proxy";
                return skipped(&format!("{what}: {}", said.trim()));
            }
            Ok(_) => {}
        }
        let program = dir.join("judge");
        let output =
            go(&["build", "-o", program.to_str().expect("a path of ours"), "."]).expect("go was there");
        assert!(output.status.success(), "go build: {}", String::from_utf8_lossy(&output.stderr));
        Some(Self { program })
    }

    /// Its verdict about each history.
    fn verdicts(&self, histories: &[Named]) -> BTreeMap<(String, String), (usize, bool)> {
        let lines: String = histories.iter().map(|h| h.history.json_lines(&h.run, &h.key)).collect();
        let asked = self.program.with_extension("jsonl");
        std::fs::write(&asked, lines).expect("a file of ours");
        let asked = std::fs::File::open(asked).expect("it was just written");
        let output = Command::new(&self.program).stdin(asked).output().expect("it was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the judge says {}: {said}", output.status);
        let text = String::from_utf8(output.stdout).expect("its verdicts are text");
        let verdict = |line: &str| {
            let [run, key, count, verdict] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line:?} is no verdict")
            };
            let holds = match verdict {
                "Ok" => true,
                "Illegal" => false,
                other => panic!("{run} {key}: {other}"),
            };
            ((run.to_owned(), key.to_owned()), (count.parse().expect("a number"), holds))
        };
        text.lines().map(verdict).collect()
    }

    /// Asks both checkers, which must agree about every one. Returns how many histories could have been, and how many not.
    pub(crate) fn agrees(&self, histories: &[Named]) -> (usize, usize) {
        let verdicts = self.verdicts(histories);
        assert_eq!(verdicts.len(), histories.len(), "one verdict each; their names differ");
        let mut counts = (0, 0);
        for Named { run, key, history } in histories {
            let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            let (count, theirs) = verdicts[&(run.clone(), name)];
            assert_eq!(count, history.events.len(), "{run}: it has seen all of it");
            let ours = history.is_linearizable();
            let lines = history.json_lines(run, key);
            assert_eq!(ours, theirs, "the checkers disagree (ours, Porcupine):\n{lines}");
            if ours { counts.0 += 1 } else { counts.1 += 1 }
        }
        counts
    }
}
