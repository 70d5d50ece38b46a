//! Reliable connections between QPs, by the connection manager: listen, connect, accept, reject, disconnect.
//!
//! Each side brings a QP in RESET; the connection takes it to RTS, and to ERR when it is over. Blocking calls serve
//! the device while they wait. Who must not block asks for the descriptor, and calls the `try_` form or
//! [`Connection::advance`] when it is readable.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use remanence_rnic::cm::{
    self, Accept, CmError, CommId, Connect, Ended, Event, Listen, ListenId, Path, Request, Transport,
};
use remanence_rnic::{QpAttr, QpState};
use remanence_wire::Gid;
use remanence_wire::cm::{PortSpace, RejReason, ServiceId};

use crate::channel::EventQueue;
use crate::cm::{Cm, CmEvent};
use crate::context::{Context, Handle, random};
use crate::driver::Interest;
use crate::error::Error;
use crate::qp::{ConnectAttr, Qp};
use crate::wake::Waker;

/// The port that our own REQs name as theirs. Nothing listens there; the header wants a number.
const CALLER_PORT: u16 = 0;

/// The first of the ports that nobody asks for by their number (RFC 6335), and how many of them are tried.
const DYNAMIC: u16 = 49152;
const ATTEMPTS: u32 = 64;

/// Waits on a port for peers that want to connect.
#[derive(Debug)]
pub struct Listener {
    handle: Arc<Handle>,
    id: ListenId,
    events: Arc<EventQueue<CmEvent>>,
    port: u16,
    waker: Waker,
}

