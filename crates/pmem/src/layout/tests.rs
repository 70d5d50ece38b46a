//! Each block, crashed at every step of its life, on lines and on pages.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::PersistenceDomain;
use crate::crash_image::{CrashImage, Explorer, Failure};
use crate::medium::Medium;

const TAG: u64 = 0x5eed_5eed;
const DOMAINS: [PersistenceDomain; 3] =
    [PersistenceDomain::Adr, PersistenceDomain::PageCache, PersistenceDomain::Eadr];

fn thorough(failure: Failure) -> Explorer {
    Explorer { failure, ways_max: 400, samples: 200, seed: 7 }
}

/// A payload that says which it is in every byte.
fn payload(number: u64, len: usize) -> Vec<u8> {
    vec![number as u8 + 1; len]
}

/// Written by the first release of this format.
#[test]
fn the_bytes_of_a_root_are_those_of_the_format() {
    let image = CrashImage::new(ROOT_LEN, PersistenceDomain::Adr);
    drop(Root::format(&image, 0, TAG, b"abc").unwrap());
    let hex = |at: usize, len: usize| -> String {
        image.bytes()[at..at + len].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(hex(0, 28), "ed5eed5e00000000010000000000000003000000c37c7d3a61626300");
}

#[test]
fn a_root_is_the_old_record_or_the_new_one_after_any_crash() {
    for domain in DOMAINS {
        for failure in [Failure::ProcessCrash, Failure::PowerLoss] {
            let start = CrashImage::new(ROOT_LEN, domain);
            Root::format(&start, 0, TAG, &payload(0, 40)).unwrap();
            let report = thorough(failure).run(
                &start,
                |image| {
                    let (mut root, _) = Root::open(image, 0, TAG).unwrap();
                    for number in 1..5 {
                        root.store(&payload(number, 40 - number as usize)).unwrap();
                        image.note(number);
                    }
                },
                |crashed, notes| {
                    let told = notes.last().copied().unwrap_or(0);
                    let (_, found) = Root::open(crashed, 0, TAG).unwrap();
                    let number = u64::from(found[0]) - 1;
                    assert!(number == told || number == told + 1, "told {told}, found {number}");
                    let expected = payload(number, 40 - number as usize);
                    assert_eq!(found, expected);
                },
            );
            assert!(report.crashes > 20, "{report:?}");
        }
    }
}

#[test]
fn formatting_a_root_leaves_none_or_the_new_one_and_never_what_was_there() {
    let used = CrashImage::new(ROOT_LEN, PersistenceDomain::Adr);
    let mut old = Root::format(&used, 0, TAG, &payload(9, 30)).unwrap();
    (0..5).for_each(|_| old.store(&payload(9, 30)).unwrap());
    thorough(Failure::PowerLoss).run(
        &used,
        |image| {
            Root::format(image, 0, TAG, &payload(0, 30)).unwrap();
            image.note(1);
        },
        |crashed, notes| match Root::open(crashed, 0, TAG) {
            Ok((_, found)) if !notes.is_empty() => assert_eq!(found, payload(0, 30)),
            Ok((_, found)) => assert!(found == payload(0, 30) || found == payload(9, 30)),
            Err(_) => assert!(notes.is_empty(), "formatted and gone"),
        },
    );
}

#[test]
fn a_root_of_somebody_else_or_of_nobody_is_refused() {
    let image = CrashImage::new(ROOT_LEN, PersistenceDomain::Adr);
    assert!(matches!(Root::open(&image, 0, 0), Err(LayoutError::Invalid { offset: 0 })), "zeros");
    Root::format(&image, 0, TAG, b"x").unwrap();
    assert!(Root::open(&image, 0, TAG + 1).is_err());
    image.write(24, b"y");
    assert!(Root::open(&image, 0, TAG).is_err(), "one damaged byte");
}

#[test]
fn what_a_root_recovered_survives_the_next_power_loss() {
    let image = CrashImage::new(ROOT_LEN, PersistenceDomain::PageCache);
    let mut root = Root::format(&image, 0, TAG, b"old").unwrap();
    // The process dies after the write and before the psync; the page cache has the new record.
    image.fail_after_psyncs(0);
    assert!(root.store(b"new").is_err());
    let survivor = image.clone();
    survivor.fail_after_psyncs(u64::MAX);
    let (_, found) = Root::open(&survivor, 0, TAG).unwrap();
    assert_eq!(found, b"new");
    for seed in 0..100 {
        let left = survivor.crash_seeded(Failure::PowerLoss, seed);
        assert_eq!(Root::open(&left, 0, TAG).unwrap().1, b"new", "seed {seed}");
    }
}

/// Recovers, and returns the first byte of each record (which says its number) after checking the rest.
fn records(image: &CrashImage, epoch: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let log = Unrecovered::new(image, 0..image.len(), TAG).recover(epoch, |appended, bytes| {
        assert_eq!(appended.sequence, found.len() as u64);
        let number = bytes.first().map_or(0, |b| u64::from(*b) - 1);
        assert!(bytes.iter().all(|b| u64::from(*b) == number + 1), "a torn record was accepted");
        found.push(number);
    });
    assert_eq!(log.unwrap().sequence(), found.len() as u64);
    found
}

#[test]
fn a_log_keeps_what_was_synced_and_a_prefix_of_the_rest() {
    for domain in DOMAINS {
        for failure in [Failure::ProcessCrash, Failure::PowerLoss] {
            let report = thorough(failure).run(
                &CrashImage::new(1024, domain),
                |image| {
                    let area = Unrecovered::new(image, 0..1024, TAG);
                    let mut log = area.recover(1, |_, _| unreachable!("an empty log")).unwrap();
                    for number in 0..6 {
                        log.append(&payload(number, 5 + 13 * number as usize)).unwrap();
                        // Two records per sync: their order on the medium is open.
                        if number % 2 == 1 {
                            log.sync().unwrap();
                            image.note(number + 1);
                        }
                    }
                },
                |crashed, notes| {
                    let synced = notes.last().copied().unwrap_or(0);
                    let found = records(crashed, 2);
                    assert!(found.len() as u64 >= synced, "{found:?} of {synced} synced");
                    assert_eq!(found, (0..found.len() as u64).collect::<Vec<u64>>());
                },
            );
            assert!(report.crashes > 30, "{report:?}");
        }
    }
}

/// Two appended records of which the first is lost and the second survives; the gap is then filled by a record of the
/// same length, or indeed the same bytes. Returns what is found afterwards.
fn fill_the_gap(epoch: u64) -> Vec<u64> {
    let image = CrashImage::new(1024, PersistenceDomain::Adr);
    let mut log = Unrecovered::new(&image, 0..1024, TAG).recover(1, |_, _| {}).unwrap();
    log.append(&payload(0, 40)).unwrap();
    let second = log.append(&payload(1, 40)).unwrap();
    // The crash takes the first record only.
    image.write(0, &[0; 64]);
    image.persist(0..second.payload + 40).unwrap();
    let mut log = Unrecovered::new(&image, 0..1024, TAG).recover(epoch, |_, _| panic!("lost")).unwrap();
    log.append(&payload(0, 40)).unwrap();
    log.sync().unwrap();
    records(&image, 9)
}

#[test]
fn a_record_that_was_cut_off_does_not_come_back_when_the_gap_is_filled() {
    assert_eq!(fill_the_gap(2), [0], "the stale record has epoch 1");
    // The same with the epoch not raised shows that the epoch is what does it.
    assert_eq!(fill_the_gap(1), [0, 1], "and the caller's duty to raise it is real");
}

#[test]
fn an_epoch_that_was_used_before_is_refused() {
    let image = CrashImage::new(256, PersistenceDomain::Adr);
    let mut log = Unrecovered::new(&image, 0..256, TAG).recover(5, |_, _| {}).unwrap();
    log.append(b"x").unwrap();
    let again = Unrecovered::new(&image, 0..256, TAG).recover(5, |_, _| {});
    assert!(again.unwrap_err().to_string().contains("epoch 5 was used before"));
}

#[test]
fn a_log_takes_records_until_it_is_full_and_not_one_byte_more() {
    let image = CrashImage::new(256, PersistenceDomain::Adr);
    image.write(160, &[0xee; 96]);
    let mut log = Unrecovered::new(&image, 0..160, TAG).recover(1, |_, _| {}).unwrap();
    log.append(&[1; 40]).unwrap();
    log.append(&[2; 64]).unwrap();
    assert_eq!(log.append(&[]), Err(LogError::Full { needed: 24, left: 8 }));
    log.sync().unwrap();
    assert_eq!(image.bytes()[160..], [0xee; 96]);
    assert_eq!(log.left(), 8);
}

#[test]
fn a_log_recovers_from_a_crash_within_recovery() {
    let start = CrashImage::new(1024, PersistenceDomain::PageCache);
    let mut log = Unrecovered::new(&start, 0..1024, TAG).recover(1, |_, _| {}).unwrap();
    (0..4).for_each(|number| _ = log.append(&payload(number, 50)).unwrap());
    let after_kill = start.clone();
    let report = thorough(Failure::PowerLoss).run(
        &after_kill,
        |image| {
            let mut told = 0;
            let area = Unrecovered::new(image, 0..1024, TAG);
            area.recover(2, |_, _| told += 1).unwrap();
            image.note(told);
        },
        |crashed, notes| {
            let found = records(crashed, 3).len() as u64;
            assert!(found >= notes.last().copied().unwrap_or(0), "recovered, handed out, and lost");
        },
    );
    assert!(report.crashes > 10, "{report:?}");
}

#[test]
fn the_explorer_would_find_a_log_that_acknowledges_before_its_sync() {
    let explored = catch_unwind(AssertUnwindSafe(|| {
        thorough(Failure::PowerLoss).run(
            &CrashImage::new(512, PersistenceDomain::Adr),
            |image| {
                let mut log = Unrecovered::new(image, 0..512, TAG).recover(1, |_, _| {}).unwrap();
                log.append(&payload(0, 40)).unwrap();
                image.note(1);
            },
            |crashed, notes| assert!(notes.is_empty() || records(crashed, 2).len() == 1),
        )
    }));
    assert!(explored.is_err());
}
