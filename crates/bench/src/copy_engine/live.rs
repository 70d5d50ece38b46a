//! The live half: real engines on real memory.

use std::time::{Duration, Instant};

use remanence_pmem::engine::order::{Stress, Verdict, stress};
use remanence_pmem::engine::{CopyEngine, DsaEngine, Inline, Options, Placement, Refusal, Source, Worker};
use remanence_pmem::{FileOptions, PersistenceDomain, Region};

use super::{SIZES, key};
use crate::limits::memcpy::Memcpy;
use crate::machine::State;
use crate::report::{Bar, Kind, Row};
use crate::samples::{Key, Metric, Samples};

pub(super) const DRAM: &str = "copy to DRAM";
pub(super) const PM: &str = "copy to PM";
pub(super) const SUBMIT: &str = "submitter's time";
pub(super) const ORDER: &str = "order";
pub(super) const MEMCPY: &str = "memcpy";

/// Bytes of a copy of the order test.
const ORDER_LEN: u64 = 1024;

/// Whose work a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// The caller's own CPU.
    Own,
    /// A worker thread of the engine.
    Worker,
    /// The Data Streaming Accelerator, a DMA device of Intel's.
    Dsa,
}

/// An engine in one way of copying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Engine {
    pub(super) by: By,
    pub(super) placement: Placement,
    pub(super) window: usize,
}

impl Engine {
    pub(super) fn series(self) -> String {
        let Self { by, placement, window } = self;
        match by {
            By::Own => format!("own CPU, {placement}"),
            By::Worker => format!("worker, {placement}, W={window}"),
            By::Dsa => format!("DSA, {placement}, W={window}"),
        }
    }

    fn make(self) -> Result<Box<dyn CopyEngine>, String> {
        let options = Options::new().placement(self.placement).window(self.window);
        Ok(match self.by {
            By::Own => Box::new(Inline::new(options)),
            By::Worker => {
                Box::new(Worker::new(options).map_err(|e| format!("no thread for the engine: {e}"))?)
            }
            By::Dsa => Box::new(DsaEngine::open(options).map_err(|e| e.to_string())?),
        })
    }
}

/// What is compared on DRAM, and on memory whose lines are written back; with an accelerator, or without.
fn engines(op: &str, dsa: bool) -> Vec<Engine> {
    use By::{Dsa, Own, Worker};
    use Placement::{Cached, NonTemporal, WriteBack};
    let list: &[(By, Placement, usize)] = match op {
        DRAM => &[(Own, Cached, 1), (Worker, Cached, 1), (Worker, Cached, 8), (Dsa, Cached, 8)],
        PM => &[
            (Own, WriteBack, 1),
            (Own, NonTemporal, 1),
            (Worker, Cached, 8),
            (Worker, WriteBack, 8),
            (Worker, NonTemporal, 1),
            (Worker, NonTemporal, 8),
            (Dsa, Cached, 8),
            (Dsa, NonTemporal, 8),
        ],
        SUBMIT => {
            &[(Own, WriteBack, 1), (Own, NonTemporal, 1), (Worker, NonTemporal, 8), (Dsa, NonTemporal, 8)]
        }
        _ => &[
            (Own, Cached, 1),
            (Own, NonTemporal, 1),
            (Worker, Cached, 8),
            (Worker, WriteBack, 8),
            (Worker, NonTemporal, 8),
            (Dsa, Cached, 8),
            (Dsa, NonTemporal, 8),
        ],
    };
    let engines = list.iter().map(|&(by, placement, window)| Engine { by, placement, window });
    engines.filter(|engine| dsa || engine.by != Dsa).collect()
}

/// Copies that the order test saw out of order, with all engines.
pub(super) fn out_of_order(samples: &Samples, dsa: bool) -> Option<f64> {
    engines(ORDER, dsa).into_iter().map(|engine| samples.value(ORDER, ORDER_LEN, &engine.series())).sum()
}

/// What the order test found with one engine.
pub(super) struct Order {
    engine: Engine,
    pub(super) verdict: Verdict,
}

