//! `rem bench erda`: figures 14 to 26 and Table 1 of paper 002, and the stores that a user would pick instead.
//!
//! Erda, Redo Logging and Read After Write run live behind one transport, each server in a process of its own and its clients in
//! another, so that the CPU time of each is known. Their memory is a file in `/dev/shm` that is *declared* to be
//! persistent memory behind an ADR platform with DDIO off: every step of a scheme is carried out, and a power loss would take
//! all of it. The paper adds 150 ns to each write to emulate NVM; here all schemes write back the same cache lines of the same
//! memory, and nothing is added for anybody.
//!
//! Beside peers (`peerside.rs`) nothing is declared: our store is what it is on the medium that Redis has too.

mod baseline;
mod cleaning;
pub(crate) mod client;
pub mod figure;
pub mod load;
mod peerside;
pub(crate) mod server;
mod stores;
mod table1;
pub(crate) mod tcp;
mod verdicts;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use remanence_persist::plan::Costs;
use remanence_remote::CostSource;
use remanence_ycsb::measure::Measurements;
use remanence_ycsb::workload::{Mix, PAPER_002_THREADS, PAPER_002_VALUE_SIZES, Workload};

use serde::{Deserialize, Serialize};

pub use remanence_kv_live::ConnectOptions;
pub use remanence_ycsb as ycsb;

pub use self::server::Carrier;
pub use self::stores::{Native, Target, others};

use self::cleaning::Cleaned;
use self::client::{Asked, Burst, Clients, Found};
use self::load::{Load, Until};
use self::server::{Served, Server, Spec};
use self::verdicts::Seen;
use crate::effort::{self, Effort};
use crate::machine::State;
use crate::process;
use crate::report::Report;
use crate::role::{self, Causes, Launcher, Lost, Pair, Ran};
use crate::samples::{Key, Metric, Samples};
use crate::server_load::ServerLoad;
use crate::stats::LEAST;

/// Bytes of a value where the paper sweeps something else, and says so for its figure 26 only.
const VALUE: usize = 1024;
/// How long a server may go without a sign.
const PATIENCE: Duration = Duration::from_secs(20);
/// A quick run begins nothing new after this.
const QUICK: Duration = Duration::from_secs(480);

/// A quick run goes on for a bar that is undecided no longer than this: the parts that follow need the rest.
const QUICK_MORE: Duration = Duration::from_secs(240);

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Figures 14 to 17 and 22 to 25: latency and CPU cost by value size.
    Latency,
    /// Figures 18 to 21: throughput by threads.
    Threads,
    /// Figure 26: during log cleaning.
    Cleaning,
    /// Table 1: bytes written.
    Bytes,
    /// Redis and memcached.
    Peers,
}

impl Part {
    /// All of them, in the order in which they run.
    pub const ALL: [Self; 5] = [Self::Bytes, Self::Latency, Self::Threads, Self::Cleaning, Self::Peers];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Threads => "threads",
            Self::Cleaning => "cleaning",
            Self::Bytes => "bytes",
            Self::Peers => "peers",
        }
    }

    /// How many blocks it has in any case. Beside peers these are the fewest that can be judged: most of what is measured there is far from any
    /// bar, and what is not gets more.
    fn rounds(self, effort: Effort) -> u64 {
        effort.pick(1, 6, if self == Self::Peers { LEAST as u64 } else { 9 })
    }
}

/// What of each part is measured, by how much of it is.
impl Effort {
    fn burst(self) -> Duration {
        Duration::from_millis(self.pick(4, 10, 50))
    }

    fn sizes(self) -> Vec<usize> {
        self.pick(vec![1024], vec![16, 1024, 4096], PAPER_002_VALUE_SIZES.to_vec())
    }

    fn threads(self) -> Vec<usize> {
        self.pick(vec![1, 4], vec![1, 4, 16], PAPER_002_THREADS.to_vec())
    }

