//! The serving thread: a loop that sleeps until something completes, is due, or is asked for.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{Wc, WcOpcode, WcStatus};
use remanence_verbs::{Context, Cq, Listener, Pd};
use remanence_wire::Qpn;

use super::Error;
use super::accept::{self, Admit, Arrival, COMPLETIONS, Inbox, Workshop};
use super::bounds::{Bounds, Permits};
use super::control::{Ask, Control, Stop};
use super::session::{PROBE, RECEIVE, SendBuffers, Session, SessionId};
use crate::Deadlines;

/// Completions that are taken at once.
const LOT: usize = 256;
/// How long a server that stops waits at most until what it has answered has arrived; and then until its device has said what
/// else arrived.
const FAREWELL: Duration = Duration::from_millis(500);
/// Nobody is asked more often whether it is there.
const QUIET_LEAST: Duration = Duration::from_millis(1);

/// How a server is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The port of the connection manager; 0: one that is free.
    pub port: u16,
    /// Connection requests that wait for an answer at most.
    pub backlog: usize,
    /// Bytes of a send buffer, and of the longest message that can be sent.
    pub message: u32,
    /// What its clients may have.
    pub bounds: Bounds,
    /// A client that said nothing for so long, which is a millisecond at least, is asked whether it is there. `None`: that is
    /// left to the device, which does so too.
    pub quiet: Option<Duration>,
}

impl Options {
    fn quiet(&self) -> Option<Duration> {
        self.quiet.map(|limit| limit.max(QUIET_LEAST))
    }
}

/// A message that has arrived. It is in its buffer until that is [given back](super::Link::give_back).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Which of its session, from 1.
    pub number: u64,
    /// How many bytes it has.
    pub len: u32,
    /// It is a WRITE with this immediate: the buffer has nothing of it.
    pub imm: Option<u32>,
}

/// What one turn of the loop found.
#[derive(Clone, Copy, Debug)]
pub struct Lot<'a> {
    /// All completions that were taken in this turn.
    pub completions: &'a [Wc],
    /// Messages among them.
    pub messages: usize,
    /// The time that the last [`Service::turn`] asked for has come.
    pub due: bool,
}

impl<'a> Lot<'a> {
    /// The completions of messages.
    pub fn received(&self) -> impl Iterator<Item = &'a Wc> {
        self.completions.iter().filter(|wc| is_message(wc))
    }
}

fn is_message(wc: &Wc) -> bool {
    wc.status == WcStatus::Success && wc.wr_id & RECEIVE != 0
}

/// How a session ends that cannot go on. What was sent to its client before goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Close {
    /// Its client broke the protocol, and is counted.
    Expelled,
    /// For another reason.
    Ended,
}

/// When the service wants its next turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// When something has happened.
    Idle,
    /// When this time has passed, too.
    After(Duration),
    /// Never: the server ends.
    End,
}

/// What the serving thread does before it looks at what has come. What it finds then it hands over at once, whatever it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    /// It sleeps until something comes, is due, or is asked for.
    Sleeps,
    /// Nothing, and it never sleeps.
    Spins,
    /// It does a [piece of work](Service::work), and never sleeps. Who comes meanwhile waits until it is done, and not longer.
    Works,
}

/// What is served: the service's half of the serving thread. No message is served while one of these runs.
pub trait Service {
    /// What it keeps for a session.
    type State: Send;

    /// What the thread does before it looks at what has come.
    fn between(&self) -> Between {
        Between::Sleeps
    }

    /// A piece of the work that it has ([`Between::Works`]).
    fn work(&mut self) {}

    /// So much has come, and nothing of it was handed over yet.
    fn arrived(&mut self, sessions: &Sessions<Self::State>, lot: &Lot<'_>) {
        let _ = (sessions, lot);
    }

    /// A session begins.
    fn began(&mut self, session: &mut Session<Self::State>) {
        let _ = session;
    }

    /// A message has arrived.
    ///
    /// # Errors
    /// The session ends.
    fn message(&mut self, session: &mut Session<Self::State>, message: &Message) -> Result<(), Close>;

