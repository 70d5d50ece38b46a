//! What changed between two reports of one bench, beyond what differs from run to run.
//!
//! Two runs are not interleaved: the machine may have been slower as a whole in one of them. So what all points of a metric have in
//! common (the median of their ratios) is said once and taken off, and of the rest only that counts as a change which lies outside both
//! points' intervals and outside those A/A pairs of both runs that are most like it.

use std::collections::BTreeMap;

use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

use crate::alike::{ALIKE, alike};
use crate::report::{Control, Report, Row, align, bytes, figure};

/// What is read of an earlier report: what is not needed is passed over, so that those of other releases can be read.
#[derive(Clone, Debug, Deserialize)]
struct Earlier {
    bench: String,
    rows: Vec<Point>,
    #[serde(default)]
    controls: Vec<Pair>,
}

#[derive(Clone, Debug, Deserialize)]
struct Point {
    series: String,
    op: String,
    x: u64,
    metric: String,
    state: String,
    p50: f64,
    low: Option<f64>,
    high: Option<f64>,
    /// Earlier releases had none, and no interval either.
    #[serde(default)]
    bursts: u64,
}

/// An A/A pair, by state.
#[derive(Clone, Debug, Deserialize)]
struct Pair {
    op: String,
    series: String,
    /// Earlier releases did not say it: then they are like nothing but by their servers.
    #[serde(default)]
    metric: String,
    ratio: Option<BTreeMap<String, Bounds>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Bounds {
    low: Option<f64>,
    high: Option<f64>,
}

/// One point that both reports have.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Which point: its operation, x, series, metric and state.
    pub point: (String, u64, String, &'static str, &'static str),
    /// New over old, with what all points of the metric have in common taken off.
    pub ratio: f64,
    /// The bounds of that ratio.
    pub within: (f64, f64),
}

/// What two reports of a bench say of each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// By metric: how much all of its points changed, new over old, and how many there are.
    pub common: BTreeMap<&'static str, (f64, usize)>,
    /// The widest of the A/A pairs of both, as a factor. A point is held against those that are most like it.
    pub spread: f64,
    /// What changed beyond all that, the largest first.
    pub changed: Vec<Change>,
    /// Points that were compared.
    pub compared: usize,
    /// Points that could not be, as one of the reports has them without an interval.
    pub undecided: usize,
    /// Points of the earlier report that the new one lacks.
    pub gone: Vec<String>,
}

/// Whether what an earlier run wrote as JSON can be compared with a report of this bench.
///
/// # Errors
/// One sentence if the text is no report, or one of another bench.
pub fn check(bench: &str, old: &str) -> Result<(), String> {
    earlier(bench, old).map(drop)
}

fn earlier(bench: &str, old: &str) -> Result<Earlier, String> {
    let old: Earlier = serde_json::from_str(old).map_err(|e| format!("no report of a bench: {e}"))?;
    if old.bench != bench {
        return Err(format!("a report of `rem bench {}`, and this is one of `rem bench {bench}`", old.bench));
    }
    Ok(old)
}

