//! The ends: the daemon of a log, and a program that writes, reads and makes other calls, under `rem run` or without it. The program knows nothing of the
//! cache: it is the same one in either case.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_cache_live::copies::Copies;
use remanence_cache_live::daemon::{self, Paths};
use remanence_remotelog::ConnectOptions;
use serde::{Deserialize, Serialize};

use crate::machine;
use crate::role::Role;

/// Bytes of each write and read.
pub(crate) const BLOCK: u64 = 4096;
/// Reads, and other calls, that are timed together: a clock takes as long as one of them.
pub(crate) const TOGETHER: u32 = 64;

/// A log, and how its daemon is to clean it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LogSpec {
    pub(crate) log: PathBuf,
    pub(crate) entries: u64,
    /// As the daemon does by itself, if nothing is said.
    pub(crate) batch: Option<u64>,
    /// Who has a copy of it, more than half of whom a sync waits for; nobody, if there is none.
    pub(crate) servers: Vec<SocketAddr>,
}

/// The daemon of a log, which drains it in the end.
pub(crate) struct Daemon {
    /// It ends when this goes.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Role for Daemon {
    const WORD: &'static str = "nvcache-daemon";
    type Spec = LogSpec;
    type Here = ();
    type Peer = ();
    type Burst = ();
    type Values = ();

    fn open(spec: LogSpec) -> Result<(Self, ()), String> {
        // As its users start it.
        machine::pin_to(machine::allowed());
        let LogSpec { log, entries, batch, servers } = spec;
        let name = servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let connect = ConnectOptions::default();
        let copies = Copies { servers, connect, acks: None, images: false, name };
        let options = daemon::Options {
            log,
            entries: Some(entries),
            batch,
            paths: Paths::default(),
            copies: (!copies.servers.is_empty()).then_some(copies),
            strict: false,
            drain_after: None,
        };
        let (stop, stopped) = UnixStream::pair().map_err(|e| e.to_string())?;
        let (ready, begun) = channel();
        let serve = move || {
            let ready = move |_: Option<&str>| {
                // Who waits for it is still there.
                let _ = ready.send(());
            };
            daemon::serve(&options, stopped.as_fd(), ready).map_err(|e| e.to_string())
        };
        let thread = std::thread::Builder::new().name("cache".into()).spawn(serve);
        let thread = thread.map_err(|e| e.to_string())?;
        if begun.recv().is_ok() {
            return Ok((Self { stop: Some(stop), thread: Some(thread) }, ()));
        }
        let served = thread.join().map_err(|_| "the daemon has panicked".to_owned())?;
        served.and_then(|()| Err("the daemon has ended".to_owned()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Ok(Err(why))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("rem: {why}");
        }
    }
}

/// What becomes durable when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum How {
    /// By an fsync behind so many writes.
    Fsync(u64),
    /// By `O_DIRECT` and `O_SYNC`.
    Direct,
    /// Not at all.
    Never,
}

/// A call that is none of the cache's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Getppid,
    WritePipe,
    ReadSocket,
}

impl Call {
    pub(crate) const ALL: [Self; 3] = [Self::Getppid, Self::WritePipe, Self::ReadSocket];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Getppid => "getppid",
            Self::WritePipe => "write to a pipe",
            Self::ReadSocket => "read of a socket",
        }
    }
}

/// The files of whoever writes: so many, of so many bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriterSpec {
    pub(crate) directory: PathBuf,
    pub(crate) files: usize,
    pub(crate) bytes: u64,
}

/// What it does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Burst {
    /// So many threads write to random places, each of a file of its own: so many writes before it counts, and so many at least that do.
    Write { jobs: usize, how: How, warm: u64, least: u64, time: Duration },
    /// Each block of a file of so many bytes once, in random order, or as many as the time allows; what was done in each slice of it.
    Whole { file: PathBuf, bytes: u64, how: How, time: Duration, slice: Duration },
    /// Reads at random places of a file that is in the page cache.
    Read(Duration),
    /// Calls that are not the cache's.
    Call(Call, Duration),
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Nanoseconds of each operation.
    pub(crate) nanos: Vec<u32>,
    /// Millions of operations a second, of all threads.
    pub(crate) rate: f64,
    /// Operations of each slice, and how long they took together.
    pub(crate) slices: Vec<(u64, u64)>,
}

