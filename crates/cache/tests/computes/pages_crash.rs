//! Writers, a truncation now and then, and the keeper, crashed at every step that changes the medium: each file is what the first of its changes make, all that
//! was promised is among them, and where a prefix was promised it is one over all files.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use remanence_cache::format::{Lost, Promise};
use remanence_cache::pages::keeper::{Action, Keeper, Options};
use remanence_cache::pages::recovery::{Outcome, Policy, scan};
use remanence_cache::pages::{Access, Pages, Step};
use remanence_cache::table::FileId;
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Explorer, Failure, Lazy, Seeded};
use remanence_pmem::watched::{Watch, Watched};

use crate::baton::Baton;
use crate::crash::FILES;
use crate::files::{Change, Disk, Files};
use crate::pages::{One, PAGE, carry_out, content, disk, made, page_of, recover};

thread_local! {
    /// Which thread of the baton this is, if it is one.
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Each change of a medium is a step.
struct Steps<'a>(&'a Baton);

impl Steps<'_> {
    fn step(&self) {
        if let Some(me) = ME.get() {
            self.0.step(me);
        }
    }
}

impl Watch for Steps<'_> {
    const STEP: usize = 32;

    fn store(&self, _: Range<u64>) {
        self.step();
    }

    fn pfence(&self) {
        self.step();
    }

    fn psync(&self) -> io::Result<()> {
        self.step();
        Ok(())
    }
}

type Stepping<'a> = Watched<&'a CrashImage, Steps<'a>>;

/// What a user, or the disk, has seen.
#[derive(Clone, Debug)]
enum Event {
    Began(usize),
    Returned(usize),
    /// All changes that had returned by the event with this number are durable.
    Synced(usize),
    Disk(Change),
    DiskSynced(u32),
}

#[derive(Clone, Copy)]
struct Setting {
    promise: Promise,
    domain: PersistenceDomain,
    failure: Failure,
    slots: u32,
    records: u32,
    writers: usize,
    changes: usize,
    /// One change of so many is a truncation, of the first writer's.
    truncates: usize,
}

const BASE: Setting = Setting {
    promise: Promise::AtReturn,
    domain: PersistenceDomain::Adr,
    failure: Failure::PowerLoss,
    slots: 6,
    records: 8,
    writers: 3,
    changes: 3,
    truncates: 3,
};

const AT_SYNC: Setting = Setting { promise: Promise::AtSync, domain: PersistenceDomain::PageCache, ..BASE };

struct Run {
    setting: Setting,
    seed: u64,
    changes: Vec<Change>,
    events: Mutex<Vec<Event>>,
}

/// What the threads share.
struct Shared<'a> {
    run: &'a Run,
    image: &'a CrashImage,
    baton: &'a Baton,
    pages: &'a Pages<Stepping<'a>>,
    keeper: &'a Mutex<Option<Keeper>>,
    disk: &'a Mutex<Disk>,
    wanted: &'a AtomicBool,
}

/// The lock of the keeper; those before it are of the files.
const KEEPER: usize = FILES as usize;

fn initial() -> Disk {
    disk(&[(1, &[0xee; 100])])
}

impl Run {
    fn new(setting: Setting, seed: u64) -> Self {
        let mut choices = Seeded::new(seed);
        let change = |n: usize| {
            let file = 1 + choices.pick(2) as u32;
            if n < setting.changes && choices.pick(setting.truncates) == 0 {
                return Change::Truncate { file, len: choices.pick(200) as u64 };
            }
            // As many pages as a write may have, wherever it begins.
            let longest = (setting.slots.min(setting.records) as usize / 2 - 1) * PAGE;
            let most = [100, 30, 30][choices.pick(3)].min(longest);
            let len = 1 + choices.pick(most);
            let bytes = (0..len).map(|at| (n * 16 + at % 16 + 1) as u8).collect();
            Change::Write { file, offset: choices.pick(220) as u64, bytes }
        };
        let changes = (0..setting.writers * setting.changes).map(change).collect();
        Self { setting, seed, changes, events: Mutex::default() }
    }

    fn note(&self, image: &CrashImage, event: Event) -> usize {
        let mut events = self.events.lock().expect("no test panics in here");
        image.note(events.len() as u64);
        events.push(event);
        events.len()
    }

