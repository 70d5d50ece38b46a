//! `rem bench pwrite`: small durable writes, one-sided and by calls (paper 001, section 4 and figure 3); and the
//! write-visibility test.

use std::time::{Duration, Instant};

use remanence_rpc::durable::Client;
use remanence_rpc::pwrite::{Method, Writer};
use remanence_rpc::visibility::{Tally, tally};

use super::client::{Burst, Spec};
use super::peer::Bare;
use super::server::{self, Copying, MEMORY, Serve, words};
use super::{Bench, Options, Outcome, addresses, key};
use crate::claims::{Claim, Verdict, times};
use crate::report::{Bar, Kind, Row, Sense, figure};
use crate::samples::{Key, Metric};

const OP: &str = "durable write";
/// Bytes of a write, as in figure 3 of the paper.
const SIZES: [u64; 5] = [64, 128, 256, 512, 1024];
const RPC: &str = "call";
const VOLATILE: &str = "call, into the cache";
const BARE: &str = "bare UDP round trip";
/// The first of the durable servers, and the volatile one.
const SERVERS: [Copying; 2] = [Copying::Cpu, Copying::CpuCached];

fn latency(size: u64, series: &str) -> Key {
    key(OP, size, series, Metric::Latency)
}

const fn series(method: Method) -> &'static str {
    match method {
        Method::Write => "WRITE (visible)",
        Method::WriteRead => "WRITE+READ",
        Method::WriteFlush => "WRITE+FLUSH",
    }
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Outcome {
    let (rounds, ms) = options.extent();
    let servers = server::Spec::Copying(SERVERS.to_vec());
    let clients = Spec::Writers { calls: SERVERS.len(), window: 1, longest: 4096 };
    let mut bench = Bench::new(options, servers, clients);
    let mut bare = Bare::open(addresses())?;
    let steps = rounds * SIZES.len() as u64;
    let mut done = 0;
    bench.samples.control(&latency(64, RPC));
    for round in 0..rounds {
        bench.samples.block(round);
        for size in SIZES {
            progress(done, steps, &format!("{OP} of {size} bytes"));
            done += 1;
            for method in Method::ALL {
                let burst = Burst::Write { method: method.into(), size, ms };
                bench.burst(&latency(size, series(method)), Serve::Drive, burst);
            }
            for (n, name) in [RPC, VOLATILE].into_iter().enumerate() {
                bench.burst(&latency(size, name), Serve::Endpoint(n), Burst::Call { n, size, ms });
            }
            bench.sample(&latency(size, BARE), || bare.round_trips(size, ms));
        }
    }
    progress(steps, steps, "the write-visibility test");
    let trials = options.effort.pick(60, 300, 2000);
    let seen =
        Method::ALL.map(|method| [true, false].map(|ddio| (method, ddio, tally(method, ddio, trials, 1))));
    let seen: Vec<(Method, bool, Tally)> = seen.into_iter().flatten().collect();
    let (bars, claims) = verdicts(&bench, &seen);
    let params = serde_json::json!({
        "rounds": rounds, "ms": ms,
        "latency": "from posting, or calling, to the completion or the answer; sequential places; both sides spin",
        "visibility": "the real engine on both sides, over a simulated responder with stages; at the completion",
        "trials": trials,
    });
    bench.report("pwrite", params, visibility_rows(&seen), bars, claims)
}

/// Microseconds of each of as many operations as the time allows, to one place after the other.
fn timed(size: u64, ms: u64, mut one: impl FnMut(u64) -> Result<(), String>) -> Result<Vec<f64>, String> {
    let budget = Duration::from_millis(ms);
    let (begin, mut at, mut values) = (Instant::now(), 0, Vec::new());
    let mut start = begin;
    while start - begin < budget {
        one(at)?;
        let end = Instant::now();
        values.push((end - start).as_nanos() as f64 / 1e3);
        (start, at) = (end, if at + 2 * size > MEMORY { 0 } else { at + size });
    }
    Ok(values)
}

pub(super) fn one_sided(writer: &mut Writer, method: Method, size: u64, ms: u64) -> Result<Vec<f64>, String> {
    let bytes = vec![0x5A; size as usize];
    timed(size, ms, |at| writer.write(method, at, &bytes).map_err(words))
}

pub(super) fn calls(client: &mut Client, size: u64, ms: u64) -> Result<Vec<f64>, String> {
    let bytes = vec![0x5A; size as usize];
    timed(size, ms, |at| client.write(at, &bytes).map_err(words))
}

