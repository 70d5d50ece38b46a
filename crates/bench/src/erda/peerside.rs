//! Our store beside what a user would pick instead, on the same host and the same medium: natively, through the gateway, and
//! Redis and memcached, all with clients that spin; and redis-benchmark against whatever speaks RESP.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use remanence_kv_live::{PutOptions, Store};
use remanence_verbs::Context;
use remanence_ycsb::workload::Mix;

use crate::effort::Effort;

use super::load::{self, Handle};
use super::server::{Carrier, Served, Server, Spec, device};
use super::tcp::{At, Memcached, Redis};
use super::{Bench, Native, Part, connecting, load_of, sound, table1};
use crate::machine::State;
use crate::peers::version;
use crate::redis::{self, Fsync, Process, Setting, Shape};
use crate::role::{Agent, End};
use crate::samples::{Key, Metric};
use crate::server_load::ServerLoad;

/// Where data lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum DataDirectory {
    /// `/dev/shm`: survives the end of a process.
    Tmpfs,
    /// A file on a disk, synced.
    Disk,
}

impl DataDirectory {
    pub(super) const ALL: [Self; 2] = [Self::Tmpfs, Self::Disk];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Disk => "disk",
        }
    }
}

/// Who is asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Who {
    Native(Carrier),
    /// To a server elsewhere on this host.
    Gateway,
    /// With the store in its own process.
    GatewayAndStore,
    Redis(Setting, Via),
    Memcached(Via),
}

/// What a peer is asked over: beside ours over UDP loopback stands TCP loopback, and beside shared memory what a host has without
/// its network's stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Via {
    Tcp,
    Unix,
}

impl Via {
    pub(super) const ALL: [Self; 2] = [Self::Tcp, Self::Unix];

    const fn words(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix socket",
        }
    }

    /// What of ours it stands beside.
    pub(super) const fn carrier(self) -> Carrier {
        match self {
            Self::Tcp => Carrier::Udp,
            Self::Unix => Carrier::Shm,
        }
    }
}

impl Who {
    fn at(place: DataDirectory) -> Vec<Self> {
        let mut all = vec![Self::Native(Carrier::Udp), Self::Native(Carrier::Shm)];
        let logged = [Fsync::Always, Fsync::EverySecond, Fsync::No].map(Setting::plain);
        let more = match place {
            DataDirectory::Tmpfs => &[Setting::plain(Fsync::NoLog), Setting::threaded(Fsync::NoLog)][..],
            DataDirectory::Disk => &[Setting::threaded(Fsync::Always)][..],
        };
        for setting in logged.iter().chain(more) {
            all.extend(Via::ALL.map(|via| Self::Redis(*setting, via)));
        }
        all.push(Self::GatewayAndStore);
        if place == DataDirectory::Tmpfs {
            all.push(Self::Gateway);
            all.extend(Via::ALL.map(Self::Memcached));
        }
        all
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Native(carrier) => format!("native, {}", carrier.word()),
            Self::Gateway => "gateway".into(),
            Self::GatewayAndStore => "gateway and store".into(),
            Self::Redis(setting, via) => format!("Redis, {}, {}", setting.words(), via.words()),
            Self::Memcached(via) => format!("memcached, {}", via.words()),
        }
    }

    /// The server, whatever it is asked over, where one listens on both sockets.
    fn server(self) -> String {
        if let Self::Redis(setting, _) = self { format!("Redis, {}", setting.words()) } else { self.name() }
    }

    /// What is to be installed for it, if it is not.
    fn missing(self) -> Option<String> {
        match self {
            Self::Redis(..) => redis::installed("redis-server", "redis-server").err(),
            Self::Memcached(_) => redis::installed("memcached", "memcached").err(),
            _ => None,
        }
    }

    const fn speaks_resp(self) -> bool {
        matches!(self, Self::Gateway | Self::GatewayAndStore | Self::Redis(..))
    }
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Get,
    Put,
}

impl Action {
    pub(super) const ALL: [Self; 2] = [Self::Get, Self::Put];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
        }
    }
}

