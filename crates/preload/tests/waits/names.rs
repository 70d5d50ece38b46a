//! Names are entries of the log: a file that is made, what it is renamed to, and what is taken away are there when the machine is lost behind a sync that was absorbed. The machine is
//! a file system that is cut off like a disk without power, and mounted again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use remanence_cache::format::{self, Lost};
use remanence_cache::recovery::scan;
use remanence_cache::table::{FileId, Identity};
use remanence_effort::{replay, seeds};
use rustix::process::Signal;

use crate::cache::{Cache, Talk, example};
use crate::disk::Disk;
use crate::model::{NameStep, Numbers, TMP, Tree, numbers, record};
use crate::torture::decide;

const NEVER: u64 = 3000;

/// A cache, and a file system of its own with a directory. `None`: nobody here may mount one.
fn on_a_disk(name: &str) -> Option<(Cache, Disk)> {
    with_a_disk(Cache::new(name, NEVER)?)
}

/// The same, with a log on a disk and with one in memory, where programs number the files themselves that they make.
fn both_on_a_disk(name: &str, of: u64) -> Option<(Cache, Disk)> {
    let cache = if of.is_multiple_of(2) { Cache::new(name, NEVER) } else { Cache::in_memory(name, NEVER) };
    with_a_disk(cache?)
}

fn with_a_disk(cache: Cache) -> Option<(Cache, Disk)> {
    let disk = Disk::new(cache.path("image"), cache.path("disk"), 64)?;
    fs::create_dir(disk.place.join("data")).expect("room");
    rustix::fs::sync();
    Some((cache, disk))
}

/// What is there: names, and the inode and the bytes of each.
fn there(place: &Path) -> BTreeMap<String, (u64, Option<Vec<u8>>)> {
    let mut found = BTreeMap::new();
    let mut below = vec![String::new()];
    while let Some(prefix) = below.pop() {
        for entry in fs::read_dir(place.join(&prefix)).expect("a directory") {
            let entry = entry.expect("a name");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let about = entry.metadata().expect("it is there");
            if about.is_dir() {
                below.push(format!("{name}/"));
                found.insert(name, (about.ino(), None));
            } else {
                let bytes = fs::read(entry.path()).expect("it can be read");
                found.insert(name, (about.ino(), Some(bytes)));
            }
        }
    }
    found
}

/// All that is there is what a tree says, and which names are of one file.
fn is_exactly(place: &Path, tree: &Tree) {
    let found = there(place);
    let names = |tree: &Tree| tree.names.keys().cloned().collect::<Vec<_>>();
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), names(tree));
    for (name, (inode, bytes)) in &found {
        let file = tree.names[name];
        assert!(bytes.as_ref() == tree.files.get(&file), "{name} has other bytes");
        if let Some(mode) = tree.modes.get(&file) {
            let about = fs::metadata(place.join(name)).expect("it is there");
            assert_eq!(about.mode() & 0o7777, *mode, "{name}");
        }
        for (other, (its, _)) in &found {
            assert_eq!(its == inode, tree.names[other] == file, "{name} and {other} are one file");
        }
    }
}

/// The same but for what the next step changes: that is as before or as behind it.
fn is_between(place: &Path, tree: &Tree, step: &NameStep) {
    let mut found = there(place);
    found.remove(TMP);
    let (touched, mut after) = (step.touches(), tree.clone());
    step.change(&mut after);
    let bytes = |tree: &Tree, name: &str| tree.names.get(name).map(|file| tree.files.get(file).cloned());
    let all = found.keys().chain(tree.names.keys()).chain(after.names.keys());
    for name in all.filter(|name| *name != TMP) {
        let is = found.get(name).map(|(_, bytes)| bytes.clone());
        if touched.contains(&name.as_str()) {
            let whole = is == bytes(tree, name) || is == bytes(&after, name);
            // A file that is written to in its place is somewhere between.
            let is_torn =
                matches!(step, NameStep::Write { .. }) && (is.is_some() || bytes(tree, name).is_none());
            assert!(whole || is_torn, "{name}, in {step:?}");
        } else if !matches!(step, NameStep::Write { .. }) {
            let len = |bytes: Option<Option<Vec<u8>>>| bytes.map(|bytes| bytes.map(|bytes| bytes.len()));
            let (has, wants) = (len(is.clone()), len(bytes(tree, name)));
            assert!(
                is == bytes(tree, name),
                "{name}, which is not touched by {step:?}: {has:?} bytes of {wants:?}"
            );
        }
    }
}

