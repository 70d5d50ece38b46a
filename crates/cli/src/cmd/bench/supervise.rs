//! Who answers for a bench. `rem bench NAME` starts itself a second time, and that one measures; this one waits, and when the bench has
//! ended, in whatever way, nothing of it is left: its processes, its directories, and what else `remanence_bench::process` names.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use remanence_bench::compare;
use remanence_bench::process::{self, Worker};
use remanence_bench::repeat::Repeated;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use super::Bench;
use crate::fail::{Context as _, Fail};
use crate::{standard, ui, whole};

/// Tells the process that measures, and the roles that it starts, where files in memory go.
const MEMORY: &str = "REM_BENCH_MEMORY";

/// Whether this is the process that measures.
pub(super) fn is_worker() -> bool {
    std::env::var_os(MEMORY).is_some()
}

/// Takes what it was told, as a role does, too.
pub(super) fn be_worker() {
    if let Some(memory) = std::env::var_os(MEMORY) {
        process::keep_memory_in(memory.into());
    }
}

/// The directory of the bench, of the process that measures: its temporary files go there as well.
pub(super) fn place() -> PathBuf {
    std::env::temp_dir()
}

/// Where the process that measures leaves its report for the one that publishes it.
pub(super) fn report() -> PathBuf {
    memory().join("report.json")
}

/// Where it leaves the figure.
pub(super) fn figure() -> PathBuf {
    memory().join("figure.svg")
}

fn memory() -> PathBuf {
    std::env::var_os(MEMORY).map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Runs it, as often as was asked for; the status that this process is to end with, once all has been told.
pub(super) fn run(bench: &Bench) -> Result<u8, Fail> {
    let common = bench.common();
    before(bench)?;
    let mut signals = Signals::new(listened_to()).context(|| "signals cannot be received".into())?;
    let places = Places::new(bench)?;
    let mut repeated = Repeated::default();
    let mut status = 0;
    for n in 1..=common.repeat {
        if common.repeat > 1 {
            eprintln!("rem: repetition {n} of {}", common.repeat);
        }
        status = places.once(&mut signals)?;
        let Some(report) = places.take("report.json")? else {
            // It has said why.
            return Ok(status.max(1));
        };
        repeated.add(report, status == 0).map_err(Fail::new)?;
    }
    let figure = places.take("figure.svg")?;
    // Who prints may find that nobody reads, and end.
    drop(places);
    if let (Some(file), Some(figure)) = (&common.plot, figure) {
        write(file, &figure)?;
    }
    let json = repeated.json();
    match common.json.as_deref() {
        Some(file) if file.as_os_str() == "-" => ui::print(json.trim_end()),
        Some(file) => write(file, &json)?,
        None => {}
    }
    if common.repeat == 1 {
        return Ok(status);
    }
    if common.tells() {
        ui::print(repeated.text().trim_end());
    }
    repeated.whole().map(|()| 0).map_err(Fail::new)
}

fn write(file: &Path, text: &str) -> Result<(), Fail> {
    whole::write(file, text.as_bytes()).context(|| format!("{} cannot be written", file.display()))
}

/// What would be found out after all had been measured.
fn before(bench: &Bench) -> Result<(), Fail> {
    standard::output_is_there()?;
    let common = bench.common();
    let files = common.json.iter().filter(|file| file.as_os_str() != "-").chain(&common.plot);
    for file in files {
        whole::check(file).context(|| format!("{} cannot be written", file.display()))?;
    }
    if let (Some(json), Some(plot)) = (&common.json, &common.plot)
        && same(json, plot)
    {
        let file = json.display();
        return Err(Fail::new(format!(
            "--json and --plot are both {file}: one would take the other's place"
        )));
    }
    if let Some(file) = &common.compare {
        let old = std::fs::read_to_string(file).context(|| format!("{} cannot be read", file.display()))?;
        let checked = compare::check(bench.name(), &old);
        checked.map_err(|why| Fail::new(format!("{}: {why}", file.display())))?;
    }
    Ok(())
}

/// Whether two paths are one place, whether there is a file or not.
fn same(a: &Path, b: &Path) -> bool {
    let place = |file: &Path| {
        let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(directory.join(file.file_name()?))
    };
    a.as_os_str() != "-" && place(a).is_some_and(|there| Some(there) == place(b))
}

/// The directories of a bench.
struct Places {
    memory: TempDir,
    place: TempDir,
}

impl Places {
    fn new(bench: &Bench) -> Result<Self, Fail> {
        let memory = [PathBuf::from("/dev/shm"), std::env::temp_dir()].into_iter().find(|dir| dir.is_dir());
        let memory = directory_in(&memory.unwrap_or_default())?;
        Ok(Self { memory, place: directory_in(&bench.directory())? })
    }

    /// A file that the process that measured has left.
    fn take(&self, name: &str) -> Result<Option<String>, Fail> {
        let file = self.memory.path().join(name);
        if !file.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&file).and_then(|text| std::fs::remove_file(&file).map(|()| text));
        text.map(Some).context(|| format!("{} cannot be read", file.display()))
    }

    /// Measures once; the status that it ended with.
    fn once(&self, signals: &mut Signals) -> Result<u8, Fail> {
        let mut command = Command::new(super::program(None)?);
        command
            .args(std::env::args_os().skip(1))
            .env(MEMORY, self.memory.path())
            .env("TMPDIR", self.place.path());
        let worker = Worker::start(&mut command);
        let mut worker = worker.context(|| "this program cannot be started again".into())?;
        let mut ended = None;
        let mut interrupted = None;
        while ended.is_none() && interrupted.is_none() {
            interrupted = signals.wait().find(|signal| *signal != SIGCHLD);
            ended = worker.ended().context(|| "this program cannot be waited for".into())?;
        }
        // A terminal sends it to both.
        interrupted = interrupted.or_else(|| signals.pending().find(|signal| *signal != SIGCHLD));
        worker.end(&[self.memory.path(), self.place.path()]).map_err(Fail::new)?;
        match (interrupted, ended.map(status)) {
            (Some(signal), _) => {
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                let status = u8::try_from(128 + signal).unwrap_or(1);
                Err(Fail::new(format!("the bench was interrupted by {name}, and nothing is left of it"))
                    .with_status(status))
            }
            (None, Some(Err(signal))) => {
                let status = u8::try_from(128 + signal).unwrap_or(1);
                Err(Fail::new(format!("the process that measured was ended by signal {signal}"))
                    .with_status(status))
            }
            (None, Some(Ok(status))) => Ok(status),
            (None, None) => unreachable!("it ends, or is interrupted"),
        }
    }
}

/// How a process ended: its status, or the signal.
fn status(status: ExitStatus) -> Result<u8, i32> {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(1)),
        (None, signal) => Err(signal.unwrap_or_default()),
    }
}

/// A directory of a bench's own, which goes when the bench has ended.
fn directory_in(directory: &Path) -> Result<TempDir, Fail> {
    let prefix = format!("rem-bench-{}-", std::process::id());
    let made =
        directory.canonicalize().and_then(|at| tempfile::Builder::new().prefix(&prefix).tempdir_in(at));
    made.map_err(|e| Fail::new(format!("{}: {e}", directory.display())))
}

/// What ends a bench, but for what its user has had ignored (as nohup does), and the end of its process.
fn listened_to() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let mut all: Vec<i32> = [SIGINT, SIGTERM, SIGHUP].into();
    all.retain(|signal| ignored >> (signal - 1) & 1 == 0);
    all.push(SIGCHLD);
    all
}
