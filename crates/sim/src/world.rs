//! The simulated cluster: nodes, the network, time, and what happens next.
//!
//! A run has two phases. In the first, faults happen and only one thing counts: nothing wrong is ever observed.
//! When three quarters of the work are posted, the network heals and what is down comes back; from then on
//! everything must finish (after TigerBeetle's VOPR).

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use remanence_rnic::{CqHandle, Device, FlushId, Instant, Mr, PdHandle, RegionId, SrqHandle, Wc, WcStatus};

use crate::end::{End, RecvQueue};
use crate::memory::SimMemory;
use crate::network::{Network, Packet};
use crate::params::Plan;
use crate::report::Counts;
use crate::rng::Rng;
use crate::trace::Trace;

/// Something happened that must not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation(pub(crate) String);

pub(crate) type Check<T = ()> = Result<T, Violation>;

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err($crate::world::Violation(format!($($message)*)));
        }
    };
}
pub(crate) use ensure;

/// One machine: its device, its memory, and what it has connected.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) addr: IpAddr,
    /// `None` while it has no power.
    pub(crate) device: Option<Device>,
    pub(crate) memory: SimMemory,
    /// How often it was started.
    pub(crate) epoch: u32,
    /// When its timer event is due.
    timer: Option<u64>,
    pub(crate) pd: PdHandle,
    pub(crate) cqs: [CqHandle; 2],
    pub(crate) srq: Option<SrqHandle>,
    /// Words that every end may operate on.
    pub(crate) shared: RegionId,
    pub(crate) shared_mr: Option<Mr>,
}

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnState {
    /// Both QPs are in RTS.
    Up,
    /// A QP has failed, or the other end's machine has no power.
    Broken,
    /// No QPs; comes back after timewait.
    Down,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) state: ConnState,
    /// Something happened to it that may exhaust its retries.
    pub(crate) excused: bool,
    /// Its generation, so that old events do not count.
    pub(crate) generation: u32,
}

/// What happens at some time.
#[derive(Debug)]
pub(crate) enum Event {
    Deliver { packet: Packet },
    Timer { node: usize },
    FlushDone { node: usize, epoch: u32, id: FlushId },
    Tick { end: usize },
    Partition { a: usize, b: usize, nanos: u64 },
    Join { a: usize, b: usize },
    Crash { node: usize, nanos: u64 },
    Restart { node: usize },
    Reconnect { conn: usize, generation: u32 },
}

#[derive(Debug)]
struct Scheduled {
    at: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The earliest first, as a heap gives its greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Events that one run may take. Tens of thousands are usual; a loop without an end is a violation.
const EVENTS_MAX: u64 = 4_000_000;
/// Simulated time until the network heals at the latest.
const HEAL_NANOS: u64 = 30_000_000_000;
/// Simulated time that a healed cluster may take to finish.
const DRAIN_NANOS: u64 = 60_000_000_000;

/// The simulated cluster: its nodes, the network between them, and the time.
#[derive(Debug)]
pub(crate) struct World<'t> {
    pub(crate) plan: Plan,
    pub(crate) seed: u64,
    pub(crate) now: u64,
    queue: BinaryHeap<Scheduled>,
    order: u64,
    pub(crate) network: Network,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ends: Vec<End>,
    pub(crate) recvs: Vec<RecvQueue>,
    pub(crate) conns: Vec<Conn>,
    /// Connections of which a QP has failed, to be taken down.
    pub(crate) broken: Vec<usize>,
    pub(crate) rng: Rng,
    pub(crate) trace: &'t mut Trace,
    pub(crate) counts: Counts,
    pub(crate) healed: Option<u64>,
    buf: Vec<u8>,
    wcs: Vec<Wc>,
}

/// Records a line of the trace, if there is one.
macro_rules! trace {
    ($world:expr, $($message:tt)*) => {
        if $world.trace.is_on() {
            let now = remanence_rnic::Instant::from_nanos($world.now);
            $world.trace.line(now, format_args!($($message)*));
        }
    };
}
pub(crate) use trace;

impl<'t> World<'t> {
    /// The cluster of a plan, connected and about to begin.
    pub(crate) fn new(seed: u64, plan: &Plan, trace: &'t mut Trace) -> Check<Self> {
        let mut world = Self {
            network: Network::new(Rng::new(seed, 1), plan.faults),
            rng: Rng::new(seed, 2),
            seed,
            now: 0,
            queue: BinaryHeap::new(),
            order: 0,
            nodes: Vec::new(),
            ends: Vec::new(),
            recvs: Vec::new(),
            conns: Vec::new(),
            broken: Vec::new(),
            trace,
            counts: Counts::default(),
            healed: None,
            buf: vec![0; plan.segments * (plan.mtu.bytes() + 96)],
            wcs: Vec::new(),
            plan: plan.clone(),
        };
        world.set_up()?;
        Ok(world)
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) -> Check {
        while !self.finished() {
            ensure!(self.step_until(u64::MAX)?, "nothing will ever happen again: {}", self.unfinished());
            if let Some(healed) = self.healed {
                ensure!(
                    self.now - healed < DRAIN_NANOS,
                    "the healed cluster does not finish: {}",
                    self.unfinished()
                );
            }
            if self.healed.is_none()
                && (self.counts.posted * 4 >= u64::from(self.plan.ops) * 3 || self.now > HEAL_NANOS)
            {
                self.heal()?;
            }
        }
        self.finish()
    }

