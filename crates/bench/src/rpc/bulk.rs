//! `rem bench bulk`: bulk durable writes, one-sided and by calls, with and without the asynchronous copy engine (paper 001,
//! section 5, figures 4 and 7).

use std::time::{Duration, Instant};

use remanence_pmem::dimm::arrival::Cache;
use remanence_pmem::dimm::{Config, Dimms};
use remanence_rpc::durable::{Client, Fault};
use remanence_rpc::pwrite::{Method, Writer};

use super::client::{Burst, Found, Spec};
use super::server::{self, Copying, MEMORY, Served, words};
use super::{Bench, JUDGED, PAPERS, addresses, at, key, pwrite, serve};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::effort::Options;
use crate::limits::memcpy::Memcpy;
use crate::limits::udp::{self, BarePair};
use crate::machine;
use crate::report::{Bar, Kind, Report, Row, Sense, bytes, figure};
use crate::role::End;
use crate::samples::{Key, Metric, Samples};

const OP: &str = "bulk write";
const MEMCPY: &str = "memcpy, one core";
const STREAM: &str = "bare UDP stream, GSO and GRO";
/// Figure 7's, and figure 4's at the end.
const SIZES: [u64; 7] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 2 << 20];
const QUICK: [u64; 4] = [8 << 10, 32 << 10, 128 << 10, 2 << 20];
/// From here on the engine must not be slower, where it has a core of its own.
const FROM: u64 = 32 << 10;
/// From here on the server is idle and busy too.
const LARGE: u64 = 128 << 10;
/// What two runs of the same way of copying differ by: as fast is this, and not 1 half of the time.
const AS_FAST: f64 = 0.97;
/// What the bars compare is measured again and again, in short turns: two samples of the same differ by a third here.
const TURNS: [Copying; 24] = {
    let (cpu, adaptive) = (Copying::Cpu, Copying::Adaptive);
    let mut turns = [cpu; 24];
    let mut n = 0;
    while n < turns.len() {
        // Neither always comes first.
        if matches!(n % 4, 1 | 2) {
            turns[n] = adaptive;
        }
        n += 1;
    }
    turns
};
/// Bytes that a client keeps under way, and how many writes at least and at most.
const UNDER_WAY: u64 = 1 << 20;
/// Bytes that are run through the DIMM model.
const MODELLED: u64 = 16 << 20;

const fn series(copying: Copying) -> &'static str {
    match copying {
        Copying::Cpu => "calls",
        Copying::CpuCached => "calls, into the cache (visible)",
        Copying::Engine => "calls + engine, DCA off",
        Copying::EngineCached => "calls + engine, DCA on (visible)",
        Copying::Adaptive => "calls + engine where it pays",
        Copying::Dsa => "calls + Intel DSA, DCA off",
    }
}

fn throughput(size: u64, series: &str) -> Key {
    key(OP, size, series, Metric::Throughput)
}

/// A short turn of what a bar compares.
fn turn(size: u64, copying: Copying) -> Key {
    key("bulk write, in turn", size, series(copying), Metric::Throughput)
}

fn window(size: u64) -> u64 {
    (UNDER_WAY / size).clamp(4, 16)
}

