//! A host of a replicated service: it has the log, and answers clients.
//!
//! Every command needs the same servers, so while one waits for them there is nothing else to be done: the serving thread waits, and all
//! commands that have come meanwhile are appended together. It waits no longer than the log's patience. Servers that were lost are connected to
//! again by a thread of its own.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remanence_coord::replicated::{Replica, Reply, Request, StateMachine};
use remanence_persist::Config;
use remanence_persist::taxonomy::Domain;
use remanence_pmem::Region;
use remanence_remote::{Reactor, Server, ServerOptions, SessionControl, Stats, Stop, Token};
use remanence_verbs::Context;

use super::{Limits, SERVICE};
use crate::client::{ConnectOptions, Log as OpenLog};
use crate::connection::{SessionConnection, connect};
use crate::error::Refused;
use crate::group::{ConnectionLost, Group, GroupError, ReplicaConnection};

/// How often it is looked whether the log is still there, and how long a server that is lost is left alone.
const LOOK: Duration = Duration::from_secs(1);

/// How long a server of the log may say nothing, if nothing is said of that.
const PATIENCE: Duration = Duration::from_secs(3);

/// Buffers for messages of each client, where their length is said: it has one command after the other.
const MESSAGES: u16 = 8;

/// How a host is made.
#[derive(Clone, Debug)]
pub struct HostOptions {
    log: ConnectOptions,
    limits: Limits,
    port: u16,
    clients: Option<u16>,
    messages: Option<u32>,
    token: Option<Token>,
    insecure: bool,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            log: ConnectOptions::default().patience(PATIENCE),
            limits: Limits::default(),
            port: 0,
            clients: None,
            messages: None,
            token: None,
            insecure: false,
        }
    }
}

impl HostOptions {
    /// On how many of the log's servers a command must be durable before it is answered. That is settled when the log is made on them,
    /// where it is all of them if nothing is said.
    #[must_use]
    pub fn acks(mut self, servers: u16) -> Self {
        self.log = self.log.acks(servers);
        self
    }

    /// The tokens of the log's servers; each of them is asked which one is its own.
    #[must_use]
    pub fn log_tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.log = self.log.tokens(tokens);
        self
    }

    /// How long a server of the log may say nothing before it is taken for lost, which is also how long a command may take; 3 s if nothing is
    /// said. A host that takes over waits as long for servers that are not there.
    #[must_use]
    pub fn patience(mut self, limit: Duration) -> Self {
        self.log = self.log.patience(limit);
        self
    }

    /// How much is kept for clients.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The port of the connection manager; 0, or nothing said: one that is free.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Clients at a time; 16 if nothing is said.
    #[must_use]
    pub const fn clients(mut self, count: u16) -> Self {
        self.clients = Some(count);
        self
    }

    /// Bytes of a message, from 512 to 1 MiB in steps of 64; 4,096 if nothing is said. A command has 57 less at most, and an answer 25. All hosts of a
    /// service should have the same: an answer that does not fit reaches nobody, though its command was carried out.
    #[must_use]
    pub const fn messages(mut self, bytes: u32) -> Self {
        self.messages = Some(bytes);
        self
    }

    /// Admits only clients that prove to have this token. Without one only this machine may reach the host.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Lets others than this machine reach it without a token.
    #[must_use]
    pub const fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }
}

