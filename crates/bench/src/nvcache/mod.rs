//! `rem bench nvcache`: the write cache under programs that know nothing of it, in the mode *through*, beside the file system with and without syncs.
//!
//! Figures 3.9 to 3.13 and table 3.2 of paper 000 (NVCache), as far as this mode can draw them, and what is asked of it. What is measured is a program of
//! ours (`ends.rs`), fio and sqlite3, each as `rem run` starts it, and the same program without it; a log in memory, which stands for persistent
//! memory, and one in a file on the disk that is measured. A burst counts only if its syncs were absorbed, which the daemon says; behind each burst all is
//! brought into its files, so that nobody pays for who was measured before. Programs and daemons may run on all cores, as their users
//! start them.
//!
//! | file | what it is |
//! |---|---|
//! | `mod.rs` | what is measured, and what is asked of it |
//! | `ends.rs` | the daemon, and our own program: roles |
//! | `logged.rs` | a program and its log |
//! | `sqlite.rs`, `fio.rs` | programs of others |
//! | `recovery.rs` | what a recovery takes |
//! | `figure.rs` | the figure, and what it has over time |
//! | `claims.rs` | what the paper says |

mod claims;
pub(crate) mod ends;
pub(crate) mod figure;
mod fio;
mod logged;
mod recovery;
mod sqlite;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use self::figure::draw;

use remanence_cache::cleaner;

use self::ends::{BLOCK, Burst, Call, Found, How, LogSpec, WriterSpec};
use self::logged::{Done, Logged, Syncs};
use self::sqlite::{Journal, Work};
use crate::effort::{self, Effort};
use crate::machine::{self, State};
use crate::process;
use crate::programs::Spec;
use crate::redis::{file_system, installed};
use crate::report::{Bar, Report, Sense};
use crate::role::{Causes, Lost, Ran};
use crate::samples::{Key, Measured, Metric, Samples};
use crate::stats::LEAST;

/// Threads that write, each a file of its own: the second number has no bars of reads, recovery and the like.
const JOBS: [usize; 2] = [1, 8];
/// Writes of each thread before it counts: the first syncs of a file are the kernel's.
const WARM: u64 = 16;
/// Of batches that are measured where a log is full, each has so many at least.
const BATCHES: u64 = 3;
/// A log that is full has room for so many batches, as one has that nobody said anything of; and so many entries at least.
const ROOM: u64 = 4;
const ENTRIES: u64 = 1000;
/// Sizes of the log in thousandths of what is written (figure 3.10: 8, 32 and 64 GiB of 20).
const SHARES: [u64; 3] = [400, 1600, 3200];
/// The one that has room for all of it (figure 3.12).
const ROOMY: u64 = SHARES[1];

/// What is asked.
const MEMORY_WRITE: f64 = 0.8;
const FILE_WRITE: [f64; 2] = [1.0, 2.0];
const MEMORY_SQLITE: f64 = 0.6;
const FILE_SQLITE: f64 = 1.5;
const COPIED_SQLITE: f64 = 2.0;
const FULL: f64 = 0.8;
const READ: f64 = 1.15;
/// Microseconds that a call which is none of ours may take more.
const CALL_US: f64 = 0.030;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench.
    pub common: effort::Options,
    /// Where files are, and the log that is in a file: a directory, which is used and left empty.
    pub directory: PathBuf,
}

/// Where a log is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum On {
    Memory,
    File,
    /// In memory, with copies on servers.
    Servers,
}

impl On {
    /// Those of this machine alone.
    const OWN: [Self; 2] = [Self::Memory, Self::File];

    const fn words(self) -> &'static str {
        match self {
            Self::Memory => "log in memory",
            Self::File => "log in a file",
            Self::Servers => "log on two of three servers",
        }
    }
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Series {
    Through(On),
    /// The file system, with a sync behind each write.
    Synced,
    /// The same by `O_DIRECT` and `O_SYNC`.
    Direct,
    /// The same without any.
    Unsynced,
    Tmpfs,
}

impl Series {
    const ALL: [Self; 7] = [
        Self::Through(On::Memory),
        Self::Through(On::File),
        Self::Through(On::Servers),
        Self::Synced,
        Self::Direct,
        Self::Unsynced,
        Self::Tmpfs,
    ];
    /// Those that a program can be that syncs as it likes.
    const PROGRAMS: [Self; 5] = [
        Self::Through(On::Memory),
        Self::Through(On::File),
        Self::Through(On::Servers),
        Self::Synced,
        Self::Tmpfs,
    ];
    /// Those that fio has a second opinion of.
    const FIO: [Self; 4] = [Self::Through(On::Memory), Self::Through(On::File), Self::Synced, Self::Unsynced];

