//! A client in the server's own process: its READs are loads, its WRITEs stores, and its calls go to the host with no message.
//!
//! It follows the protocol of a client that is elsewhere, and nothing else: it reads what may change under its hands and
//! verifies it, writes into rooms that were reserved, and makes what it wrote durable itself. So a store has local and remote
//! clients at once, and the server may fence a local one that dallies.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use remanence_pmem::{Region, StoreGranularity};

use super::Error;
use super::host::{Clock, Host};
use super::server::lock;
use super::session::nap;
use remanence_kv::client::{Client, Completion, RemoteMemory, Verb};
use remanence_kv::proto::{Changed, Inline, Refusal, Reply};

/// How long others may be in the way of an operation.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes clients in the server's process. Clones make them of the same server.
#[derive(Clone, Debug)]
pub struct Locals {
    pub(super) host: Arc<Mutex<Host>>,
    pub(super) region: Region,
}

impl Locals {
    /// Whether to make something durable takes a wait for a disk.
    #[must_use]
    pub fn wait_for_a_disk(&self) -> bool {
        self.region.domain().granularity() == StoreGranularity::Page
    }

    /// A client that keeps so many locations, and what it reaches the store by. [`run`](remanence_kv::client::run) carries operations
    /// out. What can wait is done while the [server runs](super::Server::run); after its end all calls are refused.
    #[must_use]
    pub fn connect(&self, locations: usize) -> (Client, Local) {
        let line = Arc::new(Line::default());
        let (session, clock, view) = lock(&self.host).admit(Arc::clone(&line));
        let (host, region) = (Arc::clone(&self.host), self.region.clone());
        let waits = self.wait_for_a_disk();
        let local = Local { host, region, line, session, clock, waits, waiting: Instant::now() };
        (Client::new(view, locations), local)
    }
}

/// Called when the host has told something.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// What the host and a local client have of each other.
#[derive(Default)]
pub(super) struct Line {
    /// The newest view that it was told of.
    noticed: AtomicU64,
    wake: Mutex<Option<Wake>>,
    /// It is cut off. Held while the client writes.
    cut: Mutex<bool>,
    /// The same, for who reads.
    is_cut: AtomicBool,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("noticed", &self.noticed)
            .field("is_cut", &self.is_cut)
            .finish_non_exhaustive()
    }
}

impl Line {
    pub(super) fn notify(&self, view: u64) {
        self.noticed.fetch_max(view, Ordering::AcqRel);
        self.wake();
    }

    pub(super) fn wake(&self) {
        if let Some(wake) = &*self.wake.lock() {
            wake();
        }
    }

    /// On return nothing that the client writes reaches the store, and nothing that it reads from here on counts: its view is
    /// waited for no longer.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        *self.cut.lock() = true;
        self.wake();
    }

    /// Whether what was read just now counts.
    fn counts(&self) -> Result<(), Error> {
        // Memory is used for something else only after the cut: who read any of that sees the cut here.
        fence(Ordering::Acquire);
        if self.is_cut.load(Ordering::Relaxed) { Err(Refusal::Fenced.into()) } else { Ok(()) }
    }

    /// Lets the client write, as long as this is held.
    fn open(&self) -> Result<MutexGuard<'_, bool>, Error> {
        let cut = self.cut.lock();
        if *cut { Err(Refusal::Fenced.into()) } else { Ok(cut) }
    }
}

/// The local clients of a host, by the numbers of their sessions.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: BTreeMap<u64, Arc<Line>>,
    next: u64,
}

impl Lines {
    /// Sessions of the network have lower numbers.
    const FIRST: u64 = 1 << 63;

    pub(super) fn add(&mut self, line: Arc<Line>) -> u64 {
        let session = Self::FIRST + self.next;
        self.next += 1;
        self.lines.insert(session, line);
        session
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn of(&self, session: u64) -> Option<&Line> {
        self.lines.get(&session).map(|line| &**line)
    }

    pub(super) fn remove(&mut self, session: u64) -> bool {
        self.lines.remove(&session).is_some()
    }
}

/// The memory and the server as a client in the same process reaches them.
#[derive(Debug)]
pub struct Local {
    host: Arc<Mutex<Host>>,
    region: Region,
    line: Arc<Line>,
    session: u64,
    clock: Clock,
    /// To make something durable takes a wait for a disk. Clients do that beside each other, and then one sync serves several; the
    /// server does it for one at a time.
    waits: bool,
    /// Since when others are in the way.
    waiting: Instant,
}

impl Local {
    /// From here on this is called, by whoever has the server's lock, when the server waits for a word of an idle client, which
    /// [`attend`](remanence_kv::client::attend) says, or has cut it off, or others may be out of the way of a change that it refused: as writers
    /// of the key, cleaning, and the table's growth are. What is called may not wait for the server.
    pub fn wake_by(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        *self.line.wake.lock() = Some(wake);
    }

