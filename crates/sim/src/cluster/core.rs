//! Nodes, their connections and the time: what happens to them, whatever runs there.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::Failure;
use remanence_rnic::time::Instant;

use super::aim::{Aiming, Moment};
use super::datagram::{Datagram, Harm};
use super::disk::{Disk, Power};
use super::fault::Fault;
use super::queue::{Clock, Queue};
use super::stages::{Receives, Verb};
use super::wire::{Answer, Connection, NOT_LET, Operation, Packet};
use super::{Input, NodeId};
use crate::report::counters;
use crate::rng::Rng;
use crate::trace::Trace;

/// The number of a connection; none is used twice.
pub(super) type ConnectionId = usize;

counters! {
/// What happened in a cluster, counted.
Counts {
    /// Times that a node was stopped.
    pauses,
    /// Processes that were killed.
    kills,
    /// Times that a node lost its power.
    power_losses,
    /// Those that were in the middle of what a process did.
    power_losses_within,
    /// Disks that were lost.
    disks_lost,
    /// Times that something rotted on a disk.
    rotted,
    /// Disks that failed, for good or once.
    media_failed,
    /// Times that disks did not answer.
    hung,
    /// Times that a disk or a link was slow.
    slow,
    /// Times that two nodes did not hear each other.
    partitions,
    /// Faults that happened at a moment which they were aimed at.
    aimed,
    /// Times that what somebody had sent arrived when its connection was lost already.
    lingered,
    /// Connections that were asked for.
    connections,
    /// Connections that one end was told to be lost.
    connections_lost,
    /// Messages that arrived.
    messages,
    /// One-sided operations that arrived.
    operations,
    /// Datagrams that were sent.
    datagrams,
    /// Those that were lost on their way, or found no receive buffer.
    datagrams_lost,
    /// Those that arrived twice.
    datagrams_twice,
    /// Those that were late.
    datagrams_late,
    /// Those that were damaged, and dropped for that.
    datagrams_damaged,
    /// Steps of the simulator.
    events,
}
}

/// How fast everything is when nothing is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Speeds {
    /// Nanoseconds from each node to the middle of the network.
    pub links: Vec<u64>,
    /// Mean of what is added to that, by chance.
    pub jitter: u64,
    /// Nanoseconds that a sync takes, by node.
    pub disks: Vec<u64>,
    /// Nanoseconds after which an RNIC takes a peer for lost that does not answer.
    pub retry: u64,
}

impl Speeds {
    /// The speeds of so many nodes, each one of those for links, jitter, disks and retry; links and disks are so many times as slow.
    pub(super) fn draw(rng: &mut Rng, nodes: usize, times: u64, of: [[u64; 3]; 4]) -> Self {
        let [links, jitter, disks, retry] = of;
        let all = |rng: &mut Rng, of: [u64; 3]| (0..nodes).map(|_| rng.pick(&of) * times).collect();
        Self {
            links: all(rng, links),
            jitter: rng.pick(&jitter),
            disks: all(rng, disks),
            retry: rng.pick(&retry),
        }
    }
}

