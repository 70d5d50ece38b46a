//! Figures as SVG: panels beside and below each other, each with its legend above what it shows and never over it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::{Report, Row, bytes, figure};

/// One panel of a figure: its axes and its curves.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What it shows.
    pub caption: String,
    /// What its x is.
    pub x: Axis,
    /// The unit of its y.
    pub unit: String,
    /// Whether y is logarithmic. Otherwise it begins at 0.
    pub log: bool,
    /// What is compared, by name: in `x` and `y`. Of [`Axis::Names`] `x` is the number of the name.
    pub series: Vec<Line>,
    /// Parts of x that are shaded, and why.
    pub shaded: Vec<(f64, f64)>,
    /// What a shade means.
    pub shade: &'static str,
}

/// What is compared: its name, and its points. At one whose y is no number (NaN) the line is broken.
pub type Line = (String, Vec<Point>);

/// A point of a line, with the interval that is drawn around it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Where on the x axis.
    pub x: f64,
    /// The value there.
    pub y: f64,
    /// The bounds of its 95 % interval, if it has one.
    pub interval: Option<(f64, f64)>,
}

impl Point {
    /// A point without an interval.
    #[must_use]
    pub const fn at(x: f64, y: f64) -> Self {
        Self { x, y, interval: None }
    }
}

/// The x of a panel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Bytes, threads, …: logarithmic; each value that was measured is marked.
    Log(String),
    /// The same, in proportion, from 0 on.
    Linear(String),
    /// One group of bars for each of these.
    Names(Vec<String>),
}

/// Draws one panel for each operation and metric of the report that was measured at more than one x: both axes are
/// logarithmic, a line for each series. Where several machine states were met, the one with the most bursts is drawn. What was asked
/// for by its name (`--only`) is drawn as well if it was measured at one x: as bars.
///
/// # Errors
/// One sentence if the file cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    draw_panels(report, &asked(report), 3, path)
}

/// Those of what was measured at more than one x, and of what was asked for by its name.
fn asked(report: &Report) -> Vec<Panel> {
    let mut panels = panels(report);
    panels.retain(|panel| matches!(panel.x, Axis::Log(_)) || report.params["only"].is_array());
    panels
}

/// One for each operation and metric: lines, or bars where there is only one x.
fn panels(report: &Report) -> Vec<Panel> {
    let of = |row: &Row| (row.op.clone(), row.metric);
    let mut seen = Vec::new();
    let mut panels = Vec::new();
    for row in &report.rows {
        if seen.contains(&of(row)) {
            continue;
        }
        seen.push(of(row));
        let rows: Vec<&Row> = report.rows.iter().filter(|other| of(other) == of(row)).collect();
        // Bytes, unless the parameter `x` has another word for it.
        let word = report.params["x"][&row.op].as_str().unwrap_or("bytes");
        let curve = rows.iter().any(|other| other.x != row.x);
        let mut series = lines(&rows);
        let x = match (curve, row.x) {
            (true, _) => Axis::Log(word.to_owned()),
            // What is of no size has none.
            (false, 0) => Axis::Names(vec![String::new()]),
            (false, x) => Axis::Names(vec![format!(
                "{} {word}",
                if word == "bytes" { bytes(x) } else { x.to_string() }
            )]),
        };
        if !curve {
            series.iter_mut().flat_map(|(_, points)| points).for_each(|point| point.x = 0.0);
        }
        let (caption, unit) = (format!("{} {}", row.op, row.metric), row.unit.to_owned());
        panels.push(Panel { caption, x, unit, log: curve, series, shaded: Vec::new(), shade: "" });
    }
    panels
}

/// The points of each series, one for each x: of the state with the most bursts there.
#[must_use]
pub fn lines(rows: &[&Row]) -> Vec<Line> {
    let mut names: Vec<&str> = rows.iter().map(|r| r.series.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| (name.to_owned(), line(rows, name))).collect()
}