/// A program that takes steps of a seed, and what its files should be.
struct Steps {
    program: Talk,
    numbers: Numbers,
    tree: Tree,
}

impl Steps {
    fn start(cache: &Cache, seed: u64, alone: bool) -> Self {
        Self::start_in(cache, "disk/data", seed, alone)
    }

    fn start_in(cache: &Cache, directory: &str, seed: u64, alone: bool) -> Self {
        let mut command = cache.command(example("cache_load"));
        command.args(["names", directory, &seed.to_string()]);
        if alone {
            command.arg("alone");
        }
        Self { program: Talk::with(&mut command), numbers: numbers(seed, 0, 0), tree: Tree::default() }
    }

    fn draw(&mut self) -> NameStep {
        NameStep::draw(&mut self.numbers, &self.tree)
    }

    /// The next one, which is still to be drawn.
    fn next(&self) -> NameStep {
        NameStep::draw(&mut self.numbers.clone(), &self.tree)
    }

    fn take(&mut self, count: u64) {
        for _ in 0..count {
            self.program.say(".");
            self.program.line().expect("it goes on");
            self.draw().change(&mut self.tree);
        }
    }
}

/// The machine is lost, and starts again; cut short some times.
fn lost(cache: &mut Cache, disk: &mut Disk, cuts: u64) -> String {
    disk.cut_off();
    cache.kill_daemon();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    for cut in 0..cuts {
        cache.start_and_kill(Duration::from_millis(2 + 3 * cut));
    }
    cache.start_again().expect("nobody has to decide anything")
}

#[test]
fn what_was_made_renamed_and_taken_away_is_so_when_the_machine_is_lost() {
    for seed in seeds(4) {
        println!("{}", replay(seed));
        let Some((mut cache, mut disk)) = both_on_a_disk("names", seed) else { return };
        let mut steps = Steps::start(&cache, seed, false);
        steps.take(40);
        let kernel = cache.counted("syncs_kernel");
        steps.take(40);
        assert_eq!(cache.counted("syncs_kernel"), kernel, "each is absorbed: {}", cache.status());
        is_exactly(&disk.place.join("data"), &steps.tree);
        disk.cut_off();
        steps.program.child.kill().expect("it runs");
        steps.program.child.wait().expect("it ends");
        let said = lost(&mut cache, &mut disk, seed % 3);
        println!("{said}");
        is_exactly(&disk.place.join("data"), &steps.tree);
        cache.stop_and_keep();
        disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
        is_exactly(&disk.place.join("data"), &steps.tree);
    }
}

/// Nothing of the log is there then but what somebody has waited for.
#[test]
fn a_directory_that_was_synced_has_its_names_in_a_log_on_the_same_disk() {
    for seed in seeds(3) {
        println!("{}", replay(seed));
        let Some(outside) = Cache::new("names-outside", NEVER) else { return };
        let Some(mut disk) = Disk::new(outside.path("image"), outside.path("disk"), 64) else { return };
        fs::create_dir(disk.place.join("data")).expect("room");
        rustix::fs::sync();
        let mut cache = Cache::at(disk.place.clone(), NEVER);
        let mut steps = Steps::start_in(&cache, "data", seed, false);
        steps.take(60);
        let kernel = cache.counted("syncs_kernel");
        // Behind a change of which nothing is synced but its directory.
        let is_of_names = |step: &NameStep| {
            matches!(
                step,
                NameStep::Unlink { .. }
                    | NameStep::Rename { .. }
                    | NameStep::Exchange { .. }
                    | NameStep::Link { .. }
            )
        };
        while !is_of_names(&steps.next()) {
            steps.take(1);
        }
        steps.take(1);
        assert_eq!(cache.counted("syncs_kernel"), kernel, "each is absorbed: {}", cache.status());
        disk.cut_off();
        steps.program.child.kill().expect("it runs");
        steps.program.child.wait().expect("it ends");
        println!("{}", lost(&mut cache, &mut disk, 0));
        is_exactly(&disk.place.join("data"), &steps.tree);
        cache.stop_and_keep();
        drop((cache, disk));
        outside.stop();
    }
}

