//! What a bench says: rows and bars, as JSON for machines and as a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::claims::{Claim, Verdict};
use crate::machine::{Machine, State};
use crate::role::{Causes, Ran};
use crate::samples::{self, Samples};
use crate::stats::{Estimate, Interval, Judgement};

/// How a figure came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Real memory and sockets.
    Live,
    /// The clock of a simulation.
    Simulated,
    /// A model of hardware that is not here.
    Model,
}

/// One measured point of one series.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured, over which path: `remanence/udp-lo`.
    pub series: String,
    /// The operation: `write`, `read`, `ping`, ….
    pub op: String,
    /// Where on the x axis: bytes, threads, ….
    pub x: u64,
    /// `latency`, `throughput` or `rate`.
    pub metric: &'static str,
    /// `us`, `GB/s` (10^9 bytes), `Mop/s`, ….
    pub unit: &'static str,
    /// The state of the machine during the bursts: `near`, `far`, `unclear` or `any`.
    pub state: &'static str,
    /// The mean over its bursts of their arithmetic means. A mean over bursts is a geometric one, of what cannot be zero.
    pub mean: Option<f64>,
    /// The mean over its bursts of their medians.
    pub p50: f64,
    /// The lower bound of that one's 95 % interval, from two bursts on.
    pub low: Option<f64>,
    /// The upper bound.
    pub high: Option<f64>,
    /// The mean over its bursts of their 99th percentiles, if they have 100 values at least; for throughput, the slowest burst.
    pub p99: Option<f64>,
    /// The mean over its bursts of their 99.9th percentiles, if they have 1000 values at least.
    pub p999: Option<f64>,
    /// How many bursts stand behind it.
    pub bursts: u64,
    /// How many values they had together.
    pub n: u64,
    /// What an operation cost its processes, where they are roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// The memory that these had, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// How it came about.
    pub kind: Kind,
}

impl Row {
    /// A figure that stands by itself: of a model, or counted. Its percentiles are the value.
    #[must_use]
    pub fn single(
        op: impl Into<String>,
        x: u64,
        series: impl Into<String>,
        (metric, unit): (&'static str, &'static str),
        value: f64,
        kind: Kind,
    ) -> Self {
        Self {
            series: series.into(),
            op: op.into(),
            x,
            metric,
            unit,
            state: State::Any.word(),
            mean: None,
            p50: value,
            low: None,
            high: None,
            p99: Some(value),
            p999: None,
            bursts: 1,
            n: 1,
            cpu: None,
            memory: None,
            kind,
        }
    }
}

/// Microseconds of CPU time for each operation, over all bursts.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cpu {
    /// Of the client's process.
    pub client: f64,
    /// Of the server's process: its application, the RNIC's engine, and what it spins.
    pub server: f64,
    /// Of the server's application, for the messages that it was sent.
    pub application: f64,
}

impl Cpu {
    /// Of bursts of so many operations each; `None` where these were not counted.
    pub(crate) fn of(bursts: impl Iterator<Item = Ran<u64>>) -> Option<Self> {
        let add = |(n, client, server, application): (u64, u64, u64, u64), ran: Ran<u64>| {
            let application = application + ran.server.application_ns;
            (n + ran.values, client + ran.client.cpu_us, server + ran.server.cpu_us, application)
        };
        let (n, client, server, application) = bursts.fold((0, 0, 0, 0), add);
        let each = |sum: u64| sum as f64 / n as f64;
        let (client, server, application) = (each(client), each(server), each(application) / 1e3);
        (n > 0).then_some(Self { client, server, application })
    }
}

/// MiB that the processes of a row had at most, until the burst in which that was most.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Memory {
    /// Of the client's process.
    pub client: f64,
    /// Of the server's, or of all of its programs together.
    pub server: f64,
}

impl Memory {
    /// Of these bursts.
    pub(crate) fn of(bursts: impl Iterator<Item = Ran<u64>>) -> Option<Self> {
        let both = bursts.map(|ran| [ran.client.memory_kib, ran.server.memory_kib]);
        let [client, server] = both.reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])])?;
        let mib = |kib: u64| kib as f64 / 1024.0;
        (client + server > 0).then(|| Self { client: mib(client), server: mib(server) })
    }
}

