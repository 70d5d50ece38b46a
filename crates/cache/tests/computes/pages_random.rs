//! Programs of one thread against plain bytes, and some of several threads.

use std::collections::BTreeMap;

use remanence_cache::format::{Lost, Promise};
use remanence_cache::pages::keeper::Action;
use remanence_cache::pages::recovery::{Outcome, Policy, scan};
use remanence_cache::pages::{Access, Fault, PageOf, Step};
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, Failure, Seeded};

use crate::crash::identity;
use crate::pages::{One, PAGE, content, disk, made, page_of, recover};

const DOMAIN: PersistenceDomain = PersistenceDomain::Process;

fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 16 + at % 16 + 1) as u8).collect()
}

#[test]
fn what_is_read_is_what_was_written() {
    for seed in seeds(60) {
        println!("{}", replay(seed));
        let mut choices = Seeded::new(seed);
        let promise = [Promise::AtReturn, Promise::AtSync][choices.pick(2)];
        let (slots, records) = (4 + choices.pick(8) as u32, 4 + choices.pick(8) as u32);
        let image = made(slots, records, promise, DOMAIN);
        let mut one = One::start(&image, promise, disk(&[(1, &[0xee; 150])]), seed);
        let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::from([(1, vec![0xee; 150]), (2, vec![])]);
        for n in 0..200 {
            let file = 1 + choices.pick(2) as u32;
            let offset = choices.pick(600);
            let bytes = model.get_mut(&file).expect("both are there");
            match choices.pick(12) {
                0..5 => {
                    let longest = if slots.min(records) < 6 { PAGE } else { PAGE + 2 };
                    let most = [20, longest][choices.pick(2)];
                    let len = choices.pick(most);
                    let new = pattern(n, len);
                    if len > 0 {
                        bytes.resize(bytes.len().max(offset + len), 0);
                        bytes[offset..offset + len].copy_from_slice(&new);
                    }
                    one.write(file, offset as u64, &new);
                }
                5..9 => {
                    let len = choices.pick(300);
                    let from = offset.min(bytes.len());
                    let expected = bytes[from..bytes.len().min(offset + len).max(from)].to_vec();
                    assert_eq!(one.read(file, offset as u64, len), expected, "step {n}");
                }
                9 => {
                    bytes.resize(offset, 0);
                    one.truncate(file, offset as u64);
                }
                10 => drop(one.work()),
                _ if choices.pick(4) == 0 => {
                    one.drain();
                    assert_eq!(content(&one.disk, FileId(file)), *bytes, "step {n}");
                    let step = one.keeper.forget(&one.pages, FileId(file)).expect("it is known");
                    assert_eq!((step, one.pages.size(FileId(file))), (Step::Done, None));
                    one.pages.open_file(FileId(file), bytes.len() as u64);
                }
                _ => one.sync(),
            }
            let size = model[&file].len() as u64;
            assert_eq!(one.pages.size(FileId(file)), Some(size), "step {n}");
        }
        one.drain();
        for (file, bytes) in &model {
            assert_eq!(content(&one.disk, FileId(*file)), *bytes);
        }
        let mut cleaned = one.disk.clone();
        one.pages.close(&one.keeper).expect("it is drained");
        let found = scan(&image, Lost::Unsynced).expect("it is whole");
        assert!(found.is_clean());
        assert_eq!(recover(&image, found, Policy::Hold, &mut cleaned, 1, 0), Some(Outcome::Empty));
        drop(One::start(&image, promise, cleaned, seed));
    }
}

#[test]
fn a_clean_page_makes_room_and_a_dirty_one_does_not() {
    let image = made(4, 8, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[(1, &[7; 640])]), 1);
    for page in 0..10 {
        assert_eq!(one.read(1, page * 64, 64), [7; 64]);
    }
    assert_eq!(one.pages.dirty(), 0);
    for page in 0..4 {
        one.write(1, page * 64, &[page as u8 + 1]);
    }
    assert_eq!(one.pages.dirty(), 4);
    let mut into = [0];
    let mut access = Access::read(FileId(1), 9 * 64, &mut into);
    assert_eq!(one.pages.step(&mut access).unwrap(), Step::Full);
    one.drain();
    assert_eq!((one.pages.dirty(), one.read(1, 9 * 64, 1)), (0, vec![7]));
    assert_eq!(one.read(1, 64, 2), [2, 7]);
}

