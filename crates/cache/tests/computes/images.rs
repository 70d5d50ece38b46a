//! Images of files beside a log's copy: who writes, logged and not, who cleans, who sends, servers that are lost in the middle of it and a sender that is started
//! again; and at any time the machine is lost with its files. What is made again of the records alone has each file as it was promised, or later.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

use remanence_cache::copy::{Copier, RECORD_MIN, Rebuilt};
use remanence_cache::entry::Owner;
use remanence_cache::format::Promise;
use remanence_cache::imager::{Imager, Room, Step, WAITED};
use remanence_cache::images::{
    self, Builder, Built, FILE_MAX, FileKey, Meta, PIECE, RestoreTarget, State, count_of, digest, pieces_of,
    record,
};
use remanence_cache::log::{AppendError, Log};
use remanence_cache::op::Op;
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache::words::LocalWords;
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices, CrashImage, Seeded};

use crate::crash::{identity, made};
use crate::log::NOW;

const ENTRIES: u64 = 64;
/// Longer than this no file gets.
const LONGEST: usize = 5 * PIECE;
/// Room for images of some files, and not of all at their longest.
const ROOM: u64 = 14 * PIECE as u64;

/// Files in memory.
#[derive(Default)]
struct Made(BTreeMap<FileKey, Vec<u8>>);

impl RestoreTarget for Made {
    type Error = Infallible;

    fn write(&mut self, key: &FileKey, offset: u64, bytes: &[u8]) -> Result<(), Infallible> {
        put(self.0.entry(*key).or_default(), offset as usize, bytes);
        Ok(())
    }

    fn zero(&mut self, key: &FileKey, from: u64, to: u64) -> Result<(), Infallible> {
        self.0.entry(*key).or_default()[from as usize..(to.max(from)) as usize].fill(0);
        Ok(())
    }

    fn set_len(&mut self, key: &FileKey, len: u64) -> Result<(), Infallible> {
        self.0.entry(*key).or_default().resize(len as usize, 0);
        Ok(())
    }

