//! The live half: the pool on the floor of all services (`remanence_service`).
//!
//! The *serving* thread hands each message to the [`Core`], and sends what it answers; what the core wants durable it
//! settles once per turn, so that commits of many clients share a wait for the medium. The *accepting* thread decides about
//! connections: a client has a session for messages, and a second QP for one-sided operations, which need no thread here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::Access;
use remanence_service::server::{
    self as floor, Admit, Bounds, Buffers, Claim, Close, Control, Decision, Lot, Message, Refusal, Request,
    Service, Session, SessionId, Sessions, Spec, Stop, Turn, Workshop,
};
use remanence_verbs::{ConnectAttr, Context, Mr, Pd};

use super::core::{ClientId, Core, Keys, Limits, Rights, Stats, Verdict};
use crate::auth::Token;
use crate::error::PoolError;
use crate::pool::Pool;
use crate::proto::{BadPurpose, MAX_MESSAGE, Purpose, RemoteExtent, VERSION, WINDOW};

/// How a server is started.
#[derive(Debug)]
pub struct Options {
    token: Token,
    limits: Limits,
}

impl Options {
    /// For clients that prove to have this token.
    #[must_use]
    pub fn new(token: Token) -> Self {
        Self { token, limits: Limits::default() }
    }

    /// Bounds of what clients may have.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
}

/// A port that is ours: clients that connect wait until a [`Server`] is started on it.
///
/// It is apart from the server, so that a program finds out that the port is taken before it makes a pool.
pub struct Port {
    context: Context,
    floor: floor::Server,
}

impl Port {
    /// Takes a port of the connection manager; 0 takes one that is free.
    ///
    /// # Errors
    /// The port is taken.
    pub fn take(context: &Context, port: u16) -> Result<Self, remanence_verbs::Error> {
        let limits = Limits::default();
        let options = floor::Options {
            port,
            backlog: limits.strangers.most,
            message: MAX_MESSAGE as u32,
            bounds: bounds(&limits),
            quiet: None,
        };
        let floor = floor::Server::bind(context, options).map_err(verbs)?;
        Ok(Self { context: context.clone(), floor })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.floor.addr()
    }
}

/// Who has to go for the next stranger goes a moment after that one has come, so there may be more of them than agreed.
fn bounds(limits: &Limits) -> Bounds {
    let sessions = u32::try_from(limits.clients + 2 * limits.strangers.most).unwrap_or(u32::MAX);
    Bounds { sessions, each: sessions, bytes: u64::MAX }
}

fn verbs(error: floor::Error) -> remanence_verbs::Error {
    match error {
        floor::Error::Verbs(error) => error,
        other => os("message buffers", std::io::Error::other(other)),
    }
}

fn os(what: &str, error: std::io::Error) -> remanence_verbs::Error {
    remanence_verbs::Error::Os { what: what.into(), source: Arc::new(error) }
}

/// A server that serves until it is dropped or [stopped](Server::stop).
pub struct Server {
    address: SocketAddr,
    control: Control,
    stop: Stop,
    published: Arc<Mutex<Published>>,
    ended: Option<Receiver<String>>,
    thread: Option<JoinHandle<Serving>>,
}

/// What other threads see of the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Published {
    stats: Stats,
    clients: usize,
}

impl Server {
    /// Serves `pool` on a port.
    ///
    /// # Errors
    /// The device has no room.
    pub fn start(port: Port, pool: Pool<Region>, options: Options) -> Result<Self, remanence_verbs::Error> {
        let Port { context, floor } = port;
        let mut floor = floor.bounded(bounds(&options.limits), Some(options.limits.quiet));
        let (address, control, stop) = (floor.addr(), floor.control(), Stop::new());
        let region = pool.medium().clone();
        floor.rests_on(&region);
        let domain = region.domain();
        let flush = match domain.guarantee().is_durable() {
            true => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            false => Access::FLUSH_GLOBAL,
        };
        let core = Core::new(pool, options.token, options.limits, domain.guarantee(), &domain.to_string());
        let published = Arc::new(Mutex::new(Published::default()));
        let tickets = Arc::new(Mutex::new(HashMap::new()));
        let mut entrance = Entrance { context, tickets: Arc::clone(&tickets) };
        let mut serving = Serving {
            core,
            memory: Memory { region, flush },
            control: control.clone(),
            tickets,
            started: Instant::now(),
            published: Arc::clone(&published),
            shown: Published::default(),
            buffer: Vec::with_capacity(MAX_MESSAGE),
        };
        let stopping = stop.clone();
        let (serves, ended) = mpsc::channel();
        let serve = move || {
            // It ends early only when the device or the medium does, or if the CQ, which grows with what clients may have, overflows.
            if let Err(why) = floor.run(&mut serving, &mut entrance, &stopping) {
                let _ = serves.send(why.to_string());
            }
            serving
        };
        let thread = std::thread::Builder::new().name("pool-serve".into()).spawn(serve);
        let thread = Some(thread.map_err(|e| os("a thread cannot be started", e))?);
        Ok(Self { address, control, stop, published, ended: Some(ended), thread })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { probed: self.control.counters().probed(), ..lock(&self.published).stats }
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        lock(&self.published).clients
    }

