//! What rots in a log is told, and what is behind it is held.

use remanence_cache::cleaner::Action;
use remanence_cache::entry::Owner;
use remanence_cache::format::{Held, Lost, OpenError, Promise};
use remanence_cache::log::Log;
use remanence_cache::recovery::{Judged, Outcome, Policy, Recovery, scan};
use remanence_cache::table::FileId;
use remanence_cache::words::LocalWords;
use remanence_cache::{Damage, Flaw};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};

use crate::crash::made;
use crate::files::{Change, Disk, recover};
use crate::log::{NOW, change};

const ME: Owner = Owner::new(1);
const DOMAIN: PersistenceDomain = PersistenceDomain::PageCache;

/// A log of which all is known to be durable.
fn written(promise: Promise, changes: &[Change]) -> CrashImage {
    let image = made(16, promise, DOMAIN);
    let log = Log::start(&image, LocalWords::default(), promise).unwrap();
    for change in changes {
        let end = log.append(ME, &change.op(), NOW).unwrap();
        log.persist_up_to(ME, end).unwrap();
    }
    CrashImage::from_bytes(image.bytes(), DOMAIN)
}

fn flipped(image: &CrashImage, at: u64, bit: u8) -> CrashImage {
    let image = image.clone();
    let mut byte = [0];
    image.read(at, &mut byte);
    image.write(at, &[byte[0] ^ 1 << bit]);
    image
}

#[test]
fn each_flipped_bit_of_an_entry_is_told_or_mended_and_nothing_is_lost_in_silence() {
    for promise in [Promise::AtReturn, Promise::AtSync] {
        let image = written(promise, &[change(1, 0, 1, 100), change(2, 0, 2, 10), change(1, 7, 3, 4)]);
        let whole = scan(&image, Lost::Unsynced).unwrap();
        let mut places: Vec<(u64, bool)> = Vec::new();
        for (index, len) in [(16, 64), (17, 36), (18, 10), (19, 4)] {
            let [header, data] = [whole.layout.header(index), whole.layout.data(index)];
            places.extend((header..header + 64).map(|at| (at, false)));
            places.extend((data..data + len).map(|at| (at, true)));
        }
        let follows = whole.layout.header(17);
        let mut mended = 0;
        for ((at, is_data), bit) in places.into_iter().flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let found = scan(&flipped(&image, at, bit), Lost::Unsynced).unwrap();
            let all = found.items.len() == whole.items.len()
                && found.items.iter().zip(&whole.items).all(|(a, b)| a.entry == b.entry);
            let told = !found.damaged.is_empty() || !found.unsure.is_empty();
            // A follower's own commit word commits nothing.
            let nothing = (follows..follows + 8).contains(&at);
            assert!(all || told, "{promise:?}: bit {bit} at {at} in silence: {found:?}");
            assert!(!is_data || told, "{promise:?}: data of which bit {bit} at {at} was flipped");
            assert!(all != told || nothing, "{promise:?}: bit {bit} at {at}: {found:?}");
            mended += usize::from(found.items.iter().any(|item| item.mended));
            // The last entry was promised as well, and there is no other behind it.
            assert!(found.unsure.is_empty(), "{promise:?}: bit {bit} at {at}: {found:?}");
        }
        assert!(mended >= 3 * 60, "{mended} commit words were mended");
    }
}

#[test]
fn what_is_behind_damage_in_its_file_is_held_until_somebody_says_to_skip_it() {
    let changes =
        [change(1, 0, 1, 8), change(2, 0, 2, 8), change(1, 4, 3, 8), change(2, 4, 4, 8), change(1, 0, 5, 2)];
    let image = written(Promise::AtReturn, &changes);
    let layout = scan(&image, Lost::Unsynced).unwrap().layout;
    let image = flipped(&image, layout.data(18) + 3, 0);
    let found = scan(&image, Lost::Unsynced).unwrap();
    let [Damage { first: 18, file: Some((FileId(1), 4, 12)), flaw: Flaw::Data, .. }] = found.damaged[..]
    else {
        panic!("{:?}", found.damaged)
    };
    assert_eq!(found.damaged[0].to_string(), "entry 18 (file 1, bytes 4..12): its data is damaged");
    let mut disk = Disk::default();
    let held = Held::Files(vec![FileId(1)]);
    let outcome = recover(&image, found, Policy::Hold, &mut disk, 1, u64::MAX);
    assert_eq!(outcome, Some(Outcome::Held(held.clone())));
    assert_eq!(disk.visible().bytes[&1], [1; 8], "what was before it");
    assert_eq!(disk.visible().bytes[&2], [2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4]);
    let start = Log::start(image.clone(), LocalWords::default(), Promise::AtReturn);
    assert!(matches!(start, Err(OpenError::Dirty)));

    // Meanwhile somebody else writes to the other file: that is not undone.
    disk.write(&change(2, 5, 9, 1).op());
    let found = scan(&image, Lost::Nothing).unwrap();
    let outcome = recover(&image, found, Policy::Hold, &mut disk, 1, u64::MAX);
    assert_eq!(outcome, Some(Outcome::Held(held)));
    assert_eq!((disk.visible().bytes[&2][5], disk.visible().bytes[&1].len()), (9, 8));
    let found = scan(&image, Lost::Unsynced).unwrap();
    assert_eq!(recover(&image, found, Policy::Skip, &mut disk, 1, u64::MAX), Some(Outcome::Empty));
    assert_eq!(disk.visible().bytes[&1], [5, 5, 1, 1, 1, 1, 1, 1]);
    assert_eq!(disk.visible().bytes[&2][5], 9);
    assert!(scan(&image, Lost::Unsynced).unwrap().is_clean());
}

