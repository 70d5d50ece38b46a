//! Programs that log what they do, a machine that dies under them, and recoveries that die at each of their steps: in the end all is as after the last change, whatever each
//! crash has left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use remanence_cache::entry::{Mtime, Owner};
use remanence_cache::format::{self, Geometry, Held, Lost, Promise};
use remanence_cache::log::Log;
use remanence_cache::op::{Name, Op};
use remanence_cache::recovery::{GRACE, Made, Outcome, scan};
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache::words::LocalWords;
use remanence_cache_live::recover::files::{Files as _, Kind};
use remanence_cache_live::recover::{Error, NameState, Options, Report, State, recover};
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, EveryWay, Failure, Seeded};
use remanence_pmem::layout::Uuid;

use crate::disk::{Disk, Inode, Tree};

const ME: Owner = Owner::new(1);
/// `/data`.
const DATA: Inode = 2;
const GEOMETRY: Geometry = Geometry { entries: 96, slot: 512, files: 32, path_max: 64 };

/// A program on a disk, and its log.
struct Program {
    disk: Disk,
    image: Arc<CrashImage>,
    log: Log<Arc<CrashImage>, LocalWords>,
    table: FileTable<Arc<CrashImage>>,
    ids: BTreeMap<Inode, FileId>,
}

impl Program {
    fn new() -> Self {
        let disk = Disk::new();
        let image = Arc::new(CrashImage::new(GEOMETRY.size(), PersistenceDomain::PageCache));
        let layout = format::make(&image, Uuid([0xab; 16]), GEOMETRY, 5, Promise::AtSync).unwrap();
        let log = Log::start(image.clone(), LocalWords::default(), Promise::AtSync).unwrap();
        let table = FileTable::empty(image.clone(), layout);
        let mut program = Self { disk, image, log, table, ids: BTreeMap::new() };
        program.register(DATA, "/data");
        program
    }

    fn register(&mut self, inode: Inode, path: &str) -> FileId {
        let identity = self.disk.identity(inode, path);
        let file = self.table.register(&identity, self.log.tail()).unwrap();
        self.ids.insert(inode, file);
        file
    }

    fn append(&self, op: &Op<'_>, mtime: Mtime) {
        self.log.append(ME, op, mtime).unwrap();
    }

    fn sync(&self) {
        self.log.persist_up_to(ME, self.log.head()).unwrap();
    }

    fn inode(&self, directory: Inode, name: &str) -> Inode {
        self.disk.named(&directory, name.as_bytes()).unwrap().expect("it is there")
    }

