//! The shared-memory link: datagrams between processes of one host, through memory that both map.
//!
//! Read first: [`ring`] (how datagrams pass and when anybody is woken), [`peer`] (how processes find each other).
//!
//! Every link has an address, which is a name on this host and nothing more: it looks like an IP address because
//! GIDs and CM messages carry those. Links find each other by it; the first datagram makes the connection. One
//! without a wish gets a free address of 127.64.0.0/10.
//!
//! * Nothing is lost while both processes live and read. A peer that does not read for a while loses what does not
//!   fit in its ring, so that it cannot hold up the others; a process that dies takes its rings with it.
//! * Only processes of the same user and of root are let in, and users that the configuration names.
//! * The bytes cannot be damaged on the way, so nobody needs a checksum over them ([`LinkCaps::reliable_bytes`]).
//! * Beside datagrams, descriptors pass ([`SideChannel`]): memory that both sides map is written in place, without
//!   the link.

mod peer;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use thiserror::Error;

use crate::sys::descriptor::Descriptor;
use crate::{
    Event, Evidence, Link, LinkCaps, LinkStats, Outgoing, Received, SideChannel, SideEvent, SourcePort,
    WaitFd, sys,
};
pub use peer::MAX_MESSAGE;
use peer::{Message, PeerProcess, Trust};
use ring::{Envelope, MAX_PAYLOAD};

/// Records handed over from one peer before the next one's turn.
const BATCH: usize = 64;
/// Looks at the rings for one look at the sockets.
const SERVICE_EVERY: u32 = 256;
/// A peer that read nothing of a full ring for so long loses datagrams.
const PATIENCE: Duration = Duration::from_millis(100);
/// Processes that are let in.
const MAX_PEERS: usize = 4096;
/// Messages of the side channel that wait for their user.
const MAX_SIDE_EVENTS: usize = 4096;
/// The listener, in what epoll returns; peers are their index.
const LISTENER: u64 = u64::MAX;

/// What to open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The address to be found at; none given means any free one.
    pub address: Option<IpAddr>,
    /// The port that datagrams must name.
    pub port: u16,
    /// Bytes of a ring, for each direction to each peer; a power of two from 256 KiB to 256 MiB. Taken as used.
    pub ring_size: usize,
    /// Users, by number, whose processes are let in beside our own user's and root's.
    pub allow_users: Vec<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self { address: None, port: 4791, ring_size: 512 << 10, allow_users: Vec::new() }
    }
}

/// Why a shared-memory link could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has the address.
    #[error("the shared-memory address {0} belongs to another process; choose another one, or none")]
    AddressTaken(IpAddr),
    /// The configured ring size in bytes is not a power of two from 256K to 256M.
    #[error("a ring of {0} bytes is not possible; take a power of two from 256K to 256M")]
    BadRingSize(usize),
    /// Something else failed.
    #[error("shared memory: {0}: {1}")]
    Io(&'static str, io::Error),
}

/// Where the next send is being written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lent {
    /// No buffer has been lent since the last send.
    Nowhere,
    /// In the ring of this peer.
    Ring(usize),
    /// In our own memory, to be copied.
    Own,
}

/// The shared-memory link; see the module's head.
#[derive(Debug)]
pub struct ShmLink {
    caps: LinkCaps,
    config: Config,
    address: IpAddr,
    listener: Descriptor,
    epoll: Descriptor,
    peers: Vec<Option<PeerProcess>>,
    /// Whom to send to, by address. A peer that only its own side made is found here too.
    routes: HashMap<IpAddr, usize>,
    /// The peer of the last send.
    last: usize,
    lent: Lent,
    own: Box<[u8]>,
    /// Where records of peers that are not believed are copied to.
    inbox: Vec<u8>,
    /// Somebody waits for our descriptors, or is about to: the peers are told to wake us.
    asleep: bool,
    service_in: u32,
    events: VecDeque<Event>,
    side_events: VecDeque<SideEvent>,
    stats: LinkStats,
}

