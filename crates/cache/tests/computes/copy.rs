//! A log's copy on other machines: writers, of which some die, one who cleans, one who copies, and a crash at any time with any of the records
//! that were not acknowledged yet. In the log that is made again of them is all that was promised, and of each file a prefix of its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use remanence_cache::copy::{Copier, RECORD_MIN, RebuildError, Rebuilt};
use remanence_cache::entry::{Kind, Mtime, Owner};
use remanence_cache::format::{Lost, Promise, Record};
use remanence_cache::log::{AppendError, Log, Look};
use remanence_cache::op::Op;
use remanence_cache::recovery::{GRACE, scan};
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache::words::{LocalWords, Word, Words};
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Seeded};

use crate::baton::{Baton, Scheduled, Shared};
use crate::crash::{identity, made};
use crate::log::NOW;

const WRITERS: usize = 3;
const CHANGES: usize = 6;
const ENTRIES: u64 = 32;
/// The cleaner and the copier.
const CLEANS: usize = WRITERS;
const COPIES: usize = WRITERS + 1;

enum Event {
    /// A change was made, and is in the log; its file is still locked.
    Made(usize),
    /// It is promised to survive.
    Promised(usize),
    /// It is in its file.
    Cleaned(u64, usize),
    Sent,
    Acknowledged(usize),
    /// Records below are given up.
    Trimmed(usize),
}

struct Run {
    seed: u64,
    lives: Vec<u64>,
    events: Mutex<Vec<Event>>,
    records: Mutex<Vec<Vec<u8>>>,
}

const fn file_of(number: usize) -> u32 {
    1 + (number * 5 % 7 % 2) as u32
}

/// A change that no other is like, of one entry to three.
fn bytes_of(number: usize) -> Vec<u8> {
    vec![number as u8 + 1; 1 + number * 37 % 170]
}

fn op_of(number: usize, bytes: &[u8]) -> Op<'_> {
    Op::Write { file: FileId(file_of(number)), offset: 0, bytes }
}

