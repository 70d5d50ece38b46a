//! `rem bench counter`: durable words that are set again and again, and logs that count with them (paper 001, section
//! 6: the 770 ns, 120 ns and 7.6 x figures, and figure 9).
//!
//! Live: words and logs of `pmem::counter` on DRAM that is declared persistent (ADR), by each instruction that the
//! CPU has for writing lines back, with a fence for each update as durability wants, and without any, where an
//! effect of the line itself shows. Model: the write-backs and fences of the same code, with the delays of the
//! paper's machine.

mod live;
mod model;

use remanence_pmem::flush::Instruction;

use self::live::{APPEND, SEQUENCE, UNFENCED, UPDATE, Word};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::effort::Options;
use crate::report::{Bar, Report, Sense, figure};
use crate::samples::{Key, Metric, Samples};
use crate::stats::Estimate;

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when there is no memory to write to.
pub fn run(options: &Options, progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let extent = options.effort.pick((1, 200), (6, 2_000), (31, 20_000));
    let mut live = live::run(options, extent, progress, bars)?;
    let params = serde_json::json!({
        "rounds": live.samples.blocks(), "updates": live.updates,
        "pm": "a tmpfs file, declared ADR: lines are written back and fenced as on a persistent DIMM, and end in DRAM",
        "update": "chunks of a rotating counter, 256 B apart; one chunk is the plain word",
        "x": { UPDATE: "chunks", UNFENCED: "chunks" },
    });
    let (skipped, instructions) = (std::mem::take(&mut live.skipped), &live.instructions);
    let bars = |samples: &Samples| bars(samples, instructions[0]);
    Report::new("counter", params, &live.samples, bars, |samples| claims(samples, instructions), skipped)
}

fn key(op: &str, x: u64, series: &str) -> Key {
    Key { op: op.to_owned(), x, series: series.to_owned(), metric: Metric::Rate }
}

fn ratio(samples: &Samples, over: (&str, u64, &str), under: (&str, u64, &str)) -> Option<Estimate> {
    samples.ratio(&key(over.0, over.1, over.2), &key(under.0, under.1, under.2))
}

/// How much faster ten chunks in rotation are than one, with a fence for each update.
fn rotation(samples: &Samples, instruction: Instruction) -> Option<Estimate> {
    let series = live::fenced(instruction);
    ratio(samples, (UPDATE, 10, &series), (UPDATE, 1, &series))
}

/// The same without fences.
fn rotation_unfenced(samples: &Samples, instruction: Instruction) -> Option<Estimate> {
    let series = live::unfenced(instruction);
    ratio(samples, (UNFENCED, 10, &series), (UNFENCED, 1, &series))
}

/// Nanoseconds of so many million operations a second.
fn nanos(rate: f64) -> f64 {
    1e3 / rate
}

fn bars(samples: &Samples, instruction: Instruction) -> Vec<Bar> {
    let best = live::fenced(instruction);
    let ratio = |over, under| ratio(samples, over, under);
    let value = |of: (&str, u64, &str)| samples.value(of.0, of.1, of.2);
    let modelled = |over: (&str, u64, &str), under: (&str, u64, &str)| Some(value(over)? / value(under)?);
    vec![
        Bar::new(
            "model: ten chunks in rotation / one, updates a second (7.6 in the paper)",
            modelled((UPDATE, 10, model::SERIES), (UPDATE, 1, model::SERIES)),
            Sense::AtLeast,
            7.5,
        ),
        Bar::new(
            "model: 256 B appends, rotating / plain (1.8 to 1.9 in the paper, its server's own work included)",
            modelled(
                (APPEND, 256, &model::series(Word::Counter)),
                (APPEND, 256, &model::series(Word::Plain)),
            ),
            Sense::AtLeast,
            1.8,
        ),
        Bar::new(
            "live: a rotating counter's update / a bare store, write-back and fence of the same lines",
            ratio((UPDATE, 10, &best), (UPDATE, 10, live::BARE)),
            Sense::AtLeast,
            0.85,
        ),
        Bar::new(
            "live: rotation / plain word, fenced: where it does not help it costs nothing",
            rotation(samples, instruction),
            Sense::AtLeast,
            0.9,
        ),
        Bar::new(
            "live: 256 B appends with a rotating counter / two bare durable writes",
            ratio((APPEND, 256, Word::Counter.series()), (APPEND, 256, live::BARE_APPEND)),
            Sense::AtLeast,
            0.7,
        ),
        Bar::new(
            "live: 256 B appends, rotating / plain: where it does not help it costs little",
            ratio((APPEND, 256, Word::Counter.series()), (APPEND, 256, Word::Plain.series())),
            Sense::AtLeast,
            0.8,
        ),
    ]
}

