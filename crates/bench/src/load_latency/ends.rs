//! The two ends: a server of one service, and its clients, each a thread with a connection of its own.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use remanence_kv::view::Mode as Durability;
use remanence_kv_live::ConnectOptions;
use remanence_persist::plan::Costs;
use remanence_persist::taxonomy::{Buffers, Domain};
use remanence_persist::{Config, Op};
use remanence_remote::{CostSource, Reactor, ServerOptions, Stop};
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::group::Options as GroupOptions;
use remanence_remotelog::{
    AppendError, Group, GroupError, LogServer, Method, Mode, New, SessionConnection, connect,
};
use remanence_rpc::core::config::Config as Rules;
use remanence_rpc::core::event::{Event, SessionId};
use remanence_rpc::header::Status;
use remanence_rpc::live::{Nexus, Options, Rpc};
use remanence_rpc::log;
use remanence_verbs::Context;
use serde::{Deserialize, Serialize};

use super::arrivals::{Clock, Poisson, open_loop};
use super::service::{Request, Service, Who};
use crate::erda::Native;
use crate::erda::load::{self, wait_until};
use crate::erda::tcp::{At, Memcached, Redis};
use crate::machine;
use crate::redis::{self, Fsync, Process, Setting};
use crate::role::{Counters, End, Role};
use crate::rpc::server::{device, memory};

/// Bytes of a value, a record, and what is echoed.
pub(super) const BYTES: usize = 64;
/// Keys that there are.
pub(super) const KEYS: u64 = 1000;
/// Requests of all clients together that are not counted: they pay for what is made on demand.
const WARM: usize = 200;
/// A burst has as many requests at least, however slow the machine is: fewer have no 99th percentile.
const LEAST: usize = 100;
const PATIENCE: Duration = Duration::from_secs(20);
const PORT: u16 = 7530;
/// What [`Rpc`]s echo.
const ECHO: u16 = 1;

/// What both ends shall be.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(super) service: Service,
    pub(super) clients: usize,
}

/// Where clients find it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Where {
    /// One place for all, or one for each.
    addrs: Vec<SocketAddr>,
    socket: Option<PathBuf>,
}

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Persistence is declared: the steps are carried out, and nothing makes it true.
fn declared() -> Config {
    Config::paper(Domain::Dmp, false, Buffers::Dram)
}

/// An endpoint for so many clients.
fn rpc(nexus: &Nexus, clients: usize) -> Result<Rpc, String> {
    // Between two bursts nobody drives a client.
    let config = Rules { silence_max: Duration::from_secs(3600), ..Rules::default() };
    let receives = if clients > 1 { 1024 } else { 64 };
    nexus.create(&Options { receives, memory: 1 << 22, config, ..Options::default() }).map_err(words)
}

/// A server of one service, which sleeps while nobody asks; the bare one spins.
pub(crate) struct Server {
    kept: Kept,
    counters: Counters,
    _nexus: Option<Nexus>,
    _peer: Option<Process>,
}

enum Kept {
    Echo(Box<Rpc>),
    Log(Box<log::Server>),
    Store(Box<remanence_kv_live::Server>),
    Logs(Vec<LogServer>),
    /// With one client it is connected.
    Bare(UdpSocket, bool),
    /// Another process is.
    Peer,
}

impl Role for Server {
    const WORD: &'static str = "load-server";
    const RESIDENT: bool = true;
    type Spec = Spec;
    type Here = Where;
    type Peer = ();
    type Burst = ();
    type Values = ();

