//! A Redis server's front end over any store: the sockets and threads around `remanence-resp`.
//!
//! [`Gateway::start`] listens on TCP and unix sockets and serves every connection from a few worker threads, each with
//! its own handle of the store and its own epoll. A worker sleeps when nothing happens. What a connection can cost is
//! bounded: what it sends is limited by [`Options::limits`], what it does not read stops it being read from, connections
//! are counted, idle ones can be closed. `/metrics` speaks Prometheus, and INFO says the same to Redis' tools.
//!
//! ```
//! use remanence_gateway::{Address, Gateway, Options};
//! use remanence_resp::memory::MemoryStore;
//!
//! let store = MemoryStore::default();
//! let options = Options { listen: vec![Address::parse("127.0.0.1:0").unwrap()], ..Options::default() };
//! let gateway = Gateway::start(options, |_| Ok(store.clone())).unwrap();
//! println!("redis-cli -p {}", gateway.addresses()[0]);
//! gateway.stop();
//! ```
//!
//! Read first: `docs/gateway.md`.
#![forbid(unsafe_code)]

mod connection;
pub mod erda;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod live;
mod metrics;
pub mod near;
mod process;
mod stream;
mod worker;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::{Poll, Waker};
use remanence_metrics::{Endpoint, Source};
use remanence_resp::engine::{Config, Shared};
use remanence_resp::protocol::Limits;
use remanence_resp::store::{Store, StoreError};

use crate::stream::Listener;
use crate::worker::{Common, Mailbox, WAKER, Worker};

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A TCP address. Port 0 is any free one.
    Tcp(SocketAddr),
    /// A unix socket. A socket that a dead process left at the path is replaced; anything else there is an error.
    Unix(PathBuf),
}

impl Address {
    /// Reads `host:port`, or a path with a slash in it.
    ///
    /// # Errors
    /// [`Error::Address`] if it is neither, or the host is not known.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.contains('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        let bad = |reason: String| Error::Address { text: text.to_owned(), reason };
        let mut found = text.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
        found.next().map(Self::Tcp).ok_or_else(|| bad("the host has no address".to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// What a gateway is started with.
#[derive(Clone)]
pub struct Options {
    /// Where Redis clients connect.
    pub listen: Vec<Address>,
    /// Where Prometheus connects: `http://ADDRESS/metrics`. None is no such place. It is not authenticated.
    pub metrics: Option<SocketAddr>,
    /// More to tell Prometheus, of the store for instance.
    pub more_metrics: Option<Source>,
    /// How many worker threads share the connections.
    pub threads: usize,
    /// Connections at most, and seconds an idle one may last, are in here too.
    pub config: Config,
    /// What one connection may send.
    pub limits: Limits,
    /// Bytes of replies that a connection may leave unread before no more of its requests are carried out. A reply that is
    /// larger is still sent whole.
    pub output_high: usize,
    /// A connection that leaves replies unread for so long is closed.
    pub stall: Duration,
    /// A connection that must authenticate and has not after so long is closed, whatever it sends.
    pub auth_time: Duration,
    /// Bytes that the requests and replies of all connections may take together. A connection that wants more when they are used up
    /// is told so and closed; 128 KiB each may have whatever the others do.
    pub memory: usize,
    /// After how much silence the system asks whether a peer is still there, three times; one that is not is closed. None
    /// is never.
    pub keepalive: Option<Duration>,
    /// How long a stopping gateway tries to send what it owes.
    pub grace: Duration,
    /// Keys looked at ten times a second for having expired, as long as some may have, and more where nothing else is to be done; 0 is never.
    /// They are never served, looked at or not.
    pub sweep: usize,
}

impl Options {
    /// The shortest time that a connection may not do something for.
    fn least_limit(&self) -> Duration {
        let idle = Some(self.config.idle_timeout_s).filter(|time| *time > 0).map(Duration::from_secs);
        let auth = self.config.password.is_some().then_some(self.auth_time);
        [idle, auth, Some(self.stall)].into_iter().flatten().fold(worker::RELAX, Duration::min)
    }

    /// Worker threads where the store is served in the gateway's own process, and there would be so many beside one elsewhere.
    #[must_use]
    pub const fn threads_beside_a_store(elsewhere: usize, on_a_disk: bool) -> usize {
        match on_a_disk {
            _ if elsewhere <= 1 => 1,
            // A sync carries what one worker's connections have changed, and begins when the one before it has ended: more workers write
            // less at a time, and each waits for the others. The processors that are left are for the disk, the network and who asks.
            true => elsewhere / 2,
            // Nothing is waited for: one processor is left to who asks, and to the store's own thread.
            false => elsewhere - 1,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: vec![Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 6379)))],
            metrics: None,
            more_metrics: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from).min(8),
            config: Config::default(),
            limits: Limits::default(),
            output_high: 1 << 20,
            stall: Duration::from_secs(60),
            auth_time: Duration::from_secs(10),
            memory: (process::machine_memory() / 4).clamp(256 << 20, 4 << 30) as usize,
            keepalive: Some(Duration::from_secs(300)),
            grace: Duration::from_secs(5),
            sweep: 20,
        }
    }
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Text that is no address.
    #[error("{text:?} is no address to listen on ({reason}): give host:port or a path")]
    Address {
        /// The text that was given as an address.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An address that cannot be had.
    #[error("cannot listen on {address} ({error}): is another server there?")]
    Listen {
        /// The address that was to be listened on.
        address: String,
        /// The system's reason.
        error: io::Error,
    },
    /// The system refuses a thread or an epoll.
    #[error("the system refuses what a gateway needs: {0}")]
    System(io::Error),
    /// The store cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(StoreError),
    /// Options that make no gateway.
    #[error("{0}")]
    Options(&'static str),
}

/// A running gateway. Dropping it stops it.
pub struct Gateway {
    addresses: Vec<Address>,
    metrics: Option<Endpoint>,
    shared: Arc<Shared>,
    stopper: Stopper,
    threads: Vec<JoinHandle<()>>,
    panicked: bool,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("addresses", &self.addresses)
            .field("metrics", &self.metrics())
            .finish()
    }
}

