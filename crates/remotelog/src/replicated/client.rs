//! A client of a replicated service: it finds the host that has the log, and sends a command again until it is answered.
//!
//! What it does is written once, for a thread that waits ([`Client`]) and for a task ([`AsyncClient`]). Where it waits it may be given up:
//! a connection on which something is under way goes with it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remanence_coord::replicated::record::COMMAND_HEADER;
use remanence_pmem::Survives;
use remanence_remote::{
    Background, Delays, Face, Reactor, Reconnect, Session, Timer, Token, Turns, at_once, elsewhere,
};
use remanence_verbs::Context;

use super::{Refusal, Reply, Request, SERVICE, SURVIVES};

/// How long a client leaves the hosts alone when it has asked all of them in vain, at first and at most: none of them can say when one of
/// them will have the log.
const AGAIN: Duration = Duration::from_millis(5);
const AGAIN_MAX: Duration = Duration::from_millis(100);

/// How long a host may say nothing before another one is asked. What it was asked for may still be carried out, and is known by its number.
const SILENT: Duration = Duration::from_secs(3);

/// How a service is connected to.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    remote: remanence_remote::Options,
    patience: Duration,
}

impl Default for ClientOptions {
    /// Half a minute for each command, whichever hosts are there meanwhile.
    fn default() -> Self {
        Self { remote: remanence_remote::Options::default(), patience: Duration::from_secs(30) }
    }
}

impl ClientOptions {
    /// The tokens of the hosts; each of them is asked which one is its own.
    #[must_use]
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.remote = self.remote.tokens(tokens);
        self
    }

    /// How long a command may take, whichever hosts are there meanwhile; 30 s if nothing is said.
    #[must_use]
    pub const fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }
}

/// Why a command was not answered with its result.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The command was not carried out, and will not be.
    #[error("{0}")]
    Refused(Refusal),
    /// The command may have been carried out. It will not be from the next command of this client on.
    #[error("the command may have been carried out or not: {0}")]
    Unknown(String),
    /// The command was carried out, and its answer does not fit into a message of the host.
    #[error(
        "the command was carried out, and its answer has {len} bytes where {max} fit into a message; give all hosts longer messages, or have \
         the service answer less"
    )]
    Oversized {
        /// Bytes of the answer.
        len: u64,
        /// Bytes that an answer can have.
        max: u64,
    },
    /// No host was named, or there is no way to any.
    #[error("{0}")]
    NoHost(String),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A client of a replicated service.
#[derive(Debug)]
pub struct Client {
    reactor: Reactor,
    timer: Timer,
    hosts: Vec<SocketAddr>,
    options: ClientOptions,
    /// The host that is asked, and the connection to it.
    at: usize,
    connection: Option<Session>,
    /// Its session with the service, whichever host has that.
    session: Option<u64>,
    number: u64,
}

impl Client {
    /// Of the service that one of these hosts serves, by a device of its own. Nobody is asked yet.
    ///
    /// # Errors
    /// No host is named, or there is no way from here to any of them.
    pub fn connect_to(hosts: &[SocketAddr], options: ClientOptions) -> Result<Self, ClientError> {
        Self::connect(&towards(hosts)?, hosts, options)
    }

    /// The same by a device that is open.
    ///
    /// # Errors
    /// No host is named, or the device has no room.
    pub fn connect(
        context: &Context,
        hosts: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        Self::connect_on(&Reactor::new(context).map_err(no_host)?, hosts, options)
    }

    fn connect_on(
        reactor: &Reactor,
        hosts: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        if hosts.is_empty() {
            return Err(no_host("no host was named; name all that may have the service"));
        }
        let (reactor, timer, hosts) = (reactor.clone(), reactor.timer(), hosts.to_vec());
        Ok(Self { reactor, timer, hosts, options, at: 0, connection: None, session: None, number: 0 })
    }

