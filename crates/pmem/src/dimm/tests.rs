//! Exact counts, worked out by hand.

use super::arrival::Cache;
use super::delay::Delays;
use super::trace::{Event, Traced, replay};
use super::*;
use crate::crash_image::CrashImage;
use crate::{Medium, PersistenceDomain};

/// One DIMM whose buffer holds two blocks.
fn small() -> Dimms {
    Dimms::new(Config { dimms: 1, stripe: 256, buffer: 2 })
}

fn counted(line_writes: u64, media_reads: u64, media_writes: u64) -> Counters {
    Counters { line_reads: 0, line_writes, media_reads, media_writes }
}

#[test]
fn lines_in_sequence_are_written_as_whole_blocks() {
    let mut dimms = small();
    (0..4 * 100).for_each(|line| dimms.write_line(line));
    assert_eq!(dimms.counters(), counted(400, 0, 98), "two blocks are still in the buffer");
    dimms.drain();
    assert_eq!(dimms.counters(), counted(400, 0, 100));
    assert_eq!(dimms.counters().write_amplification(), 1.0);
    assert_eq!((dimms.wear(0), dimms.wear(99), dimms.wear(100)), (1, 1, 0));
}

#[test]
fn lone_lines_cost_a_read_and_a_write_of_a_block_each() {
    let mut dimms = small();
    (0..100).for_each(|block| dimms.write_line(block * 4 + 1));
    dimms.drain();
    assert_eq!(dimms.counters(), counted(100, 100, 100));
    assert_eq!(dimms.counters().write_amplification(), 4.0);
    assert_eq!(dimms.counters().bytes_read(), 25_600);
}

#[test]
fn lines_of_a_block_meet_only_while_it_is_in_the_buffer() {
    let mut dimms = small();
    // Blocks 0 and 1, then 2, which pushes out 0 with one new line; then 0 again, which pushes out 1.
    for line in [0, 4, 8, 1, 2, 3] {
        dimms.write_line(line);
    }
    assert_eq!(dimms.counters(), counted(6, 2, 2));
    dimms.drain();
    assert_eq!(
        dimms.counters(),
        counted(6, 4, 4),
        "block 0 a second time without its first line, and block 2"
    );
    assert_eq!(dimms.wear(0), 2);
    assert_eq!(dimms.most_worn(), Some((0, 2)));
}

#[test]
fn a_block_that_is_written_to_stays_and_the_one_left_alone_longest_goes() {
    let mut dimms = small();
    for line in [0, 4, 1, 8] {
        dimms.write_line(line);
    }
    assert_eq!((dimms.wear(0), dimms.wear(1)), (0, 1), "block 1 made room, since 0 was written to after it");
}

#[test]
fn the_buffer_absorbs_writes_to_one_place() {
    let mut dimms = Dimms::new(Config::OPTANE);
    (0..10_000).for_each(|_| dimms.write_line(77));
    assert_eq!(dimms.counters(), counted(10_000, 0, 0), "as the paper's counters say (6.1)");
    dimms.drain();
    assert_eq!(dimms.counters(), counted(10_000, 1, 1));
}

#[test]
fn a_read_is_answered_by_the_buffer_only_where_its_line_is_new() {
    let mut dimms = small();
    dimms.write_line(5);
    dimms.read_line(5);
    assert_eq!(dimms.counters().media_reads, 0);
    dimms.read_line(6);
    dimms.read_line(400);
    assert_eq!((dimms.counters().line_reads, dimms.counters().media_reads), (3, 2));
}

#[test]
fn stripes_go_to_the_dimms_in_turn() {
    let mut dimms = Dimms::new(Config::OPTANE_SET);
    // Seven pages: the first DIMM has two of them.
    (0..7 * 64).for_each(|line| dimms.write_line(line));
    let lines: Vec<u64> = (0..6).map(|dimm| dimms.counters_of(dimm).line_writes).collect();
    assert_eq!(lines, [128, 64, 64, 64, 64, 64]);
    dimms.drain();
    assert_eq!(dimms.counters(), counted(448, 0, 112));
    assert_eq!(dimms.wear(6 * 16), 1);
}

#[test]
#[should_panic(expected = "tears blocks")]
fn a_stripe_that_tears_blocks_is_refused() {
    let _ = Dimms::new(Config { dimms: 2, stripe: 64, buffer: 1 });
}

