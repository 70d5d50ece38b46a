//! No bytes of a medium make anything panic, or hang; and what is no log is told apart.

use std::collections::BTreeSet;

use proptest::prelude::*;
use remanence_cache::Entry;
use remanence_cache::cleaner::{Cleaner, Options};
use remanence_cache::entry::Owner;
use remanence_cache::foreign::{PAGE, Pages};
use remanence_cache::format::{self, Geometry, Layout, Lost, OpenError, Promise};
use remanence_cache::log::Log;
use remanence_cache::recovery::{Judged, Policy, Recovery, scan};
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache::words::LocalWords;
use remanence_pmem::crash_image::{CrashImage, Explorer};
use remanence_pmem::image::Fault;
use remanence_pmem::layout::Uuid;
use remanence_pmem::{Medium, PersistenceDomain};

use crate::crash::{identity, made};
use crate::files::Change;
use crate::log::{NOW, change};

const DOMAIN: PersistenceDomain = PersistenceDomain::Process;
const ME: Owner = Owner::new(1);

/// Everything that can be done to a medium that somebody brings.
fn whatever_it_is(image: &CrashImage) {
    for lost in [Lost::Nothing, Lost::Unsynced] {
        let Ok(found) = scan(image, lost) else { continue };
        found.damaged.iter().chain(&found.unsure).for_each(|damage| assert!(!damage.to_string().is_empty()));
        let image = image.clone();
        let judged = Judged { foreign: vec![FileId(1)], absent: BTreeSet::from([FileId(2)]) };
        let Ok(mut recovery) = Recovery::begin(&image, found, Policy::Hold, &judged) else { continue };
        reconcile(&image, &mut recovery);
        while let Some((token, _)) = recovery.poll() {
            recovery.done(token);
        }
        drop(recovery.finish(&image));
    }
    if let Ok(log) = Log::start(image, LocalWords::default(), Promise::AtSync) {
        for _ in 0..20 {
            drop(log.append(ME, &change(1, 0, 1, 100).op(), NOW));
        }
        drop(log.persist_up_to(ME, log.head()));
        let mut cleaner = Cleaner::new(Options::usual(log.layout().geometry.entries), log.tail());
        drop(cleaner.feed(&log, |_| true));
        let table = FileTable::attach(image, *log.layout(), log.head());
        drop(table);
    }
}

/// Judges every page that a log names of a file, and more.
fn reconcile(image: &CrashImage, recovery: &mut Recovery) {
    for (file, entries) in recovery.foreign().clone() {
        let (mut pages, mut payload) = (Pages::default(), Vec::new());
        for entry in &entries {
            if recovery.scan().payload(image, entry, &mut payload).is_ok()
                && let Some(op) = entry.op(&payload)
            {
                pages.add(*entry, &op);
            }
        }
        for page in pages.pages(3 * PAGE).into_iter().take(9).chain([u64::MAX / PAGE]) {
            let fetch = |entry: &Entry, into: &mut Vec<u8>| recovery.scan().payload(image, entry, into);
            drop(pages.judge(page, &[0; PAGE as usize], fetch));
        }
        recovery.reconciled(file);
    }
}

fn used() -> CrashImage {
    let image = made(16, Promise::AtSync, DOMAIN);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    let _in_progress = log.reserve(ME, 2).unwrap();
    for change in [
        change(1, 0, 1, 200),
        Change::Create { file: 1, name: b"a" },
        Change::Truncate { file: 2, len: 9 },
        change(2, 0, 1, 5),
        Change::Settled { file: 1, upto: 17 },
        change(1, 4090, 1, 50),
    ] {
        let end = log.append(ME, &change.op(), NOW).unwrap();
        log.persist_up_to(ME, end).unwrap();
    }
    image
}