/// What happens next.
#[derive(Debug)]
pub(super) enum Event {
    /// The oldest packet that this end has sent arrives.
    Arrive { connection: ConnectionId, from: usize },
    /// An end carries out a step of what it was asked for.
    Step { connection: ConnectionId, end: usize },
    /// An end is told of a message that lies in a receive buffer.
    Received { connection: ConnectionId, end: usize },
    /// A flush has taken its time.
    Flushed { connection: ConnectionId, end: usize, number: u64 },
    /// An end learns that the connection is lost.
    Lost { connection: ConnectionId, end: usize, why: &'static str },
    /// A datagram arrives.
    Datagram(Box<Datagram>),
    /// A process is to look at its clock.
    Timer { node: NodeId, life: u32 },
    /// A fault begins.
    Begin(usize),
    /// A fault is over.
    End(usize),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    /// A process runs.
    pub(super) is_up: bool,
    /// How often one was started.
    pub(super) life: u32,
    /// The faults that have stopped it, and what waits for its going on.
    pub(super) stopped: Vec<usize>,
    pub(super) deferred: Vec<Event>,
    pub(super) clock: Clock,
    pub(super) power: Power,
    pub(super) disks: Vec<Disk>,
    /// Which faults make its disks and its link slow, and how much.
    pub(super) slow_disk: BTreeMap<usize, u32>,
    pub(super) slow_link: BTreeMap<usize, u32>,
    /// Which faults keep its disks from answering, and since when; what they will have done then.
    pub(super) hangs: BTreeMap<usize, u64>,
    held: Vec<Event>,
    /// Which faults harm its datagrams: how, and how many of a hundred.
    pub(super) harms: BTreeMap<usize, (Harm, u32)>,
    /// The datagrams that it had sent by the first of these times arrive at the second one, at the earliest.
    pub(super) held_up: Option<(u64, u64)>,
    /// When its last process died.
    pub(super) died: u64,
    /// The fault that has taken it down.
    pub(super) down_by: Option<usize>,
    /// Its process does something until then.
    pub(super) busy: u64,
    /// Syncs of its disks when its process began what it does now.
    synced: u64,
    timer: Option<u64>,
}

/// Everything but the processes. `O` is what a service knows and its processes do not.
#[derive(Debug)]
pub(crate) struct Core<O> {
    pub(super) queue: Queue<Event>,
    pub(super) nodes: Vec<Node>,
    connections: Vec<Connection>,
    /// From whom to whom nothing goes through, and until when.
    pub(super) blocked: Vec<Vec<u64>>,
    pub(super) speeds: Speeds,
    /// Flushes make durable what they are for, and nothing else.
    flush_alone: bool,
    pub(super) rng: Rng,
    pub(super) faults: Vec<Fault>,
    /// What waits for its moment.
    pub(super) aims: Vec<Aiming>,
    pub(super) trace: Trace,
    pub(super) counts: Counts,
    pub(crate) oracle: O,
    wrong: Option<String>,
}

/// Records a line of the trace, if there is one.
macro_rules! tell {
    ($core:expr, $($message:tt)*) => {
        if $core.trace.is_on() {
            let now = remanence_rnic::time::Instant::from_nanos($core.queue.now());
            $core.trace.line(now, format_args!($($message)*));
        }
    };
}
pub(super) use tell;

impl<O> Core<O> {
    pub(super) fn new(seed: u64, speeds: Speeds, flush_alone: bool, trace_lines: usize, oracle: O) -> Self {
        Self {
            queue: Queue::new(),
            nodes: Vec::new(),
            connections: Vec::new(),
            blocked: Vec::new(),
            speeds,
            flush_alone,
            rng: Rng::new(seed, 20),
            faults: Vec::new(),
            aims: Vec::new(),
            trace: Trace::new(trace_lines),
            counts: Counts::default(),
            oracle,
            wrong: None,
        }
    }

    pub(super) fn add(&mut self, name: String, clock: Clock) -> NodeId {
        self.nodes.push(Node {
            name,
            is_up: false,
            life: 0,
            stopped: Vec::new(),
            deferred: Vec::new(),
            clock,
            power: Power::default(),
            disks: Vec::new(),
            slow_disk: BTreeMap::new(),
            slow_link: BTreeMap::new(),
            hangs: BTreeMap::new(),
            held: Vec::new(),
            harms: BTreeMap::new(),
            held_up: None,
            died: 0,
            down_by: None,
            busy: 0,
            synced: 0,
            timer: None,
        });
        let count = self.nodes.len();
        self.blocked.iter_mut().for_each(|row| row.push(0));
        self.blocked.push(vec![0; count]);
        count - 1
    }

    /// Gives a node these disks and no others. There is no power yet that they could lose.
    pub(super) fn plug_in(&mut self, node: NodeId, disks: Vec<Disk>) {
        let power = self.nodes[node].power.clone();
        let disks = disks.into_iter().map(|disk| disk.crash(Failure::ProcessCrash, 0, &power));
        self.nodes[node].disks = disks.collect();
    }

    pub(crate) const fn now(&self) -> u64 {
        self.queue.now()
    }

    /// Something happened that must not.
    pub(crate) fn wrong(&mut self, what: String) {
        tell!(self, "WRONG: {what}");
        self.wrong.get_or_insert(what);
    }

    pub(super) const fn what_is_wrong(&self) -> Option<&String> {
        self.wrong.as_ref()
    }

