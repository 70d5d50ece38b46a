//! Samples kept apart by the state of the machine, and the ratios taken within one state.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::effort::Effort;
use crate::machine::State;
use crate::report::{Kind, Row};

/// What one series measured at one point.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// The operation's name, such as `write` or `read`.
    pub op: String,
    /// Bytes, threads, ….
    pub x: u64,
    /// What was measured, over which path.
    pub series: String,
    /// `latency` in microseconds, or `throughput` in GB/s, or `rate` in Mop/s.
    pub metric: Metric,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Metric {
    /// Microseconds; every operation is a sample.
    Latency,
    /// 10^9 bytes a second; every burst is a sample.
    Throughput,
    /// 10^6 operations a second; every burst is a sample.
    Rate,
    /// Microseconds of CPU time for each operation; every burst is a sample.
    Cpu,
    /// Messages for each operation; every burst is a sample.
    Messages,
}

impl Metric {
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Latency => ("latency", "us"),
            Self::Throughput => ("throughput", "GB/s"),
            Self::Rate => ("rate", "Mop/s"),
            Self::Cpu => ("cpu", "us/op"),
            Self::Messages => ("messages", "per op"),
        }
    }

    /// The histograms count integers: nanoseconds, kilobytes a second, operations a second.
    const fn scale(self) -> f64 {
        match self {
            Self::Latency | Self::Cpu => 1e3,
            Self::Throughput | Self::Rate | Self::Messages => 1e6,
        }
    }
}

/// All samples of a bench.
#[derive(Default)]
pub struct Samples {
    kept: BTreeMap<(Key, State), Histogram<u64>>,
    /// Bursts during which the state changed: dropped.
    pub dropped: u64,
}

impl Samples {
    /// Adds one burst's values, in the metric's unit, unless the state changed while it ran.
    pub fn add(&mut self, key: &Key, before: State, after: State, values: impl IntoIterator<Item = f64>) {
        if before != after {
            self.dropped += 1;
            return;
        }
        let histogram = self
            .kept
            .entry((key.clone(), before))
            .or_insert_with(|| Histogram::new(3).expect("three digits are allowed"));
        for value in values {
            // The histogram grows by itself; only a value beyond 2^63 could fail.
            let _ = histogram.record((value * key.metric.scale()).round().max(0.0) as u64);
        }
    }

    /// Runs bursts until the machine was in one state all through one of them, some times at most, and adds that one's values.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn burst(
        &mut self,
        effort: Effort,
        key: &Key,
        mut run: impl FnMut() -> Result<Vec<f64>, String>,
    ) -> Result<(), String> {
        const TRIES: u32 = 4;
        let mut before = effort.probe();
        for _ in 0..TRIES {
            let values = run()?;
            let after = effort.probe();
            self.add(key, before, after, values);
            if after == before {
                break;
            }
            before = after;
        }
        Ok(())
    }

    /// The ratio of two medians, taken within each state and then averaged by how many samples both have;
    /// `None` where no state has both.
    #[must_use]
    pub fn ratio(&self, over: &Key, under: &Key) -> Option<f64> {
        let (mut sum, mut weight) = (0.0, 0.0);
        for state in [State::Near, State::Far, State::Unclear] {
            // What one core measured alone goes with every state.
            let at = |key: &Key| {
                let within = |state| self.kept.get(&(key.clone(), state)).filter(|h| !h.is_empty());
                let histogram = within(state).or_else(|| within(State::Any))?;
                Some((histogram.value_at_quantile(0.5) as f64, histogram.len() as f64))
            };
            let (Some((a, n)), Some((b, m))) = (at(over), at(under)) else { continue };
            if b > 0.0 {
                sum += n.min(m) * (a / b);
                weight += n.min(m);
            }
        }
        (weight > 0.0).then(|| sum / weight)
    }

    /// The ratio of two medians, each over all samples whatever the state of the machine was: for when no state has both. `None`
    /// where one was not measured at all.
    #[must_use]
    pub fn ratio_of_all(&self, over: &Key, under: &Key) -> Option<f64> {
        let all = |key: &Key| {
            let mut sum: Option<Histogram<u64>> = None;
            for (_, histogram) in self.kept.iter().filter(|((other, _), _)| other == key) {
                match &mut sum {
                    Some(sum) => sum.add(histogram).ok()?,
                    None => sum = Some(histogram.clone()),
                }
            }
            Some(sum.filter(|sum| !sum.is_empty())?.value_at_quantile(0.5) as f64)
        };
        let (over, under) = (all(over)?, all(under)?);
        (under > 0.0).then(|| over / under)
    }

    /// The median of a point, of the state with the most samples.
    #[must_use]
    pub fn median(&self, key: &Key) -> Option<f64> {
        let of_all = [State::Near, State::Far, State::Unclear, State::Any].into_iter();
        let kept = of_all.filter_map(|state| self.kept.get(&(key.clone(), state)));
        let most = kept.filter(|histogram| !histogram.is_empty()).max_by_key(|histogram| histogram.len())?;
        Some(most.value_at_quantile(0.5) as f64 / key.metric.scale())
    }

    /// Every point as a row of the report.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        self.kept
            .iter()
            .filter(|(_, histogram)| !histogram.is_empty())
            .map(|((key, state), histogram)| {
                let (metric, unit) = key.metric.words();
                let slowest_low = matches!(key.metric, Metric::Throughput | Metric::Rate);
                let tail = if slowest_low { 0.01 } else { 0.99 };
                Row {
                    series: key.series.clone(),
                    op: key.op.clone(),
                    x: key.x,
                    metric,
                    unit,
                    state: state.word(),
                    p50: histogram.value_at_quantile(0.5) as f64 / key.metric.scale(),
                    p99: histogram.value_at_quantile(tail) as f64 / key.metric.scale(),
                    n: histogram.len(),
                    kind: Kind::Live,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(series: &str) -> Key {
        Key { op: "write".into(), x: 64, series: series.into(), metric: Metric::Latency }
    }

    #[test]
    fn ratios_never_mix_states() {
        let mut samples = Samples::default();
        samples.add(&key("a"), State::Near, State::Near, [2.0; 10]);
        samples.add(&key("b"), State::Far, State::Far, [1.0; 10]);
        assert_eq!(samples.ratio(&key("a"), &key("b")), None);
        samples.add(&key("b"), State::Near, State::Near, [1.0; 10]);
        assert!((samples.ratio(&key("a"), &key("b")).unwrap() - 2.0).abs() < 0.01);
    }

    #[test]
    fn without_a_common_state_all_samples_are_taken_if_that_is_asked_for() {
        let mut samples = Samples::default();
        samples.add(&key("a"), State::Near, State::Near, [2.0; 10]);
        samples.add(&key("b"), State::Far, State::Far, [1.0; 10]);
        samples.add(&key("b"), State::Unclear, State::Unclear, [4.0; 30]);
        assert_eq!(samples.ratio(&key("a"), &key("b")), None);
        let all = samples.ratio_of_all(&key("a"), &key("b")).expect("both were measured");
        assert!((all - 0.5).abs() < 0.01, "{all}");
        assert_eq!(samples.ratio_of_all(&key("a"), &key("c")), None);
    }

    #[test]
    fn a_burst_across_a_change_of_state_is_dropped() {
        let mut samples = Samples::default();
        samples.add(&key("a"), State::Near, State::Far, [1.0]);
        assert_eq!(samples.dropped, 1);
        assert!(samples.rows().is_empty());
    }
}