/// Which change a payload is.
fn number_of(payload: &[u8]) -> usize {
    usize::from(payload[0]) - 1
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut choices = Seeded::new(seed);
        let life =
            |n| if n < WRITERS && choices.pick(3) == 0 { 1 + choices.pick(150) as u64 } else { u64::MAX };
        let lives = (0..WRITERS + 2).map(life).collect();
        Self { seed, lives, events: Mutex::default(), records: Mutex::default() }
    }

    fn note(&self, event: Event) {
        self.events.lock().expect("nobody panics in here").push(event);
    }

    fn go(&self) {
        let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
        let baton = Baton::new(&self.lives, 4, self.seed);
        let words = LocalWords::default();
        Log::start(&image, &words, Promise::AtReturn).expect("it is empty");
        std::thread::scope(|scope| {
            for me in 0..WRITERS + 2 {
                let (baton, words, image) = (&baton, &words, &image);
                scope.spawn(move || {
                    baton.run(me, || {
                        let log = Scheduled::log(baton, me, image, words);
                        match me {
                            CLEANS => self.clean(&log, baton),
                            COPIES => self.copy(&log, baton, words),
                            _ => self.write(me, &log, baton, words),
                        }
                    });
                });
            }
        });
    }

    fn write(&self, me: usize, log: &Shared<'_>, baton: &Baton, words: &LocalWords) {
        let mut choices = Seeded::new(self.seed * 31 + me as u64);
        for number in me * CHANGES..(me + 1) * CHANGES {
            let bytes = bytes_of(number);
            let op = op_of(number, &bytes);
            baton.lock(me, op.file().0 as usize);
            let end = loop {
                match log.append(Owner::new(me as u32), &op, NOW) {
                    Ok(end) => break end,
                    Err(AppendError::Full { .. }) => baton.step(me),
                    Err(why) => panic!("{why}"),
                }
            };
            self.note(Event::Made(number));
            baton.unlock(op.file().0 as usize);
            if choices.pick(2) == 0 {
                while words.load(Word::Copied) < end {
                    baton.step(me);
                }
                self.note(Event::Promised(number));
            }
        }
    }

    fn clean(&self, log: &Shared<'_>, baton: &Baton) {
        let mut choices = Seeded::new(self.seed * 37);
        let mut payload = Vec::new();
        loop {
            let (mut at, mut cleaned) = (log.tail(), Vec::new());
            loop {
                match log.look(at) {
                    Look::End => break,
                    Look::Pending { first, owner } if baton.is_dead(owner.number() as usize) => {
                        log.abandon(first, owner).expect("the medium stands");
                    }
                    Look::Pending { .. } => break,
                    Look::Entry(entry) => {
                        if entry.kind == Kind::Write {
                            log.payload(&entry, &mut payload).expect("it is whole");
                            cleaned.push(Event::Cleaned(entry.first, number_of(&payload)));
                        }
                        at = entry.end();
                    }
                    Look::Damaged(damage) => panic!("{damage}"),
                }
                if choices.pick(6) == 0 {
                    break;
                }
            }
            if at > log.tail() {
                cleaned.into_iter().for_each(|event| self.note(event));
                log.advance(at).expect("the medium stands");
                log.free(at);
            }
            if !baton.others_run(CLEANS) {
                break;
            }
            for _ in 0..choices.pick(40) + 1 {
                baton.step(CLEANS);
            }
        }
    }

    fn send(&self, record: Vec<u8>) {
        self.records.lock().expect("nobody panics in here").push(record);
        self.note(Event::Sent);
    }

    fn copy(&self, log: &Shared<'_>, baton: &Baton, words: &LocalWords) {
        let mut choices = Seeded::new(self.seed * 41);
        let mut copier = Copier::new(log);
        // Records that are under way, and those that are not given up, each with what it has all below.
        let mut uptos: Vec<(u64, usize)> = Vec::new();
        let (mut kept, mut sent): (Vec<(usize, u64)>, usize) = (Vec::new(), 0);
        loop {
            let over = !baton.others_run_but(COPIES, CLEANS);
            match copier.next(log, RECORD_MIN).expect("nothing is damaged") {
                Some(batch) => {
                    self.send(batch.record);
                    kept.push((sent, batch.upto));
                    sent += 1;
                    uptos.push((batch.upto, sent));
                }
                None if over && uptos.is_empty() => break,
                None => {
                    if uptos.is_empty() {
                        words.raise(Word::Copied, copier.sent());
                    }
                    baton.step(COPIES);
                }
            }
            if over || choices.pick(2) == 0 {
                let taken = if over { uptos.len() } else { choices.pick(uptos.len() + 1) };
                for (upto, count) in uptos.drain(..taken) {
                    self.note(Event::Acknowledged(count));
                    words.raise(Word::Copied, upto);
                }
            }
            if choices.pick(10) == 0 {
                let (tail, records) = copier.base(log, RECORD_MIN);
                let first = sent;
                for record in records {
                    self.send(record);
                    sent += 1;
                }
                // They are waited for, and so is all before.
                for (upto, _) in uptos.drain(..) {
                    words.raise(Word::Copied, upto);
                }
                self.note(Event::Acknowledged(sent));
                kept.retain(|(_, upto)| *upto > tail);
                self.note(Event::Trimmed(kept.first().map_or(first, |(record, _)| *record)));
            }
        }
    }

    /// The log that is made again when the machine is lost behind so many events.
    fn check(&self, cut: usize, choices: &mut Seeded) {
        let events = self.events.lock().expect("nobody panics in here");
        let (mut sent, mut acknowledged, mut trimmed) = (0, 0, 0);
        let (mut promised, mut cleaned) = (BTreeSet::new(), BTreeMap::new());
        let mut made: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for event in &events[..cut] {
            match event {
                Event::Made(number) => made.entry(file_of(*number)).or_default().push(*number),
                Event::Promised(number) => drop(promised.insert(*number)),
                Event::Cleaned(first, number) => drop(cleaned.insert(*first, *number)),
                Event::Sent => sent += 1,
                Event::Acknowledged(count) => acknowledged = acknowledged.max(*count),
                Event::Trimmed(below) => trimmed = trimmed.max(*below),
            }
        }
        let records = self.records.lock().expect("nobody panics in here");
        let left = acknowledged + choices.pick(sent - acknowledged + 1);
        let mut rebuilt = Rebuilt::default();
        records[trimmed..left].iter().for_each(|record| rebuilt.add(record).expect("it is one of ours"));
        let Some(layout) = rebuilt.layout() else { return assert!(promised.is_empty()) };
        let image = CrashImage::new(layout.geometry.size(), PersistenceDomain::Process);
        rebuilt.write(&image).expect("it is blank");
        let found = scan(&image, Lost::Nothing).expect("it is a log");
        assert!(found.record.open && found.damaged.is_empty() && found.unsure.is_empty(), "{found:?}");
        assert_eq!(found.dropped, 0);
        // By index: what is in its file, and what the log has.
        let mut there: BTreeMap<u64, usize> =
            cleaned.range(..rebuilt.tail()).map(|(first, number)| (*first, *number)).collect();
        let mut payload = Vec::new();
        for item in found.items.iter().filter(|item| item.entry.kind == Kind::Write) {
            found.payload(&image, &item.entry, &mut payload).expect("it is whole");
            let number = number_of(&payload);
            assert_eq!(item.entry.op(&payload), Some(op_of(number, &bytes_of(number))));
            assert_eq!(Identity::read(&image, layout, item.entry.file), Some(identity(file_of(number))));
            there.insert(item.entry.first, number);
        }
        for number in &promised {
            assert!(there.values().any(|there| there == number), "change {number} was promised, and is gone");
        }
        for (file, made) in made {
            let mut order: Vec<usize> = there.values().copied().filter(|n| file_of(*n) == file).collect();
            order.dedup();
            // One of somebody who died over it may be missing, or may be there and was never made.
            let known: Vec<usize> = order.iter().copied().filter(|number| made.contains(number)).collect();
            assert_eq!(known, made[..known.len()], "of file {file}");
        }
    }
}