    /// Whether the server has cut it off: nothing that it does from here on counts. A new one may [connect](Locals::connect).
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.line.is_cut.load(Ordering::Acquire)
    }

    fn check(&self, at: u64, len: u64) -> Result<(), Error> {
        if self.region.contains(at, len) {
            Ok(())
        } else {
            Err(Error::Protocol("a place outside of the store"))
        }
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.check(at, into.len() as u64)?;
        self.region.read(at, into);
        // A page that was lost reads as zeros.
        self.region.failure().map_err(|_| self.failed())?;
        self.line.counts()
    }

    fn persist(&self, updates: &[(u64, Vec<u8>)]) -> Result<(), Error> {
        let open = self.line.open()?;
        for (at, bytes) in updates {
            self.region.write_nt(*at, bytes);
        }
        let durable = self.region.psync();
        drop(open);
        durable.map_err(|_| self.failed().into())
    }

    /// The medium failed us. The server has not asked for anything that this failed in, and would go on serving.
    fn failed(&self) -> Refusal {
        lock(&self.host).fail();
        Refusal::Medium
    }
}

impl Local {
    /// The server writes, and the wait for the disk is ours, with no lock of the host's held.
    fn put_and_wait(
        &self,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Result<(), Error> {
        // New keys' entries first. While we wait for them as well nobody else has to.
        let ahead = lock(&self.host).prepare_ahead(self.session, puts);
        if ahead.ok_or(Refusal::Fenced)?? {
            self.wait()?;
        }
        let named = match lock(&self.host).begin_all(self.session, puts, done) {
            Some(_) if done.contains(&Err(Refusal::Medium)) => return Err(Refusal::Medium.into()),
            Some(named) => named,
            None => return Err(Refusal::Fenced.into()),
        };
        if named.is_empty() {
            return Ok(());
        }
        self.wait()?;
        if lock(&self.host).end_all(&named) { Ok(()) } else { Err(Refusal::Medium.into()) }
    }

    /// Waits for the medium, with no lock of the host's held.
    fn wait(&self) -> Result<(), Error> {
        self.region.psync().map_err(|_| self.failed().into())
    }
}

impl RemoteMemory for Local {
    type Error = Error;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Error> {
        let mut completions = Vec::with_capacity(verbs.len());
        for verb in verbs {
            completions.push(match verb {
                Verb::Read { at, len } => {
                    self.check(at, len)?;
                    let mut bytes = vec![0; len as usize];
                    self.read(at, &mut bytes)?;
                    Completion::Read(bytes)
                }
                Verb::Write { at, bytes } => {
                    self.check(at, bytes.len() as u64)?;
                    let _open = self.line.open()?;
                    self.region.write(at, &bytes);
                    Completion::Written
                }
                Verb::Persist(updates) => {
                    updates.iter().try_for_each(|(at, bytes)| self.check(*at, bytes.len() as u64))?;
                    self.persist(&updates)?;
                    Completion::Persistent
                }
                Verb::Call(request) => match lock(&self.host).ask(self.session, &request) {
                    Some(Reply::Refused(Refusal::Medium)) => return Err(Refusal::Medium.into()),
                    Some(reply) => Completion::Reply(reply),
                    None => return Err(Refusal::Fenced.into()),
                },
            });
        }
        Ok(completions)
    }

    fn load(&mut self, at: u64, into: &mut [u8]) -> Result<bool, Error> {
        self.read(at, into).map(|()| true)
    }

    fn put_all(
        &mut self,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Result<bool, Error> {
        if self.waits {
            return self.put_and_wait(puts, done).map(|()| true);
        }
        match lock(&self.host).put_all(self.session, puts, done) {
            Some(()) if done.contains(&Err(Refusal::Medium)) => Err(Refusal::Medium.into()),
            Some(()) => Ok(true),
            None => Err(Refusal::Fenced.into()),
        }
    }

    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn again(&mut self, tries: u32) -> Result<(), Error> {
        if tries <= 1 {
            self.waiting = Instant::now();
        }
        if self.waiting.elapsed() >= PATIENCE {
            return Err(Error::Waited(PATIENCE.as_secs(), "writers of the key, or the cleaning of its log"));
        }
        nap(tries);
        Ok(())
    }

    fn noticed(&mut self) -> u64 {
        self.line.noticed.load(Ordering::Acquire)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        lock(&self.host).leave(self.session);
    }
}
