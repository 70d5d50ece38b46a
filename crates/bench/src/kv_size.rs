//! `rem bench kv-size`: what a store of many keys costs, and for how long one step of its server holds others up.
//!
//! The server's core, in this process, over a file that is mapped as `rem kv serve` maps it; requests and steps come as the host
//! gives them, and each is timed by itself. Nobody is served during one, so the longest of them is what another client waits
//! at most beyond its own request. Time in which the scheduler had this thread wait for a CPU does not count: a machine that
//! others use says nothing of the store. A store is filled until four fifths of it are live, growing its table on the way; then keys
//! are overwritten at random, some with a short time to live, while others are read, so that cleaning, growing and expiry go on
//! at once. The same at an eighth of the size says whether cleaning's cost grows with more than what it copies.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use remanence_kv::proto::Expect;
use remanence_kv::server::{ClientId, Room, format};
use remanence_kv::{Geometry, Options as StoreOptions, Refusal, Reply, Request, Server};
use remanence_pmem::{FileOptions, Region};

use crate::effort::Effort;
use crate::report::{Bar, Kind, Report, Row, Sense};

/// Bytes of an object: 48 of header, 8 of key.
const OBJECT: u64 = 128;
const VALUE: usize = OBJECT as usize - 48 - 8;
/// Bytes of the table for each key at most, while it grows.
const TABLE: u64 = 96;
/// What the host gives a step, and what part of the time steps take while messages come.
const BUDGET: usize = 64;
const SHARE: u32 = 3;
/// How full the store is while keys are overwritten.
const SHARE_LIVE: f64 = 0.8;
/// Nothing takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a request or a step may take, milliseconds; and what a store may take to say that it is full.
const WAIT: f64 = 20.0;
const FULL: f64 = 1000.0;
/// By how much cleaning may be dearer, for each object, at eight times the keys: what is copied is less often in a cache.
const LINEAR: f64 = 2.5;

/// How the bench is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the store's file is made, which is removed in the end.
    pub directory: PathBuf,
    /// Keys; by the effort if nothing is said.
    pub keys: Option<u64>,
    /// How much is measured.
    pub effort: Effort,
}

/// The scheduler's account of this thread.
struct Account(Option<std::fs::File>);

impl Account {
    fn open() -> Self {
        Self(std::fs::File::open("/proc/thread-self/schedstat").ok())
    }

    /// For how long it had the thread wait for a CPU so far; nothing where it keeps no account.
    fn waited(&self) -> Duration {
        let mut text = [0; 80];
        let len = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let field = text[..len].split(|byte| *byte == b' ').nth(1);
        let nanos = field.and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}

fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// What requests or steps of one kind took.
struct Times {
    micros: Histogram<u64>,
    worst: Duration,
    /// What the worst one was about.
    what: String,
}

impl Times {
    fn new() -> Self {
        let micros = Histogram::new_with_bounds(1, 600_000_000, 3).expect("fixed bounds");
        Self { micros, worst: Duration::ZERO, what: String::new() }
    }

    fn row(&self, op: &str, keys: u64) -> Row {
        let at = |quantile| self.micros.value_at_quantile(quantile) as f64 / 1e3;
        Row {
            mean: Some(self.micros.mean() / 1e3),
            p99: Some(at(0.99)),
            p999: Some(at(0.999)),
            n: self.micros.len(),
            ..Row::single(op, keys, "one store", ("latency", "us"), at(0.5), Kind::Live)
        }
    }
}

/// A store, and whoever drives it.
struct Run {
    server: Server<Region>,
    client: ClientId,
    begin: Instant,
    /// A step left something undone, and when the next is due.
    more: bool,
    next_step: Instant,
    stepped: Instant,
    puts: Times,
    gets: Times,
    steps: Times,
    /// Of steps alone.
    spent: Duration,
    account: Account,
    state: u64,
}

type Outcome<T> = Result<T, String>;

impl Run {
    fn open(region: &Region) -> Outcome<Self> {
        let options = StoreOptions { inline_max: 8 << 10, ..StoreOptions::DEFAULT };
        let (mut server, _) = Server::open(region.clone(), options).map_err(|e| e.to_string())?;
        let now = Instant::now();
        Ok(Self {
            client: server.connect(),
            server,
            begin: now,
            more: false,
            next_step: now,
            stepped: now,
            puts: Times::new(),
            gets: Times::new(),
            steps: Times::new(),
            spent: Duration::ZERO,
            account: Account::open(),
            state: 0x9E37_79B9_7F4A_7C15,
        })
    }