fn line(rows: &[&Row], series: &str) -> Vec<Point> {
    let mut points: BTreeMap<u64, &Row> = BTreeMap::new();
    for row in rows.iter().filter(|r| r.series == series) {
        let point = points.entry(row.x).or_insert(row);
        if point.bursts < row.bursts {
            *point = row;
        }
    }
    let point = |(x, row): (u64, &Row)| Point { x: x as f64, y: row.p50, interval: row.low.zip(row.high) };
    points.into_iter().map(point).collect()
}

/// Draws these panels, so many beside each other, and what was measured in panels of its own where they are empty. A series has the same
/// colour in all of them.
///
/// # Errors
/// One sentence if nothing was measured, or the file cannot be written.
pub fn draw_panels(report: &Report, panels: &[Panel], columns: usize, path: &Path) -> Result<(), String> {
    let fault = |why: String| format!("cannot draw {}: {why}", path.display());
    let svg = svg(report, panels, columns).map_err(fault)?;
    std::fs::write(path, svg).map_err(|e| fault(e.to_string()))
}

fn svg(report: &Report, panels: &[Panel], columns: usize) -> Result<String, String> {
    let is_there = |panel: &&Panel| panel.series.iter().any(|(_, points)| !points.is_empty());
    let mut shown: Vec<&Panel> = panels.iter().filter(is_there).collect();
    let others = if shown.is_empty() { self::panels(report) } else { Vec::new() };
    shown.extend(&others);
    if shown.is_empty() {
        return Err("nothing was measured".into());
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in shown.iter().flat_map(|panel| &panel.series) {
        if !names.contains(&&name[..]) {
            names.push(name);
        }
    }
    let columns = shown.len().min(columns);
    let lines = shown.len().div_ceil(columns);
    let title = format!("rem bench {} on {}", report.bench, report.machine);
    // One panel is narrower than a title that names the machine.
    let width = (WIDTH * columns as u32).max(text_width(&title, TITLE) + 2 * TITLE);
    let mut svg = String::new();
    {
        let size = (width, HEIGHT * lines as u32 + 30);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(|e| e.to_string())?;
        let titled = root.titled(&title, ("sans-serif", TITLE)).map_err(|e| e.to_string())?;
        for (area, panel) in titled.split_evenly((lines, columns)).iter().zip(shown) {
            draw_panel(area, panel, &names).map_err(|e| e.to_string())?;
        }
        root.present().map_err(|e| e.to_string())?;
    }
    Ok(svg)
}

/// Pixels of a panel.
const WIDTH: u32 = 460;
const HEIGHT: u32 = 350;
/// Heights of letters, in pixels.
const TITLE: u32 = 14;
const CAPTION: u32 = 15;
const SMALL: u32 = 11;
/// Of a line of the legend.
const ROW: u32 = 15;
/// The line before a name of the legend, and what is free around it.
const SAMPLE: u32 = 18;
const GAP: u32 = 14;

/// Colours that people with any kind of sight tell apart (Okabe and Ito), and some more.
const COLOURS: [RGBColor; 22] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
    RGBColor(128, 80, 40),
    RGBColor(120, 94, 240),
    RGBColor(180, 180, 20),
    RGBColor(150, 150, 150),
    RGBColor(0, 70, 70),
    RGBColor(170, 0, 60),
    RGBColor(120, 200, 60),
    RGBColor(255, 140, 170),
    RGBColor(100, 60, 130),
    RGBColor(0, 200, 200),
    RGBColor(200, 165, 125),
    RGBColor(20, 90, 30),
    RGBColor(250, 215, 70),
    RGBColor(110, 20, 20),
    RGBColor(160, 175, 255),
];

/// The colour of the series with this number: no two of the first 44 have the same.
fn colour_of(number: usize) -> RGBColor {
    let RGBColor(red, green, blue) = COLOURS[number % COLOURS.len()];
    match (number / COLOURS.len()).is_multiple_of(2) {
        true => RGBColor(red, green, blue),
        // The same once more, darker.
        false => RGBColor(red / 2, green / 2, blue / 2),
    }
}

