//! The thread of a switch: what a turn does, what it sleeps on, and how it ends.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use remanence_link::host::{Seat, SteerRule};
use remanence_link::udp::{self, UdpLink};
use remanence_link::xdp::{self, XdpLink};
use remanence_link::{Link, LinkStats, Received, WaitFd, random, wait};
use remanence_rnic::Instant;
use remanence_service::server::Stop;
use remanence_switch::{Access, Config, GroupError, GroupId, Made, Report, Spec, Stats, Switch, View};
use remanence_wire::cm::{PortSpace, ServiceId};
use remanence_wire::icrc::{self, Flow, IpId};
use remanence_wire::{Mtu, ROCE_PORT, ip, udp as udp_header};
use rustix::event::{EventfdFlags, PollFlags, eventfd};

use crate::outbox::{Limits, Outbox};
use crate::tape::{Recording, Tape};

/// How long an ending switch waits at most for its peers to say that they have heard of it.
const FAREWELL: Duration = Duration::from_millis(500);
/// What others ask for that is done in one turn.
const ORDERS: usize = 16;
/// The hop limit of a datagram whose link does not say with which it came.
const HOP_LIMIT: u8 = 64;

/// What carries a switch's packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// UDP sockets at the switch's address: everywhere, without privileges. No other process of the host can be at the address.
    Udp,
    /// AF_XDP sockets on the interface that has the address; needs privileges.
    Xdp(String),
}

/// A switch to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its address: that of an interface of this host.
    pub addr: IpAddr,
    /// What carries its packets.
    pub carrier: Carrier,
    /// Services of replicas for which leaders may ask for groups, as ports of RDMA-CM's TCP port space.
    pub services: Vec<u16>,
    /// Who may ask, and of whom.
    pub access: Access,
    /// How long replicas are waited for that have said nothing yet, when enough have agreed.
    pub grace: Duration,
}

/// What the thread has counted, beside the switch and the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Datagrams to another address of the interface than the switch's.
    pub elsewhere: u64,
    /// Packets that the link does not take: longer than its MTU.
    pub unsendable: u64,
    /// Times that the network has said that somebody is not there, or that a packet was too long for the way to him.
    pub unreachable: u64,
    /// Times that the kernel had no room for what was to leave, and nothing was received until it had.
    pub blocked: u64,
    /// Packets that a recording lacks, as who writes it down did not keep up.
    pub unrecorded: u64,
}

/// What there is to be seen of a switch at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The groups that it has.
    pub groups: Vec<View>,
    /// What the switch has counted.
    pub switch: Stats,
    /// What the thread has counted.
    pub plane: Counters,
    /// What the link has counted.
    pub link: LinkStats,
}

/// Somebody records already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

type Order = Box<dyn FnOnce(&mut Plane) + Send>;

/// A switch and its thread's work.
pub struct Plane {
    link: Box<dyn Link>,
    switch: Switch,
    addr: IpAddr,
    outbox: Outbox,
    /// The datagram that is looked at, with its headers.
    packet: Vec<u8>,
    tape: Option<Tape>,
    origin: std::time::Instant,
    orders: Receiver<Order>,
    bell: Arc<Bell>,
    counters: Counters,
    fds: Vec<WaitFd>,
    /// Whose QP numbers the switch's are.
    seat: Option<Seat>,
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plane")
            .field("addr", &self.addr)
            .field("link", self.link.caps())
            .field("slot", &self.seat.as_ref().map(Seat::slot))
            .finish_non_exhaustive()
    }
}

impl Plane {
    /// Opens the link of a switch that has no groups.
    ///
    /// # Errors
    /// A sentence that says what to do: no such address, port taken, no permission.
    pub fn open(options: &Options) -> io::Result<(Self, Handle)> {
        let link: Box<dyn Link> = match &options.carrier {
            Carrier::Udp => Box::new(UdpLink::open(&udp::Options::new(vec![options.addr]))?),
            Carrier::Xdp(interface) => Box::new(XdpLink::open(&xdp::Config::new(interface))?),
        };
        Self::on(link, options)
    }

    /// The same on a link that is open.
    ///
    /// # Errors
    /// The link does not have the address; the operating system refuses a descriptor.
    pub fn on(link: Box<dyn Link>, options: &Options) -> io::Result<(Self, Handle)> {
        if !link.caps().addresses.contains(&options.addr) {
            let why = format!("the interface does not have the address {}", options.addr);
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
        }
        // QP numbers of a seat: engines of this host take a peer for dead whose seat nobody has. It is one at random, so that nothing that is still under way to a switch that
        // was here before is taken for something to this one.
        let seat = Seat::claim(SteerRule { cases: Vec::new() })?;
        let services = options.services.iter().map(|&port| ServiceId::new(PortSpace::Tcp, port)).collect();
        let config = Config {
            services,
            access: options.access.clone(),
            grace: options.grace,
            guid: random(),
            seed: random(),
            ..Config::new(options.addr, seat.qpns())
        };
        let (plane, handle) = Self::new(link, config)?;
        Ok((Self { seat: Some(seat), ..plane }, handle))
    }

