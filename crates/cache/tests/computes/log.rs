//! The log while it is open, one rule after the other.

use std::cell::Cell;
use std::collections::BTreeSet;

use remanence_cache::entry::{Mtime, Owner};
use remanence_cache::format::{Lost, OpenError, Promise};
use remanence_cache::log::{AppendError, Log, Look};
use remanence_cache::op::Op;
use remanence_cache::recovery::{GRACE, Judged, Outcome, Policy, Recovery, Scan, scan};
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache::words::{LocalWords, MappedWords, WORDS_LEN, Word, Words};
use remanence_pmem::crash_image::{CrashImage, EveryWay, Explorer, Failure, Lazy};
use remanence_pmem::{Medium, PersistenceDomain};

use crate::crash::{identity, made};
use crate::files::{Change, Disk, recover};

const ME: Owner = Owner::new(1);
const OTHER: Owner = Owner::new(2);
/// When all files of these tests were changed.
pub(crate) const NOW: Mtime = Mtime(1_700_000_000_000_000_000);

pub(crate) fn change(file: u32, offset: u64, byte: u8, len: usize) -> Change {
    Change::Write { file, offset, bytes: vec![byte; len] }
}

/// What is left if nothing survives but what has to.
fn worst(image: &CrashImage) -> CrashImage {
    image.crash(Failure::PowerLoss, &mut EveryWay::new())
}

fn firsts(found: &Scan) -> Vec<u64> {
    found.items.iter().map(|item| item.entry.first).collect()
}