impl ShmLink {
    /// Opens the link.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let size = config.ring_size;
        if !size.is_power_of_two() || !(ring::MIN_RING..=ring::MAX_RING).contains(&size) {
            return Err(OpenError::BadRingSize(size));
        }
        let (address, listener) = match config.address {
            Some(address) => match peer::listen(address) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                    return Err(OpenError::AddressTaken(address));
                }
                other => (address, other.map_err(|e| OpenError::Io("taking the address", e))?),
            },
            None => any_address().map_err(|e| OpenError::Io("taking an address", e))?,
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .and_then(|epoll| {
                let epoll = Descriptor::from(epoll);
                epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
                Ok(epoll)
            })
            .map_err(|e| OpenError::Io("epoll", e.into()))?;
        let caps = LinkCaps {
            kind: "shm",
            addresses: vec![address],
            port: config.port,
            mtu: MAX_PAYLOAD,
            max_segments: 64,
            max_send_bytes: MAX_PAYLOAD,
            src_port: SourcePort::Any,
            reliable_bytes: true,
        };
        Ok(Self {
            caps,
            config: config.clone(),
            address,
            listener,
            epoll,
            peers: Vec::new(),
            routes: HashMap::new(),
            last: usize::MAX,
            lent: Lent::Nowhere,
            own: vec![0; MAX_PAYLOAD].into(),
            inbox: Vec::new(),
            asleep: false,
            service_in: SERVICE_EVERY,
            events: VecDeque::new(),
            side_events: VecDeque::new(),
            stats: LinkStats::default(),
        })
    }

    /// Where it is found.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Processes connected now.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.iter().flatten().count()
    }

    /// The peer at an address, connecting to it if need be.
    fn route(&mut self, to: IpAddr) -> io::Result<usize> {
        if let Some(Some(last)) = self.peers.get(self.last)
            && last.address == to
            && self.routes.get(&to) == Some(&self.last)
        {
            return Ok(self.last);
        }
        if let Some(&known) = self.routes.get(&to) {
            return Ok(known);
        }
        let peer = PeerProcess::connect(self.address, to, self.config.ring_size, &self.config.allow_users)?;
        let at = self.admit(peer)?;
        self.routes.insert(to, at);
        Ok(at)
    }

    fn admit(&mut self, peer: PeerProcess) -> io::Result<usize> {
        let at = match self.peers.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.peers.len() < MAX_PEERS => {
                self.peers.push(None);
                self.peers.len() - 1
            }
            None => return Err(io::ErrorKind::QuotaExceeded.into()),
        };
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&self.epoll, &peer.socket, data, epoll::EventFlags::IN)?;
        self.peers[at] = Some(peer);
        Ok(at)
    }

    /// Forgets a peer that has died, once all that it wrote has been read.
    fn bury(&mut self, at: usize) {
        let Some(peer) = self.peers[at].take() else { return };
        if self.lent == Lent::Ring(at) {
            // The lent bytes are the caller's until a send succeeds.
            if let Some(mut rings) = peer.rings {
                self.own.copy_from_slice(rings.writer.buffer());
            }
            self.lent = Lent::Own;
        }
        if self.routes.get(&peer.address) == Some(&at) {
            self.routes.remove(&peer.address);
            self.side_events.push_back(SideEvent::Gone { peer: peer.address });
        }
    }

    /// Looks at the sockets: processes that come, messages, processes that have died.
    fn service(&mut self) -> io::Result<()> {
        self.service_in = SERVICE_EVERY;
        let mut ready: Vec<epoll::Event> = Vec::new();
        let no_wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = Vec::with_capacity(32);
        match epoll::wait(&self.epoll, spare_capacity(&mut room), Some(&no_wait)) {
            Ok(_) => ready.append(&mut room),
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        for event in ready {
            let data = event.data;
            if data.u64() == LISTENER {
                self.let_in()?;
            } else {
                self.listen_to(usize::try_from(data.u64()).expect("an index"));
            }
        }
        Ok(())
    }

    fn let_in(&mut self) -> io::Result<()> {
        while let Some(socket) = peer::accept(&self.listener)? {
            // A process that may not come, or one too many, finds the socket closed.
            if let Ok(peer) = PeerProcess::accepted(socket, &self.config.allow_users)
                && let Ok(at) = self.admit(peer)
            {
                // Its first message mostly is there already.
                self.listen_to(at);
            }
        }
        Ok(())
    }

    fn listen_to(&mut self, at: usize) {
        loop {
            let Some(Some(peer)) = self.peers.get_mut(at) else { return };
            match peer.receive() {
                None => return,
                Some(Message::Poke) => {}
                Some(Message::Ready) => {
                    let address = peer.address;
                    self.routes.entry(address).or_insert(at);
                }
                Some(Message::Side(message, file)) => {
                    let from = peer.address;
                    // Nobody listens: then nobody misses it.
                    if self.side_events.len() < MAX_SIDE_EVENTS {
                        self.side_events.push_back(SideEvent::Message { from, message, file });
                    }
                }
                Some(Message::Gone) => {
                    peer.dying = true;
                    // Nothing more to hear, and epoll would say so for ever.
                    let _ = epoll::delete(&self.epoll, &peer.socket);
                    if peer.rings.is_none() {
                        self.peers[at] = None;
                    }
                    return;
                }
            }
        }
    }

    fn lose(&mut self, dst: SocketAddr) {
        self.stats.tx_failed += 1;
        let event = Event::Unreachable { dst, port_closed: true, evidence: Evidence::Local };
        if self.events.len() < 16 && !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    /// The peer's ring is full: refuse for a while, then lose.
    fn refuse(&mut self, at: usize) -> io::Result<()> {
        let peer = self.peers[at].as_mut().expect("the peer of this send");
        let Some(rings) = &peer.rings else { return Ok(()) };
        if rings.writer.must_wake() {
            peer.poke();
        }
        let progress = rings.writer.progress();
        let now = Instant::now();
        match peer.stuck {
            Some((since, at)) if at == progress && now.duration_since(since) > PATIENCE => {
                self.stats.undeliverable += 1;
                return Ok(());
            }
            Some((_, at)) if at == progress => {}
            _ => peer.stuck = Some((now, progress)),
        }
        self.stats.tx_blocked += 1;
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Reads what is in the rings, a batch of each.
    fn read(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> usize {
        let mut count = 0;
        let mut dead = None;
        let Self { peers, stats, address, inbox, .. } = self;
        for (at, peer) in peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            let (dying, trust, from) = (peer.dying, peer.trust, peer.address);
            let Some(rings) = &mut peer.rings else { continue };
            for _ in 0..BATCH {
                let envelope = match rings.reader.next() {
                    Ok(Some(envelope)) => envelope,
                    Ok(None) if !dying => break,
                    Ok(None) => {
                        dead = Some(at);
                        break;
                    }
                    Err(_) => {
                        stats.rx_malformed += 1;
                        dead = Some(at);
                        break;
                    }
                };
                let payload = match trust {
                    Trust::Full => rings.reader.payload(envelope.len),
                    Trust::Copy => {
                        inbox.resize(envelope.len, 0);
                        rings.reader.copy_out(inbox);
                        &inbox[..]
                    }
                };
                count += hand_over(&envelope, payload, from, *address, sink);
                stats.rx_bytes += envelope.len as u64;
                rings.reader.advance(envelope.len);
            }
            if rings.reader.tell() {
                peer.poke();
            }
        }
        if let Some(at) = dead {
            self.bury(at);
        }
        count
    }

    /// Makes writers wake whoever sleeps. True: something is there already.
    fn arm(&self) -> bool {
        let rings = || self.peers.iter().flatten().filter_map(|peer| peer.rings.as_ref());
        rings().for_each(|rings| rings.reader.fall_asleep());
        ring::sleepy_fence();
        rings().any(|rings| rings.reader.is_ready())
    }
}

/// Takes a free address of 127.64.0.0/10.
fn any_address() -> io::Result<(IpAddr, Descriptor)> {
    loop {
        let [a, b, c, ..] = sys::net::random_u64().to_be_bytes();
        let address = Ipv4Addr::new(127, 64 | a & 63, b, c).into();
        match peer::listen(address) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            other => return Ok((address, other?)),
        }
    }
}

impl Link for ShmLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        if self.lent == Lent::Nowhere {
            let last = self.last;
            let in_place = match self.peers.get_mut(last) {
                Some(Some(PeerProcess { rings: Some(rings), trust: Trust::Full, .. })) => {
                    rings.writer.has_room()
                }
                _ => false,
            };
            self.lent = if in_place { Lent::Ring(last) } else { Lent::Own };
        }
        match self.lent {
            Lent::Ring(at) => {
                let rings = self.peers[at].as_mut().and_then(|peer| peer.rings.as_mut());
                Ok(rings.expect("the peer in whose ring we lent is there").writer.buffer())
            }
            Lent::Own | Lent::Nowhere => Ok(&mut self.own),
        }
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        if out.len > MAX_PAYLOAD
            || out.segments() > self.caps.max_segments
            || out.src != self.address
            || self.lent == Lent::Nowhere
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = match self.route(out.dst.ip()) {
            Ok(at) if out.dst.port() == self.caps.port => at,
            // Nobody is there, or nobody who would have us.
            _ => {
                self.lent = Lent::Nowhere;
                self.lose(out.dst);
                return Ok(());
            }
        };
        if self.lent != Lent::Ring(at) {
            let Self { peers, own, lent, .. } = self;
            // Two peers at once: the one that was lent from and the one to send to.
            let from = match *lent {
                Lent::Ring(other) => {
                    let rings = peers[other].as_mut().and_then(|peer| peer.rings.as_mut());
                    let buffer = rings.expect("the peer in whose ring we lent is there").writer.buffer();
                    own[..out.len].copy_from_slice(&buffer[..out.len]);
                    *lent = Lent::Own;
                    &own[..out.len]
                }
                Lent::Own | Lent::Nowhere => &own[..out.len],
            };
            let rings =
                peers[at].as_mut().and_then(|peer| peer.rings.as_mut()).expect("a routed peer has rings");
            if !rings.writer.has_room() && !rings.writer.wait_for_room() {
                self.refuse(at)?;
                self.lent = Lent::Nowhere;
                return Ok(());
            }
            rings.writer.fill(from);
        }
        let peer = self.peers[at].as_mut().expect("a routed peer");
        peer.unflushed = true;
        peer.stuck = None;
        let rings = peer.rings.as_mut().expect("a routed peer has rings");
        rings.writer.publish(Envelope {
            len: out.len,
            segment_size: out.segment_size.clamp(1, out.len.max(1)),
            src_port: out.src_port,
            tos: out.tos,
            ttl: out.ttl,
        });
        self.last = at;
        self.lent = Lent::Nowhere;
        self.stats.tx_datagrams += out.segments() as u64;
        self.stats.tx_bytes += out.len as u64;
        self.stats.tx_batches += 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Mostly one peer was sent to.
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.unflushed) {
            peer.unflushed = false;
            if peer.rings.as_ref().is_some_and(|rings| rings.writer.must_wake()) {
                peer.poke();
            }
        }
        Ok(())
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.service_in -= 1;
        if self.service_in == 0 || self.asleep {
            self.service()?;
        }
        let mut count = self.read(sink);
        // Somebody sleeps while we look: whoever has woken that thread will not do it again unless asked, and may
        // have found us looking instead of it.
        while self.asleep && self.arm() {
            count += self.read(sink);
        }
        if count > 0 {
            self.stats.rx_datagrams += count as u64;
            self.stats.rx_batches += 1;
        }
        Ok(count)
    }

    fn wait_fds(&self, fds: &mut Vec<WaitFd>) {
        fds.push(WaitFd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN });
    }

    fn prepare_wait(&mut self) -> io::Result<bool> {
        self.service()?;
        self.asleep = true;
        let ready = self.arm();
        let dying = self.peers.iter().flatten().any(|peer| peer.dying);
        for peer in self.peers.iter_mut().flatten() {
            if peer.rings.as_mut().is_some_and(|rings| rings.reader.tell()) {
                peer.poke();
            }
        }
        Ok(ready || dying || !self.events.is_empty() || !self.side_events.is_empty())
    }

    fn wait_is_over(&mut self) {
        if std::mem::replace(&mut self.asleep, false) {
            self.peers
                .iter()
                .flatten()
                .filter_map(|peer| peer.rings.as_ref())
                .for_each(|r| r.reader.wake_up());
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn side_channel(&mut self) -> Option<&mut dyn SideChannel> {
        Some(self)
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

impl SideChannel for ShmLink {
    fn send_side(&mut self, to: IpAddr, message: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let at = self.route(to)?;
        self.peers[at].as_ref().ok_or(io::ErrorKind::NotConnected)?.send_side(message, file)
    }

    fn poll_side(&mut self) -> Option<SideEvent> {
        self.side_events.pop_front()
    }
}

/// Shows the datagrams of a record one by one.
#[inline]
fn hand_over(
    envelope: &Envelope,
    payload: &[u8],
    from: IpAddr,
    to: IpAddr,
    sink: &mut dyn FnMut(Received<'_>),
) -> usize {
    let src = SocketAddr::new(from, envelope.src_port);
    let mut show = |index: usize, payload| {
        let train_index = index as u16;
        let ip_id = to.is_ipv4().then_some(train_index);
        let (ecn, ttl) = (envelope.tos & 3, envelope.ttl);
        sink(Received { src, dst_ip: to, ip_id, train_index, ecn, ttl, payload });
    };
    if payload.len() <= envelope.segment_size {
        show(0, payload);
        return 1;
    }
    payload.chunks(envelope.segment_size).enumerate().for_each(|(index, segment)| show(index, segment));
    payload.len().div_ceil(envelope.segment_size)
}