    fn open(Spec { service, clients }: Spec) -> Result<(Self, Where), String> {
        let dir = || crate::process::memory().join(format!("rem-bench-load-{}", std::process::id()));
        let mut serving = None;
        let (kept, counters, addrs) = match (service.request, service.who) {
            (request, Who::Rpc) => {
                let context = device()?;
                let nexus = Nexus::serve(&context, PORT).map_err(words)?;
                let rpc = rpc(&nexus, 2 * clients)?;
                let kept = if request == Request::Append {
                    let log = log::LogFile::format(memory(64 << 20)?, log::Word::Plain, 1).map_err(words)?;
                    Kept::Log(Box::new(log::Server::new(rpc, log, log::Options { batch: 32 })))
                } else {
                    Kept::Echo(Box::new(rpc))
                };
                serving = Some(nexus);
                let here = SocketAddr::new(context.config().gids[0].to_ip(), PORT);
                (kept, Counters::of(&context), vec![here])
            }
            (Request::Append, Who::OneSided) => {
                let context = device()?;
                let mut logs = (0..clients).map(|n| one_log(&context, n)).collect::<Result<Vec<_>, _>>()?;
                let addrs = logs.iter().map(LogServer::addr).collect();
                let meter = (clients == 1).then(|| logs[0].meter());
                (Kept::Logs(logs), Counters { meter, ..Counters::of(&context) }, addrs)
            }
            (_, Who::OneSided) => {
                let context = device()?;
                let options = remanence_kv_live::ServerOptions::region(memory(64 << 20)?)
                    .configuration(declared())
                    .mode(Durability::Durable)
                    .clients(clients as u16 + 1)
                    .keys(2 * KEYS);
                let mut server = remanence_kv_live::Server::bind(&context, options).map_err(words)?;
                let (addr, meter) = (server.addr(), Some(server.meter()));
                (Kept::Store(Box::new(server)), Counters { meter, ..Counters::of(&context) }, vec![addr])
            }
            (_, Who::BareUdp) => {
                let socket = UdpSocket::bind("127.0.0.1:0").map_err(words)?;
                socket.set_nonblocking(true).map_err(words)?;
                let addr = socket.local_addr().map_err(words)?;
                (Kept::Bare(socket, clients == 1), Counters::default(), vec![addr])
            }
            (_, who) => {
                let process = match who {
                    Who::MemcachedTcp => redis::memcached(None)?,
                    Who::MemcachedUnix => redis::memcached(Some(dir()))?,
                    _ => redis::redis(dir(), Setting::plain(Fsync::NoLog))?,
                };
                let at = if who == Who::RedisUnix { process.socket() } else { None };
                let (addrs, socket) = match at.as_ref().unwrap_or(process.at()) {
                    At::Tcp(addr) => (vec![*addr], None),
                    At::Unix(path) => (Vec::new(), Some(path.clone())),
                };
                let counters = Counters { programs: vec![process.id()], ..Counters::default() };
                let this = Self { kept: Kept::Peer, counters, _nexus: None, _peer: Some(process) };
                return Ok((this, Where { addrs, socket }));
            }
        };
        Ok((Self { kept, counters, _nexus: serving, _peer: None }, Where { addrs, socket: None }))
    }

    fn reside(&mut self, stop: &Stop) -> Result<(), String> {
        match &mut self.kept {
            Kept::Echo(rpc) => {
                let waker = rpc.waker();
                let _wakes = stop.wakes(move || waker.wake());
                while !stop.is_asked() {
                    if let Some(Event::Request { id, body, .. }) = rpc.poll(None).map_err(words)? {
                        rpc.respond_with(id, Status::Done, &body.to_vec());
                    }
                }
                Ok(())
            }
            Kept::Log(server) => server.run(stop).map_err(words),
            Kept::Store(server) => server.run(stop).map(drop).map_err(words),
            Kept::Logs(logs) => std::thread::scope(|scope| {
                let running: Vec<_> = logs.iter_mut().map(|log| scope.spawn(|| log.run(stop))).collect();
                running.into_iter().try_for_each(|thread| {
                    thread.join().map_err(|_| "a log's thread panicked")?.map(drop).map_err(words)
                })
            }),
            Kept::Bare(socket, connects) => echo(socket, *connects, stop),
            Kept::Peer => {
                let this = std::thread::current();
                let _wakes = stop.wakes(move || this.unpark());
                while !stop.is_asked() {
                    std::thread::park();
                }
                Ok(())
            }
        }
    }

    fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

fn one_log(context: &Context, number: usize) -> Result<LogServer, String> {
    let region = memory(4 << 20)?;
    let options =
        ServerOptions::new(context, region.clone(), 0).sessions(2).messages(64, 1024).declare(declared());
    let mut random = [7; 24];
    random[..4].copy_from_slice(&std::process::id().to_le_bytes());
    random[4] = number as u8;
    LogServer::bind(options, &region, &New { mode: Mode::Singleton, segment: None, random }).map_err(words)
}

/// Sends back what comes.
fn echo(socket: &UdpSocket, connects: bool, stop: &Stop) -> Result<(), String> {
    let (mut buffer, mut peer) = ([0; 2048], None);
    while !stop.is_asked() {
        let came = match peer {
            Some(_) => socket.recv(&mut buffer),
            None => socket.recv_from(&mut buffer).and_then(|(len, from)| {
                if connects {
                    socket.connect(from)?;
                    peer = Some(from);
                    return socket.send(&buffer[..len]).map(|_| 0);
                }
                socket.send_to(&buffer[..len], from).map(|_| 0)
            }),
        };
        match came {
            Ok(0) => {}
            Ok(len) => drop(socket.send(&buffer[..len]).map_err(words)?),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(words(e)),
        }
    }
    Ok(())
}

/// What clients do for a while.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Burst {
    /// Each asks again as soon as it is answered.
    Closed { ms: u64 },
    /// The first one asks when requests are due: so many a second, at times that are drawn.
    Open { ms: u64, rate: f64, seed: u64 },
}

