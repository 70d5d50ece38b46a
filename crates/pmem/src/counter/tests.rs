//! Each word, and the log on each, crashed at every store.

use std::fmt::Debug;
use std::sync::Arc;

use super::*;
use crate::PersistenceDomain;
use crate::crash_image::{CrashImage, Explorer, Failure};
use crate::dimm::delay::Delays;
use crate::dimm::trace::{Event, Traced};
use crate::dimm::{Config, Dimms};

const DOMAINS: [PersistenceDomain; 3] =
    [PersistenceDomain::Adr, PersistenceDomain::PageCache, PersistenceDomain::Eadr];
const FAILURES: [Failure; 2] = [Failure::ProcessCrash, Failure::PowerLoss];

type Plain<'a> = PlainWord<&'a CrashImage>;
type Counter<'a> = RotatingCounter<&'a CrashImage>;
type Register<'a> = RotatingRegister<&'a CrashImage>;
/// Two laps are soon round.
type ShortCounter<'a> = RotatingCounter<&'a CrashImage, 3, 64>;
type ShortRegister<'a> = RotatingRegister<&'a CrashImage, 3, 64>;
/// Chunks of one line.
type DenseRegister<'a> = RotatingRegister<&'a CrashImage, 5, 8>;

/// Opens a word on an image, sets some values, and crashes it at every store: the value found is the last that was
/// acknowledged or the one being set, and stays.
macro_rules! crash_word {
    ($word:ident, $values:expr) => {{
        let values: Vec<u64> = $values;
        for domain in DOMAINS {
            for failure in FAILURES {
                let start = CrashImage::new(4096, domain);
                drop($word::format(&start, 256).unwrap());
                let explorer = Explorer { failure, ways_max: 512, samples: 0, seed: 1 };
                let report = explorer.run(
                    &start,
                    |image| {
                        let mut word = $word::open(image, 256).unwrap();
                        for (number, value) in values.iter().enumerate() {
                            word.set(*value).unwrap();
                            image.note(number as u64 + 1);
                        }
                    },
                    |crashed, notes| {
                        let told = notes.last().copied().unwrap_or(0) as usize;
                        let acknowledged = if told == 0 { 0 } else { values[told - 1] };
                        let found = $word::open(crashed, 256).unwrap().get();
                        let next = values.get(told).copied().unwrap_or(acknowledged);
                        assert!(
                            found == acknowledged || found == next,
                            "{acknowledged} or {next}, found {found}"
                        );
                        // What was handed out is durable: a second failure at once does not change it.
                        for seed in 0..4 {
                            let again = crashed.crash_seeded(Failure::PowerLoss, seed);
                            assert_eq!($word::open(&again, 256).unwrap().get(), found, "a second failure");
                        }
                        // And it goes on from there.
                        let mut word = $word::open(crashed, 256).unwrap();
                        word.set(found + 1000).unwrap();
                        word.set(found + 1001).unwrap();
                        assert_eq!($word::open(crashed, 256).unwrap().get(), found + 1001);
                    },
                );
                assert_eq!(report.exhausted, report.steps, "{domain}: every outcome was tried");
                assert!(report.crashes > values.len(), "{domain}: {report:?}");
            }
        }
    }};
}

#[test]
fn a_crash_at_any_store_leaves_the_acknowledged_value_or_the_one_being_set() {
    let growing = || (1..25).map(|i| i * 7).collect::<Vec<u64>>();
    let any = || vec![5, 3, u64::MAX / 2, 0, 3, 3, 1 << 40, 2, 1, 77, 5, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 100];
    crash_word!(Plain, any());
    crash_word!(Counter, growing());
    crash_word!(ShortCounter, growing());
    crash_word!(Register, any());
    crash_word!(Register, growing());
    crash_word!(ShortRegister, any());
    crash_word!(DenseRegister, any());
}

