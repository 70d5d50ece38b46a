//! The program: reads and writes blocks at random places of one file, through the library or by the kernel.

use std::fs::File as SystemFile;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use remanence_nvcache::{Cache, File, OpenOptions, Options};
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::nvcache::ends::{BLOCK, Found, laid_out, nanos_of};
use crate::role::Role;

/// How it reads and writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Way {
    /// By system calls, with an fsync behind each write or without.
    Kernel { syncs: bool },
    /// NVCache: a log of so many bytes of data, and so many bytes of pages in DRAM.
    Log { log: PathBuf, bytes: u64, memory: u64 },
    /// NVPages: a file of so many bytes, all in all.
    Pages { pages: PathBuf, bytes: u64 },
}

/// The file, and how it is used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProgramSpec {
    pub(crate) file: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) way: Way,
}

/// What a burst is of: so many operations of so many threads, or as many as the time allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Mix {
    /// So many of a hundred are reads.
    pub(crate) reads: u32,
    pub(crate) zipf: bool,
    pub(crate) jobs: usize,
    pub(crate) operations: u64,
    pub(crate) time: Duration,
}

/// A file, as the program has it open.
enum Target {
    Kernel { file: SystemFile, syncs: bool },
    Cached(File),
}

impl Target {
    fn read(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::Kernel { file, .. } => file.read_exact_at(into, at),
            Self::Cached(file) => match file.read_at(into, at)? {
                all if all == into.len() => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        }
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        match self {
            Self::Kernel { file, syncs } => {
                file.write_all_at(bytes, at)?;
                if *syncs { file.sync_all() } else { Ok(()) }
            }
            Self::Cached(file) => match file.write_at(bytes, at)? {
                all if all == bytes.len() => Ok(()),
                _ => Err(io::ErrorKind::WriteZero.into()),
            },
        }
    }

    /// Has all in its file, so that nobody pays for it who is measured next; and nothing of it in a cache.
    fn close(self) -> io::Result<()> {
        match self {
            Self::Kernel { file, .. } => file.sync_all(),
            Self::Cached(file) => Ok(file.close()?),
        }
    }
}

/// A role of the bench.
pub(crate) struct Program {
    spec: ProgramSpec,
    cache: Option<Cache>,
}

impl Role for Program {
    const WORD: &'static str = "nvpages-program";
    type Spec = ProgramSpec;
    type Here = ();
    type Peer = ();
    type Burst = Mix;
    type Values = Found;

    fn open(spec: ProgramSpec) -> Result<(Self, ()), String> {
        machine::pin_to(machine::allowed());
        let directory = spec.file.parent().ok_or("the file is in no directory")?;
        std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        laid_out(&spec.file, spec.bytes)?;
        let options = match &spec.way {
            Way::Kernel { .. } => None,
            Way::Log { log, bytes, memory } => {
                Some(Options::new(log).size(bytes / BLOCK * (BLOCK + 64)).memory(*memory as usize))
            }
            Way::Pages { pages, bytes } => Some(Options::pages(pages).size(*bytes)),
        };
        let cache = options.map(|options| Cache::open(&options)).transpose().map_err(|e| e.to_string())?;
        Ok((Self { spec, cache }, ()))
    }

    fn run(&mut self, mix: Mix) -> Result<Found, String> {
        self.mixed(mix).map_err(|e| format!("{}: {e}", self.spec.file.display()))
    }
}

impl Program {
    fn target(&self) -> io::Result<Target> {
        let file = &self.spec.file;
        if let Some(cache) = &self.cache {
            return Ok(Target::Cached(cache.open_file(file, &OpenOptions::new().read(true).write(true))?));
        }
        let syncs = matches!(self.spec.way, Way::Kernel { syncs: true });
        Ok(Target::Kernel { file: SystemFile::options().read(true).write(true).open(file)?, syncs })
    }

