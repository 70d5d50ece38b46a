//! The read cache over a log, its cleaner and a disk: accesses side by side, each a step at a time in an order that a seed chooses. What is read is what was written last,
//! whatever is cleaned, evicted or torn meanwhile, and what a crash leaves is what was read.

use std::collections::BTreeMap;

use remanence_cache::cleaner::{Action, Cleaner, Feed, Options as Cleaning, Token};
use remanence_cache::entry::{Mtime, Owner};
use remanence_cache::format::{Lost, Promise};
use remanence_cache::log::{AppendError, Log};
use remanence_cache::op::Op;
use remanence_cache::reads::{Access, Fault, Options, PageOf, Reads, Step};
use remanence_cache::recovery::{Outcome, Policy, scan};
use remanence_cache::table::FileId;
use remanence_cache::words::LocalWords;
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Failure, Seeded};

use crate::crash::{FILES, made};
use crate::files::{Change, Disk, recover};

const PAGE: usize = 64;
const ENTRIES: u64 = 16;
const ME: Owner = Owner::new(1);

/// A log, its cache, its cleaner and a disk.
struct World<'a> {
    log: Log<&'a CrashImage, LocalWords>,
    image: &'a CrashImage,
    reads: Reads,
    cleaner: Cleaner,
    disk: Disk,
    asked: Vec<(Token, Action)>,
    choices: Seeded,
    model: BTreeMap<u32, Vec<u8>>,
}

/// An access, and what it has read of a page that it waits for.
struct Task<'a> {
    access: Access<'a>,
    change: Option<Change>,
    file: u32,
    offset: usize,
    torn: Option<Vec<u8>>,
}

fn options(frames: usize, descriptors: usize) -> Options {
    Options { files: FILES, page: PAGE, frames, descriptors, patches: 8 }
}

impl<'a> World<'a> {
    fn new(image: &'a CrashImage, promise: Promise, options: Options, seed: u64) -> Self {
        let log = Log::start(image, LocalWords::default(), promise).expect("it is empty");
        let cleaner = Cleaner::new(Cleaning { batch: 4, low: 8 }, log.tail());
        let reads = Reads::new(options);
        let mut disk = Disk::default();
        disk.write(&Change::Write { file: 1, offset: 0, bytes: vec![0xee; 150] }.op());
        disk.sync(1);
        reads.open_file(FileId(1), 150);
        reads.open_file(FileId(2), 0);
        let model = BTreeMap::from([(1, vec![0xee; 150]), (2, Vec::new())]);
        Self { log, image, reads, cleaner, disk, asked: Vec::new(), choices: Seeded::new(seed), model }
    }

    /// What the file has of a page, each byte as it is now or as it was before.
    fn page(&mut self, of: PageOf, before: Option<&[u8]>) -> Vec<u8> {
        let visible = self.disk.visible();
        let content = visible.bytes.get(&of.file.0).map_or(&[][..], |bytes| &bytes[..]);
        let from = (of.page as usize * PAGE).min(content.len());
        let mut page = content[from..content.len().min(from + PAGE)].to_vec();
        if let Some(before) = before {
            page.iter_mut().zip(before).for_each(|(now, before)| {
                if self.choices.pick(2) == 0 {
                    *now = *before;
                }
            });
        }
        page
    }

    /// Does one thing that the cleaner asks for; whether anything was done.
    fn clean(&mut self) -> bool {
        assert_eq!(self.cleaner.feed(&self.log, |_| false).expect("the medium stands"), Feed::Fed);
        while let Some(asked) = self.cleaner.poll(|_| true) {
            self.asked.push(asked);
        }
        if self.asked.is_empty() {
            return false;
        }
        let at = self.choices.pick(self.asked.len());
        let (token, action) = self.asked[at];
        match action {
            Action::Persist { from, upto } => self.log.secure(&(from..upto)).expect("the medium stands"),
            Action::Apply { entry } => {
                let mut payload = Vec::new();
                self.log.payload(&entry, &mut payload).expect("it is whole");
                self.disk.write(&entry.op(&payload).expect("it is a change"));
            }
            Action::Sync { file } => self.disk.sync(file.0),
            Action::Names => panic!("no name changes"),
            Action::Advance { tail } => self.log.advance(tail).expect("the medium stands"),
            Action::Free { tail } => {
                if !self.reads.settle(tail) {
                    return false;
                }
                self.log.free(tail);
            }
        }
        self.asked.swap_remove(at);
        self.cleaner.done(token);
        true
    }

