//! The AF_XDP link: frames go between our memory and the interface without the kernel's IP and UDP.
//!
//! Read first: the kernel's `Documentation/networking/af_xdp.rst`. No libxdp, no libbpf: the program is assembled
//! in [`program`], syscalls are in [`sys`], the memory shared with the kernel in [`ring`]. The engine fills a frame
//! of the UMEM; Ethernet, IP and UDP headers are written in front of the payload in the same frame ([`frame`]).
//!
//! Limits, by design of AF_XDP or of this link:
//! * Needs the privilege to load BPF programs and to open AF_XDP sockets (root, or CAP_NET_ADMIN, CAP_NET_RAW and
//!   CAP_BPF).
//! * One process per interface and queue: the hook of an interface takes one program, a queue one socket. The
//!   second process is told so. Everything but RoCEv2 to our addresses still reaches the kernel.
//! * A packet must fit in one 4 KiB frame beside the kernel's headroom: IP packets up to 3,826 bytes, hence path
//!   MTU up to 2048.
//! * What dies with the process is all: the program is held by a descriptor (a BPF link), so that even SIGKILL
//!   leaves the interface as it was.

mod frame;
mod neighbour;
pub(crate) mod netlink;
pub mod probe;
mod program;
mod ring;
pub(crate) mod sys;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::sys::descriptor::Descriptor;
use crate::{Event, Evidence, Link, LinkCaps, LinkStats, Outgoing, Received, SourcePort, WaitFd};
use frame::{Fields, HEADER_ROOM};
use neighbour::{Held, Neighbours, Way, hold};
use netlink::{Interface, Netlink};
use ring::{FRAME, Frame, HEADROOM, Socket};

/// The largest frame that a chunk of the UMEM takes.
const LARGEST_FRAME: usize = FRAME - HEADROOM;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Frames handed over in one `recv`.
const BATCH: usize = 64;
/// How long a queue that is taken is asked for. The kernel gives it back in a work queue, under the lock that network namespaces take
/// to be torn down, of which a host may have many at once.
const LETTING_GO: Duration = Duration::from_secs(3);
/// How many pushes may pass without a look at the neighbour table's news.
const NEWS_EVERY: u32 = 4096;

/// Where in the kernel frames are caught.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Generic on veth, where it is the faster one (a round trip of 2.8 us against 3.5 us, measured); elsewhere
    /// native, and generic if the driver has no native hook.
    #[default]
    Auto,
    /// After the kernel has made its packet buffer (SKB mode). Works on every interface.
    Generic,
    /// In the driver, without a copy if the driver can do that.
    Native,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Generic => "generic",
            Self::Native => "native",
        })
    }
}

/// What to open.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface, by name, in the calling thread's network namespace.
    pub interface: String,
    /// The UDP port to take.
    pub port: u16,
    /// Where to catch frames.
    pub mode: Mode,
    /// The receive queues to take; none given means all. RoCEv2 that arrives on other queues goes to the kernel.
    pub queues: Option<Vec<u32>>,
    /// Entries of each ring, a power of two; twice as many frames of 4 KiB are allocated per queue.
    pub ring_entries: u32,
}

impl Config {
    /// RoCEv2 on all queues of `interface`.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            port: 4791,
            mode: Mode::Auto,
            queues: None,
            ring_entries: 2048,
        }
    }
}

/// Why an AF_XDP link could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// No such interface in this network namespace.
    #[error("there is no network interface '{0}' here; see 'ip link' for those there are")]
    NoInterface(String),
    /// The interface has no IP address or is down.
    #[error("interface '{0}' is {1}; give it an address and bring it up first")]
    NotReady(String, &'static str),
    /// Ring size or queue list make no sense.
    #[error("{0}")]
    BadConfig(String),
    /// The kernel did not permit what AF_XDP needs.
    #[error(
        "AF_XDP on '{0}' needs root, or the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF; or use UDP"
    )]
    Privilege(String),
    /// Somebody has a program on the interface.
    #[error(
        "interface '{0}' has an XDP program of another process, and takes only one; end that process or use UDP"
    )]
    HookTaken(String),
    /// Somebody has a socket on the queue.
    #[error("queue {1} of interface '{0}' belongs to another AF_XDP socket; end that process or use UDP")]
    QueueTaken(String, u32),
    /// The interface's driver has no native XDP, or the kernel lacks AF_XDP.
    #[error("interface '{0}' cannot do AF_XDP in {1} mode ({2}); try generic mode or UDP")]
    Unsupported(String, Mode, io::Error),
    /// Something else failed.
    #[error("AF_XDP on '{0}': {1}: {2}")]
    Io(String, &'static str, io::Error),
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::NoInterface(_) => io::ErrorKind::NotFound,
            OpenError::NotReady(..) => io::ErrorKind::AddrNotAvailable,
            OpenError::BadConfig(_) => io::ErrorKind::InvalidInput,
            OpenError::Privilege(_) => io::ErrorKind::PermissionDenied,
            OpenError::HookTaken(_) | OpenError::QueueTaken(..) => io::ErrorKind::AddrInUse,
            OpenError::Unsupported(..) => io::ErrorKind::Unsupported,
            OpenError::Io(.., e) => e.kind(),
        };
        Self::new(kind, error)
    }
}

