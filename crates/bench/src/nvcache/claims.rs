//! What the paper says of NVCache in its figures 3.9 to 3.13, and its table 3.2 for what is measured here.

use super::sqlite::Journal;
use super::{Cell, On, ROOMY, SHARES, Scale, Series, Whole, Work};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::report::Sense;
use crate::samples::{Metric, Samples};
use crate::stats::{Estimate, worst};

/// What "roughly equivalent" is taken to be.
const ROUGHLY: f64 = 1.15;
/// What NVCache had over NOVA in figure 3.12: 493 and 403 MiB/s.
const OVER_NOVA: f64 = 1.22;

/// Table 3.2, of what is measured here: name, write cache, where data are in the end, what makes a write durable, and what that survives.
pub(super) const SYSTEMS: [[&str; 5]; 7] = [
    [
        "through, log in memory",
        "page cache and log",
        "disk",
        "fsync, absorbed",
        "the death of any process (on persistent memory: loss of power)",
    ],
    [
        "through, log in a file",
        "page cache and log",
        "disk",
        "fsync, absorbed: a sync of the log",
        "loss of power",
    ],
    [
        "through, log on two of three servers",
        "page cache and log",
        "disk",
        "fsync, absorbed: two servers have it",
        "loss of this machine's power and memory",
    ],
    ["FS, fsync", "page cache", "disk", "fsync", "loss of power"],
    ["FS, O_DIRECT|O_SYNC", "none", "disk", "each write", "loss of power"],
    ["FS, no sync", "page cache", "disk", "nothing", "the death of any process"],
    ["tmpfs", "page cache", "memory", "nothing", "the death of any process"],
];

