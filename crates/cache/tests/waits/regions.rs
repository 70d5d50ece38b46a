//! The log on regions, with threads that nobody schedules.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use remanence_cache::cleaner::{Action, Cleaner, Feed, Options};
use remanence_cache::entry::{Kind, Mtime, Owner};
use remanence_cache::format::{self, Geometry, Lost, Promise};
use remanence_cache::log::{AppendError, Log};
use remanence_cache::op::Op;
use remanence_cache::recovery::scan;
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache::words::{LocalWords, MappedWords, WORDS_LEN};
use remanence_pmem::Region;
use remanence_pmem::layout::Uuid;

const GEOMETRY: Geometry = Geometry { entries: 64, slot: 128, files: 4, path_max: 64 };
const WRITERS: u64 = 3;
const EACH: u64 = 4000;

/// What a writer's change of a number writes: its offset says which it is, and its bytes and their number follow from that.
fn bytes(writer: u64, number: u64) -> Vec<u8> {
    vec![(writer * 80 + number % 80) as u8; (1 + number * 37 % 300) as usize]
}

#[test]
fn writers_a_sync_and_a_cleaner_run_beside_each_other() {
    for promise in [Promise::AtReturn, Promise::AtSync] {
        let medium = Region::anonymous(GEOMETRY.size()).unwrap();
        let shared = Region::anonymous(WORDS_LEN).unwrap();
        format::make(&medium, Uuid([3; 16]), GEOMETRY, 11, promise).unwrap();
        let log = Log::start(&medium, MappedWords::new(&shared, 0), promise).unwrap();
        let ended = AtomicU64::new(0);
        let seen = thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (medium, shared, ended) = (&medium, &shared, &ended);
                scope.spawn(move || {
                    let log = Log::attach(medium, MappedWords::new(shared, 0)).unwrap();
                    let owner = Owner::new(writer as u32);
                    for number in 0..EACH {
                        let file = FileId(writer as u32);
                        let bytes = bytes(writer, number);
                        let op = Op::Write { file, offset: number << 20, bytes: &bytes };
                        let end = loop {
                            match log.append(owner, &op, Mtime::UNKNOWN) {
                                Ok(end) => break end,
                                Err(AppendError::Full { .. }) => thread::yield_now(),
                                Err(error) => panic!("{error}"),
                            }
                        };
                        while number % 16 == 0
                            && matches!(log.persist_up_to(owner, end), Err(AppendError::Full { .. }))
                        {
                            thread::yield_now();
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            clean(&log, &ended)
        });
        for writer in 0..WRITERS as u32 {
            assert_eq!(seen[&writer], EACH, "{promise:?}: all changes of writer {writer}, in their order");
        }
        log.close().unwrap();
        assert!(scan(&medium, Lost::Unsynced).unwrap().is_clean());
    }
}

/// Looks at everything until the writers have ended; returns how many changes of each were seen.
fn clean(log: &Log<&Region, MappedWords<&Region>>, ended: &AtomicU64) -> BTreeMap<u32, u64> {
    let mut cleaner = Cleaner::new(Options::usual(GEOMETRY.entries), log.tail());
    let mut seen = BTreeMap::new();
    let mut payload = Vec::new();
    loop {
        let all = ended.load(Ordering::SeqCst) == WRITERS;
        let fed = cleaner.feed(log, |_| false).unwrap();
        assert!(!matches!(fed, Feed::Damaged(_)), "{fed:?}");
        if all || log.used() > GEOMETRY.entries / 2 {
            cleaner.drain_to(log.head());
        }
        let Some((token, action)) = cleaner.poll(|_| true) else {
            if all && log.used() == 0 {
                return seen;
            }
            thread::yield_now();
            continue;
        };
        match action {
            Action::Persist { from, upto } => log.secure(&(from..upto)).unwrap(),
            Action::Apply { entry } => {
                assert_eq!(entry.kind, Kind::Write);
                log.payload(&entry, &mut payload).unwrap();
                let next = seen.entry(entry.file.0).or_insert(0);
                assert_eq!(entry.offset, *next << 20, "the next one of its writer");
                assert_eq!(payload, bytes(entry.file.0.into(), *next));
                *next += 1;
            }
            Action::Sync { .. } => {}
            Action::Names => panic!("this is no recovery"),
            Action::Advance { tail } => log.advance(tail).unwrap(),
            Action::Free { tail } => log.free(tail),
        }
        cleaner.done(token);
    }
}

#[test]
fn a_log_in_a_file_is_found_again_and_what_was_synced_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let open = |new: bool| {
        let options = format::file_options();
        let options = if new { options.create(GEOMETRY.size()) } else { options };
        options.open(&path).unwrap()
    };
    let medium = open(true);
    let layout = format::make(&medium, Uuid([3; 16]), GEOMETRY, 11, Promise::AtSync).unwrap();
    let log = Log::start(&medium, LocalWords::default(), Promise::AtSync).unwrap();
    let identity = Identity {
        device: 1,
        inode: 2,
        born: 3,
        handle_type: 1,
        handle: vec![1, 2, 3],
        path: b"/data/db".to_vec(),
    };
    let file = FileTable::empty(&medium, layout).register(&identity, log.tail()).unwrap();
    let end = log.append(Owner::new(1), &Op::Write { file, offset: 5, bytes: &[7; 300] }, Mtime(9)).unwrap();
    log.persist_up_to(Owner::new(1), end).unwrap();
    drop(medium);
    let medium = open(false);
    let found = scan(&medium, Lost::Unsynced).unwrap();
    assert_eq!((found.items.len(), found.damaged.len(), found.items[0].entry.len), (1, 0, 300));
    assert_eq!(Identity::read(&medium, &layout, file), Some(identity));
}