#[test]
fn a_page_that_is_overwritten_as_a_whole_or_lies_behind_the_end_is_not_loaded() {
    let image = made(4, 8, Promise::AtReturn, DOMAIN);
    let one = One::start(&image, Promise::AtReturn, disk(&[(1, &[7; 100])]), 1);
    for (offset, len, loads) in [(64, 64, false), (129, 3, false), (0, 63, true)] {
        let bytes = vec![1; len];
        let mut access = Access::write(FileId(1), offset, &bytes);
        let step = one.pages.step(&mut access).unwrap();
        assert_eq!(matches!(step, Step::Load(_)), loads, "{offset}");
        one.pages.give_up(&mut access);
    }
}

#[test]
fn a_write_that_no_group_can_hold_is_refused_and_holds_nothing() {
    let image = made(4, 4, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[]), 1);
    let refused = one.access(&mut Access::write(FileId(1), 1, &[0; 129]));
    assert!(matches!(refused, Err(Fault::TooLong { max: 65 })), "{refused:?}");
    let refused = one.access(&mut Access::write(FileId(1), u64::MAX - 3, &[0; 9]));
    assert!(matches!(refused, Err(Fault::TooLong { .. })), "{refused:?}");
    let unknown = one.access(&mut Access::write(FileId(9), 0, &[0; 9]));
    assert!(matches!(unknown, Err(Fault::Unknown { file: FileId(9) })), "{unknown:?}");
    one.write(1, 0, &[1; 128]);
    assert_eq!(one.pages.size(FileId(1)), Some(128));
}

#[test]
fn pages_of_a_write_are_locked_all_until_it_is_done() {
    let image = made(6, 8, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[(1, &[7; 192])]), 1);
    let mut first = Access::write(FileId(1), 60, &[1; 70]);
    let Step::Load(of) = one.pages.step(&mut first).unwrap() else { panic!("the file has it") };
    assert_eq!(of.page, 0);
    one.pages.loaded(&mut first, &page_of(&one.disk, of));
    // The whole page between needs none; the third does.
    let Step::Load(of) = one.pages.step(&mut first).unwrap() else { panic!("the file has it") };
    assert_eq!(of.page, 2);
    for page in 0..3 {
        let mut other = Access::write(FileId(1), page * 64, &[2]);
        assert_eq!(one.pages.step(&mut other).unwrap(), Step::Busy, "page {page}");
        one.pages.give_up(&mut other);
        let mut into = [0];
        let mut reader = Access::read(FileId(1), page * 64, &mut into);
        assert_eq!(one.pages.step(&mut reader).unwrap(), Step::Busy, "page {page}");
        one.pages.give_up(&mut reader);
    }
    one.pages.loaded(&mut first, &page_of(&one.disk, of));
    assert_eq!(one.pages.step(&mut first).unwrap(), Step::Done);
    assert_eq!(one.read(1, 59, 72), [vec![7], vec![1; 70], vec![7]].concat());
}

#[test]
fn a_truncation_waits_for_who_is_inside_and_keeps_others_out_until_the_file_is_cut() {
    let image = made(6, 8, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[(1, &[7; 192])]), 1);
    let mut inside = Access::write(FileId(1), 0, &[1; 3]);
    let Step::Load(of) = one.pages.step(&mut inside).unwrap() else { panic!("the file has it") };
    assert_eq!(one.keeper.truncate(&one.pages, FileId(1), 2).unwrap(), Step::Busy);
    let mut late = Access::write(FileId(1), 100, &[2]);
    assert_eq!(one.pages.step(&mut late).unwrap(), Step::Busy);
    one.pages.loaded(&mut inside, &page_of(&one.disk, of));
    assert_eq!(one.pages.step(&mut inside).unwrap(), Step::Done);
    assert_eq!(one.keeper.truncate(&one.pages, FileId(1), 2).unwrap(), Step::Done);
    assert_eq!(one.pages.step(&mut late).unwrap(), Step::Busy, "the file is not cut");
    let (token, action) = one.keeper.poll(&one.pages).unwrap().expect("it is to be cut");
    assert_eq!(action, Action::Truncate { file: FileId(1), len: 2 });
    crate::pages::carry_out(&mut one.disk, action, &[]);
    one.keeper.done(&one.pages, token);
    assert_eq!(one.pages.step(&mut late).unwrap(), Step::Done);
    assert_eq!(one.read(1, 0, 200), [vec![1, 1], vec![0; 98], vec![2]].concat());
}

