//! The figure: panels as the paper's figures 14 to 26 and its Table 1, and ours beside the peers below them.

use std::path::Path;

use remanence_ycsb::workload::Mix;

use super::peerside::{self, Action, DataDirectory};
use super::{cleaning, table1, title};
use crate::plot::{self, Axis, Line, Panel, Point};
use crate::redis::Shape;
use crate::report::{Report, Row, bytes};
use crate::samples::AGAIN;
use crate::server_load::ServerLoad;

/// Panels beside each other: the paper has four workloads.
const COLUMNS: usize = 4;

/// Draws the report to a file, as SVG.
///
/// # Errors
/// One sentence if it cannot be written, or nothing in it can be drawn.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    plot::draw_panels(report, &panels(report), COLUMNS, path)
}

fn panels(report: &Report) -> Vec<Panel> {
    let mut panels = Vec::new();
    latency(report, &mut panels);
    throughput(report, &mut panels);
    cpu(report, &mut panels);
    cleaned(report, &mut panels);
    written(report, &mut panels);
    over_time(report, &mut panels);
    peers(report, &mut panels);
    panels
}

/// The lines of an operation, under what `called` makes of the names of its series.
fn lines(
    report: &Report,
    op: &str,
    metric: &str,
    scale: f64,
    called: impl Fn(&str) -> Option<String>,
) -> Vec<Line> {
    let rows: Vec<Row> = report
        .rows
        .iter()
        .filter(|row| row.op == op && row.metric == metric)
        .filter_map(|row| {
            let bound = |of: Option<f64>| of.map(|of| of * scale);
            let (low, high) = (bound(row.low), bound(row.high));
            Some(Row { series: called(&row.series)?, p50: row.p50 * scale, low, high, ..row.clone() })
        })
        .collect();
    plot::lines(&rows.iter().collect::<Vec<_>>())
}

/// The schemes at such a server.
fn with(load: ServerLoad) -> impl Fn(&str) -> Option<String> {
    move |series| load.scheme(series).map(str::to_owned)
}

/// The same, with the second one of an A/A pair: what differs between the two is no difference.
fn with_pairs(load: ServerLoad) -> impl Fn(&str) -> Option<String> {
    move |series| match series.strip_suffix(AGAIN) {
        Some(first) => Some(format!("{}{AGAIN}", load.scheme(first)?)),
        None => load.scheme(series).map(str::to_owned),
    }
}

fn as_it_is(series: &str) -> Option<String> {
    Some(series.to_owned())
}

/// Adds a point to the line of this name.
fn add(series: &mut Vec<Line>, name: String, point: Point) {
    match series.iter_mut().find(|(other, _)| *other == name) {
        Some((_, points)) => points.push(point),
        None => series.push((name, vec![point])),
    }
}

fn panel(caption: String, x: Axis, unit: &str, series: Vec<Line>) -> Panel {
    Panel { caption, x, unit: unit.into(), log: false, series, shaded: Vec::new(), shade: "log cleaning" }
}

fn latency(report: &Report, panels: &mut Vec<Panel>) {
    for (number, mix) in (14..).zip(Mix::PAPER_002) {
        for load in [ServerLoad::IDLE, ServerLoad::BUSY] {
            let series = lines(report, &format!("{} mean", title(mix)), "latency", 1.0, with_pairs(load));
            let caption = format!("Figure {number}: {}, mean latency, server: {}", title(mix), load.name());
            panels.push(panel(caption, Axis::Log("bytes".into()), "us", series));
        }
        panels.push(by_work(report, &format!("{} mean", title(mix))));
    }
}

/// The schemes where the server works for so long before each look.
fn by_work(report: &Report, op: &str) -> Panel {
    let mut series: Vec<Line> = Vec::new();
    for load in ServerLoad::ALL {
        let Some(us) = load.work_us() else { continue };
        for (name, points) in lines(report, op, "latency", 1.0, with_pairs(load)) {
            let at = points.iter().find(|point| point.x == super::VALUE as f64);
            let Some(point) = at.map(|&point| Point { x: us.into(), ..point }) else { continue };
            add(&mut series, name, point);
        }
    }
    let caption = format!("{op} latency by the server's work between two looks, {} B", super::VALUE);
    panel(caption, Axis::Linear("us of work".into()), "us", series)
}

fn throughput(report: &Report, panels: &mut Vec<Panel>) {
    for (number, mix) in (18..).zip(Mix::PAPER_002) {
        let series =
            lines(report, &format!("{} by threads", title(mix)), "rate", 1e3, with_pairs(ServerLoad::IDLE));
        let caption = format!("Figure {number}: {}, throughput", title(mix));
        panels.push(panel(caption, Axis::Linear("threads".into()), "KOp/s", series));
    }
}

