//! `rem bench nvpages`: pages in persistent memory (NVPages) beside a log with pages in DRAM (NVCache), as libraries, and beside the file system.
//!
//! Figures 4.3 and 4.4 of paper 000: as many accesses to random blocks of a file as it has blocks, from the moment when it is opened; reads, writes, and mixes of
//! both; all places alike, and by Zipf's law; with persistent memory for a tenth of the file, and for five times of it; by one thread, and by several, which the paper's
//! implementations could not. The reference is the paper's, system calls without any sync; and system calls with an fsync behind each write, which promise what the
//! two caches do. Behind each burst all is brought into the file.
//!
//! Memory in `/dev/shm` stands for persistent memory, which is slower than it: how much that matters a [`model`] says.
//!
//! | file | what it is |
//! |---|---|
//! | `mod.rs` | what is measured, and what is asked of it |
//! | `program.rs` | the program: a role |
//! | `model.rs` | what slower memory would add |
//! | `claims.rs` | what the paper says |

mod claims;
mod model;
pub(crate) mod program;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use remanence_cache::pages::format::Geometry;

use self::program::{Mix, Program, ProgramSpec, Way};
use crate::effort::{self, Effort};
use crate::machine;
use crate::nvcache::ends::{BLOCK, Found};
use crate::nvcache::figure::named;
use crate::plot;
use crate::process;
use crate::redis::file_system;
use crate::report::{Bar, Report, Sense};
use crate::role::{Agent, Causes, End, Launcher, Lost, Ran};
use crate::samples::{Key, Measured, Metric, Samples};

/// Threads, all of them in one file.
const JOBS: [usize; 2] = [1, 4];
/// Persistent memory, in thousandths of the file (2 and 100 GiB of 20).
const SHARES: [u64; 2] = [100, 5000];
/// NVCache's pages in DRAM, in thousandths of it (2 GiB).
const DRAM: u64 = 100;
/// What is asked of each cache where all are writes, beside an fsync behind each.
const WRITES: f64 = 2.0;
/// What is asked of NVPages where it has all of the file, beside no sync at all.
const READS: f64 = 0.5;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench.
    pub common: effort::Options,
    /// Where the file is: a directory, which is used and left empty.
    pub directory: PathBuf,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Series {
    /// With persistent memory for so many thousandths of the file.
    Pages(u64),
    Log(u64),
    Unsynced,
    Synced,
}

impl Series {
    const ALL: [Self; 6] = [
        Self::Pages(SHARES[0]),
        Self::Log(SHARES[0]),
        Self::Pages(SHARES[1]),
        Self::Log(SHARES[1]),
        Self::Unsynced,
        Self::Synced,
    ];

    fn name(self, fs: &str) -> String {
        let share = |share: u64| format!("{:.1} x the file", share as f64 / 1e3);
        match self {
            Self::Pages(of) => format!("NVPages, {}", share(of)),
            Self::Log(of) => format!("NVCache, {}", share(of)),
            Self::Unsynced => format!("{fs}, no sync"),
            Self::Synced => format!("{fs}, fsync"),
        }
    }
}

/// What is read and written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Load {
    /// So many of a hundred are reads.
    reads: u32,
    zipf: bool,
}

impl Load {
    /// As in the paper, in its order.
    const ALL: [Self; 8] = [
        Self { reads: 100, zipf: false },
        Self { reads: 90, zipf: false },
        Self { reads: 50, zipf: false },
        Self { reads: 0, zipf: false },
        Self { reads: 100, zipf: true },
        Self { reads: 90, zipf: true },
        Self { reads: 50, zipf: true },
        Self { reads: 0, zipf: true },
    ];

    fn name(self) -> String {
        let kind = match self.reads {
            100 => "randr",
            0 => "randw",
            50 => "randrw",
            _ => "randrw90",
        };
        format!("{kind}{}", if self.zipf { "-zipf" } else { "" })
    }
}

/// What one burst is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell {
    series: Series,
    load: Load,
    jobs: usize,
}

impl Cell {
    const METRICS: [Metric; 2] = [Metric::Rate, Metric::Latency];

    fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for series in Series::ALL {
            for load in Load::ALL {
                // The paper has one thread; several do not need both laws.
                let jobs = if load.zipf { &JOBS[..1] } else { &JOBS[..] };
                cells.extend(jobs.iter().map(|jobs| Self { series, load, jobs: *jobs }));
            }
        }
        cells
    }

    fn key(self, fs: &str, metric: Metric) -> Key {
        Key { op: self.load.name(), x: self.jobs as u64, series: self.series.name(fs), metric }
    }

    fn keys(self, fs: &str) -> Vec<Key> {
        Self::METRICS.iter().map(|metric| self.key(fs, *metric)).collect()
    }
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug)]
struct Scale {
    rounds: u64,
    /// Bytes of the file.
    file: u64,
    /// How long a burst takes at most.
    time: Duration,
}

impl Scale {
    fn of(effort: Effort) -> Self {
        let ms = Duration::from_millis;
        Self {
            rounds: effort.pick(1, 6, 9),
            file: effort.pick(1 << 20, 64 << 20, 512 << 20),
            time: effort.pick(ms(5), ms(150), ms(1000)),
        }
    }

