//! Runs the connection manager: its MADs go through QP 1 of the device, its time is the device's, its events go to
//! the queue of whoever the connection or listener belongs to.
//!
//! This is the plain form, one call for one act, as `rdma_cm` has it; `connect.rs` makes connections of it. Read
//! first: the head of `remanence_rnic::cm`.

#[cfg(test)]
mod tests;
mod widen;

use std::collections::HashMap;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use remanence_link::Evidence;
use remanence_link::host::{Listening, Seat};
use remanence_rnic::cm::{self, CmError, CommId, Event, ListenId, Manager, Path};
use remanence_rnic::{AhAttr, Device, Instant, QpAttr, QpState, Silence};
use remanence_wire::cm::{RejReason, ServiceId};
use remanence_wire::{Gid, Psn, Qpn};

use crate::channel::EventQueue;
use crate::claims;
use crate::context::{Context, Handle};
use crate::error::Error;
use crate::wake;

/// Something happened to a connection or listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CmEvent {
    /// What the connection or listener was made with.
    pub user_data: u64,
    /// What happened; `None` for what the consumer put into the channel itself ([`CmChannel::push`]).
    pub event: Option<Event>,
}

/// Where events of connections and listeners arrive, of any number of devices (`rdma_event_channel`). Clones are the
/// same channel.
#[derive(Clone, Debug)]
pub struct CmChannel {
    pub(crate) events: Arc<EventQueue<CmEvent>>,
}

impl CmChannel {
    /// An empty channel.
    ///
    /// # Errors
    /// The operating system refuses a descriptor.
    pub fn new() -> Result<Self, Error> {
        let events = Arc::new(EventQueue::new());
        events.fd()?;
        Ok(Self { events })
    }

    /// The next event, waiting for it; `None` if the limit was reached first, or at once if the descriptor is in
    /// non-blocking mode and there is none.
    ///
    /// The devices must have progress threads: this thread serves none of them while it waits.
    #[must_use]
    pub fn get_event(&self, limit: Option<Duration>) -> Option<CmEvent> {
        let end = limit.map(|limit| std::time::Instant::now() + limit);
        loop {
            let event = self.events.pop();
            let left = end.map(|end| end.saturating_duration_since(std::time::Instant::now()));
            if event.is_some()
                || self.events.is_abandoned()
                || left == Some(Duration::ZERO)
                || self.events.is_nonblocking()
            {
                return event;
            }
            wake::until_readable(self.as_fd(), left);
        }
    }

    /// The next event if there is one.
    #[must_use]
    pub fn try_get_event(&self) -> Option<CmEvent> {
        self.events.pop()
    }

    /// Puts in an event of the consumer's own, in order with the others: `rdma_resolve_addr` and its like have
    /// their answers without the network, and must give them here all the same.
    pub fn push(&self, user_data: u64) {
        self.events.push(CmEvent { user_data, event: None });
    }

    /// Moves the events of what is identified by `user_data` to another channel, in order. Those of a connection that
    /// goes on move with [`Cm::adopt`]; these are the rest.
    pub fn move_to(&self, user_data: u64, other: &Self) {
        for event in self.events.take(|event| event.user_data == user_data) {
            other.events.push(event);
        }
    }

    /// Takes back the events of what is identified by `user_data`.
    pub fn discard(&self, user_data: u64) {
        self.events.retain(|event| event.user_data != user_data);
    }
}

/// Readable while an event waits.
impl AsFd for CmChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.fd().expect("made with the channel")
    }
}

/// Whose a connection or listener is.
#[derive(Clone, Debug)]
struct Route {
    events: Arc<EventQueue<CmEvent>>,
    user_data: u64,
    /// The QP that the connection is for.
    qpn: Option<Qpn>,
    /// The QP shall be in the error state when the connection is over: what is outstanding is then flushed at once,
    /// not when its retries are used up.
    flush: bool,
    /// The peer asked for it.
    passive: bool,
    /// How often the network said that nobody has the peer's port open while we asked.
    refused: u8,
    /// It said so since the peer was last asked whether it is there.
    closed: bool,
    /// A request that its owner has not accepted, and of whose end he shall not hear.
    undecided: bool,
}

impl Route {
    fn new(events: &Arc<EventQueue<CmEvent>>, user_data: u64) -> Self {
        Self {
            events: Arc::clone(events),
            user_data,
            qpn: None,
            flush: false,
            passive: false,
            refused: 0,
            closed: false,
            undecided: false,
        }
    }