/// Compares a report with what an earlier run wrote as JSON.
///
/// # Errors
/// One sentence if the text is no report, or one of another bench.
pub fn compare(new: &Report, old: &str) -> Result<Comparison, String> {
    let old = earlier(new.bench, old)?;
    let name = |op: &str, x: u64, series: &str, metric: &str, state: &str| {
        (op.to_owned(), x, series.to_owned(), metric.to_owned(), state.to_owned())
    };
    let mut earlier: BTreeMap<_, Point> =
        old.rows.into_iter().map(|p| (name(&p.op, p.x, &p.series, &p.metric, &p.state), p)).collect();
    let mut pairs: Vec<(&Row, Point)> = Vec::new();
    for row in &new.rows {
        let found = earlier.remove(&name(&row.op, row.x, &row.series, row.metric, row.state));
        pairs.extend(found.filter(|old| old.p50 > 0.0 && row.p50 > 0.0).map(|old| (row, old)));
    }
    let mut common: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (row, old) in &pairs {
        common.entry(row.metric).or_default().push(row.p50 / old.p50);
    }
    let common: BTreeMap<&str, (f64, usize)> = common
        .into_iter()
        .map(|(metric, mut ratios)| {
            ratios.sort_unstable_by(f64::total_cmp);
            (metric, (ratios[ratios.len() / 2], ratios.len()))
        })
        .collect();
    let of_new =
        new.controls.iter().map(|pair| ((&pair.op[..], &pair.series[..], pair.metric), spread(pair)));
    let of_old = old.controls.iter().map(|pair| {
        let bounds = pair.ratio.iter().flatten().map(|(_, bounds)| wider(bounds));
        ((&pair.op[..], &pair.series[..], &pair.metric[..]), bounds.fold(1.0, f64::max))
    });
    let spreads = Spreads([of_new.collect(), of_old.collect()]);
    let (mut changed, mut undecided, compared) = (Vec::new(), 0, pairs.len());
    for (row, old) in pairs {
        let enough = row.bursts >= 2 && old.bursts >= 2;
        let (Some(low), Some(high), Some(before), Some(after), true) =
            (row.low, row.high, old.low, old.high, enough)
        else {
            undecided += 1;
            continue;
        };
        let off = common[row.metric].0;
        let ratio = row.p50 / old.p50 / off;
        let spread = spreads.of((&row.op, &row.series, row.metric));
        let within = ((low / after / off).min(ratio / spread), (high / before / off).max(ratio * spread));
        if within.0 > 1.0 || within.1 < 1.0 {
            let point = (row.op.clone(), row.x, row.series.clone(), row.metric, row.state);
            changed.push(Change { point, ratio, within });
        }
    }
    changed.sort_by(|a, b| b.ratio.ln().abs().total_cmp(&a.ratio.ln().abs()));
    // A state that was not met this time is no loss.
    let left = earlier.into_keys().filter(|(op, x, series, metric, _)| {
        !new.rows.iter().any(|row| (&row.op, row.x, &row.series, row.metric) == (op, *x, series, &metric[..]))
    });
    let gone = left.map(|(op, x, series, ..)| format!("{op} {} {series}", bytes(x))).collect();
    let spread = spreads.widest();
    Ok(Comparison { common, spread, changed, compared, undecided, gone })
}

/// What a pair is of: operation, series and metric.
type Name<'a> = (&'a str, &'a str, &'a str);

/// How far a series was from itself, as a factor, by pair: those of either report.
struct Spreads<'a>([Vec<(Name<'a>, f64)>; 2]);

impl Spreads<'_> {
    /// The widest of the pairs that are most like such a point, of either report.
    fn of(&self, point: Name<'_>) -> f64 {
        let most_like = |pairs: &Vec<(Name<'_>, f64)>| {
            let widest = |n: usize| {
                let those = pairs.iter().filter(|(name, _)| alike(*name, point)[n]);
                those.map(|(_, spread)| *spread).reduce(f64::max)
            };
            (0..ALIKE).find_map(widest).unwrap_or(1.0)
        };
        self.0.iter().map(most_like).fold(1.0, f64::max)
    }

    fn widest(&self) -> f64 {
        self.0.iter().flatten().map(|(_, spread)| *spread).fold(1.0, f64::max)
    }
}

fn spread(pair: &Control) -> f64 {
    let all = pair.ratio.iter().flat_map(|ratio| ratio.all().collect::<Vec<_>>());
    all.map(|(_, i)| wider(&Bounds { low: Some(i.low), high: Some(i.high) })).fold(1.0, f64::max)
}

/// The wider side of an interval around one, as a factor; one that has no bounds says nothing.
fn wider(bounds: &Bounds) -> f64 {
    match (bounds.low, bounds.high) {
        (Some(low), Some(high)) if low > 0.0 && high.is_finite() => high.max(1.0 / low),
        _ => 1.0,
    }
}