    pub(super) fn line(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.line(Instant::from_nanos(self.queue.now()), what);
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    pub(super) fn latency(&mut self, from: NodeId, to: NodeId) -> u64 {
        let times = |node: NodeId| u64::from(self.nodes[node].slow_link.values().copied().max().unwrap_or(1));
        let both = self.speeds.links[from] + self.speeds.links[to];
        let jitter = if self.speeds.jitter == 0 { 0 } else { self.rng.exponential(self.speeds.jitter) };
        (both + jitter) * times(from).max(times(to))
    }

    fn sync_time(&self, node: NodeId) -> u64 {
        let times = self.nodes[node].slow_disk.values().copied().max().unwrap_or(1);
        self.speeds.disks[node] * u64::from(times)
    }

    fn syncs(&self, node: NodeId) -> u64 {
        self.nodes[node].disks.iter().map(Disk::syncs).sum()
    }

    /// The process of a node begins to do something.
    pub(super) fn begins(&mut self, node: NodeId) {
        self.nodes[node].synced = self.syncs(node);
    }

    /// How long it has done something now.
    pub(super) fn spent(&self, node: NodeId) -> u64 {
        (self.syncs(node) - self.nodes[node].synced) * self.sync_time(node)
    }

    /// It has done it.
    pub(super) fn ends(&mut self, node: NodeId, deadline: Option<Duration>) {
        let now = self.now();
        let spent = self.spent(node);
        self.nodes[node].busy = now + spent;
        let Some(deadline) = deadline else { return };
        let at = self.nodes[node].clock.when(deadline).max(now + spent);
        if at == u64::MAX {
            return;
        }
        let state = &mut self.nodes[node];
        if state.timer.is_none_or(|timer| at < timer) {
            state.timer = Some(at);
            let life = state.life;
            self.queue.push(at, Event::Timer { node, life });
        }
    }

    pub(super) fn connect(&mut self, from: NodeId, to: NodeId) -> ConnectionId {
        self.counts.connections += 1;
        self.connections.push(Connection::new(from, to));
        let connection = self.connections.len() - 1;
        self.send_packet(connection, 0, Packet::Open);
        connection
    }

    /// Sends a packet, which leaves when the process has done what it does.
    fn send_packet(&mut self, connection: ConnectionId, end: usize, packet: Packet) {
        let [from, to] = [end, 1 - end].map(|end| self.connections[connection].ends[end]);
        let sent = self.now() + self.spent(from);
        let arrives = sent + self.latency(from, to);
        let wire = &mut self.connections[connection].wires[end];
        wire.last = wire.last.max(arrives);
        wire.packets.push_back((sent, packet));
        let at = wire.last;
        self.queue.push(at, Event::Arrive { connection, from: end });
    }

    fn send_from(&mut self, node: NodeId, connection: ConnectionId, packet: Packet) {
        let there = &self.connections[connection];
        let end = there.end_of(node);
        if there.is_up[end] {
            self.send_packet(connection, end, packet);
        }
    }

    pub(super) fn send(&mut self, node: NodeId, connection: ConnectionId, message: Vec<u8>) {
        self.send_from(node, connection, Packet::Message(message));
    }

    pub(super) fn operate(&mut self, node: NodeId, connection: ConnectionId, operation: Operation) {
        self.send_from(node, connection, Packet::Operation(operation));
    }

    /// The node at the other end of a connection.
    fn peer(&self, node: NodeId, connection: ConnectionId) -> NodeId {
        let there = &self.connections[connection];
        there.ends[1 - there.end_of(node)]
    }

    /// Whether a node takes a connection for one that is there.
    pub(super) fn is_live(&self, node: NodeId, connection: ConnectionId) -> bool {
        let there = &self.connections[connection];
        there.is_up[there.end_of(node)]
    }

    /// Ends a connection from a node: nothing of the other end arrives any more, which learns of it.
    pub(super) fn cut(&mut self, node: NodeId, connection: ConnectionId) {
        let end = self.connections[connection].end_of(node);
        if self.connections[connection].is_up[end] {
            let now = self.now();
            self.connections[connection].end(end, now);
            let peer = self.connections[connection].ends[1 - end];
            let at = self.now() + self.spent(node) + self.latency(node, peer);
            let at = self.connections[connection].after_held(end, at);
            // Word of it may not get through; then the RNIC there gives up some time.
            let blocked = self.blocked[node][peer];
            let at = if blocked > at { at + self.speeds.retry } else { at };
            self.queue.push(at, Event::Lost { connection, end: 1 - end, why: "the other side closed it" });
        }
    }

    /// What happens to a process, if anything does.
    pub(super) fn happens(&mut self, event: Event) -> Option<(NodeId, Input)> {
        let node = match event {
            Event::Arrive { connection, from } => self.connections[connection].ends[1 - from],
            Event::Datagram(ref datagram) => datagram.to,
            Event::Step { connection, end }
            | Event::Received { connection, end }
            | Event::Flushed { connection, end, .. }
            | Event::Lost { connection, end, .. } => self.connections[connection].ends[end],
            // One that was set before an earlier one, which has come since, is none any more: each would set another one.
            Event::Timer { node, life }
                if self.nodes[node].life == life
                    && self.nodes[node].timer.is_some_and(|at| at <= self.queue.now()) =>
            {
                node
            }
            Event::Timer { .. } | Event::Begin(_) | Event::End(_) => return None,
        };
        if !self.nodes[node].stopped.is_empty() {
            if !matches!(event, Event::Datagram(_)) || self.has_receive_buffer(node) {
                self.nodes[node].deferred.push(event);
            }
            return None;
        }
        let input = match event {
            Event::Arrive { connection, from } => self.arrive(connection, from)?,
            Event::Datagram(datagram) => self.arrive_datagram(datagram)?,
            Event::Step { connection, end } => {
                self.connections[connection].responders[end].is_stepping = false;
                if !self.connections[connection].is_up[end] {
                    return None;
                }
                let number = self.connections[connection].responders[end].step(&self.nodes[node].disks);
                if let Some(number) = number {
                    let at = self.now() + self.sync_time(node);
                    self.queue.push(at, Event::Flushed { connection, end, number });
                }
                if self.nodes[node].power.is_gone() {
                    return None;
                }
                if self.connections[connection].responders[end].stages.has_message() {
                    let now = self.now();
                    self.queue.push(now, Event::Received { connection, end });
                }
                self.answer(connection, end);
                return None;
            }
            Event::Received { connection, end } if self.nodes[node].busy > self.now() => {
                let at = self.nodes[node].busy;
                self.queue.push(at, Event::Received { connection, end });
                return None;
            }
            Event::Received { connection, end } => {
                let bytes = self.connections[connection].responders[end].stages.message()?;
                self.counts.messages += 1;
                Input::Message { connection, bytes }
            }
            Event::Flushed { .. } if !self.nodes[node].hangs.is_empty() => {
                self.nodes[node].held.push(event);
                return None;
            }
            Event::Flushed { connection, end, number } => {
                if !self.connections[connection].is_up[end] {
                    return None;
                }
                let (alone, disks) = (self.flush_alone, &self.nodes[node].disks);
                self.connections[connection].responders[end].flush(number, disks, alone);
                if self.nodes[node].power.is_gone() {
                    return None;
                }
                self.answer(connection, end);
                return None;
            }
            Event::Lost { connection, end, why } => self.lose(connection, end, why)?,
            Event::Timer { .. } => {
                let now = self.now();
                let state = &mut self.nodes[node];
                state.timer = None;
                if state.busy > now {
                    let (at, life) = (state.busy, state.life);
                    state.timer = Some(at);
                    self.queue.push(at, Event::Timer { node, life });
                    return None;
                }
                Input::Timer
            }
            Event::Begin(_) | Event::End(_) => return None,
        };
        self.nodes[node].is_up.then_some((node, input))
    }

    /// Goes on carrying out operations, and sends the answers that have come.
    fn answer(&mut self, connection: ConnectionId, end: usize) {
        self.begins(self.connections[connection].ends[end]);
        while let Some(answer) = self.connections[connection].responders[end].answer() {
            self.send_packet(connection, end, Packet::Answer(answer));
        }
        self.goes_on_stepping(connection, end);
    }

    /// The next step of what an end carries out is to come, if there is one.
    fn goes_on_stepping(&mut self, connection: ConnectionId, end: usize) {
        let responder = &mut self.connections[connection].responders[end];
        if responder.has_steps() && !responder.is_stepping {
            responder.is_stepping = true;
            let takes = if self.speeds.jitter == 0 { 100 } else { self.rng.between(50, 1000) };
            let at = self.queue.now() + takes;
            self.queue.push(at, Event::Step { connection, end });
        }
    }

    fn lose(&mut self, connection: ConnectionId, end: usize, why: &'static str) -> Option<Input> {
        if !self.connections[connection].is_up[end] {
            return None;
        }
        let now = self.now();
        self.connections[connection].end(end, now);
        self.counts.connections_lost += 1;
        let node = self.connections[connection].ends[end];
        tell!(self, "{} loses connection {connection}: {why}", self.nodes[node].name);
        // The other end notices some time that nothing comes any more.
        let at = self.now() + self.speeds.retry + self.rng.below(self.speeds.retry);
        let at = self.connections[connection].after_held(end, at);
        self.queue.push(at, Event::Lost { connection, end: 1 - end, why: "nothing has come for too long" });
        Some(Input::Lost { connection, why })
    }

    fn arrive(&mut self, connection: ConnectionId, from: usize) -> Option<Input> {
        let now = self.now();
        let to = 1 - from;
        let there = &self.connections[connection];
        let (sent, packet) = there.wires[from].packets.front()?;
        let (sender, receiver) = (there.ends[from], there.ends[to]);
        let gives_up = (*sent + self.speeds.retry).max(now);
        let lost = |why| Event::Lost { connection, end: from, why };
        if from == 0 && there.held > now {
            let at = there.held;
            self.queue.push(at, Event::Arrive { connection, from });
            return None;
        }
        let until = self.blocked[sender][receiver];
        if until > now {
            // It is sent again and again, until it arrives or the RNIC gives up.
            if until >= gives_up {
                self.queue.push(gives_up, lost("what was sent was never acknowledged"));
            } else {
                self.queue.push(until, Event::Arrive { connection, from });
            }
            return None;
        }
        let is_there =
            if matches!(packet, Packet::Open) { self.nodes[receiver].is_up } else { there.is_up[to] };
        if !is_there {
            self.connections[connection].wires[from].packets.pop_front();
            self.queue.push(gives_up, lost("nobody answers"));
            return None;
        }
        if matches!(packet, Packet::Message(_)) && self.nodes[receiver].busy > now {
            self.queue.push(self.nodes[receiver].busy, Event::Arrive { connection, from });
            return None;
        }
        let unheard = self.blocked[receiver][sender];
        if unheard > now && unheard >= gives_up {
            self.queue.push(gives_up, lost("no acknowledgement came through"));
        }
        let (_, packet) = self.connections[connection].wires[from].packets.pop_front()?;
        self.trace.hash(packet.code() << 48 ^ (connection as u64) << 1 ^ from as u64);
        match packet {
            Packet::Open => {
                self.connections[connection].is_up[to] = true;
                self.begins(receiver);
                self.send_packet(connection, to, Packet::Opened);
                None
            }
            Packet::Opened => Some(Input::Connected { connection }),
            Packet::Message(bytes) => {
                self.counts.messages += 1;
                bytes.iter().for_each(|byte| self.trace.hash(u64::from(*byte)));
                Some(Input::Message { connection, bytes })
            }
            Packet::Operation(operation) => {
                self.counts.operations += 1;
                if matches!(
                    operation,
                    Operation::Update { .. } | Operation::Flush { .. } | Operation::Verb(_)
                ) {
                    self.moment(Moment::Update, receiver, Some(sender));
                }
                self.connections[connection].responders[to].take(operation);
                self.answer(connection, to);
                None
            }
            Packet::Answer(Answer::Read(bytes)) => Some(Input::Read { connection, bytes }),
            Packet::Answer(Answer::Durable) => Some(Input::Durable { connection }),
            Packet::Answer(Answer::Written) => Some(Input::Written { connection }),
            Packet::Answer(Answer::Failed) => {
                self.lose(connection, to, "the medium of the other side failed")
            }
            Packet::Answer(Answer::Refused) => self.lose(connection, to, NOT_LET),
        }
    }

    /// A client loses its connections, and what it has sent on them arrives then, as do its datagrams.
    pub(super) fn linger(&mut self, client: NodeId, until: u64) {
        self.nodes[client].held_up = Some((self.now(), until));
        for connection in 0..self.connections.len() {
            let there = &mut self.connections[connection];
            if there.ends[0] == client && there.is_up[0] {
                there.held = until;
                let now = self.now();
                self.queue.push(now, Event::Lost { connection, end: 0, why: "nothing gets through" });
            }
        }
    }

    /// The process of a node is gone, with all that was on its way to or from it and was not there yet.
    pub(super) fn crash(&mut self, node: NodeId, failure: Failure, salt: u64) {
        let state = &mut self.nodes[node];
        let within = state.power.is_gone();
        tell!(
            self,
            "{} crashes: {failure:?}{}",
            self.nodes[node].name,
            if within { ", within something" } else { "" }
        );
        self.trace.hash(0xc4a5 << 32 ^ node as u64);
        let state = &mut self.nodes[node];
        state.is_up = false;
        state.life += 1;
        state.died = self.queue.now();
        state.stopped.clear();
        // Whoever has sent something while it was stopped learns that nobody answers.
        for event in std::mem::take(&mut state.deferred) {
            self.queue.push(self.queue.now(), event);
        }
        (state.busy, state.timer, state.power) = (0, None, Power::default());
        state.hangs.clear();
        state.held.clear();
        for (n, disk) in state.disks.iter_mut().enumerate() {
            *disk = disk.crash(failure, salt ^ (n as u64) << 56, &state.power);
        }
        let (now, retry) = (self.now(), self.speeds.retry);
        for connection in 0..self.connections.len() {
            for end in [0, 1] {
                let there = &mut self.connections[connection];
                if there.ends[end] != node || !there.is_up[end] {
                    continue;
                }
                there.end(end, now);
                // A machine that goes on says that there is nobody; one without power says nothing.
                let soon = if failure == Failure::ProcessCrash { retry / 50 } else { retry };
                let at = now + soon / 2 + self.rng.below(soon.max(1));
                self.queue.push(at, Event::Lost { connection, end: 1 - end, why: "the other side is gone" });
            }
        }
    }

    /// The disks of a node answer again, as far as this fault is concerned; its process is to go on.
    pub(super) fn answers(&mut self, node: NodeId, fault: usize) {
        let now = self.queue.now();
        let state = &mut self.nodes[node];
        if state.hangs.remove(&fault).is_none() || !state.hangs.is_empty() {
            return;
        }
        state.timer = Some(now);
        let timer = Event::Timer { node, life: state.life };
        for event in std::mem::take(&mut state.held).into_iter().chain([timer]) {
            self.queue.push(now, event);
        }
    }

    /// A node goes on after it was stopped.
    pub(super) fn goes_on(&mut self, node: NodeId, fault: usize) {
        let state = &mut self.nodes[node];
        state.stopped.retain(|other| *other != fault);
        if state.stopped.is_empty() {
            let now = self.queue.now();
            for event in std::mem::take(&mut state.deferred) {
                self.queue.push(now, event);
            }
        }
    }
}

/// What a process can do, and what it can see.
#[derive(Debug)]
pub(crate) struct Host<'a, O> {
    pub(super) core: &'a mut Core<O>,
    pub(super) node: NodeId,
}

impl<O> Host<'_, O> {
    /// The node that it runs on.
    pub(crate) const fn node(&self) -> NodeId {
        self.node
    }