    /// The end of the serving thread is that of this channel. If it ends by itself, as the medium failed or the device did, a sentence
    /// comes before that says why. `None`: somebody has taken it.
    pub fn take_ended(&mut self) -> Option<Receiver<String>> {
        self.ended.take()
    }

    /// Stops serving: clients are disconnected, the pool is closed.
    ///
    /// # Errors
    /// The medium failed.
    pub fn stop(mut self) -> Result<(), PoolError> {
        match self.join() {
            Some(mut serving) => serving.core.close(),
            None => Ok(()),
        }
    }

    fn join(&mut self) -> Option<Serving> {
        self.stop.ask();
        self.thread.take()?.join().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// What is locked is whole between any two statements that can panic.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a client shows when it connects its second QP; the session that it belongs to, its PD, and whether it has come.
type Tickets = Arc<Mutex<HashMap<[u8; 16], (SessionId, Pd, bool)>>>;

/// Decides about connections, on the accepting thread.
struct Entrance {
    context: Context,
    tickets: Tickets,
}

/// What is kept for a client.
struct State {
    /// Its own: keys of one client open nothing to another one's QPs.
    pd: Pd,
    keys: HashMap<u32, Mr>,
    ticket: Option<[u8; 16]>,
}

impl Admit for Entrance {
    type State = State;

    fn admit(
        &mut self,
        request: &Request<'_>,
        place: Claim<'_>,
        workshop: &Workshop<'_>,
    ) -> Result<Decision<State>, Refusal> {
        let refuse = |why: &str| Refusal(why.as_bytes().to_vec());
        match Purpose::parse(request.private_data) {
            Ok(Purpose::Control) => {
                let place = place
                    .take()
                    .map_err(|_| refuse("the server has as many clients as it takes; try again later"))?;
                let spec = Spec {
                    slots: WINDOW as u32,
                    slot_size: MAX_MESSAGE as u32,
                    // A reply for each request that a client may have open, and as many whose completion is late.
                    sends: 2 * WINDOW as u32,
                    unsent: WINDOW,
                    extra: 0,
                    buffers: Buffers::Own,
                    // No one-sided access at all on the control QP: a stranger has one.
                    attr: ConnectAttr { access: Access::empty(), ..ConnectAttr::default() },
                };
                let opened = workshop.open(place, &spec)?;
                let pd = self.context.alloc_pd().map_err(floor::Error::from)?;
                let state = State { pd, keys: HashMap::new(), ticket: None };
                Ok(Decision::Session { opened, state, welcome: Vec::new() })
            }
            Ok(Purpose::Data { ticket }) => {
                let (session, pd) = redeem(&self.tickets, ticket).map_err(refuse)?;
                Ok(Decision::Second { session, pd, attr: ConnectAttr::default() })
            }
            Err(BadPurpose::OtherVersion(theirs)) => Err(refuse(&format!(
                "it speaks version {VERSION} of the pool protocol and you speak {theirs}; use the same release"
            ))),
            Err(BadPurpose::Stranger) => {
                Err(refuse("this is a memory pool (rem serve pool), and you are no client of one"))
            }
        }
    }

    fn not_connected(&mut self, session: SessionId) {
        give_back(&self.tickets, session);
    }
}

/// Who shows a ticket has the session's data connection, once.
fn redeem(tickets: &Tickets, ticket: [u8; 16]) -> Result<(SessionId, Pd), &'static str> {
    match lock(tickets).get_mut(&ticket) {
        None => Err("the ticket is unknown; connect again"),
        Some((_, _, true)) => Err("this client has its data connection already"),
        Some((session, pd, has_come)) => {
            *has_come = true;
            Ok((*session, pd.clone()))
        }
    }
}

/// Nothing came of it.
fn give_back(tickets: &Tickets, of: SessionId) {
    for (session, _, has_come) in lock(tickets).values_mut() {
        *has_come &= *session != of;
    }
}

/// The memory that clients reach.
struct Memory {
    region: Region,
    /// The flushes that it can honour.
    flush: Access,
}

/// The keys of one client, which is the one that the core is asked about.
struct ClientKeys<'a> {
    memory: &'a Memory,
    state: &'a mut State,
}

impl Keys for ClientKeys<'_> {
    fn open(&mut self, _: ClientId, offset: u64, len: u64, rights: Rights) -> Result<RemoteExtent, String> {
        let fill = Access::LOCAL_WRITE | Access::REMOTE_WRITE | self.memory.flush;
        let access = match rights {
            Rights::Read => Access::REMOTE_READ,
            Rights::Fill => fill,
            Rights::All => fill | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        };
        // The address is the offset in the pool: it says nothing of this process's own memory.
        let mr = self.state.pd.reg_mr_at(&self.memory.region, offset, len, offset, access);
        let mr = mr.map_err(|e| format!("the server cannot register memory ({e})"))?;
        let rkey = mr.rkey().0;
        self.state.keys.insert(rkey, mr);
        Ok(RemoteExtent { addr: offset, len, rkey })
    }

    fn close(&mut self, _: ClientId, extent: RemoteExtent) {
        self.state.keys.remove(&extent.rkey);
    }
}