/// What can be read on such a ground.
fn legible_on(RGBColor(red, green, blue): RGBColor) -> RGBColor {
    let light = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    if light > 140_000 { BLACK } else { WHITE }
}

/// Pixels that a text takes at most: no letter of a sans-serif face is on average wider than 0.6 of its height.
fn text_width(text: &str, height: u32) -> u32 {
    (text.chars().count() as u32 * height * 6).div_ceil(10)
}

/// Where each name of a legend goes: its line, and how far from the left. As many lines as it takes.
fn legend(names: &[&str], width: u32) -> Vec<(u32, u32)> {
    let (mut line, mut at) = (0, 0);
    let mut places = Vec::with_capacity(names.len());
    for name in names {
        let takes = SAMPLE + 4 + text_width(name, SMALL) + GAP;
        if at > 0 && at + takes > width {
            (line, at) = (line + 1, 0);
        }
        places.push((line, at));
        at += takes;
    }
    places
}

type Fault<'a> = Box<dyn std::error::Error + 'a>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_panel<'a>(area: &Area<'a>, panel: &Panel, all: &[&str]) -> Result<(), Fault<'a>> {
    let colour = |name: &str| colour_of(all.iter().position(|other| *other == name).unwrap_or_default());
    let area = area.margin(6, 4, 8, 12).titled(&panel.caption, ("sans-serif", CAPTION))?;
    let present: Vec<&Line> = panel.series.iter().filter(|s| !s.1.is_empty()).collect();
    let mut names: Vec<&str> = present.iter().map(|(name, _)| &name[..]).collect();
    if !panel.shaded.is_empty() {
        names.push(panel.shade);
    }
    let places = legend(&names, area.dim_in_pixel().0.saturating_sub(GAP));
    let rows = places.last().map_or(0, |(line, _)| line + 1);
    let (above, below) = area.split_vertically(rows * ROW + 4);
    for (name, (line, at)) in names.iter().zip(places) {
        let (x, y) = ((GAP + at) as i32, (line * ROW + ROW / 2) as i32);
        let shade = !panel.shaded.is_empty() && *name == panel.shade;
        let (fill, half) = match (shade, &panel.x) {
            (true, _) => (SHADE, 5),
            (false, Axis::Names(_)) => (colour(name).mix(1.0), 5),
            (false, _) => (colour(name).mix(1.0), 1),
        };
        above.draw(&Rectangle::new([(x, y - half), (x + SAMPLE as i32, y + half)], fill.filled()))?;
        let text = (x + SAMPLE as i32 + 4, y - SMALL as i32 / 2);
        above.draw(&Text::new((*name).to_owned(), text, ("sans-serif", SMALL)))?;
    }
    let (xs, ys) = (Scale::of_x(panel), Scale::of_y(panel));
    let named = matches!(panel.x, Axis::Names(_));
    let mut chart = ChartBuilder::on(&below)
        .x_label_area_size(if named { 20 } else { 34 })
        .y_label_area_size(58)
        .build_cartesian_2d(xs.axis(), ys.axis())?;
    {
        let (word_of_x, word_of_y) = (|at: &f64| xs.word(*at), |at: &f64| ys.word(*at));
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_label_formatter(&word_of_x)
            .y_label_formatter(&word_of_y)
            .y_desc(&panel.unit);
        match &panel.x {
            Axis::Log(name) | Axis::Linear(name) => mesh.x_desc(name).draw()?,
            Axis::Names(_) => mesh.disable_x_mesh().draw()?,
        }
    }
    let bottom = ys.low;
    for (from, to) in &panel.shaded {
        let corners = [(xs.place(*from), bottom), (xs.place(*to), ys.high)];
        chart.draw_series([Rectangle::new(corners, SHADE.filled())])?;
    }
    for (number, (name, points)) in present.iter().enumerate() {
        let colour = colour(name);
        if named {
            let wide = 0.8 / present.len() as f64;
            for Point { x, y, interval } in points {
                let left = x + 0.1 + wide * number as f64;
                // What is beyond all measure ends at the top, and says so.
                let top = if y.is_finite() { ys.place(*y) } else { ys.high };
                let bar = Rectangle::new([(left, bottom), (left + wide * 0.92, top)], colour.filled());
                chart.draw_series([bar])?;
                let middle = left + wide * 0.46;
                let whisker = |(low, high)| {
                    PathElement::new(vec![(middle, ys.place(low)), (middle, ys.place(high))], BLACK.mix(0.7))
                };
                chart.draw_series(interval.map(whisker))?;
                if !y.is_finite() {
                    // Within the bar and along it: it is narrower than the word.
                    let width = f64::from(below.dim_in_pixel().0 - 58) * wide * 0.92 / xs.high;
                    let font = ("sans-serif", (width - 2.0).clamp(4.0, f64::from(SMALL))).into_font();
                    let style = font
                        .transform(FontTransform::Rotate270)
                        .color(&legible_on(colour))
                        .pos(Pos::new(HPos::Right, VPos::Center));
                    let top = EmptyElement::at((left + wide * 0.46, ys.high));
                    chart.draw_series([top + Text::new("inf", (0, 4), style)])?;
                }
            }
        } else {
            let whisker = |point: &Point| {
                let (x, (low, high)) = (xs.place(point.x), point.interval?);
                Some(PathElement::new(vec![(x, ys.place(low)), (x, ys.place(high))], colour.mix(0.6)))
            };
            chart.draw_series(points.iter().filter_map(whisker))?;
            for part in points.split(|point| point.y.is_nan()) {
                let part: Vec<(f64, f64)> = part.iter().map(|p| (xs.place(p.x), ys.place(p.y))).collect();
                chart.draw_series(LineSeries::new(part.iter().copied(), colour.stroke_width(2)))?;
                // Many points are a line by themselves.
                if points.len() <= 32 {
                    chart.draw_series(part.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
                }
            }
        }
    }
    Ok(())
}

