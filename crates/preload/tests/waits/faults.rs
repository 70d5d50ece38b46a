//! The disk beneath the files, or beneath the log, is full or fails: nobody is told that something is durable which is not, the next sync says it, nobody hangs, and
//! when the disk is repaired a start brings all that was acknowledged.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use remanence_cache_live::command;
use rustix::process::Signal;

use crate::cache::{Cache, Talk, example};
use crate::disk::Disk;
use crate::loss;
use crate::model::{RECORD, record};

const NEVER: u64 = 3000;

/// A program that syncs a record when it is told to, and says how that went.
struct Syncs {
    program: Talk,
    acknowledged: u64,
}

impl Syncs {
    fn start(cache: &Cache, file: &str) -> Self {
        let mut command = cache.command(example("cache_load"));
        Self { program: Talk::with(command.args(["syncs", file])), acknowledged: 0 }
    }

    /// `Err`: the number of an error.
    fn sync(&mut self) -> Result<(), i32> {
        self.program.say(".");
        self.said()
    }

    /// Does something that is no sync.
    fn does(&mut self, what: &str) {
        self.program.say(what);
        self.said().expect("a disk");
        self.acknowledged -= 1;
    }

    fn said(&mut self) -> Result<(), i32> {
        match self.program.line().expect("it goes on").as_str() {
            "ok" => {
                self.acknowledged += 1;
                Ok(())
            }
            errno => Err(errno.parse().expect("a number")),
        }
    }

    fn sync_well(&mut self, count: u64) {
        (0..count).for_each(|_| self.sync().expect("a disk"));
    }

    /// Syncs until it is told of an error, which is soon.
    fn sync_until_an_error(&mut self) -> i32 {
        (0..100).find_map(|_| self.sync().err()).expect("somebody says that the disk has failed")
    }
}

fn has_records(path: &Path, count: u64) {
    let bytes = fs::read(path).expect("it can be read");
    for n in 0..count {
        let there = bytes.get(n as usize * RECORD..(n as usize + 1) * RECORD);
        assert_eq!(there, Some(&record(0, 0, 0, n)[..]), "record {n} of {count}");
    }
}

/// A cache whose files lie on a disk of their own, and a program that has had syncs absorbed there.
fn on_a_disk(name: &str, image: impl FnOnce(&Cache) -> Option<PathBuf>) -> Option<(Cache, Disk, Syncs)> {
    let cache = Cache::new(name, NEVER)?;
    let image = image(&cache)?;
    let disk = Disk::new(image, cache.path("disk"), 64)?;
    let mut syncs = Syncs::start(&cache, "disk/file");
    syncs.sync_well(20);
    assert!(cache.count("disk/file", "absorbed") > 0, "{:?}", cache.of("disk/file"));
    Some((cache, disk, syncs))
}

/// The disk has failed, and the daemon knows: everybody is told. Repaired, it gets all that was acknowledged.
fn is_told_and_repaired(mut cache: Cache, mut disk: Disk, mut syncs: Syncs, repair: impl FnOnce()) {
    command::drain(&cache.log()).expect_err("it cannot be drained");
    let status = cache.status();
    assert!(status.contains("\"state\":\"failed\"") && status.contains("disk/file"), "{status}");
    let errno = syncs.sync_until_an_error();
    assert!([libc::EIO, libc::ENOSPC, libc::EROFS].contains(&errno), "{errno}");
    // The kernel says it once, and takes the next sync for good.
    assert!((0..3).all(|_| syncs.sync().is_err()), "nothing of this file is durable any more");
    let acknowledged = syncs.acknowledged;
    syncs.program.child.kill().expect("it runs");
    syncs.program.child.wait().expect("it ends");
    command::stop(&cache.log()).expect_err("not all is in its files");
    assert!(!cache.ended_well(), "and the daemon says so");
    repair();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.contains("is recovered: "), "{said}");
    has_records(&cache.path("disk/file"), acknowledged);
    cache.drain();
    // And it is on the disk.
    cache.stop_and_keep();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    has_records(&disk.place.join("file"), acknowledged);
}