    /// Its name, on this file system.
    fn name(self, fs: &str) -> String {
        match self {
            Self::Through(on) => format!("through, {}", on.words()),
            Self::Synced => format!("{fs}, fsync"),
            Self::Direct => format!("{fs}, O_DIRECT|O_SYNC"),
            Self::Unsynced => format!("{fs}, no sync"),
            Self::Tmpfs => "tmpfs".to_owned(),
        }
    }

    const fn how(self) -> How {
        match self {
            Self::Through(_) | Self::Synced | Self::Tmpfs => How::Fsync(1),
            Self::Direct => How::Direct,
            Self::Unsynced => How::Never,
        }
    }
}

/// Who writes all of a file once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Whole {
    /// Through a log in memory, of so many thousandths of what is written.
    Log(u64),
    Plain(Series),
}

impl Whole {
    const ALL: [Self; 6] = [
        Self::Log(SHARES[0]),
        Self::Log(SHARES[1]),
        Self::Log(SHARES[2]),
        Self::Plain(Series::Synced),
        Self::Plain(Series::Direct),
        Self::Plain(Series::Tmpfs),
    ];

    fn name(self, fs: &str) -> String {
        match self {
            Self::Log(share) => format!("through, log of {:.1} x the data", share as f64 / 1e3),
            Self::Plain(series) => series.name(fs),
        }
    }
}

/// What one burst is of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cell {
    Write(Series, usize),
    Fio(Series, usize),
    /// A log that is full, with batches of so many entries; or an fsync behind as many writes.
    Full {
        through: bool,
        batch: u64,
    },
    Read {
        through: bool,
    },
    Call {
        call: Call,
        through: bool,
    },
    /// SQLite; `None`: with a database in its memory.
    Sqlite(Work, Option<Series>),
    Whole(Whole),
    Recovery(On),
}

/// Operations, by their names in a report.
const WRITE: &str = "synchronous write";
const FULL_WRITE: &str = "write, the log full";
const READS: &str = "read";
const WHOLE: &str = "random write of all the data";
const OVER_TIME: &str = "random write of all the data, over time";
const RECOVERY: &str = "recovery";

fn op_of(work: Work) -> String {
    match work {
        Work::Insert(journal) => format!("SQLite, a row each transaction, {}", journal.word()),
        Work::Select(_) => "SQLite, reading rows".to_owned(),
    }
}

fn with(through: bool) -> &'static str {
    if through { "through" } else { "without" }
}

impl Cell {
    fn op(self) -> String {
        match self {
            Self::Write(..) | Self::Fio(..) => WRITE.to_owned(),
            Self::Full { .. } => FULL_WRITE.to_owned(),
            Self::Read { .. } => READS.to_owned(),
            Self::Call { call, .. } => call.name().to_owned(),
            Self::Sqlite(work, _) => op_of(work),
            Self::Whole(_) => WHOLE.to_owned(),
            Self::Recovery(_) => RECOVERY.to_owned(),
        }
    }

    fn series(self, fs: &str) -> String {
        match self {
            Self::Write(series, _) | Self::Sqlite(_, Some(series)) => series.name(fs),
            Self::Fio(series, _) => format!("fio, {}", series.name(fs)),
            Self::Full { through: true, .. } => Series::Through(On::Memory).name(fs),
            Self::Full { through: false, .. } => format!("{fs}, an fsync a batch"),
            Self::Read { through } | Self::Call { through, .. } => with(through).to_owned(),
            Self::Sqlite(_, None) => "in its memory".to_owned(),
            Self::Whole(whole) => whole.name(fs),
            Self::Recovery(on) => on.words().to_owned(),
        }
    }

    /// Where on the x axis.
    fn x(self, scale: &Scale) -> u64 {
        match self {
            Self::Write(_, jobs) | Self::Fio(_, jobs) => jobs as u64,
            Self::Full { batch, .. } => batch,
            Self::Read { .. } => BLOCK,
            Self::Call { .. } | Self::Sqlite(..) => 1,
            Self::Whole(_) => scale.whole,
            Self::Recovery(_) => scale.recovered * BLOCK,
        }
    }