    fn records(self) -> u64 {
        // The last is YCSB's default.
        self.pick(64, 500, 1000)
    }
}

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench; each [`Part`] can be asked for by its name, too.
    pub common: effort::Options,
    /// What carries packets in the paper's figures; beside peers both are measured.
    pub carrier: Carrier,
    /// A directory on a disk, for comparisons of what is synced to one.
    pub dir: PathBuf,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Series {
    /// Erda as in the paper: a GET is two READs, and a PUT a request by WRITE with immediate, the address back, and a WRITE.
    TwoReads,
    /// With the client's location cache: a GET of what it has seen is one READ.
    Erda,
    /// And durable when it acknowledges.
    Durable,
    Redo,
    ReadAfterWrite,
}

impl Series {
    const ALL: [Self; 5] = [Self::TwoReads, Self::Erda, Self::Durable, Self::Redo, Self::ReadAfterWrite];
    /// What Erda is compared with.
    const BASELINES: [Self; 2] = [Self::Redo, Self::ReadAfterWrite];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TwoReads => "Erda, two READs",
            Self::Erda => "Erda",
            Self::Durable => "Erda, durable",
            Self::Redo => "Redo Logging",
            Self::ReadAfterWrite => "Read After Write",
        }
    }

    const fn served(self) -> Served {
        match self {
            Self::TwoReads | Self::Erda => Served::Erda { durable: false },
            Self::Durable => Served::Erda { durable: true },
            Self::Redo => Served::RedoLogging,
            Self::ReadAfterWrite => Served::ReadAfterWrite,
        }
    }

    const fn locations(self) -> usize {
        if matches!(self, Self::TwoReads) { 0 } else { 1 << 16 }
    }
}

/// The paper's name of a workload.
const fn title(mix: Mix) -> &'static str {
    match mix {
        Mix::A => "YCSB-A",
        Mix::B => "YCSB-B",
        Mix::C => "YCSB-C",
        Mix::D => "YCSB-D",
        Mix::E => "YCSB-E",
        Mix::F => "YCSB-F",
        Mix::Update => "update-only",
    }
}

/// What is asked of a workload's figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Figure {
    /// The latency of each operation.
    Each,
    /// The mean of a burst, as the paper averages.
    Mean,
    /// CPU time that the server's application spends on its messages.
    Application,
    /// CPU time of the server's process.
    Process,
    /// Messages to the application.
    Messages,
    /// Throughput by threads.
    Threads,
}

impl Figure {
    /// Those of one client, which have one burst in common.
    const LATENCY: [Self; 5] = [Self::Each, Self::Mean, Self::Application, Self::Process, Self::Messages];
}

fn key(figure: Figure, mix: Mix, series: Series, load: ServerLoad, x: usize) -> Key {
    let (what, metric) = match figure {
        Figure::Each => ("each", Metric::Latency),
        Figure::Mean => ("mean", Metric::Latency),
        Figure::Application => ("application", Metric::Cpu),
        Figure::Process => ("server process", Metric::Cpu),
        Figure::Messages => ("application", Metric::Messages),
        Figure::Threads => ("by threads", Metric::Rate),
    };
    Key { op: format!("{} {what}", title(mix)), x: x as u64, series: load.series(series.name()), metric }
}

/// The servers that values of a size are measured at: all kinds where other things are swept.
fn loads(value: usize) -> &'static [ServerLoad] {
    if value == VALUE { &ServerLoad::ALL } else { &[ServerLoad::IDLE, ServerLoad::BUSY] }
}

/// What is measured twice in each block: a scheme, and the bytes of a value.
const CONTROL: (Series, usize) = (Series::Redo, VALUE);

/// A bench under way.
struct Bench<'a> {
    options: &'a Options,
    samples: Samples,
    lost: Lost,
    /// Of peers: version and command line.
    settings: BTreeMap<String, String>,
    pairs: BTreeMap<Series, Pair<Server, Clients>>,
    table1: Vec<table1::Cell>,
    cleaned: BTreeMap<Mix, Cleaned>,
    /// When logs were being cleaned in figure 26: milliseconds, by operation.
    intervals: BTreeMap<String, Vec<[f64; 2]>>,
    state: State,
    /// How many blocks each part had.
    blocks: BTreeMap<&'static str, u64>,
    begin: Instant,
    /// Files of this run.
    stores: u64,
    progress: &'a mut dyn FnMut(u64, u64, &str),
    steps: Steps,
}

/// How far a run is, in steps: one is a cell of a block.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Steps {
    done: u64,
    /// Of how many, as far as it is known.
    of: u64,
    /// Those of parts that have not begun.
    later: u64,
    /// Those that were done when the block under way began.
    block: u64,
}