impl Listener {
    /// Listens on a port of RDMA-CM's TCP port space (0: one that is free), at every address of the device. At most
    /// `backlog` requests wait for a decision at a time; further peers ask again.
    ///
    /// # Errors
    /// Another listener has the port.
    pub fn bind(context: &Context, port: u16, backlog: usize) -> Result<Self, Error> {
        if port != 0 {
            return Self::bind_to(context, port, backlog);
        }
        let mut attempt = 0;
        loop {
            match Self::bind_to(context, DYNAMIC | random() as u16, backlog) {
                Err(Error::PortInUse(_)) if attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    fn bind_to(context: &Context, port: u16, backlog: usize) -> Result<Self, Error> {
        let events = Arc::new(EventQueue::new());
        let listen = Listen { service_id: ServiceId::new(PortSpace::Tcp, port), local: None, backlog };
        let id = Cm::of(&context.handle).listen_on(&listen, &events, 0).map_err(|e| match e {
            Error::Cm(CmError::InUse) => Error::PortInUse(port),
            other => other,
        })?;
        Ok(Self { handle: Arc::clone(&context.handle), id, events, port, waker: Waker::new() })
    }

    /// The port that connections are accepted on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The next request, waiting for it; `None` if the limit was reached first, or if the [waker](Self::waker) was woken.
    #[must_use]
    pub fn get_request(&self, limit: Option<Duration>) -> Option<Incoming> {
        self.handle
            .wait_or_woken(limit, Interest::Events, &self.waker, || None, |_| self.events.pop().map(Some))
            .flatten()
            .and_then(|event| self.incoming(event))
    }

    /// What ends the present [`get_request`](Self::get_request), or else the next one, from any thread: for an orderly stop
    /// of who would wait without a limit.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Each new request wakes this too, as one that waits already does now: for a thread that waits for a completion queue
    /// and asks with [`try_get_request`](Self::try_get_request) when it is woken. The first waker that is given stays the
    /// only one; `false` if there was one.
    pub fn wake_with(&self, waker: &Waker) -> bool {
        self.events.wake_with(waker)
    }

    /// The next request if there is one.
    #[must_use]
    pub fn try_get_request(&self) -> Option<Incoming> {
        self.events.pop().and_then(|event| self.incoming(event))
    }

    /// Readable while a request waits.
    ///
    /// # Errors
    /// The operating system refuses a descriptor.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.events.fd()
    }

    fn incoming(&self, event: CmEvent) -> Option<Incoming> {
        match event.event {
            Some(Event::ConnectRequest(request)) => {
                let events = Arc::new(EventQueue::new());
                Cm::of(&self.handle).adopt_on(request.id, &events, 0);
                Some(Incoming { handle: Some(Arc::clone(&self.handle)), request, events })
            }
            // A peer that took its request back before anybody looked at it; and nobody asks a listener for UD.
            _ => None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        Cm::of(&self.handle).unlisten(self.id);
    }
}

/// A peer that wants to connect. Dropped undecided, it is rejected.
#[derive(Debug)]
pub struct Incoming {
    /// `None` once it is decided.
    handle: Option<Arc<Handle>>,
    request: Box<Request>,
    events: Arc<EventQueue<CmEvent>>,
}

impl Incoming {
    /// What the peer asks for.
    #[must_use]
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Where it is.
    #[must_use]
    pub fn peer(&self) -> IpAddr {
        self.request.path.remote.to_ip()
    }

    /// What its consumer says, padded with zeros to the size of the field: 56 bytes.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    /// Accepts, with a QP in RESET (or INIT) and at most 196 bytes for the peer's consumer. The QP is in RTS when
    /// this returns, but must not send before the connection is [established](Connection::wait_established).
    ///
    /// # Errors
    /// The peer took its request back, or an attribute does not fit.
    pub fn accept(mut self, qp: &Qp, attr: &ConnectAttr, private_data: &[u8]) -> Result<Connection, Error> {
        let handle = self.handle.take().expect("decided once");
        let (cm, id) = (Cm::of(&handle), self.request.id);
        let connection = Connection::new(&handle, id, qp, (self.request.path, 0), Arc::clone(&self.events));
        let depth = Depth::of(attr, &self.request);
        let result = to_init(qp, attr)
            .and_then(|()| {
                let rtr = QpAttr { max_dest_rd_atomic: depth.responder(qp), ..cm.qp_rtr(id)? };
                let rts = QpAttr { max_rd_atomic: depth.initiator(qp), ..cm.qp_rts(id)? };
                qp.modify(&rtr)?;
                Ok(qp.modify(&rts)?)
            })
            .and_then(|()| {
                let accept = Accept {
                    qpn: qp.qpn(),
                    responder_resources: depth.responder_resources,
                    initiator_depth: depth.initiator_depth,
                    rnr_retry_count: attr.rnr_retry,
                    srq: qp.srq().is_some(),
                    private_data,
                };
                Ok(cm.accept_with(id, &accept, true)?)
            });
        // An error drops the connection, which rejects the request.
        result.map(|()| connection)
    }

    /// Rejects, with at most 148 bytes for the peer's consumer.
    ///
    /// # Errors
    /// The private data does not fit; the request is rejected without.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), Error> {
        let handle = self.handle.take().expect("decided once");
        let cm = Cm::of(&handle);
        match cm.reject(self.request.id, RejReason::CONSUMER_DEFINED, private_data) {
            // The peer took it back meanwhile.
            Ok(()) | Err(CmError::UnknownId) => Ok(()),
            Err(e) => {
                cm.close(self.request.id);
                Err(e.into())
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            Cm::of(handle).close(self.request.id);
        }
    }
}

/// How many READs and atomics may be outstanding: what we want, limited by what the peer asked for.
struct Depth {
    responder_resources: u8,
    initiator_depth: u8,
}

impl Depth {
    fn of(attr: &ConnectAttr, request: &Request) -> Self {
        Self {
            responder_resources: attr.max_dest_rd_atomic.min(request.responder_resources),
            initiator_depth: attr.max_rd_atomic.min(request.initiator_depth),
        }
    }

    fn responder(&self, qp: &Qp) -> Option<u8> {
        qp.is_rc().then_some(self.responder_resources)
    }

    fn initiator(&self, qp: &Qp) -> Option<u8> {
        qp.is_rc().then_some(self.initiator_depth)
    }
}

fn to_init(qp: &Qp, attr: &ConnectAttr) -> Result<(), Error> {
    Ok(qp.modify(&QpAttr { state: Some(QpState::Init), access: Some(attr.access), ..QpAttr::default() })?)
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The two sides are still talking about it.
    Connecting,
    /// Both sides may send.
    Established,
    /// It is over.
    Ended(Ended),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// It was established once, even if it is over by now.
    was_up: bool,
    private_data: Box<[u8]>,
}

impl State {
    fn come_up(&mut self) {
        self.phase = Phase::Established;
        self.was_up = true;
    }
}

/// Says whether somebody who was accepted has answered, and keeps nothing of the [connection](Connection::handshake).
#[derive(Clone, Debug)]
pub struct Handshake(Weak<Inner>);

impl Handshake {
    /// It was accepted, and its peer has not said since that it knows: it may not be there. As the connection manager has it, whether or
    /// not somebody has [looked](Connection::advance).
    #[must_use]
    pub fn is_half_open(&self) -> bool {
        let Some(inner) = self.0.upgrade() else { return false };
        let state = inner.handle.lock.lock().cm.manager.state(inner.id);
        matches!(state, Some(cm::State::RepSent | cm::State::MraRepRcvd))
    }
}

#[derive(Debug)]
struct Inner {
    handle: Arc<Handle>,
    id: CommId,
    qp: Qp,
    path: Path,
    /// The port that was connected to; 0 if the peer connected.
    port: u16,
    events: Arc<EventQueue<CmEvent>>,
    state: Mutex<State>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        Cm::of(&self.handle).close(self.id);
    }
}

/// A connection of a QP, made or in the making. Clones are the same connection; it is ended, as politely as possible
/// without waiting, when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    inner: Arc<Inner>,
}

impl Connection {
    fn new(
        handle: &Arc<Handle>,
        id: CommId,
        qp: &Qp,
        (path, port): (Path, u16),
        events: Arc<EventQueue<CmEvent>>,
    ) -> Self {
        let state = State { phase: Phase::Connecting, was_up: false, private_data: Box::default() };
        let handle = Arc::clone(handle);
        let inner = Inner { handle, id, qp: qp.clone(), path, port, events, state: Mutex::new(state) };
        Self { inner: Arc::new(inner) }
    }

