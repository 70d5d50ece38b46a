//! UDP sockets: options, sends and receives without waiting.
//!
//! Read first: udp(7), ip(7), ipv6(7); `control` for what travels beside the payload.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_long, c_void, socklen_t};

use super::control::{ControlBuf, RecvControl, SendControl};
use super::descriptor::Descriptor;

/// Turns the `-1` of a system call into the error behind it.
pub(crate) fn check(ret: isize) -> io::Result<usize> {
    usize::try_from(ret).map_err(|_| io::Error::last_os_error())
}

/// A system call on a socket, past the C library's wrapper, for those of the path of packets. Each such wrapper is a cancellation
/// point (pthreads(7)): in a process of several threads it tells the thread, by two atomic exchanges, that it may be cancelled,
/// which is some 3 % of a round trip; and none of these may be one, as the device lock is held. It evaluates to what the wrapper
/// would have returned.
macro_rules! socket_call {
    ($number:ident, $fd:expr $(, $argument:expr)*) => {
        libc::syscall(libc::$number, c_long::from($fd.as_raw_fd()) $(, $argument)*) as isize
    };
}

/// A socket address in the kernel's form, for IPv4 or IPv6.
#[derive(Clone, Copy)]
pub(crate) struct RawAddr {
    storage: Storage,
    len: socklen_t,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Storage {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddr {
    /// Room for the kernel to write an address to.
    pub(crate) fn room() -> Self {
        // SAFETY: all-zero bytes are a valid value of every variant (plain integers and byte arrays).
        let storage = unsafe { mem::zeroed() };
        Self { storage, len: Self::capacity() }
    }

    fn capacity() -> socklen_t {
        socklen_t::try_from(mem::size_of::<Storage>()).expect("28 bytes")
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    pub(crate) fn len(&self) -> socklen_t {
        self.len
    }

    pub(crate) fn len_mut(&mut self) -> &mut socklen_t {
        &mut self.len
    }

    pub(crate) fn set_len(&mut self, len: socklen_t) {
        self.len = len;
    }

    /// What the kernel wrote, `None` if it is of no known family.
    pub(crate) fn get(&self) -> Option<SocketAddr> {
        // SAFETY: every variant begins with the family, and `room` initialised all bytes.
        let family = unsafe { self.storage.family };
        match c_int::from(family) {
            libc::AF_INET => {
                // SAFETY: all bytes are initialised and any bit pattern is a valid `sockaddr_in`.
                let a = unsafe { self.storage.v4 };
                let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(a.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: as above, for `sockaddr_in6`.
                let a = unsafe { self.storage.v6 };
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                let port = u16::from_be(a.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, a.sin6_flowinfo, a.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for RawAddr {
    fn from(addr: SocketAddr) -> Self {
        let mut raw = Self::room();
        match addr {
            SocketAddr::V4(a) => {
                raw.storage.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                raw.len = mem::size_of::<libc::sockaddr_in>() as socklen_t;
            }
            SocketAddr::V6(a) => {
                raw.storage.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: a.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
                raw.len = mem::size_of::<libc::sockaddr_in6>() as socklen_t;
            }
        }
        raw
    }
}

/// A non-blocking, close-on-exec UDP socket of the address family of `like`.
pub(crate) fn udp_socket(like: IpAddr) -> io::Result<Descriptor> {
    let family = if like.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
    check(fd as isize)?;
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// `setsockopt` with an integer.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = mem::size_of::<c_int>() as socklen_t;
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    let ret = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    check(ret as isize).map(drop)
}

/// `getsockopt` of an integer.
pub(crate) fn get_option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = mem::size_of::<c_int>() as socklen_t;
    // SAFETY: the pointers describe `value` and `len`, which outlive the call.
    let ret = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    check(ret as isize)?;
    Ok(value)
}

/// A number of the network namespace that this thread is in, which no other one has until the machine is started again:
/// `SO_NETNS_COOKIE`. The inode of `/proc/self/ns/net` is given again when a namespace is gone.
///
/// # Errors
/// The kernel has no such numbers (before 5.14), or gives no socket.
pub fn network_namespace() -> io::Result<u64> {
    let socket = udp_socket(Ipv4Addr::LOCALHOST.into())?;
    let mut cookie = 0_u64;
    let mut len = mem::size_of::<u64>() as socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE);
    // SAFETY: the pointers describe `cookie` and `len`, which outlive the call.
    let ret =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut cookie).cast(), &raw mut len) };
    check(ret as isize)?;
    Ok(cookie)
}

/// Binds to a local address.
pub(crate) fn bind(fd: BorrowedFd<'_>, addr: SocketAddr) -> io::Result<()> {
    let raw = RawAddr::from(addr);
    // SAFETY: the pointer and length describe `raw`, which outlives the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), raw.len()) } as isize).map(drop)
}

/// Sets the default destination; for UDP this sends nothing, it looks up the route.
pub(crate) fn connect(fd: BorrowedFd<'_>, addr: SocketAddr) -> io::Result<()> {
    let raw = RawAddr::from(addr);
    // SAFETY: the pointer and length describe `raw`, which outlives the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), raw.as_ptr(), raw.len()) } as isize).map(drop)
}

/// Undoes [`connect`]. The local address and port stay, as they were bound.
pub(crate) fn disconnect(fd: BorrowedFd<'_>) -> io::Result<()> {
    let raw = RawAddr::room();
    // SAFETY: the pointer and length describe `raw`, whose family is AF_UNSPEC, and which outlives the call.
    check(unsafe { libc::connect(fd.as_raw_fd(), raw.as_ptr(), raw.len()) } as isize).map(drop)
}

/// Makes a socket member of a multicast group, on an interface, until it is closed.
pub(crate) fn join_group(fd: BorrowedFd<'_>, group: IpAddr, interface: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            let request = mreqn(group, interface);
            set_struct(fd, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
        }
        IpAddr::V6(group) => {
            let multiaddr = libc::in6_addr { s6_addr: group.octets() };
            let request = libc::ipv6_mreq { ipv6mr_multiaddr: multiaddr, ipv6mr_interface: interface };
            set_struct(fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)
        }
    }
}

/// Has what the socket sends to multicast groups leave by an interface. `like`: of the socket's address family.
pub(crate) fn send_groups_by(fd: BorrowedFd<'_>, like: IpAddr, interface: u32) -> io::Result<()> {
    if like.is_ipv4() {
        let request = mreqn(Ipv4Addr::UNSPECIFIED, interface);
        set_struct(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
    } else {
        let index = c_int::try_from(interface).map_err(io::Error::other)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index)
    }
}

fn mreqn(group: Ipv4Addr, interface: u32) -> libc::ip_mreqn {
    libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from(group).to_be() },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: interface.cast_signed(),
    }
}

/// `setsockopt` with a plain structure of the kernel's.
fn set_struct<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = mem::size_of::<T>() as socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, len) } as isize).map(drop)
}

