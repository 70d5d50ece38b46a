//! Disks that are full or fail, and what others have left of the kernel's memory: everybody is told, and nothing that was acknowledged is lost.
#![expect(unsafe_code, reason = "two system calls without a wrapper")]

use std::fs::{self, File as SystemFile};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use remanence_nvcache::{Error, File};

use crate::support::{MEDIA, Medium, World, both};

/// `F_SET_RW_HINT`.
const SET_HINT: i32 = 1024 + 12;
/// `EXT4_IOC_SHUTDOWN`, and its argument that keeps even the journal from the disk.
const SHUTDOWN: u64 = 0x8004_587d;
const NOT_EVEN_THE_JOURNAL: u32 = 2;
/// Bytes of a write.
const LEN: usize = 8192;

/// An ext4 in a file, on a loop device, that goes with the test.
struct Disk {
    place: PathBuf,
    image: PathBuf,
    device: Option<String>,
}

fn done(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|why| why.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!("{command:?}: {said}"))
    }
}

impl Disk {
    /// One of so many MiB. `None`: nobody here may mount one.
    fn new(world: &World, mib: u64) -> Option<Self> {
        let mut disk = Self { place: world.path("disk"), image: world.path("image"), device: None };
        match disk.make(mib) {
            Ok(()) => Some(disk),
            Err(why) => {
                println!("SKIPPED: no file system can be made and mounted here: {why}");
                None
            }
        }
    }

    fn make(&mut self, mib: u64) -> Result<(), String> {
        let said = |why: std::io::Error| why.to_string();
        fs::create_dir_all(&self.place).map_err(said)?;
        SystemFile::create(&self.image).and_then(|image| image.set_len(mib << 20)).map_err(said)?;
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        done(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-E", options]).arg(&self.image))?;
        self.mount()
    }

    fn mount(&mut self) -> Result<(), String> {
        let device = done(Command::new("losetup").args(["--find", "--show"]).arg(&self.image))?;
        self.device = Some(device.clone());
        let mut mount = Command::new("mount");
        done(mount.args(["-t", "ext4", "-o", "errors=continue"]).arg(&device).arg(&self.place))?;
        Ok(())
    }

    /// From now on nothing reaches it, and each call fails.
    fn cut_off(&self) {
        let (root, how) = (SystemFile::open(&self.place).expect("it is mounted"), NOT_EVEN_THE_JOURNAL);
        // SAFETY: reads a word of ours.
        let cut = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const how) };
        assert_eq!(cut, 0, "{}", std::io::Error::last_os_error());
    }

    fn unmount(&mut self) -> Result<(), String> {
        done(Command::new("umount").arg(&self.place))?;
        done(Command::new("losetup").arg("--detach").args(self.device.take()))?;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = done(Command::new("umount").arg("--lazy").arg(&self.place));
        if let Some(device) = self.device.take() {
            let _ = done(Command::new("losetup").args(["--detach", &device]));
        }
    }
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
    let Some(disk) = Disk::new(&world, 16) else { return };
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
        let Some(mut disk) = Disk::new(&world, 16) else { return };
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
            let (traced, hint) = (SystemFile::open(traced).expect("it is there"), 1_u64);
            // SAFETY: reads a word of ours.
            unsafe { libc::fcntl(traced.as_raw_fd(), SET_HINT, &raw const hint) };
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