#[test]
fn a_disk_that_is_cut_off() {
    let Some((cache, disk, syncs)) = on_a_disk("cut", |cache| Some(cache.path("image"))) else { return };
    disk.cut_off();
    is_told_and_repaired(cache, disk, syncs, || {});
}

#[test]
fn a_disk_that_the_kernel_lets_nobody_write_to_any_more() {
    let Some((cache, disk, syncs)) = on_a_disk("read-only", |cache| Some(cache.path("image"))) else {
        return;
    };
    let trigger = format!("/sys/fs/ext4/{}/trigger_fs_error", disk.device());
    let remounted = Command::new("mount").args(["-o", "remount,errors=remount-ro"]).arg(&disk.place).status();
    assert!(remounted.expect("mount").success());
    if let Err(why) = fs::write(&trigger, "1") {
        println!("SKIPPED: {trigger}: {why}");
        return;
    }
    is_told_and_repaired(cache, disk, syncs, || {});
}

/// A disk that has less room than it says: what is behind it is full.
#[test]
fn a_disk_that_is_full_when_the_files_are_synced() {
    let mut behind = None;
    let found = on_a_disk("thin", |cache| {
        let place = cache.path("behind");
        fs::create_dir(&place).expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=40m", "tmpfs"]).arg(&place);
        if !mount.status().is_ok_and(|status| status.success()) {
            println!("SKIPPED: no tmpfs can be mounted here");
            return None;
        }
        behind = Some(Behind(place.clone()));
        Some(place.join("image"))
    });
    let Some((cache, disk, mut syncs)) = found else { return };
    let behind = behind.expect("it was mounted");
    cache.drain();
    let filler = behind.0.join("filler");
    let mut full = File::create(&filler).expect("room");
    while full.write_all(&[1; 4096]).is_ok() {}
    drop(full);
    // The kernel takes them, until its journal has failed, and the log has them.
    let before = syncs.acknowledged;
    let _ = (0..600).find(|_| syncs.sync().is_err());
    assert!(syncs.acknowledged > before);
    is_told_and_repaired(cache, disk, syncs, || fs::remove_file(&filler).expect("it is there"));
}

/// The program is told by the write that finds no room, and not when somebody brings the log into the files.
#[test]
fn a_disk_that_is_full_when_it_is_written_to() {
    let Some((mut cache, mut disk, mut syncs)) = on_a_disk("full-disk", |cache| Some(cache.path("image")))
    else {
        return;
    };
    let mut fill = cache.command("dd");
    fill.args(["if=/dev/zero", "of=disk/filler", "bs=64k", "status=none"]);
    let said = fill.output().expect("it runs");
    let why = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && why.contains("No space left on device"), "{why}");
    // What is there already has its blocks; what is not is told.
    let before = syncs.acknowledged;
    let errno = (0..600).find_map(|_| syncs.sync().err());
    assert_eq!(errno, Some(libc::ENOSPC));
    fs::remove_file(disk.place.join("filler")).expect("it is there");
    let acknowledged = syncs.acknowledged;
    assert!(acknowledged >= before && cache.status().contains("\"state\":\"serving\""), "{}", cache.status());
    syncs.program.child.kill().expect("it runs");
    syncs.program.child.wait().expect("it ends");
    cache.drain();
    cache.stop_and_keep();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    has_records(&disk.place.join("file"), acknowledged);
}

#[test]
fn a_log_that_finds_no_room_is_refused_before_a_program_starts() {
    let Some(mut cache) = Cache::new("no-room", NEVER) else { return };
    cache.stop_and_keep();
    fs::remove_file(cache.log()).expect("it is there");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(&cache.place);
    if !mount.status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: no tmpfs can be mounted here");
        return;
    }
    let _behind = Behind(cache.place.clone());
    let why = cache.start_again().expect_err("it has 16 MiB");
    assert!(why.contains("no space for"), "{why}");
}

/// Words for who makes an ext4: with a journal, and without one, where a sync of the log is shorter.
const EXT4: [&[&str]; 2] = [&[], &["-O", "^has_journal"]];

