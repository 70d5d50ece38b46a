//! Each `rem bench`, as small as it gets: every bar is measured, nothing is left out, and there is a figure. No value of one is
//! looked at. The bench of the store has its test with its parts (`crates/bench/tests/erda.rs`); `urdma`, which boots a guest, and `failover`,
//! which freezes file systems, are among the long runs of `make soak`.

use crate::{cache, common};

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use common::{rem, run};
use serde_json::Value;

/// One at a time: each has two processes that spin.
static ONE: Mutex<()> = Mutex::new(());

/// Runs one, which has to find every bar; what it wrote.
fn bench(name: &str, more: &[&str], libraries: Option<&Path>) -> Value {
    bench_with(name, more, ("REMANENCE_LIB", libraries))
}

/// The same with a variable that names libraries.
fn bench_with(name: &str, more: &[&str], (variable, libraries): (&str, Option<&Path>)) -> Value {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let (json, plot) = (dir.path().join("report.json"), dir.path().join("figure.svg"));
    let mut command = rem();
    command.args(["bench", name, "--tiny", "--json"]).arg(&json).arg("--plot").arg(&plot).args(more);
    if let Some(libraries) = libraries {
        command.env(variable, libraries);
    }
    let table = String::from_utf8(run(&mut command).good()).expect("UTF-8");
    let report: Value =
        serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("a JSON object");
    assert_eq!(report["bench"], name, "{table}");
    assert_eq!(report["params"]["effort"], "tiny", "{table}");
    for bar in report["bars"].as_array().expect("bars") {
        assert!(bar["value"].is_number(), "not measured: {bar}\n{table}");
    }
    let drawn = std::fs::read_to_string(&plot).expect("it was drawn");
    assert!(drawn.contains("<svg"), "{name} drew no figure");
    report
}

fn series(report: &Value, op: &str, series: &str) -> bool {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().any(|row| row["op"] == op && row["series"] == series && row["n"].as_u64() > Some(0))
}

/// The sizes from 4 KiB on come behind the ping-pong, and have been skipped on every path but shared memory: the server took the
/// completion of its last ball for a message.
#[test]
fn transport_measures_its_streams_behind_a_ping_pong() {
    let report = bench("transport", &["--path", "udp-lo", "--path", "shm"], None);
    for path in ["remanence/udp-lo", "remanence/shm"] {
        for op in ["write", "read", "send", "ping-pong"] {
            assert!(series(&report, op, path), "no {op} over {path}");
        }
    }
    let streams = |size: u64| {
        let rows = report["rows"].as_array().expect("rows").iter();
        rows.filter(|row| {
            row["metric"] == "throughput" && row["x"] == size && row["series"] == "remanence/udp-lo"
        })
        .count()
    };
    assert_eq!((streams(4 << 10), streams(64 << 10), streams(1 << 20)), (3, 3, 3));
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
    for peer in ["ucx/tcp", "ucx/posix,cma"] {
        for statistic in ["ucp_put_lat, p50", "ucp_put_lat, p99", "ucp_put_lat, mean", "ucp_put_bw"] {
            assert!(series(&report, statistic, peer), "no {statistic} of {peer}");
        }
    }
    let rows = report["rows"].as_array().expect("rows");
    let counted = |row: &&Value| row["op"] == "ucp_put_lat, p50" && row["cpu"]["client"].is_number();
    assert_eq!(rows.iter().filter(counted).count(), 2, "nobody knows what a peer costs");
    let settings = report["params"]["settings"]["ucx/tcp"].as_str().expect("words");
    assert!(settings.contains("UCX_TLS=tcp") && settings.contains("ucx_perftest -p PORT"), "{settings}");
}

/// Network namespaces take root.
#[test]
fn transport_measures_what_passes_between_two_hosts() {
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root {
        eprintln!("skipped: network namespaces take root");
        return;
    }
    let report = bench("transport", &["--path", "udp-veth", "--path", "xdp-veth"], None);
    assert_eq!(report["bars"].as_array().map(Vec::len), Some(8));
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
}

