//! What every medium owes its users, mounted once per kind of region and on the crash image. Alone in its program, which `dax` runs in a guest.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{FileOptions, Medium, PersistenceDomain, Region, StoreGranularity};

const LEN: u64 = 3 * 4096 + 100;

/// A file of this test, gone when it ends. On the disk by default, so that msync has something to do.
struct Scratch(PathBuf);

impl Scratch {
    /// `waits/dax.rs` runs this program once more, on a file system of its own choice.
    fn on_disk() -> Self {
        let chosen = std::env::var_os("REMANENCE_TEST_DIR").map(PathBuf::from);
        Self::within(chosen.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()))
    }

    fn within(directory: PathBuf) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("region-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(directory.join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn bytes_come_back_at_every_offset(medium: &impl Medium) {
    assert_eq!(medium.len(), LEN);
    let pattern: Vec<u8> = (0..600_u32).map(|i| (i * 31 + 7) as u8 | 1).collect();
    for offset in [0, 1, 7, 8, 63, 64, 100, 4090, 4096, LEN - 600] {
        for len in [0, 1, 2, 3, 4, 7, 8, 9, 16, 31, 33, 64, 65, 127, 128, 200, 256, 300, 511, 600] {
            for past_the_caches in [false, true] {
                let clear = vec![0; LEN as usize];
                medium.write(0, &clear);
                match past_the_caches {
                    false => medium.write(offset, &pattern[..len]),
                    true => medium.write_nt(offset, &pattern[..len]),
                }
                medium.psync().unwrap();
                let mut all = vec![0xee; LEN as usize];
                medium.read(0, &mut all);
                let (start, end) = (offset as usize, offset as usize + len);
                assert_eq!(all[start..end], pattern[..len], "{len} bytes at {offset}");
                assert!(
                    all[..start].iter().chain(&all[end..]).all(|b| *b == 0),
                    "beside {len} bytes at {offset}"
                );
                let mut some = vec![0; len];
                medium.read(offset, &mut some);
                assert_eq!(some, pattern[..len]);
            }
        }
    }
}

fn words_are_atomic(medium: &impl Medium) {
    medium.store_u64(64, 5);
    assert_eq!(medium.load_u64(64), 5);
    assert_eq!(medium.compare_and_swap(64, 4, 9), 5, "no match: nothing happens");
    assert_eq!(medium.load_u64(64), 5);
    assert_eq!(medium.compare_and_swap(64, 5, u64::MAX), 5);
    assert_eq!(medium.fetch_add(64, 3), u64::MAX);
    assert_eq!(medium.load_u64(64), 2, "addition wraps");
    let mut bytes = [0; 8];
    medium.read(64, &mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), 2_u64.to_le(), "a word is its native bytes");
    assert_eq!((medium.load_u64(56), medium.load_u64(72)), (0, 0));
}

fn additions_of_many_threads_are_all_counted(medium: &(impl Medium + Sync)) {
    medium.store_u64(128, 0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10_000).for_each(|_| _ = medium.fetch_add(128, 1)));
        }
    });
    assert_eq!(medium.load_u64(128), 40_000);
}

fn persisting_succeeds_in_every_shape(medium: &impl Medium) {
    medium.psync().unwrap();
    medium.pwb(0..0);
    medium.pwb(0..LEN);
    medium.pfence().unwrap();
    for page in 0..3 {
        medium.write(page * 4096 + 4000, &[7; 150]);
        medium.pwb(page * 4096 + 4000..page * 4096 + 4150);
    }
    medium.psync().unwrap();
    medium.persist(LEN - 1..LEN).unwrap();
    medium.persist(0..1).unwrap();
}

fn a_ticket_waits_for_a_psync_that_begins_behind_it(medium: &impl Medium) {
    medium.write(4000, &[7; 150]);
    medium.pwb(4000..4150);
    // Who counts no psyncs never says that one has come.
    let Some(first) = medium.ticket() else { return };
    assert!(!medium.is_covered(first));
    medium.psync().unwrap();
    let second = medium.ticket().expect("it counts");
    assert!(medium.is_covered(first) && !medium.is_covered(second));
    // With nothing to write it is one all the same.
    medium.psync().unwrap();
    assert!(medium.is_covered(second));
}

