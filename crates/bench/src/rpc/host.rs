//! The server's half of these benches: a thread that serves what the controller names, and waits in between.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_pmem::engine::{Options as Engine, Placement};
use remanence_pmem::{FileOptions, PersistenceDomain, Region};
use remanence_rpc::copier::Copier;
use remanence_rpc::durable::{self, Client};
use remanence_rpc::live::{Nexus, Options, Rpc};
use remanence_rpc::pwrite::{Export, Writer};
use remanence_rpc::{core::config::Config, log};
use remanence_verbs::{Context, Options as Device};

use crate::limits::SERVER_CORE;
use crate::machine::pin;

/// Bytes of the server's memory.
pub(super) const MEMORY: u64 = 64 << 20;
const RPC_PORT: u16 = 7510;
const EXPORT_PORT: u16 = 7511;
/// How long a server sleeps at most before another one may have its turn.
const LOOK: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(10);
/// Copies that an engine may have ahead (more gain nothing: paper 001, 5.4).
const WINDOW: usize = 8;
/// What is too short to be worth a hand-over to another thread.
const INLINE_BELOW: usize = 8 << 10;

const IDLE: usize = usize::MAX;
const END: usize = usize::MAX - 1;
/// Serves one-sided operations: drives the device, as a server's application that polls would.
const DRIVE: usize = usize::MAX - 2;

/// What copies at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copying {
    /// The server's CPU, past the caches: paper 001's baseline.
    Cpu,
    /// The server's CPU into the cache: not durable.
    CpuCached,
    /// The asynchronous engine, past the caches (DCA off).
    Engine,
    /// The asynchronous engine into the cache (DCA on): not durable.
    EngineCached,
    /// The asynchronous engine where that pays, else the server's CPU; past the caches.
    Adaptive,
    /// Intel's accelerator, past the caches. For those who ask for it.
    Dsa,
}

impl Copying {
    /// What every machine has.
    pub(super) const ALL: [Self; 5] =
        [Self::Cpu, Self::CpuCached, Self::Engine, Self::EngineCached, Self::Adaptive];

    fn copier(self) -> Result<Copier, String> {
        let options = Engine::new().window(WINDOW);
        Ok(match self {
            Self::Cpu => Copier::inline(options, Placement::NonTemporal),
            Self::CpuCached => Copier::inline(options, Placement::Cached),
            Self::Engine => Copier::worker(options, Placement::NonTemporal, INLINE_BELOW).map_err(words)?,
            Self::EngineCached => Copier::worker(options, Placement::Cached, INLINE_BELOW).map_err(words)?,
            Self::Adaptive => Copier::adaptive(options, Placement::NonTemporal).map_err(words)?,
            Self::Dsa => Copier::dsa(options, Placement::NonTemporal, INLINE_BELOW).map_err(words)?,
        })
    }
}

pub(super) fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// What the thread shall serve, and what it does.
struct Modes {
    wanted: AtomicUsize,
    current: AtomicUsize,
}

/// One thing that the thread can serve.
enum Service {
    Durable(Box<durable::Server>),
    Log(Box<log::Server>),
}

/// The server's half, and the way to it.
pub(super) struct Host {
    modes: Arc<Modes>,
    thread: Option<JoinHandle<Result<(), String>>>,
    here: Context,
    there: Context,
    nexus: Nexus,
    _serving: Nexus,
    _export: Export,
    files: Vec<PathBuf>,
}

/// An address of 127/8 that nobody else uses at the moment.
fn address(n: u8) -> IpAddr {
    let process = std::process::id() % 60_000 + 256;
    [127, (process >> 8) as u8, process as u8, n].into()
}

/// Memory that is written back by lines. The file goes with the host.
fn memory(files: &mut Vec<PathBuf>, len: u64) -> Result<Region, String> {
    let path =
        PathBuf::from("/dev/shm").join(format!("remanence-bench-{}-{}", std::process::id(), files.len()));
    files.push(path.clone());
    let options = FileOptions::new().create(len).declare(PersistenceDomain::Adr).populate(true);
    options.open(path).map_err(words)
}

pub(super) fn options() -> Options {
    let config = Config { message_max: 4 << 20, ..Config::default() };
    // As the peers spin, and the paper's servers.
    Options { spin: Duration::from_millis(20), config, ..Options::default() }
}