/// One client that spins.
pub(super) fn spinning(place: DataDirectory, deed: Action, who: Who, value: usize) -> Key {
    let op = format!("{} on {}", deed.word(), place.name());
    Key { op, x: value as u64, series: who.name(), metric: Metric::Latency }
}

/// Sixteen under one doorbell.
pub(super) fn together(place: DataDirectory, deed: Action, who: Who, value: usize) -> Key {
    let series = format!("{}, 16 together", who.name());
    Key { series, metric: Metric::Rate, ..spinning(place, deed, who, value) }
}

/// What redis-benchmark printed as a percentile.
fn percentile(rate: &Key, which: &str) -> Key {
    Key { op: format!("{}, {which}", rate.op), metric: Metric::Latency, ..rate.clone() }
}

/// The rate that redis-benchmark measured.
pub(super) fn benchmarked(place: DataDirectory, deed: Action, who: Who, shape: Shape, value: usize) -> Key {
    let op = format!("{} on {}, redis-benchmark {}", deed.word(), place.name(), shape.words());
    Key { op, x: value as u64, series: who.name(), metric: Metric::Rate }
}

/// How often a burst of a peer is measured before its state of the machine is called unclear.
const TRIES: u32 = 3;

/// Bytes of a store.
const SIZE: u64 = 64 << 20;

/// Bytes of a value.
pub(super) const SIZES: [usize; 2] = [64, 1024];

pub(super) fn steps(effort: Effort) -> u64 {
    let each: usize = DataDirectory::ALL.map(|place| Who::at(place).len()).iter().sum();
    effort.rounds() * (SIZES.len() * each) as u64
}

/// How many requests redis-benchmark makes: for a good part of a second, as far as one can know.
const fn requests(effort: Effort, place: DataDirectory, who: Who, shape: Shape) -> u64 {
    let synced =
        matches!((place, who), (DataDirectory::Disk, Who::Redis(Setting { fsync: Fsync::Always, .. }, _)));
    let all = match (synced, shape.clients) {
        (true, 1) => 200,
        (true, _) => 4000,
        (false, 1) => 8000,
        (false, _) => 20_000,
    } * shape.pipeline as u64
        / if shape.pipeline > 1 { 3 } else { 1 };
    match effort {
        // Fewer take a fast server no time that redis-benchmark could tell.
        Effort::Tiny => all / 10 + 64,
        Effort::Quick => all / 8 + 64,
        Effort::Full => all,
    }
}

/// A peer that runs.
struct RunningPeer {
    place: DataDirectory,
    who: Who,
    handles: Vec<Handle>,
    /// For operations under one doorbell.
    store: Option<Store>,
    at: At,
    // The clients go before what they are connected to.
    _device: Option<Context>,
    _server: Option<Agent<Server>>,
    /// One that listens on both sockets is of two peers.
    process: Option<Rc<(Process, Option<Directory>)>>,
}

/// A directory that goes with its peer.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let effort = bench.options.effort;
    let mut all = Vec::new();
    for place in DataDirectory::ALL {
        let Some(dir) = directory(bench, place) else { continue };
        for who in Who::at(place) {
            if let Some(why) = who.missing() {
                bench.lost.add(format!("{} on {}", who.name(), place.name()), why);
                continue;
            }
            match start(bench, place, who, &dir, &all) {
                Ok(peer) => all.push(peer),
                Err(why) => bench.lost.add(format!("{} on {}", who.name(), place.name()), why),
            }
        }
    }
    match redis::installed("redis-benchmark", "redis-tools") {
        Ok(program) => {
            let version = version(&program.to_string_lossy(), "--version");
            let line = format!("{version}; -t set,get -d SIZE -r {} -n N --csv", effort.records());
            bench.settings.insert("redis-benchmark".into(), line);
        }
        Err(why) => bench.lost.add("redis-benchmark", why),
    }
    bench.samples.next_part();
    while bench.another(Part::Peers) {
        for value in SIZES {
            for n in bench.samples.order(all.len()) {
                let peer = &mut all[n];
                let cell =
                    format!("{} on {} with values of {value} bytes", peer.who.name(), peer.place.name());
                bench.step(&cell);
                if bench.is_late(&cell) {
                    continue;
                }
                if let Err(why) = measure(bench, peer, value) {
                    bench.lost.add(cell, why);
                }
            }
        }
    }
}