    fn discard(&mut self, key: &FileKey) -> Result<(), Infallible> {
        self.0.remove(key);
        Ok(())
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    file.resize(file.len().max(offset + bytes.len()), 0);
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn key(identity: &Identity) -> FileKey {
    FileKey { device: identity.device, inode: identity.inode, born: identity.born }
}

/// A file of the machine.
struct File {
    id: FileId,
    identity: Identity,
    bytes: Vec<u8>,
    /// What it was from the last promise on; each of these may be found, and nothing else.
    states: Vec<Vec<u8>>,
    /// It was promised once to be there.
    kept: bool,
    /// It was changed without that being logged, and nobody was told yet that this is durable.
    foreign: bool,
}

struct Machine<'a> {
    choices: Seeded,
    log: Log<&'a CrashImage, LocalWords>,
    table: FileTable<&'a CrashImage>,
    copier: Copier,
    imager: Imager,
    files: Vec<File>,
    /// What the servers have: the number of the first record, and all.
    first: u64,
    records: VecDeque<Vec<u8>>,
    /// Records that are not given up, each with what it has all below.
    kept: VecDeque<(u64, u64)>,
    inodes: u64,
    given_up: u64,
    trimmed: u64,
}

impl<'a> Machine<'a> {
    fn new(image: &'a CrashImage, seed: u64) -> Self {
        let log = Log::start(image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
        let mut table = FileTable::attach(image, *log.layout(), log.head());
        for number in 0..3 {
            // It is in use from now on.
            let id = table.register(&identity(number), log.tail()).expect("it has one");
            assert_eq!(id, FileId(number));
        }
        let file = |number: u32| File {
            id: FileId(number),
            identity: identity(number),
            bytes: Vec::new(),
            states: Vec::new(),
            kept: false,
            foreign: true,
        };
        Self {
            choices: Seeded::new(seed),
            copier: Copier::with_images(&log),
            log,
            table,
            imager: Imager::new(ROOM),
            files: (0..3).map(file).collect(),
            first: 0,
            records: VecDeque::new(),
            kept: VecDeque::new(),
            inodes: 100,
            given_up: 0,
            trimmed: 0,
        }
    }

    /// A change that no other is like.
    fn change(&mut self, n: usize, logged: bool) {
        let file = &self.files[n];
        let (id, len) = (file.id, file.bytes.len());
        let offset = self.choices.pick(LONGEST - 600);
        let bytes = vec![1 + self.choices.pick(255) as u8; 1 + self.choices.pick(500)];
        let to = self.choices.pick(LONGEST) as u64;
        let op = match self.choices.pick(12) {
            0 => Op::Truncate { file: id, len: to },
            1 => Op::Allocate { file: id, mode: 0, offset: 0, len: to },
            2 => Op::Allocate { file: id, mode: 3, offset: offset as u64, len: to },
            3..7 if len > 0 => Op::Write { file: id, offset: (len - len.min(200)) as u64, bytes: &bytes },
            _ => Op::Write { file: id, offset: offset as u64, bytes: &bytes },
        };
        if logged {
            while let Err(AppendError::Full { .. }) = self.log.append(Owner::new(1), &op, NOW) {
                self.send();
                self.drain();
            }
        }
        let file = &mut self.files[n];
        match op {
            Op::Truncate { len, .. } => file.bytes.resize(len as usize, 0),
            Op::Allocate { mode: 3, offset, len, .. } => {
                let end = ((offset + len) as usize).min(file.bytes.len());
                file.bytes[(offset as usize).min(end)..end].fill(0);
            }
            Op::Allocate { len, .. } => file.bytes.resize(file.bytes.len().max(len as usize), 0),
            Op::Write { offset, bytes, .. } => put(&mut file.bytes, offset as usize, bytes),
            _ => unreachable!("nothing else was made"),
        }
        file.states.push(file.bytes.clone());
        file.foreign |= !logged;
    }

    /// All that is committed is in its files.
    fn drain(&mut self) {
        let tail = self.copier.sent();
        self.log.advance(tail).expect("the medium stands");
        self.log.free(tail);
    }

    /// Sends all that is committed.
    fn send(&mut self) {
        self.send_below(u64::MAX, None);
    }

    /// Sends what is committed below an index, and an image behind it.
    fn send_below(&mut self, limit: u64, image: Option<Vec<u8>>) {
        let mut records = Vec::new();
        while let Some(batch) =
            self.copier.next_below(&self.log, RECORD_MIN, limit).expect("nothing is damaged")
        {
            records.push((batch.upto, batch.record));
        }
        let is_image = image.is_some();
        records.extend(image.map(|record| (0, record)));
        if self.choices.pick(12) == 0 {
            // Too few servers are left in the middle of it. What they have may be any beginning of that.
            let left = self.choices.pick(records.len() + 1);
            for (_, record) in records.into_iter().take(left) {
                self.take(record, 0);
            }
            self.check();
            self.copier = Copier::with_images(&self.log);
            return self.send();
        }
        for (upto, record) in records {
            self.take(record, upto);
        }
        if is_image {
            self.imager.done();
        } else if limit == u64::MAX {
            // All that is logged is promised.
            self.promise();
        }
    }

    /// A record is on the servers, and known to be.
    fn take(&mut self, record: Vec<u8>, upto: u64) {
        let number = self.first + self.records.len() as u64;
        self.imager.recorded(number, &record).expect("it is one of ours");
        self.kept.push_back((number, upto));
        self.records.push_back(record);
        // Whoever asks is told that there was no room for it, until it was looked at once more.
        for file in &mut self.files {
            let image = self.imager.keeper().get(&key(&file.identity));
            file.kept &= image.is_none_or(|image| image.meta().state != State::GivenUp);
        }
    }

    fn promise(&mut self) {
        for file in &mut self.files {
            if !file.foreign {
                file.states = vec![file.bytes.clone()];
            }
        }
    }

    /// One step of the images. `false`: there was none.
    fn step(&mut self, room: Room) -> bool {
        let most = pieces_of(RECORD_MIN, 4096).min(3);
        let Some(step) = self.imager.next(most, room) else { return false };
        let at = self.log.head();
        let of = |key: &FileKey| self.files.iter().position(|file| self::key(&file.identity) == *key);
        let (Step::Gone(about) | Step::Read(about, ..)) = &step;
        let place = of(about);
        let read = match (&step, place) {
            (Step::Read(key, pieces, _), Some(n)) => {
                let file = &self.files[n];
                let meta = Meta {
                    key: *key,
                    state: State::Whole,
                    at,
                    len: file.bytes.len() as u64,
                    mode: 0o100_640,
                    owner: [1, 2],
                    path: file.identity.path.clone(),
                };
                let count = count_of(meta.len);
                let pieces = pieces.iter().filter(|piece| **piece < count).map(|piece| {
                    let from = *piece as usize * PIECE;
                    (*piece, file.bytes[from..file.bytes.len().min(from + PIECE)].to_vec())
                });
                Some((meta, pieces.collect()))
            }
            _ => None,
        };
        // Others go on meanwhile, and the cleaner too.
        if let Some(n) = place
            && !self.files[n].foreign
            && self.choices.pick(2) == 0
            && self.log.used() < ENTRIES / 2
        {
            self.change(n, true);
        }
        // What the servers have is told by what comes before it.
        if self.copier.sent() < at {
            self.send_below(at, None);
        }
        if self.copier.sent() > at {
            // They were lost over it, and have what comes behind it.
            return true;
        }
        let (layout, tail) = (*self.log.layout(), self.log.tail());
        if let Some(record) = self.imager.record(&layout, tail, &step, read) {
            self.send_below(at, Some(record));
        }
        true
    }

    /// Gives up what nobody needs.
    fn trim(&mut self) {
        let (tail, base) = self.copier.base(&self.log, RECORD_MIN);
        let mut below = self.first + self.records.len() as u64;
        for record in base {
            self.records.push_back(record);
        }
        let needed = self.kept.iter().find(|(_, upto)| *upto > tail);
        below = below.min(needed.map_or(u64::MAX, |(number, _)| *number));
        below = self.imager.keeper().begins(below);
        self.imager.trimmed(below);
        while self.kept.front().is_some_and(|(number, _)| *number < below) {
            self.kept.pop_front();
        }
        self.trimmed += below - self.first;
        self.records.drain(..(below - self.first) as usize);
        self.first = below;
    }

    /// A file is synced by the kernel: who does that is told when the servers have it.
    fn look(&mut self, n: usize) {
        self.imager.stale(key(&self.files[n].identity), self.files[n].bytes.len() as u64);
        while self.imager.is_waited_for() {
            assert!(self.step(Room::Enough), "what is waited for is done");
            if self.choices.pick(3) == 0 {
                self.check();
            }
        }
        let file = &mut self.files[n];
        let state = self.imager.keeper().get(&key(&file.identity)).map(|image| image.meta().state);
        if state == Some(State::GivenUp) {
            self.given_up += 1;
            (file.kept, file.states) = (false, Vec::new());
            return;
        }
        if self.log.head() > self.copier.sent() {
            self.send();
        }
        let file = &mut self.files[n];
        (file.kept, file.foreign, file.states) = (true, false, vec![file.bytes.clone()]);
    }

    /// Another file gets the name of one, which is gone.
    fn replace(&mut self, n: usize) {
        self.send();
        self.drain();
        self.inodes += 1;
        let before = &self.files[n];
        let identity = Identity { inode: self.inodes, ..before.identity.clone() };
        self.imager.gone(key(&before.identity));
        self.table.release(before.id, self.log.head());
        let id = self.table.register(&identity, self.log.tail()).expect("one is free");
        self.files[n] =
            File { id, identity, bytes: vec![7; 9], states: Vec::new(), kept: false, foreign: true };
        self.look(n);
    }

    /// The sender is another process, which knows nothing but what the servers have.
    fn restart(&mut self) {
        self.copier = Copier::with_images(&self.log);
        self.imager = Imager::new(ROOM);
        for (number, record) in (self.first..).zip(&self.records) {
            self.imager.recorded(number, record).expect("it is one of ours");
        }
        self.kept = (self.first..self.first + self.records.len() as u64)
            .map(|number| (number, self.log.head()))
            .collect();
        for n in 0..self.files.len() {
            if self.files[n].kept || !self.files[n].states.is_empty() {
                self.look(n);
            }
        }
    }

    /// The machine is lost with its files.
    fn check(&self) {
        let mut place = Made::default();
        let (mut builder, mut rebuilt) = (Builder::default(), Rebuilt::default());
        for record in &self.records {
            builder.add(record, &mut place).expect("it is one of ours");
            rebuilt.add(record).expect("it is one of ours");
        }
        let Ok(all) = builder.finish(&mut place);
        for file in self.files.iter().filter(|file| file.kept) {
            let key = key(&file.identity);
            let found: Option<&Built> = all.iter().find(|built| built.meta.key == key);
            let built = found.unwrap_or_else(|| panic!("{key:?} was promised, and is gone"));
            if built.meta.state == State::GivenUp {
                continue;
            }
            assert!(matches!(built.meta.state, State::Whole | State::Stale), "{built:?}");
            assert_eq!(built.meta.path, file.identity.path);
            let bytes = &place.0[&key];
            assert_eq!(built.meta.len, bytes.len() as u64);
            let is_one = file.states.iter().any(|state| state == bytes);
            // What was not logged, and not synced yet, may be there in part.
            let at = |state: &Vec<u8>, n: usize| state.get(n).copied().unwrap_or(0);
            let is_mixed = |bytes: &[u8]| {
                (0..bytes.len()).all(|n| file.states.iter().any(|state| at(state, n) == bytes[n]))
            };
            assert!(
                is_one || file.foreign && is_mixed(bytes),
                "{key:?} is as it never was since it was promised (of {} states)",
                file.states.len()
            );
        }
    }
}

fn run(seed: u64) -> (u64, u64) {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let mut machine = Machine::new(&image, seed);
    for n in 0..machine.files.len() {
        machine.change(n, false);
        machine.look(n);
    }
    for _ in 0..120 {
        let n = machine.choices.pick(machine.files.len());
        match machine.choices.pick(20) {
            0..9 if !machine.files[n].foreign => machine.change(n, true),
            9 => {
                machine.change(n, false);
                machine.look(n);
            }
            10..13 => machine.send(),
            13 => machine.drain(),
            14..17 => {
                // It is as if there were no room: the oldest are sent once more.
                let room = if machine.choices.pick(2) == 0 { Room::Low } else { Room::None };
                machine.step(room);
                machine.trim();
            }
            17 => machine.trim(),
            18 => machine.replace(n),
            19 => machine.restart(),
            _ => {}
        }
        machine.check();
    }
    (machine.given_up, machine.trimmed)
}

#[test]
fn files_are_made_again_of_the_records_alone() {
    let (mut given_up, mut trimmed) = (0, 0);
    for seed in seeds(200) {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok((up, below)) = ran else { panic!("{}", replay(seed)) };
        (given_up, trimmed) = (given_up + up, trimmed + below);
    }
    assert!(given_up > 0 && trimmed > 0, "{given_up} given up, {trimmed} records trimmed");
    // A file is cut short without that being logged, and then the log is sent anew, which has older writes behind that end: no record from before
    // these is given up without them.
    run(1464);
}

#[test]
fn what_is_behind_an_image_is_carried_out_on_it_and_what_is_sent_again_is_not() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut copier = Copier::with_images(&log);
    let write = |byte: u8| {
        let op = Op::Write { file: FileId(1), offset: 0, bytes: &[byte] };
        log.append(Owner::new(2), &op, NOW).expect("there is room")
    };
    let mut take = || {
        let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged");
        batch.expect("there is an entry").record
    };
    write(1);
    let first = take();
    let at = write(2);
    let second = take();
    let file = key(&identity(1));
    let (path, owner) = (b"/data/1".to_vec(), [0; 2]);
    let meta = Meta { key: file, state: State::Whole, at, len: 3, mode: 0o100_600, owner, path };
    let whole = record(log.layout(), log.tail(), &meta, &[(0, &[2, 8, 9])]);
    write(3);
    let third = take();
    let build = |records: &[&[u8]]| {
        let (mut builder, mut place) = (Builder::default(), Made::default());
        records.iter().for_each(|record| builder.add(record, &mut place).expect("it is one of ours"));
        let Ok(all) = builder.finish(&mut place);
        (all.len(), place.0.get(&file).cloned())
    };
    assert_eq!(build(&[&first, &second, &whole, &third]), (1, Some(vec![3, 8, 9])));
    assert_eq!(build(&[&whole, &third]), (1, Some(vec![3, 8, 9])), "what is before it is not needed");
    assert_eq!(build(&[&whole, &first, &second]), (1, Some(vec![2, 8, 9])), "they were sent again");
    assert_eq!(build(&[&first, &second]), (0, None), "nobody has kept an image");
    // A flipped bit is no content, and half a record is none.
    for at in whole.len() - 3..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        assert!(Builder::default().add(&flipped, &mut Made::default()).is_err());
    }
    for len in 0..whole.len() {
        assert!(Builder::default().add(&whole[..len], &mut Made::default()).is_err(), "{len}");
        assert!(Imager::new(ROOM).recorded(0, &whole[..len]).is_err(), "{len}");
    }
    let mut rebuilt = Rebuilt::default();
    rebuilt.add(&whole).expect("it is one of ours");
    assert_ne!(digest(&[0; 4]), digest(&[0; 5]));
}

