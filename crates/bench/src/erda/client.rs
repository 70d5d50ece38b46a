//! The clients of the bench: threads of one process, each with a handle of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remanence_erda_paper::baseline::Scheme;
use remanence_remote::CostSource;
use remanence_verbs::Context;
use remanence_ycsb::measure::Measurements;
use remanence_ycsb::workload::Mix;
use serde::{Deserialize, Serialize};

use super::baseline::BaselineStore;
use super::load::{self, Handle, Load};
use super::server::device;
use super::{Carrier, Costs, Native, PATIENCE, Series, connecting, load_of, sound};
use crate::role::{Counters, Role};

/// What clients shall be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(super) series: Series,
    pub(super) carrier: Carrier,
    pub(super) threads: usize,
}

/// What they shall do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Burst {
    /// Write each of so many records, of values of so many bytes.
    Fill { value: usize, records: u64 },
    /// Say what they have put off, so that the server has nothing left to do.
    Rest,
    /// A workload for a while.
    Load(Asked),
    /// The same, while one more client has all logs cleaned, again and again.
    Cleaned(Asked),
}

/// A workload of the paper's, for a while.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Its number among those of the paper.
    pub(super) mix: usize,
    pub(super) value: usize,
    pub(super) records: u64,
    pub(super) time: Duration,
    /// Of the timeline.
    pub(super) slice: Duration,
}

impl Asked {
    /// One of the paper's, with a timeline that nobody looks at.
    pub(super) fn new(mix: Mix, value: usize, records: u64, time: Duration) -> Self {
        let mix = Mix::PAPER_002.iter().position(|one| *one == mix).expect("only the paper's are asked for");
        Self { mix, value, records, time, slice: Duration::from_millis(100) }
    }

    fn load(&self) -> Load {
        let load = load_of(Mix::PAPER_002[self.mix], self.value, self.records, self.time);
        Load { slice: self.slice.as_nanos() as u64, ..load }
    }
}

/// What they found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Latencies in microseconds, and how many operations had each.
    pub(super) each: Vec<(f64, u64)>,
    /// Of all operations.
    pub(super) mean: f64,
    /// Operations a second.
    pub(super) rate: f64,
    /// Slices of time, by number: operations, the sum of their latencies, and the longest, in nanoseconds.
    pub(super) timeline: Vec<(u64, [u64; 3])>,
    /// From when to when logs were being cleaned, in nanoseconds since the begin.
    pub(super) cleaned: Vec<(u64, u64)>,
}

impl Found {
    fn new(load: &Load, measured: &Measurements, cleaned: Vec<(u64, u64)>) -> Result<Self, String> {
        sound(load, measured)?;
        let all = load::together(load, measured).latency;
        let each =
            all.iter_recorded().map(|v| (v.value_iterated_to() as f64 / 1e3, v.count_since_last_iteration()));
        let windows = measured.timeline.windows.iter();
        Ok(Self {
            each: each.collect(),
            mean: all.mean() / 1e3,
            rate: measured.rate(),
            timeline: windows.map(|(n, w)| (*n, [w.operations, w.latency_sum, w.latency_max])).collect(),
            cleaned,
        })
    }

    /// Operations that succeeded.
    pub(super) fn count(&self) -> u64 {
        self.each.iter().map(|(_, count)| count).sum()
    }

    /// The latency of each operation, in microseconds.
    pub(super) fn latencies(&self) -> impl Iterator<Item = f64> {
        self.each.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count as usize))
    }
}

/// Clients of one server.
pub(crate) struct Clients {
    spec: Spec,
    at: Option<SocketAddr>,
    // They go before what they are connected by.
    handles: Vec<Handle>,
    device: Context,
}

impl Role for Clients {
    const WORD: &'static str = "erda-client";
    type Spec = Spec;
    type Here = ();
    type Peer = SocketAddr;
    type Burst = Burst;
    type Values = Found;

    fn open(spec: Spec) -> Result<(Self, ()), String> {
        let device = device(spec.carrier)?;
        Ok((Self { spec, at: None, handles: Vec::new(), device }, ()))
    }

