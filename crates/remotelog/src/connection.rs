//! A connection to a server of a log, and who makes it: at first, and again when it is lost.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::task::{Context as Task, Waker};
use std::time::{Duration, Instant};

use remanence_persist::plan::Request as PlanRequest;
use remanence_persist::recipe::{Op, Recipe};
use remanence_pmem::Survives;
use remanence_remote::{Delays, Error, Face, Options, Plan, Reactor, Reading, Reconnecting, Session, Waiter};

use super::SERVICE;
use crate::client::ConnectOptions;
use crate::error::Refused;
use crate::group::{ConnectionLost, Connector, Event, Group, ReplicaConnection};
use crate::proto::{Request, parse_reply};
use crate::store::Status;
use crate::writer::Updates;

/// How often a server is asked again that is cutting the connection of an older writer: that takes a turn of its serving
/// thread, which an application may keep busy.
const ASKED_AGAIN: usize = 10_000;

/// How long a server is left alone that was tried in vain, or lost as soon as it was there.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the clock of all connections begins.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A time of the connections' clock, for the reactor.
pub(crate) fn instant(at: Duration) -> Option<Instant> {
    BEGUN.checked_add(at)
}

/// How updates are made durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Method {
    /// Updates are made durable by the cheapest recipe that is proven.
    Cheapest,
    /// Updates are made durable by the recipe that the paper has for that operation.
    Op(Op),
    /// Updates are made durable by this recipe, which is proven first.
    Recipe(Op, Recipe),
}

