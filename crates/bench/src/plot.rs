//! Figures as SVG.

use std::path::Path;

use plotters::prelude::*;

use crate::report::{Report, Row, bytes};

/// Draws one panel for each operation and metric of the report that was measured at more than one x: both axes are
/// logarithmic, a line for each series. Where both machine states were met, the one with more samples is drawn.
///
/// # Errors
/// One sentence if the file cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    draw_in(report, path, 3)
}

/// The same, with so many panels beside each other.
///
/// # Errors
/// As [`draw`].
pub fn draw_in(report: &Report, path: &Path, columns: usize) -> Result<(), String> {
    let mut panels: Vec<(String, &str, &str)> = Vec::new();
    for row in &report.rows {
        let panel = (row.op.clone(), row.metric, row.unit);
        let curve = report.rows.iter().any(|r| (&r.op, r.metric) == (&row.op, row.metric) && r.x != row.x);
        if curve && !panels.contains(&panel) {
            panels.push(panel);
        }
    }
    if panels.is_empty() {
        return Err("nothing to draw: no operation was measured at more than one size".into());
    }
    let columns = panels.len().min(columns);
    let lines = panels.len().div_ceil(columns);
    let title = format!("rem bench {} on {}", report.bench, report.machine);
    // One panel is narrower than a title that names the machine.
    let width = (460 * columns as u32).max(title_width(&title));
    let size = (width, 340 * lines as u32 + 30);
    let fault = |e: String| format!("cannot draw {}: {e}", path.display());
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE).map_err(|e| fault(e.to_string()))?;
    let titled = root.titled(&title, ("sans-serif", TITLE)).map_err(|e| fault(e.to_string()))?;
    for (area, (op, metric, unit)) in titled.split_evenly((lines, columns)).iter().zip(&panels) {
        let rows: Vec<&Row> = report.rows.iter().filter(|r| r.op == *op && r.metric == *metric).collect();
        let caption = format!("{op} {metric}");
        panel(area, &caption, axis(report, op), unit, &rows).map_err(|e| fault(e.to_string()))?;
    }
    root.present().map_err(|e| fault(e.to_string()))
}

/// Height of the title's letters, in pixels.
const TITLE: u32 = 14;

/// Pixels that a title takes at most: no letter of a sans-serif face is on average wider than 0.6 of its height.
fn title_width(title: &str) -> u32 {
    (title.chars().count() as u32 * TITLE * 6).div_ceil(10) + 2 * TITLE
}

/// What an operation's x is: bytes, unless the parameter `x` has another word for it.
fn axis<'a>(report: &'a Report, op: &str) -> &'a str {
    report.params["x"][op].as_str().unwrap_or("bytes")
}

fn panel<'a>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    caption: &str,
    axis: &str,
    unit: &str,
    rows: &[&Row],
) -> Result<(), Box<dyn std::error::Error + 'a>> {
    let mut series: Vec<&str> = rows.iter().map(|r| r.series.as_str()).collect();
    series.sort_unstable();
    series.dedup();
    let span = |values: Vec<f64>| {
        let (low, high) = values.iter().fold((f64::MAX, 0.0_f64), |(l, h), v| (l.min(*v), h.max(*v)));
        (low.max(1e-4) / 1.6)..(high.max(1e-3) * 1.6)
    };
    let mut measured: Vec<f64> = rows.iter().map(|r| r.x.max(1) as f64).collect();
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    let xs = span(measured.clone());
    // More labels would run into each other.
    let marks = measured.iter().step_by(measured.len().div_ceil(9)).copied().collect();
    let ys = span(rows.iter().map(|r| r.p50).collect());
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(xs.log_scale().with_key_points(marks), ys.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| {
            if axis == "bytes" { bytes(x.round() as u64) } else { crate::report::figure(*x) }
        })
        .y_label_formatter(&|y| crate::report::figure(*y))
        .x_desc(axis)
        .y_desc(unit)
        .draw()?;
    for (index, name) in series.iter().enumerate() {
        let colour = Palette99::pick(index).mix(1.0);
        let points = line(rows, name);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        // Latencies rise to the right, rates and throughputs leave their corner free there.
        .position(if unit == "us" { SeriesLabelPosition::UpperLeft } else { SeriesLabelPosition::LowerRight })
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 11))
        .draw()?;
    Ok(())
}

/// The points of one series, one for each x: of the state with the most samples there.
fn line(rows: &[&Row], series: &str) -> Vec<(f64, f64)> {
    let mut points: Vec<(u64, u64, f64)> = Vec::new();
    for row in rows.iter().filter(|r| r.series == series) {
        match points.iter_mut().find(|p| p.0 == row.x) {
            Some(point) if point.1 >= row.n => {}
            Some(point) => *point = (row.x, row.n, row.p50),
            None => points.push((row.x, row.n, row.p50)),
        }
    }
    points.sort_unstable_by_key(|p| p.0);
    points.into_iter().map(|(x, _, y)| (x.max(1) as f64, y)).collect()
}
