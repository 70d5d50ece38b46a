//! What one opens, and how: each rule of a descriptor, and whose a file is.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use remanence_cache::format::Lost;
use remanence_cache::{pages, recovery};
use remanence_nvcache::{Cache, Error, OpenOptions, Options};

use crate::support::{EITHER, MEDIA, Medium, World, both, small};

#[test]
fn one_cache_has_a_file_until_its_last_descriptor_is_closed() {
    EITHER.into_iter().for_each(one_opener);
}

fn one_opener(medium: Medium) {
    let (world, other) = (World::new(medium), World::new(medium));
    let (cache, second) = (world.open(), other.open());
    let path = world.path("file");
    let one = cache.open_file(&path, &both()).expect("room");
    let two = cache.open_file(&path, &OpenOptions::new().read(true)).expect("the same cache");
    one.write_at(b"logged", 0).expect("room");
    let refused = second.open_file(&path, &both()).expect_err("it is another cache's");
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains("one opener in this mode"), "{refused}");
    assert_eq!(fs::read(&path).expect("it is there"), b"", "only the log has it");
    one.close().expect("a disk");
    second.open_file(&path, &both()).expect_err("one descriptor is left");
    assert!(matches!(cache.clone().close(), Err(Error::FilesOpen { count: 1 })));
    two.close().expect("a disk");
    assert_eq!(fs::read(&path).expect("it is there"), b"logged");
    let file = second.open_file(&path, &both()).expect("it is anybody's");
    let mut into = [0; 10];
    assert_eq!(file.read_at(&mut into, 0).expect("a disk"), 6);
    drop(file);
    // The log is another's as well.
    let refused = Cache::open(&small(&world.log)).expect_err("it is in use");
    assert!(refused.to_string().contains("is in use by"), "{refused}");
    cache.close().expect("no file is open");
    Cache::open(&small(&world.log)).expect("nobody has it").close().expect("nothing is in it");
}

/// There is no point in time until which somebody waits then.
#[test]
fn who_is_patient_without_end_waits_and_goes_on() {
    const TURNS: u64 = 200;
    let world = World::new(Medium::Memory);
    let cache = Cache::open(&small(&world.log).patience(Duration::MAX)).expect("nobody has the log");
    let file = cache.open_file(world.path("file"), &both()).expect("room");
    // All pages are in use, and those that one wants another one has.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let file = &file;
            scope.spawn(move || {
                for n in 0..TURNS {
                    file.write_at(&[thread; 3 * 4096], n % 20 * 4096).expect("a disk");
                }
            });
        }
    });
    file.close().expect("a disk");
    cache.close().expect("no file is open");
}

#[test]
fn files_are_opened_as_open_says() {
    [Medium::Disk, Medium::PagesOnDisk, Medium::PagesDirect].into_iter().for_each(opened);
}

fn opened(medium: Medium) {
    let world = World::new(medium);
    let cache = world.open();
    let path = world.path("file");
    let errno = |outcome: Result<remanence_nvcache::File, Error>| outcome.expect_err("it cannot be").errno();
    let new = OpenOptions::new();
    assert_eq!(errno(cache.open_file(&path, &new.read(true))), libc::ENOENT);
    let made = cache.open_file(&path, &new.write(true).create_new(true).mode(0o640)).expect("it is new");
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o640);
    assert_eq!(errno(cache.open_file(&path, &new.write(true).create_new(true))), libc::EEXIST);
    made.write_at(b"0123456789", 0).expect("room");
    assert_eq!(made.read_at(&mut [0], 0).expect_err("write only").errno(), libc::EBADF);
    let read = cache.open_file(&path, &new.read(true)).expect("it is there");
    assert_eq!(read.write_at(b"x", 0).expect_err("read only").errno(), libc::EBADF);
    assert_eq!(read.set_len(0).expect_err("read only").errno(), libc::EBADF);
    // What only the log has is cut as well, and comes not back.
    let cut = cache.open_file(&path, &both().truncate(true)).expect("it is there");
    assert_eq!((cut.len(), read.len(), made.len()), (0, 0, 0));
    cut.write_at(b"ab", 3).expect("room");
    let mut into = [9; 8];
    assert_eq!(read.read_at(&mut into, 0).expect("a disk"), 5);
    assert_eq!(into, *b"\0\0\0ab\x09\x09\x09");
    drop((made, read, cut));
    assert_eq!(fs::read(&path).expect("it is there"), b"\0\0\0ab");
    // A link leads to the same file, and no other is one.
    let link = world.path("link");
    symlink(&path, &link).expect("room");
    let (one, two) = (cache.open_file(&path, &both()), cache.open_file(&link, &both()));
    one.expect("it is there").write_at(b"z", 0).expect("room");
    assert_eq!(two.expect("it is there").read_at(&mut into, 0).expect("a disk"), 5);
    assert_eq!(into[0], b'z');
    fs::create_dir(world.path("directory")).expect("room");
    for what in [world.path("directory"), "/dev/null".into(), world.log.clone()] {
        cache.open_file(&what, &both()).expect_err("no file of a cache");
    }
    let truncates = cache.open_file(&path, &new.read(true).truncate(true));
    assert_eq!(truncates.expect_err("it is not written").errno(), libc::EBADF);
    cache.close().expect("all descriptors are closed");
}