/// Why a server does not do what it is asked for.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The server refused, and said why.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The server is gone, or never was there.
    #[error(transparent)]
    Lost(#[from] ConnectionLost),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// What was asked for and has not begun, as the session has no room for it now.
#[derive(Debug)]
enum Waiting {
    Call(Vec<u8>),
    Read(u64, u32),
    Append(Updates, PlanRequest),
}

/// A session with a server of a log, on which nothing but [`wait`](ReplicaConnection::wait) waits.
#[derive(Debug)]
pub struct SessionConnection {
    session: Session,
    method: Method,
    plans: Vec<(PlanRequest, Plan)>,
    waiting: VecDeque<Waiting>,
    calls: VecDeque<u64>,
    reads: VecDeque<Reading>,
    /// For all connections of the group.
    waiter: Waiter,
    survives: Option<Survives>,
}

/// Connects to a server of a log. The connections of a group have one reactor, by which they are waited for together:
/// [`Group::open`](crate::Group::open) refuses others.
///
/// # Errors
/// One sentence that says what to do.
pub fn connect(
    reactor: &Reactor,
    to: SocketAddr,
    options: Options,
    method: Method,
) -> Result<SessionConnection, ConnectionLost> {
    let session = Session::connect_on(reactor, to, options).map_err(lost)?;
    Ok(SessionConnection {
        waiter: reactor.waiter(),
        session,
        method,
        plans: Vec::new(),
        waiting: VecDeque::new(),
        calls: VecDeque::new(),
        reads: VecDeque::new(),
        survives: None,
    })
}

/// Connects to the servers of a log, on one reactor, each by a thread of its own: nobody waits for one who is not there.
#[derive(Debug)]
struct Servers {
    addrs: Vec<SocketAddr>,
    options: ConnectOptions,
    links: Vec<Reconnecting<Result<SessionConnection, ConnectionLost>>>,
    /// For all connections of the group.
    waiter: Waiter,
    /// Whoever goes on with the group is woken by it when an attempt has ended.
    waker: Waker,
}

/// Begins to open the log on these servers: see [`Group::begin_by`]. By `waker` whoever goes on with it is woken when an attempt to connect has
/// ended.
pub(crate) fn begin(
    reactor: &Reactor,
    servers: &[SocketAddr],
    options: &ConnectOptions,
    waker: Waker,
) -> Group<SessionConnection> {
    let connector = Servers {
        addrs: servers.to_vec(),
        options: options.clone(),
        links: servers.iter().map(|_| Reconnecting::new(Delays::new(PAUSE, PAUSE))).collect(),
        waiter: reactor.waiter(),
        waker,
    };
    let names = servers.iter().map(ToString::to_string).collect();
    Group::begin_by(Box::new(connector), names, &options.group())
}

impl Connector<SessionConnection> for Servers {
    fn poll(&mut self, server: usize, may: bool) -> Option<Result<SessionConnection, ConnectionLost>> {
        let Self { addrs, options, links, waiter, waker } = self;
        let attempt = || {
            let (reactor, to) = (waiter.reactor().clone(), addrs[server]);
            let (remote, method) = (options.remote.clone(), options.method.clone());
            may.then_some(move || connect(&reactor, to, remote, method))
        };
        links[server].poll(&mut Task::from_waker(waker), attempt)
    }

    fn deadline(&self, server: usize) -> Option<Duration> {
        self.links[server].deadline().map(|at| at.saturating_duration_since(*BEGUN))
    }

    fn wait(&mut self, limit: Duration) {
        // A queue that is broken says so to each session that looks.
        let _ = self.waiter.wait(Instant::now().checked_add(limit));
    }
}

fn lost(error: Error) -> ConnectionLost {
    ConnectionLost(error.to_string())
}

impl SessionConnection {
    /// The session that the connection uses.
    pub const fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Which failures the last record that was made durable survives, by the recipe's token.
    #[must_use]
    pub const fn survives(&self) -> Option<Survives> {
        self.survives
    }

    /// Asks for something, and waits for the answer: the log's status afterwards.
    ///
    /// # Errors
    /// The server refuses, or is gone.
    pub fn call(&mut self, request: &Request) -> Result<Status, CallError> {
        let request = request.emit();
        for _ in 0..ASKED_AGAIN {
            match parse_reply(&self.session.call(SERVICE, &request).map_err(lost)?) {
                Err(Refused::Busy) => {}
                reply => return Ok(reply?),
            }
        }
        Err(Refused::Busy.into())
    }

    /// Reads from the server's region, and waits for what comes.
    ///
    /// # Errors
    /// The server is gone.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), ConnectionLost> {
        self.session.read(offset, into).map_err(lost)
    }

    /// Whether all that was begun has ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.calls.is_empty() && self.reads.is_empty()
    }

    /// Waits for what comes next of what was begun. A future that is dropped leaves it to the next one.
    pub(crate) async fn came(&mut self, face: Face) -> Result<Event, ConnectionLost> {
        loop {
            if let Some(event) = self.poll()? {
                return Ok(event);
            }
            self.session.came(face).await.map_err(lost)?;
        }
    }

    /// The recipe for a record of so many bytes, as text; and whether the server's CPU takes part in it.
    ///
    /// # Errors
    /// There is no recipe that makes such a record durable there.
    pub fn explain(&mut self, request: &PlanRequest) -> Result<(String, bool), CallError> {
        let plan = match &self.method {
            Method::Cheapest => self.session.plan(request),
            Method::Op(op) => self.session.plan_by(*op, request),
            Method::Recipe(op, recipe) => self.session.plan_for(*op, recipe.clone(), request),
        };
        let plan = plan.map_err(|refusal| Refused::Said(refusal.to_string()))?;
        Ok((plan.recipe.to_string(), plan.recipe.is_two_sided()))
    }

    /// The plan for updates like these, which is kept for the next ones; `None` while it is not known yet.
    fn plan(&mut self, request: &PlanRequest) -> Result<Option<Plan>, ConnectionLost> {
        if let Some((_, plan)) = self.plans.iter().find(|(known, _)| known == request) {
            return Ok(Some(plan.clone()));
        }
        let plan = match &self.method {
            Method::Cheapest => self.session.try_plan(request),
            // This waits, which is of no harm: it is for comparisons only, where nobody else is waited for.
            Method::Op(op) => self.session.plan_by(*op, request).map(Some),
            Method::Recipe(op, recipe) => self.session.plan_for(*op, recipe.clone(), request).map(Some),
        };
        let plan = plan.map_err(|refusal| ConnectionLost(refusal.to_string()))?;
        if let Some(plan) = &plan {
            self.plans.push((request.clone(), plan.clone()));
        }
        Ok(plan)
    }

    /// What has come, if anything has.
    fn take(&mut self) -> Result<Option<Event>, ConnectionLost> {
        if let Some((_, token)) = self.session.poll().map_err(lost)? {
            self.survives = Some(token.survives());
            return Ok(Some(Event::Durable));
        }
        if let Some(number) = self.calls.front().copied()
            && let Some(answer) = self.session.answer(number)
        {
            self.calls.pop_front();
            let answer = answer.map_err(|why| lost(Error::Application(why)))?;
            return Ok(Some(Event::Reply(parse_reply(&answer).map(Box::new))));
        }
        if let Some(reading) = self.reads.front()
            && let Some(bytes) = self.session.try_finish_read(reading)
        {
            self.reads.pop_front();
            return Ok(Some(Event::Data(bytes)));
        }
        Ok(None)
    }

    /// Begins what waits, as far as there is room. Whether there is something new to be taken for it: something was begun, or waited for.
    fn begin(&mut self) -> Result<bool, ConnectionLost> {
        let before = (self.waiting.len(), self.plans.len());
        while let Some(first) = self.waiting.pop_front() {
            let begun = match &first {
                Waiting::Call(request) => self.try_call(request)?,
                Waiting::Read(offset, len) => self.try_read(*offset, *len)?,
                Waiting::Append(updates, plan) => self.try_append(updates, plan)?,
            };
            if !begun {
                self.waiting.push_front(first);
                break;
            }
        }
        Ok((self.waiting.len(), self.plans.len()) != before)
    }

    fn try_call(&mut self, request: &[u8]) -> Result<bool, ConnectionLost> {
        let number = self.session.try_call(SERVICE, request).map_err(lost)?;
        self.calls.extend(number);
        Ok(number.is_some())
    }

    fn try_read(&mut self, offset: u64, len: u32) -> Result<bool, ConnectionLost> {
        let reading = self.session.try_read(offset, len).map_err(lost)?;
        let begun = reading.is_some();
        self.reads.extend(reading);
        Ok(begun)
    }

    fn try_append(&mut self, updates: &Updates, plan: &PlanRequest) -> Result<bool, ConnectionLost> {
        let Some(plan) = self.plan(plan)? else { return Ok(false) };
        let ticket = updates.with(|list| self.session.try_submit(&plan, list)).map_err(lost)?;
        Ok(ticket.is_some())
    }
}

