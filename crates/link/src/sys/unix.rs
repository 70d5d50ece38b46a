//! Datagram sockets with abstract names (unix(7)).
//!
//! An abstract name belongs to one socket of a network namespace, from bind until its last descriptor is closed, by
//! whatever end its owner comes to. That makes it a registry that needs no cleaning up.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::socklen_t;

use super::control::{ControlBuf, RecvControl};
use super::descriptor::Descriptor;
use super::net::{check, set_option};

/// An abstract name.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    raw: libc::sockaddr_un,
    len: socklen_t,
}

impl Name {
    /// The abstract name `text`, at most 107 bytes.
    pub(crate) fn new(text: &str) -> Self {
        // SAFETY: all-zero is a valid `sockaddr_un`.
        let mut raw: libc::sockaddr_un = unsafe { mem::zeroed() };
        assert!(text.len() < raw.sun_path.len(), "the name {text} is too long for a socket");
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        // The first byte stays zero: that is what makes the name abstract.
        for (to, from) in raw.sun_path[1..].iter_mut().zip(text.bytes()) {
            *to = from as libc::c_char;
        }
        let len = mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + text.len();
        Self { raw, len: len as socklen_t }
    }
}

/// A non-blocking datagram socket under `name`, which learns the sender's user with every datagram.
pub(crate) fn bind(name: &Name) -> io::Result<Descriptor> {
    let socket = socket()?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
    let addr = (&raw const name.raw).cast();
    // SAFETY: pointer and length describe `name`, which outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), addr, name.len) } as isize)?;
    Ok(socket)
}

/// Whether somebody holds `name`.
pub(crate) fn is_held(name: &Name) -> io::Result<bool> {
    let socket = socket()?;
    let addr = (&raw const name.raw).cast();
    // SAFETY: pointer and length describe `name`, which outlives the call.
    match check(unsafe { libc::connect(socket.as_raw_fd(), addr, name.len) } as isize) {
        Ok(_) => Ok(true),
        Err(err) if err.raw_os_error() == Some(libc::ECONNREFUSED) => Ok(false),
        // Held, but not by a datagram socket: by nobody of ours.
        Err(err) if err.raw_os_error() == Some(libc::EPROTOTYPE) => Ok(true),
        Err(err) => Err(err),
    }
}

fn socket() -> io::Result<Descriptor> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    check(fd as isize)?;
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// Sends `head` and `body` as one datagram to the holder of `name`.
pub(crate) fn send_to(fd: BorrowedFd<'_>, name: &Name, head: &[u8], body: &[u8]) -> io::Result<()> {
    let part =
        |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut parts = [part(head), part(body)];
    // SAFETY: all-zero is a valid `msghdr`.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = (&raw const name.raw).cast_mut().cast();
    msg.msg_namelen = name.len;
    msg.msg_iov = parts.as_mut_ptr();
    msg.msg_iovlen = parts.len() as _;
    // SAFETY: every pointer in `msg` leads to live memory of the stated length; sendmsg only reads.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const msg, libc::MSG_NOSIGNAL) }).map(drop)
}

/// Receives one datagram: its length, cut to `buf`, whether it was cut, and the user who sent it.
pub(crate) fn recv(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<(usize, bool, Option<libc::uid_t>)> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut control = ControlBuf::new();
    // SAFETY: all-zero is a valid `msghdr`.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr();
    msg.msg_controllen = ControlBuf::LEN as _;
    // MSG_CMSG_CLOEXEC: should a stranger pass descriptors, they do not leak into children.
    // SAFETY: every pointer in `msg` leads to a live local or argument of the stated length.
    let len = check(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut msg, libc::MSG_CMSG_CLOEXEC) })?;
    // SAFETY: the receive filled `msg`, whose control buffer is alive.
    let uid = unsafe { RecvControl::decode(&msg) }.uid;
    Ok((len, msg.msg_flags & libc::MSG_TRUNC != 0, uid))
}

/// The effective user of this process.
pub(crate) fn effective_uid() -> libc::uid_t {
    // SAFETY: always succeeds and touches nothing.
    unsafe { libc::geteuid() }
}
