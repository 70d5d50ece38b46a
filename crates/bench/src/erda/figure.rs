//! The figure: panels like the paper's figures 14 to 26 and its Table 1, and ours beside the peers below them.

use std::path::Path;

use remanence_ycsb::workload::Mix;

use super::title;
use crate::report::{Report, Row};

/// A panel: its caption, the rows that are its points, and what they are called there.
struct Panel<'a> {
    caption: String,
    op: String,
    metric: &'static str,
    keep: Box<Keep<'a>>,
}

/// What a series is called in a panel, if it is there.
type Keep<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Draws the report to a file, as SVG.
///
/// # Errors
/// One sentence if it cannot be written, or nothing in it can be drawn.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    let mut drawn = report.clone();
    drawn.rows.clear();
    let mut axes = serde_json::Map::new();
    for panel in panels() {
        for row in report.rows.iter().filter(|row| row.op == panel.op && row.metric == panel.metric) {
            if let Some(series) = (panel.keep)(&row.series) {
                // Nothing is below the axis of a logarithmic figure: what is nothing at all lies on it.
                let floor = if row.unit == "us/op" { 1e-3 } else { 1e-4 };
                let p50 = row.p50.max(floor);
                drawn.rows.push(Row { op: panel.caption.clone(), series, p50, ..row.clone() });
            }
        }
        let axis = report.params["x"][&panel.op].as_str().unwrap_or("bytes");
        axes.insert(panel.caption, axis.into());
    }
    drawn.params = serde_json::json!({ "x": axes });
    crate::plot::draw_in(&drawn, path, 4)
}

fn panels() -> Vec<Panel<'static>> {
    let mut panels = Vec::new();
    let state = |busy: &'static str| {
        move |series: &str| series.strip_suffix(busy).map(|name| name.trim_end_matches('/').to_owned())
    };
    for (figure, mix) in (14..).zip(Mix::PAPER_002) {
        for busy in ["idle", "busy"] {
            panels.push(Panel {
                caption: format!("{figure}: {}, {busy} server, mean", title(mix)),
                op: format!("{} mean", title(mix)),
                metric: "latency",
                keep: Box::new(state(busy)),
            });
        }
    }
    for (figure, mix) in (18..).zip(Mix::PAPER_002) {
        panels.push(Panel {
            caption: format!("{figure}: {}, throughput", title(mix)),
            op: format!("{} by threads", title(mix)),
            metric: "rate",
            keep: Box::new(state("idle")),
        });
    }
    for what in ["application", "server process"] {
        for mix in Mix::PAPER_002 {
            panels.push(Panel {
                caption: format!("22-25: {}, {what}", title(mix)),
                op: format!("{} {what}", title(mix)),
                metric: "cpu",
                keep: Box::new(state("idle")),
            });
        }
    }
    for metric in ["latency", "rate"] {
        for mix in Mix::PAPER_002 {
            panels.push(Panel {
                caption: format!("26: {}, cleaning from 1/4 on,", title(mix)),
                op: super::cleaning::over_time(mix),
                metric,
                keep: Box::new(|series| Some(series.to_owned())),
            });
        }
    }
    for change in super::table1::Change::ALL {
        panels.push(Panel {
            caption: format!("Table 1: {}", change.op()),
            op: change.op().to_owned(),
            metric: "written",
            keep: Box::new(|series| (!series.ends_with("stored")).then(|| series.to_owned())),
        });
    }
    for place in ["tmpfs", "disk"] {
        for deed in ["GET", "PUT"] {
            panels.push(Panel {
                caption: format!("{deed} on {place}, one client that spins,"),
                op: format!("{deed} on {place}"),
                metric: "latency",
                keep: Box::new(|series| Some(series.to_owned())),
            });
        }
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::Kind;

    fn row(op: &str, series: &str, metric: &'static str, unit: &'static str, x: u64, p50: f64) -> Row {
        let (op, series) = (op.to_owned(), series.to_owned());
        Row { series, op, x, metric, unit, state: "any", p50, p99: p50, n: 1, kind: Kind::Live }
    }

    #[test]
    fn every_panel_has_its_rows_and_zero_can_be_drawn() {
        let mut rows = Vec::new();
        for panel in panels() {
            for x in [1, 4] {
                let busy = if panel.caption.contains("busy") { "busy" } else { "idle" };
                let unit = if panel.metric == "cpu" { "us/op" } else { "us" };
                rows.push(row(&panel.op, &format!("Erda/{busy}"), panel.metric, unit, x, 0.0));
            }
        }
        let report = Report {
            bench: "erda",
            machine: Machine::here(),
            params: serde_json::json!({ "x": { "YCSB-C by threads": "threads" } }),
            rows,
            bars: Vec::new(),
            skipped: Vec::new(),
        };
        let path = std::env::temp_dir().join(format!("rem-bench-erda-figure-{}.svg", std::process::id()));
        draw(&report, &path).expect("it can be drawn");
        let svg = std::fs::read_to_string(&path).expect("it was written");
        std::fs::remove_file(&path).expect("it is ours");
        assert!(!svg.contains("NaN"), "a point is nowhere");
        for figure in 14..=21 {
            assert!(svg.contains(&format!("{figure}: ")), "figure {figure}");
        }
        for part in ["22-25: ", "26: ", "Table 1: ", "GET on disk"] {
            assert!(svg.contains(part), "{part}");
        }
    }
}