/// Runs it, with Intel's accelerator too if `dsa`. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured, or the accelerator that was asked for cannot be used.
pub fn run(options: &Options, dsa: bool, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let (rounds, ms) = options.effort.extent();
    let sizes = options.effort.pick(&QUICK[..], &QUICK[..], &SIZES[..]);
    let mut ways = Copying::ALL.to_vec();
    ways.extend(dsa.then_some(Copying::Dsa));
    let clients = Spec::Writers { calls: ways.len(), window: 16, longest: 2 << 20 };
    let mut bench = Bench::new(options, server::Spec::Copying(ways.clone()), clients);
    let mut bare = BarePair::open(addresses())?;
    let mut memcpy = Memcpy::new(MEMORY);
    let steps = rounds * sizes.len() as u64;
    // Where the server has one core an engine has none of its own, and nothing to win.
    let has_core = End::Server.cores(&machine::allowed()).len() > 1;
    let turned: Vec<u64> = sizes.iter().copied().filter(|size| has_core && *size >= FROM).collect();
    bench.samples.control(&throughput(sizes[0], series(Copying::Cpu)));
    if has_core {
        bench.samples.control(&turn(FROM, Copying::Cpu));
    }
    let (cached, direct) = (amplification(true), amplification(false));
    bench.samples.singles(model_rows(cached, direct));
    while bench.another(rounds, |samples| bars(samples, &turned))? {
        for &size in sizes {
            progress(bench.samples.step(), steps, &format!("{OP}s of {}", bytes(size)));
            for (n, &copying) in ways.iter().enumerate() {
                let burst = Burst::BulkCalls { n, size, ms };
                bench.burst(&throughput(size, series(copying)), serve(Served::Endpoint(n), PAPERS), burst);
            }
            // In the middle of what it bounds, and to as much memory.
            bench.sample(&[throughput(size, MEMCPY)], || {
                Ok(vec![memcpy.burst(size, MEMORY, Duration::from_millis(ms))?])
            });
            let turns = if turned.contains(&size) { &TURNS[..] } else { &[] };
            for copying in turns {
                let n = ways.iter().position(|way| way == copying).expect("both are always measured");
                let burst = Burst::BulkCalls { n, size, ms: ms / 2 };
                bench.burst(&turn(size, *copying), serve(Served::Endpoint(n), PAPERS), burst);
            }
            for method in Method::ALL {
                let burst = Burst::BulkWrites { method: method.into(), size, ms };
                bench.burst(&throughput(size, pwrite::series(method)), serve(Served::Device, PAPERS), burst);
            }
            for load in JUDGED.into_iter().filter(|_| size >= LARGE) {
                let beside = |who| key(&at(OP, load), size, who, Metric::Throughput);
                let burst = Burst::BulkCalls { n: 0, size, ms };
                bench.burst(&beside(series(ways[0])), serve(Served::Endpoint(0), load), burst);
                for method in Method::ALL {
                    let burst = Burst::BulkWrites { method: method.into(), size, ms };
                    bench.burst(&beside(pwrite::series(method)), serve(Served::Device, load), burst);
                }
            }
            bench.sample(&[throughput(size, STREAM)], || bare.stream(size, ms));
        }
    }
    let params = serde_json::json!({
        "rounds": bench.samples.blocks(), "ms": ms,
        "servers": "spinning where nothing is said",
        "under way": "1 MiB in 4 to 16 writes; calls: 8 of them, the others wait for a slot",
        "throughput": "acknowledged bytes, at the client; DCA on and WRITE alone are visible, not durable",
        STREAM: udp::OFFLOADS,
        MEMCPY: "from one buffer in the cache to 64 MiB, as the writes go",
        "engine": "a worker thread, 8 copies ahead, from 8 KiB; a DMA engine only where a series names it. Where it pays: inline or handed over, whichever \
                   was faster lately",
    });
    let claims = |samples: &Samples| claims(samples, sizes, cached, direct);
    bench.report("bulk", params, |samples| bars(samples, &turned), claims)
}

/// GB/s of writes that complete one after the other, as many under way as the window holds.
fn stream(
    size: u64,
    ms: u64,
    mut submit: impl FnMut(u64) -> Result<bool, String>,
    mut wait: impl FnMut() -> Result<u64, String>,
) -> Result<Found, String> {
    let budget = Duration::from_millis(ms);
    let (begin, mut at, mut submitted, mut finished) = (Instant::now(), 0, 0_u64, 0_u64);
    while begin.elapsed() < budget {
        while submitted - finished < window(size) && submit(at)? {
            submitted += 1;
            at = if at + 2 * size > MEMORY { 0 } else { at + size };
        }
        finished += wait()?;
    }
    let elapsed = begin.elapsed();
    let value = (finished * size) as f64 / elapsed.as_nanos() as f64;
    while finished < submitted {
        finished += wait()?;
    }
    // What was under way when the time was over costs as well.
    Ok(Found { values: vec![value], operations: finished })
}

pub(super) fn calls(client: &mut Client, size: u64, ms: u64) -> Result<Found, String> {
    let data = vec![0x5A; size as usize];
    let client = std::cell::RefCell::new(client);
    stream(
        size,
        ms,
        |at| match client.borrow_mut().submit(at, &data) {
            Ok(()) => Ok(true),
            // There is memory for so many messages and no more: what is under way comes first.
            Err(Fault::Full) => Ok(false),
            Err(why) => Err(words(why)),
        },
        || client.borrow_mut().wait().map(|()| 1).map_err(words),
    )
}

pub(super) fn one_sided(writer: &mut Writer, method: Method, size: u64, ms: u64) -> Result<Found, String> {
    let data = vec![0x5A; size as usize];
    let mut before = writer.finished();
    let writer = std::cell::RefCell::new(writer);
    stream(
        size,
        ms,
        |at| writer.borrow_mut().submit(method, at, &data).map(|()| true).map_err(words),
        || {
            let finished = writer.borrow_mut().wait().map_err(words)?;
            let more = finished - before;
            before = finished;
            Ok(more)
        },
    )
}

/// Bytes that DIMMs write to their media for each byte that arrives in sequence: **a model**.
fn amplification(ddio: bool) -> f64 {
    let mut dimms = Dimms::new(Config::OPTANE_SET);
    let lines = MODELLED / 64;
    if ddio {
        let mut cache = Cache::new(Cache::AS_MEASURED, 1);
        (0..lines).for_each(|line| cache.write_line(line, &mut dimms));
        cache.drain(&mut dimms);
    } else {
        (0..lines).for_each(|line| dimms.write_line(line));
    }
    dimms.drain();
    dimms.counters().write_amplification()
}

/// What is modelled: of writes of so many bytes, with and without.
const MEDIA: (&str, u64) = ("media bytes for each byte", 2 << 20);
const MODELS: [&str; 2] = ["model: DDIO or DCA on", "model: DDIO or DCA off"];