    fn place<'a>(&self, directory: Inode, name: &'a str) -> Name<'a> {
        Name { directory: self.ids[&directory], name: name.as_bytes() }
    }

    fn make(&mut self, directory: Inode, name: &str, path: &str, mode: u32) -> Inode {
        self.disk.make(&directory, name.as_bytes(), &Made::Node { mode }).unwrap();
        let inode = self.inode(directory, name);
        let file = self.register(inode, path);
        self.append(&Op::Create { file, at: self.place(directory, name), mode }, self.disk.now());
        inode
    }

    fn create(&mut self, directory: Inode, name: &str, path: &str) -> Inode {
        self.make(directory, name, path, 0o100_644)
    }

    fn write(&self, inode: Inode, offset: u64, bytes: &[u8]) {
        self.disk.write(&inode, offset, bytes).unwrap();
        let mtime = self.disk.about(&inode).unwrap().mtime;
        self.append(&Op::Write { file: self.ids[&inode], offset, bytes }, mtime);
    }

    fn truncate(&self, inode: Inode, len: u64) {
        self.disk.truncate(&inode, len).unwrap();
        let mtime = self.disk.about(&inode).unwrap().mtime;
        self.append(&Op::Truncate { file: self.ids[&inode], len }, mtime);
    }

    fn attributes(&self, inode: Inode, [mode, user, group]: [u32; 3]) {
        self.disk.attributes(&inode, mode, user, group).unwrap();
        let mtime = self.disk.about(&inode).unwrap().mtime;
        self.append(&Op::Attributes { file: self.ids[&inode], mode, user, group }, mtime);
    }

    fn rename(&self, from: (Inode, &str), to: (Inode, &str)) {
        let file = self.ids[&self.inode(from.0, from.1)];
        let (old, new) = (self.place(from.0, from.1), self.place(to.0, to.1));
        self.append(&Op::Rename { file, from: old, to: new, exchanged: None }, self.disk.now());
        self.disk.rename((&from.0, from.1.as_bytes()), (&to.0, to.1.as_bytes())).unwrap();
    }

    fn link(&self, from: (Inode, &str), to: (Inode, &str)) {
        let file = self.ids[&self.inode(from.0, from.1)];
        self.append(&Op::Link { file, at: self.place(to.0, to.1) }, self.disk.now());
        self.disk.link((&from.0, from.1.as_bytes()), (&to.0, to.1.as_bytes())).unwrap();
    }

    fn unlink(&self, directory: Inode, name: &str) {
        let inode = self.inode(directory, name);
        let at = self.place(directory, name);
        self.append(&Op::Unlink { file: self.ids[&inode], at }, self.disk.now());
        let is_directory = self.disk.about(&inode).unwrap().kind == Kind::Directory;
        self.disk.unlink(&directory, name.as_bytes(), is_directory).unwrap();
    }

    fn exchange(&self, from: (Inode, &str), to: (Inode, &str)) {
        let [file, other] = [from, to].map(|(directory, name)| self.inode(directory, name));
        let (old, new) = (self.place(from.0, from.1), self.place(to.0, to.1));
        let exchanged = Some(self.ids[&other]);
        self.append(&Op::Rename { file: self.ids[&file], from: old, to: new, exchanged }, self.disk.now());
        self.disk.exchange((&from.0, from.1.as_bytes()), (&to.0, to.1.as_bytes())).unwrap();
    }

    /// The kernel has synced a file or a directory itself, and with it its name, as each file system does of which syncs are absorbed.
    fn settle(&self, inode: Inode) {
        self.disk.sync(&DATA).unwrap();
        self.disk.sync(&inode).unwrap();
        let settled = Op::Settled { file: self.ids[&inode], upto: self.log.head() };
        self.append(&settled, self.disk.about(&inode).unwrap().mtime);
        self.sync();
    }

    /// The machine dies.
    fn crash(&self, choices: &mut dyn Choices) -> (Disk, CrashImage) {
        (self.disk.crash(choices), self.image.crash(Failure::PowerLoss, choices))
    }
}

fn recovered(image: &CrashImage, disk: &Disk) -> Result<Report, Error> {
    recover(image, scan(image, Lost::Unsynced).unwrap(), disk, &Options::default())
}

/// Recovers, cut short at each step, with another crash there; and once with an error there.
fn at_each_step(disk: &Disk, image: &CrashImage, expected: &Tree, choices: &mut dyn Choices, tries: u64) {
    let mut step = 0;
    loop {
        let mut is_whole = false;
        for attempt in 0..tries {
            let (disk, image) = (disk.crash(&mut Seeded::new(0)), copied(image));
            let only_once = attempt % 2 == 1;
            // Long after: its own writes are not taken for somebody else's.
            disk.wait(2 * GRACE);
            disk.fail_after(step, only_once);
            let first = recovered(&image, &disk);
            disk.fail_after(u64::MAX, false);
            is_whole = first.is_ok();
            let was_empty = scan(&image, Lost::Nothing).unwrap().is_clean();
            let (disk, image) = match only_once {
                true => (disk, image),
                false => (disk.crash(choices), image.crash(Failure::PowerLoss, choices)),
            };
            let report = recovered(&image, &disk).unwrap_or_else(|error| panic!("step {step}: {error}"));
            assert!(scan(&image, Lost::Unsynced).unwrap().is_clean(), "step {step}: {report:?}");
            // What is said to be recovered is durable.
            let mut left = disk.crash(choices).tree();
            if was_empty {
                // It had come to its end, and second names of what was made may be left.
                left.retain(|name, _| !is_for_now(name));
                left.values_mut().for_each(|(_, _, names, _)| names.retain(|name| !is_for_now(name)));
            }
            compare(&left, expected, step, &report);
            assert!(
                recovered(&image, &disk).unwrap().files.is_empty(),
                "a second time there is nothing to do"
            );
        }
        if is_whole {
            break;
        }
        step += 1;
    }
}