#[test]
fn verbs_measures_both_apis() {
    let beside = || PathBuf::from(env!("CARGO_BIN_EXE_rem")).with_file_name("dropin");
    let libraries = std::env::var_os("REMANENCE_TEST_LIB").map_or_else(beside, PathBuf::from);
    if !libraries.join("libibverbs.so.1").exists() {
        eprintln!("skipped: `cargo xtask dropin` makes the libraries");
        return;
    }
    let report = bench("verbs", &[], Some(&libraries));
    assert!(series(&report, "write by post and poll", "c-abi/udp-lo"));
}

#[test]
fn remotelog_measures_every_cell() {
    let report = bench("remotelog", &[], None);
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
}

#[test]
fn the_benches_of_calls_measure_every_bar() {
    for name in ["pwrite", "bulk", "logserver"] {
        let report = bench(name, &[], None);
        assert_eq!(report["skipped"], serde_json::json!([]), "{name} left something out");
    }
}

#[test]
fn load_latency_measures_every_service() {
    let report = bench("load-latency", &[], None);
    let missing = ["redis-server", "memcached"].into_iter().filter(|program| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).all(|dir| !dir.join(program).is_file())
    });
    if missing.count() == 0 {
        assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
    }
    for (request, who) in [
        ("echo", "rpc, two-sided"),
        ("echo", "bare UDP"),
        ("GET", "kv, one-sided"),
        ("PUT", "kv, one-sided"),
        ("append", "a log each, one-sided"),
        ("append", "one log, rpc"),
    ] {
        for load in ["offered load", "clients"] {
            assert!(series(&report, &format!("{request}, {load}"), who), "no {request}, {load}, of {who}");
        }
    }
    let rows = report["rows"].as_array().expect("rows");
    let clients = |row: &Value| {
        let counted = ["cpu", "memory"].iter().all(|name| row[name]["server"].as_f64() > Some(0.0));
        row["op"] == "GET, clients" && row["x"] == 4 && counted
    };
    assert!(rows.iter().any(clients), "nobody knows what four clients cost");
    assert!(report["params"]["p99 / p50 of 4 clients"]["echo bare UDP"].is_object(), "the bound is not told");
}

/// With all servers, and with one that is stopped.
#[test]
fn quorum_measures_every_bar() {
    let disk = env!("CARGO_TARGET_TMPDIR");
    let report = bench("quorum", &["--directory", disk], None);
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
    for who in [
        "server 1 alone",
        "server 1 alone (again)",
        "2 alone, at once",
        "2 of 3",
        "2 of 3, the third stopped",
    ] {
        assert!(series(&report, "append", who), "no append to {who}");
    }
    assert!(
        report["params"]["2 alone, at once / the second-fastest alone"].is_object(),
        "the bound is not told"
    );
}

/// Filled, overwritten, opened again and full.
#[test]
fn kv_size_measures_every_bar() {
    let report = bench("kv-size", &[], None);
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
    for op in ["put", "get", "step"] {
        assert!(series(&report, op, "one store") && series(&report, op, "one store (again)"), "no {op}");
    }
}