/// What a shell does in a directory that is absorbed, and has not synced in the end, when the journal of the file system has it and the log has not: what is there then.
fn only_the_journal_has(name: &str, before: &str, last: &str, there_is: &[(&str, &str)]) {
    let Some(outside) = Cache::new(name, NEVER) else { return };
    let Some(mut disk) = Disk::new(outside.path("image"), outside.path("disk"), 64) else { return };
    let data = disk.place.join("data");
    fs::create_dir(&data).expect("room");
    rustix::fs::sync();
    let mut cache = Cache::at(disk.place.clone(), NEVER);
    // While somebody is there, nothing is carried out by itself.
    let mut other = Talk::with(&mut cache.command("cat"));
    let shell = |script: &str| {
        let mut shell = cache.command("sh");
        assert!(shell.args(["-ec", script]).current_dir(&data).status().expect("it runs").success());
    };
    shell(
        "for n in 1 2 3 4; do printf $n >tmp; sync tmp; mv tmp target; sync .; done; printf a >a; sync a .",
    );
    if before == "drained" {
        cache.drain();
        shell("for n in 1 2 3; do printf b | dd of=a conv=notrunc,fsync status=none; done");
    }
    let kernel = cache.counted("syncs_kernel");
    shell(last);
    assert_eq!(cache.counted("syncs_kernel"), kernel, "{}", cache.status());
    File::create(disk.place.join("other")).and_then(|other| other.sync_all()).expect("a disk");
    disk.cut_off();
    other.child.kill().expect("it runs");
    other.child.wait().expect("it ends");
    cache.kill_daemon();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    let is = |there_is: &[(&str, &str)]| {
        let found = there(&data);
        let found: Vec<(&str, &[u8])> = found
            .iter()
            .map(|(name, (_, bytes))| (&name[..], &bytes.as_ref().expect("a file")[..]))
            .collect();
        let wanted: Vec<(&str, &[u8])> =
            there_is.iter().map(|(name, bytes)| (*name, bytes.as_bytes())).collect();
        assert_eq!(found, wanted, "{name}");
    };
    for cut in 0..3 {
        cache.start_and_kill(Duration::from_millis(2 + 5 * cut));
    }
    let said =
        cache.start_again().unwrap_or_else(|why| panic!("{name}: nobody has to decide anything: {why}"));
    println!("{name}: {said}");
    is(there_is);
    cache.stop_and_keep();
    drop((cache, disk));
    outside.stop();
}

#[test]
fn what_only_the_journal_has_of_a_rename_is_left_as_it_is() {
    only_the_journal_has(
        "journal-replaced",
        "",
        "printf new >tmp; sync tmp; mv tmp target",
        &[("a", "a"), ("target", "new")],
    );
    only_the_journal_has("journal-moved", "", "mv a b", &[("b", "a"), ("target", "4")]);
    only_the_journal_has("journal-over", "drained", "mv a target", &[("target", "b")]);
}

/// By its handle it is known that it is not anywhere else, which takes root.
#[test]
fn what_only_the_journal_has_of_an_unlink_is_left_as_it_is() {
    if rustix::process::geteuid().is_root() {
        only_the_journal_has("journal-unlinked", "drained", "rm a", &[("target", "4")]);
    }
}

/// What a shell opens becomes the number that it has closed before, whoever had a look at the directory.
#[test]
fn a_file_that_is_made_has_the_lowest_number_that_is_free() {
    let Some((mut cache, _disk)) = on_a_disk("numbers") else { return };
    let mut steps = Steps::start(&cache, 3, false);
    steps.take(20);
    let mut lowest = cache.command(example("cache_load"));
    let said = lowest.args(["lowest", "disk/data"]).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "ok\n", "{}", String::from_utf8_lossy(&said.stderr));
    steps.program.end();
    cache.stop_and_keep();
}