impl Order {
    pub(super) fn row(&self) -> Row {
        let violations = self.verdict.violations as f64;
        let metric = ("violations", "count");
        let row = Row::single(ORDER, ORDER_LEN, self.engine.series(), metric, violations, Kind::Live);
        Row { n: self.verdict.looks, ..row }
    }
}

/// All that was measured.
pub(super) struct Live {
    pub(super) samples: Samples,
    pub(super) order: Vec<Order>,
    pub(super) ms: u64,
    /// Bytes of the memory that was copied to.
    pub(super) target: u64,
    /// Why there is nothing of an accelerator.
    pub(super) without: Option<String>,
}

/// Where copies go: on from where the last one went, and round.
struct Target {
    region: Region,
    at: u64,
}

impl Target {
    fn next(&mut self, size: u64) -> u64 {
        if self.at + size > self.region.len() {
            self.at = 0;
        }
        let at = self.at;
        self.at += size;
        at
    }
}

/// How much of it.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) rounds: u64,
    /// Milliseconds of each sample.
    pub(super) ms: u64,
    /// Bytes of the memory that is copied to: much more than a core's own caches; the paper's was 4 GiB.
    pub(super) target: u64,
    /// Copies of the order test, with each engine.
    pub(super) copies: u64,
}

impl Extent {
    pub(super) const TINY: Self = Self { rounds: 1, ms: 1, target: 4 << 20, copies: 500 };
    pub(super) const QUICK: Self = Self { rounds: 6, ms: 6, target: 256 << 20, copies: 20_000 };
    pub(super) const FULL: Self = Self { rounds: 11, ms: 25, target: 1 << 30, copies: 1_000_000 };
}

pub(super) fn run(
    options: &crate::effort::Options,
    rows: Vec<Row>,
    mut progress: impl FnMut(u64, u64, &str),
    bars: impl Fn(&Samples, bool) -> Vec<Bar>,
) -> Result<Live, String> {
    let effort = options.effort;
    let extent = effort.pick(Extent::TINY, Extent::QUICK, Extent::FULL);
    let Extent { rounds, ms, target, copies, .. } = extent;
    // It is tested here, and whenever it is opened again.
    let without = DsaEngine::open(Options::new()).err().map(|why| why.to_string());
    let dsa = without.is_none();
    let engines = |op| engines(op, dsa);
    let dram = Region::anonymous(target).map_err(|e| e.to_string())?;
    dram.populate();
    let mut dram = Target { region: dram, at: 0 };
    let mut pm = Target { region: declared(target)?, at: 0 };
    let mut memcpy = Memcpy::new(target);
    let mut samples = Samples::new(effort, &options.only);
    samples.singles(rows);
    let order_key = |engine: &Engine| Key::single(ORDER, ORDER_LEN, &engine.series());
    engines(ORDER).iter().for_each(|engine| samples.know(&order_key(engine)));
    let ops = [DRAM, PM, SUBMIT];
    let steps = 1 + ops.iter().map(|op| engines(op).len()).sum::<usize>();
    let total = rounds * (SIZES.len() * steps) as u64 + engines(ORDER).len() as u64;
    samples.control(&key(DRAM, SIZES[0], MEMCPY, Metric::Throughput));
    while samples.another(rounds, |samples| bars(samples, dsa))? {
        for size in SIZES {
            progress(samples.step(), total, MEMCPY);
            samples.burst(&key(DRAM, size, MEMCPY, Metric::Throughput), || {
                Ok(vec![memcpy.burst(size, target, Duration::from_millis(ms))?])
            })?;
            for op in ops {
                for engine in engines(op) {
                    progress(samples.step(), total, &format!("{op}: {}", engine.series()));
                    let target = if op == DRAM { &mut dram } else { &mut pm };
                    sample(&mut samples, op, engine, target, (size, Duration::from_millis(ms)))?;
                }
            }
        }
    }
    let mut order = Vec::new();
    for engine in engines(ORDER) {
        if !samples.wants(&order_key(&engine)) {
            continue;
        }
        progress(samples.step(), total, &format!("order: {}", engine.series()));
        let stressed = stress(&mut *engine.make()?, &pm.region, Stress { copies, len: ORDER_LEN, slots: 12 });
        order.push(Order { engine, verdict: stressed.map_err(|e| e.to_string())? });
    }
    samples.singles(order.iter().map(Order::row));
    Ok(Live { samples, order, ms, target, without })
}