/// Dies again and again, in the middle of updates and of recoveries, and always finds what it was told, or a little
/// more.
macro_rules! many_lives {
    ($word:ident, $next:expr) => {{
        for domain in DOMAINS {
            for failure in FAILURES {
                let mut image = CrashImage::new(4096, domain);
                drop($word::format(&image, 0).unwrap());
                let mut told = 0;
                for life in 0..300_u64 {
                    let mut word = $word::open(&image, 0).unwrap();
                    let mut last = word.get();
                    assert!(
                        last == told || last == $next(told, life - 1),
                        "life {life}: told {told}, found {last}"
                    );
                    for _ in 0..life % 13 {
                        last = $next(last, life);
                        word.set(last).unwrap();
                    }
                    told = last;
                    // The last update is visible, and its sync never comes.
                    image.fail_after_psyncs(0);
                    let failed = word.set($next(last, life)).unwrap_err();
                    assert!(matches!(failed, WordError::Medium(_)), "{failed}");
                    assert_eq!(word.get(), told, "what is not known to be durable is not shown");
                    assert!(matches!(word.set($next(last, life) + 1).unwrap_err(), WordError::Failed));
                    let left = image.crash_seeded(failure, life);
                    image = left;
                }
            }
        }
    }};
}

#[test]
fn a_word_survives_many_lives() {
    many_lives!(Plain, |last: u64, life: u64| last.wrapping_mul(6_364_136_223_846_793_005) % (1 << 60)
        + life
        + 1);
    many_lives!(Counter, |last: u64, life: u64| last + 1 + life % 3);
    many_lives!(ShortCounter, |last: u64, life: u64| last + 1 + life % 3);
    many_lives!(Register, |last: u64, life: u64| last.wrapping_mul(6_364_136_223_846_793_005) % (1 << 60)
        + life
        + 1);
    many_lives!(ShortRegister, |last: u64, life: u64| last.wrapping_mul(6_364_136_223_846_793_005)
        % (1 << 60)
        + life
        + 1);
}

/// The process dies between the store and its write-back, and the kernel, or the cache, has the new value. Who
/// recovers it may tell others: it must not be lost to the power after that.
macro_rules! recovered_then_power_loss {
    ($word:ident, $at:expr, $stored:expr) => {{
        for domain in [PersistenceDomain::Adr, PersistenceDomain::PageCache] {
            let image = CrashImage::new(4096, domain);
            $word::format(&image, 0).unwrap().set(1).unwrap();
            image.store_u64($at, $stored);
            assert_eq!($word::open(&image, 0).unwrap().get(), 2, "{domain}: it is visible");
            for seed in 0..50 {
                let left = image.crash_seeded(Failure::PowerLoss, seed);
                assert_eq!($word::open(&left, 0).unwrap().get(), 2, "{domain}, seed {seed}");
            }
        }
    }};
}

#[test]
fn what_was_recovered_survives_the_next_power_loss() {
    recovered_then_power_loss!(Plain, 0, 2);
    recovered_then_power_loss!(Counter, 256, 2);
    recovered_then_power_loss!(Register, 256, 1 ^ 2);
}

#[test]
fn a_counter_does_not_go_backwards_and_a_register_may() {
    let image = CrashImage::new(4096, PersistenceDomain::Adr);
    let mut counter = Counter::format(&image, 0).unwrap();
    counter.set(10).unwrap();
    let refused = counter.set(9).unwrap_err();
    assert!(matches!(refused, WordError::Backwards { now: 10, asked: 9 }), "{refused}");
    counter.set(10).unwrap();
    assert_eq!(image.load_u64(256), 0, "setting what it is writes nothing");
    counter.set(u64::MAX).unwrap();
    assert_eq!(Counter::open(&image, 0).unwrap().get(), u64::MAX);
    let mut register = Register::format(&image, 0).unwrap();
    register.set(10).unwrap();
    register.set(9).unwrap();
    assert_eq!(Register::open(&image, 0).unwrap().get(), 9);
}

