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

/// Two non-blocking sockets that are connected to each other, and keep messages apart.
pub(crate) fn pair() -> io::Result<(Descriptor, Descriptor)> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let mut fds = [-1; 2];
    // SAFETY: the kernel writes two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } as isize)?;
    // SAFETY: fresh descriptors that nothing else owns.
    let [one, other] = fds.map(|fd| Descriptor::from(unsafe { OwnedFd::from_raw_fd(fd) }));
    Ok((one, other))
}

/// Sends `head` and `body` as one datagram to the holder of `name`.
pub(crate) fn send_to(fd: BorrowedFd<'_>, name: &Name, head: &[u8], body: &[u8]) -> io::Result<()> {
    send_with(fd, Some(name), [head, body], None)
}

/// Sends `head` and `body` as one message to the socket that `fd` is connected to.
pub(crate) fn send(fd: BorrowedFd<'_>, head: &[u8], body: &[u8]) -> io::Result<()> {
    send_with(fd, None, [head, body], None)
}

/// The same as [`send_to`], and passes `descriptor` with it.
pub(crate) fn pass_to(
    fd: BorrowedFd<'_>,
    name: &Name,
    [head, body]: [&[u8]; 2],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    send_with(fd, Some(name), [head, body], Some(descriptor))
}

fn send_with(
    fd: BorrowedFd<'_>,
    name: Option<&Name>,
    [head, body]: [&[u8]; 2],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let part =
        |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut parts = [part(head), part(body)];
    // SAFETY: all-zero is a valid `msghdr`.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    if let Some(name) = name {
        msg.msg_name = (&raw const name.raw).cast_mut().cast();
        msg.msg_namelen = name.len;
    }
    msg.msg_iov = parts.as_mut_ptr();
    msg.msg_iovlen = parts.len() as _;
    let mut control = ControlBuf::new();
    if let Some(descriptor) = descriptor {
        msg.msg_controllen = control.push_descriptor(descriptor) as _;
        msg.msg_control = control.as_mut_ptr();
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: every pointer in `msg` leads to live memory of the stated length; sendmsg only reads.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const msg, flags) }).map(drop)
}

/// What came as one datagram.
#[derive(Debug)]
pub(crate) struct Arrived {
    /// Its length, cut to the buffer.
    pub(crate) len: usize,
    /// It was cut.
    pub(crate) cut: bool,
    /// The user who sent it.
    pub(crate) uid: Option<libc::uid_t>,
    /// A descriptor that came with it.
    pub(crate) descriptor: Option<OwnedFd>,
}

/// Receives one datagram.
pub(crate) fn recv(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Arrived> {
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut control = ControlBuf::new();
    // SAFETY: all-zero is a valid `msghdr`.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr();
    msg.msg_controllen = ControlBuf::LEN as _;
    // Should a stranger pass descriptors, they do not leak into children. Nor does a socket that somebody passed make us wait.
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: every pointer in `msg` leads to a live local or argument of the stated length.
    let len = check(unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut msg, flags) })?;
    // SAFETY: the receive filled `msg`, whose control buffer is alive, and nobody else decodes it.
    let RecvControl { uid, descriptor, .. } = unsafe { RecvControl::decode(&msg) };
    Ok(Arrived { len, cut: msg.msg_flags & libc::MSG_TRUNC != 0, uid, descriptor })
}

/// The effective user of this process.
pub(crate) fn effective_uid() -> libc::uid_t {
    // SAFETY: always succeeds and touches nothing.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::mem::MaybeUninit;
    use std::time::Duration;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;
    use crate::link::WaitFd;
    use crate::wait;

    /// The kernel installs what is passed with the receive, by whomever, and numbers of descriptors are few.
    #[test]
    fn descriptors_that_nobody_wanted_are_closed() {
        let (sender, receiver) = pair().expect("sockets");
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let copies = [(); 20].map(|()| writer.try_clone().expect("a descriptor"));
        let passed = copies.each_ref().map(|copy| copy.as_fd());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
        sendmsg(&sender, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).expect("sent");
        drop((copies, writer));
        let arrived = recv(receiver.as_fd(), &mut [0; 8]).expect("received");
        assert_eq!((arrived.len, arrived.cut), (1, false));
        // One is handed to the caller, who still holds the pipe open by it.
        let one = arrived.descriptor.expect("the first");
        rustix::io::write(&one, b"y").expect("it is the pipe's");
        drop(one);
        let end = WaitFd { fd: reader.as_raw_fd(), events: 0 };
        assert!(wait::poll(&[end], Some(Duration::from_secs(60))).expect("poll"), "the others are open");
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("the pipe ends");
        assert_eq!(all, b"y");
    }
}