    /// Of this session everything that has come was handed over: what was put off can be done now.
    ///
    /// # Errors
    /// The session ends.
    fn settle(&mut self, session: &mut Session<Self::State>) -> Result<(), Close> {
        let _ = session;
        Ok(())
    }

    /// Posts what has to be in front of messages that are about to be sent. `false`: there is no room yet.
    fn ready(&mut self, session: &mut Session<Self::State>) -> bool {
        let _ = session;
        true
    }

    /// Somebody has a notice for the session's client.
    fn notice(&mut self, session: &mut Session<Self::State>, body: Vec<u8>) {
        session.link.send(body);
    }

    /// A session is over: its QPs are in the error state, and everything that had arrived until then was handed over, unless
    /// the service itself had closed it.
    fn ended(&mut self, session: &mut Session<Self::State>) {
        let _ = session;
    }

    /// Everything that has come was handed over, or the time has passed that the last turn asked for, or somebody woke the
    /// thread.
    fn turn(&mut self, sessions: &mut Sessions<Self::State>, lot: &Lot<'_>) -> Turn {
        let _ = (sessions, lot);
        Turn::Idle
    }

    /// The turn of the loop is over.
    fn rests(&mut self, lot: &Lot<'_>) {
        let _ = lot;
    }
}

/// The sessions of a server. None of its methods searches.
#[derive(Debug)]
pub struct Sessions<S> {
    /// The sessions, each at the index of its place.
    all: Vec<Option<Box<Session<S>>>>,
    by_qpn: HashMap<Qpn, u32>,
    by_id: HashMap<SessionId, u32>,
    /// Those that have something to do before the thread may sleep.
    touched: Vec<u32>,
}

impl<S> Sessions<S> {
    fn new() -> Self {
        Self { all: Vec::new(), by_qpn: HashMap::new(), by_id: HashMap::new(), touched: Vec::new() }
    }

    /// The session of that QP.
    #[must_use]
    pub fn of_qp(&self, qpn: Qpn) -> Option<&Session<S>> {
        self.all[*self.by_qpn.get(&qpn)? as usize].as_deref()
    }

    /// The session of that number.
    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<&Session<S>> {
        self.all[*self.by_id.get(&id)? as usize].as_deref()
    }

    /// The session of that number, to send something to its client, which leaves when the service has returned.
    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session<S>> {
        let place = *self.by_id.get(&id)?;
        self.touch(place);
        self.all[place as usize].as_deref_mut()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Session<S>> {
        self.all.iter().flatten().map(Box::as_ref)
    }

    fn touch(&mut self, place: u32) {
        if let Some(session) = &mut self.all[place as usize]
            && !std::mem::replace(&mut session.link.touched, true)
        {
            self.touched.push(place);
        }
    }

    fn insert(&mut self, session: Box<Session<S>>) -> u32 {
        let place = session.link.permit().index();
        self.by_qpn.insert(session.link.qp().qpn(), place);
        self.by_id.insert(session.link.id(), place);
        if self.all.len() <= place as usize {
            self.all.resize_with(place as usize + 1, || None);
        }
        self.all[place as usize] = Some(session);
        place
    }

    fn remove(&mut self, place: u32) -> Option<Box<Session<S>>> {
        let session = self.all[place as usize].take()?;
        self.by_id.remove(&session.link.id());
        for connection in [Some(&session.link.connection), session.link.second.as_ref()].into_iter().flatten()
        {
            self.by_qpn.remove(&connection.qp().qpn());
        }
        Some(session)
    }
}

/// A server, which listens and does not serve yet.
#[derive(Debug)]
pub struct Server {
    options: Options,
    context: Context,
    listener: Listener,
    pd: Pd,
    cq: Cq,
    capacity: AtomicU32,
    next_id: AtomicU64,
    permits: Permits,
    control: Control,
    /// What it serves lies there.
    medium: Option<Region>,
}

impl Server {
    /// Takes the port. Clients that connect wait until [`run`](Self::run).
    ///
    /// # Errors
    /// The port is taken, or the device has no room.
    pub fn bind(context: &Context, options: Options) -> Result<Self, Error> {
        let listener = Listener::bind(context, options.port, options.backlog)?;
        let most = context.config().max_cqe;
        let capacity = COMPLETIONS.min(most);
        let cq = context.create_cq(capacity, None, 0)?;
        let control = Control::default();
        control.wake_with(cq.waker());
        Ok(Self {
            options,
            context: context.clone(),
            listener,
            pd: context.alloc_pd()?,
            cq,
            capacity: AtomicU32::new(capacity),
            next_id: AtomicU64::new(1),
            permits: Permits::new(options.bounds, most),
            control,
            medium: None,
        })
    }