    /// Connects a QP in RESET to a listening peer, and waits until both sides may send. At most 56 bytes go to the
    /// peer's consumer.
    ///
    /// # Errors
    /// One sentence that says what happened: nobody listens there, the peer rejected or did not answer, or the
    /// limit was reached.
    pub fn connect(
        qp: &Qp,
        peer: SocketAddr,
        attr: &ConnectAttr,
        private_data: &[u8],
        limit: Option<Duration>,
    ) -> Result<Self, Error> {
        let connection = Self::start(qp, peer, attr, private_data)?;
        if connection.wait_established(limit)? { Ok(connection) } else { Err(Error::NoAnswer(peer)) }
    }

    /// Begins to connect, and returns at once: call [`advance`](Self::advance) when [`fd`](Self::fd) is readable.
    ///
    /// # Errors
    /// An argument does not fit; the peer was not asked.
    pub fn start(qp: &Qp, peer: SocketAddr, attr: &ConnectAttr, private_data: &[u8]) -> Result<Self, Error> {
        let handle = &qp.pd().inner.handle;
        let remote = Gid::from_ip(peer.ip());
        let local =
            handle.port().gids.get(usize::from(handle.sgid_index(remote))).copied().unwrap_or_default();
        to_init(qp, attr)?;
        let path = Path { local, remote };
        let connect = Connect {
            path,
            service_id: ServiceId::new(PortSpace::Tcp, peer.port()),
            transport: if qp.is_rc() { Transport::Rc } else { Transport::Uc },
            qpn: qp.qpn(),
            responder_resources: attr.max_dest_rd_atomic,
            initiator_depth: attr.max_rd_atomic,
            retry_count: attr.retry_cnt,
            rnr_retry_count: attr.rnr_retry,
            srq: qp.srq().is_some(),
            mtu: attr.path_mtu.unwrap_or(handle.port().mtu),
            cma_port: Some(CALLER_PORT),
            private_data,
        };
        let events = Arc::new(EventQueue::new());
        let id = Cm::of(handle).connect_on(&connect, &events, 0, true)?;
        Ok(Self::new(handle, id, qp, (path, peer.port()), events))
    }

    /// Takes what happened since; says how far the connection is.
    ///
    /// # Errors
    /// As [`connect`](Self::connect): the connection will not be.
    pub fn advance(&self) -> Result<Phase, Error> {
        if self.inner.events.is_abandoned() {
            return Err(Error::Disconnected(self.peer_addr()));
        }
        while let Some(event) = self.inner.events.pop() {
            self.handle_event(event)?;
        }
        Ok(self.state().phase)
    }