#[test]
fn what_fails_stops_the_keeper_and_a_retry_begins_with_the_writes() {
    let image = made(8, 8, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[]), 1);
    one.write(1, 0, &[1; 10]);
    one.write(2, 0, &[2; 10]);
    one.keeper.drain();
    let poll = |one: &mut One<_>| one.keeper.poll(&one.pages).expect("the medium stands");
    let asked: Vec<_> = std::iter::from_fn(|| poll(&mut one)).collect();
    assert_eq!(asked.len(), 2);
    asked.iter().for_each(|(token, _)| one.keeper.done(&one.pages, *token));
    let syncs: Vec<_> = std::iter::from_fn(|| poll(&mut one)).collect();
    assert_eq!(
        syncs.iter().map(|(_, action)| *action).collect::<Vec<_>>(),
        [Action::Sync { file: FileId(1) }, Action::Sync { file: FileId(2) }]
    );
    one.keeper.failed(syncs[0].0, "input/output error");
    assert_eq!(one.keeper.stopped().map(|stopped| stopped.doing), Some(syncs[0].1));
    one.keeper.retry();
    assert_eq!(poll(&mut one), None, "the other still runs");
    one.keeper.done(&one.pages, syncs[1].0);
    assert!(matches!(poll(&mut one), Some((_, Action::Write { .. }))));
    assert_eq!((one.pages.dirty(), one.keeper.stopped()), (2, None));
    // It is as if the process had died meanwhile.
    let crashed = image.crash_seeded(Failure::ProcessCrash, 1);
    let found = scan(&crashed, Lost::Nothing).unwrap();
    assert_eq!(found.pages.len(), 2);
}

#[test]
fn a_sweep_ends_though_its_pages_are_written_again() {
    for promise in [Promise::AtReturn, Promise::AtSync] {
        let image = made(8, 16, promise, DOMAIN);
        let mut one = One::start(&image, promise, disk(&[]), 3);
        for page in 0..5 {
            one.write(1, page * 64, &[1; 64]);
        }
        let ticket = one.pages.ticket();
        one.keeper.drain_to(ticket);
        let mut turns = 0;
        while one.keeper.progress().filed < ticket {
            one.write(1, 0, &[turns; 64]);
            let works = one.work();
            assert!(
                works || one.keeper.progress().filed >= ticket,
                "nothing would ever change: {:?}",
                one.keeper
            );
            turns += 1;
        }
        let durable = &one.disk.durable.bytes[&1];
        assert_eq!(durable[64..], [1; 4 * 64], "what is filed is durable");
        assert!(one.pages.dirty() >= 1 && turns < 40, "page 0 is dirty, as ever");
        // Nothing is to be done for what is in its files.
        one.drain();
        let ticket = one.pages.ticket();
        one.keeper.drain_to(ticket);
        assert!(!one.work());
        assert_eq!((one.keeper.progress().filed, one.keeper.is_hungry()), (ticket, false));
    }
}

