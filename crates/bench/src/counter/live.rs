//! The live half: real words and logs.

use std::time::{Duration, Instant};

use remanence_pmem::counter::{CountedLog, DurableWord, PlainWord, RotatingCounter, RotatingRegister};
use remanence_pmem::flush::{self, Instruction};
use remanence_pmem::image::Framing;
use remanence_pmem::{FileOptions, PersistenceDomain, Region};

use super::key;
use crate::effort::Options;
use crate::machine::State;
use crate::report::Bar;
use crate::samples::Samples;

pub(super) const UPDATE: &str = "update";
pub(super) const UNFENCED: &str = "update without fences";
pub(super) const SEQUENCE: &str = "update in sequence";
pub(super) const APPEND: &str = "append";
pub(super) const BARE: &str = "bare store, write-back, fence";
pub(super) const STORE: &str = "bare store";
pub(super) const BARE_APPEND: &str = "two bare durable writes";
pub(super) const CHECKSUMS: &str = "checksums only";

/// Chunks of the rotation; 1 is the plain word.
pub(super) const CHUNKS: [u64; 6] = [1, 2, 3, 5, 10, 20];
/// Bytes of an entry, as in figure 9.
pub(super) const ENTRIES: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

const MEMORY: u64 = 64 << 20;

/// What a log counts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Plain,
    Counter,
    Register,
}

impl Word {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Counter, Self::Register];

    pub(super) const fn series(self) -> &'static str {
        match self {
            Self::Plain => "plain word",
            Self::Counter => "rotating counter",
            Self::Register => "rotating register",
        }
    }
}

/// All that was measured.
pub(super) struct Live {
    pub(super) samples: Samples,
    /// Those of the CPU, the best first.
    pub(super) instructions: Vec<Instruction>,
    pub(super) updates: u64,
    pub(super) skipped: Vec<String>,
}

pub(super) fn fenced(instruction: Instruction) -> String {
    format!("{instruction}, fenced")
}

pub(super) fn unfenced(instruction: Instruction) -> String {
    format!("{instruction}, unfenced")
}

pub(super) fn run(
    options: &Options,
    (rounds, updates): (u64, u64),
    mut progress: impl FnMut(u64, u64, &str),
    bars: impl Fn(&Samples, Instruction) -> Vec<Bar>,
) -> Result<Live, String> {
    use Instruction::{Clflush, ClflushOpt, Clwb, DcCvac, DcCvap};
    let (instructions, missing): (Vec<_>, Vec<_>) =
        [Clwb, ClflushOpt, Clflush, DcCvap, DcCvac].into_iter().partition(|i| flush::has(*i));
    let skipped = missing.iter().map(|i| format!("{i}: this CPU does not have it")).collect();
    let regions = instructions.iter().map(|i| declared(*i)).collect::<Result<Vec<Region>, String>>()?;
    let best = instructions[0];
    let samples = Samples::new(options.effort, &options.only);
    let mut live = Live { samples, instructions, updates, skipped };
    live.samples.singles(super::model::rows());
    live.samples.control(&key(UPDATE, 10, &fenced(best)));
    live.samples.control(&key(APPEND, 256, Word::Counter.series()));
    let steps = regions.len() as u64 + 2;
    let mut step = |samples: &mut Samples, what: &str| progress(samples.step(), rounds * steps, what);
    while live.samples.another(rounds, |samples| bars(samples, best))? {
        for (number, region) in regions.iter().enumerate() {
            let instruction = live.instructions[number];
            step(&mut live.samples, &fenced(instruction));
            live.words(region, instruction)?;
        }
        step(&mut live.samples, BARE);
        live.bare(&regions[0])?;
        step(&mut live.samples, APPEND);
        live.logs(&regions[0], live.samples.blocks())?;
    }
    Ok(live)
}

/// DRAM whose lines are written back by this instruction, as if it were persistent.
fn declared(instruction: Instruction) -> Result<Region, String> {
    let name = format!("remanence-counter-{}-{instruction}", std::process::id()).replace(' ', "-");
    let path = crate::process::memory().join(name);
    let options = FileOptions::new()
        .create_new(MEMORY)
        .declare(PersistenceDomain::Adr)
        .write_back(instruction)
        .populate(true);
    let region = options.open(&path).map_err(|e| e.to_string());
    let _ = std::fs::remove_file(&path);
    region
}

impl Live {
    /// One burst, of one core alone.
    fn measure(
        &mut self,
        op: &str,
        x: u64,
        series: &str,
        mut rate: impl FnMut() -> Result<f64, String>,
    ) -> Result<(), String> {
        self.samples.burst_in(|| State::Any, &key(op, x, series), || Ok(vec![rate()?]))
    }

    /// Every rotation, with a fence for each update and without.
    fn words(&mut self, region: &Region, instruction: Instruction) -> Result<(), String> {
        let updates = self.updates;
        let (with, without) = (fenced(instruction), unfenced(instruction));
        for chunks in CHUNKS {
            self.measure(UPDATE, chunks, &with, || match chunks {
                1 => word::<PlainWord<Region>>(region, updates),
                2 => word::<RotatingCounter<Region, 2>>(region, updates),
                3 => word::<RotatingCounter<Region, 3>>(region, updates),
                5 => word::<RotatingCounter<Region, 5>>(region, updates),
                10 => word::<RotatingCounter<Region, 10>>(region, updates),
                20 => word::<RotatingCounter<Region, 20>>(region, updates),
                _ => Err(format!("no counter of {chunks} chunks was compiled in")),
            })?;
            let rate = || Ok(stores(region, updates, 256, chunks, Then::WriteBack));
            self.measure(UNFENCED, chunks, &without, rate)?;
        }
        for (series, then) in [(&with, Then::Sync), (&without, Then::WriteBack)] {
            self.measure(SEQUENCE, 64, series, || Ok(stores(region, updates, 64, MEMORY / 64, then)))?;
        }
        Ok(())
    }