/// Where a place's files go.
fn directory(bench: &mut Bench<'_>, place: DataDirectory) -> Option<PathBuf> {
    let dir = match place {
        DataDirectory::Tmpfs => crate::process::memory().to_owned(),
        DataDirectory::Disk => bench.options.dir.clone(),
    };
    let kind = redis::file_system(&dir).unwrap_or_else(|| "nothing that is known".into());
    if place == DataDirectory::Disk && matches!(kind.as_str(), "tmpfs" | "ramfs") {
        let why = format!("{} is {kind} and not on one: name another directory with --dir", dir.display());
        bench.lost.add("what is on a disk", why);
        return None;
    }
    Some(dir)
}

fn start(
    bench: &mut Bench<'_>,
    place: DataDirectory,
    who: Who,
    dir: &Path,
    others: &[RunningPeer],
) -> Result<RunningPeer, String> {
    bench.stores += 1;
    let own = dir.join(format!("rem-bench-erda-{}-{}", std::process::id(), bench.stores));
    let mut peer = RunningPeer {
        place,
        who,
        handles: Vec::new(),
        store: None,
        at: At::Unix(PathBuf::new()),
        _device: None,
        _server: None,
        process: None,
    };
    // Before anything can fail: it goes with the process, or without one. A store of ours is a file, which its server removes.
    let directory = (!matches!(who, Who::Native(_))).then(|| Directory(own.clone()));
    let process = match who {
        Who::Native(carrier) => {
            let mut server = Agent::start(&bench.place(), End::Server)?;
            let spec = Spec {
                served: Served::Erda { durable: true },
                carrier,
                file: own,
                // It is what it is, as Redis' file is.
                declared: false,
                key: table1::KEY,
                value: 64,
                keys: bench.options.effort.records(),
                size: SIZE,
                load: ServerLoad::IDLE,
            };
            let addr = server.open(&spec)?;
            let device = device(carrier)?;
            peer.handles.push(Box::new(Native::connect(&device, addr, &connecting(1 << 16))?));
            let store = Store::connect(&device, addr, connecting(1 << 16)).map_err(|e| e.to_string())?;
            (peer.at, peer.store, peer._device) = (addr.into(), Some(store), Some(device));
            peer._server = Some(server);
            return Ok(peer);
        }
        Who::Gateway => {
            let is_native = |peer: &&RunningPeer| peer.who == Who::Native(Carrier::Udp);
            let Some(At::Tcp(store)) = others.iter().find(is_native).map(|peer| &peer.at) else {
                return Err("there is no store for it".into());
            };
            Some(redis::gateway(&bench.options.program, *store)?)
        }
        Who::GatewayAndStore => Some(redis::gateway_and_store(&bench.options.program, own, SIZE)?),
        Who::Redis(setting, Via::Tcp) => Some(redis::redis(own, setting)?),
        Who::Redis(_, Via::Unix) => None,
        Who::Memcached(Via::Tcp) => Some(redis::memcached(None)?),
        Who::Memcached(Via::Unix) => Some(redis::memcached(Some(own))?),
    };
    let process = match (process, who) {
        (None, Who::Redis(setting, _)) => {
            let same = (place, Who::Redis(setting, Via::Tcp));
            let other = others.iter().find(|peer| (peer.place, peer.who) == same);
            let other = other.and_then(|peer| peer.process.clone()).ok_or("its server did not start")?;
            peer.at = other.0.socket().ok_or("it has no Unix socket")?;
            other
        }
        (None, _) => return Err("it has no server".into()),
        (Some(process), _) => {
            peer.at = process.at().clone();
            bench
                .settings
                .insert(format!("{} on {}", who.server(), place.name()), process.settings().to_owned());
            Rc::new((process, directory))
        }
    };
    peer.handles.push(match who {
        Who::Memcached(_) => Box::new(Memcached::connect(&peer.at, true)?),
        Who::Gateway | Who::GatewayAndStore => Box::new(Redis::connect(&peer.at, true, "gateway")?),
        _ => Box::new(Redis::connect(&peer.at, true, "Redis")?),
    });
    peer.process = Some(process);
    Ok(peer)
}

