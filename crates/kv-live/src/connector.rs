//! Where a store is, for clients: one server, or whichever of several members is the primary; and what the difference is for
//! what comes of an operation.

use std::net::SocketAddr;
use std::task::Context as Task;
use std::time::{Duration, Instant};

use remanence_pmem::Survives;
use remanence_remote::{Delays, Reactor};
use remanence_verbs::Context;

use super::members::{Members, Promises};
use super::session::reactor;
use super::{Asked, ConnectOptions, Error, MemberStats, Said, Session};
use remanence_kv::view::View;

/// Between two attempts to connect again. A server that is gone cannot say when it is back, nor members when one of them will lead.
pub(super) fn delays() -> Delays {
    Delays::new(Duration::from_millis(2), Duration::from_millis(100))
}

/// Where the store is, and the reactor for all sessions of its client.
#[derive(Debug)]
pub(super) enum Connector {
    Server(Reactor, SocketAddr),
    /// At whichever of them is the primary.
    Members(Box<Members>),
}

impl Connector {
    /// To one server.
    pub(super) fn server(
        context: &Context,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<(Self, Session, View), Error> {
        let reactor = reactor(context, options)?;
        let (session, view) = Session::connect_on(&reactor, to, options)?;
        Ok((Self::Server(reactor, to), session, view))
    }

    /// To the primary of these members. If there is none at the moment, waits for one as long as the patience lasts.
    pub(super) fn members(
        context: &Context,
        members: &[SocketAddr],
        options: &ConnectOptions,
    ) -> Result<(Self, Session, View), Error> {
        let begin = Instant::now();
        let reactor = reactor(context, options)?;
        let mut delays = delays();
        loop {
            let outcome = Members::find(&reactor, members, options).and_then(|mut members| {
                let (session, view) = members.connect()?;
                Ok((Self::Members(Box::new(members)), session, view))
            });
            match outcome {
                // One is being chosen, or just lost.
                Err(Error::NoPrimary(_) | Error::Remote(_)) if begin.elapsed() < options.waits() => {
                    std::thread::sleep(delays.next_delay());
                }
                outcome => return outcome,
            }
        }
    }

    pub(super) fn dial(&mut self, options: &ConnectOptions) -> Result<(Session, View), Error> {
        match self {
            Self::Server(reactor, to) => Session::connect_on(reactor, *to, options),
            Self::Members(members) => members.connect(),
        }
    }

    pub(super) const fn is_replicated(&self) -> bool {
        matches!(self, Self::Members(_))
    }

    /// An operation begins.
    pub(super) fn look_ahead(&mut self) {
        if let Self::Members(members) = self {
            members.look_ahead();
        }
    }

    /// Whether what was read over this session since [`look_ahead`](Self::look_ahead), and what was said, is that of the
    /// primary.
    ///
    /// # Errors
    /// It is not known to be, or the session is over.
    pub(super) fn vouched(&mut self, session: &mut Session) -> Result<(), Error> {
        self.vouched_by(session, Promises::new())
    }

    /// The same, where some promises have been taken already.
    ///
    /// # Errors
    /// As [`vouched`](Self::vouched).
    pub(super) fn vouched_by(&mut self, session: &mut Session, promises: Promises) -> Result<(), Error> {
        let vouched = match self {
            Self::Members(members) => members.vouched(session, promises)?,
            Self::Server(..) => true,
        };
        if vouched { Ok(()) } else { Err(Error::Deposed) }
    }

    /// Whether the promises that were read along are enough, for a task; `None` if some of them may still come.
    pub(super) fn glance(&mut self, promises: &mut Promises, task: &Task<'_>) -> Option<bool> {
        match self {
            Self::Members(members) => members.glance(promises, task),
            Self::Server(..) => Some(true),
        }
    }

    pub(super) fn stats(&mut self) -> Result<Vec<(String, Said)>, Error> {
        match self {
            Self::Server(..) => Ok(Vec::new()),
            Self::Members(members) => members.stats(),
        }
    }

    pub(super) fn primary(&self) -> Option<&MemberStats> {
        match self {
            Self::Server(..) => None,
            Self::Members(members) => Some(members.primary()),
        }
    }

    /// Which failures acknowledged changes survive: see [`Store::survives`](super::Store::survives).
    pub(super) fn survives(&self, session: &Session) -> Option<Survives> {
        match self.primary() {
            Some(primary) => Some(primary.log_survives),
            None => session.survives(),
        }
    }

    pub(super) fn asked(&self) -> Asked {
        match self {
            Self::Server(..) => Asked::default(),
            Self::Members(members) => members.asked(),
        }
    }
}