/// The address a socket is bound to.
pub(crate) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut raw = RawAddr::room();
    let (addr, len) = (raw.as_mut_ptr(), &raw mut *raw.len_mut());
    // SAFETY: both pointers lead into `raw`; the kernel writes at most the length given there.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), addr, len) } as isize)?;
    raw.get().ok_or_else(|| io::Error::other("a UDP socket without an IP address"))
}

/// Sends one datagram, without control data: the cheapest send there is. Without an address, to the peer that the socket is
/// connected to, which is cheaper still.
pub(crate) fn send_to(fd: BorrowedFd<'_>, payload: &[u8], dst: Option<&RawAddr>) -> io::Result<usize> {
    let ptr = payload.as_ptr().cast::<c_void>();
    let (addr, len) = dst.map_or((std::ptr::null(), 0), |dst| (dst.as_ptr(), dst.len()));
    // SAFETY: pointers and lengths describe `payload` and `dst`, which outlive the call, or no address.
    let ret = unsafe { socket_call!(SYS_sendto, fd, ptr, payload.len(), 0_usize, addr, len as usize) };
    check(ret)
}

/// Sends with control data: a train of datagrams (segmentation), another TOS or TTL than the socket's.
pub(crate) fn send_msg(
    fd: BorrowedFd<'_>,
    payload: &[u8],
    dst: Option<&RawAddr>,
    control: &SendControl,
) -> io::Result<usize> {
    let mut iov = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    let mut buf = ControlBuf::new();
    let control_len = control.encode(&mut buf);
    // SAFETY: all-zero is a valid `msghdr` (null pointers, zero lengths).
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(dst) = dst {
        msg.msg_name = dst.as_ptr().cast_mut().cast();
        msg.msg_namelen = dst.len();
    }
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = buf.as_mut_ptr();
    msg.msg_controllen = control_len as _;
    // SAFETY: every pointer in `msg` leads to a live local or argument of the stated length; sendmsg only reads.
    check(unsafe { socket_call!(SYS_sendmsg, fd, &raw const msg, 0_usize) })
}

/// Receives one datagram into `buf`: its true length (more than `buf` holds if it was cut) and its sender.
pub(crate) fn recv_from(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, Option<SocketAddr>)> {
    let mut raw = RawAddr::room();
    let (addr, len) = (raw.as_mut_ptr(), &raw mut *raw.len_mut());
    let (ptr, room) = (buf.as_mut_ptr().cast::<c_void>(), buf.len());
    // SAFETY: the pointers lead into `buf` and `raw`, the kernel writes at most the lengths given.
    let got =
        check(unsafe { socket_call!(SYS_recvfrom, fd, ptr, room, libc::MSG_TRUNC as usize, addr, len) })?;
    Ok((got, raw.get()))
}

