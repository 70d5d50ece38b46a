//! A server of a store.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use remanence_persist::Config;
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::{PersistenceDomain, Region, StoreGranularity};
use remanence_remote::{Stop, Token};
use remanence_verbs::Context;

use super::host::Host;
use super::local::Locals;
use super::medium::{New, grow, make_if_blank, may_grow, refuse_cut_journal};
use super::member::Upkeep;
use super::memory::Memory;
use super::options::{Common, common_options};
use super::{Error, SERVICE, StoreStats};
use remanence_kv::format::Geometry;
use remanence_kv::format::superblock::file_options;
use remanence_kv::proto::Refusal;
use remanence_kv::server::{Options, Recovered, Server as Core};
use remanence_kv::view::Mode;

/// Receive buffers of a session, and bytes of each. What does not fit goes in parts.
pub(super) const SLOTS: u16 = 16;
pub(super) const SLOT: u32 = 16 << 10;
/// The longest value that the server writes for its clients: its request fits half a message.
const INLINE_MAX: u32 = 8 << 10;

/// Where the store lies.
#[derive(Clone, Debug)]
enum Storage {
    File(PathBuf),
    Region(Region),
}

/// How a server is made.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    place: Storage,
    common: Common,
    configuration: Option<Config>,
    ddio: Option<bool>,
    mode: Mode,
    inline_max: Option<u32>,
    port: u16,
    unfinished: usize,
    guarded: bool,
}

impl ServerOptions {
    /// Of a store in a file: on a disk, on a DAX file system, or in shared memory (`/dev/shm`). It is made if the file is not
    /// there and a [`size`](Self::size) is given, or if the file is blank.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Storage::File(path.into()))
    }

    /// Of a store in memory that is mapped already; it is made if the memory is blank.
    #[must_use]
    pub const fn region(region: Region) -> Self {
        Self::at(Storage::Region(region))
    }

    const fn at(place: Storage) -> Self {
        Self {
            place,
            common: Common::NEW,
            configuration: None,
            ddio: None,
            mode: Mode::Durable,
            inline_max: None,
            port: 0,
            unfinished: 1024,
            guarded: true,
        }
    }

    /// Bytes of a new file; 256 KiB at least. A store in a file that is there grows to that; it does not shrink.
    #[must_use]
    pub const fn size(mut self, bytes: u64) -> Self {
        self.common.size = Some(bytes);
        self
    }

    /// Takes the operator's word for all that persistence depends on. Receive buffers are in DRAM whatever it says: an object
    /// that lies in a buffer is durable there, and no reader finds it.
    #[must_use]
    pub const fn configuration(mut self, config: Config) -> Self {
        self.configuration = Some(config);
        self
    }

    /// Whether arriving data stops in the CPU's cache; if nothing is said it is assumed so.
    #[must_use]
    pub const fn ddio(mut self, on: bool) -> Self {
        self.ddio = Some(on);
        self
    }

    common_options!();

    /// What an acknowledgement means; [`Mode::Durable`] if nothing is said.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The longest value in bytes that a client sends along with its PUT, in one message, and the server writes; longer ones the
    /// client writes itself when it has been given room. 8192 if nothing is said, which is the most; 0: clients write every
    /// value, as in the paper, and as they do in [`Mode::Erda`] always.
    #[must_use]
    pub const fn inline_max(mut self, bytes: u32) -> Self {
        self.inline_max = Some(bytes);
        self
    }

    /// What that comes to.
    fn inlined(&self) -> Result<u32, Error> {
        match (self.mode, self.inline_max) {
            (_, Some(asked)) if asked > INLINE_MAX => Err(Error::Argument(format!(
                "a server writes values of {INLINE_MAX} bytes for its clients, and no longer ones"
            ))),
            (Mode::Erda, Some(1..)) => Err(Error::Argument(
                "in mode erda clients write every value, as in the paper; a server that writes some for them needs mode durable"
                    .to_owned(),
            )),
            (Mode::Erda, _) => Ok(0),
            (Mode::Durable, asked) => Ok(asked.unwrap_or(INLINE_MAX)),
        }
    }

    /// The port of the connection manager; 0, or nothing said: one that is free.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The most unfinished writes of one client; 1024 if nothing is said.
    #[must_use]
    pub const fn unfinished(mut self, count: usize) -> Self {
        self.unfinished = count;
        self
    }

    /// Admits only clients that prove to have this token. Without one only this machine may reach the server.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.common.token = Some(token);
        self
    }

    /// Whether a client may write only what was handed out to it, by a memory window for each write; yes if nothing is said.
    /// Else every client has the key to all of the store.
    #[must_use]
    pub const fn guarded(mut self, yes: bool) -> Self {
        self.guarded = yes;
        self
    }

    /// With what a member has in common with a server.
    pub(super) fn common(self, common: Common) -> Self {
        Self { common, ..self }
    }

    fn open(&self) -> Result<Region, Error> {
        let path = match &self.place {
            Storage::Region(region) => {
                refuse_cut_journal(region)?;
                return Ok(region.clone());
            }
            Storage::File(path) => path,
        };
        // In mode `erda` what is visible is acknowledged.
        let only_durable = self.mode == Mode::Durable;
        let mut file = file_options().journal(self.common.journal).only_durable(only_durable);
        if let Some(domain) = self.common.declared {
            file = file.declare(domain);
        }
        match self.common.size {
            Some(size) => {
                may_grow(path, size)?;
                file = file.create(size);
            }
            None if !path.exists() => {
                return Err(Error::Argument(format!(
                    "there is no store at {}; say how large it is to be made",
                    path.display()
                )));
            }
            _ => {}
        }
        Ok(file.open(path)?)
    }
}