/// A burst that stands apart from the others of its series, and what its processes counted meanwhile.
#[derive(Clone, Debug, Serialize)]
pub struct Outlier {
    /// The operation's name.
    pub op: String,
    /// Where on the x axis.
    pub x: u64,
    /// What was measured.
    pub series: String,
    /// The state of the machine meanwhile.
    pub state: &'static str,
    /// The number of its block.
    pub block: u32,
    /// `p50` or `p99`.
    pub statistic: &'static str,
    /// What that was.
    pub value: f64,
    /// That, over the median of the bursts in the same state.
    pub times: f64,
    /// What the client's process counted.
    pub client: Causes,
    /// What the server's process counted.
    pub server: Causes,
}

/// A series that was measured twice in each block, under two names: what differs between the two is no difference.
#[derive(Clone, Debug, Serialize)]
pub struct Control {
    /// The operation, by its name in the rows.
    pub op: String,
    /// Where on the x axis.
    pub x: u64,
    /// What was measured twice.
    pub series: String,
    /// `latency`, `throughput`, ….
    pub metric: &'static str,
    /// The ratio of the two; none if it was not measured.
    pub ratio: Option<Estimate>,
}

/// Which side of the limit is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Sense {
    /// The value must not be above the limit.
    #[serde(rename = "<=")]
    AtMost,
    /// The value must not be below the limit.
    #[serde(rename = ">=")]
    AtLeast,
}

impl Sense {
    /// Whether a value is on the good side of a limit.
    #[must_use]
    pub const fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::AtMost => value <= limit,
            Self::AtLeast => value >= limit,
        }
    }
}

/// What is asked of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// What is asked, in words.
    pub name: String,
    /// What was found in the state of the machine that is judged, the worse one; none if it was not measured.
    pub value: Option<f64>,
    /// The lower bound of its 95 % interval.
    pub low: Option<f64>,
    /// The upper bound.
    pub high: Option<f64>,
    /// The state of the machine in which the value was found.
    pub state: Option<State>,
    /// What is asked.
    pub limit: f64,
    /// Which side is good.
    pub sense: Sense,
    /// What became of it.
    pub verdict: Judgement,
    /// Whether it holds: only where the whole interval does, in every state of the machine.
    pub holds: bool,
    /// Whether it is decided so closely that another run may leave it undecided: see [`Estimate::is_close`].
    pub close: bool,
    /// What was found in each state.
    pub states: Option<Estimate>,
}

impl Bar {
    /// A bar over an estimate, or over a value that is known; `None` where the run could not measure it.
    #[must_use]
    pub fn new<E: Into<Estimate>>(
        name: impl Into<String>,
        value: Option<E>,
        sense: Sense,
        limit: f64,
    ) -> Self {
        let states: Option<Estimate> = value.map(Into::into);
        let verdict = states.map_or(Judgement::NotMeasured, |found| found.judge(sense, limit));
        let worse = states.map(|found| found.worse(sense));
        let bound =
            |of: fn(&Interval) -> f64| worse.map(|(_, interval)| of(&interval)).filter(|b| b.is_finite());
        Self {
            name: name.into(),
            value: worse.map(|(_, interval)| interval.value),
            low: bound(|interval| interval.low),
            high: bound(|interval| interval.high),
            state: worse.map(|(state, _)| state),
            limit,
            sense,
            verdict,
            holds: verdict == Judgement::Holds,
            close: states.is_some_and(|found| found.is_close(sense, limit)),
            states,
        }
    }

    /// The same, of what was not measured.
    #[must_use]
    pub(crate) fn unmeasured(self) -> Self {
        Self::new(self.name, None::<f64>, self.sense, self.limit)
    }

    /// Whether more blocks could decide it, so that another run decides the same.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.close || matches!(self.verdict, Judgement::NotMeasured | Judgement::Undecided)
    }
}