    /// Lets the next thing happen, if it happens until then.
    pub(crate) fn step_until(&mut self, until: u64) -> Check<bool> {
        if self.queue.peek().is_none_or(|next| next.at > until) {
            return Ok(false);
        }
        let next = self.queue.pop().expect("peeked at");
        self.now = next.at;
        self.counts.events += 1;
        ensure!(self.counts.events < EVENTS_MAX, "it goes on for ever: {}", self.unfinished());
        self.happen(next.event)?;
        // Not at once: whoever noticed was in the middle of something.
        while let Some(conn) = self.broken.pop() {
            self.tear_down(conn)?;
        }
        Ok(true)
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Deliver { packet } => self.deliver(packet),
            Event::Timer { node } => self.timer(node),
            Event::FlushDone { node, epoch, id } => self.flush_done(node, epoch, id),
            Event::Tick { end } => self.tick(end),
            Event::Partition { a, b, nanos } => {
                self.partition(a, b, nanos);
                Ok(())
            }
            Event::Join { a, b } => {
                trace!(self, "nodes {a} and {b} see each other again");
                self.network.join(self.nodes[a].addr, self.nodes[b].addr);
                Ok(())
            }
            Event::Crash { node, nanos } => self.crash(node, nanos),
            Event::Restart { node } => self.restart(node),
            Event::Reconnect { conn, generation } => self.reconnect(conn, generation),
        }
    }

    pub(crate) fn schedule(&mut self, after: u64, event: Event) {
        self.order += 1;
        self.queue.push(Scheduled { at: self.now + after, order: self.order, event });
    }

    pub(crate) fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn deliver(&mut self, packet: Packet) -> Check {
        let dst = packet.meta.dst;
        let index = self.nodes.iter().position(|node| node.addr == dst).expect("packets go to nodes");
        let now = self.instant();
        let node = &mut self.nodes[index];
        let Some(device) = &mut node.device else {
            self.network.traffic.undeliverable += 1;
            self.network.recycle(packet.payload);
            return Ok(());
        };
        device.handle_datagram(now, &packet.meta, &packet.payload, &mut node.memory);
        self.trace.hash(self.now ^ (packet.payload.len() as u64) << 48 ^ u64::from(packet.damaged) << 63);
        if self.trace.is_on() {
            let what = PacketLine(&packet.payload);
            trace!(self, "node {index} <- {}{what}", if packet.damaged { "DAMAGED " } else { "" });
        }
        self.network.recycle(packet.payload);
        self.pump(index)
    }

    fn timer(&mut self, index: usize) -> Check {
        let now = self.instant();
        let node = &mut self.nodes[index];
        // A timer that was set again meanwhile has another event.
        if node.timer != Some(self.now) {
            return Ok(());
        }
        node.timer = None;
        if let Some(device) = &mut node.device {
            device.handle_timeout(now);
        }
        self.pump(index)
    }

    fn flush_done(&mut self, index: usize, epoch: u32, id: FlushId) -> Check {
        let now = self.instant();
        let node = &mut self.nodes[index];
        if node.epoch != epoch || node.device.is_none() {
            return Ok(());
        }
        node.memory.finish_flush(id);
        trace!(self, "node {index}: {id:?} is done");
        let node = &mut self.nodes[index];
        if let Some(device) = &mut node.device {
            device.flush_done(now, id, Ok(()), &mut node.memory);
        }
        self.pump(index)
    }

    /// Takes everything out of a device that it wants to say.
    pub(crate) fn pump(&mut self, index: usize) -> Check {
        let mut rounds = 0;
        loop {
            rounds += 1;
            ensure!(rounds < 10_000, "node {index} always has something more to do");
            let moved = self.pump_transmit(index)? | self.pump_completions(index)?;
            self.pump_memory(index)?;
            if !moved {
                break;
            }
        }
        self.pump_events(index)?;
        self.set_timer(index)
    }

    fn pump_transmit(&mut self, index: usize) -> Check<bool> {
        let now = self.instant();
        let mut moved = false;
        for _ in 0..10_000 {
            let node = &mut self.nodes[index];
            let Some(device) = &mut node.device else { return Ok(false) };
            let Some(tx) = device.poll_transmit(now, &mut self.buf, self.plan.segments, &mut node.memory)
            else {
                return Ok(moved);
            };
            moved = true;
            ensure!(tx.src == node.addr, "node {index} sends from {}", tx.src);
            ensure!(
                tx.len > 0 && tx.segment_size > 0 && tx.len <= self.plan.segments * tx.segment_size,
                "{tx:?} does not fit {} segments",
                self.plan.segments
            );
            if self.trace.is_on() {
                for segment in self.buf[..tx.len].chunks(tx.segment_size) {
                    let to = self.nodes.iter().position(|node| node.addr == tx.dst).unwrap_or(usize::MAX);
                    trace!(self, "node {index} -> node {to} {}", PacketLine(segment));
                }
            }
            let (queue, order, at) = (&mut self.queue, &mut self.order, self.now);
            self.trace.hash(tx.len as u64 ^ at.rotate_left(17));
            for segment in self.buf[..tx.len].chunks(tx.segment_size) {
                if let Some(icrc) = segment.last_chunk::<4>() {
                    self.trace.hash(u64::from(u32::from_le_bytes(*icrc)));
                }
            }
            self.network.send(&tx, &self.buf, |delay, packet| {
                *order += 1;
                queue.push(Scheduled { at: at + delay, order: *order, event: Event::Deliver { packet } });
            });
        }
        Err(Violation(format!("node {index} sends without an end")))
    }

    fn pump_completions(&mut self, index: usize) -> Check<bool> {
        let cqs = self.nodes[index].cqs;
        let Some(device) = &mut self.nodes[index].device else { return Ok(false) };
        let mut wcs = std::mem::take(&mut self.wcs);
        for cq in cqs {
            device
                .poll_cq(cq, &mut wcs, usize::MAX)
                .map_err(|error| Violation(format!("node {index}: {error}")))?;
        }
        // Receives first: what a loopback peer was told has arrived must be here. But the failure of a send is why
        // receives are flushed.
        wcs.sort_by_key(|wc| match (wc.wr_id >> 63 == 1, wc.status == WcStatus::Success) {
            (true, true) => 0,
            (false, _) => 1,
            (true, false) => 2,
        });
        // The atomics that these completions are about.
        self.pump_memory(index)?;
        for wc in &wcs {
            self.trace.hash(wc.wr_id ^ u64::from(wc.byte_len) << 32 ^ (wc.status as u64) << 56);
            trace!(self, "node {index}: {}", ShownWc(wc));
            self.complete(index, wc)?;
        }
        let moved = !wcs.is_empty();
        wcs.clear();
        self.wcs = wcs;
        Ok(moved)
    }

    fn pump_memory(&mut self, index: usize) -> Check {
        let memory = &mut self.nodes[index].memory;
        let (flushes, atomics) =
            (std::mem::take(&mut memory.new_pending), std::mem::take(&mut memory.atomics));
        let epoch = self.nodes[index].epoch;
        for (id, nanos) in flushes {
            self.schedule(nanos, Event::FlushDone { node: index, epoch, id });
        }
        for done in atomics {
            self.carried_out(index, &done)?;
        }
        Ok(())
    }

    fn set_timer(&mut self, index: usize) -> Check {
        let node = &mut self.nodes[index];
        let Some(device) = &node.device else { return Ok(()) };
        let next = device.poll_timeout().map(|at| at.as_nanos().max(self.now));
        if let Some(at) = next
            && node.timer.is_none_or(|timer| timer > at)
        {
            node.timer = Some(at);
            self.schedule(at - self.now, Event::Timer { node: index });
        }
        Ok(())
    }

    fn heal(&mut self) -> Check {
        trace!(self, "the network heals");
        self.healed = Some(self.now);
        self.network.heal();
        for node in 0..self.nodes.len() {
            if self.nodes[node].device.is_none() {
                self.restart(node)?;
            }
        }
        Ok(())
    }

    /// The address of node `index`.
    pub(crate) fn address(index: usize, ipv6: bool) -> IpAddr {
        let host = u8::try_from(index + 1).expect("few nodes");
        if ipv6 {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)).into()
        } else {
            Ipv4Addr::new(10, 0, 0, host).into()
        }
    }

    pub(crate) fn node(addr: IpAddr, memory: SimMemory, shared: RegionId) -> Node {
        Node {
            addr,
            device: None,
            memory,
            epoch: 0,
            timer: None,
            pd: PdHandle(0),
            cqs: [CqHandle(0); 2],
            srq: None,
            shared,
            shared_mr: None,
        }
    }

    /// Forgets the timer of a node that has lost its power.
    pub(crate) fn forget_timer(&mut self, index: usize) {
        self.nodes[index].timer = None;
    }
}

/// A packet in a trace.
struct PacketLine<'a>(&'a [u8]);

impl fmt::Display for PacketLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        remanence_wire::pretty::Pretty(self.0).fmt(f)
    }
}

/// A work completion in a trace.
struct ShownWc<'a>(&'a Wc);

impl fmt::Display for ShownWc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wc = self.0;
        write!(
            f,
            "WC qpn {} wr {:#x} {:?} {} {} bytes",
            wc.qpn, wc.wr_id, wc.opcode, wc.status, wc.byte_len
        )?;
        if let Some(imm) = wc.imm {
            write!(f, " imm {imm:#x}")?;
        }
        if let Some(rkey) = wc.invalidated {
            write!(f, " invalidated {rkey}")?;
        }
        Ok(())
    }
}
