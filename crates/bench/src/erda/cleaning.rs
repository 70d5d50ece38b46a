//! Figure 26 of paper 002: what clients notice of log cleaning, on average and over time.
//!
//! The paper's clients ask the server while a log is cleaned. Ours go on as always, so the question is what the cleaner's use
//! of the CPU and of memory costs them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remanence_ycsb::measure::Measurements;
use remanence_ycsb::workload::Mix;

use crate::effort::Effort;

use super::load::{self, Load};
use super::{Bench, Native, Series, VALUE, connecting, load_of, sound, title};
use crate::machine::State;
use crate::report::{Kind, Row};
use crate::samples::{Key, Metric};
use crate::server_load::ServerLoad;

/// The rows of one workload over time.
pub(super) fn over_time(mix: Mix) -> String {
    format!("{} over time", title(mix))
}

pub(super) fn key(mix: Mix, during: bool) -> Key {
    let series = if during { "during log cleaning" } else { "normal" };
    let op = format!("{} cleaning", title(mix));
    Key { op, x: VALUE as u64, series: series.into(), metric: Metric::Latency }
}

/// What one workload noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cleaned {
    /// The mean latency while it went on, microseconds.
    pub(super) during: Option<f64>,
    /// Operations a second.
    pub(super) rates: (Option<f64>, Option<f64>),
    /// Milliseconds of cleaning.
    pub(super) cleaning_ms: f64,
}

/// Records, how long, and milliseconds of a slice.
const fn extent(effort: Effort) -> (u64, Duration, u64) {
    match effort {
        Effort::Tiny => (300, Duration::from_millis(80), 4),
        Effort::Quick => (2000, Duration::from_millis(500), 5),
        Effort::Full => (12_000, Duration::from_millis(2000), 10),
    }
}

impl Bench<'_> {
    pub(super) fn cleaning(&mut self) -> BTreeMap<Mix, Cleaned> {
        let mut cleaned = BTreeMap::new();
        for mix in Mix::PAPER_002 {
            self.step(&format!("{} during log cleaning", title(mix)));
            if self.is_late() {
                continue;
            }
            match self.cleaned(mix) {
                Ok(found) => drop(cleaned.insert(mix, found)),
                Err(why) => {
                    self.servers.remove(&Series::Erda);
                    self.skip(format!("{} during log cleaning: {why}", title(mix)));
                }
            }
        }
        cleaned
    }

    fn cleaned(&mut self, mix: Mix) -> Result<Cleaned, String> {
        let (records, time, slice) = extent(self.options.effort);
        let (addr, mut handles) = self.open(Series::Erda, VALUE, ServerLoad::IDLE, 1, records)?;
        // What shall be cleaned away.
        let stale = load_of(Mix::Update, VALUE, records, time / 4);
        load::run(&stale, &mut handles, &AtomicBool::new(false))?;
        self.quiet(Series::Erda, &mut handles, true)?;
        let load = Load { slice: slice * 1_000_000, ..load_of(mix, VALUE, records, time) };
        let mut cleaner = Native::connect(&self.device, addr, &connecting(0))?;
        let stop = AtomicBool::new(false);
        let (measured, intervals) = std::thread::scope(|scope| {
            let cleaning = scope.spawn(|| clean(&mut cleaner, time, &stop));
            let measured = load::run(&load, &mut handles, &AtomicBool::new(false));
            stop.store(true, Ordering::Relaxed);
            let intervals = cleaning.join().unwrap_or_else(|_| Err("the cleaner panicked".into()));
            (measured, intervals)
        });
        let (measured, intervals) = (measured?, intervals?);
        sound(&load, &measured)?;
        drop(cleaner);
        drop(handles);
        self.servers.get_mut(&Series::Erda).ok_or("the server is gone")?.close()?;
        self.timeline(mix, &measured, time);
        let ms = |at: u64| at as f64 / 1e6;
        let shown = intervals.iter().map(|(from, to)| [ms(*from), ms(*to)]).collect();
        self.intervals.insert(over_time(mix), shown);
        Ok(self.split(mix, &measured, &intervals, time))
    }

    fn timeline(&mut self, mix: Mix, measured: &Measurements, time: Duration) {
        let slice = measured.timeline.slice;
        let whole = time.as_nanos() as u64 / slice;
        for (number, window) in measured.timeline.windows.range(..whole) {
            let mut row = |metric, unit, value: f64, worst: f64| {
                let x = number * slice / 1_000_000;
                let row = Row::single(over_time(mix), x, "Erda", (metric, unit), value, Kind::Live);
                self.rows.push(Row { p99: Some(worst), n: window.operations, ..row });
            };
            let mean = window.latency_sum as f64 / window.operations.max(1) as f64 / 1e3;
            row("latency", "us", mean, window.latency_max as f64 / 1e3);
            let rate = window.operations as f64 * 1e3 / slice as f64;
            row("rate", "Mop/s", rate, rate);
        }
    }

    /// What was before the first cleaning, and what was while one went on.
    fn split(
        &mut self,
        mix: Mix,
        measured: &Measurements,
        intervals: &[(u64, u64)],
        time: Duration,
    ) -> Cleaned {
        let slice = measured.timeline.slice;
        let begin = intervals.first().map_or(u64::MAX, |(from, _)| *from);
        let mut sums = [(0_u64, 0_u64, 0_u64); 2];
        for (number, window) in measured.timeline.windows.range(..time.as_nanos() as u64 / slice) {
            let (from, to) = (number * slice, (number + 1) * slice);
            let covered: u64 = intervals.iter().map(|(a, b)| to.min(*b).saturating_sub(from.max(*a))).sum();
            let during = match (to <= begin, covered * 2 >= slice) {
                (true, _) => false,
                (_, true) => true,
                _ => continue,
            };
            let sum = &mut sums[usize::from(during)];
            sum.0 += window.operations;
            sum.1 += window.latency_sum;
            sum.2 += slice;
            if window.operations > 0 {
                let mean = window.latency_sum as f64 / window.operations as f64 / 1e3;
                // Each stretch of time is a block of its own.
                self.samples.block(*number);
                self.samples.add(&key(mix, during), State::Any, State::Any, [mean]);
            }
        }
        let mean = |(n, sum, _): (u64, u64, u64)| (n > 0).then(|| sum as f64 / n as f64 / 1e3);
        let rate = |(n, _, time): (u64, u64, u64)| (n > 0).then(|| n as f64 * 1e9 / time as f64);
        Cleaned {
            during: mean(sums[1]),
            rates: (rate(sums[0]), rate(sums[1])),
            cleaning_ms: intervals.iter().map(|(from, to)| to - from).sum::<u64>() as f64 / 1e6,
        }
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