/// Takes a file away that was made for what then could not be had: nobody else has had it, as it is locked by us.
pub(super) fn remove_if_new(region: &Region) {
    if let Some(path) = region.path().filter(|_| region.is_new()) {
        let _ = std::fs::remove_file(path);
    }
}

/// What a server does, for other threads and after its end. Clones look at the same server.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Mutex<Host>>);

impl Metrics {
    /// As it is now.
    #[must_use]
    pub fn read(&self) -> StoreStats {
        lock(&self.0).stats()
    }
}

/// The host is whole between any two statements that can panic, so that no lock is poisoned. The lock is a fair one: with that of the
/// standard library, a server under load has it again before a local client that waits for it has woken up, and
/// cuts that client off in the end.
pub(super) fn lock(host: &Mutex<Host>) -> MutexGuard<'_, Host> {
    host.lock()
}

/// A store that is exported.
#[derive(Debug)]
pub struct Server {
    remote: remanence_remote::Server,
    host: Arc<Mutex<Host>>,
    region: Region,
    /// It is not one of several members.
    alone: bool,
    recovered: Recovered,
    made: bool,
    grown_from: Option<u64>,
    durable: bool,
}

impl Server {
    /// Recovers the store, or makes one in a medium that is blank, and listens at the address of the device. Clients that
    /// connect wait until [`run`](Self::run).
    ///
    /// # Errors
    /// One sentence that says what to do: another process serves the file, there is something else in it, it was made by
    /// another version or is damaged; the port is taken; the memory keeps nothing.
    pub fn bind(context: &Context, options: ServerOptions) -> Result<Self, Error> {
        if options.common.lease < Duration::from_millis(10) {
            return Err(Error::Argument("a lease has 10 ms at least".to_owned()));
        }
        // Before a file is made.
        options.inlined()?;
        let region = options.open()?;
        let ours = matches!(options.place, Storage::File(_)).then(|| region.clone());
        let new = New { geometry: options.common.geometry, keys: options.common.keys };
        // Of memory that is handed over, the store has what it was made with.
        let asked = options.common.size.filter(|_| ours.is_some());
        let bound = make_if_blank(&region, &new).and_then(|made| {
            let grown_from = asked.filter(|_| !made).map(|asked| grow(&region, asked)).transpose()?.flatten();
            let server = Self::over(context, options, Memory::Alone(region), made, None)?;
            Ok(Self { grown_from, ..server })
        });
        if bound.is_err() {
            ours.iter().for_each(remove_if_new);
        }
        bound
    }

    /// Serves what a primary works on.
    pub(super) fn bind_replicated(
        context: &Context,
        options: ServerOptions,
        memory: Memory,
        upkeep: Upkeep,
    ) -> Result<Self, Error> {
        Self::over(context, options, memory, false, Some(upkeep))
    }

