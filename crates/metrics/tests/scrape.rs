//! Scrapes over sockets: read by Prometheus' own Python parser where that is installed, and hostile ones.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use remanence_metrics::{Endpoint, Source, Unit, process};

/// A process that is being started has all descriptors of this one until it executes its program: an endpoint that is gone then
/// answers all the same.
static STARTING: Mutex<()> = Mutex::new(());

fn endpoint() -> Endpoint {
    endpoint_at("127.0.0.1:0")
}

fn endpoint_at(address: &str) -> Endpoint {
    let things: Source = Arc::new(|page| {
        page.counter("things", None, "Things that came.", 7_u64)?;
        page.counter("waits", Some(Unit::Seconds), "Time that took.", 0.5)?;
        page.info("build", "What it is.", &[("version", "1")])?;
        page.counters("errors", None, "Errors.", "code", [("a \"quoted\"\nline\\", 2_u64), ("plain", 3)])
    });
    Endpoint::serve(address.parse().unwrap(), vec![things, process()]).unwrap()
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn get(to: SocketAddr) -> String {
    let mut stream = connect(to);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn another_parser_reads_what_we_write() {
    let endpoint = endpoint();
    let text = get(endpoint.address());
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    let script = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        for family in parse(sys.stdin.read()):\n\
        \x20   for s in family.samples: print(family.type, s.name, sorted(s.labels.items()), float(s.value))\n";
    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut python = Command::new("/usr/bin/python3");
    let started = python
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    drop(starting);
    let Ok(mut child) = started else {
        println!("skipped: no /usr/bin/python3");
        return;
    };
    child.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if err.contains("No module named 'prometheus_client'") {
        println!("skipped: install the package python3-prometheus-client");
        return;
    }
    assert!(output.status.success(), "{err}\n{body}");
    for line in [
        "counter things_total [] 7.0",
        "counter waits_seconds_total [] 0.5",
        "info build_info [('version', '1')] 1.0",
        "counter errors_total [('code', 'a \"quoted\"\\nline\\\\')] 2.0",
        "counter errors_total [('code', 'plain')] 3.0",
    ] {
        assert!(out.lines().any(|found| found == line), "{line} is not in\n{out}");
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"] {
        assert!(out.contains(name), "{name} is not in\n{out}");
    }
}

#[test]
fn scrapers_that_only_wait_are_bounded_and_hold_nobody_up() {
    let endpoint = endpoint();
    // Fewer than there is room for: each says something and never the end of it.
    let mut idle: Vec<TcpStream> = (0..60).map(|_| connect(endpoint.address())).collect();
    for stream in &mut idle {
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    }
    assert!(get(endpoint.address()).contains("things_total 7\n"));
    // More than there is room for: whoever came first is closed, without an answer, and who asks has one.
    idle.extend((0..40).map(|_| connect(endpoint.address())));
    assert!(get(endpoint.address()).contains("things_total 7\n"), "it was kept out");
    for stream in &mut idle[..36] {
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it was answered");
    }
    // The others may still ask.
    let mut last = idle.pop().unwrap();
    last.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    last.read_to_string(&mut text).unwrap();
    assert!(text.contains("things_total 7\n"), "who came later was closed");
    // Who leaves makes room.
    drop(idle);
    let mut stream = connect(endpoint.address());
    while stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").is_err()
        || stream.read(&mut [0]).unwrap_or(0) == 0
    {
        stream = connect(endpoint.address());
    }
    // Too long a request is told so.
    let mut long = connect(endpoint.address());
    long.write_all(&[b'x'; 9000]).unwrap();
    let mut answer = String::new();
    let _ = long.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 431 ") || answer.is_empty(), "{answer}");
}

#[test]
fn an_endpoint_that_is_dropped_is_gone() {
    let _nobody_starts = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    // An address that nobody else has: a free port of the shared one is soon some other socket's, if only
    // that of the connection that looks for it, which TCP lets meet itself.
    let endpoint = endpoint_at("127.83.67.82:0");
    let (address, mut waiting) = (endpoint.address(), connect(endpoint.address()));
    drop(endpoint);
    assert_eq!(waiting.read(&mut [0]).unwrap_or(0), 0);
    assert!(TcpStream::connect(address).is_err());
}