    /// What it serves lies in this region: [`run`](Self::run) ends when that fails, and says why.
    pub fn rests_on(&mut self, medium: &Region) {
        self.medium = Some(medium.clone());
    }

    /// Whether its medium stands.
    fn stands(&self) -> Result<(), Error> {
        self.medium.as_ref().map_or(Ok(()), |medium| medium.failure().map_err(Error::Medium))
    }

    /// With other bounds, and another limit for quiet clients, than it was bound with. Of what it had, nothing may be running.
    #[must_use]
    pub fn bounded(mut self, bounds: Bounds, quiet: Option<Duration>) -> Self {
        (self.options.bounds, self.options.quiet) = (bounds, quiet);
        self.permits = Permits::new(bounds, self.context.config().max_cqe);
        self
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.context.link_caps().addresses[0], self.listener.port())
    }

    /// The PD of its sessions.
    #[must_use]
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Reaches its sessions from elsewhere.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Bytes of message buffers that its sessions have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.permits.bytes()
    }

    /// Serves on this thread, and admits on another one, until it is stopped or the service says so. Then what was answered
    /// goes out, and all sessions end. What has arrived in them until then is handed over, and not answered any more.
    ///
    /// # Errors
    /// The device is gone, there is no thread, or the one that admits has panicked; or the medium failed that it
    /// [rests on](Self::rests_on). What was answered until then goes out in this last case as well.
    pub fn run<V: Service>(
        &self,
        service: &mut V,
        admit: &mut (impl Admit<State = V::State> + Send),
        stop: &Stop,
    ) -> Result<(), Error> {
        let inbox = &Inbox::new();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let accepting = || self.accept(admit, inbox, &over);
            let started = std::thread::Builder::new().name("accept".into()).spawn_scoped(scope, accepting);
            let accepting = started.map_err(|e| os("a thread cannot be started", e))?;
            // Also if the service panics: nobody else would end the thread.
            let stopped = Over { over: &over, wakes: || self.listener.waker().wake() };
            let waker = self.cq.waker();
            let _wakes = stop.wakes(move || waker.wake());
            let control = self.control.clone();
            let _tells = self.medium.as_ref().map(|medium| medium.when_failed(move || control.wake()));
            let sessions = Sessions::new();
            let (deadlines, gone) = (Deadlines::default(), Vec::new());
            let buffers = SendBuffers::new(self.pd.clone(), self.options.message);
            let mut serving =
                Serving { server: self, service, sessions, inbox, buffers, deadlines, gone, stops: false };
            let served = serving.run(stop, &over);
            drop(stopped);
            let says_farewell = matches!(served, Ok(()) | Err(Error::Medium(_)));
            if says_farewell {
                serving.farewell();
            }
            serving.end_all();
            // Whom it is about to let in is a client as well, and is told that this is over.
            let accepted = accepting.join();
            serving.take_in(true);
            if says_farewell {
                serving.farewell();
            }
            serving.end_all();
            let panicked = |_| {
                os("nobody is let in any more", std::io::Error::other("the service's admission panicked"))
            };
            served.and(accepted.map_err(panicked))
        })
    }

    fn accept<S>(&self, admit: &mut impl Admit<State = S>, inbox: &Inbox<S>, over: &AtomicBool) {
        let Self { pd, cq, capacity, next_id, control, permits, .. } = self;
        // If the service panics: a server that lets nobody in would not be noticed.
        let _over = Over { over, wakes: || control.wake() };
        let workshop = Workshop { pd, cq, capacity, next_id, message: self.options.message };
        while !over.load(Ordering::Acquire) {
            let Some(incoming) = self.listener.get_request(None) else { continue };
            if accept::decide(admit, incoming, permits, &workshop, inbox, control) {
                control.wake();
            } else {
                control.counters().refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn os(what: &str, source: std::io::Error) -> Error {
    remanence_verbs::Error::Os { what: what.into(), source: Arc::new(source) }.into()
}

/// Ends the other thread, however this one ends.
struct Over<'a, F: FnMut()> {
    over: &'a AtomicBool,
    wakes: F,
}

impl<F: FnMut()> Drop for Over<'_, F> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        (self.wakes)();
    }
}

