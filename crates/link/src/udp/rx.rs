//! The receiving socket of one local address.
//!
//! A receive has two prices. `recvfrom` is the cheaper system call (300 ns against 410 ns, where a bare round trip
//! is about 5 us), but it cannot say where the datagrams of a train end, nor show the ECN bits: both travel as
//! control data. So the socket lives in one of two states:
//!
//! * *Lonely*: datagrams come one by one, each followed by silence (a ping-pong). Receive offload is off, trains
//!   come apart in the kernel, `recvfrom` takes one datagram. Congestion marks are not seen; a flow of single
//!   datagrams does not cause congestion.
//! * *Busy*: several were there without a pause. Offload is on, `recvmsg` takes a whole train (or, when they are
//!   small, `recvmmsg` several) with ECN bits and hop limit.
//!
//! Back in between lies *Calming*: offload is off again, but a train may still stand in the queue, so the receives
//! remain those of Busy until the socket has been seen empty several times.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::{Options, set_buffer};
use crate::link::{LinkStats, Received};
use crate::sys::control::{SOL_UDP, UDP_GRO};
use crate::sys::net::{self, RecvMeta};

/// Room for one datagram or train.
const CHUNK: usize = 1 << 16;

/// Distance of the chunks in the buffer. Not a power of two: headers at equal offsets in all chunks would compete
/// for the same sets of the first-level cache.
const STRIDE: usize = CHUNK + 576;

/// What [`Receiver::recv`] needs to receive into.
pub(super) const BUFFER_LEN: usize = net::BATCH * STRIDE;

/// Receives without a pause between them that make a socket busy.
const BURST: u32 = 4;

/// Lone datagrams in a row that make it lonely again.
const LONELY: u32 = 32;

/// Looks at an empty socket before the last train is held to be gone. The race is with a sender on another core
/// that saw offload on and has not yet queued its train: a microsecond, some looks. Losing it costs one train,
/// which the ICRC check discards.
const CALM: u32 = 16;

/// Under this size a receive was cheap enough to try for several at once.
const SMALL: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Lonely,
    Busy,
    Calming { empty: u32 },
}

/// The receiving socket of one local address.
#[derive(Debug)]
pub(super) struct Receiver {
    socket: OwnedFd,
    addr: SocketAddr,
    mode: Mode,
    /// The kernel has receive offload and we may use it.
    offload: bool,
    /// Receives since the socket was last seen empty.
    burst: u32,
    /// Times in a row that the socket was empty after exactly one datagram.
    lone: u32,
    /// The last receive found a small datagram right after another.
    wide: bool,
}

