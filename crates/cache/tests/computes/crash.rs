//! Random programs of several writers and a cleaner, crashed at every step that changes the medium: nothing acknowledged is lost, nothing torn is served,
//! what survives is a prefix where that was promised, and every byte of every file is what the surviving changes make in the order of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use remanence_cache::cleaner::{Action, Cleaner, Feed, Options};
use remanence_cache::entry::{Kind, Owner};
use remanence_cache::format::{self, Geometry, Lost, Promise, Record};
use remanence_cache::log::{AppendError, Log};
use remanence_cache::recovery::{Outcome, Policy, scan};
use remanence_cache::table::{FileTable, Identity};
use remanence_cache::words::LocalWords;
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Explorer, Failure, Seeded};
use remanence_pmem::layout::Uuid;

use crate::baton::{Baton, Scheduled, Shared};
use crate::files::{Change, Disk, Files, recover};
use crate::log::NOW;

/// Files that the tests' logs name; the first is a directory.
pub(crate) const FILES: u32 = 3;

pub(crate) fn identity(number: u32) -> Identity {
    let path = format!("/data/{number}").into_bytes();
    Identity { device: 1, inode: number.into(), born: 9, handle_type: 0, handle: Vec::new(), path }
}

/// An empty log that names the files.
pub(crate) fn made(entries: u64, promise: Promise, domain: PersistenceDomain) -> CrashImage {
    let geometry = Geometry { entries, slot: 64, files: FILES, path_max: 64 };
    let image = CrashImage::new(geometry.size(), domain);
    let layout = format::make(&image, Uuid([7; 16]), geometry, 0x5a17, promise).expect("it is blank");
    let mut table = FileTable::empty(&image, layout);
    for number in 0..FILES {
        assert_eq!(table.register(&identity(number), entries).expect("there is room").0, number);
    }
    CrashImage::from_bytes(image.bytes(), domain)
}

/// What a user, or the disk, has seen.
#[derive(Clone, Debug)]
enum Event {
    Began(usize),
    Reserved(usize, u64),
    Returned(usize),
    Synced(u64),
    Applied(u64),
    FileSynced(u32),
}

#[derive(Clone, Copy)]
struct Setting {
    promise: Promise,
    domain: PersistenceDomain,
    failure: Failure,
    entries: u64,
    writers: usize,
    changes: usize,
    /// Whether writers may be killed.
    kills: bool,
    cleans: bool,
}

struct Run {
    setting: Setting,
    seed: u64,
    /// The changes of all writers, one writer's behind the other's.
    changes: Vec<Change>,
    /// How many accesses each thread lives for; the last is the cleaner, which is never killed.
    lives: Vec<u64>,
    events: Mutex<Vec<Event>>,
}

impl Run {
    fn new(setting: Setting, seed: u64) -> Self {
        let mut choices = Seeded::new(seed);
        let change = |n: usize| {
            let file = 1 + choices.pick(2) as u32;
            match choices.pick(8) {
                0 => Change::Truncate { file, len: choices.pick(200) as u64 },
                kind => {
                    // Up to three slots; many overlap.
                    let len = if kind < 3 { 65 + choices.pick(120) } else { 1 + choices.pick(40) };
                    let offset = choices.pick(160) as u64;
                    Change::Write {
                        file,
                        offset,
                        bytes: (0..len).map(|at| (n * 16 + at % 16 + 1) as u8).collect(),
                    }
                }
            }
        };
        let mut changes: Vec<Change> = (0..setting.writers * setting.changes).map(change).collect();
        // The first writer changes names, which no other does: so each change is one that a file system had made.
        let mut names: BTreeMap<&'static [u8], u32> = BTreeMap::new();
        for change in changes.iter_mut().take(setting.changes) {
            let pick = |choices: &mut Seeded| [&b"a"[..], b"b", b"c"][choices.pick(3)];
            let (name, to) = (pick(&mut choices), pick(&mut choices));
            *change = match names.get(name).copied() {
                None => {
                    let file = 1 + choices.pick(2) as u32;
                    names.insert(name, file);
                    Change::Create { file, name }
                }
                Some(file) if choices.pick(3) == 0 || name == to => {
                    names.remove(name);
                    Change::Unlink { file, name }
                }
                Some(file) => {
                    names.remove(name);
                    names.insert(to, file);
                    Change::Rename { file, from: name, to }
                }
            };
        }
        let life = |n| match setting.kills && (1..setting.writers).contains(&n) && choices.pick(2) == 0 {
            true => 1 + choices.pick(120) as u64,
            false => u64::MAX,
        };
        let lives = (0..=setting.writers).map(life).collect();
        Self { setting, seed, changes, lives, events: Mutex::default() }
    }