    /// The connection is over.
    fn flush(&self, now: Instant, device: &mut Device) {
        if let Some(qpn) = self.qpn.filter(|_| self.flush) {
            // The QP may be gone.
            let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
            let _ = device.modify_qp(now, qpn, &attr);
        }
    }
}

/// A service of this process at some of its addresses, until this is dropped: an entry in the host's book of services
/// where the RoCEv2 port is shared, in the device's own elsewhere.
#[derive(Debug)]
pub struct Claim {
    _listening: Vec<Listening>,
    _entry: Option<claims::Entry>,
}

#[derive(Debug)]
struct Service {
    route: Route,
    claim: Claim,
    wide: Option<widen::Wide>,
}

/// ICMP messages "port unreachable", with proof, that end an attempt to connect. One may be of a peer that restarts, and the
/// request is repeated anyway; with the second, no answer can be expected soon.
const REFUSALS: u8 = 2;

/// What a datagram was of which somebody says that it did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    /// A MAD, with this transaction ID: of what waits for an answer, the communication ID.
    Request(u64),
    /// A packet of a QP.
    Packet { dest: Qpn, psn: Psn },
}

impl Lost {
    /// By the beginning of its payload, if that is long enough: routers need not quote more than the UDP header.
    fn of(quote: &[u8]) -> Option<Self> {
        /// BTH, DETH, and the MAD's header up to the transaction ID.
        const TID: usize = 12 + 8 + 8;
        let number = |at: usize| {
            let bytes = quote.get(at..at + 3)?;
            Some(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
        };
        let (dest, psn) = (Qpn::new(number(5)?), Psn::new(number(9)?));
        if dest != Qpn::GSI {
            return Some(Self::Packet { dest, psn });
        }
        Some(Self::Request(u64::from_be_bytes(*quote.get(TID..)?.first_chunk()?)))
    }
}

/// The connection manager of a device, and its books. Lives under the device lock.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) manager: Manager,
    routes: HashMap<CommId, Route>,
    listeners: HashMap<ListenId, Service>,
    by_qpn: HashMap<Qpn, CommId>,
    /// Processes of this host share the port, and their slots say who lives.
    shared_port: bool,
    /// See [`Cm::keep_undecided_quiet`].
    quiet: bool,
}

impl Connections {
    pub(crate) fn new(config: cm::Config, shared_port: bool) -> Self {
        Self {
            manager: Manager::new(config),
            routes: HashMap::new(),
            listeners: HashMap::new(),
            by_qpn: HashMap::new(),
            shared_port,
            quiet: false,
        }
    }

