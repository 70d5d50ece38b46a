//! Figure 26 of paper 002: what clients notice of log cleaning, on average and over time.
//!
//! The paper's clients ask the server while a log is cleaned. Ours go on as always, so the question is what the cleaner's use
//! of the CPU and of memory costs them.

use std::time::Duration;

use remanence_ycsb::workload::Mix;

use crate::effort::Effort;

use super::client::{Asked, Burst, Found};
use super::{Bench, Series, VALUE, title};
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

const ERDA: &str = "Erda";

/// What can be asked for of a workload.
fn keys(mix: Mix) -> [Key; 3] {
    [key(mix, false), key(mix, true), Key::single(&over_time(mix), 0, ERDA)]
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

/// The slices that lie within the time of the run as a whole.
fn whole(found: &Found, asked: Asked) -> impl Iterator<Item = (u64, [u64; 3])> {
    let whole = (asked.time.as_nanos() / asked.slice.as_nanos()) as u64;
    found.timeline.iter().copied().filter(move |(number, _)| *number < whole)
}

impl Bench<'_> {
    pub(super) fn cleaning(&mut self) {
        for mix in Mix::PAPER_002 {
            if !self.samples.wants_any(&keys(mix)) {
                continue;
            }
            let cell = format!("{} during log cleaning", title(mix));
            self.step(&cell);
            if self.is_late(&cell) {
                continue;
            }
            match self.cleaned(mix) {
                Ok(found) => drop(self.cleaned.insert(mix, found)),
                Err(why) => self.lost.add(cell, why),
            }
        }
    }

    fn cleaned(&mut self, mix: Mix) -> Result<Cleaned, String> {
        let (records, time, slice) = extent(self.options.common.effort);
        self.open(Series::Erda, VALUE, ServerLoad::IDLE, 1, records)?;
        // What shall be cleaned away.
        self.load(Series::Erda, Burst::Load(Asked::new(Mix::Update, VALUE, records, time / 4)))?;
        self.quiet(Series::Erda, true)?;
        let asked = Asked { slice: Duration::from_millis(slice), ..Asked::new(mix, VALUE, records, time) };
        let found = self.load(Series::Erda, Burst::Cleaned(asked))?.values;
        self.pair(Series::Erda).close()?;
        self.timeline(mix, &found, asked);
        let ms = |at: u64| at as f64 / 1e6;
        let shown = found.cleaned.iter().map(|(from, to)| [ms(*from), ms(*to)]).collect();
        self.intervals.insert(over_time(mix), shown);
        Ok(self.split(mix, &found, asked))
    }

    fn timeline(&mut self, mix: Mix, found: &Found, asked: Asked) {
        let slice = asked.slice.as_nanos() as u64;
        for (number, [operations, sum, longest]) in whole(found, asked) {
            let mut row = |metric, unit, value: f64, worst: f64| {
                let x = number * slice / 1_000_000;
                let row = Row::single(over_time(mix), x, ERDA, (metric, unit), value, Kind::Live);
                keys(mix).iter().for_each(|listed| self.samples.stands_for(listed, &Key::of(&row)));
                self.samples.singles([Row { p99: Some(worst), n: operations, ..row }]);
            };
            let mean = sum as f64 / operations.max(1) as f64 / 1e3;
            row("latency", "us", mean, longest as f64 / 1e3);
            let rate = operations as f64 * 1e3 / slice as f64;
            row("rate", "Mop/s", rate, rate);
        }
    }

    /// What was before the first cleaning, and what was while one went on.
    fn split(&mut self, mix: Mix, found: &Found, asked: Asked) -> Cleaned {
        let (slice, intervals) = (asked.slice.as_nanos() as u64, &found.cleaned);
        let begin = intervals.first().map_or(u64::MAX, |(from, _)| *from);
        let mut sums = [(0_u64, 0_u64, 0_u64); 2];
        for (number, [operations, latencies, _]) in whole(found, asked) {
            let (from, to) = (number * slice, (number + 1) * slice);
            let covered: u64 = intervals.iter().map(|(a, b)| to.min(*b).saturating_sub(from.max(*a))).sum();
            let during = match (to <= begin, covered * 2 >= slice) {
                (true, _) => false,
                (_, true) => true,
                _ => continue,
            };
            let sum = &mut sums[usize::from(during)];
            sum.0 += operations;
            sum.1 += latencies;
            sum.2 += slice;
            if operations > 0 {
                let mean = latencies as f64 / operations as f64 / 1e3;
                // Each stretch of time is a block of its own.
                self.samples.block(number);
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
