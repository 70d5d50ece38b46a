//! A server of a log.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use remanence_persist::Config;
use remanence_pmem::{Journaling, PersistenceDomain, Region};
use remanence_remote::ring::{Layout, Recovered};
use remanence_remote::{Call, Server, ServerOptions, SessionControl, Stats, Stop, Token};
use remanence_verbs::Context;
use thiserror::Error;

use super::medium::Part;
use crate::error::{OpenError, Refused};
use crate::format::root::State;
use crate::format::superblock::{FORMAT, Uuid, file_options, recorded_size};
use crate::format::{Epoch, Geometry, Mode};
use crate::proto::{Request, emit_reply};
use crate::serve::{Holder, OWN, Sessions};
use crate::store::{Make, Status, Store};
use crate::writer::Updates;

/// Why a log is not served.
#[derive(Error)]
pub enum ServeError {
    /// The memory cannot be exported to clients.
    #[error(transparent)]
    Remote(#[from] remanence_remote::Error),
    /// The file of the log cannot be mapped, or is not whole.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
    /// The memory has no log that can be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log does not do what was asked.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Receive buffers in persistent memory take room that the log has.
    #[error(
        "the log fills {log} of the {len} bytes that are left beside receive buffers in persistent memory; serve it with \
         receive buffers in DRAM"
    )]
    NoRoom {
        /// Bytes of the log.
        log: u64,
        /// Bytes of the region that are left beside the buffers.
        len: u64,
    },
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What a log shall be if there is none yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct New {
    /// How the end of the log is found.
    pub mode: Mode,
    /// Bytes of a segment; `None` for what [`Geometry::for_size`](crate::format::Geometry::for_size) chooses.
    pub segment: Option<u64>,
    /// Random bytes, for its name and its salt.
    pub random: [u8; 24],
}

/// Bytes that nobody can foretell.
pub(super) fn drawn<const N: usize>() -> [u8; N] {
    let mut random = [0; N];
    getrandom::fill(&mut random).expect("the kernel gives random bytes");
    random
}

/// How a log in a file is served.
#[derive(Clone, Debug)]
pub struct LogOptions {
    path: PathBuf,
    size: Option<u64>,
    mode: Mode,
    segment: Option<u64>,
    declared: Option<PersistenceDomain>,
    journal: Journaling,
    port: u16,
    clients: u16,
    token: Option<Token>,
    readers: Option<Token>,
    insecure: bool,
}

impl LogOptions {
    /// Of a log in a file: on a disk, on a DAX file system, or in shared memory (`/dev/shm`). It is made if the file is not there
    /// and a [`size`](Self::size) is given.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            size: None,
            mode: Mode::Singleton,
            segment: None,
            declared: None,
            journal: Journaling::IfMade,
            port: 0,
            clients: 16,
            token: None,
            readers: None,
            insecure: false,
        }
    }

    /// Bytes of a new file; one that is there keeps its size.
    #[must_use]
    pub const fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// How the end of a new log is found; [`Mode::Singleton`] if nothing is said.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Bytes of a segment of a new log, and so of the longest record and its header; a sixteenth of the log if nothing is said.
    #[must_use]
    pub const fn segment(mut self, bytes: u64) -> Self {
        self.segment = Some(bytes);
        self
    }

    /// Takes the operator's word for the persistence domain of the file, where the machine does not tell.
    #[must_use]
    pub const fn declare(mut self, domain: PersistenceDomain) -> Self {
        self.declared = Some(domain);
        self
    }

    /// Whether a log on a disk is made durable by way of a journal; files that are made are, if nothing is said.
    #[must_use]
    pub const fn journal(mut self, journal: Journaling) -> Self {
        self.journal = journal;
        self
    }

    /// The port of the connection manager; 0, or nothing said: one that is free.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Clients at a time from one address, and a quarter more from others; 16 if nothing is said.
    #[must_use]
    pub const fn clients(mut self, count: u16) -> Self {
        self.clients = count;
        self
    }

    /// Admits only clients that prove to have this token. Without one only this machine may reach the server.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Admits clients that prove to have this token, too: they may read the log, and not write to it.
    #[must_use]
    pub fn reader_token(mut self, token: Token) -> Self {
        self.readers = Some(token);
        self
    }

    /// Lets others than this machine reach it without a token: they may read and write the log.
    #[must_use]
    pub const fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    fn region(&self) -> Result<Region, remanence_pmem::Error> {
        let mut file = file_options().journal(self.journal).only_durable(true);
        if let Some(domain) = self.declared {
            file = file.declare(domain);
        }
        if let Some(size) = self.size.filter(|_| !self.path.exists()) {
            file = file.create(size);
        }
        file.open(&self.path)
    }

    fn server(self, context: &Context, region: Region) -> ServerOptions {
        let mut options =
            ServerOptions::new(context, region, self.port).serves("a log").sessions(self.clients);
        if let Some(token) = self.token {
            options = options.token(token);
        }
        if let Some(readers) = self.readers {
            options = options.reader_token(readers);
        }
        if self.insecure { options.insecure() } else { options }
    }
}

