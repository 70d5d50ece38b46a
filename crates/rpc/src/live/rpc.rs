//! One thread's endpoint, and its event loop.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant as Clock, SystemTime, UNIX_EPOCH};

use remanence_pmem::Region;
use remanence_rnic::{
    Access, AhAttr, Data, Instant, PostError, QpCaps, QpType, RecvWr, SendFlags, SendOp, SendWr, Wc,
    WcOpcode, WcStatus,
};
use remanence_verbs::{Ah, Context, Cq, Mr, Pd, Qp, QpOptions, Waker};
use remanence_wire::Gid;

use super::Error;
use super::memory::{GRH_LEN, Live, Message, Pool, Received, Ring};
use super::nexus::{QKEY, Seat};
use crate::core::buffers::Body;
use crate::core::config::Config;
use crate::core::endpoint::{Endpoint, Stats, Transmit};
use crate::core::event::{CallError, Event, RequestId, SessionId};
use crate::header::{Address, HEADER_LEN, Status};

/// Packets of up to so many bytes leave inline: one copy more, and no completion to wait for.
const INLINE_MAX: usize = 256;
/// Sends that may be under way between us and the device.
const SENDS: u32 = 256;
/// Completions looked at in one go.
const BATCH: usize = 64;
/// Names receives among the completions.
const RECEIVE: u64 = 1 << 32;
/// Rounds of spinning after which others may have the core.
const ROUNDS: u32 = 256;
/// Peers whose address handles are kept.
const HANDLES_MAX: usize = 4096;

/// How an endpoint is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Receive buffers. A quarter of them stays posted whatever the consumer holds.
    pub receives: u32,
    /// Bytes for messages, rounded up to a power of two.
    pub memory: u64,
    /// How long [`Rpc::poll`] looks again and again before it sleeps, beyond what has paid lately. Zero is for a program
    /// that shares its cores; a server with a core to itself saves its clients the wake-up.
    pub spin: Duration,
    /// The protocol's limits and times, and the token. Incarnation and seed are filled in where they are zero, where the
    /// endpoint is and the secret of its nonces always, and the datagram is brought down to what the path takes.
    pub config: Config,
}

impl Default for Options {
    fn default() -> Self {
        Self { receives: 1024, memory: 64 << 20, spin: Duration::ZERO, config: Config::default() }
    }
}

/// One thread's endpoint.
pub struct Rpc {
    end: Endpoint<Live>,
    live: Live,
    qp: Qp,
    cq: Cq,
    pd: Pd,
    receives: Mr,
    messages: Mr,
    headers: Mr,
    /// Slots for headers of sends that are not inline, and the messages that they come from.
    free: Vec<u32>,
    leaving: Vec<Option<Message>>,
    /// Packets on their way to the device, which may have no room at the moment.
    backlog: VecDeque<Transmit<Message>>,
    handles: BTreeMap<Gid, Ah>,
    start: Clock,
    spin: Duration,
    wcs: Vec<Wc>,
    slots: Vec<u32>,
    pub(super) seat: Option<Seat>,
}

impl std::fmt::Debug for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rpc")
            .field("address", &self.address())
            .field("sessions", &self.end.sessions())
            .finish_non_exhaustive()
    }
}

impl Rpc {
    pub(super) fn new(context: &Context, options: &Options) -> Result<Self, Error> {
        let mut config = options.config.clone();
        config.datagram = config.datagram.min(context.config().mtu.bytes());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if config.incarnation == 0 {
            config.incarnation = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        }
        let ring = Arc::new(Ring::new(options.receives.max(16), config.datagram)?);
        let pool = Pool::new(options.memory.max(1 << 16).next_power_of_two())?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(ring.slots + SENDS + 1, None, 0)?;
        let caps = QpCaps {
            max_send_wr: SENDS,
            max_recv_wr: ring.slots,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: INLINE_MAX as u32,
        };
        let qp = pd.create_qp(&QpOptions { ty: QpType::Ud, caps, ..QpOptions::rc(&cq) })?;
        qp.activate_ud(QKEY).map_err(remanence_verbs::Error::from)?;
        let endpoint = qp.endpoint();
        config.own = Address { gid: endpoint.gid, qpn: endpoint.qpn };
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(Error::Random)?;
        getrandom::fill(&mut config.secret).map_err(Error::Random)?;
        if config.seed == 0 {
            config.seed = u64::from_le_bytes(random);
        }
        let receives = pd.reg_mr(&ring.region, Access::LOCAL_WRITE)?;
        let messages = pd.reg_mr(&pool.region, Access::LOCAL_WRITE)?;
        let headers =
            pd.reg_mr(&Region::anonymous(u64::from(SENDS) * HEADER_LEN as u64)?, Access::empty())?;
        let mut rpc = Self {
            end: Endpoint::new(config),
            live: Live { ring, pool },
            qp,
            cq,
            pd,
            receives,
            messages,
            headers,
            free: (0..SENDS).collect(),
            leaving: vec![None; SENDS as usize],
            backlog: VecDeque::new(),
            handles: BTreeMap::new(),
            start: Clock::now(),
            spin: options.spin,
            wcs: Vec::with_capacity(BATCH),
            slots: Vec::new(),
            seat: None,
        };
        rpc.post_receives()?;
        Ok(rpc)
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> Address {
        let endpoint = self.qp.endpoint();
        Address { gid: endpoint.gid, qpn: endpoint.qpn }
    }

    /// The protocol's counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.end.stats()
    }

