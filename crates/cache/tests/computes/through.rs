//! A program that writes to its files and to the log, as the mode `through` does, beside writers who do not use the log: crashed at every step, with
//! any mixture of pages, old and new. What a sync promised to either is there, in the file or beside it, and no page has what nobody wrote.

use std::sync::Mutex;

use remanence_cache::Entry;
use remanence_cache::cleaner::Action;
use remanence_cache::entry::{Mtime, Owner};
use remanence_cache::foreign::{PAGE, Pages, Verdict};
use remanence_cache::format::{Lost, Promise};
use remanence_cache::log::Log;
use remanence_cache::op::Op;
use remanence_cache::recovery::{GRACE, Judged, Outcome, Policy, Recovery, scan};
use remanence_cache::table::FileId;
use remanence_cache::words::LocalWords;
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Explorer, Failure, Seeded};

use crate::crash::made;

const ME: Owner = Owner::new(1);
/// Files that are written to.
const FILES: [u32; 2] = [1, 2];
const LEN: usize = 2 * PAGE as usize;

/// What a file was at some time.
#[derive(Clone)]
struct Version {
    bytes: Vec<u8>,
    len: u64,
    mtime: u64,
}

/// All that one file was, and what was promised of it.
#[derive(Clone)]
struct File {
    versions: Vec<Version>,
    /// The version that the disk has at least.
    synced: usize,
    /// The one that was promised to who uses the log, and the one to others.
    promised: [usize; 2],
}

impl Default for File {
    fn default() -> Self {
        let start = Version { bytes: vec![0; LEN], len: 0, mtime: 1 };
        Self { versions: vec![start], synced: 0, promised: [0; 2] }
    }
}

fn apply(version: &mut Version, op: &Op<'_>) {
    match *op {
        Op::Write { offset, bytes, .. } => {
            version.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            version.len = version.len.max(offset + bytes.len() as u64);
        }
        Op::Truncate { len, .. } => {
            version.bytes[len as usize..].fill(0);
            version.len = len;
        }
        _ => panic!("no test has {op:?}"),
    }
}

impl File {
    fn last(&self) -> &Version {
        self.versions.last().expect("there is one")
    }

    fn change(&mut self, op: &Op<'_>, mtime: u64) {
        let mut version = self.last().clone();
        apply(&mut version, op);
        version.mtime = mtime;
        self.versions.push(version);
    }

    /// What the disk has behind a crash: each sector, the length and the time of any version since the last sync.
    fn crash(&self, choices: &mut Seeded) -> Version {
        let since = &self.versions[self.synced..];
        let mut crashed = since[choices.pick(since.len())].clone();
        crashed.len = since[choices.pick(since.len())].len;
        crashed.mtime = since[choices.pick(since.len())].mtime;
        let whole = choices.pick(2) == 0;
        let unit = if whole { PAGE as usize } else { 512 };
        for at in (0..LEN).step_by(unit) {
            let from = &since[choices.pick(since.len())];
            crashed.bytes[at..at + unit].copy_from_slice(&from.bytes[at..at + unit]);
        }
        crashed.bytes[crashed.len as usize..].fill(0);
        crashed
    }

