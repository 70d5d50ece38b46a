//! The figure: a panel for each of the paper's, and what is asked beside them; and what a run was like over time.

use std::path::Path;
use std::time::Duration;

use super::{FULL_WRITE, OVER_TIME, READS, RECOVERY, ROOMY, Run, SHARES, Series, WRITE, Whole, op_of};
use crate::nvcache::ends::{BLOCK, Call};
use crate::nvcache::sqlite::{Journal, Work};
use crate::plot::{self, Axis, Line, Panel, Point};
use crate::report::{Kind, Report, Row};

/// Points of a run over time at most.
const POINTS: usize = 24;

/// What the run in the middle of these was like over time, by how fast all of it was: GB/s, microseconds of a write, and what was written so far.
pub(super) fn over_time(mut runs: Vec<Run>, series: &str, slice: Duration) -> Vec<Row> {
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some((_, slices)) = runs.get(runs.len() / 2) else { return Vec::new() };
    let together = slices.len().div_ceil(POINTS).max(1);
    let mut rows = Vec::new();
    let mut written = 0;
    for (n, some) in slices.chunks(together).enumerate() {
        let (writes, nanos) = some.iter().fold((0, 0), |sum, slice| (sum.0 + slice.0, sum.1 + slice.1));
        written += writes;
        let ms = ((n * together + some.len()) as u128 * slice.as_nanos() / 1_000_000) as u64;
        let mut row = |metric, unit, value| {
            let row = Row::single(OVER_TIME, ms, series, (metric, unit), value, Kind::Live);
            rows.push(Row { n: writes, ..row });
        };
        let seconds = slice.as_secs_f64() * some.len() as f64;
        let bytes = |writes: u64| (writes * BLOCK) as f64 / 1e9;
        // The last slice may have ended early.
        if (n + 1) * together <= slices.len().saturating_sub(1) || slices.len() == 1 {
            row("throughput", "GB/s", bytes(writes) / seconds);
        }
        if writes > 0 {
            row("latency", "us", nanos as f64 / writes as f64 / 1e3);
        }
        row("written", "GB", bytes(written));
    }
    rows
}

/// Draws the figure of a report.
///
/// # Errors
/// One sentence if it cannot be written, or there is nothing to draw.
pub fn draw(report: &Report, path: &Path) -> Result<(), String> {
    plot::draw_panels(report, &panels(report), 3, path)
}

fn panels(report: &Report) -> Vec<Panel> {
    let fs = report.params["file system"].as_str().unwrap_or_default();
    let [wal, delete] = Journal::ALL.map(|journal| op_of(Work::Insert(journal)));
    let reads = op_of(Work::Select(0));
    let calls = Call::ALL.map(|call| (call.name(), call.name()));
    let [small, roomy, large] = SHARES.map(|share| Whole::Log(share).name(fs));
    let logs = [small, roomy.clone(), large];
    let plain = [Series::Synced, Series::Direct, Series::Tmpfs].map(|series| series.name(fs));
    let systems: Vec<String> = [Whole::Log(ROOMY).name(fs)].into_iter().chain(plain).collect();
    let threads = [(WRITE, "1 thread"), (WRITE, "8 threads")];
    vec![
        named(report, "4 KiB random synchronous writes", "rate", "Mop/s", &threads),
        named(report, "4 KiB random synchronous writes", "latency", "us", &threads),
        named(
            report,
            "3.9, 3.13: SQLite, a row each transaction; reading rows",
            "latency",
            "us",
            &[(&wal, "WAL"), (&delete, "DELETE"), (&reads, "reading")],
        ),
        timed(report, "3.10: by size of the log", "throughput", "GB/s", &logs),
        timed(report, "3.10: by size of the log", "latency", "us", &logs),
        timed(report, "3.10: by size of the log", "written", "GB", &logs),
        timed(report, "3.12: beside other systems", "throughput", "GB/s", &systems),
        timed(report, "3.12: beside other systems", "latency", "us", &systems),
        timed(report, "3.12: beside other systems", "written", "GB", &systems),
        batches(report),
        named(report, "Reads, and calls that are not the cache's", "latency", "us", &{
            let mut ops = vec![(READS, "read 4 KiB")];
            ops.extend(calls);
            ops
        }),
        named(report, "Recovery", "recovery", "s/GiB", &[(RECOVERY, "of a log")]),
    ]
}

