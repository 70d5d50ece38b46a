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
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::{Options, set_buffer};
use crate::sys::control::{SOL_UDP, UDP_GRO};
use crate::sys::descriptor::Descriptor;
use crate::sys::net::{self, RecvMeta};
use crate::train::Train;

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
    socket: Descriptor,
    addr: SocketAddr,
    /// The address is ours, perhaps beside others; if not, nothing ever arrives here.
    bound: bool,
    mode: Mode,
    /// The kernel has receive offload and we may use it.
    offload: bool,
    /// Receives since the socket was last seen empty.
    burst: u32,
    /// Times in a row that the socket was empty after exactly one datagram.
    lone: u32,
    /// Receives to try in one system call: more than one after a small datagram right after another.
    width: usize,
}

/// The least that is tried when more than one is.
const WIDTH_MIN: usize = 2;

impl Receiver {
    pub(super) fn open(addr: SocketAddr, options: &Options) -> io::Result<Self> {
        let (socket, offload) = Self::socket(addr, options)?;
        let fd = socket.as_fd();
        if options.seat.is_some() {
            net::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        let bound = match net::bind(fd, addr) {
            Ok(()) => true,
            // Perhaps the owner sends on to us what is ours; the caller finds out.
            Err(err) if err.kind() == io::ErrorKind::AddrInUse && options.seat.is_some() => false,
            Err(err) => return Err(explain_bind(&err, addr)),
        };
        let addr = if bound { net::local_addr(fd)? } else { addr };
        Ok(Self { socket, addr, bound, mode: Mode::Lonely, offload, burst: 0, lone: 0, width: 1 })
    }

    /// For what is sent to a multicast group and arrives at an interface; see `groups.rs`.
    pub(super) fn open_group(addr: SocketAddr, interface: u32, options: &Options) -> io::Result<Self> {
        let (socket, offload) = Self::socket(addr, options)?;
        let fd = socket.as_fd();
        net::set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        // Only what was joined on this interface, and not all that anybody on this host joined anywhere.
        if addr.is_ipv4() {
            net::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        } else {
            // Kernels before 4.20 have no such option.
            let _ = net::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0);
        }
        net::bind(fd, addr)?;
        net::join_group(fd, addr.ip(), interface)?;
        let (mode, burst) = (Mode::Lonely, 0);
        Ok(Self { socket, addr, bound: true, mode, offload, burst, lone: 0, width: 1 })
    }

    /// A socket, and whether it has receive offload.
    fn socket(addr: SocketAddr, options: &Options) -> io::Result<(Descriptor, bool)> {
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
        Ok((socket, offload))
    }

    /// Datagrams arrive here, and not only at somebody who sends ours on.
    pub(super) fn bound(&self) -> bool {
        self.bound
    }

    /// It is not the socket of the process that forked us.
    pub(super) fn is_ours(&self) -> bool {
        self.socket.is_ours()
    }

    /// Takes the address if it is free by now; whether it was.
    pub(super) fn try_bind(&mut self) -> bool {
        self.bound = net::bind(self.as_fd(), self.addr).is_ok();
        self.bound
    }