    /// Appends a change; says where it is. `None`: the log is full.
    fn append(&self, op: &Op<'_>) -> Option<u64> {
        let count = self.log.entries_of(op).expect("it is short");
        let reserved = match self.log.reserve(ME, count) {
            Ok(reserved) => reserved,
            Err(AppendError::Full { .. }) => return None,
            Err(error) => panic!("{error}"),
        };
        self.log.fill(&reserved, op, Mtime::UNKNOWN);
        self.log.commit(&reserved).expect("the medium stands");
        Some(reserved.first())
    }

    /// Goes on with an access by a step; whether it is at its end.
    fn step(&mut self, task: &mut Task<'_>) -> bool {
        let done = task.access.done();
        let step = self.reads.step(&mut task.access).expect("it is short");
        let content = &self.model[&task.file];
        let new = &task.access.bytes()[done..];
        assert_eq!(
            *new,
            content[(task.offset + done).min(content.len())..][..new.len()],
            "{:?}",
            task.access
        );
        match step {
            Step::Done => {
                if task.change.is_none() {
                    assert!(self.ends(task), "{:?}", task.access);
                }
                return true;
            }
            Step::Load(of) => match task.torn.take() {
                None => task.torn = Some(self.page(of, None)),
                Some(before) => {
                    let page = self.page(of, Some(&before));
                    let layout = *self.log.layout();
                    self.reads.loaded(&mut task.access, &page, self.image, &layout).expect("it is whole");
                }
            },
            Step::Append => {
                let change = task.change.clone().expect("it changes something");
                let Some(first) = self.append(&change.op()) else {
                    self.reads.give_up(&mut task.access);
                    self.cleaner.drain_to(self.log.head());
                    return false;
                };
                self.reads.appended(&mut task.access, first);
                let content = self.model.get_mut(&task.file).expect("both are there");
                match change {
                    Change::Write { offset, bytes, .. } => {
                        let end = offset as usize + bytes.len();
                        content.resize(content.len().max(end), 0);
                        content[offset as usize..end].copy_from_slice(&bytes);
                    }
                    Change::Truncate { len, .. } => content.resize(len as usize, 0),
                    other => panic!("no test has {other:?}"),
                }
                assert_eq!(self.reads.size(FileId(task.file)), Some(content.len() as u64));
                return true;
            }
            Step::Clean { upto } => self.cleaner.drain_to(upto),
            Step::Full => self.cleaner.drain_to(self.log.head()),
            Step::Busy => {}
        }
        false
    }

    fn ends(&self, task: &Task<'_>) -> bool {
        let rest = self.model[&task.file].len().saturating_sub(task.offset);
        task.access.done() <= rest
    }

    /// What a recovery makes of the log and the disk, if everything dies now.
    fn crash(&mut self, promise: Promise) {
        let (failure, lost) = match promise {
            Promise::AtReturn => (Failure::PowerLoss, Lost::Unsynced),
            Promise::AtSync => (Failure::ProcessCrash, Lost::Nothing),
        };
        let crashed = self.image.crash(failure, &mut self.choices);
        let mut disk = self.disk.clone();
        if lost == Lost::Unsynced {
            disk.crash(&mut self.choices);
        }
        let found = scan(&crashed, lost).expect("it is whole");
        assert_eq!(recover(&crashed, found, Policy::Hold, &mut disk, 1, u64::MAX), Some(Outcome::Empty));
        for (file, bytes) in &self.model {
            assert_eq!(disk.visible().bytes.get(file).cloned().unwrap_or_default(), *bytes, "{file}");
        }
    }

    fn read(&mut self, file: u32, offset: usize, len: usize) -> Vec<u8> {
        let mut into = vec![0xaa; len];
        let access = Access::read(FileId(file), offset as u64, &mut into);
        let mut task = Task { access, change: None, file, offset, torn: None };
        self.run(&mut task);
        let done = task.access.done();
        into.truncate(done);
        into
    }

    fn change(&mut self, change: Change) {
        let access = access_of(&change);
        let file = change.op().file().0;
        self.run(&mut Task { access, change: Some(change.clone()), file, offset: 0, torn: None });
    }

    fn run(&mut self, task: &mut Task<'_>) {
        for _ in 0..1000 {
            if self.step(task) {
                return;
            }
            self.clean();
        }
        panic!("it comes to no end: {:?}", task.access);
    }

    fn drain(&mut self) {
        self.cleaner.drain_to(self.log.head());
        while self.clean() {}
        assert_eq!(self.log.used(), 0);
    }
}

fn access_of(change: &Change) -> Access<'_> {
    match change {
        Change::Write { file, offset, bytes } => Access::write(FileId(*file), *offset, bytes),
        Change::Truncate { file, len } => Access::truncate(FileId(*file), *len),
        other => panic!("no test has {other:?}"),
    }
}

fn write(file: u32, offset: u64, byte: u8, len: usize) -> Change {
    Change::Write { file, offset, bytes: vec![byte; len] }
}