/// So many outliers are printed, and so many of one series are in the JSON.
const OUTLIERS: usize = 12;
const OF_A_SERIES: usize = 4;

/// Those of outliers that a report has, the worst of all first, and how many more each series had.
fn worst(all: Vec<Outlier>) -> (Vec<Outlier>, BTreeMap<String, usize>) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let is_kept = |outlier: &Outlier| {
        let count = counts.entry(outlier.series.clone()).or_default();
        *count += 1;
        *count <= OF_A_SERIES
    };
    let kept = all.into_iter().filter(is_kept).collect();
    counts.retain(|_, count| *count > OF_A_SERIES);
    counts.values_mut().for_each(|count| *count -= OF_A_SERIES);
    (kept, counts)
}

/// A finished bench.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Its name on the command line.
    pub bench: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// How it was run.
    pub params: serde_json::Value,
    /// Every figure that was measured.
    pub rows: Vec<Row>,
    /// What was asked of them.
    pub bars: Vec<Bar>,
    /// What was measured twice, to see what is no difference.
    pub controls: Vec<Control>,
    /// Bursts that stand apart, the worst first: a few of each series.
    pub outliers: Vec<Outlier>,
    /// How many more each series has, where it has more.
    pub outliers_left_out: BTreeMap<String, usize>,
    /// What was to be measured, and has fewer bursts than a verdict takes.
    pub lacking: Vec<String>,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
    /// What the paper claims, and what became of it: `params.claims` in the JSON.
    #[serde(skip)]
    pub claims: Vec<Claim>,
    /// What stands before the table on a terminal.
    #[serde(skip)]
    pub preface: String,
}

impl Report {
    /// The report of figures that stand by themselves.
    #[must_use]
    pub fn of_rows(
        bench: &'static str,
        mut params: serde_json::Value,
        rows: Vec<Row>,
        bars: Vec<Bar>,
        skipped: Vec<String>,
    ) -> Self {
        params["command"] =
            std::env::args().skip(1).fold("rem".to_owned(), |all, arg| all + " " + &arg).into();
        Self {
            bench,
            machine: Machine::here(),
            params,
            rows,
            bars,
            controls: Vec::new(),
            outliers: Vec::new(),
            outliers_left_out: BTreeMap::new(),
            lacking: Vec::new(),
            skipped,
            claims: Vec::new(),
            preface: String::new(),
        }
    }

    /// The report of what was sampled, with those bars and claims that are about what was asked for.
    ///
    /// # Errors
    /// One sentence: nothing was measured.
    pub fn new(
        bench: &'static str,
        mut params: serde_json::Value,
        samples: &Samples,
        bars: impl Fn(&Samples) -> Vec<Bar>,
        claims: impl Fn(&Samples) -> Vec<Claim>,
        skipped: Vec<String>,
    ) -> Result<Self, String> {
        let rows = samples.rows();
        if rows.is_empty() {
            return Err(format!("nothing could be measured: {}", skipped.join("; ")));
        }
        params["effort"] = samples.effort().word().into();
        params["dropped_bursts"] = samples.dropped.into();
        if let Some(slower) = samples::slowed_down() {
            if !rows.iter().any(|row| row.series == *slower) {
                return Err(format!("no series is called {slower:?}, which is to be slowed down"));
            }
            params["slower"] = format!("{slower}: told as if it had taken 15 % longer").into();
        }
        if !samples.words().is_empty() {
            params["only"] = samples.words().into();
        }
        let bars = samples.asked(bars, |bar| bar.value.is_none(), |bar| &bar.name);
        let is_open = |claim: &Claim| matches!(claim.verdict, Verdict::Open | Verdict::ModelOnly);
        let claims = samples.asked(claims, is_open, |claim| &claim.paper);
        if !claims.is_empty() {
            params["claims"] = serde_json::to_value(&claims).unwrap_or_default();
        }
        let (outliers, outliers_left_out) = worst(samples.outliers());
        let (controls, lacking) = (samples.controls(), samples.lacking(samples.effort().least()));
        let report = Self::of_rows(bench, params, rows, bars, skipped);
        Ok(Self { controls, outliers, outliers_left_out, lacking, claims, ..report })
    }

