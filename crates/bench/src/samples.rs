//! Bursts by series and point, kept apart by the state of the machine, and what is made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::alike::{ALIKE, alike};
use crate::effort::Effort;
use crate::machine::State;
use crate::only::{self, Only, Points};
use crate::report::{Bar, Control, Cpu, Kind, Memory, Outlier, Row};
use crate::role::Ran;
use crate::stats::{self, Burst, Estimate, Interval, LEAST, LOOKS, Statistic};

/// What the name of a series ends with that is the second one of an A/A pair.
pub(crate) const AGAIN: &str = " (again)";

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
    /// The point of a row that no burst is behind.
    pub(crate) fn of(row: &Row) -> Self {
        Self::single(&row.op, row.x, &row.series)
    }

    /// A point that no burst is behind.
    pub(crate) fn single(op: &str, x: u64, series: &str) -> Self {
        Self { op: op.to_owned(), x, series: series.to_owned(), metric: Metric::Single }
    }

    /// Its operation, its series and its metric.
    fn words(&self) -> (&str, &str, Metric) {
        (&self.op, &self.series, self.metric)
    }

    /// The name of the second one of an A/A pair.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { series: format!("{}{AGAIN}", self.series), ..self.clone() }
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
    /// Seconds that a GiB of a log takes to be recovered; every recovery is a burst.
    Recovery,
    /// Of a row that no burst is behind, which has words of its own.
    Single,
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
            Self::Recovery => ("recovery", "s/GiB"),
            Self::Single => ("value", ""),
        }
    }

    /// What it would be if everything took 15 % more time.
    fn slower(self, value: f64) -> f64 {
        match self {
            Self::Latency | Self::Unavailability | Self::Recovery => value * SLOWER,
            Self::Throughput | Self::Rate => value / SLOWER,
            Self::Cpu | Self::Messages | Self::Single => value,
        }
    }

    /// Whether ratios and means of it are geometric: what may be zero has arithmetic ones, and no ratio.
    const fn is_positive(self) -> bool {
        !matches!(self, Self::Cpu | Self::Messages)
    }
}

/// How much longer what is [slowed down](slow_down) takes.
const SLOWER: f64 = 1.15;

static SLOWED_DOWN: OnceLock<String> = OnceLock::new();

/// Has all bursts of a series told as if they had taken 15 % longer, in this process: whoever doubts that a bench would see that sees it here, with the
/// noise of the machine that it is run on. The report says so.
pub fn slow_down(series: String) {
    let _ = SLOWED_DOWN.set(series);
}

/// The series that is told as slower than it was, if one is.
pub(crate) fn slowed_down() -> Option<&'static String> {
    SLOWED_DOWN.get()
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
    effort: Effort,
    only: Only,
    /// Once all was measured as often as it is in any case: what those bars are made of that are open still. The rest is measured no more.
    open: Option<Points>,
    /// What has been asked for, whether it was wanted or not.
    known: Points,
    kept: BTreeMap<Key, Vec<Burst>>,
    /// What is measured twice in each block, and under which name the second time.
    controls: Vec<(Key, Key)>,
    /// What is to be measured, whether it was or not.
    expected: BTreeSet<Key>,
    /// Rows that no burst is behind.
    singles: Vec<Row>,
    /// The present part of the bench, where it has several.
    part: &'static str,
    /// Several parts are listed before any of them is measured.
    has_parts: bool,
    block: u32,
    /// Blocks that were begun, of the present part.
    begun: u64,
    /// Steps that were told.
    steps: u64,
    /// Bursts during which the state changed: dropped.
    pub dropped: u64,
}

impl Samples {
    /// Those of a bench that measures so much, of what these words name (`--only`), or of all if there are none.
    #[must_use]
    pub fn new(effort: Effort, only: &[String]) -> Self {
        Self { effort, only: Only::new(only), ..Self::default() }
    }

    /// The same of a bench of several [parts](Self::next_part).
    pub(crate) fn in_parts(effort: Effort, only: &[String]) -> Self {
        Self { has_parts: true, ..Self::new(effort, only) }
    }

