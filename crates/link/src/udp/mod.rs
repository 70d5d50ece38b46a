//! Datagrams over UDP sockets: works everywhere, without privileges.
//!
//! Two sockets per local address. The *receiving* one is bound to the RoCEv2 port. The *sending* one is bound to a
//! port of the range that RoCEv2 senders use (IBA Annex A17 wants entropy there, for ECMP and RSS). Being apart, ICMP
//! errors come back to the process that caused them, even where several share the receiving port.
//!
//! The ICRC covers the IPv4 identification, which a socket neither chooses nor sees. An unconnected one with path-MTU
//! discovery sends 0 (i for segment i of a train). A connected one spares the kernel a route for each send, and counts
//! its sends instead; `ident.rs` finds out from where.
//!
//! Read first: udp(7), ip(7); `rx.rs` for how a receive stays cheap when latency counts and when volume counts.

mod groups;
mod ident;
mod rx;
mod steer;
#[cfg(test)]
mod tests;
mod tx;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::host::{Seat, Sharing};
use crate::link::{Event, Link, LinkCaps, LinkStats, Outgoing, Received, SourcePort, WaitFd};
use crate::route::{self, Interface};
use crate::sys::net;
use crate::train::Train;
use crate::wait;

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// The largest UDP payload over IPv4, and hence of one send.
const MAX_SEND_BYTES: usize = 65_507;

/// The most segments that every kernel with `UDP_SEGMENT` takes in one send.
const MAX_SEGMENTS: usize = 64;

/// How to open a [`UdpLink`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The local addresses.
    pub addresses: Vec<IpAddr>,
    /// The port to receive on; 0 takes any free one.
    pub port: u16,
    /// The source port; `None` takes a free one of 0xC000 to 0xFFFF, as RoCEv2 senders do.
    pub src_port: Option<u16>,
    /// Bytes of receive buffer to ask for; the kernel may grant less (`net.core.rmem_max`) unless we are root.
    pub recv_buffer: usize,
    /// Bytes of send buffer to ask for.
    pub send_buffer: usize,
    /// Use segmentation and receive offload where there is one. Without, every datagram is one send.
    pub offload: bool,
    /// Share the port with other processes of this host.
    pub seat: Option<Seat>,
    /// Connect the sending socket to who most is sent to, which is cheaper: [`Link::ident`] then counts sends. For those who
    /// ask it before each send and have nothing in between that drops sends or changes their order. Only where there is one
    /// IPv4 address.
    pub connect: bool,
}

impl Options {
    /// The RoCEv2 port on `addresses`, with buffers for a few milliseconds of the fastest stream.
    #[must_use]
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        Self {
            addresses,
            port: ROCE_PORT,
            src_port: None,
            recv_buffer: 16 << 20,
            send_buffer: 4 << 20,
            offload: true,
            seat: None,
            connect: false,
        }
    }
}

/// One local address: where it receives, where it sends.
#[derive(Debug)]
struct Port {
    interface: Interface,
    rx: rx::Receiver,
    tx: tx::Sender,
}

/// A [`Link`] over UDP sockets.
#[derive(Debug)]
pub struct UdpLink {
    caps: LinkCaps,
    ports: Vec<Port>,
    groups: groups::Groups,
    options: Options,
    /// The port (or, counted behind the ports, the group) that received last, tried first.
    hot: usize,
    /// The port whose sender may be connected: that of the only IPv4 address.
    counting: Option<usize>,
    /// The port to try next when the hot one has nothing.
    other: usize,
    /// Calls of `recv`, so that a busy port cannot starve the others.
    calls: u32,
    tx_buffer: Box<[u8]>,
    rx_buffer: Box<[u8]>,
    events: VecDeque<Event>,
    /// Something was received since somebody last prepared to wait. If nothing was, what woke him may be on the slow
    /// channels, which are not worth four system calls for every datagram that wakes somebody.
    fruitful: bool,
    /// Look at what others sent on to us as soon as the sockets are empty.
    look_when_idle: bool,
    stats: LinkStats,
    shared: Option<Shared>,
    /// The addresses have changed since it was opened: what leaves from one that went is lost.
    has_moved: bool,
}

/// What a link needs to share its port.
#[derive(Debug)]
struct Shared {
    sharing: Sharing,
    steering: steer::Steering,
}