/// Two programs in one directory, one of them not under the cache.
#[test]
fn a_name_that_somebody_else_gave_to_a_file_is_left_alone() {
    let Some((mut cache, mut disk)) = on_a_disk("others-names") else { return };
    let data = disk.place.join("data");
    let mut steps = Steps::start(&cache, 1, false);
    steps.take(40);
    while !steps.tree.names.contains_key("a") {
        steps.take(1);
    }
    // What the log says of it came before.
    fs::write(data.join("theirs"), "theirs").expect("room");
    fs::rename(data.join("theirs"), data.join("a")).expect("room");
    File::open(&data).and_then(|data| data.sync_all()).expect("a disk");
    rustix::fs::sync();
    disk.cut_off();
    steps.program.child.kill().expect("it runs");
    steps.program.child.wait().expect("it ends");
    cache.kill_daemon();
    disk.unmount().and_then(|()| disk.mount()).expect("it can be mounted again");
    if let Err(why) = cache.start_again() {
        assert!(why.contains("is for you to recover: somebody else has changed"), "{why}");
        decide(&cache.log());
        cache.start_again().expect("it is decided");
    }
    assert_eq!(fs::read(data.join("a")).expect("it is there"), b"theirs");
    let mut found = there(&data);
    found.remove("a");
    steps.tree.names.remove("a");
    assert!(steps.tree.names.keys().eq(found.keys()), "{:?} and {:?}", steps.tree.names, found.keys());
    cache.stop_and_keep();
}

/// What is not logged is the kernel's before it is said to be durable.
#[test]
fn a_directory_with_a_name_that_is_not_logged_is_synced_by_the_kernel() {
    let Some((mut cache, mut disk)) = on_a_disk("unlogged-names") else { return };
    let mut steps = Steps::start(&cache, 2, false);
    steps.take(40);
    let kernel = cache.counted("syncs_kernel");
    steps.take(10);
    assert_eq!(cache.counted("syncs_kernel"), kernel, "each is absorbed: {}", cache.status());
    let mut link = cache.command("ln");
    assert!(link.args(["-s", "nowhere", "disk/data/link"]).status().expect("it runs").success());
    steps.take(10);
    assert!(cache.counted("syncs_kernel") > kernel, "{}", cache.status());
    // Files that were made meanwhile may have their own first syncs from the kernel.
    steps.take(40);
    let again = cache.counted("syncs_kernel");
    steps.take(10);
    assert_eq!(cache.counted("syncs_kernel"), again, "each is absorbed again: {}", cache.status());
    disk.cut_off();
    steps.program.child.kill().expect("it runs");
    steps.program.child.wait().expect("it ends");
    lost(&mut cache, &mut disk, 0);
    let data = disk.place.join("data");
    assert_eq!(fs::read_link(data.join("link")).expect("it is there"), Path::new("nowhere"));
    fs::remove_file(data.join("link")).expect("it is there");
    is_exactly(&data, &steps.tree);
    cache.stop_and_keep();
}

#[test]
fn who_is_killed_anywhere_leaves_names_as_before_or_as_behind_what_he_was_at() {
    for seed in seeds(4) {
        println!("{}", replay(seed));
        let Some((mut cache, mut disk)) = both_on_a_disk("killed-names", seed / 2) else { return };
        let mut steps = Steps::start(&cache, seed, true);
        for _ in 0..60 + seed % 40 {
            steps.program.line().expect("it goes on");
            steps.draw().change(&mut steps.tree);
        }
        // The machine is lost with it, or a moment later.
        if seed % 2 == 0 {
            disk.cut_off();
        }
        steps.program.child.kill().expect("it runs");
        steps.program.child.wait().expect("it ends");
        for _ in steps.program.numbers() {
            steps.draw().change(&mut steps.tree);
        }
        let said = lost(&mut cache, &mut disk, seed % 2);
        println!("{said}");
        let next = steps.draw();
        is_between(&disk.place.join("data"), &steps.tree, &next);
        cache.stop_and_keep();
    }
}