fn copied(image: &CrashImage) -> CrashImage {
    CrashImage::from_bytes(image.bytes(), PersistenceDomain::PageCache)
}

fn is_for_now(path: &[u8]) -> bool {
    path.windows(6).any(|part| part == b"/.rem-")
}

fn compare(left: &Tree, expected: &Tree, step: u64, report: &Report) {
    let shown = |tree: &Tree| -> Vec<String> {
        tree.iter()
            .map(|(name, (kind, bytes, names, attributes))| {
                let sum: usize = bytes.iter().map(|byte| usize::from(*byte)).sum();
                let (name, len, names) = (String::from_utf8_lossy(name), bytes.len(), names.len());
                format!("{name} {kind:?} {len} {sum} {names} {attributes:?}")
            })
            .collect()
    };
    assert!(left == expected, "step {step}: {:#?}, and not {:#?}: {report:?}", shown(left), shown(expected));
}

/// All that crashes can leave of a small program, and then of its recovery; or as many of them as there is time for.
fn every_way(program: &Program, most: u64) {
    program.sync();
    let expected = program.disk.tree();
    let mut ways = EveryWay::new();
    for way in 0..most {
        let (disk, image) = program.crash(&mut ways);
        at_each_step(&disk, &image, &expected, &mut Seeded::new(way), 2);
        if !ways.advance() {
            println!("{} ways", way + 1);
            return;
        }
    }
    println!("{most} ways, and there are more");
}

#[test]
fn a_file_that_was_made_and_lost_is_made_again_with_all_its_bytes() {
    let mut program = Program::new();
    let file = program.create(DATA, "a", "/data/a");
    program.write(file, 10, &[7; 600]);
    program.truncate(file, 300);
    program.write(file, 290, &[8; 20]);
    program.attributes(file, [0o100_600, 1, 2]);
    every_way(&program, 300);
}

#[test]
fn a_file_that_replaced_another_does_so_again() {
    let mut program = Program::new();
    // One that the log does not know was there before.
    program.disk.make(&DATA, b"a", &Made::Node { mode: 0o100_644 }).unwrap();
    program.disk.sync(&DATA).unwrap();
    let file = program.create(DATA, "a.tmp", "/data/a.tmp");
    program.write(file, 0, &[7; 700]);
    program.rename((DATA, "a.tmp"), (DATA, "a"));
    every_way(&program, 300);
}

#[test]
fn names_that_went_round_mean_what_they_meant_last() {
    let mut program = Program::new();
    for (name, byte) in [("a", 1), ("b", 2)] {
        let file = program.create(DATA, name, &format!("/data/{name}"));
        program.write(file, 0, &[byte; 5]);
        program.disk.sync(&file).unwrap();
    }
    program.disk.sync(&DATA).unwrap();
    program.rename((DATA, "a"), (DATA, "c"));
    program.rename((DATA, "b"), (DATA, "a"));
    program.rename((DATA, "c"), (DATA, "b"));
    program.link((DATA, "a"), (DATA, "d"));
    every_way(&program, 300);
}

#[test]
fn a_directory_that_was_lost_has_its_files_again_and_one_that_was_moved_is_there() {
    let mut program = Program::new();
    let directory = program.make(DATA, "d", "/data/d", 0o040_755);
    let file = program.create(directory, "f", "/data/d/f");
    program.write(file, 0, b"deep");
    program.rename((DATA, "d"), (DATA, "e"));
    let gone = program.create(DATA, "g", "/data/g");
    program.write(gone, 0, b"nobody needs it");
    program.unlink(DATA, "g");
    every_way(&program, 300);
}

