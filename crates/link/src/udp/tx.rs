//! The sending socket of one local address.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use super::ident::Count;
use super::{Options, set_buffer};
use crate::link::{Event, Evidence, Outgoing, Quote};
use crate::route::Interface;
use crate::sys::bpf;
use crate::sys::control::{SOL_UDP, SendControl, UDP_SEGMENT};
use crate::sys::descriptor::Descriptor;
use crate::sys::net::{self, RawAddr};

/// First of the ports from which RoCEv2 senders choose (IBA Annex A17: the 14 low bits carry entropy).
const FIRST_SRC_PORT: u16 = 0xC000;

/// Events kept for a caller who does not ask for them.
const MAX_EVENTS: usize = 64;

/// How often a datagram is offered to the kernel while errors of others are reported in its place.
const ATTEMPTS: u32 = 16;

/// Sends in a row with the same unusual TOS or TTL before it becomes the socket's default. The control data costs
/// about 100 ns a send, changing the default as much once.
const HABIT: u32 = 8;

/// What became of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It is on its way.
    Sent,
    /// The host's stack refused it for good; to the engine, the network lost it.
    Lost,
    /// As `Lost`, because a device on the route cannot checksum and hence not segment. It never will.
    NoOffload,
}

/// The sending socket of one local address.
#[derive(Debug)]
pub(super) struct Sender {
    socket: Descriptor,
    offload: bool,
    blocked: bool,
    /// TOS and TTL that packets carry when nothing is said.
    default: (u8, u8),
    /// Sends in a row that wanted another pair, and which.
    habit: (u8, u8, u32),
    count: Count,
}

/// Opens one sender per interface address, all with the same source port.
pub(super) fn open_all(interfaces: &[Interface], options: &Options) -> io::Result<(u16, Vec<Sender>)> {
    if let Some(port) = options.src_port {
        return open_with_port(interfaces, port, options).map(|senders| (port, senders));
    }
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..128 {
        let port = FIRST_SRC_PORT | (net::random_u64() as u16 & 0x3fff);
        match open_with_port(interfaces, port, options) {
            Ok(senders) => return Ok((port, senders)),
            Err(err) if err.kind() == io::ErrorKind::AddrInUse => last = err,
            Err(err) => return Err(err),
        }
    }
    Err(io::Error::new(last.kind(), format!("no free UDP source port of 49152 to 65535: {last}")))
}

fn open_with_port(interfaces: &[Interface], port: u16, options: &Options) -> io::Result<Vec<Sender>> {
    interfaces.iter().map(|i| Sender::open(i.socket_addr(port), i.index, options)).collect()
}

impl Sender {
    pub(super) fn open(addr: SocketAddr, interface: u32, options: &Options) -> io::Result<Self> {
        let socket = net::udp_socket(addr.ip())?;
        let fd = socket.as_fd();
        if addr.is_ipv4() {
            // "Don't fragment" and identification 0, as with DO. But DO believes ICMP about the path MTU, for ten minutes
            // and every socket of the host, and ICMP is forged by anybody who guesses a port, or quotes a ping: then
            // packets of ordinary size are refused. PROBE asks the interface and nobody else.
            net::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            net::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        } else {
            net::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            net::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
            net::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_buffer)?;
        // Nobody answers to the source port. What arrives there anyway must not fill memory.
        bpf::attach_drop_all(fd)?;
        // A segment size of 0 changes nothing, but tells whether the kernel knows the option (4.18 and later).
        let offload = options.offload && net::set_option(fd, SOL_UDP, UDP_SEGMENT, 0).is_ok();
        net::bind(fd, addr)?;
        let default = (0, default_ttl(fd, addr.is_ipv4())?);
        net::send_groups_by(fd, addr.ip(), interface)?;
        // What a work request says holds for multicast too, which has a default of its own, 1.
        set_multicast_ttl(fd, addr.is_ipv4(), default.1)?;
        Ok(Self { socket, offload, blocked: false, default, habit: (0, 0, 0), count: Count::default() })
    }

    /// It may be connected to who most is sent to: whoever sends asks for [`ident`](Self::ident) each time.
    pub(super) fn may_connect(&mut self) {
        self.count.allow();
    }

    /// It may not be any more: nobody asks what it counts.
    pub(super) fn may_not_connect(&mut self) {
        self.count.forbid(self.socket.as_fd());
    }

    /// The identification of the next datagram.
    pub(super) fn ident(&self) -> u16 {
        self.count.next()
    }

    /// The kernel can cut one send into many datagrams.
    pub(super) fn offload(&self) -> bool {
        self.offload
    }

    /// A send was refused for now, and none succeeded since.
    pub(super) fn blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Sends a few bytes of our own, and does not care what becomes of them.
    pub(super) fn send_aside(&self, payload: &[u8], dst: SocketAddr) {
        if net::send_to(self.socket.as_fd(), payload, Some(&RawAddr::from(dst))).is_ok() {
            self.count.sent_aside();
        } else {
            self.count.doubt();
        }
    }