impl Receiver {
    pub(super) fn open(addr: SocketAddr, options: &Options) -> io::Result<Self> {
        let socket = net::udp_socket(addr.ip())?;
        let fd = socket.as_fd();
        if addr.is_ipv6() {
            net::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            // RoCEv2 senders leave the UDP checksum zero, which RFC 6936 allows where another check covers it.
            const UDP_NO_CHECK6_RX: libc::c_int = 102;
            net::set_option(fd, SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.recv_buffer)?;
        let offload = options.offload
            && net::set_option(fd, SOL_UDP, UDP_GRO, 1).is_ok()
            && net::set_option(fd, SOL_UDP, UDP_GRO, 0).is_ok();
        net::bind(fd, addr).map_err(|err| explain_bind(&err, addr))?;
        let addr = net::local_addr(fd)?;
        Ok(Self { socket, addr, mode: Mode::Lonely, offload, burst: 0, lone: 0, wide: false })
    }

    pub(super) fn port(&self) -> u16 {
        self.addr.port()
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn buffer_size(&self) -> io::Result<usize> {
        let size = net::get_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
        usize::try_from(size).map_err(io::Error::other)
    }

    /// One receive: hands over what it brought and returns the number of datagrams.
    pub(super) fn recv(
        &mut self,
        buffer: &mut [u8],
        stats: &mut LinkStats,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let before = stats.rx_datagrams;
        let fd = self.socket.as_fd();
        let mut split = Splitter { dst_ip: self.addr.ip(), stats, sink };
        let result = match self.mode {
            Mode::Lonely => net::recv_from(fd, &mut buffer[..CHUNK]).map(|(len, src)| {
                split.single(len, src, buffer);
                (1, len)
            }),
            Mode::Busy if self.wide => {
                let mut bytes = 0;
                net::recv_many(fd, buffer, STRIDE, |meta, data| {
                    bytes += data.len();
                    split.train(&meta, data);
                })
                .map(|n| (n, bytes))
            }
            Mode::Busy | Mode::Calming { .. } => net::recv_msg(fd, &mut buffer[..CHUNK], 0).map(|meta| {
                split.train(&meta, &buffer[..meta.len.min(CHUNK)]);
                (1, meta.len)
            }),
        };
        match result {
            Ok((receives, bytes)) => {
                stats.rx_batches += 1;
                let datagrams = stats.rx_datagrams - before;
                self.note_arrival(receives, datagrams, bytes);
                Ok(usize::try_from(datagrams).unwrap_or(usize::MAX))
            }
            Err(err) => match err.raw_os_error() {
                Some(libc::EAGAIN) => {
                    self.note_empty();
                    Ok(0)
                }
                // Soft errors: a signal, or ICMP news about a packet of somebody who sent from this port.
                Some(
                    libc::EINTR
                    | libc::ECONNREFUSED
                    | libc::EHOSTUNREACH
                    | libc::ENETUNREACH
                    | libc::ENETDOWN
                    | libc::ENOMEM
                    | libc::ENOBUFS,
                ) => Ok(0),
                _ => Err(err),
            },
        }
    }

    fn note_arrival(&mut self, receives: usize, datagrams: u64, bytes: usize) {
        self.burst = self.burst.saturating_add(u32::try_from(datagrams).unwrap_or(u32::MAX));
        if self.burst > 1 {
            self.lone = 0;
        }
        match self.mode {
            Mode::Lonely if self.burst >= BURST => self.become_busy(),
            Mode::Lonely => {}
            Mode::Busy => {
                // Several receives at once pay off when there are several and they are small.
                self.wide = self.burst >= BURST && bytes < SMALL && (!self.wide || receives > 1);
            }
            Mode::Calming { .. } if self.burst >= BURST => self.become_busy(),
            Mode::Calming { .. } => self.mode = Mode::Calming { empty: 0 },
        }
    }

    fn note_empty(&mut self) {
        if self.burst == 1 {
            self.lone += 1;
        }
        self.burst = 0;
        self.wide = false;
        match self.mode {
            Mode::Lonely => {}
            Mode::Busy if self.lone >= LONELY => {
                self.control_data(false);
                self.mode = Mode::Calming { empty: 0 };
            }
            Mode::Busy => {}
            Mode::Calming { empty } if empty >= CALM => self.mode = Mode::Lonely,
            Mode::Calming { empty } => self.mode = Mode::Calming { empty: empty + 1 },
        }
    }

    fn become_busy(&mut self) {
        self.control_data(true);
        self.lone = 0;
        self.mode = Mode::Busy;
    }

    /// Turns receive offload and the control data on or off. A kernel that refuses does so for good and only costs
    /// speed, or ECN.
    fn control_data(&self, on: bool) {
        let fd = self.socket.as_fd();
        let options = if self.addr.is_ipv4() {
            [(libc::IPPROTO_IP, libc::IP_RECVTOS), (libc::IPPROTO_IP, libc::IP_RECVTTL)]
        } else {
            [(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS), (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)]
        };
        if self.offload {
            let _ = net::set_option(fd, SOL_UDP, UDP_GRO, on.into());
        }
        for (level, name) in options {
            let _ = net::set_option(fd, level, name, on.into());
        }
    }
}

/// Cuts what a receive brought into datagrams and hands them on.
struct Splitter<'s> {
    dst_ip: IpAddr,
    stats: &'s mut LinkStats,
    sink: &'s mut dyn FnMut(Received<'_>),
}

impl Splitter<'_> {
    fn single(&mut self, len: usize, src: Option<SocketAddr>, buffer: &[u8]) {
        let Some(src) = src.filter(|_| len <= CHUNK) else {
            self.stats.rx_malformed += 1;
            return;
        };
        self.hand_over(src, 0, 0, 0, &buffer[..len]);
    }

    fn train(&mut self, meta: &RecvMeta, data: &[u8]) {
        let Some(src) = meta.src.filter(|_| !meta.truncated) else {
            self.stats.rx_malformed += 1;
            return;
        };
        let (ecn, ttl) = (meta.control.tos & 3, meta.control.ttl);
        let segment_size = meta.control.segment_size.unwrap_or(data.len()).max(1);
        if data.is_empty() {
            self.hand_over(src, 0, ecn, ttl, data);
        }
        for (i, payload) in (0u16..).zip(data.chunks(segment_size)) {
            self.hand_over(src, i, ecn, ttl, payload);
        }
    }

    fn hand_over(&mut self, src: SocketAddr, train_index: u16, ecn: u8, ttl: u8, payload: &[u8]) {
        self.stats.rx_datagrams += 1;
        self.stats.rx_bytes += payload.len() as u64;
        (self.sink)(Received { src, dst_ip: self.dst_ip, ip_id: None, train_index, ecn, ttl, payload });
    }
}

fn explain_bind(err: &io::Error, addr: SocketAddr) -> io::Error {
    let what = match err.kind() {
        io::ErrorKind::AddrInUse => format!(
            "UDP port {} on {} is taken by another program (ss -ulnp shows which); stop it, or choose another address",
            addr.port(),
            addr.ip()
        ),
        io::ErrorKind::PermissionDenied => {
            format!("no permission to open UDP port {} on {}", addr.port(), addr.ip())
        }
        _ => format!("cannot open UDP port {} on {}: {err}", addr.port(), addr.ip()),
    };
    io::Error::new(err.kind(), what)
}