/// Megabytes in sequence, through a cache of so many lines, or past it.
fn bulk(cache: Option<usize>, seed: u64) -> Counters {
    let mut dimms = Dimms::new(Config::OPTANE_SET);
    let mut cache = cache.map(|lines| Cache::new(lines, seed));
    for line in 0..200_000 {
        match &mut cache {
            Some(cache) => cache.write_line(line, &mut dimms),
            None => dimms.write_line(line),
        }
    }
    if let Some(mut cache) = cache {
        cache.drain(&mut dimms);
    }
    dimms.drain();
    dimms.counters()
}

#[test]
fn ddio_doubles_what_is_written_and_its_end_ends_that() {
    assert_eq!(bulk(None, 0), counted(200_000, 0, 50_000));
    for seed in 0..3 {
        let on = bulk(Some(Cache::AS_MEASURED), seed);
        assert_eq!(on.line_writes, 200_000, "every line arrives once");
        let amplification = on.write_amplification();
        assert!((1.7..2.1).contains(&amplification), "{amplification}");
    }
}

#[test]
fn the_same_seed_counts_the_same_for_ever() {
    assert_eq!(bulk(Some(Cache::AS_MEASURED), 1), counted(200_000, 75_858, 92_767));
}

#[test]
fn amplification_grows_with_the_disorder_from_one_to_four() {
    let sweep: Vec<f64> =
        [1, 64, 1024, 16_384].iter().map(|lines| bulk(Some(*lines), 5).write_amplification()).collect();
    assert!(sweep.windows(2).all(|pair| pair[0] <= pair[1]), "{sweep:?}");
    assert!(sweep[0] == 1.0 && sweep[3] > 3.5 && sweep[3] <= 4.0, "{sweep:?}");
}

#[test]
fn write_backs_by_the_cpu_restore_the_order() {
    let mut dimms = small();
    let mut cache = Cache::new(1000, 1);
    (0..400).for_each(|line| cache.write_line(line, &mut dimms));
    assert_eq!(dimms.counters().line_writes, 0, "they fit");
    (0..400).for_each(|line| cache.write_back(line, &mut dimms));
    cache.write_back(3, &mut dimms);
    dimms.drain();
    assert_eq!(dimms.counters(), counted(400, 0, 100));
}

#[test]
fn a_trace_has_each_line_that_was_dirty_and_each_fence() {
    let traced = Traced::new(CrashImage::new(1024, PersistenceDomain::Adr));
    traced.write(60, &[1; 8]);
    traced.pwb(0..64);
    traced.pwb(0..64);
    traced.psync().unwrap();
    traced.store_u64(512, 1);
    assert_eq!(traced.dirty(), [1, 8], "the second half of the write at 60, and the word");
    traced.write_nt(128, &[2; 64]);
    traced.pwb(0..1024);
    traced.pwb(5..5);
    traced.pfence().unwrap();
    use Event::{Fence, WriteBack};
    let expected = [WriteBack(0), Fence, WriteBack(2), WriteBack(1), WriteBack(8), Fence];
    assert_eq!(traced.take(), expected);
    let mut dimms = small();
    replay(&expected, &mut dimms);
    assert_eq!(dimms.counters().line_writes, 4);
    let (medium, rest) = traced.into_parts();
    assert!(rest.is_empty());
    assert_eq!(medium.load_u64(512), 1);
}

/// A durable write to each of these lines, one after the other.
fn durable(lines: impl Iterator<Item = u64>) -> Vec<Event> {
    lines.flat_map(|line| [Event::WriteBack(line), Event::Fence]).collect()
}

#[test]
fn the_delays_are_those_of_the_paper() {
    let delays = Delays::CASCADE_LAKE;
    assert_eq!(delays.run(&durable((0..1000).map(|_| 0))), 120 + 999 * 770 - 20, "one line: 770 ns each");
    assert_eq!(delays.run(&durable(0..1000)), 1000 * 120, "in sequence");
    let rotation = delays.run(&durable((0..1000).map(|i| i % 10 * 4)));
    assert_eq!(rotation, 10 * 120 + 990 * 100, "ten in rotation: 100 ns each");
    let five = delays.run(&durable((0..1000).map(|i| i % 5 * 4)));
    assert!(five > 1000 * 770 / 5 - 800, "five are too few: each still waits for its line: {five}");
}

#[test]
fn write_backs_of_one_fence_overlap() {
    let four: Vec<Event> = [0, 1, 2, 3].map(Event::WriteBack).into_iter().chain([Event::Fence]).collect();
    assert_eq!(Delays::CASCADE_LAKE.run(&four), 3 * 15 + 120);
    assert_eq!(Delays::flat(50).run(&four), 50);
    assert_eq!(Delays::CASCADE_LAKE.run(&[]), 0);
}