/// A cache whose log lies on a disk of its own, beside another one whose directory has the files.
fn log_on_a_disk(name: &str, words: &[&str]) -> Option<(Cache, Cache, Disk)> {
    let outside = Cache::new(name, NEVER)?;
    let disk = Disk::with_features(outside.path("image"), outside.path("disk"), 64, words)?;
    let cache = Cache::at(disk.place.clone(), NEVER);
    Some((outside, cache, disk))
}

/// Whether a program has a descriptor of a file.
fn has_open(program: &Talk, file: &Path) -> bool {
    let is = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let all = fs::read_dir(format!("/proc/{}/fd", program.child.id())).expect("it runs").flatten();
    all.map(|entry| is(&entry.path())).any(|open| open.is_some() && open == is(file))
}

/// The disk of the log alone loses power: what was acknowledged is in what was written there, also where the program has taken away by what syncs of the log are shorter; and that writes to
/// nothing else.
#[test]
fn what_was_synced_is_in_a_log_of_which_the_kernel_has_nothing_more() {
    for (words, takes) in [(EXT4[0], false), (EXT4[1], false), (EXT4[1], true)] {
        let Some((outside, mut cache, mut disk)) = log_on_a_disk("outside-power", words) else { return };
        let file = outside.path("file");
        let path = file.to_str().expect("text");
        let mut syncs = Syncs::start(&cache, path);
        syncs.sync_well(20);
        assert!(cache.count(path, "absorbed") > 0, "{:?}", cache.of(path));
        assert_eq!(has_open(&syncs.program, &cache.log()), !words.is_empty(), "{words:?}");
        let old = cache.old(&[path]);
        if takes {
            syncs.does("x");
        }
        syncs.sync_well(100);
        assert_eq!(has_open(&syncs.program, &cache.log()), !words.is_empty() && !takes);
        let _ = cache.segment().map(fs::remove_file);
        disk.cut_off();
        let acknowledged = syncs.acknowledged;
        syncs.program.child.kill().expect("it runs");
        syncs.program.child.wait().expect("it ends");
        cache.kill_daemon();
        disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
        loss::feign(&cache, &old);
        let said = cache.start_again().expect("nobody has to decide anything");
        assert!(said.contains("is recovered: "), "{said}");
        has_records(&file, acknowledged);
        let own = PathBuf::from(format!("{path}.own"));
        assert_eq!(fs::metadata(own).map_or(0, |own| own.len()), 0, "it is the program's alone");
        cache.stop_and_keep();
        drop((cache, disk));
        outside.stop();
    }
}

/// The disk of the log alone: programs go on, and their syncs are the kernel's.
#[test]
fn a_log_whose_disk_is_cut_off() {
    EXT4.into_iter().for_each(cut_off_below_the_log);
}

fn cut_off_below_the_log(words: &[&str]) {
    let Some((outside, mut cache, mut disk)) = log_on_a_disk("outside", words) else { return };
    let file = outside.path("file");
    let path = file.to_str().expect("text");
    let mut syncs = Syncs::start(&cache, path);
    syncs.sync_well(20);
    assert!(cache.count(path, "absorbed") > 0, "{:?}", cache.of(path));
    let kernel = cache.counted("syncs_kernel");
    disk.cut_off();
    syncs.sync_well(300);
    assert!(cache.counted("syncs_kernel") >= kernel + 290);
    has_records(&file, syncs.acknowledged);
    command::drain(&cache.log()).expect_err("the log has failed");
    let status = cache.status();
    assert!(
        status.contains("\"state\":\"failed\"") && status.contains("the log's medium failed"),
        "{status}"
    );
    let acknowledged = syncs.acknowledged;
    syncs.program.end();
    command::stop(&cache.log()).expect_err("the log has failed");
    assert!(!cache.ended_well(), "and the daemon says so");
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    cache.start_again().expect("nobody has to decide anything");
    has_records(&file, acknowledged);
    cache.stop_and_keep();
    drop((cache, disk));
    outside.stop();
}