    /// Milliseconds of the store's clock.
    fn now(&self) -> u64 {
        1_000_000 + self.begin.elapsed().as_millis() as u64
    }

    /// Below `limit`.
    fn draw(&mut self, limit: u64) -> u64 {
        // xorshift64*: a run is not to spend its time on drawing.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        ((u128::from(self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)) * u128::from(limit)) >> 64) as u64
    }

    /// Does one thing, and notes how long it took.
    fn timed<T>(&mut self, which: fn(&mut Self) -> &mut Times, act: impl FnOnce(&mut Self) -> T) -> T {
        let (before, waited) = (self.server.stats(), self.account.waited());
        let begin = Instant::now();
        let outcome = act(self);
        let mut took = begin.elapsed();
        if took > Duration::from_micros(100) {
            took = took.saturating_sub(self.account.waited().saturating_sub(waited));
        }
        let after = self.server.stats();
        let times = which(self);
        times.micros.saturating_record(took.as_nanos() as u64);
        if took > times.worst {
            times.worst = took;
            times.what = format!(
                "{} objects moved, {} regions freed, {} entries moved, {} tables grown, {} expired",
                after.objects_moved - before.objects_moved,
                after.regions_freed - before.regions_freed,
                after.entries_moved - before.entries_moved,
                after.grown - before.grown,
                after.expired - before.expired,
            );
        }
        outcome
    }

    fn step(&mut self) -> Outcome<()> {
        let begin = Instant::now();
        let now = self.now();
        let more = self.timed(|run| &mut run.steps, |run| run.server.step(now, BUDGET));
        self.more = more.map_err(|e| e.to_string())?;
        // Nobody here holds an old view.
        while self.server.poll_event().is_some() {}
        let view = self.server.view().number;
        self.server.handle(now, self.client, &Request::Acknowledge { view });
        let took = begin.elapsed();
        self.spent += took;
        (self.stepped, self.next_step) = (begin, begin + took * SHARE);
        Ok(())
    }

    /// As the host does between messages.
    fn between(&mut self) -> Outcome<()> {
        let now = Instant::now();
        let due = self.more && now >= self.next_step;
        if due || now.duration_since(self.stepped) >= Duration::from_millis(10) {
            self.step()
        } else {
            Ok(())
        }
    }

    fn put(&mut self, key: u64, expires: u64) -> Outcome<Result<(), Refusal>> {
        let mut value = vec![key as u8; VALUE];
        value[..8].copy_from_slice(&self.state.to_le_bytes());
        let request =
            Request::PutInline { key: key.to_le_bytes().to_vec(), value, expires, expect: Expect::Any };
        let begin = Instant::now();
        loop {
            let now = self.now();
            let reply = self.timed(|run| &mut run.puts, |run| run.server.handle(now, run.client, &request));
            match reply {
                Reply::Written(_) | Reply::Done { .. } => {
                    self.between()?;
                    return Ok(Ok(()));
                }
                // A client comes again.
                Reply::Refused(Refusal::Growing | Refusal::Cleaning) if begin.elapsed() < PATIENCE => {
                    self.step()?;
                }
                Reply::Refused(refusal) => return Ok(Err(refusal)),
                other => return Err(format!("a PUT is answered with {other:?}")),
            }
        }
    }

