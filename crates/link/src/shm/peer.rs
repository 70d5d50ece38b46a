//! A peer: the unix socket to its process, and the rings in the memory shared with it.
//!
//! The socket is what finds the peer (abstract names are taken by one process at a time and vanish with it), what
//! says who it is (`SO_PEERCRED`), what passes the memory, what wakes it, and what tells that it died.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

use super::ring::{self, Reader, Writer};
use crate::sys::descriptor::Descriptor;

/// First bytes of the first message, with the version of what follows.
const MAGIC: [u8; 8] = *b"rem-shm\x01";
/// The first message: magic, ring size, address.
const HELLO: usize = 8 + 8 + 16;
/// The longest message of the side channel.
pub const MAX_MESSAGE: usize = 1024;
/// First byte of the messages after the first.
const POKE: u8 = b'p';
const SIDE: u8 = b's';

/// The name under which a link at `address` is found, in the network namespace's own space of names.
fn name(address: IpAddr) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("remanence/shm/{address}").as_bytes())?)
}

fn socket() -> io::Result<Descriptor> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?.into())
}

/// Takes an address; `AddrInUse` if another process has it.
pub(super) fn listen(address: IpAddr) -> io::Result<Descriptor> {
    let listener = socket()?;
    rustix::net::bind(&listener, &name(address)?)?;
    rustix::net::listen(&listener, 128)?;
    Ok(listener)
}

/// A connection to whoever has the address.
pub(super) fn dial(address: IpAddr) -> io::Result<Descriptor> {
    let socket = socket()?;
    rustix::net::connect(&socket, &name(address)?)?;
    Ok(socket)
}

/// The next process that came to our address.
pub(super) fn accept(listener: &Descriptor) -> io::Result<Option<Descriptor>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok(socket) => Ok(Some(socket.into())),
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// How far another process is believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// Same user or root: it could debug this process anyway.
    Full,
    /// A user that the configuration names: it may send, but nothing is looked at in place.
    Copy,
}

/// What arrived on a peer's socket.
#[derive(Debug)]
pub(super) enum Message {
    /// Look at the rings.
    Poke,
    /// The rings are there: the peer may be used.
    Ready,
    /// From the peer's user of the side channel.
    Side(Vec<u8>, Option<OwnedFd>),
    /// The process has ended, or broke the rules.
    Gone,
}

/// Both directions to one peer.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) writer: Writer,
    pub(super) reader: Reader,
}

/// One peer process.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pub(super) socket: Descriptor,
    pub(super) trust: Trust,
    /// Its address; of a peer that came to us, once it said hello.
    pub(super) address: IpAddr,
    /// None until it said hello.
    pub(super) rings: Option<Rings>,
    /// Something was published since the last flush.
    pub(super) unflushed: bool,
    /// It has died: what it wrote is still read, then it is forgotten.
    pub(super) dying: bool,
    /// Since when it has not read a full ring, and how far it had read then.
    pub(super) stuck: Option<(Instant, u64)>,
}

impl PeerProcess {
    /// Looks a peer up by address: makes the memory and says hello.
    pub(super) fn connect(own: IpAddr, address: IpAddr, size: usize, others: &[u32]) -> io::Result<Self> {
        let socket = dial(address)?;
        // Its listener's owner: somebody else may have taken the name.
        let trust = trust(&socket, others)?;
        let file = ring::create(size)?;
        let mut hello = [0; HELLO];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..16].copy_from_slice(&(size as u64).to_be_bytes());
        hello[16..].copy_from_slice(&octets(own));
        let (writer, reader) = ring::map(&file, size, true)?;
        send(&socket, &[&hello], Some(file.as_fd()))?;
        let rings = Some(Rings { writer, reader });
        Ok(Self { socket, trust, address, rings, unflushed: false, dying: false, stuck: None })
    }

    /// A process that came to our address; refused if it is not one that may.
    pub(super) fn accepted(socket: Descriptor, others: &[u32]) -> io::Result<Self> {
        let trust = trust(&socket, others)?;
        let address = Ipv6Addr::UNSPECIFIED.into();
        Ok(Self { socket, trust, address, rings: None, unflushed: false, dying: false, stuck: None })
    }

    /// The next message, if there is one.
    pub(super) fn receive(&mut self) -> Option<Message> {
        let mut bytes = [0; MAX_MESSAGE + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        let len = match received {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(_) => return Some(Message::Gone),
        };
        let file = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        Some(match (&bytes[..len], &self.rings, file) {
            ([POKE], Some(_), None) => Message::Poke,
            ([SIDE, message @ ..], Some(_), file) => Message::Side(message.to_vec(), file),
            (hello, None, Some(file)) => match self.greeted(hello, &file) {
                Some(()) => Message::Ready,
                None => Message::Gone,
            },
            _ => Message::Gone,
        })
    }

    fn greeted(&mut self, hello: &[u8], file: &OwnedFd) -> Option<()> {
        let hello: &[u8; HELLO] = hello.try_into().ok()?;
        let (magic, rest) = hello.split_first_chunk()?;
        let (size, address) = rest.split_first_chunk()?;
        if *magic != MAGIC {
            return None;
        }
        let size = usize::try_from(u64::from_be_bytes(*size)).ok()?;
        let (writer, reader) = ring::map(file, size, false).ok()?;
        self.address = Ipv6Addr::from(<[u8; 16]>::try_from(address).ok()?).to_canonical();
        self.rings = Some(Rings { writer, reader });
        Some(())
    }

    /// Wakes the process if it sleeps. A full socket is as good as a poke: it is readable.
    pub(super) fn poke(&self) {
        let _ = send(&self.socket, &[&[POKE]], None);
    }

    /// Sends a message of the side channel.
    pub(super) fn send_side(&self, message: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if message.len() >= MAX_MESSAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        send(&self.socket, &[&[SIDE], message], file)
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Who is at the other end, and how far it is believed.
fn trust(socket: &Descriptor, others: &[u32]) -> io::Result<Trust> {
    let uid = sockopt::socket_peercred(socket)?.uid;
    if uid == rustix::process::geteuid() || uid.is_root() {
        Ok(Trust::Full)
    } else if others.contains(&uid.as_raw()) {
        Ok(Trust::Copy)
    } else {
        let message = format!("the process at the other end is of user {}, who is not allowed", uid.as_raw());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }
}

fn send(socket: &Descriptor, parts: &[&[u8]], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file]);
    if let Some(files) = &files {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}