    /// What a word cannot be faster than.
    fn bare(&mut self, region: &Region) -> Result<(), String> {
        let updates = self.updates;
        for chunks in CHUNKS {
            for (op, series, then) in [(UPDATE, BARE, Then::Sync), (UNFENCED, STORE, Then::Nothing)] {
                self.measure(op, chunks, series, || Ok(stores(region, updates, 256, chunks, then)))?;
            }
        }
        Ok(())
    }

    fn logs(&mut self, region: &Region, round: u64) -> Result<(), String> {
        // A log is not taken for the one before, which had as many entries.
        let mut tag = round * 1000;
        let mut next = || {
            tag += 1;
            tag
        };
        for size in ENTRIES {
            let appends = (self.updates / 2).min(MEMORY / 2 / (size + 128));
            for word in Word::ALL {
                self.measure(APPEND, size, word.series(), || match word {
                    Word::Plain => counted::<PlainWord<Region>>(region, appends, size, next()),
                    Word::Counter => counted::<RotatingCounter<Region>>(region, appends, size, next()),
                    Word::Register => counted::<RotatingRegister<Region>>(region, appends, size, next()),
                })?;
            }
            self.measure(APPEND, size, CHECKSUMS, || checksummed(region, appends, size, next()))?;
            self.measure(APPEND, size, BARE_APPEND, || Ok(bare_appends(region, appends, size)))?;
        }
        Ok(())
    }
}

/// Million operations a second.
fn rate(operations: u64, elapsed: Duration) -> f64 {
    operations as f64 * 1e3 / elapsed.as_nanos().max(1) as f64
}

/// Updates of a durable word.
fn word<W: DurableWord<Medium = Region>>(region: &Region, updates: u64) -> Result<f64, String> {
    let mut word = W::format(region.clone(), 0).map_err(|e| e.to_string())?;
    let start = Instant::now();
    for value in 1..=updates {
        word.set(value).map_err(|e| e.to_string())?;
    }
    Ok(rate(updates, start.elapsed()))
}

/// What follows a store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    WriteBack,
    Sync,
}

/// Bare stores to so many places in turn, this far apart.
fn stores(region: &Region, updates: u64, step: u64, places: u64, then: Then) -> f64 {
    let mut place = 0;
    let start = Instant::now();
    for value in 1..=updates {
        let at = place * step;
        place = if place + 1 == places { 0 } else { place + 1 };
        region.store_u64(at, value);
        if then != Then::Nothing {
            region.pwb(at..at + 8);
        }
        if then == Then::Sync {
            // Memory that was declared by ourselves does not fail.
            let _ = region.psync();
        }
    }
    // What is still on its way belongs to the updates.
    let _ = region.psync();
    rate(updates, start.elapsed())
}

/// Appends, each durable before the next.
fn counted<W: DurableWord<Medium = Region>>(
    region: &Region,
    appends: u64,
    size: u64,
    tag: u64,
) -> Result<f64, String> {
    let fault = |e: remanence_pmem::counter::LogFault| e.to_string();
    let entry = vec![0x5A; size as usize];
    let mut log = CountedLog::<W>::format(region.clone(), 0..MEMORY, tag).map_err(fault)?;
    let start = Instant::now();
    for _ in 0..appends {
        log.append(&entry).map_err(fault)?;
        log.commit().map_err(fault)?;
    }
    Ok(rate(appends, start.elapsed()))
}

/// The same into a log that finds its end by checksums: a record has its number, and an epoch.
fn checksummed(region: &Region, appends: u64, size: u64, tag: u64) -> Result<f64, String> {
    const FRAMING: Framing =
        Framing { header: 24, length: Some(0), mark: None, max: 1 << 20, crc: 4, align: 8, padding: true };
    let entry = vec![0x5A; size as usize];
    let (salt, mut at, mut record) = (0xC0FF_EE00 ^ size << 32 ^ tag, 0, Vec::new());
    let start = Instant::now();
    for number in 0..appends {
        let mut header = [0; 24];
        header[..4].copy_from_slice(&(size as u32).to_le_bytes());
        header[8..16].copy_from_slice(&number.to_le_bytes());
        header[16] = 1;
        record.clear();
        FRAMING.emit(Some(salt), &header, &entry, &mut record);
        if at + record.len() as u64 > MEMORY {
            return Err("the log is full".into());
        }
        region.write_nt(at, &record);
        at += record.len() as u64;
        region.psync().map_err(|e| e.to_string())?;
    }
    Ok(rate(appends, start.elapsed()))
}

/// What an append cannot be faster than: its bytes, then a word, each durable before the next.
fn bare_appends(region: &Region, appends: u64, size: u64) -> f64 {
    let entry = vec![0x5A; (size as usize + 16).next_multiple_of(64)];
    let start = Instant::now();
    for number in 0..appends {
        region.write_nt(4096 + number * entry.len() as u64, &entry);
        let _ = region.psync();
        let at = number % 10 * 256;
        region.store_u64(at, number);
        region.pwb(at..at + 8);
        let _ = region.psync();
    }
    rate(appends, start.elapsed())
}