/// Asks a gateway to stop, from any thread.
#[derive(Clone)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    wakers: Arc<Vec<Waker>>,
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopper").finish_non_exhaustive()
    }
}

/// A worker that panics has said why; half a gateway would only look like one.
struct StopOnPanic(Stopper);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

impl Stopper {
    /// No more connections are accepted; requests that have been received are answered; then everything is closed.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        for worker in 0..self.wakers.len() {
            self.wake(worker);
        }
    }

    /// Lets a worker look at its inbox, and at this.
    fn wake(&self, worker: usize) {
        // A permit that is there already is as good as another one, and nothing else stands in the way.
        let _ = self.wakers[worker].wake();
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

impl Gateway {
    /// Listens and serves. `open` gives each worker its handle of the store, by the worker's number.
    ///
    /// # Errors
    /// [`Error`], before anything is served.
    pub fn start<S, F>(mut options: Options, open: F) -> Result<Self, Error>
    where
        S: Store + Send + 'static,
        F: Fn(usize) -> Result<S, StoreError>,
    {
        if options.listen.is_empty() {
            return Err(Error::Options("a gateway needs an address to listen on: give host:port or a path"));
        }
        if options.threads == 0 || options.config.clients_max == 0 {
            return Err(Error::Options(
                "a gateway needs a thread and a connection at least: raise what is 0",
            ));
        }
        let listeners = options.listen.iter().map(Listener::bind).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<Address> = listeners.iter().map(Listener::address).collect();
        process::complete(&mut options.config, &addresses);
        options.config.memory = options.memory as u64;
        let shared = Arc::new(Shared::new(options.config.clone(), process::unix_us()));
        let mut rates = process::Rates::default();
        process::refresh(&shared, &mut rates);
        let metrics = options.metrics.map(|address| {
            let sources = metrics::sources(&shared, options.more_metrics.clone());
            Endpoint::serve(address, sources)
                .map_err(|error| Error::Listen { address: address.to_string(), error })
        });
        let metrics = metrics.transpose()?;

        let mut polls = Vec::new();
        let (mut wakers, mut mailboxes, mut inboxes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.threads {
            let poll = Poll::new().map_err(Error::System)?;
            wakers.push(Waker::new(poll.registry(), WAKER).map_err(Error::System)?);
            let (sender, receiver) = mpsc::channel();
            mailboxes.push(Mailbox::new(sender));
            inboxes.push(receiver);
            polls.push(poll);
        }
        let stores = (0..options.threads).map(&open).collect::<Result<Vec<_>, _>>().map_err(Error::Store)?;
        let stopper = Stopper { stop: Arc::new(AtomicBool::new(false)), wakers: Arc::new(wakers) };
        let common = Arc::new(Common {
            options,
            shared: shared.clone(),
            stopper: stopper.clone(),
            mailboxes,
            alone: Default::default(),
            turn: Default::default(),
            contended: Default::default(),
            sweeps_at: AtomicI64::new(i64::MIN),
            rates: rates.into(),
        });

        // From here on, a failure must stop the workers that run already: dropping the gateway does.
        let mut gateway = Self { addresses, metrics, shared, stopper, threads: Vec::new(), panicked: false };
        let mut first = Some(listeners);
        for (number, ((poll, inbox), store)) in polls.into_iter().zip(inboxes).zip(stores).enumerate() {
            let stopper = gateway.stopper.clone();
            let worker = Worker::new(number, poll, inbox, store, common.clone());
            let worker = worker.with_listeners(first.take()).map_err(Error::System)?;
            let thread = std::thread::Builder::new()
                .name(format!("gateway-{number}"))
                .spawn(move || {
                    let _all_or_none = StopOnPanic(stopper);
                    worker.run();
                })
                .map_err(Error::System)?;
            gateway.threads.push(thread);
        }
        Ok(gateway)
    }

    /// Where it listens, with the ports that were free.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Where its metrics are.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Endpoint::address)
    }

    /// Its counts and connections.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A handle that stops it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Stops it and waits until everything received has been answered, or the grace is over.
    pub fn stop(mut self) {
        self.finish(true);
    }

    /// Waits until somebody stops it, or a worker panicked and took the others along; whether it was stopped.
    #[must_use]
    pub fn wait(mut self) -> bool {
        self.finish(false);
        !self.panicked
    }

    fn finish(&mut self, stop: bool) {
        if stop {
            self.stopper.stop();
        }
        let threads = std::mem::take(&mut self.threads);
        if threads.is_empty() {
            return;
        }
        for thread in threads {
            self.panicked |= thread.join().is_err();
        }
        for address in &self.addresses {
            if let Address::Unix(path) = address {
                // Somebody may have removed it already.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.finish(true);
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn beside_a_store_on_a_disk_half_the_processors_have_a_worker_and_in_memory_all_but_one() {
        let of = |on_a_disk| [1, 2, 3, 4, 8].map(|all| Options::threads_beside_a_store(all, on_a_disk));
        assert_eq!(of(true), [1, 1, 1, 2, 4]);
        assert_eq!(of(false), [1, 1, 2, 3, 7]);
    }
}