    /// The error of an address that belongs to somebody who does not share it with us.
    pub(super) fn taken(&self) -> io::Error {
        explain_bind(&io::ErrorKind::AddrInUse.into(), self.addr)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(super) fn buffer_size(&self) -> io::Result<usize> {
        let size = net::get_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
        usize::try_from(size).map_err(io::Error::other)
    }

    /// One receive: hands over what it brought.
    pub(super) fn recv(&mut self, buffer: &mut [u8], sink: impl FnMut(Train<'_>)) -> io::Result<Arrived> {
        let fd = self.socket.as_fd();
        let mut unpack = Unpacker { dst_ip: self.addr.ip(), arrived: Arrived::default(), sink };
        let result = match self.mode {
            Mode::Lonely => net::recv_from(fd, &mut buffer[..CHUNK]).map(|(len, src)| {
                unpack.datagram(len, src, buffer);
                1
            }),
            Mode::Busy if self.width > 1 => {
                net::recv_many(fd, buffer, STRIDE, self.width, |meta, data| unpack.train(&meta, data))
            }
            Mode::Busy | Mode::Calming { .. } => net::recv_msg(fd, &mut buffer[..CHUNK], 0).map(|meta| {
                unpack.train(&meta, &buffer[..meta.len.min(CHUNK)]);
                1
            }),
        };
        match result {
            Ok(receives) => {
                let arrived = Arrived { receives, ..unpack.arrived };
                self.note_arrival(&arrived);
                Ok(arrived)
            }
            Err(err) => match err.raw_os_error() {
                Some(libc::EAGAIN) => {
                    self.note_empty();
                    Ok(Arrived::default())
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
                ) => Ok(Arrived::default()),
                _ => Err(err),
            },
        }
    }

    fn note_arrival(&mut self, arrived: &Arrived) {
        let &Arrived { receives, datagrams, bytes, .. } = arrived;
        self.burst = self.burst.saturating_add(u32::try_from(datagrams).unwrap_or(u32::MAX));
        if self.burst > 1 {
            self.lone = 0;
        }
        match self.mode {
            Mode::Lonely if self.burst >= BURST => self.become_busy(),
            Mode::Lonely => {}
            Mode::Busy => {
                // Several receives at once pay off when there are several and they are small.
                let several = self.burst >= BURST && bytes < SMALL;
                self.width = match (several, self.width) {
                    (false, _) => 1,
                    (true, 1) => WIDTH_MIN,
                    (true, width) if receives == width => (2 * width).min(net::BATCH),
                    // One that was not followed by a second one does not need room for it.
                    (true, _) => receives.next_power_of_two(),
                };
            }
            Mode::Calming { .. } if self.burst >= BURST => self.become_busy(),
            // A train was still under way: be patient once more.
            Mode::Calming { .. } if datagrams > receives => self.mode = Mode::Calming { empty: 0 },
            Mode::Calming { .. } => {}
        }
    }

    fn note_empty(&mut self) {
        if self.burst == 1 {
            self.lone += 1;
        }
        self.burst = 0;
        self.width = 1;
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

/// What one receive brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    /// Buffers filled; 0 when the socket was empty.
    pub(super) receives: usize,
    datagrams: usize,
    bytes: usize,
    /// Unusable ones, dropped.
    pub(super) malformed: u64,
}

/// Makes trains of what a receive brought.
struct Unpacker<F> {
    dst_ip: IpAddr,
    arrived: Arrived,
    sink: F,
}

impl<F: FnMut(Train<'_>)> Unpacker<F> {
    fn datagram(&mut self, len: usize, src: Option<SocketAddr>, buffer: &[u8]) {
        let Some(src) = src.filter(|_| len <= CHUNK) else {
            self.arrived.malformed += 1;
            return;
        };
        let data = &buffer[..len];
        self.hand_over(Train {
            src,
            dst_ip: self.dst_ip,
            ecn: 0,
            ttl: 0,
            segment_size: len.max(1),
            first_index: 0,
            data,
        });
    }

    fn train(&mut self, meta: &RecvMeta, data: &[u8]) {
        let Some(src) = meta.src.filter(|_| !meta.truncated) else {
            self.arrived.malformed += 1;
            return;
        };
        let (ecn, ttl) = (meta.control.tos & 3, meta.control.ttl);
        let segment_size = meta.control.segment_size.unwrap_or(data.len()).max(1);
        self.hand_over(Train { src, dst_ip: self.dst_ip, ecn, ttl, segment_size, first_index: 0, data });
    }

    fn hand_over(&mut self, train: Train<'_>) {
        self.arrived.datagrams += train.data.len().div_ceil(train.segment_size).max(1);
        self.arrived.bytes += train.data.len();
        (self.sink)(train);
    }
}

fn explain_bind(err: &io::Error, addr: SocketAddr) -> io::Error {
    let what = match err.kind() {
        io::ErrorKind::AddrInUse => format!(
            "UDP port {} on {} is taken by a program of another user, or one that does not share it (ss -ulnp shows \
             which; if it names none, it is the kernel's own Soft-RoCE: rmmod rdma_rxe); stop it, or choose another \
             address",
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