impl Comparison {
    /// For a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("beside the earlier report: {} points", self.compared);
        for (metric, (ratio, n)) in &self.common {
            out += &format!("; {metric} {} x as a whole ({n})", figure(*ratio));
        }
        out += &format!(". A series differs from itself by up to {} x.\n", figure(self.spread));
        if self.undecided > 0 {
            out += &format!("{} points have too few bursts to be compared\n", self.undecided);
        }
        for gone in &self.gone {
            out += &format!("not measured any more: {gone}\n");
        }
        if self.changed.is_empty() {
            return out + "nothing changed beyond that\n";
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["changed", "size", "series", "metric", "state", "new / old", "95 %"]);
        for Change { point: (op, x, series, metric, state), ratio, within } in &self.changed {
            table.add_row([
                op.clone(),
                bytes(*x),
                series.clone(),
                (*metric).to_owned(),
                (*state).to_owned(),
                figure(*ratio),
                format!("{} to {}", figure(within.0), figure(within.1)),
            ]);
        }
        align(&mut table, &[1, 5, 6]);
        format!("{out}{table}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::State;
    use crate::samples::{Key, Metric, Samples};
    use crate::stats::{Estimate, Interval};

    /// A run in which one series takes `factor` times as long as the others do, on a machine that is `whole` times as slow.
    fn report(seed: u64, whole: f64, factor: f64) -> Report {
        let mut random = fastrand::Rng::with_seed(seed);
        let key =
            |series: &str| Key { op: "write".into(), x: 64, series: series.into(), metric: Metric::Latency };
        let mut samples = Samples::default();
        samples.control(&key("a"));
        for block in 0..9 {
            samples.block(block);
            for (series, times) in
                [("a", 1.0), ("a (again)", 1.0), ("b", 2.0), ("c", 3.0), ("d", 5.0 * factor)]
            {
                let value = whole * times * (0.98 + 0.04 * random.f64());
                samples.add(&key(series), State::Near, State::Near, [value; 10]);
            }
        }
        let (bars, claims) = (|_: &Samples| Vec::new(), |_: &Samples| Vec::new());
        Report::new("transport", serde_json::json!({}), &samples, bars, claims, Vec::new())
            .expect("it has rows")
    }

    #[test]
    fn one_that_is_slower_by_15_percent_is_seen_and_a_slower_machine_is_no_change() {
        let old = report(1, 1.0, 1.0).json();
        let found = compare(&report(2, 1.4, 1.15), &old).unwrap();
        assert_eq!(found.changed.len(), 1, "{}", found.text());
        assert_eq!(found.changed[0].point.2, "d");
        assert!((found.common["latency"].0 - 1.4).abs() < 0.05);
    }

    /// One that is 15 % slower is seen, though another operation's pair was three times as far from itself.
    #[test]
    fn a_point_is_held_against_the_pairs_that_are_most_like_it() {
        let pair = |op: &str, spread| Control {
            op: op.into(),
            x: 64,
            series: "a".into(),
            metric: "latency",
            ratio: Some(
                Estimate::by_state(|state| (state == State::Near).then_some(spread)).expect("a state"),
            ),
        };
        let wide = Interval { value: 1.0, low: 1.0 / 3.0, high: 3.0, n: 9 };
        let with = |mut report: Report| {
            report.controls.push(pair("read", wide));
            report
        };
        let (old, new) = (with(report(1, 1.0, 1.0)), with(report(2, 1.0, 1.15)));
        let found = compare(&new, &old.json()).expect("reports");
        assert_eq!(found.changed.len(), 1, "{}", found.text());
        assert!((found.spread - 3.0).abs() < 1e-9, "and it is told");
        // An earlier release did not say of which metric its pairs are.
        let earlier = old.json().replace("\"metric\": \"latency\",\n      \"ratio\"", "\"ratio\"");
        assert_ne!(earlier, old.json());
        assert!(compare(&new, &earlier).expect("reports").changed.is_empty());
    }

    #[test]
    fn two_runs_of_one_build_do_not_differ() {
        for seed in 0..50 {
            let found = compare(&report(seed + 100, 1.1, 1.0), &report(seed, 1.0, 1.0).json()).unwrap();
            assert!(found.changed.is_empty(), "seed {seed}: {}", found.text());
        }
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let new = report(1, 1.0, 1.0);
        assert!(compare(&new, "[]").is_err_and(|why| why.contains("no report")));
        let other = new.json().replace("\"transport\"", "\"erda\"");
        assert!(compare(&new, &other).is_err_and(|why| why.contains("`rem bench erda`")));
        let more = new.json().replace("\"c\"", "\"z\"");
        assert_eq!(compare(&new, &more).unwrap().gone, ["write 64 z"]);
        // One of an earlier release, without intervals.
        let row = r#"{"series":"a","op":"write","x":64,"metric":"latency","state":"near","p50":1.0,"n":3}"#;
        let earlier = format!(r#"{{"bench":"transport","rows":[{row}]}}"#);
        let found = compare(&new, &earlier).unwrap();
        assert_eq!((found.compared, found.undecided, found.changed.len()), (1, 1, 0));
    }
}
