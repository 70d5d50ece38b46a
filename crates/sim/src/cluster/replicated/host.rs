//! A host of the service: the writer of the log and the replica beside it, on connections of the cluster. It opens the log when a
//! client asks it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::{Action, Event, Machine, Options};
use remanence_coord::log::proto::parse_reply;
use remanence_coord::replicated::{Limits, Refusal, Replica, Reply, Request};

use super::oracle::Oracle;
use super::simulated::Simulated;
use crate::cluster::Input;
use crate::cluster::core::{ConnectionId, Host as Node};
use crate::cluster::link::{self, Link};
use crate::rng::Rng;

/// How long a host that had to give the log up, or did not get it, leaves it alone on average, in nanoseconds.
const AGAIN: u64 = 2_000_000;
/// How long a connection that was lost is left alone.
const RECONNECT: Duration = Duration::from_micros(700);
/// How long a log that cannot be opened is waited for.
const ENDURANCE: Duration = Duration::from_millis(30);

pub(super) struct Host<A: Simulated> {
    rng: Rng,
    /// The log is left alone until then: longer each time that it was not had.
    rests: Duration,
    in_vain: u32,
    has: Option<Box<Service<A>>>,
}

/// The log is open, or is being opened.
struct Service<A: Simulated> {
    machine: Machine,
    replica: Replica<A>,
    links: Vec<Link>,
    /// Whose the READs under way are, by server: those of the replica have a number.
    reads: Vec<VecDeque<Option<u64>>>,
    /// Who is to be answered.
    asked: BTreeMap<u64, ConnectionId>,
    tokens: u64,
    is_serving: bool,
    gives_up: Duration,
}

impl<A: Simulated> Host<A> {
    pub(super) fn boot(node: &mut Node<'_, Oracle<A>>) -> Self {
        let stream = (2000 + node.node() as u64) << 32 ^ u64::from(node.life());
        Self { rng: Rng::new(node.known().seed, stream), rests: node.now(), in_vain: 0, has: None }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.has.as_ref().and_then(|service| service.deadline())
    }

    pub(super) fn on(&mut self, input: Input, node: &mut Node<'_, Oracle<A>>) {
        let now = node.now();
        let input = match input {
            // Servers answer on connections that this host has asked for; a client asks on its own.
            Input::Message { connection, bytes } if self.server_of(connection).is_none() => {
                self.is_asked(now, connection, &bytes, node);
                Input::Timer
            }
            input => input,
        };
        let Some(service) = &mut self.has else { return };
        service.take(now, input, node);
        service.go_on(now, node);
        if service.is_over(now) {
            node.tell(format_args!("gives the log up"));
            node.oracle().work.stood_down += u64::from(service.is_serving);
            service.links.iter().filter_map(Link::connection).for_each(|connection| node.cut(connection));
            let why = service.replica.ended().map_or_else(String::new, ToString::to_string);
            // Whoever is not answered yet may have been carried out.
            for connection in std::mem::take(&mut service.asked).into_values() {
                node.send(connection, Reply::Unknown(why.clone()).emit());
            }
            self.in_vain = if service.is_serving { 0 } else { self.in_vain + 1 };
            self.has = None;
            self.rests = now + Duration::from_nanos(self.rng.exponential(AGAIN << self.in_vain.min(6)));
        }
    }

    fn server_of(&self, connection: ConnectionId) -> Option<usize> {
        link::find(&self.has.as_ref()?.links, connection)
    }

    fn is_asked(&mut self, now: Duration, from: ConnectionId, bytes: &[u8], node: &mut Node<'_, Oracle<A>>) {
        let Ok(request) = Request::parse(bytes) else {
            return node.core().wrong(format!("what a client sent is no request: {bytes:?}"));
        };
        if self.has.is_none() && now < self.rests {
            let refusal = Refusal::TooFew("it does not have the log".into());
            return node.send(from, Reply::Refused(refusal).emit());
        }
        let service = self.has.get_or_insert_with(|| Box::new(Service::open(now, node)));
        service.tokens += 1;
        service.asked.insert(service.tokens, from);
        let until = now + ENDURANCE + Duration::from_nanos(node.known().plan.patience);
        service.replica.submit(service.tokens, until, request);
    }
}

impl<A: Simulated> Service<A> {
    fn open(now: Duration, node: &mut Node<'_, Oracle<A>>) -> Self {
        let oracle = node.oracle();
        oracle.drawn += 1;
        let plan = &oracle.plan;
        let options = Options::new(oracle.drawn, Uuid([oracle.drawn as u8; 16]))
            .acks(Some(plan.acks))
            .depth(plan.depth)
            .grace(Duration::from_nanos(plan.grace))
            .patience(Duration::from_nanos(plan.patience));
        let patience = Duration::from_nanos(plan.patience);
        let limits = Limits { waiting: 8, sessions: plan.sessions, patience };
        let servers = usize::from(plan.servers);
        let machine = Machine::new(plan.names().into_iter().take(servers), options);
        node.tell(format_args!("opens the log"));
        Self {
            machine,
            replica: Replica::new(limits),
            links: (0..servers).map(|n| Link::to(n, node)).collect(),
            reads: vec![VecDeque::new(); servers],
            asked: BTreeMap::new(),
            tokens: 0,
            is_serving: false,
            gives_up: now + ENDURANCE + patience,
        }
    }