#[test]
fn a_full_log_says_what_to_wait_for_and_keeps_a_place_for_a_mark() {
    let image = made(8, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    let held = log.reserve(OTHER, 1).unwrap();
    for n in 0..6 {
        log.append(ME, &change(1, n, 1, 1).op(), NOW).unwrap();
    }
    assert!(matches!(log.append(ME, &change(1, 0, 1, 1).op(), NOW), Err(AppendError::Full { until: 9 })));
    assert!(matches!(log.append(ME, &change(1, 0, 1, 130).op(), NOW), Err(AppendError::Full { until: 11 })));
    assert!(matches!(
        log.append(ME, &change(1, 0, 1, 449).op(), NOW),
        Err(AppendError::TooLong { max: 448 })
    ));
    // The first place is in progress: the sync takes the last place for its mark.
    log.persist_up_to(ME, 15).unwrap();
    assert_eq!((log.used(), firsts(&scan(&worst(&image), Lost::Unsynced).unwrap()).len()), (8, 7));
    // Nothing is left to sync, so no other place is needed.
    log.persist_up_to(ME, 15).unwrap();
    log.fill(&held, &change(1, 9, 9, 1).op(), NOW);
    log.commit(&held).unwrap();
    log.free(9);
    assert_eq!(
        log.append(ME, &change(1, 0, 1, 1).op(), NOW).ok(),
        None,
        "seven are in use, and the eighth is for marks"
    );
    log.free(10);
    assert_eq!(log.append(ME, &change(1, 0, 1, 1).op(), NOW).ok(), Some(17));
}

/// A sync of the kernel waits for it, and without it what is older would be carried out over what that has made durable.
#[test]
fn what_settles_a_file_finds_room_in_a_full_log_and_leaves_some_for_marks() {
    let image = made(64, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    while log.append(ME, &change(1, 0, 1, 1).op(), NOW).is_ok() {}
    assert_eq!(log.used(), 56);
    let settled = |upto| log.append(ME, &Op::Settled { file: FileId(1), upto }, NOW);
    assert!(settled(0).is_err(), "this one settles nothing");
    for n in 0..4 {
        let end = settled(64 + n).unwrap();
        log.persist_up_to(ME, end).unwrap();
    }
    assert!(settled(64).is_err());
    assert_eq!(log.used(), 60);
}

#[test]
fn a_writer_that_is_stopped_holds_no_sync_and_waits_itself_when_it_goes_on() {
    let image = made(32, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    let late = log.reserve(OTHER, 3).unwrap();
    let end = log.append(ME, &change(1, 0, 1, 5).op(), NOW).unwrap();
    log.persist_up_to(ME, end).unwrap();
    let found = scan(&worst(&image), Lost::Unsynced).unwrap();
    assert_eq!(
        (firsts(&found), &found.damaged[..], &found.holes[..]),
        (vec![35, 36], &[][..], &[32, 33, 34][..])
    );
    // It commits behind the sync's back, and what comes after it may survive: so it has to.
    log.fill(&late, &change(2, 0, 2, 150).op(), NOW);
    log.commit(&late).unwrap();
    let found = scan(&worst(&image), Lost::Unsynced).unwrap();
    assert_eq!((firsts(&found), found.damaged.len()), (vec![32, 35, 36], 0));
}

/// Words that do something once, behind or before an access.
struct Between<'a> {
    words: &'a LocalWords,
    after_load: Cell<Option<Word>>,
    before_swap: Cell<Option<Word>>,
    then: &'a dyn Fn(),
}

impl Words for Between<'_> {
    fn load(&self, word: Word) -> u64 {
        let value = self.words.load(word);
        if self.after_load.get() == Some(word) {
            self.after_load.set(None);
            (self.then)();
        }
        value
    }

    fn store(&self, word: Word, value: u64) {
        self.words.store(word, value);
    }

    fn compare_and_swap(&self, word: Word, compare: u64, swap: u64) -> u64 {
        if self.before_swap.get() == Some(word) {
            self.before_swap.set(None);
            (self.then)();
        }
        self.words.compare_and_swap(word, compare, swap)
    }
}

#[test]
fn either_a_sync_sees_the_writer_or_the_writer_sees_the_sync() {
    for writer_is_between in [true, false] {
        // By lines, so that nothing is written back for being near.
        let image = made(32, Promise::AtSync, PersistenceDomain::Adr);
        let words = LocalWords::default();
        let other = Log::start(&image, &words, Promise::AtSync).unwrap();
        let late = other.reserve(OTHER, 1).unwrap();
        other.fill(&late, &change(2, 0, 2, 60).op(), NOW);
        let end = other.append(OTHER, &change(1, 0, 1, 5).op(), NOW).unwrap();
        let then = || match writer_is_between {
            true => other.commit(&late).unwrap(),
            false => other.persist_up_to(OTHER, end).unwrap(),
        };
        let (after_load, before_swap) = match writer_is_between {
            true => (None, Some(Word::Passed)),
            false => (Some(Word::Passed), None),
        };
        let between = Between {
            words: &words,
            after_load: Cell::new(after_load),
            before_swap: Cell::new(before_swap),
            then: &then,
        };
        let log = Log::attach(&image, between).unwrap();
        match writer_is_between {
            true => log.persist_up_to(ME, end).unwrap(),
            false => log.commit(&late).unwrap(),
        }
        // Both have returned: the sync, and the writer behind whose entry another is durable.
        let found = scan(&worst(&image), Lost::Unsynced).unwrap();
        assert_eq!(firsts(&found)[..2], [32, 33], "the writer goes in between: {writer_is_between}");
    }
}

/// What a sync makes durable lies in one place, where it is pages that are synced. A log of the version before, as all logs were, is gone on with as it is.
#[test]
fn an_entry_lies_in_one_place_where_pages_are_synced_and_a_log_of_version_1_goes_on() {
    const ENTRIES: u64 = 32;
    for (made_for, version) in [(Promise::AtSync, 2), (Promise::AtReturn, 1)] {
        let image = made(ENTRIES, made_for, PersistenceDomain::PageCache);
        let mut found = [0; 4];
        image.read(8, &mut found);
        assert_eq!(u32::from_le_bytes(found), version);
        let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
        let layout = *log.layout();
        let mut places = Vec::new();
        for index in 0..ENTRIES {
            places.extend([(layout.header(index), 64), (layout.data(index), 64)]);
        }
        let in_one = places.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0);
        assert_eq!(in_one, version == 2);
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "no two overlap");
        let (last, len) = places[places.len() - 1];
        assert!(last + len <= image.len(), "nothing lies behind the end");
        let mut end = 0;
        for n in 0..3 {
            end = log.append(ME, &change(1, n * 100, n as u8 + 1, 100).op(), NOW).unwrap();
        }
        log.persist_up_to(ME, end).unwrap();
        let crashed = worst(&image);
        let found = scan(&crashed, Lost::Unsynced).unwrap();
        assert_eq!((firsts(&found), found.damaged.len()), (vec![32, 34, 36], 0));
        let mut disk = Disk::default();
        assert_eq!(recover(&crashed, found, Policy::Hold, &mut disk, 1, u64::MAX), Some(Outcome::Empty));
        assert_eq!(disk.visible().bytes[&1], [[1; 100], [2; 100], [3; 100]].concat());
    }
}