    /// Moves MADs between the manager and QP 1, and events to their owners. Returns how many events it moved.
    #[inline]
    pub(crate) fn pump(&mut self, now: Instant, device: &mut Device) -> u64 {
        while let Some(mad) = device.poll_mad() {
            self.manager.handle_mad(now, mad.from, &mad.mad);
        }
        if self.manager.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.manager.handle_timeout(now);
        }
        while let Some((qpn, silence)) = device.poll_silence() {
            self.silent(now, qpn, silence);
        }
        while let Some((path, mad)) = self.manager.poll_transmit() {
            let gids = &device.config().gids;
            let sgid_index = gids.iter().position(|&gid| gid == path.local).unwrap_or(0);
            let sgid_index = u8::try_from(sgid_index).unwrap_or(0);
            // A path that cannot be sent on loses the message, as a network may.
            let _ = device.send_mad(&AhAttr { sgid_index, ..AhAttr::new(path.remote) }, &mad);
        }
        let mut moved = 0;
        while let Some(event) = self.manager.poll_event() {
            self.deliver(now, device, event);
            moved += 1;
        }
        moved
    }

    fn deliver(&mut self, now: Instant, device: &mut Device, event: Event) {
        let (route, gone) = match &event {
            Event::ConnectRequest(request) => {
                let route = self.listener(request.listener);
                if let Some(route) = &route {
                    let route = Route { undecided: self.quiet, passive: true, ..route.clone() };
                    self.routes.insert(request.id, route);
                }
                (route, None)
            }
            Event::SidrRequest(request) => (self.listener(request.listener), None),
            Event::Response { id, .. } => (self.routes.get(id).cloned(), None),
            Event::Established { id } => {
                self.watch(now, device, *id);
                (self.routes.get(id).cloned(), None)
            }
            Event::Disconnected { id, .. } => {
                let route = self.routes.get(id).cloned();
                route.as_ref().inspect(|route| route.flush(now, device));
                (route, None)
            }
            // It was accepted, and its QP waits in RTS: nobody else would tell its consumer that nothing comes of it. Who
            // asked has a QP that is not connected yet, and may ask somebody else for it.
            Event::Rejected { id, .. } | Event::Unreachable { id } => {
                let route = self.routes.get(id).cloned();
                route.as_ref().filter(|route| route.passive).inspect(|route| route.flush(now, device));
                (route, Some(*id))
            }
            Event::TimewaitExit { id } | Event::SidrResponse { id, .. } => {
                (self.routes.get(id).cloned(), Some(*id))
            }
        };
        if let Some(id) = gone {
            self.forget(id);
        }
        if let Some(route) =
            route.filter(|route| !route.undecided || matches!(event, Event::ConnectRequest(_)))
        {
            route.events.push(CmEvent { user_data: route.user_data, event: Some(event) });
        }
    }

    fn listener(&self, id: ListenId) -> Option<Route> {
        self.listeners.get(&id).map(|service| service.route.clone())
    }

    fn forget(&mut self, id: CommId) {
        if let Some(Route { qpn: Some(qpn), .. }) = self.routes.remove(&id)
            && self.by_qpn.get(&qpn) == Some(&id)
        {
            self.by_qpn.remove(&qpn);
        }
    }

    /// The first packet arrived on a QP in RTR: as good as the RTU, which may have been lost.
    pub(crate) fn communication_established(&mut self, qpn: Qpn) {
        if let Some(&id) = self.by_qpn.get(&qpn) {
            self.manager.communication_established(id);
        }
    }

    /// From now on somebody notices when the peer of this connection is gone.
    fn watch(&mut self, now: Instant, device: &mut Device, id: CommId) {
        if let Some(route) = self.routes.get_mut(&id) {
            (route.refused, route.closed) = (0, false);
            if let Some(qpn) = route.qpn {
                device.watch_peer(now, qpn);
            }
        }
    }

    /// The peer of a QP does not answer. What the network says of its port, and this host of its process, is believed
    /// then. A peer that is there, and was started anew, says so where it is asked.
    fn silent(&mut self, now: Instant, qpn: Qpn, silence: Silence) {
        let Some(&id) = self.by_qpn.get(&qpn) else { return };
        let Some(route) = self.routes.get_mut(&id) else { return };
        // That the network says so twice is worth something where a second lies in between.
        if silence != Silence::Retried {
            let closed = std::mem::take(&mut route.closed);
            route.refused = if closed { route.refused + 1 } else { 0 };
        }
        if silence == Silence::Lost || route.refused >= REFUSALS || self.is_dead(id) {
            self.manager.lost(now, id);
        } else {
            self.manager.ask(id);
        }
    }

    /// Whether the peer was a process of this host that has ended.
    fn is_dead(&self, id: CommId) -> bool {
        let (Some(path), Some(qpn)) = (self.manager.path(id), self.manager.remote_qpn(id)) else {
            return false;
        };
        // Only what is an address of this host can be bound.
        self.shared_port && !Seat::is_taken(qpn.value()) && UdpSocket::bind((path.remote.to_ip(), 0)).is_ok()
    }

    /// Somebody says that nobody has the port open at `remote`. Returns how many events that made.
    ///
    /// Anybody on the network can say so. It is believed of a message that is quoted, and of a connection with a packet
    /// that is: a communication ID, or a QP number and a PSN, which only who saw it knows.
    pub(crate) fn refused(&mut self, now: Instant, device: &Device, remote: Gid, evidence: &Evidence) -> u64 {
        let lost = match evidence {
            Evidence::Local => None,
            Evidence::Quoted(quote) => match Lost::of(quote.bytes()) {
                Some(lost) => Some(lost),
                None => return 0,
            },
        };
        let (mut ended, mut leaving) = (Vec::new(), Vec::new());
        for (&id, route) in &mut self.routes {
            if self.manager.path(id).is_none_or(|path| path.remote != remote) {
                continue;
            }
            let state = self.manager.state(id);
            let (request, packet) = match lost {
                None => (true, true),
                Some(Lost::Request(tid)) => (tid == u64::from(id.0), false),
                Some(Lost::Packet { dest, psn }) => {
                    let known = self.manager.remote_qpn(id) == Some(dest);
                    (false, known && route.qpn.is_some_and(|qpn| device.is_asking(qpn, psn)))
                }
            };
            route.closed |= packet;
            match state.filter(|_| request) {
                Some(cm::State::ReqSent) => {
                    route.refused += 1;
                    if route.refused >= REFUSALS {
                        ended.push(id);
                    }
                }
                // Who wants to end it anyway takes such a message at its word.
                Some(cm::State::DreqSent) => leaving.push(id),
                _ => {}
            }
        }
        for id in leaving {
            self.manager.nobody_answers(now, id);
        }
        for &id in &ended {
            let route = self.routes.get(&id).cloned();
            self.manager.close(now, id);
            self.forget(id);
            if let Some(route) = route {
                let event = Some(Event::Unreachable { id });
                route.events.push(CmEvent { user_data: route.user_data, event });
            }
        }
        ended.len() as u64
    }

    fn attach_qp(&mut self, id: CommId, qpn: Qpn, flush: bool) {
        if let Some(route) = self.routes.get_mut(&id) {
            route.qpn = Some(qpn);
            route.flush = flush;
            self.by_qpn.insert(qpn, id);
        }
    }
}