impl Steps {
    /// A part begins, which has planned so many.
    const fn part(&mut self, planned: u64) {
        self.later = self.later.saturating_sub(planned);
        self.of = self.done + planned + self.later;
    }

    /// A block begins, behind which there are `more` until bars are looked at. Each has as many steps as the one before: what is measured for
    /// bars that are open is less than all.
    const fn next_block(&mut self, is_first: bool, more: u64) {
        let each = self.done - self.block;
        self.block = self.done;
        if !is_first {
            self.of = self.done + each * (more + 1) + self.later;
        }
    }

    /// One begins: how many are done, and of how many.
    const fn next(&mut self) -> (u64, u64) {
        let done = self.done;
        self.done += 1;
        if self.of < self.done {
            self.of = self.done;
        }
        (done, self.of)
    }
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured; what cannot be measured alone is in the report's `skipped`.
pub fn run(options: &Options, progress: &mut dyn FnMut(u64, u64, &str)) -> Result<Report, String> {
    let effort = options.common.effort;
    let mut bench = Bench {
        options,
        samples: Samples::in_parts(effort, &options.common.only),
        lost: Lost::default(),
        settings: BTreeMap::new(),
        pairs: BTreeMap::new(),
        table1: table1::measure()?,
        cleaned: BTreeMap::new(),
        intervals: BTreeMap::new(),
        state: State::probe(),
        blocks: BTreeMap::new(),
        begin: Instant::now(),
        stores: 0,
        progress,
        steps: Steps::default(),
    };
    // It is counted, and takes no time.
    bench.samples.next_part(Part::Bytes.name());
    bench.samples.singles(table1::rows(&bench.table1));
    if bench.samples.is_listing() {
        Part::ALL.into_iter().for_each(|part| bench.part(part));
        let table1 = &bench.table1;
        let bars = |samples: &Samples| verdicts::bars(Seen { samples, effort, table1 }, &Part::ALL);
        bench.samples.settle(&bars)?;
    }
    bench.steps =
        Steps { later: Part::ALL.into_iter().map(|part| bench.planned(part)).sum(), ..Steps::default() };
    Part::ALL.into_iter().for_each(|part| bench.part(part));
    bench.pairs.clear();
    let (table1, cleaned, samples) = (&bench.table1, &bench.cleaned, &bench.samples);
    let bars = |samples: &Samples| verdicts::bars(Seen { samples, effort, table1 }, &Part::ALL);
    let claims = |samples: &Samples| verdicts::claims(Seen { samples, effort, table1 }, cleaned);
    let by_threads = Mix::PAPER_002.map(|mix| (format!("{} by threads", title(mix)), "threads"));
    let over_time = Mix::PAPER_002.map(|mix| (cleaning::over_time(mix), "ms"));
    let axes: BTreeMap<String, &str> = by_threads.into_iter().chain(over_time).collect();
    let params = serde_json::json!({
        "rounds": bench.blocks,
        "burst_ms": effort.burst().as_millis() as u64,
        "records": effort.records(),
        "carrier": options.carrier,
        "flow": "a PUT of Erda: the request by WRITE with immediate, which has the client's number; the address back by SEND; the \
                 object by WRITE. Durable, and beside peers: the request by SEND, and a recipe for the object",
        "threads_value": VALUE,
        "servers": ServerLoad::ALL.map(ServerLoad::name),
        "parts": Part::ALL.map(Part::name).into_iter().filter(|part| samples.wants_part(part)).collect::<Vec<_>>(),
        "x": axes,
        "cleaning": bench.intervals,
        "pinned": role::pinned(),
        "memory": "the paper's figures: a file in /dev/shm that is declared ADR with DDIO off; every step is carried out, and \
                   nothing makes the domain true. No latency of NVM is added for anybody",
        "cpu": "application: CPU time of the serving thread from a message's arrival to the end of what it makes it do, waiting \
                not counted. server process: all its threads, with the RNIC's engine in software, and their waiting",
        "settings": bench.settings,
        "redis-benchmark": "p50 and p99 are those that it prints of a run, under the names of the operation; their p50 here is the median of its \
                            runs",
    });
    Report::new("erda", params, samples, bars, claims, bench.lost.lines())
}

impl Bench<'_> {
    fn part(&mut self, part: Part) {
        self.samples.next_part(part.name());
        self.steps.part(self.planned(part));
        match part {
            Part::Bytes => {}
            Part::Latency => self.latency(),
            Part::Threads => self.threads(),
            Part::Cleaning => self.cleaning(),
            Part::Peers => peerside::run(self),
        }
    }