/// The AF_XDP link; see the module's head.
#[derive(Debug)]
pub struct XdpLink {
    caps: LinkCaps,
    interface: Interface,
    mode: Mode,
    /// One per queue; the first one sends.
    sockets: Vec<Socket>,
    neighbours: Neighbours,
    /// The lent frame.
    lent: Option<Frame>,
    /// A send found no frame or no room: wait for it.
    blocked: bool,
    /// Datagrams to ourselves.
    own: VecDeque<(SocketAddr, IpAddr, u8, u8, Vec<u8>)>,
    events: VecDeque<Event>,
    news_in: u32,
    stats: LinkStats,
    /// Holds the program on the interface.
    _attachment: Descriptor,
}

impl XdpLink {
    /// Opens the link: sockets on the queues first, then the program, so that no frame is redirected to nobody.
    ///
    /// # Errors
    /// See [`OpenError`]; each says what to do.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let name = || config.interface.clone();
        let failed = |step: &'static str| {
            move |e: io::Error| match e.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => OpenError::Privilege(name()),
                _ => OpenError::Io(name(), step, e),
            }
        };
        if !config.ring_entries.is_power_of_two() || config.ring_entries < 2 * BATCH as u32 {
            let message =
                format!("ring entries must be a power of two of at least 128, not {}", config.ring_entries);
            return Err(OpenError::BadConfig(message));
        }
        let index = sys::interface_index(&config.interface).map_err(|_| OpenError::NoInterface(name()))?;
        let netlink = Netlink::open().map_err(failed("netlink"))?;
        let interface = netlink.interface(index).map_err(failed("reading the interface"))?;
        let addresses = usable(netlink.addresses(index).map_err(failed("reading its addresses"))?);
        if addresses.is_empty() || !interface.up {
            return Err(OpenError::NotReady(
                name(),
                if interface.up { "without an IP address" } else { "down" },
            ));
        }

        let mode = match config.mode {
            Mode::Auto if interface.kind == "veth" => Mode::Generic,
            Mode::Auto => Mode::Native,
            chosen => chosen,
        };
        let (mode, attachment, sockets) = match Self::attach(config, index, mode, &addresses) {
            Err(OpenError::Unsupported(..)) if config.mode == Mode::Auto && mode == Mode::Native => {
                let (attachment, sockets) = Self::attach(config, index, Mode::Generic, &addresses)?;
                (Mode::Generic, attachment, sockets)
            }
            other => {
                let (attachment, sockets) = other?;
                (mode, attachment, sockets)
            }
        };

        let neighbours = Neighbours::new(netlink, index, interface.mac, addresses.clone())
            .map_err(failed("watching the neighbour table"))?;
        let mtu = (interface.mtu as usize).min(LARGEST_FRAME - ETHERNET);
        let caps = LinkCaps {
            kind: "xdp",
            addresses,
            port: config.port,
            mtu,
            max_segments: 1,
            max_send_bytes: mtu - 28,
            src_port: SourcePort::Any,
            reliable_bytes: false,
        };
        Ok(Self {
            caps,
            interface,
            mode,
            sockets,
            neighbours,
            lent: None,
            blocked: false,
            own: VecDeque::new(),
            events: VecDeque::new(),
            news_in: NEWS_EVERY,
            stats: LinkStats::default(),
            _attachment: attachment,
        })
    }

    /// Sockets on the queues, and the program that feeds them.
    fn attach(
        config: &Config,
        index: u32,
        mode: Mode,
        addresses: &[IpAddr],
    ) -> Result<(Descriptor, Vec<Socket>), OpenError> {
        let name = || config.interface.clone();
        let failed = |step: &'static str| {
            move |e: io::Error| match e.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => OpenError::Privilege(name()),
                Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => OpenError::Unsupported(name(), mode, e),
                _ => OpenError::Io(name(), step, e),
            }
        };
        // Generic mode always copies; in native mode the kernel takes zero-copy where the driver has it.
        let (flags, bind) = match mode {
            Mode::Native => (sys::ATTACH_NATIVE, libc::XDP_USE_NEED_WAKEUP),
            Mode::Generic | Mode::Auto => (sys::ATTACH_GENERIC, libc::XDP_USE_NEED_WAKEUP | libc::XDP_COPY),
        };
        let mut sockets: Vec<(u32, Socket)> = Vec::new();
        let queues: Box<dyn Iterator<Item = u32>> = match &config.queues {
            Some(queues) => Box::new(queues.iter().copied()),
            None => Box::new(0..),
        };
        for queue in queues {
            let socket = Socket::open(config.ring_entries).map_err(failed("opening the socket"))?;
            match bind_patiently(&socket, index, queue, bind) {
                Ok(()) => sockets.push((queue, socket)),
                Err(e) => match e.raw_os_error() {
                    // Past the last queue.
                    Some(libc::EINVAL) if config.queues.is_none() && queue > 0 => break,
                    Some(libc::EBUSY) => return Err(OpenError::QueueTaken(name(), queue)),
                    _ => return Err(failed("binding the socket to the queue")(e)),
                },
            }
        }
        let last = sockets.iter().map(|(queue, _)| *queue).max();
        let last = last.ok_or_else(|| OpenError::BadConfig("an empty list of queues".to_owned()))?;

        let map = sys::create_xskmap(last + 1).map_err(failed("making the socket map"))?;
        for (queue, socket) in &sockets {
            sys::set_xskmap(&map, *queue, socket.fd()).map_err(failed("filling the socket map"))?;
        }
        let code = program::assemble(map.as_raw_fd(), config.port, addresses);
        let program = sys::load_program(&code).map_err(failed("loading the program"))?;
        let attachment = sys::attach(&program, index, flags).map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => OpenError::HookTaken(name()),
            _ => failed("attaching the program")(e),
        })?;
        Ok((attachment, sockets.into_iter().map(|(_, socket)| socket).collect()))
    }

    /// The mode in use, never [`Mode::Auto`].
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Frames that the kernel dropped because no socket kept up: ring full, no frame to fill, invalid.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn dropped(&self) -> io::Result<u64> {
        self.sockets.iter().try_fold(0, |sum, socket| {
            let of = sys::statistics(socket.fd())?;
            Ok(sum + of.rx_dropped + of.rx_ring_full + of.rx_fill_ring_empty_descs)
        })
    }

    /// Puts a frame on the wire at the next push.
    fn transmit(socket: &mut Socket, stats: &mut LinkStats, held: Held) -> Result<(), Frame> {
        socket.submit(held.frame, held.start, held.len)?;
        stats.tx_datagrams += 1;
        stats.tx_bytes += (held.start + held.len - HEADER_ROOM) as u64;
        Ok(())
    }

    /// Follows the kernel's neighbour table.
    fn take_news(&mut self) -> io::Result<()> {
        self.news_in = NEWS_EVERY;
        let Self { neighbours, sockets, stats, events, caps, .. } = self;
        let socket = &mut sockets[0];
        neighbours.news(|held, macs, dst| match macs {
            Some((ours, theirs)) => {
                frame::set_macs(&mut socket.bytes(&held.frame)[held.start..], ours, theirs);
                if let Err(frame) = Self::transmit(socket, stats, held) {
                    stats.tx_failed += 1;
                    socket.free(frame);
                }
            }
            None => {
                stats.tx_failed += 1;
                socket.free(held.frame);
                report(events, dst, caps.port);
            }
        })
    }
}

