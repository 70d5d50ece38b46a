//! `rem bench transport`: every operation over every carrier, beside the bare path and the peers.
//!
//! For each path there are two processes ([`crate::role`]), each on cores of its own, that stay open for the whole
//! bench. The controller lets one pair at a time run for some milliseconds, in turn, and reads the state of the
//! machine before and after: so whatever is compared ran within moments of each other.

pub(crate) mod agent;
mod cabi;
mod ours;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod session;

use std::collections::BTreeMap;
use std::time::Duration;

use self::plan::{Path, Work};
use self::protocol::Test;
use self::session::Session;
use crate::effort;
use crate::limits::engine::Engine;
use crate::limits::memcpy::Memcpy;
use crate::limits::udp;
use crate::netns::NetworkPath;
use crate::peers;
use crate::report::Report;
use crate::role::{self, Lost, Ran};
use crate::samples::{Key, Metric, Samples};

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench.
    pub common: effort::Options,
    /// Only these paths (`udp-lo`, `udp-veth`, `xdp-veth`, `shm`); all when empty.
    pub paths: Vec<String>,
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured; what cannot be measured alone is in the report's `skipped`.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let effort::Options { effort, only, program } = &options.common;
    let (rounds, ms) = effort.pick((1, 3), (6, 8), (9, 40));
    let plan = plan::work(&options.paths);
    let mut lost = Lost::default();
    let total = rounds * plan.iter().map(Vec::len).sum::<usize>() as u64;
    let mut sessions: BTreeMap<Path, Result<Session, String>> = BTreeMap::new();
    let mut samples = Samples::new(*effort, only);
    let steps =
        plan.iter().flatten().filter_map(|work| if let Work::Ours(step) = work { Some(step) } else { None });
    steps.filter(|step| step.is_control()).for_each(|step| samples.control(&step.key()));
    let mut begins = BTreeMap::new();
    let (mut memcpy, mut engine) = (Memcpy::new(ours::SIZE_MAX), Engine::new());
    let mut run = Vec::new();
    while samples.another(rounds, |samples| plan::bars(samples, &options.paths))? {
        for (path, session) in &mut sessions {
            let renewed = session.as_mut().map_or(Ok(()), Session::renew);
            renewed.unwrap_or_else(|why| lost.add(path.series(), why));
        }
        for work in samples.order(plan.len()).into_iter().flat_map(|n| &plan[n]) {
            progress(samples.step(), total, &work.words());
            let outcome = match work {
                Work::Ours(step) => samples.burst(&step.key(), || {
                    let session = sessions.entry(step.path);
                    let session = session.or_insert_with(|| Session::new(program, step.path, None));
                    let ran =
                        session.as_mut().map_err(|why| why.clone())?.sample(step.test, step.size, ms)?;
                    let operations = step.operations(&ran.values);
                    Ok((ran.map(|values| step.figures(&values)), operations))
                }),
                Work::Memcpy(size) => samples.burst(&plan::memcpy_key(*size), || {
                    memcpy.burst(*size, *size, Duration::from_millis(ms)).map(|rate| vec![rate])
                }),
                Work::Engine(size) => samples.burst(&plan::engine_key(*size), || {
                    engine.burst(*size as u32, Duration::from_millis(ms))
                }),
                Work::Peer(peer) if !samples.wants_any(&peer.keys()) => Ok(()),
                Work::Peer(peer) => match peer.program.missing() {
                    // It is said once, and no point of it is missed.
                    Some(why) => Err(why),
                    None => {
                        run.push(*peer);
                        burst_of(&mut samples, &mut begins, *peer)
                    }
                },
            };
            if let Err(why) = outcome {
                lost.add(work.words(), why);
            }
        }
    }
    progress(total, total, "done");
    let settings = peers::settings(&run, &NetworkPath::Loopback);
    let params = serde_json::json!({
        "rounds": samples.blocks(), "ms": ms, "paths": options.paths, "pinned": role::pinned(),
        "latency": "post to completion, spinning on both sides; ping-pong, put_lat, tag_lat and pingpong: half a round trip",
        "cpu of peers": "of a round; what a run of one round takes to begin, to warm up and to end is taken off",
        "statistics": "a peer's p50, p99 and mean are those that it prints of a run, each under a name of its own",
        "settings": settings,
        "bare streams": udp::OFFLOADS, "memcpy": "from one buffer to another, as the WRITEs of a stream go",
    });
    let bars = |samples: &Samples| plan::bars(samples, &options.paths);
    Report::new("transport", params, &samples, bars, |_| Vec::new(), lost.lines())
}

/// What a run of a peer counts that has one round, by its words.
type Begins = BTreeMap<String, Ran<()>>;

/// A run of a peer has values of several keys.
fn burst_of(samples: &mut Samples, begins: &mut Begins, run: peers::Run) -> Result<(), String> {
    let place = NetworkPath::Loopback;
    let begin = match begins.get(&run.words()) {
        Some(begin) => *begin,
        None => *begins.entry(run.words()).or_insert(run.begin(&place)?),
    };
    let rounds = run.rounds(samples.effort());
    samples.bursts(&run.keys(), || {
        let ran = run.measure(&place, rounds)?;
        let (client, server) = (ran.client.since(&begin.client), ran.server.since(&begin.server));
        let measured = |value| (Ran { values: vec![value], client, server }, rounds).into();
        Ok(run.values(&ran.values).into_iter().map(|(_, value)| measured(value)).collect())
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