    /// What of it failed: the bars that were not measured, and the points that have too few bursts. A figure that lacks one of
    /// them is no evidence.
    ///
    /// # Errors
    /// One sentence that names them, and what was skipped.
    pub fn whole(&self) -> Result<(), String> {
        let missing: Vec<&str> = self
            .bars
            .iter()
            .filter(|bar| bar.verdict == Judgement::NotMeasured)
            .map(|bar| &bar.name[..])
            .collect();
        if missing.is_empty() && self.lacking.is_empty() {
            return Ok(());
        }
        if missing.is_empty() {
            let because = match &self.skipped[..] {
                [] => "run it again, or on a machine that does less".to_owned(),
                lines => lines.join("; "),
            };
            return Err(format!(
                "{} points have too few bursts for a figure ({}): {because}",
                self.lacking.len(),
                self.lacking.join("; ")
            ));
        }
        let because = match &self.skipped[..] {
            [] => {
                "its two sides were never measured in the same state of the machine: run it again".to_owned()
            }
            lines => lines.join("; "),
        };
        Err(format!(
            "{} of {} bars were not measured ({}): {because}",
            missing.len(),
            self.bars.len(),
            missing.join(", ")
        ))
    }

    /// The JSON object of DESIGN's schema.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has no map with odd keys") + "\n"
    }

    /// Tables for a terminal.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = format!("{}\n\n", self.machine);
        let mut rows = Table::new();
        rows.load_preset(presets::NOTHING);
        rows.set_header([
            "op",
            "size",
            "series",
            "state",
            "mean",
            "p50",
            "95 % of p50",
            "p99",
            "p99.9",
            "unit",
            "bursts",
            "n",
        ]);
        let of = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
        for row in &self.rows {
            rows.add_row([
                row.op.clone(),
                bytes(row.x),
                row.series.clone(),
                row.state.to_owned(),
                of(row.mean),
                figure(row.p50),
                interval(row.low, row.high),
                of(row.p99),
                of(row.p999),
                row.unit.to_owned(),
                row.bursts.to_string(),
                row.n.to_string(),
            ]);
        }
        align(&mut rows, &[1, 4, 5, 6, 7, 8, 10, 11]);
        let _ = writeln!(out, "{rows}");
        if !self.bars.is_empty() {
            let mut bars = Table::new();
            bars.load_preset(presets::NOTHING);
            bars.set_header(["bar", "value", "95 %", "state", "", "limit", ""]);
            for bar in &self.bars {
                bars.add_row([
                    bar.name.clone(),
                    of(bar.value),
                    interval(bar.low.filter(|low| Some(*low) != bar.high), bar.high),
                    bar.state.map_or("-", State::word).to_owned(),
                    if bar.sense == Sense::AtMost { "<=" } else { ">=" }.to_owned(),
                    figure(bar.limit),
                    format!("{}{}", bar.verdict.word(), if bar.close { ", close" } else { "" }),
                ]);
            }
            align(&mut bars, &[1, 2, 5]);
            let _ = writeln!(out, "\n{bars}");
            let count = |verdict| self.bars.iter().filter(|bar| bar.verdict == verdict).count();
            let all = [Judgement::Holds, Judgement::Missed, Judgement::Undecided, Judgement::NotMeasured];
            let said = all.map(|verdict| format!("{} {}", count(verdict), verdict.word().to_lowercase()));
            let _ = writeln!(out, "{} bars: {}", self.bars.len(), said.join(", "));
        }
        for Control { op, x, series, ratio, .. } in &self.controls {
            let found = ratio.map_or_else(|| "not measured".to_owned(), |ratio| ratio.to_string());
            let _ = writeln!(out, "A/A: {op} {} {series} beside itself: {found}", bytes(*x));
        }
        for Outlier { op, x, series, state, statistic, value, times, client, server, .. } in
            self.outliers.iter().take(OUTLIERS)
        {
            let (x, value, times) = (bytes(*x), figure(*value), figure(*times));
            let _ = writeln!(
                out,
                "outlier: {op} {x} {series} ({state}): {statistic} {value}, {times} x the others'; the client: {client}; the \
                 server: {server}"
            );
        }
        let all = self.outliers.len() + self.outliers_left_out.values().sum::<usize>();
        if let more @ 1.. = all.saturating_sub(OUTLIERS) {
            let _ = writeln!(out, "and {more} outliers more: the JSON has the worst of each series");
        }
        for line in &self.lacking {
            let _ = writeln!(out, "too few bursts: {line}");
        }
        for line in &self.skipped {
            let _ = writeln!(out, "skipped: {line}");
        }
        out
    }
}

