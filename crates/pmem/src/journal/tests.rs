//! A journal on a simulated disk that crashes at any write, again while it recovers, and keeps of what was not synced
//! whatever it likes; that fails to write, and says so once, as Linux does; whose file system is mounted anew; hostile bytes; and
//! real files.

use std::collections::BTreeSet;
use std::io;
use std::ops::{Range, RangeInclusive};

use super::format::{self, BLOCK, Header, JournalLayout, MARK, NO_BOOT, Name};
use super::log::{Bad, Cache, Disk, Log, Outcome, Part, Work};
use super::pending::Pending;
use crate::flush::LINE;

mod files;

const REGION: usize = 64 << 10;
const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// Words that are written, all over the region, and two to a line.
const WORDS: usize = 48;

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % below
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// What is left of a machine that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Crash {
    Process,
    /// The file system is shut down and mounted again, or the device is gone for a while: the boot is the same.
    Mount,
    Power,
}

/// Whether writing failed, as Linux keeps account of it for a file, and for a file system: whoever was there is told
/// once, and who comes later only if nobody was told before.
#[derive(Clone, Default)]
struct Failures {
    count: u64,
    told: bool,
}

impl Failures {
    fn add(&mut self) {
        self.count += 1;
        self.told = false;
    }

    /// What a descriptor that is opened now has been told.
    fn sample(&self) -> u64 {
        if self.told { self.count } else { 0 }
    }

    fn tell(&mut self, known: &mut u64) -> io::Result<()> {
        if *known == self.count {
            return Ok(());
        }
        (*known, self.told) = (self.count, true);
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }
}

/// A file's bytes, as the kernel has them and as the disk does.
#[derive(Clone)]
struct Bytes {
    cache: Vec<u8>,
    disk: Vec<u8>,
}

impl Bytes {
    fn new(len: usize) -> Self {
        Self { cache: vec![0; len], disk: vec![0; len] }
    }

    /// The disk gets some of the sectors of a range.
    fn some_sectors(&mut self, range: Range<usize>, random: &mut Random) {
        for at in range.step_by(SECTOR) {
            if random.one_in(2) {
                self.disk[at..at + SECTOR].copy_from_slice(&self.cache[at..at + SECTOR]);
            }
        }
    }

    fn page(&mut self, page: usize) {
        let range = page * PAGE..(page + 1) * PAGE;
        self.disk[range.clone()].copy_from_slice(&self.cache[range]);
    }
}

struct World {
    random: Random,
    region: Bytes,
    halves: Bytes,
    /// The mark's block.
    marks: Bytes,
    /// Pages of the region that may differ.
    dirty: BTreeSet<usize>,
    /// Those that could not be written, and count as clean.
    stale: BTreeSet<usize>,
    /// Blocks of the halves that the kernel has yet to write, or could not.
    late: BTreeSet<usize>,
    stale_blocks: BTreeSet<usize>,
    /// Writes and syncs until the machine or the process ends.
    left: Option<usize>,
    /// One in so many writes of a page fails.
    fails: Option<usize>,
    /// Of the file, and of the file system.
    failures: [Failures; 2],
    /// What was told to the file's descriptor, to the one that writes through, and to the file's of the file system's.
    known: [u64; 3],
}

impl World {
    /// Whether this step of the disk is the last.
    fn ends(&mut self) -> bool {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.left == Some(0)
    }

    /// Whether a write fails now, of which the kernel takes note.
    fn fails(&mut self) -> bool {
        let fails = self.fails.is_some_and(|n| self.random.one_in(n));
        if fails {
            self.failures.iter_mut().for_each(Failures::add);
        }
        fails
    }

    /// The kernel writes a page of the region that is dirty, or fails to: it is clean then.
    fn write_page(&mut self, page: usize) {
        if !self.dirty.remove(&page) {
            return;
        }
        if self.fails() {
            self.region.some_sectors(page * PAGE..(page + 1) * PAGE, &mut self.random);
            self.stale.insert(page);
        } else {
            self.region.page(page);
            self.stale.remove(&page);
        }
    }

