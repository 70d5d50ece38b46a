//! File systems of a test's own, which can be cut off, and what the kernel keeps of files beside what is in them.
#![allow(dead_code, reason = "each test program uses a part")]
#![expect(unsafe_code, reason = "two system calls without a wrapper")]

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `F_SET_RW_HINT`.
const SET_HINT: i32 = 1024 + 12;
/// `EXT4_IOC_SHUTDOWN`, and its argument that keeps even the journal from the disk.
const SHUTDOWN: u64 = 0x8004_587d;
const NOT_EVEN_THE_JOURNAL: u32 = 2;

/// Gives the kernel a hint about a file, or a directory, which it keeps as long as it has that in memory.
pub(crate) fn hint(path: &Path, hint: u64) {
    let file = File::open(path).expect("it is there");
    // SAFETY: reads a word of ours.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), SET_HINT, &raw const hint) }, 0);
}

/// A file system in a file, on a loop device, that goes with the test.
pub(crate) struct Disk {
    pub(crate) place: PathBuf,
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
    /// An ext4 of so many MiB whose image is in a directory. `None`: nobody here may mount one.
    pub(crate) fn new(image: PathBuf, place: PathBuf, mib: u64) -> Option<Self> {
        Self::with_features(image, place, mib, &[])
    }

    /// The same with some words for who makes it.
    pub(crate) fn with_features(image: PathBuf, place: PathBuf, mib: u64, words: &[&str]) -> Option<Self> {
        let mut disk = Self { place, image, device: None };
        match disk.make(mib, words) {
            Ok(()) => Some(disk),
            Err(why) => {
                println!("SKIPPED: no file system can be made and mounted here: {why}");
                None
            }
        }
    }

    fn make(&mut self, mib: u64, words: &[&str]) -> Result<(), String> {
        let said = |why: std::io::Error| why.to_string();
        fs::create_dir_all(&self.place).map_err(said)?;
        File::create(&self.image).and_then(|image| image.set_len(mib << 20)).map_err(said)?;
        // All but the files' own blocks is there from the beginning.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let mut make = Command::new("mkfs.ext4");
        done(make.args(["-q", "-F", "-b", "4096", "-E", options]).args(words).arg(&self.image))?;
        self.mount()
    }

    /// Mounts it, again.
    pub(crate) fn mount(&mut self) -> Result<(), String> {
        let device = done(Command::new("losetup").args(["--find", "--show"]).arg(&self.image))?;
        self.device = Some(device.clone());
        done(
            Command::new("mount").args(["-t", "ext4", "-o", "errors=continue"]).arg(&device).arg(&self.place),
        )?;
        Ok(())
    }

    /// The name of its device, as the kernel has it.
    pub(crate) fn device(&self) -> &str {
        self.device.as_deref().unwrap_or_default().trim_start_matches("/dev/")
    }

    /// From now on nothing reaches it, and each call fails.
    pub(crate) fn cut_off(&self) {
        let (root, how) = (File::open(&self.place).expect("it is mounted"), NOT_EVEN_THE_JOURNAL);
        // SAFETY: reads a word of ours.
        let cut = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN, &raw const how) };
        assert_eq!(cut, 0, "{}", std::io::Error::last_os_error());
    }

    /// Takes it away: nobody uses it. What the kernel had in memory of it is gone.
    pub(crate) fn unmount(&mut self) -> Result<(), String> {
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
        let _ = fs::remove_file(&self.image);
    }
}