impl Found {
    /// Microseconds of each.
    pub(crate) fn micros(&self) -> Vec<f64> {
        self.nanos.iter().map(|nanos| f64::from(*nanos) / 1e3).collect()
    }
}

/// The program that writes, a role of the bench.
pub(crate) struct Writer {
    files: Vec<PathBuf>,
    bytes: u64,
}

impl Role for Writer {
    const WORD: &'static str = "nvcache-writer";
    type Spec = WriterSpec;
    type Here = ();
    type Peer = ();
    type Burst = Burst;
    type Values = Found;

    fn open(spec: WriterSpec) -> Result<(Self, ()), String> {
        machine::pin_to(machine::allowed());
        let WriterSpec { directory, files, bytes } = spec;
        std::fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let files: Vec<PathBuf> = (0..files).map(|n| directory.join(format!("file{n}"))).collect();
        files.iter().try_for_each(|file| laid_out(file, bytes))?;
        Ok((Self { files, bytes }, ()))
    }

    fn run(&mut self, burst: Burst) -> Result<Found, String> {
        let Self { files, bytes } = self;
        match burst {
            Burst::Write { jobs, how, warm, least, time } => {
                let files = files.get(..jobs).ok_or("there are fewer files")?;
                write(files, *bytes, how, [warm, least], time)
            }
            Burst::Whole { file, bytes, how, time, slice } => {
                laid_out(&file, bytes)?;
                whole(&file, bytes, how, time, slice).map_err(|e| format!("{}: {e}", file.display()))
            }
            Burst::Read(time) => {
                let file = files.first().ok_or("there is no file")?;
                read(file, *bytes, time).map_err(|e| format!("{}: {e}", file.display()))
            }
            Burst::Call(call, time) => calls(call, time).map_err(|e| format!("{}: {e}", call.name())),
        }
    }
}

/// Has a file of so many bytes there, all of them written: to write them again is no matter of their allocation.
pub(crate) fn laid_out(path: &Path, bytes: u64) -> Result<(), String> {
    let write = || {
        if std::fs::metadata(path).is_ok_and(|found| found.len() == bytes) {
            return Ok(());
        }
        let mut file = File::create(path)?;
        let some = vec![1; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            let n = left.min(some.len() as u64);
            file.write_all(&some[..n as usize])?;
            left -= n;
        }
        file.sync_all()
    };
    write().map_err(|e: io::Error| format!("{}: {e}", path.display()))
}

/// What is written, where `O_DIRECT` takes it from.
#[repr(align(4096))]
struct Block([u8; BLOCK as usize]);

/// A file that is written, as one program has it open.
struct Target {
    file: File,
    block: Box<Block>,
    how: How,
    /// Writes since the last sync.
    since: u64,
}

impl Target {
    fn open(path: &Path, how: How) -> io::Result<Self> {
        let flags = if how == How::Direct { libc::O_DIRECT | libc::O_SYNC } else { 0 };
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
        Ok(Self { file, block: Box::new(Block([0x5a; BLOCK as usize])), how, since: 0 })
    }

    fn write(&mut self, at: u64) -> io::Result<()> {
        self.block.0[0] = self.block.0[0].wrapping_add(1);
        self.file.write_all_at(&self.block.0, at * BLOCK)?;
        self.since += 1;
        if let How::Fsync(each) = self.how
            && self.since >= each
        {
            self.since = 0;
            self.file.sync_all()?;
        }
        Ok(())
    }

    /// Behind what is timed, so that nothing is left for whoever is measured next.
    fn settle(&self) -> io::Result<()> {
        if self.how == How::Direct { Ok(()) } else { self.file.sync_all() }
    }
}