    fn over(
        context: &Context,
        options: ServerOptions,
        memory: Memory,
        made: bool,
        upkeep: Option<Upkeep>,
    ) -> Result<Self, Error> {
        let inlined = options.inlined()?;
        let (region, alone) = (memory.region().clone(), upkeep.is_none());
        let durable = region.domain().guarantee().is_durable();
        // A wait for the medium is a system call.
        let waits = region.domain().granularity() == StoreGranularity::Page;
        let core = Options {
            mode: options.mode,
            lease: options.common.lease.as_millis() as u64,
            unfinished_max: options.unfinished,
            clean_by_itself: options.common.clean,
            defer: waits,
            inline_max: if alone { inlined } else { 0 },
        };
        let (mut core, recovered) = Core::open(memory, core)?;
        if upkeep.is_some() {
            core.set_replicated();
        }
        let mut remote = remanence_remote::ServerOptions::new(context, region.clone(), options.port)
            .serves("a key-value store")
            // They are in DRAM always. What a client has written there is not to be taken for some.
            .without_buffers()
            .sessions(options.common.clients)
            .messages(SLOTS, SLOT);
        remote = options.common.with_access(remote);
        if let Some(config) = options.configuration {
            remote = remote.declare(Config { buffers: Buffers::Dram, ..config });
        }
        if let Some(on) = options.ddio {
            remote = remote.ddio(on);
        }
        if options.guarded {
            remote = remote.guarded();
        }
        if options.mode == Mode::Erda {
            // The paper's flow (3.3): a request comes by WRITE with immediate, with its client's number.
            remote = remote.calls_by_immediate();
        }
        let mut remote = remanence_remote::Server::bind(remote)?;
        let grants = options.guarded.then(|| remote.grants());
        let slot = SLOT as usize - remanence_remote::message::ANSWER_HEADER;
        let lease = options.common.lease;
        let host = Host::new(core, region.clone(), remote.cutter(), grants, lease, slot, upkeep);
        let host = Arc::new(Mutex::new(host));
        let serving = Arc::clone(&host);
        remote.on_call(SERVICE, move |call| lock(&serving).serve(call.session, call.role, call.request));
        if waits {
            let looking = Arc::clone(&host);
            remote.on_calls(SERVICE, move |calls| lock(&looking).prepare(calls));
        }
        let turning = Arc::clone(&host);
        remote.on_turn(move |messages| lock(&turning).turn(messages));
        Ok(Self { remote, host, region, alone, recovered, made, grown_from: None, durable })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.remote.addr()
    }

    /// What recovery found when it was bound.
    #[must_use]
    pub const fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// The store was made just now.
    #[must_use]
    pub const fn made(&self) -> bool {
        self.made
    }

    /// How many bytes the store had before, if it has grown just now.
    #[must_use]
    pub const fn grown_from(&self) -> Option<u64> {
        self.grown_from
    }

    /// What it is, as far as persistence depends on it.
    #[must_use]
    pub const fn config(&self) -> &Config {
        self.remote.config()
    }

    /// What it is and which failures a value survives, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        self.remote.sentence()
    }

    /// What acknowledged data survives, in few words.
    #[must_use]
    pub fn summary(&self) -> String {
        self.remote.summary()
    }

    /// Whether what a store of mode `durable` acknowledges survives the loss of power. [`sentence`](Self::sentence) has what
    /// it does survive.
    #[must_use]
    pub const fn is_durable(&self) -> bool {
        self.durable
    }

    /// What it does, for other threads.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics(Arc::clone(&self.host))
    }

    /// Reaches the serving thread.
    pub(super) fn control(&self) -> remanence_remote::SessionControl {
        self.remote.cutter()
    }

    /// Clients in this process, which reach the store with no message. `None`: it is one of several members, and what is
    /// written here must reach the others.
    #[must_use]
    pub fn locals(&self) -> Option<Locals> {
        self.alone.then(|| Locals { host: Arc::clone(&self.host), region: self.region.clone() })
    }

    /// Other work of the serving thread, which then never sleeps: what a busy application is to those who need its help. See
    /// [`remanence_remote::Server::on_round`].
    pub fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.remote.on_round(work);
    }

    /// The serving thread never sleeps: [`Server::spin`](remanence_remote::Server::spin).
    pub fn spin(&mut self) {
        self.remote.spin();
    }

    /// From here on counts messages, and the CPU time that the application spends on them.
    pub fn meter(&mut self) -> remanence_remote::Meter {
        self.remote.meter()
    }

    /// Serves until it is [stopped](remanence_remote::Server::run), settles what was written, and ends all sessions.
    ///
    /// # Errors
    /// The device is gone; the medium failed, and nothing more is made durable.
    pub fn run(&mut self, stop: &Stop) -> Result<StoreStats, Error> {
        // What recovery has left, and clients of this process before this, waits for nobody's message.
        self.remote.cutter().wake();
        let served = self.remote.run(stop);
        let mut host = lock(&self.host);
        if host.has_failed() {
            return Err(Refusal::Medium.into());
        }
        host.end()?;
        served?;
        Ok(host.stats())
    }
}
