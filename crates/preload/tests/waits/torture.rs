//! Programs of several threads under a load of writes and syncs, and kills of programs, of the daemon, or of all of them at random: whatever was acknowledged is there. It is
//! looked for in the page cache; and, where a test may mount a file system, in what is left of one that was cut off like a disk without power, when a daemon that is started has
//! brought the log into it.
//!
//! What is tried is a function of the seed, but not the moments: a failure says the seed, and what was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_cache::format::{self, Lost};
use remanence_cache::recovery::scan;
use remanence_cache_live::recover::{Options, is_done, recover_here};
use remanence_effort::{Effort, replay, seeds};

use crate::cache::{Cache, example};
use crate::disk::Disk;
use crate::model::{Numbers, RECORD, Step, numbers, record};

const PROCESSES: u64 = 2;
const THREADS: u64 = 2;
/// What the name of a file beside another ends with.
const BESIDE: &str = ".rem-recovered";
/// Bytes of the file of all with which it is begun anew.
const ALL_MAX: u64 = 2 << 20;

/// A program, and what it has said.
struct Program {
    child: Child,
    said: Option<JoinHandle<String>>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(cache: &Cache, seed: u64, process: u64, lines: &Arc<AtomicU64>) -> Self {
        let numbers = [seed, process, THREADS].map(|number| number.to_string());
        let mut command = cache.command(example("cache_load"));
        command.args(["steps", "disk"]).args(numbers).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let lines = lines.clone();
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            while out.read_line(&mut said).expect("text") > 0 {
                lines.fetch_add(1, Ordering::Relaxed);
            }
            said
        });
        Self { child, said: Some(said) }
    }

    /// Kills it, and gives what it had said.
    fn kill(mut self, what: &str) -> String {
        self.child.kill().expect("it runs");
        let status = self.child.wait().expect("it ends");
        let said = self.said.take().expect("it is read").join().expect("it is read");
        assert_eq!(status.signal(), Some(9), "{what}: it has ended by itself: {status}\n{said}");
        said
    }
}

/// What was acknowledged of a round.
#[derive(Default)]
struct Acknowledged {
    /// Of each file, how many steps.
    own: BTreeMap<(u64, u64), u64>,
    /// The records of the file of all.
    all: BTreeSet<[u8; RECORD]>,
}

impl Acknowledged {
    fn take(&mut self, seed: u64, process: u64, said: &str) {
        for line in said.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [file, thread, taken] = words[..] else { panic!("{line}") };
            let (thread, taken) = (thread.parse().expect("a number"), taken.parse().expect("a number"));
            match file {
                "own" => {
                    self.own.insert((process, thread), taken);
                }
                _ => {
                    self.all.insert(record(seed, process, thread, taken));
                }
            }
        }
    }
}

/// What a file is after the last acknowledged step and after each one behind it that may have been taken: up to the next that was not acknowledged, or was and nobody said so.
fn states(before: &[u8], mut numbers: Numbers, acknowledged: u64) -> Vec<Vec<u8>> {
    let mut now = before.to_vec();
    let mut states = Vec::new();
    for taken in 0.. {
        if taken >= acknowledged {
            states.push(now.clone());
        }
        let step = Step::draw(&mut numbers, now.len() as u64);
        if taken >= acknowledged {
            // A kill cuts it short between two pages.
            let (offset, len, word) = match step {
                Step::Write { offset, len, word } => (offset, len, word),
                Step::Append { len, word } => (now.len() as u64, len, word),
                Step::Truncate { .. } | Step::Sync { .. } => (0, 0, 0),
            };
            let mut cut = (offset / 4096 + 1) * 4096;
            while cut < offset + len {
                let mut part = now.clone();
                Step::Write { offset, len: cut - offset, word }.change(&mut part);
                states.push(part);
                cut += 4096;
            }
        }
        step.change(&mut now);
        if taken >= acknowledged && matches!(step, Step::Sync { .. }) {
            return states;
        }
    }
    states
}