/// What becomes of a log under its daemon.
fn lost_log(name: &str, says: &str, lose: impl FnOnce(&Path)) {
    let Some((mut cache, mut disk, mut syncs)) = on_a_disk(name, |cache| Some(cache.path("image"))) else {
        return;
    };
    lose(&cache.log());
    let said = cache.complaint();
    assert!(said.contains(says) && said.contains("syncs are the kernel's from now on"), "{said}");
    let said = cache.complaint();
    assert!(said.contains("what it had is in them, durably"), "{said}");
    let status = cache.status();
    assert!(status.contains("\"state\":\"failed\"") && status.contains(says), "{status}");
    // What was promised before, and what is from now on, is there without the log.
    syncs.sync_well(5);
    disk.cut_off();
    let acknowledged = syncs.acknowledged;
    syncs.sync_until_an_error();
    syncs.program.child.kill().expect("it runs");
    syncs.program.child.wait().expect("it ends");
    command::stop(&cache.log()).expect_err("it is not closed");
    assert!(!cache.ended_well(), "and the daemon says so");
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    has_records(&disk.place.join("file"), acknowledged);
}

#[test]
fn a_log_that_is_removed_under_its_daemon() {
    lost_log("gone", "was removed", |log| fs::remove_file(log).expect("it is there"));
}

#[test]
fn a_log_that_is_moved_under_its_daemon() {
    lost_log("moved", "was moved", |log| {
        fs::rename(log, log.with_extension("moved")).expect("it is there");
    });
}

#[test]
fn a_log_in_whose_place_another_file_is_put() {
    lost_log("replaced", "was removed", |log| {
        let other = log.with_extension("other");
        fs::write(&other, "something else").expect("room");
        fs::rename(other, log).expect("it is there");
    });
}

#[test]
fn a_log_that_is_cut_short_under_its_daemon() {
    lost_log("short", "was cut short", |log| {
        File::options().write(true).open(log).and_then(|log| log.set_len(4096)).expect("it is there");
    });
}

/// What was promised is in the file, whatever the same program does with that behind its sync, and however long that is.
fn goes_around(name: &str, what: &str) {
    let Some((mut cache, mut disk, mut syncs)) = on_a_disk(name, |cache| Some(cache.path("image"))) else {
        return;
    };
    // Longer than a recovery bears with a time that the log does not explain.
    std::thread::sleep(LATE);
    syncs.does(what);
    // That comes to the disk with another file, and nobody has synced this one.
    let other = File::create(disk.place.join("other")).expect("room");
    other.sync_all().expect("a disk");
    drop(other);
    disk.cut_off();
    let acknowledged = syncs.acknowledged;
    syncs.program.child.kill().expect("it runs");
    syncs.program.child.wait().expect("it ends");
    cache.kill_daemon();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    cache.start_again().unwrap_or_else(|why| panic!("nobody has to decide anything: {why}"));
    has_records(&disk.place.join("file"), acknowledged);
    assert!(!disk.place.join("file.rem-recovered").exists());
    cache.stop_and_keep();
}

/// More than the time for which a recovery takes changes that the log has lost for ours.
const LATE: std::time::Duration = std::time::Duration::from_millis(2300);

#[test]
fn a_write_around_the_page_cache_behind_a_sync() {
    goes_around("direct", "d");
}

#[test]
fn a_mapping_behind_a_sync() {
    goes_around("mapped", "m");
}

#[test]
fn a_copy_by_the_kernel_behind_a_sync() {
    goes_around("copied", "c");
}