    fn workload(&self, image: &CrashImage) {
        let writers = self.setting.writers;
        let baton = Baton::new(&vec![u64::MAX; writers + 1], KEEPER + 1, self.seed);
        let pages = Pages::start(Watched { medium: image, watch: Steps(&baton) }, self.setting.promise)
            .expect("it is clean");
        let disk = Mutex::new(initial());
        for file in (0..FILES).map(FileId) {
            pages.open_file(file, content(&initial(), file).len() as u64);
        }
        let keeper =
            Mutex::new(Some(Keeper::new(Options { batch: 2, low: self.setting.slots as usize / 2 })));
        let shared = Shared {
            run: self,
            image,
            baton: &baton,
            pages: &pages,
            keeper: &keeper,
            disk: &disk,
            wanted: &AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            for me in 0..=writers {
                let shared = &shared;
                scope.spawn(move || {
                    ME.set(Some(me));
                    shared.baton.run(me, || if me < writers { shared.write(me) } else { shared.keep(me) });
                });
            }
        });
        let keeper = keeper.into_inner().unwrap_or_else(PoisonError::into_inner).expect("it was put back");
        pages.close(&keeper).expect("it is drained");
    }

    /// Everything that has to be so of what a crash has left.
    fn check(&self, crashed: &CrashImage, notes: &[u64], choices: &mut Seeded) {
        let lost = if self.setting.failure == Failure::ProcessCrash { Lost::Nothing } else { Lost::Unsynced };
        let events = self.events.lock().expect("no test panics in here");
        let events: Vec<&Event> = notes.iter().map(|note| &events[*note as usize]).collect();
        let found = scan(crashed, lost).expect("it is whole");
        assert!(found.damaged.is_empty(), "a crash damages nothing: {found:?}");

        let mut disk = initial();
        let mut promised = 0;
        for (n, event) in events.iter().enumerate() {
            match event {
                Event::Disk(change) => disk.write(&change.op()),
                Event::DiskSynced(file) => disk.sync(*file),
                Event::Synced(upto) => promised = promised.max(*upto),
                Event::Began(_) | Event::Returned(_) => {}
            }
            if self.setting.promise == Promise::AtReturn || lost == Lost::Nothing {
                promised = n + 1;
            }
        }
        if lost == Lost::Unsynced {
            disk.crash(choices);
        }
        // A recovery that dies, the machine with it, and another.
        let seed = choices.pick(1 << 20) as u64;
        let whole = found.clone();
        let cut = recover(crashed, found, Policy::Hold, &mut disk, seed, choices.pick(6) as u64);
        let crashed = crashed.crash(Failure::PowerLoss, choices);
        disk.crash(choices);
        let again = scan(&crashed, Lost::Unsynced).expect("it is whole");
        assert!(again.damaged.is_empty());
        if cut.is_none() {
            assert_eq!(
                (&again.pages, &again.truncations),
                (&whole.pages, &whole.truncations),
                "it decides the same"
            );
        }
        assert_eq!(
            recover(&crashed, again, Policy::Hold, &mut disk, seed + 1, u64::MAX),
            Some(Outcome::Empty)
        );
        disk.crash(choices);
        self.is_right(&disk, &events, promised);
        self.goes_on(&crashed, &disk, choices);
    }

    /// Each file is what so many of its changes make; those that were promised are among them, and nothing is there without what was before it.
    fn is_right(&self, disk: &Disk, events: &[&Event], promised: usize) {
        let mut began: BTreeMap<u32, Vec<usize>> = BTreeMap::from([(1, vec![]), (2, vec![])]);
        for event in events {
            if let Event::Began(number) = event {
                began.get_mut(&self.file(*number)).expect("a file").push(*number);
            }
        }
        let ways = |file: u32| -> Vec<usize> {
            let fits = |upto: &usize| {
                let mut files = initial().visible();
                began[&file][..*upto].iter().for_each(|n| files.apply(&self.changes[*n].op()));
                bytes(&files, file) == bytes(&disk.visible(), file)
            };
            (0..=began[&file].len()).filter(fits).collect()
        };
        let (ones, twos) = (ways(1), ways(2));
        assert!(!ones.is_empty() && !twos.is_empty(), "a file is what no changes make: {events:?} {disk:?}");
        let both = ones.iter().flat_map(|one| twos.iter().map(move |two| (*one, *two)));
        let is_fair = |(one, two): &(usize, usize)| {
            let there: Vec<usize> = began[&1][..*one].iter().chain(&began[&2][..*two]).copied().collect();
            // What a change has to have before it that is there, and everything that was promised.
            let mut before: Vec<usize> = Vec::new();
            events.iter().enumerate().all(|(n, event)| match event {
                Event::Returned(number) => {
                    before.push(*number);
                    n >= promised || there.contains(number)
                }
                Event::Began(number) if there.contains(number) => before.iter().all(|n| there.contains(n)),
                _ => true,
            })
        };
        assert!(
            both.clone().any(|both| is_fair(&both)),
            "{:?} of {promised}: {events:?} {disk:?}",
            both.collect::<Vec<_>>()
        );
    }

    fn file(&self, number: usize) -> u32 {
        self.changes[number].op().file().0
    }

    /// What was recovered can be used, and nothing of before comes back.
    fn goes_on(&self, image: &CrashImage, disk: &Disk, choices: &mut Seeded) {
        if choices.pick(4) > 0 {
            return;
        }
        let mut one = One::start(image, self.setting.promise, disk.clone(), 3);
        one.write(1, 10, &[9; 70]);
        one.sync();
        let mut expected = one.disk.visible();
        expected.apply(&Change::Write { file: 1, offset: 10, bytes: vec![9; 70] }.op());
        let crashed = image.crash(Failure::PowerLoss, choices);
        let found = scan(&crashed, Lost::Unsynced).expect("it is whole");
        let mut after = one.disk.clone();
        assert_eq!((found.pages.len(), found.damaged.len(), found.truncations.len()), (2, 0, 0));
        assert_eq!(recover(&crashed, found, Policy::Hold, &mut after, 1, u64::MAX), Some(Outcome::Empty));
        assert_eq!(after.visible(), expected);
    }
}

