//! `rem bench verbs`: perftest on the drop-in libraries, beside bare UDP, over loopback; and what the C ABI adds to the
//! Rust API.
//!
//! perftest's client and server have a core each. What perftest starts anew for every figure, the bare sockets and the
//! two APIs keep open: processes of the transport bench, which take turns with it.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::effort::Effort;
use crate::limits::udp;
use crate::peers::{free_port, version};
use crate::perftest::{Op, Run};
use crate::process;
use crate::report::{Bar, Report, Sense};
use crate::role::{self, Lost, Ran};
use crate::samples::{Key, Metric, Samples};
use crate::transport::plan::Path;
use crate::transport::protocol::Test;
use crate::transport::session::Session;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is measured.
    pub effort: Effort,
    /// The program that is started with the arguments `bench-agent ROLE`.
    pub program: PathBuf,
    /// Where our libraries are.
    pub libraries: PathBuf,
}

const SERIES: &str = "perftest/udp-lo";
const BARE: &str = "bare/udp-lo";
/// The two APIs, and what they are compared in.
const APIS: [Path; 2] = [Path::UdpServedLo, Path::CAbiLo];
const API_TESTS: [(Test, Op); 3] = [(Test::Write, Op::Write), (Test::Read, Op::Read), (Test::Send, Op::Send)];
/// The largest datagram that still is one.
const BARE_MAX: u64 = 64_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let (rounds, ms, sizes): (u64, u64, &[u64]) = options.effort.pick(
        (1, 3, &[64, 64 << 10]),
        (6, 10, &[64, 4 << 10, 64 << 10, 1 << 20]),
        (7, 40, &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]),
    );
    let mut bench = Bench { options, samples: Samples::default(), lost: Lost::default() };
    let open = |path| (path, Session::new(&options.program, path, Some(&options.libraries)));
    let mut bare = open(Path::BareUdpLo);
    let mut apis = APIS.map(open);
    let runs: Vec<Run> = Op::ALL
        .into_iter()
        .flat_map(|op| {
            let point = move |size: &u64| {
                [Metric::Latency, Metric::Throughput].map(|metric| Run {
                    op,
                    metric,
                    size: *size,
                    count: count(metric, *size),
                })
            };
            sizes.iter().flat_map(point)
        })
        .collect();
    let total = rounds * (runs.len() + sizes.len() + API_TESTS.len()) as u64;
    let mut done = 0;
    let mut step = |what: &str| {
        done += 1;
        progress(done, total, what);
    };
    bench.samples.control(&api_key(Op::Write, Path::UdpServedLo));
    while bench.samples.another(options.effort, rounds, bars) {
        for &size in sizes {
            step(&format!("{BARE} {}", crate::report::bytes(size)));
            bench.bare(&mut bare, size, ms);
            for run in runs.iter().filter(|run| run.size == size) {
                step(&run.words(SERIES));
                bench.perftest(run);
            }
        }
        for (test, op) in API_TESTS {
            step(&format!("both APIs, {}", op.word()));
            // Alternating within the round too: the difference that is looked for is small.
            for _ in 0..4 {
                for (api, path) in apis.iter_mut().zip(APIS) {
                    bench.api(api, &api_key(op, path), test, ms);
                }
            }
        }
    }
    let skipped = bench.lost.lines();
    if bench.samples.rows().is_empty() {
        return Err(format!("nothing could be measured: {}", skipped.join("; ")));
    }
    let params = serde_json::json!({
        "rounds": bench.samples.blocks(), "ms": ms, "pinned": role::pinned(),
        "settings": { "perftest": version("ib_write_lat", "--version") },
        "path": "UDP over loopback, path MTU 4096, client and server on a core each",
        "latency": "perftest's and bare: half a round trip for write and send, a whole one for read; \
                    by post and poll: from posting to the completion, both sides polling",
        "bare streams": udp::OFFLOADS,
    });
    let bars = bars(&bench.samples);
    Ok(Report::new("verbs", options.effort, params, &bench.samples, bars, skipped))
}

fn api_key(op: Op, path: Path) -> Key {
    let op = format!("{} by post and poll", op.word());
    Key { op, x: 64, series: path.series().to_owned(), metric: Metric::Latency }
}

/// What the C ABI may add to the Rust API.
fn bars(samples: &Samples) -> Vec<Bar> {
    let bar = |(_, op): (Test, Op)| {
        let ratio = samples.ratio(&api_key(op, Path::CAbiLo), &api_key(op, Path::UdpServedLo));
        let name = format!("64 B {} latency, C ABI / Rust API", op.word().to_uppercase());
        Bar::new(name, ratio, Sense::AtMost, 1.05)
    };
    API_TESTS.into_iter().map(bar).collect()
}

/// Tens of milliseconds each.
fn count(metric: Metric, size: u64) -> u64 {
    if metric == Metric::Latency {
        ((64 << 20) / size).clamp(50, 4000)
    } else {
        ((128 << 20) / size).clamp(100, 20_000)
    }
}

/// A path, and the way to it.
type Open = (Path, Result<Session, String>);

struct Bench<'a> {
    options: &'a Options,
    samples: Samples,
    lost: Lost,
}