    const fn metrics(self) -> &'static [Metric] {
        match self {
            Self::Write(..) | Self::Sqlite(..) => &[Metric::Latency, Metric::Rate],
            Self::Fio(..) | Self::Full { .. } => &[Metric::Rate],
            Self::Read { .. } | Self::Call { .. } => &[Metric::Latency],
            Self::Whole(_) => &[Metric::Throughput],
            Self::Recovery(_) => &[Metric::Recovery],
        }
    }

    fn key(self, fs: &str, scale: &Scale, metric: Metric) -> Key {
        Key { op: self.op(), x: self.x(scale), series: self.series(fs), metric }
    }

    fn keys(self, fs: &str, scale: &Scale) -> Vec<Key> {
        self.metrics().iter().map(|metric| self.key(fs, scale, *metric)).collect()
    }

    /// What takes seconds waits for a disk, and knows no states of the cores.
    const fn is_long(self) -> bool {
        matches!(self, Self::Whole(_) | Self::Recovery(_))
    }

    /// What no bar stands on has no more bursts than a figure takes.
    fn is_beside(self, scale: &Scale) -> bool {
        match self {
            Self::Write(series, _) => matches!(series, Series::Direct | Series::Tmpfs),
            Self::Full { batch, .. } => batch != scale.usual_batch(),
            Self::Sqlite(work, series) => matches!((work, series), (Work::Select(_), _) | (_, None)),
            Self::Fio(..) | Self::Whole(_) | Self::Recovery(_) => true,
            Self::Read { .. } | Self::Call { .. } => false,
        }
    }

    /// Which program it takes that is not installed, and where that is to be had.
    fn missing(self) -> Option<(&'static str, String)> {
        let program = match self {
            Self::Fio(..) => "fio",
            Self::Sqlite(..) => "sqlite3",
            _ => return None,
        };
        installed(program, program).err().map(|why| (program, why))
    }
}

/// How much of everything there is.
#[derive(Clone, Debug)]
struct Scale {
    rounds: u64,
    time: Duration,
    /// Bytes of each file that is written at random.
    file: u64,
    /// Entries of the log in memory, of that in a file, and of that with copies.
    entries: [u64; 3],
    /// Entries of the longest log that is full, and the batches that such logs are cleaned in: the last one is what a daemon has by itself.
    full: u64,
    batches: Vec<u64>,
    full_time: Duration,
    /// Bytes that are written once, for how long at most, and how it is cut.
    whole: u64,
    whole_time: Duration,
    slice: Duration,
    /// Rows that are read.
    rows: u64,
    /// Entries of a log that is recovered.
    recovered: u64,
}

impl Scale {
    fn of(effort: Effort) -> Self {
        let ms = Duration::from_millis;
        let full = effort.pick(200, 4000, 40_000);
        let usual = cleaner::Options::usual(full).batch;
        let batches = [1, 10, 100, 1000, 10_000].into_iter().filter(|batch| *batch < usual).chain([usual]);
        Self {
            rounds: effort.pick(1, 6, 9),
            time: effort.pick(ms(5), ms(100), ms(200)),
            file: effort.pick(256 << 10, 32 << 20, 64 << 20),
            entries: effort.pick([2000, 2000, 2000], [64_000, 32_000, 16_000], [128_000, 32_000, 16_000]),
            full,
            batches: batches.collect(),
            full_time: effort.pick(ms(5), ms(200), ms(500)),
            whole: effort.pick(1 << 20, 128 << 20, 512 << 20),
            whole_time: effort.pick(ms(50), ms(1500), ms(4000)),
            slice: effort.pick(ms(1), ms(5), ms(20)),
            rows: effort.pick(50, 10_000, 20_000),
            recovered: effort.pick(1000, 32_000, 64_000),
        }
    }

    fn usual_batch(&self) -> u64 {
        self.batches.last().copied().unwrap_or(1)
    }