/// Its entry is lost with the machine, and its time has come to the disk. `slow`: the disk takes longer for what is said before it than that is good for.
fn waited(daemon: bool, slow: bool) {
    let Some(outside) = Cache::new(if slow { "kept-waiting" } else { "waited" }, NEVER) else { return };
    let below = slow.then(|| Disk::new(outside.path("below.image"), outside.path("below"), 128)).flatten();
    let image = below.as_ref().map_or(outside.path("image"), |below| below.place.join("image"));
    let Some(mut disk) = Disk::new(image, outside.path("disk"), 64) else { return };
    let mut cache = Cache::at(disk.place.clone(), NEVER);
    let mut syncs = Syncs::start(&cache, "file");
    syncs.sync_well(20);
    assert!(cache.count("file", "absorbed") > 0, "{:?}", cache.of("file"));
    if !daemon {
        cache.kill_daemon();
    }
    std::thread::sleep(LATE);
    below.iter().for_each(|below| below.stand_still(true));
    syncs.program.say("w");
    if let Some(below) = &below {
        std::thread::sleep(LATE);
        below.stand_still(false);
    }
    syncs.said().expect("a disk");
    syncs.acknowledged -= 1;
    // The journal of the file system takes the times of all files with it, and the log has its blocks already.
    let other = File::create(disk.place.join("other")).expect("room");
    other.sync_all().expect("a disk");
    drop(other);
    disk.cut_off();
    let acknowledged = syncs.acknowledged;
    syncs.program.child.kill().expect("it runs");
    syncs.program.child.wait().expect("it ends");
    if daemon {
        cache.kill_daemon();
    }
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    cache.start_again().unwrap_or_else(|why| panic!("nobody has to decide anything: {why}"));
    has_records(&disk.place.join("file"), acknowledged);
    cache.stop_and_keep();
    drop((cache, disk, below));
    outside.stop();
}

#[test]
fn a_write_of_a_program_that_has_waited_for_long_is_not_taken_for_somebody_elses() {
    for daemon in [true, false] {
        waited(daemon, false);
    }
}

#[test]
fn nor_is_one_that_the_disk_has_kept_waiting() {
    for daemon in [true, false] {
        waited(daemon, true);
    }
}

/// What it costs is one wait of ten seconds, whoever waits, until the daemon goes on.
#[test]
fn a_daemon_that_stands_still_is_waited_for_once() {
    let Some(cache) = Cache::new("silent", NEVER) else { return };
    let mut programs = [0, 1].map(|_| Talk::with(cache.command(example("cache_load")).args(["files"])));
    let mut make = |program: usize| -> u64 {
        programs[program].say(".");
        programs[program].line().expect("it goes on").parse().expect("a number")
    };
    assert!(make(0) < 5000 && make(1) < 5000);
    cache.signal_daemon(Signal::STOP);
    let first = make(0);
    assert!((5000..30_000).contains(&first), "it waits once: {first}");
    for _ in 0..4 {
        let (own, others) = (make(0), make(1));
        assert!(own < 3000 && others < 3000, "nobody waits any more: {own}, {others}");
    }
    cache.signal_daemon(Signal::CONT);
    // It is heard when it is called, a second behind that, at the latest.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let name = format!("new-{}", cache_made(&cache) - 1);
        if cache.of(&name).is_some() {
            break;
        }
        assert!(std::time::Instant::now() < until, "files are known again: {}", cache.status());
        std::thread::sleep(std::time::Duration::from_millis(100));
        make(0);
    }
    programs.into_iter().for_each(Talk::end);
    cache.stop();
}

/// As long as the daemon brings something into files, it looks for more by itself.
#[test]
fn a_log_that_fills_up_takes_few_questions() {
    const WRITES: u64 = 6000;
    let Some(mut cache) = Cache::in_memory("full", 100) else { return };
    let mut syncs = Syncs::start(&cache, "file");
    syncs.sync_well(200);
    let before = cache.counted("questions");
    for _ in 0..WRITES / 1000 {
        syncs.program.say(&".".repeat(1000));
        (0..1000).for_each(|_| syncs.said().expect("a disk"));
    }
    let asked = cache.counted("questions") - before;
    assert!(asked < WRITES / 50, "{asked} questions: {}", cache.status());
    has_records(&cache.path("file"), syncs.acknowledged);
    syncs.program.end();
    cache.stop_and_keep();
}