    fn bytes(self, share: u64) -> u64 {
        self.file / 1000 * share / BLOCK * BLOCK
    }

    /// Bytes of a file with so many bytes of pages.
    fn pages(self, share: u64) -> u64 {
        Geometry::usual((self.bytes(share) / BLOCK) as u32).size()
    }
}

/// What is measured twice.
fn controls() -> [Cell; 4] {
    let cell = |series, n: usize| Cell { series, load: Load::ALL[n], jobs: 1 };
    [
        cell(Series::Pages(SHARES[1]), 0),
        cell(Series::Pages(SHARES[0]), 3),
        cell(Series::Log(SHARES[1]), 2),
        cell(Series::Log(SHARES[0]), 1),
    ]
}

struct Bench<'a> {
    program: &'a Path,
    directory: &'a Path,
    scale: Scale,
    agents: BTreeMap<Series, Agent<Program>>,
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
    let cells = Cell::all();
    for cell in controls() {
        cell.keys(fs).iter().for_each(|key| samples.control(key));
    }
    let mut bench = Bench { program, directory: &options.directory, scale, agents: BTreeMap::new() };
    let total = scale.rounds * cells.len() as u64;
    while samples.another(scale.rounds, |samples| bars(samples, fs))? {
        for n in samples.order(cells.len()) {
            let cell = cells[n];
            let (keys, name) = (cell.keys(fs), format!("{}, {}", cell.load.name(), cell.series.name(fs)));
            progress(samples.step(), total, &name);
            if samples.wants_any(&keys) {
                let measured = samples.bursts_in(|| effort.probe(), &keys, || bench.measure(cell));
                measured.unwrap_or_else(|why| lost.add(name, why));
            }
        }
    }
    drop(bench);
    let modelled = model::rows(&samples, fs);
    let params = params(scale, fs, &samples);
    let claims = |samples: &Samples| claims::claims(samples, fs);
    samples.singles(modelled);
    Report::new("nvpages", params, &samples, |samples| bars(samples, fs), claims, lost.lines())
}

fn params(scale: Scale, fs: &str, samples: &Samples) -> serde_json::Value {
    serde_json::json!({
        "file system": fs, "rounds": samples.blocks(), "bytes of the file": scale.file,
        "burst_ms at most": scale.time.as_millis() as u64, "cores": machine::allowed(),
        "persistent memory, thousandths of the file": SHARES,
        "bytes of pages in DRAM (NVCache)": scale.bytes(DRAM),
        "x": "threads, in one file",
        "load": "closed: as many accesses of 4 KiB as the file has blocks, from the moment when it is opened, or as many as the time allows",
        "zipf": "19 of 20 accesses go to a twentieth of the blocks",
        "persistent memory": "a file in /dev/shm stands for it: a write that has returned survives the death of the process, and no loss of power",
        "model": model::WORDS,
        "settings": {
            "NVPages": "Options::pages(FILE)", "NVCache": "Options::new(LOG)",
            "no sync": "pread, pwrite", "fsync": "pread; pwrite and fsync",
        },
    })
}

impl Bench<'_> {
    fn way(&self, series: Series) -> Way {
        let memory = |name: &str, share: u64| process::memory().join(format!("{name}{share}"));
        match series {
            Series::Pages(share) => {
                Way::Pages { pages: memory("pages", share), bytes: self.scale.pages(share) }
            }
            Series::Log(share) => Way::Log {
                log: memory("log", share),
                bytes: self.scale.bytes(share),
                memory: self.scale.bytes(DRAM),
            },
            Series::Unsynced | Series::Synced => Way::Kernel { syncs: series == Series::Synced },
        }
    }

    /// A file of each one's own: a cache is its only opener.
    fn agent(&mut self, series: Series) -> Result<&mut Agent<Program>, String> {
        if !self.agents.contains_key(&series) {
            let way = self.way(series);
            let name = format!("{series:?}").replace(['(', ')'], "");
            let spec = ProgramSpec { file: self.directory.join(name), bytes: self.scale.file, way };
            let mut agent = Agent::start(&Launcher::here(self.program), End::Client)?;
            agent.open(&spec)?;
            self.agents.insert(series, agent);
        }
        self.agents.get_mut(&series).ok_or_else(|| "it was not started".to_owned())
    }

    /// One burst of it, and what it says of each of its keys. What fails ends its program, which is started anew for the next one.
    fn measure(&mut self, cell: Cell) -> Result<Vec<Measured>, String> {
        let Cell { series, load: Load { reads, zipf }, jobs } = cell;
        let Scale { file, time, .. } = self.scale;
        let mix = Mix { reads, zipf, jobs, operations: file / BLOCK, time };
        let done = self.agent(series).and_then(|agent| agent.run(&mix));
        if done.is_err() {
            self.agents.remove(&series);
        }
        let (found, client): (Found, Causes) = done?;
        let operations = found.nanos.len() as u64;
        let rate = Ran { values: vec![found.rate], client, server: Causes::default() };
        let latency = Ran { values: found.micros(), client, server: Causes::default() };
        Ok(vec![(rate, operations).into(), (latency, operations).into()])
    }
}