    /// Entries of a log that is full, where batches are of so many. It is brought out by as many syncs as it has room for batches: of one
    /// entry each they would be 40,000 in a log as long as the longest.
    fn full_of(&self, batch: u64) -> u64 {
        (ROOM * batch).max(ENTRIES).min(self.full)
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for jobs in JOBS {
            cells.extend(Series::ALL.map(|series| Cell::Write(series, jobs)));
            cells.extend(Series::FIO.map(|series| Cell::Fio(series, jobs)));
        }
        for through in [true, false] {
            cells.extend(self.batches.iter().map(|batch| Cell::Full { through, batch: *batch }));
            cells.push(Cell::Read { through });
            cells.extend(Call::ALL.map(|call| Cell::Call { call, through }));
        }
        for work in self.works() {
            cells.extend(Series::PROGRAMS.map(|series| Cell::Sqlite(work, Some(series))));
            cells.push(Cell::Sqlite(work, None));
        }
        cells.extend(Whole::ALL.map(Cell::Whole));
        cells.extend(On::OWN.map(Cell::Recovery));
        cells
    }

    fn works(&self) -> [Work; 3] {
        let [wal, delete] = Journal::ALL.map(Work::Insert);
        [wal, delete, Work::Select(self.rows)]
    }

    /// What is measured twice: of each operation what its bars stand on.
    fn controls(&self) -> Vec<Cell> {
        let mut all = vec![
            Cell::Write(Series::Through(On::Memory), 1),
            Cell::Write(Series::Synced, 1),
            Cell::Full { through: true, batch: self.usual_batch() },
            Cell::Read { through: false },
            Cell::Whole(Whole::Log(ROOMY)),
            Cell::Recovery(On::Memory),
        ];
        all.extend(Call::ALL.map(|call| Cell::Call { call, through: false }));
        all.extend(self.works().map(|work| Cell::Sqlite(work, Some(Series::Synced))));
        all
    }
}

/// What ran over time: how fast all of it was, and each slice.
type Run = (f64, Vec<(u64, u64)>);

struct Bench<'a> {
    program: &'a Path,
    directory: &'a Path,
    scale: Scale,
    through: [Logged; 3],
    disk: Logged,
    tmpfs: Logged,
    full: BTreeMap<u64, Logged>,
    runs: BTreeMap<Whole, Vec<Run>>,
    /// Of SQLite under the cache.
    syncs: BTreeMap<String, Vec<Syncs>>,
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: nothing could be measured.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let effort::Options { effort, only, program } = &options.common;
    let fs = &file_system(&options.directory).unwrap_or_else(|| "unknown file system".into())[..];
    let scale = Scale::of(*effort);
    let (mut samples, mut lost) = (Samples::new(*effort, only), Lost::default());
    let cells = scale.cells();
    for cell in scale.controls() {
        cell.keys(fs, &scale).iter().for_each(|key| samples.control(key));
    }
    let mut bench = Bench::new(program, &options.directory, scale.clone());
    let total = scale.rounds * cells.len() as u64;
    let bars = |samples: &Samples| bars(samples, fs, &scale);
    while samples.another(scale.rounds, bars)? {
        for n in samples.order(cells.len()) {
            let cell = cells[n];
            let (keys, name) = (cell.keys(fs, &scale), format!("{}, {}", cell.op(), cell.series(fs)));
            progress(samples.step(), total, &name);
            if !samples.wants_any(&keys) || cell.is_beside(&scale) && samples.blocks() > LEAST as u64 {
                continue;
            }
            if let Some((program, why)) = cell.missing() {
                lost.add(program, why);
                continue;
            }
            let probe = || if cell.is_long() { State::Any } else { effort.probe() };
            let measured = samples.bursts_in(probe, &keys, || bench.measure(cell));
            measured.unwrap_or_else(|why| lost.add(name, why));
        }
    }
    let runs = std::mem::take(&mut bench.runs);
    for (whole, runs) in runs {
        let key = Cell::Whole(whole).key(fs, &scale, Metric::Throughput);
        let rows = figure::over_time(runs, &whole.name(fs), scale.slice);
        rows.iter().for_each(|row| samples.stands_for(&key, &Key::of(row)));
        samples.singles(rows);
    }
    bench.end();
    let params = params(&bench, fs, &samples);
    let claims = |samples: &Samples| claims::claims(samples, fs, &scale);
    let report = Report::new("nvcache", params, &samples, bars, claims, lost.lines())?;
    Ok(Report { preface: claims::table(fs), ..report })
}