    /// How much is measured.
    pub(crate) const fn effort(&self) -> Effort {
        self.effort
    }

    /// Says that this series is measured twice in each block, under two names: the A/A pair of its metric.
    pub fn control(&mut self, key: &Key) {
        let pair = (key.clone(), key.again());
        self.know(key);
        if !self.controls.contains(&pair) {
            self.controls.push(pair);
        }
    }

    /// Whether this is measured: a burst that nobody wants is not run.
    pub fn wants(&mut self, key: &Key) -> bool {
        self.know(key);
        self.is_wanted(key)
    }

    fn is_wanted(&self, key: &Key) -> bool {
        self.only.wants(key) && self.open.as_ref().is_none_or(|open| open.contains_key(key))
    }

    /// Whether any of these is measured.
    pub(crate) fn wants_any<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) -> bool {
        let mut any = false;
        for key in keys {
            // Each of them is to be known.
            any |= self.wants(key);
        }
        any
    }

    /// Whether the second one of an A/A pair is measured.
    pub(crate) fn wants_again(&self, key: &Key) -> bool {
        self.controls.iter().any(|(first, again)| first == key && self.is_wanted(again))
    }

    /// Says that this can be asked for, of what comes behind the blocks or is there anyway.
    pub(crate) fn know(&mut self, key: &Key) {
        if !self.known.contains_key(key) {
            self.known.insert(key.clone(), self.part);
        }
    }

    /// Says that this is measured where the other one is asked for: its x is not known until then.
    pub(crate) fn stands_for(&mut self, listed: &Key, key: &Key) {
        if let Only::These { wanted, .. } = &mut self.only
            && let Some(&part) = wanted.get(listed)
        {
            wanted.insert(key.clone(), part);
        }
    }

    /// The words of `--only`.
    pub(crate) fn words(&self) -> &[String] {
        self.only.words()
    }

    /// Whether the bench is only asked what there is.
    pub(crate) const fn is_listing(&self) -> bool {
        matches!(self.only, Only::Listed { .. })
    }

    /// Whether bursts of the part of this name are measured.
    pub(crate) fn wants_part(&self, name: &str) -> bool {
        match &self.only {
            Only::All => true,
            Only::Listed { .. } => false,
            Only::These { wanted, .. } => {
                wanted.iter().any(|(key, part)| *part == name && key.metric != Metric::Single)
            }
        }
    }

    /// The number of the next step, of what is told of a bench's progress.
    pub(crate) fn step(&mut self) -> u64 {
        let step = self.steps;
        self.steps += u64::from(!self.is_listing());
        step
    }

    /// Whether another block of the bench, or of the present part of it, is to be measured: what follows belongs to it. There are `blocks`
    /// in any case, and up to three times as many while one of the bars is not measured or undecided still, as the machine was in different
    /// states, or varied: it is looked at [three times](LOOKS) only, as who looks after each block until something is decided decides it by
    /// chance. What is measured in those is what the open bars are made of, and the A/A pairs that they are judged by: a bar that is decided stays
    /// so, and how often it is looked at depends on no other. What failed in every block is not waited for. Where words say what is measured, one
    /// block comes before that in which nothing is.
    ///
    /// # Errors
    /// A word that names nothing.
    pub(crate) fn another(&mut self, blocks: u64, bars: impl Fn(&Self) -> Vec<Bar>) -> Result<bool, String> {
        if self.is_listing() {
            self.begun = 1 - self.begun.min(1);
            if self.begun == 1 || self.has_parts {
                return Ok(self.begun == 1);
            }
            self.settle(&bars)?;
        }
        let goes_on = self.wants_part(self.part)
            && (!self.begun.is_multiple_of(blocks)
                || self.begun == 0
                || (self.begun < LOOKS * blocks && self.look(&bars)));
        if goes_on {
            self.block(self.begun);
            self.begun += 1;
        } else {
            self.open = None;
        }
        Ok(goes_on)
    }

    /// Whether more blocks could decide one of the bars; they are of what those are made of.
    fn look(&mut self, bars: &impl Fn(&Self) -> Vec<Bar>) -> bool {
        // With one burst nothing is decided, and one that failed is tried again.
        let is_tiny = self.effort == Effort::Tiny;
        let is_possible = |(key, part): &(&Key, &&'static str)| {
            let is_tried = if is_tiny { key.metric != Metric::Single } else { self.kept.contains_key(*key) };
            is_tried && self.only.wants(key) && **part == self.part
        };
        let possible = self.known.iter().filter(is_possible);
        let possible: Points = possible.map(|(key, part)| (key.clone(), *part)).collect();
        let is_open = |bar: &Bar| if is_tiny { bar.value.is_none() } else { bar.is_open() };
        let both = bars(self).into_iter().zip(bars(&Self::of_each(possible.keys()))).enumerate();
        let open = both.filter(|(_, (bar, could))| is_open(bar) && could.value.is_some());
        let open: Vec<usize> = open.map(|(n, _)| n).collect();
        self.open = Self::made_of(&open, &possible, bars).map(|mut points| {
            points.extend(self.pairs_of(&points));
            points
        });
        !open.is_empty()
    }

    /// What the bars of these numbers are made of, of these points; `None` where they have values without it.
    fn made_of(numbers: &[usize], of: &Points, bars: &impl Fn(&Self) -> Vec<Bar>) -> Option<Points> {
        let there = |with: &Points| {
            let bars = bars(&Self::of_each(with.keys()));
            numbers.iter().all(|n| bars[*n].value.is_some())
        };
        let group: Vec<&Key> = of.keys().collect();
        let needed = only::needed(of, &group, &there).into_iter();
        let made: Points = needed.map(|key| (key.clone(), of[&key])).collect();
        there(&made).then_some(made)
    }

    /// What is no difference is found by the pairs that are most like what is measured.
    fn pairs_of(&self, wanted: &Points) -> Points {
        let mut pairs = Points::new();
        for (key, part) in wanted.iter().filter(|(key, _)| key.metric != Metric::Single) {
            let like = |n: usize| -> Vec<&(Key, Key)> {
                let is = |pair: &&(Key, Key)| {
                    alike(pair.0.words(), key.words())[n] && self.known.get(&pair.0) == Some(part)
                };
                self.controls.iter().filter(is).collect()
            };
            let found = (0..ALIKE).map(like).find(|found| !found.is_empty()).unwrap_or_default();
            let both = found.into_iter().flat_map(|(first, again)| [first, again]);
            pairs.extend(both.map(|key| (key.clone(), *part)));
        }
        pairs
    }

    /// Finds out what the words name, once everything that there is has asked whether it is wanted.
    ///
    /// # Errors
    /// A word that names nothing.
    pub(crate) fn settle(&mut self, bars: &impl Fn(&Self) -> Vec<Bar>) -> Result<(), String> {
        let (Only::Listed { words }, known) = (&self.only, &self.known) else { return Ok(()) };
        let all = bars(&Self::of_each(known.keys()));
        let names = all.iter().map(|bar| bar.name.clone()).collect();
        let (mut wanted, of_bars) = only::named(words, known, names)?;
        for (n, _) in all.iter().enumerate().filter(|(_, bar)| only::is_in(&bar.name, &of_bars)) {
            wanted.extend(Self::made_of(&[n], known, bars).unwrap_or_else(|| known.clone()));
        }
        wanted.extend(self.pairs_of(&wanted));
        self.only = Only::These { words: words.clone(), wanted, bars: of_bars };
        Ok(())
    }

    /// One burst of each of these points, of which nothing is known but that it is there.
    fn of_each<'a>(keys: impl IntoIterator<Item = &'a Key>) -> Self {
        let burst = Burst::of(0, State::Any, std::iter::repeat_n(1.0, 1000)).expect("it has values");
        let kept = keys.into_iter().map(|key| (key.clone(), vec![burst])).collect();
        Self { kept, ..Self::default() }
    }

    /// What is made of these samples, bars or claims, without what nobody asked for: that is what the points that are measured would leave
    /// open as well, or what no point has anything to do with, unless its name was asked for.
    pub(crate) fn asked<T>(
        &self,
        make: impl Fn(&Self) -> Vec<T>,
        is_open: impl Fn(&T) -> bool,
        name: impl Fn(&T) -> &str,
    ) -> Vec<T> {
        let all = make(self);
        let Only::These { wanted, .. } = &self.only else { return all };
        let (with, without) = (make(&Self::of_each(wanted.keys())), make(&Self::default()));
        let is_asked = |one: &T, n: usize| {
            let (with, without) = (with.get(n).is_none_or(&is_open), without.get(n).is_none_or(&is_open));
            self.only.names(name(one)) || (!with && without)
        };
        all.into_iter().enumerate().filter(|(n, one)| is_asked(one, *n)).map(|(_, one)| one).collect()
    }

    /// What follows is the part of the bench that is called so, with blocks of its own.
    pub(crate) fn next_part(&mut self, name: &'static str) {
        (self.part, self.begun, self.open) = (name, 0, None);
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
        if self.only.wants(key) {
            self.expected.insert(key.clone());
        }
    }

    /// Adds rows that no burst is behind: what a model says, or what was counted or done once. They can be asked for from then on.
    pub(crate) fn singles(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            self.know(&Key::of(&row));
            self.singles.push(row);
        }
    }

    /// What a row says that no burst is behind.
    pub(crate) fn value(&self, op: &str, x: u64, series: &str) -> Option<f64> {
        let key = Key::single(op, x, series);
        let row = self.singles.iter().find(|row| Key::of(row) == key && self.only.wants(&key));
        row.map(|row| row.p50).or_else(|| self.median(&key))
    }

    /// Adds one burst's values, in the metric's unit, unless the state changed while it ran.
    pub fn add(&mut self, key: &Key, before: State, after: State, values: impl IntoIterator<Item = f64>) {
        self.add_measured(key, before, after, values.into_iter().collect::<Vec<f64>>());
    }

    /// The same of what processes ran.
    pub fn add_measured(&mut self, key: &Key, before: State, after: State, measured: impl Into<Measured>) {
        if !self.only.wants(key) {
            return;
        }
        if before != after {
            self.dropped += 1;
            return;
        }
        let Measured { mut values, ran } = measured.into();
        if slowed_down() == Some(&key.series) {
            values.iter_mut().for_each(|value| *value = key.metric.slower(*value));
        }
        if let Some(mut burst) = Burst::of(self.block, before, values) {
            burst.ran = ran;
            self.kept.entry(key.clone()).or_default().push(burst);
        }
    }

    /// Runs bursts until the machine was in one state all through one of them, some times at most, and adds that one's values. A
    /// [control](Self::control) is measured twice. What nobody wants is not measured.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn burst<M: Into<Measured>>(
        &mut self,
        key: &Key,
        run: impl FnMut() -> Result<M, String>,
    ) -> Result<(), String> {
        let effort = self.effort;
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
        self.bursts_in(probe, std::slice::from_ref(key), || Ok(vec![run()?.into()]))
    }

    /// The same of a burst that says something of several keys, one after the other.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn bursts(
        &mut self,
        keys: &[Key],
        run: impl FnMut() -> Result<Vec<Measured>, String>,
    ) -> Result<(), String> {
        let effort = self.effort;
        self.bursts_in(|| effort.probe(), keys, run)
    }

    /// The same, where something else says in which state the machine is.
    ///
    /// # Errors
    /// What the burst said.
    pub(crate) fn bursts_in(
        &mut self,
        probe: impl Fn() -> State,
        keys: &[Key],
        mut run: impl FnMut() -> Result<Vec<Measured>, String>,
    ) -> Result<(), String> {
        const TRIES: u32 = 4;
        let mut names = vec![keys.to_vec()];
        if keys.iter().any(|key| self.controls.iter().any(|(first, _)| first == key)) {
            names.push(keys.iter().map(Key::again).collect());
        }
        // Whichever is first has no name of its own.
        if self.block % 2 == 1 {
            names.reverse();
        }
        keys.iter().for_each(|key| self.know(key));
        names.retain(|names| names.iter().any(|key| self.is_wanted(key)));
        names.iter().flatten().for_each(|key| self.expect(key));
        for names in names {
            let mut before = probe();
            for _ in 0..TRIES {
                let measured = run()?;
                let after = probe();
                for (key, measured) in names.iter().zip(measured) {
                    self.add_measured(key, before, after, measured);
                }
                if after == before {
                    break;
                }
                before = after;
            }
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
        Estimate::by_state(|state| {
            let (_, interval) = ratio.all().find(|(found, _)| *found == state)?;
            Some(interval.widened(self.spread(over, state)))
        })
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
        Estimate::by_state(|state| {
            let of = |burst: &Burst| Some((burst.get(Statistic::P99)? / burst.get(Statistic::P50)?).ln());
            let bursts = self.of(key).iter().filter(|burst| burst.state == state);
            let found: Vec<f64> = bursts.filter_map(of).filter(|times| times.is_finite()).collect();
            Some(stats::mean(&found)?.map(f64::exp).widened(self.spread(key, state)))
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
            Some(stats::mean(&found)?.map(f64::exp).widened(self.spread(keys[0], state)))
        })
    }

    /// How far apart one series and itself were, as a factor: the interval of the A/A pair's ratio, the wider side of it. It is that of the
    /// pairs that are most like what is compared: see [`alike`]; in that state of the machine, if it was there often enough; 1 without any.
    #[must_use]
    pub fn spread(&self, compared: &Key, state: State) -> f64 {
        let of = |(first, again): &(Key, Key)| {
            let ratio = self.bare_ratio(Statistic::P50, first, again)?;
            let widest = |is: &dyn Fn(State) -> bool| {
                let wide = |(found, i): (State, Interval)| {
                    (i.n >= LEAST && is(found)).then(|| i.high.max(1.0 / i.low))
                };
                ratio.all().filter_map(wide).reduce(f64::max)
            };
            widest(&|found| found == state).or_else(|| widest(&|_| true))
        };
        let widest = |n: usize| {
            let those = self.controls.iter().filter(|(first, _)| alike(first.words(), compared.words())[n]);
            those.filter_map(of).reduce(f64::max)
        };
        (0..ALIKE).find_map(widest).unwrap_or(1.0)
    }

    /// The A/A pairs: what was measured twice, and how far apart it was.
    #[must_use]
    pub fn controls(&self) -> Vec<Control> {
        let of = |(first, again): &(Key, Key)| {
            let ratio = self.bare_ratio(Statistic::P50, first, again);
            let (metric, _) = first.metric.words();
            Control { op: first.op.clone(), x: first.x, series: first.series.clone(), metric, ratio }
        };
        self.controls.iter().filter(|(_, again)| self.only.wants(again)).map(of).collect()
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

    /// The most that a burst of it had as its median.
    #[must_use]
    pub fn most(&self, key: &Key) -> Option<f64> {
        self.of(key).iter().filter_map(|burst| burst.get(Statistic::P50)).reduce(f64::max)
    }

    /// Every point as a row of the report.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let of = |key| State::ALL.into_iter().filter_map(move |state| self.row(key, state));
        let singles = self.singles.iter().filter(|row| self.only.wants(&Key::of(row)));
        self.kept.keys().flat_map(of).chain(singles.cloned()).collect()
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
            memory: Memory::of(bursts.clone().filter_map(|burst| burst.ran)),
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
    fn what_is_slowed_down_takes_longer_and_does_less_in_a_second() {
        let slower = |metric: Metric| metric.slower(2.0);
        assert!(
            (slower(Metric::Latency) - 2.3).abs() < 1e-9
                && slower(Metric::Latency) == slower(Metric::Recovery)
        );
        assert!((slower(Metric::Rate) - 2.0 / 1.15).abs() < 1e-9);
        assert_eq!(slower(Metric::Messages), 2.0, "how many there are is no matter of time");
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
        assert!(samples.spread(&key("b"), State::Near) > 1.2);
        let ratio = samples.ratio(&key("b"), &key("a")).unwrap();
        assert_eq!(ratio.judge(Sense::AtMost, 1.0), Judgement::Undecided);
        assert_eq!(
            samples.bare_ratio(Statistic::P50, &key("b"), &key("a")).unwrap().judge(Sense::AtMost, 1.0),
            Judgement::Missed
        );
    }

    /// At a busy server the same twice was three times as long; what is compared at an idle one is not held against that, though it is of another
    /// operation than the pair there.
    #[test]
    fn a_difference_is_held_against_the_pair_that_is_most_like_it() {
        let mut samples = Samples::default();
        let of = |op: &str, series: &str, metric| Key { op: op.into(), x: 64, series: series.into(), metric };
        let idle = of("get", "a/idle", Metric::Latency);
        let busy = of("get", "a/busy 50 us", Metric::Latency);
        let noisy = of("get", "c/idle", Metric::Latency);
        for (key, factor) in [(&idle, 1.1), (&busy, 3.0), (&noisy, 1.5)] {
            samples.control(key);
            for block in 0..6 {
                samples.block(block);
                let off = if block % 2 == 0 { factor } else { 1.0 / factor };
                samples.add(key, State::Near, State::Near, [1.0]);
                samples.add(&key.again(), State::Near, State::Near, [off]);
            }
        }
        let spread = |op, series, metric| samples.spread(&of(op, series, metric), State::Near);
        assert!(spread("get", "a/idle", Metric::Latency) < 1.2, "its own pair, however noisy others are");
        assert!(spread("get", "c/idle", Metric::Latency) > 1.3);
        assert!(spread("get", "b/idle", Metric::Latency) > 1.3, "the widest of those that are as like it");
        assert!(spread("put", "b/idle", Metric::Latency) < 2.0, "another operation");
        assert!(spread("put", "b/idle", Metric::Rate) < 2.0, "another metric");
        assert!(spread("get", "b/busy 50 us", Metric::Latency) > 2.0);
        assert!(spread("get", "b/spinning", Metric::Latency) > 2.0, "no pair at such a server");
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
        let mut samples = Samples::new(Effort::Tiny, &[]);
        samples.control(&key("a"));
        let mut runs = 0;
        for block in 0..3 {
            samples.block(block);
            samples
                .burst(&key("a"), || {
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
        let mut samples = Samples::new(Effort::Tiny, &[]);
        samples.control(&key("b"));
        samples.block(1);
        let mut runs = 0;
        let both = || {
            runs += 1;
            Ok(vec![vec![1.0].into(), vec![2.0, f64::from(runs)].into()])
        };
        samples.bursts(&[key("a"), key("b")], both).unwrap();
        let found: Vec<_> = samples.rows().into_iter().map(|row| (row.series, row.bursts, row.n)).collect();
        let row = |series: &str, n| (series.to_owned(), 1, n);
        assert_eq!(found, [row("a", 1), row("a (again)", 1), row("b", 2), row("b (again)", 2)]);
        assert!(samples.bursts(&[key("c")], || Err("it fails".into())).is_err());
        assert_eq!(samples.lacking(1), ["write 64 c: 0 of 1 bursts"]);
    }

    /// Three series, one of them with a bar beside the first, and what the two of them cost; a model beside them.
    fn asked(only: &[&str]) -> Result<(Samples, Vec<String>), String> {
        let words: Vec<String> = only.iter().map(|word| (*word).to_owned()).collect();
        let mut samples = Samples::new(Effort::Tiny, &words);
        samples.control(&key("Bare"));
        samples.singles([Row::single("model", 64, "paper", ("ratio", "times"), 2.0, Kind::Model)]);
        let mut run = Vec::new();
        while samples.another(1, bars)? {
            for series in ["Bare", "ours", "peer"] {
                samples.burst(&key(series), || {
                    run.push(series.to_owned());
                    Ok(vec![1.0])
                })?;
            }
        }
        Ok((samples, run))
    }

    fn bars(samples: &Samples) -> Vec<Bar> {
        let ratio = |over: &str, under: &str| samples.ratio(&key(over), &key(under));
        vec![
            Bar::new("fast enough", ratio("ours", "Bare"), Sense::AtMost, 1.25),
            Bar::new("as fast as others", ratio("ours", "peer"), Sense::AtMost, 1.25),
            Bar::new("model: twice", samples.value("model", 64, "paper"), Sense::AtLeast, 1.7),
        ]
    }

    fn of(only: &[&str]) -> (Vec<String>, Vec<String>, usize) {
        let (samples, run) = asked(only).expect("there is something of that name");
        let bars = samples.asked(bars, |bar| bar.value.is_none(), |bar| &bar.name);
        assert!(bars.iter().all(|bar| bar.value.is_some()), "{bars:?}");
        let rows: BTreeSet<String> = samples.rows().into_iter().map(|row| row.series).collect();
        assert!(run.iter().all(|series| rows.contains(series)), "{rows:?}");
        (run, bars.into_iter().map(|bar| bar.name).collect(), rows.len())
    }

    #[test]
    fn only_what_is_asked_for_is_measured_with_the_pair_that_it_is_judged_by() {
        let (run, bars, rows) = of(&[]);
        assert_eq!((run.len(), bars.len(), rows), (4, 3, 5));
        let pair = ["Bare", "Bare"];
        let with = |series: &'static str| [&pair[..], &[series]].concat();
        // A series, whatever its case.
        assert_eq!(of(&["PEER"]), (owned(with("peer")), vec![], 3));
        // What a bar is made of.
        let fast = vec!["fast enough".to_owned()];
        assert_eq!(of(&["fast enough"]), (owned(with("ours")), fast.clone(), 3));
        // Whatever is measured anyway is judged.
        assert_eq!(of(&["ours", "bare"]), (owned(with("ours")), fast, 3));
        // An operation has all series.
        assert_eq!(of(&["rit"]).0.len(), 4);
        // What was not measured needs no block.
        assert_eq!(of(&["twice"]), (vec![], vec!["model: twice".to_owned()], 1));
    }

    fn owned(all: Vec<&str>) -> Vec<String> {
        all.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_word_that_names_nothing_is_an_error_that_lists_what_there_is() {
        let Err(why) = asked(&["ours", "nobody"]) else { panic!("there is no such thing") };
        for part in [
            "\"nobody\"",
            "operations: model; write",
            "series: Bare; ours; paper; peer",
            "bars: as fast as others; fast",
        ] {
            assert!(why.contains(part), "no {part}: {why}");
        }
        assert!(!why.contains("parts:"), "it has none: {why}");
    }

    #[test]
    fn a_part_of_a_bench_can_be_asked_for() {
        let mut samples = Samples::in_parts(Effort::Tiny, &["second".to_owned()]);
        let mut run = Vec::new();
        for _ in 0..2 {
            for (part, series) in [("the first", "a"), ("the second", "b")] {
                samples.next_part(part);
                while samples.another(1, |_| Vec::new()).expect("nobody is asked yet") {
                    samples
                        .burst(&key(series), || {
                            run.push(series);
                            Ok(vec![1.0])
                        })
                        .expect("it runs");
                }
            }
            samples.settle(&|_: &Samples| Vec::new()).expect("there is a second part");
        }
        assert_eq!(run, ["b"]);
    }

    #[test]
    fn what_is_open_gets_more_blocks_and_not_for_ever() {
        let blocks = |effort, value: fn(u64) -> Option<f64>| {
            let mut samples = Samples::new(effort, &[]);
            // What is there, so that it could be decided.
            samples.expect(&key("a"));
            add(&mut samples, "a", State::Any, 0, 1.0);
            let bars = |samples: &Samples| {
                let value = if samples.blocks() == 0 { Some(2.0) } else { value(samples.blocks()) };
                vec![Bar::new("a", value, Sense::AtMost, 1.0)]
            };
            while samples.another(3, bars).expect("all is measured") {}
            samples.blocks()
        };
        assert_eq!(blocks(Effort::Quick, |_| Some(2.0)), 3);
        assert_eq!(blocks(Effort::Quick, |n| (n >= 5).then_some(2.0)), 6, "it is looked at twice");
        assert_eq!(blocks(Effort::Quick, |_| None), 9);
    }

    /// `open` is as long as `Bare`, give or take, and `ours` takes half of that: it is decided at once, and is not measured again. What is
    /// measured behind the blocks is what was asked for.
    #[test]
    fn only_what_an_open_bar_is_made_of_is_measured_again() {
        let of = |samples: &Samples, over: &str| samples.ratio(&key(over), &key("Bare"));
        let bars = |samples: &Samples| {
            ["ours", "open"].map(|name| Bar::new(name, of(samples, name), Sense::AtMost, 1.0)).to_vec()
        };
        let mut samples = Samples::new(Effort::Full, &[]);
        samples.control(&key("Bare"));
        let mut bursts: BTreeMap<&str, u64> = BTreeMap::new();
        while samples.another(6, bars).expect("all is measured") {
            for (series, us) in [("Bare", 2.0), ("ours", 1.0), ("open", 2.0), ("beside", 5.0)] {
                let factor = if samples.blocks().is_multiple_of(2) { 1.1 } else { 0.9 };
                let measured = samples.burst_in(
                    || State::Any,
                    &key(series),
                    || {
                        *bursts.entry(series).or_default() += 1;
                        Ok(vec![if series == "open" { us * factor } else { us }])
                    },
                );
                measured.expect("it runs");
            }
        }
        // The pair is measured twice in each block.
        assert_eq!(bursts, BTreeMap::from([("Bare", 36), ("beside", 6), ("open", 18), ("ours", 6)]));
        let verdicts = bars(&samples).into_iter().map(|bar| (bar.name, bar.verdict));
        let both = [("ours".to_owned(), Judgement::Holds), ("open".to_owned(), Judgement::Undecided)];
        assert_eq!(verdicts.collect::<Vec<_>>(), both);
        assert!(samples.wants(&key("beside")), "what comes behind the blocks is measured");
    }

    #[test]
    fn what_a_bar_has_from_either_of_two_is_measured_all_the_same() {
        let either = |samples: &Samples| {
            let found = samples.ratio(&key("a"), &key("b")).or_else(|| samples.ratio(&key("c"), &key("b")));
            vec![Bar::new("either", found, Sense::AtMost, 1.0)]
        };
        let mut samples = Samples::new(Effort::Full, &[]);
        let mut bursts: BTreeMap<&str, u64> = BTreeMap::new();
        while samples.another(6, either).expect("all is measured") {
            for series in ["a", "b", "c"] {
                let us = match (series, samples.blocks() % 2) {
                    ("a", 0) => 1.1,
                    ("a", _) => 0.9,
                    _ => 1.0,
                };
                let measured = samples.burst_in(
                    || State::Any,
                    &key(series),
                    || {
                        *bursts.entry(series).or_default() += 1;
                        Ok(vec![us])
                    },
                );
                measured.expect("it runs");
            }
        }
        assert_eq!(bursts, BTreeMap::from([("a", 18), ("b", 18), ("c", 18)]));
    }

    #[test]
    fn a_tiny_run_does_not_wait_for_a_decision_nor_any_for_what_always_fails() {
        let blocks = |effort, series: &str| {
            let mut samples = Samples::new(effort, &[]);
            let bars =
                |samples: &Samples| vec![Bar::new("a", samples.level(&key(series)), Sense::AtMost, 1.0)];
            while samples.another(1, bars).expect("all is measured") {
                samples.burst_in(|| State::Any, &key("a"), || Ok(vec![1.0])).expect("it runs");
                let fails = || Err::<Vec<f64>, _>("always".to_owned());
                let failed = samples.burst_in(|| State::Any, &key("fails"), fails).is_err();
                assert_eq!(failed, samples.wants(&key("fails")), "it is tried where it could decide");
            }
            samples.blocks()
        };
        assert_eq!((blocks(Effort::Tiny, "a"), blocks(Effort::Full, "a")), (1, 3));
        // A tiny one has one burst of each, which may have failed by chance.
        assert_eq!((blocks(Effort::Tiny, "fails"), blocks(Effort::Full, "fails")), (3, 1));
        assert_eq!((blocks(Effort::Tiny, "nobody's"), blocks(Effort::Full, "nobody's")), (1, 1));
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
