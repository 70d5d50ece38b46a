//! `rem bench copy-engine`: who copies into memory, how fast, and at what price to the caller (paper 001, section 5.4:
//! figures 5 and 6, the order test, and the write amplification behind them).
//!
//! Live: the engines of `pmem::engine` on DRAM, and on DRAM that is declared persistent (ADR), so that cache lines
//! are written back as on a persistent DIMM; beside memcpy, the limit. Intel's accelerator is among them where there is one and
//! it passes its trial. Model: the same figures for the paper's
//! machine, from its own peaks and from the DIMM model.

mod live;
mod model;

use remanence_pmem::engine::{Placement, dsa};

use self::live::{By, DRAM, Engine, PM, SUBMIT};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::effort::Options;
use crate::report::{Bar, Report, Sense};
use crate::samples::{Key, Metric, Samples};
use crate::stats::Estimate;

/// Bytes of a copy: those of the paper's figures.
const SIZES: [u64; 8] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when there is no memory to copy to.
pub fn run(options: &Options, progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let model = model::Model::new();
    let live = live::run(options, model.rows(), progress, bars)?;
    let params = serde_json::json!({
        "rounds": live.samples.blocks(), "ms": live.ms, "target": live.target,
        "sources": "as many as are under way, used again and again, so that they stay in the cache",
        "pm": "a tmpfs file, declared ADR: lines are written back and fenced as on a persistent DIMM, and end in DRAM",
        "dsa": live.without.clone().unwrap_or_else(|| dsa::detect().to_string()),
        "x": { model::AMPLIFICATION: "lines of disorder" },
    });
    let skipped = live.without.iter().cloned().collect();
    let bars = |samples: &Samples| bars(samples, live.without.is_none());
    let claims = |samples: &Samples| claims(samples, &live, &model);
    Report::new("copy-engine", params, &live.samples, bars, claims, skipped)
}

fn key(op: &str, x: u64, series: &str, metric: Metric) -> Key {
    Key { op: op.to_owned(), x, series: series.to_owned(), metric }
}

fn throughput(samples: &Samples, op: &str, size: u64, over: &str, under: &str) -> Option<Estimate> {
    samples.ratio(&key(op, size, over, Metric::Throughput), &key(op, size, under, Metric::Throughput))
}

/// What the bars and the claims are about.
fn ratio(samples: &Samples, op: &str, size: u64, over: Engine, under: Engine) -> Option<Estimate> {
    throughput(samples, op, size, &over.series(), &under.series())
}

const INLINE: fn(Placement) -> Engine = |placement| Engine { by: By::Own, placement, window: 1 };
const WORKER_1: fn(Placement) -> Engine = |placement| Engine { by: By::Worker, placement, window: 1 };
const DSA_8: fn(Placement) -> Engine = |placement| Engine { by: By::Dsa, placement, window: 8 };
const WORKER_8: fn(Placement) -> Engine = |placement| Engine { by: By::Worker, placement, window: 8 };

fn busy(samples: &Samples, size: u64) -> Option<Estimate> {
    let at = |engine: Engine| key(SUBMIT, size, &engine.series(), Metric::Latency);
    samples.ratio(&at(WORKER_8(Placement::NonTemporal)), &at(INLINE(Placement::NonTemporal)))
}

fn bars(samples: &Samples, dsa: bool) -> Vec<Bar> {
    use Placement::{Cached, NonTemporal, WriteBack};
    let amplified = |series| samples.value(model::AMPLIFICATION, model::AS_MEASURED, series);
    let to_pm = |series| samples.value(PM, 64 << 10, series);
    vec![
        Bar::new(
            "copies that were seen out of order, all engines",
            live::out_of_order(samples, dsa),
            Sense::AtMost,
            0.0,
        ),
        Bar::new(
            "64 KiB to PM: the submitter's time with the worker / with its own CPU",
            busy(samples, 64 << 10),
            Sense::AtMost,
            0.5,
        ),
        Bar::new(
            "64 KiB to PM: worker, 8 under way / own CPU, throughput",
            ratio(samples, PM, 64 << 10, WORKER_8(NonTemporal), INLINE(NonTemporal)),
            Sense::AtLeast,
            0.8,
        ),
        Bar::new(
            "64 KiB to PM: non-temporal / written back, throughput",
            ratio(samples, PM, 64 << 10, INLINE(NonTemporal), INLINE(WriteBack)),
            Sense::AtLeast,
            1.0,
        ),
        Bar::new(
            "64 KiB to DRAM: worker, 8 under way / memcpy, throughput",
            throughput(samples, DRAM, 64 << 10, &WORKER_8(Cached).series(), live::MEMCPY),
            Sense::AtLeast,
            0.7,
        ),
        Bar::new(
            "model: write amplification with direct cache access (2 in the paper)",
            amplified(model::CACHED),
            Sense::AtLeast,
            1.7,
        ),
        Bar::new("model: write amplification without", amplified(model::PAST), Sense::AtMost, 1.05),
        Bar::new(
            "model: 64 KiB to PM, direct cache access off / on (11.5 / 5.8 GB/s in the paper)",
            to_pm(model::DCA[1]).zip(to_pm(model::DCA[0])).map(|(off, on)| off / on),
            Sense::AtLeast,
            1.7,
        ),
    ]
}