    /// Whether these bytes are each of a version since one was promised.
    fn check(&self, what: &str, bytes: &[u8], at: usize, promised: usize) {
        for (n, byte) in bytes.iter().enumerate() {
            let known = self.versions[promised..].iter().any(|version| version.bytes[at + n] == *byte);
            assert!(known, "{what}: byte {} is {byte}, as it was at no time since the promise", at + n);
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Changed { file: usize, offset: u64, bytes: Vec<u8>, cut: bool, mtime: u64 },
    Synced { file: usize },
    Promised { file: usize, others: bool },
}

struct Run {
    seed: u64,
    promise: Promise,
    events: Mutex<Vec<Event>>,
}

impl Run {
    fn note(&self, image: &CrashImage, event: Event) {
        let mut events = self.events.lock().expect("no test panics in here");
        image.note(events.len() as u64);
        events.push(event);
    }

    fn workload(&self, image: &CrashImage) {
        let mut choices = Seeded::new(self.seed);
        let log = Log::start(image, LocalWords::default(), self.promise).expect("it is empty");
        let (mut clock, mut value) = (10 * GRACE, 0_u8);
        // What somebody else has changed, and what is visible and not in the log.
        let (mut foreign, mut unlogged) = ([false; 2], [false; 2]);
        for _ in 0..12 {
            let file = choices.pick(2);
            let id = FileId(FILES[file]);
            let step = choices.pick(10);
            if step < 8 && foreign[file] {
                self.settle(&log, image, file, clock);
                (foreign[file], unlogged[file]) = (false, false);
            }
            clock += if matches!(step, 8) { GRACE + 1 } else { 1000 };
            value += 1;
            // Many overlap.
            let offset = choices.pick(12) as u64 * 500;
            let len = if choices.pick(2) == 0 { 600 } else { 1 + choices.pick(40) };
            let bytes = vec![value; len];
            match step {
                0 => {
                    let cut = Event::Changed { file, offset, bytes: Vec::new(), cut: true, mtime: clock };
                    self.note(image, cut);
                    log.append(ME, &Op::Truncate { file: id, len: offset }, Mtime(clock))
                        .expect("there is room");
                }
                1..=4 => {
                    let changed =
                        Event::Changed { file, offset, bytes: bytes.clone(), cut: false, mtime: clock };
                    self.note(image, changed);
                    let op = Op::Write { file: id, offset, bytes: &bytes };
                    log.append(ME, &op, Mtime(clock)).expect("there is room");
                }
                5 | 6 if unlogged[file] => {
                    self.settle(&log, image, file, clock);
                    unlogged[file] = false;
                    self.note(image, Event::Promised { file, others: false });
                }
                5 | 6 => {
                    log.persist_up_to(ME, log.head()).expect("there is room");
                    self.note(image, Event::Promised { file, others: false });
                }
                7 => {
                    // The tail moves: all files are synced.
                    (0..2).for_each(|file| self.note(image, Event::Synced { file }));
                    log.advance(log.head()).expect("the medium stands");
                    log.free(log.head());
                }
                8 => {
                    self.note(image, Event::Changed { file, offset, bytes, cut: false, mtime: clock });
                    foreign[file] = true;
                    if choices.pick(2) == 0 {
                        self.note(image, Event::Synced { file });
                        self.note(image, Event::Promised { file, others: true });
                    }
                }
                _ => {
                    // Of a writer that was killed before it came to the log.
                    self.note(image, Event::Changed { file, offset, bytes, cut: false, mtime: clock });
                    unlogged[file] = true;
                }
            }
        }
    }

    fn settle(&self, log: &Log<&CrashImage, LocalWords>, image: &CrashImage, file: usize, clock: u64) {
        let upto = log.head();
        self.note(image, Event::Synced { file });
        let settled = Op::Settled { file: FileId(FILES[file]), upto };
        let end = log.append(ME, &settled, Mtime(clock)).expect("there is room");
        log.persist_up_to(ME, end).expect("there is room");
    }

    fn check(&self, crashed: &CrashImage, notes: &[u64], choices: &mut Seeded) -> usize {
        let events = self.events.lock().expect("no test panics in here");
        let mut files = [File::default(), File::default()];
        for event in notes.iter().map(|note| &events[*note as usize]) {
            match event {
                Event::Changed { file, offset, bytes, cut, mtime } => {
                    let id = FileId(FILES[*file]);
                    let op = match cut {
                        true => Op::Truncate { file: id, len: *offset },
                        false => Op::Write { file: id, offset: *offset, bytes },
                    };
                    files[*file].change(&op, *mtime);
                }
                Event::Synced { file } => files[*file].synced = files[*file].versions.len() - 1,
                Event::Promised { file, others } => {
                    files[*file].promised[usize::from(*others)] = files[*file].versions.len() - 1;
                }
            }
        }
        let mut disk = files.each_ref().map(|file| file.crash(choices));
        let cut = choices.pick(2) == 0;
        if cut {
            // It dies, and the machine with it, and another recovery begins.
            let before = disk.clone();
            let first = self.recover(crashed, &mut disk, choices.pick(8) as u64);
            for (disk, before) in disk.iter_mut().zip(before).filter(|_| first.is_none()) {
                for at in (0..LEN).step_by(512) {
                    if choices.pick(2) == 0 {
                        disk.bytes[at..at + 512].copy_from_slice(&before.bytes[at..at + 512]);
                    }
                }
                if choices.pick(2) == 0 {
                    disk.mtime = before.mtime;
                }
            }
            let again = crashed.crash(Failure::PowerLoss, choices);
            let second = self.recover(&again, &mut disk, u64::MAX);
            self.compare(&files, &disk, first.or(second).expect("it came to its end"))
        } else {
            let kept = self.recover(crashed, &mut disk, u64::MAX);
            self.compare(&files, &disk, kept.expect("it came to its end"))
        }
    }

    /// Returns how many pages were kept.
    fn compare(&self, files: &[File; 2], disk: &[Version; 2], kept: Vec<(usize, usize, Vec<u8>)>) -> usize {
        for (file, disk) in disk.iter().enumerate() {
            for at in (0..LEN).step_by(PAGE as usize) {
                let bytes = &disk.bytes[at..at + PAGE as usize];
                let [own, others] = files[file].promised;
                files[file].check("what others were promised", bytes, at, others);
                match kept.iter().find(|(kept, page, _)| (*kept, *page) == (file, at)) {
                    Some((.., beside)) => files[file].check("what is beside it", beside, at, own),
                    None => files[file].check("what was promised", bytes, at, own),
                }
            }
        }
        kept.len()
    }

    /// What a recovery does, or begins to do; each page that was kept with what the log has for it.
    fn recover(
        &self,
        log: &CrashImage,
        disk: &mut [Version; 2],
        mut actions: u64,
    ) -> Option<Vec<(usize, usize, Vec<u8>)>> {
        let found = scan(log, Lost::Unsynced).expect("it is whole");
        assert_eq!(found.damaged, []);
        let place = |file: FileId| FILES.iter().position(|id| *id == file.0).expect("one of them");
        let foreign = FILES.map(FileId).into_iter();
        let foreign = foreign.filter(|file| found.is_foreign(*file, Mtime(disk[place(*file)].mtime)));
        let judged = Judged { foreign: foreign.collect(), ..Judged::default() };
        let mut recovery = Recovery::begin(log, found, Policy::Hold, &judged).expect("the medium stands");
        let mut payload = Vec::new();
        let mut step = || {
            actions = actions.checked_sub(1)?;
            Some(())
        };
        while let Some((token, action)) = recovery.poll() {
            step()?;
            if let Action::Apply { entry } = action {
                recovery.scan().payload(log, &entry, &mut payload).expect("it is whole");
                let file = &mut disk[place(entry.file)];
                apply(file, &entry.op(&payload).expect("it is a change"));
                file.mtime = u64::MAX;
            }
            recovery.done(token);
        }
        let mut kept = Vec::new();
        for (file, entries) in recovery.foreign().clone() {
            let disk = &mut disk[place(file)];
            let mut pages = Pages::default();
            let mut beside = disk.clone();
            for entry in entries {
                recovery.scan().payload(log, &entry, &mut payload).expect("it is whole");
                let op = entry.op(&payload).expect("it is a change");
                pages.add(entry, &op);
                apply(&mut beside, &op);
            }
            for page in pages.pages(disk.len) {
                step()?;
                let at = (page * PAGE) as usize;
                let fetch = |entry: &Entry, into: &mut Vec<u8>| recovery.scan().payload(log, entry, into);
                match pages.judge(page, &disk.bytes[at..at + PAGE as usize], fetch).expect("it is whole") {
                    Verdict::Done => {}
                    Verdict::Replayed { offset, bytes } => {
                        disk.bytes[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                        disk.len = disk.len.max(offset + bytes.len() as u64);
                        disk.mtime = u64::MAX;
                    }
                    Verdict::Kept => {
                        let beside = beside.bytes[at..at + PAGE as usize].to_vec();
                        kept.push((place(file), at, beside));
                    }
                }
            }
            recovery.reconciled(file);
        }
        assert_eq!(recovery.finish(log).expect("the medium stands"), Outcome::Empty);
        Some(kept)
    }
}

#[test]
fn what_was_promised_to_either_is_there_whatever_pages_a_crash_has_left() {
    for (promise, domain) in
        [(Promise::AtReturn, PersistenceDomain::Adr), (Promise::AtSync, PersistenceDomain::PageCache)]
    {
        let (mut crashes, mut kept) = (0, 0);
        for seed in seeds(12) {
            println!("{}", replay(seed));
            let run = Run { seed, promise, events: Mutex::default() };
            let explorer = Explorer { failure: Failure::PowerLoss, ways_max: 2, samples: 3, seed };
            let mut choices = Seeded::new(seed + 1);
            let report = explorer.run(
                &made(256, promise, domain),
                |image| run.workload(image),
                |crashed, notes| kept += run.check(crashed, notes, &mut choices),
            );
            crashes += report.crashes;
        }
        println!("{promise:?}: {crashes} crashes, {kept} pages kept");
        assert!(!remanence_effort::are_all() || kept > 50, "only {kept} pages were kept");
    }
}