/// Of what is shaded.
const SHADE: RGBAColor = RGBAColor(120, 120, 120, 0.18);

/// An axis: where a value is on it, and which values are named.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
    marks: Vec<f64>,
    names: Vec<String>,
    bytes: bool,
}

impl Scale {
    fn of_x(panel: &Panel) -> Self {
        let mut values: Vec<f64> = panel.series.iter().flat_map(|s| &s.1).map(|p| p.x).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let last = values.last().copied().unwrap_or(1.0);
        let scale = |low, high, log, marks| Self { low, high, log, marks, names: Vec::new(), bytes: false };
        match &panel.x {
            Axis::Log(name) => {
                let place = |x: f64| x.max(1.0).log10();
                let (low, high) = (place(values.first().copied().unwrap_or(1.0)), place(last));
                // More labels would run into each other.
                let step = values.len().div_ceil(9).max(1);
                let marks = values.iter().step_by(step).map(|x| place(*x)).collect();
                Self { bytes: name == "bytes", ..scale(low - 0.2, high + 0.2, true, marks) }
            }
            Axis::Linear(_) => {
                let high = last.max(1.0) * 1.03;
                // What was measured at few places is marked there, unless its labels ran into each other.
                let apart = values.windows(2).all(|two| two[1] - two[0] > high / 16.0);
                let marks = if values.len() <= 6 && apart { values } else { steps(high) };
                scale(0.0, high, false, marks)
            }
            Axis::Names(names) => {
                let marks = (0..names.len()).map(|n| n as f64 + 0.5).collect();
                Self { names: names.clone(), ..scale(0.0, names.len() as f64, false, marks) }
            }
        }
    }