/// A file has nothing but bytes of one of its states each: unsynced pages of later ones may have come to the disk, or not.
fn is_of(now: &[u8], states: &[Vec<u8>]) -> Result<(), String> {
    let lens = states.iter().map(Vec::len);
    let (least, most) = (lens.clone().min().unwrap_or(0), lens.max().unwrap_or(0));
    if now.len() < least || now.len() > most {
        return Err(format!("{} bytes, and not {least} to {most}", now.len()));
    }
    let fits = |at: usize| states.iter().any(|state| state.get(at).is_none_or(|byte| *byte == now[at]));
    match (0..now.len()).find(|at| !fits(*at)) {
        Some(at) => Err(format!("byte {at} of {} is of no state", now.len())),
        None => Ok(()),
    }
}

/// Where the files are, and the disk beneath them, if there is one.
struct Files {
    place: PathBuf,
    disk: Option<Disk>,
}

impl Files {
    fn own(&self, process: u64, thread: u64) -> Vec<u8> {
        fs::read(self.place.join(format!("own-{process}-{thread}"))).unwrap_or_default()
    }

    fn all_of_them(&self) -> BTreeMap<(u64, u64), Vec<u8>> {
        let both = (0..PROCESSES).flat_map(|process| (0..THREADS).map(move |thread| (process, thread)));
        both.map(|(process, thread)| ((process, thread), self.own(process, thread))).collect()
    }

    fn are_durable(&self) {
        for file in fs::read_dir(&self.place).expect("a directory") {
            let file = File::open(file.expect("an entry").path()).expect("it is there");
            if file.metadata().expect("it is open").is_file() {
                file.sync_all().expect("a disk");
            }
        }
        File::open(&self.place).and_then(|directory| directory.sync_all()).expect("a disk");
    }

    fn take_away_what_is_beside(&self) {
        for file in fs::read_dir(&self.place).expect("a directory") {
            let path = file.expect("an entry").path();
            if path.to_string_lossy().ends_with(BESIDE) {
                fs::remove_file(path).expect("it is there");
            }
        }
    }

    /// Everything that was acknowledged is there, or beside it. `exact`: each file is as after one of its steps.
    fn have(
        &self,
        seed: u64,
        before: &BTreeMap<(u64, u64), Vec<u8>>,
        acknowledged: &Acknowledged,
        exact: bool,
        what: &str,
    ) {
        for (&(process, thread), before) in before {
            let taken = acknowledged.own.get(&(process, thread)).copied().unwrap_or(0);
            let states = states(before, numbers(seed, process, thread), taken);
            let now = self.own(process, thread);
            let beside = fs::read(self.place.join(format!("own-{process}-{thread}{BESIDE}")));
            let fits = if exact && !states.contains(&now) {
                Err(format!("{} bytes are as after no step", now.len()))
            } else {
                is_of(&now, &states).or_else(|why| beside.map_or(Err(why), |beside| is_of(&beside, &states)))
            };
            if let Err(why) = fits {
                panic!(
                    "{what}: own-{process}-{thread} lacks what {taken} acknowledged steps made of it: {why}"
                );
            }
        }
        let read = |name: String| match fs::read(self.place.join(&name)) {
            Ok(bytes) => bytes,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(why) => panic!("{what}: {name} cannot be read: {why}"),
        };
        let (all, beside) = (read("all".into()), read(format!("all{BESIDE}")));
        let there: BTreeSet<&[u8]> = all.chunks_exact(RECORD).chain(beside.chunks_exact(RECORD)).collect();
        let lacking = acknowledged.all.iter().filter(|record| !there.contains(&record[..])).count();
        let anywhere = |record: &[u8; RECORD]| all.windows(RECORD).any(|part| part == record);
        assert_eq!(
            lacking,
            0,
            "{what}: records lack that were acknowledged, of {}, where all has {} bytes, and {} beside it; {} are in all, wherever",
            acknowledged.all.len(),
            all.len(),
            beside.len(),
            acknowledged.all.iter().filter(|record| anywhere(record)).count()
        );
        // Else nothing is told of the next round.
        assert_eq!(all.len() % RECORD, 0, "{what}: all has {} bytes, and no such length", all.len());
    }
}