fn visibility_rows(seen: &[(Method, bool, Tally)]) -> Vec<Row> {
    let rows = seen.iter().flat_map(|(method, ddio, tally)| {
        let series = format!("{}, DDIO {}", series(*method), if *ddio { "on" } else { "off" });
        [("visible at its completion", tally.visible), ("durable at its completion", tally.durable)].map(
            |(op, n)| {
                let share = n as f64 * 100.0 / tally.trials.max(1) as f64;
                let row = Row::single(op, 1024, series.clone(), ("share", "%"), share, Kind::Simulated);
                Row { n: tally.trials, ..row }
            },
        )
    });
    rows.collect()
}

fn verdicts(bench: &Bench, seen: &[(Method, bool, Tally)]) -> (Vec<Bar>, Vec<Claim>) {
    let ratio = |over: &str, under: &str| bench.ratio(&latency(64, over), &latency(64, under));
    let (write, read, flush) = (series(Method::Write), series(Method::WriteRead), series(Method::WriteFlush));
    let (rpc_read, read_write) = (ratio(RPC, read), ratio(read, write));
    let (flush_rpc, durable, rpc_bare) = (ratio(flush, RPC), ratio(RPC, VOLATILE), ratio(RPC, BARE));
    let of = |method, ddio| {
        seen.iter().find(|(m, d, _)| (*m, *d) == (method, ddio)).map_or_else(Tally::default, |found| found.2)
    };
    let (lone, pushed) = (of(Method::Write, false), of(Method::WriteRead, false));
    let invisible = (lone.trials - lone.visible) as f64 * 100.0 / lone.trials.max(1) as f64;
    let (flushed, kept) = (of(Method::WriteFlush, true), of(Method::WriteRead, true));
    let bars = vec![
        Bar::new("64 B durable call / WRITE+READ, latency", rpc_read, Sense::AtMost, 1.25),
        Bar::new(
            "completed WRITEs that are invisible, staged responder, %",
            Some(invisible),
            Sense::AtLeast,
            1.0,
        ),
        Bar::new(
            "WRITE+READ durable at completion, DDIO off, %",
            Some(pushed.durable as f64 * 100.0 / pushed.trials.max(1) as f64),
            Sense::AtLeast,
            100.0,
        ),
        Bar::new(
            "WRITE+FLUSH durable at completion, DDIO on, %",
            Some(flushed.durable as f64 * 100.0 / flushed.trials.max(1) as f64),
            Sense::AtLeast,
            100.0,
        ),
    ];
    let claims = vec![
        Claim::new(
            "4.2: a WRITE that completed at its requester may not even be visible at the responder",
            Verdict::of(Some(lone.visible < lone.trials)),
            format!(
                "on a responder with staged placement, simulated: {} % of {} were not. Our own responder places before it \
                 acknowledges, so between two of ours a completed WRITE is visible, and not durable",
                figure(invisible),
                lone.trials
            ),
        ),
        Claim::new(
            "4.1: with DDIO off a READ behind it makes it durable; with DDIO on it does not",
            Verdict::of(Some(pushed.durable == pushed.trials && kept.durable < kept.trials)),
            format!(
                "simulated: durable {} of {} times with DDIO off, {} of {} with DDIO on. Between two of ours, whose \
                 responder stores with a CPU, WRITE+READ is durable where caches survive (eADR) only",
                pushed.durable, pushed.trials, kept.durable, kept.trials
            ),
        ),
        Claim::new(
            "4.3: durable WRITE+READ takes more than 2 x a WRITE (2.9 and 1.4 us, 64 B)",
            Verdict::judged(read_write, Sense::AtLeast, 2.0),
            format!(
                "{}. Here both leave in one system call and the answers come in one, so a READ adds its engine time and \
                 no round trip over PCIe",
                times(read_write)
            ),
        ),
        Claim::new(
            "4.3: calls are up to 20 % faster than WRITE+READ at the median, and in any case comparable",
            Verdict::judged(rpc_read, Sense::AtMost, 1.0),
            format!(
                "{} of WRITE+READ. A call passes an event loop on both sides where a software RNIC has its engine only: \
                 both are the same CPU's work here",
                times(rpc_read)
            ),
        ),
        Claim::new(
            "4.5: WRITE+FLUSH will be little faster than a call",
            Verdict::judged(flush_rpc, Sense::AtLeast, 0.75),
            format!("{} of a call", times(flush_rpc)),
        ),
        Claim::new(
            "1: making data durable takes far less (100 ns) than the network's round trip",
            Verdict::judged(durable, Sense::AtMost, 1.25),
            format!(
                "a durable call takes {} of one into the cache, {} of a bare round trip",
                times(durable),
                times(rpc_bare)
            ),
        ),
    ];
    (bars, claims)
}