/// What the machine makes of a rotation, with a fence for each update and without.
fn effect(samples: &Samples, instruction: Instruction) -> String {
    let (fenced, unfenced) = (rotation(samples, instruction), rotation_unfenced(samples, instruction));
    format!("{instruction}: {} fenced, {} unfenced", times(fenced), times(unfenced))
}

fn claims(samples: &Samples, instructions: &[Instruction]) -> Vec<Claim> {
    let instruction = instructions[0];
    let best = live::fenced(instruction);
    let ratio = |over, under| ratio(samples, over, under);
    let checksums = ratio((APPEND, 256, live::CHECKSUMS), (APPEND, 256, Word::Counter.series()));
    let rotation = rotation(samples, instruction);
    let unfenced = rotation_unfenced(samples, instruction);
    let sequence = ratio((SEQUENCE, 64, &best), (UPDATE, 1, &best));
    let all: Vec<String> = instructions.iter().map(|i| effect(samples, *i)).collect();
    let append = |size| ratio((APPEND, size, Word::Counter.series()), (APPEND, size, Word::Plain.series()));
    let keys = [(256, Word::Counter), (256, Word::Plain), (4096, Word::Counter), (4096, Word::Plain)]
        .map(|(size, word)| key(APPEND, size, word.series()));
    let fades = samples.combined(keys.each_ref(), |[a, b, c, d]| a / b / (c / d));
    let each = |x| {
        samples
            .median(&key(UPDATE, x, &best))
            .map_or_else(|| "not measured".to_owned(), |r| format!("{} ns", figure(nanos(r))))
    };
    vec![
        Claim::new(
            "6: repeated durable writes to one word take 770 ns, small ones in sequence 120 ns (6.4 x)",
            Verdict::judged(sequence, Sense::AtLeast, 6.4),
            format!(
                "{} to one word; in sequence {} as fast. Model with the paper's delays: {} and {} ns",
                each(1),
                times(sequence),
                figure(model::update_nanos(1)),
                figure(model::sequence_nanos())
            ),
        )
        .or_in_shape(Shape::new("in sequence they are faster").and(sequence, Sense::AtLeast, 1.0)),
        Claim::new(
            "6.2: a counter that rotates over ten blocks is 7.6 x as fast (10 M updates a second)",
            Verdict::judged(rotation, Sense::AtLeast, 7.6),
            format!(
                "{} here: {}. {} Model with the paper's delays: {} x, {} M a second",
                times(rotation),
                all.join("; "),
                why(rotation, unfenced),
                figure(model::rotation()),
                figure(1e3 / model::update_nanos(10))
            ),
        )
        .or_in_shape(Shape::new("rotation makes it faster").and(rotation, Sense::AtLeast, 1.0)),
        Claim::new(
            "6.1: the effect is the line's and not the DIMM's: writes to one word hardly reach the media",
            Verdict::ModelOnly,
            format!(
                "{} writes to the media for 1000 updates of a plain word, {} for a rotating one (buffer not drained)",
                model::media_writes(Word::Plain),
                model::media_writes(Word::Counter)
            ),
        ),
        Claim::new(
            "fig. 9: with a rotating counter a log takes 1.8 to 1.9 x as many small entries, and as many large ones",
            Verdict::judged(append(256), Sense::AtLeast, 1.8),
            format!(
                "{} at 256 B, {} at 4 KiB: a log gains what its word does. Model with the \
                 paper's delays, memory alone: {} and {} x",
                times(append(256)),
                times(append(4096)),
                figure(model::append(256, Word::Counter) / model::append(256, Word::Plain)),
                figure(model::append(4096, Word::Counter) / model::append(4096, Word::Plain))
            ),
        )
        .or_in_shape(
            Shape::new("it takes more small entries, and gains less with large ones")
                .and(append(256), Sense::AtLeast, 1.0)
                .and(fades, Sense::AtLeast, 1.0),
        ),
        Claim::new(
            "7: a log whose entries prove themselves (Mnemosyne's) needs one durable write and not two",
            Verdict::judged(checksums, Sense::AtLeast, 1.2),
            format!(
                "checksums only / rotating counter: {} at 256 B (the paper had not compared them)",
                times(checksums)
            ),
        ),
    ]
}

