//! A client of replicas: it asks whoever leads, and asks again until it is told.
//!
//! It keeps its connections to those that it has asked, and goes where it is sent. A command has a number in the client's session: whichever
//! replicas are asked for it, and how often, it is applied once.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use remanence_coord::mu::service::{Ask, Status, Told};
use remanence_remote::{Delays, Reactor, Session, Token};
use remanence_verbs::Context;

use crate::SERVICE;

/// How long nobody is asked when nobody is known who leads, at first and at most.
const AGAIN: Duration = Duration::from_millis(2);
const AGAIN_MAX: Duration = Duration::from_millis(50);

/// How replicas are asked.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    remote: remanence_remote::Options,
    patience: Duration,
    silence: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            remote: remanence_remote::Options::default(),
            patience: Duration::from_secs(30),
            silence: Duration::from_millis(500),
        }
    }
}

impl ClientOptions {
    /// The tokens of the replicas; each is asked which one is its own.
    #[must_use]
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.remote = self.remote.tokens(tokens);
        self
    }

    /// How long a command or a question may take, whichever replicas are there meanwhile; 30 s if nothing is said.
    #[must_use]
    pub const fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// How long a replica may say nothing before another one is asked; half a second if nothing is said.
    #[must_use]
    pub const fn silence(mut self, limit: Duration) -> Self {
        self.silence = limit;
        self
    }
}

/// Why a client was told nothing of what it wanted to know.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No replica was named, or there is no way to any.
    #[error("{0}")]
    NoReplica(String),
    /// No replica has said in time what became of it.
    #[error("the command may have been carried out or not: {0}")]
    Unknown(String),
    /// No replica has answered in time.
    #[error("no replica has answered: {0}")]
    Unanswered(String),
    /// No command can be that long.
    #[error("a command can have {0} bytes at most")]
    TooLong(u64),
    /// The client's session has ended, as too many others were begun since: of a command that was not answered nothing will be known.
    #[error(
        "the session of this client has ended, as too many others were begun since; what it has asked for last may have been carried out or not"
    )]
    Expired,
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A client, which has one command after the other.
#[derive(Debug)]
pub struct Client {
    reactor: Reactor,
    replicas: Vec<SocketAddr>,
    options: ClientOptions,
    connections: Vec<Option<Session>>,
    /// The replica that is asked.
    at: usize,
    session: Option<u64>,
    number: u64,
}

impl Client {
    /// Of these replicas, in the order of their numbers, by a device of its own. Nobody is asked yet.
    ///
    /// # Errors
    /// No replica is named, or there is no way from here to any of them.
    pub fn connect_to(replicas: &[SocketAddr], options: ClientOptions) -> Result<Self, ClientError> {
        let context = Context::towards_any(replicas.iter().map(SocketAddr::ip));
        Self::connect(&context.map_err(|e| ClientError::NoReplica(e.to_string()))?, replicas, options)
    }

    /// The same by a device that is open.
    ///
    /// # Errors
    /// No replica is named, or the device has no room.
    pub fn connect(
        context: &Context,
        replicas: &[SocketAddr],
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        if replicas.is_empty() {
            return Err(ClientError::NoReplica("no replica was named; name all of them".to_owned()));
        }
        let reactor = Reactor::new(context).map_err(|e| ClientError::NoReplica(e.to_string()))?;
        let connections = replicas.iter().map(|_| None).collect();
        let replicas = replicas.to_vec();
        Ok(Self { reactor, replicas, options, connections, at: 0, session: None, number: 0 })
    }

    /// Has a command carried out once; what it was answered. When this returns, both are durable on a majority of the replicas.
    ///
    /// # Errors
    /// It was not carried out, or nothing is known: it will not be from the next command of this client on.
    pub fn call(&mut self, command: &[u8]) -> Result<Vec<u8>, ClientError> {
        let until = Instant::now() + self.options.patience;
        let session = match self.session {
            Some(session) => session,
            None => match self.ask(&Ask::Open, until).map_err(ClientError::Unanswered)? {
                Told::Opened(session) => *self.session.insert(session),
                other => {
                    return Err(ClientError::Unanswered(format!(
                        "a session was asked for, and {other:?} came"
                    )));
                }
            },
        };
        self.number += 1;
        let ask = Ask::Command { session, number: self.number, command: command.to_vec() };
        match self.ask(&ask, until).map_err(ClientError::Unknown)? {
            Told::Done(answer) => Ok(answer),
            Told::TooLong(max) => Err(ClientError::TooLong(max)),
            Told::Expired => {
                self.session = None;
                Err(ClientError::Expired)
            }
            other => Err(ClientError::Unknown(format!("a command was sent, and {other:?} came"))),
        }
    }

