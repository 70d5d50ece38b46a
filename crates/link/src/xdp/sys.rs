//! The syscalls of AF_XDP: `bpf`, the socket with its options, and netlink's datagrams.
//!
//! Read first: `bpf(2)`, and the kernel's `Documentation/networking/af_xdp.rst`. Everything unsafe here is a call
//! whose pointers are to values that live across it, with their true lengths.
#![expect(
    unsafe_code,
    reason = "syscalls; the promise is that every pointer passed is valid for the length passed"
)]

use std::ffi::{CString, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::program::Instruction;
use crate::sys::descriptor::Descriptor;

const BPF_MAP_CREATE: c_int = 0;
const BPF_MAP_UPDATE_ELEM: c_int = 2;
const BPF_PROG_LOAD: c_int = 5;
const BPF_LINK_CREATE: c_int = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// `BPF_XDP`, the attach type.
const BPF_XDP: u32 = 37;

/// `XDP_FLAGS_SKB_MODE`: the generic hook, after the kernel has made its packet.
pub(super) const ATTACH_GENERIC: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`: the driver's hook.
pub(super) const ATTACH_NATIVE: u32 = 1 << 2;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: c_int) -> Descriptor {
    // SAFETY: every caller passes the descriptor that a successful syscall has just given it, and nobody else.
    unsafe { OwnedFd::from_raw_fd(fd) }.into()
}

/// `bpf(2)` with one member of `union bpf_attr`. A shorter attribute is as if the rest were zero.
fn bpf<T>(command: c_int, attr: &T) -> io::Result<c_int> {
    // SAFETY: `attr` is a live value of the size given; the pointers in it are the callers' duty below.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<T>()) };
    check(c_int::try_from(result).expect("bpf returns an int"))
}

/// Makes the map of sockets by queue.
pub(super) fn create_xskmap(queues: u32) -> io::Result<Descriptor> {
    #[repr(C)]
    struct Attr {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
    }
    let attr =
        Attr { map_type: BPF_MAP_TYPE_XSKMAP, key_size: 4, value_size: 4, max_entries: queues, map_flags: 0 };
    bpf(BPF_MAP_CREATE, &attr).map(owned)
}

/// Lets frames of `queue` go to `socket`.
pub(super) fn set_xskmap(map: &Descriptor, queue: u32, socket: &Descriptor) -> io::Result<()> {
    #[repr(C, align(8))]
    struct Attr {
        map_fd: u32,
        _pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let value = socket.as_raw_fd();
    let attr = Attr {
        map_fd: fd_u32(map.as_raw_fd()),
        _pad: 0,
        key: std::ptr::from_ref(&queue) as u64,
        value: std::ptr::from_ref(&value) as u64,
        flags: 0,
    };
    bpf(BPF_MAP_UPDATE_ELEM, &attr).map(drop)
}

/// Loads an XDP program; on failure the error carries the verifier's last words.
pub(super) fn load_program(code: &[Instruction]) -> io::Result<Descriptor> {
    #[repr(C, align(8))]
    struct Attr {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
    }
    let mut log = vec![0_u8; 16 << 10];
    let mut attr = Attr {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: u32::try_from(code.len()).expect("the program is short"),
        insns: code.as_ptr() as u64,
        // Redirecting to a socket needs no GPL-only helper.
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"remanence_roce\0\0",
        prog_ifindex: 0,
        expected_attach_type: BPF_XDP,
    };
    match bpf(BPF_PROG_LOAD, &attr) {
        Ok(fd) => Ok(owned(fd)),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Err(e),
        Err(_) => {
            // Once more for the verifier's log, which costs too much to ask for when all is well.
            attr.log_level = 1;
            attr.log_size = u32::try_from(log.len()).expect("a small buffer");
            attr.log_buf = log.as_mut_ptr() as u64;
            bpf(BPF_PROG_LOAD, &attr).map(owned).map_err(|e| {
                let text = String::from_utf8_lossy(&log);
                let last = text.trim_end_matches('\0').lines().next_back().unwrap_or_default().to_owned();
                io::Error::new(e.kind(), format!("{e}; the verifier says: {last}"))
            })
        }
    }
}

/// Attaches `program` to an interface for as long as the returned descriptor lives: the kernel detaches it when
/// the descriptor closes, whatever ended the process.
pub(super) fn attach(program: &Descriptor, interface: u32, flags: u32) -> io::Result<Descriptor> {
    #[repr(C)]
    struct Attr {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    let attr =
        Attr { prog_fd: fd_u32(program.as_raw_fd()), target_ifindex: interface, attach_type: BPF_XDP, flags };
    bpf(BPF_LINK_CREATE, &attr).map(owned)
}

fn fd_u32(fd: RawFd) -> u32 {
    u32::try_from(fd).expect("an open descriptor is not negative")
}

/// An AF_XDP socket, without UMEM or rings yet.
pub(super) fn xdp_socket() -> io::Result<Descriptor> {
    // SAFETY: no pointers.
    check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }).map(owned)
}

/// Sets an option of level `SOL_XDP`.
pub(super) fn set_option<T>(socket: &Descriptor, option: c_int, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    // SAFETY: `value` is live and `len` bytes long.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, std::ptr::from_ref(value).cast(), len)
    })
    .map(drop)
}

/// Where the four rings keep their indices, flags and entries.
pub(super) fn mmap_offsets(socket: &Descriptor) -> io::Result<libc::xdp_mmap_offsets> {
    get_option(socket, libc::XDP_MMAP_OFFSETS)
}

/// The socket's counters.
pub(super) fn statistics(socket: &Descriptor) -> io::Result<libc::xdp_statistics> {
    get_option(socket, libc::XDP_STATISTICS)
}

/// Reads an option of level `SOL_XDP` into one of the kernel's plain structures of integers.
fn get_option<T>(socket: &Descriptor, option: c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    // SAFETY: `value` is writable for `len` bytes.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, value.as_mut_ptr().cast(), &raw mut len)
    })?;
    // SAFETY: the two callers name structures that consist of integers only, for which zeroes and whatever the
    // kernel wrote are valid values.
    Ok(unsafe { value.assume_init() })
}

/// Binds the socket to a queue of an interface.
pub(super) fn bind(socket: &Descriptor, interface: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).expect("44"),
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = libc::socklen_t::try_from(size_of_val(&address)).expect("16");
    // SAFETY: `address` is live and `len` bytes long.
    check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) }).map(drop)
}

/// Tells the kernel that the transmit ring has work (or the fill ring, where a driver asks for that).
pub(super) fn kick(socket: RawFd) -> io::Result<()> {
    // SAFETY: an empty message: null buffer of length zero, no address.
    let result =
        unsafe { libc::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The index of an interface of this thread's network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: a live C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 { Err(io::Error::last_os_error()) } else { Ok(index) }
}

/// A netlink socket of the routing family, non-blocking on request, joined to `groups`.
pub(super) fn netlink(groups: u32, nonblocking: bool) -> io::Result<Descriptor> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: no pointers.
    let socket = owned(check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?);
    // SAFETY: `sockaddr_nl` is a structure of integers, for which zero is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = u16::try_from(libc::AF_NETLINK).expect("16");
    address.nl_groups = groups;
    let len = libc::socklen_t::try_from(size_of_val(&address)).expect("12");
    // SAFETY: `address` is live and `len` bytes long.
    check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) })?;
    Ok(socket)
}

/// Sends one datagram to the kernel.
pub(super) fn send(socket: &Descriptor, message: &[u8]) -> io::Result<()> {
    // SAFETY: `message` is readable for its length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast::<c_void>(), message.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one datagram.
pub(super) fn receive(socket: &Descriptor, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `into` is writable for its length.
    let got = unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast::<c_void>(), into.len(), 0) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got.unsigned_abs()) }
}