/// Of two series, at one load and so many threads.
fn ratio(
    samples: &Samples,
    fs: &str,
    [over, under]: [Series; 2],
    (load, jobs): (Load, usize),
) -> Option<crate::stats::Estimate> {
    let key = |series| Cell { series, load, jobs }.key(fs, Metric::Rate);
    samples.ratio(&key(over), &key(under))
}

fn bars(samples: &Samples, fs: &str) -> Vec<Bar> {
    let mut bars = Vec::new();
    let mut bar = |over: Series, under: Series, load: Load, jobs: usize, limit| {
        let threads = if jobs == 1 { "one thread".to_owned() } else { format!("{jobs} threads") };
        let name = format!("{}, {threads}: {} / {}", load.name(), over.name(fs), under.name(fs));
        let found = ratio(samples, fs, [over, under], (load, jobs));
        bars.push(Bar::new(name, found, Sense::AtLeast, limit));
    };
    let [reads, writes] = [Load::ALL[0], Load::ALL[3]];
    for jobs in JOBS {
        for share in SHARES {
            bar(Series::Pages(share), Series::Synced, writes, jobs, WRITES);
        }
    }
    bar(Series::Log(SHARES[1]), Series::Synced, writes, 1, WRITES);
    bar(Series::Pages(SHARES[1]), Series::Unsynced, reads, 1, READS);
    bars
}

/// Draws the figure of a report.
///
/// # Errors
/// One sentence if it cannot be written, or there is nothing to draw.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    let fs = report.params["file system"].as_str().unwrap_or_default();
    let names = Load::ALL.map(Load::name);
    let groups: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], &name[..])).collect();
    let mut panels = Vec::new();
    for (jobs, share) in JOBS.into_iter().flat_map(|jobs| SHARES.map(|share| (jobs, share))) {
        let shown = [Series::Pages(share), Series::Log(share), Series::Unsynced, Series::Synced];
        let shown = shown.map(|series| series.name(fs));
        let modelled = [Series::Pages(share), Series::Log(share)].map(|series| model::name(series, fs));
        let shows = |row: &&crate::report::Row| {
            row.x == jobs as u64 && (shown.contains(&row.series) || modelled.contains(&row.series))
        };
        let rows = report.rows.iter().filter(shows).cloned().collect();
        let part = Report::of_rows("nvpages", report.params.clone(), rows, Vec::new(), Vec::new());
        let number = if share == SHARES[0] { "4.3" } else { "4.4" };
        let threads = if jobs == 1 { "one thread".to_owned() } else { format!("{jobs} threads") };
        let caption = format!("{number}: memory {:.1} x the file, {threads}", share as f64 / 1e3);
        let groups = if jobs == 1 { &groups[..] } else { &groups[..4] };
        panels.push(named(&part, &caption, "rate", "Mop/s", groups));
    }
    plot::draw_panels(report, &panels, 2, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::State;

    const FS: &str = "ext4";

    fn filled(value: impl Fn(Cell) -> f64) -> Samples {
        let mut samples = Samples::default();
        for block in 0..6 {
            samples.block(block);
            for cell in Cell::all() {
                for metric in Cell::METRICS {
                    samples.add(&cell.key(FS, metric), State::Any, State::Any, [value(cell)]);
                }
            }
        }
        samples
    }

    #[test]
    fn every_bar_and_claim_is_made_of_what_is_measured() {
        let samples = filled(|cell| if cell.series == Series::Synced { 1.0 } else { 4.0 });
        let all = bars(&samples, FS);
        assert!(all.iter().all(|bar| bar.holds), "{all:?}");
        assert!(bars(&Samples::default(), FS).iter().all(|bar| bar.value.is_none()));
        let found = claims::claims(&samples, FS);
        assert!(found.iter().all(|claim| claim.verdict != crate::claims::Verdict::Open), "{found:?}");
        let nothing = claims::claims(&Samples::default(), FS);
        assert!(nothing.iter().all(|claim| claim.verdict == crate::claims::Verdict::Open), "{nothing:?}");
    }

    #[test]
    fn no_two_cells_are_one_point() {
        let mut all: Vec<Key> = Cell::all().into_iter().flat_map(|cell| cell.keys(FS)).collect();
        let n = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), n), (n, Series::ALL.len() * 12 * 2));
        for control in controls() {
            assert!(control.keys(FS).iter().all(|key| all.contains(key)), "{control:?}");
        }
    }

    #[test]
    fn slower_memory_costs_pages_more_than_a_log() {
        let samples = filled(|_| 0.5);
        let rows = model::rows(&samples, FS);
        let of = |series: Series, load: Load| {
            let name = model::name(series, FS);
            let row = rows.iter().find(|row| row.op == load.name() && row.series == name && row.x == 1);
            row.expect("it is modelled").p50
        };
        for load in Load::ALL {
            let [pages, log] =
                [Series::Pages(SHARES[1]), Series::Log(SHARES[1])].map(|series| of(series, load));
            assert!(pages < log && log <= 0.5, "{load:?}: {pages} {log}");
        }
    }
}