/// The paper's figures are one for each value size, and in proportion to Erda.
fn cpu(report: &Report, panels: &mut Vec<Panel>) {
    let is_cpu = |row: &&Row| row.metric == "cpu";
    let mut sizes: Vec<u64> = report.rows.iter().filter(is_cpu).map(|row| row.x).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() > COLUMNS {
        sizes.retain(|size| [16, 64, 256, 1024].contains(size));
    }
    for (what, words) in [("application", "server's application"), ("server process", "server's process")] {
        for size in &sizes {
            let mut series: Vec<Line> = Vec::new();
            for (n, mix) in Mix::PAPER_002.into_iter().enumerate() {
                let all =
                    lines(report, &format!("{} {what}", title(mix)), "cpu", 1.0, with(ServerLoad::IDLE));
                let at = |points: &[Point]| points.iter().find(|p| p.x == *size as f64).map(|p| p.y);
                let erda = all.iter().find(|(name, _)| name == super::Series::TwoReads.name());
                let erda = erda.and_then(|(_, points)| at(points));
                for (name, points) in all {
                    let Some(cost) = at(&points) else { continue };
                    let drawn =
                        if what == "application" { erda.map(|erda| times(cost, erda)) } else { Some(cost) };
                    let Some(drawn) = drawn else { continue };
                    add(&mut series, name, Point::at(n as f64, drawn));
                }
            }
            let number = match size {
                16 => "Figure 22: ",
                64 => "Figure 23: ",
                256 => "Figure 24: ",
                1024 => "Figure 25: ",
                _ => "",
            };
            let names = Axis::Names(Mix::PAPER_002.map(|mix| title(mix).to_owned()).to_vec());
            let (unit, caption) = match what {
                "application" => ("times Erda's", format!("{number}CPU cost, {words}, {} B", bytes(*size))),
                _ => ("us of CPU per operation", format!("CPU cost, {words}, {} B", bytes(*size))),
            };
            panels.push(panel(caption, names, unit, series));
        }
    }
}

/// Of what costs nothing, anything is a multiple beyond measure: the paper's "positive infinity".
fn times(cost: f64, of: f64) -> f64 {
    match (cost > 0.0, of > 0.0) {
        (false, _) => 0.0,
        (true, true) => cost / of,
        (true, false) => f64::INFINITY,
    }
}

fn cleaned(report: &Report, panels: &mut Vec<Panel>) {
    let mut series: Vec<Line> = Vec::new();
    for during in [false, true] {
        let mut points = Vec::new();
        for (n, mix) in Mix::PAPER_002.into_iter().enumerate() {
            let key = cleaning::key(mix, during);
            let found = lines(report, &key.op, "latency", 1.0, |name| {
                (name == key.series).then(|| key.series.clone())
            });
            points.extend(
                found.first().and_then(|(_, points)| points.first()).map(|p| Point { x: n as f64, ..*p }),
            );
        }
        series.push((if during { "during log cleaning" } else { "normal" }.to_owned(), points));
    }
    let names = Axis::Names(Mix::PAPER_002.map(|mix| title(mix).to_owned()).to_vec());
    panels.push(panel("Figure 26: mean latency, 1K values".into(), names, "us", series));
}

fn written(report: &Report, panels: &mut Vec<Panel>) {
    for change in table1::Change::ALL {
        let called = |series: &str| (!series.ends_with("stored")).then(|| series.to_owned());
        let series = lines(report, change.op(), "written", 1.0, called);
        let caption = format!("Table 1: {}", change.op());
        panels.push(Panel {
            log: true,
            ..panel(caption, Axis::Log("bytes of value".into()), "bytes written", series)
        });
    }
}

fn over_time(report: &Report, panels: &mut Vec<Panel>) {
    for (metric, scale, words, unit) in
        [("latency", 1.0, "mean latency", "us"), ("rate", 1e3, "throughput", "KOp/s")]
    {
        for mix in Mix::PAPER_002 {
            let op = cleaning::over_time(mix);
            let series = lines(report, &op, metric, scale, as_it_is);
            let number = |value: &serde_json::Value| value.as_f64().unwrap_or_default();
            let intervals = report.params["cleaning"][&op].as_array().into_iter().flatten();
            let last = series.iter().flat_map(|s| &s.1).map(|p| p.x).fold(0.0, f64::max);
            let shaded = intervals.map(|i| (number(&i[0]).min(last), number(&i[1]).min(last))).collect();
            let caption = format!("(26) {}, {words} over time", title(mix));
            panels.push(Panel { shaded, ..panel(caption, Axis::Linear("ms".into()), unit, series) });
        }
    }
}