    /// The protocol's limits and times.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.end.config()
    }

    /// Sessions at present.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.end.sessions()
    }

    /// Memory for a message of `len` bytes; `None`: there is no room before some others are gone.
    #[must_use]
    pub fn message(&self, len: usize) -> Option<Message> {
        self.live.pool.message(len)
    }

    /// Begins a session with an endpoint ([`Nexus::resolve`](super::Nexus::resolve) finds it).
    /// [`Event::Connected`] or [`Event::Ended`] follows; calls may be made at once.
    /// `None`: there are as many sessions as allowed.
    pub fn connect(&mut self, to: Address) -> Option<SessionId> {
        let own = Address { gid: self.source(to.gid).1, ..self.address() };
        self.end.connect_from(self.now(), own, to)
    }

    /// Ends a session: see [`Endpoint::disconnect`].
    pub fn disconnect(&mut self, session: SessionId) {
        self.end.disconnect(self.now(), session);
    }

    /// Calls a service with a message, which must not be written to before the answer. [`Event::Response`] or
    /// [`Event::Failed`] follows, with `tag`.
    ///
    /// # Errors
    /// As [`Endpoint::call`]; nothing was done.
    pub fn call(
        &mut self,
        session: SessionId,
        service: u16,
        request: Message,
        tag: u64,
    ) -> Result<(), (CallError, Message)> {
        let length = u32::try_from(request.len()).unwrap_or(u32::MAX);
        self.end.call(self.now(), session, service, request, length, tag)
    }

    /// Answers a request, now or long after it came; `false` if nobody waits for it any more.
    pub fn respond(&mut self, id: RequestId, status: Status, response: Option<Message>) -> bool {
        let length = response.as_ref().map_or(0, |message| message.len() as u32);
        self.end.respond(id, status, response, length)
    }

    /// As [`respond`](Self::respond), with bytes. Without room for them, the status is [`Status::Overloaded`].
    pub fn respond_with(&mut self, id: RequestId, status: Status, bytes: &[u8]) -> bool {
        match self.message(bytes.len()) {
            Some(message) => {
                message.write(0, bytes);
                self.respond(id, status, Some(message))
            }
            None => self.respond(id, Status::Overloaded, None),
        }
    }

    /// The event loop: sends and receives until something happened for the consumer, and returns it; `None` when the
    /// limit is reached, or when somebody [woke](Self::waker) it, and with no limit now and then for no reason. With no limit, or a
    /// long one, it spins as long as that has paid lately, then sleeps; with a limit of zero it looks once, and leaves nothing unsent
    /// that may leave.
    ///
    /// # Errors
    /// The endpoint does not work any more.
    pub fn poll(&mut self, limit: Option<Duration>) -> Result<Option<Event<Live>>, Error> {
        // What the consumer did with the last event leaves with what it does with the others of the same batch.
        if let Some(event) = self.end.poll_event() {
            return Ok(Some(event));
        }
        let begin = self.now();
        let end = limit.map(|limit| begin + limit);
        let mut rounds = 0_u32;
        loop {
            self.transmit()?;
            let mut wcs = std::mem::take(&mut self.wcs);
            let found = self.cq.poll(&mut wcs, BATCH);
            self.wcs = wcs;
            let (mut worked, mut woken) = (found? > 0, false);
            let now = self.now();
            if !worked {
                let due = self.end.poll_timeout();
                if due.is_some_and(|due| due <= now) {
                    self.end.handle_timeout(now);
                    worked = true;
                }
            }
            if !worked && now.since(begin) < self.spin {
                rounds += 1;
                if rounds.is_multiple_of(ROUNDS) {
                    // Somebody may be waiting for this core.
                    std::thread::yield_now();
                }
            } else if !worked && self.backlog.is_empty() && end.is_none_or(|end| end > now) {
                let until = self.end.poll_timeout().into_iter().chain(end).min();
                let mut wcs = std::mem::take(&mut self.wcs);
                let found = self.cq.wait(&mut wcs, BATCH, until.map(|until| until.since(now)));
                self.wcs = wcs;
                // Who was woken just when a time of the protocol's came is to look as well. With a limit that has time.
                woken = found? == 0 && (end.is_none() || until.is_none_or(|until| until > self.now()));
            }
            self.complete()?;
            self.post_receives()?;
            if let Some(event) = self.end.poll_event() {
                return Ok(Some(event));
            }
            if woken || end.is_some_and(|end| end <= self.now()) {
                self.transmit()?;
                return Ok(None);
            }
        }
    }

    /// What ends the present sleep of [`poll`](Self::poll), or else its next one, from any thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.cq.waker()
    }

    /// Sends what may leave now, such as the last words of a server that ends. [`poll`](Self::poll) does it by itself.
    ///
    /// # Errors
    /// The endpoint does not work any more.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.transmit()
    }

    /// Whether [`poll`](Self::poll) would return something at once, of what came already.
    #[must_use]
    pub fn has_event(&self) -> bool {
        self.end.has_event()
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Takes what the completion queue gave.
    fn complete(&mut self) -> Result<(), Error> {
        let mut wcs = std::mem::take(&mut self.wcs);
        let result = wcs.drain(..).try_for_each(|wc| self.on_completion(&wc));
        self.wcs = wcs;
        result
    }

    fn on_completion(&mut self, wc: &Wc) -> Result<(), Error> {
        if wc.status != WcStatus::Success {
            return Err(Error::Qp(wc.status));
        }
        let slot = wc.wr_id as u32;
        if wc.opcode != WcOpcode::Recv {
            self.leaving[slot as usize] = None;
            self.free.push(slot);
            return Ok(());
        }
        let len = wc.byte_len.saturating_sub(GRH_LEN as u32);
        let packet = Received::new(&self.live.ring, slot, len);
        let gid = self.sender(slot, wc.ipv4);
        let from = Address { gid, qpn: wc.src_qp };
        let now = self.now();
        self.end.handle_packet(now, &mut self.live, from, packet);
        Ok(())
    }

    /// Who sent what lies in a slot: the source address in its GRH area.
    fn sender(&self, slot: u32, ipv4: bool) -> Gid {
        let start = self.live.ring.start(slot);
        if ipv4 {
            let mut address = [0; 4];
            self.live.ring.region.read(start + 32, &mut address);
            Gid::from_ip(address.into())
        } else {
            let mut address = [0; 16];
            self.live.ring.region.read(start + 8, &mut address);
            Gid(address)
        }
    }

    fn post_receives(&mut self) -> Result<(), Error> {
        self.live.ring.take_returned(&mut self.slots);
        if self.slots.is_empty() {
            return Ok(());
        }
        let len = (self.end.config().datagram as u64 + GRH_LEN) as u32;
        let (ring, receives) = (&self.live.ring, &self.receives);
        let sges: Vec<_> = self.slots.iter().map(|&slot| [receives.sge(ring.start(slot), len)]).collect();
        let wrs = self.slots.iter().zip(&sges);
        let wrs = wrs.map(|(&slot, sges)| RecvWr { wr_id: RECEIVE | u64::from(slot), sges });
        match self.qp.post_recvs(wrs) {
            Ok(()) => self.slots.clear(),
            Err((posted, PostError::QueueFull)) => {
                self.slots.drain(..posted);
                ring.put_back(&mut self.slots);
            }
            Err((_, why)) => return Err(why.into()),
        }
        Ok(())
    }

    /// Sends what may leave, behind one doorbell.
    fn transmit(&mut self) -> Result<(), Error> {
        if self.backlog.is_empty() && !self.end.wants_tx() {
            return Ok(());
        }
        let now = self.now();
        // (A handle is made under the device lock, which the doorbell takes.)
        while self.backlog.len() < SENDS as usize {
            let Some(packet) = self.end.poll_transmit(now) else { break };
            self.handle(packet.to.gid);
            self.backlog.push_back(packet);
        }
        let mut doorbell = self.qp.doorbell();
        while let Some(packet) = self.backlog.pop_front() {
            let Some(dest) = self.handles.get(&packet.to.gid).map(|ah| ah.dest(packet.to.qpn, QKEY)) else {
                continue;
            };
            let credential = packet.credential.as_deref().unwrap_or_default();
            let len =
                HEADER_LEN + credential.len() + packet.payload.as_ref().map_or(0, |(_, range)| range.len());
            let posted = if len <= INLINE_MAX {
                let mut bytes = [0; INLINE_MAX];
                bytes[..HEADER_LEN].copy_from_slice(&packet.header);
                bytes[HEADER_LEN..][..credential.len()].copy_from_slice(credential);
                if let Some((message, range)) = &packet.payload {
                    message.read(range.start, &mut bytes[HEADER_LEN..len]);
                }
                doorbell.post_send(&SendWr {
                    wr_id: 0,
                    op: SendOp::Send,
                    data: Data::Inline(&bytes[..len]),
                    flags: SendFlags::empty(),
                    ud: Some(dest),
                })
            } else if let (Some(slot), Some((message, range))) = (self.free.pop(), &packet.payload) {
                let at = u64::from(slot) * HEADER_LEN as u64;
                self.headers.region().write(at, &packet.header);
                let (_, start) = message.place();
                let sges = [
                    self.headers.sge(at, HEADER_LEN as u32),
                    self.messages.sge(start + range.start as u64, range.len() as u32),
                ];
                let posted = doorbell.post_send(&SendWr {
                    wr_id: slot.into(),
                    op: SendOp::Send,
                    data: Data::Sges(&sges),
                    flags: SendFlags::SIGNALED,
                    ud: Some(dest),
                });
                match posted {
                    Ok(()) => self.leaving[slot as usize] = Some(message.clone()),
                    Err(_) => self.free.push(slot),
                }
                posted
            } else {
                Err(PostError::QueueFull)
            };
            match posted {
                Ok(()) => {}
                Err(PostError::QueueFull) => {
                    self.backlog.push_front(packet);
                    break;
                }
                Err(why) => return Err(why.into()),
            }
        }
        Ok(())
    }

    /// From which address of ours packets leave for a peer.
    fn source(&self, gid: Gid) -> (u8, Gid) {
        let gids = self.pd.context().config().gids.clone();
        let index = gids.iter().position(|ours| *ours == gid);
        let index = index.or_else(|| gids.iter().position(|g| g.to_ip().is_ipv4() == gid.to_ip().is_ipv4()));
        let index = index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0);
        (index, gids[usize::from(index)])
    }

    /// Makes sure that there is an address handle for a peer, if it can be reached at all.
    fn handle(&mut self, gid: Gid) {
        if self.handles.contains_key(&gid) {
            return;
        }
        if self.handles.len() >= HANDLES_MAX {
            self.handles.clear();
        }
        let (sgid_index, _) = self.source(gid);
        // A peer that cannot be reached from here is one that does not answer.
        if let Ok(ah) = self.pd.create_ah(&AhAttr { sgid_index, ..AhAttr::new(gid) }) {
            self.handles.insert(gid, ah);
        }
    }
}

