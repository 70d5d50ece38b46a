//! What is NVPages' own: what a file with pages may be, what a recovery asks for, and how pages go back to their files.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use remanence_cache::format::Lost;
use remanence_cache::pages::format::Layout;
use remanence_cache::pages::recovery::{Flaw, Outcome, Policy, scan};
use remanence_cache_live::recover::pages::{PagesReport, open, recover};
use remanence_cache_live::recover::real::RealFiles;
use remanence_cache_live::recover::{Options as Recovering, State};
use remanence_nvcache::{Cache, File, Options};

use crate::support::{Medium, World, both, small};

const PAGE: usize = 4096;

/// Pages as the death of the process leaves them: a copy of a cache that is open, with what was written there.
fn left(medium: Medium, write: impl FnOnce(&File, &World)) -> (World, World) {
    let world = World::new(medium);
    let cache = world.open();
    let file = cache.open_file(world.path("file"), &both()).expect("room");
    write(&file, &world);
    let copy = World::new(medium);
    fs::copy(&world.log, &copy.log).expect("room");
    (world, copy)
}

fn recovered(pages: &Path, options: &Recovering) -> PagesReport {
    let region = open(pages).expect("nobody has it");
    let found = scan(&region, Lost::Nothing).expect("it is one");
    recover(&region, found, &RealFiles, options).expect("a disk")
}

fn refused(pages: &Path) -> String {
    Cache::open(&small(pages)).expect_err("it cannot be opened").to_string()
}

#[test]
fn what_is_no_file_with_pages_is_told_and_left_alone() {
    let world = World::new(Medium::PagesOnDisk);
    world.open().close().expect("nothing is in it");
    let whole = fs::read(&world.log).expect("it is there");
    let [magic, second, version] = [0, 4096, 8];
    let made = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&world.log, &bytes).expect("room");
        let said = refused(&world.log);
        assert!(fs::read(&world.log).expect("it is there") == bytes, "it was changed: {said}");
        said
    };
    let text = made(&|bytes| *bytes = b"a text that somebody wrote".repeat(400));
    let log = World::new(Medium::Disk);
    log.open().close().expect("nothing is in it");
    let log_bytes = fs::read(&log.log).expect("it is there");
    let log = made(&|bytes| bytes.clone_from(&log_bytes));
    let cut = made(&|bytes| bytes.truncate(whole.len() - 4096));
    let grown = made(&|bytes| bytes.resize(whole.len() + 4096, 0));
    let damaged = made(&|bytes| {
        for copy in [magic, second] {
            bytes[copy + 48] ^= 1;
        }
    });
    let newer = made(&|bytes| {
        for copy in [magic, second] {
            bytes[copy + version] = 9;
            // Its checksum is of another version, too.
            bytes[copy + 76] ^= 1;
        }
    });
    assert_eq!(text, log, "neither has pages");
    let all = [&text, &cut, &grown, &damaged, &newer];
    for (n, said) in all.iter().enumerate() {
        assert!(all[..n].iter().all(|other| other != said), "{said}");
        assert!(said.contains("pages"), "it names the file: {said}");
    }
    assert!(newer.contains("version 9"), "{newer}");
    // One copy is enough, and a file of no bytes, or in whose making somebody was killed, is made.
    fs::write(&world.log, &whole).expect("room");
    let file = fs::File::options().write(true).open(&world.log).expect("it is there");
    file.write_all_at(&[0x55], 48).expect("room");
    world.open().close().expect("nothing is in it");
    fs::write(&world.log, b"").expect("room");
    world.open().close().expect("nothing is in it");
    // A log takes none of these for one of its own.
    let other = Cache::open(&Options::new(&world.log)).expect_err("it has pages").to_string();
    assert!(other.contains("pages"), "{other}");
    let other = Cache::open(&Options::pages(&world.log).size(1 << 30)).expect_err("it has another size");
    assert!(other.to_string().contains("leave the size out"), "{other}");
    let cache = Cache::open(&Options::pages(&world.log)).expect("whatever size it has");
    assert_eq!((cache.status().entries, cache.recovered()), (64, None));
}