    pub(super) fn buffer_size(&self) -> io::Result<usize> {
        let size = net::get_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF)?;
        usize::try_from(size).map_err(io::Error::other)
    }

    /// Sends `payload` as `out` says. `WouldBlock`: nothing was sent.
    pub(super) fn send(
        &mut self,
        payload: &[u8],
        dst: SocketAddr,
        out: &Outgoing,
        events: &mut VecDeque<Event>,
    ) -> io::Result<Verdict> {
        self.adopt_habit(out, dst.is_ipv4())?;
        let control = SendControl {
            segment_size: (payload.len() > out.segment_size)
                .then(|| u16::try_from(out.segment_size).unwrap_or(u16::MAX)),
            tos: (out.tos != self.default.0).then_some(out.tos),
            ttl: (out.ttl != self.default.1).then_some(out.ttl),
            v6: dst.is_ipv6(),
        };
        let raw = RawAddr::from(dst);
        let raw = (!self.count.is_peer(&dst)).then_some(&raw);
        // An ICMP error about an earlier packet makes the next send fail, once: read it and try again. Other
        // destinations' errors may stand in the queue too, and strangers' forged ones. The kernel sets the error after it
        // has queued what explains it, which may have been read in between: only the second time that nothing explains
        // it, it was our own stack that refused.
        let mut unexplained = false;
        for _ in 0..ATTEMPTS {
            let Err(err) = self.attempt(payload, raw, &control) else {
                self.blocked = false;
                self.count.sent(self.socket.as_fd(), &dst);
                return Ok(Verdict::Sent);
            };
            // Whether a send that failed was counted depends on how far it came.
            if !matches!(err.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                self.count.doubt();
            }
            match err.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    self.blocked = true;
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Some(libc::EINTR) => {}
                Some(libc::EIO) if control.segment_size.is_some() => return Ok(Verdict::NoOffload),
                Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => return Err(err),
                _ => {
                    if !self.drain_errors(events) && std::mem::replace(&mut unexplained, true) {
                        let headers = if dst.is_ipv4() { 28 } else { 48 };
                        note(events, local_refusal(headers + payload.len().min(out.segment_size), dst));
                        return Ok(Verdict::Lost);
                    }
                }
            }
        }
        Ok(Verdict::Lost)
    }

    /// Without an address, to the peer that the socket is connected to.
    fn attempt(&self, payload: &[u8], dst: Option<&RawAddr>, control: &SendControl) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        if control.segment_size.is_none() && control.tos.is_none() && control.ttl.is_none() {
            net::send_to(fd, payload, dst)
        } else {
            net::send_msg(fd, payload, dst, control)
        }
    }

    /// After a few sends with the same TOS and TTL, makes them the socket's own.
    fn adopt_habit(&mut self, out: &Outgoing, v4: bool) -> io::Result<()> {
        let wanted = (out.tos, out.ttl);
        if wanted == self.default {
            return Ok(());
        }
        let count = if (self.habit.0, self.habit.1) == wanted { self.habit.2 + 1 } else { 1 };
        self.habit = (wanted.0, wanted.1, count);
        if count >= HABIT {
            let fd = self.socket.as_fd();
            let (level, tos, ttl) = if v4 {
                (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
            } else {
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS)
            };
            net::set_option(fd, level, tos, wanted.0.into())?;
            net::set_option(fd, level, ttl, wanted.1.into())?;
            set_multicast_ttl(fd, v4, wanted.1)?;
            self.default = wanted;
        }
        Ok(())
    }

    /// Reads the error queue; whether ICMP had anything to say.
    pub(super) fn drain_errors(&mut self, events: &mut VecDeque<Event>) -> bool {
        let mut any = false;
        // The queue has the payload of the lost packet, as far as ICMP quotes it.
        let mut quote = [0; 64];
        while let Ok(meta) = net::recv_msg(self.socket.as_fd(), &mut quote, libc::MSG_ERRQUEUE) {
            let (Some(dst), Some(error)) = (meta.src, meta.control.error) else { continue };
            if error.local {
                // Whoever sent it knows already, and knows the port too.
                continue;
            }
            any = true;
            // What ICMP says about sizes is not believed: see `open`.
            if error.errno != libc::EMSGSIZE {
                let evidence = Evidence::Quoted(Quote::of(&quote[..meta.len.min(quote.len())]));
                note(
                    events,
                    Event::Unreachable { dst, port_closed: error.errno == libc::ECONNREFUSED, evidence },
                );
            }
        }
        any
    }
}

/// What a refusal by our own stack says about the destination: either the packet is longer than the path allows
/// (which older kernels report as `EINVAL` for trains), or there is no way.
fn local_refusal(packet: usize, dst: SocketAddr) -> Event {
    match crate::route::to_mtu(dst) {
        Ok(mtu) if packet > mtu => Event::PathMtu { dst, mtu },
        _ => Event::Unreachable { dst, port_closed: false, evidence: Evidence::Local },
    }
}

/// Keeps an event, unless it is the same as the last one or nobody reads them.
fn note(events: &mut VecDeque<Event>, event: Event) {
    if events.back() != Some(&event) && events.len() < MAX_EVENTS {
        events.push_back(event);
    }
}

fn set_multicast_ttl(fd: std::os::fd::BorrowedFd<'_>, v4: bool, ttl: u8) -> io::Result<()> {
    let (level, name) = if v4 {
        (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS)
    };
    net::set_option(fd, level, name, ttl.into())
}

fn default_ttl(fd: std::os::fd::BorrowedFd<'_>, v4: bool) -> io::Result<u8> {
    let ttl = if v4 {
        net::get_option(fd, libc::IPPROTO_IP, libc::IP_TTL)?
    } else {
        net::get_option(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)?
    };
    Ok(u8::try_from(ttl).unwrap_or(64))
}
