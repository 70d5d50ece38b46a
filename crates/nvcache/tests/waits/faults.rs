//! Disks that are full or fail, and what others have left of the kernel's memory: everybody is told, and nothing that was acknowledged is lost.

use std::fs::{self, File as SystemFile};
use std::path::Path;
use std::time::{Duration, Instant};

use remanence_nvcache::{Error, File};

use crate::disk::{Disk, hint};
use crate::support::{MEDIA, Medium, World, both};

/// Bytes of a write.
const LEN: usize = 8192;

/// An ext4 of so many MiB that goes with the test. `None`: nobody here may mount one.
fn disk(world: &World, mib: u64) -> Option<Disk> {
    Disk::new(world.path("image"), world.path("disk"), mib)
}

fn block(n: u64) -> Vec<u8> {
    (n | 1 << 40).to_le_bytes().repeat(LEN / 8)
}

/// Writes one block behind the other until something fails; how many there are then, and why.
fn write_until_told(file: &File, first: u64) -> (u64, Error) {
    for n in first.. {
        if n == 1 << 20 {
            break;
        }
        match file.write_at(&block(n), n * LEN as u64) {
            Ok(done) => assert_eq!(done, LEN),
            Err(why) => return (n, why),
        }
    }
    panic!("nobody was told")
}

fn has_blocks(file: &File, count: u64) {
    for n in 0..count {
        let mut into = vec![0; LEN];
        assert_eq!(file.read_at(&mut into, n * LEN as u64).expect("it can be read"), LEN);
        assert!(into == block(n), "block {n} of {count}");
    }
}

fn file_has_blocks(path: &Path, count: u64) {
    let bytes = fs::read(path).expect("it is there");
    for n in 0..count {
        assert!(
            bytes.get(n as usize * LEN..(n as usize + 1) * LEN) == Some(&block(n)[..]),
            "block {n} of {count}"
        );
    }
}

#[test]
fn a_full_disk_is_told_and_takes_all_when_it_has_room() {
    [Medium::Memory, Medium::Pages, Medium::PagesDirect].into_iter().for_each(full);
}

fn full(medium: Medium) {
    let world = World::new(medium);
    let Some(disk) = disk(&world, 16) else { return };
    let ballast = disk.place.join("ballast");
    fs::write(&ballast, vec![7; 4 << 20]).expect("room");
    SystemFile::open(&ballast).and_then(|ballast| ballast.sync_all()).expect("room");
    let cache = world.open();
    let (path, elsewhere) = (disk.place.join("file"), world.path("elsewhere"));
    let file = cache.open_file(&path, &both()).expect("room");
    let other = cache.open_file(&elsewhere, &both()).expect("room");
    let (count, why) = write_until_told(&file, 0);
    assert_eq!(why.errno(), libc::ENOSPC, "{why}");
    assert!(
        matches!(&why, Error::Disk { path: told, .. } if Path::new(told).ends_with("disk/file")),
        "{why}"
    );
    // Each sync of it says so too, what was acknowledged is read, and another file goes on as long as the log has room.
    assert_eq!(file.sync().expect_err("it is full").errno(), libc::ENOSPC);
    assert_eq!(file.drain().expect_err("it is full").errno(), libc::ENOSPC);
    assert_eq!(cache.drain().expect_err("it is full").errno(), libc::ENOSPC);
    has_blocks(&file, count);
    drop(other);
    fs::remove_file(&ballast).expect("it is there");
    SystemFile::open(&disk.place).and_then(|place| place.sync_all()).expect("it is mounted");
    // It is tried again by itself.
    let until = Instant::now() + Duration::from_secs(100);
    while let Err(why) = file.drain() {
        assert!(why.errno() == libc::ENOSPC && Instant::now() < until, "{why}");
        std::thread::yield_now();
    }
    file.write_at(&block(count), count * LEN as u64).expect("there is room");
    file.close().expect("there is room");
    file_has_blocks(&path, count + 1);
    cache.close().expect("all is in its files");
}

#[test]
fn a_disk_that_is_cut_off_loses_nothing_that_was_acknowledged() {
    for medium in MEDIA {
        let world = World::new(medium);
        let Some(mut disk) = disk(&world, 16) else { return };
        let path = disk.place.join("file");
        let cache = world.open();
        let file = cache.open_file(&path, &both()).expect("room");
        for n in 0..40 {
            file.write_at(&block(n), n * LEN as u64).expect("a disk");
        }
        // A sync that is under way when an ext4 is shut down may return 0, and its file have nothing of it: nothing is.
        file.drain().expect("a disk");
        disk.cut_off();
        let (count, why) = write_until_told(&file, 40);
        assert!([libc::EIO, libc::EROFS, 117].contains(&why.errno()), "{why}");
        assert!(file.sync().is_err() && file.close().is_err(), "everybody is told");
        cache.close().expect_err("not all is in the file");
        disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
        let cache = world.open();
        assert!(
            cache.recovered().is_some_and(|said| said.contains("is recovered")),
            "{:?}",
            cache.recovered()
        );
        file_has_blocks(&path, count);
        cache.close().expect("a disk");
    }
}

#[test]
fn what_the_kernel_has_kept_of_a_file_is_not_taken_for_all_of_it() {
    for medium in MEDIA {
        let world = World::new(medium);
        let path = world.path("file");
        let cache = world.open();
        let file = cache.open_file(&path, &both()).expect("room");
        file.write_at(b"only in the log", 0).expect("room");
        file.sync().expect("a disk");
        // As a daemon of `rem run` leaves it, or a program that gives the kernel a hint.
        for traced in [&path, &world.directory.path().to_owned()] {
            hint(traced, 1);
        }
        // As if the process had died: the log is copied while it is open.
        let copy = World::new(medium);
        fs::copy(&world.log, &copy.log).expect("room");
        assert_eq!(fs::read(&path).expect("it is there"), b"");
        let recovered = copy.open();
        assert!(
            recovered.recovered().is_some_and(|said| said.contains("is recovered")),
            "{:?}",
            recovered.recovered()
        );
        assert_eq!(fs::read(&path).expect("it is there"), b"only in the log");
        recovered.close().expect("nothing is in it");
        drop(file);
    }
}
