//! Our store beside what a user would pick instead, on the same host and the same medium: natively, through the gateway, and
//! Redis and memcached, all with clients that spin; and redis-benchmark against whatever speaks RESP. Clients are threads of the controller, or
//! redis-benchmark; what an operation costs either end is read around each burst.

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
use crate::peers::version;
use crate::process::Directory;
use crate::redis::{self, Fsync, Process, Setting, Shape};
use crate::role::{Agent, Causes, Counters, End, Ran, of_children};
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

    /// Whose server it has no other of: what it asks, or the one that listens on both sockets.
    const fn needs(self) -> Option<Self> {
        match self {
            Self::Gateway => Some(Self::Native(Carrier::Udp)),
            Self::Redis(setting, Via::Unix) => Some(Self::Redis(setting, Via::Tcp)),
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
pub(super) fn spinning(place: DataDirectory, action: Action, who: Who, value: usize) -> Key {
    let op = format!("{} on {}", action.word(), place.name());
    Key { op, x: value as u64, series: who.name(), metric: Metric::Latency }
}

/// Sixteen under one doorbell.
pub(super) fn together(place: DataDirectory, action: Action, who: Who, value: usize) -> Key {
    let series = format!("{}, 16 together", who.name());
    Key { series, metric: Metric::Rate, ..spinning(place, action, who, value) }
}

/// What redis-benchmark printed as a percentile.
fn percentile(rate: &Key, which: &str) -> Key {
    Key { op: format!("{}, {which}", rate.op), metric: Metric::Latency, ..rate.clone() }
}

/// The rate that redis-benchmark measured.
pub(super) fn benchmarked(place: DataDirectory, action: Action, who: Who, shape: Shape, value: usize) -> Key {
    let op = format!("{} on {}, redis-benchmark {}", action.word(), place.name(), shape.words());
    Key { op, x: value as u64, series: who.name(), metric: Metric::Rate }
}

/// Bytes of a store.
const SIZE: u64 = 64 << 20;

/// Bytes of a value.
pub(super) const SIZES: [usize; 2] = [64, 1024];

/// Of a block.
pub(super) fn steps() -> u64 {
    let each: usize = DataDirectory::ALL.map(|place| Who::at(place).len()).iter().sum();
    (SIZES.len() * each) as u64
}

/// How many requests redis-benchmark makes: for a fifth of a second, as far as one can know: it counts in milliseconds.
const fn requests(effort: Effort, place: DataDirectory, who: Who, shape: Shape) -> u64 {
    let synced =
        matches!((place, who), (DataDirectory::Disk, Who::Redis(Setting { fsync: Fsync::Always, .. }, _)));
    let all = match (synced, shape.clients) {
        (true, 1) => 200,
        (true, _) => 4000,
        (false, 1) => 4000,
        (false, _) => 10_000,
    } * shape.pipeline as u64
        / if shape.pipeline > 1 { 3 } else { 1 };
    match effort {
        // Fewer take a fast server no time that redis-benchmark could tell.
        Effort::Tiny => all / 5 + 64,
        Effort::Quick => all / 4 + 64,
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
    /// Its servers' processes.
    processes: Vec<u32>,
    // The clients go before what they are connected to.
    _device: Option<Context>,
    _server: Option<Agent<Server>>,
    /// One that listens on both sockets is of two peers.
    process: Option<Rc<(Process, Option<Directory>)>>,
}

/// What is measured of a peer.
fn keys(place: DataDirectory, who: Who, value: usize) -> Vec<Key> {
    let mut keys = Vec::new();
    for action in Action::ALL {
        keys.push(spinning(place, action, who, value));
        keys.extend(matches!(who, Who::Native(_)).then(|| together(place, action, who, value)));
    }
    for shape in Shape::ALL.into_iter().filter(|_| who.speaks_resp()) {
        keys.extend(of_benchmark(place, who, shape, value));
    }
    keys
}

/// What redis-benchmark says of SET and GET.
fn of_benchmark(place: DataDirectory, who: Who, shape: Shape, value: usize) -> Vec<Key> {
    let of = |action| {
        let rate = benchmarked(place, action, who, shape, value);
        let percentiles = ["p50", "p99"].map(|which| percentile(&rate, which));
        std::iter::once(rate).chain(percentiles)
    };
    Action::ALL.into_iter().flat_map(of).collect()
}

pub(super) fn run(bench: &mut Bench<'_>) {
    let native = Who::Native(Carrier::Udp);
    bench.samples.control(&spinning(DataDirectory::Tmpfs, Action::Get, native, SIZES[0]));
    let mut all = Vec::new();
    for place in DataDirectory::ALL {
        let peers = Who::at(place).into_iter();
        let is_wanted =
            |who: &Who| SIZES.map(|value| bench.samples.wants_any(&keys(place, *who, value))).contains(&true);
        let (wanted, others): (Vec<Who>, Vec<Who>) = peers.partition(is_wanted);
        if wanted.is_empty() {
            continue;
        }
        let Some(dir) = directory(bench, place) else { continue };
        let is_needed = |other: &Who| wanted.iter().any(|who| who.needs() == Some(*other));
        let needed: Vec<Who> = others.into_iter().filter(is_needed).collect();
        // Whoever is needed comes first.
        for who in needed.into_iter().chain(wanted.iter().copied()) {
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
    if all.iter().any(|peer: &RunningPeer| peer.who.speaks_resp()) {
        match redis::installed("redis-benchmark", "redis-tools") {
            Ok(program) => {
                let version = version(&program.to_string_lossy(), "--version");
                let records = bench.options.common.effort.records();
                let line = format!("{version}; -t set,get -d SIZE -r {records} -n N --csv");
                bench.settings.insert("redis-benchmark".into(), line);
            }
            Err(why) => bench.lost.add("redis-benchmark", why),
        }
    }
    while bench.another(Part::Peers) {
        for value in SIZES {
            for n in bench.samples.order(all.len()) {
                let peer = &mut all[n];
                if !bench.samples.wants_any(&keys(peer.place, peer.who, value)) {
                    continue;
                }
                let cell =
                    format!("{} on {} with values of {value} bytes", peer.who.name(), peer.place.name());
                bench.step(&cell);
                if bench.is_late(&cell) {
                    continue;
                }
                let shortened = peer.process.as_ref().map_or(Ok(()), |process| process.0.shorten_log());
                if let Err(why) = shortened.and_then(|()| measure(bench, peer, value)) {
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
        processes: Vec::new(),
        _device: None,
        _server: None,
        process: None,
    };
    // Before anything can fail: it goes with the process, or without one. A store of ours is a file, which its server removes.
    let directory = (!matches!(who, Who::Native(_))).then(|| Directory(own.clone()));
    let process = match who {
        Who::Native(carrier) => {
            let mut server = Agent::start(&bench.launcher(), End::Server)?;
            let spec = Spec {
                served: Served::Erda { durable: true },
                carrier,
                file: own,
                // It is what it is, as Redis' file is.
                declared: false,
                key: table1::KEY,
                value: 64,
                keys: bench.options.common.effort.records(),
                size: SIZE,
                load: ServerLoad::IDLE,
            };
            let addr = server.open(&spec)?;
            let device = device(carrier)?;
            peer.handles.push(Box::new(Native::connect(&device, addr, &connecting(1 << 16))?));
            let store = Store::connect(&device, addr, connecting(1 << 16)).map_err(|e| e.to_string())?;
            (peer.at, peer.store, peer._device) = (addr.into(), Some(store), Some(device));
            peer.processes.push(server.id());
            peer._server = Some(server);
            return Ok(peer);
        }
        Who::Gateway => {
            let native = others.iter().find(|peer| Some(peer.who) == who.needs());
            let Some((native, At::Tcp(store))) = native.map(|native| (native, &native.at)) else {
                return Err("there is no store for it".into());
            };
            // The store's part is part of what it costs.
            peer.processes.extend(&native.processes);
            Some(redis::gateway(&bench.options.common.program, *store)?)
        }
        Who::GatewayAndStore => Some(redis::gateway_and_store(&bench.options.common.program, own, SIZE)?),
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
    peer.processes.push(process.0.id());
    peer.process = Some(process);
    Ok(peer)
}

/// What a burst found, and what both ends counted meanwhile, the client as `client` says.
fn counted<T>(
    servers: &[u32],
    client: impl Fn() -> Causes,
    run: impl FnOnce() -> Result<T, String>,
) -> Result<Ran<T>, String> {
    let servers = Counters { programs: servers.to_vec(), ..Counters::default() };
    let before = (client(), servers.read());
    let values = run()?;
    Ok(Ran { values, client: client().since(&before.0), server: servers.read().since(&before.1) })
}

fn measure(bench: &mut Bench<'_>, peer: &mut RunningPeer, value: usize) -> Result<(), String> {
    let effort = bench.options.common.effort;
    let (place, who, records) = (peer.place, peer.who, effort.records());
    let (samples, servers) = (&mut bench.samples, &peer.processes);
    // This process, and all threads of its devices.
    let own = || Counters::default().read();
    let load = load_of(Mix::C, value, records, effort.burst());
    load::fill(&load, &mut peer.handles, &AtomicU64::new(0))?;
    peer.handles.iter_mut().try_for_each(|handle| handle.rest())?;
    for (action, mix) in Action::ALL.into_iter().zip([Mix::C, Mix::Update]) {
        // A disk needs more time to show what it is.
        let slow = place == DataDirectory::Disk && action == Action::Put && effort == Effort::Full;
        let time = effort.burst() * if slow { 6 } else { 2 };
        let load = load_of(mix, value, records, time);
        samples.burst(&spinning(place, action, who, value), || {
            let run = || load::run(&load, &mut peer.handles, &AtomicBool::new(false));
            let ran = counted(servers, own, run)?;
            sound(&load, &ran.values)?;
            let all = load::together(&load, &ran.values).latency;
            let each = all.iter_recorded().flat_map(|v| {
                let value = v.value_iterated_to() as f64 / 1e3;
                std::iter::repeat_n(value, v.count_since_last_iteration() as usize)
            });
            Ok(ran.map(|_| each.collect::<Vec<f64>>()))
        })?;
        if let Some(store) = &mut peer.store {
            samples.burst(&together(place, action, who, value), || {
                let ran = counted(servers, own, || sixteen(store, action, value, records, time))?;
                let done = ran.values.1;
                Ok((ran.map(|(rate, _)| vec![rate]), done))
            })?;
        }
    }
    if !who.speaks_resp() || redis::find("redis-benchmark").is_none() {
        return Ok(());
    }
    for shape in Shape::ALL {
        let requests = requests(effort, place, who, shape);
        samples.bursts(&of_benchmark(place, who, shape, value), || {
            let run = || redis::redis_benchmark(&peer.at, shape, value, records, requests);
            let ran = counted(servers, of_children, run)?;
            let of = |test: &str| {
                let said = ran.values.iter().find(|said| said.test == test);
                // What took no time that it could tell has no value.
                let values =
                    said.map(|said| [said.rate / 1e6, said.p50_us, said.p99_us].map(|value| vec![value]));
                values.unwrap_or_default()
            };
            let values = ["GET", "SET"].into_iter().flat_map(of).collect::<Vec<Vec<f64>>>();
            let both = 2 * requests;
            Ok(values.into_iter().map(|values| (ran.clone().map(|_| values), both).into()).collect())
        })?;
    }
    Ok(())
}

/// Millions of operations a second, sixteen keys at a time; and how many there were.
fn sixteen(
    store: &mut Store,
    action: Action,
    value: usize,
    records: u64,
    time: std::time::Duration,
) -> Result<(f64, u64), String> {
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
        match action {
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
    Ok((done as f64 / begin.elapsed().as_nanos() as f64 * 1e3, done))
}