#[test]
fn what_a_crash_tore_of_an_entry_that_was_passed_is_a_hole_and_no_damage() {
    // Headers lie in another page than data.
    let image = made(32, Promise::AtReturn, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    let late = log.reserve(OTHER, 1).unwrap();
    let end = log.append(ME, &change(1, 0, 1, 5).op(), NOW).unwrap();
    log.persist_up_to(ME, end).unwrap();
    log.fill(&late, &change(2, 0, 2, 60).op(), NOW);
    image.fail_after_psyncs(0);
    log.commit(&late).unwrap_err();
    // Its header and its word have come to the medium by themselves, and its data has not.
    let header = log.layout().header(late.first());
    image.persist_alone(header..header + 64);
    let found = scan(&worst(&image), Lost::Unsynced).unwrap();
    assert_eq!((firsts(&found), found.damaged.len(), &found.holes[..]), (vec![33, 34], 0, &[32][..]));
}

#[test]
fn a_recovery_makes_durable_what_it_goes_by() {
    let image = made(32, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    let _dead = log.reserve(OTHER, 1).unwrap();
    log.append(ME, &change(1, 0, 1, 5).op(), NOW).unwrap();
    // All processes died, and nothing was lost; the machine dies when the first byte may be in its file.
    let found = scan(&image, Lost::Nothing).unwrap();
    assert_eq!(firsts(&found), [33]);
    let mut recovery = Recovery::begin(&image, found, Policy::Hold, &Judged::default()).unwrap();
    recovery.poll().expect("there is something to be done");
    let found = scan(&worst(&image), Lost::Unsynced).unwrap();
    assert_eq!((firsts(&found), found.damaged.len(), found.end), (vec![33], 0, 34));
}

#[test]
fn what_is_seen_committed_is_secured_before_it_is_carried_out() {
    for promise in [Promise::AtReturn, Promise::AtSync] {
        let image = made(32, promise, PersistenceDomain::PageCache);
        let log = Log::start(&image, LocalWords::default(), promise).unwrap();
        let reserved = log.reserve(OTHER, 3).unwrap();
        log.fill(&reserved, &change(1, 0, 1, 150).op(), NOW);
        // Its writer dies, or is held up, between the word and its wait.
        image.fail_after_psyncs(1);
        assert_eq!(log.commit(&reserved).is_ok(), promise == Promise::AtSync);
        image.fail_after_psyncs(u64::MAX);
        assert!(matches!(log.look(32), Look::Entry(_)));
        assert_eq!(firsts(&scan(&worst(&image), Lost::Unsynced).unwrap()), []);
        log.secure(&(32..35)).unwrap();
        assert_eq!(firsts(&scan(&worst(&image), Lost::Unsynced).unwrap()), [32]);
    }
}

#[test]
fn a_medium_that_fails_is_said_to_have_and_nothing_is_promised() {
    let image = made(8, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    let end = log.append(ME, &change(1, 0, 1, 1).op(), NOW).unwrap();
    image.fail_after_psyncs(0);
    for _ in 0..2 {
        assert!(matches!(log.persist_up_to(ME, end), Err(AppendError::Medium(_))), "and again");
    }
    assert!(log.advance(end).is_err() && log.secure(&(8..end)).is_err());
    image.fail_after_psyncs(u64::MAX);
    assert_eq!(firsts(&scan(&worst(&image), Lost::Unsynced).unwrap()), []);
    log.persist_up_to(ME, end).unwrap();
    assert_eq!(firsts(&scan(&worst(&image), Lost::Unsynced).unwrap()), [8]);
}

#[test]
fn what_would_be_carried_out_twice_is_refused() {
    let image = made(8, Promise::AtReturn, PersistenceDomain::Adr);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).unwrap();
    for (mode, fair) in [(0, true), (0x01, true), (0x03, true), (0x10, true), (0x08, false), (0x20, false)] {
        let op = Op::Allocate { file: FileId(1), mode, offset: 0, len: 4096 };
        assert_eq!(log.entries_of(&op).is_ok(), fair, "mode {mode:#x}");
    }
    let op = Op::Write { file: FileId(1), offset: u64::MAX, bytes: &[1] };
    assert!(log.entries_of(&op).is_err(), "no file is as long");
}

#[test]
fn what_nobody_synced_is_a_prefix() {
    let image = made(32, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    for n in 0..4 {
        log.append(ME, &change(1, n, 1, 1).op(), NOW).unwrap();
    }
    let layout = *log.layout();
    // The third alone gets to the medium, and the first two with it; the second is lost.
    let lose = |index: u64| {
        let bytes = CrashImage::from_bytes(image.bytes(), PersistenceDomain::PageCache);
        bytes.write(layout.data(index), &[0xee]);
        scan(&bytes, Lost::Unsynced).unwrap()
    };
    let found = lose(33);
    assert_eq!((firsts(&found), found.dropped, found.unsure.len(), found.damaged.len()), (vec![32], 2, 1, 0));
    let found = lose(35);
    assert_eq!((firsts(&found), found.dropped, found.unsure.len()), (vec![32, 33, 34], 0, 1));
}

#[test]
fn a_claim_that_did_not_move_the_head_is_helped_on() {
    let image = made(8, Promise::AtReturn, PersistenceDomain::Adr);
    let words = LocalWords::default();
    let log = Log::start(&image, &words, Promise::AtReturn).unwrap();
    let dead = log.reserve(OTHER, 2).unwrap();
    // As if it had died between the two swaps.
    words.store(Word::Head, dead.first());
    assert_eq!(log.look(8), Look::Pending { first: 8, owner: OTHER });
    words.store(Word::Head, dead.first());
    assert_eq!(log.append(ME, &change(1, 0, 1, 1).op(), NOW).unwrap(), 11);
    assert!(!log.abandon(8, ME).unwrap(), "it is not this one's");
    assert!(log.abandon(8, OTHER).unwrap());
    assert!(!log.abandon(10, ME).unwrap(), "it is committed");
    let Look::Entry(hole) = log.look(8) else { panic!("{:?}", log.look(8)) };
    assert_eq!(hole.end(), 10);
}

#[test]
fn a_log_that_was_not_closed_is_recovered_first() {
    let image = made(8, Promise::AtReturn, PersistenceDomain::Adr);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).unwrap();
    log.append(ME, &change(1, 3, 7, 2).op(), NOW).unwrap();
    assert!(matches!(log.close(), Err(OpenError::Dirty)));
    let crashed = worst(&image);
    let start = |image: &CrashImage| Log::start(image.clone(), LocalWords::default(), Promise::AtReturn);
    assert!(matches!(start(&crashed), Err(OpenError::Dirty)));
    let mut disk = Disk::default();
    let found = scan(&crashed, Lost::Unsynced).unwrap();
    assert_eq!(recover(&crashed, found, Policy::Hold, &mut disk, 1, u64::MAX), Some(Outcome::Empty));
    assert_eq!(disk.visible().bytes[&1], [0, 0, 0, 7, 7]);
    let log = start(&crashed).unwrap();
    assert_eq!((log.tail(), log.used()), (16, 0), "a lap on");
    log.close().unwrap();
    start(&crashed).unwrap();
}

#[test]
fn a_claim_that_nobody_wrote_is_an_error_and_no_hang_and_a_start_mends_it() {
    let image = made(8, Promise::AtReturn, PersistenceDomain::Adr);
    let layout = scan(&image, Lost::Nothing).unwrap().layout;
    let claim = layout.header(8) + 16;
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).unwrap();
    image.store_u64(claim, 5 << 40);
    assert!(matches!(log.append(ME, &change(1, 0, 1, 1).op(), NOW), Err(AppendError::Damaged { index: 8 })));
    log.close().unwrap();
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).unwrap();
    assert_eq!(log.append(ME, &change(1, 0, 1, 1).op(), NOW).unwrap(), 9);
}