/// Every command against each server, one client and several; on whatever disk the build is on, as there is no figure to believe.
#[test]
fn gateway_measures_every_bar() {
    for program in ["redis-server", "memcached"] {
        if std::process::Command::new(program).arg("--version").output().is_err() {
            println!("SKIPPED: {program} is not installed; `apt-get install {program}` brings it");
            return;
        }
    }
    let disk = env!("CARGO_TARGET_TMPDIR");
    let report = bench("gateway", &["--directory", disk], None);
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
    assert!(series(&report, "fdatasync", "this disk"), "the disk by itself was not measured");
    for op in ["SET", "DEL", "HSET of a large hash", "INCR of a new key"] {
        for who in [
            "gateway",
            "Redis, appendfsync always, TCP",
            "Redis, appendfsync always, io-threads 2, Unix socket",
        ] {
            assert!(series(&report, op, who), "no {op} of {who}");
        }
    }
    for who in ["gateway (again)", "memcached, TCP", "memcached, Unix socket"] {
        assert!(series(&report, "SET", who), "no SET of {who}");
    }
    // All servers have the same cores, and clients some of them.
    let settings = report["params"]["settings"].as_object().expect("settings").values();
    let cores = settings.filter_map(|how| Some(how.as_str()?.split_once("; on cores ")?.1));
    let cores: BTreeSet<&str> = cores.collect();
    assert_eq!(cores.len(), 1, "{cores:?}");
    let cores = |end: &str| report["params"]["pinned"][end].as_array().map(Vec::len);
    assert!(cores("server") >= cores("client") && cores("client") >= Some(1));
    let of_redis = |row: &&Value| row["series"].as_str().is_some_and(|series| series.starts_with("Redis"));
    let costs = report["rows"].as_array().expect("rows").iter().filter(of_redis);
    assert!(costs.into_iter().all(|row| row["cpu"]["server"].is_number()), "what Redis costs is not told");
    let left = std::fs::read_dir(disk).expect("it is there").filter_map(Result::ok);
    assert!(left.into_iter().all(|file| !file.path().join("server0").exists()), "a store was left behind");
}

/// Our own program, fio and SQLite, with both logs and without; a log that is full, one that is recovered, and what a run is like over time.
#[test]
fn nvcache_measures_every_bar() {
    for program in ["fio", "sqlite3"] {
        if std::process::Command::new(program).arg("--version").output().is_err() {
            println!("SKIPPED: {program} is not installed; `apt-get install {program}` brings it");
            return;
        }
    }
    let disk = env!("CARGO_TARGET_TMPDIR");
    if !cache::is_absorbed(disk) {
        return;
    }
    let report = bench_with("nvcache", &["--directory", disk], ("REMANENCE_PRELOAD", Some(cache::library())));
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
    let rows = report["rows"].as_array().expect("rows");
    let series = |op: &str, series: &str| {
        rows.iter().any(|row| row["op"] == op && row["series"] == series && row["n"].as_u64() > Some(0))
    };
    for op in
        ["synchronous write", "SQLite, a row each transaction, WAL", "SQLite, a row each transaction, DELETE"]
    {
        for who in ["through, log in memory", "through, log in a file", "tmpfs"] {
            assert!(series(op, who), "no {op} of {who}");
        }
    }
    assert!(series("synchronous write", "fio, through, log in a file"), "fio was not asked");
    assert!(series("write, the log full", "through, log in memory"), "no log was full");
    assert!(
        series("recovery", "log in memory") && series("recovery", "log in a file"),
        "nothing was recovered"
    );
    for op in ["read", "getppid", "write to a pipe", "read of a socket"] {
        assert!(series(op, "through") && series(op, "without"), "no {op}");
    }
    let of_time = |row: &&Value| row["op"] == "random write of all the data, over time";
    assert!(rows.iter().filter(of_time).count() >= 18, "nothing over time");
    assert_eq!(report["params"]["claims"].as_array().map(Vec::len), Some(5));
}

/// Both caches at each load, beside the file system.
#[test]
fn nvpages_measures_every_bar() {
    let report = bench("nvpages", &["--directory", env!("CARGO_TARGET_TMPDIR")], None);
    assert_eq!(report["skipped"], serde_json::json!([]), "something was left out");
    let rows = report["rows"].as_array().expect("rows");
    for op in ["randr", "randrw90", "randrw", "randw", "randr-zipf", "randw-zipf"] {
        for who in ["NVPages, 0.1 x", "NVPages, 5.0 x", "NVCache, 0.1 x", "NVCache, 5.0 x"] {
            let is_its =
                |row: &&Value| row["op"] == op && row["series"].as_str().is_some_and(|s| s.starts_with(who));
            assert!(rows.iter().filter(is_its).count() >= 2, "no {op} of {who}");
        }
    }
    assert_eq!(report["params"]["claims"].as_array().map(Vec::len), Some(5));
}