    /// How many steps a part has in any case.
    fn planned(&self, part: Part) -> u64 {
        let effort = self.options.common.effort;
        let each = Series::ALL.len() as u64;
        if !self.samples.wants_part(part.name()) {
            return 0;
        }
        match part {
            Part::Latency => {
                let points = effort.sizes().into_iter().map(|value| loads(value).len() as u64);
                part.rounds(effort) * each * points.sum::<u64>()
            }
            // Once more at four threads: with a busy server.
            Part::Threads => part.rounds(effort) * each * (effort.threads().len() as u64 + 1),
            Part::Cleaning => Mix::PAPER_002.len() as u64,
            Part::Bytes => 0,
            Part::Peers => part.rounds(effort) * peerside::steps(),
        }
    }

    fn step(&mut self, what: &str) {
        let (done, of) = self.steps.next();
        (self.progress)(done, of, what);
    }

    /// Whether another block of a part is to be measured.
    fn another(&mut self, part: Part) -> bool {
        let (effort, table1) = (self.options.common.effort, &self.table1);
        // What could decide more does not lack what it was not asked for.
        if self.samples.blocks() >= part.rounds(effort) && self.is_over(QUICK_MORE) {
            return false;
        }
        let bars = |samples: &Samples| verdicts::bars(Seen { samples, effort, table1 }, &[part]);
        // What the words name was found out before.
        let goes_on = self.samples.another(part.rounds(effort), bars).unwrap_or_default();
        let (blocks, rounds) = (self.samples.blocks(), part.rounds(effort));
        self.blocks.insert(part.name(), blocks);
        if goes_on {
            self.steps.next_block(blocks <= 1, rounds - 1 - (blocks - 1) % rounds);
        }
        for (series, pair) in &mut self.pairs {
            pair.renew().unwrap_or_else(|why| self.lost.add(series.name(), why));
        }
        goes_on
    }

    fn is_over(&self, limit: Duration) -> bool {
        self.options.common.effort == Effort::Quick && self.begin.elapsed() > limit
    }

    /// Whether a quick run has taken as long as it may; then it lacks the cell.
    fn is_late(&mut self, cell: &str) -> bool {
        let late = self.is_over(QUICK);
        if late {
            let limit = QUICK.as_secs();
            let why = format!("{limit} s were over: run it without --quick, or on a machine that does less");
            self.lost.add(cell, why);
        }
        late
    }

    /// Where its processes are.
    fn launcher(&self) -> Launcher {
        Launcher::here(&self.options.common.program)
    }

    /// The processes of a series; they are started when it is opened first.
    fn pair(&mut self, series: Series) -> &mut Pair<Server, Clients> {
        let launcher = self.launcher();
        self.pairs.entry(series).or_insert_with(|| Pair::new(launcher))
    }

    fn load(&mut self, series: Series, burst: Burst) -> Result<Ran<Found>, String> {
        self.pair(series).burst(None, &burst)
    }

    /// A file of a store that is in memory.
    fn memory(&mut self) -> PathBuf {
        self.stores += 1;
        process::memory().join(format!("erda-{}", self.stores))
    }

    /// Opens a series' store for values of a size, and fills it.
    fn open(
        &mut self,
        series: Series,
        value: usize,
        load: ServerLoad,
        threads: usize,
        records: u64,
    ) -> Result<(), String> {
        let server = Spec {
            served: series.served(),
            carrier: self.options.carrier,
            file: self.memory(),
            declared: true,
            key: table1::KEY,
            value,
            keys: records,
            // So much that logs are hardly ever cleaned in the middle, but for where that is what is looked at.
            size: 64 << 20,
            load,
        };
        let clients = client::Spec { series, carrier: self.options.carrier, threads };
        self.pair(series).open(&server, &clients)?;
        self.load(series, Burst::Fill { value, records })?;
        self.quiet(series, true).map(drop)
    }