    /// What the state says to a question, at a moment between the call and its return: whoever was told anything before the call, this knows of it.
    ///
    /// # Errors
    /// No replica has answered in time.
    pub fn query(&mut self, question: &[u8]) -> Result<Vec<u8>, ClientError> {
        let until = Instant::now() + self.options.patience;
        match self.ask(&Ask::Query(question.to_vec()), until).map_err(ClientError::Unanswered)? {
            Told::Done(answer) => Ok(answer),
            other => Err(ClientError::Unanswered(format!("a question was asked, and {other:?} came"))),
        }
    }

    /// How one of the replicas is.
    ///
    /// # Errors
    /// It does not answer, or it is not one of them.
    pub fn status(&mut self, replica: usize) -> Result<Status, ClientError> {
        if replica >= self.replicas.len() {
            return Err(ClientError::NoReplica(format!("{} replicas were named", self.replicas.len())));
        }
        match self.ask_once(replica, &Ask::Status.emit()).map_err(ClientError::Unanswered)? {
            Told::Status(status) => Ok(status),
            other => Err(ClientError::Unanswered(format!("its status was asked, and {other:?} came"))),
        }
    }

    /// Asks one replica after the other, until one says something that no other would say differently.
    fn ask(&mut self, ask: &Ask, until: Instant) -> Result<Told, String> {
        let bytes = ask.emit();
        let (mut delays, mut attempts) = (Delays::new(AGAIN, AGAIN_MAX), 0_u32);
        loop {
            let mut is_sent = false;
            let why = match self.ask_once(self.at, &bytes) {
                Ok(Told::Elsewhere(leader)) => {
                    let (asked, leader) = (self.at, usize::from(leader));
                    let is_known = leader < self.replicas.len();
                    // One that is about to lead is asked again, but not for ever: others may not reach it.
                    attempts += 1;
                    let goes_there = is_known && (leader != asked || attempts % 4 > 0);
                    is_sent = is_known && leader != asked;
                    self.at = if goes_there { leader } else { (asked + 1) % self.replicas.len() };
                    match is_known {
                        true => format!("replica {asked} says that replica {leader} is to lead"),
                        false => format!("replica {asked} knows nobody who leads"),
                    }
                }
                Ok(Told::Busy) => "too many others wait".to_owned(),
                Ok(Told::Unknown) => "the leader was replaced meanwhile".to_owned(),
                Ok(told) => return Ok(told),
                Err(why) => {
                    self.at = (self.at + 1) % self.replicas.len();
                    why
                }
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(why);
            }
            // Who is sent to another one asks that at once, unless they send it to each other.
            let delay = delays.next_delay();
            if !is_sent || delay > 2 * AGAIN {
                std::thread::sleep(delay.min(left));
            }
        }
    }

    fn ask_once(&mut self, replica: usize, bytes: &[u8]) -> Result<Told, String> {
        // It comes back when nothing is under way on it.
        let mut connection = match self.connections[replica].take() {
            Some(connection) => connection,
            None => {
                let options = self.options.remote.clone().patience(self.options.silence);
                Session::connect_on(&self.reactor, self.replicas[replica], options)
                    .map_err(|e| e.to_string())?
            }
        };
        if bytes.len() > connection.call_max() {
            let max = connection.call_max() as u64;
            self.connections[replica] = Some(connection);
            return Ok(Told::TooLong(max));
        }
        let told = connection.call(SERVICE, bytes).map_err(|e| e.to_string())?;
        self.connections[replica] = Some(connection);
        Told::parse(&told).map_err(|e| e.to_string())
    }
}