    /// A switch on a link. Its UDP port and its path MTU are those of the link.
    ///
    /// # Errors
    /// The operating system refuses a descriptor.
    pub fn new(link: Box<dyn Link>, config: Config) -> io::Result<(Self, Handle)> {
        let caps = link.caps();
        let src_port = match caps.src_port {
            remanence_link::SourcePort::Fixed(port) => Some(port),
            remanence_link::SourcePort::Any => config.src_port,
        };
        let mtu = config.mtu.min(Mtu::fitting(caps.mtu).unwrap_or(Mtu::B256));
        let (asks, orders) = mpsc::channel();
        let bell = Arc::new(Bell::new()?);
        let handle = Handle { asks, bell: Arc::clone(&bell) };
        let this = Self {
            link,
            addr: config.addr,
            switch: Switch::new(Config { src_port, mtu, ..config }),
            outbox: Outbox::default(),
            packet: Vec::new(),
            tape: None,
            origin: std::time::Instant::now(),
            orders,
            bell,
            counters: Counters::default(),
            fds: Vec::new(),
            seat: None,
        };
        Ok((this, handle))
    }

    /// Makes a group without being asked by its leader.
    ///
    /// # Errors
    /// As [`Switch::make_group`].
    pub fn make_group(&mut self, spec: Spec) -> Result<Made, GroupError> {
        let made = self.switch.make_group(self.now(), spec);
        self.see_to_deadlines();
        made
    }

    /// Ends a group, and the connections that it was made by; whether it was there.
    pub fn end_group(&mut self, id: GroupId) -> bool {
        let was_there = self.switch.end_group(self.now(), id);
        self.see_to_deadlines();
        was_there
    }

    /// What there is to be seen.
    #[must_use]
    pub fn look(&self) -> Look {
        Look {
            groups: self.switch.groups().collect(),
            switch: *self.switch.stats(),
            plane: self.counters,
            link: self.link.stats(),
        }
    }

    /// Records from now on what comes and leaves, until nobody takes it any more.
    ///
    /// # Errors
    /// Somebody else does.
    pub fn record(&mut self) -> Result<Recording, Busy> {
        if self.tape.as_ref().is_some_and(Tape::is_heard) {
            return Err(Busy);
        }
        let (tape, recording) = Tape::begin();
        self.tape = Some(tape);
        Ok(recording)
    }

    /// Carries packets until it is asked to stop. Then it ends all groups, and waits for half a second at most for those who were connected to say that they have heard of it.
    /// `told` hears what a data plane cannot put right; it may not wait.
    ///
    /// # Errors
    /// The link no longer works.
    pub fn run(mut self, stop: &Stop, told: &mut dyn FnMut(Report)) -> io::Result<Look> {
        let bell = Arc::clone(&self.bell);
        let _wakes = stop.wakes(move || bell.ring());
        while !stop.is_asked() {
            let has_more = self.obey();
            let moved = self.turn()?;
            while let Some(report) = self.switch.poll_report() {
                told(report);
            }
            if !moved && !has_more {
                self.sleep(None)?;
            }
        }
        let end = self.now() + FAREWELL;
        self.switch.close(self.now());
        self.see_to_deadlines();
        while self.now() < end && !(self.switch.is_at_rest() && self.outbox.is_empty()) {
            if !self.turn()? {
                self.sleep(Some(end))?;
            }
        }
        self.tape = None;
        Ok(self.look())
    }

    /// Does what others ask for; whether there may be more of that.
    fn obey(&mut self) -> bool {
        for _ in 0..ORDERS {
            let Ok(order) = self.orders.try_recv() else { return false };
            order(self);
        }
        true
    }

    /// Takes one batch and sends what comes of it, without a wait: for who has no thread for it. Whether there was something to do.
    ///
    /// # Errors
    /// The link no longer works.
    pub fn turn(&mut self) -> io::Result<bool> {
        let now = self.now();
        let is_due = self.switch.deadline().is_some_and(|at| at <= now);
        if is_due {
            self.see_to_deadlines();
        }
        let Self { link, switch, addr, outbox, packet, tape, counters, .. } = self;
        let mut received = 0;
        if outbox.is_empty() {
            let limits = Limits::of(&**link);
            received = link.recv(&mut |datagram| {
                if datagram.dst_ip != *addr {
                    counters.elsewhere += 1;
                    return;
                }
                compose(&datagram, packet);
                counters.unrecorded += record(tape, packet);
                switch.handle(now, packet, &mut |leaves| {
                    counters.unrecorded += record(tape, leaves);
                    outbox.push(leaves, limits);
                });
            })?;
        }
        let sent = outbox.send(&mut **link, switch.advance())?;
        counters.unsendable += sent.unsendable;
        counters.blocked += u64::from(sent.blocked);
        while link.poll_event().is_some() {
            counters.unreachable += 1;
        }
        Ok(is_due || received > 0)
    }