impl Host {
    /// With a server for each way of copying (endpoint 0, 1, …), then one for each log.
    pub(super) fn start(copying: &[Copying], logs: &[(log::Word, log::Options)]) -> Result<Self, String> {
        let mut files = Vec::new();
        let (there, here) = (device(1)?, device(2)?);
        let serving = Nexus::serve(&there, RPC_PORT).map_err(words)?;
        let region = memory(&mut files, MEMORY)?;
        let export = Export::start(&there, EXPORT_PORT, &region).map_err(words)?;
        let mut services = Vec::new();
        for way in copying {
            let rpc = serving.create(&options()).map_err(words)?;
            services.push(Service::Durable(Box::new(durable::Server::new(
                rpc,
                region.clone(),
                way.copier()?,
            ))));
        }
        for (n, (word, options)) in logs.iter().enumerate() {
            let rpc = serving.create(&self::options()).map_err(words)?;
            let region = memory(&mut files, MEMORY)?;
            let log = log::LogFile::format(region, *word, n as u64 + 1).map_err(words)?;
            services.push(Service::Log(Box::new(log::Server::new(rpc, log, *options))));
        }
        let modes = Arc::new(Modes { wanted: AtomicUsize::new(IDLE), current: AtomicUsize::new(IDLE) });
        let thread = {
            let (modes, context) = (Arc::clone(&modes), there.clone());
            std::thread::Builder::new()
                .name("bench-server".into())
                .spawn(move || serve(&modes, &context, &mut services))
                .map_err(words)?
        };
        let nexus = Nexus::new(&here).map_err(words)?;
        let (thread, _serving, _export) = (Some(thread), serving, export);
        Ok(Self { modes, thread, here, there, nexus, _serving, _export, files })
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.there.config().gids[0].to_ip(), port)
    }

    /// The addresses of both halves, for peers.
    pub(super) fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.there.config().gids[0].to_ip(), self.here.config().gids[0].to_ip())
    }

    /// An endpoint, and where the service number `endpoint` is.
    pub(super) fn endpoint(&self, endpoint: usize) -> Result<(Rpc, remanence_rpc::header::Address), String> {
        let number = u8::try_from(endpoint).map_err(words)?;
        let to = self.nexus.resolve(self.at(RPC_PORT), number, LIMIT).map_err(words)?;
        Ok((self.nexus.create(&options()).map_err(words)?, to))
    }

    /// A client of a server that copies.
    pub(super) fn client(&self, endpoint: usize) -> Result<Client, String> {
        let (rpc, to) = self.endpoint(endpoint)?;
        Client::connect(rpc, to).map_err(words)
    }

    /// A one-sided writer.
    pub(super) fn writer(&self, window: u32, write_max: u32) -> Result<Writer, String> {
        Writer::connect(&self.here, self.at(EXPORT_PORT), window, write_max, LIMIT).map_err(words)
    }

    /// Serves endpoint number `endpoint` while `run` does something with it.
    pub(super) fn during<T>(&self, endpoint: usize, run: impl FnOnce() -> T) -> T {
        self.set(endpoint);
        // It may still sleep on what it served before: that is not to be measured.
        while self.modes.current.load(Ordering::Acquire) != endpoint
            && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
        {
            std::thread::yield_now();
        }
        let result = run();
        self.set(IDLE);
        result
    }

    /// Serves one-sided operations meanwhile.
    pub(super) fn driven<T>(&self, run: impl FnOnce() -> T) -> T {
        self.during(DRIVE, run)
    }

    fn set(&self, mode: usize) {
        self.modes.wanted.store(mode, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.set(END);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn device(n: u8) -> Result<Context, String> {
    Context::open(Device::udp(address(n))).map_err(words)
}

fn serve(modes: &Modes, context: &Context, services: &mut [Service]) -> Result<(), String> {
    pin(SERVER_CORE);
    loop {
        let mode = modes.wanted.load(Ordering::Acquire);
        modes.current.store(mode, Ordering::Release);
        match mode {
            END => return Ok(()),
            IDLE => std::thread::park(),
            DRIVE => {
                for _ in 0..64 {
                    context.poll();
                }
            }
            endpoint => match services.get_mut(endpoint) {
                Some(Service::Durable(server)) => server.turn(Some(LOOK)).map_err(words)?,
                Some(Service::Log(server)) => server.turn(Some(LOOK)).map_err(words)?,
                None => return Err(format!("there is no endpoint {endpoint}")),
            },
        }
    }
}