#[test]
fn words_in_a_mapping_are_words_too() {
    let image = made(8, Promise::AtReturn, PersistenceDomain::Adr);
    let mapping = CrashImage::new(64 + WORDS_LEN, PersistenceDomain::Process);
    let log = Log::start(&image, MappedWords::new(&mapping, 64), Promise::AtReturn).unwrap();
    log.append(ME, &change(1, 0, 1, 1).op(), NOW).unwrap();
    let other = Log::attach(&image, MappedWords::new(&mapping, 64)).unwrap();
    assert_eq!((other.head(), other.tail(), other.promise()), (9, 8, Promise::AtReturn));
    assert_eq!(other.append(OTHER, &change(1, 0, 1, 1).op(), NOW).unwrap(), 10);
    assert_eq!(log.head(), 10);
}

/// Whoever makes it: the one who hands out numbers, or who has a spare one.
#[test]
fn a_slot_of_the_table_is_durable_before_an_entry_names_it() {
    for spare in [false, true] {
        let image = made(8, Promise::AtReturn, PersistenceDomain::Adr);
        let words = LocalWords::default();
        let layout = *Log::start(&image, &words, Promise::AtReturn).unwrap().layout();
        let image = CrashImage::from_bytes(image.bytes(), PersistenceDomain::Adr);
        let mut there = 0;
        Explorer::default().run(
            &image,
            |image| {
                // The slot was another file's, of which no entry is left.
                let mut table = FileTable::attach(image, layout, 8);
                let log = Log::attach(image, &words).unwrap();
                let file = if spare {
                    let file = table.spares(8, 1)[0];
                    log.name(file, &identity(9)).unwrap();
                    file
                } else {
                    table.register(&identity(9), 8).unwrap()
                };
                log.append(ME, &change(file.0, 0, 1, 9).op(), NOW).unwrap();
                image.note(1);
            },
            |crashed, notes| {
                let found = scan(crashed, Lost::Unsynced).unwrap();
                assert_eq!(found.damaged, []);
                assert!(notes.is_empty() || found.items.len() == 1);
                for item in &found.items {
                    assert_eq!(Identity::read(crashed, &layout, item.entry.file), Some(identity(9)));
                    there += 1;
                }
            },
        );
        assert!(there > 1, "some crashes came behind the entry");
    }
}