fn params(bench: &Bench<'_>, fs: &str, samples: &Samples) -> serde_json::Value {
    let scale = &bench.scale;
    let fio = fio_of(bench.disk.directory(), scale, 1, How::Fsync(1)).words();
    let second = |(series, jobs): (Series, usize)| {
        let of = |cell: Cell| cell.key(fs, scale, Metric::Rate);
        let ratio = samples.ratio(&of(Cell::Fio(series, jobs)), &of(Cell::Write(series, jobs)))?;
        Some((format!("{}, jobs: {jobs}", series.name(fs)), format!("{ratio}")))
    };
    let both = Series::FIO.into_iter().flat_map(|series| JOBS.map(|jobs| (series, jobs)));
    let second: BTreeMap<String, String> = both.filter_map(second).collect();
    let sum = |all: &Vec<Syncs>| {
        let absorbed = all.iter().map(|syncs| syncs.absorbed).sum::<u64>();
        let kernel = all.iter().map(|syncs| syncs.kernel).sum::<u64>();
        serde_json::json!({ "absorbed": absorbed, "by the kernel": kernel })
    };
    let syncs: BTreeMap<&String, serde_json::Value> =
        bench.syncs.iter().map(|(name, all)| (name, sum(all))).collect();
    serde_json::json!({
        "syncs of SQLite's files": syncs,
        "file system": fs, "rounds": samples.blocks(), "burst_ms": scale.time.as_millis() as u64,
        "bytes of a file": scale.file, "entries of the log in memory": scale.entries[0], "entries of the log in a file": scale.entries[1],
        "entries of the log with copies": scale.entries[2],
        "entries of a log that is full": "four batches, and 1000 at least", "bytes written over time": scale.whole,
        "entries that are recovered": scale.recovered, "rows that SQLite reads": scale.rows,
        "cores": machine::allowed(), "systems": claims::SYSTEMS,
        "fio beside our own loop, writes a second": second,
        "x": {
            WRITE: "threads, a file each", FULL_WRITE: "entries of a batch", OVER_TIME: "ms",
        },
        "load": "closed: each thread writes 4 KiB to a random place of a file of its own that was written before, syncs it, and goes on",
        "log on two of three servers": "in memory, with copies on three of `rem log serve` on this machine, in memory too, by UDP over loopback: all share its cores",
        "log in memory": "a file in /dev/shm, which stands for persistent memory: it survives the death of any process, and no loss of power",
        "cpu": "of the client: the program; of the server: the daemon of the log",
        "a call more": "with the library, over without it and 30 ns: at most 1",
        "settings": {
            "through": "rem run --log LOG -- PROGRAM",
            "fio": fio,
            "SQLite": "sqlite3 -batch -bail, statements from a pipe, 16 at a time; synchronous=FULL",
        },
    })
}

/// fio with the same writes.
fn fio_of<'a>(directory: &'a Path, scale: &Scale, jobs: usize, how: How) -> fio::Run<'a> {
    let fsync = if let How::Fsync(each) = how { each } else { 0 };
    // It counts in milliseconds.
    let time = scale.time.max(Duration::from_millis(100));
    fio::Run { directory, jobs, bytes: scale.file, fsync, time }
}

/// Three servers of a log, in memory, with room for a few times so many entries, each at an address of its own. They sleep between two requests, as their users start them.
fn servers(program: &Path, place: &Path, entries: u64) -> Spec {
    let process = std::process::id() % 60_000 + 256;
    let size = (entries * (BLOCK + 64) * 4).max(16 << 20).to_string();
    let one = |n: u8| {
        let at = Ipv4Addr::new(127, (process >> 8) as u8, process as u8, n + 2).to_string();
        let dir = place.join(format!("copy{n}"));
        let (program, file) = (program.display().to_string(), dir.join("log").display().to_string());
        let line = [&program, "log", "serve", &file, "--listen", &at, "--size", &size];
        (line.map(str::to_owned).to_vec(), dir)
    };
    Spec::Ours((0..3).map(one).collect())
}

