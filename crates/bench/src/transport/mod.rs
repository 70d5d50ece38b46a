//! `rem bench transport`: every operation over every carrier, beside the bare path and the peers.
//!
//! For each path there is a pair of agents, two processes pinned to one core each, that stay open for the whole
//! bench. The controller lets one pair at a time run for some milliseconds, in turn, and reads the state of the
//! machine before and after: so whatever is compared ran within moments of each other.

pub mod agent;
pub(crate) mod bare;
mod cabi;
mod local;
mod ours;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod session;

use std::collections::BTreeMap;

use self::plan::{Path, Step};
use self::protocol::Test;
use self::session::Session;
use crate::effort::Effort;
use crate::netns::NetworkPath;
use crate::peers::{self, PeerProgram};
use crate::report::Report;
use crate::samples::{Key, Metric, Samples};

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is measured; half a minute of it if quick.
    pub effort: Effort,
    /// The program that is started with the argument `bench-agent` for each end.
    pub program: std::path::PathBuf,
    /// Only these paths (`udp-lo`, `udp-veth`, `xdp-veth`, `shm`); all when empty.
    pub paths: Vec<String>,
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured; what cannot be measured alone is in the report's `skipped`.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let (rounds, ms) = options.effort.pick((1, 3), (6, 8), (9, 40));
    let plan = plan::steps(&options.paths);
    let peers = plan::peers(&options.paths);
    let total = rounds * (plan.len() + peers.len()) as u64;
    let mut skipped = Vec::new();
    let mut sessions = sessions(options, &plan, &mut skipped);
    let peers: Vec<_> = peers
        .into_iter()
        .filter(|(peer, ..)| match peer.missing() {
            None => true,
            Some(why) => {
                if !skipped.contains(&why) {
                    skipped.push(why);
                }
                false
            }
        })
        .collect();
    if sessions.is_empty() {
        return Err(format!("no path could be opened: {}", skipped.join("; ")));
    }
    let mut samples = Samples::default();
    plan.iter().filter(|step| step.is_control()).for_each(|step| samples.control(&step.key()));
    let mut done = 0;
    let mut round = 0;
    while options.effort.another(round, rounds, || plan::bars(&samples, &options.paths)) {
        samples.block(round);
        round += 1;
        for step in samples.order(plan.len()).into_iter().map(|n| &plan[n]) {
            done += 1;
            progress(done, total, &step.words());
            let Some(session) = sessions.get_mut(&step.path) else { continue };
            let run = || session.sample(step.test, step.size, ms).map(|values| step.figures(&values));
            if let Err(why) = samples.burst(options.effort, &step.key(), run) {
                skipped.push(format!("{}: {why}", step.words()));
                // Its ends do not agree any more on what is under way: the path starts anew.
                sessions.remove(&step.path);
                match Session::open(&options.program, step.path, None) {
                    Ok(session) => drop(sessions.insert(step.path, session)),
                    Err(why) => skipped.push(format!("{}: {why}", step.path.series())),
                }
            }
        }
        for (peer, test, size) in &peers {
            done += 1;
            progress(done, total, &peer.series());
            if let Err(why) = sample_peer(&mut samples, *peer, test, *size, options.effort) {
                skipped.push(why);
            }
        }
        local::sample(&mut samples, options.effort);
    }
    progress(total, total, "done");
    let params = serde_json::json!({
        "rounds": round, "ms": ms, "paths": options.paths,
        "latency": "post to completion, spinning on both sides; ping-pong and put_lat: half a round trip",
    });
    let bars = plan::bars(&samples, &options.paths);
    Ok(Report::new("transport", options.effort, params, &samples, bars, skipped))
}

fn sessions(options: &Options, plan: &[Step], skipped: &mut Vec<String>) -> BTreeMap<Path, Session> {
    let mut sessions = BTreeMap::new();
    let mut tried = Vec::new();
    for path in plan.iter().map(|step| step.path) {
        if tried.contains(&path) {
            continue;
        }
        tried.push(path);
        match Session::open(&options.program, path, None) {
            Ok(session) => drop(sessions.insert(path, session)),
            Err(why) => skipped.push(format!("{}: {why}", path.series())),
        }
    }
    sessions
}

fn sample_peer(
    samples: &mut Samples,
    peer: PeerProgram,
    test: &'static str,
    size: u64,
    effort: Effort,
) -> Result<(), String> {
    let bandwidth = test.ends_with("_bw");
    let rounds = match (size, bandwidth) {
        (0..=4096, false) => 5_000,
        (0..=4096, true) => 50_000,
        (4097..=65_536, _) => 5_000,
        _ => 300,
    };
    let rounds = rounds / effort.pick(10, 2, 1);
    // In shared memory an operation takes a tenth of a microsecond.
    let rounds = if peer == plan::UCX_SHM && size <= 65_536 { rounds * 40 } else { rounds };
    let op = if test.is_empty() { "pingpong" } else { test }.to_owned();
    let metric = if bandwidth { Metric::Throughput } else { Metric::Latency };
    samples.burst(effort, &Key { op, x: size, series: peer.series(), metric }, || {
        let figures = peers::run(peer, test, size, rounds, &NetworkPath::Loopback)?;
        Ok(vec![if bandwidth { figures.gbytes_s } else { figures.half_rtt_us }])
    })
}

/// The key under which a test's samples are kept.
fn key(path: Path, test: Test, size: u64) -> Key {
    let metric = match test {
        Test::WriteRate | Test::Rate => Metric::Rate,
        _ if test.is_burst() => Metric::Throughput,
        _ => Metric::Latency,
    };
    Key { op: test.op().to_owned(), x: size, series: path.series().to_owned(), metric }
}