/// Why the rotation does, or does not, do anything here.
fn why(fenced: Option<Estimate>, unfenced: Option<Estimate>) -> &'static str {
    match (fenced.map(|ratio| ratio.value()), unfenced.map(|ratio| ratio.value())) {
        (Some(fenced), _) if fenced >= 2.0 => "This CPU's write-back drops the line, as the paper's does.",
        (Some(_), Some(unfenced)) if unfenced >= 2.0 => {
            "A fenced update waits for the memory controller's answer whichever line it was, and that hides what the \
             line costs; without fences write-backs of different lines overlap, and those of one line do not."
        }
        _ => "This CPU keeps the line, and write-backs of one line cost what those of several do.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effort::Effort;

    #[test]
    fn a_small_run_fills_every_bar() {
        let options = Options { effort: Effort::Tiny, only: Vec::new(), program: "none".into() };
        let report = run(&options, |_, _, _| {}).expect("there is memory");
        assert!(report.whole().is_ok() && report.bars.len() == 6);
        assert!(
            report.bars.iter().all(|bar| bar.holds || !bar.name.starts_with("model")),
            "{:?}",
            report.bars
        );
        assert!(report.claims.iter().all(|claim| claim.verdict != Verdict::Open), "{:?}", report.claims);
    }

    /// An operation, a model, and a bar by its name: only what they are made of is measured, and judged.
    #[test]
    fn only_what_is_asked_for_is_measured_and_judged() {
        let of = |word: &str| {
            let options = Options { effort: Effort::Tiny, only: vec![word.into()], program: "none".into() };
            run(&options, |_, _, _| {})
        };
        let rows = |report: &Report| {
            let names = report.rows.iter().map(|row| (row.op.clone(), row.series.clone()));
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let report = of("CHECKSUMS").expect("a series");
        assert_eq!(rows(&report).len(), 1 + 2, "and the A/A pair of appends: {:?}", rows(&report));
        // It is judged by nothing but a claim, whose other side is one of the pair.
        assert_eq!((report.bars.len(), report.claims.len()), (0, 1));
        assert!(report.whole().is_ok() && report.params["only"] == serde_json::json!(["checksums"]));
        let report = of("two bare durable writes").expect("a series, and the bar that it is in");
        let bars: Vec<&str> = report.bars.iter().map(|bar| &bar.name[..]).collect();
        assert_eq!(bars, ["live: 256 B appends with a rotating counter / two bare durable writes"]);
        let report = of("model: ten chunks").expect("a bar");
        assert_eq!((report.rows.len(), report.bars.len(), report.controls.len()), (2, 1, 0));
        let why = of("nobody").expect_err("there is no such thing");
        assert!(why.contains("operations: append; update") && why.contains("checksums only"), "{why}");
    }
}