impl<'a> Bench<'a> {
    fn new(program: &'a Path, directory: &'a Path, scale: Scale) -> Self {
        let files = |directory: PathBuf, files| WriterSpec { directory, files, bytes: scale.file };
        let jobs = JOBS[1];
        let logged = |log, directory| Logged::new(program.to_owned(), log, files(directory, jobs));
        let place = process::memory();
        let log = |at: &Path, entries, batch| {
            Some(LogSpec { log: at.to_owned(), entries, batch, servers: Vec::new() })
        };
        let [memory, file, copied] = scale.entries;
        let through = [
            logged(log(&place.join("memory.log"), memory, None), directory.join("memory")),
            logged(log(&directory.join("file.log"), file, None), directory.join("file")),
            logged(log(&place.join("copied.log"), copied, None), directory.join("copied"))
                .copied(servers(program, place, copied)),
        ];
        let full = |batch: &u64| {
            let own = (*batch != scale.usual_batch()).then_some(*batch);
            let log = log(&place.join(format!("full{batch}.log")), scale.full_of(*batch), own);
            (*batch, Logged::new(program.to_owned(), log, files(directory.join(format!("full{batch}")), 1)))
        };
        let full = scale.batches.iter().map(full).collect();
        let (disk, tmpfs) = (logged(None, directory.join("plain")), logged(None, place.join("plain")));
        let (runs, syncs) = (BTreeMap::new(), BTreeMap::new());
        Self { program, directory, through, disk, tmpfs, full, runs, syncs, scale }
    }

    fn of(&mut self, series: Series) -> &mut Logged {
        match series {
            Series::Through(on) => &mut self.through[on as usize],
            Series::Synced | Series::Direct | Series::Unsynced => &mut self.disk,
            Series::Tmpfs => &mut self.tmpfs,
        }
    }

    fn either(&mut self, through: bool) -> &mut Logged {
        self.of(if through { Series::Through(On::Memory) } else { Series::Synced })
    }

    /// One burst of it, and what it says of each of its keys.
    fn measure(&mut self, cell: Cell) -> Result<Vec<Measured>, String> {
        let scale = self.scale.clone();
        let time = scale.time;
        match cell {
            Cell::Write(series, jobs) => {
                self.lapped(series)?;
                let burst = Burst::Write { jobs, how: series.how(), warm: WARM, least: 1, time };
                Ok(both(self.of(series).burst(&burst)?))
            }
            Cell::Fio(series, jobs) => {
                self.lapped(series)?;
                let logged = self.of(series);
                logged.ready()?;
                let under = logged.under();
                let directory = logged.directory().to_owned();
                let run = fio_of(&directory, &scale, jobs, series.how());
                let done = logged.counted(|_| run.rate(&under))?;
                done.syncs.are_absorbed()?;
                Ok(vec![vec![done.value].into()])
            }
            Cell::Full { through, batch } => {
                let least = BATCHES * batch;
                let time = scale.full_time;
                let warm = if through { scale.full_of(batch) + 2 * batch } else { batch };
                // Of a log, each write is synced, which waits for nothing but room.
                let how = How::Fsync(if through { 1 } else { batch });
                let burst = Burst::Write { jobs: 1, how, warm, least, time };
                let logged = if through { self.full.get_mut(&batch) } else { Some(&mut self.disk) };
                let ran = logged.ok_or("there is no such log")?.burst(&burst)?;
                let operations = ran.values.nanos.len() as u64;
                Ok(vec![(ran.map(|found| vec![found.rate]), operations).into()])
            }
            Cell::Read { through } => Ok(together(self.either(through).burst(&Burst::Read(time))?)),
            Cell::Call { call, through } => {
                Ok(together(self.either(through).burst(&Burst::Call(call, time))?))
            }
            Cell::Sqlite(work, series) => {
                let (found, client, server) = match series {
                    Some(series) => {
                        self.lapped(series)?;
                        let logged = self.of(series);
                        logged.ready()?;
                        let (under, directory) = (logged.under(), logged.directory().to_owned());
                        let run = |_: &mut Logged| sqlite::burst(&under, Some(&directory), work, time);
                        let Done { value: (found, client), server, syncs } = logged.counted(run)?;
                        if let Series::Through(on) = series {
                            self.syncs
                                .entry(format!("{}, {}", op_of(work), on.words()))
                                .or_default()
                                .push(syncs);
                        }
                        (found, client, server)
                    }
                    None => {
                        let (found, client) = sqlite::burst(&[], None, work, time)?;
                        (found, client, Causes::default())
                    }
                };
                let operations = sqlite::operations(&found);
                Ok(latency_and_rate(Ran { values: found, client, server }, operations))
            }
            Cell::Whole(whole) => {
                let burst = |directory: &Path, how| Burst::Whole {
                    file: directory.join("all"),
                    bytes: scale.whole,
                    how,
                    time: scale.whole_time,
                    slice: scale.slice,
                };
                let ran = match whole {
                    Whole::Plain(series) => {
                        let logged = self.of(series);
                        let directory = logged.directory().to_owned();
                        logged.burst(&burst(&directory, series.how()))?
                    }
                    Whole::Log(share) => {
                        let entries = share * (scale.whole / BLOCK) / 1000;
                        let log = process::memory().join(format!("whole{share}.log"));
                        let spec = LogSpec { log, entries, batch: None, servers: Vec::new() };
                        let directory = self.directory.join("plain");
                        let files = WriterSpec { directory: directory.clone(), files: 0, bytes: 0 };
                        let mut logged = Logged::new(self.program.to_owned(), Some(spec), files);
                        let ran = logged.burst(&burst(&directory, How::Fsync(1)));
                        logged.end();
                        ran?
                    }
                };
                let throughput = ran.values.rate * BLOCK as f64 / 1e3;
                let operations = ran.values.slices.iter().map(|(n, _)| n).sum::<u64>();
                self.runs.entry(whole).or_default().push((throughput, ran.values.slices.clone()));
                Ok(vec![(ran.map(|_| vec![throughput]), operations).into()])
            }
            Cell::Recovery(on) => {
                let place = if on == On::Memory { process::memory() } else { self.directory };
                let directory = self.directory.join("recovered");
                let files = WriterSpec { directory, files: 1, bytes: scale.file };
                let found =
                    recovery::recover(self.program, &place.join("recovered.log"), scale.recovered, &files)?;
                Ok(vec![vec![found].into()])
            }
        }
    }

