//! An endpoint: any number of sessions over one UD QP, as a client of some and the server of others.
//!
//! Getters, `handle_*`, verbs and `poll_*`, as the engine has them. After any call: poll for events and packets, and
//! ask when to come again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use remanence_auth::policy::{self, AccessPolicy, Credential};
use remanence_auth::{Nonce, Nonces};
use remanence_rnic::Instant;

use super::admission::{Attempt, Ends, Transcript};
use super::buffers::{Buffers, Packet};
use super::client::{Client, Outcome, Waiting};
use super::config::Config;
use super::congestion::Congestion;
use super::event::{CallError, Ended, Event, RequestId, SessionId};
use super::fragment::Fragment;
use super::server::{Server, Verdict};
use crate::draw::Draw;
use crate::header::{
    ANSWER_LEN, Address, Behind, HEADER_LEN, NONCE_LEN, PACKETS_MAX, Refusal, Repr, SEAL_LEN, Status, packets,
};

/// Times that a client says goodbye before it goes without an answer.
const GOODBYES: u32 = 5;
/// Answers of set-up that wait to leave; beyond, they are dropped, and asked for again.
const CONTROL_MAX: usize = 4096;
/// The least payload of a packet that a client may ask for, so that messages do not take a million of them.
const CAPACITY_MIN: u16 = 128;

/// A packet to send.
#[derive(Clone, Debug)]
pub struct Transmit<M> {
    /// The endpoint that the packet goes to.
    pub to: Address,
    /// Its first bytes.
    pub header: [u8; HEADER_LEN],
    /// What it shows behind them, while a session is set up; then there is no payload.
    pub credential: Option<Box<[u8]>>,
    /// What follows: a part of a message.
    pub payload: Option<(M, Range<usize>)>,
}

/// Counters since the endpoint was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Datagrams that the endpoint was given.
    pub received: u64,
    /// Datagrams handed out.
    pub sent: u64,
    /// Datagrams that are not of this protocol, or too long or short for what they say.
    pub malformed: u64,
    /// Packets of no session, or from the wrong place.
    pub unknown: u64,
    /// Attempts to get a session that were refused for want of the right token; challenges are none.
    pub unadmitted: u64,
    /// Packets that break a rule of the protocol; they are dropped.
    pub misbehaved: u64,
    /// Packets that are late, repeated or out of order.
    pub stale: u64,
    /// Times that a client went back for want of an answer.
    pub timeouts: u64,
    /// Requests given to the consumer.
    pub requests: u64,
    /// Responses given to the consumer.
    pub responses: u64,
    /// Of all messages given to the consumer: those that still lie in the receive buffer.
    pub uncopied: u64,
}

enum Phase {
    Connecting {
        since: Instant,
        retry_at: Instant,
        tries: u32,
        attempt: Attempt,
        /// Somebody said to be the server, and did not prove it.
        doubted: bool,
    },
    Up {
        quiet_since: Instant,
    },
    Closing {
        retry_at: Instant,
        tries: u32,
    },
}

enum Half<M> {
    Client(Box<Client<M>>, Phase),
    Server(Box<Server<M>>),
}

struct Session<M> {
    peer: Address,
    /// Of a client's session that is not up: its own, else the server's.
    key: u32,
    generation: u32,
    /// Payload bytes of a packet.
    capacity: u32,
    half: Half<M>,
    heard: Instant,
    /// In the ready line.
    queued: bool,
    /// Its entry among the timers; may be earlier than needed.
    timer: Option<Instant>,
}

impl<M: Clone> Session<M> {
    fn wants_tx(&self) -> bool {
        match &self.half {
            Half::Client(client, Phase::Up { .. }) => client.wants_tx(),
            Half::Client(_, Phase::Connecting { .. } | Phase::Closing { .. }) => false,
            Half::Server(server) => server.wants_tx(),
        }
    }

    fn deadline(&self, config: &Config) -> Instant {
        match &self.half {
            Half::Client(_, Phase::Connecting { retry_at, .. } | Phase::Closing { retry_at, .. }) => {
                *retry_at
            }
            Half::Client(client, Phase::Up { quiet_since }) => {
                client.deadline().unwrap_or(*quiet_since + config.ping)
            }
            Half::Server(_) => self.heard + config.silence_max,
        }
    }
}

/// A packet of no call.
struct Control {
    to: Address,
    repr: Repr,
    credential: Option<Box<[u8]>>,
}

/// What a client says of itself when it wants a session.
#[derive(Clone, Copy)]
struct Hello {
    session: u32,
    key: u32,
    incarnation: u64,
    capacity: u16,
    credits: u16,
}