fn log(promise: Promise) -> CrashImage {
    let domain = match promise {
        Promise::AtReturn => PersistenceDomain::Adr,
        Promise::AtSync => PersistenceDomain::PageCache,
    };
    made(ENTRIES, promise, domain)
}

#[test]
fn what_is_read_is_what_was_written_whatever_is_cleaned_evicted_or_torn_meanwhile() {
    for seed in seeds(120) {
        println!("{}", replay(seed));
        let mut choices = Seeded::new(seed);
        let promise = [Promise::AtReturn, Promise::AtSync][choices.pick(2)];
        let image = log(promise);
        let frames = 3 + choices.pick(6);
        let mut world =
            World::new(&image, promise, options(frames, frames + 16 + choices.pick(30)), seed + 1);
        for n in 0..50 {
            // Three accesses side by side.
            let mut buffers: [Vec<u8>; 3] = std::array::from_fn(|_| vec![0xaa; choices.pick(200)]);
            let changes: [Option<Change>; 3] = std::array::from_fn(|m| {
                let (file, offset) = (1 + choices.pick(2) as u32, choices.pick(500) as u64);
                match choices.pick(8) {
                    0 => Some(Change::Truncate { file, len: offset }),
                    1..5 => {
                        let most = [150, 20, 20][choices.pick(3)];
                        let len = 1 + choices.pick(most);
                        let bytes = (0..len).map(|at| (n * 48 + m * 16 + at % 16) as u8).collect();
                        Some(Change::Write { file, offset, bytes })
                    }
                    _ => None,
                }
            });
            let mut tasks = Vec::new();
            for (buffer, change) in buffers.iter_mut().zip(&changes) {
                let (file, offset) = (1 + choices.pick(2) as u32, choices.pick(500));
                tasks.push(match change {
                    Some(change) => {
                        let file = change.op().file().0;
                        let access = access_of(change);
                        Task { access, change: Some(change.clone()), file, offset: 0, torn: None }
                    }
                    None => {
                        let access = Access::read(FileId(file), offset as u64, buffer);
                        Task { access, change: None, file, offset, torn: None }
                    }
                });
            }
            for turn in 0.. {
                assert!(
                    turn < 10_000,
                    "it comes to no end: {:?}",
                    tasks.iter().map(|task| &task.access).collect::<Vec<_>>()
                );
                if tasks.is_empty() {
                    break;
                }
                let at = choices.pick(tasks.len() + 1);
                if at == tasks.len() {
                    world.clean();
                } else if world.step(&mut tasks[at]) {
                    drop(tasks.swap_remove(at));
                } else if choices.pick(40) == 0 && tasks[at].change.is_none() {
                    // Somebody was interrupted.
                    world.reads.give_up(&mut tasks[at].access);
                    drop(tasks.swap_remove(at));
                }
            }
            if choices.pick(8) == 0 {
                world.crash(promise);
            }
        }
        for (file, bytes) in world.model.clone() {
            assert_eq!(world.read(file, 0, 1000), bytes);
        }
        world.drain();
        for (file, bytes) in world.model.clone() {
            assert_eq!(world.disk.visible().bytes.get(&file).cloned().unwrap_or_default(), bytes);
            assert_eq!(world.reads.forget(FileId(file)), Ok(Step::Done));
            world.reads.open_file(FileId(file), bytes.len() as u64);
            assert_eq!(world.read(file, 0, 1000), bytes);
        }
    }
}

#[test]
fn a_dirty_miss_puts_the_entries_of_its_page_over_what_the_file_has() {
    let image = log(Promise::AtReturn);
    let mut world = World::new(&image, Promise::AtReturn, options(2, 40), 1);
    // Three slots of the log, of which the middle page has the end of one and the begin of another.
    world.change(write(1, 10, 1, 150));
    world.change(write(1, 70, 2, 4));
    let counters = [0, 1, 2, 3].map(|page| world.reads.dirty(PageOf { file: FileId(1), page }));
    assert_eq!(counters, [1, 2, 1, 0]);
    let mut into = [0; 64];
    let mut access = Access::read(FileId(1), 64, &mut into);
    let of = PageOf { file: FileId(1), page: 1 };
    assert_eq!(world.reads.step(&mut access), Ok(Step::Load(of)));
    // While it loads, none of its entries is freed.
    let tail = world.log.head();
    assert!(!world.reads.settle(tail));
    world.reads.loaded(&mut access, &[0xee; 64], &image, world.log.layout()).unwrap();
    assert_eq!(world.reads.step(&mut access), Ok(Step::Done));
    assert_eq!(access.bytes(), [vec![1; 6], vec![2; 4], vec![1; 54]].concat());
    assert!(world.reads.settle(tail));
    assert_eq!(world.reads.dirty(of), 0);
}