/// What is read of a file that is all one byte.
fn read(file: FileKey, at: u64, len: u64, asked: &[u32], byte: u8) -> (Meta, Vec<(u32, Vec<u8>)>) {
    let (path, owner) = (b"/data/big".to_vec(), [0; 2]);
    let meta = Meta { key: file, state: State::Whole, at, len, mode: 0o100_600, owner, path };
    let piece = |number: &u32| {
        (*number, vec![byte; (len - u64::from(*number) * PIECE as u64).min(PIECE as u64) as usize])
    };
    (meta, asked.iter().filter(|number| **number < count_of(len)).map(piece).collect())
}

/// A sparse file that is longer than an image can be.
#[test]
fn a_file_that_has_too_many_pieces_is_given_up() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut imager = Imager::new(1 << 60);
    let (file, len) = (key(&identity(1)), FILE_MAX + 1);
    imager.stale(file, len);
    let step = imager.next(4, Room::Enough).expect("it is new");
    let Step::Read(_, asked, true) = &step else { panic!("{step:?}") };
    let (meta, pieces) = read(file, log.head(), FILE_MAX, asked, 0);
    let read = Some((Meta { len, ..meta }, pieces));
    let record = imager.record(log.layout(), log.tail(), &step, read).expect("nobody knows that yet");
    imager.recorded(0, &record).expect("it is one of ours");
    imager.done();
    assert_eq!(imager.keeper().get(&file).map(|image| image.meta().state), Some(State::GivenUp));
    assert!(imager.next(4, Room::Enough).is_none() && !imager.is_waited_for());
    let (mut builder, mut place) = (Builder::default(), Made::default());
    builder.add(&record, &mut place).expect("it is one of ours");
}