/// A log that is exported.
#[derive(Debug)]
pub struct LogServer {
    server: Server,
    shared: Arc<Shared>,
    made: bool,
}

/// What is said to whoever has a reader's token and asks for more than that is for.
const READER: &str =
    "this token is for reading; use the writers' token to append, to take the log over, or to trim it";

struct Shared {
    state: Mutex<Serving>,
    medium: Region,
    cutter: SessionControl,
    /// Counts the beginnings and the ends of work on the log: odd while there is some.
    work: AtomicU64,
    /// Called when somebody was answered, with nothing locked.
    answered: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

type Watch = Box<dyn FnMut(&State) + Send>;

struct Serving {
    store: Store<Part>,
    holder: Holder,
    watch: Option<Watch>,
}

struct Cut<'a>(&'a SessionControl);

impl Sessions for Cut<'_> {
    fn is_live(&self, session: u64) -> bool {
        self.0.is_live(session)
    }

    fn cut(&mut self, session: u64) {
        self.0.cut(session);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    /// The store is whole between any two statements that can panic.
    fn lock(&self) -> Working<'_> {
        self.working(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_lock(&self) -> Option<Working<'_>> {
        match self.state.try_lock() {
            Ok(state) => Some(self.working(state)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.working(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn working<'a>(&'a self, state: MutexGuard<'a, Serving>) -> Working<'a> {
        self.work.fetch_add(1, Ordering::AcqRel);
        Working { state, work: &self.work }
    }
}

/// Works on the log, and on what is kept beside it: what takes long there is its medium.
struct Working<'a> {
    state: MutexGuard<'a, Serving>,
    work: &'a AtomicU64,
}

impl Deref for Working<'_> {
    type Target = Serving;

    fn deref(&self) -> &Serving {
        &self.state
    }
}

impl DerefMut for Working<'_> {
    fn deref_mut(&mut self) -> &mut Serving {
        &mut self.state
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.work.fetch_add(1, Ordering::AcqRel);
    }
}

/// A served log, for the process that serves it: what it keeps beside the log, and appends of its own. Clones are the same.
#[derive(Clone, Debug)]
pub struct OwnLog(Arc<Shared>);

impl OwnLog {
    /// Does something with the log, while nobody is answered.
    pub fn with<T>(&self, act: impl FnOnce(&mut Store<Part>) -> T) -> T {
        act(&mut self.0.lock().store)
    }

    /// As [`with`](Self::with), if that need not wait: `None` while somebody else does something with it.
    pub fn try_with<T>(&self, act: impl FnOnce(&mut Store<Part>) -> T) -> Option<T> {
        self.0.try_lock().map(|mut state| act(&mut state.store))
    }

    /// The number of what is being done with the log, if anything is. Who sees one number for long knows that its medium does
    /// not answer.
    #[must_use]
    pub fn under_way(&self) -> Option<u64> {
        Some(self.0.work.load(Ordering::Acquire)).filter(|number| number % 2 == 1)
    }

    /// Whether the log's medium stands, without waiting for who works on it.
    ///
    /// # Errors
    /// It failed: nothing more is promised, and whoever [runs](LogServer::run) the server learns of it.
    pub fn failure(&self) -> std::io::Result<()> {
        self.0.medium.failure()
    }

    /// What a session would be answered.
    ///
    /// # Errors
    /// As for a session. [`Refused::Busy`]: ask again, the writer before is being cut off.
    pub fn call(&self, request: &Request) -> Result<Status, Refused> {
        self.0.answer(request, OWN)
    }

    /// Makes updates durable, one after the other, as the recipe of a session would.
    ///
    /// # Errors
    /// The log is promised to somebody else, and nothing was changed; or the medium failed.
    pub fn update(&self, epoch: Epoch, updates: &Updates) -> Result<(), Refused> {
        let mut state = self.0.lock();
        let promised = state.store.state().promised;
        if state.holder.session() != Some(OWN) || promised != epoch {
            return Err(Refused::Fenced { promised });
        }
        state.store.update(updates)
    }

    /// Has somebody watch what the log remembers: told before a promise is made, and after everything that changes it.
    pub fn watch(&self, mut watch: impl FnMut(&State) + Send + 'static) {
        let mut state = self.0.lock();
        watch(state.store.state());
        state.watch = Some(Box::new(watch));
    }

    /// Calls somebody, who may look at the log, whenever it was asked for something and may have changed. The first who says so is called.
    pub fn when_answered(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.answered.set(Box::new(call));
    }
}

impl LogServer {
    /// Recovers the log in a file, or makes one, and listens at the address of the device. Clients that connect wait until
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// One sentence that says what to do: another process serves the file, something else is in it, the log is damaged, the port is
    /// taken.
    pub fn open(context: &Context, options: LogOptions) -> Result<Self, ServeError> {
        let region = options.region()?;
        let new = New { mode: options.mode, segment: options.segment, random: drawn() };
        Self::bind(options.server(context, region.clone()), &region, &new).inspect_err(|_| {
            // A file that was made for a log that then could not be had: nobody else has had it, as it is locked by us.
            if let Some(path) = region.path().filter(|_| region.is_new()) {
                let _ = std::fs::remove_file(path);
            }
        })
    }

    /// Recovers the log in a region, or makes one if the region is blank, and listens.
    ///
    /// # Errors
    /// The region cannot be exported, or holds something else.
    pub fn bind(options: ServerOptions, region: &Region, new: &New) -> Result<Self, ServeError> {
        // A log that has all of the region has records where receive buffers would be: neither are they to be made there, nor is what
        // clients have written to be taken for some.
        let log = recorded_size(&FORMAT.read(region));
        let (room, whole) = (options.data_len()?, remanence_pmem::Medium::len(region));
        if let Some(log) = log.filter(|log| *log > room && *log <= whole) {
            return Err(ServeError::NoRoom { log, len: room });
        }
        let options = match log {
            Some(log) if !Layout::has_room(whole, log) => options.without_buffers(),
            _ => options,
        };
        // What a crash left in receive buffers is applied in here, before the log is looked at.
        let mut server = Server::bind(options)?;
        let len = server.len();
        // All of a log that was never checkpointed may be in its journal.
        let page = FORMAT.open(region, |page| match recorded_size(page) {
            _ if FORMAT.signature.is_blank(page) => 0..len,
            log => log.unwrap_or(len)..len,
        })?;
        let (store, made) = match recorded_size(&page) {
            Some(log) if log > len && log <= remanence_pmem::Medium::len(region) => {
                return Err(ServeError::NoRoom { log, len });
            }
            Some(log) if log <= len => (Store::open(Part::new(region.clone(), log))?, false),
            _ => match Store::open(Part::new(region.clone(), len)) {
                Err(OpenError::Blank) => (make(region, len, new)?, true),
                other => (other?, false),
            },
        };
        let state = Mutex::new(Serving { store, holder: Holder::default(), watch: None });
        let shared = Arc::new(Shared {
            state,
            medium: region.clone(),
            cutter: server.cutter(),
            work: AtomicU64::new(0),
            answered: OnceLock::new(),
        });
        let serving = Arc::clone(&shared);
        server.on_call(super::SERVICE, move |call| Ok(serving.serve(call)));
        Ok(Self { server, shared, made })
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// What this machine is, as far as persistence depends on it.
    #[must_use]
    pub const fn config(&self) -> &Config {
        self.server.config()
    }

    /// One sentence: what this machine is and which failures a record survives.
    #[must_use]
    pub fn sentence(&self) -> String {
        self.server.sentence()
    }

    /// What acknowledged data survives, in few words.
    #[must_use]
    pub fn summary(&self) -> String {
        self.server.summary()
    }

    /// Whether the log was made when this server was bound, as there was none.
    #[must_use]
    pub const fn made(&self) -> bool {
        self.made
    }

    /// What was found in receive buffers, and applied, before the log was recovered.
    #[must_use]
    pub const fn recovered(&self) -> Recovered {
        self.server.recovered()
    }

    /// How the log is, after a look at how far it has got.
    ///
    /// # Errors
    /// The medium failed.
    pub fn status(&self) -> Result<Status, Refused> {
        self.shared.lock().store.status()
    }

    /// Gives up the records from that number on, as an administrator decides who has lost one.
    ///
    /// # Errors
    /// There is no such record, or the medium failed.
    pub fn give_up_from(&self, sequence: u64) -> Result<(), Refused> {
        self.shared.lock().store.give_up_from(sequence)
    }

    /// The log, for this process.
    #[must_use]
    pub fn own(&self) -> OwnLog {
        OwnLog(Arc::clone(&self.shared))
    }

    /// Answers calls of another service: see [`Server::on_call`](remanence_remote::Server::on_call).
    ///
    /// # Panics
    /// If `service` is the number of the log's own service.
    pub fn on_call(
        &mut self,
        service: u16,
        handler: impl FnMut(&Call<'_>) -> Result<Vec<u8>, String> + Send + 'static,
    ) {
        assert_ne!(service, super::SERVICE, "the log's own service");
        self.server.on_call(service, handler);
    }

    /// Other work of the serving thread, as of an application that is busy: see
    /// [`Server::on_round`](remanence_remote::Server::on_round).
    pub fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.server.on_round(work);
    }

    /// The serving thread never sleeps: [`Server::spin`](remanence_remote::Server::spin).
    pub fn spin(&mut self) {
        self.server.spin();
    }

    /// Counts what serving the log costs, from here on: see [`Server::meter`](remanence_remote::Server::meter).
    pub fn meter(&mut self) -> remanence_remote::Meter {
        self.server.meter()
    }

    /// Serves until it is [stopped](remanence_remote::Server::run).
    ///
    /// # Errors
    /// The device is gone; the medium failed.
    pub fn run(&mut self, stop: &Stop) -> Result<Stats, remanence_remote::Error> {
        self.server.run(stop)
    }
}

fn make(region: &Region, len: u64, new: &New) -> Result<Store<Part>, OpenError> {
    let segment = new.segment.or_else(|| Geometry::for_size(len).map(|g| g.segment)).unwrap_or(0);
    let geometry = Geometry { size: len, segment };
    let (uuid, salt) = new.random.split_at(16);
    let make = Make {
        mode: new.mode,
        geometry,
        uuid: Uuid(uuid.try_into().expect("16 bytes")),
        salt: u64::from_le_bytes(salt.try_into().expect("eight bytes")),
    };
    Store::create(Part::new(region.clone(), len), &make)
}

impl Shared {
    fn serve(&self, call: &Call<'_>) -> Vec<u8> {
        emit_reply(&Request::parse(call.request).and_then(|request| match request {
            Request::Status => self.answer(&request, call.session),
            // Whoever may only read takes no log over, and gives nothing of it up.
            _ if !call.role.may_write() => Err(Refused::Said(READER.to_owned())),
            _ => self.answer(&request, call.session),
        }))
    }

    fn answer(&self, request: &Request, session: u64) -> Result<Status, Refused> {
        let mut working = self.lock();
        let Serving { store, holder, watch } = &mut *working;
        let mut tell = |state: &State| {
            if let Some(watch) = watch {
                watch(state);
            }
        };
        let reply = holder.answer(store, &mut Cut(&self.cutter), session, request, &mut tell);
        tell(store.state());
        drop(working);
        if let Some(answered) = self.answered.get() {
            answered();
        }
        reply
    }
}