#[test]
fn a_descriptor_is_read_written_and_moved_as_any() {
    EITHER.into_iter().for_each(moved);
}

fn moved(medium: Medium) {
    let world = World::new(medium);
    let cache = world.open();
    let mut file = cache.open_file(world.path("file"), &both()).expect("room");
    file.write_all(b"one two three").expect("room");
    assert_eq!(file.stream_position().expect("it has one"), 13);
    file.rewind().expect("it can be moved");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("a disk");
    assert_eq!(text, "one two three");
    assert_eq!(file.seek(SeekFrom::Current(-5)).expect("it can be moved"), 8);
    assert_eq!(file.seek(SeekFrom::Current(-9)).expect_err("before the begin").errno(), libc::EINVAL);
    assert_eq!(file.read(&mut [0; 0]).expect("nothing"), 0);
    file.seek(SeekFrom::End(9000)).expect("behind the end");
    assert_eq!(file.read(&mut [0; 4]).expect("nothing"), 0);
    file.write_all(b"far").expect("room");
    let stat = file.stat().expect("it is open");
    assert_eq!((stat.len, stat.system.len()), (9016, 0), "only the log has it");
    assert!(stat.modified.elapsed().expect("not in the future") < Duration::from_secs(60));
    file.drain().expect("a disk");
    assert_eq!(file.stat().expect("it is open").system.len(), 9016);
    // As far as no file reaches.
    assert_eq!(file.write_at(b"x", u64::MAX).expect_err("no file").errno(), libc::EINVAL);
    assert_eq!(file.write_at(b"x", i64::MAX as u64).expect_err("no file").errno(), libc::EFBIG);
    assert_eq!(file.set_len(1 << 63).expect_err("no file").errno(), libc::EFBIG);
    assert_eq!(file.seek(SeekFrom::Start(1 << 63)).expect_err("no file").errno(), libc::EINVAL);
    assert_eq!(file.len(), 9016);
}

#[test]
fn a_file_that_is_larger_than_the_memory_and_the_log_is_read_and_written() {
    MEDIA.into_iter().for_each(larger);
}

fn larger(medium: Medium) {
    let world = World::new(medium);
    let cache = world.open();
    let path = world.path("file");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 5) as u8 ^ (n >> 13) as u8).collect();
    let file = cache.open_file(&path, &both()).expect("room");
    assert_eq!(file.write_at(&bytes, 123).expect("a disk"), bytes.len(), "more than the log has room for");
    let mut into = vec![0; bytes.len() + 1];
    assert_eq!(file.read_at(&mut into, 123).expect("a disk"), bytes.len());
    assert!(into[..bytes.len()] == bytes);
    assert!(cache.status().misses >= 600);
    file.close().expect("a disk");
    assert!(fs::read(&path).expect("it is there")[123..] == bytes);
}

#[test]
fn a_file_that_cannot_be_written_is_read() {
    [Medium::Memory, Medium::Pages, Medium::PagesDirect].into_iter().for_each(read_only);
}

fn read_only(medium: Medium) {
    let world = World::new(medium);
    let cache = world.open();
    let path = world.path("file");
    fs::write(&path, b"text").expect("room");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("it is ours");
    let file = cache.open_file(&path, &OpenOptions::new().read(true)).expect("it can be read");
    assert_eq!(file.read_at(&mut [0; 9], 0).expect("a disk"), 4);
    if !rustix::process::geteuid().is_root() {
        assert_eq!(cache.open_file(&path, &both()).expect_err("nobody may").errno(), libc::EACCES);
    }
}

