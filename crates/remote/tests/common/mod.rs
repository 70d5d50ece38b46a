//! Servers of a test's own, each on a loopback address of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;

pub(crate) use remanence_effort::address;
use remanence_persist::Config;
use remanence_persist::plan::Costs;
use remanence_persist::taxonomy::Domain;
use remanence_pmem::{FileOptions, PersistenceDomain, Region};
use remanence_remote::{CostSource, Error, Options, Server, ServerOptions, Session, Stats, Stop};
use remanence_verbs::Context;
use tempfile::TempDir;

pub(crate) fn context() -> Context {
    Context::open(remanence_verbs::Options::udp(address())).expect("a device on loopback")
}

/// A server with a thread of its own.
pub(crate) struct Host {
    pub(crate) addr: SocketAddr,
    pub(crate) region: Region,
    stop: Stop,
    thread: Option<JoinHandle<Result<Stats, Error>>>,
    dir: Option<TempDir>,
}

impl Host {
    /// Of a file that goes with the test.
    pub(crate) fn file(len: u64, change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        Self::with(len, None, change, |_| ())
    }

    /// Of a file whose domain is declared.
    pub(crate) fn declared(
        len: u64,
        domain: PersistenceDomain,
        change: impl FnOnce(ServerOptions) -> ServerOptions,
    ) -> Self {
        Self::with(len, Some(domain), change, |_| ())
    }

    pub(crate) fn with(
        len: u64,
        domain: Option<PersistenceDomain>,
        change: impl FnOnce(ServerOptions) -> ServerOptions,
        prepare: impl FnOnce(&mut Server),
    ) -> Self {
        // A file on a disk is behind the page cache, whatever is declared; what is in memory may be anything.
        let disk = domain.is_none_or(|domain| domain == PersistenceDomain::PageCache);
        let dir = if disk { tempfile::tempdir() } else { tempfile::tempdir_in("/dev/shm") };
        let dir = dir.expect("a directory");
        let mut options = FileOptions::new().create(len);
        if let Some(domain) = domain.filter(|domain| !disk && *domain != PersistenceDomain::Process) {
            options = options.declare(domain);
        }
        let region = options.open(dir.path().join("memory")).expect("a file");
        Self::on(dir, region, change, prepare)
    }

    /// The same file once more, by a new server.
    pub(crate) fn again(
        mut host: Self,
        domain: PersistenceDomain,
        change: impl FnOnce(ServerOptions) -> ServerOptions,
    ) -> Self {
        let dir = host.dir.take().expect("it has one");
        drop(host);
        let region = FileOptions::new().declare(domain).open(dir.path().join("memory")).expect("its file");
        Self::on(dir, region, change, |_| ())
    }

    fn on(
        dir: TempDir,
        region: Region,
        change: impl FnOnce(ServerOptions) -> ServerOptions,
        prepare: impl FnOnce(&mut Server),
    ) -> Self {
        let options = change(ServerOptions::new(&context(), region.clone(), 0));
        let mut server = Server::bind(options).expect("a server");
        prepare(&mut server);
        let (addr, stop) = (server.addr(), Stop::new());
        let stopping = stop.clone();
        let thread = Some(std::thread::spawn(move || server.run(&stopping)));
        Self { addr, region, stop, thread, dir: Some(dir) }
    }

    /// The file that it serves.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.as_ref().expect("it has one").path().join("memory")
    }

    /// Ends the server's thread, and returns what it counted.
    pub(crate) fn stop(&mut self) -> Stats {
        self.stop.ask();
        self.ends().expect("it served")
    }

    /// Waits until the server's thread ends, and returns what came of it.
    pub(crate) fn ends(&mut self) -> Result<Stats, Error> {
        self.thread.take().expect("it runs").join().expect("the server's thread")
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

pub(crate) fn session(host: &Host, options: Options) -> Session {
    Session::connect(&context(), host.addr, options).expect("connected")
}

/// What nobody measures.
pub(crate) fn fixed() -> Options {
    Options::default().costs(CostSource::Fixed(Costs::PAPERS))
}

/// The domain to declare a file as, so that it can serve that configuration.
pub(crate) fn declared(config: &Config) -> PersistenceDomain {
    match config.domain {
        Domain::Dmp => PersistenceDomain::Adr,
        Domain::Mhp => PersistenceDomain::Eadr,
        Domain::Wsp => PersistenceDomain::Wsp,
        Domain::PageCache => PersistenceDomain::PageCache,
        Domain::Process => PersistenceDomain::Process,
    }
}
