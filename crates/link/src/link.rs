//! The trait between a live device and what carries its datagrams.
//!
//! The shape follows from four demands:
//!
//! * *Latency*: [`Link::recv`] ends after one system call that brought something, so that the answer leaves before
//!   anybody asks for more; [`Link::send`] of a single datagram is one system call at most.
//! * *Throughput*: the engine writes headers and payload once, into the buffer that the link lends with
//!   [`Link::tx_buffer`] (a block that the kernel reads, an AF_XDP frame, a slot of shared memory), up to
//!   [`LinkCaps::max_segments`] equal datagrams at a time; nothing copies it again on this side of the system call.
//! * *Back-pressure*: a refused send leaves the lent buffer as it is. Nothing is lost, nothing must be built again:
//!   send it again when a descriptor of [`Link::wait_fds`] becomes ready.
//! * *Nothing is fatal*: a network loses, truncates and refuses. What a peer or a router can cause is a statistic
//!   or an [`Event`]; an `Err` other than `WouldBlock` means that the link itself no longer works.
//!
//! The trait is object safe and is used as `Box<dyn Link>`: back ends and wrappers (capture, faults) are chosen on
//! the command line and compose at run time. A virtual call costs about 2 ns beside the 500 ns and more of the
//! cheapest system call behind it; the one path where it would show, writing a peer's region in place, does not go
//! through a link at all.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use crate::route::Interface;

/// One datagram that arrived: a UDP payload and what its headers said.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub src: SocketAddr,
    /// The local address it was sent to.
    pub dst_ip: IpAddr,
    /// The IPv4 identification where the link can see it (AF_XDP); a UDP socket cannot. The ICRC covers it.
    pub ip_id: Option<u16>,
    /// Position in the train of equal datagrams that arrived together, 0 for one that came alone. With
    /// segmentation offload the kernel numbers the datagrams of one send one by one, so where [`Received::ip_id`] is unknown
    /// this is how far it probably is from the first one's.
    pub train_index: u16,
    /// The two ECN bits of the IP header; 3 is "congestion experienced".
    pub ecn: u8,
    /// The hop limit it arrived with, 0 where the link did not ask for it.
    pub ttl: u8,
    /// The UDP payload, never more and never less than one datagram.
    pub payload: &'a [u8],
}

/// One send: where the first `len` bytes of the lent buffer go, and cut into datagrams of which size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The local address to send from, one of [`LinkCaps::addresses`].
    pub src: IpAddr,
    /// The source port, honoured where [`LinkCaps::src_port`] is [`SourcePort::Any`].
    pub src_port: u16,
    /// The address and port that the datagrams go to.
    pub dst: SocketAddr,
    /// IPv4 TOS or IPv6 traffic class: DSCP and, in the low two bits, ECN.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// How many bytes of the lent buffer to send.
    pub len: usize,
    /// Payload of every datagram but the last, which may be shorter. `len` or more means one datagram. The IPv4
    /// identification of datagram i is [`Link::ident`] + i, and "don't fragment" is set.
    pub segment_size: usize,
}

impl Outgoing {
    /// The number of datagrams this send makes.
    #[must_use]
    pub fn segments(&self) -> usize {
        if self.len == 0 { 1 } else { self.len.div_ceil(self.segment_size.max(1)) }
    }
}

/// Which UDP source port leaves with a datagram. The ICRC covers it, so whoever computes one must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourcePort {
    /// This port, whatever [`Outgoing::src_port`] says.
    Fixed(u16),
    /// The one that [`Outgoing::src_port`] names.
    Any,
}

/// What a link can do. Does not change while the link lives, except for [`LinkCaps::max_segments`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkCaps {
    /// The back end, for reports: `udp`, `xdp`, `shm`.
    pub kind: &'static str,
    /// The local addresses, at least one. Sends name one of them.
    pub addresses: Vec<IpAddr>,
    /// The UDP port at which datagrams are received, 4791 for RoCEv2 peers.
    pub port: u16,
    /// The largest IP packet that every address can send without fragmentation. A route to one peer may allow
    /// less: see [`Link::path_mtu`].
    pub mtu: usize,
    /// The most datagrams in one send. Ask before each: it falls to 1 when a device on the way turns out not to
    /// segment, and while faults are set for sending.
    pub max_segments: usize,
    /// The most bytes in one send: the length of the lent buffer.
    pub max_send_bytes: usize,
    /// What the source port of a datagram will be.
    pub src_port: SourcePort,
    /// Bytes arrive as they were sent or not at all, so that a checksum over them (the ICRC) tells nothing: both
    /// ends may leave it out. True of shared memory.
    pub reliable_bytes: bool,
}