    fn of_y(panel: &Panel) -> Self {
        // What is drawn of an interval is all of it.
        let drawn = |p: &Point| [p.y, p.interval.map_or(p.y, |i| i.0), p.interval.map_or(p.y, |i| i.1)];
        let values = || panel.series.iter().flat_map(|s| &s.1).flat_map(drawn).filter(|y| y.is_finite());
        let highest = values().fold(0.0, f64::max);
        if !panel.log {
            let high = if highest > 0.0 { highest * 1.08 } else { 1.0 };
            return Self { low: 0.0, high, log: false, marks: steps(high), names: Vec::new(), bytes: false };
        }
        let place = |y: f64| y.max(1e-4).log10();
        let lowest = values().filter(|y| *y > 0.0).fold(f64::MAX, f64::min).min(highest.max(1e-3));
        let (low, high) = (place(lowest) - 0.2, place(highest.max(1e-3)) + 0.2);
        // Powers of ten, and what is between them where there are few.
        let between: &[f64] = match high - low {
            span if span < 1.3 => &[1.0, 2.0, 3.0, 5.0, 7.0],
            span if span < 2.5 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = low.floor() as i32..=high.ceil() as i32;
        let all = powers.flat_map(|power| between.iter().map(move |m| f64::from(power) + m.log10()));
        let marks = all.filter(|at| (low..=high).contains(at)).collect();
        Self { low, high, log: true, marks, names: Vec::new(), bytes: false }
    }

    fn axis(&self) -> Marked {
        Marked { low: self.low, high: self.high, marks: self.marks.clone() }
    }

    fn place(&self, value: f64) -> f64 {
        let place = if self.log { value.max(1e-12).log10() } else { value };
        place.clamp(self.low, self.high)
    }

    fn word(&self, at: f64) -> String {
        if let Some(name) = self.names.get(at as usize) {
            return name.clone();
        }
        let value = if self.log { 10_f64.powf(at) } else { at };
        if self.bytes {
            return bytes(value.round() as u64);
        }
        let text = figure(value);
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text,
        }
    }
}

/// An axis as plotters sees it: always in proportion, with the marks that were chosen.
struct Marked {
    low: f64,
    high: f64,
    marks: Vec<f64>,
}

