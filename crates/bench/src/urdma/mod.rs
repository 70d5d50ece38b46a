//! `rem bench urdma`: perftest on our libraries against perftest on Linux' Soft-RoCE, inside one boot of one guest.
//!
//! What paper 003 compares urdma with is the kernel's software RDMA of its day, softiwarp; ours is Soft-RoCE. The guest
//! is emulated, without AVX and carry-less multiplication, so that only ratios mean anything, and nothing is said of real CPUs; the ratios
//! are fair as both sides have the same guest, the same two cores
//! and the same wire, one virtual Ethernet pair whose two ends are handed over and back (`wire.sh` has the reason).
//! Two guests would measure the emulator's network cards and its threads on our two cores more than the two stacks.

mod guest;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::guest::Guest;
use crate::effort;
use crate::machine::State;
use crate::perftest::{Op, Run};
use crate::report::{Bar, Report, Sense, bytes, figure};
use crate::samples::{Metric, Samples};
use crate::stats;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// As any bench; two sizes if quick.
    pub common: effort::Options,
    /// Where our libraries are.
    pub libraries: PathBuf,
    /// Where the guest is kept between runs.
    pub directory: PathBuf,
}

/// Who carries the operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum System {
    SoftRoce,
    Ours,
}

impl System {
    const fn series(self) -> &'static str {
        match self {
            Self::SoftRoce => "soft-roce",
            Self::Ours => "remanence",
        }
    }

    /// The shell words that run a program at one end of the wire, on a core of its own.
    fn end(self, end: usize) -> String {
        let core = 1 << end;
        let name = ["near", "far"][end];
        match self {
            Self::SoftRoce => format!("timeout 60 taskset {core}"),
            Self::Ours => format!(
                "timeout 60 nsenter --net=/run/netns/{name} env LD_LIBRARY_PATH=/dropin REMANENCE_DEVICE=rem_wire{end} \
                 taskset {core}"
            ),
        }
    }

    fn device(self, end: usize) -> String {
        format!("{}{end}", if self == Self::SoftRoce { "rxe" } else { "rem_wire" })
    }
}

/// The median of each run, by operation, metric, size and system: what the tables are made of.
type Medians = BTreeMap<(Op, Metric, u64, System), Vec<f64>>;

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when there can be no guest or nothing at all can be measured in it.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let effort::Options { effort, only, .. } = &options.common;
    let (rounds, sizes): (u64, &[u64]) = effort.pick(
        (1, &[64, 64 << 10]),
        (6, &[64, 64 << 10]),
        (6, &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]),
    );
    let total = rounds * 2 * Op::ALL.len() as u64 * 2 * sizes.len() as u64;
    let (mut samples, mut medians, mut skipped) = (Samples::new(*effort, only), Medians::new(), Vec::new());
    for metric in METRICS {
        let size = if metric == Metric::Latency { 64 } else { 64 << 10 };
        samples.control(&Run { op: Op::Write, metric, size, count: 0 }.key(System::SoftRoce.series()));
    }
    let mut booted = None;
    let minute = Duration::from_secs(60);
    while samples.another(rounds, |samples| bars(samples, sizes))? {
        for op in Op::ALL {
            // Whoever goes second may find the emulator's caches warm: take turns.
            let order = [System::SoftRoce, System::Ours];
            for system in if samples.blocks() % 2 == 1 { order } else { [order[1], order[0]] } {
                let runs = sizes.iter().flat_map(|&size| {
                    METRICS.map(|metric| Run { op, metric, size, count: count(metric, size) })
                });
                let runs: Vec<Run> = runs.filter(|run| samples.wants(&run.key(system.series()))).collect();
                if runs.is_empty() {
                    continue;
                }
                if booted.is_none() {
                    progress(0, total, "booting the guest");
                    booted = Some(boot(options)?);
                }
                let (guest, _) = booted.as_ref().expect("it was booted");
                let owner = if system == System::SoftRoce { "rxe" } else { "ours" };
                guest.run(&format!("sh /bench/wire.sh {owner}"), minute)?;
                for run in runs {
                    progress(samples.step(), total, &run.words(system.series()));
                    let measured = samples.burst_in(
                        || State::Any,
                        &run.key(system.series()),
                        || {
                            let values = sample(guest, system, &run)?;
                            let mut sorted = values.clone();
                            sorted.sort_by(f64::total_cmp);
                            let median = sorted[sorted.len() / 2];
                            medians.entry((op, run.metric, run.size, system)).or_default().push(median);
                            Ok(values)
                        },
                    );
                    if let Err(why) = measured {
                        skipped.push(format!("{}: {why}", run.words(system.series())));
                    }
                }
            }
        }
    }
    progress(total, total, "done");
    let guest = booted.map(|(_, kernel)| guest_words(&kernel)).unwrap_or_default();
    let params = serde_json::json!({
        "rounds": samples.blocks(),
        "settings": { "the guest of both": guest },
        "wire": "one veth pair, MTU 4300, path MTU 4096, client and server on a core each",
        "latency": "perftest: half a round trip for write and send, a whole one for read",
    });
    let bars = |samples: &Samples| bars(samples, sizes);
    let mut report = Report::new("urdma", params, &samples, bars, |_| Vec::new(), skipped)?;
    report.preface = tables(&medians, &guest);
    Ok(report)
}

