//! The server of these benches: endpoints and an export of its memory, of which it serves what its controller names.

use std::net::IpAddr;
use std::time::Duration;

use remanence_pmem::engine::{Options as Engine, Placement};
use remanence_pmem::{FileOptions, PersistenceDomain, Region};
use remanence_rpc::copier::Copier;
use remanence_rpc::durable;
use remanence_rpc::live::{Nexus, Options, Rpc};
use remanence_rpc::pwrite::Export;
use remanence_rpc::{Meter, Stop, core::config::Config, log};
use remanence_verbs::{Context, Options as Device};
use serde::{Deserialize, Serialize};

use super::logserver::SERVED;
use crate::role::{Causes, Counters, Role};
use crate::server_load::{Looking, ServerLoad};

/// Bytes of the server's memory.
pub(super) const MEMORY: u64 = 64 << 20;
pub(super) const RPC_PORT: u16 = 7510;
pub(super) const EXPORT_PORT: u16 = 7511;
/// Copies that an engine may have ahead (more gain nothing: paper 001, 5.4).
const WINDOW: usize = 8;
/// What is too short to be worth a hand-over to another thread.
const INLINE_BELOW: usize = 8 << 10;

/// What copies at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Copying {
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

/// An address of 127/8 that nobody else uses at the moment.
pub(super) fn address(n: u8) -> IpAddr {
    let process = std::process::id() % 60_000 + 256;
    [127, (process >> 8) as u8, process as u8, n].into()
}

pub(crate) fn device() -> Result<Context, String> {
    Context::open(Device::udp(address(1))).map_err(words)
}

/// So many bytes of memory that is written back by lines. Its file goes with it.
pub(crate) fn memory(bytes: u64) -> Result<Region, String> {
    let path = crate::process::memory().join(format!("remanence-bench-{}", std::process::id()));
    let options = FileOptions::new().create(bytes).declare(PersistenceDomain::Adr).populate(true);
    let region = options.open(&path);
    let _ = std::fs::remove_file(&path);
    region.map_err(words)
}

/// How an endpoint is made that looks so long before it sleeps, beyond what has paid lately.
pub(super) fn options(spin: Duration) -> Options {
    // Between two of its turns nobody drives a client: its server does not take it for dead meanwhile, and its cells for skipped.
    let silence_max = Duration::from_secs(3600);
    let config = Config { message_max: 4 << 20, silence_max, ..Config::default() };
    Options { spin, config, ..Options::default() }
}

/// Adds what an endpoint counts.
pub(super) fn count(rpc: &Rpc, causes: &mut Causes) {
    causes.timeouts += rpc.stats().timeouts;
}

/// Which services there are: endpoint 0, 1, … for each way of copying, or for each log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Spec {
    /// Memory that is written by calls, and one-sidedly.
    Copying(Vec<Copying>),
    /// The logs of [`SERVED`].
    Logs,
}

/// What is served, and what the thread does that serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Serve {
    pub(super) what: Served,
    pub(super) load: ServerLoad,
}

/// What is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Served {
    /// The service of that number.
    Endpoint(usize),
    /// One-sided operations, which the device carries out; an application that looks drives it.
    Device,
}

enum Service {
    Durable(Box<durable::Server>),
    Log(Box<log::Server>),
}

impl Service {
    fn rpc(&self) -> &Rpc {
        match self {
            Self::Durable(server) => server.rpc(),
            Self::Log(server) => server.rpc(),
        }
    }
}

impl Looking for Service {
    fn look(&mut self) -> Result<(), String> {
        let looked = match self {
            Self::Durable(server) => server.look(),
            Self::Log(server) => server.look(),
        };
        looked.map_err(words)
    }

    fn sleep(&mut self, stop: &Stop) -> Result<(), String> {
        let served = match self {
            Self::Durable(server) => server.run(stop),
            Self::Log(server) => server.run(stop),
        };
        served.map_err(words)
    }
}

/// Nobody but the device has anything to do.
struct Driven<'a>(&'a Context);

impl Looking for Driven<'_> {
    fn look(&mut self) -> Result<(), String> {
        self.0.poll();
        Ok(())
    }

    fn sleep(&mut self, stop: &Stop) -> Result<(), String> {
        let this = std::thread::current();
        let _wakes = stop.wakes(move || this.unpark());
        while !stop.is_asked() {
            std::thread::park();
        }
        Ok(())
    }
}

/// The server of all endpoints.
pub(crate) struct Server {
    services: Vec<Service>,
    meters: Vec<Meter>,
    context: Context,
    _serving: Nexus,
    _export: Option<Export>,
}

impl Role for Server {
    const WORD: &'static str = "rpc-server";
    type Spec = Spec;
    /// Its address; the ports are known.
    type Here = IpAddr;
    type Peer = ();
    type Burst = Serve;
    type Values = ();

    fn open(spec: Spec) -> Result<(Self, IpAddr), String> {
        let context = device()?;
        let serving = Nexus::serve(&context, RPC_PORT).map_err(words)?;
        // Whether its thread sleeps is said with each burst.
        let endpoint = || serving.create(&options(Duration::ZERO)).map_err(words);
        let (mut services, mut meters, mut export) = (Vec::new(), Vec::new(), None);
        match spec {
            Spec::Copying(ways) => {
                let region = memory(MEMORY)?;
                export = Some(Export::start(&context, EXPORT_PORT, &region).map_err(words)?);
                for way in ways {
                    let mut server = durable::Server::new(endpoint()?, region.clone(), way.copier()?);
                    meters.push(server.meter());
                    services.push(Service::Durable(Box::new(server)));
                }
            }
            Spec::Logs => {
                for (n, (_, word, batch)) in SERVED.into_iter().enumerate() {
                    let log = log::LogFile::format(memory(MEMORY)?, word, n as u64 + 1).map_err(words)?;
                    let mut server = log::Server::new(endpoint()?, log, log::Options { batch });
                    meters.push(server.meter());
                    services.push(Service::Log(Box::new(server)));
                }
            }
        }
        let here = context.config().gids[0].to_ip();
        Ok((Self { services, meters, context, _serving: serving, _export: export }, here))
    }

    fn serve(&mut self, serve: Serve, stop: &Stop) -> Result<(), String> {
        match serve.what {
            Served::Device => serve.load.serve(&mut Driven(&self.context), stop),
            Served::Endpoint(n) => {
                let service = self.services.get_mut(n).ok_or(format!("there is no endpoint {n}"))?;
                serve.load.serve(service, stop)
            }
        }
    }

    fn counters(&self) -> Counters {
        Counters::of(&self.context)
    }

    fn count(&self, causes: &mut Causes) {
        self.services.iter().for_each(|service| count(service.rpc(), causes));
        for metered in self.meters.iter().map(Meter::read) {
            causes.messages += metered.messages;
            causes.application_ns += metered.application.as_nanos() as u64;
        }
    }
}