#[test]
fn updates_go_to_the_chunks_in_turn_after_a_recovery_too() {
    let image = CrashImage::new(4096, PersistenceDomain::Adr);
    let mut counter = Counter::format(&image, 0).unwrap();
    for value in 1..=11 {
        counter.set(value).unwrap();
    }
    let chunks = || (0..10).map(|chunk| image.load_u64(chunk * 256)).collect::<Vec<u64>>();
    assert_eq!(chunks(), [11, 2, 3, 4, 5, 6, 7, 8, 9, 10], "figure 8 of the paper");
    Counter::open(&image, 0).unwrap().set(12).unwrap();
    assert_eq!(chunks(), [11, 12, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(Counter::LEN, 2560, "bytes, as in the paper");
    assert_eq!(image.bytes()[2560..], [0; 4096 - 2560]);
}

#[test]
fn a_counter_that_could_not_have_been_written_is_refused() {
    let image = CrashImage::new(4096, PersistenceDomain::Adr);
    let mut counter = Counter::format(&image, 0).unwrap();
    (1..=25).for_each(|value| counter.set(value).unwrap());
    let good = image.bytes();
    for chunk in 0..10 {
        let image = CrashImage::from_bytes(good.clone(), PersistenceDomain::Adr);
        let was = image.load_u64(chunk * 256);
        image.store_u64(chunk * 256, was + 1000);
        // The greatest is the value, so damage upwards is found, unless it hits the newest chunk, or the one whose
        // turn it was: that is what the next update would have looked like.
        assert_eq!(
            Counter::open(&image, 0).is_err(),
            ![4, 5].contains(&chunk),
            "chunk {chunk}, which was {was}"
        );
    }
    let image = CrashImage::from_bytes(vec![0xA5; 4096], PersistenceDomain::Adr);
    let refused = Counter::open(&image, 0).unwrap_err().to_string();
    assert!(refused.contains("none was ever formatted there"), "{refused}");
}

#[test]
fn a_word_needs_a_place() {
    let image = CrashImage::new(4096, PersistenceDomain::Adr);
    for offset in [4, 4096, 4095, 4096 - 2552, u64::MAX - 7] {
        let misplaced = |error: Option<WordError>| matches!(error, Some(WordError::Misplaced { .. }));
        assert!(misplaced(Counter::format(&image, offset).err()), "{offset}");
        assert!(misplaced(Register::open(&image, offset).err()), "{offset}");
    }
    assert!(Plain::format(&image, 4088).is_ok());
    assert!(Counter::format(&image, 4096 - 2560).is_ok());
}

#[test]
fn formatting_wipes_what_was_there() {
    let image = CrashImage::new(4096, PersistenceDomain::Adr);
    image.write(0, &[0xA5; 4096]);
    assert_eq!(Register::format(&image, 0).unwrap().get(), 0);
    assert_eq!(Register::open(&image.crash_seeded(Failure::PowerLoss, 1), 0).unwrap().get(), 0);
    image.fail_after_psyncs(0);
    assert!(matches!(Counter::format(&image, 0), Err(WordError::Medium(_))));
    assert!(
        matches!(Counter::open(&image, 0), Err(WordError::Medium(_))),
        "nothing is handed out that is not durable"
    );
}

#[test]
fn readers_see_durable_values_only_and_in_order() {
    let image = Arc::new(CrashImage::new(4096, PersistenceDomain::Adr));
    let mut counter = RotatingCounter::<_>::format(Arc::clone(&image), 0).unwrap();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let reader = counter.reader();
            std::thread::spawn(move || {
                let mut last = 0;
                while last < 2000 {
                    let now = reader.get();
                    assert!(now >= last, "{now} after {last}");
                    last = now;
                    std::thread::yield_now();
                }
            })
        })
        .collect();
    for value in 1..=2000 {
        counter.set(value).unwrap();
        if value % 400 == 0 {
            let seen = counter.reader().get();
            let left = image.crash_seeded(Failure::PowerLoss, value);
            assert!(RotatingCounter::<_>::open(&left, 0).unwrap().get() >= seen);
        }
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}

#[test]
fn with_the_delays_of_the_paper_rotation_is_seven_times_faster_and_wears_nothing() {
    fn events<'a, W: DurableWord<Medium = &'a Traced<CrashImage>>>(
        medium: &'a Traced<CrashImage>,
    ) -> Vec<Event> {
        let mut word = W::format(medium, 0).unwrap();
        medium.take();
        (1..=1000).for_each(|value| word.set(value).unwrap());
        medium.take()
    }
    let traced = || Traced::new(CrashImage::new(8192, PersistenceDomain::Adr));
    let (a, b, c) = (traced(), traced(), traced());
    let plain = events::<PlainWord<_>>(&a);
    let counter = events::<RotatingCounter<_>>(&b);
    let register = events::<RotatingRegister<_>>(&c);
    assert_eq!(plain.len(), 2000, "one write-back and one fence each");
    let nanos = |events: &[Event]| Delays::CASCADE_LAKE.run(events);
    assert_eq!(nanos(&plain) / 1000, 769, "770 ns in the paper");
    assert_eq!(nanos(&counter) / 1000, 100);
    assert_eq!(nanos(&counter), nanos(&register));
    let ratio = nanos(&plain) as f64 / nanos(&counter) as f64;
    assert!((7.5..7.8).contains(&ratio), "{ratio}: 7.6 in the paper");
    // Neither reaches the medium: the buffer has room for ten blocks.
    for events in [&plain, &counter] {
        let mut dimms = Dimms::new(Config::OPTANE);
        crate::dimm::trace::replay(events, &mut dimms);
        assert_eq!((dimms.counters().line_writes, dimms.counters().media_writes), (1000, 0));
    }
}

const TAG: u64 = 0x0107;

fn entry(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; 5 + (number as usize * 37) % 70]
}