    /// The kernel gives up a page that counts as clean.
    fn evict(&mut self, page: usize) {
        if !self.dirty.contains(&page) && self.stale.remove(&page) {
            let range = page * PAGE..(page + 1) * PAGE;
            self.region.cache[range.clone()].copy_from_slice(&self.region.disk[range]);
        }
    }

    fn evict_blocks(&mut self) {
        for block in std::mem::take(&mut self.stale_blocks) {
            let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
            self.halves.cache[range.clone()].copy_from_slice(&self.halves.disk[range]);
        }
    }

    /// The kernel writes what it likes, and gives up what it likes.
    fn write_back(&mut self) {
        let page = self.random.below(REGION / PAGE);
        match self.random.below(4) {
            0..2 => {
                self.write_page(page);
                if self.random.one_in(2) {
                    self.evict(page);
                }
            }
            2 => self.evict(page),
            _ if self.stale.contains(&page) => {}
            _ => self.region.some_sectors(page * PAGE..(page + 1) * PAGE, &mut self.random),
        }
    }

    fn power_loss(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            self.region.some_sectors(page * PAGE..(page + 1) * PAGE, &mut self.random);
        }
        for bytes in [&mut self.region, &mut self.halves, &mut self.marks] {
            bytes.cache.clone_from(&bytes.disk);
        }
        (self.stale, self.late, self.stale_blocks) = Default::default();
        self.failures = Default::default();
    }

    /// The kernel forgets the inode: it writes all, and gives it up, and what it knew of failures of this file.
    fn forget_inode(&mut self) {
        let file = self.known[0];
        let _ = self.write_all();
        self.known[0] = file;
        (0..REGION / PAGE).for_each(|page| self.evict(page));
        self.evict_blocks();
        self.marks.cache.clone_from(&self.marks.disk);
        self.failures[0] = Failures::default();
    }

    fn opened(&mut self) {
        let [file, system] = &self.failures;
        self.known = [file.sample(), file.sample(), system.sample()];
    }

    fn write_all(&mut self) -> io::Result<()> {
        self.dirty.clone().into_iter().for_each(|page| self.write_page(page));
        for block in std::mem::take(&mut self.late) {
            self.write_block(block);
        }
        if !self.fails() {
            self.marks.disk.clone_from(&self.marks.cache);
        }
        self.failures[0].tell(&mut self.known[0])
    }

    /// Somebody dies while he is told, or somebody else is.
    fn answer_lost(&mut self) {
        if self.random.one_in(2) {
            let mut known = self.failures[0].sample();
            let _ = self.failures[0].tell(&mut known);
        }
    }

    fn write_block(&mut self, block: usize) {
        let range = block * BLOCK as usize..(block + 1) * BLOCK as usize;
        if self.fails() {
            self.halves.some_sectors(range, &mut self.random);
            self.stale_blocks.insert(block);
        } else {
            self.halves.disk[range.clone()].copy_from_slice(&self.halves.cache[range]);
            self.stale_blocks.remove(&block);
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("crashed")
}

impl Disk for World {
    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let at = (block * BLOCK) as usize;
        let ends = self.ends();
        // A process that is killed has handed over a first part.
        let len = if ends { self.random.below(bytes.len() + 1) } else { bytes.len() };
        self.halves.cache[at..at + len].copy_from_slice(&bytes[..len]);
        let blocks = block as usize..block as usize + bytes.len() / BLOCK as usize;
        if !ends {
            for block in blocks {
                self.late.remove(&block);
                self.write_block(block);
            }
            return self.failures[0].tell(&mut self.known[1]);
        }
        self.answer_lost();
        self.stale_blocks.retain(|block| !blocks.contains(block));
        self.late.extend(blocks);
        self.halves.some_sectors(at..at + bytes.len(), &mut self.random);
        // One sector is torn.
        let torn = at + self.random.below(bytes.len());
        let end = (torn / SECTOR + 1) * SECTOR;
        let cache = self.halves.cache[torn..end].to_vec();
        self.halves.disk[torn..end].copy_from_slice(&cache);
        Err(gone())
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let at = (block * BLOCK) as usize;
        into.copy_from_slice(&self.halves.cache[at..at + into.len()]);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if !self.ends() {
            return self.write_all();
        }
        for page in self.dirty.clone() {
            if self.random.one_in(2) {
                self.write_page(page);
            }
        }
        for block in self.late.clone() {
            let at = block * BLOCK as usize;
            self.halves.some_sectors(at..at + BLOCK as usize, &mut self.random);
        }
        self.answer_lost();
        Err(gone())
    }

    fn restore(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.ends() {
            return Err(gone());
        }
        let at = at as usize;
        self.region.cache[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty.extend(at / PAGE..=(at + bytes.len() - 1) / PAGE);
        Ok(())
    }

    fn check(&mut self) -> io::Result<()> {
        if self.ends() {
            self.answer_lost();
            return Err(gone());
        }
        self.failures[0].tell(&mut self.known[1])
    }

    fn prove(&mut self) -> io::Result<()> {
        self.sync()?;
        if self.ends() {
            return Err(gone());
        }
        self.failures[1].tell(&mut self.known[2])
    }

    fn mark(&mut self, sequence: u64) -> io::Result<()> {
        if self.left == Some(0) {
            return Err(gone());
        }
        self.marks.cache[..MARK].copy_from_slice(&format::mark(&NAME, sequence));
        if self.ends() {
            self.answer_lost();
            if self.random.one_in(2) {
                self.marks.disk.clone_from(&self.marks.cache);
            }
            return Err(gone());
        }
        let mut write = || {
            if !self.fails() {
                self.marks.disk.clone_from(&self.marks.cache);
            }
            self.failures[0].tell(&mut self.known[1])
        };
        write().or_else(|_| write())
    }

    fn marked(&mut self) -> io::Result<Option<u64>> {
        Ok(format::marked(self.marks.cache[..MARK].try_into().expect("its length"), &NAME))
    }

    fn forget(&mut self, part: Part) -> io::Result<()> {
        if self.left == Some(0) {
            return Err(gone());
        }
        match part {
            Part::Region => (0..REGION / PAGE).for_each(|page| self.evict(page)),
            Part::Halves => {
                assert!(self.late.is_empty(), "all was synced");
                self.evict_blocks();
            }
        }
        Ok(())
    }
}

/// A program that writes growing numbers to words, and what it may find there after a crash.
struct Program {
    world: World,
    place: JournalLayout,
    boot: u8,
    words: Vec<usize>,
    /// The last number written to each word, ever.
    last: [u64; WORDS],
    /// What a crash may leave in each: what was durable last, and all that was written since. The last is visible.
    may: Vec<Vec<u64>>,
    pending: Pending,
    /// Of each word, what it was when it was last asked for, if that was since the last psync.
    asked: [Option<u64>; WORDS],
    /// The inode has been in memory since a journal was opened.
    traced: Option<()>,
    /// A checkpoint under way: when it began, and the pages that it has to write.
    checkpoint: Option<(u64, Vec<usize>)>,
    /// As [`simulate`] was told.
    failing: bool,
    only_durable: bool,
    /// How often each thing happened.
    seen: Seen,
}

#[derive(Default, Debug)]
struct Seen {
    crashes: [u64; 3],
    failures: u64,
    inodes_forgotten: u64,
    copied_over: u64,
    in_recovery: u64,
    replayed: u64,
    full: u64,
    syncs: u64,
    closes: u64,
    notes_for_room: u64,
}

const NAME: Name = *b"of a simulation.";

impl Program {
    fn new(seed: u64) -> (Self, Log) {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let place = JournalLayout::new(REGION as u64, 0, NAME);
        let words = (0..WORDS).map(|n| {
            (random.below(REGION / LINE / WORDS) + n / 2 * 2 * (REGION / LINE / WORDS)) * LINE + n % 2 * 8
        });
        let words = words.collect();
        let halves = Bytes::new((place.blocks() * BLOCK) as usize);
        let mut world = World {
            random,
            region: Bytes::new(REGION),
            halves,
            marks: Bytes::new(MARK),
            dirty: BTreeSet::new(),
            stale: BTreeSet::new(),
            late: BTreeSet::new(),
            stale_blocks: BTreeSet::new(),
            left: None,
            fails: None,
            failures: Default::default(),
            known: [0; 3],
        };
        let log = Log::create(&mut world, place, [1; 16]).expect("nothing crashes yet");
        let program = Self {
            world,
            place,
            boot: 1,
            words,
            last: [0; WORDS],
            may: vec![vec![0]; WORDS],
            pending: Pending::new(log.batch_max() / LINE as u64),
            asked: [None; WORDS],
            traced: Some(()),
            checkpoint: None,
            failing: false,
            only_durable: false,
            seen: Seen::default(),
        };
        (program, log)
    }

    fn visible(&self, word: usize) -> u64 {
        let at = self.words[word];
        u64::from_le_bytes(self.world.region.cache[at..at + 8].try_into().expect("eight bytes"))
    }

    fn store(&mut self) {
        let word = self.world.random.below(WORDS);
        self.last[word] += 1;
        let (at, value) = (self.words[word], self.last[word]);
        self.world.region.cache[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self.world.dirty.insert(at / PAGE);
        self.may[word].push(value);
    }

    fn pwb(&mut self) {
        let word = self.world.random.below(WORDS);
        let line = (self.words[word] / LINE) as u64;
        // Sometimes so much that batches are long, or too long.
        let lines = if self.world.random.one_in(8) { self.world.random.below(300) as u64 } else { 1 };
        self.pending.add(line..(line + lines).clamp(line + 1, (REGION / LINE) as u64));
        self.asked[word] = Some(self.visible(word));
    }

    fn psync(&mut self, log: &mut Log) -> io::Result<()> {
        let work = match self.pending.take() {
            None => return Ok(()),
            Some(_) if self.world.random.one_in(60) => Work::Everything,
            Some(work) => work,
        };
        let sequence = log.checkpoint();
        while log.syncs(&work) && self.checkpoint.is_some() {
            self.step_checkpoint(log)?;
        }
        loop {
            let copied = self.world.region.cache.clone();
            let outcome = log.commit(&mut self.world, &work, |lines, into| {
                into.extend_from_slice(&copied[lines.start as usize * LINE..lines.end as usize * LINE]);
                Ok(())
            })?;
            if outcome == Outcome::Durable {
                break;
            }
            self.seen.full += 1;
            self.begin_checkpoint(log);
            while self.checkpoint.is_some() {
                self.step_checkpoint(log)?;
            }
        }
        self.seen.notes_for_room += u64::from(log.checkpoint() == sequence + 2);
        self.seen.syncs += u64::from(work == Work::Everything);
        for (asked, may) in self.asked.iter_mut().zip(&mut self.may) {
            if let Some(asked) = asked.take() {
                may.retain(|value| *value >= asked);
            }
        }
        if log.wants_checkpoint() {
            self.begin_checkpoint(log);
        }
        Ok(())
    }

    fn begin_checkpoint(&mut self, log: &Log) {
        if self.checkpoint.is_none() {
            self.checkpoint = Some((log.checkpoint(), self.world.dirty.iter().copied().collect()));
        }
    }

    fn step_checkpoint(&mut self, log: &mut Log) -> io::Result<()> {
        let Some((begun, pages)) = &mut self.checkpoint else { return Ok(()) };
        if self.world.ends() {
            self.world.answer_lost();
            return Err(gone());
        }
        match pages.pop() {
            Some(page) => self.world.write_page(page),
            None => {
                let begun = *begun;
                self.world.failures[0]
                    .tell(&mut self.world.known[0])
                    .inspect_err(|_| drop(self.world.mark(begun)))?;
                log.checkpointed(begun);
                self.checkpoint = None;
            }
        }
        Ok(())
    }

    /// Does this and that until it crashes, or has done enough.
    fn run(&mut self, log: &mut Log) -> io::Result<()> {
        for _ in 0..400 {
            let often = self.failing && self.world.random.one_in(3);
            match if often { 17 } else { self.world.random.below(20) } {
                0..8 => self.store(),
                8..14 => self.pwb(),
                14..17 => {
                    let done = self.psync(log);
                    done.inspect_err(|_| drop(self.world.mark(log.checkpoint())))?;
                }
                17 => self.world.write_back(),
                _ => self.step_checkpoint(log)?,
            }
        }
        if self.world.random.one_in(3) {
            let closed = log.close(&mut self.world);
            closed.inspect_err(|_| drop(self.world.mark(log.checkpoint())))?;
            self.seen.closes += 1;
            // What is visible then is what an orderly shutdown leaves; the kernel has it on the disk.
            self.world.sync()?;
            self.may = (0..WORDS).map(|word| vec![self.visible(word)]).collect();
        }
        Ok(())
    }

    /// Ends the process or the machine, and opens the journal as often as that takes.
    fn recover(&mut self) -> Log {
        // Whether what was visible may be gone.
        let mut power = false;
        loop {
            let crash =
                [Crash::Process, Crash::Mount, Crash::Power, Crash::Power][self.world.random.below(4)];
            let crash = if self.failing && crash == Crash::Power { Crash::Process } else { crash };
            self.seen.crashes[crash as usize] += 1;
            let mut cache = Cache::Kept;
            if crash == Crash::Process && self.only_durable && self.world.random.one_in(2) {
                // A copy that a crash left, of this very moment, is written into the file: the inode is the same.
                self.seen.copied_over += 1;
                power = true;
                self.world.power_loss();
            } else if crash == Crash::Process {
                power |= self.only_durable;
                // While nobody has it open, the kernel goes on, and somebody else may sync the file.
                (0..8).for_each(|_| self.world.write_back());
                self.world.answer_lost();
                if self.world.random.one_in(8) {
                    self.seen.inodes_forgotten += 1;
                    self.world.forget_inode();
                    (cache, power) = (Cache::Unknown, true);
                } else if self.traced.is_none() {
                    (cache, power) = (Cache::Unknown, true);
                }
            } else {
                power = true;
                self.boot += u8::from(crash == Crash::Power);
                cache = Cache::Unknown;
                self.world.power_loss();
            }
            if cache == Cache::Unknown {
                self.traced = None;
            }
            self.seen.failures += u64::from(self.world.failures[1].count > 0);
            power |= self.world.failures[1].count > 0;
            let left = self.world.random.below(12);
            self.world.left = self.world.random.one_in(2).then_some(left + 1);
            if self.world.random.one_in(4) {
                self.world.fails = None;
            }
            self.world.opened();
            match Log::open(&mut self.world, self.place, [self.boot; 16], cache) {
                Ok((mut log, recovered)) => {
                    if self.only_durable {
                        log.sign(NO_BOOT);
                    }
                    self.seen.replayed += recovered.replayed;
                    self.world.left = None;
                    power |= self.world.failures[1].count > 0;
                    self.check(power);
                    self.traced = Some(());
                    return log;
                }
                Err(Bad::Os(_)) => self.seen.in_recovery += 1,
                Err(Bad::Damaged(what)) => panic!("{what}"),
            }
        }
    }

    fn check(&mut self, power: bool) {
        for word in 0..WORDS {
            let (found, may) = (self.visible(word), &self.may[word]);
            if power {
                assert!(may.contains(&found), "word {word} is {found} after a power loss, of {may:?}");
            } else {
                assert_eq!(Some(&found), may.last(), "word {word} was visible when the process died");
            }
        }
        // Whoever opened it relies on what it found.
        self.may = (0..WORDS).map(|word| vec![self.visible(word)]).collect();
        self.asked = [None; WORDS];
        self.pending.take();
        self.checkpoint = None;
    }
}

#[test]
fn what_was_acknowledged_survives_every_crash_and_what_was_visible_the_death_of_the_process() {
    let seen = simulate(1..=400, false, false);
    println!("{seen:?}");
    // A simulation in which something never happens shows nothing about it.
    let least = [
        seen.crashes[0],
        seen.crashes[1],
        seen.crashes[2],
        seen.failures,
        seen.inodes_forgotten,
        seen.in_recovery,
        seen.replayed,
        seen.full,
        seen.syncs,
        seen.closes,
    ];
    assert!(least.iter().all(|times| *times > 100) && seen.notes_for_room > 20, "{seen:?}");
}

#[test]
fn what_was_acknowledged_survives_a_disk_that_often_fails_to_write() {
    let seen = simulate(1..=900, true, false);
    println!("{seen:?}");
    assert!(seen.failures > 5000 && seen.replayed > 1000, "{seen:?}");
}

/// What was acknowledged is there whatever happened to the file, if nothing else has to be.
#[test]
fn what_was_acknowledged_survives_an_older_copy_that_is_written_into_the_file() {
    for failing in [false, true] {
        let seen = simulate(1..=400, failing, true);
        println!("{seen:?}");
        assert!(seen.copied_over > 500 && seen.replayed > 1000 && seen.in_recovery > 100, "{seen:?}");
    }
}

/// `failing`: pages often cannot be written and are given up soon, and it is processes that end, not the machine.
/// `only_durable`: nothing that was only visible has to be there after the death of a process.
fn simulate(seeds: RangeInclusive<u64>, failing: bool, only_durable: bool) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds {
        let (mut program, mut log) = Program::new(seed);
        (program.failing, program.only_durable) = (failing, only_durable);
        if only_durable {
            log.sign(NO_BOOT);
        }
        for _ in 0..12 {
            // At the very first write, soon, or when enough was done.
            let left = match program.world.random.below(4) {
                0 => Some(1),
                1 => Some(1 + program.world.random.below(90)),
                _ => None,
            };
            program.world.left = left;
            let fails = if failing {
                [Some(3), Some(6), Some(12), Some(24), Some(60)]
            } else {
                [None, None, Some(3), Some(12), Some(60)]
            };
            program.world.fails = fails[program.world.random.below(5)];
            let ended = program.run(&mut log);
            let failed = program.world.failures[0].count > 0;
            assert!(ended.is_ok() || program.world.left == Some(0) || failed, "seed {seed}: {ended:?}");
            log = program.recover();
        }
        let one = program.seen;
        (0..3).for_each(|crash| seen.crashes[crash] += one.crashes[crash]);
        seen.failures += one.failures;
        seen.inodes_forgotten += one.inodes_forgotten;
        seen.copied_over += one.copied_over;
        seen.in_recovery += one.in_recovery;
        seen.replayed += one.replayed;
        seen.full += one.full;
        seen.syncs += one.syncs;
        seen.closes += one.closes;
        seen.notes_for_room += one.notes_for_room;
    }
    seen
}

/// A record that was torn is not made whole by a later one that is torn in turn, in the same place and with the same bytes where
/// the first lacks them: what it says had been gone for its owner.
#[test]
fn two_torn_records_do_not_make_one_that_is_whole() {
    let (mut program, mut log) = Program::new(1);
    let world = &mut program.world;
    let count = 100;
    let commit = |world: &mut World, log: &mut Log, first: u8| {
        let lines = count as usize * LINE;
        world.region.cache[..lines].fill(7);
        world.region.cache[0] = first;
        let copied = world.region.cache.clone();
        let before = world.halves.disk.clone();
        let outcome = log.commit(world, &Work::Lines(std::iter::once(0..count).collect()), |lines, into| {
            into.extend_from_slice(&copied[lines.start as usize * LINE..lines.end as usize * LINE]);
            Ok(())
        });
        assert_eq!(outcome.expect("no crash"), Outcome::Durable);
        let changed = before.iter().zip(&world.halves.disk).position(|(before, after)| before != after);
        (before, changed.expect("it was written") / BLOCK as usize * BLOCK as usize)
    };
    let lost = |world: &mut World, halves: Vec<u8>| {
        world.halves.disk = halves;
        world.dirty.clear();
        world.power_loss();
    };
    // Nothing was left to replay. Of the first record the first sector was written, and of the second all others.
    let (mut halves, at) = commit(world, &mut log, 2);
    halves[at..at + 512].copy_from_slice(&world.halves.disk[at..at + 512]);
    lost(world, halves);
    let (mut log, _) = Log::open(world, program.place, [2; 16], Cache::Unknown).expect("it is whole");
    assert_eq!(world.region.cache[0], 0);
    let (before, at) = commit(world, &mut log, 3);
    let mut halves = world.halves.disk.clone();
    halves[at..at + 512].copy_from_slice(&before[at..at + 512]);
    lost(world, halves);
    Log::open(world, program.place, [3; 16], Cache::Unknown).expect("it is whole");
    let found = world.region.cache[0];
    assert!([0, 3].contains(&found), "{found} was never acknowledged, and was gone when somebody looked");
}

/// A journal that was gone around several times, in batches of one block, of which the newest needs several, after a power
/// loss. With all batches that are in it.
fn used() -> (World, JournalLayout, Vec<Header>) {
    let (mut program, mut log) = Program::new(7);
    for n in 0.. {
        program.store();
        program.pending.add(n % 9..n % 9 + 2);
        program.psync(&mut log).expect("no crash");
        let mut headers = Vec::new();
        for block in 0..program.place.blocks() {
            let at = (block * BLOCK) as usize;
            headers.extend(Header::decode(
                &program.world.halves.cache[at..at + BLOCK as usize],
                &NAME,
                block,
            ));
        }
        headers.sort_by_key(|header| header.sequence);
        let newest = headers.last().expect("there is always one");
        if n > 100 && newest.sequence - newest.from > 5 && !newest.is_note() {
            program.world.power_loss();
            return (program.world, program.place, headers);
        }
    }
    unreachable!("it goes on until then")
}

fn opened(world: &World, change: impl FnOnce(&mut Vec<u8>)) -> (Vec<u8>, Result<u64, String>) {
    let mut world = World {
        random: Random(1),
        region: world.region.clone(),
        halves: world.halves.clone(),
        marks: world.marks.clone(),
        dirty: BTreeSet::new(),
        stale: BTreeSet::new(),
        late: BTreeSet::new(),
        stale_blocks: BTreeSet::new(),
        left: None,
        fails: None,
        failures: Default::default(),
        known: [0; 3],
    };
    change(&mut world.halves.cache);
    let place = JournalLayout::new(REGION as u64, 0, NAME);
    let opened = match Log::open(&mut world, place, [0xBB; 16], Cache::Unknown) {
        Ok((_, recovered)) => Ok(recovered.replayed),
        Err(Bad::Damaged(what)) => Err(what),
        Err(Bad::Os(e)) => panic!("{e}"),
    };
    (world.region.cache, opened)
}

#[test]
fn damage_to_what_is_needed_is_refused_and_nothing_is_changed() {
    let (world, _, headers) = used();
    let newest = headers.last().expect("there are some");
    let needed =
        headers.iter().filter(|header| header.sequence >= newest.from && !header.is_note()).count() as u64;
    assert!(needed > 3, "too few for this test: {newest:?}");
    assert_eq!(opened(&world, |_| ()).1, Ok(needed));
    for header in headers.iter().filter(|header| header.sequence < newest.sequence) {
        let at = header.block as usize * BLOCK as usize;
        for byte in (0..super::format::HEADER + header.bytes as usize).step_by(7) {
            let (region, opened) = opened(&world, |halves| halves[at + byte] ^= 0x10);
            if header.sequence >= newest.from {
                assert!(opened.is_err(), "batch {} at byte {byte}", header.sequence);
                assert!(region == world.region.cache, "the region was changed all the same");
            } else {
                assert_eq!(opened, Ok(needed), "nobody needs batch {}", header.sequence);
            }
        }
    }
    let (_, empty) = opened(&world, |halves| halves.fill(0));
    assert!(empty.expect_err("a journal always has a batch").contains("none of its records"));
}

/// Batches that are whole, and lie.
#[test]
fn records_that_name_bytes_outside_the_region_are_refused() {
    let place = JournalLayout::new(REGION as u64, 0, NAME);
    let lines = (REGION / LINE) as u64;
    for (run, good) in [
        (lines - 1..lines, true),
        (lines..lines + 1, false),
        (lines - 1..lines + 1, false),
        ((1 << 44) - 2..(1 << 44) - 1, false),
    ] {
        let (mut program, mut log) = Program::new(3);
        log.commit(&mut program.world, &Work::Lines([run.clone()].into()), |lines, into| {
            into.resize(into.len() + (lines.end - lines.start) as usize * LINE, 0xAB);
            Ok(())
        })
        .expect("no crash");
        let opened = Log::open(&mut program.world, place, [9; 16], Cache::Kept)
            .map(|(_, recovered)| recovered.replayed);
        assert_eq!(opened.is_ok(), good, "{run:?}");
        let untouched = program.world.region.cache.iter().all(|b| *b == 0);
        assert_eq!(untouched, !good, "{run:?}");
    }
}

#[test]
fn any_bytes_at_all_are_opened_or_refused() {
    let (world, place, headers) = used();
    let mut random = Random(0xFACE);
    let mut outcomes = [0; 2];
    for _ in 0..3000 {
        let (_, opened) = opened(&world, |halves| {
            for _ in 0..=random.below(4) {
                let header = &headers[random.below(headers.len())];
                let at = (u64::from(header.block) * BLOCK) as usize + random.below(96);
                match random.below(4) {
                    0 => halves[at] = random.below(256) as u8,
                    1 => halves[at..at + 8].fill([0, 0xFF][random.below(2)]),
                    // Fields of the header, sealed anew: whole, and nonsense.
                    2 => {
                        let at = header.block as usize * BLOCK as usize;
                        let field = at + 40 + random.below(24);
                        halves[field] = [0, 1, 0xFF, random.below(256) as u8][random.below(4)];
                        reseal(halves, at);
                    }
                    // Another batch's block in its place.
                    _ => {
                        let from = random.below(place.blocks() as usize) * BLOCK as usize;
                        let to = random.below(place.blocks() as usize) * BLOCK as usize;
                        halves.copy_within(from..from + BLOCK as usize, to);
                    }
                }
            }
        });
        outcomes[usize::from(opened.is_ok())] += 1;
    }
    assert!(outcomes.iter().all(|n| *n > 100), "{outcomes:?}");
}

fn reseal(halves: &mut [u8], at: usize) {
    let bytes = u32::from_le_bytes(halves[at + 60..at + 64].try_into().expect("four")) as usize;
    let end = at + super::format::HEADER + bytes;
    if end <= halves.len() {
        halves[at + 76..at + 80].fill(0);
        let crc = crc32fast::hash(&halves[at..end]);
        halves[at + 76..at + 80].copy_from_slice(&crc.to_le_bytes());
    }
}