#[test]
fn what_was_promised_is_in_the_log_that_is_made_again_of_its_copy() {
    for seed in seeds(300) {
        let run = Run::new(seed);
        run.go();
        let mut choices = Seeded::new(seed);
        let len = run.events.lock().expect("nobody panics in here").len();
        let cuts = (0..12).map(|_| choices.pick(len + 1)).chain([len]).collect::<Vec<_>>();
        for cut in cuts {
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run.check(cut, &mut Seeded::new(seed + cut as u64));
            }));
            assert!(checked.is_ok(), "cut behind {cut} of {len} events: {}", replay(seed));
        }
    }
}

#[test]
fn who_was_passed_in_the_middle_of_an_append_appends_again() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut copier = Copier::new(&log);
    let stuck = log.reserve(Owner::new(1), 2).expect("there is room");
    let bytes = bytes_of(0);
    let end = log.append(Owner::new(2), &op_of(0, &bytes), NOW).expect("there is room");
    assert_eq!(end, ENTRIES + 3, "nobody had come by");
    let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry");
    assert_eq!(batch.upto, end);
    assert_eq!(copier.next(&log, RECORD_MIN).expect("nothing is damaged"), None);
    let mut rebuilt = Rebuilt::default();
    rebuilt.add(&batch.record).expect("it is a record");
    let again = CrashImage::new(image.bytes().len() as u64, PersistenceDomain::Process);
    rebuilt.write(&again).expect("it is blank");
    let found = scan(&again, Lost::Nothing).expect("it is a log");
    let indexes: Vec<(u64, Kind)> =
        found.items.iter().map(|item| (item.entry.first, item.entry.kind)).collect();
    assert!(indexes.contains(&(ENTRIES + 2, Kind::Write)), "{found:?}");
    assert_eq!(found.lost, Lost::Unsynced, "whatever is known of the place where it was made");
    assert!(
        found.is_foreign(FileId(file_of(0)), NOW)
            == found.is_foreign(FileId(file_of(0)), Mtime(NOW.0 + GRACE))
    );
    // The one that was passed is committed at last, and its writer sees that.
    log.fill(&stuck, &op_of(1, &[1; 100]), NOW);
    log.commit(&stuck).expect("the medium stands");
    assert_eq!(copier.next(&log, RECORD_MIN).expect("nothing is damaged"), None, "it was passed for good");
    // Who had reserved a place before he did something appends again, too.
    let before = log.reserve(Owner::new(1), 2).expect("there is room");
    log.append(Owner::new(2), &op_of(0, &bytes), NOW).expect("there is room");
    copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry");
    let end = log.complete(&before, &op_of(1, &[1; 100]), NOW).expect("there is room");
    assert_eq!((before.end(), end), (ENTRIES + 5, ENTRIES + 8));
    let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry");
    assert_eq!(batch.upto, end);
    // Nobody has come by.
    let before = log.reserve(Owner::new(1), 2).expect("there is room");
    assert_eq!(log.complete(&before, &op_of(1, &[1; 100]), NOW).expect("there is room"), before.end());
}