impl Ranged for Marked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// About six round values from 0 to this one.
pub(crate) fn steps(high: f64) -> Vec<f64> {
    let power = 10_f64.powf((high / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| high / step <= 6.0);
    let step = step.unwrap_or(high);
    (0..).map(|n| f64::from(n) * step).take_while(|value| *value <= high).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Kind;

    #[test]
    fn a_legend_has_lines_enough_and_no_two_names_in_one_place() {
        let names = ["a short one", "one that is a good deal longer", "another", "and one more", "x"];
        let places = legend(&names, 300);
        assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
        assert!(places.last().expect("five").0 > 0, "they do not fit one line");
        for (name, (_, at)) in names.iter().zip(&places) {
            assert!(at + SAMPLE + 4 + text_width(name, SMALL) <= 300, "{name} is cut off");
        }
    }

    #[test]
    fn no_two_series_have_one_colour() {
        let all: std::collections::BTreeSet<_> = (0..44).map(colour_of).map(|c| (c.0, c.1, c.2)).collect();
        assert_eq!(all.len(), 44);
    }

    #[test]
    fn marks_are_few_and_round() {
        assert_eq!(steps(103.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(steps(0.5).len(), 6);
        assert_eq!(steps(2060.0), [0.0, 500.0, 1000.0, 1500.0, 2000.0]);
    }

    fn panel(x: Axis, log: bool, points: &[(f64, f64)]) -> Panel {
        let series = vec![("a".to_owned(), points.iter().map(|(x, y)| Point::at(*x, *y)).collect())];
        Panel { caption: String::new(), x, unit: "us".into(), log, series, shaded: vec![], shade: "" }
    }

    /// Of `write` there are two sizes, and of `atomic` one.
    fn report(ops: &[&str], params: serde_json::Value) -> Report {
        let points = [("write", 64, 2.0), ("write", 128, 3.0), ("atomic", 8, 1.0), ("atomic", 8, 4.0)];
        let series = ["ours", "ours", "ours", "theirs"];
        let row = |((op, x, y), series): ((&str, u64, f64), &str)| {
            let single = Row::single(op, x, series, ("latency", "us"), y, Kind::Live);
            Row { low: Some(y * 0.5), high: Some(y * 2.0), ..single }
        };
        let rows = points.into_iter().zip(series).filter(|((op, ..), _)| ops.contains(op)).map(row);
        Report::of_rows("a", params, rows.collect(), Vec::new(), Vec::new())
    }

    fn drawn(report: &Report) -> String {
        svg(report, &asked(report), 3).expect("it can be drawn")
    }

    #[test]
    fn what_was_measured_at_one_place_is_drawn_where_it_was_asked_for_or_is_all_there_is() {
        let (all, only) = (&["write", "atomic"], serde_json::json!({ "only": ["atomic"] }));
        let whole = drawn(&report(all, serde_json::json!({})));
        assert!(whole.contains("write latency") && !whole.contains("atomic latency"), "{whole}");
        for report in
            [report(all, only.clone()), report(&all[1..], only), report(&all[1..], serde_json::json!({}))]
        {
            let drawn = drawn(&report);
            assert!(
                ["atomic latency", "8 bytes", "ours", "theirs"].iter().all(|word| drawn.contains(word)),
                "{drawn}"
            );
        }
        assert_eq!(svg(&report(&[], serde_json::json!({})), &[], 3), Err("nothing was measured".to_owned()));
    }

    #[test]
    fn bars_stand_in_one_place_and_their_intervals_end_within_the_panel() {
        let panels = panels(&report(&["atomic"], serde_json::json!({ "x": { "atomic": "threads" } })));
        let [panel] = &panels[..] else { panic!("{panels:?}") };
        assert_eq!(panel.x, Axis::Names(vec!["8 threads".into()]));
        assert_eq!(
            panel.series.iter().map(|(_, points)| (points.len(), points[0].x)).collect::<Vec<_>>(),
            [(1, 0.0); 2]
        );
        let ys = Scale::of_y(panel);
        assert!(ys.low == 0.0 && ys.high >= 8.0, "{} to {}", ys.low, ys.high);
        let lines = Panel { log: true, ..panel.clone() };
        let ys = Scale::of_y(&lines);
        assert!(10_f64.powf(ys.low) < 0.5 && 10_f64.powf(ys.high) > 8.0, "{} to {}", ys.low, ys.high);
    }

    #[test]
    fn a_linear_axis_begins_at_nothing_and_a_logarithmic_one_does_not() {
        let time = panel(Axis::Linear("ms".into()), false, &[(0.0, 10.0), (500.0, 20.0)]);
        let (xs, ys) = (Scale::of_x(&time), Scale::of_y(&time));
        assert_eq!((xs.low, ys.low), (0.0, 0.0));
        assert!((xs.place(250.0) * 2.0 - xs.place(500.0)).abs() < 1e-9);
        let near = panel(Axis::Linear("ms".into()), false, &[(70.0, 1.0), (120.0, f64::NAN), (1200.0, 2.0)]);
        assert_eq!(Scale::of_x(&near).marks, steps(1236.0), "labels of 70 and 120 would be one");
        assert!(Scale::of_y(&near).high < 3.0);
        let sizes = panel(Axis::Log("bytes".into()), true, &[(16.0, 10.0), (4096.0, 20.0)]);
        let (xs, ys) = (Scale::of_x(&sizes), Scale::of_y(&sizes));
        assert!((xs.place(256.0) * 2.0 - xs.place(16.0) - xs.place(4096.0)).abs() < 1e-9, "in the middle");
        assert_eq!(xs.word(xs.place(4096.0)), bytes(4096));
        assert!(ys.marks.len() >= 3 && ys.place(0.0) == ys.low, "{:?}", ys.marks);
    }
}