proptest! {
    #[test]
    fn random_bytes_behind_a_head_that_is_whole(
        seed in any::<[u8; 32]>(),
        from in 0_usize..24_576,
        len in 0_usize..9_000,
    ) {
        let mut bytes = used().bytes();
        let from = 8192 + from.min(bytes.len() - 8192);
        let to = bytes.len().min(from + len);
        bytes[from..to].iter_mut().zip(seed.iter().cycle()).enumerate().for_each(|(n, (byte, random))| {
            *byte = random.wrapping_mul(n as u8 | 1) ^ (n >> 3) as u8;
        });
        whatever_it_is(&CrashImage::from_bytes(bytes, DOMAIN));
    }

    #[test]
    fn flipped_bits(flips in proptest::collection::vec((0_usize..28_672, 0_u32..8), 1..40)) {
        let mut bytes = used().bytes();
        for (at, bit) in flips {
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
        }
        whatever_it_is(&CrashImage::from_bytes(bytes, DOMAIN));
    }

    #[test]
    fn flipped_bits_where_the_entries_are(flips in proptest::collection::vec((0_usize..2048, 0_u32..8), 1..6)) {
        let image = used();
        let headers = scan(&image, Lost::Nothing).unwrap().layout.header(0) as usize;
        let mut bytes = image.bytes();
        for (at, bit) in flips {
            bytes[headers + at] ^= 1 << bit;
        }
        whatever_it_is(&CrashImage::from_bytes(bytes, DOMAIN));
    }

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..20_000)) {
        let image = CrashImage::from_bytes(bytes, DOMAIN);
        prop_assert!(scan(&image, Lost::Unsynced).is_err());
        prop_assert!(Log::start(&image, LocalWords::default(), Promise::AtSync).is_err());
    }
}

#[test]
fn what_is_no_log_is_told_apart_and_never_made_into_one() {
    let geometry = Geometry { entries: 16, slot: 64, files: 3, path_max: 64 };
    let make = |image: &CrashImage| format::make(image, Uuid([1; 16]), geometry, 1, Promise::AtSync);
    let blank = CrashImage::new(geometry.size(), DOMAIN);
    assert!(matches!(scan(&blank, Lost::Unsynced), Err(OpenError::Image(Fault::Blank))));
    blank.write(geometry.size() - 9, b"behind");
    blank.write(20_000, &[0xff; 100]);
    let layout = make(&blank).unwrap();
    assert!(scan(&blank, Lost::Unsynced).unwrap().is_clean());
    assert_eq!(Layout::read(&blank).unwrap(), layout);
    assert!(matches!(make(&blank), Err(OpenError::Exists)));
    let foreign = CrashImage::new(geometry.size(), DOMAIN);
    foreign.write(0, b"SQLite format 3\0");
    assert!(matches!(make(&foreign), Err(OpenError::Image(Fault::Foreign))));
    let short = CrashImage::from_bytes(blank.bytes()[..20_000].to_vec(), DOMAIN);
    assert!(matches!(scan(&short, Lost::Unsynced), Err(OpenError::Image(Fault::Truncated { .. }))));
    let long = CrashImage::from_bytes([blank.bytes(), vec![0; 10]].concat(), DOMAIN);
    assert!(matches!(scan(&long, Lost::Unsynced), Err(OpenError::Image(Fault::Grown { .. }))));
    let newer = CrashImage::from_bytes(blank.bytes(), DOMAIN);
    for copy in [0, 4096] {
        newer.write(copy + 8, &[9]);
        newer.write(copy + 76, &[1, 2, 3, 4]);
    }
    let error = scan(&newer, Lost::Unsynced).unwrap_err();
    assert_eq!(error.to_string(), "the log is of version 9, and this release reads versions 1 and 2");
    let odd = CrashImage::new(geometry.size() + 1, DOMAIN);
    assert!(matches!(make(&odd), Err(OpenError::Size { .. })));
}

#[test]
fn a_spare_number_is_nobody_elses_until_it_is_released() {
    let geometry = Geometry { entries: 16, slot: 64, files: 3, path_max: 64 };
    let image = CrashImage::new(geometry.size(), DOMAIN);
    format::make(&image, Uuid([1; 16]), geometry, 1, Promise::AtReturn).unwrap();
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).unwrap();
    let layout = *log.layout();
    let mut table = FileTable::empty(&image, layout);
    let spares = table.spares(16, 2);
    let other = table.register(&identity(9), 16).unwrap();
    assert!(spares.len() == 2 && !spares.contains(&other) && table.spares(16, 1).is_empty());
    assert_eq!(table.adopt(spares[0]), None, "nobody has said what it means");
    log.name(spares[0], &identity(1)).unwrap();
    assert_eq!(log.identity(spares[0]), Some(identity(1)));
    assert_eq!(table.adopt(spares[0]), Some(identity(1)));
    assert_eq!(table.register(&identity(1), 16).unwrap(), spares[0], "one file never has two numbers");
    let long = Identity { path: vec![b'x'; 65], ..identity(5) };
    assert!(log.name(spares[1], &long).is_err());
    table.release(spares[0], 20);
    assert!(table.spares(19, 1).is_empty(), "an entry may name it");
    assert_eq!(table.spares(20, 9), [spares[0]]);
    assert_eq!(table.adopt(FileId(3)), None, "there is no such number");
    let mut blank = FileTable::empty(&image, layout).durable_with_entries();
    assert!(blank.spares(99, 1).is_empty(), "who writes a slot would have to find it blank");
}