/// Opens a log and returns the numbers of its entries, after checking every byte.
fn entries<'a, W>(image: &'a CrashImage) -> (CountedLog<W>, Vec<u64>)
where
    W: DurableWord<Medium = &'a CrashImage>,
{
    let mut found = Vec::new();
    let log = CountedLog::<W>::open(image, 0..image.len(), TAG, |here, bytes| {
        let number = u64::from(bytes[0]) - 1;
        assert_eq!(bytes, entry(number), "entry {number}");
        let mut there = vec![0; here.len as usize];
        image.read(here.payload, &mut there);
        assert_eq!(there, bytes);
        found.push(number);
    });
    (log.unwrap(), found)
}

macro_rules! crash_log {
    ($word:ident, $image:expr) => {{
        for domain in DOMAINS {
            for failure in FAILURES {
                let start = CrashImage::new($image, domain);
                drop(CountedLog::<$word<'_>>::format(&start, 0..$image, TAG).unwrap());
                let explorer = Explorer { failure, ways_max: 200, samples: 60, seed: 9 };
                let report = explorer.run(
                    &start,
                    |image| {
                        let (mut log, _) = entries::<$word<'_>>(image);
                        let mut ends = Vec::new();
                        for number in 0..18 {
                            // Two entries to a commit, so that several are under way; old ones go when there is no
                            // room.
                            let appended = loop {
                                match log.append(&entry(number)) {
                                    Ok(appended) => break appended,
                                    Err(LogFault::Full { .. }) => {
                                        log.commit().unwrap();
                                        log.trim(ends.remove(0)).unwrap();
                                    }
                                    Err(other) => panic!("{other}"),
                                }
                            };
                            ends.push(appended.end);
                            if number % 2 == 1 {
                                log.commit().unwrap();
                                image.note(number + 1);
                            }
                        }
                    },
                    |crashed, notes| {
                        let told = notes.last().copied().unwrap_or(0);
                        let (mut log, found) = entries::<$word<'_>>(crashed);
                        let first = found.first().copied().unwrap_or(told);
                        let expected: Vec<u64> = (first..first + found.len() as u64).collect();
                        assert_eq!(found, expected, "without gaps");
                        let last = first + found.len() as u64;
                        assert!(last >= told, "{told} were acknowledged, {found:?} are there");
                        // And it goes on.
                        log.trim(log.tail()).unwrap();
                        log.append(&entry(last)).unwrap();
                        log.commit().unwrap();
                        assert_eq!(entries::<$word<'_>>(crashed).1, [last]);
                    },
                );
                assert!(report.crashes > 60, "{report:?}");
            }
        }
    }};
}

#[test]
fn a_log_keeps_what_was_committed_whatever_its_tail_is() {
    crash_log!(Plain, 256 + 256 + 512);
    crash_log!(Counter, 256 + 2560 + 512);
    crash_log!(Register, 256 + 2560 + 512);
}

#[test]
fn a_log_goes_round_its_ring_for_ever_and_never_beyond() {
    let len = 256 + 256 + 448;
    let image = CrashImage::new(len + 64, PersistenceDomain::Adr);
    image.write(len, &[0xEE; 64]);
    let mut log = CountedLog::<Plain<'_>>::format(&image, 0..len, TAG).unwrap();
    let mut kept: Vec<(u64, Position)> = Vec::new();
    for number in 0..600_u64 {
        let bytes = vec![number as u8; (number as usize * 13) % 150];
        let appended = loop {
            match log.append(&bytes) {
                Ok(appended) => break appended,
                Err(LogFault::Full { .. }) => {
                    log.trim(kept.remove(0).1).unwrap();
                }
                Err(other) => panic!("{other}"),
            }
        };
        log.commit().unwrap();
        kept.push((number, appended.end));
    }
    assert_eq!(image.bytes()[len as usize..], [0xEE; 64]);
    let mut found = Vec::new();
    let open = CountedLog::<Plain<'_>>::open(&image, 0..len, TAG, |here, bytes| {
        found.push((bytes.to_vec(), here.end))
    });
    assert_eq!(open.unwrap().tail(), log.tail());
    let expected: Vec<(Vec<u8>, u64)> =
        kept.iter().map(|(number, end)| (vec![*number as u8; (*number as usize * 13) % 150], *end)).collect();
    assert_eq!(found, expected);
    let refused = log.append(&[0; 210]).unwrap_err();
    assert!(matches!(refused, LogFault::TooLong { len: 210, ring: 448 }), "{refused}");
}

