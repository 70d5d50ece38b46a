//! The figure: a column of panels for each request: p50 and p99 by achieved load, throughput and p99 by the number of clients.

use std::collections::BTreeMap;
use std::path::Path;

use super::service::{Request, Service};
use super::{by_clients, by_load};
use crate::plot::{self, Axis, Line, Panel, Point};
use crate::report::{Report, Row};

const LOAD: &str = "achieved, thousand operations a second";

/// What of a row is drawn.
type Value = fn(&Row) -> Option<f64>;

/// Draws the report to a file, as SVG.
///
/// # Errors
/// One sentence if it cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    plot::draw_panels(report, &panels(report), Request::ALL.len(), path)
}

/// Row by row.
fn panels(report: &Report) -> Vec<Panel> {
    let panel = |caption: String, x: Axis, unit: &str, series: Vec<Line>| Panel {
        caption,
        x,
        unit: unit.to_owned(),
        log: true,
        series,
        shaded: Vec::new(),
        shade: "",
    };
    let all = |of: &dyn Fn(Request) -> Panel| Request::ALL.map(of);
    let load = |name: &'static str, y: Value| {
        all(&|request| {
            let series = lines(report, request, by_load, "latency", y, |row| achieved(report, row));
            panel(format!("{}: {name} by load", request.name()), Axis::Linear(LOAD.into()), "us", series)
        })
    };
    let clients = |name: &'static str, metric, unit: &'static str, y: Value| {
        all(&|request| {
            let series = lines(report, request, by_clients, metric, y, |row| Some(row.x as f64));
            panel(format!("{}: {name} by clients", request.name()), Axis::Log("clients".into()), unit, series)
        })
    };
    let (p50, p99): (Value, Value) = (|row| Some(row.p50), |row| row.p99);
    let mut panels = Vec::new();
    panels.extend(load("p50", p50));
    panels.extend(load("p99", p99));
    panels.extend(clients("throughput", "rate", "million operations a second", p50));
    panels.extend(clients("p50", "latency", "us", p50));
    panels.extend(clients("p99", "latency", "us", p99));
    panels
}

/// How many thousand operations a second there were, of those that were offered.
fn achieved(report: &Report, row: &Row) -> Option<f64> {
    let of = |row: &Row| (row.op.clone(), row.series.clone(), row.x, row.state);
    let rate = report.rows.iter().find(|other| other.metric == "rate" && of(other) == of(row))?;
    Some(rate.p50 * 1e3)
}

/// A line for each series, and one for the limit beside them; each point of the state with the most bursts there.
fn lines(
    report: &Report,
    request: Request,
    op: fn(Request) -> String,
    metric: &str,
    y: Value,
    x: impl Fn(&Row) -> Option<f64>,
) -> Vec<Line> {
    let mut lines: BTreeMap<&str, BTreeMap<u64, &Row>> = BTreeMap::new();
    let limit = (op(Service::BARE.request), Service::BARE.series());
    let shown = |row: &&Row| {
        (row.op == op(request) || (&row.op, &row.series[..]) == (&limit.0, limit.1)) && row.metric == metric
    };
    for row in report.rows.iter().filter(shown) {
        let best = lines.entry(&row.series).or_default().entry(row.x).or_insert(row);
        if best.bursts < row.bursts {
            *best = row;
        }
    }
    let point = |row: &Row| {
        // An interval is that of the median.
        let interval = (y(row) == Some(row.p50)).then(|| row.low.zip(row.high)).flatten();
        Some(Point { x: x(row)?, y: y(row)?, interval })
    };
    let line = |(name, rows): (&str, BTreeMap<u64, &Row>)| {
        (name.to_owned(), rows.into_values().filter_map(point).collect())
    };
    lines.into_iter().map(line).collect()
}