#[test]
fn a_file_that_is_not_found_is_waited_for_and_can_be_set_aside() {
    for medium in [Medium::Pages, Medium::PagesOnDisk] {
        let (world, copy) = left(medium, |file, world| {
            file.write_at(&[7; 5000], 100).expect("room");
            file.set_len(4500).expect("room");
            file.sync().expect("a disk");
            // By this name a recovery would find it; its handle would, too.
            fs::remove_file(world.path("file")).expect("it is there");
        });
        drop(world);
        let said = refused(&copy.log);
        assert!(said.contains("file cannot be found") && said.contains("--set-aside"), "{said}");
        let report = recovered(&copy.log, &Recovering::default());
        assert_eq!(report.outcome, Some(Outcome::Held));
        assert!(matches!(report.files[..], [ref file] if matches!(file.state, State::Absent { .. })));
        let aside = copy.path("aside");
        fs::create_dir(&aside).expect("room");
        let options = Recovering { set_aside: Some(aside.clone()), ..Recovering::default() };
        let dry = recovered(&copy.log, &Recovering { dry: true, ..options.clone() });
        assert_eq!((dry.outcome, fs::read_dir(&aside).expect("it is there").count()), (None, 0));
        assert_eq!(recovered(&copy.log, &options).outcome, Some(Outcome::Empty));
        let bytes = fs::read(aside.join("file")).expect("it is there");
        assert!(bytes == [&[0; 100][..], &[7; 4400]].concat(), "{} bytes", bytes.len());
        assert_eq!(copy.open().recovered(), None);
    }
}

#[test]
fn damage_is_told_before_any_file_is_changed() {
    let (world, copy) = left(Medium::Pages, |file, _| {
        // So many that the records of the first twenty are used again: these pages themselves have to be whole.
        for n in 0..100 {
            let page = if n < 20 { n } else { 0 };
            file.write_at(&[n as u8 + 1; PAGE], page * PAGE as u64).expect("room");
        }
    });
    fs::write(world.path("file"), b"").expect("it is ours");
    let region = open(&copy.log).expect("nobody has it");
    let found = scan(&region, Lost::Nothing).expect("it is one");
    assert!(found.damaged.is_empty() && found.pages.len() == 20, "{found:?}");
    let layout = Layout::read(&region).expect("it is one");
    // A bit of each slot: those without newer records are proved by their marks.
    for slot in 0..layout.geometry.slots {
        let mut byte = [0];
        region.read(layout.data(slot) + 9, &mut byte);
        region.write(layout.data(slot) + 9, &[byte[0] ^ 4]);
    }
    region.psync().expect("memory");
    drop(region);
    let said = refused(&copy.log);
    assert!(said.contains("is damaged") && said.contains("--skip-damage"), "{said}");
    assert_eq!(fs::read(world.path("file")).expect("it is there"), b"");
    let report = recovered(&copy.log, &Recovering { policy: Policy::Skip, ..Recovering::default() });
    assert_eq!(report.outcome, Some(Outcome::Empty));
    assert!(report.damaged.iter().any(|flaw| matches!(flaw, Flaw::Content { .. })), "{report:?}");
    copy.open().close().expect("nothing is in it");
}

#[test]
fn a_drain_ends_while_others_go_on() {
    for medium in [Medium::Pages, Medium::PagesOnDisk] {
        let world = World::new(medium);
        let cache = world.open();
        let path = world.path("file");
        let file = cache.open_file(&path, &both()).expect("room");
        let (ends, turns) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for me in 1..4_u8 {
                let (file, ends, turns) = (&file, &ends, &turns);
                scope.spawn(move || {
                    while !ends.load(Ordering::SeqCst) {
                        file.write_at(&[me; 600], u64::from(me) * 1000).expect("a disk");
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for n in 1..=30_u8 {
                let before = turns.load(Ordering::SeqCst);
                file.write_at(&[n; 10], 0).expect("a disk");
                file.drain().expect("a disk");
                let bytes = fs::read(&path).expect("it is there");
                assert!(bytes[..10] == [n; 10], "what was written before is there");
                for (me, part) in (1..4_u8).zip(bytes.get(1000..4000).unwrap_or_default().chunks(1000)) {
                    assert!(part[..600] == [me; 600] || part[..600] == [0; 600], "a write in part");
                }
                while turns.load(Ordering::SeqCst) < before + 3 {
                    std::thread::yield_now();
                }
            }
            ends.store(true, Ordering::SeqCst);
        });
        file.close().expect("a disk");
        cache.close().expect("no file is open");
    }
}

#[test]
fn files_that_are_written_past_the_page_cache_have_just_their_length() {
    let world = World::new(Medium::PagesDirect);
    let cache = world.open();
    let file = cache.open_file(world.path("file"), &both()).expect("a disk has it");
    // Pages that end where no block does, and pages behind them.
    for (at, len) in [(0, 100), (5000, 1), (8192, 4096), (300, 9000), (40_000, 7)] {
        assert_eq!(file.write_at(&vec![at as u8 | 1; len], at).expect("room"), len);
        file.drain().expect("a disk");
        let end = file.len();
        assert_eq!(fs::metadata(world.path("file")).expect("it is there").len(), end, "no page is too much");
    }
    file.set_len(8200).expect("room");
    file.close().expect("a disk");
    let bytes = fs::read(world.path("file")).expect("it is there");
    let expected = [&[1; 100][..], &[0; 200], &[300_u64 as u8 | 1; 7900]].concat();
    assert!(bytes == expected, "{} bytes", bytes.len());
    cache.close().expect("no file is open");
}