    /// How often a process was started here before.
    pub(crate) fn life(&self) -> u32 {
        self.core.nodes[self.node].life
    }

    /// What the clock of this node shows.
    pub(crate) fn now(&self) -> Duration {
        self.core.nodes[self.node].clock.local(self.core.now())
    }

    /// What the service knows and its processes do not.
    pub(crate) const fn known(&self) -> &O {
        &self.core.oracle
    }

    /// The same, to be told something.
    pub(crate) const fn oracle(&mut self) -> &mut O {
        &mut self.core.oracle
    }

    /// What only the simulator knows, the time included.
    pub(crate) const fn core(&mut self) -> &mut Core<O> {
        self.core
    }

    /// The power has gone while its process does what it does: nothing of that will be left.
    pub(crate) fn has_no_power(&self) -> bool {
        self.core.nodes[self.node].power.is_gone()
    }

    /// For how long the disks of this node have not answered. A process that asks them for anything now does not say so to anybody.
    pub(crate) fn hangs(&self) -> Option<Duration> {
        let state = &self.core.nodes[self.node];
        let since = state.hangs.values().copied().min()?;
        Some(self.now().saturating_sub(state.clock.local(since)))
    }

    /// A disk of this node.
    pub(crate) fn disk(&self, n: usize) -> Disk {
        self.core.nodes[self.node].disks[n].clone()
    }