/// The connection manager of a device. Private data is given and taken as the messages carry it.
#[derive(Clone, Copy, Debug)]
pub struct Cm<'a> {
    handle: &'a Arc<Handle>,
}

impl Context {
    /// The connection manager, act by act. Most programs use [`Connection`](crate::Connection) and
    /// [`Listener`](crate::Listener).
    #[must_use]
    pub fn cm(&self) -> Cm<'_> {
        Cm { handle: &self.handle }
    }
}

/// Takes a service at some addresses of a device.
fn claim_at(
    seat: Option<&Seat>,
    claims: &claims::Claims,
    service_id: ServiceId,
    gids: &[Gid],
) -> Result<Claim, Error> {
    // One process of the host gets the requests for a service at an address, whichever of them the kernel hands
    // them to.
    let mut listening = Vec::new();
    let mut entry = None;
    if let Some(seat) = seat {
        for gid in gids {
            listening.push(seat.listen(service_id.0, Some(gid.to_ip())).map_err(|e| {
                if e.kind() == io::ErrorKind::AddrInUse {
                    CmError::InUse.into()
                } else {
                    Error::os("cannot listen", e)
                }
            })?);
        }
    } else {
        entry = Some(claims.enter(service_id, gids).ok_or(CmError::InUse)?);
    }
    Ok(Claim { _listening: listening, _entry: entry })
}

impl<'a> Cm<'a> {
    pub(crate) fn of(handle: &'a Arc<Handle>) -> Self {
        Self { handle }
    }

    /// Listens on a service; [`Event::ConnectRequest`] and [`Event::SidrRequest`] arrive on the channel with
    /// `user_data`, and further events of the connections made from them too, until [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// Another listener has the service.
    pub fn listen(self, listen: &cm::Listen, channel: &CmChannel, user_data: u64) -> Result<ListenId, Error> {
        self.listen_on(listen, &channel.events, user_data)
    }

    pub(crate) fn listen_on(
        self,
        listen: &cm::Listen,
        events: &Arc<EventQueue<CmEvent>>,
        user_data: u64,
    ) -> Result<ListenId, Error> {
        let claim = self.claim(listen.service_id, listen.local)?;
        self.listen_with(claim, listen, events, user_data)
    }

    fn listen_with(
        self,
        claim: Claim,
        listen: &cm::Listen,
        events: &Arc<EventQueue<CmEvent>>,
        user_data: u64,
    ) -> Result<ListenId, Error> {
        let mut turn = self.handle.turn();
        let id = turn.cm.manager.listen(listen)?;
        let route = Route::new(events, user_data);
        turn.cm.listeners.insert(id, Service { route, claim, wide: None });
        Ok(id)
    }

    /// Takes a service at one address of the device, or at all of them, before anybody listens there: what binding
    /// a port does. Requests that arrive meanwhile are rejected.
    ///
    /// # Errors
    /// Some process of this host has it.
    pub fn claim(self, service_id: ServiceId, local: Option<Gid>) -> Result<Claim, Error> {
        if self.handle.lock.is_abandoned() {
            return Err(Error::os("the device was the parent process's", io::ErrorKind::NotConnected.into()));
        }
        let gids = local.map_or_else(|| self.handle.port().addresses().collect(), |gid| vec![gid]);
        claim_at(self.handle.seat.as_ref(), &self.handle.claims, service_id, &gids)
    }

