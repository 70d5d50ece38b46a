//! The figure, like the paper's: six panels, a bar for each cell with its interval; behind it, paler, the same with a busy server.

use std::fmt::Write as _;
use std::path::Path;

use super::{Cell, cells, is_control};
use crate::plot::{self, steps};
use crate::report::{Report, Row, figure};
use crate::server_load::ServerLoad;

const PANEL: (f64, f64) = (620.0, 330.0);
const LEFT: f64 = 52.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 118.0;

/// Draws the report to a file, as SVG.
///
/// # Errors
/// One sentence if it cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    // What was asked for may be no bar of it: what is measured then is an A/A pair.
    if cells().iter().filter(|cell| !is_control(cell)).all(|cell| row(report, cell).is_none()) {
        return plot::draw(report, path);
    }
    std::fs::write(path, svg(report)).map_err(|e| format!("cannot draw {}: {e}", path.display()))
}

/// What was measured of a cell, in the state with the most samples.
fn row<'a>(report: &'a Report, cell: &Cell) -> Option<&'a Row> {
    let key = cell.key();
    let rows = report.rows.iter().filter(|row| row.op == key.op && row.series == key.series);
    rows.max_by_key(|row| row.n)
}

fn svg(report: &Report) -> String {
    let cells = cells();
    let (width, height) = (2.0 * PANEL.0, 3.0 * PANEL.1 + 50.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = format!(
        "Durable append of 64 bytes (median, us): rem bench remotelog on {}. Domains are declared.",
        report.machine
    );
    let _ = writeln!(out, "<text x=\"12\" y=\"18\" font-size=\"13\">{title}</text>");
    let legend =
        [("#1f77b4", "WRITE"), ("#ff7f0e", "WRITE_IMM"), ("#2ca02c", "SEND"), ("#7f7f7f", "message passing")];
    let mut x = 12.0;
    for (colour, name) in legend {
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"26\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = writeln!(out, "<text x=\"{}\" y=\"35\">{name}</text>", x + 14.0);
        x += 120.0;
    }
    let pale =
        format!("pale, behind: server {}; a bar that is cut has its value above it", ServerLoad::BUSY.name());
    let _ = writeln!(out, "<text x=\"{x}\" y=\"35\">{pale}</text>");
    let mut panels: Vec<String> = Vec::new();
    for cell in &cells {
        if !panels.contains(&cell.panel()) {
            panels.push(cell.panel());
        }
    }
    for (n, panel) in panels.iter().enumerate() {
        let origin = ((n / 3) as f64 * PANEL.0, (n % 3) as f64 * PANEL.1 + 40.0);
        let of: Vec<&Cell> = cells.iter().filter(|cell| cell.panel() == *panel).collect();
        draw_panel(
            &mut out,
            report,
            origin,
            &format!("({}) {panel}", ['a', 'b', 'c', 'd', 'e', 'f'][n]),
            &of,
        );
    }
    out.push_str("</svg>\n");
    out
}

fn draw_panel(out: &mut String, report: &Report, (x0, y0): (f64, f64), title: &str, cells: &[&Cell]) {
    let idle: Vec<&&Cell> = cells.iter().filter(|cell| cell.load == ServerLoad::IDLE).collect();
    // A bar that is much higher than the rest is cut, with its figure on it.
    let mut heights: Vec<f64> = cells.iter().filter_map(|cell| Some(row(report, cell)?.p50)).collect();
    heights.sort_unstable_by(f64::total_cmp);
    let top = heights
        .last()
        .copied()
        .unwrap_or(1.0)
        .min(heights.get(heights.len() / 2).copied().unwrap_or(1.0) * 4.0);
    let (floor, room) = (y0 + PANEL.1 - BOTTOM, PANEL.1 - BOTTOM - TOP);
    let scale = |value: f64| (value / top).min(1.0) * room;
    let _ = writeln!(out, "<text x=\"{}\" y=\"{}\" font-size=\"12\">{title}</text>", x0 + LEFT, y0 + 18.0);
    for value in steps(top) {
        let y = floor - scale(value);
        let _ = writeln!(
            out,
            "<line x1=\"{}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            x0 + LEFT,
            x0 + PANEL.0 - 10.0,
            x0 + LEFT - 4.0,
            y + 3.0,
            (value * 100.0).round() / 100.0
        );
    }
    let step = (PANEL.0 - LEFT - 14.0) / idle.len().max(1) as f64;
    for (n, cell) in idle.iter().enumerate() {
        let x = x0 + LEFT + 2.0 + n as f64 * step;
        let colour = match cell.op.map(remanence_persist::Op::name) {
            Some("WRITE") => "#1f77b4",
            Some("WRITE_IMM") => "#ff7f0e",
            Some(_) => "#2ca02c",
            None => "#7f7f7f",
        };
        let busy = cell.with(|c| c.load = ServerLoad::BUSY);
        let mut bar = |cell: &Cell, x: f64, width: f64, opacity: f64| {
            let Some(row) = row(report, cell) else { return };
            let value = row.p50;
            let height = scale(value);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
                 opacity=\"{opacity}\"/>",
                floor - height
            );
            let middle = x + width / 2.0;
            let mut above = floor - height;
            if let (1.0, Some((low, high))) = (opacity, row.low.zip(row.high)) {
                let (low, high) = (floor - scale(low), floor - scale(high));
                above = above.min(high);
                let _ = writeln!(
                    out,
                    "<line x1=\"{middle:.1}\" y1=\"{low:.1}\" x2=\"{middle:.1}\" y2=\"{high:.1}\" stroke=\"black\"/>"
                );
            }
            if opacity == 1.0 || value > top {
                let _ = writeln!(
                    out,
                    "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"9\">{}</text>",
                    above - 3.0,
                    figure(value)
                );
            }
        };
        bar(&busy, x, step * 0.9, 0.3);
        bar(cell, x + step * 0.15, step * 0.6, 1.0);
        let (lx, ly) = (x + step * 0.55, floor + 6.0);
        let _ = writeln!(
            out,
            "<text x=\"{lx:.1}\" y=\"{ly:.1}\" text-anchor=\"end\" font-size=\"9\" transform=\"rotate(-60 {lx:.1} \
             {ly:.1})\">{}</text>",
            cell.name().replace("_RQWRB", "")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Kind, Row};

    #[test]
    fn what_is_no_bar_of_the_figure_is_drawn_where_it_was_asked_for() {
        let all = cells();
        let control = all.iter().find(|cell| is_control(cell)).expect("there is one").key();
        let other = all[0].key();
        let rows: [(&str, &str); 3] =
            [("bare", "UDP round trip"), (&control.op, &control.series), (&other.op, &other.series)];
        let row =
            |(op, series): (&str, &str)| Row::single(op, 64, series, ("latency", "us"), 3.0, Kind::Live);
        let path = std::env::temp_dir().join(format!("rem-bench-remotelog-{}.svg", std::process::id()));
        let drawn = |rows: &[(&str, &str)]| {
            let rows = rows.iter().copied().map(row).collect();
            let params = serde_json::json!({ "only": ["it"] });
            let report = Report::of_rows("remotelog", params, rows, Vec::new(), Vec::new());
            draw(&report, &path).expect("it can be drawn");
            let svg = std::fs::read_to_string(&path).expect("it was written");
            std::fs::remove_file(&path).expect("it is ours");
            svg
        };
        assert!(drawn(&rows[..2]).contains("UDP round trip"));
        assert!(drawn(&rows).contains("message passing"), "the paper's figure");
    }
}
