//! The model half: the write-backs and fences of the same code, with the delays of the paper's machine, in simulated
//! time. The CPU's own work is left out, so that these are limits, as the paper's 770, 120 and 100 ns are.

use std::sync::Arc;

use remanence_pmem::Region;
use remanence_pmem::counter::{CountedLog, DurableWord, PlainWord, RotatingCounter, RotatingRegister};
use remanence_pmem::dimm::delay::Delays;
use remanence_pmem::dimm::trace::{Event, Traced, replay};
use remanence_pmem::dimm::{Config, Dimms};

use super::live::{APPEND, CHUNKS, ENTRIES, SEQUENCE, UPDATE, Word};
use crate::report::{Kind, Row};

pub(super) const SERIES: &str = "model: Cascade Lake";
const TIMES: u64 = 1000;

type Medium = Arc<Traced<Region>>;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for chunks in CHUNKS {
        rows.push(row(UPDATE, chunks, SERIES, 1e3 / update_nanos(chunks)));
    }
    rows.push(row(SEQUENCE, 64, SERIES, 1e3 / sequence_nanos()));
    for size in ENTRIES {
        for word in Word::ALL {
            rows.push(row(APPEND, size, &series(word), append(size, word)));
        }
    }
    rows
}

/// The series of a log that counts with it.
pub(super) fn series(word: Word) -> String {
    format!("model: {}", word.series())
}

fn row(op: &str, x: u64, series: &str, value: f64) -> Row {
    Row { n: TIMES, ..Row::single(op, x, series, ("rate", "Mop/s"), value, Kind::Model) }
}

/// How much faster ten chunks are than one.
pub(super) fn rotation() -> f64 {
    update_nanos(1) / update_nanos(10)
}

/// Nanoseconds of one durable update over so many chunks.
pub(super) fn update_nanos(chunks: u64) -> f64 {
    per_time(&match chunks {
        1 => updates::<PlainWord<Medium>>(),
        2 => updates::<RotatingCounter<Medium, 2>>(),
        3 => updates::<RotatingCounter<Medium, 3>>(),
        5 => updates::<RotatingCounter<Medium, 5>>(),
        10 => updates::<RotatingCounter<Medium, 10>>(),
        _ => updates::<RotatingCounter<Medium, 20>>(),
    })
}

/// Nanoseconds of one small durable write in sequence.
pub(super) fn sequence_nanos() -> f64 {
    let lines = (0..TIMES).flat_map(|line| [Event::WriteBack(line), Event::Fence]);
    per_time(&lines.collect::<Vec<Event>>())
}

/// Million appends a second, of entries of so many bytes.
pub(super) fn append(size: u64, word: Word) -> f64 {
    1e3 / per_time(&match word {
        Word::Plain => appends::<PlainWord<Medium>>(size),
        Word::Counter => appends::<RotatingCounter<Medium>>(size),
        Word::Register => appends::<RotatingRegister<Medium>>(size),
    })
}

/// Blocks written to the media while a word was updated, the buffer not drained.
pub(super) fn media_writes(word: Word) -> u64 {
    let mut dimms = Dimms::new(Config::OPTANE);
    let events = if word == Word::Plain {
        updates::<PlainWord<Medium>>()
    } else {
        updates::<RotatingCounter<Medium>>()
    };
    replay(&events, &mut dimms);
    dimms.counters().media_writes
}

fn per_time(events: &[Event]) -> f64 {
    Delays::CASCADE_LAKE.run(events) as f64 / TIMES as f64
}

fn medium() -> Medium {
    // Its kind does not matter: what is asked of it is noted, and only that.
    Arc::new(Traced::new(Region::anonymous(8 << 20).expect("eight megabytes")))
}

fn updates<W: DurableWord<Medium = Medium>>() -> Vec<Event> {
    let medium = medium();
    let mut word = W::format(Arc::clone(&medium), 0).expect("memory does not fail");
    medium.take();
    for value in 1..=TIMES {
        word.set(value).expect("memory does not fail");
    }
    medium.take()
}

fn appends<W: DurableWord<Medium = Medium>>(size: u64) -> Vec<Event> {
    let medium = medium();
    let mut log = CountedLog::<W>::format(Arc::clone(&medium), 0..8 << 20, 1).expect("memory does not fail");
    medium.take();
    let entry = vec![1; size as usize];
    for _ in 0..TIMES {
        log.append(&entry).expect("a thousand fit");
        log.commit().expect("memory does not fail");
    }
    medium.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_the_figures_of_the_paper() {
        assert!((update_nanos(1) - 770.0).abs() < 2.0, "{}", update_nanos(1));
        assert!((update_nanos(10) - 100.0).abs() < 2.0, "{}", update_nanos(10));
        assert!((sequence_nanos() - 120.0).abs() < 1.0);
        assert!((7.5..7.8).contains(&rotation()), "{}", rotation());
        let small = append(64, Word::Counter) / append(64, Word::Plain);
        let large = append(4096, Word::Counter) / append(4096, Word::Plain);
        assert!(small > 1.8 && large < 1.2, "{small} for small entries, {large} for large ones");
        assert_eq!((media_writes(Word::Plain), media_writes(Word::Counter)), (0, 0));
    }
}