    fn connect(&mut self, to: SocketAddr) -> Result<(), String> {
        self.at = Some(to);
        for _ in 0..self.spec.threads {
            self.handles.push(connect(&self.device, self.spec.series, to)?);
        }
        Ok(())
    }

    fn run(&mut self, burst: Burst) -> Result<Found, String> {
        match burst {
            Burst::Fill { value, records } => {
                let load = load_of(Mix::C, value, records, Duration::ZERO);
                load::fill(&load, &mut self.handles[..1], &AtomicU64::new(0))?;
                Ok(Found::default())
            }
            Burst::Rest => {
                self.handles.iter_mut().try_for_each(|handle| handle.rest())?;
                Ok(Found::default())
            }
            Burst::Load(asked) => {
                let load = asked.load();
                let measured = load::run(&load, &mut self.handles, &AtomicBool::new(false))?;
                Found::new(&load, &measured, Vec::new())
            }
            Burst::Cleaned(asked) => {
                let (load, to) = (asked.load(), self.at.ok_or("nobody is connected")?);
                let mut cleaner = Native::connect(&self.device, to, &connecting(0))?;
                let stop = AtomicBool::new(false);
                let (measured, cleaned) = std::thread::scope(|scope| {
                    let cleaning = scope.spawn(|| clean(&mut cleaner, asked.time, &stop));
                    let measured = load::run(&load, &mut self.handles, &AtomicBool::new(false));
                    stop.store(true, Ordering::Relaxed);
                    (measured, cleaning.join().unwrap_or_else(|_| Err("the cleaner panicked".into())))
                });
                Found::new(&load, &measured?, cleaned?)
            }
        }
    }

    fn counters(&self) -> Counters {
        Counters::of(&self.device)
    }
}

fn connect(device: &Context, series: Series, to: SocketAddr) -> Result<Handle, String> {
    let baseline = |scheme| -> Result<Handle, String> {
        let options = remanence_remote::Options::default().costs(CostSource::Fixed(Costs::PAPERS));
        Ok(Box::new(BaselineStore::connect(device, to, scheme, options.patience(PATIENCE))?))
    };
    match series {
        Series::TwoReads | Series::Erda | Series::Durable => {
            let mut native = Native::connect(device, to, &connecting(series.locations()))?;
            // The paper's figures are figures of the paper's flow, or none.
            if native.store().session().calls_by_immediate() != (series != Series::Durable) {
                return Err(format!("{}: not the message flow that it is to have", series.name()));
            }
            Ok(Box::new(native))
        }
        Series::Redo => baseline(Scheme::RedoLogging),
        Series::ReadAfterWrite => baseline(Scheme::ReadAfterWrite),
    }
}

/// Has all logs cleaned, again and again in the middle half of the time; returns when something was being cleaned, in
/// nanoseconds since the begin.
fn clean(cleaner: &mut Native, time: Duration, stop: &AtomicBool) -> Result<Vec<(u64, u64)>, String> {
    let begin = Instant::now();
    let words = |e: remanence_kv_live::Error| e.to_string();
    let mut intervals: Vec<(u64, u64)> = Vec::new();
    let mut since = None;
    while !stop.load(Ordering::Relaxed) {
        let now = begin.elapsed();
        if now < time / 4 {
            std::thread::sleep((time / 4 - now).min(Duration::from_millis(2)));
            continue;
        }
        let stats = cleaner.store().stats().map_err(words)?;
        let now = begin.elapsed();
        let cleaning = stats.usage.cleaning || stats.to_clean > 0;
        match (cleaning, since) {
            (true, None) => since = Some(now),
            (false, Some(from)) => {
                intervals.push((from.as_nanos() as u64, now.as_nanos() as u64));
                since = None;
            }
            _ => {}
        }
        if !cleaning && now < time * 3 / 4 {
            let asked = begin.elapsed();
            cleaner.store().compact().map_err(words)?;
            since.get_or_insert(asked);
        }
        // It costs the server a message.
        std::thread::sleep(Duration::from_millis(1));
    }
    intervals.extend(since.map(|from| (from.as_nanos() as u64, begin.elapsed().as_nanos() as u64)));
    Ok(intervals)
}