/// What they found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Microseconds: from when it asked, or in an open loop from when the request was due.
    pub(super) latencies: Vec<f64>,
    /// Answers in a microsecond.
    pub(super) rate: f64,
}

/// The clients of a server.
pub(crate) struct Clients {
    spec: Spec,
    askers: Vec<Asker>,
    /// They go before what they are connected by.
    device: Option<(Nexus, Context)>,
}

/// One client of a closed loop, or the one of an open loop.
struct Asker {
    connection: Connection,
    random: fastrand::Rng,
    value: Vec<u8>,
}

enum Connection {
    Echo(Box<Rpc>, SessionId),
    Log(Box<log::Client>),
    Group(Box<Group<SessionConnection>>),
    Store(load::Handle, Request),
    Bare(UdpSocket, bool),
}

impl Role for Clients {
    const WORD: &'static str = "load-clients";
    type Spec = Spec;
    type Here = ();
    type Peer = Where;
    type Burst = Burst;
    type Values = Found;

    fn open(spec: Spec) -> Result<(Self, ()), String> {
        let device = match spec.service.who {
            Who::Rpc | Who::OneSided => {
                let context = device()?;
                Some((Nexus::new(&context).map_err(words)?, context))
            }
            _ => None,
        };
        Ok((Self { spec, askers: Vec::new(), device }, ()))
    }

    fn connect(&mut self, to: Where) -> Result<(), String> {
        for n in 0..self.spec.clients {
            let connection = self.connection(&to, n)?;
            let (random, value) = (fastrand::Rng::with_seed(n as u64 + 1), vec![0x5A; BYTES]);
            self.askers.push(Asker { connection, random, value });
        }
        if let Some(Asker { connection: Connection::Store(store, _), value, .. }) = self.askers.first_mut() {
            (0..KEYS).try_for_each(|n| store.put(&key(n), value))?;
        }
        Ok(())
    }

    fn run(&mut self, burst: Burst) -> Result<Found, String> {
        if let Some(Asker { connection: Connection::Log(client), .. }) = self.askers.first_mut() {
            // What one burst appended the next one need not have room for.
            let (_, end) = client.bounds().map_err(words)?;
            client.trim(end).map_err(words)?;
        }
        match burst {
            Burst::Closed { ms } => closed(&mut self.askers, Duration::from_millis(ms)),
            Burst::Open { ms, rate, seed } => {
                let asker = self.askers.first_mut().ok_or("nobody is connected")?;
                (0..WARM).try_for_each(|_| asker.ask())?;
                let due = Poisson::new(seed, rate).enumerate();
                let due = due.take_while(|(n, due)| *due < ms * 1_000_000 || *n < LEAST).map(|(_, due)| due);
                let answered = open_loop(due, &Since(Instant::now()), || asker.ask())?;
                let latencies: Vec<f64> = answered.latencies.iter().map(|ns| *ns as f64 / 1e3).collect();
                let time = answered.end.max(ms * 1_000_000) as f64 / 1e3;
                Ok(Found { rate: latencies.len() as f64 / time, latencies })
            }
        }
    }

    fn counters(&self) -> Counters {
        self.device.as_ref().map(|(_, device)| Counters::of(device)).unwrap_or_default()
    }
}

fn key(n: u64) -> [u8; 8] {
    let mut key = *b"key-0000";
    for (at, digit) in (5..8).zip([n / 100, n / 10, n]) {
        key[at] += (digit % 10) as u8;
    }
    key
}