    fn handle_event(&self, event: CmEvent) -> Result<(), Error> {
        let event = event.event.expect("nobody else has this channel");
        let cm = Cm::of(&self.inner.handle);
        let (id, qp) = (self.inner.id, &self.inner.qp);
        match event {
            Event::Response { private_data, .. } => {
                self.state().private_data = private_data;
                let up = || -> Result<(), Error> {
                    qp.modify(&cm.qp_rtr(id)?)?;
                    qp.modify(&cm.qp_rts(id)?)?;
                    Ok(cm.establish(id, &[])?)
                };
                if let Err(e) = up() {
                    cm.close(id);
                    return Err(e);
                }
                self.state().come_up();
            }
            Event::Established { .. } => self.state().come_up(),
            Event::Disconnected { ended, .. } => self.state().phase = Phase::Ended(ended),
            Event::Rejected { reason, private_data, .. } => {
                self.state().phase = Phase::Ended(Ended::Remote);
                return Err(Error::Rejected {
                    peer: self.peer_addr(),
                    reason,
                    private_data: private_data.into(),
                });
            }
            Event::Unreachable { .. } => {
                self.state().phase = Phase::Ended(Ended::Unanswered);
                return Err(Error::NoAnswer(self.peer_addr()));
            }
            Event::TimewaitExit { .. } => {}
            Event::ConnectRequest(_) | Event::SidrRequest(_) | Event::SidrResponse { .. } => {
                unreachable!("a connection is no listener")
            }
        }
        Ok(())
    }

    fn wait_for(
        &self,
        limit: Option<Duration>,
        mut enough: impl FnMut(Phase) -> bool,
    ) -> Result<bool, Error> {
        let end = limit.map(|limit| std::time::Instant::now() + limit);
        loop {
            if enough(self.advance()?) {
                return Ok(true);
            }
            let left = end.map(|end| end.saturating_duration_since(std::time::Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            if let Some(event) = self.inner.handle.wait(left, Interest::Events, |_| self.inner.events.pop()) {
                self.handle_event(event)?;
            }
        }
    }

    /// Waits until both sides may send; `false` if the limit was reached first. A connection that was made, and is
    /// over already, counts as made: what arrived meanwhile is in the CQ.
    ///
    /// # Errors
    /// The connection will not be: the peer rejected, gave up, or did not answer.
    pub fn wait_established(&self, limit: Option<Duration>) -> Result<bool, Error> {
        let done = self.wait_for(limit, |phase| phase != Phase::Connecting)?;
        if done && !self.state().was_up { Err(Error::Disconnected(self.peer_addr())) } else { Ok(done) }
    }

    /// Waits until the connection is over; `false` if the limit was reached first.
    ///
    /// # Errors
    /// The connection never was.
    pub fn wait_ended(&self, limit: Option<Duration>) -> Result<bool, Error> {
        self.wait_for(limit, |phase| matches!(phase, Phase::Ended(_)))
    }

    /// Ends the connection; what is outstanding is flushed. The peer is told, and asked to confirm:
    /// [`wait_ended`](Self::wait_ended).
    ///
    /// # Errors
    /// It is not established.
    pub fn disconnect(&self) -> Result<(), Error> {
        let _ = self.inner.qp.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() });
        Ok(Cm::of(&self.inner.handle).disconnect(self.inner.id)?)
    }

    /// The connected QP, for what the connection has no method for.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        &self.inner.qp
    }

    /// Where the peer is.
    #[must_use]
    pub fn peer(&self) -> IpAddr {
        self.inner.path.remote.to_ip()
    }

    /// Where the peer is, with the port that was connected to; 0 if it was the peer that connected.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        SocketAddr::new(self.peer(), self.inner.port)
    }

    /// Where this side is, as the peer sees it.
    #[must_use]
    pub fn local(&self) -> IpAddr {
        self.inner.path.local.to_ip()
    }

    /// Active side: what the peer's consumer said when it accepted, padded with zeros to 196 bytes.
    #[must_use]
    pub fn private_data(&self) -> Box<[u8]> {
        self.state().private_data.clone()
    }

    /// Readable while [`advance`](Self::advance) has something to do.
    ///
    /// # Errors
    /// The operating system refuses a descriptor.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.inner.events.fd()
    }

    /// What happens to the connection wakes this, as what has happened already does now: for a thread that waits for a
    /// completion queue, and calls [`advance`](Self::advance) when it is woken. The first waker that is given stays the
    /// only one; `false` if there was one.
    pub fn wake_with(&self, waker: &Waker) -> bool {
        self.inner.events.wake_with(waker)
    }

    /// What says whether its peer, which was accepted, has answered.
    #[must_use]
    pub fn handshake(&self) -> Handshake {
        Handshake(Arc::downgrade(&self.inner))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "connecting",
            Self::Established => "established",
            Self::Ended(Ended::Local) => "ended by us",
            Self::Ended(Ended::Remote) => "ended by the peer",
            Self::Ended(Ended::Unanswered) => "ended, and the peer did not answer",
            Self::Ended(Ended::Stale) => "lost: the peer does not know it any more",
        })
    }
}