impl LinkCaps {
    /// The source port that a datagram will carry if its sender asks for `wanted`.
    #[must_use]
    pub fn effective_src_port(&self, wanted: u16) -> u16 {
        match self.src_port {
            SourcePort::Fixed(port) => port,
            SourcePort::Any => wanted,
        }
    }
}

/// Counters since the link was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkStats {
    /// Datagrams that the link received and handed on.
    pub rx_datagrams: u64,
    /// Their payload bytes.
    pub rx_bytes: u64,
    /// System calls (or ring passes) that brought at least one datagram.
    pub rx_batches: u64,
    /// Datagrams cut by a buffer that was too small, or otherwise unusable; dropped.
    pub rx_malformed: u64,
    /// Datagrams that the carrier accepted.
    pub tx_datagrams: u64,
    /// Their payload bytes.
    pub tx_bytes: u64,
    /// System calls (or ring passes) that sent something.
    pub tx_batches: u64,
    /// Sends refused for now because a queue was full.
    pub tx_blocked: u64,
    /// Sends that the host's network stack refused for good (no route, too long, filtered); lost, as on a network.
    pub tx_failed: u64,
    /// Datagrams for another process of this host, handed on to it.
    pub forwarded: u64,
    /// Datagrams handed on to us by another process of this host.
    pub forwarded_here: u64,
    /// Datagrams for a process of this host that no longer exists or does not keep up, or of which more came for whoever is
    /// meant than are handed on; dropped.
    pub undeliverable: u64,
}

/// The beginning of a lost datagram's payload, as somebody quotes it who says that it was lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Quote {
    bytes: [u8; Self::MAX],
    len: u8,
}

impl Quote {
    /// Kept of a payload: base and datagram transport header, and of a MAD all up to its transaction ID.
    pub const MAX: usize = 36;

    /// The beginning of `payload`.
    #[must_use]
    pub fn of(payload: &[u8]) -> Self {
        let len = payload.len().min(Self::MAX);
        let mut bytes = [0; Self::MAX];
        bytes[..len].copy_from_slice(&payload[..len]);
        Self { bytes, len: len as u8 }
    }

    /// The bytes that are quoted, at most [`Self::MAX`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Quote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Why something is believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// This host says so.
    Local,
    /// ICMP says so, which any host can send that guesses the ports of a datagram. What proves that its sender saw the
    /// datagram is that it quotes what cannot be guessed.
    Quoted(Quote),
}

/// Something that was learnt outside of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Datagrams to `dst` do not arrive.
    Unreachable {
        /// Where the lost datagram was sent.
        dst: SocketAddr,
        /// The host answered, but no program has the port open. `false`: no such host or no way to it.
        port_closed: bool,
        /// Who says so.
        evidence: Evidence,
    },
    /// A packet to `dst` was not sent, as it was larger than the `mtu` of the interface. What ICMP says of sizes on the way
    /// is no event, as anybody could forge it.
    PathMtu {
        /// Where the packet that was too large was sent.
        dst: SocketAddr,
        /// The largest IP packet that passes.
        mtu: usize,
    },
}

/// A descriptor to wait on, with the events of poll(2) to wait for. Errors (`POLLERR`) wake as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitFd {
    /// The descriptor, owned by the link.
    pub fd: RawFd,
    /// `POLLIN`, and `POLLOUT` while a refused send waits for room.
    pub events: i16,
}

/// A carrier of UDP payloads. See the module's head for the reasons behind its shape.
///
/// All methods return at once; waiting is the caller's, on [`Link::wait_fds`].
pub trait Link: Send {
    /// What this link can do.
    fn caps(&self) -> &LinkCaps;

    /// The IPv4 identification that the first datagram of the next send will have, if it goes to an IPv4 address and nothing
    /// is in the way; the others follow it one by one. Whoever computes an ICRC must know. Ask before each send: it is 0
    /// until a link finds a cheaper way to send than by numbering each train from 0.
    fn ident(&self) -> u16 {
        0
    }

    /// Lends the buffer of the next send, [`LinkCaps::max_send_bytes`] long. It is the same buffer, with the same
    /// contents, until a send succeeds.
    ///
    /// # Errors
    /// `WouldBlock` while the link has no room for another send.
    fn tx_buffer(&mut self) -> io::Result<&mut [u8]>;