impl Clients {
    fn connection(&self, to: &Where, n: usize) -> Result<Connection, String> {
        let Spec { service: Service { request, who }, clients } = self.spec;
        let addr = || to.addrs.get(n).or(to.addrs.first()).copied().ok_or("the server has no address");
        let device = || self.device.as_ref().ok_or("there is no device");
        // More than have a core of their own would spin in each other's way.
        let spins = clients <= End::Client.cores(&machine::allowed()).len();
        let at = || to.socket.clone().map_or_else(|| addr().map(At::Tcp), |path| Ok(At::Unix(path)));
        Ok(match (request, who) {
            (_, Who::Rpc) => {
                let (nexus, _) = device()?;
                let server = nexus.resolve(addr()?, 0, PATIENCE).map_err(words)?;
                let mut rpc = rpc(nexus, 1)?;
                if request == Request::Append {
                    let client = log::Client::connect_and_wait(rpc, server).map_err(words)?;
                    return Ok(Connection::Log(Box::new(client)));
                }
                let session = rpc.connect_and_wait(server, drop).map_err(words)?;
                Connection::Echo(Box::new(rpc), session)
            }
            (Request::Append, Who::OneSided) => {
                let reactor = Reactor::new(&device()?.1).map_err(words)?;
                let options = remanence_remote::Options::default();
                let options = options.costs(CostSource::Fixed(Costs::PAPERS)).patience(PATIENCE);
                let connection = connect(&reactor, addr()?, options, Method::Op(Op::Write));
                let options = GroupOptions::new(1, Uuid([1; 16])).patience(PATIENCE);
                let (group, _) =
                    Group::open(vec![(addr()?.to_string(), connection)], &options).map_err(words)?;
                Connection::Group(Box::new(group))
            }
            (_, Who::OneSided) => {
                let options = ConnectOptions::default().costs(CostSource::Fixed(Costs::PAPERS));
                let native = Native::connect(&device()?.1, addr()?, &options.patience(PATIENCE))?;
                Connection::Store(Box::new(native), request)
            }
            (_, Who::BareUdp) => {
                let socket = UdpSocket::bind("127.0.0.1:0").map_err(words)?;
                socket.connect(addr()?).map_err(words)?;
                socket.set_read_timeout(Some(PATIENCE)).map_err(words)?;
                socket.set_nonblocking(spins).map_err(words)?;
                Connection::Bare(socket, spins)
            }
            (_, Who::RedisTcp | Who::RedisUnix) => {
                Connection::Store(Box::new(Redis::connect(&at()?, spins, "Redis")?), request)
            }
            (_, Who::MemcachedTcp | Who::MemcachedUnix) => {
                Connection::Store(Box::new(Memcached::connect(&at()?, spins)?), request)
            }
        })
    }
}

impl Asker {
    fn ask(&mut self) -> Result<(), String> {
        let Self { connection, random, value } = self;
        match connection {
            Connection::Echo(rpc, session) => match rpc.call_and_wait(*session, ECHO, value, drop)? {
                (Status::Done, body) if body.len() == value.len() => Ok(()),
                _ => Err("the answer is not what was sent".into()),
            },
            Connection::Log(client) => client.append(value).map(drop).map_err(words),
            Connection::Group(group) => loop {
                match group.append(value) {
                    Ok(_) => return Ok(()),
                    Err(GroupError::Append(AppendError::Full { .. })) => {
                        let below = group.next();
                        group.trim(below).map_err(words)?;
                    }
                    Err(error) => return Err(words(error)),
                }
            },
            Connection::Store(store, Request::Put) => store.put(&key(random.u64(..KEYS)), &[0x5A; BYTES]),
            Connection::Store(store, _) => {
                value.clear();
                match store.get(&key(random.u64(..KEYS)), value)? {
                    true if value.len() == BYTES => Ok(()),
                    _ => Err("a value that was written is not there".into()),
                }
            }
            Connection::Bare(socket, spins) => {
                socket.send(value).map_err(words)?;
                loop {
                    match socket.recv(value) {
                        Ok(_) => return Ok(()),
                        Err(e) if *spins && e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
                        Err(e) => return Err(format!("bare UDP: {e}")),
                    }
                }
            }
        }
    }
}

/// The time since then.
struct Since(Instant);

impl Clock for Since {
    fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn wait_until(&self, due: u64) {
        wait_until(due, &|| self.now());
    }
}

/// All ask at once, each again as soon as it is answered.
fn closed(askers: &mut [Asker], time: Duration) -> Result<Found, String> {
    let clients = askers.len();
    let barrier = Barrier::new(clients);
    let each = |asker: &mut Asker| {
        let warm = (0..WARM.div_ceil(clients)).try_for_each(|_| asker.ask());
        // The others wait here for who failed, too.
        barrier.wait();
        warm?;
        let (begin, mut start) = (Instant::now(), Instant::now());
        let mut latencies = Vec::with_capacity(1 << 14);
        while start - begin < time || latencies.len() < LEAST.div_ceil(clients) {
            asker.ask()?;
            let end = Instant::now();
            latencies.push((end - start).as_nanos() as f64 / 1e3);
            start = end;
        }
        Ok((latencies, (start - begin).as_nanos() as f64 / 1e3))
    };
    let each = &each;
    let all: Vec<Result<(Vec<f64>, f64), String>> = std::thread::scope(|scope| {
        let running: Vec<_> = askers.iter_mut().map(|asker| scope.spawn(move || each(asker))).collect();
        let panicked = || Err("a client panicked".into());
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    let mut found = Found::default();
    for one in all {
        let (latencies, micros) = one?;
        found.rate += latencies.len() as f64 / micros;
        found.latencies.extend(latencies);
    }
    Ok(found)
}
