//! The whole of `rem bench erda`, as small as it gets: every part runs, with real server processes, and every figure has its
//! rows. No time is looked at.
//!
//! This program has no test harness: started with the arguments `bench-agent ROLE` it is one of the bench's own processes.

use std::collections::BTreeSet;
use std::process::ExitCode;

use remanence_bench::effort::{self, Effort};
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
    let options = |only: &[&str]| Options {
        common: effort::Options {
            effort: Effort::Tiny,
            only: only.iter().map(|word| (*word).to_owned()).collect(),
            program: std::env::current_exe().expect("it runs"),
        },
        carrier: Carrier::Udp,
        dir: dir.clone(),
    };
    let mut steps = Vec::new();
    let told = &mut |done: u64, of: u64, what: &str| {
        assert!(done < of, "step {done} of {of}: {what}");
        steps.push(what.to_owned());
    };
    let report = erda::run(&options(&[]), told).expect("it measures something");
    for line in &report.skipped {
        eprintln!("skipped: {line}");
    }
    whole(&report);
    assert_eq!(report.claims.len(), 19, "a verdict for each claim");
    json(&report);
    let svg = dir.join(format!("rem-bench-erda-tiny-{}.svg", std::process::id()));
    figure::draw(&report, &svg).expect("there is something to draw");
    let drawn = std::fs::read_to_string(&svg).expect("it was written");
    if std::env::var_os("REMANENCE_KEEP").is_none() {
        std::fs::remove_file(&svg).expect("it is ours");
    } else {
        eprintln!("kept {}", svg.display());
        eprintln!("{}", report.table());
        eprintln!("{}", remanence_bench::claims::text(&report.claims));
    }
    assert!(drawn.contains("Table 1: bytes update") && drawn.contains("GET on tmpfs"), "panels are missing");
    only(options);
    nothing_is_left();
    println!("erda: {} rows, {} bars, {} steps: fine", report.rows.len(), report.bars.len(), steps.len());
    ExitCode::SUCCESS
}

/// A part by its name, a figure of one workload, and a bar: nothing else is measured, and nothing is said of what was not asked for.
fn only(options: impl Fn(&[&str]) -> Options) {
    let run = |words: &[&str]| erda::run(&options(words), &mut |_, _, _| {});
    let ops = |report: &Report| report.rows.iter().map(|row| row.op.clone()).collect::<BTreeSet<_>>();
    let bytes = run(&["BYTES"]).expect("a part");
    assert!(
        bytes.rows.iter().all(|row| row.metric == "written") && !bytes.rows.is_empty(),
        "{:?}",
        ops(&bytes)
    );
    assert!(bytes.bars.iter().all(|bar| bar.holds) && bytes.bars.len() == 7, "{:?}", bytes.bars);
    assert_eq!((bytes.claims.len(), bytes.controls.len()), (2, 0));
    let bar = "YCSB-C throughput, 4 threads, busy server: Erda / Redo Logging";
    let threads = run(&[bar]).expect("a bar");
    let series: BTreeSet<_> = threads.rows.iter().map(|row| (&row.op[..], &row.series[..])).collect();
    let by = "YCSB-C by threads";
    let pair = [(by, "Redo Logging/idle"), (by, "Redo Logging/idle (again)")];
    let wanted = [(by, "Erda/busy 50 us"), (by, "Redo Logging/busy 50 us")];
    assert_eq!(series, wanted.into_iter().chain(pair).collect(), "and the A/A pair");
    assert!(threads.bars.len() == 1 && threads.bars[0].name == bar, "{:?}", threads.bars);
    assert_eq!(threads.params["parts"], serde_json::json!(["threads"]));
    let peer = run(&["native, shm"]).expect("a series");
    let of_pair = |series: &str| series.starts_with("native, udp");
    assert!(peer.rows.iter().all(|row| row.series.starts_with("native, shm") || of_pair(&row.series)));
    assert!(
        peer.rows.iter().any(|row| row.cpu.is_some_and(|cpu| cpu.client > 0.0)),
        "nobody knows what it costs"
    );
    let why = run(&["peers", "nobody"]).expect_err("there is no such thing");
    assert!(why.contains("parts: bytes; cleaning; latency; peers; threads"), "{why}");
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
            for state in ["idle", "busy 50 us"] {
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
    // A peer that is not installed is skipped, once.
    for (program, servers) in [
        (
            "redis-server",
            &["Redis, appendonly no", "Redis, appendonly no, io-threads 2", "Redis, appendfsync always"][..],
        ),
        ("memcached", &["memcached"][..]),
    ] {
        let missing = format!("{program} is not installed");
        match report.skipped.iter().filter(|line| line.contains(&missing)).count() {
            0 => {
                for (server, via) in
                    servers.iter().flat_map(|server| ["TCP", "Unix socket"].map(|via| (server, via)))
                {
                    want("GET on tmpfs", &format!("{server}, {via}"), "latency");
                }
                let settings = report.params["settings"].as_object().expect("an object");
                let server =
                    settings.iter().find(|(name, _)| name.starts_with(servers[0])).expect("its settings");
                assert!(server.1.as_str().is_some_and(|line| line.contains(program)), "{server:?}");
            }
            lines => assert_eq!(lines, 1, "{:?}", report.skipped),
        }
    }
    if report.params["settings"]["redis-benchmark"].is_string()
        && has(report, "GET on tmpfs", "Redis, appendonly no, TCP", "latency")
    {
        for (statistic, metric) in [("", "rate"), (", p50", "latency"), (", p99", "latency")] {
            let op = format!("GET on tmpfs, redis-benchmark -c 50 -P 16{statistic}");
            want(&op, "Redis, appendonly no, Unix socket", metric);
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
    for name in ["YCSB-C latency, ", "YCSB-C throughput, 4 threads", "Table 1", "GET latency, 64 B"] {
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
