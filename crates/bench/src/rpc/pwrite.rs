//! `rem bench pwrite`: small durable writes, one-sided and by calls (paper 001, section 4 and figure 3); and the
//! write-visibility test.

use std::time::Duration;

use remanence_rpc::durable::Client;
use remanence_rpc::pwrite::{Method, Writer};
use remanence_rpc::visibility::{Tally, tally};

use super::client::{Burst, Spec};
use super::server::{self, Copying, MEMORY, Served, words};
use super::{Bench, FIGURES, JUDGED, PAPERS, addresses, at, key, serve};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::effort::Options;
use crate::limits::each;
use crate::limits::udp::BarePair;
use crate::report::{Bar, Kind, Report, Row, Sense, figure};
use crate::samples::{Key, Metric, Samples};
use crate::server_load::ServerLoad;
use crate::stats::Estimate;

const OP: &str = "durable write";
/// Bytes of a write, as in figure 3 of the paper.
const SIZES: [u64; 5] = [64, 128, 256, 512, 1024];
const QUICK: [u64; 3] = [64, 256, 1024];
const RPC: &str = "call";
const VOLATILE: &str = "call, into the cache";
const BARE: &str = "bare UDP round trip";
/// The first of the durable servers, and the volatile one.
const SERVERS: [Copying; 2] = [Copying::Cpu, Copying::CpuCached];

fn latency(size: u64, series: &str, load: ServerLoad) -> Key {
    key(&at(OP, load), size, series, Metric::Latency)
}

/// What a method is called, here and in bulk.
pub(super) const fn series(method: Method) -> &'static str {
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
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let (rounds, ms) = options.effort.extent();
    let servers = server::Spec::Copying(SERVERS.to_vec());
    let clients = Spec::Writers { calls: SERVERS.len(), window: 1, longest: 4096 };
    let mut bench = Bench::new(options, servers, clients);
    let mut bare = BarePair::open(addresses())?;
    let sizes = options.effort.pick(&QUICK[..], &QUICK[..], &SIZES[..]);
    let steps = rounds * sizes.len() as u64;
    for load in FIGURES {
        bench.samples.control(&latency(64, RPC, load));
    }
    progress(0, steps, "the write-visibility test");
    let trials = options.effort.pick(60, 300, 2000);
    let seen =
        Method::ALL.map(|method| [true, false].map(|ddio| (method, ddio, tally(method, ddio, trials, 1))));
    let seen: Vec<(Method, bool, Tally)> = seen.into_iter().flatten().collect();
    bench.samples.singles(visibility_rows(&seen));
    while bench.another(rounds, bars)? {
        for &size in sizes {
            progress(bench.samples.step(), steps, &format!("{OP} of {size} bytes"));
            for (n, load) in bench.cells(Method::ALL.len() + SERVERS.len(), size == sizes[0]) {
                let (name, what, burst) = match Method::ALL.get(n) {
                    Some(&method) => {
                        let burst = Burst::Write { method: method.into(), size, ms };
                        (series(method), Served::Device, burst)
                    }
                    None => {
                        let n = n - Method::ALL.len();
                        ([RPC, VOLATILE][n], Served::Endpoint(n), Burst::Call { n, size, ms })
                    }
                };
                bench.burst(&latency(size, name, load), serve(what, load), burst);
            }
            bench.sample(&FIGURES.map(|load| latency(size, BARE, load)), || bare.round_trips(size, ms));
        }
    }
    let params = serde_json::json!({
        "servers": ServerLoad::ALL.map(ServerLoad::name),
        "rounds": bench.samples.blocks(), "ms": ms,
        "latency": "from posting, or calling, to the completion or the answer; sequential places; the client spins",
        "visibility": "the real engine on both sides, over a simulated responder with stages; at the completion",
        "trials": trials,
    });
    bench.report("pwrite", params, bars, |samples| claims(samples, &seen))
}

/// Microseconds of each of as many operations as the time allows, to one place after the other.
fn timed(size: u64, ms: u64, mut one: impl FnMut(u64) -> Result<(), String>) -> Result<Vec<f64>, String> {
    let mut at = 0;
    let nanos = each(Duration::from_millis(ms), || {
        let to = at;
        at = if at + 2 * size > MEMORY { 0 } else { at + size };
        one(to)
    })?;
    Ok(nanos.into_iter().map(|nanos| nanos as f64 / 1e3).collect())
}

pub(super) fn one_sided(writer: &mut Writer, method: Method, size: u64, ms: u64) -> Result<Vec<f64>, String> {
    let bytes = vec![0x5A; size as usize];
    timed(size, ms, |at| writer.write(method, at, &bytes).map_err(words))
}

pub(super) fn calls(client: &mut Client, size: u64, ms: u64) -> Result<Vec<f64>, String> {
    let bytes = vec![0x5A; size as usize];
    timed(size, ms, |at| client.write(at, &bytes).map_err(words))
}

/// What is simulated: shares of writes, of so many bytes.
const VISIBLE: &str = "visible at its completion";
const DURABLE: &str = "durable at its completion";
const SIMULATED: u64 = 1024;

fn simulated(method: Method, ddio: bool) -> String {
    format!("{}, DDIO {}", series(method), if ddio { "on" } else { "off" })
}

