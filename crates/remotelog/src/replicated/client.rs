//! A client of a replicated service: it finds the host that has the log, and sends a command again until it is answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remanence_coord::replicated::record::COMMAND_HEADER;
use remanence_remote::{Session, Token};
use remanence_verbs::Context;

use super::{Refusal, Reply, Request, SERVICE};

/// How long a client leaves the hosts alone when it has asked all of them in vain.
const AGAIN: Duration = Duration::from_millis(20);

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
    Nobody(String),
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
    context: Context,
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
        let context = Context::towards_any(hosts.iter().map(SocketAddr::ip));
        let context = context.map_err(|e| ClientError::Nobody(e.to_string()))?;
        Self::connect(&context, hosts, options)
    }

    /// The same by a device that is open.
    ///
    /// # Errors
    /// No host is named.
    pub fn connect(
        context: &Context,
        hosts: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        if hosts.is_empty() {
            return Err(ClientError::Nobody("no host was named; name all that may have the service".into()));
        }
        let (context, hosts) = (context.clone(), hosts.to_vec());
        Ok(Self { context, hosts, options, at: 0, connection: None, session: None, number: 0 })
    }

    /// Has a command carried out once, by whichever host has the service; what it was answered. When this returns, the command and its
    /// answer are durable on as many servers as the service's log was made with.
    ///
    /// # Errors
    /// It was not carried out; or nothing is known.
    pub fn call(&mut self, command: &[u8]) -> Result<Vec<u8>, ClientError> {
        let until = Instant::now() + self.options.patience;
        let session = match self.session {
            Some(session) => session,
            None => match self.ask(until, &Request::Open)? {
                Reply::Opened(session) => *self.session.insert(session),
                other => {
                    return Err(ClientError::Unknown(format!("a session was asked for, and {other:?} came")));
                }
            },
        };
        self.number += 1;
        let request = Request::Command { session, number: self.number, command: command.to_vec() };
        match self.ask(until, &request)? {
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
    fn ask(&mut self, until: Instant, request: &Request) -> Result<Reply, ClientError> {
        let bytes = request.emit();
        let mut attempts = 0;
        loop {
            let why = match self.ask_once(&bytes) {
                Ok(Reply::Unknown(why)) => why,
                Ok(Reply::Refused(refusal)) => match refusal {
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
                std::thread::sleep(AGAIN.min(until.saturating_duration_since(Instant::now())));
            }
        }
    }

    fn ask_once(&mut self, request: &[u8]) -> Result<Reply, String> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let options = self.options.remote.clone().patience(SILENT.min(self.options.patience));
                let session = Session::connect(&self.context, self.hosts[self.at], options);
                none.insert(session.map_err(|e| e.to_string())?)
            }
        };
        // What is too long for a message will not be shorter for being sent again.
        if request.len() > connection.call_max() {
            let max = connection.call_max().saturating_sub(COMMAND_HEADER as usize);
            return Ok(Reply::Refused(Refusal::TooLong(max as u64)));
        }
        let reply = connection.call(SERVICE, request).map_err(|e| e.to_string())?;
        Reply::parse(&reply).map_err(|e| e.to_string())
    }
}