/// What a client says that shows a proof.
const fn prove(hello: Hello) -> Repr {
    let Hello { session, key, incarnation, capacity, credits } = hello;
    Repr::Prove { session, key, incarnation, capacity, credits }
}

/// Many sessions over one UD QP.
pub struct Endpoint<B: Buffers> {
    config: Config,
    capacity: u16,
    sessions: Vec<Option<Session<B::Message>>>,
    free: Vec<u32>,
    /// Client sessions that are up, by the server's address, number and key.
    remotes: BTreeMap<(Address, u32, u32), u32>,
    /// Server sessions, by the client's address, incarnation and number.
    clients: BTreeMap<(Address, u64, u32), u32>,
    ready: VecDeque<u32>,
    control: VecDeque<Control>,
    events: VecDeque<Event<B>>,
    timers: BTreeSet<(Instant, u32)>,
    draws: Draw,
    nonces: Nonces,
    policy: AccessPolicy,
    generations: u32,
    stats: Stats,
}

impl<B: Buffers> Endpoint<B> {
    /// An endpoint without sessions.
    ///
    /// # Panics
    /// The configuration's datagram cannot be one.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            capacity: config.capacity(),
            draws: Draw(config.seed ^ config.incarnation.rotate_left(32)),
            nonces: Nonces::new(config.secret),
            policy: AccessPolicy::new(config.token.clone()),
            config,
            sessions: Vec::new(),
            free: Vec::new(),
            remotes: BTreeMap::new(),
            clients: BTreeMap::new(),
            ready: VecDeque::new(),
            control: VecDeque::new(),
            events: VecDeque::new(),
            timers: BTreeSet::new(),
            generations: 0,
            stats: Stats::default(),
        }
    }

    /// What it was created with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the endpoint has counted since it was made.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sessions at present, of both kinds.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len() - self.free.len()
    }

    /// What the round trips of a client's session say; `None` if it is over, or a server's.
    #[must_use]
    pub fn congestion(&self, session: SessionId) -> Option<&Congestion> {
        match &self.session(session)?.half {
            Half::Client(client, _) => Some(&client.congestion),
            Half::Server(_) => None,
        }
    }

    /// Where a session's peer is.
    #[must_use]
    pub fn peer(&self, session: SessionId) -> Option<Address> {
        self.session(session).map(|session| session.peer)
    }

    /// Begins a session. [`Event::Connected`] or [`Event::Ended`] follows; calls may be made at once, and wait.
    /// `None`: there are [`Config::sessions_max`] already.
    pub fn connect(&mut self, now: Instant, to: Address) -> Option<SessionId> {
        self.connect_from(now, self.config.own, to)
    }

    /// As [`connect`](Self::connect), of an endpoint that this server sees at another address than [`Config::own`].
    pub fn connect_from(&mut self, now: Instant, own: Address, to: Address) -> Option<SessionId> {
        if self.sessions() >= self.config.sessions_max {
            return None;
        }
        let key = self.draw();
        let c = &self.config;
        let congestion = Congestion::new(c.credits, c.queueing, c.timeout_min, c.timeout_max);
        let attempt = if c.token.is_some() { Attempt::Asking(self.nonces.draw()) } else { Attempt::Plain };
        let phase = Phase::Connecting { since: now, retry_at: now, tries: 0, attempt, doubted: false };
        let half = Half::Client(Box::new(Client::new(own, congestion)), phase);
        let number = self.insert(now, to, key, self.capacity.into(), half);
        self.on_time(now, number);
        Some(self.id(number))
    }

    /// Ends a session. A client's calls that are not answered fail, [`Event::Ended`] follows, and the server is told; at
    /// a server's end the session is forgotten, and its client told when it says something.
    pub fn disconnect(&mut self, now: Instant, session: SessionId) {
        let Some(found) = self.session(session) else { return };
        let number = session.number;
        match &found.half {
            Half::Client(_, Phase::Up { .. }) => {
                self.fail_calls(number, Ended::Closed);
                if let Some(Session { half: Half::Client(_, phase), .. }) =
                    &mut self.sessions[number as usize]
                {
                    *phase = Phase::Closing { retry_at: now, tries: 0 };
                }
                self.on_time(now, number);
            }
            // The server has heard nothing yet that it would not forget by itself.
            Half::Client(_, Phase::Connecting { .. }) => self.end(number, Ended::Closed),
            Half::Client(_, Phase::Closing { .. }) => {}
            Half::Server(_) => self.end(number, Ended::Closed),
        }
    }

    /// Calls a service with the first `length` bytes of a message, which must not change before the answer.
    /// [`Event::Response`] or [`Event::Failed`] follows, with `tag`.
    ///
    /// # Errors
    /// Nothing was done; the message comes back.
    pub fn call(
        &mut self,
        now: Instant,
        session: SessionId,
        service: u16,
        request: B::Message,
        length: u32,
        tag: u64,
    ) -> Result<(), (CallError, B::Message)> {
        let (message_max, backlog) = (self.config.message_max, self.config.backlog);
        let Some(Session { half: Half::Client(client, phase), capacity, .. }) = self.session_mut(session)
        else {
            return Err((CallError::NoSession, request));
        };
        if matches!(phase, Phase::Closing { .. }) {
            return Err((CallError::NoSession, request));
        }
        if length > message_max || u64::from(packets(length, *capacity)) > PACKETS_MAX {
            return Err((CallError::TooLong(message_max), request));
        }
        if client.waiting.len() >= backlog {
            return Err((CallError::Full, request));
        }
        client.waiting.push_back(Waiting { tag, service, request, length });
        if matches!(phase, Phase::Up { .. }) {
            client.fill_slots(now, *capacity);
        }
        self.settle(session.number);
        Ok(())
    }

    /// Answers a request with the first `length` bytes of a message, which must not change before the session is over or
    /// the client calls again. `false`: nobody waits for it any more.
    ///
    /// # Panics
    /// The response is longer than packets can be counted.
    pub fn respond(
        &mut self,
        id: RequestId,
        status: Status,
        message: Option<B::Message>,
        length: u32,
    ) -> bool {
        let Some(Session { half: Half::Server(server), capacity, .. }) = self.session_mut(id.session) else {
            return false;
        };
        let count = packets(length, *capacity);
        assert!(u64::from(count) <= PACKETS_MAX, "a response of {length} bytes takes {count} packets");
        assert!(message.is_some() || length == 0, "a response of {length} bytes without a message");
        let waits = server.respond(id.number, status, message, length);
        self.settle(id.session.number);
        waits
    }

    /// Takes a received datagram.
    pub fn handle_packet(&mut self, now: Instant, buffers: &mut B, from: Address, datagram: B::Packet) {
        self.stats.received += 1;
        let mut header = [0; HEADER_LEN];
        if datagram.len() < HEADER_LEN {
            self.stats.malformed += 1;
            return;
        }
        datagram.read(0, &mut header);
        let Ok(repr) = Repr::parse(&header) else {
            self.stats.malformed += 1;
            return;
        };
        let mut credential = [0; ANSWER_LEN];
        let behind = datagram.len() - HEADER_LEN;
        let fits = match repr.behind() {
            Behind::Payload => true,
            Behind::Nothing => behind == 0,
            Behind::Credential(len) => behind == len,
        };
        if !fits {
            self.stats.malformed += 1;
            return;
        }
        if let Behind::Credential(len) = repr.behind() {
            datagram.read(HEADER_LEN, &mut credential[..len]);
        }
        match repr {
            Repr::Connect { session, key, incarnation, capacity, credits } => {
                let hello = Hello { session, key, incarnation, capacity, credits };
                self.on_hello(now, from, hello, Credential::Nothing, &repr, &credential);
            }
            Repr::Ask { session, key } => {
                let nonce: Nonce = *credential[..NONCE_LEN].first_chunk().expect("as long as a nonce");
                self.on_ask(now, from, session, key, nonce);
            }
            Repr::Prove { session, key, incarnation, capacity, credits } => {
                let hello = Hello { session, key, incarnation, capacity, credits };
                let challenge = *credential.first_chunk().expect("as long as a name");
                self.on_hello(now, from, hello, Credential::Proof(challenge), &repr, &credential);
            }
            Repr::Challenge { session, key } => {
                let nonce: Nonce = *credential[..NONCE_LEN].first_chunk().expect("as long as a nonce");
                self.on_challenge(now, from, session, key, nonce);
            }
            Repr::Disconnect { session, key } => {
                if let Some(number) = self.server_session(from, session, key) {
                    self.end(number, Ended::Closed);
                }
                // Said again to a client that did not hear it, too.
                self.say(from, Repr::Disconnected { session, key });
            }
            Repr::Ping { session, key } => match self.server_session(from, session, key) {
                Some(number) => {
                    let remote = self.heard(now, number);
                    self.say(from, Repr::Pong { session: remote, key });
                }
                None => self.unknown(from, session, key),
            },
            Repr::Request { session, key, request, packet, service, length } => {
                let Some(number) = self.server_session(from, session, key) else {
                    return self.unknown(from, session, key);
                };
                let fragment = Fragment { request, packet, length, datagram };
                self.on_request(now, buffers, number, fragment, service);
            }
            Repr::More { session, key, request, packet } => {
                let Some(number) = self.server_session(from, session, key) else {
                    return self.unknown(from, session, key);
                };
                self.heard(now, number);
                let Some(Session { half: Half::Server(server), capacity, .. }) = self.at(number) else {
                    return;
                };
                let verdict = server.on_more(now, request, packet, *capacity);
                self.judge(number, request, verdict);
            }
            Repr::Accept { session, key, drawn, incarnation: _, server, capacity, credits, sealed: _ } => {
                let ids = (session, key, server, drawn);
                self.on_accept(now, from, ids, capacity, credits, (&repr, &credential));
            }
            Repr::Refuse { session, key, why } => self.on_refuse(from, session, key, why),
            Repr::Disconnected { session, key } => match self.client_of(from, session, key) {
                Some((number, Phase::Closing { .. })) => self.end(number, Ended::Closed),
                _ => self.stats.unknown += 1,
            },
            Repr::Reset { session, key } => match self.client_of(from, session, key) {
                Some((number, Phase::Closing { .. })) => self.end(number, Ended::Closed),
                Some((number, Phase::Up { .. })) => self.end(number, Ended::Reset),
                _ => self.stats.unknown += 1,
            },
            Repr::Pong { session, key } => {
                self.client_packet(now, from, session, key, |_, _, _, _| Outcome::Progress);
            }
            Repr::Credit { session, key, request, packet, delay } => {
                self.client_packet(now, from, session, key, |client, _, _, _| {
                    client.on_credit(now, request, packet, delay)
                });
            }
            Repr::Working { session, key, request, delay: _ } => {
                self.client_packet(now, from, session, key, |client, _, config, _| {
                    client.on_working(now, request, config.probe)
                });
            }
            Repr::Response { session, key, request, packet, status, length, delay } => {
                let fragment = Fragment { request, packet, length, datagram };
                let answer = (status, delay);
                self.client_packet(now, from, session, key, |client, capacity, config, _| {
                    client.on_response(now, buffers, capacity, config.message_max, fragment, answer)
                });
            }
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            let Some(session) = self.at(number) else { continue };
            session.timer = None;
            self.on_time(now, number);
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<Event<B>> {
        self.events.pop_front()
    }

    /// Whether there is an event to be polled.
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether a packet would leave now.
    #[must_use]
    pub fn wants_tx(&self) -> bool {
        !self.control.is_empty() || !self.ready.is_empty()
    }

    /// The next packet to send. Sessions take turns, a window each.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<B::Message>> {
        if let Some(Control { to, repr, credential }) = self.control.pop_front() {
            self.stats.sent += 1;
            return Some(Transmit { to, header: repr.emit(), credential, payload: None });
        }
        while let Some(&number) = self.ready.front() {
            let timeout_max = self.config.timeout_max;
            let packet = self.at(number).and_then(|session| {
                let (to, key, capacity) = (session.peer, session.key, session.capacity);
                let packet = match &mut session.half {
                    Half::Client(client, phase @ Phase::Up { .. }) => {
                        *phase = Phase::Up { quiet_since: now };
                        client.poll(now, key, capacity, timeout_max)
                    }
                    Half::Client(..) => None,
                    Half::Server(server) => server.poll(now, key, capacity),
                };
                packet.map(|(repr, payload)| Transmit { to, header: repr.emit(), credential: None, payload })
            });
            if packet.is_none() {
                self.ready.pop_front();
                if let Some(session) = self.at(number) {
                    session.queued = false;
                    self.settle(number);
                }
                continue;
            }
            self.stats.sent += 1;
            self.settle(number);
            return packet;
        }
        None
    }

    /// Keys need not be secret, only unlikely to meet.
    fn draw(&mut self) -> u32 {
        self.draws.next() as u32
    }

    fn say(&mut self, to: Address, repr: Repr) {
        self.show(to, repr, None);
    }

    fn show(&mut self, to: Address, repr: Repr, credential: Option<Box<[u8]>>) {
        let fits = match repr.behind() {
            Behind::Credential(len) => credential.as_ref().is_some_and(|credential| credential.len() == len),
            Behind::Nothing | Behind::Payload => credential.is_none(),
        };
        assert!(fits, "{repr:?} shows {:?}", credential.map(|credential| credential.len()));
        if self.control.len() < CONTROL_MAX {
            self.control.push_back(Control { to, repr, credential });
        }
    }

    fn at(&mut self, number: u32) -> Option<&mut Session<B::Message>> {
        self.sessions.get_mut(number as usize)?.as_mut()
    }

    fn session(&self, id: SessionId) -> Option<&Session<B::Message>> {
        let session = self.sessions.get(id.number as usize)?.as_ref()?;
        (session.generation == id.key).then_some(session)
    }

    fn session_mut(&mut self, id: SessionId) -> Option<&mut Session<B::Message>> {
        self.at(id.number).filter(|session| session.generation == id.key)
    }

    fn id(&self, number: u32) -> SessionId {
        let key = self.sessions[number as usize].as_ref().map_or(0, |session| session.generation);
        SessionId { number, key }
    }

    fn insert(
        &mut self,
        now: Instant,
        peer: Address,
        key: u32,
        capacity: u32,
        half: Half<B::Message>,
    ) -> u32 {
        self.generations = self.generations.wrapping_add(1);
        let generation = self.generations;
        let session =
            Session { peer, key, generation, capacity, half, heard: now, queued: false, timer: None };
        match self.free.pop() {
            Some(number) => {
                self.sessions[number as usize] = Some(session);
                number
            }
            None => {
                self.sessions.push(Some(session));
                (self.sessions.len() - 1) as u32
            }
        }
    }

    /// Puts a session where it belongs after something happened to it.
    fn settle(&mut self, number: u32) {
        let Some(session) = self.sessions.get_mut(number as usize).and_then(Option::as_mut) else { return };
        if !session.queued && session.wants_tx() {
            session.queued = true;
            self.ready.push_back(number);
        }
        let deadline = session.deadline(&self.config);
        if session.timer.is_none_or(|timer| deadline < timer) {
            if let Some(timer) = session.timer.replace(deadline) {
                self.timers.remove(&(timer, number));
            }
            self.timers.insert((deadline, number));
        }
    }

    fn fail_calls(&mut self, number: u32, why: Ended) {
        if let Some(Session { half: Half::Client(client, _), .. }) = self.at(number) {
            let failed = client.fail(why);
            self.events.extend(failed.into_iter().map(|(tag, why)| Event::Failed { tag, why }));
        }
    }

    /// The session is over.
    fn end(&mut self, number: u32, why: Ended) {
        self.fail_calls(number, why);
        let id = self.id(number);
        let Some(session) = self.sessions[number as usize].take() else { return };
        if let Some(timer) = session.timer {
            self.timers.remove(&(timer, number));
        }
        if session.queued {
            self.ready.retain(|&ready| ready != number);
        }
        match session.half {
            Half::Client(client, _) => {
                let name = (session.peer, client.remote, session.key);
                if self.remotes.get(&name) == Some(&number) {
                    self.remotes.remove(&name);
                }
            }
            Half::Server(server) => {
                self.clients.remove(&(session.peer, server.incarnation, server.remote));
            }
        }
        self.free.push(number);
        self.events.push_back(Event::Ended { session: id, why });
    }

    /// A session of a client, if this packet is of one of them.
    fn server_session(&mut self, from: Address, number: u32, key: u32) -> Option<u32> {
        let session = self.at(number)?;
        (session.peer == from && session.key == key && matches!(session.half, Half::Server(_)))
            .then_some(number)
    }

    /// Our session of this number, if this packet is of its server.
    fn client_session(&mut self, from: Address, number: u32, key: u32) -> Option<&mut Session<B::Message>> {
        self.at(number).filter(|session| {
            session.peer == from && session.key == key && matches!(session.half, Half::Client(..))
        })
    }

    /// Our session that the peer names by its own number.
    fn client_of(&mut self, from: Address, remote: u32, key: u32) -> Option<(u32, &Phase)> {
        let number = *self.remotes.get(&(from, remote, key))?;
        match &self.at(number)?.half {
            Half::Client(_, phase) => Some((number, phase)),
            Half::Server(_) => None,
        }
    }

    fn unknown(&mut self, from: Address, session: u32, key: u32) {
        self.stats.unknown += 1;
        self.say(from, Repr::Reset { session, key });
    }

    /// A client's packet came; returns its own number of the session.
    fn heard(&mut self, now: Instant, number: u32) -> u32 {
        match self.at(number) {
            Some(session) => {
                session.heard = now;
                if let Half::Server(server) = &session.half { server.remote } else { 0 }
            }
            None => 0,
        }
    }

    /// A stranger has a token, it says.
    fn on_ask(&mut self, now: Instant, from: Address, session: u32, key: u32, nonce: Nonce) {
        let fresh = self.nonces.draw();
        let (now, credential) = (now.since(Instant::ZERO), Credential::Nonce(nonce));
        match self.policy.judge(now, fresh, from.gid.to_ip(), &credential, |_, _, _| false) {
            policy::Verdict::Refuse(why) => self.refuse(from, session, key, why),
            policy::Verdict::Open | policy::Verdict::Admit { .. } => unreachable!("a nonce proves nothing"),
        }
    }

    fn refuse(&mut self, to: Address, session: u32, key: u32, why: policy::Refusal) {
        let why = match why {
            policy::Refusal::Challenge(nonce) => {
                return self.show(to, Repr::Challenge { session, key }, Some(nonce.into()));
            }
            policy::Refusal::TokenNeeded => Refusal::TokenNeeded,
            policy::Refusal::WrongToken => Refusal::WrongToken,
            policy::Refusal::NoToken => Refusal::NoToken,
            policy::Refusal::Late => Refusal::Late,
            policy::Refusal::Wait(wait) => {
                Refusal::Wait(u32::try_from(wait.as_secs() + 1).unwrap_or(u32::MAX))
            }
        };
        self.stats.unadmitted += 1;
        self.say(to, Repr::Refuse { session, key, why });
    }

    /// Somebody wants a session, and shows a proof or nothing. Nothing changes before it is admitted.
    fn on_hello(
        &mut self,
        now: Instant,
        from: Address,
        hello: Hello,
        credential: Credential,
        repr: &Repr,
        bytes: &[u8; ANSWER_LEN],
    ) {
        let Hello { session, key, incarnation, capacity, credits } = hello;
        if capacity < CAPACITY_MIN || credits == 0 {
            self.stats.misbehaved += 1;
            return;
        }
        if let Some(&number) = self.clients.get(&(from, incarnation, session))
            && let Some(Session { half: Half::Server(server), .. }) = self.at(number)
            && server.hello == key
        {
            // It did not hear that it has one.
            return self.accept(number);
        }
        let proof = bytes.last_chunk().expect("as long as a proof");
        let ends = Ends { client: from, server: self.config.own.qpn };
        let fresh = self.nonces.draw();
        let verdict = self.policy.judge(
            now.since(Instant::ZERO),
            fresh,
            from.gid.to_ip(),
            &credential,
            |token, client, server| {
                let transcript = Transcript { token: token.clone(), client: *client, server: *server, ends };
                transcript.is_answered(repr, proof)
            },
        );
        match verdict {
            policy::Verdict::Open => self.on_admitted(now, from, hello, None),
            policy::Verdict::Admit { token, client, server, .. } => {
                self.on_admitted(now, from, hello, Some(Transcript { token, client, server, ends }));
            }
            policy::Verdict::Refuse(why) => self.refuse(from, session, key, why),
        }
    }

    fn on_admitted(&mut self, now: Instant, from: Address, hello: Hello, transcript: Option<Transcript>) {
        let Hello { session, key, incarnation, capacity, credits } = hello;
        let here: Vec<(u64, u32)> = self
            .clients
            .range((from, 0, 0)..=(from, u64::MAX, u32::MAX))
            .map(|(&(_, incarnation, _), &number)| (incarnation, number))
            .collect();
        if here.iter().any(|&(other, _)| other > incarnation) {
            // Of a program that is gone.
            self.stats.stale += 1;
            return;
        }
        for (_, number) in here.into_iter().filter(|&(other, _)| other < incarnation) {
            self.end(number, Ended::Reset);
        }
        if let Some(&number) = self.clients.get(&(from, incarnation, session)) {
            // It numbers a new session as one that it forgot: its goodbye was lost.
            self.end(number, Ended::Closed);
        }
        if self.sessions() >= self.config.sessions_max {
            self.say(from, Repr::Refuse { session, key, why: Refusal::Full });
            return;
        }
        let server = Server::new(incarnation, session, key, credits.min(self.config.credits));
        let capacity = capacity.min(self.capacity);
        // A key of ours: a hello that comes late must not bring back a session whose calls were carried out.
        let drawn = self.draw();
        let number = self.insert(now, from, drawn, capacity.into(), Half::Server(Box::new(server)));
        self.clients.insert((from, incarnation, session), number);
        if let Some(transcript) = transcript
            && let Some((_, accept)) = self.acceptance(number, true)
            && let Some(Session { half: Half::Server(server), .. }) = self.at(number)
        {
            server.seal = Some(transcript.seal(&accept));
        }
        self.settle(number);
        self.events.push_back(Event::Accepted { session: self.id(number), peer: from });
        self.accept(number);
    }

    /// What a client with a session is told, and where it is.
    fn acceptance(&mut self, number: u32, sealed: bool) -> Option<(Address, Repr)> {
        let incarnation = self.config.incarnation;
        let Some(Session { peer, key, capacity, half: Half::Server(server), .. }) = self.at(number) else {
            return None;
        };
        let repr = Repr::Accept {
            session: server.remote,
            key: server.hello,
            drawn: *key,
            incarnation,
            server: number,
            capacity: *capacity as u16,
            credits: server.credits,
            sealed,
        };
        Some((*peer, repr))
    }

    fn accept(&mut self, number: u32) {
        let Some(Session { half: Half::Server(server), .. }) = self.at(number) else { return };
        let seal = server.seal;
        if let Some((peer, repr)) = self.acceptance(number, seal.is_some()) {
            self.show(peer, repr, seal.map(Into::into));
        }
    }

    /// The server wants a proof.
    fn on_challenge(&mut self, now: Instant, from: Address, session: u32, key: u32, server: Nonce) {
        let (token, hello) = (self.config.token.clone(), self.hello(session, key));
        let Some(Session { half: Half::Client(client, Phase::Connecting { attempt, retry_at, .. }), .. }) =
            self.client_session(from, session, key)
        else {
            self.stats.unknown += 1;
            return;
        };
        let (Attempt::Asking(nonce), Some(token)) = (&attempt, token) else {
            self.stats.stale += 1;
            return;
        };
        let ends = Ends { client: client.own, server: from.qpn };
        let transcript = Box::new(Transcript { token, client: *nonce, server, ends });
        let credential = transcript.answer(&prove(hello)).into();
        (*attempt, *retry_at) = (Attempt::Proving { transcript, credential }, now);
        self.on_time(now, session);
    }

    fn on_refuse(&mut self, from: Address, session: u32, key: u32, why: Refusal) {
        let Some(Session { half: Half::Client(_, Phase::Connecting { attempt, .. }), .. }) =
            self.client_session(from, session, key)
        else {
            self.stats.unknown += 1;
            return;
        };
        let why = match why {
            Refusal::Full => Ended::Refused,
            Refusal::TokenNeeded => Ended::TokenNeeded,
            Refusal::WrongToken => Ended::WrongToken,
            Refusal::NoToken => Ended::NoToken,
            Refusal::Wait(seconds) => Ended::Wait(seconds),
            Refusal::Late => {
                // With the same nonce: a challenge that is still on its way answers both. When its time comes, that the
                // two do not go in circles as fast as they can.
                if let Attempt::Proving { transcript, .. } = &attempt {
                    *attempt = Attempt::Asking(transcript.client);
                }
                self.stats.stale += 1;
                return;
            }
        };
        self.end(session, why);
    }

    /// What our end says of itself.
    fn hello(&self, session: u32, key: u32) -> Hello {
        let (incarnation, credits) = (self.config.incarnation, self.config.credits);
        Hello { session, key, incarnation, capacity: self.capacity, credits }
    }

    fn on_accept(
        &mut self,
        now: Instant,
        from: Address,
        (session, key, remote, drawn): (u32, u32, u32, u32),
        capacity: u16,
        credits: u16,
        (repr, credential): (&Repr, &[u8; ANSWER_LEN]),
    ) {
        let ours = self.capacity;
        let Some(found) = self.client_session(from, session, key) else {
            self.stats.unknown += 1;
            return;
        };
        let Half::Client(client, phase) = &mut found.half else { return };
        let Phase::Connecting { attempt, doubted, .. } = phase else {
            self.stats.stale += 1;
            return;
        };
        let sealed = matches!(repr, Repr::Accept { sealed: true, .. });
        let believed = match attempt {
            Attempt::Plain => !sealed,
            Attempt::Asking(_) => false,
            Attempt::Proving { transcript, .. } => {
                let seal = credential[..SEAL_LEN].first_chunk().expect("as long as a proof");
                sealed && transcript.is_sealed(repr, seal)
            }
        };
        let makes_sense = capacity >= CAPACITY_MIN.min(ours) && capacity <= ours && credits > 0;
        if !believed || !makes_sense {
            // It may be somebody in between: the server's own word may still come.
            *doubted |= !believed;
            self.stats.misbehaved += 1;
            return;
        }
        (found.capacity, found.key) = (capacity.into(), drawn);
        client.open(now, remote, credits, capacity.into());
        *phase = Phase::Up { quiet_since: now };
        found.heard = now;
        self.remotes.insert((from, remote, drawn), session);
        let id = self.id(session);
        self.events.push_back(Event::Connected(id));
        self.settle(session);
    }

    fn on_request(
        &mut self,
        now: Instant,
        buffers: &mut B,
        number: u32,
        fragment: Fragment<B::Packet>,
        service: u16,
    ) {
        self.heard(now, number);
        let (message_max, request) = (self.config.message_max, fragment.request);
        let Some(Session { half: Half::Server(server), capacity, .. }) = self.at(number) else { return };
        let verdict = server.on_request(now, buffers, *capacity, message_max, fragment, service);
        self.judge(number, request, verdict);
    }

    fn judge(&mut self, number: u32, request: u64, verdict: Verdict<B>) {
        match verdict {
            Verdict::Stale => self.stats.stale += 1,
            Verdict::Misbehaved => self.stats.misbehaved += 1,
            Verdict::Progress => {}
            Verdict::Deliver { service, body } => {
                self.stats.requests += 1;
                self.stats.uncopied += u64::from(matches!(body, super::buffers::Body::Packet(_)));
                let id = RequestId { session: self.id(number), number: request };
                self.events.push_back(Event::Request { id, service, body });
            }
        }
        self.settle(number);
    }

    /// A packet of a server for one of our sessions.
    fn client_packet(
        &mut self,
        now: Instant,
        from: Address,
        session: u32,
        key: u32,
        act: impl FnOnce(&mut Client<B::Message>, u32, &Config, Instant) -> Outcome<B>,
    ) {
        let found = self.sessions.get_mut(session as usize).and_then(Option::as_mut);
        let found = found.filter(|found| found.peer == from && found.key == key);
        let Some(Session { half: Half::Client(client, Phase::Up { .. }), capacity, heard, .. }) = found
        else {
            self.stats.unknown += 1;
            return;
        };
        let outcome = act(client, *capacity, &self.config, now);
        if !matches!(outcome, Outcome::Misbehaved) {
            *heard = now;
            client.asked = client.waits().then_some(now);
        }
        match outcome {
            Outcome::Stale => self.stats.stale += 1,
            Outcome::Misbehaved => self.stats.misbehaved += 1,
            Outcome::Progress => {}
            Outcome::Response { tag, status, body } => {
                client.fill_slots(now, *capacity);
                self.stats.responses += 1;
                self.stats.uncopied += u64::from(matches!(body, super::buffers::Body::Packet(_)));
                self.events.push_back(Event::Response { tag, status, body });
            }
            Outcome::Failed { tag, why } => {
                client.fill_slots(now, *capacity);
                self.events.push_back(Event::Failed { tag, why });
            }
        }
        self.settle(session);
    }

    /// A session's time may have come.
    fn on_time(&mut self, now: Instant, number: u32) {
        let (patience, ping, silence_max) = (self.config.patience, self.config.ping, self.config.silence_max);
        let (timeout_min, timeout_max) = (self.config.timeout_min, self.config.timeout_max);
        let Some(key) = self.at(number).map(|session| session.key) else { return };
        let hello = self.hello(number, key);
        let Some(session) = self.at(number) else { return };
        let peer = session.peer;
        let again = |tries: u32| now + (timeout_min * 4).saturating_mul(1 << tries.min(16)).min(timeout_max);
        let mut timeouts = 0;
        let mut say = None;
        let mut over = None;
        match &mut session.half {
            Half::Client(_, Phase::Connecting { since, retry_at, tries, attempt, doubted }) => {
                if now.since(*since) >= patience {
                    over = Some(if *doubted { Ended::Impostor } else { Ended::Unreachable });
                } else if *retry_at <= now {
                    (*retry_at, *tries) = (again(*tries), *tries + 1);
                    let Hello { session, key, incarnation, capacity, credits } = hello;
                    say = Some(match attempt {
                        Attempt::Plain => {
                            (Repr::Connect { session, key, incarnation, capacity, credits }, None)
                        }
                        Attempt::Asking(nonce) => (Repr::Ask { session, key }, Some((*nonce).into())),
                        Attempt::Proving { credential, .. } => (prove(hello), Some(credential.clone())),
                    });
                }
            }
            Half::Client(client, Phase::Closing { retry_at, tries }) => {
                if *retry_at <= now {
                    if *tries >= GOODBYES {
                        over = Some(Ended::Closed);
                    } else {
                        (*retry_at, *tries) = (again(*tries), *tries + 1);
                        say = Some((Repr::Disconnect { session: client.remote, key }, None));
                    }
                }
            }
            Half::Client(client, Phase::Up { quiet_since }) => {
                if client.asked.is_some_and(|asked| now.since(asked) >= patience) {
                    over = Some(Ended::Unreachable);
                } else if client.waits() {
                    // What was lost leaves again at once: no need to ask whether anybody is there.
                    *quiet_since = now;
                    timeouts = client.on_timeout(now);
                } else if *quiet_since + ping <= now {
                    *quiet_since = now;
                    client.asked.get_or_insert(now);
                    say = Some((Repr::Ping { session: client.remote, key }, None));
                }
            }
            Half::Server(_) => {
                if session.heard + silence_max <= now {
                    over = Some(Ended::Unreachable);
                }
            }
        }
        self.stats.timeouts += timeouts;
        if let Some((repr, credential)) = say {
            self.show(peer, repr, credential);
        }
        match over {
            Some(why) => self.end(number, why),
            None => self.settle(number),
        }
    }

    /// Whether a client's session has a call that is not answered.
    #[must_use]
    pub fn is_idle(&self, session: SessionId) -> bool {
        match self.session(session).map(|session| &session.half) {
            Some(Half::Client(client, _)) => client.is_idle(),
            Some(Half::Server(_)) | None => true,
        }
    }
}
