//! `rem bench transport`: every operation over every carrier, beside the bare path and the peers.
//!
//! For each path there are two processes ([`crate::role`]), each on cores of its own, that stay open for the whole
//! bench. The controller lets one pair at a time run for some milliseconds, in turn, and reads the state of the
//! machine before and after: so whatever is compared ran within moments of each other.

pub(crate) mod agent;
pub(crate) mod bare;
mod cabi;
mod local;
mod ours;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod session;

use std::collections::BTreeMap;

use self::plan::Path;
use self::protocol::Test;
use self::session::Session;
use crate::effort::Effort;
use crate::netns::NetworkPath;
use crate::peers::{self, PeerProgram};
use crate::report::Report;
use crate::role::{self, Lost};
use crate::samples::{Key, Metric, Samples};

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much is measured; half a minute of it if quick.
    pub effort: Effort,
    /// The program that is started with the arguments `bench-agent ROLE` for each end.
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
    let mut lost = Lost::default();
    let mut sessions: BTreeMap<Path, Result<Session, String>> = BTreeMap::new();
    for path in plan.iter().map(|step| step.path) {
        sessions.entry(path).or_insert_with(|| Session::new(&options.program, path, None));
    }
    let missing = |peer: &PeerProgram| peer.missing().map_or(Ok(()), Err);
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
            let mut run = || match sessions.get_mut(&step.path).expect("each path has one") {
                Ok(session) => session.sample(step.test, step.size, ms).map(|ran| {
                    let operations = step.operations(&ran.values);
                    (ran.map(|values| step.figures(&values)), operations)
                }),
                Err(why) => Err(why.clone()),
            };
            if let Err(why) = samples.burst(options.effort, &step.key(), &mut run) {
                lost.add(step.words(), why);
            }
        }
        for (peer, test, size) in &peers {
            done += 1;
            progress(done, total, &peer.series());
            let sampled =
                missing(peer).and_then(|()| sample_peer(&mut samples, *peer, test, *size, options.effort));
            if let Err(why) = sampled {
                lost.add(format!("{} {test} {}", peer.series(), crate::report::bytes(*size)), why);
            }
        }
        local::sample(&mut samples, options.effort);
    }
    progress(total, total, "done");
    let skipped = lost.lines();
    if samples.rows().is_empty() {
        return Err(format!("nothing could be measured: {}", skipped.join("; ")));
    }
    let params = serde_json::json!({
        "rounds": round, "ms": ms, "paths": options.paths, "pinned": role::pinned(),
        "latency": "post to completion, spinning on both sides; ping-pong and put_lat: half a round trip",
    });
    let bars = plan::bars(&samples, &options.paths);
    Ok(Report::new("transport", options.effort, params, &samples, bars, skipped))
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
