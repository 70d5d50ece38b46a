//! Bursts by series and point, kept apart by the state of the machine, and what is made of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::effort::Effort;
use crate::machine::State;
use crate::report::{Bar, Control, Cpu, Kind, Outlier, Row};
use crate::role::Ran;
use crate::server_load::ServerLoad;
use crate::stats::{self, Burst, Estimate, Interval, LEAST, Statistic};

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

impl Key {
    /// The name of the second one of an A/A pair.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { series: format!("{} (again)", self.series), ..self.clone() }
    }
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
    /// Milliseconds without an acknowledged write; every takeover is a burst.
    Unavailability,
}

impl Metric {
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Latency => ("latency", "us"),
            Self::Throughput => ("throughput", "GB/s"),
            Self::Rate => ("rate", "Mop/s"),
            Self::Cpu => ("cpu", "us/op"),
            Self::Messages => ("messages", "per op"),
            Self::Unavailability => ("unavailability", "ms"),
        }
    }

    /// Whether ratios and means of it are geometric: what may be zero has arithmetic ones, and no ratio.
    const fn is_positive(self) -> bool {
        !matches!(self, Self::Cpu | Self::Messages)
    }
}

/// What a burst measured, and what its processes counted meanwhile, if they are roles.
pub struct Measured {
    values: Vec<f64>,
    ran: Option<Ran<u64>>,
}

impl From<Vec<f64>> for Measured {
    fn from(values: Vec<f64>) -> Self {
        Self { values, ran: None }
    }
}

impl From<Ran<Vec<f64>>> for Measured {
    /// Of which each value is an operation.
    fn from(ran: Ran<Vec<f64>>) -> Self {
        let operations = ran.values.len() as u64;
        (ran, operations).into()
    }
}

impl From<(Ran<Vec<f64>>, u64)> for Measured {
    /// With how many operations it was; 0 where that is not known.
    fn from((Ran { values, client, server }, operations): (Ran<Vec<f64>>, u64)) -> Self {
        Self { values, ran: Some(Ran { values: operations, client, server }) }
    }
}

/// All bursts of a bench.
#[derive(Default)]
pub struct Samples {
    kept: BTreeMap<Key, Vec<Burst>>,
    /// What is measured twice in each block, and under which name the second time.
    controls: Vec<(Key, Key)>,
    /// What is to be measured, whether it was or not.
    expected: BTreeSet<Key>,
    block: u32,
    /// Blocks that were begun, of the present part of the bench.
    begun: u64,
    /// Bursts during which the state changed: dropped.
    pub dropped: u64,
}

impl Samples {
    /// Says that this series is measured twice in each block, under two names: the A/A pair of its metric.
    pub fn control(&mut self, key: &Key) {
        self.controls.push((key.clone(), key.again()));
    }

    /// Whether another block of the bench, or of the present part of it, is to be measured: what follows belongs to it. There are `blocks`
    /// in any case, and up to three times as many while one of the bars is not measured or undecided still.
    pub(crate) fn another(
        &mut self,
        effort: Effort,
        blocks: u64,
        bars: impl FnOnce(&Self) -> Vec<Bar>,
    ) -> bool {
        let goes_on = effort.another(self.begun, blocks, || bars(self));
        if goes_on {
            self.block(self.begun);
            self.begun += 1;
        }
        goes_on
    }

    /// What follows is another part of the bench, with blocks of its own.
    pub(crate) fn next_part(&mut self) {
        self.begun = 0;
    }

    /// How many blocks were begun, of the present part.
    pub(crate) const fn blocks(&self) -> u64 {
        self.begun
    }

    /// What follows belongs to the block of this number: a burst of each series that is compared.
    pub fn block(&mut self, number: u64) {
        self.block = u32::try_from(number).unwrap_or(u32::MAX);
    }

