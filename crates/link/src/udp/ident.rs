//! Who a sending socket is connected to, and the IPv4 identification of what it sends next.
//!
//! To a socket without a peer each send costs a look-up of the route, 300 ns of a round trip's 6 us; a connected one
//! remembers it. But such a socket does not send identification 0: the kernel gives it a counter that begins at a random
//! number with each connect(2), and counts one for each send, a train being one, whoever it goes to (`ip_select_ident`,
//! Linux 4.18 to 6.18). The ICRC covers the identification, and other stacks than ours check it, so the counter must be
//! known: once connected, the socket sends itself two empty datagrams, and asks for them back as they were when they left,
//! headers and all, which is what a time stamp of sending comes with (SO_TIMESTAMPING without OPT_TSONLY). They reach
//! nobody, as the sending socket drops what arrives. If they do not come back, or the second is not the first's successor,
//! the socket stays without a peer, where identifications are 0.
//!
//! A send that fails may have been counted or not. Then the count is in doubt, and the socket loses its peer.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};

use crate::sys::net::{self, RawAddr};

/// Sends in a row to the same peer before the socket is connected to it; finding out the count takes some 20 us.
const HABIT: u32 = 128;

/// The most that [`HABIT`] grows to, doubled by each connection that ended.
const HABIT_MAX: u32 = 1 << 20;

/// Entries of the error queue that may be in the way of a probe.
const IN_THE_WAY: usize = 64;

/// What a sending socket counts. Under its device's lock; atomic, so that what sends aside needs no more than a look.
#[derive(Debug, Default)]
pub(super) struct Count {
    allowed: bool,
    peer: Option<SocketAddr>,
    /// The identification of the next datagram.
    next: AtomicU16,
    /// The count may be wrong by what a failed send did.
    doubt: AtomicBool,
    /// Sends in a row to the same address, which is not the peer's.
    row: u32,
    to: Option<SocketAddr>,
    /// How many of those make a habit.
    habit: u32,
}

impl Count {
    pub(super) fn allow(&mut self) {
        if !self.allowed {
            self.allowed = true;
            self.habit = HABIT;
        }
    }

    /// From here on every identification is 0.
    pub(super) fn forbid(&mut self, fd: BorrowedFd<'_>) {
        if self.peer.is_some() {
            self.give_up(fd);
        }
        self.allowed = false;
    }

    pub(super) fn next(&self) -> u16 {
        self.next.load(Relaxed)
    }

    pub(super) fn is_peer(&self, dst: &SocketAddr) -> bool {
        self.peer.as_ref() == Some(dst)
    }

    /// Something left that nobody asked an identification for.
    pub(super) fn sent_aside(&self) {
        if self.peer.is_some() {
            self.next.store(self.next().wrapping_add(1), Relaxed);
        }
    }

    /// A send failed, and perhaps was counted.
    pub(super) fn doubt(&self) {
        self.doubt.store(self.peer.is_some(), Relaxed);
    }

    /// A datagram or train left.
    #[inline]
    pub(super) fn sent(&mut self, fd: BorrowedFd<'_>, dst: &SocketAddr) {
        if !self.allowed {
            return;
        }
        self.sent_aside();
        if *self.doubt.get_mut() {
            self.give_up(fd);
        } else if !self.is_peer(dst) {
            self.sent_elsewhere(fd, dst);
        } else {
            self.row = 0;
        }
    }

    fn sent_elsewhere(&mut self, fd: BorrowedFd<'_>, dst: &SocketAddr) {
        self.row = if self.to.as_ref() == Some(dst) { self.row + 1 } else { 1 };
        self.to = Some(*dst);
        let SocketAddr::V4(v4) = dst else { return };
        if self.row < self.habit || v4.ip().is_multicast() || v4.ip().is_broadcast() {
            return;
        }
        if self.peer.is_some() {
            self.give_up(fd);
        }
        match begin(fd, *dst) {
            Ok(next) => {
                self.peer = Some(*dst);
                *self.next.get_mut() = next;
            }
            Err(_) => self.give_up(fd),
        }
    }

