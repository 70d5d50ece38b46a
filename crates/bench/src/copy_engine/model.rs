//! The model half: the paper's machine, from its own peaks and from the DIMM model. Nothing here was measured.

use remanence_pmem::Region;
use remanence_pmem::dimm::arrival::Cache;
use remanence_pmem::dimm::trace::{Traced, replay};
use remanence_pmem::dimm::{Config, Dimms};
use remanence_pmem::engine::{CopyEngine as _, Inline, Options, Placement};

use super::SIZES;
use super::live::{DRAM, PM};
use crate::report::{Kind, Row, figure};

pub(super) const AMPLIFICATION: &str = "write amplification";
pub(super) const AS_MEASURED: u64 = Cache::AS_MEASURED as u64;
pub(super) const CACHED: &str = "model: direct cache access";
pub(super) const PAST: &str = "model: past the cache";
/// The engine into persistent memory, with direct cache access on and off.
pub(super) const DCA: [&str; 2] = ["model: IOAT, DCA on", "model: IOAT, DCA off"];

/// memcpy and non-temporal stores of one core, and the DMA engine's peak, in GB/s (figures 5 and 6).
const MEMCPY: f64 = 9.2;
const NT_STORES: f64 = 4.3;
const DMA: f64 = 13.3;
/// What six DIMMs took from the engine when nothing was amplified (figure 6).
const MEDIA: f64 = 11.5;
/// From handing a copy to the engine until its first byte, in nanoseconds: what makes eight under way 3 times as
/// fast as one at 4 KiB (5.4.1), (616 + 4096 / 13.3) / 3 being 4096 / 13.3.
const DMA_START: f64 = 616.0;
/// Bytes that are run through the DIMM model.
const BYTES: u64 = 16 << 20;
const SEED: u64 = 1;

/// The model, evaluated.
pub(super) struct Model {
    /// Write amplification with direct cache access, and without.
    pub(super) amplified: f64,
    pub(super) direct: f64,
    /// Of the real engines' own stores.
    traced: Vec<(Placement, f64)>,
}

impl Model {
    pub(super) fn new() -> Self {
        let traced = Placement::ALL.map(|placement| (placement, of_engine(placement)));
        Self {
            amplified: amplification(Some(Cache::AS_MEASURED)),
            direct: amplification(None),
            traced: traced.to_vec(),
        }
    }

    /// GB/s of the engine into persistent memory, eight copies under way.
    pub(super) fn to_pm(&self, size: u64, direct_cache_access: bool) -> f64 {
        let amplification = if direct_cache_access { self.amplified } else { self.direct };
        dma(size, 8).min(MEDIA / amplification)
    }

    /// The engines' own stores, as words.
    pub(super) fn traced(&self) -> String {
        let each: Vec<String> =
            self.traced.iter().map(|(p, value)| format!("{p} {}", figure(*value))).collect();
        each.join(", ")
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for size in SIZES {
            let mut add = |op: &str, series: &str, value| {
                rows.push(row(op, size, series, ("throughput", "GB/s"), value));
            };
            add(DRAM, "model: memcpy", MEMCPY);
            add(DRAM, "model: IOAT, W=1", dma(size, 1));
            add(DRAM, "model: IOAT, W=8", dma(size, 8));
            add(PM, "model: ntstore", NT_STORES);
            add(PM, DCA[0], self.to_pm(size, true));
            add(PM, DCA[1], self.to_pm(size, false));
        }
        for lines in [64, 256, 512, Cache::AS_MEASURED, 1024, 2048, 4096, 16_384] {
            let (lines, x) = (Some(lines), lines as u64);
            let unit = ("ratio", "times");
            rows.push(row(AMPLIFICATION, x, CACHED, unit, amplification(lines)));
            rows.push(row(AMPLIFICATION, x, PAST, unit, self.direct));
        }
        for (placement, value) in &self.traced {
            let series = format!("model: own CPU, {placement}, traced");
            rows.push(row(
                "write amplification of 64 KiB copies",
                64 << 10,
                &series,
                ("ratio", "times"),
                *value,
            ));
        }
        rows
    }
}

fn row(op: &str, x: u64, series: &str, metric: (&'static str, &'static str), value: f64) -> Row {
    Row::single(op, x, series, metric, value, Kind::Model)
}

/// GB/s of the engine into DRAM: starts overlap, bytes do not.
fn dma(size: u64, window: u64) -> f64 {
    let alone = DMA_START + size as f64 / DMA;
    (window as f64 * size as f64 / alone).min(DMA)
}

/// Bytes written to the media per byte, of a long sequential write through a cache of so many lines, or past it.
fn amplification(cache: Option<usize>) -> f64 {
    let mut dimms = Dimms::new(Config::OPTANE_SET);
    let lines = 0..BYTES / 64;
    match cache {
        None => lines.for_each(|line| dimms.write_line(line)),
        Some(capacity) => {
            let mut cache = Cache::new(capacity, SEED);
            lines.for_each(|line| cache.write_line(line, &mut dimms));
            cache.drain(&mut dimms);
        }
    }
    dimms.drain();
    dimms.counters().write_amplification()
}

/// The same for what a real engine stores: its write-backs in their order, and what it leaves in the cache at random.
fn of_engine(placement: Placement) -> f64 {
    let Ok(region) = Region::anonymous(BYTES) else { return f64::NAN };
    let traced = Traced::new(region);
    let mut engine = Inline::<&Traced<Region>>::new(Options::new().placement(placement));
    let mut buffer = vec![0x5A; 64 << 10];
    for offset in (0..BYTES).step_by(64 << 10) {
        let submitted = engine.submit(buffer.into(), &&traced, offset).is_ok();
        let Some(done) = engine.poll().filter(|_| submitted) else { return f64::NAN };
        buffer = done.source.into_bytes().unwrap_or_default();
    }
    let mut dimms = Dimms::new(Config::OPTANE_SET);
    replay(&traced.take(), &mut dimms);
    let mut cache = Cache::new(Cache::AS_MEASURED, SEED);
    traced.dirty().into_iter().for_each(|line| cache.write_line(line, &mut dimms));
    cache.drain(&mut dimms);
    dimms.drain();
    dimms.counters().write_amplification()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_figures_that_it_was_built_on() {
        let model = Model::new();
        assert!(
            (1.8..2.0).contains(&model.amplified) && model.direct == 1.0,
            "{} {}",
            model.amplified,
            model.direct
        );
        assert!((5.5..6.5).contains(&model.to_pm(64 << 10, true)), "5.8 in the paper");
        assert_eq!(model.to_pm(64 << 10, false), MEDIA);
        let pipelined = dma(4 << 10, 8) / dma(4 << 10, 1);
        assert!((2.9..3.1).contains(&pipelined), "{pipelined}: 3 in the paper");
        assert_eq!(dma(8 << 10, 8), DMA);
        for (placement, value) in &model.traced {
            let expected = if *placement == Placement::Cached { 1.8..2.0 } else { 0.99..1.01 };
            assert!(expected.contains(value), "{placement}: {value}");
        }
    }
}
