//! The whole of `rem bench erda`, as small as it gets: every part runs, with real server processes, and every figure has its
//! rows. No time is looked at.
//!
//! This program has no test harness: started with the arguments `bench-agent ROLE` it is one of the bench's own processes.

use std::collections::BTreeSet;
use std::process::ExitCode;

use remanence_bench::effort::Effort;
use remanence_bench::erda::{self, Carrier, Options, Part, figure};
use remanence_bench::report::Report;
use remanence_bench::role;
use serde_json::Value;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("bench-agent") => {
            return role::main(&std::env::args().nth(2).expect("a role")).expect("there is such a role");
        }
        // The bench looks whether there is a gateway. Here is none.
        Some("kv") => return ExitCode::FAILURE,
        _ => {}
    }
    let dir = std::env::temp_dir();
    let options = Options {
        effort: Effort::Tiny,
        program: std::env::current_exe().expect("it runs"),
        carrier: Carrier::Udp,
        dir: dir.clone(),
        parts: Vec::new(),
    };
    let mut steps = Vec::new();
    let told = &mut |done: u64, of: u64, what: &str| {
        assert!(done < of, "step {done} of {of}: {what}");
        steps.push(what.to_owned());
    };
    let (report, claims) = erda::run(&options, told).expect("it measures something");
    for line in &report.skipped {
        eprintln!("skipped: {line}");
    }
    whole(&report);
    assert_eq!(claims.len(), 19, "a verdict for each claim");
    json(&report);
    let svg = dir.join(format!("rem-bench-erda-tiny-{}.svg", std::process::id()));
    figure::draw(&report, &svg).expect("there is something to draw");
    let drawn = std::fs::read_to_string(&svg).expect("it was written");
    if std::env::var_os("REMANENCE_KEEP").is_none() {
        std::fs::remove_file(&svg).expect("it is ours");
    } else {
        eprintln!("kept {}", svg.display());
        eprintln!("{}", report.table());
        eprintln!("{}", remanence_bench::claims::text(&claims));
    }
    assert!(drawn.contains("Table 1: bytes update") && drawn.contains("GET on tmpfs"), "panels are missing");
    nothing_is_left();
    println!("erda: {} rows, {} bars, {} steps: fine", report.rows.len(), report.bars.len(), steps.len());
    ExitCode::SUCCESS
}

fn has(report: &Report, op: &str, series: &str, metric: &str) -> bool {
    report.rows.iter().any(|row| row.op == op && row.series == series && row.metric == metric && row.n > 0)
}

/// Every series of every figure was measured, but where a burst was dropped as the cores changed their state.
fn whole(report: &Report) {
    let dropped = report.params["dropped_bursts"].as_u64().expect("it is counted");
    let mut missing = BTreeSet::new();
    let mut want = |op: &str, series: &str, metric: &str| {
        if !has(report, op, series, metric) {
            missing.insert(format!("{op}, {series}, {metric}"));
        }
    };
    for mix in ["YCSB-A", "YCSB-B", "YCSB-C", "update-only"] {
        for name in ["Erda, two READs", "Erda", "Erda, durable", "Redo Logging", "Read After Write"] {
            for state in ["idle", "busy"] {
                let series = format!("{name}/{state}");
                want(&format!("{mix} each"), &series, "latency");
                want(&format!("{mix} mean"), &series, "latency");
                want(&format!("{mix} application"), &series, "cpu");
                want(&format!("{mix} application"), &series, "messages");
                want(&format!("{mix} server process"), &series, "cpu");
                want(&format!("{mix} by threads"), &series, "rate");
            }
        }
    }
    for who in ["native, udp", "native, shm"] {
        for op in ["GET on tmpfs", "PUT on tmpfs"] {
            want(op, who, "latency");
            want(op, &format!("{who}, 16 together"), "rate");
        }
    }
    assert!(
        missing.len() as u64 <= 5 * dropped,
        "{dropped} bursts were dropped, and there is no {missing:#?}"
    );
    let timeline =
        |metric| report.rows.iter().filter(move |row| row.op == "YCSB-C over time" && row.metric == metric);
    assert!(timeline("latency").count() > 1 && timeline("rate").count() > 1, "no figure over time");
    // Table 1 is exact.
    let formula = |series: &str, op: &str, value: u64| {
        let (key, n) = (23, 23 + value);
        match (series.starts_with("Erda"), op) {
            (true, "bytes create") => key + 10 + n,
            (true, "bytes update") => 9 + n,
            (true, _) => key + 9,
            (false, "bytes create") => key + 12 + 2 * n,
            (false, "bytes update") => 4 + 2 * n,
            (false, _) => key + 8,
        }
    };
    let mut cells = 0;
    for series in ["Erda, the paper's layout", "Redo Logging", "Read After Write"] {
        for row in report.rows.iter().filter(|row| row.metric == "written" && row.series == series) {
            assert_eq!(row.p50 as u64, formula(series, &row.op, row.x), "{row:?}");
            cells += 1;
        }
    }
    assert_eq!(cells, 3 * 3 * 5);
    // Whatever machine this is: nobody sends a message to read.
    for bar in report.bars.iter().filter(|bar| bar.name.starts_with("messages to the application per read")) {
        assert!(bar.value.is_none_or(|value| value == 0.0), "{bar:?}");
    }
    for name in
        ["YCSB-C latency, busy server", "YCSB-C throughput, 4 threads", "Table 1", "GET latency, 64 B"]
    {
        assert!(report.bars.iter().any(|bar| bar.name.starts_with(name)), "no bar {name}");
    }
}

fn json(report: &Report) {
    let read: Value = serde_json::from_str(&report.json()).expect("JSON");
    for field in ["bench", "machine", "params", "rows", "bars"] {
        assert!(!read[field].is_null(), "no {field}");
    }
    assert_eq!(read["bench"], "erda");
    assert!(read["rows"].as_array().is_some_and(|rows| rows.iter().all(|row| row["kind"] == "live")));
    assert_eq!(read["params"]["parts"].as_array().map(Vec::len), Some(Part::ALL.len()));
}

/// Servers take their files with them.
fn nothing_is_left() {
    let ours = format!("rem-bench-erda-{}-", std::process::id());
    for dir in [std::path::PathBuf::from("/dev/shm"), std::env::temp_dir()] {
        let names = std::fs::read_dir(&dir).expect("it is there").flatten().map(|entry| entry.file_name());
        let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(&ours)).collect();
        assert!(left.is_empty(), "{left:?} in {}", dir.display());
    }
}