struct Serving<'a, V: Service> {
    server: &'a Server,
    service: &'a mut V,
    sessions: Sessions<V::State>,
    inbox: &'a Inbox<V::State>,
    buffers: SendBuffers,
    /// When to look whether a client is quiet.
    deadlines: Deadlines<SessionId, Instant>,
    /// Sessions that ended in this turn: until it is over nobody else has their QPs' numbers, which are in completions that
    /// were taken already.
    gone: Vec<Box<Session<V::State>>>,
    /// It says farewell.
    stops: bool,
}

impl<V: Service> Serving<'_, V> {
    fn run(&mut self, stop: &Stop, over: &AtomicBool) -> Result<(), Error> {
        let mut completions = Vec::with_capacity(LOT);
        let mut turn_at = None;
        while !stop.is_asked() && !over.load(Ordering::Acquire) {
            self.server.stands()?;
            completions.clear();
            self.next(&mut completions, turn_at, stop)?;
            let due = turn_at.is_some_and(|at| at <= Instant::now());
            let messages = completions.iter().filter(|wc| is_message(wc)).count();
            match self.turn(&Lot { completions: &completions, messages, due }) {
                Turn::Idle => turn_at = None,
                Turn::After(time) => turn_at = Instant::now().checked_add(time),
                Turn::End => break,
            }
        }
        self.server.stands()
    }

    fn end_all(&mut self) {
        (0..self.sessions.all.len() as u32).for_each(|place| self.end(place));
        // Whoever is about to be let in may wait for one of their places.
        self.gone.clear();
    }

    /// Waits for something to do.
    fn next(&mut self, out: &mut Vec<Wc>, turn_at: Option<Instant>, stop: &Stop) -> Result<(), Error> {
        let Server { cq, control, .. } = self.server;
        let failed = |e: remanence_rnic::CqError| Error::Verbs(e.into());
        match self.service.between() {
            Between::Sleeps => {}
            Between::Spins => {
                cq.poll(out, LOT).map_err(failed)?;
                return Ok(());
            }
            Between::Works => {
                self.service.work();
                // All that is there: what the device has not received yet would wait for another piece of work.
                while !stop.is_asked()
                    && out.len() < LOT
                    && cq.poll(out, LOT - out.len()).map_err(failed)? > 0
                {}
                return Ok(());
            }
        }
        let next = [turn_at, self.deadlines.first()].into_iter().flatten().min();
        let limit = next.map(|at| at.saturating_duration_since(Instant::now()));
        if limit == Some(Duration::ZERO) {
            cq.poll(out, LOT).map_err(failed)?;
        } else if control.asleep() {
            let waited = cq.wait(out, LOT, limit);
            control.awake();
            waited.map_err(failed)?;
        } else {
            control.awake();
            cq.poll(out, LOT).map_err(failed)?;
        }
        Ok(())
    }

    /// One turn of the loop.
    fn turn(&mut self, lot: &Lot<'_>) -> Turn {
        self.server.control.turns();
        self.server.control.counters().rounds.fetch_add(1, Ordering::Relaxed);
        if self.inbox.is_coming() {
            self.take_in(false);
        }
        self.service.arrived(&self.sessions, lot);
        for wc in lot.completions {
            self.completed(wc);
        }
        self.settle();
        self.look_for_quiet();
        let turn = self.service.turn(&mut self.sessions, lot);
        self.asks();
        self.settle();
        self.service.rests(lot);
        for mut session in self.gone.drain(..) {
            let held = session.link.take_held();
            drop(session);
            self.buffers.give_back(held);
        }
        turn
    }

    /// Takes over the sessions that were made.
    fn take_in(&mut self, wait: bool) {
        for arrival in self.inbox.take(wait) {
            match arrival {
                Arrival::Session(session) => {
                    let (id, begin) = (session.link.id(), session.link.heard);
                    let place = self.sessions.insert(session);
                    if let Some(limit) = self.server.options.quiet() {
                        self.deadlines.set(id, Some(begin + limit));
                    }
                    self.sessions.touch(place);
                    if let Some(session) = &mut self.sessions.all[place as usize] {
                        self.service.began(session);
                        session.link.leaving |= self.stops;
                    }
                }
                Arrival::Second(id, connection) => {
                    let Some(&place) = self.sessions.by_id.get(&id) else { continue };
                    let Some(session) = &mut self.sessions.all[place as usize] else { continue };
                    // Dropped, one that is too many ends.
                    if session.link.second.is_none() {
                        self.sessions.by_qpn.insert(connection.qp().qpn(), place);
                        session.link.second = Some(connection);
                    }
                }
            }
        }
    }

    fn completed(&mut self, wc: &Wc) {
        let mut place = self.sessions.by_qpn.get(&wc.qpn).copied();
        if place.is_none() && self.inbox.is_coming() {
            self.take_in(true);
            place = self.sessions.by_qpn.get(&wc.qpn).copied();
        }
        let Some(place) = place else { return };
        if wc.status != WcStatus::Success {
            let of_messages =
                self.sessions.all[place as usize].as_ref().is_some_and(|it| it.link.qp().qpn() == wc.qpn);
            // Flushed, as the client went or the session was cut; or the client does not answer any more. The QP is in the
            // error state, and what had arrived in it came before this.
            return if of_messages { self.end(place) } else { self.cut(place) };
        }
        self.sessions.touch(place);
        let Some(session) = &mut self.sessions.all[place as usize] else { return };
        if self.server.options.quiet.is_some() {
            session.link.heard = Instant::now();
        }
        if wc.wr_id & RECEIVE == 0 {
            if wc.wr_id == PROBE && !session.link.is_leaving() {
                self.server.control.counters().probed.fetch_add(1, Ordering::Relaxed);
            }
            session.link.sent(wc.wr_id, &mut self.buffers);
            return;
        }
        if session.link.is_closed() {
            return;
        }
        let number = wc.wr_id & !RECEIVE;
        session.link.received = number;
        if number == 1 {
            session.link.permit().is_established();
        }
        self.server.control.counters().messages.fetch_add(1, Ordering::Relaxed);
        let imm = (wc.opcode == WcOpcode::RecvRdmaWithImm).then(|| wc.imm.unwrap_or(0));
        let result = self.service.message(session, &Message { number, len: wc.byte_len, imm });
        // What the service asked for comes before its answer.
        self.asks();
        if let Some(session) = &mut self.sessions.all[place as usize] {
            push(self.service, session, &mut self.buffers);
            self.close(place, result);
        }
    }

    /// Those that have something to do do it.
    fn settle(&mut self) {
        while let Some(place) = self.sessions.touched.pop() {
            let Some(session) = &mut self.sessions.all[place as usize] else { continue };
            session.link.touched = false;
            let result = self.service.settle(session);
            push(self.service, session, &mut self.buffers);
            if session.link.is_leaving() {
                session.link.ask_for_news();
            }
            if session.link.is_drowning() {
                self.expel(place);
            } else if session.link.has_failed() || session.link.has_left() {
                self.cut(place);
            }
            self.close(place, result);
        }
    }

    /// The service wants no more of a session.
    fn close(&mut self, place: u32, result: Result<(), Close>) {
        let Err(why) = result else { return };
        let Some(session) = &mut self.sessions.all[place as usize] else { return };
        session.link.leave();
        match why {
            Close::Expelled => self.expel(place),
            Close::Ended => self.cut(place),
        }
    }

    fn expel(&mut self, place: u32) {
        let Some(session) = &self.sessions.all[place as usize] else { return };
        if !session.link.is_cut() {
            self.server.control.counters().expelled.fetch_add(1, Ordering::Relaxed);
        }
        self.cut(place);
    }

    /// Nothing more can arrive in a session from now on. It ends when what has arrived was handed over: the client may have
    /// been told that it is durable.
    fn cut(&mut self, place: u32) {
        let Some(session) = &mut self.sessions.all[place as usize] else { return };
        if !session.link.cut() {
            self.end(place);
        }
    }

    fn end(&mut self, place: u32) {
        let Some(mut session) = self.sessions.remove(place) else { return };
        self.deadlines.set(session.link.id(), None);
        session.link.disconnect();
        self.service.ended(&mut session);
        self.server.control.ended(session.link.id());
        self.gone.push(session);
    }

    /// Asks those whether they are there that have been quiet.
    fn look_for_quiet(&mut self) {
        let Some(limit) = self.server.options.quiet() else { return };
        // Some come a little early, so that one wake-up does for many.
        let now = Instant::now() + limit / 8;
        while let Some(id) = self.deadlines.pop_due(now) {
            let Some(&place) = self.sessions.by_id.get(&id) else { continue };
            let Some(session) = &mut self.sessions.all[place as usize] else { continue };
            let link = &mut session.link;
            let mut next = link.heard + limit;
            if next <= now {
                link.probe();
                next = now + limit;
            }
            self.deadlines.set(id, Some(next));
        }
    }

    /// Does what other threads and the service asked for.
    fn asks(&mut self) {
        for ask in self.server.control.take() {
            let (Ask::End(id) | Ask::Notice(id, _)) = ask;
            if self.inbox.is_coming() && !self.sessions.by_id.contains_key(&id) {
                self.take_in(true);
            }
            let Some(&place) = self.sessions.by_id.get(&id) else { continue };
            match ask {
                Ask::End(_) => self.cut(place),
                Ask::Notice(_, body) => {
                    self.sessions.touch(place);
                    if let Some(session) = &mut self.sessions.all[place as usize] {
                        self.service.notice(session, body);
                    }
                }
            }
        }
    }

    /// Ends all sessions, each when what was answered has arrived. What has arrived in it until then is handed over: its client may have
    /// been told that it is durable.
    fn farewell(&mut self) {
        self.stops = true;
        for place in 0..self.sessions.all.len() as u32 {
            self.sessions.touch(place);
            if let Some(session) = &mut self.sessions.all[place as usize] {
                session.link.leaving = true;
            }
        }
        self.drain(false);
        // What its clients do not take is not waited for, but what they have brought is in the queue.
        (0..self.sessions.all.len() as u32).for_each(|place| self.cut(place));
        self.drain(true);
    }

    /// Hands over what comes until all sessions have ended, or the time is over: `again`, it begins anew whenever something has come.
    fn drain(&mut self, again: bool) {
        let mut completions = Vec::with_capacity(LOT);
        let mut end = Instant::now() + FAREWELL;
        self.settle();
        while !self.sessions.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            completions.clear();
            if left.is_zero() || self.server.cq.wait(&mut completions, LOT, Some(left)).is_err() {
                return;
            }
            completions.iter().for_each(|wc| self.completed(wc));
            self.settle();
            if again && !completions.is_empty() {
                end = Instant::now() + FAREWELL;
            }
        }
    }
}

/// Sends what waits.
fn push<V: Service>(service: &mut V, session: &mut Session<V::State>, buffers: &mut SendBuffers) {
    if session.link.unsent() > 0 && !session.link.is_cut() && service.ready(session) {
        session.link.push(buffers);
    }
}