/// Serves, on the serving thread.
struct Serving {
    core: Core<Region>,
    memory: Memory,
    control: Control,
    tickets: Tickets,
    started: Instant,
    published: Arc<Mutex<Published>>,
    shown: Published,
    buffer: Vec<u8>,
}

impl Serving {
    fn end(&self, client: Option<ClientId>) {
        if let Some(ClientId(id)) = client {
            self.control.end(SessionId(id));
        }
    }

    /// Shows others how far it is, before a client hears of it.
    fn publish(&mut self) {
        let now = Published { stats: self.core.stats(), clients: self.core.clients() };
        if now != self.shown {
            self.shown = now;
            *lock(&self.published) = now;
        }
    }
}

impl Service for Serving {
    type State = State;

    fn began(&mut self, session: &mut Session<State>) {
        let id = ClientId(session.link.id().0);
        let goes = self.core.connected(self.started.elapsed(), id, session.link.peer());
        self.end(goes);
        self.publish();
    }

    fn message(&mut self, session: &mut Session<State>, message: &Message) -> Result<(), Close> {
        let Session { state, link } = session;
        self.buffer.resize(message.len as usize, 0);
        link.read(message.number, &mut self.buffer);
        link.give_back(message.number);
        let now = self.started.elapsed();
        let client = ClientId(link.id().0);
        let mut random = |bytes: &mut [u8]| getrandom::fill(bytes).expect("the kernel gives random bytes");
        let admitted = self.core.stats().admitted;
        let mut keys = ClientKeys { memory: &self.memory, state };
        let verdict = self.core.receive(now, client, &self.buffer, &mut random, &mut keys);
        let goes = self.core.gave_way();
        self.end(goes);
        if self.core.stats().admitted > admitted
            && let Some(ticket) = self.core.ticket(client)
        {
            state.ticket = Some(ticket);
            lock(&self.tickets).insert(ticket, (link.id(), state.pd.clone(), false));
        }
        self.publish();
        match verdict {
            Verdict::Reply(reply) => link.send(reply),
            Verdict::Later => {}
            Verdict::Last(reply) => {
                link.send(reply);
                link.leave();
            }
            Verdict::Hostile(_) => return Err(Close::Expelled),
        }
        Ok(())
    }

    /// Forgets a client: its keys are closed, what it held is free.
    fn ended(&mut self, session: &mut Session<State>) {
        let Session { state, link } = session;
        if let Some(ticket) = state.ticket.take() {
            lock(&self.tickets).remove(&ticket);
        }
        let mut keys = ClientKeys { memory: &self.memory, state };
        self.core.disconnected(ClientId(link.id().0), &mut keys);
        self.publish();
    }

    fn turn(&mut self, sessions: &mut Sessions<State>, _: &Lot<'_>) -> Turn {
        if self.core.has_waiting() {
            for (ClientId(id), message) in self.core.settle() {
                if let Some(session) = sessions.get_mut(SessionId(id)) {
                    session.link.send(message);
                }
            }
            self.publish();
        }
        let now = self.started.elapsed();
        self.core.expired(now).for_each(|ClientId(id)| self.control.end(SessionId(id)));
        // Those whose time is over are about to go; the next turn comes at once, and finds the others.
        self.core.deadline().map_or(Turn::Idle, |at| Turn::After(at.saturating_sub(now).max(SOON)))
    }
}

/// Strangers whose time is over are gone by then.
const SOON: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_again_when_nothing_came_of_its_connection() {
        let device = remanence_verbs::Options::udp([127, 0, 0, 1].into());
        let context = Context::open(device).expect("a device on loopback");
        let (one, other) = ([1; 16], [2; 16]);
        let tickets = Tickets::default();
        for (ticket, id) in [(one, 1), (other, 2)] {
            let pd = context.alloc_pd().expect("room");
            lock(&tickets).insert(ticket, (SessionId(id), pd, false));
        }
        let shows = |ticket| redeem(&tickets, ticket).map(|(session, _)| session);
        assert!(shows([3; 16]).is_err());
        assert_eq!((shows(one), shows(other)), (Ok(SessionId(1)), Ok(SessionId(2))));
        assert!(shows(one).is_err(), "it has its connection");
        let mut entrance = Entrance { context, tickets: Arc::clone(&tickets) };
        entrance.not_connected(SessionId(1));
        assert_eq!(shows(one), Ok(SessionId(1)));
        assert!(shows(other).is_err(), "another one's is not touched");
    }
}