/// Bars for each size, or shape.
fn grouped(report: &Report, groups: &[(String, String, u64)], metric: &str, scale: f64) -> (Axis, Vec<Line>) {
    let mut series: Vec<Line> = Vec::new();
    for (n, (_, op, x)) in groups.iter().enumerate() {
        for (name, points) in lines(report, op, metric, scale, as_it_is) {
            let Some(found) = points.into_iter().find(|p| p.x == *x as f64) else { continue };
            let point = Point { x: n as f64, ..found };
            add(&mut series, name, point);
        }
    }
    series.sort_by(|a, b| a.0.cmp(&b.0));
    (Axis::Names(groups.iter().map(|group| group.0.clone()).collect()), series)
}

fn peers(report: &Report, panels: &mut Vec<Panel>) {
    for place in DataDirectory::ALL {
        for action in Action::ALL {
            let op = format!("{} on {}", action.word(), place.name());
            let sizes =
                peerside::SIZES.map(|size| (format!("{} B", bytes(size as u64)), op.clone(), size as u64));
            let (names, series) = grouped(report, &sizes, "latency", 1.0);
            panels.push(panel(format!("{op}, one client that spins"), names, "us", series));
        }
    }
    for place in DataDirectory::ALL {
        for action in Action::ALL {
            for size in peerside::SIZES {
                let group = |shape: Shape| {
                    let op =
                        format!("{} on {}, redis-benchmark {}", action.word(), place.name(), shape.words());
                    (shape.words(), op, size as u64)
                };
                let (names, series) = grouped(report, &Shape::ALL.map(group), "rate", 1e3);
                let caption = format!(
                    "redis-benchmark, {} on {}, {} B",
                    action.word(),
                    place.name(),
                    bytes(size as u64)
                );
                panels.push(panel(caption, names, "KOp/s", series));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Kind;

    fn row(op: &str, series: &str, metric: &'static str, unit: &'static str, x: u64, p50: f64) -> Row {
        let (op, series) = (op.to_owned(), series.to_owned());
        Row::single(op, x, series, (metric, unit), p50, Kind::Live)
    }

    fn report(rows: Vec<Row>, params: serde_json::Value) -> Report {
        Report::of_rows("erda", params, rows, Vec::new(), Vec::new())
    }

    /// A bench's rows, of as much as every panel needs.
    fn all() -> Report {
        let mut rows = Vec::new();
        for mix in Mix::PAPER_002 {
            for (n, scheme) in ["Erda, two READs", "Redo Logging"].into_iter().enumerate() {
                for size in [16, 64, 256, 1024] {
                    let y = (n * 50) as f64;
                    for load in ServerLoad::ALL {
                        let series = load.series(scheme);
                        rows.push(row(&format!("{} mean", title(mix)), &series, "latency", "us", size, y));
                        rows.push(row(
                            &format!("{} application", title(mix)),
                            &series,
                            "cpu",
                            "us/op",
                            size,
                            y,
                        ));
                        rows.push(row(
                            &format!("{} server process", title(mix)),
                            &series,
                            "cpu",
                            "us/op",
                            size,
                            y,
                        ));
                    }
                }
                for threads in [1, 4, 16] {
                    let op = format!("{} by threads", title(mix));
                    rows.push(row(&op, &format!("{scheme}/idle"), "rate", "Mop/s", threads, 0.01));
                }
            }
            for during in [false, true] {
                let key = cleaning::key(mix, during);
                rows.push(row(&key.op, &key.series, "latency", "us", key.x, 12.0));
            }
            for ms in 0..100 {
                let op = cleaning::over_time(mix);
                rows.push(row(&op, "Erda", "latency", "us", ms * 5, 10.0 + (ms % 7) as f64));
                rows.push(row(&op, "Erda", "rate", "Mop/s", ms * 5, 0.1));
            }
        }
        for change in table1::Change::ALL {
            for size in [16, 1024] {
                rows.push(row(change.op(), "Redo Logging", "written", "B", size, 2.0 * size as f64));
            }
        }
        for place in DataDirectory::ALL {
            for (action, size) in
                Action::ALL.into_iter().flat_map(|action| peerside::SIZES.map(|size| (action, size as u64)))
            {
                let op = format!("{} on {}", action.word(), place.name());
                rows.push(row(&op, "Redis, appendonly no, TCP", "latency", "us", size, 10.0));
                for shape in Shape::ALL {
                    rows.push(row(
                        &format!("{op}, redis-benchmark {}", shape.words()),
                        "gateway",
                        "rate",
                        "Mop/s",
                        size,
                        0.1,
                    ));
                }
            }
        }
        rows.push(row("YCSB-C mean", "Redo Logging/idle (again)", "latency", "us", 1024, 9.0));
        let intervals: serde_json::Map<String, serde_json::Value> = Mix::PAPER_002
            .map(|mix| (cleaning::over_time(mix), serde_json::json!([[125.0, 300.0]])))
            .into_iter()
            .collect();
        report(rows, serde_json::json!({ "cleaning": intervals }))
    }

    #[test]
    fn every_figure_has_its_panels_and_nothing_is_nowhere() {
        let report = all();
        let panels = panels(&report);
        assert!(panels.iter().all(|panel| panel.series.iter().any(|s| !s.1.is_empty())), "one is empty");
        assert!(panels.len().is_multiple_of(COLUMNS), "{} panels", panels.len());
        let path = std::env::temp_dir().join(format!("rem-bench-erda-figure-{}.svg", std::process::id()));
        draw(&report, &path).expect("it can be drawn");
        let svg = std::fs::read_to_string(&path).expect("it was written");
        std::fs::remove_file(&path).expect("it is ours");
        assert!(!svg.contains("NaN"), "a point is nowhere");
        for figure in 14..=26 {
            assert!(svg.contains(&format!("Figure {figure}: ")), "figure {figure}");
        }
        for part in [
            "Table 1: ",
            "over time",
            "GET on disk",
            "redis-benchmark",
            ">\ninf\n<",
            "log cleaning",
            "Redo Logging (again)",
        ] {
            assert!(svg.contains(part), "{part}");
        }
    }

    #[test]
    fn what_costs_erda_nothing_costs_the_others_beyond_measure() {
        assert_eq!((times(0.0, 0.0), times(3.0, 0.0), times(3.0, 1.5)), (0.0, f64::INFINITY, 2.0));
        let report = all();
        let panels = panels(&report);
        let cpu = panels.iter().find(|panel| panel.caption.starts_with("Figure 22")).expect("it is there");
        let redo = cpu.series.iter().find(|(name, _)| name == "Redo Logging").expect("a scheme");
        assert!(redo.1.iter().all(|p| p.y.is_infinite()) && redo.1.len() == 4, "{redo:?}");
    }

    #[test]
    fn the_time_of_cleaning_is_shaded_on_an_axis_of_time() {
        let report = all();
        let panels = panels(&report);
        let time = panels.iter().find(|panel| panel.caption.contains("over time")).expect("it is there");
        assert_eq!((&time.x, &time.shaded[..]), (&Axis::Linear("ms".into()), &[(125.0, 300.0)][..]));
    }

    /// `REMANENCE_BENCH_REPORT=erda.json REMANENCE_BENCH_PLOT=erda.svg cargo test -p remanence-bench a_report_is_drawn_again`
    /// draws what `rem bench erda --json` printed some time ago.
    #[test]
    fn a_report_is_drawn_again() {
        let Some(from) = std::env::var_os("REMANENCE_BENCH_REPORT") else { return };
        let to = std::env::var_os("REMANENCE_BENCH_PLOT").expect("REMANENCE_BENCH_PLOT names the figure");
        let text = std::fs::read_to_string(from).expect("a report");
        let value: serde_json::Value = serde_json::from_str(&text).expect("a report");
        let word = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let fixed = |row: &serde_json::Value, key: &str| -> &'static str { word(row, key).leak() };
        let rows = value["rows"].as_array().expect("rows").iter().map(|one| Row {
            p99: one["p99"].as_f64(),
            low: one["low"].as_f64(),
            high: one["high"].as_f64(),
            bursts: one["bursts"].as_u64().unwrap_or_default(),
            n: one["n"].as_u64().unwrap_or_default(),
            state: fixed(one, "state"),
            ..row(
                &word(one, "op"),
                &word(one, "series"),
                fixed(one, "metric"),
                fixed(one, "unit"),
                one["x"].as_u64().unwrap_or_default(),
                one["p50"].as_f64().unwrap_or_default(),
            )
        });
        draw(&report(rows.collect(), value["params"].clone()), Path::new(&to)).expect("it can be drawn");
    }
}