/// A program in two directories, one of them new.
fn in_two_directories(choices: &mut Seeded) -> (Program, [(Inode, &'static str); 2]) {
    let mut program = Program::new();
    let directory = program.make(DATA, "d", "/data/d", 0o040_755);
    if choices.pick(2) == 0 {
        program.disk.sync(&DATA).unwrap();
    }
    (program, [(DATA, "/data"), (directory, "/data/d")])
}

fn random_step(program: &mut Program, directories: [(Inode, &str); 2], choices: &mut Seeded, settles: bool) {
    let (place, path) = directories[choices.pick(2)];
    let name = ["a", "b", "c"][choices.pick(3)];
    let (other, to) = (directories[choices.pick(2)].0, ["a", "b", "c"][choices.pick(3)]);
    let there = program.disk.named(&place, name.as_bytes()).unwrap();
    let taken = program.disk.named(&other, to.as_bytes()).unwrap();
    match (there, choices.pick(11)) {
        (None, _) => {
            program.create(place, name, &format!("{path}/{name}"));
        }
        (Some(file), 0..=2) => {
            let len = 1 + choices.pick(900);
            let bytes: Vec<u8> = (0..len).map(|_| choices.pick(256) as u8).collect();
            program.write(file, choices.pick(900) as u64, &bytes);
        }
        (Some(file), 3) => program.truncate(file, choices.pick(1200) as u64),
        (Some(file), 4) => program.disk.sync(&file).unwrap(),
        (Some(_), 5) if taken.is_none() => program.link((place, name), (other, to)),
        (Some(file), 6) if taken != Some(file) => program.rename((place, name), (other, to)),
        (Some(_), 7) => program.unlink(place, name),
        (Some(file), 8) if taken.is_some_and(|taken| taken != file) => {
            program.exchange((place, name), (other, to));
        }
        (_, 9) if settles => program.settle(place),
        (Some(file), 10) => program.attributes(file, [0o100_000 + choices.pick(0o777) as u32, 7, 8]),
        _ => program.disk.sync(&place).unwrap(),
    }
}

#[test]
fn random_programs_are_recovered_whatever_was_lost() {
    for seed in seeds(60) {
        println!("{}", replay(seed));
        let mut choices = Seeded::new(seed);
        let (mut program, directories) = in_two_directories(&mut choices);
        for _ in 0..10 {
            random_step(&mut program, directories, &mut choices, true);
        }
        program.sync();
        let expected = program.disk.tree();
        for _ in 0..3 {
            let (disk, image) = program.crash(&mut choices);
            at_each_step(&disk, &image, &expected, &mut choices, 2);
        }
    }
}

/// What nobody was told of may be so or not, in the log and on the disk, each by itself: it takes nothing from what was acknowledged before.
#[test]
fn what_was_acknowledged_is_there_whatever_came_behind_it() {
    for seed in seeds(300) {
        println!("{}", replay(seed));
        let mut choices = Seeded::new(seed);
        let (mut program, directories) = in_two_directories(&mut choices);
        for _ in 0..8 {
            random_step(&mut program, directories, &mut choices, false);
        }
        program.sync();
        let expected = program.disk.tree();
        let (mut before, mut touched) = (expected.clone(), BTreeSet::new());
        // Files that have the same are told apart, too.
        let inodes = |program: &Program| -> Vec<(Vec<u8>, Option<Inode>)> {
            let names = directories.iter().flat_map(|place| ["a", "b", "c"].map(|name| (place, name)));
            let found = |((directory, path), name): (&(Inode, &str), &str)| {
                let inode = program.disk.named(directory, name.as_bytes()).unwrap();
                (format!("{path}/{name}").into_bytes(), inode)
            };
            names.map(found).collect()
        };
        for _ in 0..1 + choices.pick(5) {
            let meant = inodes(&program);
            random_step(&mut program, directories, &mut choices, false);
            let after = program.disk.tree();
            let moved = inodes(&program).into_iter().zip(meant).filter(|(is, was)| is != was);
            touched.extend(moved.map(|((name, _), _)| name));
            let names = before.keys().chain(after.keys());
            touched.extend(names.filter(|name| before.get(*name) != after.get(*name)).cloned());
            before = after;
        }
        for _ in 0..4 {
            let (disk, image) = program.crash(&mut choices);
            disk.fail_after(choices.pick(12) as u64, false);
            let first = recovered(&image, &disk);
            disk.fail_after(u64::MAX, false);
            let (disk, image) = (disk.crash(&mut choices), image.crash(Failure::PowerLoss, &mut choices));
            let report = recovered(&image, &disk).unwrap_or_else(|error| panic!("{error}"));
            assert!(scan(&image, Lost::Unsynced).unwrap().is_clean(), "{report:?}");
            let (mut left, mut expected) = (disk.crash(&mut choices).tree(), expected.clone());
            // A name that was given to another file since takes the one away from its file that this is to have, which keeps what it has; a disk that keeps the first change, and not the second,
            // has no journal.
            let told = first.iter().chain([&report]).flat_map(|report| &report.names);
            let told = told.filter(|name| matches!(name.state, NameState::Left(_)));
            let told: BTreeSet<Vec<u8>> = told.map(|name| name.name.clone().into_bytes()).collect();
            for tree in [&mut left, &mut expected] {
                let is_known =
                    |name: &Vec<u8>| !touched.contains(name) && !told.contains(name) && !is_for_now(name);
                tree.retain(|name, _| is_known(name));
                tree.values_mut().for_each(|(_, _, names, _)| names.retain(is_known));
            }
            compare(&left, &expected, 0, &report);
        }
    }
}

/// What the kernel has synced of a directory that somebody else has changed is as it is, and what was logged behind that is carried out.
#[test]
fn names_that_the_kernel_has_synced_since_are_not_undone() {
    let mut program = Program::new();
    program.disk.handles.set(true);
    let moved = program.create(DATA, "moved", "/data/moved");
    program.write(moved, 0, b"ours");
    for name in ["removed", "replaced"] {
        let file = program.create(DATA, name, &format!("/data/{name}"));
        program.disk.sync(&file).unwrap();
    }
    program.sync();
    // By others.
    program.disk.rename((&DATA, b"moved"), (&DATA, b"elsewhere")).unwrap();
    program.disk.unlink(&DATA, b"removed", false).unwrap();
    program.disk.make(&DATA, b"other", &Made::Node { mode: 0o100_644 }).unwrap();
    program.disk.rename((&DATA, b"other"), (&DATA, b"replaced")).unwrap();
    program.settle(DATA);
    let file = program.create(DATA, "new", "/data/new");
    program.write(file, 0, b"new");
    every_way(&program, 300);
}

/// The kernel has synced it once, and then it was changed by those who use the log: these changes are due.
#[test]
fn names_that_were_changed_behind_a_sync_of_the_kernel_are_due() {
    let mut program = Program::new();
    let (one, other) = (program.create(DATA, "a", "/data/a"), program.create(DATA, "b", "/data/b"));
    program.write(one, 0, b"one");
    program.write(other, 0, b"other");
    program.settle(DATA);
    program.exchange((DATA, "a"), (DATA, "b"));
    program.unlink(DATA, "a");
    every_way(&program, 300);
}

/// Somebody else changes a file long after those who use the log did.
fn changed_by_others(program: &Program, file: Inode, offset: u64, bytes: &[u8]) {
    program.disk.wait(GRACE + 1);
    program.disk.write(&file, offset, bytes).unwrap();
    program.disk.sync(&file).unwrap();
}

#[test]
fn what_somebody_else_made_durable_is_kept_and_ours_is_beside_it() {
    let mut program = Program::new();
    let file = program.create(DATA, "a", "/data/a");
    program.disk.sync(&DATA).unwrap();
    program.write(file, 0, &[1; 9000]);
    program.disk.sync(&file).unwrap();
    program.write(file, 0, &[2; 9000]);
    let ours = program.disk.tree()[&b"/data/a"[..]].1.clone();
    program.sync();
    changed_by_others(&program, file, 5000, &[9; 100]);
    let theirs = program.disk.tree()[&b"/data/a"[..]].1.clone();
    let (disk, image) = program.crash(&mut Seeded::new(1));
    let options = Options { dry: true, ..Options::default() };
    let dry = recover(&image, scan(&image, Lost::Unsynced).unwrap(), &disk, &options).unwrap();
    let State::Foreign { kept, beside: None, uncut: false, replayed: 0 } = &dry.files[0].state else {
        panic!("{dry:?}")
    };
    assert_eq!((kept, disk.steps.get()), (&vec![4096], 0), "a dry run changes nothing");
    let mut expected = disk.tree();
    let name = b"/data/a.rem-recovered".to_vec();
    expected.insert(name.clone(), (Kind::File, ours, vec![name], [0; 3]));
    assert_eq!(expected[&b"/data/a"[..]].1, theirs);
    at_each_step(&disk, &image, &expected, &mut Seeded::new(2), 4);
}

#[test]
fn what_is_due_to_a_file_that_is_not_found_stays_in_the_log_or_is_set_aside() {
    let mut program = Program::new();
    let file = program.create(DATA, "a", "/data/a");
    let other = program.create(DATA, "b", "/data/b");
    program.disk.make(&DATA, b"aside", &Made::Node { mode: 0o040_755 }).unwrap();
    program.disk.sync(&DATA).unwrap();
    program.log.advance(program.log.head()).unwrap();
    program.log.free(program.log.head());
    program.write(file, 0, b"lost");
    program.write(other, 0, b"found");
    program.sync();
    // Somebody moves it where nobody can know.
    program.disk.rename((&DATA, b"a"), (&1, b"elsewhere")).unwrap();
    program.disk.sync(&DATA).unwrap();
    let (disk, image) = program.crash(&mut Seeded::new(1));
    let report = recovered(&image, &disk).unwrap();
    let id = program.ids[&file];
    assert_eq!(report.outcome, Some(Outcome::Held(Held::Files(vec![id]))));
    let State::Absent { why: Some(why) } = &report.files[0].state else { panic!("{report:?}") };
    assert!(why.contains("CAP_DAC_READ_SEARCH"), "{why}");
    assert_eq!(disk.tree()[&b"/data/b"[..]].1, b"found");
    // By its handle it is found.
    disk.handles.set(true);
    let (again, log) = (disk.crash(&mut Seeded::new(1)), copied(&image));
    assert_eq!(recovered(&log, &again).unwrap().outcome, Some(Outcome::Empty));
    let mut bytes = [0; 9];
    let node = again.named(&1, b"elsewhere").unwrap().unwrap();
    assert_eq!((again.read(&node, 0, &mut bytes).unwrap(), &bytes[..4]), (4, &b"lost"[..]));
    // Without, it may be set aside.
    disk.handles.set(false);
    let options = Options { set_aside: Some("/data/aside".into()), ..Options::default() };
    let report = recover(&image, scan(&image, Lost::Unsynced).unwrap(), &disk, &options).unwrap();
    assert_eq!(report.outcome, Some(Outcome::Empty));
    assert_eq!(report.files[0].state, State::SetAside { path: "/data/aside/a.rem-recovered".into() });
    assert_eq!(disk.tree()[&b"/data/aside/a.rem-recovered"[..]].1, b"lost");
}

/// Always the last answer: names that were not synced are lost, and bytes are there.
struct Last;

impl Choices for Last {
    fn pick(&mut self, options: usize) -> usize {
        options - 1
    }
}

/// It was moved to where nothing is logged, and the kernel has synced it there: what the log has from then on is no whole file.
#[test]
fn a_file_that_the_kernel_has_synced_since_it_was_made_is_not_made_again() {
    let mut program = Program::new();
    let file = program.create(DATA, "a", "/data/a");
    program.write(file, 0, b"before");
    program.disk.rename((&DATA, b"a"), (&1, b"elsewhere")).unwrap();
    program.settle(file);
    program.write(file, 6, b", behind");
    program.sync();
    let (disk, image) = program.crash(&mut Seeded::new(1));
    let report = recovered(&image, &disk).unwrap();
    let held = Held::Files(vec![program.ids[&file]]);
    assert_eq!(report.outcome, Some(Outcome::Held(held)), "{report:?}");
    assert!(matches!(report.files[0].state, State::Absent { .. }), "{report:?}");
    assert!(matches!(report.names[0].state, NameState::Left(_)), "{report:?}");
    assert_eq!(disk.named(&DATA, b"a").unwrap(), None, "it would lack what was before");
    // Who may look for it by its handle finds it.
    disk.handles.set(true);
    assert_eq!(recovered(&image, &disk).unwrap().outcome, Some(Outcome::Empty));
    let mut bytes = [0; 20];
    let len = disk.read(&disk.named(&1, b"elsewhere").unwrap().unwrap(), 0, &mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"before, behind");
}

#[test]
fn a_name_that_somebody_else_gave_since_is_left_alone() {
    for is_renamed in [true, false] {
        let mut program = Program::new();
        let file = program.create(DATA, "a", "/data/a");
        program.write(file, 0, b"ours");
        program.disk.sync(&DATA).unwrap();
        program.disk.sync(&file).unwrap();
        program.rename((DATA, "a"), (DATA, "b"));
        program.sync();
        let (disk, image) =
            if is_renamed { program.crash(&mut EveryWay::new()) } else { program.crash(&mut Last) };
        assert_eq!(disk.named(&DATA, b"b").unwrap().is_some(), is_renamed);
        disk.wait(GRACE);
        let free = if is_renamed { b"a" } else { b"b" };
        disk.make(&DATA, free, &Made::Node { mode: 0o100_644 }).unwrap();
        let theirs = disk.named(&DATA, free).unwrap();
        let report = recovered(&image, &disk).unwrap();
        assert_eq!(disk.named(&DATA, free).unwrap(), theirs);
        assert!(report.names.iter().any(|name| matches!(name.state, NameState::Left(_))), "{report:?}");
        let is_there = disk.tree().values().any(|(_, bytes, ..)| bytes == b"ours");
        assert!(is_there, "its last name is never taken: {report:?}");
    }
}

#[test]
fn names_of_a_log_that_was_forged_lead_nowhere() {
    let program = Program::new();
    let file = FileId(0);
    for name in ["..", ".", "a/b", "", "a\0b"] {
        let at = Name { directory: FileId(0), name: name.as_bytes() };
        program.append(&Op::Link { file, at }, Mtime(1));
        program.append(&Op::Unlink { file, at }, Mtime(1));
        program.append(&Op::Symlink { file, at, target: b"/etc" }, Mtime(1));
    }
    program.sync();
    let (disk, image) = program.crash(&mut Seeded::new(1));
    let before = disk.tree();
    let report = recovered(&image, &disk).unwrap();
    assert_eq!(disk.tree(), before);
    assert_eq!(report.names.len(), 5, "{report:?}");
}

#[test]
fn an_identity_that_another_file_has_now_is_not_written_to() {
    let mut program = Program::new();
    let file = program.create(DATA, "a", "/data/a");
    program.disk.sync(&DATA).unwrap();
    program.log.advance(program.log.head()).unwrap();
    program.log.free(program.log.head());
    program.write(file, 0, b"ours");
    program.sync();
    // It is replaced by one that nobody logged, as `cp` and `mv` do.
    program.disk.unlink(&DATA, b"a", false).unwrap();
    program.disk.make(&DATA, b"a", &Made::Node { mode: 0o100_644 }).unwrap();
    let new = program.inode(DATA, "a");
    program.disk.write(&new, 0, b"theirs").unwrap();
    program.disk.sync(&new).unwrap();
    program.disk.sync(&DATA).unwrap();
    let (disk, image) = program.crash(&mut Seeded::new(1));
    let report = recovered(&image, &disk).unwrap();
    assert!(matches!(report.files[0].state, State::Absent { .. }), "{report:?}");
    assert_eq!(disk.tree()[&b"/data/a"[..]].1, b"theirs");
    let layout = scan(&image, Lost::Unsynced).unwrap().layout;
    assert!(Identity::read(&image, &layout, program.ids[&file]).is_some());
}