    /// Begins to connect to a node.
    pub(crate) fn connect(&mut self, to: NodeId) -> ConnectionId {
        self.core.connect(self.node, to)
    }

    /// Ends a connection: nothing of the other end arrives any more.
    pub(crate) fn cut(&mut self, connection: ConnectionId) {
        self.core.cut(self.node, connection);
    }

    /// This node has come to a moment, asked by the other end of a connection if there is one. It has not done it yet.
    pub(crate) fn moment(&mut self, moment: Moment, connection: Option<ConnectionId>) {
        let asker = connection.map(|connection| self.core.peer(self.node, connection));
        self.core.moment(moment, self.node, asker);
    }

    /// Whether a connection goes on, as far as is known here.
    pub(crate) fn is_live(&self, connection: ConnectionId) -> bool {
        self.core.is_live(self.node, connection)
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, connection: ConnectionId, message: Vec<u8>) {
        self.core.send(self.node, connection, message);
    }

    /// Sends a datagram to a node.
    pub(crate) fn datagram(&mut self, to: NodeId, bytes: Vec<u8>) {
        self.core.send_datagram(self.node, to, bytes);
    }

    /// Reads from a disk of the other end.
    pub(crate) fn read(&mut self, connection: ConnectionId, disk: usize, offset: u64, len: u32) {
        self.core.operate(self.node, connection, Operation::Read { disk, offset, len });
    }