/// A hole that is punched is as long as whoever punches it likes, and so is the file.
#[test]
fn a_long_hole_is_no_piece() {
    const LEN: u64 = 1 << 32;
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let (mut copier, mut imager) = (Copier::with_images(&log), Imager::new(1 << 60));
    let (id, file) = (FileId(1), key(&identity(1)));
    let (meta, pieces) = read(file, log.head(), 3 * PIECE as u64, &[0, 1, 2], 7);
    let pieces: Vec<(u32, &[u8])> = pieces.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    let meta = Meta { path: identity(1).path, ..meta };
    imager.recorded(0, &record(log.layout(), log.tail(), &meta, &pieces)).expect("it is one of ours");
    let hole = Op::Allocate { file: id, mode: 3, offset: PIECE as u64 + 1, len: LEN };
    for op in [Op::Truncate { file: id, len: LEN }, hole] {
        log.append(Owner::new(2), &op, NOW).expect("there is room");
    }
    let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there are entries");
    imager.recorded(1, &batch.record).expect("it is one of ours");
    let image = imager.keeper().get(&file).expect("it is there");
    assert_eq!((image.count(), image.meta().len), (3, LEN));
    assert!(image.has(0, &[7; PIECE]) && !image.has(1, &[7; PIECE]) && !image.has(2, &[7; PIECE]));
}