impl Bench<'_> {
    /// A test of 64 B of one of the two APIs.
    fn api(&mut self, session: &mut Open, key: &Key, test: Test, ms: u64) {
        let us = |values: Vec<u64>| values.into_iter().map(|nanos| nanos as f64 * 1e-3).collect::<Vec<f64>>();
        let done =
            self.samples.burst(self.options.effort, key, || Ok(sample(session, test, 64, ms)?.map(us)));
        self.unless(done, || cell(session, test, 64));
    }

    fn unless(&mut self, done: Result<(), String>, cell: impl FnOnce() -> String) {
        if let Err(why) = done {
            self.lost.add(cell(), why);
        }
    }

    /// One run of a pair of processes, whose values, in nanoseconds, are made samples of several keys.
    fn burst(
        &mut self,
        session: &mut Open,
        test: Test,
        size: u64,
        ms: u64,
        samples: impl Fn(&[u64]) -> Vec<(Key, Vec<f64>)>,
    ) {
        let effort = self.options.effort;
        let done = self.samples.several(
            || effort.probe(),
            || {
                let ran = sample(session, test, size, ms)?;
                let operations = if test.is_burst() { 0 } else { ran.values.len() as u64 };
                let of = |(key, values)| (key, (ran.clone().map(|_| values), operations).into());
                Ok(samples(&ran.values).into_iter().map(of).collect())
            },
        );
        self.unless(done, || cell(session, test, size));
    }

    /// Bare sockets under each operation's name, so that they stand beside it.
    fn bare(&mut self, session: &mut Open, size: u64, ms: u64) {
        let key = |op: Op, metric| Key { op: op.word().to_owned(), x: size, series: BARE.to_owned(), metric };
        if size <= BARE_MAX {
            self.burst(session, Test::Ping, size, ms, |values| {
                let us = |op| {
                    let whole = if op == Op::Read { 1e-3 } else { 0.5e-3 };
                    values.iter().map(|nanos| *nanos as f64 * whole).collect()
                };
                Op::ALL.map(|op| (key(op, Metric::Latency), us(op))).into()
            });
        }
        // Its datagrams are of one size, that of a full packet.
        if size >= 4 << 10 {
            self.burst(session, Test::Stream, size, ms, |pair| {
                let [operations, nanos] = pair[..] else { return Vec::new() };
                let rate = (operations * size) as f64 / nanos.max(1) as f64;
                Op::ALL.map(|op| (key(op, Metric::Throughput), vec![rate])).into()
            });
        }
    }

    fn perftest(&mut self, run: &Run) {
        let options = self.options;
        let done = self.samples.burst(options.effort, &run.key(SERIES), || pair(options, run));
        self.unless(done, || run.words(SERIES));
    }
}

fn sample(session: &mut Open, test: Test, size: u64, ms: u64) -> Result<Ran<Vec<u64>>, String> {
    session.1.as_mut().map_err(|why| why.clone())?.sample(test, size, ms)
}

fn cell(session: &Open, test: Test, size: u64) -> String {
    format!("{} {} {}", session.0.series(), test.op(), crate::report::bytes(size))
}

/// Runs a server and a client of perftest; what is returned is what the client found.
fn pair(options: &Options, run: &Run) -> Result<Vec<f64>, String> {
    let port = free_port()?;
    let start = |core: usize, peer: Option<&str>| {
        let mut command = Command::new("sh");
        command
            // A client that finds nobody says so on its standard error.
            .args(["-c", "exec \"$@\" 2>&1", "sh", "taskset", "-c", &core.to_string(), run.program()])
            .args(run.arguments("rem_lo", port))
            .args(peer)
            .env("LD_LIBRARY_PATH", &options.libraries)
            .env("REMANENCE_DEVICE", "rem_lo")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        process::spawn(&mut command).map(Program).map_err(|e| format!("taskset {}: {e}", run.program()))
    };
    let server = start(0, None)?;
    // It prints its parameters when it listens, but into a pipe's buffer: so the client tries until it is there.
    let begin = Instant::now();
    loop {
        let text = start(1, Some("127.0.0.1"))?.read(PATIENCE)?;
        match run.parse(&text) {
            Ok(values) => {
                server.read(PATIENCE)?;
                return Ok(values);
            }
            Err(_) if text.contains("ouldn't connect") && begin.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(why) => return Err(why),
        }
    }
}

/// Ends the process that it holds, however its holder ends.
struct Program(Child);

impl Program {
    /// What it prints until it ends.
    fn read(mut self, patience: Duration) -> Result<String, String> {
        let mut out = self.0.stdout.take().ok_or("no standard output")?;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            text
        });
        let begin = Instant::now();
        while self.0.try_wait().map_err(|e| e.to_string())?.is_none() {
            if begin.elapsed() > patience {
                return Err(format!("perftest did not end within {} s", patience.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        reader.join().map_err(|_| "the reader panicked".to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_is_measured_under_its_key() {
        let mut samples = Samples::default();
        let near = crate::machine::State::Near;
        for block in 0..6 {
            samples.block(block);
            for (path, (_, op)) in APIS.into_iter().flat_map(|path| API_TESTS.map(|test| (path, test))) {
                samples.add(&api_key(op, path), near, near, [1.0]);
            }
        }
        assert!(bars(&samples).iter().all(|bar| bar.holds && bar.value == Some(1.0)));
    }
}