/// What has come next, if anything has: `take` says so, and `begin` begins what waits and says whether to look again. Where it ends in
/// nothing, `begin` has seen all that was taken: else what lets something begin might be taken and forgotten, and with nothing under way
/// nobody would be woken.
fn next<S, T, E>(
    of: &mut S,
    take: impl Fn(&mut S) -> Result<Option<T>, E>,
    begin: impl Fn(&mut S) -> Result<bool, E>,
) -> Result<Option<T>, E> {
    loop {
        let came = take(of)?;
        if came.is_some() || !begin(of)? {
            return Ok(came);
        }
    }
}

impl ReplicaConnection for SessionConnection {
    fn now() -> Duration {
        BEGUN.elapsed()
    }

    fn yield_now() {
        std::thread::yield_now();
    }

    fn begin_call(&mut self, request: &Request) -> Result<(), ConnectionLost> {
        let request = request.emit();
        if !self.waiting.is_empty() || !self.try_call(&request)? {
            self.waiting.push_back(Waiting::Call(request));
        }
        Ok(())
    }

    fn begin_read(&mut self, offset: u64, len: u32) -> Result<(), ConnectionLost> {
        if !self.waiting.is_empty() || !self.try_read(offset, len)? {
            self.waiting.push_back(Waiting::Read(offset, len));
        }
        Ok(())
    }

    fn begin_append(&mut self, updates: Updates, plan: &PlanRequest) -> Result<(), ConnectionLost> {
        if !self.waiting.is_empty() || !self.try_append(&updates, plan)? {
            self.waiting.push_back(Waiting::Append(updates, plan.clone()));
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Event>, ConnectionLost> {
        next(self, Self::take, Self::begin)
    }

    fn wait(&mut self, limit: Duration) {
        // A queue that is broken says so to each session that looks.
        let _ = self.waiter.wait(Instant::now().checked_add(limit));
    }

    fn waits_for(&self, other: &Self) -> bool {
        self.session.reactor() == other.session.reactor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session where one thing is under way, after which another one can begin.
    #[derive(Default)]
    struct Scripted {
        looks: u32,
        /// The look at which the first one has come: it brings nothing that anybody is told of.
        comes_at: u32,
        came: bool,
        begun: bool,
    }

    #[test]
    fn what_can_begin_was_begun_or_its_cause_ends_the_next_wait() {
        for comes_at in 1..5 {
            let mut session = Scripted { comes_at, ..Scripted::default() };
            let take = |session: &mut Scripted| {
                session.looks += 1;
                session.came |= session.looks == session.comes_at;
                Ok::<Option<()>, ()>(None)
            };
            let begin = |session: &mut Scripted| {
                let begins = session.came && !session.begun;
                session.begun |= begins;
                Ok(begins)
            };
            while !session.came {
                assert_eq!(next(&mut session, take, begin), Ok(None));
                // What was not taken yet ends the wait that follows.
                assert_eq!(session.begun, session.came, "it has come at look {comes_at}");
            }
        }
    }
}
