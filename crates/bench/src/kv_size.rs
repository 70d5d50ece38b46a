//! `rem bench kv-size`: what a store of many keys costs, and for how long one step of its server holds others up.
//!
//! The server's core, in a process of its own, over a file that is mapped as `rem kv serve` maps it; requests and steps come as the host
//! gives them, and each is timed by itself. Nobody is served during one, so the longest of them is what another client waits
//! at most beyond its own request. Time in which the scheduler had this thread wait for a CPU does not count: a machine that
//! others use says nothing of the store. A store is filled until four fifths of it are live, growing its table on the way; then keys
//! are overwritten at random, some with a short time to live, while others are read, so that cleaning, growing and expiry go on
//! at once: that is a burst. The same at an eighth of the size says whether cleaning's cost grows with more than what it copies. In the end
//! the store is opened again, and filled until it says that it is full.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use remanence_kv::proto::Expect;
use remanence_kv::server::{ClientId, Room, format};
use remanence_kv::{Geometry, Options as StoreOptions, Refusal, Reply, Request, Server};
use remanence_pmem::{FileOptions, Region};
use serde::{Deserialize, Serialize};

use crate::effort;
use crate::report::{Bar, Kind, Report, Row, Sense};
use crate::role::{self, Agent, Causes, End, Launcher, Lost, Ran, Role};
use crate::samples::{Key, Measured, Metric, Samples};

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
    /// As any bench.
    pub common: effort::Options,
    /// Where the stores' files are made, which are removed in the end.
    pub directory: PathBuf,
    /// Keys; by the effort if nothing is said.
    pub keys: Option<u64>,
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

    /// What was noted since the last time that this was asked.
    fn take(&mut self) -> Latencies {
        let Self { micros, worst, what } = std::mem::replace(self, Self::new());
        let each = micros.iter_recorded();
        Latencies {
            each: each
                .map(|v| (v.value_iterated_to() as f64 / 1e3, v.count_since_last_iteration()))
                .collect(),
            worst_ms: worst.as_secs_f64() * 1e3,
            what,
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

/// The store that a process is to have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    file: PathBuf,
    keys: u64,
}

/// What is done with it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Burst {
    Fill,
    Overwrite(Duration),
    Reopen,
    FillUp,
}

/// What requests or steps of one kind took: microseconds, and how many took so long; and the longest one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Latencies {
    each: Vec<(f64, u64)>,
    worst_ms: f64,
    what: String,
}

/// The kinds, in the order of [`Found::latencies`].
const KINDS: [&str; 3] = ["put", "get", "step"];

/// What was found, as far as the burst says something of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    latencies: [Latencies; 3],
    /// Of steps, microseconds for each object that they moved.
    moved_us: f64,
    memory_per_key: f64,
    medium_per_key: f64,
    live: f64,
    opened_ms: f64,
    counted_ms: f64,
    /// None if it was not full when eight times the keys were there.
    full_ms: Option<f64>,
}

/// A store, in its process.
pub(crate) struct Core {
    asked: u64,
    keys: u64,
    size: u64,
    /// Memory of the process without it.
    before: u64,
    run: Run,
    region: Region,
    _file: File,
}

impl Role for Core {
    const WORD: &'static str = "kv-size-core";
    type Spec = Spec;
    type Here = ();
    type Peer = ();
    type Burst = Burst;
    type Values = Found;

    fn open(Spec { file, keys }: Spec) -> Result<(Self, ()), String> {
        let size = ((keys * (OBJECT + TABLE)) * 5 / 4).next_multiple_of(1 << 20).max(8 << 20);
        let said = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
        let _ = std::fs::remove_file(&file);
        let region = FileOptions::new().create_new(size).open(&file).map_err(|e| said(&e))?;
        // A table of the size that a store begins with.
        format(&region, &Geometry::for_size(size), 1024, 0x5EED, [9; 16]).map_err(|e| said(&e))?;
        let before = memory();
        let run = Run::open(&region)?;
        Ok((Self { asked: keys, keys: 0, size, before, run, region, _file: File(file) }, ()))
    }