    fn deadline(&self) -> Option<Duration> {
        let reconnects = self.links.iter().filter_map(Link::deadline);
        let opening = (!self.is_serving).then_some(self.gives_up);
        let all = self.machine.deadline().into_iter().chain(self.replica.deadline());
        all.chain(opening).chain(reconnects).min()
    }

    fn is_over(&self, now: Duration) -> bool {
        self.replica.ended().is_some() || !self.is_serving && now >= self.gives_up
    }

    /// Hands what has come from a server to the machine, or to the replica if that has asked for it.
    fn take(&mut self, now: Duration, input: Input, node: &mut Node<'_, Oracle<A>>) {
        let Some(connection) = input.connection() else { return };
        let Some(n) = link::find(&self.links, connection) else { return };
        match input {
            Input::Connected { .. } => {
                self.links[n] = Link::Up(connection);
                node.oracle().work.connected_again += u64::from(self.is_serving);
                self.machine.connected(now, n);
            }
            Input::Lost { why, .. } => {
                let was_up = self.links[n].up().is_some();
                self.down(now, n);
                if was_up {
                    self.machine.handle(now, n, Event::Lost(why.into()));
                } else {
                    self.machine.unreachable(now, n, why);
                }
            }
            Input::Message { bytes, .. } => {
                self.machine.handle(now, n, Event::Reply(parse_reply(&bytes).map(Box::new)));
            }
            Input::Read { bytes, .. } => match self.reads[n].pop_front() {
                Some(Some(number)) => self.replica.came(number, Some(bytes)),
                _ => self.machine.handle(now, n, Event::Data(bytes)),
            },
            Input::Durable { .. } => self.machine.handle(now, n, Event::Durable),
            Input::Written { .. } | Input::Datagram { .. } | Input::Timer => {}
        }
    }

    fn down(&mut self, now: Duration, n: usize) {
        self.links[n] = Link::Down(now + RECONNECT);
        for number in self.reads[n].drain(..).flatten() {
            self.replica.came(number, None);
        }
    }

    /// Does what the machine and the replica say, and what is due.
    fn go_on(&mut self, now: Duration, node: &mut Node<'_, Oracle<A>>) {
        self.links.iter_mut().enumerate().for_each(|(n, link)| link.go_on(now, n, node));
        for _ in 0..100 {
            self.replica.advance(now, &mut self.machine);
            if let Some(read) = self.replica.poll_read() {
                self.read(read.server, read.offset, read.len, Some(read.number), node);
            }
            while let Some(action) = self.machine.poll_action() {
                self.carry_out(now, action, node);
            }
            if self.machine.deadline().is_none_or(|deadline| deadline > now) {
                break;
            }
            self.machine.timeout(now);
        }
        if self.deadline().is_some_and(|deadline| deadline <= now) && !self.is_over(now) {
            node.core().wrong("something is due for ever, and nothing is done about it".into());
        }
        while let Some((token, reply)) = self.replica.poll_answer() {
            if let Some(connection) = self.asked.remove(&token) {
                node.send(connection, reply.emit());
            }
        }
        if !self.is_serving && self.replica.is_serving() {
            self.is_serving = true;
            let first = (0..self.links.len()).filter_map(|n| self.machine.status(n));
            let first = first.map(|status| status.state.head.sequence).max().unwrap_or(0);
            let work = &mut node.oracle().work;
            work.led += 1;
            work.from_snapshot += u64::from(first > 0);
            node.tell(format_args!("has the log, with epoch {}", self.machine.epoch()));
        }
    }

    fn read(
        &mut self,
        server: usize,
        offset: u64,
        len: u32,
        of: Option<u64>,
        node: &mut Node<'_, Oracle<A>>,
    ) {
        if let Some(connection) = self.links[server].up() {
            self.reads[server].push_back(of);
            node.read(connection, 0, offset, len);
        }
    }

    fn carry_out(&mut self, now: Duration, action: Action, node: &mut Node<'_, Oracle<A>>) {
        match action {
            Action::Call { server, request } => {
                if let Some(connection) = self.links[server].up() {
                    node.send(connection, request.emit());
                }
            }
            Action::Read { server, offset, len } => self.read(server, offset, len, None, node),
            Action::Append { server, updates, .. } => {
                if let Some(connection) = self.links[server].up() {
                    let list = updates.list().into_iter().map(|(at, bytes)| (at, bytes.to_vec())).collect();
                    node.update(connection, 0, list);
                }
            }
            Action::Disconnect { server } => {
                if let Some(connection) = self.links[server].connection() {
                    node.cut(connection);
                }
                self.down(now, server);
            }
        }
    }
}