const METRICS: [Metric; 2] = [Metric::Latency, Metric::Throughput];

/// A guest whose two ends of the wire are there, and its kernel.
fn boot(options: &Options) -> Result<(Guest, String), String> {
    let tree = tree(options)?;
    let guest = Guest::boot(&options.directory, &tree)?;
    let minute = Duration::from_secs(60);
    guest.run("sh /bench/wire.sh make", minute)?;
    let kernel = guest.run("uname -r", minute)?.trim().to_owned();
    Ok((guest, kernel))
}

/// What the figures are figures of.
fn guest_words(kernel: &str) -> String {
    format!(
        "Linux {kernel} in QEMU's software emulation, 2 cores, without carry-less multiplication, AVX and fast string moves, whose \
         emulation is slower than doing without. Only ratios of the two stacks in this guest mean anything, and even they say nothing of \
         real CPUs: there the kernel's ICRC and copies, and ours, are made by the instructions that are missing here"
    )
}

/// Enough operations for a steady figure (who drives our side is learned from some hundreds of them, and the emulator
/// translates a program's code anew in each process, a kernel's once), and few enough that Soft-RoCE moves them in a second or two.
fn count(metric: Metric, size: u64) -> u64 {
    if metric == Metric::Latency {
        ((8 << 20) / size).clamp(12, 4000)
    } else {
        ((64 << 20) / size).clamp(64, 4000)
    }
}

/// What the guest has besides its own: our libraries, and the script that hands over the wire.
fn tree(options: &Options) -> Result<PathBuf, String> {
    let tree = options.directory.join("tree");
    let fault = |what: &Path| {
        let what = what.display().to_string();
        move |e: std::io::Error| format!("{what}: {e}")
    };
    for below in ["dropin", "bench"] {
        std::fs::create_dir_all(tree.join(below)).map_err(fault(&tree))?;
    }
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let from = options.libraries.join(name);
        std::fs::copy(&from, tree.join("dropin").join(name)).map_err(fault(&from))?;
    }
    let script = tree.join("bench/wire.sh");
    std::fs::write(&script, include_str!("wire.sh")).map_err(fault(&script))?;
    Ok(tree)
}

/// Runs a server and a client in the guest. Nothing tells when the server listens, so a client that finds nobody is
/// started again.
fn sample(guest: &Guest, system: System, run: &Run) -> Result<Vec<f64>, String> {
    let port = 18_515;
    let program = |end: usize| {
        let arguments = run.arguments(&system.device(end), port).join(" ");
        format!("{} {} {arguments}", system.end(end), run.program())
    };
    let command = format!(
        "{server} > /tmp/server 2>&1 & server=$!; tries=0; \
         until {client} 10.88.0.1 > /tmp/client 2>&1 || [ $tries = 30 ] || ! grep -q 'ouldn.t connect' /tmp/client; \
         do tries=$((tries + 1)); usleep 30000; done; cat /tmp/client; \
         grep -q '#bytes' /tmp/client || kill $server; wait $server",
        server = program(0),
        client = program(1),
    );
    run.parse(&guest.run(&command, Duration::from_secs(90)).map_err(|said| {
        let tail: Vec<&str> = said.lines().rev().take(3).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join(" | ")
    })?)
}