#[test]
fn attributes_that_were_logged_are_those_of_a_file_that_is_made_again() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut copier = Copier::with_images(&log);
    let file = key(&identity(1));
    let (meta, _) = read(file, log.head(), 0, &[], 0);
    let whole = record(log.layout(), log.tail(), &meta, &[]);
    let op = Op::Attributes { file: FileId(1), mode: 0o100_755, user: 8, group: 9 };
    log.append(Owner::new(2), &op, NOW).expect("there is room");
    let batch = copier.next(&log, RECORD_MIN).expect("nothing is damaged").expect("there is an entry");
    let (mut builder, mut place) = (Builder::default(), Made::default());
    for record in [&whole, &batch.record] {
        builder.add(record, &mut place).expect("it is one of ours");
    }
    let Ok(all) = builder.finish(&mut place);
    assert_eq!((all[0].meta.mode, all[0].meta.owner), (0o100_755, [8, 9]));
}

#[test]
fn a_name_is_that_of_the_file_that_had_it_last() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let files = [1, 2].map(|number| key(&identity(number)));
    let named = |file: usize, name: &str| {
        let (meta, _) = read(files[file], log.head(), 0, &[], 0);
        record(log.layout(), log.tail(), &Meta { path: name.as_bytes().to_vec(), ..meta }, &[])
    };
    let gone = |file: usize| images::gone(log.layout(), log.tail(), &files[file]);
    let build = |records: &[Vec<u8>]| {
        let (mut builder, mut place) = (Builder::default(), Made::default());
        for record in records {
            builder.add(record, &mut place).expect("it is one of ours");
        }
        let Ok(all) = builder.finish(&mut place);
        let number =
            |built: &Built| files.iter().position(|file| *file == built.meta.key).expect("one of two");
        let path = |built: &Built| String::from_utf8(built.meta.path.clone()).expect("text");
        all.iter().map(|built| (number(built), path(built))).collect::<Vec<_>>()
    };
    let is = |file: usize, name: &str| (file, name.to_owned());
    assert_eq!(build(&[named(0, "/a"), named(1, "/a")]), [is(1, "/a")]);
    assert_eq!(build(&[named(0, "/a"), named(1, "/a"), named(0, "/b")]), [is(0, "/b"), is(1, "/a")]);
    assert_eq!(build(&[named(0, "/a"), named(0, "/b"), named(1, "/a")]), [is(0, "/b"), is(1, "/a")]);
    assert_eq!(build(&[named(0, "/a"), named(1, "/a"), named(0, "/a")]), [is(0, "/a")]);
    assert_eq!(build(&[named(0, "/a"), gone(0), named(1, "/a"), named(0, "/b"), gone(1)]), [is(0, "/b")]);
}

