//! Real file systems that lose their page cache while the machine goes on: what was acknowledged is there afterwards.
//!
//! Each test runs once more as a program in a mount namespace of its own, so that nothing stays mounted whatever becomes of
//! it, and that one starts the writer, which is killed. As root only, where loop devices can be had; elsewhere the reason is said.
#![expect(unsafe_code, reason = "an ioctl that shuts a file system down")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use remanence_effort::Process;
use remanence_pmem::{FileOptions, Journaling, Region};

const LEN: u64 = 2 << 20;
const JOURNAL: u64 = 1 << 18;
/// Words that are written, one to a page, again and again.
const WORDS: u64 = 400;
/// What the program in the namespace is to do, and what the writer.
const ROLE: &str = "REMANENCE_TEST_MOUNTS";
/// `_IOR('X', 125, __u32)`, of xfs first and of ext4 since: the file system stops at once.
const SHUTDOWN: libc::c_ulong = 0x8004_587D;

/// Runs a test of this file once more, with a role, through a program.
fn again(through: &[&str], test: &str, role: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let mut words = through.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    words.push(this.to_str().expect("a name").to_owned());
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .args(["--exact", &format!("mounts::{test}"), "--nocapture", "--test-threads=1"])
        .env(ROLE, role);
    command
}

/// The test itself, in a mount namespace; as the writer it writes.
fn in_namespace(test: &str, run: fn(&str)) {
    match std::env::var(ROLE).as_deref() {
        Ok("test") => run(test),
        Ok(path) => write(Path::new(path)),
        Err(_) => {
            let unshare = ["unshare", "--mount", "--propagation", "private"];
            let there = Command::new(unshare[0]).args(&unshare[1..]).arg("true").output();
            if !there.is_ok_and(|output| output.status.success()) {
                return println!("skipped: no mount namespace can be had (it takes root, and unshare)");
            }
            let output = again(&unshare, test, "test").output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stdout);
            print!("{said}");
            // A name that is none's would pass as well.
            let passed = output.status.success() && said.contains("1 passed");
            assert!(passed, "{said}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Persists growing numbers and says so, until it cannot.
fn write(path: &Path) {
    let region = FileOptions::new().open(path).expect("the file is there");
    let mut out = std::io::stdout();
    println!();
    for n in 1_u64.. {
        let at = n % WORDS * 4096;
        region.store_u64(at, n);
        if let Err(e) = region.persist(at..at + 8) {
            println!("failed {e}");
            // Its end is not an orderly one.
            std::process::abort();
        }
        println!("durable {n}");
        out.flush().expect("somebody reads");
    }
}

struct Writer(Process);

impl Writer {
    fn start(test: &str, path: &Path) -> Self {
        let mut command = again(&["/usr/bin/env"], test, path.to_str().expect("a name"));
        Self(Process::start(command.stderr(Stdio::null())))
    }

    /// What it says next of a write: its number, or `None` when one has failed, or it has ended.
    fn durable(&mut self) -> Option<u64> {
        loop {
            let line = self.0.line()?;
            if let Some(n) = line.strip_prefix("durable ") {
                return Some(n.parse().expect("a number"));
            }
            if line.starts_with("failed") {
                return None;
            }
        }
    }

    fn end(mut self) {
        self.0.kill();
    }
}

/// A file system in a file.
struct Disk {
    scratch: PathBuf,
    image: PathBuf,
    mounted: PathBuf,
}

fn tool(words: &[&str]) -> Result<String, String> {
    let output =
        Command::new(words[0]).args(&words[1..]).output().map_err(|e| format!("{}: {e}", words[0]))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(format!("{}: {said}{}", words.join(" "), String::from_utf8_lossy(&output.stderr)))
}

impl Disk {
    /// An empty one, not mounted yet.
    fn new(name: &str) -> Self {
        let scratch = PathBuf::from(format!("/var/tmp/remanence-mounts-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&scratch);
        let mounted = scratch.join("mounted");
        fs::create_dir_all(&mounted).expect("a directory");
        Self { image: scratch.join("image"), mounted, scratch }
    }

    fn make(&self, len: u64, options: &[&str]) -> Result<(), String> {
        File::create(&self.image).and_then(|file| file.set_len(len)).map_err(|e| e.to_string())?;
        let image = self.image.to_str().expect("a name");
        tool(&[&["mkfs.ext4", "-q", "-F"], options, &[image]].concat()).map(drop)
    }

    fn mount(&self) -> Result<(), String> {
        let [image, at] = [&self.image, &self.mounted].map(|path| path.to_str().expect("a name"));
        tool(&["mount", "-t", "ext4", "-o", "loop", image, at]).map(drop)
    }

    fn unmount(&self) {
        tool(&["umount", self.mounted.to_str().expect("a name")]).expect("nobody uses it");
    }

    fn file(&self) -> PathBuf {
        self.mounted.join("region")
    }

    fn shut_down(&self, how: u32) -> std::io::Result<()> {
        let directory = File::open(&self.mounted)?;
        // SAFETY: reads a word of ours.
        let done = unsafe { libc::ioctl(directory.as_raw_fd(), SHUTDOWN as _, &raw const how) };
        if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for mounted in [self.mounted.as_path(), self.image.parent().expect("a directory")] {
            let _ = tool(&["umount", "-q", mounted.to_str().expect("a name")]);
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn check(region: &Region, durable: u64, written: u64) {
    for word in 0..WORDS {
        let last =
            |upto: u64| (0..=upto).rev().find(|n| *n == 0 || n % WORDS == word).expect("at least zero");
        let found = region.load_u64(word * 4096);
        assert!(
            (last(durable)..=last(written)).contains(&found),
            "word {word} is {found}, and {} was durable of {durable}",
            last(durable)
        );
    }
}

#[test]
fn a_file_system_that_was_shut_down_and_mounted_again_has_what_was_acknowledged() {
    in_namespace("a_file_system_that_was_shut_down_and_mounted_again_has_what_was_acknowledged", |test| {
        let disk = Disk::new("shutdown");
        if let Err(e) = disk.make(32 << 20, &[]).and_then(|()| disk.mount()) {
            return println!("skipped: no file system can be made and mounted here: {e}");
        }
        let new = FileOptions::new().create_new(LEN).journal(Journaling::Len(JOURNAL));
        drop(new.open(disk.file()).expect("there is room"));
        let mut durable = 0;
        // Without what the file system itself has noted, and with it.
        for how in [2, 1] {
            let mut writer = Writer::start(test, &disk.file());
            for _ in 0..100 {
                writer.durable().expect("nothing has failed yet");
            }
            if let Err(e) = disk.shut_down(how) {
                writer.end();
                return println!("skipped: ext4 cannot be shut down here: {e}");
            }
            let mut last = 0;
            while let Some(n) = writer.durable() {
                last = n;
            }
            writer.end();
            disk.unmount();
            disk.mount().expect("it was mounted before");
            durable = last.max(100);
            let region = FileOptions::new().open(disk.file()).expect("its journal is whole");
            check(&region, durable, durable + 1);
            // The next writer begins anew.
            region.write(0, &vec![0; LEN as usize]);
            region.persist(0..LEN).expect("a disk");
        }
        println!("{durable} writes were acknowledged in the last round");
    });
}

/// A file system on a disk that is given its blocks when they are written first, as thin ones are, and had no more for a while.
#[test]
fn pages_that_could_not_be_written_for_a_while_are_there_when_the_server_starts_again() {
    in_namespace(
        "pages_that_could_not_be_written_for_a_while_are_there_when_the_server_starts_again",
        |test| with_thin(test, Journaling::Len(JOURNAL)),
    );
}

/// The same of a file that has no journal to bring them back: they were not acknowledged, and nobody may see them.
#[test]
fn pages_that_could_not_be_written_are_not_read_by_who_opens_the_file_next() {
    in_namespace("pages_that_could_not_be_written_are_not_read_by_who_opens_the_file_next", |test| {
        with_thin(test, Journaling::Off);
    });
}

fn with_thin(test: &str, journal: Journaling) {
    let mut disk = Disk::new(if journal == Journaling::Off { "bare" } else { "thin" });
    let thin = disk.scratch.join("thin");
    fs::create_dir(&thin).expect("a directory");
    disk.image = thin.join("image");
    let at = thin.to_str().expect("a name");
    let made = tool(&["mount", "-t", "tmpfs", "-o", "size=40m", "remanence", at]);
    // Without a journal of its own, which would give up when it cannot be written.
    let made = made.and_then(|_| disk.make(24 << 20, &["-b", "4096", "-O", "^has_journal"]));
    if let Err(e) = made.and_then(|()| disk.mount()) {
        let _ = tool(&["umount", at]);
        return println!("skipped: no file system can be made and mounted here: {e}");
    }
    let ended = run_thin(test, &disk, &thin, journal);
    disk.unmount();
    tool(&["umount", at]).expect("nobody uses it");
    if let Err(why) = ended {
        println!("skipped: {why}");
    }
}

fn run_thin(test: &str, disk: &Disk, thin: &Path, journal: Journaling) -> Result<(), String> {
    // Zeros that were written, so that a page that is written again changes nothing but its block.
    fs::write(disk.file(), vec![0; LEN as usize]).expect("there is room");
    drop(FileOptions::new().journal(journal).open(disk.file()).expect("there is room"));
    // Their blocks are given back, and nobody can have any until the other file goes.
    let image = disk.image.to_str().expect("a name");
    for line in tool(&["filefrag", "-v", "-s", disk.file().to_str().expect("a name")])?.lines() {
        let numbers: Vec<u64> =
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
        let [_, first, last, block, _, blocks, ..] = numbers[..] else { continue };
        if !line.trim_start().starts_with(|c: char| c.is_ascii_digit()) || last - first + 1 != blocks {
            continue;
        }
        let blocks = blocks.min((LEN / 4096).saturating_sub(first));
        let (at, len) = ((block * 4096).to_string(), (blocks * 4096).to_string());
        if blocks > 0 {
            tool(&["fallocate", "--punch-hole", "-o", &at, "-l", &len, image])?;
        }
    }
    let mut filler = File::create(thin.join("filler")).expect("a file");
    while filler.write_all(&[1; 4096]).is_ok() {}
    drop(filler);

    let mut writer = Writer::start(test, &disk.file());
    let mut durable = 0;
    while let Some(n) = writer.durable() {
        durable = n;
        if n == WORDS - 1 {
            writer.end();
            return Err("the disk takes all that is written".into());
        }
    }
    writer.end();
    fs::remove_file(thin.join("filler")).expect("it is there");

    // Who opens it first is told of no error any more; who comes later has what is on the disk.
    let mut before = None;
    for _ in 0..2 {
        let region = FileOptions::new().open(disk.file()).expect("the disk is well again");
        check(&region, durable, durable + 1);
        let words: Vec<u64> = (0..WORDS).map(|word| region.load_u64(word * 4096)).collect();
        let before = before.get_or_insert_with(|| words.clone());
        assert_eq!(*before, words, "what was seen once is on the disk");
        drop(region);
        disk.unmount();
        disk.mount().expect("it was mounted before");
    }
    println!("{durable} writes were acknowledged before a checkpoint failed");
    Ok(())
}
