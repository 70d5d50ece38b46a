//! The servers of the bench: a store, of ours or a baseline, which serves whoever comes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use remanence_erda_paper::baseline::{Scheme, Sizes};
use remanence_kv::view::Mode;
use remanence_kv_live::ServerOptions;
use remanence_persist::Config;
use remanence_persist::taxonomy::{Buffers, Domain};
use remanence_pmem::{FileOptions, PersistenceDomain};
use remanence_remote::Stop;
use remanence_verbs::{Context, Options};
use serde::{Deserialize, Serialize};

use super::baseline::{BaselineOptions, BaselineServer};
use crate::role::{Counters, Role, work};

/// Clients of one server at a time: 16 threads, and who cleans.
const CLIENTS: u16 = 24;
/// Records that the baselines' buffers have room for.
const RECORDS: u64 = 1024;

/// What carries the packets between server and clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// UDP over loopback.
    Udp,
    /// Shared memory of one host.
    Shm,
}

impl Carrier {
    /// The word of the reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

/// What is served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Served {
    /// Our store; durable when it acknowledges, or as the paper.
    Erda {
        durable: bool,
    },
    RedoLogging,
    ReadAfterWrite,
}

/// What a server shall be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) served: Served,
    pub(crate) carrier: Carrier,
    /// The file that the store lies in; it is made, and goes when the store is closed.
    pub(crate) file: PathBuf,
    /// The file is memory that is declared to be in the persistence domain ADR, DDIO off; else it is what it is.
    pub(crate) declared: bool,
    pub(crate) key: usize,
    pub(crate) value: usize,
    /// Keys that there will be.
    pub(crate) keys: u64,
    /// Bytes of a store of ours.
    pub(crate) size: u64,
    /// Microseconds that the application works between two looks at its messages; 0: it does nothing else.
    pub(crate) busy_us: u64,
}

/// A device; on UDP at an address of 127/8 that nobody else of this process uses.
pub(super) fn device(carrier: Carrier) -> Result<Context, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let options = match carrier {
        Carrier::Udp => {
            let process = std::process::id() % 60_000 + 256;
            let n = NEXT.fetch_add(1, Ordering::Relaxed) % 254 + 1;
            Options::udp(IpAddr::from([127, (process >> 8) as u8, process as u8, n as u8]))
        }
        Carrier::Shm => Options::shm(None),
    };
    Context::open(options).map_err(|e| e.to_string())
}

/// What the paper's NVM is taken for: memory behind an ADR platform, with DDIO off, so that both a FLUSH and the paper's
/// READ after a WRITE make it durable. Declared: the steps are carried out, and nothing makes it true.
pub(super) fn declared() -> Config {
    Config::paper(Domain::Dmp, false, Buffers::Dram)
}

/// A file that goes with its store.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// A store that is served.
pub(crate) struct Server {
    store: Store,
    counters: Counters,
    _file: File,
}

enum Store {
    Erda(Box<remanence_kv_live::Server>),
    Baseline(Box<BaselineServer>),
}

impl Role for Server {
    const WORD: &'static str = "erda-server";
    const RESIDENT: bool = true;
    type Spec = Spec;
    /// Where clients connect.
    type Here = SocketAddr;
    type Peer = ();
    type Burst = ();
    type Values = ();

    fn open(spec: Spec) -> Result<(Self, SocketAddr), String> {
        let context = device(spec.carrier)?;
        let _ = std::fs::remove_file(&spec.file);
        let file = File(spec.file.clone());
        let (store, addr, meter) = match spec.served {
            Served::Erda { durable } => erda(&context, &spec, durable)?,
            Served::RedoLogging => baseline(&context, &spec, Scheme::RedoLogging)?,
            Served::ReadAfterWrite => baseline(&context, &spec, Scheme::ReadAfterWrite)?,
        };
        let counters = Counters { meter: Some(meter), ..Counters::of(&context) };
        Ok((Self { store, counters, _file: file }, addr))
    }

    fn reside(&mut self, stop: &Stop) -> Result<(), String> {
        match &mut self.store {
            Store::Erda(server) => server.run(stop).map(drop).map_err(words),
            Store::Baseline(server) => server.run(stop),
        }
    }

    fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

type Started = (Store, SocketAddr, remanence_remote::Meter);

fn baseline(context: &Context, spec: &Spec, scheme: Scheme) -> Result<Started, String> {
    let options = BaselineOptions {
        scheme,
        // Some more than there are: what was deleted is not free at once.
        sizes: Sizes { key: spec.key, value: spec.value, keys: 2 * spec.keys + RECORDS, records: RECORDS },
        configuration: spec.declared.then(declared),
        clients: CLIENTS,
    };
    let mut memory = FileOptions::new().create(options.medium());
    if spec.declared {
        memory = memory.declare(PersistenceDomain::Adr);
    }
    let region = memory.open(&spec.file).map_err(words)?;
    region.populate();
    let mut server = BaselineServer::bind(context, region, &options)?;
    if spec.busy_us > 0 {
        server.on_round(work(spec.busy_us));
    }
    let (addr, meter) = (server.addr(), server.meter());
    Ok((Store::Baseline(Box::new(server)), addr, meter))
}

fn erda(context: &Context, spec: &Spec, durable: bool) -> Result<Started, String> {
    let options = |place: ServerOptions| {
        let place = place.mode(if durable { Mode::Durable } else { Mode::Erda }).clients(CLIENTS);
        place.keys(2 * spec.keys)
    };
    let options = if spec.declared {
        let memory = FileOptions::new().create(spec.size).declare(PersistenceDomain::Adr);
        let region = memory.open(&spec.file).map_err(words)?;
        region.populate();
        // Clients hold the key to everything, and write every value, as in the paper and of the baselines.
        options(ServerOptions::region(region)).configuration(declared()).guarded(false).inline_max(0)
    } else {
        options(ServerOptions::file(&spec.file).size(spec.size))
    };
    let mut server = remanence_kv_live::Server::bind(context, options).map_err(words)?;
    if spec.busy_us > 0 {
        server.on_round(work(spec.busy_us));
    }
    let (addr, meter) = (server.addr(), server.meter());
    Ok((Store::Erda(Box::new(server)), addr, meter))
}