/// A thread for each file.
fn write(
    files: &[PathBuf],
    bytes: u64,
    how: How,
    [warm, least]: [u64; 2],
    time: Duration,
) -> Result<Found, String> {
    let start = Barrier::new(files.len());
    let job = |(n, path): (usize, &PathBuf)| -> io::Result<(Vec<u32>, Duration)> {
        let mut random = fastrand::Rng::with_seed(n as u64 + 1);
        let blocks = (bytes / BLOCK).max(1);
        let warmed = Target::open(path, how).and_then(|mut target| {
            (0..warm).try_for_each(|_| target.write(random.u64(..blocks)))?;
            target.since = 0;
            Ok(target)
        });
        // The others wait for it in any case.
        start.wait();
        let mut target = warmed?;
        let mut nanos = Vec::with_capacity(1 << 16);
        let begin = Instant::now();
        let mut last = begin;
        while (nanos.len() as u64) < least.max(1) || last - begin < time {
            target.write(random.u64(..blocks))?;
            let now = Instant::now();
            nanos.push(nanos_of(now - last));
            last = now;
        }
        target.settle()?;
        Ok((nanos, last - begin))
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = files
            .iter()
            .enumerate()
            .map(|each| {
                scope.spawn({
                    let job = &job;
                    move || job(each)
                })
            })
            .collect();
        let (mut found, mut longest) = (Found::default(), Duration::ZERO);
        for (job, file) in jobs.into_iter().zip(files) {
            let done = job.join().map_err(|_| "a thread that writes has panicked".to_owned())?;
            let (nanos, took) = done.map_err(|e| format!("{}: {e}", file.display()))?;
            found.nanos.extend(nanos);
            longest = longest.max(took);
        }
        found.rate = found.nanos.len() as f64 / (longest.as_secs_f64() * 1e6);
        Ok(found)
    })
}

pub(crate) fn nanos_of(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

fn whole(path: &Path, bytes: u64, how: How, time: Duration, slice: Duration) -> io::Result<Found> {
    let mut target = Target::open(path, how)?;
    let blocks = (bytes / BLOCK).max(1);
    let mask = blocks.next_power_of_two() - 1;
    // A generator whose period is its modulus: each number comes once (Hull and Dobell 1962).
    let mut at = 0x9e37_u64 & mask;
    let (mut slices, mut done, begin) = (Vec::new(), 0, Instant::now());
    let mut last = begin;
    for _ in 0..=mask {
        at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f) & mask;
        if at >= blocks {
            continue;
        }
        target.write(at)?;
        done += 1;
        let now = Instant::now();
        let number = ((now - begin).as_nanos() / slice.as_nanos().max(1)) as usize;
        if slices.len() <= number {
            slices.resize(number + 1, (0, 0));
        }
        slices[number].0 += 1;
        slices[number].1 += u64::from(nanos_of(now - last));
        last = now;
        if last - begin > time {
            break;
        }
    }
    target.settle()?;
    Ok(Found { nanos: Vec::new(), rate: done as f64 / ((last - begin).as_secs_f64() * 1e6), slices })
}

/// Has something done again and again, and times so many of it together.
fn timed(time: Duration, mut some: impl FnMut(u32) -> io::Result<Duration>) -> io::Result<Found> {
    let (mut nanos, mut spent) = (Vec::new(), Duration::ZERO);
    let begin = Instant::now();
    while nanos.is_empty() || begin.elapsed() < time {
        let took = some(TOGETHER)?;
        nanos.push(nanos_of(took / TOGETHER));
        spent += took;
    }
    let rate = (nanos.len() as u64 * u64::from(TOGETHER)) as f64 / (spent.as_secs_f64() * 1e6);
    Ok(Found { nanos, rate, slices: Vec::new() })
}

fn read(path: &Path, bytes: u64, time: Duration) -> io::Result<Found> {
    let file = File::open(path)?;
    let mut block = vec![0; BLOCK as usize];
    let blocks = (bytes / BLOCK).max(1);
    for at in 0..blocks {
        file.read_exact_at(&mut block, at * BLOCK)?;
    }
    let mut random = fastrand::Rng::with_seed(7);
    timed(time, |n| {
        let begin = Instant::now();
        (0..n).try_for_each(|_| file.read_exact_at(&mut block, random.u64(..blocks) * BLOCK))?;
        Ok(begin.elapsed())
    })
}

