//! What a bench says: rows and bars, as JSON for machines and as a table for people.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::machine::Machine;

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
    /// The state of the machine during the samples: `near`, `far` or `any`.
    pub state: &'static str,
    /// Median over all samples of this state.
    pub p50: f64,
    /// 99th percentile; for throughput, the slowest percent.
    pub p99: f64,
    /// How many samples stand behind it.
    pub n: u64,
    /// How it came about.
    pub kind: Kind,
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

/// What is asked of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// What is asked, in words.
    pub name: String,
    /// What was found, if the run had what it takes to find it.
    pub value: Option<f64>,
    /// What is asked.
    pub limit: f64,
    /// Which side is good.
    pub sense: Sense,
    /// Whether it holds; a bar without a value does not.
    pub holds: bool,
}

impl Bar {
    /// A bar over a value; `None` where the run could not measure it.
    #[must_use]
    pub fn new(name: impl Into<String>, value: Option<f64>, sense: Sense, limit: f64) -> Self {
        let holds = value.is_some_and(|v| match sense {
            Sense::AtMost => v <= limit,
            Sense::AtLeast => v >= limit,
        });
        Self { name: name.into(), value, limit, sense, holds }
    }
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
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
}

impl Report {
    /// What of it failed: the bars that were not measured. A figure that lacks one of them is no evidence.
    ///
    /// # Errors
    /// One sentence that names them, and what was skipped.
    pub fn whole(&self) -> Result<(), String> {
        let missing: Vec<&str> =
            self.bars.iter().filter(|bar| bar.value.is_none()).map(|bar| &bar.name[..]).collect();
        if missing.is_empty() {
            return Ok(());
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
        rows.set_header(["op", "size", "series", "state", "p50", "p99", "unit", "n"]);
        for row in &self.rows {
            rows.add_row([
                row.op.clone(),
                bytes(row.x),
                row.series.clone(),
                row.state.to_owned(),
                figure(row.p50),
                figure(row.p99),
                row.unit.to_owned(),
                row.n.to_string(),
            ]);
        }
        align(&mut rows, &[1, 4, 5, 7]);
        let _ = writeln!(out, "{rows}");
        if !self.bars.is_empty() {
            let mut bars = Table::new();
            bars.load_preset(presets::NOTHING);
            bars.set_header(["bar", "value", "", "limit", ""]);
            for bar in &self.bars {
                bars.add_row([
                    bar.name.clone(),
                    bar.value.map_or_else(|| "-".to_owned(), figure),
                    if bar.sense == Sense::AtMost { "<=" } else { ">=" }.to_owned(),
                    figure(bar.limit),
                    match (bar.value, bar.holds) {
                        (None, _) => "not measured",
                        (_, true) => "holds",
                        (_, false) => "MISSED",
                    }
                    .to_owned(),
                ]);
            }
            align(&mut bars, &[1, 3]);
            let _ = writeln!(out, "\n{bars}");
        }
        for line in &self.skipped {
            let _ = writeln!(out, "skipped: {line}");
        }
        out
    }
}

fn align(table: &mut Table, right: &[usize]) {
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A number with three significant digits, as a person would write it.
#[must_use]
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
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
        assert!(!Bar::new("a", None, Sense::AtMost, 1.0).holds);
        assert!(!Bar::new("a", Some(f64::NAN), Sense::AtMost, 1.0).holds);
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(figure(1234.5), "1234");
        assert_eq!(figure(5.291), "5.29");
        assert_eq!(figure(0.0604), "0.060");
        assert_eq!(bytes(65536), "64K");
        assert_eq!(bytes(1 << 20), "1M");
        assert_eq!(bytes(100), "100");
    }
}