/// The rest of a session and of a call, for programs that make one at a time.
impl Rpc {
    /// Begins a session and waits until it is up, which takes the server's consent if it asks for a token. Events of other
    /// calls and sessions that come meanwhile go to `other`.
    ///
    /// # Errors
    /// The server does not answer or refuses, or the endpoint has no room for a session or does not work any more.
    pub fn connect_and_wait(
        &mut self,
        to: Address,
        mut other: impl FnMut(Event<Live>),
    ) -> Result<SessionId, Error> {
        let wanted = self.connect(to).ok_or(Error::Sessions)?;
        loop {
            match self.poll(None)? {
                Some(Event::Connected(session)) if session == wanted => return Ok(session),
                Some(Event::Ended { session, why }) if session == wanted => {
                    return Err(Error::NoSession(why));
                }
                Some(event) => other(event),
                None => {}
            }
        }
    }

    /// Calls a service and waits for the answer. Events of other calls and sessions that come meanwhile go to `other`.
    ///
    /// # Errors
    /// In words: the call was not taken or has no answer, or the endpoint does not work any more.
    pub fn call_and_wait(
        &mut self,
        session: SessionId,
        service: u16,
        request: &[u8],
        mut other: impl FnMut(Event<Live>),
    ) -> Result<(Status, Body<Live>), String> {
        const TAG: u64 = u64::MAX;
        let message = self.message(request.len()).ok_or("there is no memory for the message")?;
        message.write(0, request);
        self.call(session, service, message, TAG).map_err(|(why, _)| why.to_string())?;
        loop {
            match self.poll(None).map_err(|e| e.to_string())? {
                Some(Event::Response { tag: TAG, status, body }) => return Ok((status, body)),
                Some(Event::Failed { tag: TAG, why }) => return Err(why.to_string()),
                Some(event) => other(event),
                None => {}
            }
        }
    }
}