/// DRAM whose lines are written back as if it were persistent.
fn declared(len: u64) -> Result<Region, String> {
    let path = crate::process::memory().join(format!("remanence-bench-{}", std::process::id()));
    let options = FileOptions::new().create_new(len).declare(PersistenceDomain::Adr).populate(true);
    let region = options.open(&path).map_err(|e| e.to_string());
    let _ = std::fs::remove_file(&path);
    region
}

fn sample(
    samples: &mut Samples,
    op: &str,
    engine: Engine,
    target: &mut Target,
    (size, budget): (u64, Duration),
) -> Result<(), String> {
    // One core alone knows no states.
    let effort = samples.effort();
    let probe = || if engine.by == By::Own { State::Any } else { effort.probe() };
    let metric = if op == SUBMIT { Metric::Latency } else { Metric::Throughput };
    samples.burst_in(probe, &key(op, size, &engine.series(), metric), || {
        let mut running = engine.make()?;
        if op == SUBMIT {
            return submit_times(&mut *running, target, size, budget);
        }
        Ok(vec![burst(&mut *running, target, size, budget)?])
    })
}

/// GB/s of copies of one size, as many under way as the window allows.
fn burst(
    engine: &mut dyn CopyEngine,
    target: &mut Target,
    size: u64,
    budget: Duration,
) -> Result<f64, String> {
    let mut free: Vec<Vec<u8>> = vec![vec![0x5A; size as usize]; engine.options().window];
    let mut copied = 0;
    let start = Instant::now();
    while start.elapsed() < budget {
        for _ in 0..8 {
            let buffer = match free.pop() {
                Some(buffer) => buffer,
                None => take(engine)?,
            };
            let offset = target.next(size);
            submit(engine, buffer.into(), &target.region, offset)?;
            copied += size;
        }
    }
    while engine.in_flight() > 0 {
        take(engine)?;
    }
    Ok(copied as f64 / start.elapsed().as_nanos() as f64)
}

/// Microseconds that the submitter spends on a copy: handing it over, and taking its completion. Whatever it would do
/// in between is not counted.
fn submit_times(
    engine: &mut dyn CopyEngine,
    target: &mut Target,
    size: u64,
    budget: Duration,
) -> Result<Vec<f64>, String> {
    let mut values = Vec::new();
    let mut buffer = vec![0x5A; size as usize];
    let start = Instant::now();
    while start.elapsed() < budget {
        let offset = target.next(size);
        let source = Source::from(buffer);
        let handing = Instant::now();
        submit(engine, source, &target.region, offset)?;
        let handed = handing.elapsed();
        buffer = loop {
            let taking = Instant::now();
            if let Some(completion) = engine.poll() {
                values.push((handed + taking.elapsed()).as_nanos() as f64 / 1e3);
                completion.outcome.map_err(|e| e.to_string())?;
                break completion.source.into_bytes().unwrap_or_default();
            }
            std::hint::spin_loop();
        };
    }
    Ok(values)
}

fn submit(engine: &mut dyn CopyEngine, mut source: Source, to: &Region, offset: u64) -> Result<(), String> {
    loop {
        match engine.submit(source, to, offset) {
            Ok(_) => return Ok(()),
            Err(refused) if matches!(refused.why, Refusal::WindowFull { .. }) => {
                source = refused.source;
                take(engine)?;
            }
            Err(refused) => return Err(refused.to_string()),
        }
    }
}

/// Waits for a completion, and takes its buffer.
fn take(engine: &mut dyn CopyEngine) -> Result<Vec<u8>, String> {
    let completion = engine.wait().ok_or("a buffer went missing")?;
    completion.outcome.map_err(|e| e.to_string())?;
    Ok(completion.source.into_bytes().unwrap_or_default())
}
