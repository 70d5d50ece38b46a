//! Where a store is, for clients: one server, or whichever of several members is the primary; and what the difference is for
//! what comes of an operation.

use std::net::SocketAddr;
use std::task::{Context as Task, Poll};
use std::time::{Duration, Instant};

use remanence_pmem::Survives;
use remanence_remote::{Delays, Reactor, Timer, elsewhere};
use remanence_verbs::Context;

use super::members::{LATE, Members, Promises};
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

/// Where the store is, and the session with it: what a client reaches.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) connector: Connector,
    pub(super) session: Session,
}

impl Path {
    /// For a task: does what blocks with what is reached, in a thread beside it. It is away meanwhile.
    pub(super) async fn beside<T: Send + 'static>(
        place: &mut Option<Box<Self>>,
        act: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> T {
        let mut path = place.take().expect("one thing is done with it at a time");
        let (path, done) = elsewhere(move || {
            let done = act(&mut path);
            (path, done)
        })
        .await;
        *place = Some(path);
        done
    }

    /// For a task: as [`Connector::vouched`]. Mostly what was read along with the operation says so; else members are asked, which blocks.
    pub(super) async fn vouched(place: &mut Option<Box<Self>>, timer: &mut Timer) -> Result<(), Error> {
        let mut promises = Promises::new();
        let mut late = None;
        let connector = &mut place.as_mut().expect("nothing is done with it").connector;
        let is_enough = std::future::poll_fn(|task| {
            let enough = connector.glance(&mut promises, task);
            if enough.is_none() {
                // Mostly they are there already, and no time is needed.
                timer.set(Some(*late.get_or_insert_with(|| Instant::now() + LATE)));
                if timer.poll_over(task).is_pending() {
                    return Poll::Pending;
                }
            }
            Poll::Ready(enough == Some(true))
        })
        .await;
        if is_enough {
            return Ok(());
        }
        Self::beside(place, |path| path.connector.vouched_by(&mut path.session, promises)).await
    }
}