fn measure(bench: &mut Bench<'_>, peer: &mut RunningPeer, value: usize) -> Result<(), String> {
    let effort = bench.options.effort;
    let (place, who, records) = (peer.place, peer.who, effort.records());
    let load = load_of(Mix::C, value, records, effort.burst());
    load::fill(&load, &mut peer.handles, &AtomicU64::new(0))?;
    peer.handles.iter_mut().try_for_each(|handle| handle.rest())?;
    for (deed, mix) in Action::ALL.into_iter().zip([Mix::C, Mix::Update]) {
        // A disk needs more time to show what it is.
        let slow = place == DataDirectory::Disk && deed == Action::Put && effort == Effort::Full;
        let time = effort.burst() * if slow { 6 } else { 2 };
        let load = load_of(mix, value, records, time);
        let (measured, state) =
            steady(bench, || load::run(&load, &mut peer.handles, &AtomicBool::new(false)))?;
        sound(&load, &measured)?;
        let all = load::together(&load, &measured).latency;
        let each = all.iter_recorded().flat_map(|v| {
            std::iter::repeat_n(v.value_iterated_to() as f64 / 1e3, v.count_since_last_iteration() as usize)
        });
        bench.samples.add(&spinning(place, deed, who, value), state, state, each);
        if let Some(store) = &mut peer.store {
            let (rate, state) = steady(bench, || sixteen(store, deed, value, records, time))?;
            bench.samples.add(&together(place, deed, who, value), state, state, [rate]);
        }
    }
    if !who.speaks_resp() || redis::find("redis-benchmark").is_none() {
        return Ok(());
    }
    for shape in Shape::ALL {
        let requests = requests(effort, place, who, shape);
        let (said, state) =
            steady(bench, || redis::redis_benchmark(&peer.at, shape, value, records, requests))?;
        for one in said {
            let deed = if one.test == "GET" { Action::Get } else { Action::Put };
            let key = benchmarked(place, deed, who, shape, value);
            bench.samples.add(&key, state, state, [one.rate / 1e6]);
            bench.samples.add(&percentile(&key, "p50"), state, state, [one.p50_us]);
            bench.samples.add(&percentile(&key, "p99"), state, state, [one.p99_us]);
        }
    }
    Ok(())
}

/// Measures until the machine was in one state all the while, or too often: each peer has a burst or two in a quick run, and would
/// else have no figure at all. Then the state is unclear.
fn steady<T>(
    bench: &mut Bench<'_>,
    mut measure: impl FnMut() -> Result<T, String>,
) -> Result<(T, State), String> {
    let mut tries = 0;
    loop {
        bench.state = bench.probe();
        let measured = measure()?;
        let (from, to) = bench.states();
        tries += 1;
        if from == to || tries == TRIES {
            return Ok((measured, if from == to { from } else { State::Unclear }));
        }
    }
}

/// Millions of operations a second, sixteen keys at a time.
fn sixteen(
    store: &mut Store,
    deed: Action,
    value: usize,
    records: u64,
    time: std::time::Duration,
) -> Result<f64, String> {
    let workload = load_of(Mix::C, value, records, time).workload;
    let bytes = vec![0x5a_u8; value];
    let (begin, mut done, mut next) = (Instant::now(), 0_u64, 0_u64);
    while begin.elapsed() < time {
        let keys: Vec<Vec<u8>> = (next..next + 16)
            .map(|record| {
                let mut key = Vec::new();
                workload.key(record % records, &mut key);
                key
            })
            .collect();
        next = (next + 16) % records;
        match deed {
            Action::Get => {
                let found = store.get_many(&keys).map_err(|e| e.to_string())?;
                if found.iter().any(Option::is_none) {
                    return Err("a GET of sixteen found nothing".into());
                }
            }
            Action::Put => {
                let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &bytes[..])).collect();
                let outcomes = store.put_many(&pairs, PutOptions::default()).map_err(|e| e.to_string())?;
                outcomes.into_iter().collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
            }
        }
        done += 16;
    }
    Ok(done as f64 / begin.elapsed().as_nanos() as f64 * 1e3)
}