#[test]
fn a_change_of_names_behind_damage_holds_all_that_it_is_about() {
    let changes = [
        change(1, 0, 1, 8),
        Change::Rename { file: 1, from: b"a", to: b"b" },
        Change::Create { file: 2, name: b"a" },
        change(2, 0, 2, 8),
    ];
    let image = written(Promise::AtReturn, &changes);
    let layout = scan(&image, Lost::Unsynced).unwrap().layout;
    let image = flipped(&image, layout.data(16), 0);
    let mut disk = Disk::default();
    let found = scan(&image, Lost::Unsynced).unwrap();
    let outcome = recover(&image, found, Policy::Hold, &mut disk, 1, u64::MAX);
    assert_eq!(outcome, Some(Outcome::Held(Held::Files(vec![FileId(1), FileId(0), FileId(2)]))));
    assert_eq!(disk.visible().bytes.len() + disk.visible().names.len(), 0, "nothing was carried out");
}

#[test]
fn damage_of_an_unknown_file_holds_all_that_is_behind_it() {
    let image = written(Promise::AtReturn, &[change(1, 0, 1, 8), change(2, 0, 2, 8), change(1, 0, 3, 8)]);
    let layout = scan(&image, Lost::Unsynced).unwrap().layout;
    let image = flipped(&image, layout.header(17) + 40, 0);
    let mut disk = Disk::default();
    let found = scan(&image, Lost::Unsynced).unwrap();
    assert_eq!(found.damaged, [Damage { first: 17, count: 1, file: None, kind: None, flaw: Flaw::Header }]);
    let outcome = recover(&image, found, Policy::Hold, &mut disk, 1, u64::MAX);
    assert_eq!(outcome, Some(Outcome::Held(Held::All)));
    assert_eq!(disk.visible().bytes.into_iter().collect::<Vec<_>>(), [(1, vec![1; 8])]);
}

#[test]
fn a_file_that_the_table_does_not_know_any_more_is_told() {
    let image = written(Promise::AtReturn, &[change(1, 0, 1, 8), change(2, 0, 2, 8)]);
    // The second slot's path.
    let image = flipped(&image, 4 * 4096 + 2 * 320 + 256, 3);
    let found = scan(&image, Lost::Unsynced).unwrap();
    assert_eq!((found.items.len(), found.damaged.len()), (1, 1));
    assert_eq!((found.damaged[0].flaw, found.damaged[0].file), (Flaw::File, Some((FileId(2), 0, 8))));
}

#[test]
fn what_is_missing_below_what_was_durable_is_told() {
    // Each entry but the last two is known to be durable from a later one.
    let changes: Vec<Change> = (0..4).map(|n| change(1, n, n as u8 + 1, 1)).collect();
    let image = written(Promise::AtSync, &changes);
    let layout = scan(&image, Lost::Unsynced).unwrap().layout;
    for index in 0..3 {
        let image = image.clone();
        image.write(layout.header(16 + index), &[0; 64]);
        let found = scan(&image, Lost::Unsynced).unwrap();
        assert_eq!((found.items.len(), found.damaged.len()), (3, 1), "entry {index}");
        assert_eq!(found.damaged[0].flaw, Flaw::Missing);
    }
}

#[test]
fn either_copy_of_superblock_and_root_will_do() {
    let image = written(Promise::AtReturn, &[change(1, 0, 1, 8)]);
    for page in 0..4 {
        let image = image.clone();
        image.write(page * 4096 + 16, &[0xff; 16]);
        assert_eq!(scan(&image, Lost::Unsynced).unwrap().items.len(), 1, "page {page}");
    }
    for page in [0, 2] {
        let image = image.clone();
        image.write(page * 4096 + 16, &[0xff; 16]);
        image.write((page + 1) * 4096 + 16, &[0xff; 16]);
        let error = scan(&image, Lost::Unsynced).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
    }
}

#[test]
fn what_names_mean_in_the_end_is_brought_about_and_not_each_change() {
    let changes = [
        Change::Rename { file: 1, from: b"a", to: b"b" },
        change(1, 0, 1, 4),
        Change::Rename { file: 1, from: b"b", to: b"a" },
        Change::Rename { file: 2, from: b"c", to: b"b" },
    ];
    let image = written(Promise::AtReturn, &changes);
    let mut recovery =
        Recovery::begin(&image, scan(&image, Lost::Unsynced).unwrap(), Policy::Hold, &Judged::default())
            .unwrap();
    let means: Vec<_> = recovery.names().means.iter().map(|((_, name), means)| (&name[..], *means)).collect();
    assert_eq!(means, [(&b"a"[..], Some(FileId(1))), (b"b", Some(FileId(2))), (b"c", None)]);
    let (token, action) = recovery.poll().unwrap();
    assert_eq!((action, recovery.poll()), (Action::Names, None), "nothing runs beside it");
    recovery.failed(token, "no space is left on the device");
    recovery.retry();
    let (token, action) = recovery.poll().unwrap();
    assert_eq!(action, Action::Names);
    recovery.done(token);
    let Some((token, Action::Apply { entry })) = recovery.poll() else { panic!("{recovery:?}") };
    assert_eq!((entry.first, recovery.names().made.len()), (17, 0));
    recovery.failed(token, "input/output error");
    recovery.retry();
    let Some((token, Action::Apply { .. })) = recovery.poll() else { panic!("{recovery:?}") };
    recovery.done(token);
    let Some((token, Action::Sync { file: FileId(1) })) = recovery.poll() else { panic!("{recovery:?}") };
    recovery.done(token);
    assert_eq!(recovery.poll(), None);
    assert_eq!(recovery.finish(&image).unwrap(), Outcome::Empty);
}