    /// The order in which `cells` things are measured in the present block: a random one, the same each time that it is asked for.
    #[must_use]
    pub fn order(&self, cells: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..cells).collect();
        fastrand::Rng::with_seed(u64::from(self.block) + 1).shuffle(&mut order);
        order
    }

    /// Says that this is to be measured, so that it is missed where it is not.
    pub fn expect(&mut self, key: &Key) {
        self.expected.insert(key.clone());
    }

    /// Adds one burst's values, in the metric's unit, unless the state changed while it ran.
    pub fn add(&mut self, key: &Key, before: State, after: State, values: impl IntoIterator<Item = f64>) {
        self.add_measured(key, before, after, values.into_iter().collect::<Vec<f64>>());
    }

    /// The same of what processes ran.
    pub fn add_measured(&mut self, key: &Key, before: State, after: State, measured: impl Into<Measured>) {
        if before != after {
            self.dropped += 1;
            return;
        }
        let Measured { values, ran } = measured.into();
        if let Some(mut burst) = Burst::of(self.block, before, values) {
            burst.ran = ran;
            self.kept.entry(key.clone()).or_default().push(burst);
        }
    }

    /// Runs bursts until the machine was in one state all through one of them, some times at most, and adds that one's values. A
    /// [control](Self::control) is measured twice.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn burst<M: Into<Measured>>(
        &mut self,
        effort: Effort,
        key: &Key,
        run: impl FnMut() -> Result<M, String>,
    ) -> Result<(), String> {
        self.burst_in(|| effort.probe(), key, run)
    }

    /// The same, where something else says in which state the machine is: what one core measures alone knows none.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn burst_in<M: Into<Measured>>(
        &mut self,
        probe: impl Fn() -> State,
        key: &Key,
        mut run: impl FnMut() -> Result<M, String>,
    ) -> Result<(), String> {
        let again = self.controls.iter().find(|(first, _)| first == key).map(|(_, again)| again.clone());
        let mut names = vec![key.clone()];
        names.extend(again);
        // Whichever is first has no name of its own.
        if self.block % 2 == 1 {
            names.reverse();
        }
        self.expected.extend(names.iter().cloned());
        names.iter().try_for_each(|name| self.several(&probe, || Ok(vec![(name.clone(), run()?.into())])))
    }

    /// The same of a burst that says something of several keys, which are missed where it fails; none of them is measured twice here.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn together<const N: usize>(
        &mut self,
        effort: Effort,
        keys: [&Key; N],
        mut run: impl FnMut() -> Result<[Measured; N], String>,
    ) -> Result<(), String> {
        self.expected.extend(keys.into_iter().cloned());
        self.several(|| effort.probe(), || Ok(keys.into_iter().cloned().zip(run()?).collect()))
    }

    /// The same of a burst that has values of several keys, none of which is a control.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn several(
        &mut self,
        probe: impl Fn() -> State,
        mut run: impl FnMut() -> Result<Vec<(Key, Measured)>, String>,
    ) -> Result<(), String> {
        const TRIES: u32 = 4;
        let mut before = probe();
        for _ in 0..TRIES {
            let measured = run()?;
            let after = probe();
            for (key, measured) in measured {
                self.add_measured(&key, before, after, measured);
                self.expected.insert(key);
            }
            if after == before {
                break;
            }
            before = after;
        }
        Ok(())
    }

    /// The ratio of two series' medians: see [`ratio_of`](Self::ratio_of).
    #[must_use]
    pub fn ratio(&self, over: &Key, under: &Key) -> Option<Estimate> {
        self.ratio_of(Statistic::P50, over, under)
    }

    /// The geometric mean of the ratios of two series' bursts, within each state of the machine; `None` where no state has
    /// both. Its interval is at least as wide as that of the A/A pair.
    #[must_use]
    pub fn ratio_of(&self, statistic: Statistic, over: &Key, under: &Key) -> Option<Estimate> {
        let ratio = self.bare_ratio(statistic, over, under)?;
        let spread = self.spread(over);
        Some(ratio.map(|interval| interval.widened(spread)))
    }

    fn bare_ratio(&self, statistic: Statistic, over: &Key, under: &Key) -> Option<Estimate> {
        Estimate::by_state(|state| {
            // What one core measured alone goes with every state; but two of those are in none.
            let within = |key: &Key, other: &Key| {
                let of_state = |burst: &&Burst| burst.state == state || burst.state == State::Any;
                let bursts: Vec<&Burst> = self.of(key).iter().filter(of_state).collect();
                let own = bursts.iter().any(|burst| burst.state == state);
                (own || self.of(other).iter().any(|burst| burst.state == state)).then_some(bursts)
            };
            let (over, under) = (within(over, under)?, within(under, over)?);
            let (a, b) = (by_block(&over, statistic), by_block(&under, statistic));
            let paired: Vec<f64> = a.iter().filter_map(|(block, a)| Some(a - b.get(block)?)).collect();
            let apart = |of: BTreeMap<u32, f64>| of.into_values().collect::<Vec<f64>>();
            let enough = paired.len() >= LEAST || paired.len() >= a.len().min(b.len());
            let found = if enough { stats::mean(&paired) } else { stats::difference(&apart(a), &apart(b)) };
            Some(found?.map(f64::exp))
        })
    }

    /// How many times its median a series' 99th percentile is, of each burst; the geometric mean, within each state of the machine.
    #[must_use]
    pub fn tail(&self, key: &Key) -> Option<Estimate> {
        let spread = self.spread(key);
        Estimate::by_state(|state| {
            let of = |burst: &Burst| Some((burst.get(Statistic::P99)? / burst.get(Statistic::P50)?).ln());
            let bursts = self.of(key).iter().filter(|burst| burst.state == state);
            let found: Vec<f64> = bursts.filter_map(of).filter(|times| times.is_finite()).collect();
            Some(stats::mean(&found)?.map(f64::exp).widened(spread))
        })
    }

    /// The geometric mean over blocks of what is made of several series' medians there, where a block has all of them in one
    /// state of the machine. What is not positive has no part in it.
    #[must_use]
    pub fn combined<const N: usize>(
        &self,
        keys: [&Key; N],
        by: impl Fn([f64; N]) -> f64,
    ) -> Option<Estimate> {
        let spread = self.spread(keys[0]);
        Estimate::by_state(|state| {
            let of = |key: &Key| {
                let bursts: Vec<&Burst> = self.of(key).iter().filter(|burst| burst.state == state).collect();
                by_block(&bursts, Statistic::P50)
            };
            let all = keys.map(of);
            let found: Vec<f64> = all[0]
                .keys()
                .filter(|block| all.iter().all(|one| one.contains_key(block)))
                .map(|block| by(std::array::from_fn(|n| all[n][block].exp())))
                .filter(|value| *value > 0.0)
                .map(f64::ln)
                .collect();
            Some(stats::mean(&found)?.map(f64::exp).widened(spread))
        })
    }

    /// How far apart one series and itself were, as a factor: the interval of the A/A pair's ratio, the wider side of it. It is that of the
    /// pairs that are most like what is compared: of its operation at such a server, else of its operation, else of its metric, else of
    /// all; 1 without any.
    #[must_use]
    pub fn spread(&self, compared: &Key) -> f64 {
        let of = |(first, again): &(Key, Key)| {
            let ratio = self.bare_ratio(Statistic::P50, first, again)?;
            let wide = |(_, i): (State, Interval)| (i.n >= LEAST).then(|| i.high.max(1.0 / i.low));
            ratio.all().filter_map(wide).reduce(f64::max)
        };
        let load = ServerLoad::of(&compared.series);
        let alike = |first: &Key| {
            let metric = first.metric == compared.metric;
            let op = metric && first.op == compared.op;
            [op && ServerLoad::of(&first.series) == load, op, metric, true]
        };
        let widest = |n: usize| {
            let those = self.controls.iter().filter(|(first, _)| alike(first)[n]);
            those.filter_map(of).reduce(f64::max)
        };
        (0..4).find_map(widest).unwrap_or(1.0)
    }

    /// The A/A pairs: what was measured twice, and how far apart it was.
    #[must_use]
    pub fn controls(&self) -> Vec<Control> {
        let of = |(first, again): &(Key, Key)| {
            let ratio = self.bare_ratio(Statistic::P50, first, again);
            Control { op: first.op.clone(), x: first.x, series: first.series.clone(), ratio }
        };
        self.controls.iter().map(of).collect()
    }

    fn of(&self, key: &Key) -> &[Burst] {
        self.kept.get(key).map_or(&[], |bursts| bursts)
    }

    /// A point's median, with its interval, in each state of the machine.
    #[must_use]
    pub fn level(&self, key: &Key) -> Option<Estimate> {
        Estimate::by_state(|state| self.centre(key, state, Statistic::P50))
    }

    /// A point's median, in the state with the most bursts.
    #[must_use]
    pub fn median(&self, key: &Key) -> Option<f64> {
        Some(self.level(key)?.value())
    }

    /// The mean over the bursts of a state: a geometric one, of what cannot be zero.
    fn centre(&self, key: &Key, state: State, statistic: Statistic) -> Option<Interval> {
        let bursts = self.of(key).iter().filter(|burst| burst.state == state);
        let values: Vec<f64> = bursts.filter_map(|burst| burst.get(statistic)).collect();
        if key.metric.is_positive() && values.iter().all(|value| *value > 0.0) {
            let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
            return Some(stats::mean(&logarithms)?.map(f64::exp));
        }
        stats::mean(&values)
    }

    /// Every point as a row of the report.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        self.kept
            .keys()
            .flat_map(|key| State::ALL.into_iter().filter_map(|state| self.row(key, state)))
            .collect()
    }

    fn row(&self, key: &Key, state: State) -> Option<Row> {
        let centre = |statistic| self.centre(key, state, statistic);
        let p50 = centre(Statistic::P50)?;
        let (metric, unit) = key.metric.words();
        let bursts = self.of(key).iter().filter(|burst| burst.state == state);
        let slowest = bursts.clone().filter_map(|burst| burst.get(Statistic::P50)).reduce(f64::min);
        // Of a rate a burst has one value: what is worst of it is the slowest burst.
        let is_rate = matches!(key.metric, Metric::Throughput | Metric::Rate);
        let p99 = if is_rate { slowest } else { centre(Statistic::P99).map(|p99| p99.value) };
        Some(Row {
            series: key.series.clone(),
            op: key.op.clone(),
            x: key.x,
            metric,
            unit,
            state: state.word(),
            mean: centre(Statistic::Mean).map(|mean| mean.value),
            p50: p50.value,
            low: p50.low.is_finite().then_some(p50.low),
            high: p50.high.is_finite().then_some(p50.high),
            p99,
            p999: centre(Statistic::P999).map(|p999| p999.value),
            bursts: p50.n as u64,
            cpu: Cpu::of(bursts.clone().filter_map(|burst| burst.ran)),
            n: bursts.map(|burst| burst.n).sum(),
            kind: Kind::Live,
        })
    }

    /// The bursts of processes that stand apart, the worst first: whose median is more than 1.5 times as much or as little as that of the bursts of
    /// their series in the same state of the machine, or whose 99th percentile is more than 3 times as much.
    #[must_use]
    pub fn outliers(&self) -> Vec<Outlier> {
        let mut all = Vec::new();
        for (key, bursts) in &self.kept {
            for (statistic, name, limit) in [(Statistic::P50, "p50", 1.5), (Statistic::P99, "p99", 3.0)] {
                for burst in bursts.iter().filter(|burst| burst.ran.is_some()) {
                    let alike = bursts.iter().filter(|other| other.state == burst.state);
                    let mut others: Vec<f64> = alike.filter_map(|other| other.get(statistic)).collect();
                    others.sort_unstable_by(f64::total_cmp);
                    let (Some(value), Some(ran)) = (burst.get(statistic), burst.ran) else { continue };
                    let times = value / others[others.len() / 2];
                    let apart = if statistic == Statistic::P50 { times.max(1.0 / times) } else { times };
                    // Of two nobody knows which one is the odd one.
                    if others.len() > 2 && apart > limit {
                        all.push(Outlier {
                            op: key.op.clone(),
                            x: key.x,
                            series: key.series.clone(),
                            state: burst.state.word(),
                            block: burst.block,
                            statistic: name,
                            value,
                            times,
                            client: ran.client,
                            server: ran.server,
                        });
                    }
                }
            }
        }
        let apart = |outlier: &Outlier| outlier.times.max(1.0 / outlier.times);
        all.sort_by(|a, b| apart(b).total_cmp(&apart(a)));
        all
    }

    /// What was to be measured, and has fewer bursts than `least` in all states together: one line each.
    #[must_use]
    pub fn lacking(&self, least: usize) -> Vec<String> {
        let few = |key: &&Key| self.of(key).len() < least;
        let line = |key: &Key| {
            let n = self.of(key).len();
            format!("{} {} {}: {n} of {least} bursts", key.op, crate::report::bytes(key.x), key.series)
        };
        self.expected.iter().filter(few).map(line).collect()
    }
}