/// Neither do programs that begin meanwhile, as those of a script do. And what it has not heard of then, it passes when it goes on, also where the file is gone by then.
#[test]
fn a_daemon_that_stands_still_is_waited_for_by_one_that_begins() {
    let Some(cache) = Cache::new("begins", NEVER) else { return };
    let mut syncs = Syncs::start(&cache, "file");
    syncs.sync_well(20);
    assert!(cache.count("file", "absorbed") > 0, "{:?}", cache.of("file"));
    cache.signal_daemon(Signal::STOP);
    let begin = || {
        let begun = std::time::Instant::now();
        let mut command = cache.command("true");
        assert!(command.stderr(std::process::Stdio::null()).status().expect("it runs").success());
        begun.elapsed().as_millis()
    };
    let first = begin();
    assert!((5000..30_000).contains(&first), "it waits once: {first}");
    for _ in 0..4 {
        let other = begin();
        assert!(other < 3000, "nobody waits any more: {other}");
    }
    // Around the log: that says itself that what it has of the file is settled.
    syncs.does("d");
    syncs.sync_well(1);
    fs::remove_file(cache.path("file")).expect("it is there");
    syncs.program.end();
    cache.signal_daemon(Signal::CONT);
    cache.drain();
    assert!(cache.status().contains("\"state\":\"serving\""), "{}", cache.status());
    cache.stop();
}

/// What the log had of a file, when the machine is lost behind something that is done under the cache, and what others have synced on that disk.
fn done_by_a_script(name: &str, script: &str, has: impl FnOnce(&[u8])) {
    let Some((mut cache, mut disk, mut syncs)) = on_a_disk(name, |cache| Some(cache.path("image"))) else {
        return;
    };
    syncs.sync_well(5);
    let mut shell = cache.command("sh");
    assert!(shell.args(["-ec", script]).status().expect("it runs").success());
    // The journal of the file system has the lengths and times of all files then.
    File::create(disk.place.join("other")).and_then(|other| other.sync_all()).expect("a disk");
    disk.cut_off();
    syncs.program.child.kill().expect("it runs");
    syncs.program.child.wait().expect("it ends");
    cache.kill_daemon();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    cache.start_again().unwrap_or_else(|why| panic!("nobody has to decide anything: {why}"));
    has(&fs::read(disk.place.join("file")).expect("it is there"));
    cache.stop_and_keep();
}

#[test]
fn a_file_that_is_cut_short_as_it_is_opened_does_not_grow_again() {
    done_by_a_script("opened", ": >disk/file", |file| assert_eq!(file.len(), 0));
}

/// However little it is, and without anybody who asks the daemon for anything meanwhile.
#[test]
fn what_has_lain_in_the_log_for_long_is_in_its_files() {
    let Some(cache) = Cache::told("aged", NEVER, "aged") else { return };
    let mut syncs = Syncs::start(&cache, "file");
    for _ in 0..2 {
        let absorbed = cache.counted("syncs_absorbed");
        syncs.sync_well(20);
        std::thread::sleep(std::time::Duration::from_secs(5));
        let status = cache.status();
        assert!(status.contains("\"used\":0,"), "{status}");
        assert!(cache.counted("syncs_absorbed") > absorbed + 10, "{status}");
    }
    syncs.program.end();
    cache.stop();
}

/// The paper's promise: nobody has to sync.
#[test]
fn a_write_that_has_returned_is_there_where_that_is_asked_for() {
    let Some(mut cache) = Cache::told("strict", NEVER, "strict") else { return };
    let Some(mut disk) = Disk::new(cache.path("image"), cache.path("disk"), 64) else { return };
    let mut syncs = Syncs::start(&cache, "disk/file");
    for _ in 0..40 {
        syncs.program.say("w");
        syncs.said().expect("a disk");
    }
    assert!(cache.counted("changes") >= 30, "they are logged, without a sync: {}", cache.status());
    disk.cut_off();
    let acknowledged = syncs.acknowledged;
    syncs.program.child.kill().expect("it runs");
    syncs.program.child.wait().expect("it ends");
    cache.kill_daemon();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    cache.start_again().expect("nobody has to decide anything");
    has_records(&disk.place.join("file"), acknowledged);
    cache.stop_and_keep();
}

