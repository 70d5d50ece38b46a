//! A responder of one configuration, in this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_persist::Config;
use remanence_persist::plan::Costs;
use remanence_pmem::{FileOptions, PersistenceDomain};
use remanence_remote::{CostSource, Reactor, ServerOptions, Stop};
use remanence_remotelog::format::superblock::Uuid;
use remanence_remotelog::group::Options;
use remanence_remotelog::{Group, Mode};
use remanence_remotelog::{LogServer, New, SessionConnection, connect};
use remanence_verbs::Context;

use crate::server_load::ServerLoad;

pub(super) use remanence_remotelog::Method;

/// Bytes of the region: at 96 bytes a record it is full after some ten thousand appends.
const SIZE: u64 = 2 << 20;

pub(super) struct Host {
    addr: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

/// An address of 127/8 that nothing else of this process uses.
fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id() % 200 + 20;
    Ipv4Addr::new(127, process as u8, (n / 250 % 250) as u8 + 1, (n % 250) as u8 + 1).into()
}

fn context() -> Result<Context, String> {
    Context::open(remanence_verbs::Options::udp(address())).map_err(|e| e.to_string())
}

impl Host {
    /// Starts one.
    pub(super) fn start(config: &Config, mode: Mode, load: ServerLoad) -> Result<Self, String> {
        let path = std::path::Path::new("/dev/shm").join(format!(
            "rem-bench-log-{}-{}",
            std::process::id(),
            address()
        ));
        // Memory whose lines are written back by the instructions that persistent memory needs.
        let region = FileOptions::new().create(SIZE).declare(PersistenceDomain::Adr).open(&path);
        let _ = std::fs::remove_file(&path);
        let region = region.map_err(|e| e.to_string())?;
        region.populate();
        let options = ServerOptions::new(&context()?, region.clone(), 0)
            .sessions(2)
            .messages(64, 1024)
            .declare(*config);
        let mut random = [7; 24];
        random[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let new = New { mode, segment: None, random };
        let mut server = LogServer::bind(options, &region, &new).map_err(|e| e.to_string())?;
        let application = load.put_on(&mut server)?;
        let (addr, stop) = (server.addr(), Stop::new());
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            // The client learns of it; there is nobody else to tell.
            let _ = server.run(&stopping);
            drop(application);
        });
        Ok(Self { addr, stop, thread: Some(thread) })
    }

    /// Opens its log for writing.
    pub(super) fn open(&self, method: Method, costs: Costs) -> Result<Group<SessionConnection>, String> {
        let reactor = Reactor::new(&context()?).map_err(|e| e.to_string())?;
        let options = remanence_remote::Options::default()
            .costs(CostSource::Fixed(costs))
            .patience(Duration::from_secs(10));
        let connection = connect(&reactor, self.addr, options, method);
        let options = Options::new(1, Uuid([1; 16])).patience(Duration::from_secs(10));
        Group::open(vec![(self.addr.to_string(), connection)], &options)
            .map(|(group, _)| group)
            .map_err(|e| e.to_string())
    }

    /// Asks it to end; it does so by and by.
    pub(super) fn end(&self) {
        self.stop.ask();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