    fn note(&self, image: &CrashImage, event: Event) {
        let mut events = self.events.lock().expect("no test panics in here");
        image.note(events.len() as u64);
        events.push(event);
    }

    fn workload(&self, image: &CrashImage) {
        let writers = self.setting.writers;
        let baton = Baton::new(&self.lives, FILES as usize, self.seed);
        let words = LocalWords::default();
        Log::start(image, &words, self.setting.promise).expect("it is empty");
        std::thread::scope(|scope| {
            for me in 0..=writers {
                let (baton, words) = (&baton, &words);
                scope.spawn(move || {
                    baton.run(me, || {
                        let log = Scheduled::log(baton, me, image, words);
                        if me < writers {
                            self.write(me, &log, image, baton)
                        } else {
                            self.clean(me, log, image, baton)
                        }
                    });
                });
            }
        });
    }

    fn write(&self, me: usize, log: &Shared<'_>, image: &CrashImage, baton: &Baton) {
        let mut choices = Seeded::new(self.seed * 31 + me as u64);
        let owner = Owner::new(me as u32);
        let each = self.setting.changes;
        for number in me * each..(me + 1) * each {
            let op = self.changes[number].op();
            let lock = op.directories()[0].unwrap_or(op.file()).0 as usize;
            baton.lock(me, lock);
            self.note(image, Event::Began(number));
            let count = log.entries_of(&op).expect("it is short");
            let reserved = loop {
                match log.reserve(owner, count) {
                    Ok(reserved) => break reserved,
                    Err(AppendError::Full { until }) => {
                        while log.tail() < until {
                            baton.step(me);
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            self.note(image, Event::Reserved(number, reserved.first()));
            log.fill(&reserved, &op, NOW);
            log.commit(&reserved).expect("the medium stands");
            self.note(image, Event::Returned(number));
            baton.unlock(lock);
            if choices.pick(3) == 0 {
                loop {
                    match log.persist_up_to(owner, reserved.end()) {
                        Ok(()) => break,
                        Err(AppendError::Full { .. }) => baton.step(me),
                        Err(error) => panic!("{error}"),
                    }
                }
                self.note(image, Event::Synced(reserved.end()));
            }
        }
    }

    fn clean(&self, me: usize, log: Shared<'_>, image: &CrashImage, baton: &Baton) {
        if !self.setting.cleans {
            return;
        }
        let options = Options { batch: self.setting.entries / 4, low: self.setting.entries / 2 };
        let mut cleaner = Cleaner::new(options, log.tail());
        let mut choices = Seeded::new(self.seed * 37);
        let (mut payload, mut asked) = (Vec::new(), Vec::new());
        loop {
            let alone = !baton.others_run(me);
            let fed = cleaner
                .feed(&log, |owner| baton.is_dead(owner.number() as usize))
                .expect("the medium stands");
            assert!(!matches!(fed, Feed::Damaged(_)), "{fed:?}");
            if alone {
                assert_eq!(fed, Feed::Fed, "nobody is left for whom it would wait");
                cleaner.drain_to(log.head());
            }
            asked.extend(std::iter::from_fn(|| cleaner.poll(|_| choices.pick(4) > 0)));
            if asked.is_empty() {
                if alone && log.used() == 0 {
                    break;
                }
                baton.step(me);
                continue;
            }
            let (token, action) = asked.swap_remove(choices.pick(asked.len()));
            match action {
                Action::Persist { from, upto } => log.secure(&(from..upto)).expect("the medium stands"),
                Action::Apply { entry } => {
                    log.payload(&entry, &mut payload).expect("it is whole");
                    self.note(image, Event::Applied(entry.first));
                }
                Action::Sync { file } => self.note(image, Event::FileSynced(file.0)),
                Action::Names => panic!("this is no recovery"),
                Action::Advance { tail } => log.advance(tail).expect("the medium stands"),
                Action::Free { tail } => log.free(tail),
            }
            cleaner.done(token);
        }
        log.close().expect("it is empty");
    }

    /// Everything that has to be so of what a crash has left.
    fn check(&self, crashed: &CrashImage, notes: &[u64], choices: &mut Seeded) {
        let Setting { promise, failure, .. } = self.setting;
        let lost = if failure == Failure::ProcessCrash { Lost::Nothing } else { Lost::Unsynced };
        let events = self.events.lock().expect("no test panics in here");
        let events: Vec<&Event> = notes.iter().map(|note| &events[*note as usize]).collect();
        let layout = format::Layout::read(crashed).expect("it is whole");
        let tail = Record::peek(crashed, &layout).expect("it is whole").tail;
        let found = scan(crashed, lost).expect("it is whole");
        assert_eq!(found.damaged, [], "a crash damages nothing: {found:?}");

        let mut reserved = BTreeMap::new();
        let (mut first_of, mut returned, mut synced) = (BTreeMap::new(), BTreeSet::new(), 0);
        let mut survivors: BTreeSet<u64> = BTreeSet::new();
        let mut disk = Disk::default();
        for event in &events {
            match event {
                Event::Began(_) => {}
                Event::Reserved(number, first) => {
                    reserved.insert(*first, *number);
                    first_of.insert(*number, *first);
                }
                Event::Returned(number) => drop(returned.insert(*number)),
                Event::Synced(upto) => synced = synced.max(*upto),
                Event::Applied(first) => {
                    disk.write(&self.changes[reserved[first]].op());
                    if *first < tail {
                        survivors.insert(*first);
                    }
                }
                Event::FileSynced(file) => disk.sync(*file),
            }
        }
        let mut payload = Vec::new();
        for item in found.items.iter().filter(|item| !matches!(item.entry.kind, Kind::Hole | Kind::Mark)) {
            survivors.insert(item.entry.first);
            let number = *reserved.get(&item.entry.first).expect("somebody wrote it");
            let recovery = Record::peek(crashed, &layout).map(|_| ());
            assert!(recovery.is_ok() && !item.mended);
            read(crashed, &found, &item.entry, &mut payload);
            assert_eq!(
                item.entry.op(&payload),
                Some(self.changes[number].op()),
                "entry {}",
                item.entry.first
            );
        }
        for event in &events {
            if let Event::Applied(first) = event {
                assert!(survivors.contains(first), "entry {first} is in its file, and the log has lost it");
            }
        }
        for number in &returned {
            let first = first_of[number];
            let promised = promise == Promise::AtReturn || lost == Lost::Nothing || first < synced;
            assert!(
                !promised || survivors.contains(&first),
                "change {number} at {first} was acknowledged (synced up to {synced}), and is gone: {found:?}"
            );
        }
        let mut before: Vec<u64> = Vec::new();
        for event in &events {
            match event {
                Event::Returned(number) => before.push(first_of[number]),
                Event::Began(number)
                    if first_of.get(number).is_some_and(|first| survivors.contains(first)) =>
                {
                    let missing = before.iter().find(|first| !survivors.contains(first));
                    assert_eq!(missing, None, "change {number} is there, and not this one before it");
                }
                _ => {}
            }
        }

        let mut expected = Files::default();
        survivors.iter().for_each(|first| expected.apply(&self.changes[reserved[first]].op()));
        if lost == Lost::Unsynced {
            disk.crash(choices);
        }
        // A recovery that dies, the machine with it, and another.
        let seed = choices.pick(1 << 20) as u64;
        if choices.pick(2) == 0 {
            let cut = recover(crashed, found, Policy::Hold, &mut disk, seed, choices.pick(6) as u64);
            let again = crashed.crash(Failure::PowerLoss, choices);
            disk.crash(choices);
            let found = scan(&again, Lost::Unsynced).expect("it is whole");
            assert_eq!(found.damaged, []);
            assert!(cut.is_none() || found.is_clean() && found.items.is_empty());
            assert_eq!(
                recover(&again, found, Policy::Hold, &mut disk, seed + 1, u64::MAX),
                Some(Outcome::Empty)
            );
            self.goes_on(&again, choices);
        } else {
            assert_eq!(
                recover(crashed, found, Policy::Hold, &mut disk, seed, u64::MAX),
                Some(Outcome::Empty)
            );
        }
        disk.crash(choices);
        assert_eq!(disk.visible(), expected, "after a recovery of {survivors:?}");
    }

    /// What was recovered can be used, and nothing of before comes back.
    fn goes_on(&self, image: &CrashImage, choices: &mut Seeded) {
        if choices.pick(4) > 0 {
            return;
        }
        let log = Log::start(image, LocalWords::default(), self.setting.promise).expect("it was recovered");
        let change = Change::Write { file: 1, offset: 0, bytes: vec![9; 70] };
        let end = log.append(Owner::new(77), &change.op(), NOW).expect("it is empty");
        log.persist_up_to(Owner::new(77), end).expect("the medium stands");
        let crashed = image.crash(Failure::PowerLoss, choices);
        let found = scan(&crashed, Lost::Unsynced).expect("it is whole");
        let firsts: Vec<u64> = found.items.iter().map(|item| item.entry.first).collect();
        assert_eq!((firsts, found.damaged.len(), found.dropped), (vec![end - 2], 0, 0));
    }
}

fn read(
    image: &CrashImage,
    found: &remanence_cache::recovery::Scan,
    entry: &remanence_cache::Entry,
    into: &mut Vec<u8>,
) {
    into.clear();
    for n in 0..entry.count {
        let from = into.len();
        into.resize(from + (entry.len - 64 * n).min(64) as usize, 0);
        remanence_pmem::Medium::read(image, found.layout.data(entry.first + n), &mut into[from..]);
    }
}

/// Each seed is a program, its schedule and its deaths; returns how many crashes were checked.
fn explore(setting: Setting, push: u64) -> usize {
    let mut crashes = 0;
    for seed in seeds(push) {
        println!("{}", replay(seed));
        let run = Run::new(setting, seed);
        let explorer = Explorer { failure: setting.failure, ways_max: 3, samples: 5, seed };
        let mut choices = Seeded::new(seed + 1);
        let start = made(setting.entries, setting.promise, setting.domain);
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

const BASE: Setting = Setting {
    promise: Promise::AtReturn,
    domain: PersistenceDomain::Adr,
    failure: Failure::PowerLoss,
    entries: 32,
    writers: 3,
    changes: 3,
    kills: true,
    cleans: false,
};

#[test]
fn an_append_that_returned_survives_the_loss_of_power() {
    explore(BASE, 12);
}

#[test]
fn a_sync_that_returned_survives_with_all_before_it() {
    let setting = Setting { promise: Promise::AtSync, ..BASE };
    explore(setting, 12);
    explore(Setting { domain: PersistenceDomain::PageCache, ..setting }, 12);
}

#[test]
fn the_death_of_processes_takes_nothing_that_was_committed() {
    for promise in [Promise::AtReturn, Promise::AtSync] {
        let domain = PersistenceDomain::PageCache;
        explore(
            Setting { promise, domain, failure: Failure::ProcessCrash, cleans: true, entries: 16, ..BASE },
            6,
        );
    }
}

#[test]
fn laps_of_a_small_log_that_is_cleaned() {
    let setting = Setting { entries: 8, changes: 6, cleans: true, ..BASE };
    explore(setting, 20);
    explore(Setting { promise: Promise::AtSync, domain: PersistenceDomain::PageCache, ..setting }, 6);
}

/// One of two writers, each time one access later; the other and the cleaner go on.
#[test]
fn a_writer_is_killed_at_each_of_its_steps() {
    let at_sync = Setting { promise: Promise::AtSync, domain: PersistenceDomain::PageCache, ..BASE };
    for setting in [BASE, at_sync] {
        let setting = Setting { writers: 2, changes: 2, entries: 16, kills: false, cleans: true, ..setting };
        let mut life = 1;
        loop {
            let mut run = Run::new(setting, 5);
            run.lives[1] = life;
            let explorer = Explorer { failure: Failure::PowerLoss, ways_max: 1, samples: 1, seed: life };
            let mut choices = Seeded::new(life);
            let start = made(setting.entries, setting.promise, setting.domain);
            explorer.run(
                &start,
                |image| run.workload(image),
                |crashed, notes| run.check(crashed, notes, &mut choices),
            );
            let events = run.events.into_inner().expect("no test panics in here");
            if events.iter().filter(|event| matches!(event, Event::Returned(2..))).count() == 2 {
                break;
            }
            life += 1;
        }
        assert!(life > 20, "{:?}: it has {life} steps", setting.promise);
    }
}