    /// Has a command carried out once, by whichever host has the service; what it was answered. When this returns, the command and its
    /// answer are durable on as many servers as the service's log was made with.
    ///
    /// # Errors
    /// It was not carried out; or nothing is known.
    pub fn call(&mut self, command: &[u8]) -> Result<Vec<u8>, ClientError> {
        at_once(self.call_as(Face::Thread, command))
    }

    /// Which failures answered commands survive, as the host that is asked says it: what a record does on every server of the log that takes
    /// part. `None` if that host has made nothing durable yet.
    ///
    /// # Errors
    /// No host has answered in time.
    pub fn survives(&mut self) -> Result<Option<Survives>, ClientError> {
        at_once(self.survives_as(Face::Thread))
    }

    async fn survives_as(&mut self, face: Face) -> Result<Option<Survives>, ClientError> {
        match self.ask(face, Instant::now() + self.options.patience, SURVIVES).await? {
            Reply::Done(bits) if bits.len() <= 1 => {
                Ok(bits.first().map(|bits| Survives::from_bits((*bits).into())))
            }
            other => Err(ClientError::Unknown(format!("what survives was asked, and {other:?} came"))),
        }
    }

    async fn call_as(&mut self, face: Face, command: &[u8]) -> Result<Vec<u8>, ClientError> {
        let until = Instant::now() + self.options.patience;
        let session = match self.session {
            Some(session) => session,
            None => match self.ask(face, until, &Request::Open.emit()).await? {
                Reply::Opened(session) => *self.session.insert(session),
                other => {
                    return Err(ClientError::Unknown(format!("a session was asked for, and {other:?} came")));
                }
            },
        };
        self.number += 1;
        let request = Request::Command { session, number: self.number, command: command.to_vec() };
        match self.ask(face, until, &request.emit()).await? {
            Reply::Done(answer) => Ok(answer),
            Reply::Oversized { len, max } => Err(ClientError::Oversized { len, max }),
            Reply::Refused(Refusal::Expired) => {
                // An earlier attempt may have been the last thing that the session did.
                self.session = None;
                Err(ClientError::Unknown(Refusal::Expired.to_string()))
            }
            Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
            other => Err(ClientError::Unknown(format!("a command was sent, and {other:?} came"))),
        }
    }

    /// Asks one host after the other, until one says something that no other would say differently.
    async fn ask(&mut self, face: Face, until: Instant, request: &[u8]) -> Result<Reply, ClientError> {
        let mut attempts = 0;
        // An attempt was perhaps carried out: what another host takes or not says nothing of that.
        let mut is_unknown = false;
        let mut reconnect = Reconnect::new(Delays::new(AGAIN, AGAIN_MAX));
        loop {
            let why = match self.ask_once(face, request, &mut is_unknown).await {
                Ok(Reply::Unknown(why)) => {
                    is_unknown = true;
                    why
                }
                Ok(Reply::Refused(refusal)) => match refusal {
                    Refusal::TooLong(_) if is_unknown => refusal.to_string(),
                    Refusal::Expired | Refusal::Stale | Refusal::TooLong(_) => {
                        return Ok(Reply::Refused(refusal));
                    }
                    Refusal::Busy
                    | Refusal::Full
                    | Refusal::Late
                    | Refusal::TooFew(_)
                    | Refusal::Replaced(_) => refusal.to_string(),
                },
                Ok(reply) => return Ok(reply),
                Err(why) => why,
            };
            self.connection = None;
            self.at = (self.at + 1) % self.hosts.len();
            attempts += 1;
            if Instant::now() >= until {
                return Err(ClientError::Unknown(why));
            }
            if attempts % self.hosts.len() == 0 {
                reconnect.failed(Instant::now());
                reconnect.due(face, &mut self.timer, until).await;
            }
        }
    }