    fn get(&mut self, key: u64) -> Outcome<bool> {
        let request = Request::Get { key: key.to_le_bytes().to_vec() };
        let now = self.now();
        let reply = self.timed(|run| &mut run.gets, |run| run.server.handle(now, run.client, &request));
        self.between()?;
        match reply {
            Reply::Value { value, .. } if value.len() == VALUE => Ok(true),
            Reply::Absent => Ok(false),
            other => Err(format!("a GET is answered with {other:?}")),
        }
    }

    /// Of what can be live, how much is.
    fn share(&self) -> f64 {
        let room = self.room();
        room.live as f64 / (room.live + room.left).max(1) as f64
    }

    fn room(&self) -> Room {
        self.server.usage().room
    }
}

/// A store's file, which goes with it.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What was found of one store.
struct Found {
    keys: u64,
    rows: Vec<Row>,
    put: (Duration, String),
    get: (Duration, String),
    step: (Duration, String),
    moved_us: Option<f64>,
    per_key: f64,
    on_medium: f64,
    opened: Duration,
    counted: Duration,
    full: Option<Duration>,
    live: f64,
}

fn worst(times: &Times) -> (Duration, String) {
    (times.worst, times.what.clone())
}

fn store(directory: &Path, keys: u64, lasts: Duration, progress: &mut dyn FnMut(&str)) -> Outcome<Found> {
    let size = ((keys * (OBJECT + TABLE)) * 5 / 4).next_multiple_of(1 << 20).max(8 << 20);
    let path = directory.join("kv-size");
    let region =
        FileOptions::new().create_new(size).open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let _file = File(path.clone());
    // A table of the size that a store begins with.
    format(&region, &Geometry::for_size(size), 1024, 0x5EED, [9; 16]).map_err(|e| e.to_string())?;
    let before = memory();
    let mut run = Run::open(&region)?;
    progress(&format!("{keys} keys: filling"));
    let asked = keys;
    let mut keys = 0;
    // The table grows by doubling, so how much of the store it takes depends on the number: more keys come until it is full enough.
    while keys < asked || !keys.is_multiple_of(64) || run.share() < SHARE_LIVE {
        run.put(keys, 0)?.map_err(|refusal| format!("key {keys} of {asked}: {refusal}"))?;
        keys += 1;
    }
    let live = run.share();
    let per_key = (memory().saturating_sub(before)) as f64 / keys as f64;
    progress(&format!("{keys} keys: overwriting"));
    let (moved, spent) = (run.server.stats().objects_moved, run.spent);
    let begin = Instant::now();
    let (mut short, mut lost) = (0_u64, 0_u64);
    // On a busy machine it takes longer until there is something to clean.
    let nothing_moved = |run: &Run| run.server.stats().objects_moved == moved && begin.elapsed() < PATIENCE;
    while begin.elapsed() < lasts || nothing_moved(&run) {
        for _ in 0..8 {
            let key = run.draw(keys);
            run.put(key, 0)?.map_err(|refusal| format!("key {key} again: {refusal}"))?;
        }
        // Keys that come and go: a twentieth of all at a time.
        short += 1;
        let ends = run.now() + 500 + run.draw(1000);
        match run.put(keys + short % (keys / 20).max(1), ends)? {
            Ok(()) | Err(Refusal::Full) => {}
            Err(refusal) => return Err(format!("a key that ends: {refusal}")),
        }
        let key = run.draw(keys);
        lost += u64::from(!run.get(key)?);
    }
    if lost > 0 {
        return Err(format!("{lost} keys had no value, though each was put"));
    }
    let moved = run.server.stats().objects_moved - moved;
    let moved_us = (moved > 0).then(|| (run.spent - spent).as_secs_f64() * 1e6 / moved as f64);
    let on_medium = size as f64 / keys as f64;
    let rows = vec![run.puts.row("put", keys), run.gets.row("get", keys), run.steps.row("step", keys)];
    let (mut put, get, mut step) = (worst(&run.puts), worst(&run.gets), worst(&run.steps));

    progress(&format!("{keys} keys: opening"));
    drop(run);
    let begin = Instant::now();
    let mut run = Run::open(&region)?;
    let opened = begin.elapsed();
    while !run.room().counted && begin.elapsed() < PATIENCE {
        run.step()?;
    }
    let counted = begin.elapsed();

    progress(&format!("{keys} keys: full"));
    let mut last = Instant::now();
    let mut full = None;
    for key in 2 * keys..8 * keys {
        match run.put(key, 0)? {
            Ok(()) => last = Instant::now(),
            Err(Refusal::Full) => {
                full = Some(last.elapsed());
                break;
            }
            Err(refusal) => return Err(format!("a store that is nearly full: {refusal}")),
        }
    }
    if full.is_some() {
        for key in 0..1000.min(keys) {
            run.put(key, 0)?.map_err(|refusal| format!("a full store, key {key} again: {refusal}"))?;
            run.get(key)?;
        }
        let delete = Request::Delete { key: 0_u64.to_le_bytes().to_vec(), expect: Expect::Any };
        let now = run.now();
        let deleted = run.server.handle(now, run.client, &delete);
        if !matches!(deleted, Reply::Done { .. }) {
            return Err(format!("a DELETE in a full store is answered with {deleted:?}"));
        }
    }
    for (worst, times) in [(&mut put, &run.puts), (&mut step, &run.steps)] {
        if times.worst > worst.0 {
            *worst = (times.worst, format!("{}, after it was opened again", times.what));
        }
    }
    Ok(Found { keys, rows, put, get, step, moved_us, per_key, on_medium, opened, counted, full, live })
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: there is no room, or the store said what it must not.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let keys = options.keys.unwrap_or(options.effort.pick(40_000, 1_000_000, 10_000_000));
    let lasts = Duration::from_millis(options.effort.pick(300, 10_000, 30_000));
    let mut done = 0;
    let mut told = |what: &str| {
        progress(done, 8, what);
        done += 1;
    };
    let small = store(&options.directory, (keys / 8).max(1000), lasts / 2, &mut told)?;
    let large = store(&options.directory, keys, lasts, &mut told)?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    for found in [&small, &large] {
        rows.extend(found.rows.iter().cloned());
    }
    let mut figure = |op: &str, metric, unit, value: f64| {
        rows.push(Row::single(op, large.keys, "one store", (metric, unit), value, Kind::Live));
    };
    figure("memory of the server per key", "size", "B", large.per_key);
    figure("medium per key", "size", "B", large.on_medium);
    figure("live, of what can be live", "share", "%", 100.0 * large.live);
    figure("opening", "time", "ms", ms(large.opened));
    figure("opening, and counting all keys", "time", "ms", ms(large.counted));
    let linear = small.moved_us.zip(large.moved_us).map(|(small, large)| large / small);
    if linear.is_none() {
        skipped.push("cleaning moved nothing: the run is too short".to_owned());
    }
    if large.full.is_none() {
        skipped.push("the store was not full when eight times the keys were there".to_owned());
    }
    let bars = vec![
        Bar::new("the longest PUT, ms", Some(ms(large.put.0)), Sense::AtMost, WAIT),
        Bar::new("the longest GET, ms", Some(ms(large.get.0)), Sense::AtMost, WAIT),
        Bar::new("the longest step between requests, ms", Some(ms(large.step.0)), Sense::AtMost, WAIT),
        Bar::new("cleaning, per object moved, beside an eighth of the keys", linear, Sense::AtMost, LINEAR),
        Bar::new("a store that is full says so, ms", large.full.map(ms), Sense::AtMost, FULL),
    ];
    let params = serde_json::json!({
        "effort": options.effort.word(), "keys": keys, "value": VALUE, "seconds": lasts.as_secs_f64(),
        "longest_put": large.put.1, "longest_get": large.get.1, "longest_step": large.step.1,
        "waits": "of one request or step, without the time in which the scheduler had it wait for a CPU",
    });
    Ok(Report::of_rows("kv-size", params, rows, bars, skipped))
}