    fn run(&mut self, burst: Burst) -> Result<Found, String> {
        let mut found = Found::default();
        match burst {
            Burst::Fill => self.fill(&mut found)?,
            Burst::Overwrite(time) => found.moved_us = self.overwrite(time)?,
            Burst::Reopen => self.reopen(&mut found)?,
            Burst::FillUp => found.full_ms = self.fill_up()?,
        }
        let Run { puts, gets, steps, .. } = &mut self.run;
        found.latencies = [puts, gets, steps].map(Times::take);
        Ok(found)
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Core {
    fn fill(&mut self, found: &mut Found) -> Outcome<()> {
        let run = &mut self.run;
        // The table grows by doubling, so how much of the store it takes depends on the number: more keys come until it is full enough.
        while self.keys < self.asked || !self.keys.is_multiple_of(64) || run.share() < SHARE_LIVE {
            let key = self.keys;
            run.put(key, 0)?.map_err(|refusal| format!("key {key} of {}: {refusal}", self.asked))?;
            self.keys += 1;
        }
        found.live = 100.0 * run.share();
        found.memory_per_key = memory().saturating_sub(self.before) as f64 / self.keys as f64;
        found.medium_per_key = self.size as f64 / self.keys as f64;
        Ok(())
    }

    fn overwrite(&mut self, lasts: Duration) -> Outcome<f64> {
        let (run, keys) = (&mut self.run, self.keys);
        let (moved, spent) = (run.server.stats().objects_moved, run.spent);
        let begin = Instant::now();
        let (mut short, mut lost) = (0_u64, 0_u64);
        // On a busy machine it takes longer until there is something to clean.
        let nothing_moved =
            |run: &Run| run.server.stats().objects_moved == moved && begin.elapsed() < PATIENCE;
        while begin.elapsed() < lasts || nothing_moved(run) {
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
        match run.server.stats().objects_moved - moved {
            0 => Err(format!("cleaning moved nothing within {} s", PATIENCE.as_secs())),
            moved => Ok((run.spent - spent).as_secs_f64() * 1e6 / moved as f64),
        }
    }

    fn reopen(&mut self, found: &mut Found) -> Outcome<()> {
        let begin = Instant::now();
        self.run = Run::open(&self.region)?;
        found.opened_ms = ms(begin.elapsed());
        while !self.run.room().counted && begin.elapsed() < PATIENCE {
            self.run.step()?;
        }
        found.counted_ms = ms(begin.elapsed());
        Ok(())
    }

    fn fill_up(&mut self) -> Outcome<Option<f64>> {
        let (run, keys) = (&mut self.run, self.keys);
        let mut last = Instant::now();
        let mut full = None;
        for key in 2 * keys..8 * keys {
            match run.put(key, 0)? {
                Ok(()) => last = Instant::now(),
                Err(Refusal::Full) => {
                    full = Some(ms(last.elapsed()));
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
        Ok(full)
    }
}

/// A store in a process, which is started and filled when it is not there.
struct Store {
    launcher: Launcher,
    spec: Spec,
    core: Option<Agent<Core>>,
    /// The longest of each kind so far: milliseconds, and what it was about.
    worst: [(f64, String); 3],
    /// What it was like when it was filled.
    filled: Found,
}

impl Store {
    fn new(options: &Options, keys: u64) -> Self {
        let spec = Spec { file: options.directory.join(format!("store{keys}")), keys };
        let launcher = Launcher::here(&options.common.program);
        Self { launcher, spec, core: None, worst: Default::default(), filled: Found::default() }
    }

    /// Starts and fills it, if it is not there.
    fn ready(&mut self) -> Result<&mut Agent<Core>, String> {
        if self.core.is_none() {
            // A store of many keys takes minutes to be filled.
            let mut core = Agent::start(&self.launcher, End::Server)?.patience(5 * PATIENCE);
            core.open(&self.spec)?;
            self.core = Some(core);
            self.filled = self.burst(Burst::Fill)?.0;
        }
        self.core.as_mut().ok_or("it is not there".to_owned())
    }

    fn burst(&mut self, burst: Burst) -> Result<(Found, Causes), String> {
        let core = self.ready()?;
        let ran = core.run(&burst);
        match &ran {
            Ok((found, _)) => {
                for (worst, latencies) in self.worst.iter_mut().zip(&found.latencies) {
                    if latencies.worst_ms > worst.0 {
                        *worst = (latencies.worst_ms, format!("{} ({burst:?})", latencies.what));
                    }
                }
            }
            Err(_) => self.core = None,
        }
        ran
    }

    fn key(&self, op: &str) -> Key {
        Key { op: op.to_owned(), x: self.spec.keys, series: STORE.to_owned(), metric: Metric::Latency }
    }

    /// What is sampled of it: requests and steps, and what cleaning costs.
    fn keys(&self) -> [Key; 4] {
        let [put, get, step] = KINDS;
        [put, get, step, CLEANING].map(|op| self.key(op))
    }

    /// A burst under these names.
    fn sample(&mut self, samples: &mut Samples, keys: &[Key; 4], time: Duration) -> Outcome<()> {
        samples.bursts(keys, || {
            let (found, server) = self.burst(Burst::Overwrite(time))?;
            let all = found.latencies.map(|latencies| {
                let each = latencies.each.into_iter();
                each.flat_map(|(value, count)| std::iter::repeat_n(value, count as usize))
                    .collect::<Vec<f64>>()
            });
            let operations = (all[0].len() + all[1].len()) as u64;
            let of = |values| Measured::from((Ran { values, client: Causes::default(), server }, operations));
            Ok(all.into_iter().map(of).chain([vec![found.moved_us].into()]).collect())
        })
    }
}

const STORE: &str = "one store";
const CLEANING: &str = "cleaning, for each object moved";

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence: there is no room, or the store said what it must not.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let effort::Options { effort, only, .. } = &options.common;
    let keys = options.keys.unwrap_or(effort.pick(40_000, 1_000_000, 10_000_000));
    let millis = Duration::from_millis;
    let (rounds, burst) = effort.pick((1, millis(300)), (6, millis(1000)), (9, millis(3000)));
    let mut stores = [(keys / 8).max(1000), keys].map(|keys| Store::new(options, keys));
    let names = stores.each_ref().map(Store::keys);
    let (mut samples, mut lost) = (Samples::new(*effort, only), Lost::default());
    names[1].iter().for_each(|key| samples.control(key));
    let single = |op: &&str| Key::single(op, keys, STORE);
    for op in LONGEST.iter().chain(&FILLED).chain(&OPENED).chain([&FULL_SAYS]) {
        samples.know(&single(op));
    }
    let total = rounds * stores.len() as u64 + 2;
    while samples.another(rounds, |samples| bars(samples, &names))? {
        for n in samples.order(stores.len()) {
            let what = format!("{} keys", names[n][0].x);
            progress(samples.step(), total, &what);
            let sampled = stores[n].sample(&mut samples, &names[n], burst);
            sampled.unwrap_or_else(|why| lost.add(what, why));
        }
    }
    let large = &mut stores[1];
    let mut rows = Vec::new();
    let mut figure = |op: &str, metric, unit, value: f64| {
        rows.push(Row::single(op, keys, STORE, (metric, unit), value, Kind::Live));
    };
    if samples.wants_any(&FILLED.each_ref().map(single)) {
        match large.ready().map(|_| ()) {
            Ok(()) => {
                figure(FILLED[0], "size", "B", large.filled.memory_per_key);
                figure(FILLED[1], "size", "B", large.filled.medium_per_key);
                figure(FILLED[2], "share", "%", large.filled.live);
            }
            Err(why) => lost.add("a store that is filled", why),
        }
    }
    let mut last = |large: &mut Store, burst: Burst, what: &str| {
        progress(total - 1, total, what);
        large.burst(burst).map(|(found, _)| found).map_err(|why| lost.add(what, why)).ok()
    };
    if samples.wants_any(&OPENED.each_ref().map(single))
        && let Some(opened) = last(large, Burst::Reopen, "opening")
    {
        figure(OPENED[0], "time", "ms", opened.opened_ms);
        figure(OPENED[1], "time", "ms", opened.counted_ms);
    }
    if samples.wants(&single(&FULL_SAYS))
        && let Some(full) = last(large, Burst::FillUp, "a full store")
    {
        match full.full_ms {
            Some(ms) => figure(FULL_SAYS, "time", "ms", ms),
            None => lost.add("a full store", "it was not full when eight times the keys were there"),
        }
    }
    for (op, (ms, _)) in LONGEST.iter().zip(&large.worst).filter(|(_, (ms, _))| *ms > 0.0) {
        figure(op, "time", "ms", *ms);
    }
    samples.singles(rows);
    let [put, get, step] = &large.worst;
    let params = serde_json::json!({
        "keys": keys, "value": VALUE, "rounds": samples.blocks(), "burst_ms": burst.as_millis() as u64, "pinned": role::pinned(),
        "longest_put": put.1, "longest_get": get.1, "longest_step": step.1,
        "waits": "of one request or step, without the time in which the scheduler had it wait for a CPU",
    });
    Report::new("kv-size", params, &samples, |samples| bars(samples, &names), |_| Vec::new(), lost.lines())
}

/// What is not sampled: the longest of each of [`KINDS`], what a store is like that is filled, how long it is opened, and until it is full.
const LONGEST: [&str; 3] = ["the longest put", "the longest get", "the longest step"];
const FILLED: [&str; 3] = ["memory of the server per key", "medium per key", "live, of what can be live"];
const OPENED: [&str; 2] = ["opening", "opening, and counting all keys"];
const FULL_SAYS: &str = "a store that is full says so";

fn bars(samples: &Samples, [small, large]: &[[Key; 4]; 2]) -> Vec<Bar> {
    let single = |op| samples.value(op, large[0].x, STORE);
    let longest = |(n, name): (usize, &str)| {
        // None has been seen where no burst was whole.
        let found = samples.level(&large[n]).and_then(|_| single(LONGEST[n]));
        Bar::new(format!("the longest {name}, ms"), found, Sense::AtMost, WAIT)
    };
    let kinds = ["PUT", "GET", "step between requests"];
    let mut bars: Vec<Bar> = kinds.into_iter().enumerate().map(longest).collect();
    // What an object that is moved costs, beside the store of an eighth of the keys.
    let linear = samples.ratio(&large[3], &small[3]);
    bars.push(Bar::new(
        "cleaning, per object moved, beside an eighth of the keys",
        linear,
        Sense::AtMost,
        LINEAR,
    ));
    bars.push(Bar::new("a store that is full says so, ms", single(FULL_SAYS), Sense::AtMost, FULL));
    bars
}