    async fn ask_once(&mut self, face: Face, request: &[u8], is_unknown: &mut bool) -> Result<Reply, String> {
        // It comes back when nothing is under way on it.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.dial(face).await?,
        };
        // What is too long for a message will not be shorter for being sent again.
        if request.len() > connection.call_max() {
            let max = connection.call_max().saturating_sub(COMMAND_HEADER as usize);
            self.connection = Some(connection);
            return Ok(Reply::Refused(Refusal::TooLong(max as u64)));
        }
        let reply = match connection.call_as(face, SERVICE, request).await {
            Ok(reply) => {
                self.connection = Some(connection);
                Reply::parse(&reply).map_err(|e| e.to_string())
            }
            Err(lost) => Err(lost.to_string()),
        };
        *is_unknown |= reply.is_err();
        reply
    }

    async fn dial(&self, face: Face) -> Result<Session, String> {
        let options = self.options.remote.clone().patience(SILENT.min(self.options.patience));
        let (reactor, host) = (self.reactor.clone(), self.hosts[self.at]);
        let dial = move || Session::connect_on(&reactor, host, options).map_err(|e| e.to_string());
        match face {
            Face::Thread => dial(),
            Face::Task => elsewhere(dial).await,
        }
    }
}

fn no_host(why: impl std::fmt::Display) -> ClientError {
    ClientError::NoHost(why.to_string())
}

fn towards(hosts: &[SocketAddr]) -> Result<Context, ClientError> {
    Context::towards_any(hosts.iter().map(SocketAddr::ip)).map_err(no_host)
}

/// A client of a replicated service, for programs that do not wait: a future for each command, for any executor. Clones are the same client.
///
/// A client has one command after the other: those of several tasks are sent in the order in which their futures were first polled. Who
/// wants commands to be under way at the same time has a client for each, on one reactor.
///
/// **Nobody has to await a future.** A command whose future is dropped was carried out or not, and will not be from the next command of this
/// client on; one whose turn had not come is never sent. [`Reactor::within`] is a time limit.
///
/// ```no_run
/// # use remanence_remotelog::replicated::{AsyncClient, ClientError, ClientOptions};
/// # async fn example(hosts: [std::net::SocketAddr; 2]) -> Result<(), ClientError> {
/// let client = AsyncClient::connect_to(&hosts, ClientOptions::default())?;
/// let answer = client.call(b"add 1").await?; // carried out once, and durable
/// # drop(answer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient {
    turns: Turns<Client>,
    /// Behind the client, whose session it waits for.
    _background: Option<Arc<Background>>,
}

impl AsyncClient {
    /// Of the service that one of these hosts serves, by a device of its own, with a thread of its own that waits for it. Nobody is asked
    /// yet.
    ///
    /// # Errors
    /// No host is named, or there is no way from here to any of them; or the system refuses a thread.
    pub fn connect_to(hosts: &[SocketAddr], options: ClientOptions) -> Result<Self, ClientError> {
        let reactor = Reactor::new(&towards(hosts)?).map_err(no_host)?;
        let this = Self::connect(&reactor, hosts, options)?;
        Ok(Self { _background: Some(Arc::new(reactor.in_background().map_err(no_host)?)), ..this })
    }

    /// The same on a reactor that others may share. It goes on while some thread waits for that: [`Reactor::in_background`], or
    /// [`Reactor::block_on`].
    ///
    /// # Errors
    /// No host is named.
    pub fn connect(
        reactor: &Reactor,
        hosts: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let turns = Turns::new(Client::connect_on(reactor, hosts, options)?);
        Ok(Self { turns, _background: None })
    }

    /// Has a command carried out once, by whichever host has the service; what it was answered. When the future ends, the command and its
    /// answer are durable on as many servers as the service's log was made with. It begins when it is first polled, and its patience when its
    /// turn has come.
    ///
    /// # Errors
    /// It was not carried out; or nothing is known.
    pub async fn call(&self, command: &[u8]) -> Result<Vec<u8>, ClientError> {
        self.turns.turn().await.call_as(Face::Task, command).await
    }

    /// Which failures answered commands survive: see [`Client::survives`].
    ///
    /// # Errors
    /// No host has answered in time.
    pub async fn survives(&self) -> Result<Option<Survives>, ClientError> {
        self.turns.turn().await.survives_as(Face::Task).await
    }
}