    /// Makes updates of a disk of the other end durable, one after the other.
    pub(crate) fn update(&mut self, connection: ConnectionId, disk: usize, updates: Vec<(u64, Vec<u8>)>) {
        self.core.operate(self.node, connection, Operation::Update { disk, updates });
    }

    /// Makes bytes of a disk of the other end visible, and no more than that.
    pub(crate) fn write(&mut self, connection: ConnectionId, disk: usize, offset: u64, bytes: Vec<u8>) {
        self.core.operate(self.node, connection, Operation::Write { disk, offset, bytes });
    }

    /// Posts a work request, which is completed as RC does it.
    pub(crate) fn post(&mut self, connection: ConnectionId, verb: Verb) {
        self.core.operate(self.node, connection, Operation::Verb(verb));
    }

    /// Lets the other end of a connection post work requests.
    pub(crate) fn let_in(&mut self, connection: ConnectionId, receives: Receives) {
        let there = &mut self.core.connections[connection];
        let end = there.end_of(self.node);
        there.responders[end].stages.let_in(receives);
    }

    /// Gives a receive buffer back, for which a message may wait.
    pub(crate) fn repost(&mut self, connection: ConnectionId) {
        let there = &mut self.core.connections[connection];
        let end = there.end_of(self.node);
        there.responders[end].stages.repost();
        self.core.goes_on_stepping(connection, end);
    }