    /// Has each entry of a log written once, before it counts for the first time: then it is no matter of blocks and pages that are new.
    fn lapped(&mut self, series: Series) -> Result<(), String> {
        let Series::Through(on) = series else { return Ok(()) };
        let least = self.scale.entries[on as usize];
        let logged = &mut self.through[on as usize];
        if logged.is_new() {
            logged.burst(&Burst::Write {
                jobs: 1,
                how: How::Fsync(1),
                warm: 0,
                least: WARM,
                time: Duration::ZERO,
            })?;
            logged.burst(&Burst::Write { jobs: 1, how: How::Never, warm: 0, least, time: Duration::ZERO })?;
        }
        Ok(())
    }

    fn end(&mut self) {
        let all = self.through.iter_mut().chain([&mut self.disk, &mut self.tmpfs]);
        all.chain(self.full.values_mut()).for_each(Logged::end);
    }
}

fn latency_and_rate(ran: Ran<Found>, operations: u64) -> Vec<Measured> {
    let rate = Ran { values: vec![ran.values.rate], client: ran.client, server: ran.server };
    vec![(ran.map(|found| found.micros()), operations).into(), (rate, operations).into()]
}

/// Each value is an operation.
fn both(ran: Ran<Found>) -> Vec<Measured> {
    let operations = ran.values.nanos.len() as u64;
    latency_and_rate(ran, operations)
}

/// Each value is that of several operations together.
fn together(ran: Ran<Found>) -> Vec<Measured> {
    let operations = ran.values.nanos.len() as u64 * u64::from(ends::TOGETHER);
    vec![(ran.map(|found| found.micros()), operations).into()]
}

