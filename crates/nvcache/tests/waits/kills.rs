//! A process is killed wherever it is: what it had said that it wrote is there when its log was recovered, and each write wholly or not at all.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use remanence_cache::pages::recovery::scan as scan_pages;
use remanence_cache::recovery::scan;
use remanence_cache_live::recover::real::{RealFiles, lost};
use remanence_cache_live::recover::{Options as Recovering, is_done, pages, recover_here};
use remanence_effort::{Process, again, rounds};
use remanence_nvcache::{Cache, OpenOptions};

use crate::support::{EITHER, MEDIA, Medium, Random, World, both, small};

/// What says which directory, log and run a child is to work on.
const PART: &str = "REMANENCE_NVCACHE_PART";
const THREADS: u64 = 3;
/// Bytes of a record, so that most lie in two pages.
const RECORD: usize = 3000;
/// Places that a thread writes to again and again.
const PLACES: u64 = 12;

fn record(run: u64, n: u64) -> Vec<u8> {
    (run << 32 | n).to_le_bytes().repeat(RECORD / 8)
}

/// Where a thread's place lies in the file that all share.
const fn place(thread: u64, n: u64) -> u64 {
    (n % PLACES * THREADS + thread) * RECORD as u64
}

fn own(directory: &Path, thread: u64) -> PathBuf {
    directory.join(format!("own-{thread}"))
}

/// What a child does: it writes, and says so, until it is killed.
#[test]
#[ignore = "a child process of `cargo test -p remanence-nvcache --test waits kills`"]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    let [log, directory, run] = part.split(' ').collect::<Vec<_>>()[..] else { panic!("{part}") };
    let (directory, run): (&Path, u64) = (directory.as_ref(), run.parse().expect("a number"));
    let cache = Cache::open(&small(log.as_ref())).expect("what was left is recovered");
    let say = |line: String| std::io::stdout().lock().write_all(line.as_bytes()).expect("somebody reads it");
    say("ready\n".to_owned());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cache, say) = (&cache, &say);
            scope.spawn(move || {
                let shared = cache.open_file(directory.join("shared"), &both()).expect("room");
                let append = OpenOptions::new().append(true).create(true).truncate(true);
                let own = cache.open_file(own(directory, thread), &append).expect("room");
                let mut random = Random::new(run * THREADS + thread);
                for n in 1.. {
                    shared.write_at(&record(run, n), place(thread, n)).expect("a disk");
                    own.write(&record(run, n)).expect("a disk");
                    say(format!("{thread} {n}\n"));
                    match random.below(40) {
                        0 => shared.sync().expect("a disk"),
                        1 => own.drain().expect("a disk"),
                        // Its length is what was said, cut short or not.
                        2 => own.set_len(own.len()).expect("a disk"),
                        _ => {}
                    }
                }
            });
        }
    });
}

struct Victim {
    process: Process,
    /// The highest number that each thread has said.
    acknowledged: [u64; THREADS as usize],
}

impl Victim {
    fn start(world: &World, run: u64) -> Self {
        let part = format!("{} {} {run}", world.log.display(), world.directory.path().display());
        let mut process = Process::start(again("kills::child").env(PART, part));
        process.after("ready").expect("it begins");
        Self { process, acknowledged: [0; THREADS as usize] }
    }

    /// Hears of a write; whether there was one.
    fn hear(&mut self) -> bool {
        let Some(line) = self.process.line() else { return false };
        let (thread, n) = line.split_once(' ').expect("two numbers");
        let (thread, n): (usize, u64) = (thread.parse().expect("a number"), n.parse().expect("a number"));
        assert_eq!(n, self.acknowledged[thread] + 1);
        self.acknowledged[thread] = n;
        true
    }

    /// Kills it after so many writes that it was heard of.
    fn kill(mut self, after: u64) -> [u64; THREADS as usize] {
        for _ in 0..after {
            assert!(self.hear(), "it ended by itself");
        }
        self.process.kill();
        while self.hear() {}
        self.acknowledged
    }
}

/// Each place has the last record that was said, or a later one; each is whole. A run that was there before may be found where this one has written nothing.
fn is_there(directory: &Path, run: u64, acknowledged: [u64; THREADS as usize]) {
    // Who has said nothing may have made nothing, nor cut what an earlier run has left.
    for thread in (0..THREADS).filter(|thread| acknowledged[*thread as usize] > 0) {
        let shared = fs::read(directory.join("shared")).expect("it is there");
        let upto = acknowledged[thread as usize];
        for n in upto.saturating_sub(PLACES - 1).max(1)..=upto {
            let at = place(thread, n) as usize;
            let found = &shared[at..at + RECORD];
            let word = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
            assert!(
                found.chunks(8).all(|other| other == word.to_le_bytes()),
                "a record in part, {n} of {thread}"
            );
            let (of, number) = (word >> 32, word & 0xffff_ffff);
            assert!(of == run && number >= n && number % PLACES == n % PLACES, "{of} {number} for {run} {n}");
        }
        let own = fs::read(own(directory, thread)).expect("it is there");
        assert_eq!(own.len() % RECORD, 0, "a record in part");
        let count = (own.len() / RECORD) as u64;
        assert!(count == upto || count == upto + 1, "{count} records of {thread}, and {upto} were said");
        for (n, found) in (1..).zip(own.chunks(RECORD)) {
            assert!(found == record(run, n), "record {n} of {count} in the own file of {thread}");
        }
    }
}

/// As `rem cache recover` does it.
fn recover(world: &World, medium: Medium) {
    if !medium.is_log() {
        let region = pages::open(&world.log).expect("nobody has it");
        let found = scan_pages(&region, lost(&world.log)).expect("they are pages");
        let report = pages::recover(&region, found, &RealFiles, &Recovering::default()).expect("a disk");
        assert_eq!(report.undecided(&world.log), None);
        return;
    }
    let region = remanence_cache::format::file_options().open(&world.log).expect("nobody has it");
    let found = scan(&region, lost(&world.log)).expect("it is a log");
    assert!(found.damaged.is_empty(), "{:?}", found.damaged);
    let report = recover_here(&world.log, &region, found, &Recovering::default()).expect("a disk");
    assert!(is_done(&report), "{report:?}");
}

#[test]
fn what_a_killed_process_had_said_is_there() {
    for medium in MEDIA {
        let world = World::new(medium);
        let mut random = Random::new(7);
        for run in 1..=rounds(8, 200) {
            let victim = Victim::start(&world, run);
            let after = random.below(400);
            let acknowledged = victim.kill(after);
            match run % 2 {
                0 => recover(&world, medium),
                _ => world.open().close().expect("a disk"),
            }
            is_there(world.directory.path(), run, acknowledged);
            println!("{medium:?} run {run}: killed after {after}, {acknowledged:?} were said");
        }
    }
}

#[test]
fn a_recovery_that_is_killed_is_begun_anew() {
    for medium in EITHER {
        let world = World::new(medium);
        let victim = Victim::start(&world, 1);
        let acknowledged = victim.kill(200);
        // Each next one recovers, and may be killed in the middle of that; none comes to write.
        for _ in 0..rounds(6, 60) {
            let part = format!("{} {} 2", world.log.display(), world.path("nothing-there").display());
            let mut command = again("kills::child");
            let mut child = command
                .env(PART, part)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("it starts");
            std::thread::yield_now();
            child.kill().expect("it is ours");
            child.wait().expect("it is dead");
        }
        world.open().close().expect("a disk");
        is_there(world.directory.path(), 1, acknowledged);
    }
}
