//! The two ends of a cell: a responder of its configuration, and who appends to its log.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use remanence_persist::Op;
use remanence_persist::plan::Costs;
use remanence_pmem::{FileOptions, PersistenceDomain};
use remanence_remote::{CostSource, Reactor, ServerOptions, Stop};
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::group::Options;
use remanence_remotelog::{
    AppendError, Group, GroupError, LogServer, Method, New, SessionConnection, connect,
};
use remanence_verbs::Context;

use super::{PAYLOAD, cells};
use crate::limits::WARM;
use crate::role::{Counters, Role};
use crate::server_load::Application;

/// Bytes of the region: at 96 bytes a record it is full after some ten thousand appends.
const SIZE: u64 = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// An address of 127/8 that nothing else of this process uses.
fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id() % 50_000 + 5_000;
    Ipv4Addr::new(127, (process >> 8) as u8, process as u8, (n % 250) as u8 + 1).into()
}

fn words(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn context() -> Result<Context, String> {
    Context::open(remanence_verbs::Options::udp(address())).map_err(words)
}

/// The responder of one of the [`cells`].
pub(crate) struct Responder {
    server: LogServer,
    counters: Counters,
    _beside: Option<Application>,
}

impl Role for Responder {
    const WORD: &'static str = "remotelog-server";
    const RESIDENT: bool = true;
    type Spec = usize;
    /// Where its log is.
    type Here = SocketAddr;
    type Peer = ();
    type Burst = ();
    type Values = ();

    fn open(cell: usize) -> Result<(Self, SocketAddr), String> {
        let cell = cells().swap_remove(cell);
        let context = context()?;
        let path = crate::process::memory().join(format!("rem-bench-log-{}", std::process::id()));
        // Memory whose lines are written back by the instructions that persistent memory needs.
        let region = FileOptions::new().create(SIZE).declare(PersistenceDomain::Adr).open(&path);
        let _ = std::fs::remove_file(&path);
        let region = region.map_err(words)?;
        region.populate();
        let options = ServerOptions::new(&context, region.clone(), 0)
            .sessions(2)
            .messages(64, 1024)
            .declare(cell.config);
        let mut random = [7; 24];
        random[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let new = New { mode: cell.mode, segment: None, random };
        let mut server = LogServer::bind(options, &region, &new).map_err(words)?;
        let beside = cell.load.put_on(&mut server)?;
        let (addr, meter) = (server.addr(), server.meter());
        let counters = Counters { meter: Some(meter), ..Counters::of(&context) };
        Ok((Self { server, counters, _beside: beside }, addr))
    }

    fn reside(&mut self, stop: &Stop) -> Result<(), String> {
        self.server.run(stop).map(drop).map_err(words)
    }

    fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

/// Who appends to the log of one of the [`cells`].
pub(crate) struct Appender {
    cell: usize,
    group: Option<Group<SessionConnection>>,
    device: Context,
}

impl Role for Appender {
    const WORD: &'static str = "remotelog-client";
    type Spec = usize;
    type Here = ();
    type Peer = SocketAddr;
    /// For how long.
    type Burst = Duration;
    /// Microseconds of each append.
    type Values = Vec<f64>;

    fn open(cell: usize) -> Result<(Self, ()), String> {
        Ok((Self { cell, group: None, device: context()? }, ()))
    }

    fn connect(&mut self, to: SocketAddr) -> Result<(), String> {
        let cell = cells().swap_remove(self.cell);
        let method = cell.op.map_or_else(|| Method::Recipe(Op::Send, cell.recipe()), Method::Op);
        let reactor = Reactor::new(&self.device).map_err(words)?;
        let options =
            remanence_remote::Options::default().costs(CostSource::Fixed(Costs::PAPERS)).patience(PATIENCE);
        let connection = connect(&reactor, to, options, method);
        let options = Options::new(1, Uuid([1; 16])).patience(PATIENCE);
        let opened = Group::open(vec![(to.to_string(), connection)], &options);
        self.group = Some(opened.map(|(group, _)| group).map_err(words)?);
        Ok(())
    }

    fn run(&mut self, burst: Duration) -> Result<Vec<f64>, String> {
        let group = self.group.as_mut().ok_or("no log is open")?;
        let record = [0x5a; PAYLOAD];
        let mut values = Vec::with_capacity(4096);
        let mut warm = WARM;
        let mut begin = Instant::now();
        while begin.elapsed() < burst {
            let start = Instant::now();
            match group.append(&record) {
                Ok(_) => {}
                Err(GroupError::Append(AppendError::Full { .. })) => {
                    let below = group.next();
                    group.trim(below).map_err(words)?;
                    continue;
                }
                Err(error) => return Err(words(error)),
            }
            let took = start.elapsed();
            if warm > 0 {
                warm -= 1;
                begin = Instant::now();
            } else {
                values.push(took.as_nanos() as f64 / 1e3);
            }
        }
        Ok(values)
    }

    fn counters(&self) -> Counters {
        Counters::of(&self.device)
    }
}
