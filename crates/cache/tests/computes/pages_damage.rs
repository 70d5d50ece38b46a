//! What rots is found and told, nothing of it reaches a file, and no bytes of a medium make anything panic, or hang.

use proptest::prelude::*;
use remanence_cache::format::{Lost, Promise};
use remanence_cache::pages::format::Layout;
use remanence_cache::pages::keeper::{Keeper, Options};
use remanence_cache::pages::recovery::{Flaw, Outcome, Policy, Recovery, scan};
use remanence_cache::pages::{Access, Fault, PageOf, Pages, Step};
use remanence_cache::table::FileId;
use remanence_pmem::crash_image::{CrashImage, Failure};
use remanence_pmem::image;
use remanence_pmem::{Medium, PersistenceDomain};

use crate::files::Disk;
use crate::pages::{One, content, disk, made, recover};

/// A cache with pages of which some have their records and some only marks, as a process left it that was killed.
fn used(promise: Promise) -> CrashImage {
    let image = made(8, 6, promise, PersistenceDomain::PageCache);
    let mut one = One::start(&image, promise, Disk::default(), 1);
    for n in 0..8 {
        one.write(1, n * 20, &[n as u8 + 1; 30]);
        one.sync();
        // It sets records free, and has no reason to write anything back.
        assert!(!one.work());
    }
    assert!(one.pages.dirty() < 4);
    image.crash_seeded(Failure::ProcessCrash, 1)
}

fn flip(image: &CrashImage, at: u64, bit: u8) {
    let mut byte = [0];
    image.read(at, &mut byte);
    image.write(at, &[byte[0] ^ 1 << bit]);
}

#[test]
fn no_bit_that_rots_reaches_a_file_unsaid() {
    for promise in [Promise::AtReturn, Promise::AtSync] {
        let image = used(promise);
        let layout = Layout::read(&image).unwrap();
        let whole = scan(&image, Lost::Nothing).unwrap();
        assert!(whole.damaged.is_empty() && whole.pages.len() == 3, "{whole:?}");
        let mut expected = Disk::default();
        assert_eq!(recover(&image, whole, Policy::Hold, &mut expected, 1, u64::MAX), Some(Outcome::Empty));
        let image = used(promise);
        let (mut told, mut harmless) = (0, 0);
        let lines = layout.data(0) - 3 * 4096;
        let areas = [
            lines..lines + 8 * 128,
            lines + 4096..lines + 4096 + 6 * 64,
            lines + 2 * 4096..lines + 2 * 4096 + 6 * 64,
            layout.data(0)..layout.data(8),
        ];
        for at in areas.into_iter().flatten() {
            let rotten = image.clone();
            flip(&rotten, at, (at % 8) as u8);
            let found = scan(&rotten, Lost::Nothing).unwrap();
            if found.damaged.is_empty() {
                harmless += 1;
                let mut disk = Disk::default();
                assert_eq!(
                    recover(&rotten, found, Policy::Hold, &mut disk, 1, u64::MAX),
                    Some(Outcome::Empty)
                );
                // A page with newer records has no checksum of its own (module docs).
                if at < layout.data(0) {
                    assert_eq!(disk.visible(), expected.visible(), "{promise:?}: byte {at}");
                }
                continue;
            }
            told += 1;
            found.damaged.iter().for_each(|flaw| assert!(!flaw.to_string().is_empty()));
            let mut disk = Disk::default();
            assert_eq!(recover(&rotten, found, Policy::Hold, &mut disk, 1, u64::MAX), Some(Outcome::Held));
            assert_eq!(content(&disk, FileId(1)), b"", "nothing was changed");
            let found = scan(&rotten, Lost::Nothing).unwrap();
            assert!(!found.is_clean(), "it is still dirty");
            assert_eq!(recover(&rotten, found, Policy::Skip, &mut disk, 1, u64::MAX), Some(Outcome::Empty));
            assert!(scan(&rotten, Lost::Nothing).unwrap().is_clean());
        }
        println!("{promise:?}: {told} told, {harmless} harmless");
        assert!(told > 300, "{told}");
    }
}