fn bars(samples: &Samples, sizes: &[u64]) -> Vec<Bar> {
    let ratio = |metric, size| {
        let run = Run { op: Op::Write, metric, size, count: 0 };
        samples.ratio(&run.key(System::Ours.series()), &run.key(System::SoftRoce.series()))
    };
    // urdma was 4 us below softiwarp there. Microseconds of an emulator say nothing; which one is lower does.
    let small = sizes.iter().filter(|size| **size < 16 << 10);
    let all: Option<Vec<_>> = small.map(|size| ratio(Metric::Latency, *size)).collect();
    let worst = all.and_then(|all| stats::worst(&all, Sense::AtMost));
    vec![
        Bar::new("64 B WRITE latency / Soft-RoCE's", ratio(Metric::Latency, 64), Sense::AtMost, 0.8),
        Bar::new(
            "64 KiB WRITE bandwidth / Soft-RoCE's",
            ratio(Metric::Throughput, 64 << 10),
            Sense::AtLeast,
            1.5,
        ),
        Bar::new("WRITE latency / Soft-RoCE's, the worst below 16 KiB", worst, Sense::AtMost, 1.0),
    ]
}

/// Tables A-1 to A-6 of the paper, with our two columns: mean and standard deviation of the runs' medians.
fn tables(medians: &Medians, guest: &str) -> String {
    let mut out = format!("In {guest}.\n\n");
    let mut number = 0;
    for metric in METRICS {
        for op in Op::ALL {
            number += 1;
            let (what, unit) = match metric {
                Metric::Latency => ("latency", "us"),
                _ => ("throughput", "Mb/s"),
            };
            let scale = if metric == Metric::Latency { 1.0 } else { 8e3 };
            let op_word = op.word().to_uppercase();
            let _ = writeln!(out, "Table A-{number}: {op_word} {what}, mean and stdev over runs, in {unit}");
            let _ = writeln!(out, "{:>8} {:>21} {:>21} {:>7}", "bytes", "remanence", "soft-roce", "ratio");
            let mut sizes: Vec<u64> =
                medians.keys().filter(|k| (k.0, k.1) == (op, metric)).map(|k| k.2).collect();
            sizes.dedup();
            for size in sizes {
                let column =
                    |system| medians.get(&(op, metric, size, system)).map(|runs| mean_and_stdev(runs));
                let cell = |found: Option<(f64, f64)>| {
                    found.map_or_else(
                        || format!("{:>21}", "-"),
                        |(mean, stdev)| format!("{:>11} {:>9}", figure(scale * mean), figure(scale * stdev)),
                    )
                };
                let (ours, theirs) = (column(System::Ours), column(System::SoftRoce));
                let ratio = ours.zip(theirs).map_or_else(|| "-".to_owned(), |(a, b)| figure(a.0 / b.0));
                let _ = writeln!(out, "{:>8} {} {} {ratio:>7}", bytes(size), cell(ours), cell(theirs));
            }
            out.push('\n');
        }
    }
    out
}

fn mean_and_stdev(runs: &[f64]) -> (f64, f64) {
    let n = runs.len() as f64;
    let mean = runs.iter().sum::<f64>() / n;
    let square = runs.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (square / (n - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_have_the_papers_shape() {
        let mut medians = Medians::new();
        medians.insert((Op::Write, Metric::Latency, 64, System::Ours), vec![10.0, 14.0]);
        medians.insert((Op::Write, Metric::Latency, 64, System::SoftRoce), vec![24.0]);
        let text = tables(&medians, &guest_words("6.1"));
        assert!(
            text.starts_with("In Linux 6.1 in QEMU's") && text.contains("say nothing of real CPUs"),
            "{text}"
        );
        let line = text.lines().nth(4).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["64", "12.0", "2.83", "24.0", "0.000", "0.500"]);
        assert!(text.contains("Table A-6: SEND throughput"), "{text}");
    }
}