#[test]
fn a_file_that_was_unlinked_is_not_missed_after_a_crash() {
    for medium in MEDIA {
        let world = World::new(medium);
        let cache = world.open();
        let (path, kept) = (world.path("file"), world.path("kept"));
        let file = cache.open_file(&path, &both()).expect("room");
        let other = cache.open_file(&kept, &both()).expect("room");
        file.write_at(b"before", 0).expect("room");
        cache.unlink(&path).expect("it is there");
        other.write_at(b"kept", 0).expect("room");
        file.write_at(b"behind", 6).expect("it is open still");
        let mut into = [0; 12];
        assert_eq!(file.read_at(&mut into, 0).expect("it is open still"), 12);
        assert_eq!(into, *b"beforebehind");
        other.sync().expect("a disk");
        // As if the process had died: the log is copied while it is open.
        let copy = World::new(medium);
        fs::copy(&world.log, &copy.log).expect("room");
        let left = remanence_pmem::FileOptions::new().open(&copy.log).expect("a copy");
        let due = if medium.is_log() {
            let scan = recovery::scan(&left, Lost::Nothing).expect("a log");
            scan.due().len()
        } else {
            let scan = pages::recovery::scan(&left, Lost::Nothing).expect("pages");
            assert!(scan.damaged.is_empty(), "{:?}", scan.damaged);
            scan.pages.len() + scan.truncations.len()
        };
        assert_eq!(due, 1, "what was written to the other file, and nothing else");
        drop((file, other));
        cache.close().expect("a disk");
        assert_eq!(fs::read(&kept).expect("it is there"), b"kept");
    }
}

#[test]
fn a_log_that_is_there_says_its_size_and_is_asked_for_no_other() {
    let world = World::new(Medium::Disk);
    world.open().close().expect("nothing is in it");
    let other = Cache::open(&Options::new(&world.log).size(1 << 20)).expect_err("it has another size");
    assert!(other.to_string().contains("leave the size out"), "{other}");
    let cache = Cache::open(&Options::new(&world.log)).expect("whatever size it has");
    assert_eq!((cache.status().entries, cache.recovered()), (64, None));
    assert!(cache.survives().at_sync.process_crash);
    drop(cache);
    fs::write(world.path("text"), b"no log").expect("room");
    Cache::open(&Options::new(world.path("text"))).expect_err("it is no log");
    assert_eq!(fs::read(world.path("text")).expect("it is there"), b"no log");
    let file = fs::File::create(world.path("sparse")).expect("room");
    file.write_all_at(b"x", 100_000).expect("room");
    Cache::open(&Options::new(world.path("sparse"))).expect_err("it is no log");
}

#[test]
fn a_cache_that_is_dropped_is_closed() {
    let world = World::new(Medium::Disk);
    let path = world.path("file");
    let cache = world.open();
    let file = cache.open_file(&path, &both()).expect("room");
    drop(cache);
    file.write_at(b"text", 0).expect("the file keeps it");
    drop(file);
    assert_eq!(fs::read(&path).expect("it is there"), b"text");
    let cache = world.open();
    assert_eq!(cache.recovered(), None, "it was closed");
}

#[test]
fn a_file_that_the_caller_has_opened_is_taken_as_it_is() {
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    fn begins() {
        BEGUN.fetch_add(1, Ordering::SeqCst);
    }
    for (n, medium) in (1..).zip(EITHER) {
        let world = World::new(medium);
        let path = world.path("file");
        let cache = Cache::open(&small(&world.log).thread_begins(begins)).expect("nobody has the log");
        let file = fs::File::options().read(true).write(true).create_new(true).open(&path).expect("room");
        file.write_all_at(b"what is there", 0).expect("room");
        let own = file.try_clone().expect("a descriptor");
        let taken =
            cache.adopt(own, true, &OpenOptions::new().read(true).write(true)).expect("it is regular");
        taken.write_at(b"that", 0).expect("room");
        let mut into = [0; 20];
        assert_eq!(taken.read_at(&mut into, 0).expect("it can be read"), 13);
        assert_eq!(&into[..13], b"that is there");
        assert!(matches!(cache.close(), Err(Error::FilesOpen { count: 1 })));
        taken.close().expect("a disk");
        assert_eq!(fs::read(&path).expect("it is there"), b"that is there");
        assert_eq!(BEGUN.load(Ordering::SeqCst), n, "one thread a cache");
    }
}

#[test]
fn a_file_without_a_name_is_not_taken() {
    let world = World::new(Medium::Memory);
    let (path, cache) = (world.path("file"), world.open());
    let file = fs::File::create(&path).expect("room");
    fs::remove_file(&path).expect("it is there");
    cache.adopt(file, false, &OpenOptions::new().write(true)).expect_err("nobody would find it");
    cache.adopt(fs::File::open("/dev/null").expect("it is there"), false, &both()).expect_err("no file");
    cache.close().expect("nothing is open");
}