fn model_rows(cached: f64, direct: f64) -> impl Iterator<Item = Row> {
    let row = |(series, value)| Row::single(MEDIA.0, MEDIA.1, series, ("ratio", "times"), value, Kind::Model);
    MODELS.into_iter().zip([cached, direct]).map(row)
}

fn bars(samples: &Samples, turned: &[u64]) -> Vec<Bar> {
    let [cached, direct] = MODELS.map(|series| samples.value(MEDIA.0, MEDIA.1, series));
    let mut bars: Vec<Bar> = turned
        .iter()
        .map(|&size| {
            let name = format!("calls with the copy engine / without, {}", bytes(size));
            let ratio = samples.ratio(&turn(size, Copying::Adaptive), &turn(size, Copying::Cpu));
            Bar::new(name, ratio, Sense::AtLeast, AS_FAST)
        })
        .collect();
    bars.push(Bar::new(
        "model: write amplification, DDIO on / off",
        cached.zip(direct).map(|(cached, direct)| cached / direct),
        Sense::AtLeast,
        1.7,
    ));
    bars
}

fn claims(samples: &Samples, sizes: &[u64], cached: f64, direct: f64) -> Vec<Claim> {
    let ratio =
        |size, over: &str, under: &str| samples.ratio(&throughput(size, over), &throughput(size, under));
    let (rpc, engine, adaptive) = (series(Copying::Cpu), series(Copying::Engine), series(Copying::Adaptive));
    let gain = |size| ratio(size, engine, rpc);
    let (large, small) = (128 << 10, sizes[0]);
    let one_sided = pwrite::series(Method::Write);
    let grows = samples.ratio(&throughput(2 << 20, one_sided), &throughput(small, one_sided));
    let keys = [(large, engine), (large, rpc), (small, engine), (small, rpc)].map(|(x, y)| throughput(x, y));
    let widens = samples.combined(keys.each_ref(), |[a, b, c, d]| a / b / (c / d));
    let (write_stream, rpc_write) = (
        ratio(2 << 20, pwrite::series(Method::Write), STREAM),
        ratio(2 << 20, rpc, pwrite::series(Method::Write)),
    );
    let dca = ratio(large, engine, series(Copying::EngineCached));
    vec![
        Claim::new(
            "5.2, figure 4: one-sided 2 MB writes come near the line rate (45 of 56 Gbit/s)",
            Verdict::judged(write_stream, Sense::AtLeast, 0.8),
            format!(
                "{} of a bare UDP stream with the kernel's segmentation offload, which checks nothing and copies less: \
                 the engine computes an ICRC on both sides",
                times(write_stream)
            ),
        )
        .or_in_shape(Shape::new("the largest writes have more bandwidth than the smallest").and(
            grows,
            Sense::AtLeast,
            1.0,
        )),
        Claim::new(
            "5.2, figure 4: calls that copy with the CPU have half the bandwidth of one-sided writes (22 of 45 Gbit/s)",
            Verdict::judged(rpc_write, Sense::AtMost, 0.5),
            format!(
                "{}. The one-sided path is a CPU's work here too, and its copy into memory is cheap beside it",
                times(rpc_write)
            ),
        )
        .or_in_shape(Shape::new("calls have less").and(rpc_write, Sense::AtMost, 1.0)),
        Claim::new(
            "5.2, figure 4: with DDIO twice as many bytes reach the media as arrive; without, as many",
            Verdict::ModelOnly,
            format!(
                "{} with, {} without: there are no DIMMs of this kind here",
                figure(cached),
                figure(direct)
            ),
        ),
        Claim::new(
            "5.5, figure 7: the copy engine makes calls faster, from 16 KB on (2.3 x at 128 KB)",
            Verdict::judged(gain(large), Sense::AtLeast, 2.3),
            format!(
                "{} at 128 KiB. The paper's engine is hardware beside the cores, and its CPU copied at 34 Gbit/s. Here a \
                 copy takes a small part of what a message costs, and its engine is a thread that needs a core: with two \
                 cores, one for each side, there is none to spare, and no bar judges it. The server that measures which way pays: {}",
                times(gain(large)),
                times(ratio(large, adaptive, rpc))
            ),
        )
        .or_in_shape(
            Shape::new("it does at 128 KiB, and by more than for the smallest")
                .and(gain(large), Sense::AtLeast, 1.0)
                .and(widens, Sense::AtLeast, 1.0),
        ),
        Claim::new(
            "5.5, figure 7: for large writes the engine is faster with direct cache access off (by 32 % at 128 KB)",
            Verdict::judged(dca, Sense::AtLeast, 1.32),
            format!(
                "{}. In the paper it is the write amplification of the DIMMs that makes the difference, which only the \
                 model has; on DRAM, past the cache means waiting for memory",
                times(dca)
            ),
        )
        .or_in_shape(Shape::new("off is the faster one").and(dca, Sense::AtLeast, 1.0)),
    ]
}