/// Receives of a link that closes, for others. Whoever keeps sending to it must not keep it.
const MAX_LAST_RECEIVES: usize = 1024;

/// Receives in a row that may bring nothing for us.
const MAX_STRAYS: usize = 16;

/// Calls of `recv` between two looks at a port that is not the hot one: each costs as much as the look at the hot one.
const OTHER_EVERY: u32 = 8;

/// Calls of `recv` between two looks at the slow channels, for who never waits; some 100 us of spinning.
const LOOK_EVERY: u32 = 1024;

/// The same where all that is ours comes that way, from a process that cannot ring our bell.
const LOOK_EVERY_AS_GUEST: u32 = 4;

impl UdpLink {
    /// Opens the sockets.
    ///
    /// # Errors
    /// A sentence that says what to do: no such address, port taken, no permission.
    pub fn open(options: &Options) -> io::Result<Self> {
        if options.addresses.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a UDP link needs at least one local address",
            ));
        }
        let interfaces: Vec<Interface> =
            options.addresses.iter().map(|addr| route::interface_of(*addr)).collect::<io::Result<_>>()?;
        // Port 0 stands for any free port, the same one on every address.
        let mut port = options.port;
        let mut receivers = Vec::new();
        for interface in &interfaces {
            let receiver = rx::Receiver::open(interface.socket_addr(port), options)?;
            port = receiver.addr().port();
            receivers.push(receiver);
        }
        let (src_port, mut senders) = tx::open_all(&interfaces, options)?;
        let mut v4 = (0..interfaces.len()).filter(|i| interfaces[*i].addr.is_ipv4());
        let counting = v4.next().filter(|_| options.connect && v4.next().is_none());
        if let Some(index) = counting {
            senders[index].may_connect();
        }
        let offload = options.offload && senders.iter().all(tx::Sender::offload);
        let caps = LinkCaps {
            kind: "udp",
            addresses: options.addresses.clone(),
            port,
            mtu: interfaces.iter().map(|i| i.mtu).min().expect("at least one address"),
            max_segments: if offload { MAX_SEGMENTS } else { 1 },
            max_send_bytes: MAX_SEND_BYTES,
            src_port: SourcePort::Fixed(src_port),
            reliable_bytes: false,
        };
        let ports: Vec<Port> = interfaces
            .into_iter()
            .zip(receivers)
            .zip(senders)
            .map(|((interface, rx), tx)| Port { interface, rx, tx })
            .collect();
        let shared = match &options.seat {
            Some(seat) => {
                let receives = |port: &Port| {
                    port.rx.bound() || (seat.counts_everywhere() && steer::is_sent_on(seat, port))
                };
                if let Some(guest) = ports.iter().find(|port| !receives(port)) {
                    return Err(guest.rx.taken());
                }
                let mut sharing = Sharing::new(seat.clone());
                let steering = steer::Steering::begin(&mut sharing, &ports)?;
                Some(Shared { sharing, steering })
            }
            None => None,
        };
        Ok(Self {
            caps,
            ports,
            groups: groups::Groups::default(),
            options: options.clone(),
            hot: 0,
            counting,
            other: 0,
            calls: 0,
            tx_buffer: vec![0; MAX_SEND_BYTES].into_boxed_slice(),
            rx_buffer: vec![0; rx::BUFFER_LEN].into_boxed_slice(),
            events: VecDeque::new(),
            fruitful: false,
            look_when_idle: false,
            stats: LinkStats::default(),
            shared,
            has_moved: false,
        })
    }

    /// The sockets' receive and send buffers as granted, in bytes of kernel memory, for reports.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn buffer_sizes(&self) -> io::Result<(usize, usize)> {
        let port = self.ports.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok((port.rx.buffer_size()?, port.tx.buffer_size()?))
    }

    /// Opens the sockets of one more address, with the ports of the others.
    fn add_port(&mut self, interface: &Interface) -> io::Result<()> {
        let SourcePort::Fixed(src_port) = self.caps.src_port else { unreachable!("`open` chose one") };
        let rx = rx::Receiver::open(interface.socket_addr(self.caps.port), &self.options)?;
        let tx = tx::Sender::open(interface.socket_addr(src_port), interface.index, &self.options)?;
        let port = Port { interface: interface.clone(), rx, tx };
        if let Some(Shared { sharing, steering }) = &mut self.shared {
            steering.add(sharing, &port)?;
        }
        self.ports.push(port);
        Ok(())
    }

    /// After a change of addresses: only where there is one IPv4 address, its sender may be connected.
    fn count_again(&mut self) {
        let mut v4 = (0..self.ports.len()).filter(|i| self.ports[*i].interface.addr.is_ipv4());
        let only = v4.next().filter(|_| self.options.connect && v4.next().is_none());
        for (index, port) in self.ports.iter_mut().enumerate() {
            if only == Some(index) {
                port.tx.may_connect();
            } else {
                port.tx.may_not_connect();
            }
        }
        self.counting = only;
    }

    /// One receive at one address.
    fn recv_at(&mut self, index: usize, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<rx::Arrived> {
        let (stats, buffer) = (&mut self.stats, &mut self.rx_buffer);
        if let Some(group) = index.checked_sub(self.ports.len()) {
            // Multicast is everybody's who joined: nothing to sort, nothing to send on.
            let Some(receiver) = self.groups.receiver(group) else { return Ok(rx::Arrived::default()) };
            return receiver.recv(buffer, |train| hand_over(&train, stats, sink));
        }
        let Some(Shared { sharing, steering }) = &mut self.shared else {
            return self.ports[index].rx.recv(buffer, |train| hand_over(&train, stats, sink));
        };
        let arrived = self.ports[index].rx.recv(buffer, |train| {
            if !steering.intercept(sharing.seat(), index, &train) {
                sharing.sort(&train, stats, |stats, part| hand_over(&part, stats, sink));
            }
        })?;
        steering.settle(sharing, &self.ports);
        Ok(arrived)
    }

    /// Takes in what other processes of this host sent on to us.
    fn take_in(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let Some(Shared { sharing, steering }) = &mut self.shared else { return Ok(0) };
        let every =
            if self.ports.iter().all(|port| port.rx.bound()) { LOOK_EVERY } else { LOOK_EVERY_AS_GUEST };
        if self.calls.is_multiple_of(every) {
            sharing.look_soon();
        }
        if !sharing.rung() {
            return Ok(0);
        }
        let before = self.stats.rx_datagrams;
        let seat = sharing.seat().clone();
        let taken = sharing.take_in(&mut self.stats, |stats, train| {
            let index = self.ports.iter().position(|p| p.interface.addr == train.dst_ip).unwrap_or(0);
            if !steering.intercept(&seat, index, &train) {
                hand_over(&train, stats, sink);
            }
        })?;
        if taken.tick {
            steering.tick(sharing, &mut self.ports)?;
        }
        if taken.detour {
            steering.suspect(sharing, &self.ports);
        }
        steering.settle(sharing, &self.ports);
        Ok(count_since(before, &self.stats))
    }

    /// Tries the port that was busy last, and one other, in turn; the other one less often, while somebody polls in a row.
    fn choose(&mut self) -> [Option<usize>; 2] {
        let count = self.ports.len() + self.groups.count();
        if count == 0 {
            return [None, None];
        }
        if count == 1 {
            return [Some(0), None];
        }
        // At first none is hot; and who slept may have been woken by any of them.
        let is_any_likely = self.stats.rx_datagrams == 0 || self.look_when_idle;
        if !is_any_likely && !self.calls.is_multiple_of(OTHER_EVERY) {
            return [Some(self.hot), None];
        }
        self.other = (self.other + 1) % count;
        if self.other == self.hot {
            self.other = (self.other + 1) % count;
        }
        // A stream never leaves its socket empty: every so often it must wait for the others.
        if self.calls.is_multiple_of(16) {
            [Some(self.other), Some(self.hot)]
        } else {
            [Some(self.hot), Some(self.other)]
        }
    }
}