#[test]
fn a_number_of_a_file_is_used_again_when_no_entry_names_it() {
    let geometry = Geometry { entries: 16, slot: 64, files: 2, path_max: 64 };
    let image = CrashImage::new(geometry.size(), DOMAIN);
    let layout = format::make(&image, Uuid([1; 16]), geometry, 1, Promise::AtSync).unwrap();
    let mut table = FileTable::empty(&image, layout);
    let first = table.register(&identity(1), 16).unwrap();
    let second = table.register(&identity(2), 16).unwrap();
    assert_eq!(table.register(&identity(1), 16).unwrap(), first);
    assert!(table.register(&identity(3), 99).is_err());
    table.release(first, 20);
    assert!(table.register(&identity(3), 19).is_err(), "an entry may name it");
    let moved = Identity { path: b"/elsewhere".to_vec(), ..identity(1) };
    assert_eq!(table.register(&moved, 19).unwrap(), first, "it is the same file, and never has two numbers");
    table.release(first, 20);
    assert_eq!(table.register(&identity(3), 20).unwrap(), first);
    assert_eq!(Identity::read(&image, &layout, first), Some(identity(3)));
    assert_eq!(Identity::read(&image, &layout, second), Some(identity(2)));
    // Whoever joins does not know what is named, and waits for the head that it found.
    let mut table = FileTable::attach(&image, layout, 30);
    assert!(table.register(&identity(4), 29).is_err());
    assert_eq!(table.register(&identity(4), 30).unwrap(), first);
    // The inode is used again by another file.
    let reused = Identity { born: 10, ..identity(2) };
    assert_eq!(table.register(&reused, 30).unwrap(), second);
    // Where it is by now.
    table.renew(second, b"/moved").unwrap();
    let moved = Identity { path: b"/moved".to_vec(), ..reused };
    assert_eq!(Identity::read(&image, &layout, second).as_ref(), Some(&moved));
    assert!(table.renew(second, &[b'x'; 65]).is_err());
    assert_eq!(Identity::read(&image, &layout, second), Some(moved), "what it says is whole");
    let long = Identity { path: vec![b'x'; 65], ..identity(5) };
    assert!(table.register(&long, 99).unwrap_err().to_string().contains("longer than the 64 bytes"));
}

#[test]
fn a_crash_while_a_log_is_made_leaves_none_or_a_whole_one() {
    let geometry = Geometry { entries: 8, slot: 64, files: 1, path_max: 64 };
    let make = |image: &CrashImage| format::make(image, Uuid([1; 16]), geometry, 1, Promise::AtSync);
    for domain in [PersistenceDomain::Adr, PersistenceDomain::PageCache] {
        let start = CrashImage::new(geometry.size(), domain);
        // What lies behind the head of a blank medium may be anything.
        start.write(9000, &[0xee; 9000]);
        let start = CrashImage::from_bytes(start.bytes(), domain);
        let explorer = Explorer { ways_max: 40, samples: 40, ..Explorer::default() };
        let (mut none, mut whole) = (0, 0);
        explorer.run(
            &start,
            |image| {
                make(image).unwrap();
            },
            |crashed, _| match scan(crashed, Lost::Unsynced) {
                Err(OpenError::Image(Fault::Blank | Fault::Making)) => {
                    none += 1;
                    make(crashed).unwrap();
                    assert!(scan(crashed, Lost::Unsynced).unwrap().is_clean());
                }
                found => {
                    whole += 1;
                    assert!(found.unwrap().is_clean());
                    Log::start(crashed, LocalWords::default(), Promise::AtSync).unwrap();
                }
            },
        );
        assert!(none > 10 && whole > 1, "{none} and {whole}");
    }
}