    /// Waits until a server has nothing left to do; clients say first what they have put off, if they have written.
    fn quiet(&mut self, series: Series, written: bool) -> Result<Causes, String> {
        if written {
            self.load(series, Burst::Rest)?;
        }
        let begin = Instant::now();
        let mut last = self.pair(series).server_cost()?;
        loop {
            std::thread::sleep(Duration::from_millis(4));
            let now = self.pair(series).server_cost()?;
            if (now.messages, now.application_ns) == (last.messages, last.application_ns)
                || begin.elapsed() > Duration::from_secs(2)
            {
                return Ok(now);
            }
            last = now;
        }
    }

    /// The rest of one burst's samples: which state it ran in.
    fn states(&mut self) -> (State, State) {
        let now = self.probe();
        (std::mem::replace(&mut self.state, now), now)
    }

    /// Where nothing is meant to be compared, nothing is dropped either.
    fn probe(&self) -> State {
        self.options.common.effort.probe()
    }

    /// All of them, in the present block's order.
    fn series(&self) -> Vec<Series> {
        self.samples.order(Series::ALL.len()).into_iter().map(|n| Series::ALL[n]).collect()
    }

    /// The workloads of which something is wanted at such a point, in the order of the present block; the second time, those of the A/A pairs.
    fn mixes(&mut self, figures: &[Figure], point: (Series, ServerLoad, usize), again: bool) -> Vec<Mix> {
        let (round, (series, load, x)) = (self.samples.blocks() as usize, point);
        let mixes = (0..Mix::PAPER_002.len()).map(|n| Mix::PAPER_002[(n + round) % Mix::PAPER_002.len()]);
        let samples = &mut self.samples;
        let is_wanted = |mix: &Mix| {
            let keys: Vec<Key> = figures.iter().map(|figure| key(*figure, *mix, series, load, x)).collect();
            if again { keys.iter().any(|key| samples.wants_again(key)) } else { samples.wants_any(&keys) }
        };
        mixes.filter(is_wanted).collect()
    }

    fn latency(&mut self) {
        let effort = self.options.common.effort;
        // At every kind of server.
        for load in ServerLoad::ALL {
            for mix in [Mix::C, Mix::Update] {
                for figure in [Figure::Each, Figure::Mean] {
                    self.samples.control(&key(figure, mix, CONTROL.0, load, CONTROL.1));
                }
            }
        }
        while self.another(Part::Latency) {
            for value in effort.sizes() {
                for &load in loads(value) {
                    for series in self.series() {
                        let point = (series, load, value);
                        let cell = format!("{} with values of {value} bytes, {}", series.name(), load.name());
                        self.twice(&cell, &Figure::LATENCY, point);
                    }
                }
            }
        }
    }

    /// A burst of each workload of a point that is wanted, and once more of those of the A/A pairs.
    fn twice(&mut self, cell: &str, figures: &[Figure], point: (Series, ServerLoad, usize)) {
        for again in [false, true] {
            let mixes = self.mixes(figures, point, again);
            if mixes.is_empty() {
                continue;
            }
            if !again {
                self.step(cell);
            }
            if self.is_late(cell) {
                return;
            }
            let measured = match figures {
                [Figure::Threads] => self.rates(point, &mixes, again),
                _ => self.latencies(point, &mixes, again),
            };
            measured.unwrap_or_else(|why| self.lost.add(cell, why));
        }
    }

    fn latencies(
        &mut self,
        (series, load, value): (Series, ServerLoad, usize),
        mixes: &[Mix],
        again: bool,
    ) -> Result<(), String> {
        let effort = self.options.common.effort;
        self.open(series, value, load, 1, effort.records())?;
        for &mix in mixes {
            let before = self.quiet(series, true)?;
            self.state = self.probe();
            let asked = Asked::new(mix, value, effort.records(), effort.burst());
            let ran = self.load(series, Burst::Load(asked))?;
            // What was put off belongs to the operations that put it off.
            let cost = self.quiet(series, mix != Mix::C)?.since(&before);
            let (found, client, server) = (ran.values, ran.client, cost);
            let ran = Ran { values: found.latencies().collect::<Vec<_>>(), client, server };
            let (from, to) = self.states();
            let count = found.count().max(1) as f64;
            let of = |figure| {
                let key = key(figure, mix, series, load, value);
                if again { key.again() } else { key }
            };
            self.samples.add_measured(&of(Figure::Each), from, to, ran);
            self.samples.add(&of(Figure::Mean), from, to, [found.mean]);
            self.samples.add(&of(Figure::Application), from, to, [cost.application_ns as f64 / 1e3 / count]);
            self.samples.add(&of(Figure::Process), from, to, [cost.cpu_us as f64 / count]);
            self.samples.add(&of(Figure::Messages), from, to, [cost.messages as f64 / count]);
        }
        self.pair(series).close()
    }