/// Where nobody waits for it, it is with the entry; and whatever a crash leaves before, no entry is about the file that had the slot.
#[test]
fn a_slot_that_nobody_waits_for_is_durable_with_the_entry_that_names_it() {
    let image = made(8, Promise::AtSync, PersistenceDomain::PageCache);
    let words = LocalWords::default();
    let layout = *Log::start(&image, &words, Promise::AtSync).unwrap().layout();
    let image = CrashImage::from_bytes(image.bytes(), PersistenceDomain::PageCache);
    let mut there = [0; 2];
    let explorer = Explorer { ways_max: 4096, samples: 2000, ..Explorer::default() };
    explorer.run(
        &image,
        |image| {
            let mut table = FileTable::attach(image, layout, 8).durable_with_entries();
            let log = Log::attach(image, &words).unwrap();
            let file = table.register(&identity(9), 8).unwrap();
            let end = log.append(ME, &change(file.0, 0, 1, 9).op(), NOW).unwrap();
            log.persist_up_to(ME, end).unwrap();
            image.note(1);
        },
        |crashed, notes| {
            let found = scan(crashed, Lost::Unsynced).unwrap();
            assert_eq!(found.damaged, []);
            assert!(found.items.len() >= notes.len(), "it was promised");
            for item in &found.items {
                assert_eq!(Identity::read(crashed, &layout, item.entry.file), Some(identity(9)));
            }
            if notes.is_empty() {
                there[found.items.len()] += 1;
            }
        },
    );
    println!("before it was promised it was there in {} of {} crashes", there[1], there[0] + there[1]);
}

