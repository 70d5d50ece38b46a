//! What was measured: a histogram per kind of operation, and throughput over time.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::generator::Kind;

/// Latencies and outcomes of one kind of operation.
#[derive(Clone, Debug)]
pub struct Series {
    /// Nanoseconds from the operation's start to its end, of those that succeeded.
    pub latency: Histogram<u64>,
    /// Nanoseconds from when it should have started: with a target rate, what a user would have waited. Without one,
    /// empty.
    pub intended: Histogram<u64>,
    /// Records that were not there.
    pub missing: u64,
    /// Operations that the store failed.
    pub failed: u64,
    /// Reads whose bytes were not what `dataintegrity` expects.
    pub wrong: u64,
}

impl Default for Series {
    fn default() -> Self {
        // Three digits, and as wide as the samples ask for.
        let histogram = || Histogram::new(3).expect("three digits are allowed");
        Self { latency: histogram(), intended: histogram(), missing: 0, failed: 0, wrong: 0 }
    }
}

impl Series {
    /// Operations of any outcome.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.latency.len() + self.missing + self.failed
    }

    fn add(&mut self, other: &Self) {
        // Both grow by themselves.
        self.latency += &other.latency;
        self.intended += &other.intended;
        self.missing += other.missing;
        self.failed += other.failed;
        self.wrong += other.wrong;
    }
}

/// What happened in one slice of time.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Operations that ended in it and succeeded.
    pub operations: u64,
    /// The sum of their latencies, in nanoseconds.
    pub latency_sum: u64,
    /// The longest, in nanoseconds.
    pub latency_max: u64,
}

/// Throughput and latency over time, in slices of equal length.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Nanoseconds of a slice.
    pub slice: u64,
    /// By number: slice `n` starts at `n * slice` on the driver's clock. Slices in which nothing ended are not there.
    pub windows: BTreeMap<u64, Window>,
}

/// What one thread, or all of them together, measured.
#[derive(Clone, Debug)]
pub struct Measurements {
    series: BTreeMap<Kind, Series>,
    /// How many operations ended in each slice of time, and how long they took.
    pub timeline: Timeline,
    /// Nanoseconds on the driver's clock when the first operation started and the last one ended.
    pub span: Option<(u64, u64)>,
    /// What the store said of the first operation that failed.
    pub first_error: Option<String>,
    /// Operations drawn from the mix; a read-modify-write is one, though its halves have series of their own.
    pub operations: u64,
}

impl Measurements {
    /// Nothing yet; the timeline in slices of so many nanoseconds.
    ///
    /// # Panics
    /// If that is 0.
    #[must_use]
    pub fn new(slice: u64) -> Self {
        assert!(slice > 0, "a slice of no time");
        Self {
            series: BTreeMap::new(),
            timeline: Timeline { slice, windows: BTreeMap::new() },
            span: None,
            first_error: None,
            operations: 0,
        }
    }

    /// What was measured of one kind of operation. The halves of a read-modify-write count as reads and updates too,
    /// as in YCSB.
    #[must_use]
    pub fn of(&self, kind: Kind) -> Option<&Series> {
        self.series.get(&kind)
    }

    /// Every kind that occurred, in the order of the mix.
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, &Series)> {
        self.series.iter().map(|(kind, series)| (*kind, series))
    }

    /// Operations a second, over the whole span.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self.span {
            Some((start, end)) if end > start => self.operations as f64 * 1e9 / (end - start) as f64,
            _ => 0.0,
        }
    }

    /// Operations that the store failed, or answered with the wrong bytes.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.series.values().map(|series| series.failed + series.wrong).sum()
    }

    /// Adds what another thread measured by the same clock.
    ///
    /// # Panics
    /// If its slices are of another length.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.timeline.slice, other.timeline.slice, "timelines of different slices do not add up");
        for (kind, series) in &other.series {
            self.series.entry(*kind).or_default().add(series);
        }
        for (number, window) in &other.timeline.windows {
            let sum = self.timeline.windows.entry(*number).or_default();
            sum.operations += window.operations;
            sum.latency_sum += window.latency_sum;
            sum.latency_max = sum.latency_max.max(window.latency_max);
        }
        self.span = match (self.span, other.span) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, two) => one.or(two),
        };
        if self.first_error.is_none() {
            self.first_error.clone_from(&other.first_error);
        }
        self.operations += other.operations;
    }

    pub(crate) fn series(&mut self, kind: Kind) -> &mut Series {
        self.series.entry(kind).or_default()
    }

    pub(crate) fn spanned(&mut self, start: u64, end: u64) {
        let (first, last) = self.span.unwrap_or((start, end));
        self.span = Some((first.min(start), last.max(end)));
    }

    /// One successful operation of the mix, for the timeline.
    pub(crate) fn tick(&mut self, start: u64, end: u64) {
        let latency = end.saturating_sub(start);
        let window = self.timeline.windows.entry(end / self.timeline.slice).or_default();
        window.operations += 1;
        window.latency_sum += latency;
        window.latency_max = window.latency_max.max(latency);
    }
}