#[test]
fn a_page_whose_records_are_free_is_proved_by_its_mark() {
    let image = used(Promise::AtReturn);
    let layout = Layout::read(&image).unwrap();
    // The first page was written first, and not since.
    let found = scan(&image, Lost::Nothing).unwrap();
    let first = found.pages[0].clone();
    assert_eq!(found.bytes(&image, &first)[..40], [[1; 20], [2; 20]].concat());
    let slot = (0..8).find(|slot| {
        let mut byte = [0];
        image.read(layout.data(*slot), &mut byte);
        byte == [1]
    });
    flip(&image, layout.data(slot.expect("it is somewhere")) + 9, 3);
    let found = scan(&image, Lost::Nothing).unwrap();
    let of = PageOf { file: FileId(1), page: 0 };
    assert_eq!(found.damaged.into_iter().collect::<Vec<_>>(), [Flaw::Content { of }]);
}

#[test]
fn a_dirty_cache_is_not_opened_and_a_medium_that_failed_says_so() {
    let image = used(Promise::AtReturn);
    assert!(matches!(Pages::start(&image, Promise::AtReturn), Err(Fault::Dirty)));
    let blank = CrashImage::new(1 << 16, PersistenceDomain::Process);
    let refused = Pages::start(&blank, Promise::AtReturn);
    assert!(matches!(refused, Err(Fault::Image(image::Fault::Blank))));
    let image = made(4, 4, Promise::AtReturn, PersistenceDomain::PageCache);
    let mut one = One::start(&image, Promise::AtReturn, disk(&[]), 1);
    one.write(1, 0, &[1]);
    image.fail_after_psyncs(1);
    let mut access = Access::write(FileId(1), 0, &[2]);
    let failed = one.pages.step(&mut access);
    assert!(matches!(failed, Err(Fault::Medium(_))), "{failed:?}");
    one.pages.give_up(&mut access);
    one.keeper.drain();
    assert_eq!(one.pages.dirty(), 1);
}

/// Everything that can be done to a medium that somebody brings.
fn whatever_it_is(image: &CrashImage) {
    for lost in [Lost::Nothing, Lost::Unsynced] {
        for policy in [Policy::Hold, Policy::Skip] {
            let Ok(found) = scan(image, lost) else { continue };
            found.damaged.iter().for_each(|flaw| assert!(!flaw.to_string().is_empty()));
            let image = image.clone();
            let Ok(mut recovery) = Recovery::begin(&image, found, policy) else { continue };
            while let Some((token, _)) = recovery.poll() {
                drop(recovery.bytes(&image, token));
                recovery.done(token);
            }
            drop(recovery.finish(&image));
        }
    }
    if let Ok(pages) = Pages::start(image, Promise::AtSync) {
        pages.open_file(FileId(1), 70);
        let mut access = Access::write(FileId(1), 5, &[1; 30]);
        while let Ok(step) = pages.step(&mut access) {
            match step {
                Step::Load(_) => pages.loaded(&mut access, &[3; 64]),
                _ => break,
            }
        }
        pages.give_up(&mut access);
        drop(pages.sync(pages.ticket()));
        let mut keeper = Keeper::new(Options::usual(8));
        keeper.drain();
        while let Ok(Some((token, _))) = keeper.poll(&pages) {
            keeper.done(&pages, token);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_it_panic(flips in prop::collection::vec((0_u64..1 << 20, any::<u8>()), 1..40), sync in any::<bool>()) {
        let image = used(if sync { Promise::AtSync } else { Promise::AtReturn });
        for (at, byte) in flips {
            image.write(at % image.len(), &[byte]);
        }
        whatever_it_is(&image);
    }
}