/// A log in memory, where programs number files themselves that they make. `None`: not on this kernel.
fn numbering(name: &str) -> Option<Cache> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    let mut version = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0_u32));
    if (version.next(), version.next()) < (Some(6), Some(13)) {
        println!("skipped: Linux {release} is older than 6.13");
        return None;
    }
    Cache::in_memory(name, NEVER)
}

/// A program that makes a file in a directory for each byte that it is told, and syncs it: of some the directory was synced, too.
fn making(cache: &Cache, directory: &str) -> Talk {
    let mut command = cache.command(example("cache_load"));
    let mut program = Talk::with(command.arg("files").current_dir(cache.path(directory)));
    make(&mut program, 10);
    program
}

/// Has it make some; the milliseconds that the longest took.
fn make(program: &mut Talk, count: u64) -> u64 {
    let made = (0..count).map(|_| {
        program.say(".");
        program.line().expect("it goes on").parse().expect("a number")
    });
    made.max().unwrap_or(0)
}

/// What nobody has asked for is not waited for; and what the daemon hears of later is there when the machine is lost.
#[test]
fn files_are_made_while_the_daemon_stands_still() {
    let Some(cache) = numbering("unheard") else { return };
    let Some((mut cache, mut disk)) = with_a_disk(cache) else { return };
    let mut program = making(&cache, "disk/data");
    cache.signal_daemon(Signal::STOP);
    let longest = make(&mut program, 40);
    assert!(longest < 5000, "it has waited for {longest} ms");
    cache.signal_daemon(Signal::CONT);
    for n in 10..50 {
        let name = format!("disk/data/new-{n}");
        assert_eq!((cache.count(&name, "absorbed"), cache.count(&name, "kernel")), (1, 0), "{name}");
    }
    disk.cut_off();
    program.child.kill().expect("it runs");
    program.child.wait().expect("it ends");
    println!("{}", lost(&mut cache, &mut disk, 1));
    for n in 0..50 {
        let found = fs::read(disk.place.join(format!("data/new-{n}"))).expect("it is there");
        assert_eq!(found, record(0, 0, 0, n));
    }
    cache.stop_and_keep();
}

/// One question leaves numbers for many, also of those that stay.
#[test]
fn files_that_are_made_take_few_questions() {
    let Some(mut cache) = numbering("few-questions") else { return };
    fs::create_dir(cache.path("data")).expect("room");
    let mut program = making(&cache, "data");
    let [before, kernel] = ["questions", "syncs_kernel"].map(|what| cache.counted(what));
    make(&mut program, 320);
    let asked = cache.counted("questions") - before;
    assert!(asked < 320 / 16, "{asked} questions: {}", cache.status());
    assert_eq!(cache.counted("syncs_kernel"), kernel, "each is absorbed: {}", cache.status());
    program.end();
    cache.stop_and_keep();
}

/// Who does not use the cache moves a file that the daemon has not heard of: it is synced where it is by then.
#[test]
fn a_file_that_was_moved_before_the_daemon_has_heard_of_it_is_synced() {
    let Some(cache) = numbering("moved-unheard") else { return };
    let Some((mut cache, mut disk)) = with_a_disk(cache) else { return };
    let mut program = making(&cache, "disk/data");
    cache.signal_daemon(Signal::STOP);
    make(&mut program, 3);
    let [moved, put] = ["moved", "data/new-11"].map(|name| disk.place.join(name));
    fs::rename(disk.place.join("data/new-10"), &moved).expect("it is there");
    fs::rename(&put, disk.place.join("data/old-11")).expect("it is there");
    fs::write(&put, "theirs").expect("room");
    cache.signal_daemon(Signal::CONT);
    cache.drain();
    disk.cut_off();
    program.child.kill().expect("it runs");
    program.child.wait().expect("it ends");
    println!("{}", lost(&mut cache, &mut disk, 0));
    for (name, n) in [("moved", 10), ("data/old-11", 11), ("data/new-12", 12)] {
        assert_eq!(fs::read(disk.place.join(name)).expect("it is there"), record(0, 0, 0, n), "{name}");
    }
    cache.stop_and_keep();
}