fn panel(caption: &str, x: Axis, unit: &str, log: bool, series: Vec<Line>) -> Panel {
    Panel {
        caption: caption.to_owned(),
        x,
        unit: unit.to_owned(),
        log,
        series,
        shaded: Vec::new(),
        shade: "",
    }
}

/// Bars: a group for each operation, or for each x of the one operation that all groups have.
pub(crate) fn named(report: &Report, caption: &str, metric: &str, unit: &str, ops: &[(&str, &str)]) -> Panel {
    let of = |op: &str| -> Vec<&Row> {
        report.rows.iter().filter(|row| row.op == op && row.metric == metric).collect()
    };
    let one = ops.len() > 1 && ops.iter().all(|(op, _)| *op == ops[0].0);
    let mut all: Vec<Line> = Vec::new();
    let mut add = |name: String, point: Point| match all.iter_mut().find(|(known, _)| *known == name) {
        Some((_, points)) => points.push(point),
        None => all.push((name, vec![point])),
    };
    for (group, (op, _)) in ops.iter().enumerate() {
        let rows = of(op);
        let mut xs: Vec<u64> = rows.iter().map(|row| row.x).collect();
        xs.sort_unstable();
        xs.dedup();
        for (name, points) in plot::lines(&rows) {
            let is_its = |point: &&Point| !one || xs.get(group).is_some_and(|x| *x as f64 == point.x);
            for point in points.iter().filter(is_its) {
                add(name.clone(), Point { x: group as f64, ..*point });
            }
        }
    }
    let names = ops.iter().map(|(_, name)| (*name).to_owned()).collect();
    panel(caption, Axis::Names(names), unit, true, all)
}

/// A panel of what changes over time.
fn timed(report: &Report, caption: &str, metric: &str, unit: &str, series: &[String]) -> Panel {
    let is_its = |row: &&Row| row.op == OVER_TIME && row.metric == metric && series.contains(&row.series);
    let rows: Vec<&Row> = report.rows.iter().filter(is_its).collect();
    panel(caption, Axis::Linear("ms".to_owned()), unit, metric == "latency", plot::lines(&rows))
}

fn batches(report: &Report) -> Panel {
    let rows: Vec<&Row> =
        report.rows.iter().filter(|row| row.op == FULL_WRITE && row.metric == "rate").collect();
    let x = Axis::Log("entries of a batch".to_owned());
    panel("3.11: a log that is full, by batch", x, "Mop/s", true, plot::lines(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_over_time_has_few_points_and_all_that_was_written() {
        let run = |n: u64| (n as f64, vec![(n, n * 2000); 100]);
        let rows = over_time(vec![run(9), run(1), run(5)], "a", Duration::from_millis(10));
        let of = |metric: &str| rows.iter().filter(|row| row.metric == metric).collect::<Vec<_>>();
        let (throughput, latency, written) = (of("throughput"), of("latency"), of("written"));
        assert!(written.len() <= POINTS && throughput.len() + 1 >= written.len(), "{}", written.len());
        assert!(latency.iter().all(|row| (row.p50 - 2.0).abs() < 1e-9));
        let last = written.last().expect("there are some");
        assert_eq!(
            (last.x, last.p50),
            (1000, 500.0 * 4096.0 / 1e9),
            "the run in the middle wrote 5 in each slice"
        );
        assert!(over_time(Vec::new(), "a", Duration::from_millis(10)).is_empty());
    }

    #[test]
    fn groups_are_operations_or_the_places_of_one() {
        let row = |op: &str, x, value| Row::single(op, x, "a", ("latency", "us"), value, Kind::Live);
        let rows = vec![row("one", 1, 2.0), row("one", 8, 3.0), row("two", 1, 5.0)];
        let report = Report::of_rows("nvcache", serde_json::json!({}), rows, Vec::new(), Vec::new());
        let places = |ops: &[(&str, &str)]| {
            let panel = named(&report, "", "latency", "us", ops);
            panel.series[0].1.iter().map(|point| (point.x, point.y)).collect::<Vec<_>>()
        };
        assert_eq!(places(&[("one", "1 thread"), ("one", "8 threads")]), [(0.0, 2.0), (1.0, 3.0)]);
        assert_eq!(places(&[("two", "two"), ("three", "three")]), [(0.0, 5.0)]);
    }
}