    /// Back to identification 0.
    #[cold]
    fn give_up(&mut self, fd: BorrowedFd<'_>) {
        self.row = 0;
        self.habit = (2 * self.habit).min(HABIT_MAX);
        *self.doubt.get_mut() = false;
        match net::disconnect(fd) {
            Ok(()) => {
                self.peer = None;
                *self.next.get_mut() = 0;
            }
            // It never fails. If it did, a wrong identification would make strangers drop what we send, and try again.
            Err(_) => self.allowed = false,
        }
    }
}

/// Connects the socket; the identification of what it sends next.
fn begin(fd: BorrowedFd<'_>, peer: SocketAddr) -> io::Result<u16> {
    net::connect(fd, peer)?;
    let SocketAddr::V4(own) = net::local_addr(fd)? else { return Err(io::ErrorKind::Unsupported.into()) };
    let first = probed(fd, own)?;
    let second = probed(fd, own)?;
    if second != first.wrapping_add(1) {
        return Err(io::Error::other("the kernel does not count sends one by one"));
    }
    Ok(second.wrapping_add(1))
}

/// Sends the socket itself an empty datagram, and looks at its header.
fn probed(fd: BorrowedFd<'_>, own: SocketAddrV4) -> io::Result<u16> {
    // "Tell when a packet goes to the device's queue" and "report it".
    const TX_SCHED: libc::c_uint = 1 << 8;
    const SOFTWARE: libc::c_uint = 1 << 4;
    let stamps = |flags: libc::c_uint| {
        net::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags.cast_signed())
    };
    stamps(TX_SCHED | SOFTWARE)?;
    let sent = net::send_to(fd, &[], Some(&RawAddr::from(SocketAddr::V4(own))));
    stamps(0)?;
    sent?;
    let mut packet = [0; 128];
    for _ in 0..IN_THE_WAY {
        // ICMP errors of earlier sends are lost here: hints, which would come again.
        let meta = net::recv_msg(fd, &mut packet, libc::MSG_ERRQUEUE)?;
        if let Some(ident) = identification(&packet[..meta.len.min(packet.len())], own) {
            return Ok(ident);
        }
    }
    Err(io::Error::other("the error queue does not end"))
}

/// The identification of an empty datagram that a socket sent itself, with or without the link's header.
fn identification(packet: &[u8], own: SocketAddrV4) -> Option<u16> {
    // None, Ethernet's, with a VLAN.
    [0, 14, 18].into_iter().find_map(|link| {
        let ip: &[u8; 28] = packet.get(link..)?.first_chunk()?;
        let (address, port) = (own.ip().octets(), own.port().to_be_bytes());
        let ours = ip[0] == 0x45
            && ip[2..4] == 28_u16.to_be_bytes()
            && ip[9] == 17
            && ip[12..16] == address
            && ip[16..20] == address
            && ip[20..22] == port
            && ip[22..24] == port;
        ours.then(|| u16::from_be_bytes([ip[4], ip[5]]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_found_behind_any_links_and_nothing_else_is_taken_for_it() {
        let own: SocketAddrV4 = "192.0.2.7:49160".parse().unwrap();
        let header = [
            0x45, 0, 0, 28, 0xab, 0xcd, 0x40, 0, 64, 17, 1, 2, 192, 0, 2, 7, 192, 0, 2, 7, 0xc0, 0x08, 0xc0,
            0x08, 0, 8, 3, 4,
        ];
        for link in [0, 14, 18] {
            let mut packet = vec![0; link];
            packet.extend(header);
            assert_eq!(identification(&packet, own), Some(0xabcd), "{link}");
            assert_eq!(identification(&packet[..packet.len() - 1], own), None);
            for byte in [0, 3, 9, 13, 17, 21, 23] {
                let mut other = packet.clone();
                other[link + byte] ^= 1;
                assert_eq!(identification(&other, own), None, "{byte}");
            }
        }
        assert_eq!(identification(&[], own), None);
    }
}