fn bars(samples: &Samples, fs: &str, scale: &Scale) -> Vec<Bar> {
    let ratio = |over: Cell, under: Cell, metric: Metric| {
        samples.ratio(&over.key(fs, scale, metric), &under.key(fs, scale, metric))
    };
    let rate = |over, under| ratio(over, under, Metric::Rate);
    let mut bars = Vec::new();
    let mut bar = |name: String, found, sense, limit| bars.push(Bar::new(name, found, sense, limit));
    let [memory, file] = On::OWN.map(Series::Through);
    for jobs in JOBS {
        let threads = if jobs == 1 { "one thread".to_owned() } else { format!("{jobs} threads") };
        let found = rate(Cell::Write(memory, jobs), Cell::Write(Series::Unsynced, jobs));
        let name = format!("{WRITE}, {threads}: {} / {}", memory.name(fs), Series::Unsynced.name(fs));
        bar(name, found, Sense::AtLeast, MEMORY_WRITE);
    }
    for (jobs, limit) in JOBS.into_iter().zip(FILE_WRITE) {
        let threads = if jobs == 1 { "one thread".to_owned() } else { format!("{jobs} threads") };
        let found = rate(Cell::Write(file, jobs), Cell::Write(Series::Synced, jobs));
        let name = format!("{WRITE}, {threads}: {} / {}", file.name(fs), Series::Synced.name(fs));
        bar(name, found, Sense::AtLeast, limit);
    }
    let sqlite = |journal, over: Series, under: Series| {
        let [over_cell, under_cell] =
            [over, under].map(|series| Cell::Sqlite(Work::Insert(journal), Some(series)));
        let name = format!("{}: {} / {}", over_cell.op(), over.name(fs), under.name(fs));
        (name, rate(over_cell, under_cell))
    };
    for journal in Journal::ALL {
        let (name, found) = sqlite(journal, memory, Series::Tmpfs);
        bar(name, found, Sense::AtLeast, MEMORY_SQLITE);
    }
    let (name, found) = sqlite(Journal::Wal, file, Series::Synced);
    bar(name, found, Sense::AtLeast, FILE_SQLITE);
    for journal in Journal::ALL {
        let (name, found) = sqlite(journal, Series::Through(On::Servers), Series::Synced);
        bar(name, found, Sense::AtLeast, COPIED_SQLITE);
    }
    let full = |through| Cell::Full { through, batch: scale.usual_batch() };
    let name = format!("{FULL_WRITE}: {} / {}", full(true).series(fs), full(false).series(fs));
    bar(name, rate(full(true), full(false)), Sense::AtLeast, FULL);
    let read = ratio(Cell::Read { through: true }, Cell::Read { through: false }, Metric::Latency);
    bar("read of what is in the page cache: through / without".into(), read, Sense::AtMost, READ);
    for call in Call::ALL {
        let [through, without] =
            [true, false].map(|through| Cell::Call { call, through }.key(fs, scale, Metric::Latency));
        let found =
            samples.combined([&through, &without], |[through, without]| through / (without + CALL_US));
        let name = format!("{}, none of the cache's: through / (without + 30 ns)", call.name());
        bar(name, found, Sense::AtMost, 1.0);
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    const FS: &str = "ext4";

    /// All of what is measured in each block.
    fn filled(value: impl Fn(Cell, Metric) -> f64) -> (Samples, Scale) {
        let (mut samples, scale) = (Samples::default(), Scale::of(Effort::Quick));
        for block in 0..6 {
            samples.block(block);
            for cell in scale.cells().into_iter().filter(|cell| !cell.is_beside(&scale)) {
                for metric in cell.metrics() {
                    let key = cell.key(FS, &scale, *metric);
                    samples.add(&key, State::Any, State::Any, [value(cell, *metric)]);
                }
            }
        }
        (samples, scale)
    }

    #[test]
    fn every_bar_is_made_of_what_is_measured() {
        let (samples, scale) = filled(|_, _| 1.0);
        let all = bars(&samples, FS, &scale);
        assert!(all.iter().all(|bar| bar.value.is_some()), "{all:?}");
        let missed: Vec<&str> = all.iter().filter(|bar| !bar.holds).map(|bar| &bar.name[..]).collect();
        assert_eq!(missed.len(), 4, "what is equally fast is not 1.5 and 2 times as fast: {missed:?}");
        assert!(bars(&Samples::default(), FS, &scale).iter().all(|bar| bar.value.is_none()));
    }

    #[test]
    fn a_call_may_take_thirty_nanoseconds_more_however_long_it_takes() {
        let with = |more: f64| {
            let (samples, scale) = filled(|cell, _| match cell {
                Cell::Call { call, through } => {
                    0.1 * (call as u8 + 1) as f64 + if through { more } else { 0.0 }
                }
                _ => 1.0,
            });
            let all = bars(&samples, FS, &scale);
            all.iter().filter(|bar| bar.name.contains("30 ns") && bar.holds).count()
        };
        assert_eq!((with(0.029), with(0.031)), (3, 0));
    }

    #[test]
    fn no_two_cells_are_one_point() {
        let scale = Scale::of(Effort::Full);
        let mut all: Vec<Key> = scale.cells().into_iter().flat_map(|cell| cell.keys(FS, &scale)).collect();
        let n = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), n);
        for control in scale.controls() {
            assert!(control.keys(FS, &scale).iter().all(|key| all.contains(key)), "{control:?}");
        }
    }
}
