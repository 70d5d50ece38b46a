//! `rem bench verbs`: perftest on the drop-in libraries, beside bare UDP, over loopback; and what the C ABI adds to the
//! Rust API.
//!
//! perftest's client and server have a core each. What perftest starts anew for every figure, the bare sockets and the
//! two APIs keep open: processes of the transport bench, which take turns with it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::effort;
use crate::limits::udp;
use crate::peers::{free_port, version};
use crate::perftest::{Op, Run};
use crate::process::{self, Running};
use crate::report::{Bar, Report, Sense};
use crate::role::{self, Lost, Ran};
use crate::samples::{Key, Metric, Samples};
use crate::transport::plan::Path;
use crate::transport::protocol::Test;
use crate::transport::session::Session;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench.
    pub common: effort::Options,
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
    let effort::Options { effort, only, program } = &options.common;
    let (rounds, ms, sizes): (u64, u64, &[u64]) = effort.pick(
        (1, 3, &[64, 64 << 10]),
        (6, 10, &[64, 4 << 10, 64 << 10, 1 << 20]),
        (7, 40, &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]),
    );
    let samples = Samples::new(*effort, only);
    let mut bench = Bench { options, samples, lost: Lost::default() };
    let open = |path| (path, Session::new(program, path, Some(&options.libraries)));
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
    bench.samples.control(&api_key(Op::Write, Path::UdpServedLo));
    while bench.samples.another(rounds, bars)? {
        for (path, session) in apis.iter_mut().chain([&mut bare]) {
            let renewed = session.as_mut().map_or(Ok(()), Session::renew);
            renewed.unwrap_or_else(|why| bench.lost.add(path.series(), why));
        }
        for &size in sizes {
            progress(bench.samples.step(), total, &format!("{BARE} {}", crate::report::bytes(size)));
            bench.bare(&mut bare, size, ms);
            for run in runs.iter().filter(|run| run.size == size) {
                progress(bench.samples.step(), total, &run.words(SERIES));
                bench.perftest(run);
            }
        }
        for (test, op) in API_TESTS {
            progress(bench.samples.step(), total, &format!("both APIs, {}", op.word()));
            // Alternating within the round too: the difference that is looked for is small.
            for _ in 0..4 {
                for (api, path) in apis.iter_mut().zip(APIS) {
                    bench.api(api, &api_key(op, path), test, ms);
                }
            }
        }
    }
    let params = serde_json::json!({
        "rounds": bench.samples.blocks(), "ms": ms, "pinned": role::pinned(),
        "settings": { "perftest": version("ib_write_lat", "--version") },
        "path": "UDP over loopback, path MTU 4096, client and server on a core each",
        "latency": "perftest's and bare: half a round trip for write and send, a whole one for read; \
                    by post and poll: from posting to the completion, both sides polling",
        "bare streams": udp::OFFLOADS,
    });
    Report::new("verbs", params, &bench.samples, bars, |_| Vec::new(), bench.lost.lines())
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
        let done = self.samples.burst(key, || Ok(sample(session, test, 64, ms)?.map(us)));
        done.unwrap_or_else(|why| self.lost.add(cell(session, test, 64), why));
    }

    /// Bare sockets under each operation's name, so that they stand beside it: one run of a pair of processes, whose values are in
    /// nanoseconds.
    fn burst(
        &mut self,
        session: &mut Open,
        (test, metric): (Test, Metric),
        size: u64,
        ms: u64,
        values: impl Fn(Op, &[u64]) -> Vec<f64>,
    ) {
        let key = |op: Op| Key { op: op.word().to_owned(), x: size, series: BARE.to_owned(), metric };
        let done = self.samples.bursts(&Op::ALL.map(key), || {
            let ran = sample(session, test, size, ms)?;
            let operations = if test.is_burst() { 0 } else { ran.values.len() as u64 };
            let of = |op| (ran.clone().map(|nanos| values(op, &nanos)), operations).into();
            Ok(Op::ALL.into_iter().map(of).collect())
        });
        done.unwrap_or_else(|why| self.lost.add(cell(session, test, size), why));
    }

    fn bare(&mut self, session: &mut Open, size: u64, ms: u64) {
        if size <= BARE_MAX {
            self.burst(session, (Test::Ping, Metric::Latency), size, ms, |op, nanos| {
                let whole = if op == Op::Read { 1e-3 } else { 0.5e-3 };
                nanos.iter().map(|nanos| *nanos as f64 * whole).collect()
            });
        }
        // Its datagrams are of one size, that of a full packet.
        if size >= 4 << 10 {
            self.burst(session, (Test::Stream, Metric::Throughput), size, ms, |_, pair| {
                let [operations, nanos] = pair[..] else { return Vec::new() };
                vec![(operations * size) as f64 / nanos.max(1) as f64]
            });
        }
    }

    fn perftest(&mut self, run: &Run) {
        let options = self.options;
        let done = self.samples.burst(&run.key(SERIES), || pair(options, run));
        done.unwrap_or_else(|why| self.lost.add(run.words(SERIES), why));
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
        process::spawn(&mut command).map(Running).map_err(|e| format!("taskset {}: {e}", run.program()))
    };
    let server = start(0, None)?;
    // It prints its parameters when it listens, but into a pipe's buffer: so the client tries until it is there.
    let begin = Instant::now();
    loop {
        let (_, text) = start(1, Some("127.0.0.1"))?.finish(PATIENCE)?;
        match run.parse(&text) {
            Ok(values) => {
                server.finish(PATIENCE)?;
                return Ok(values);
            }
            Err(_) if text.contains("ouldn't connect") && begin.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(why) => return Err(why),
        }
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
