//! Servers of a test's own, each on a loopback address of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) use remanence_effort::address;
use remanence_kv::server::Recovered;
use remanence_kv_live::{ConnectOptions, Error, Metrics, Server, ServerOptions, Stop, Store, StoreStats};
use remanence_persist::plan::Costs;
use remanence_remote::CostSource;
use remanence_verbs::Context;
use tempfile::TempDir;

pub(crate) const SIZE: u64 = 4 << 20;

/// How long a test waits for what must come: much longer than it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn context() -> Context {
    Context::open(remanence_verbs::Options::udp(address())).expect("a device on loopback")
}

/// A server with a thread of its own.
pub(crate) struct Host {
    pub(crate) addr: SocketAddr,
    pub(crate) recovered: Recovered,
    metrics: Metrics,
    stop: Stop,
    thread: Option<JoinHandle<Result<StoreStats, Error>>>,
    _dir: Option<TempDir>,
}

impl Host {
    /// Of a file that goes with the test.
    pub(crate) fn new(size: u64, change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut host = Self::at(&dir.path().join("store"), size, change);
        host._dir = Some(dir);
        host
    }

    /// Of a file that may be there already.
    pub(crate) fn at(path: &Path, size: u64, change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        Self::on(&context(), path, size, change)
    }

    /// At that device.
    pub(crate) fn on(
        context: &Context,
        path: &Path,
        size: u64,
        change: impl FnOnce(ServerOptions) -> ServerOptions,
    ) -> Self {
        let options = change(patient(ServerOptions::file(path).size(size)));
        Self::run(Server::bind(context, options).expect("a server"))
    }

    /// Of any store.
    pub(crate) fn of(options: ServerOptions) -> Self {
        Self::run(Server::bind(&context(), patient(options)).expect("a server"))
    }

    fn run(mut server: Server) -> Self {
        let (addr, metrics, recovered) = (server.addr(), server.metrics(), *server.recovered());
        let stop = Stop::new();
        let stopping = stop.clone();
        let thread = Some(std::thread::spawn(move || server.run(&stopping)));
        Self { addr, recovered, metrics, stop, thread, _dir: None }
    }

    pub(crate) fn metrics(&self) -> StoreStats {
        self.metrics.read()
    }

    /// Waits until the server is in a state.
    pub(crate) fn wait(&self, what: &str, is: impl Fn(&StoreStats) -> bool) -> StoreStats {
        let begin = Instant::now();
        loop {
            let stats = self.metrics();
            if is(&stats) {
                return stats;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {stats:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until every write is settled.
    pub(crate) fn settled(&self) {
        self.wait("every write is settled", |stats| stats.usage.unfinished == 0);
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ends(&mut self) -> Result<StoreStats, Error> {
        let begin = Instant::now();
        while !self.thread.as_ref().expect("it runs").is_finished() {
            assert!(begin.elapsed() < PATIENCE, "it serves on");
            std::thread::sleep(Duration::from_millis(2));
        }
        self.stop()
    }

    /// Ends the server's thread, and returns what it counted.
    pub(crate) fn stop(&mut self) -> Result<StoreStats, Error> {
        self.stop.ask();
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("the server's thread")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop.ask();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Nobody is cut off because the machine is busy.
fn patient(options: ServerOptions) -> ServerOptions {
    options.lease(Duration::from_secs(60))
}

/// What nobody measures.
pub(crate) fn options() -> ConnectOptions {
    ConnectOptions::default().costs(CostSource::Fixed(Costs::PAPERS))
}

pub(crate) fn client(host: &Host) -> Store {
    Store::connect(&context(), host.addr, options()).expect("connected")
}