#[test]
fn a_time_that_the_log_would_explain_by_now_is_somebody_elses() {
    let image = made(8, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    let later = |by: u64| Mtime(NOW.0 + by);
    log.append(ME, &change(1, 0, 1, 9).op(), NOW).unwrap();
    let is_foreign = |by| scan(&image, Lost::Unsynced).unwrap().is_foreign(FileId(1), later(by));
    assert!(!is_foreign(GRACE) && is_foreign(GRACE + 1), "the log may have lost a write of ours");
    log.append(ME, &change(2, 0, 1, 9).op(), later(GRACE + 10)).unwrap();
    assert!(!is_foreign(0) && is_foreign(9), "a write of ours would be before that one");
    assert!(!is_foreign(10), "it may have been under way");
}

#[test]
fn whose_entries_are_in_use_is_told_also_of_those_in_progress() {
    let image = made(8, Promise::AtSync, PersistenceDomain::PageCache);
    let log = Log::start(&image, LocalWords::default(), Promise::AtSync).unwrap();
    assert!(log.owners().is_empty());
    log.append(ME, &change(1, 0, 1, 100).op(), NOW).unwrap();
    let reserved = log.reserve(OTHER, 2).unwrap();
    assert_eq!(log.owners(), BTreeSet::from([ME, OTHER]));
    log.secure(&(8..10)).unwrap();
    log.advance(10).unwrap();
    log.free(10);
    assert_eq!(log.owners(), BTreeSet::from([OTHER]));
    assert!(log.abandon(reserved.first(), OTHER).unwrap());
    log.free(reserved.end());
    assert!(log.owners().is_empty());
}

/// Every outcome of every step, and not some of them.
#[test]
fn a_group_and_a_sync_in_every_way_that_a_crash_can_leave_them() {
    for (promise, domain) in
        [(Promise::AtReturn, PersistenceDomain::Adr), (Promise::AtSync, PersistenceDomain::PageCache)]
    {
        let image = made(8, promise, domain);
        let words = LocalWords::default();
        let layout = scan(&image, Lost::Nothing).unwrap().layout;
        Log::start(&image, &words, promise).unwrap();
        let image = CrashImage::from_bytes(image.bytes(), domain);
        // Where nothing is fenced there are many more ways.
        let writes = match promise {
            Promise::AtReturn => vec![change(1, 0, 1, 100), change(1, 50, 2, 10), change(2, 0, 3, 9)],
            Promise::AtSync => vec![change(1, 0, 1, 9), change(1, 5, 2, 70)],
        };
        let explorer = Explorer { ways_max: 100_000, ..Explorer::default() };
        let headers = layout.header(0);
        let is_commit = move |at: u64| (0..8).any(|index| layout.header(index) == at);
        let report = explorer.run_lazily(
            &image,
            |image| {
                let log = Log::attach(image, &words).unwrap();
                for (n, write) in writes.iter().enumerate() {
                    let end = log.append(ME, &write.op(), NOW).unwrap();
                    if n == 0 {
                        log.persist_up_to(ME, end).unwrap();
                    }
                    if n == 0 || promise == Promise::AtReturn {
                        image.note(n as u64 + 1);
                    }
                }
            },
            // The commit word is the only one of a header that no checksum covers.
            |_| move |at| at >= headers && !is_commit(at),
            |crashed: &Lazy, notes| {
                let found = scan(crashed, Lost::Unsynced).unwrap();
                assert_eq!(found.damaged, []);
                let there = found.items.len();
                let least = notes.last().map_or(0, |n| *n as usize);
                assert!(there >= least, "{least} were promised: {found:?}");
                let mut disk = Disk::default();
                let recovered = recover(crashed, found, Policy::Hold, &mut disk, 1, u64::MAX);
                assert_eq!(recovered, Some(Outcome::Empty));
                let mut expected = Disk::default();
                writes[..there].iter().for_each(|write| expected.write(&write.op()));
                assert_eq!(disk.visible(), expected.visible());
            },
        );
        println!("{promise:?}: {report:?}");
        assert!(report.outcomes > 1000.0, "{report:?}");
    }
}