/// Written by the first release of this format.
#[test]
fn the_bytes_of_entries_are_those_of_the_format() {
    let image = CrashImage::new(1024, PersistenceDomain::Adr);
    let mut log = CountedLog::<Plain<'_>>::format(&image, 0..1024, 7).unwrap();
    let hex = |at: usize| -> String {
        image.bytes()[at..at + 32].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    log.append(b"abc").unwrap();
    log.append(&[1; 100]).unwrap();
    log.commit().unwrap();
    assert_eq!(hex(512), "03000000f8d883bb000000000000000061626300000000000000000000000000");
    assert!(image.bytes()[544..576].iter().all(|byte| *byte == 0));
    log.trim(192).unwrap();
    log.append(&[2; 200]).unwrap();
    log.commit().unwrap();
    log.trim(448).unwrap();
    // This does not fit into what is left of the ring, and goes to its start.
    log.append(&[3; 50]).unwrap();
    assert_eq!(hex(960), "ffffffffa9507930c00100000000000000000000000000000000000000000000");
}

#[test]
fn damage_below_the_tail_is_told_with_what_is_safe() {
    let image = CrashImage::new(2048, PersistenceDomain::Adr);
    let mut log = CountedLog::<Plain<'_>>::format(&image, 0..2048, TAG).unwrap();
    let appended: Vec<Entry> = (0..5).map(|number| log.append(&entry(number)).unwrap()).collect();
    log.commit().unwrap();
    let good = image.bytes();
    for at in appended[2].payload - 16..appended[2].payload + appended[2].len {
        let image = CrashImage::from_bytes(good.clone(), PersistenceDomain::Adr);
        image.write(at, &[good[at as usize] ^ 0x10]);
        let mut handed_out = 0;
        let opened = CountedLog::<Plain<'_>>::open(&image, 0..2048, TAG, |_, _| handed_out += 1);
        let Err(LogFault::Damaged { at: where_, whole: 2, lost }) = opened else {
            panic!("{opened:?} after damage at {at}");
        };
        assert_eq!((where_, lost, handed_out), (appended[2].position, log.tail() - appended[2].position, 2));
    }
    let opened = CountedLog::<Plain<'_>>::open(&image, 0..2048, TAG + 1, |_, _| panic!("another log's"));
    assert!(matches!(opened, Err(LogFault::Damaged { at: 0, whole: 0, .. })), "{opened:?}");
}

#[test]
fn nonsense_is_refused() {
    let image = CrashImage::new(2048, PersistenceDomain::Adr);
    for (start, end) in [(0, 767), (8, 2048), (0, 4096), (2048, 1024), (u64::MAX - 255, 0)] {
        let refused = CountedLog::<Plain<'_>>::format(&image, start..end, TAG);
        assert!(matches!(refused, Err(LogFault::Misplaced { .. })), "{start}..{end}");
    }
    assert_eq!(
        CountedLog::<Plain<'_>>::format(&image, 0..2047, TAG).unwrap().capacity(),
        1472,
        "whole lines"
    );
    drop(CountedLog::<Plain<'_>>::format(&image, 0..2048, TAG).unwrap());
    for (head, tail) in [(8, 0), (0, 12), (0, 2048), (1 << 60, (1 << 60) - 8)] {
        image.store_u64(0, head);
        image.store_u64(256, tail);
        let opened = CountedLog::<Plain<'_>>::open(&image, 0..2048, TAG, |_, _| panic!("nothing is there"));
        assert!(matches!(opened, Err(LogFault::Bounds { .. })), "{opened:?}");
    }
}

#[test]
fn a_log_is_trimmed_at_ends_of_committed_entries_only() {
    let image = CrashImage::new(2048, PersistenceDomain::Adr);
    let mut log = CountedLog::<Plain<'_>>::format(&image, 0..2048, TAG).unwrap();
    let first = log.append(b"first").unwrap();
    let second = log.append(b"second").unwrap();
    assert!(matches!(log.trim(first.end), Err(LogFault::NotAnEnd { .. })), "it is not committed");
    assert_eq!(log.commit().unwrap(), second.end);
    for position in [8, first.end + 8, second.end + 8] {
        assert!(matches!(log.trim(position), Err(LogFault::NotAnEnd { .. })), "{position}");
    }
    log.trim(first.end).unwrap();
    assert!(matches!(log.trim(0), Err(LogFault::NotAnEnd { .. })), "it never grows back");
    log.trim(first.end).unwrap();
    assert_eq!(log.head(), first.end);
    assert_eq!(log.reader().get(), second.end);
}

#[test]
fn a_medium_that_fails_ends_the_log_where_it_was_committed() {
    for failing in 0..2 {
        let image = CrashImage::new(2048, PersistenceDomain::Adr);
        let mut log = CountedLog::<Plain<'_>>::format(&image, 0..2048, TAG).unwrap();
        log.append(&entry(0)).unwrap();
        log.commit().unwrap();
        image.fail_after_psyncs(failing);
        log.append(&entry(1)).unwrap();
        assert!(log.commit().is_err());
        assert!(log.commit().is_err() && log.append(&entry(2)).is_err(), "for good");
        for seed in 0..50 {
            let left = image.crash_seeded(Failure::PowerLoss, seed);
            let found = entries::<Plain<'_>>(&left).1;
            assert!(found == [0] || failing == 1 && found == [0, 1], "{found:?}");
        }
    }
}

/// Words are sent to other threads, and printed.
#[test]
fn words_move_between_threads() {
    fn check<T: Send + Debug>() {}
    check::<PlainWord<crate::Region>>();
    check::<RotatingCounter<crate::Region>>();
    check::<RotatingRegister<crate::Region>>();
    check::<CountedLog<RotatingCounter<crate::Region>>>();
    check::<Reader>();
}