    /// From the moment when the file is opened: nothing of it is in a cache of ours.
    fn mixed(&self, mix: Mix) -> io::Result<Found> {
        let target = self.target()?;
        let places = Places::new(self.spec.bytes / BLOCK, mix.zipf);
        let start = Barrier::new(mix.jobs);
        let job = |n: usize| -> io::Result<(Vec<u32>, Duration)> {
            let mut random = fastrand::Rng::with_seed(n as u64 + 1);
            let mut block = vec![n as u8; BLOCK as usize];
            let count = mix.operations / mix.jobs as u64;
            let mut nanos = Vec::with_capacity(count as usize);
            start.wait();
            let begin = Instant::now();
            let mut last = begin;
            for _ in 0..count.max(1) {
                let at = places.pick(&mut random) * BLOCK;
                if random.u32(..100) < mix.reads {
                    target.read(&mut block, at)?;
                } else {
                    block[0] = block[0].wrapping_add(1);
                    target.write(&block, at)?;
                }
                let now = Instant::now();
                nanos.push(nanos_of(now - last));
                last = now;
                if last - begin > mix.time {
                    break;
                }
            }
            Ok((nanos, last - begin))
        };
        let done: Vec<io::Result<(Vec<u32>, Duration)>> = std::thread::scope(|scope| {
            let jobs: Vec<_> = (0..mix.jobs)
                .map(|n| {
                    scope.spawn({
                        let job = &job;
                        move || job(n)
                    })
                })
                .collect();
            let panicked = || io::Error::other("a thread that reads and writes has panicked");
            jobs.into_iter().map(|job| job.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        let (mut found, mut longest) = (Found::default(), Duration::ZERO);
        for done in done {
            let (nanos, took) = done?;
            found.nanos.extend(nanos);
            longest = longest.max(took);
        }
        target.close()?;
        found.rate = found.nanos.len() as f64 / (longest.as_secs_f64() * 1e6);
        Ok(found)
    }
}

/// How many of a hundred accesses go to the most wanted places, and how many of a hundred of these there are, where places are Zipf's.
const WANTED: (f64, f64) = (0.95, 0.05);

/// Random blocks: each as often as any other, or as Zipf's law has it, with an exponent by which [`WANTED`] is so.
struct Places {
    blocks: u64,
    exponent: Option<f64>,
}

impl Places {
    fn new(blocks: u64, zipf: bool) -> Self {
        let blocks = blocks.max(1);
        Self { blocks, exponent: zipf.then(|| exponent(blocks as f64)) }
    }

    fn pick(&self, random: &mut fastrand::Rng) -> u64 {
        let Some(exponent) = self.exponent else { return random.u64(..self.blocks) };
        let power = 1.0 - exponent;
        let all = 1.0 - (self.blocks as f64 + 1.0).powf(power);
        let rank = (1.0 - random.f64() * all).powf(1.0 / power) as u64 - 1;
        // Neighbours are not wanted alike: by a permutation, as the multiplier has no factor of a number of blocks but itself.
        (rank.min(self.blocks - 1) as u128 * 0x9e37_79b9_7f4a_7c55 % u128::from(self.blocks)) as u64
    }
}

/// Which share of accesses goes to a share of places, where the law goes on between whole ranks.
fn share(blocks: f64, exponent: f64, places: f64) -> f64 {
    let power = 1.0 - exponent;
    let upto = |rank: f64| 1.0 - (rank + 1.0).powf(power);
    upto(blocks * places) / upto(blocks)
}

fn exponent(blocks: f64) -> f64 {
    let (mut low, mut high) = (1.000_001, 20.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if share(blocks, middle, WANTED.1) < WANTED.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Directory;

    #[test]
    fn nineteen_of_twenty_accesses_go_to_a_twentieth_of_the_places() {
        for blocks in [1 << 14, 1 << 18, 100_000] {
            let (places, mut random) = (Places::new(blocks, true), fastrand::Rng::with_seed(1));
            let mut counts = vec![0_u64; blocks as usize];
            let all = blocks * 10;
            (0..all).for_each(|_| counts[places.pick(&mut random) as usize] += 1);
            counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
            let wanted: u64 = counts[..blocks as usize / 20].iter().sum();
            let share = wanted as f64 / all as f64;
            assert!((0.945..0.965).contains(&share), "{blocks}: {share}");
        }
    }

    #[test]
    fn each_place_is_as_good_as_any_other() {
        let (places, mut random) = (Places::new(64, false), fastrand::Rng::with_seed(1));
        let mut counts = [0_u32; 64];
        (0..64_000).for_each(|_| counts[places.pick(&mut random) as usize] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn each_way_reads_and_writes_and_leaves_all_in_the_file() {
        let place = std::env::temp_dir().join(format!("rem-nvpages-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("room");
        let place = Directory(place);
        let ways = [
            Way::Kernel { syncs: false },
            Way::Kernel { syncs: true },
            Way::Log { log: place.0.join("log"), bytes: 64 * BLOCK, memory: 16 * BLOCK },
            Way::Pages { pages: place.0.join("pages"), bytes: 0 },
        ];
        for (n, way) in ways.into_iter().enumerate() {
            let file = place.0.join(format!("file{n}"));
            let spec = ProgramSpec { file: file.clone(), bytes: 40 * BLOCK, way };
            let mut program = Program::open(spec).expect("there is room").0;
            for (reads, zipf, jobs) in [(0, false, 1), (50, true, 2), (100, false, 1)] {
                let mix = Mix { reads, zipf, jobs, operations: 90, time: Duration::from_secs(60) };
                let found = program.run(mix).expect("it is read and written");
                assert!(found.nanos.len() == 90 && found.rate > 0.0, "{n} {mix:?}");
            }
            let bytes = std::fs::read(&file).expect("it is there");
            assert!(bytes.len() as u64 == 40 * BLOCK && bytes.iter().any(|byte| *byte != 1), "{n}");
        }
    }
}