fn bytes(files: &Files, file: u32) -> &[u8] {
    files.bytes.get(&file).map_or(&[], |bytes| &bytes[..])
}

impl Shared<'_> {
    fn write(&self, me: usize) {
        let mut choices = Seeded::new(self.run.seed * 31 + me as u64);
        let each = self.run.setting.changes;
        for number in me * each..(me + 1) * each {
            let change = &self.run.changes[number];
            let file = self.run.file(number);
            self.baton.lock(me, file as usize);
            self.run.note(self.image, Event::Began(number));
            match change {
                Change::Write { offset, bytes, .. } => self.put(me, FileId(file), *offset, bytes),
                Change::Truncate { len, .. } => self.truncate(me, FileId(file), *len),
                other => panic!("no test has {other:?}"),
            }
            let events = self.run.note(self.image, Event::Returned(number));
            self.baton.unlock(file as usize);
            if choices.pick(3) == 0 {
                let ticket = self.pages.ticket();
                while self.pages.sync(ticket).expect("the medium stands") != Step::Done {
                    self.baton.step(me);
                }
                self.run.note(self.image, Event::Synced(events));
            }
        }
    }

    fn put(&self, me: usize, file: FileId, offset: u64, bytes: &[u8]) {
        let mut access = Access::write(file, offset, bytes);
        loop {
            match self.pages.step(&mut access).expect("it is short") {
                Step::Done => return,
                Step::Load(of) => {
                    let page = page_of(&self.disk.lock().expect("no test panics in here"), of);
                    self.pages.loaded(&mut access, &page);
                }
                Step::Busy => self.baton.step(me),
                Step::Full => {
                    self.wanted.store(true, Ordering::SeqCst);
                    self.baton.step(me);
                }
            }
        }
    }

    fn take(&self, me: usize) -> Keeper {
        self.baton.lock(me, KEEPER);
        self.keeper.lock().expect("no test panics in here").take().expect("nobody else has it")
    }

    fn give(&self, keeper: Keeper) {
        *self.keeper.lock().expect("no test panics in here") = Some(keeper);
        self.baton.unlock(KEEPER);
    }

    fn truncate(&self, me: usize, file: FileId, len: u64) {
        loop {
            let mut keeper = self.take(me);
            match keeper.truncate(self.pages, file, len).expect("the medium stands") {
                Step::Done => {
                    while let Some((token, action)) = keeper.poll(self.pages).expect("the medium stands") {
                        self.carry_out(keeper.bytes(token).unwrap_or_default(), action);
                        keeper.done(self.pages, token);
                    }
                    return self.give(keeper);
                }
                Step::Full => self.wanted.store(true, Ordering::SeqCst),
                Step::Busy | Step::Load(_) => {}
            }
            self.give(keeper);
            self.baton.step(me);
        }
    }

    fn carry_out(&self, bytes: &[u8], action: Action) {
        let event = match action {
            Action::Truncate { file, len } => Event::Disk(Change::Truncate { file: file.0, len }),
            Action::Write { file, offset, .. } => {
                Event::Disk(Change::Write { file: file.0, offset, bytes: bytes.to_vec() })
            }
            Action::Sync { file } => Event::DiskSynced(file.0),
        };
        carry_out(&mut self.disk.lock().expect("no test panics in here"), action, bytes);
        self.run.note(self.image, event);
    }

    fn keep(&self, me: usize) {
        let mut choices = Seeded::new(self.run.seed * 37);
        let mut asked = Vec::new();
        loop {
            let mut keeper = self.take(me);
            let alone = !self.baton.others_run(me);
            if alone || self.wanted.swap(false, Ordering::SeqCst) {
                keeper.drain();
            }
            while let Some(one) = keeper.poll(self.pages).expect("the medium stands") {
                asked.push(one);
            }
            if asked.is_empty() {
                let drained = keeper.is_drained(self.pages);
                self.give(keeper);
                if alone && drained {
                    return;
                }
            } else {
                let (token, action) = asked.swap_remove(choices.pick(asked.len()));
                self.carry_out(keeper.bytes(token).unwrap_or_default(), action);
                keeper.done(self.pages, token);
                self.give(keeper);
            }
            self.baton.step(me);
        }
    }
}