    /// [`listen`](Self::listen) to what was claimed before. The claim is given up if that fails.
    ///
    /// # Errors
    /// Another listener of this device has the service.
    pub fn listen_claimed(
        self,
        claim: Claim,
        listen: &cm::Listen,
        channel: &CmChannel,
        user_data: u64,
    ) -> Result<ListenId, Error> {
        self.listen_with(claim, listen, &channel.events, user_data)
    }

    /// From now on, the end of a request that was not accepted yet is no event: who accepts it learns of it then. Linux
    /// keeps it from programs too, whose channel would be readable for nothing.
    pub fn keep_undecided_quiet(self) {
        self.handle.lock.lock().cm.quiet = true;
    }

    /// From now on, asks for a service that nobody listens for (yet) this many times more: see
    /// [`cm::Manager::set_knocks`].
    pub fn set_knocks(self, knocks: u8) {
        self.handle.lock.lock().cm.manager.set_knocks(knocks);
    }

    /// Stops listening; undecided requests are rejected.
    pub fn unlisten(self, id: ListenId) {
        let mut turn = self.handle.turn();
        let over = turn.cm.unlisten(id);
        drop(turn);
        drop(over);
    }

    /// Asks a peer for a connection for the QP `connect.qpn`. Its state stays the caller's business to the end.
    ///
    /// # Errors
    /// The path mixes IP versions, the private data does not fit, or there are too many connections.
    pub fn connect(
        self,
        connect: &cm::Connect<'_>,
        channel: &CmChannel,
        user_data: u64,
    ) -> Result<CommId, CmError> {
        self.connect_on(connect, &channel.events, user_data, false)
    }

    pub(crate) fn connect_on(
        self,
        connect: &cm::Connect<'_>,
        events: &Arc<EventQueue<CmEvent>>,
        user_data: u64,
        flush: bool,
    ) -> Result<CommId, CmError> {
        let mut turn = self.handle.turn();
        let now = turn.now;
        let id = turn.cm.manager.connect(now, connect)?;
        turn.cm.routes.insert(id, Route::new(events, user_data));
        turn.cm.attach_qp(id, connect.qpn, flush);
        Ok(id)
    }

    /// Asks a peer for the UD QP of a service; [`Event::SidrResponse`] or [`Event::Unreachable`] follows.
    ///
    /// # Errors
    /// The path mixes IP versions, the private data does not fit, or there are too many connections.
    pub fn resolve(
        self,
        path: Path,
        service_id: ServiceId,
        cma_port: Option<u16>,
        private_data: &[u8],
        channel: &CmChannel,
        user_data: u64,
    ) -> Result<CommId, CmError> {
        let mut turn = self.handle.turn();
        let now = turn.now;
        let id = turn.cm.manager.resolve(now, path, service_id, cma_port, private_data)?;
        let route = Route::new(&channel.events, user_data);
        turn.cm.routes.insert(id, route);
        Ok(id)
    }

    /// Answers [`Event::SidrRequest`].
    ///
    /// # Errors
    /// The request is gone, or the private data does not fit.
    pub fn sidr_reply(self, id: CommId, reply: &cm::SidrReply<'_>) -> Result<(), CmError> {
        let mut turn = self.handle.turn();
        let now = turn.now;
        turn.cm.manager.sidr_reply(now, id, reply)
    }

    /// Sends the events of a connection to another channel, or with other user data (`rdma_migrate_id`, and the new
    /// identifier of a connection request); those that wait in its old channel go along. A request that is adopted
    /// leaves the backlog of its listener and outlives it.
    pub fn adopt(self, id: CommId, channel: &CmChannel, user_data: u64) {
        self.adopt_on(id, &channel.events, user_data);
    }

    pub(crate) fn adopt_on(self, id: CommId, events: &Arc<EventQueue<CmEvent>>, user_data: u64) {
        let mut turn = self.handle.turn();
        turn.cm.manager.adopt(id);
        if let Some(route) = turn.cm.routes.get_mut(&id) {
            let old = std::mem::replace(&mut route.events, Arc::clone(events));
            route.user_data = user_data;
            // Only the holder of the device lock pushes events of connections, so that their order stays.
            for event in old.take(|event| event.event.as_ref().and_then(Event::connection) == Some(id)) {
                events.push(CmEvent { user_data, ..event });
            }
        }
    }