#[test]
fn a_log_that_was_closed_owes_nothing_and_another_may_follow() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut copier = Copier::new(&log);
    let bytes = bytes_of(3);
    log.append(Owner::new(2), &op_of(3, &bytes), NOW).expect("there is room");
    let piece = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry").record;
    let mut rebuilt = Rebuilt::default();
    assert!(rebuilt.is_closed());
    rebuilt.add(&piece).expect("it is a record");
    assert!(!rebuilt.is_closed());
    // Cut anywhere, it is none; and nothing that was not sent is taken for a record.
    for len in 0..piece.len() {
        assert!(matches!(Rebuilt::default().add(&piece[..len]), Err(RebuildError::Malformed(_))), "{len}");
    }
    let mut other = *log.layout();
    other.salt += 1;
    let foreign = Copier::closed(&other, ENTRIES);
    assert!(matches!(rebuilt.add(&foreign), Err(RebuildError::Apart)), "this one is open");
    rebuilt.add(&Copier::taken(log.layout(), log.tail())).expect("it is a record");
    assert!(rebuilt.is_taken() && !rebuilt.is_closed());
    rebuilt.add(&Copier::closed(log.layout(), log.head())).expect("it is a record");
    assert!(rebuilt.is_closed() && !rebuilt.is_taken());
    let again = CrashImage::new(image.bytes().len() as u64, PersistenceDomain::Process);
    rebuilt.write(&again).expect("it is blank");
    assert_eq!(scan(&again, Lost::Nothing).expect("it is a log").items.len(), 0);
    rebuilt.add(&foreign).expect("that one was closed");
    assert_eq!(rebuilt.layout(), Some(&other));
    let _ = Record::peek(&image, log.layout()).expect("it is whole");
}

#[test]
fn a_number_that_means_another_file_now_is_sent_with_what_names_it() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut table = FileTable::attach(&image, *log.layout(), log.head());
    let mut copier = Copier::new(&log);
    let mut rebuilt = Rebuilt::default();
    let mut file = FileId(1);
    for round in 0..3_u32 {
        let op = Op::Write { file, offset: 0, bytes: &[round as u8] };
        let end = log.append(Owner::new(2), &op, NOW).expect("there is room");
        let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry");
        rebuilt.add(&batch.record).expect("it is a record");
        // All is in its file, and the number is another one's.
        log.advance(end).expect("the medium stands");
        log.free(end);
        table.release(file, end);
        let other = Identity { inode: 1000 + u64::from(round), ..identity(1) };
        file = table.register(&other, log.tail()).expect("there is one free");
    }
    let last =
        log.append(Owner::new(2), &Op::Write { file, offset: 0, bytes: &[9] }, NOW).expect("there is room");
    let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry");
    rebuilt.add(&batch.record).expect("it is a record");
    assert_eq!(rebuilt.tail(), last - 1, "the tail went with it");
    let again = CrashImage::new(image.bytes().len() as u64, PersistenceDomain::Process);
    rebuilt.write(&again).expect("it is blank");
    let found = scan(&again, Lost::Nothing).expect("it is a log");
    assert_eq!(found.items.len(), 1);
    let known = Identity::read(&again, log.layout(), file).expect("it was sent");
    assert_eq!(known.inode, 1002);
}

#[test]
fn what_came_into_its_file_before_it_was_sent_is_not_replayed_over() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut copier = Copier::new(&log);
    let mut rebuilt = Rebuilt::default();
    let write = |byte: u8| {
        let op = Op::Write { file: FileId(1), offset: 0, bytes: &[byte] };
        log.append(Owner::new(2), &op, NOW).expect("there is room")
    };
    write(1);
    let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry");
    rebuilt.add(&batch.record).expect("it is a record");
    // A newer one is in the file, before the copier has come by.
    let end = write(2);
    log.advance(end).expect("the medium stands");
    log.free(end);
    let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("the tail has gone past");
    assert_eq!((batch.upto, batch.tail, copier.sent()), (end, end, end));
    rebuilt.add(&batch.record).expect("it is a record");
    let again = CrashImage::new(image.bytes().len() as u64, PersistenceDomain::Process);
    rebuilt.write(&again).expect("it is blank");
    assert_eq!(scan(&again, Lost::Nothing).expect("it is a log").items.len(), 0);
    assert_eq!(copier.next(&log, RECORD_MIN).expect("nothing is damaged"), None);
}