/// A socket that closes takes along what stands in its queue, and among processes that share the port that may be
/// somebody else's.
impl Drop for UdpLink {
    fn drop(&mut self) {
        let Some(Shared { sharing, steering }) = &mut self.shared else { return };
        if !self.ports.iter().all(|port| port.rx.is_ours()) {
            return;
        }
        steering.end(sharing, &self.ports);
        let seat = sharing.seat().clone();
        let (stats, buffer) = (&mut self.stats, &mut self.rx_buffer);
        // For a sender on another core who had chosen before the kernel was told.
        std::thread::yield_now();
        for (index, mut port) in self.ports.drain(..).enumerate() {
            // The second time, as one may bring an error that says nothing of the queue.
            let mut nothing = 0;
            for _ in 0..MAX_LAST_RECEIVES {
                let arrived = port.rx.recv(buffer, |train| {
                    if !steering.intercept(&seat, index, &train) {
                        sharing.sort(&train, stats, |_, _| ());
                    }
                });
                nothing += u32::from(arrived.map_or(true, |arrived| arrived.receives == 0));
                if nothing == 2 {
                    break;
                }
            }
            // At once: others leave too, and until they know each other's places the kernel may choose this one.
            drop(port);
        }
        sharing.finish(stats);
    }
}

impl Link for UdpLink {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn ident(&self) -> u16 {
        self.counting.map_or(0, |index| self.ports[index].tx.ident())
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        Ok(&mut self.tx_buffer)
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        let segments = out.segments();
        if out.len > MAX_SEND_BYTES || segments > self.caps.max_segments {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} bytes in {segments} datagrams are more than the link takes at once", out.len),
            ));
        }
        let Some(port) = self.ports.iter_mut().find(|p| p.interface.addr == out.src) else {
            if self.has_moved {
                self.stats.tx_failed += 1;
                return Ok(());
            }
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is none of the link's addresses", out.src),
            ));
        };
        let dst = with_scope(out.dst, &port.interface);
        match port.tx.send(&self.tx_buffer[..out.len], dst, out, &mut self.events) {
            Ok(tx::Verdict::Sent) => {
                self.stats.tx_datagrams += segments as u64;
                self.stats.tx_bytes += out.len as u64;
                self.stats.tx_batches += 1;
                Ok(())
            }
            Ok(tx::Verdict::Lost) => {
                self.stats.tx_failed += 1;
                Ok(())
            }
            Ok(tx::Verdict::NoOffload) => {
                self.caps.max_segments = 1;
                self.stats.tx_failed += 1;
                Ok(())
            }
            Err(err) => {
                if err.kind() == io::ErrorKind::WouldBlock {
                    self.stats.tx_blocked += 1;
                }
                Err(err)
            }
        }
    }

    fn send_surely(&mut self, out: &Outgoing) {
        let ours = |addr| self.ports.iter().any(|port| port.interface.addr == addr);
        if let Some(Shared { sharing, .. }) = &mut self.shared
            && out.dst.port() == self.caps.port
            && ours(out.src)
            && ours(out.dst.ip())
            && out.len <= MAX_SEND_BYTES
        {
            let train = Train {
                src: SocketAddr::new(out.src, self.caps.effective_src_port(out.src_port)),
                dst_ip: out.dst.ip(),
                ecn: out.tos & 3,
                ttl: out.ttl,
                segment_size: out.segment_size.max(1),
                first_index: self.counting.map_or(0, |index| self.ports[index].tx.ident()),
                data: &self.tx_buffer[..out.len],
            };
            sharing.hand_over(&train);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.calls = self.calls.wrapping_add(1);
        let taken_in = self.take_in(sink)?;
        if taken_in > 0 {
            self.fruitful = true;
            return Ok(taken_in);
        }
        let before = self.stats.rx_datagrams;
        for index in self.choose().into_iter().flatten() {
            // What others sent to each other, or to nobody, is not worth returning for; nor may it keep us forever.
            for _ in 0..MAX_STRAYS {
                let arrived = self.recv_at(index, sink)?;
                self.stats.rx_malformed += arrived.malformed;
                let count = count_since(before, &self.stats);
                if count > 0 {
                    self.hot = index;
                    self.fruitful = true;
                    self.stats.rx_batches += 1;
                    return Ok(count);
                }
                if arrived.receives == 0 {
                    break;
                }
            }
        }
        if std::mem::take(&mut self.look_when_idle)
            && let Some(Shared { sharing, .. }) = &mut self.shared
        {
            sharing.look_soon();
            let taken_in = self.take_in(sink)?;
            self.fruitful |= taken_in > 0;
            return Ok(taken_in);
        }
        Ok(0)
    }

    fn wait_fds(&self, fds: &mut Vec<WaitFd>) {
        for port in &self.ports {
            fds.push(WaitFd { fd: port.rx.as_raw_fd(), events: libc::POLLIN });
            let events = if port.tx.blocked() { libc::POLLOUT } else { 0 };
            fds.push(WaitFd { fd: port.tx.as_raw_fd(), events });
        }
        fds.extend(self.groups.receivers().map(|rx| WaitFd { fd: rx.as_raw_fd(), events: libc::POLLIN }));
        if let Some(shared) = &self.shared {
            fds.push(WaitFd { fd: shared.sharing.news_fd(), events: libc::POLLIN });
        }
    }

    fn prepare_wait(&mut self) -> io::Result<bool> {
        // What waits on a slow channel ends the wait at once, as all of them are among its descriptors; and is looked
        // at then, as nothing was received. Whoever receives something each time he wakes up need not ask before.
        self.look_when_idle = true;
        if std::mem::take(&mut self.fruitful) {
            return Ok(!self.events.is_empty());
        }
        for port in &mut self.ports {
            port.tx.drain_errors(&mut self.events);
        }
        let mut hurry = !self.events.is_empty();
        if let Some(shared) = &mut self.shared {
            // Whoever waits next must not miss what came over the slow channels; `recv` will look there first.
            hurry |= wait::poll(
                &[WaitFd { fd: shared.sharing.news_fd(), events: libc::POLLIN }],
                Some(Duration::ZERO),
            )?;
            if hurry {
                shared.sharing.look_soon();
            }
        }
        Ok(hurry)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn path_mtu(&self, src: IpAddr, dst: IpAddr) -> usize {
        let Some(port) = self.ports.iter().find(|p| p.interface.addr == src) else {
            return self.caps.mtu;
        };
        let dst = with_scope(SocketAddr::new(dst, self.caps.port), &port.interface);
        route::mtu(port.interface.socket_addr(0), dst).unwrap_or(port.interface.mtu)
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let interfaces = self.ports.iter().map(|port| &port.interface);
        self.groups.join(group, self.caps.port, interfaces, &self.options)
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.leave(group);
        (self.hot, self.other) = (0, 0);
    }

    fn readdress(&mut self, interfaces: &[Interface]) {
        let is_among =
            |port: &Port| interfaces.iter().any(|i| i.socket_addr(0) == port.interface.socket_addr(0));
        while let Some(index) = self.ports.iter().position(|port| !is_among(port)) {
            if let Some(Shared { sharing, steering }) = &mut self.shared {
                steering.remove(sharing, index);
            }
            drop(self.ports.remove(index));
        }
        for interface in interfaces {
            match self.ports.iter_mut().find(|port| port.interface.addr == interface.addr) {
                Some(known) => known.interface = interface.clone(),
                // What cannot be had now, as another process has the port for itself, is tried again at the next change.
                None => drop(self.add_port(interface)),
            }
        }
        self.caps.addresses = self.ports.iter().map(|port| port.interface.addr).collect();
        if let Some(mtu) = self.ports.iter().map(|port| port.interface.mtu).min() {
            self.caps.mtu = mtu;
        }
        (self.hot, self.other, self.look_when_idle) = (0, 0, true);
        self.count_again();
        self.has_moved = true;
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

fn hand_over(train: &Train<'_>, stats: &mut LinkStats, sink: &mut dyn FnMut(Received<'_>)) {
    for datagram in train.datagrams() {
        stats.rx_datagrams += 1;
        stats.rx_bytes += datagram.payload.len() as u64;
        sink(datagram);
    }
}

fn count_since(before: u64, stats: &LinkStats) -> usize {
    usize::try_from(stats.rx_datagrams - before).unwrap_or(usize::MAX)
}

/// A link-local destination needs the interface; the engine only knows the address.
fn with_scope(dst: SocketAddr, interface: &Interface) -> SocketAddr {
    match dst {
        SocketAddr::V6(mut v6)
            if (v6.ip().is_unicast_link_local() || v6.ip().is_multicast()) && v6.scope_id() == 0 =>
        {
            v6.set_scope_id(interface.index);
            v6.into()
        }
        _ => dst,
    }
}

/// Asks for a buffer size, beyond the limit for ordinary users where we may.
fn set_buffer(
    fd: std::os::fd::BorrowedFd<'_>,
    force: libc::c_int,
    plain: libc::c_int,
    bytes: usize,
) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    if net::set_option(fd, libc::SOL_SOCKET, force, bytes).is_ok() {
        return Ok(());
    }
    net::set_option(fd, libc::SOL_SOCKET, plain, bytes)
}