fn claims(samples: &Samples, live: &live::Live, model: &model::Model) -> Vec<Claim> {
    use Placement::{Cached, NonTemporal, WriteBack};
    let pipelined = ratio(samples, DRAM, 4 << 10, WORKER_8(Cached), WORKER_1(Cached));
    let engine = throughput(samples, DRAM, 64 << 10, &WORKER_8(Cached).series(), live::MEMCPY);
    let dsa = throughput(samples, DRAM, 64 << 10, &DSA_8(Cached).series(), live::MEMCPY);
    let dca_large = ratio(samples, PM, 64 << 10, WORKER_8(NonTemporal), WORKER_8(Cached));
    let dca_small = ratio(samples, PM, 1 << 10, WORKER_8(NonTemporal), WORKER_8(Cached));
    let nt = ratio(samples, PM, 64 << 10, INLINE(NonTemporal), INLINE(WriteBack));
    let looks: u64 = live.order.iter().map(|order| order.verdict.looks).sum();
    let under_way: u64 = live.order.iter().map(|order| order.verdict.under_way).sum();
    let violations = live::out_of_order(samples, live.without.is_none());
    vec![
        Claim::new(
            "fig. 5: several copies under way are up to 3 x faster than one at a time, from 4 KiB",
            Verdict::judged(pipelined, Sense::AtLeast, 3.0),
            format!(
                "8 under way / 1: {} at 4 KiB; what is hidden here is the hand-over between two cores, there it is the \
                 engine's start-up, so the gain is of the same kind and of another size",
                times(pipelined)
            ),
        )
        .or_in_shape(Shape::new("several are faster than one").and(pipelined, Sense::AtLeast, 1.0)),
        Claim::new(
            "fig. 5: the DMA engine copies 1.44 x as fast as memcpy on one core, from 8 KiB",
            Verdict::judged(dsa.or(engine), Sense::AtLeast, 1.44),
            format!(
                "worker / memcpy: {} at 64 KiB; the worker is a core like the submitter's, and copies no faster. \
                 What it gives is the submitter's time: {} of that of copying by itself. {}",
                times(engine),
                times(busy(samples, 64 << 10)),
                match &live.without {
                    Some(why) => why.clone(),
                    None => format!("Intel DSA / memcpy: {} at 64 KiB", times(dsa)),
                }
            ),
        )
        .or_in_shape(Shape::new("the engine is faster").and(dsa.or(engine), Sense::AtLeast, 1.0)),
        Claim::new(
            "fig. 6: without direct cache access the engine writes 2 x as fast to Optane (11.5 against 5.8 GB/s)",
            Verdict::ModelOnly,
            format!(
                "model: {} against {} GB/s, for an amplification of {} against {}. Here, on DRAM: {} at 64 KiB, \
                 where a line that is not cached need not be read first, and the medium has no blocks to amplify",
                crate::report::figure(model.to_pm(64 << 10, false)),
                crate::report::figure(model.to_pm(64 << 10, true)),
                crate::report::figure(model.direct),
                crate::report::figure(model.amplified),
                times(dca_large)
            ),
        ),
        Claim::new(
            "fig. 6: for copies of 1 to 2 KiB direct cache access is faster (and not durable)",
            Verdict::judged(dca_small, Sense::AtMost, 1.0),
            format!("off / on: {} at 1 KiB; off has a fence to wait for, on has none", times(dca_small)),
        ),
        Claim::new(
            "5.4: a copy is never visible before an earlier one of its channel",
            Verdict::of(violations.map(|violations| violations == 0.0)),
            format!(
                "{} violations in {looks} looks at {} copies; {under_way} looks fell upon a copy under way",
                violations.unwrap_or_default(),
                live.order.iter().map(|order| order.verdict.copies).sum::<u64>()
            ),
        ),
        Claim::new(
            "5.4.2: persistent copies of one core use non-temporal stores",
            Verdict::judged(nt, Sense::AtLeast, 1.0),
            format!(
                "non-temporal / written back: {} at 64 KiB; worker, written back / non-temporal: {}",
                times(nt),
                times(ratio(samples, PM, 64 << 10, WORKER_8(WriteBack), WORKER_8(NonTemporal)))
            ),
        ),
        Claim::new(
            "5.2: DDIO makes DIMMs write about 2 x what they receive, and disabling it ends that",
            Verdict::ModelOnly,
            format!(
                "{} with lines leaving a cache in random order (calibrated to the paper's counters, 1.86), {} in \
                 sequence; the engines' own stores, traced: {}",
                crate::report::figure(model.amplified),
                crate::report::figure(model.direct),
                model.traced()
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effort::Effort;

    #[test]
    fn a_small_run_fills_every_bar_and_finds_no_copy_out_of_order() {
        let options = Options { effort: Effort::Tiny, only: Vec::new(), program: "none".into() };
        let report = run(&options, |_, _, _| {}).expect("there is memory");
        assert!(report.whole().is_ok() && report.bars.len() == 8);
        // How fast it was is not for a test to say.
        let is_exact = |bar: &&Bar| bar.name.starts_with("model") || bar.limit == 0.0;
        assert!(report.bars.iter().filter(is_exact).all(|bar| bar.holds), "{:?}", report.bars);
        assert!(report.claims.iter().all(|claim| claim.verdict != Verdict::Open), "{:?}", report.claims);
    }

    /// What comes behind the blocks can be asked for alone.
    #[test]
    fn the_order_test_can_be_asked_for() {
        let only = vec!["seen out of order".to_owned()];
        let report = run(&Options { effort: Effort::Tiny, only, program: "none".into() }, |_, _, _| {});
        let report = report.expect("there is memory");
        assert!(report.bars.len() == 1 && report.bars[0].holds && report.claims.len() == 1, "{report:?}");
        assert!(report.rows.iter().all(|row| row.op == live::ORDER), "{:?}", report.rows);
    }
}
