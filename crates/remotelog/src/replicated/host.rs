//! A host of a replicated service: it has the log, and answers clients.
//!
//! The serving thread waits for nothing but what it sleeps on: messages of clients, what comes from the log's servers, for which a thread of
//! its own waits and wakes it ([`Arrivals`]), and the next deadline. Each turn appends what has come since the last one, and answers what is
//! acknowledged by then, or will not be. Servers are connected to beside, at first and when they were lost, which wakes it too.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_coord::replicated::{Read, Replica, Reply, Request, StateMachine};
use remanence_persist::Config;
use remanence_persist::taxonomy::Domain;
use remanence_pmem::Region;
use remanence_remote::{
    Reactor, Reading, Server, ServerOptions, Session, SessionControl, Stats, Stop, Token, Unanswered,
};
use remanence_verbs::Context;

use super::{Limits, SERVICE, SURVIVES};
use crate::client::{ConnectOptions, no_server, said};
use crate::connection::{self, SessionConnection};
use crate::group::{ConnectionLost, Group, GroupError, ReplicaConnection};

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
    /// said. A host that takes over waits as long for servers that are not there. Clients hear at once that too few servers are there, if that
    /// is known.
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
    /// service should have the same: of an answer that does not fit a client learns that its command was carried out, and no more.
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
        let (asked, control) = (Arc::clone(&hosting), server.cutter());
        server.on_call_later(SERVICE, move |call, unanswered| match &mut *lock(&asked) {
            Some(hosting) => hosting.submit(call.request, unanswered),
            None => control.answer(unanswered, Err("the service has no log yet; ask again".to_owned())),
        });
        let turn = Arc::clone(&hosting);
        server.on_turn(move |_| lock(&turn).as_mut().and_then(Hosting::turn));
        Ok(Self { context: context.clone(), logs: logs.to_vec(), options, server, hosting })
    }

    /// The address that clients connect to.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Takes the log over from whichever host had it, reads it, and serves until it is stopped, which it hears of at once, also while it
    /// opens the log. What clients ask before that waits for it.
    ///
    /// # Errors
    /// Too few of the log's servers are there, it is not the log of such a service, or another host has taken over. The service has panicked at
    /// a command, which is named, and every host of the same release would. The device is gone.
    pub fn run(&mut self, stop: &Stop) -> Result<Stats, HostError> {
        if self.logs.is_empty() {
            return Err(no_server().into());
        }
        let reactor = Reactor::new(&self.context).map_err(remanence_remote::Error::from)?;
        let control = self.server.cutter();
        let arrivals = Arrivals::start(&reactor, control.clone())?;
        let hosting = Hosting::begin(&self.logs, &self.options, &reactor, control);
        *lock(&self.hosting) = Some(hosting);
        let served = self.server.run(stop);
        drop(arrivals);
        let ended = lock(&self.hosting).take().and_then(|hosting| hosting.ended);
        match ended {
            Some(ended) => Err(ended.into()),
            None => Ok(served?),
        }
    }
}

/// What is there is whole between any two statements that can panic.
fn lock<T>(hosting: &Mutex<T>) -> MutexGuard<'_, T> {
    hosting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for what comes from the servers of the log, and wakes the serving thread, until it is dropped.