#[test]
fn a_sweep_waits_for_a_page_that_is_locked_and_for_no_other() {
    let image = made(8, 16, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[(1, &[9; 256])]), 3);
    one.write(1, 0, &[1; 64]);
    one.write(1, 64, &[1; 64]);
    one.write(1, 5 * 64, &[1; 64]);
    // It has pages 0 to 2, and waits for page 3.
    let bytes = [2; 200];
    let mut access = Access::write(FileId(1), 0, &bytes);
    assert!(matches!(one.pages.step(&mut access).unwrap(), Step::Load(_)));
    let ticket = one.pages.ticket();
    one.keeper.drain_to(ticket);
    while one.work() {}
    assert!(one.keeper.progress().filed < ticket && one.keeper.is_hungry(), "{:?}", one.keeper);
    assert_eq!((one.pages.dirty(), &content(&one.disk, FileId(1))[5 * 64..]), (2, &[1; 64][..]));
    one.pages.give_up(&mut access);
    while one.work() {}
    assert_eq!((one.keeper.progress().filed, one.pages.dirty(), one.keeper.is_hungry()), (ticket, 0, false));
    assert_eq!(content(&one.disk, FileId(1))[..128], [1; 128]);
}

#[test]
fn a_truncation_that_is_given_up_was_none() {
    let image = made(4, 8, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[(1, &[7; 200])]), 1);
    let mut into = [0; 10];
    let mut access = Access::read(FileId(1), 0, &mut into);
    assert!(matches!(one.pages.step(&mut access).unwrap(), Step::Load(_)));
    assert_eq!(one.keeper.truncate(&one.pages, FileId(1), 3).unwrap(), Step::Busy);
    assert!(one.pages.is_closed(FileId(1)) && one.keeper.give_up_truncation(&one.pages));
    assert!(!one.pages.is_closed(FileId(1)) && one.pages.free_records() == 8);
    one.pages.give_up(&mut access);
    assert_eq!(one.read(1, 0, 300), [7; 200]);
    one.truncate(1, 3);
    assert_eq!(one.read(1, 0, 300), [7; 3]);
}

#[test]
fn a_read_for_which_there_is_no_place_is_passed_what_the_file_has() {
    let image = made(4, 8, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[(1, &[7; 600])]), 1);
    for page in 0..4 {
        one.write(1, page * 64, &[1; 64]);
    }
    let mut into = [0xaa; 400];
    let mut access = Access::read(FileId(1), 250, &mut into);
    let mut passed = 0;
    loop {
        match one.pages.step(&mut access).unwrap() {
            Step::Done => break,
            Step::Full => {
                let of = one.pages.at(&access).expect("it is a read");
                let bytes = page_of(&one.disk, of);
                let other = PageOf { file: of.file, page: of.page + 1 };
                assert!(!one.pages.pass(&mut access, other, &bytes), "it is at another page");
                assert!(one.pages.pass(&mut access, of, &bytes));
                passed += 1;
            }
            step => panic!("{step:?}"),
        }
    }
    assert_eq!((access.done(), passed), (350, 6));
    assert!(into[..6] == [1; 6] && into[6..350] == [7; 344] && into[350..] == [0xaa; 50]);
    let mut access = Access::read(FileId(1), 0, &mut into);
    let here = PageOf { file: FileId(1), page: 0 };
    assert!(!one.pages.pass(&mut access, here, &[9; 64]), "it is here, and newer");
}

#[test]
fn nothing_counts_of_a_file_that_has_lost_its_last_name() {
    let image = made(8, 16, Promise::AtReturn, DOMAIN);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[]), 1);
    let layout = one.pages.layout().table();
    one.write(1, 0, &[1; 64]);
    one.write(2, 0, &[2; 64]);
    one.truncate(1, 30);
    Identity::disown(&image, &layout, FileId(1)).expect("the medium stands");
    one.write(1, 64, &[3; 64]);
    let found = scan(&image, Lost::Unsynced).expect("it is whole");
    assert!(found.damaged.is_empty() && found.truncations.is_empty(), "{found:?}");
    assert_eq!(found.pages.iter().map(|page| page.of.file.0).collect::<Vec<_>>(), [2]);
    // One that has a name again is another's.
    let mut table = FileTable::empty(&image, layout);
    let number = table.register(&identity(1), 0).expect("there is room");
    Identity::disown(&image, &layout, number).expect("the medium stands");
    Identity::disown(&image, &layout, number).expect("it has none already");
    assert_ne!(table.register(&identity(1), 0).expect("there is room"), number);
}