fn calls(call: Call, time: Duration) -> io::Result<Found> {
    let mut all = [0; TOGETHER as usize];
    match call {
        Call::Getppid => timed(time, |n| {
            let begin = Instant::now();
            for _ in 0..n {
                std::hint::black_box(std::os::unix::process::parent_id());
            }
            Ok(begin.elapsed())
        }),
        Call::WritePipe => {
            let (mut out, mut into) = io::pipe()?;
            timed(time, |n| {
                let begin = Instant::now();
                (0..n).try_for_each(|_| into.write_all(b"x"))?;
                let took = begin.elapsed();
                out.read_exact(&mut all)?;
                Ok(took)
            })
        }
        Call::ReadSocket => {
            let (mut one, mut other) = UnixStream::pair()?;
            timed(time, |n| {
                one.write_all(&all)?;
                let mut byte = [0];
                let begin = Instant::now();
                (0..n).try_for_each(|_| other.read_exact(&mut byte))?;
                Ok(begin.elapsed())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Directory;

    fn place(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("rem-nvcache-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("room");
        Directory(path)
    }

    fn writer(place: &Directory, files: usize, bytes: u64) -> Writer {
        let spec = WriterSpec { directory: place.0.clone(), files, bytes };
        Writer::open(spec).expect("there is room").0
    }

    #[test]
    fn each_thread_writes_its_own_file_as_often_as_was_asked_for() {
        let place = place("write");
        let mut writer = writer(&place, 3, 8 * BLOCK);
        for how in [How::Fsync(1), How::Fsync(4), How::Never] {
            let burst = Burst::Write { jobs: 2, how, warm: 1, least: 5, time: Duration::ZERO };
            let found = writer.run(burst).expect("they are written");
            assert_eq!(found.nanos.len(), 10, "{how:?}");
            assert!(found.rate > 0.0);
        }
        let changed = |n: usize| {
            let bytes = std::fs::read(&writer.files[n]).expect("it is there");
            assert_eq!(bytes.len() as u64, 8 * BLOCK);
            bytes.iter().any(|byte| *byte != 1)
        };
        assert_eq!([changed(0), changed(1), changed(2)], [true, true, false]);
    }

    #[test]
    fn all_of_a_file_is_written_once_unless_time_is_up() {
        let place = place("whole");
        let mut writer = writer(&place, 0, 0);
        let (file, bytes) = (place.0.join("all"), 23 * BLOCK);
        let burst = |time| Burst::Whole {
            file: file.clone(),
            bytes,
            how: How::Never,
            time,
            slice: Duration::from_millis(1),
        };
        let found = writer.run(burst(Duration::from_secs(60))).expect("it is written");
        assert_eq!(found.slices.iter().map(|(n, _)| n).sum::<u64>(), 23);
        let written = std::fs::read(&file).expect("it is there");
        assert!(written.chunks(BLOCK as usize).all(|block| block.len() as u64 == BLOCK && block[1] == 0x5a));
        let found = writer.run(burst(Duration::ZERO)).expect("it is written");
        assert_eq!(found.slices.iter().map(|(n, _)| n).sum::<u64>(), 1, "time was up behind the first one");
    }

    #[test]
    fn reads_and_other_calls_are_timed() {
        let place = place("calls");
        let mut writer = writer(&place, 1, 4 * BLOCK);
        let all = [Burst::Read(Duration::ZERO)];
        let calls = Call::ALL.map(|call| Burst::Call(call, Duration::ZERO));
        for burst in all.into_iter().chain(calls) {
            let found = writer.run(burst.clone()).expect("it is done");
            assert_eq!(found.nanos.len(), 1, "{burst:?}");
            assert!(found.rate > 0.0 && found.micros()[0] >= 0.0);
        }
        assert!(
            writer
                .run(Burst::Write { jobs: 2, how: How::Never, warm: 0, least: 1, time: Duration::ZERO })
                .is_err()
        );
    }
}