#[test]
fn a_long_file_gets_complete_while_syncs_go_on_and_it_is_told_before() {
    let image = made(ENTRIES, Promise::AtReturn, PersistenceDomain::Process);
    let log = Log::start(&image, LocalWords::default(), Promise::AtReturn).expect("it is empty");
    let mut imager = Imager::new(1 << 40);
    let (file, len) = (key(&identity(1)), WAITED + 1);
    let state = |imager: &Imager| imager.keeper().get(&file).map(|image| image.meta().state);
    imager.stale(file, len);
    let steps = u64::from(count_of(len)).div_ceil(256);
    for n in 0..steps {
        assert_eq!(imager.is_waited_for(), n == 0 || n == 2, "only until the servers know of it");
        let step = imager.next(256, Room::Enough).expect("it is not complete");
        let Step::Read(_, asked, true) = &step else { panic!("{step:?}") };
        let asked = asked.clone();
        let read = Some(read(file, log.head(), len, &asked, 0));
        let record = imager.record(log.layout(), log.tail(), &step, read).expect("nothing is there");
        imager.recorded(n, &record).expect("it is one of ours");
        imager.done();
        assert_eq!(state(&imager), Some(if n + 1 < steps { State::Building } else { State::Stale }));
        if n == 1 {
            // It is changed meanwhile without that being logged, and scanned once more.
            imager.stale(file, len);
        }
    }
    // All is there already: nothing is sent, but that it is whole.
    let mut said = 0;
    while let Some(step) = imager.next(256, Room::Enough) {
        let Step::Read(_, asked, true) = &step else { panic!("{step:?}") };
        let asked = asked.clone();
        let read = Some(read(file, log.head(), len, &asked, 0));
        if let Some(record) = imager.record(log.layout(), log.tail(), &step, read) {
            imager.recorded(steps + said, &record).expect("it is one of ours");
            imager.done();
            said += 1;
        }
    }
    assert_eq!((state(&imager), said), (Some(State::Whole), 1));
}