/// Numbers stand below each other by their last digit.
pub(crate) fn align(table: &mut Table, right: &[usize]) {
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Two bounds, where there are two.
fn interval(low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!("{} to {}", figure(low), figure(high)),
        _ => "-".to_owned(),
    }
}

/// A number with three significant digits, as a person would write it.
#[must_use]
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.1 => 3,
        v if v >= 0.01 => 4,
        v if v >= 0.001 => 5,
        v if v > 0.0 => 6,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// A size in the binary units that the command line takes: `64`, `4K`, `1M`.
#[must_use]
pub fn bytes(size: u64) -> String {
    match size {
        s if s >= 1 << 30 && s.is_multiple_of(1 << 30) => format!("{}G", s >> 30),
        s if s >= 1 << 20 && s.is_multiple_of(1 << 20) => format!("{}M", s >> 20),
        s if s >= 1 << 10 && s.is_multiple_of(1 << 10) => format!("{}K", s >> 10),
        s => s.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_that_was_not_measured_does_not_hold() {
        assert!(Bar::new("a", Some(1.0), Sense::AtMost, 1.0).holds);
        assert!(!Bar::new("a", Some(0.9), Sense::AtLeast, 1.0).holds);
        assert!(!Bar::new("a", None::<f64>, Sense::AtMost, 1.0).holds);
        assert!(!Bar::new("a", Some(f64::NAN), Sense::AtMost, 1.0).holds);
    }

    #[test]
    fn a_report_has_the_worst_outliers_of_each_series_and_says_how_many_more_there_are() {
        let outlier = |(series, times): (&str, f64)| Outlier {
            op: "write".into(),
            x: 64,
            series: series.into(),
            state: "near",
            block: 0,
            statistic: "p50",
            value: times,
            times,
            client: Causes::default(),
            server: Causes::default(),
        };
        let often = (0..100).map(|n| ("often", 200.0 - f64::from(n)));
        let all = often.chain([("seldom", 3.0), ("seldom", 2.0)]).map(outlier).collect();
        let (outliers, outliers_left_out) = worst(all);
        let kept: Vec<f64> = outliers.iter().map(|outlier| outlier.times).collect();
        assert_eq!(kept, [200.0, 199.0, 198.0, 197.0, 3.0, 2.0]);
        assert_eq!(outliers_left_out, BTreeMap::from([("often".to_owned(), 96)]));
        let whole = Report::of_rows("a", serde_json::json!({}), Vec::new(), Vec::new(), Vec::new());
        let report = Report { outliers, outliers_left_out, ..whole };
        let table = report.table();
        assert_eq!(table.matches("outlier: ").count(), 6, "{table}");
        assert!(table.contains("and 90 outliers more: the JSON has the worst of each series"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&report.json()).expect("JSON");
        assert_eq!(json["outliers_left_out"], serde_json::json!({ "often": 96 }));
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(5.291), "5.29");
        assert_eq!(figure(0.0604), "0.0604");
        assert_eq!(figure(0.001_234), "0.00123");
        assert_eq!(figure(0.0), "0.000");
        assert_eq!(bytes(65536), "64K");
        assert_eq!(bytes(1 << 20), "1M");
        assert_eq!(bytes(100), "100");
    }
}