/// The logarithm of a statistic in each block: where a block has several bursts, their mean. What is zero has none.
fn by_block(bursts: &[&Burst], statistic: Statistic) -> BTreeMap<u32, f64> {
    let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for burst in bursts {
        let Some(value) = burst.get(statistic).filter(|value| *value > 0.0) else { continue };
        let (sum, n) = sums.entry(burst.block).or_default();
        *sum += value.ln();
        *n += 1.0;
    }
    sums.into_iter().map(|(block, (sum, n))| (block, sum / n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Sense;
    use crate::role::Causes;
    use crate::stats::Judgement;

    fn key(series: &str) -> Key {
        Key { op: "write".into(), x: 64, series: series.into(), metric: Metric::Latency }
    }

    fn add(samples: &mut Samples, series: &str, state: State, block: u64, value: f64) {
        samples.block(block);
        samples.add(&key(series), state, state, [value; 10]);
    }

    #[test]
    fn a_tail_is_that_of_each_burst() {
        let mut samples = Samples::default();
        // One block is ten times as slow as the other, and neither has a tail of more than 5.
        for (block, unit) in [(0, 1.0), (1, 10.0)] {
            samples.block(block);
            let values = (0..200).map(|n| if n % 50 == 0 { 5.0 * unit } else { unit });
            samples.add(&key("a"), State::Near, State::Near, values);
        }
        let tail = samples.tail(&key("a")).expect("two bursts");
        assert!((tail.value() - 5.0).abs() < 0.02, "{tail}");
        assert_eq!(samples.tail(&key("b")), None);
    }

    #[test]
    fn ratios_never_mix_states() {
        let mut samples = Samples::default();
        add(&mut samples, "a", State::Near, 0, 2.0);
        add(&mut samples, "b", State::Far, 0, 1.0);
        assert_eq!(samples.ratio(&key("a"), &key("b")), None);
        add(&mut samples, "b", State::Near, 0, 1.0);
        assert!((samples.ratio(&key("a"), &key("b")).unwrap().value() - 2.0).abs() < 0.01);
    }

    #[test]
    fn what_one_core_measured_goes_with_every_state() {
        let mut samples = Samples::default();
        for block in 0..8 {
            add(&mut samples, "memcpy", State::Any, block, 1.0);
            let state = if block < 4 { State::Near } else { State::Far };
            add(&mut samples, "a", state, block, if block < 4 { 2.0 } else { 4.0 });
        }
        let ratio = samples.ratio(&key("a"), &key("memcpy")).unwrap();
        let found: Vec<_> = ratio.all().map(|(state, i)| (state, i.value.round(), i.n)).collect();
        assert_eq!(found, [(State::Near, 2.0, 4), (State::Far, 4.0, 4)]);
        let same = samples.ratio(&key("memcpy"), &key("memcpy")).unwrap();
        assert_eq!(same.all().map(|(state, _)| state).collect::<Vec<_>>(), [State::Any]);
    }

    #[test]
    fn a_burst_across_a_change_of_state_is_dropped() {
        let mut samples = Samples::default();
        samples.expect(&key("a"));
        samples.add(&key("a"), State::Near, State::Far, [1.0]);
        assert_eq!((samples.dropped, samples.rows().len()), (1, 0));
        assert_eq!(samples.lacking(1), ["write 64 a: 0 of 1 bursts"]);
    }

    #[test]
    fn a_long_burst_weighs_as_much_as_a_short_one() {
        let mut samples = Samples::default();
        for block in 0..6 {
            samples.block(block);
            let (n, value) = if block % 2 == 0 { (10_000, 1.0) } else { (10, 4.0) };
            samples.add(&key("a"), State::Near, State::Near, vec![value; n]);
        }
        let row = &samples.rows()[0];
        assert!((row.p50 - 2.0).abs() < 0.01, "{row:?}");
        assert_eq!((row.bursts, row.n), (6, 30_030));
    }

    /// Noise that all series of a block share is in no ratio, and one that is 15 % slower is seen through it.
    #[test]
    fn what_is_slower_by_15_percent_is_seen_through_the_drift_of_the_machine() {
        let mut samples = Samples::default();
        let mut random = fastrand::Rng::with_seed(3);
        samples.control(&key("a"));
        for block in 0..9 {
            let drift = 1.0 + random.f64();
            for (series, factor) in [("a", 1.0), ("a (again)", 1.0), ("slow", 1.15), ("same", 1.0)] {
                add(&mut samples, series, State::Near, block, drift * factor * (0.98 + 0.04 * random.f64()));
            }
        }
        let judged =
            |series, limit| samples.ratio(&key(series), &key("a")).unwrap().judge(Sense::AtMost, limit);
        assert_eq!(judged("slow", 1.0), Judgement::Missed);
        assert_eq!(judged("same", 1.0), Judgement::Undecided);
        assert_eq!(judged("same", 1.1), Judgement::Holds);
    }

    #[test]
    fn no_difference_is_smaller_than_that_of_a_series_and_itself() {
        let mut samples = Samples::default();
        samples.control(&key("a"));
        for block in 0..6 {
            let off = if block % 2 == 0 { 1.5 } else { 1.0 / 1.5 };
            add(&mut samples, "a", State::Near, block, 1.0);
            add(&mut samples, "a (again)", State::Near, block, off);
            add(&mut samples, "b", State::Near, block, 1.2);
        }
        assert!(samples.spread(&key("b")) > 1.2);
        let ratio = samples.ratio(&key("b"), &key("a")).unwrap();
        assert_eq!(ratio.judge(Sense::AtMost, 1.0), Judgement::Undecided);
        assert_eq!(
            samples.bare_ratio(Statistic::P50, &key("b"), &key("a")).unwrap().judge(Sense::AtMost, 1.0),
            Judgement::Missed
        );
    }

    #[test]
    fn a_burst_that_stands_apart_is_told_with_its_causes() {
        let mut samples = Samples::default();
        let client = Causes { cpu_us: 40, ..Causes::default() };
        for (block, value) in [2.0, 2.2, 2.0, 9.0, 2.1].into_iter().enumerate() {
            samples.block(block as u64);
            let server = Causes { timeouts: u64::from(value > 5.0), ..Causes::default() };
            let ran = Ran { values: vec![value; 20], client, server };
            samples.add_measured(&key("a"), State::Near, State::Near, ran);
            samples.add(&key("b"), State::Near, State::Near, [value; 20]);
        }
        // Of another state, it is not apart.
        let ran = Ran { values: vec![9.0; 20], client, server: client };
        samples.add_measured(&key("a"), State::Far, State::Far, ran);
        let found = samples.outliers();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].block, &found[0].series[..], found[0].server.timeouts), (3, "a", 1));
        let cpu = samples.rows().iter().map(|row| row.cpu.map(|cpu| cpu.client)).collect::<Vec<_>>();
        assert_eq!(cpu, [Some(2.0), Some(2.0), None]);
    }

    #[test]
    fn a_control_is_measured_twice_in_a_block() {
        let mut samples = Samples::default();
        samples.control(&key("a"));
        let mut runs = 0;
        for block in 0..3 {
            samples.block(block);
            samples
                .burst(Effort::Tiny, &key("a"), || {
                    runs += 1;
                    Ok(vec![f64::from(runs)])
                })
                .unwrap();
        }
        assert_eq!((runs, samples.rows().len(), samples.controls().len()), (6, 2, 1));
        assert!(samples.lacking(3).is_empty());
    }

    #[test]
    fn a_burst_may_say_something_of_several_keys() {
        let mut samples = Samples::default();
        samples.block(1);
        let keys = [&key("a"), &key("b")];
        samples.together(Effort::Tiny, keys, || Ok([vec![1.0].into(), vec![2.0, 2.0].into()])).unwrap();
        let found: Vec<_> = samples.rows().into_iter().map(|row| (row.series, row.bursts, row.n)).collect();
        assert_eq!(found, [("a".to_owned(), 1, 1), ("b".to_owned(), 1, 2)]);
        assert!(samples.together(Effort::Tiny, [&key("c")], || Err("it fails".into())).is_err());
        assert_eq!(samples.lacking(1), ["write 64 c: 0 of 1 bursts"]);
    }

    #[test]
    fn the_order_is_another_one_in_each_block() {
        let mut samples = Samples::default();
        let mut order = |block| {
            samples.block(block);
            samples.order(20)
        };
        assert_eq!(order(0), order(0));
        assert_ne!(order(0), order(1));
        let mut sorted = order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }
}