    fn threads(&mut self) {
        let effort = self.options.common.effort;
        self.samples.control(&key(Figure::Threads, Mix::C, CONTROL.0, ServerLoad::IDLE, 4));
        while self.another(Part::Threads) {
            for threads in effort.threads() {
                // The bar is at four threads: there the server is busy too.
                let loads = [ServerLoad::IDLE, ServerLoad::BUSY];
                for &load in if threads == 4 { &loads[..] } else { &loads[..1] } {
                    for series in self.series() {
                        let cell = format!("{} by {threads} threads, {}", series.name(), load.name());
                        self.twice(&cell, &[Figure::Threads], (series, load, threads));
                    }
                }
            }
        }
    }

    fn rates(
        &mut self,
        (series, load, threads): (Series, ServerLoad, usize),
        mixes: &[Mix],
        again: bool,
    ) -> Result<(), String> {
        let effort = self.options.common.effort;
        self.open(series, VALUE, load, threads, effort.records())?;
        for &mix in mixes {
            self.quiet(series, true)?;
            self.state = self.probe();
            let asked = Asked::new(mix, VALUE, effort.records(), effort.burst());
            let ran = self.load(series, Burst::Load(asked))?;
            let (from, to) = self.states();
            let key = key(Figure::Threads, mix, series, load, threads);
            let key = if again { key.again() } else { key };
            let operations = ran.values.count();
            self.samples.add_measured(&key, from, to, (ran.map(|found| vec![found.rate / 1e6]), operations));
        }
        self.pair(series).close()
    }
}

/// A run whose answers are not what was written is no measurement.
fn sound(load: &Load, measured: &Measurements) -> Result<(), String> {
    let all = load::together(load, measured);
    match (&measured.first_error, all.missing + all.wrong) {
        (Some(why), _) => Err(why.clone()),
        (None, 1..) => Err(format!("{} reads found nothing or something else", all.missing + all.wrong)),
        (None, 0) => Ok(()),
    }
}

/// The paper's workload for a while, over keys of one length.
fn load_of(mix: Mix, value: usize, records: u64, time: Duration) -> Load {
    let workload = Workload { zero_padding: 19, ..Workload::paper_002(mix, value).sized(records, records) };
    Load::new(workload, Until::Time(time))
}

/// How a client of this bench connects.
fn connecting(locations: usize) -> ConnectOptions {
    // What recipes cost is not asked of each server anew.
    let options = ConnectOptions::default().costs(CostSource::Fixed(Costs::PAPERS));
    options.patience(PATIENCE).locations(locations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_are_left_are_those_of_the_part_and_of_parts_that_follow() {
        let mut steps = Steps { later: 9, ..Steps::default() };
        // Three blocks of two, and one more part of three.
        steps.part(6);
        for block in 0..3 {
            steps.next_block(block == 0, 2 - block);
            for _ in 0..2 {
                let (done, of) = steps.next();
                assert!(done < of && of == 9, "{done} of {of}");
            }
        }
        // For a bar that is open one cell goes on, of which three blocks were planned too; it is not known yet that it is alone.
        steps.next_block(false, 2);
        assert_eq!(steps.next(), (6, 6 + 6 + 3));
        steps.next_block(false, 1);
        assert_eq!(steps.next(), (7, 7 + 2 + 3));
        // It was decided; what follows has its own.
        steps.part(3);
        assert_eq!(steps.next(), (8, 11));
        for _ in 0..5 {
            steps.next();
        }
        assert_eq!(steps.next(), (14, 15));
    }
}
