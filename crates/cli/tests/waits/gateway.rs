//! `rem kv gateway` over `rem kv serve` as their users run them: Redis' own programs, and a server that is killed.

use crate::common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{address, rem, run, start};
use serde_json::Value;

/// How long a test waits for what must come: much longer than it takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that says in a line of JSON that it is ready.
struct Serving {
    child: Child,
    ready: Value,
}

impl Serving {
    fn start(command: &mut Command) -> Self {
        let (child, ready) = start(command.arg("--json"));
        Self { child, ready }
    }

    fn store(file: &Path, listen: &str) -> Self {
        Self::start(rem().args(["kv", "serve"]).arg(file).args(["--listen", listen, "--size", "8M"]).args([
            "--lease",
            "30000",
            "--metrics",
            "127.0.0.1:0",
        ]))
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// What Prometheus would get.
    fn scrape(&self) -> String {
        let url = self.ready["metrics"].as_str().expect("an endpoint");
        let host = url.trim_start_matches("http://").trim_end_matches("/metrics");
        let mut stream = TcpStream::connect(host).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("an answer");
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        page
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a metric without labels.
fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().expect("a number")
}

fn redis(gateway: SocketAddr, words: &[&str]) -> String {
    let port = gateway.port().to_string();
    let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().expect("redis-cli runs");
    String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
}

#[test]
fn redis_programs_use_a_store_and_its_server_may_be_killed() {
    if Command::new("redis-cli").arg("--version").output().is_err() {
        eprintln!("skipped: redis-cli is not installed");
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (file, listen) = (dir.path().join("store"), address().to_string());
    let server = Serving::store(&file, &listen);
    let gateway = Serving::start(rem().args(["kv", "gateway", &listen, "--listen", "127.0.0.1:0"]).args([
        "--threads",
        "2",
        "--metrics",
        "127.0.0.1:0",
    ]));
    let at: SocketAddr = gateway.ready["addresses"][0].as_str().expect("one").parse().expect("an address");

    assert_eq!(redis(at, &["SET", "greeting", "hello"]), "OK");
    assert_eq!(redis(at, &["GET", "greeting"]), "hello");
    assert_eq!(redis(at, &["INCRBY", "count", "41"]), "41");
    assert!(redis(at, &["INFO", "server"]).contains("redis_version:"));
    let bench = Command::new("redis-benchmark")
        .args([
            "-p",
            &at.port().to_string(),
            "-t",
            "set,get,incr",
            "-n",
            "2000",
            "-c",
            "8",
            "-P",
            "4",
            "-q",
            "--csv",
        ])
        .output()
        .expect("redis-benchmark runs");
    assert!(bench.status.success(), "{bench:?}");
    assert!(metric(&server.scrape(), "remanence_kv_boots") >= 1.0);
    assert!(gateway.scrape().contains("process_cpu_seconds_total"));

    server.kill();
    let server = Serving::store(&file, &listen);
    let begin = Instant::now();
    while redis(at, &["GET", "greeting"]) != "hello" {
        assert!(begin.elapsed() < PATIENCE, "the gateway does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(redis(at, &["INCR", "count"]), "42");
    assert!(metric(&server.scrape(), "remanence_kv_boots") >= 2.0);

    // YCSB's load finds both endpoints.
    for store in [listen.clone(), format!("redis://{at}")] {
        let said = run(rem().args(["kv", "bench", &store, "--workload", "a", "--operations", "300"]).args([
            "--records",
            "50",
            "--value-size",
            "64",
            "--json",
        ]))
        .json();
        assert!(said.to_string().contains("300"), "{said}");
    }
}

#[test]
fn a_gateway_with_its_store_in_one_process_may_be_killed_too() {
    if Command::new("redis-cli").arg("--version").output().is_err() {
        eprintln!("skipped: redis-cli is not installed");
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (file, native) = (dir.path().join("store"), address().to_string());
    let start = || {
        let mut command = rem();
        command.args([
            "kv",
            "gateway",
            "--listen",
            "127.0.0.1:0",
            "--threads",
            "2",
            "--size",
            "8M",
            "--store",
        ]);
        Serving::start(command.arg(&file).args(["--native", &native, "--metrics", "127.0.0.1:0"]))
    };
    let address_of = |gateway: &Serving| -> SocketAddr {
        gateway.ready["addresses"][0].as_str().expect("one").parse().expect("an address")
    };
    let gateway = start();
    let at = address_of(&gateway);
    let written: Vec<u32> =
        (0..100).filter(|n| redis(at, &["SET", &format!("key {n}"), &n.to_string()]) == "OK").collect();
    assert_eq!(written.len(), 100);
    // Native clients use the same store, at the same time.
    run(rem().args(["kv", "put", &native, "native", "value"])).good();
    assert!(gateway.scrape().contains("remanence_kv_boots 1"));

    gateway.kill();
    let gateway = start();
    let at = address_of(&gateway);
    for n in written {
        assert_eq!(redis(at, &["GET", &format!("key {n}")]), n.to_string(), "an acknowledged write is there");
    }
    let said = run(rem()
        .args(["kv", "bench", &format!("redis://{at}"), "--workload", "a", "--operations", "300"])
        .args(["--records", "50", "--value-size", "64", "--verify", "--json"]))
    .json();
    assert!(said.to_string().contains("300"), "{said}");

    let both = run(rem().args(["kv", "gateway", "127.0.0.1", "--store"]).arg(&file));
    assert_eq!(both.status, Some(2), "{}", both.stderr);
    run(rem().args(["kv", "gateway", "--listen", "127.0.0.1:0", "--store"]).arg(&file)).bad("is not served");
}

#[test]
fn a_gateway_whose_store_s_medium_failed_ends_and_says_so() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let file = dir.path().join("store");
    let mut command = rem();
    command.args(["kv", "gateway", "--listen", "127.0.0.1:0", "--size", "8M", "--store"]).arg(&file);
    let mut gateway = Serving::start(command.args(["--metrics", "127.0.0.1:0"]).stderr(Stdio::piped()));
    assert!(gateway.scrape().contains("remanence_gateway_store_failed 0"));
    let at: SocketAddr = gateway.ready["addresses"][0].as_str().expect("one").parse().expect("an address");
    let mut client = TcpStream::connect(at).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a limit");
    // Its pages are gone, as those of a disk that was taken away.
    std::fs::File::options().write(true).open(&file).expect("there").set_len(0).expect("cut");
    client.write_all(b"SET a 1\r\n").expect("sent");
    let mut said = String::new();
    // An error, and the end of the connection with the gateway's.
    let _ = client.read_to_string(&mut said);
    assert!(!said.starts_with('+'), "{said}");
    let mut why = String::new();
    gateway.child.stderr.take().expect("piped").read_to_string(&mut why).expect("UTF-8");
    assert_eq!(gateway.child.wait().expect("it ends").code(), Some(1));
    assert!(why.contains("is served no more"), "{why}");
}

#[test]
fn a_gateway_is_told_which_store_and_nothing_that_means_nothing() {
    run(rem().args(["kv", "gateway"])).bad("a file with --store FILE");
    for option in ["--size", "--native"] {
        let value = if option == "--size" { "1G" } else { "127.0.0.1" };
        run(rem().args(["kv", "gateway", "127.0.0.1", option, value])).bad(option);
    }
}