#[test]
fn a_page_with_more_entries_than_a_miss_reads_waits_for_the_cleaner() {
    let image = log(Promise::AtReturn);
    let mut world = World::new(&image, Promise::AtReturn, options(2, 40), 1);
    for n in 0..9 {
        world.change(write(1, n, n as u8, 1));
    }
    let mut into = [0; 9];
    let mut access = Access::read(FileId(1), 0, &mut into);
    assert_eq!(world.reads.step(&mut access), Ok(Step::Clean { upto: world.log.head() }));
    world.reads.give_up(&mut access);
    assert_eq!(world.read(1, 0, 9), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(world.log.used() < 9, "some were cleaned for it");
}

#[test]
fn a_write_updates_what_is_here_and_loads_nothing() {
    let image = log(Promise::AtReturn);
    let mut world = World::new(&image, Promise::AtReturn, options(4, 40), 1);
    assert_eq!(world.read(1, 0, 64), [0xee; 64]);
    let change = write(1, 60, 5, 8);
    let mut access = access_of(&change);
    assert_eq!(world.reads.step(&mut access), Ok(Step::Append), "neither page is loaded for it");
    // A hit waits for nobody who appends.
    let mut into = [0; 64];
    let mut hit = Access::read(FileId(1), 0, &mut into);
    assert_eq!(world.reads.step(&mut hit), Ok(Step::Done));
    assert_eq!(hit.bytes(), [0xee; 64]);
    // A miss does, and so does another write, to the second page too.
    let mut into = [0; 1];
    let mut miss = Access::read(FileId(1), 64, &mut into);
    assert_eq!(world.reads.step(&mut miss), Ok(Step::Busy));
    world.reads.give_up(&mut miss);
    let other = write(1, 100, 6, 1);
    let mut second = access_of(&other);
    assert_eq!(world.reads.step(&mut second), Ok(Step::Busy));
    world.reads.give_up(&mut second);
    let first = world.append(&change.op()).unwrap();
    world.reads.appended(&mut access, first);
    let mut into = [0; 64];
    let mut hit = Access::read(FileId(1), 0, &mut into);
    assert_eq!(world.reads.step(&mut hit), Ok(Step::Done));
    assert_eq!(hit.bytes(), [vec![0xee; 60], vec![5; 4]].concat());
}

#[test]
fn an_entry_that_was_cleaned_before_the_pages_knew_of_it_is_not_dirty() {
    let image = log(Promise::AtReturn);
    let mut world = World::new(&image, Promise::AtReturn, options(4, 40), 1);
    let change = write(1, 0, 5, 8);
    let mut access = access_of(&change);
    assert_eq!(world.reads.step(&mut access), Ok(Step::Append));
    let first = world.append(&change.op()).unwrap();
    world.drain();
    world.reads.appended(&mut access, first);
    assert_eq!(world.reads.dirty(PageOf { file: FileId(1), page: 0 }), 0);
    world.model.get_mut(&1).unwrap()[..8].fill(5);
    assert_eq!(world.read(1, 0, 10), [5, 5, 5, 5, 5, 5, 5, 5, 0xee, 0xee]);
}

#[test]
fn a_file_that_was_cut_and_grew_again_shows_nothing_of_what_its_file_still_has() {
    let image = log(Promise::AtReturn);
    let mut world = World::new(&image, Promise::AtReturn, options(4, 40), 1);
    world.change(Change::Truncate { file: 1, len: 10 });
    world.change(write(1, 140, 7, 2));
    assert_eq!(world.reads.size(FileId(1)), Some(142));
    assert_eq!(world.read(1, 0, 200), [vec![0xee; 10], vec![0; 130], vec![7; 2]].concat());
    world.drain();
    assert_eq!(world.read(1, 64, 200), [vec![0; 76], vec![7; 2]].concat());
}

#[test]
fn descriptors_that_are_all_dirty_make_a_write_wait_and_a_long_one_is_refused() {
    let image = log(Promise::AtReturn);
    let mut world = World::new(&image, Promise::AtReturn, options(2, 4), 1);
    for page in 0..4 {
        world.change(write(1, page * 64, 1, 1));
    }
    let change = write(1, 4 * 64, 1, 1);
    let mut access = access_of(&change);
    assert_eq!(world.reads.step(&mut access), Ok(Step::Full));
    let long = write(1, 0, 1, 65);
    let refused = world.reads.step(&mut access_of(&long));
    assert_eq!(refused, Err(Fault::TooLong { max: 64 }));
    assert_eq!(
        world.reads.step(&mut Access::truncate(FileId(0), 0)),
        Err(Fault::Unknown { file: FileId(0) })
    );
    world.change(change.clone());
    assert_eq!(world.read(1, 4 * 64, 2), [1]);
}