/// What one receive brought, beside the payload.
#[derive(Debug)]
pub(crate) struct RecvMeta {
    /// Bytes in the buffer.
    pub(crate) len: usize,
    /// The address and port that the datagram came from; `None` if the kernel gave none that we know.
    pub(crate) src: Option<SocketAddr>,
    /// The buffer was too small.
    pub(crate) truncated: bool,
    /// What the control data said.
    pub(crate) control: RecvControl,
}

/// Receives one datagram, or a train of equal ones, with control data.
pub(crate) fn recv_msg(fd: BorrowedFd<'_>, buf: &mut [u8], flags: c_int) -> io::Result<RecvMeta> {
    let mut src = RawAddr::room();
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut control = MaybeUninit::<ControlBuf>::uninit();
    let mut msg = recv_header(&mut src, &mut iov, control.as_mut_ptr().cast());
    // SAFETY: `recv_header` filled `msg` with pointers to live locals and their sizes.
    let len = check(unsafe { socket_call!(SYS_recvmsg, fd, &raw mut msg, flags as usize) })?;
    Ok(recv_meta(&msg, len, &mut src))
}

/// `control` points to a [`ControlBuf`], which need not be initialised.
fn recv_header(src: &mut RawAddr, iov: &mut libc::iovec, control: *mut c_void) -> libc::msghdr {
    // SAFETY: all-zero is a valid `msghdr` (null pointers, zero lengths).
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = src.as_mut_ptr().cast();
    msg.msg_namelen = src.len();
    msg.msg_iov = &raw mut *iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = ControlBuf::LEN as _;
    msg
}

fn recv_meta(msg: &libc::msghdr, len: usize, src: &mut RawAddr) -> RecvMeta {
    src.set_len(msg.msg_namelen);
    // SAFETY: the kernel filled this header, the control buffer it points to is still alive in the caller, and this is where
    // it is decoded.
    let control = unsafe { RecvControl::decode(msg) };
    let src = if msg.msg_namelen == 0 { None } else { src.get() };
    RecvMeta { len, src, truncated: msg.msg_flags & libc::MSG_TRUNC != 0, control }
}

/// The most receives in one [`recv_many`].
pub(crate) const BATCH: usize = 16;

/// Receives up to `slots` (of `BATCH`) datagrams or trains in one system call, the i-th into the i-th chunk of `buf`, and
/// calls `each` for every one of them. Every slot has its price, whether something comes or not.
pub(crate) fn recv_many(
    fd: BorrowedFd<'_>,
    buf: &mut [u8],
    chunk: usize,
    slots: usize,
    mut each: impl FnMut(RecvMeta, &[u8]),
) -> io::Result<usize> {
    let slots = (buf.len() / chunk).min(BATCH).min(slots);
    // 5 KiB, of which one receive needs a few hundred bytes: what is not used is not cleared either.
    let mut src = [const { MaybeUninit::<RawAddr>::uninit() }; BATCH];
    let mut iov = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
    let mut control = [const { MaybeUninit::<ControlBuf>::uninit() }; BATCH];
    let mut msgs = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    for (i, piece) in buf.chunks_exact_mut(chunk).take(slots).enumerate() {
        let src = src[i].write(RawAddr::room());
        let iov = iov[i].write(libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() });
        let msg_hdr = recv_header(src, iov, control[i].as_mut_ptr().cast());
        msgs[i].write(libc::mmsghdr { msg_hdr, msg_len: 0 });
    }
    let vec = msgs.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `slots` headers are initialised, with pointers to live locals and chunks of `buf`; of the control
    // buffers the kernel says how far it wrote them.
    let n = check(unsafe {
        socket_call!(SYS_recvmmsg, fd, vec, slots, 0_usize, std::ptr::null_mut::<libc::timespec>())
    })?;
    for (i, piece) in buf.chunks_exact(chunk).take(n).enumerate() {
        // SAFETY: i < n <= slots, so both were initialised above.
        let (msg, src) = unsafe { (msgs[i].assume_init_ref(), src[i].assume_init_mut()) };
        let meta = recv_meta(&msg.msg_hdr, msg.msg_len as usize, src);
        let len = meta.len.min(chunk);
        each(meta, &piece[..len]);
    }
    Ok(n)
}

/// Randomness of the operating system, for choices that must differ between processes.
#[must_use]
pub fn random_u64() -> u64 {
    let mut value = 0u64;
    let size = mem::size_of::<u64>();
    // SAFETY: pointer and length describe `value`. Requests of up to 256 bytes are never cut short.
    let got = unsafe { libc::getrandom((&raw mut value).cast(), size, 0) };
    assert_eq!(usize::try_from(got), Ok(size), "the kernel has no randomness");
    value
}