    /// Sends the further requests of a listener to another channel; those that wait in its old channel go along.
    pub fn adopt_listener(self, id: ListenId, channel: &CmChannel) {
        let mut turn = self.handle.turn();
        if let Some(Service { route, .. }) = turn.cm.listeners.get_mut(&id) {
            let old = std::mem::replace(&mut route.events, Arc::clone(&channel.events));
            let user_data = route.user_data;
            for event in old.take(|event| event.user_data == user_data && event.event.is_some()) {
                channel.events.push(event);
            }
        }
        let service = turn.cm.listeners.get(&id);
        let others: Vec<_> = service
            .and_then(|service| service.wide.as_ref())
            .map(|wide| wide.others.clone())
            .unwrap_or_default();
        for (_, other) in others {
            if let Some(Service { route, .. }) = turn.cm.listeners.get_mut(&other) {
                route.events = Arc::clone(&channel.events);
            }
        }
    }

    /// The consumer knows of a packet that arrived on the connection's QP: as good as the peer's last word
    /// (`rdma_notify`).
    pub fn communication_established(self, id: CommId) {
        self.handle.turn().cm.manager.communication_established(id);
    }

    /// Accepts a request with a QP that is in RTR. [`Event::Established`] follows when the peer is there. The QP's
    /// state stays the caller's business to the end.
    ///
    /// # Errors
    /// The request is gone, or the private data does not fit.
    pub fn accept(self, id: CommId, accept: &cm::Accept<'_>) -> Result<(), CmError> {
        self.accept_with(id, accept, false)
    }

    pub(crate) fn accept_with(self, id: CommId, accept: &cm::Accept<'_>, flush: bool) -> Result<(), CmError> {
        let mut turn = self.handle.turn();
        let now = turn.now;
        turn.cm.manager.accept(now, id, accept)?;
        if let Some(route) = turn.cm.routes.get_mut(&id) {
            route.undecided = false;
        }
        turn.cm.attach_qp(id, accept.qpn, flush);
        Ok(())
    }

    /// After [`Event::Response`], with the QP in RTS: tells the peer that the connection is up.
    ///
    /// # Errors
    /// The connection is gone, or not in this state.
    pub fn establish(self, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        let mut turn = self.handle.turn();
        let now = turn.now;
        turn.cm.manager.establish(id, private_data)?;
        let driver = &mut *turn;
        driver.cm.watch(now, &mut driver.device, id);
        Ok(())
    }

    /// Rejects a request or a response.
    ///
    /// # Errors
    /// The connection is gone, or not in this state.
    pub fn reject(self, id: CommId, reason: RejReason, private_data: &[u8]) -> Result<(), CmError> {
        let mut turn = self.handle.turn();
        turn.cm.manager.reject(id, reason, &[], private_data)?;
        turn.cm.forget(id);
        Ok(())
    }

    /// Ends a connection. [`Event::Disconnected`] follows.
    ///
    /// # Errors
    /// The connection is gone, or not up.
    pub fn disconnect(self, id: CommId) -> Result<(), CmError> {
        let mut turn = self.handle.turn();
        let now = turn.now;
        turn.cm.manager.disconnect(now, id)
    }

    /// Loses interest: the connection is ended as politely as its state allows, without further events.
    pub fn close(self, id: CommId) {
        let mut turn = self.handle.turn();
        let now = turn.now;
        turn.cm.manager.close(now, id);
        turn.cm.forget(id);
    }

    /// The attributes that take the connection's QP from INIT to RTR.
    ///
    /// # Errors
    /// The peer is not known in this state.
    pub fn qp_rtr(self, id: CommId) -> Result<QpAttr, CmError> {
        let driver = self.handle.lock.lock();
        let path = driver.cm.manager.path(id).ok_or(CmError::UnknownId)?;
        let gids = &driver.device.config().gids;
        let index = gids.iter().position(|&gid| gid == path.local).unwrap_or(0);
        let sgid_index = u8::try_from(index).unwrap_or(0);
        driver.cm.manager.qp_rtr(id, AhAttr { sgid_index, ..AhAttr::new(path.remote) })
    }

    /// The attributes that take the connection's QP from RTR to RTS.
    ///
    /// # Errors
    /// The peer is not known in this state.
    pub fn qp_rts(self, id: CommId) -> Result<QpAttr, CmError> {
        self.handle.lock.lock().cm.manager.qp_rts(id)
    }

    /// The two ends of a connection, while it is known.
    #[must_use]
    pub fn path(self, id: CommId) -> Option<Path> {
        self.handle.lock.lock().cm.manager.path(id)
    }

    /// What the device's connection manager has counted since it was created.
    #[must_use]
    pub fn stats(self) -> cm::Stats {
        *self.handle.lock.lock().cm.manager.stats()
    }
}