/// The same as text, for this file system.
pub(super) fn table(fs: &str) -> String {
    let of = |row: &[&str; 5]| row.map(|cell| cell.replace("FS,", &format!("{fs},")));
    let head = ["system", "write cache", "kept on", "made durable by", "survives"];
    let rows: Vec<[String; 5]> = [head].iter().chain(&SYSTEMS).map(of).collect();
    let width = |n: usize| rows.iter().map(|row| row[n].len()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut text = String::from("Table 3.2, of what is measured here\n");
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text += &format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text + "\n"
}

pub(super) fn claims(samples: &Samples, fs: &str, scale: &Scale) -> Vec<Claim> {
    let ratio = |over: Cell, under: Cell, metric: Metric| {
        samples.ratio(&over.key(fs, scale, metric), &under.key(fs, scale, metric))
    };
    let memory = Series::Through(On::Memory);
    let read = |series| Cell::Sqlite(Work::Select(scale.rows), Some(series));
    let reads = [Series::Through(On::Memory), Series::Through(On::File), Series::Tmpfs]
        .map(|series| ratio(read(series), read(Series::Synced), Metric::Latency));
    let all: Option<Vec<Estimate>> = reads.iter().copied().collect();
    let [slowest, fastest] =
        [Sense::AtMost, Sense::AtLeast].map(|sense| all.as_ref().and_then(|all| worst(all, sense)));
    let whole = |over, under| ratio(Cell::Whole(over), Cell::Whole(under), Metric::Throughput);
    let [small, roomy, large] = SHARES.map(Whole::Log);
    let (more, no_more) = (whole(roomy, small), whole(large, roomy));
    let full = |batch| Cell::Full { through: true, batch }.key(fs, scale, Metric::Rate);
    let n = scale.batches.len();
    let step = |at: usize| {
        let (over, under) = (scale.batches.get(at)?, scale.batches.get(at.checked_sub(1)?)?);
        samples.ratio(&full(*over), &full(*under))
    };
    let (first_step, last_step) = (step(1), step(n - 1));
    let fades = n.checked_sub(2).and_then(|next| {
        let of = [n - 1, next, 1, 0].map(|at| full(scale.batches[at]));
        samples.combined(of.each_ref(), |[last, before, second, first]| last * first / (before * second))
    });
    let batched = samples.ratio(&full(scale.usual_batch()), &full(scale.batches[0]));
    let direct = whole(Whole::Log(ROOMY), Whole::Plain(Series::Direct));
    let synced = whole(Whole::Log(ROOMY), Whole::Plain(Series::Synced));
    let sqlite = |journal, over: Series, under: Series| {
        let cell = |series| Cell::Sqlite(Work::Insert(journal), Some(series));
        ratio(cell(over), cell(under), Metric::Latency)
    };
    let inserts = Journal::ALL.map(|journal| sqlite(journal, Series::Synced, memory));
    let of_tmpfs = Journal::ALL.map(|journal| sqlite(journal, memory, Series::Tmpfs));
    vec![
        Claim::new(
            "3.3.3, figure 3.9: SQLite reads about as fast on all systems",
            Verdict::judged(slowest, Sense::AtMost, ROUGHLY).and(Verdict::judged(
                fastest,
                Sense::AtLeast,
                1.0 / ROUGHLY,
            )),
            format!(
                "a row takes {}, {} and {} of its time on {fs}: log in memory, log in a file, tmpfs (within {ROUGHLY}). RocksDB is not measured",
                times(reads[0]),
                times(reads[1]),
                times(reads[2]),
            ),
        ),
        Claim::new(
            "3.3.4, figure 3.10: the more its log can take, the faster NVCache is",
            Verdict::judged(more, Sense::AtLeast, 1.0),
            format!(
                "a log of {} x the data is {} as fast as one of {}; one of {}, which has twice the room for all, {}",
                SHARES[1] as f64 / 1e3,
                times(more),
                SHARES[0] as f64 / 1e3,
                SHARES[2] as f64 / 1e3,
                times(no_more),
            ),
        ),
        Claim::new(
            "3.3.4, figure 3.11: where the log is full, batches are a clear improvement, and ever less of one the larger they are",
            Verdict::judged(batched, Sense::AtLeast, 1.0).and(Verdict::judged(fades, Sense::AtMost, 1.0)),
            format!(
                "batches of {} are {} as fast as none; the step to {} is {}, that to {} is {}",
                scale.usual_batch(),
                times(batched),
                scale.batches[1],
                times(first_step),
                scale.usual_batch(),
                times(last_step),
            ),
        ),
        Claim::new(
            "3.3.4, figure 3.12: the most throughput of the systems with such guarantees (493 MiB/s, and 403 of the next one, NOVA: 1.22 x)",
            Verdict::judged(direct, Sense::AtLeast, OVER_NOVA)
                .and(Verdict::judged(synced, Sense::AtLeast, OVER_NOVA)),
            format!(
                "{} of {fs} with O_DIRECT|O_SYNC and {} of it with an fsync each; NOVA, ext4-DAX and dm-writecache are not here",
                times(direct),
                times(synced),
            ),
        )
        .or_in_shape(
            Shape::new("it is ahead of each of them")
                .and(direct, Sense::AtLeast, 1.0)
                .and(synced, Sense::AtLeast, 1.0),
        ),
        Claim::new(
            "3.3.4, figure 3.13: SQLite's writes take less time than on the SSD, by far the slowest",
            Verdict::judged(inserts[0], Sense::AtLeast, 1.0).and(Verdict::judged(
                inserts[1],
                Sense::AtLeast,
                1.0,
            )),
            format!(
                "{fs} with fsync takes {} as long as the log in memory (WAL), and {} (DELETE); that takes {} and {} of tmpfs",
                times(inserts[0]),
                times(inserts[1]),
                times(of_tmpfs[0]),
                times(of_tmpfs[1]),
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effort::Effort;
    use crate::machine::State;

    #[test]
    fn claims_are_made_of_what_is_measured() {
        let scale = Scale::of(Effort::Quick);
        let mut samples = Samples::default();
        for block in 0..6 {
            samples.block(block);
            for cell in scale.cells() {
                for metric in cell.metrics() {
                    let fast = match cell {
                        Cell::Whole(Whole::Log(share)) => share as f64,
                        Cell::Full { batch, .. } => (1.0 + batch as f64).ln(),
                        Cell::Sqlite(Work::Insert(_), Some(Series::Synced)) => 7.0,
                        _ => 1.0,
                    };
                    samples.add(&cell.key("ext4", &scale, *metric), State::Any, State::Any, [fast]);
                }
            }
        }
        let found = claims(&samples, "ext4", &scale);
        assert!(found.iter().all(|claim| claim.verdict == Verdict::HoldsHere), "{found:?}");
        let nothing = claims(&Samples::default(), "ext4", &scale);
        assert!(nothing.iter().all(|claim| claim.verdict == Verdict::Open), "{nothing:?}");
    }

    #[test]
    fn the_table_names_the_file_system() {
        let text = table("xfs");
        assert!(text.contains("xfs, fsync") && !text.contains("FS,"), "{text}");
        assert_eq!(text.trim_end().lines().count(), 2 + SYSTEMS.len());
    }
}