struct Arrivals {
    reactor: Reactor,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Arrivals {
    fn start(reactor: &Reactor, control: SessionControl) -> Result<Self, HostError> {
        let over = Arc::new(AtomicBool::new(false));
        let (mut waiter, ends) = (reactor.waiter(), Arc::clone(&over));
        let wait = move || {
            while !ends.load(Ordering::Acquire) {
                let came = waiter.wait(None);
                control.wake();
                // A queue that is broken says so to each session that looks.
                if came.is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("replicated-arrivals".into()).spawn(wait);
        let thread = thread.map_err(|e| said(&format!("the system gives no thread: {e}")))?;
        Ok(Self { reactor: reactor.clone(), over, thread: Some(thread) })
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.reactor.waker().wake();
        if let Some(thread) = self.thread.take() {
            // A panic of its has been printed.
            let _ = thread.join();
        }
    }
}

/// Wakes the serving thread.
struct Serving(SessionControl);

impl Wake for Serving {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

/// What the replica reads of the log; begun, if the session had room.
#[derive(Debug)]
struct Part {
    read: Read,
    /// The connection that it is read over: nothing of it comes over a later one.
    life: u64,
    reading: Option<Reading>,
}

impl Part {
    /// What has come, if it has.
    fn take(&mut self, session: &mut Session) -> Result<Option<Vec<u8>>, remanence_remote::Error> {
        if self.reading.is_none() {
            self.reading = session.try_read(self.read.offset, self.read.len)?;
        }
        Ok(self.reading.as_ref().and_then(|reading| session.try_finish_read(reading)))
    }
}

/// A host that has the log, or opens it.
#[derive(Debug)]
struct Hosting<S> {
    log: Group<SessionConnection>,
    replica: Replica<S>,
    patience: Duration,
    control: SessionControl,
    /// Who asked what is not answered yet.
    asked: BTreeMap<u64, Unanswered>,
    tokens: u64,
    /// What is read, also of those whom the replica waits for no longer: it takes room in their sessions until it has come.
    parts: Vec<Part>,
    ended: Option<GroupError>,
}

impl<S: StateMachine> Hosting<S> {
    fn begin(logs: &[SocketAddr], options: &HostOptions, reactor: &Reactor, control: SessionControl) -> Self {
        let waker = Arc::new(Serving(control.clone())).into();
        Self {
            log: connection::begin(reactor, logs, &options.log, waker),
            replica: Replica::new(options.limits),
            patience: options.log.patience,
            control,
            asked: BTreeMap::new(),
            tokens: 0,
            parts: Vec::new(),
            ended: None,
        }
    }

    /// Takes what a client asks. It is answered by a [turn](Self::turn).
    fn submit(&mut self, request: &[u8], unanswered: Unanswered) {
        if request == SURVIVES {
            let bits = self.log.survives().map(|survives| survives.to_bits() as u8);
            return self.control.answer(unanswered, Ok(Reply::Done(bits.into_iter().collect()).emit()));
        }
        match Request::parse(request) {
            Ok(request) => {
                self.tokens += 1;
                self.asked.insert(self.tokens, unanswered);
                self.replica.submit(self.tokens, SessionConnection::now() + self.patience, request);
            }
            Err(malformed) => self.control.answer(unanswered, Err(malformed.to_string())),
        }
    }

    /// Does what there is to do, and says how long there will be nothing. Nothing: it is over.
    fn turn(&mut self) -> Option<Duration> {
        loop {
            // What is wrong the replica sees, too.
            let _ = self.log.poll();
            self.replica.advance(SessionConnection::now(), &mut self.log);
            let has_read = self.read();
            if !has_read && !self.log.goes_on() {
                break;
            }
        }
        while let Some((token, reply)) = self.replica.poll_answer() {
            if let Some(unanswered) = self.asked.remove(&token) {
                let reply = reply.emit_within(unanswered.answer_max());
                self.control.answer(unanswered, Ok(reply));
            }
        }
        self.ended = self.replica.ended().cloned().or_else(|| self.log.machine().shortage());
        if self.ended.is_some() {
            return None;
        }
        let due = self.replica.deadline().map(|due| due.saturating_sub(SessionConnection::now()));
        Some(due.map_or(self.log.rests(), |due| due.min(self.log.rests())))
    }

    /// Reads what the replica wants to be read, as far as that goes without waiting. Whether something has come of it.
    fn read(&mut self) -> bool {
        self.parts.extend(self.replica.poll_read().map(|read| Part {
            life: self.log.life(read.server),
            read,
            reading: None,
        }));
        let (mut any, mut n) = (false, 0);
        while let Some(part) = self.parts.get_mut(n) {
            let Read { number, server, .. } = part.read;
            let is_there = self.log.life(server) == part.life;
            let connection = self.log.connection(server).filter(|_| is_there);
            let came = match connection.map(|connection| part.take(connection.session())) {
                Some(Ok(None)) => {
                    n += 1;
                    continue;
                }
                Some(Ok(bytes)) => bytes,
                Some(Err(why)) => {
                    self.log.lose(server, ConnectionLost(why.to_string()));
                    None
                }
                None => None,
            };
            self.replica.came(number, came);
            self.parts.remove(n);
            any = true;
        }
        any
    }
}