/// A daemon that is killed before it has heard of files finds that the page cache has them.
#[test]
fn files_that_a_killed_daemon_has_not_heard_of_are_whole() {
    let Some(mut cache) = numbering("never-heard") else { return };
    fs::create_dir(cache.path("data")).expect("room");
    let mut program = making(&cache, "data");
    cache.signal_daemon(Signal::STOP);
    make(&mut program, 20);
    cache.kill_daemon();
    // The program goes on: nothing is replayed under it.
    let said = cache.start_again().expect("nobody has to decide anything");
    assert!(said.contains("its files have all of it"), "{said}");
    make(&mut program, 5);
    program.end();
    for n in 0..35 {
        let found = fs::read(cache.path(&format!("data/new-{n}"))).expect("it is there");
        assert_eq!(found, record(0, 0, 0, n));
    }
    cache.stop_and_keep();
}

/// The names of files that the log knows, and of their directories.
fn known(cache: &Cache) -> Vec<String> {
    let copy = cache.path("log.copy");
    fs::copy(cache.log(), &copy).expect("room");
    let medium = format::file_options().open(&copy).expect("a log");
    let layout = scan(&medium, Lost::Unsynced).expect("a log").layout;
    let all = (0..layout.geometry.files).filter_map(|file| Identity::read(&medium, &layout, FileId(file)));
    let paths = all.map(|found| String::from_utf8(found.path).expect("text")).collect();
    drop(medium);
    fs::remove_file(&copy).expect("it is there");
    paths
}

/// Who may not find files by their handles, as only root may, looks for them where the log says that they are.
#[test]
fn the_log_knows_where_a_directory_is_that_was_moved() {
    let Some((cache, disk)) = on_a_disk("moved-directory") else { return };
    let script = "cd disk/data; mkdir a a/b; for n in 1 2 3 4; do echo $n >a/b/f; sync a/b/f a/b a; done";
    assert!(cache.command("sh").args(["-ec", script]).status().expect("it runs").success());
    let data = disk.place.join("data");
    let is_known = |name: &str| {
        let path = data.join(name).display().to_string();
        known(&cache).contains(&path)
    };
    assert!(is_known("a/b") && is_known("a"), "{:?}", known(&cache));
    fs::rename(data.join("a"), data.join("moved")).expect("it is there");
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !(is_known("moved") && is_known("moved/b")) {
        assert!(std::time::Instant::now() < until, "{:?}", known(&cache));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_known("a/b") && !is_known("a"), "{:?}", known(&cache));
    cache.drain();
    drop(disk);
    cache.stop();
}

/// Where two names are one, the log would have two, and an unlink of one would be undone by the other.
#[test]
fn a_directory_whose_names_are_not_told_apart_by_their_case_is_the_kernels() {
    let Some(mut cache) = Cache::new("folded", NEVER) else { return };
    let words = ["-O", "casefold"];
    let disk = Disk::with_features(cache.path("image"), cache.path("disk"), 64, &words);
    let Some(mut disk) = disk else { return };
    let script = "cd disk; mkdir data later; chattr +F data; sync . later; sync . later; sync . later; chattr +F later
        for d in data later; do for n in 1 2 3 4; do echo $n >$d/name; sync $d/name $d; done; rm $d/NAME; sync $d; done";
    assert!(cache.command("sh").args(["-ec", script]).status().expect("it runs").success());
    for name in ["disk/data", "disk/later"] {
        let said = cache.of(name).unwrap_or_default();
        assert!(said.contains("not told apart by their case"), "{name}: {said}");
    }
    disk.cut_off();
    println!("{}", lost(&mut cache, &mut disk, 0));
    for name in ["data/name", "later/name"] {
        assert!(!disk.place.join(name).exists(), "{name} was taken away");
    }
    cache.stop_and_keep();
}