    /// Sends the first `out.len` bytes of the lent buffer. They may wait in the link for [`Link::flush`].
    ///
    /// # Errors
    /// `WouldBlock`: nothing was sent; the lent buffer keeps its contents, send again later. `InvalidInput`: `out`
    /// breaks a limit of [`LinkCaps`]. Others: the link no longer works. What the network refuses is no error but
    /// a loss, counted in [`LinkStats::tx_failed`].
    fn send(&mut self, out: &Outgoing) -> io::Result<()>;

    /// Takes the first `out.len` bytes of the lent buffer to another process of this host in a way that loses nothing, if
    /// the link has one and they are for such a process; if not, nothing happens. Beside [`Link::send`], not instead of
    /// it: the receiver may get them twice, and out of order. Slow: for the last thing that there is to say.
    fn send_surely(&mut self, out: &Outgoing) {
        let _ = out;
    }

    /// Pushes out what waits in the link. To be called before anybody waits for an answer.
    ///
    /// # Errors
    /// `WouldBlock`: something still waits; call again when a descriptor is ready.
    fn flush(&mut self) -> io::Result<()>;

    /// Hands over what has arrived, at most one batch, and returns the number of datagrams; 0 means that nothing
    /// was there. A single datagram costs one system call, and no second one is made behind it.
    ///
    /// # Errors
    /// Only when the link no longer works.
    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize>;

    /// Appends the descriptors to wait on. The set changes only when a send is refused (`POLLOUT` appears) and
    /// when that is over.
    fn wait_fds(&self, fds: &mut Vec<WaitFd>);

    /// To be called right before waiting: arms wake-ups where they must be armed and looks at the slow channels
    /// (error queues, forwarded datagrams). `true`: do not wait, call [`Link::recv`] or [`Link::poll_event`].
    ///
    /// # Errors
    /// Only when the link no longer works.
    fn prepare_wait(&mut self) -> io::Result<bool>;

    /// Nobody waits on the descriptors any more: what [`Link::prepare_wait`] armed may be disarmed, which spares the
    /// peers the waking. Until then it stays armed, whoever calls [`Link::recv`] meanwhile: that may be a thread
    /// that looks once while another one sleeps.
    fn wait_is_over(&mut self) {}

    /// The next thing the network told us outside of a datagram.
    fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// The largest IP packet that can go from `src` to `dst` without fragmentation, as far as this host knows.
    fn path_mtu(&self, src: IpAddr, dst: IpAddr) -> usize {
        let _ = (src, dst);
        self.caps().mtu
    }

    /// Receives what is sent to an IP multicast group, too: [`Received::dst_ip`] is then the group. On every interface
    /// that carries one of [`LinkCaps::addresses`] of the group's IP version, and from this host as from others: every
    /// link that joined, of any process, gets a copy of its own. Joining twice is joining once.
    ///
    /// # Errors
    /// `Unsupported`: this kind of link has no multicast. Others: the kernel refuses.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("a link of the kind {} cannot join {group}: use UDP for multicast", self.caps().kind),
        ))
    }

    /// Undoes [`Link::join`].
    fn leave(&mut self, group: IpAddr) {
        let _ = group;
    }

    /// From now on these are the interface's addresses: sockets of those that are new are opened, those of others closed, and
    /// the rest go on. What came of it [`caps`](Self::caps) says: an address that cannot be had is not among its addresses. A
    /// link that cannot follow leaves everything as it is.
    fn readdress(&mut self, interfaces: &[Interface]) {
        let _ = interfaces;
    }

    /// The way for messages and descriptors beside the datagrams, where there is one.
    fn side_channel(&mut self) -> Option<&mut dyn SideChannel> {
        None
    }

    /// Counters since the link was opened.
    fn stats(&self) -> LinkStats;
}

/// Something that came beside the datagrams.
#[derive(Debug)]
pub enum SideEvent {
    /// A message from the process at `from`.
    Message {
        /// The sender's address.
        from: IpAddr,
        /// What it says.
        message: Vec<u8>,
        /// A descriptor that came with it.
        file: Option<OwnedFd>,
    },
    /// The process at `peer` has ended; nothing more comes from it.
    Gone {
        /// The address of the process that has ended.
        peer: IpAddr,
    },
}

/// Messages between the processes of one host, beside the datagrams of a [`Link`]; they can carry a descriptor, and
/// so memory. In order and reliable while both processes live. `recv` and `prepare_wait` of the link move them.
pub trait SideChannel {
    /// Sends a message of at most 1000 bytes.
    ///
    /// # Errors
    /// `NotFound`, `ConnectionRefused`: nobody is there. `WouldBlock`: the receiver does not keep up.
    fn send_side(&mut self, to: IpAddr, message: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()>;

    /// The next thing that came.
    fn poll_side(&mut self) -> Option<SideEvent>;
}