/// What was promised is in the files alone from then on, and a copy of the disk needs no log: it is lost here with the machine.
#[test]
fn a_log_that_is_frozen_has_nothing_that_files_lack() {
    for thaws in [false, true] {
        let Some((mut cache, mut disk, mut syncs)) = on_a_disk("frozen", |cache| Some(cache.path("image")))
        else {
            return;
        };
        assert!(cache.counted("used") > 0);
        command::freeze(&cache.log()).expect("nobody is at a file for long");
        assert!(cache.status().contains("\"state\":\"frozen\""), "{}", cache.status());
        let absorbed = cache.counted("syncs_absorbed");
        syncs.sync_well(20);
        let mut shell = cache.command("sh");
        shell.args(["-ec", "echo new >disk/new; sync disk/new disk; mv disk/new disk/newer; sync disk"]);
        assert!(shell.status().expect("it runs").success());
        assert_eq!((cache.counted("used"), cache.counted("syncs_absorbed")), (0, absorbed));
        if thaws {
            command::thaw(&cache.log()).expect("it serves");
            syncs.sync_well(20);
            assert!(cache.counted("syncs_absorbed") > absorbed + 10, "{}", cache.status());
        }
        disk.cut_off();
        let acknowledged = syncs.acknowledged;
        syncs.program.child.kill().expect("it runs");
        syncs.program.child.wait().expect("it ends");
        cache.kill_daemon();
        disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
        if thaws {
            cache.start_again().expect("nobody has to decide anything");
        }
        has_records(&disk.place.join("file"), acknowledged);
        assert_eq!(fs::read(disk.place.join("newer")).expect("it was synced"), b"new\n");
        if thaws {
            cache.stop_and_keep();
        }
    }
}

/// Whoever is in the middle of a change when that is said has ended it, and its entry is drained.
#[test]
fn threads_are_at_their_files_while_the_log_is_frozen() {
    let Some(cache) = Cache::in_memory("freezing", NEVER) else { return };
    let mut command = cache.command(example("cache_load"));
    let mut program = Talk::with(command.args(["steps", ".", "7", "0", "3"]));
    let mut goes_on_until = |what: &str, count: u64| {
        let from = cache.counted(what);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while cache.counted(what) < from + count {
            assert!(std::time::Instant::now() < until, "{}", cache.status());
            (0..20).for_each(|_| drop(program.line().expect("it goes on")));
        }
    };
    for _ in 0..20 {
        goes_on_until("syncs_absorbed", 50);
        command::freeze(&cache.log()).expect("nobody is at a file for long");
        assert_eq!(cache.counted("used"), 0);
        goes_on_until("syncs_kernel", 50);
        assert_eq!(cache.counted("used"), 0, "nothing is logged");
        command::thaw(&cache.log()).expect("it serves");
    }
    program.child.kill().expect("it runs");
    program.child.wait().expect("it was");
    cache.stop();
}

/// How many files a program has made.
fn cache_made(cache: &Cache) -> u64 {
    (0_u64..).find(|n| !cache.path(&format!("new-{n}")).exists()).expect("there is an end")
}

/// A program that may have less memory than the log takes of it runs without us, and says why.
#[test]
fn a_program_without_room_for_the_log_is_told_so_and_runs() {
    let Some(cache) = Cache::new("limited", NEVER) else { return };
    let mut command = cache.command("sh");
    command.args(["-c", "ulimit -v 36000; exec \"$@\"", "sh"]).arg(example("cache_load"));
    command.args(["syncs", "file"]).stderr(std::process::Stdio::piped());
    let mut program = Talk::with(&mut command);
    for _ in 0..5 {
        program.say(".");
        assert_eq!(program.line().as_deref(), Some("ok"));
    }
    let mut said = String::new();
    let mut complains = program.child.stderr.take().expect("piped");
    program.end();
    std::io::Read::read_to_string(&mut complains, &mut said).expect("text");
    assert!(said.contains("bytes of address space") && said.contains("ulimit -v"), "{said}");
    assert!(said.contains("the syncs of this program are the kernel's"), "{said}");
    has_records(&cache.path("file"), 5);
    assert!(cache.of("file").is_none());
    cache.stop();
}

/// A file system that goes with the test, behind what lies on it.
struct Behind(PathBuf);

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