fn outside_is_refused(medium: &impl Medium) {
    let refused = |access: &dyn Fn()| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(access));
        assert!(caught.is_err(), "an access outside went through");
    };
    refused(&|| medium.write(LEN - 1, &[1, 2]));
    refused(&|| medium.write(u64::MAX, &[1]));
    refused(&|| medium.read(LEN - 7, &mut [0; 8]));
    refused(&|| medium.write_nt(LEN - 255, &[1; 256]));
    refused(&|| _ = medium.load_u64(LEN.next_multiple_of(8) - 8));
    refused(&|| medium.store_u64(4, 1));
    refused(&|| _ = medium.fetch_add(1, 1));
    refused(&|| medium.pwb(LEN - 1..LEN + 1));
    let mut last = [0xff; 1];
    medium.read(LEN - 1, &mut last);
    assert_eq!(last, [0], "not one byte was touched");
    medium.write(LEN, &[]);
}

macro_rules! conformance {
    ($kind:ident, $make:expr) => {
        mod $kind {
            use super::*;

            #[test]
            fn bytes_come_back_at_every_offset() {
                super::bytes_come_back_at_every_offset(&$make.0);
            }
            #[test]
            fn words_are_atomic() {
                super::words_are_atomic(&$make.0);
            }
            #[test]
            fn additions_of_many_threads_are_all_counted() {
                super::additions_of_many_threads_are_all_counted(&$make.0);
            }
            #[test]
            fn persisting_succeeds_in_every_shape() {
                super::persisting_succeeds_in_every_shape(&$make.0);
            }
            #[test]
            fn a_ticket_waits_for_a_psync_that_begins_behind_it() {
                super::a_ticket_waits_for_a_psync_that_begins_behind_it(&$make.0);
            }
            #[test]
            fn outside_is_refused() {
                super::outside_is_refused(&$make.0);
            }
        }
    };
}

fn file(scratch: Scratch, options: FileOptions) -> (Region, Scratch) {
    (options.create_new(LEN).open(&scratch.0).unwrap(), scratch)
}

fn shm() -> Scratch {
    Scratch::within(PathBuf::from("/dev/shm"))
}

conformance!(anonymous, (Region::anonymous(LEN).unwrap(), ()));
conformance!(memfd, (Region::memfd("conformance", LEN).unwrap(), ()));
conformance!(shared, {
    let owner = Region::memfd("conformance", LEN).unwrap();
    (Region::from_shared_fd(owner.share().unwrap(), LEN).unwrap(), owner)
});
conformance!(tmpfs_file, file(shm(), FileOptions::new()));
conformance!(tmpfs_file_declared_adr, {
    // The code path of persistent memory, on memory that every machine has.
    file(shm(), FileOptions::new().declare(PersistenceDomain::Adr))
});
conformance!(tmpfs_file_declared_eadr, file(shm(), FileOptions::new().declare(PersistenceDomain::Eadr)));

mod disk_file {
    use super::*;

    fn make() -> (Region, Scratch) {
        file(Scratch::on_disk(), FileOptions::new())
    }

    /// On a page cache every psync is a device flush, so there the long sweep is left to the other kinds.
    #[test]
    fn bytes_come_back_at_every_offset() {
        let (region, _scratch) = make();
        if region.domain().granularity() != StoreGranularity::Page {
            super::bytes_come_back_at_every_offset(&region);
        }
    }
    #[test]
    fn words_are_atomic() {
        super::words_are_atomic(&make().0);
    }
    #[test]
    fn additions_of_many_threads_are_all_counted() {
        super::additions_of_many_threads_are_all_counted(&make().0);
    }
    #[test]
    fn persisting_succeeds_in_every_shape() {
        super::persisting_succeeds_in_every_shape(&make().0);
    }
    #[test]
    fn outside_is_refused() {
        super::outside_is_refused(&make().0);
    }
}

fn image(domain: PersistenceDomain) -> (CrashImage, ()) {
    (CrashImage::new(LEN, domain), ())
}

conformance!(crash_image_of_lines, image(PersistenceDomain::Adr));
conformance!(crash_image_of_pages, image(PersistenceDomain::PageCache));