/// Waits until programs have said so many lines more, and a little.
fn pause(numbers: &mut Numbers, lines: &AtomicU64) {
    let (more, begun) = (numbers.below(150), lines.load(Ordering::Relaxed));
    let late = Instant::now() + Duration::from_secs(600);
    while lines.load(Ordering::Relaxed) < begun + more {
        assert!(
            Instant::now() < late,
            "programs have said {} lines of {more}",
            lines.load(Ordering::Relaxed) - begun
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_micros(numbers.below(3000)));
}

/// What `rem cache recover` does.
pub(crate) fn decide(log: &Path) {
    let region = format::file_options().open(log).expect("a log");
    let scan = scan(&region, Lost::Unsynced).expect("a log");
    let report = recover_here(log, &region, scan, &Options::default()).expect("a disk");
    assert!(is_done(&report), "{report:?}");
}

fn round(cache: &mut Cache, files: &mut Files, seed: u64) -> usize {
    let mut drawn = Numbers(seed);
    let (daemon, again, one, cut) = (drawn.below(2), drawn.below(2), drawn.below(3), drawn.below(2));
    let cuts = cut == 1 && files.disk.is_some();
    let mut what = format!("{}: killed were ", replay(seed));
    if let Ok(all) = File::options().write(true).open(files.place.join("all"))
        && all.metadata().expect("a file").len() > ALL_MAX
    {
        all.set_len(0).expect("a file");
    }
    // What a program before has written and not synced, nobody was promised.
    cache.drain();
    files.are_durable();
    let before = files.all_of_them();
    let mut acknowledged = Acknowledged::default();
    let lines = Arc::new(AtomicU64::new(0));
    let mut programs: BTreeMap<u64, Program> =
        (0..PROCESSES).map(|process| (process, Program::start(cache, seed, process, &lines))).collect();
    pause(&mut drawn, &lines);
    if one < PROCESSES
        && let Some(program) = programs.remove(&one)
    {
        what += &format!("program {one}, ");
        acknowledged.take(seed, one, &program.kill(&what));
        pause(&mut drawn, &lines);
    }
    if daemon == 1 {
        what += "the daemon, ";
        cache.kill_daemon();
        pause(&mut drawn, &lines);
        if again == 1 {
            what += "(started again) ";
            cache.start_again().unwrap_or_else(|why| panic!("{what}: {why}"));
            pause(&mut drawn, &lines);
        }
    }
    for (process, program) in programs {
        acknowledged.take(seed, process, &program.kill(&what));
    }
    what += "the others";
    files.have(seed, &before, &acknowledged, true, &format!("{what}; page cache"));
    if cuts && let Some(disk) = &mut files.disk {
        what += ", and the disk cut off";
        disk.cut_off();
        cache.kill_daemon();
        disk.unmount().and_then(|()| disk.mount()).unwrap_or_else(|why| panic!("{what}: {why}"));
        if let Err(why) = cache.start_again() {
            // A program that waited for longer than two seconds, wrote, and was killed before it had logged that looks like somebody else (docs/cache.md).
            assert!(why.contains("is for you to recover: somebody else has changed"), "{what}: {why}");
            what += ", and recovered beside";
            decide(&cache.log());
            cache.start_again().unwrap_or_else(|why| panic!("{what}: {why}"));
        }
        files.have(seed, &before, &acknowledged, false, &what);
        files.take_away_what_is_beside();
    } else if daemon == 1 && again == 0 {
        cache.start_again().unwrap_or_else(|why| panic!("{what}: {why}"));
        files.have(seed, &before, &acknowledged, true, &what);
    }
    acknowledged.own.len() + acknowledged.all.len()
}

#[test]
fn what_was_acknowledged_is_there_whoever_is_killed() {
    let Some(mut cache) = Cache::new("torture", 64) else { return };
    let place = cache.path("disk");
    fs::create_dir(&place).expect("a directory");
    // Cutting its disk off is for the night: there is a loss that is not understood yet, about once in a hundred rounds.
    let is_night = Effort::asked() == Effort::Night;
    let disk = is_night.then(|| Disk::new(cache.path("image"), place.clone(), 64)).flatten();
    let mut files = Files { place, disk };
    let mut acknowledged = 0;
    for seed in seeds(10) {
        acknowledged += round(&mut cache, &mut files, seed);
    }
    println!("{acknowledged} records and files had something that was acknowledged");
    cache.stop_and_keep();
    drop(files);
}