/// Each seed is a program and its schedule; returns how many crashes were checked.
fn explore(setting: Setting, push: u64) -> usize {
    let mut crashes = 0;
    for seed in seeds(push) {
        println!("{}", replay(seed));
        let run = Run::new(setting, seed);
        let explorer = Explorer { failure: setting.failure, ways_max: 3, samples: 5, seed };
        let mut choices = Seeded::new(seed + 1);
        let start = made(setting.slots, setting.records, setting.promise, setting.domain);
        let report = explorer.run(
            &start,
            |image| run.workload(image),
            |crashed, notes| run.check(crashed, notes, &mut choices),
        );
        crashes += report.crashes;
    }
    println!("{crashes} crashes");
    crashes
}

#[test]
fn a_write_that_returned_survives_the_loss_of_power() {
    explore(BASE, 8);
}

#[test]
fn a_sync_that_returned_survives_with_all_before_it() {
    explore(AT_SYNC, 6);
    explore(Setting { domain: PersistenceDomain::Adr, ..AT_SYNC }, 4);
}

#[test]
fn the_death_of_the_process_takes_nothing_that_was_committed() {
    for promise in [Promise::AtReturn, Promise::AtSync] {
        let domain = PersistenceDomain::PageCache;
        explore(Setting { promise, domain, failure: Failure::ProcessCrash, ..BASE }, 4);
    }
}

#[test]
fn slots_and_records_that_are_used_again_and_again_show_nothing_of_before() {
    let setting = Setting { slots: 4, records: 4, writers: 2, changes: 6, truncates: 4, ..BASE };
    explore(setting, 8);
    explore(Setting { promise: Promise::AtSync, domain: PersistenceDomain::PageCache, ..setting }, 4);
}