impl Link for XdpLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        let frame = match self.lent.take().or_else(|| self.sockets[0].take()) {
            Some(frame) => frame,
            None => {
                // The frames wait in the transmit ring: send them.
                self.sockets[0].push()?;
                self.sockets[0].take().ok_or_else(|| {
                    self.blocked = true;
                    self.stats.tx_blocked += 1;
                    io::ErrorKind::WouldBlock
                })?
            }
        };
        let frame = self.lent.insert(frame);
        Ok(&mut self.sockets[0].bytes(frame)[HEADER_ROOM..][..self.caps.max_send_bytes])
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        if out.segments() != 1 || !self.caps.addresses.contains(&out.src) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let destination = self.neighbours.find(out.src, out.dst.ip())?.ok_or(io::ErrorKind::InvalidInput)?;
        if destination.template.ip_header() + 8 + out.len > self.caps.mtu {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let frame = self.lent.take().ok_or(io::ErrorKind::InvalidInput)?;
        let socket = &mut self.sockets[0];
        let room = socket.bytes(&frame).first_chunk_mut().expect("a frame is longer than its headers");
        let fields = Fields {
            src_port: out.src_port,
            dst_port: out.dst.port(),
            tos: out.tos,
            ttl: out.ttl,
            len: out.len,
        };
        destination.template.write(room, fields);
        let start = destination.template.start();
        let held = Held { frame, start, len: HEADER_ROOM - start + out.len };
        match &mut destination.way {
            Way::Ready => {
                if let Err(frame) = Self::transmit(socket, &mut self.stats, held) {
                    self.lent = Some(frame);
                    self.blocked = true;
                    self.stats.tx_blocked += 1;
                    return Err(io::ErrorKind::WouldBlock.into());
                }
            }
            Way::Resolving { held: waiting } => {
                if let Err(frame) = hold(waiting, held) {
                    self.stats.tx_failed += 1;
                    socket.free(frame);
                }
            }
            Way::Own => {
                let payload = socket.bytes(&held.frame)[HEADER_ROOM..][..out.len].to_vec();
                socket.free(held.frame);
                if out.dst.port() == self.caps.port && self.own.len() < BATCH {
                    let src = SocketAddr::new(out.src, out.src_port);
                    self.own.push_back((src, out.dst.ip(), out.tos & 3, out.ttl, payload));
                    self.stats.tx_datagrams += 1;
                    self.stats.tx_bytes += out.len as u64;
                } else {
                    self.stats.tx_failed += 1;
                }
            }
            Way::None { .. } => {
                self.stats.tx_failed += 1;
                socket.free(held.frame);
                report(&mut self.events, out.dst.ip(), out.dst.port());
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.news_in -= 1;
        if self.news_in == 0 {
            self.take_news()?;
        }
        let before = self.stats.tx_batches;
        self.stats.tx_batches = before + u64::from(self.sockets[0].has_unpushed());
        self.blocked = !self.sockets[0].push()?;
        if self.blocked { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let Self { sockets, stats, interface, own, .. } = self;
        let mut count = 0;
        if let Some((src, dst_ip, ecn, ttl, payload)) = own.pop_front() {
            let ip_id = dst_ip.is_ipv4().then_some(0);
            sink(Received { src, dst_ip, ip_id, train_index: 0, ecn, ttl, payload: &payload });
            stats.rx_bytes += payload.len() as u64;
            count += 1;
        }
        for socket in &mut *sockets {
            socket.receive(BATCH, |frame| {
                let Some(parsed) = frame::parse(frame, interface.mac) else {
                    stats.rx_malformed += 1;
                    return;
                };
                let frame::Parsed { src, dst_ip, ip_id, ecn, ttl, payload } = parsed;
                sink(Received { src, dst_ip, ip_id, train_index: 0, ecn, ttl, payload });
                stats.rx_bytes += payload.len() as u64;
                count += 1;
            });
        }
        if count > 0 {
            stats.rx_datagrams += count as u64;
            stats.rx_batches += 1;
            return Ok(count);
        }
        if self.mode == Mode::Native {
            sockets.iter().for_each(Socket::wake_receiver);
        }
        if self.neighbours.is_resolving() {
            self.take_news()?;
            self.sockets[0].push()?;
        }
        Ok(0)
    }

    fn wait_fds(&self, fds: &mut Vec<WaitFd>) {
        for (index, socket) in self.sockets.iter().enumerate() {
            let writable = if self.blocked && index == 0 { libc::POLLOUT } else { 0 };
            fds.push(WaitFd { fd: socket.fd().as_raw_fd(), events: libc::POLLIN | writable });
        }
        fds.push(WaitFd { fd: self.neighbours.watch.fd().as_raw_fd(), events: libc::POLLIN });
    }

    fn prepare_wait(&mut self) -> io::Result<bool> {
        self.take_news()?;
        self.blocked = !self.sockets[0].push()?;
        Ok(!self.own.is_empty() || !self.events.is_empty() || self.sockets.iter().any(Socket::is_ready))
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

/// Binds, and gives a predecessor whose process has just ended the time to let go: the kernel frees a queue some
/// milliseconds after the last descriptor is closed, or more where it is busy.
fn bind_patiently(socket: &Socket, index: u32, queue: u32, flags: u16) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match sys::bind(socket.fd(), index, queue, flags) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < LETTING_GO => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

/// Tells of a destination that does not answer, but not more often than somebody asks.
fn report(events: &mut VecDeque<Event>, dst: IpAddr, port: u16) {
    let event =
        Event::Unreachable { dst: SocketAddr::new(dst, port), port_closed: false, evidence: Evidence::Local };
    if events.len() < 16 && !events.contains(&event) {
        events.push_back(event);
    }
}

/// IPv4 first, then IPv6 of global scope, then link-local.
fn usable(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_by_key(|address| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(address) if address.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    });
    addresses
}