fn visibility_rows(seen: &[(Method, bool, Tally)]) -> Vec<Row> {
    let rows = seen.iter().flat_map(|(method, ddio, tally)| {
        [(VISIBLE, tally.visible), (DURABLE, tally.durable)].map(|(op, n)| {
            let share = n as f64 * 100.0 / tally.trials.max(1) as f64;
            let series = simulated(*method, *ddio);
            let row = Row::single(op, SIMULATED, series, ("share", "%"), share, Kind::Simulated);
            Row { n: tally.trials, ..row }
        })
    });
    rows.collect()
}

fn of(seen: &[(Method, bool, Tally)], method: Method, ddio: bool) -> Tally {
    seen.iter().find(|(m, d, _)| (*m, *d) == (method, ddio)).map_or_else(Tally::default, |found| found.2)
}

fn invisible(lone: Tally) -> f64 {
    (lone.trials - lone.visible) as f64 * 100.0 / lone.trials.max(1) as f64
}

/// The two schemes that the paper compares, of 64 B.
fn rpc_read(samples: &Samples, load: ServerLoad) -> Option<Estimate> {
    samples.ratio(&latency(64, RPC, load), &latency(64, series(Method::WriteRead), load))
}

fn bars(samples: &Samples) -> Vec<Bar> {
    let calls = JUDGED.map(|load| {
        let name = format!("64 B durable call / WRITE+READ, latency, server {}", load.name());
        Bar::new(name, rpc_read(samples, load), Sense::AtMost, 1.25)
    });
    let share = |op, method, ddio| samples.value(op, SIMULATED, &simulated(method, ddio));
    let invisible = share(VISIBLE, Method::Write, false).map(|visible| 100.0 - visible);
    let simulated = [
        ("completed WRITEs that are invisible, staged responder, %", invisible, 1.0),
        ("WRITE+READ durable at completion, DDIO off, %", share(DURABLE, Method::WriteRead, false), 100.0),
        ("WRITE+FLUSH durable at completion, DDIO on, %", share(DURABLE, Method::WriteFlush, true), 100.0),
    ];
    let simulated = simulated.map(|(name, found, limit)| Bar::new(name, found, Sense::AtLeast, limit));
    calls.into_iter().chain(simulated).collect()
}

fn claims(samples: &Samples, seen: &[(Method, bool, Tally)]) -> Vec<Claim> {
    let ratio =
        |over: &str, under: &str| samples.ratio(&latency(64, over, PAPERS), &latency(64, under, PAPERS));
    let (write, read, flush) = (series(Method::Write), series(Method::WriteRead), series(Method::WriteFlush));
    let (read_write, flush_rpc, durable) = (ratio(read, write), ratio(flush, RPC), ratio(RPC, VOLATILE));
    let paced = [PAPERS, ServerLoad::IDLE, ServerLoad::BUSY].map(|load| rpc_read(samples, load));
    let rpc_bare = ratio(RPC, BARE);
    let (lone, pushed) = (of(seen, Method::Write, false), of(seen, Method::WriteRead, false));
    let (invisible, kept) = (invisible(lone), of(seen, Method::WriteRead, true));
    let known = |op, method| samples.value(op, SIMULATED, &simulated(method, false));
    vec![
        Claim::new(
            "4.2: a WRITE that completed at its requester may not even be visible at the responder",
            Verdict::of(known(VISIBLE, Method::Write).map(|_| lone.visible < lone.trials)),
            format!(
                "on a responder with staged placement, simulated: {} % of {} were not. Our own responder places before it \
                 acknowledges, so between two of ours a completed WRITE is visible, and not durable",
                figure(invisible),
                lone.trials
            ),
        ),
        Claim::new(
            "4.1: with DDIO off a READ behind it makes it durable; with DDIO on it does not",
            Verdict::of(
                known(DURABLE, Method::WriteRead)
                    .map(|_| pushed.durable == pushed.trials && kept.durable < kept.trials),
            ),
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
        )
        .or_in_shape(Shape::new("it takes longer than a WRITE").and(read_write, Sense::AtLeast, 1.0)),
        Claim::new(
            "4.3: calls are up to 20 % faster than WRITE+READ at the median, and in any case comparable",
            Verdict::judged(paced[0], Sense::AtMost, 1.0),
            format!(
                "{} of WRITE+READ where the server spins, as the paper's; {} where it is idle, {} where it is busy. A call passes an event loop on both sides where a software RNIC has its engine only: \
                 both are the same CPU's work here",
                times(paced[0]),
                times(paced[1]),
                times(paced[2]),
            ),
        ),
        Claim::new(
            "4.5: WRITE+FLUSH will be little faster than a call",
            Verdict::judged(flush_rpc, Sense::AtLeast, 0.75),
            format!("{} of a call", times(flush_rpc)),
        )
        .or_in_shape(Shape::new("it is the faster one").and(flush_rpc, Sense::AtMost, 1.0)),
        Claim::new(
            "1: making data durable takes far less (100 ns) than the network's round trip",
            Verdict::judged(durable, Sense::AtMost, 1.25),
            format!(
                "a durable call takes {} of one into the cache, {} of a bare round trip",
                times(durable),
                times(rpc_bare)
            ),
        ),
    ]
}