/// Without the library nothing is measured, and it is said what `rem run` says.
#[test]
fn nvcache_says_what_it_lacks() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = rem();
    command.args([
        "bench",
        "nvcache",
        "--tiny",
        "--only",
        "getppid",
        "--directory",
        env!("CARGO_TARGET_TMPDIR"),
    ]);
    let said = run(command.env("REMANENCE_PRELOAD", "/nowhere/library.so"));
    assert_eq!(said.status, Some(1), "{}", said.stderr);
    let last = said.stderr.trim_end().lines().last().unwrap_or_default();
    assert!(last.contains("the library is not at /nowhere/library.so"), "{}", said.stderr);
    assert!(said.stdout.is_empty(), "it was measured first");
}

#[test]
fn counter_and_copy_engines_measure_every_bar() {
    bench("counter", &[], None);
    bench("copy-engine", &[], None);
}

/// Each bench measures what it is asked for, with what that is judged by, and says what there is where a word names nothing. Its bars are about
/// that only, it draws it, and it ends well.
#[test]
fn only_what_is_asked_for_is_measured_and_drawn() {
    let disk = env!("CARGO_TARGET_TMPDIR");
    for (name, words, more, series) in [
        ("pwrite", "WRITE+FLUSH", &[][..], &["WRITE+FLUSH"][..]),
        ("bulk", "memcpy", &[], &["memcpy, one core"]),
        ("logserver", "rotating register / plain", &[], &["rotating register", "plain"]),
        ("remotelog", "UDP round", &[], &["UDP round trip"]),
        ("load-latency", "GET kv", &[], &["kv, one-sided"]),
        ("load-latency", "Echo", &[], &["bare UDP", "rpc, two-sided"]),
        ("kv-size", "opening", &[], &["one store"]),
        ("quorum", "third stopped", &["--directory", disk], &["2 of 3, the third stopped"]),
        ("gateway", "disk", &["--directory", disk], &["this disk"]),
        ("transport", "faa", &["--path", "shm"], &["remanence/shm"]),
    ] {
        let report = bench(name, &[&["--only", words], more].concat(), None);
        let rows = report["rows"].as_array().expect("rows").iter();
        let all: BTreeSet<&str> = rows.filter_map(|row| row["series"].as_str()).collect();
        assert!(series.iter().all(|wanted| all.contains(wanted)), "{name}: not all of {series:?}: {all:?}");
        assert!(all.len() <= 9, "{name} measured all of {all:?}");
        assert!(report["params"]["only"].is_array(), "{name}");
        run(rem().args(["bench", name, "--tiny", "--only", "no such thing"]).args(more)).bad("series: ");
    }
}

/// What is told as slower than it was is named in the report; a name that no series has is an error.
#[test]
fn a_series_that_is_slowed_down_is_named_in_the_report() {
    let series = "WRITE+FLUSH";
    let report = bench("pwrite", &["--only", series, "--slower", series], None);
    let said = report["params"]["slower"].as_str().expect("words");
    assert!(said.starts_with(series) && said.contains("15 %"), "{said}");
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let words = ["bench", "pwrite", "--tiny", "--only", series, "--slower", "nobody"];
    run(rem().args(words)).bad("no series is called \"nobody\"");
}

/// A bar that was not measured is an error, and what could be measured is shown all the same.
#[test]
fn a_bar_that_was_not_measured_is_an_error_that_names_it() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Nobody can start UCX where nothing is to be found but what pins a process to its core.
    let path = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink("/usr/bin/taskset", path.path().join("taskset")).expect("a link");
    let said = run(rem().args(["bench", "transport", "--tiny", "--path", "udp-lo"]).env("PATH", path.path()));
    assert_eq!(said.status, Some(1), "{}", said.stderr);
    let last = said.stderr.trim_end().lines().last().unwrap_or_default();
    assert!(last.contains("bars were not measured"), "{}", said.stderr);
    assert!(last.contains("UCX tcp put"), "{}", said.stderr);
    assert!(last.contains("ucx_perftest is not installed"), "{}", said.stderr);
    assert!(String::from_utf8_lossy(&said.stdout).contains("not measured"), "no table");
}