/// Why a host does not serve.
#[derive(thiserror::Error)]
pub enum HostError {
    /// The log cannot be opened, or belongs to another host by now.
    #[error(transparent)]
    Log(#[from] GroupError),
    /// Clients cannot be served.
    #[error(transparent)]
    Serve(#[from] remanence_remote::Error),
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for HostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A host of a replicated service.
#[derive(Debug)]
pub struct Host<S> {
    context: Context,
    logs: Vec<SocketAddr>,
    options: HostOptions,
    server: Server,
    hosting: Arc<Mutex<Option<Hosting<S>>>>,
}

impl<S: StateMachine + Send + 'static> Host<S> {
    /// Of a service whose log lies on these servers, all of which are to be named. It has a port from here on, and no log:
    /// clients that connect wait until [`run`](Self::run).
    ///
    /// # Errors
    /// One sentence that says what to do: the port is taken, or others could reach it without a token.
    pub fn bind(context: &Context, logs: &[SocketAddr], options: HostOptions) -> Result<Self, HostError> {
        // Clients have nothing to read or write here: they ask.
        let mut served = ServerOptions::new(context, Region::anonymous(4096)?, options.port)
            .declare(Config::software(Domain::Process))
            .serves("a replicated service")
            .sessions(options.clients.unwrap_or(16))
            .without_buffers()
            .guarded();
        if let Some(bytes) = options.messages {
            served = served.messages(MESSAGES, bytes);
        }
        if let Some(token) = &options.token {
            served = served.token(token.clone());
        }
        if options.insecure {
            served = served.insecure();
        }
        let mut server = Server::bind(served)?;
        let hosting: Arc<Mutex<Option<Hosting<S>>>> = Arc::default();
        let ahead = Arc::clone(&hosting);
        server.on_calls(SERVICE, move |calls| {
            if let Some(hosting) = &mut *lock(&ahead) {
                hosting.carry_out(calls.iter().map(|call| call.request));
            }
        });
        let one = Arc::clone(&hosting);
        server.on_call(SERVICE, move |call| match &mut *lock(&one) {
            Some(hosting) => hosting.answer(call.request),
            None => Err("the service has no log yet; ask again".to_owned()),
        });
        let turn = Arc::clone(&hosting);
        server.on_turn(move |_| lock(&turn).as_mut().and_then(Hosting::look));
        Ok(Self { context: context.clone(), logs: logs.to_vec(), options, server, hosting })
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Takes the log over from whichever host had it, reads it, and serves until it is stopped.
    ///
    /// # Errors
    /// Too few of the log's servers are there, it is not the log of such a service, or another host has taken over. The device is gone.
    pub fn run(&mut self, stop: &Stop) -> Result<Stats, HostError> {
        let mut log = OpenLog::connect(&self.context, &self.logs, &self.options.log)?.0;
        let first = log.connections().next();
        let reactor = first.map(|(_, connection)| connection.session().reactor().clone());
        let (lost, again) = channel();
        let (came, found) = channel();
        if let Some(reactor) = reactor {
            let control = self.server.cutter();
            let seeker = Seeker { reactor, options: self.options.log.clone(), came, control };
            // It ends when this host does, or a little later: nobody waits for somebody who is not there.
            std::thread::Builder::new()
                .name("replicated-seek".into())
                .spawn(move || seeker.run(&again))
                .map_err(|e| Refused::Said(format!("the system gives no thread: {e}")))
                .map_err(GroupError::from)?;
        }
        let mut hosting = Hosting {
            log,
            replica: Replica::new(self.options.limits),
            patience: self.options.log.patience,
            tokens: 0,
            lost,
            found,
            sought: BTreeSet::new(),
        };
        hosting.open()?;
        *lock(&self.hosting) = Some(hosting);
        let served = self.server.run(stop);
        let hosting = lock(&self.hosting).take();
        match hosting.and_then(|hosting| hosting.replica.ended().cloned()) {
            Some(ended) => Err(ended.into()),
            None => Ok(served?),
        }
    }
}

/// What is there is whole between any two statements that can panic.
fn lock<T>(hosting: &Mutex<T>) -> MutexGuard<'_, T> {
    hosting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A host that has the log.
#[derive(Debug)]
struct Hosting<S> {
    log: Group<SessionConnection>,
    replica: Replica<S>,
    patience: Duration,
    tokens: u64,
    /// Servers that are to be connected to again, and those that were.
    lost: Sender<String>,
    found: Receiver<(String, Result<SessionConnection, ConnectionLost>)>,
    sought: BTreeSet<String>,
}

impl<S: StateMachine> Hosting<S> {
    /// Reads the log.
    fn open(&mut self) -> Result<(), GroupError> {
        loop {
            self.replica.advance(SessionConnection::now(), &mut self.log);
            if let Some(ended) = self.replica.ended() {
                return Err(ended.clone());
            }
            if self.replica.is_serving() {
                return Ok(());
            }
            let Some(read) = self.replica.poll_read() else {
                self.log.pause()?;
                continue;
            };
            let mut bytes = vec![0; read.len as usize];
            let done = self.log.connection(read.server).map(|server| server.read(read.offset, &mut bytes));
            let came = match done {
                Some(Ok(())) => Some(bytes),
                Some(Err(why)) => {
                    self.log.lose(read.server, why);
                    None
                }
                None => None,
            };
            self.replica.came(read.number, came);
        }
    }

    /// Has requests that have come together carried out together. They are answered when each of them is asked for: a command that was
    /// carried out is known by its number.
    fn carry_out<'a>(&mut self, requests: impl Iterator<Item = &'a [u8]>) {
        let commands = requests.filter_map(|request| Request::parse(request).ok());
        let commands: Vec<Request> = commands.filter(|request| *request != Request::Open).collect();
        let mut open = commands.len();
        for command in commands {
            self.submit(command);
        }
        while open > 0 {
            open -= self.wait().len();
        }
    }

    fn answer(&mut self, request: &[u8]) -> Result<Vec<u8>, String> {
        let request = Request::parse(request).map_err(|malformed| malformed.to_string())?;
        let token = self.submit(request);
        loop {
            if let Some((_, reply)) = self.wait().into_iter().find(|(of, _)| *of == token) {
                return Ok(reply.emit());
            }
        }
    }

    fn submit(&mut self, request: Request) -> u64 {
        self.tokens += 1;
        self.replica.submit(self.tokens, SessionConnection::now() + self.patience, request);
        self.tokens
    }

    /// Waits until something is answered, which is so in the end: nothing is asked for longer than the log's patience.
    fn wait(&mut self) -> Vec<(u64, Reply)> {
        loop {
            self.replica.advance(SessionConnection::now(), &mut self.log);
            let answers: Vec<(u64, Reply)> = std::iter::from_fn(|| self.replica.poll_answer()).collect();
            if !answers.is_empty() {
                return answers;
            }
            if self.log.pause().is_err() {
                // Nothing more can come of it: as when its time is over.
                self.replica.advance(Duration::MAX, &mut self.log);
            }
        }
    }

    /// What there is to do besides: looks at the log, and takes servers in that are there again. Nothing: it is over.
    fn look(&mut self) -> Option<Duration> {
        for (name, connection) in self.found.try_iter() {
            self.sought.remove(&name);
            if connection.is_ok() {
                self.log.reconnect(&name, connection);
            }
        }
        // What is wrong the replica sees, too.
        let _ = self.log.poll();
        self.replica.advance(SessionConnection::now(), &mut self.log);
        for (name, _) in self.log.lost() {
            if self.sought.insert(name.clone()) {
                let _ = self.lost.send(name);
            }
        }
        self.replica.ended().is_none().then_some(LOOK)
    }
}

/// Connects to servers that were lost: whoever is not there may take its time to say so.
struct Seeker {
    reactor: Reactor,
    options: ConnectOptions,
    came: Sender<(String, Result<SessionConnection, ConnectionLost>)>,
    control: SessionControl,
}

impl Seeker {
    fn run(self, again: &Receiver<String>) {
        while let Ok(name) = again.recv() {
            let (remote, method) = (self.options.remote.clone(), self.options.method.clone());
            let connection = match name.parse() {
                Ok(server) => connect(&self.reactor, server, remote, method),
                Err(_) => Err(ConnectionLost("it has no address".to_owned())),
            };
            let is_lost = connection.is_err();
            if self.came.send((name, connection)).is_err() {
                return;
            }
            self.control.wake();
            if is_lost {
                std::thread::sleep(LOOK);
            }
        }
    }
}