/// Small enough that each way in which a crash can leave it is tried.
#[test]
fn a_write_and_one_over_it_in_every_way_that_a_crash_can_leave_them() {
    for (promise, domain) in
        [(Promise::AtReturn, PersistenceDomain::Adr), (Promise::AtSync, PersistenceDomain::PageCache)]
    {
        // Where nothing is fenced there are many more ways.
        let writes = match promise {
            Promise::AtReturn => vec![(10_u64, vec![1; 8]), (12, vec![2; 4]), (70, vec![3; 3])],
            Promise::AtSync => vec![(10, vec![1; 8]), (12, vec![2; 4])],
        };
        let image = made(4, 4, promise, domain);
        let layout = scan(&image, Lost::Nothing).unwrap().layout;
        let explorer = Explorer { ways_max: 200_000, ..Explorer::default() };
        let lines = layout.data(0) - 3 * 4096;
        let report = explorer.run_lazily(
            &image,
            |image| {
                let mut one = One::start(image, promise, disk(&[(1, &[0xee; 100])]), 1);
                for (n, (offset, bytes)) in writes.iter().enumerate() {
                    one.write(1, *offset, bytes);
                    if n == 0 {
                        one.sync();
                    }
                    if n == 0 || promise == Promise::AtReturn {
                        image.note(n as u64 + 1);
                    }
                }
            },
            // The words that say free and committed are the only ones of a line that no checksum covers.
            move |_| {
                move |at| match at.checked_sub(lines) {
                    Some(at) if at < 4096 => !matches!(at % 128, 24 | 96),
                    Some(at) if at < 2 * 4096 => at % 64 != 0,
                    Some(at) => at < 3 * 4096,
                    None => at < 4 * 4096,
                }
            },
            |crashed: &Lazy, notes| {
                let found = scan(crashed, Lost::Unsynced).unwrap();
                assert!(found.damaged.is_empty(), "{found:?}");
                let least = notes.last().map_or(0, |n| *n as usize);
                let mut disk = disk(&[(1, &[0xee; 100])]);
                let recovered = recover(crashed, found, Policy::Hold, &mut disk, 1, u64::MAX);
                assert_eq!(recovered, Some(Outcome::Empty));
                let fits = (least..=writes.len()).any(|upto| {
                    let mut expected = crate::pages::disk(&[(1, &[0xee; 100])]);
                    for (offset, bytes) in &writes[..upto] {
                        let change = Change::Write { file: 1, offset: *offset, bytes: bytes.clone() };
                        expected.write(&change.op());
                    }
                    expected.visible() == disk.visible()
                });
                assert!(fits, "{least} were promised: {disk:?}");
            },
        );
        println!("{promise:?}: {report:?}");
        assert!(report.outcomes > 1000.0, "{report:?}");
    }
}

/// Two threads write what overlaps in three pages, without any lock but the pages': everywhere the same one is on top, and a recovery says so too.
#[test]
fn writes_that_overlap_have_one_order_in_the_pages_and_in_a_recovery() {
    for seed in seeds(60) {
        println!("{}", replay(seed));
        let image = made(8, 8, Promise::AtReturn, PersistenceDomain::Adr);
        let baton = Baton::new(&[u64::MAX; 2], 1, seed);
        let pages =
            Pages::start(Watched { medium: &image, watch: Steps(&baton) }, Promise::AtReturn).unwrap();
        pages.open_file(FileId(1), 0);
        let ranges = [(0, 170), (30, 150)];
        std::thread::scope(|scope| {
            for (me, (offset, len)) in ranges.into_iter().enumerate() {
                let (pages, baton) = (&pages, &baton);
                scope.spawn(move || {
                    ME.set(Some(me));
                    baton.run(me, || {
                        let bytes = vec![me as u8 + 1; len];
                        let mut access = Access::write(FileId(1), offset, &bytes);
                        while pages.step(&mut access).expect("it is short") != Step::Done {
                            baton.step(me);
                        }
                    });
                });
            }
        });
        let mut read = vec![0; 3 * PAGE];
        let mut access = Access::read(FileId(1), 0, &mut read);
        assert_eq!(pages.step(&mut access).unwrap(), Step::Done);
        let len = access.done();
        let both = &read[30..170];
        assert!(both.iter().all(|byte| *byte == both[0]), "seed {seed}: {both:?}");
        let crashed = image.crash_seeded(Failure::PowerLoss, seed);
        let mut disk = Disk::default();
        let found = scan(&crashed, Lost::Unsynced).unwrap();
        assert_eq!(recover(&crashed, found, Policy::Hold, &mut disk, seed, u64::MAX), Some(Outcome::Empty));
        assert_eq!(content(&disk, FileId(1)), read[..len], "seed {seed}");
    }
}