    /// Makes durable what was written to a disk of the other end.
    pub(crate) fn flush(&mut self, connection: ConnectionId, disk: usize, offset: u64, len: u64) {
        self.core.operate(self.node, connection, Operation::Flush { disk, offset, len });
    }

    /// What the other end of a connection may write here from now on, by where it begins and how many bytes it has: nothing at first.
    pub(crate) fn rooms(&mut self, connection: ConnectionId) -> &mut BTreeMap<u64, u64> {
        let there = &mut self.core.connections[connection];
        let end = there.end_of(self.node);
        there.responders[end].rooms.get_or_insert_default()
    }

    /// What this node may write at the other end of a connection that it has just asked for, until that one's process says something else.
    pub(crate) fn begins_with_rooms(&mut self, connection: ConnectionId, rooms: BTreeMap<u64, u64>) {
        self.core.connections[connection].responders[1].rooms = Some(rooms);
    }

    /// Puts a medium in the place of a disk of this node, as memory that a process has asked for.
    pub(crate) fn replace_disk(&mut self, n: usize, disk: &Disk) -> Disk {
        let state = &mut self.core.nodes[self.node];
        state.disks[n] = disk.crash(Failure::ProcessCrash, 0, &state.power);
        state.disks[n].clone()
    }

    /// Says something for the trace of a run that failed.
    pub(crate) fn tell(&mut self, what: std::fmt::Arguments<'_>) {
        if self.core.trace.is_on() {
            let name = self.core.nodes[self.node].name.clone();
            self.core.line(format_args!("{name}: {what}"));
        }
    }
}

/// A disk without anything on it, which lies on a shelf.
pub(super) fn blank_disk(len: u64, domain: PersistenceDomain) -> Disk {
    Disk::new(len, domain, &Power::default())
}