    /// Has the switch do what is due, and send what waits.
    fn see_to_deadlines(&mut self) {
        let now = self.now();
        let Self { link, switch, outbox, tape, counters, .. } = self;
        let limits = Limits::of(&**link);
        switch.handle_timeout(now, &mut |leaves| {
            counters.unrecorded += record(tape, leaves);
            outbox.push(leaves, limits);
        });
    }

    /// Sleeps until there is something to do, or until `end`.
    fn sleep(&mut self, end: Option<Instant>) -> io::Result<()> {
        if let Some(tape) = &mut self.tape {
            self.counters.unrecorded += tape.hand_over();
        }
        let is_blocked = !self.outbox.is_empty();
        if !is_blocked && self.link.prepare_wait()? {
            return Ok(());
        }
        self.fds.clear();
        self.link.wait_fds(&mut self.fds);
        if is_blocked {
            // For room alone: what arrives stays where it is.
            let room = PollFlags::OUT.bits().cast_signed();
            self.fds.retain_mut(|fd| {
                fd.events &= room;
                fd.events != 0
            });
        }
        self.fds.push(self.bell.wait_fd());
        let now = self.now();
        let until = self.switch.deadline().into_iter().chain(end).min();
        wait::poll(&self.fds, until.map(|at| at.since(now)))?;
        self.bell.hush();
        self.link.wait_is_over();
        Ok(())
    }

    /// Nanoseconds since the switch was made.
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Records a packet, if somebody wants to; how many were dropped.
fn record(tape: &mut Option<Tape>, packet: &[u8]) -> u64 {
    tape.as_mut().map_or(0, |tape| tape.record(packet))
}

/// Puts the headers in front of a datagram that it came with.
fn compose(datagram: &Received<'_>, packet: &mut Vec<u8>) {
    let &Received { src, dst_ip, ip_id, train_index, ecn, ttl, payload } = datagram;
    let (src, src_port) = (src.ip(), src.port());
    let ident = ip_id.unwrap_or_else(|| {
        // Of one that is damaged nobody can tell, and it is as damaged with any.
        match icrc::check_guess(&Flow::new(src, dst_ip, src_port, ROCE_PORT), train_index, payload) {
            Ok(IpId::Confirmed(ident) | IpId::Recovered(ident)) => ident,
            Ok(IpId::Absent) | Err(_) => 0,
        }
    });
    let len = udp_header::LEN + payload.len();
    let hop_limit = if ttl == 0 { HOP_LIMIT } else { ttl };
    let payload_len = len as u16;
    let ip = ip::Repr { src, dst: dst_ip, traffic_class: ecn, hop_limit, ident, flow_label: 0, payload_len };
    packet.clear();
    packet.resize(ip.header_len() + udp_header::LEN, 0);
    let at = ip.emit(packet);
    let header = packet[at..].first_chunk_mut().expect("room for a UDP header");
    udp_header::Repr { src_port, dst_port: ROCE_PORT, payload_len: payload.len() as u16 }.emit(header);
    packet.extend_from_slice(payload);
}

/// Asks the thread of a switch. Clones ask the same.
#[derive(Clone)]
pub struct Handle {
    asks: Sender<Order>,
    bell: Arc<Bell>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Has the thread do this between two turns, and waits for what comes of it; `None` if it has ended. No packet is carried meanwhile, so it is to be short.
    pub fn ask<T: Send + 'static>(&self, what: impl FnOnce(&mut Plane) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        let order = Box::new(move |plane: &mut Plane| drop(answer.send(what(plane))));
        self.asks.send(order).ok()?;
        self.bell.ring();
        answered.recv().ok()
    }
}

/// What the thread is called by. It is rung a few times a second at most, so that each ring may be a system call.
#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the sleep, or the next one.
    fn ring(&self) {
        // Any number but zero. One that does not fit is refused, as the descriptor is readable then.
        let _ = rustix::io::write(&self.0, &[1; 8]);
    }

    /// What was rung for so far is seen to before the next sleep.
    fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    fn wait_fd(&self) -> WaitFd {
        WaitFd { fd: self.0.as_raw_fd(), events: PollFlags::IN.bits().cast_signed() }
    }
}
